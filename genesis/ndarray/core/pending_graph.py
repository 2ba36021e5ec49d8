"""The graph below values that are to be computed: who is in it, who holds them, what graph it is.

Every realisation begins with it, so it is one walk, and little for each value. Its `signature` is
equal for graphs that a realisation treats alike: operations and how they are wired, what is held,
how inputs lie in memory, what they share and what of it may be overwritten. Values of scalars and
where in its memory an input begins are not in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from genesis.ir import ops
from genesis.ndarray.core.liveness import holders
from genesis.ndarray.core.value import CopyPart, SubgraphCopy, Value

if TYPE_CHECKING:
    from genesis.backends.base import Memory

#: Forms of values that are numbered, at most.
MOST_FORMS = 1 << 16

_forms: dict[Any, int] = {}
_numbers = count()  # a number means one form for ever: signatures outlive what is forgotten

_PLAIN = {Value, CopyPart, SubgraphCopy}


class PendingGraph:
    """The values below some roots, inputs first, and which of them others refer to.

    References are counted as soon as the values are found: when, of all that belongs to a
    realisation, only this object refers to them. So the variables of whoever works with it decide
    nothing about what is computed or kept.
    """

    __slots__ = (
        "alone", "blocks", "held", "memories", "order", "places", "plain", "roots", "wiring",
    )  # fmt: skip

    def __init__(self, roots: dict[Value, None], *within: PendingGraph) -> None:
        """`within` are other graphs, whose own references count as little as this one's."""
        self.roots = roots
        #: Values with their positions, the positions of all inputs, and how often each is one.
        self.places: dict[Any, int]
        self.places, self.wiring, uses = _visited(roots)
        for graph in within:
            for place, value in enumerate(self.places):
                uses[place] += 2 * (value in graph.places)  # there, and in its order
            del value
        self.held = holders(self.places, uses)  # how many others refer to each
        self.memories = _memories(self.places)  # that leaves lie in, and how many lie in each
        others = holders(self.memories, self.memories.values())
        alone = {m for m, n in zip(self.memories, others, strict=True) if not n}
        if alone:
            alone -= {v.memory for v, n in zip(self.places, self.held, strict=True) if n}
        #: Memories that nothing refers to but values of the graph which nobody holds.
        self.alone: set[Memory] = alone
        self.order = list(self.places)
        kinds = set(map(type, self.order))
        #: Whether some values are parts of blocks.
        self.blocks = SubgraphCopy in kinds
        #: Whether none is a check, or several results.
        self.plain = kinds <= _PLAIN

    def leave(self) -> None:
        """Refer to nothing but the roots: the next graph of the same values counts, too."""
        self.places, self.wiring, self.held, self.order = {}, [], [], []
        self.forget_memories()

    def forget_memories(self) -> None:
        """Refer to no memory: only values do."""
        self.memories, self.alone = {}, set()

    def expand(self) -> tuple[set[int], dict[int, tuple[int, int]]]:
        """Have no blocks among the values; says where those are that were parts of some.

        Besides, where each value is in its block, by the value's id: nothing refers to it.
        """
        parts = {place for place, value in enumerate(self.order) if type(value) is CopyPart}
        inner: dict[int, tuple[int, int]] = {}
        for place, vertex in enumerate(self.order):
            if type(vertex) is SubgraphCopy:
                made = map(id, vertex.expand())
                inner.update({value: (place, k) for k, value in enumerate(made)})
        return parts, inner

    def signature(self) -> bytes | None:
        """What is equal for graphs that are realised alike; None if nothing is."""
        places, alone, memories = self.places, self.alone, self.memories
        numbers = dict(zip(memories, range(len(memories)), strict=True))
        words = [len(places), len(self.roots), *[places[r] for r in self.roots], *self.wiring]
        for value, held in zip(self.order, self.held, strict=True):
            memory = value.memory
            if memory is None:
                number = value.form
                if number is None:
                    below = value.inputs[0].memory if value.op is ops.SLICE else None
                    number = numbered(value, below is not None and below not in alone)
            else:
                offset = value.offset
                if type(offset) is not int or 0 in value.shape or value.placement is not None:
                    return None
                free = memory in alone
                words += numbers[memory], offset if free or memories[memory] > 1 else -1
                form = value.dtype, value.shape, value.strides, value.attr, free
                number = _forms.get(form)
                if number is None:
                    number = _forms[form] = next(_numbers)
            words.append(-1 - number if held > 0 else number)
        return array("q", words).tobytes()


def numbered(value: Value, anywhere: bool = False) -> int:
    """The number of what a pending value is, whatever it is computed from.

    A slice of what lies in memory may begin `anywhere` in it.
    """
    op, attr = value.op, value.attr
    if op is ops.SCALAR:
        attr = None
    elif op is ops.CONST:
        attr = repr(attr)  # 0.0 == -0.0, and nan != nan
    elif anywhere:
        attr = tuple([step for _, step in attr])
    form = op, attr, value.dtype, value.shape, len(value.inputs)
    number = _forms.get(form)
    if number is None:
        number = _forms[form] = next(_numbers)
    return number


def new_form() -> int:
    """The number of something that is like nothing else."""
    return next(_numbers)


def forget_forms() -> None:
    """Number forms anew: plans are found by their signatures no more."""
    _forms.clear()


def are_too_many_forms() -> bool:
    """Whether it is time to `forget_forms`."""
    return len(_forms) > MOST_FORMS


def _visited(roots: dict[Value, None]) -> tuple[dict[Any, int], list[int], list[int]]:
    """The values below `roots` with positions, inputs first; what each reads, how often it is read.

    As `topological` finds them, but counted on the way: every realisation waits for this.
    """
    places: dict[Any, int] = {}  # values, and blocks of them
    wiring: list[int] = []
    uses: list[int] = []
    several: list[SubgraphCopy] = []
    for root in roots:
        if root in places:
            continue
        stack: list[tuple[Any, Iterator[Any]]] = [(root, iter(root.sources))]
        while stack:
            value, remaining = stack[-1]
            for i in remaining:
                if i not in places:
                    if below := i.sources:
                        stack.append((i, iter(below)))
                        break
                    places[i] = len(uses)
                    uses.append(0)
            else:
                for i in value.sources:
                    place = places[i]
                    wiring.append(place)
                    uses[place] += 1
                places[value] = len(uses)
                uses.append(0)
                stack.pop()
                if type(value) is SubgraphCopy and len(value.parts) > 1:
                    several.append(value)
    for block in several:
        # Parts that nothing here reads are in the graph with their block: they may be computed on
        # the way, and need what it reads.
        for part in [part() for part in block.parts]:
            if part is not None and part.memory is None and part not in places:
                place = places[block]
                wiring.append(place)
                uses[place] += 1
                places[part] = len(uses)
                uses.append(0)
    return places, wiring, uses


def _memories(values: dict[Value, int]) -> dict[Memory, int]:
    """The memories the leaves lie in, and how many leaves lie in each."""
    memories: dict[Memory, int] = {}
    for value in values:
        memory = value.memory
        if memory is not None:
            memories[memory] = memories.get(memory, 0) + 1
    return memories
