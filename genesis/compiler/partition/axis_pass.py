"""One pass: a graph divided along one axis of a mesh.

Nodes are visited inputs first. Each has one natural state, which its rule decides, and is made in
others where somebody wants it so, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from genesis.compiler.partition.resharding import PARTIAL, Conversions, State
from genesis.compiler.partition.rules import ShardedForm, reshaped, rule_of
from genesis.ir import ops
from genesis.ir.node import Leaf, Node, Shape, node, topological
from genesis.ir.placement import Split


class AxisPass(Conversions):
    """The pass along an axis of so many ranks; `leaves` are split as they say, by slot."""

    def __init__(
        self, mesh: str, axis: str, size: int, leaves: Mapping[int, Split], roots: Sequence[Node]
    ) -> None:
        super().__init__(mesh, axis, size)
        self._leaves = leaves
        self._order = topological(roots)
        self.uses = Counter(i for n in self._order for i in n.inputs)
        self.uses.update(roots)
        self.state: dict[Node, State] = {}
        self.made: dict[Node, dict[State, Node]] = {}
        self.stored: set[Node] = set()  # nodes that are split only as they lie
        self.origins: dict[Node, Node] = {}
        self.hints = self._hinted()
        for n in self._order:
            self._visit(n)

    def states(self, n: Node) -> list[State]:
        """The natural states of a node's inputs."""
        return [self.state[i] for i in n.inputs]

    def to(self, n: Node, state: State) -> Node:
        """What this rank has of a node, in another state."""
        found = self.made[n].get(state)
        if found is None:
            found = self.made[n][state] = self._converted(n, state)
            self.origins.setdefault(found, n)
        return found

    def has(self, n: Node, state: State) -> bool:
        """Whether a node was made in a state, or what it is a permutation of was."""
        if state in self.made[n] or not isinstance(state, int):
            return state in self.made[n]
        return n.op is ops.PERMUTE and self.has(n.inputs[0], n.attr[state])

    def free(self, n: Node) -> State:
        """The state a result is best left in: split if it is, or has been; else whole."""
        state = self.state[n]
        if state != PARTIAL:
            return state
        forms = [s for s in self.made[n] if isinstance(s, int)]
        if forms or None in self.made[n]:
            return forms[0] if forms else None
        return self.hints.get(n)

    # ---- what rules that make their nodes themselves give
    def partial(self, n: Node, local: Node) -> Node:
        """Take note that `local` is a partial sum of `n`."""
        return self.kept(n, PARTIAL, False, local)

    def split(self, n: Node, dim: int, local: Node) -> Node:
        """Take note that `local` is a block of `n`."""
        return self.kept(n, dim, False, local)

    def kept(self, n: Node, state: State, stored: bool, local: Node) -> Node:
        """Take note of what was made for a node."""
        self.state[n] = state
        self.made[n] = {state: local}
        self.origins.setdefault(local, n)
        if stored and isinstance(state, int):
            self.stored.add(n)
        return local

    # ---- the pass
    def _visit(self, n: Node) -> None:
        if n.op is ops.BUFFER:
            self._leaf(n)
        elif n.op.group == "leaf":
            self.kept(n, None, False, n)
        else:
            form = rule_of(n.op)(self, n)
            if isinstance(form, ShardedForm):
                inputs = [self.to(i, s) for i, s in zip(n.inputs, form.wanted, strict=True)]
                attr = n.attr if form.attr is None else form.attr
                shape = self.shape(n.shape, form.state)
                local = node(n.op, tuple(inputs), attr, n.dtype, shape)
                self.kept(n, form.state, form.stored, local)
            elif n not in self.state:
                self.kept(n, None, False, form)

    def _leaf(self, n: Node) -> None:
        split = self._leaves.get(n.attr.slot)
        if split is None:
            self.kept(n, None, False, n)
            return
        shape = self.shape(n.shape, split.dim)
        leaf = Leaf(n.attr.slot, _row_major(shape), 0, n.attr.steady, n.attr.constant)
        local = node(ops.BUFFER, (), leaf, n.dtype, shape)
        self.kept(n, split.dim, split.stored, local)

    def _converted(self, n: Node, state: State) -> Node:
        natural, have = self.state[n], self.made[n]
        if state is None:
            blocks = [s for s in have if isinstance(s, int)]
            source: State = blocks[0] if blocks else natural
            return self.whole(have[source], source)  # a block is gathered for half of a sum
        assert isinstance(state, int)
        if self.has(n, state):
            x = self.to(n.inputs[0], n.attr[state])
            return node(n.op, (x,), n.attr, n.dtype, self.shape(n.shape, state))
        if None in have:
            return self.slice(have[None], state)
        return self.block(have[natural], natural, state)

    def _hinted(self) -> dict[Node, int]:
        """For what meets stored arrays: the dimension that those are split along.

        A gradient that updates weights which are stored in blocks is best summed up in blocks.
        """
        weak: dict[Node, int] = {}
        for n in self._order:
            if n.op is ops.BUFFER:
                split = self._leaves.get(n.attr.slot)
                if split is not None and split.stored:
                    weak[n] = split.dim
            elif n.op.is_elementwise:
                found = [weak[i] for i in n.inputs if i in weak and i.shape == n.shape]
                if found:
                    weak[n] = found[0]
        hints = dict(weak)
        for n in reversed(self._order):
            dim = hints.get(n)
            if dim is None:
                continue
            if n.op.is_elementwise:
                for i in n.inputs:
                    if i.shape == n.shape:
                        hints.setdefault(i, dim)
            elif n.op is ops.PERMUTE:
                hints.setdefault(n.inputs[0], n.attr[dim])
            elif n.op is ops.RESHAPE:
                back = reshaped(self, n, n.inputs[0], dim)
                if back is not None:
                    hints.setdefault(n.inputs[0], back)
        return {n: dim for n, dim in hints.items() if n not in weak or n.op is not ops.BUFFER}


def _row_major(shape: Shape) -> Shape:
    strides: list[int] = []
    total = 1
    for extent in reversed(shape):
        strides.append(total)
        total = total * extent  # type: ignore[assignment]
    return tuple(reversed(strides))
