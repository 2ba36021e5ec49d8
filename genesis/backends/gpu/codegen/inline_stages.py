"""Kernels without stages, for a language that manages fast memory itself.

Triton keeps tiles in shared memory on its own account, so a stage is undone: a read of a stage
element becomes the value that was written there. A packing copy ``Bp[j, k, v] = B[k, 16*j + v]``
is inverted, and reading ``Bp[x, y, z]`` becomes reading ``B[y, 16*x + z]``. Every access made this
way is one that the packing loop made: where that is not plain from the indices, it is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from genesis.ir import ops
from genesis.ir.index import Linear, bounds, simplify
from genesis.ir.kernel import (
    Axis,
    Body,
    Buffer,
    If,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Reduce,
    Role,
    Scan,
    Stage,
    Statement,
    Store,
    as_index,
    children,
    expressions,
    fold,
    load_parts,
    map_expressions,
    tile_axes,
    walk,
)
from genesis.ir.node import TRUE, Node, both, elementwise, topological
from genesis.ir.rewrite import substitute

Path = tuple[Statement, ...]  # the loops and branches around a statement, outermost first


def inline_stages(kernel: Kernel) -> Kernel:
    """The kernel with every read of a stage replaced by the value that was written there.

    Raises NotImplementedError, naming the stage, where writing is more than a packing copy.
    """
    return kernel.with_phases(map(_inline_phase, kernel.phases))


def _inline_phase(phase: Phase) -> Phase:
    if not any(isinstance(s, Stage) for s in walk(phase.body)):
        return phase
    stored = {s.buffer for s in walk(phase.body) if isinstance(s, Store)}
    body = _Inliner(stored).body(phase.body, ())
    return replace(phase, body=_without_dead_code(body))


@dataclass(frozen=True, eq=False)
class _Definition:
    """Where a local gets its value, and the value if a Let gives it."""

    path: Path
    value: Node | None


class _Inliner:
    """Walks a phase in program order, remembering what was written to each stage."""

    def __init__(self, stored: set[Buffer]) -> None:
        self.stored = stored
        self.writes: dict[Buffer, tuple[Path, Store]] = {}
        self.locals: dict[Local, _Definition] = {}

    def body(self, body: Body, path: Path) -> Body:
        return tuple(new for s in body for new in self.statement(s, path))

    def statement(self, s: Statement, path: Path) -> Body:
        if isinstance(s, Stage):
            return ()
        if isinstance(s, Loop):
            try:
                return self.loop(s, path)
            except _OtherLane as lane:
                sums = _as_sum(s, lane.axis)
                if sums is None:
                    raise
                return self.body(sums, path)
        if isinstance(s, If):
            condition = self.inlined(s.condition, path)
            # The branches are two places: what one writes the other does not see.
            then = self.body(s.body, (*path, replace(s, orelse=())))
            orelse = self.body(s.orelse, (*path, replace(s, body=())))
            return (If(condition, then, orelse),)
        (new,) = map_expressions((s,), lambda n: self.inlined(n, path))
        if isinstance(new, Let):
            self.locals[new.local] = _Definition(path, new.value)
        elif isinstance(new, Reduce | Scan):
            self.define(new.locals, path)
        elif isinstance(new, Store) and new.buffer.role is Role.STAGE:
            if new.buffer in self.writes or new.atomic is not None:
                raise _unsupported(new.buffer, "is written by more than one plain store")
            self.writes[new.buffer] = (path, new)
            return ()
        return (new,)

    def loop(self, s: Loop, path: Path) -> Body:
        inits = [self.inlined(c.init, path) for c in s.carried]
        self.define((c.local for c in s.carried), (*path, s))
        body = self.body(s.body, (*path, s))
        steps = [self.inlined(c.step, (*path, s)) for c in s.carried]
        carried = tuple(
            replace(c, init=init, step=step)
            for c, init, step in zip(s.carried, inits, steps, strict=True)
        )
        self.define((c.local for c in s.carried), path)
        return (replace(s, body=body, carried=carried),)

    def define(self, locals_: Iterable[Local], path: Path) -> None:
        for local in locals_:
            self.locals[local] = _Definition(path, None)

    def inlined(self, n: Node, path: Path) -> Node:
        """`n` with its loads of stages replaced."""
        done: dict[Node, Node] = {}
        for m in topological([n]):
            new = m.with_inputs(tuple(done[i] for i in m.inputs))
            if new.op is ops.LOAD and new.attr.role is Role.STAGE:
                new = self.value(new, path)
            done[m] = new
        return done[n]

    def value(self, load: Node, path: Path) -> Node:
        """What the load of a stage reads."""
        stage, indices, mask, other = load_parts(load)
        if stage not in self.writes:
            raise _unsupported(stage, "is read before it is written")
        written, store = self.writes[stage]
        common = 0
        while common < min(len(written), len(path)) and written[common] is path[common]:
            common += 1
        axes = set(tile_axes(*store.index, store.value))
        for s in written[common:]:
            if not isinstance(s, Loop):
                raise _unsupported(stage, "is written under a condition")
            axes.add(s.axis)
        places = _invert(stage, store.index, indices, axes)
        moved = {axis for axis in axes if axis not in places or places[axis] is not axis.node}
        value = self._expanded(stage, store.value, path[:common], moved)
        if any(axis.node in topological([value]) for axis in axes - places.keys()):
            raise _unsupported(stage, "is written several times at one index")
        if any(m.op is ops.LOAD and m.attr in self.stored for m in topological([value])):
            raise _unsupported(stage, "copies a buffer that the same phase writes")
        mapping = {axis.node: place for axis, place in places.items()}
        inside = mask
        for axis, place in places.items():
            if place.op is ops.AXIS and place.attr.extent == axis.extent:
                continue
            (extent,) = substitute([as_index(axis.extent)], mapping)
            inside = both(inside, both(simplify(as_index(0) <= place), simplify(place < extent)))
        (value,) = substitute([value], mapping)
        if inside is TRUE:
            return simplify(value)
        return simplify(only_where(inside, value, other))

    def _expanded(self, stage: Buffer, value: Node, scope: Path, moved: set[Axis]) -> Node:
        """`value` without the locals that are gone, or needed at other lanes, when it is read."""
        while True:
            gone: dict[Node, Node] = {}
            for m in topological([value]):
                if m.op is not ops.LOCAL:
                    continue
                definition = self.locals[m.attr]
                visible = definition.path == scope[: len(definition.path)]
                if visible and not moved.intersection(m.attr.tiles):
                    continue
                if definition.value is None:
                    lanes = moved.intersection(m.attr.tiles) if visible else set()
                    why = f"holds {m.attr.name}, which a loop or fold computes"
                    raise _OtherLane(lanes.pop(), stage, why) if lanes else _unsupported(stage, why)
                gone[m] = definition.value
            if not gone:
                return value
            (value,) = substitute([value], gone)


def only_where(condition: Node, value: Node, other: Node) -> Node:
    """`value` where `condition` holds and `other` elsewhere, loading only where it holds."""
    done: dict[Node, Node] = {}
    for m in topological([value]):
        new = m.with_inputs(tuple(done[i] for i in m.inputs))
        if new.op is ops.LOAD:
            buffer, indices, mask, fill = load_parts(new)
            new = buffer.load(*indices, mask=both(mask, condition), other=fill)
        done[m] = new
    result = done[value]
    if result.op is ops.LOAD and result.inputs[-1] is other:
        return result
    return elementwise(ops.WHERE, condition, result, other)


def _invert(
    stage: Buffer, written: tuple[Node, ...], read: tuple[Node, ...], axes: set[Axis]
) -> dict[Axis, Node]:
    """The values of `axes` for which the indices `written` are the indices `read`."""
    nodes = {axis.node for axis in axes}
    places: dict[Axis, Node] = {}
    for out, target in zip(written, read, strict=True):
        form = Linear.of(simplify(out))
        digits = {atom: c for atom, c in form.terms.items() if atom in nodes}
        fixed = Linear({a: c for a, c in form.terms.items() if a not in nodes}, form.constant)
        nested = any(nodes & set(topological([atom])) for atom in fixed.terms)
        if nested or any(atom.attr in places or c < 0 for atom, c in digits.items()):
            raise _unsupported(stage, "is written at indices that cannot be inverted")
        rest = simplify(target - fixed.emit())
        # The index is a number in a mixed radix: its digits are the axes, most significant first.
        below = sum(c * bounds(atom)[1] for atom, c in digits.items())
        for atom, c in sorted(digits.items(), key=lambda digit: -digit[1]):
            below -= c * bounds(atom)[1]
            if below >= c:
                raise _unsupported(stage, "is written at indices that overlap")
            places[atom.attr] = simplify(rest // c)
            rest = simplify(rest % c)
    return places


def _without_dead_code(body: Body) -> Body:
    """`body` without values that nothing uses and loops that do nothing."""
    while True:
        used: set[Local] = set()
        for s in walk(body):
            used |= {m.attr for m in topological(expressions(s)) if m.op is ops.LOCAL}
        smaller = _pruned(body, used)
        if sum(1 for _ in walk(smaller)) == sum(1 for _ in walk(body)):
            return body
        body = smaller


def _pruned(body: Body, used: set[Local]) -> Body:
    kept: list[Statement] = []
    for s in body:
        if isinstance(s, Let) and s.local not in used:
            continue
        if isinstance(s, Reduce | Scan) and not used.intersection(s.locals):
            continue
        if isinstance(s, Loop):
            s = replace(s, body=_pruned(s.body, used))
        elif isinstance(s, If):
            s = If(s.condition, _pruned(s.body, used), _pruned(s.orelse, used))
        carried = {c.local for c in s.carried} if isinstance(s, Loop) else set()
        if isinstance(s, Loop | If) and not any(children(s)) and not used & carried:
            continue
        kept.append(s)
    return tuple(kept)


class _OtherLane(NotImplementedError):
    """A block-local value is needed at a lane that is not the statement's own."""

    def __init__(self, axis: Axis, stage: Buffer, why: str) -> None:
        super().__init__(str(_unsupported(stage, why)))
        self.axis = axis


def _as_sum(loop: Loop, axis: Axis) -> Body | None:
    """A loop that only adds, over as many values as a tile axis has, as a sum over that axis.

    A tile's lanes cannot be read one by one, but all at once they can.
    """
    if loop.axis.extent != axis.extent or len(loop.carried) != 1:
        return None
    (carry,) = loop.carried
    (step,) = inline_lets(loop.body, [carry.step]) or (None,)
    acc = carry.local.node
    if step is None or step.op is not ops.ADD or acc not in step.inputs:
        return None
    term = step.inputs[1] if step.inputs[0] is acc else step.inputs[0]
    if acc in topological([term]) or axis in tile_axes(acc, term):
        return None
    total = Local(f"{carry.local.name}_sum", carry.local.dtype, carry.local.tiles)
    (term,) = substitute([term], {loop.axis.node: axis.node})
    return (
        Reduce((total,), (term,), axis, fold(ops.ADD, total.dtype)),
        Let(carry.local, carry.init + total.node),
    )


def inline_lets(body: Body, roots: Sequence[Node]) -> list[Node] | None:
    """Expressions at the end of a body that has nothing but Lets, in terms of what is before it."""
    values = list(roots)
    for s in reversed(body):
        if not isinstance(s, Let):
            return None
        values = substitute(values, {s.local.node: s.value})
    return values


def _unsupported(stage: Buffer, why: str) -> NotImplementedError:
    return NotImplementedError(f"Triton has no explicit stages, and stage {stage.name} {why}")


__all__ = ["inline_lets", "inline_stages", "only_where"]
