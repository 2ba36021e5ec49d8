"""The graph below values that are to be computed: who is in it, who holds them, what graph it is.

Every realisation begins with it, so it is little for each value. Its `signature` is equal for
graphs that a realisation treats alike: operations and how they are wired, what is held, how inputs
lie in memory, what they share and what of it may be overwritten. Values of scalars and where in its
memory an input begins are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, count, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from genesis.ir import ops
from genesis.ir.node import topological
from genesis.ndarray.core.liveness import holders, references
from genesis.ndarray.core.storage import advanced, pending_states
from genesis.ndarray.core.value import CopyPart, SubgraphCopy, Value

if TYPE_CHECKING:
    from genesis.backends.base import Memory
    from genesis.ir.dtype import DType
    from genesis.ndarray.core.layout import Shape, Strides

#: Forms of values and signatures of graphs that are numbered, at most.
MOST_FORMS = 1 << 16
MOST_SIGNATURES = 1 << 12

# A number means one thing for ever: whoever has one finds nothing else by it once it is forgotten.
# It is greater than every place and every count of references: where in a signature the forms begin
# is never in doubt.
_numbers = count(1 << 32)
_forms: dict[Any, int] = {}
_signatures: dict[tuple[Any, ...], int] = {}

_PLAIN = {Value, CopyPart, SubgraphCopy}

_sources, _memory, _form = map(attrgetter, ("sources", "memory", "form"))


class PendingGraph:
    """The values below some roots, and which of them others refer to.

    States that were advanced from one of them are roots, too. References are counted as soon as the
    values are found: when, of all that belongs to a realisation, only this object refers to them.
    So the variables of whoever works with it decide nothing about what is computed or kept.
    """

    __slots__ = (
        "blocks", "counts", "known", "memories", "memory_counts", "order", "places", "plain",
        "roots", "_within",
    )  # fmt: skip

    def __init__(self, roots: dict[Value, None], *within: PendingGraph) -> None:
        """`within` are other graphs, whose own references count as little as this one's."""
        self.roots = roots
        #: Values, and blocks of them, in the order in which they are found: the roots come first.
        self.order: list[Any] = list(roots)
        self.places: dict[Any, int] = dict(zip(roots, range(len(roots)), strict=True))
        self._find(0)
        while advanced and self._add_states():
            self._find(0)
        kinds = set(map(type, self.order))
        #: Whether some values are parts of blocks.
        self.blocks = SubgraphCopy in kinds
        #: Whether none is a check, or several results.
        self.plain = kinds <= _PLAIN
        if self.blocks:
            self._add_parts()
        self.memories: list[Memory] = list(filter(None, map(_memory, self.order)))  #: of the leaves
        self.counts = references(self.order)  #: references to each value, whose ever they are
        self.memory_counts = references(self.memories)
        self._within = within
        #: Whether one with as many references to each value was met before.
        self.known = False

    def _find(self, first: int) -> None:
        """Find what is below the values from the first one on."""
        order, places = self.order, self.places
        for value in islice(order, first, None):  # it grows
            for i in value.sources:
                if i not in places:
                    places[i] = len(order)
                    order.append(i)

    def _add(self, values: Sequence[Any]) -> None:
        for value in values:
            if value not in self.places:
                self.places[value] = len(self.order)
                self.order.append(value)

    def _add_states(self) -> bool:
        """Make states roots that were advanced from what is in the graph."""
        before = len(self.roots)
        states = [s.actual for s in pending_states() if s.base() in self.places]
        self.roots.update(dict.fromkeys(states))
        self._add(states)
        return len(self.roots) > before

    def _add_parts(self) -> None:
        """Add the parts of blocks that nothing here reads.

        They may be computed on the way, and need what their block reads.
        """
        for block in [x for x in self.order if type(x) is SubgraphCopy and len(x.parts) > 1]:
            parts = [part() for part in block.parts]
            self._add([x for x in parts if x is not None and x.memory is None])

    @property
    def inputs_first(self) -> list[Value]:
        """The values in another order."""
        return topological(self.order, _sources)

    @property
    def held(self) -> list[int]:
        """How many others refer to each value."""
        uses = [2] * len(self.order)  # in the order, and with its place
        for place in self._wiring():
            uses[place] += 1
        for graph in self._within:
            for place, value in enumerate(self.order):
                uses[place] += 2 * (value in graph.places)
        return holders(self.counts, uses)

    @property
    def alone(self) -> set[Memory]:
        """Memories that nothing refers to but values of the graph which nobody holds."""
        leaves = Counter(self.memories)
        others = holders(self.memory_counts, [2 * leaves[m] for m in self.memories])
        found = {m for m, n in zip(self.memories, others, strict=True) if not n}
        if found:
            found -= {v.memory for v, n in zip(self.order, self.held, strict=True) if n}
        return found

    def _wiring(self) -> list[int]:
        """Where the inputs of all values are."""
        return list(map(self.places.__getitem__, chain.from_iterable(map(_sources, self.order))))

    def leave(self) -> None:
        """Refer to nothing but the roots: the next graph of the same values counts, too."""
        self.places, self.order = {}, []
        self.forget_memories()

    def forget_memories(self) -> None:
        """Refer to no memory: only values do."""
        self.memories = []

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

    def signature(self) -> int | None:
        """A number that is equal for graphs that are realised alike; None if nothing is.

        Most graphs were met before with as many references to each value: that is seen without a
        look at the values one by one. A graph with other references may still be the same.
        """
        forms = list(map(_form, self.order))
        place = -1
        for _ in range(forms.count(0)):
            place = forms.index(0, place + 1)
            form = numbered_here(self.order[place])
            if form is None:
                return None
            forms[place] = form
        memories, places = self.memories, self.places
        numbers: dict[Memory, int] = dict(zip(memories, count()))
        shared = [numbers[m] for m in memories] if len(numbers) < len(memories) else ()
        begin = len(forms), len(self.roots), *[places[r] for r in self.roots], *self._wiring()
        brief = *begin, *forms, *self.counts, *self.memory_counts, *shared
        found = _signatures.get(brief)
        self.known = found is not None
        if found is None:
            words, sure = self._described(forms, numbers)
            full = begin, tuple(words)
            found = _signatures.get(full)
            if found is None:
                found = next(_numbers)
            if len(_signatures) >= MOST_SIGNATURES:
                _signatures.clear()
            _signatures[full] = found
            if sure:
                _signatures[brief] = found
        return found

    def _described(self, forms: list[int], numbers: Mapping[Memory, int]) -> tuple[list[int], bool]:
        """All about the values but how they are wired; whether what begins anywhere may do so."""
        alone, leaves = self.alone, Counter(self.memories)
        words: list[int] = []
        sure = not self._within
        for value, held, form in zip(self.order, self.held, forms, strict=True):
            memory = value.memory
            if memory is not None:
                exact = memory in alone or leaves[memory] > 1
                words += numbers[memory], memory in alone, value.offset if exact else -1
                sure &= not (exact and value.offset)
            elif not value.form and value.op is ops.SLICE and value.inputs[0].memory in alone:
                form = numbered(value)
                sure = False
            words.append(-form if held > 0 else form)
        return words, sure


def numbered_here(value: Value) -> int | None:
    """The number of what is not known by its own `form`: that of a slice depends on what it reads.

    What lies in memory has one if it is a whole, and of known size.
    """
    if value.memory is None:
        if value.op is ops.SLICE:
            return numbered(value, anywhere=value.inputs[0].memory is not None)
        found = value.form = numbered(value)
        return found
    offset = value.offset
    if type(offset) is not int or 0 in value.shape or value.placement is not None:
        return None
    number = numbered_leaf(value.dtype, value.shape, value.strides, value.attr, offset == 0)
    if offset == 0:
        value.form = number
    return number


def form_of(value: Any) -> int | None:
    """The number of what a value is; None if nothing is like it."""
    return value.form or numbered_here(value)


def numbered_leaf(
    dtype: DType, shape: Shape, strides: Strides, foreign: bool = False, whole: bool = True
) -> int:
    """The number of what lies in memory; it is `whole` if it begins where the memory does."""
    form = dtype, shape, strides, foreign, whole
    number = _forms.get(form)
    if number is None:
        number = _forms[form] = next(_numbers)
    return number


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
    form = op, attr, value.dtype, value.shape, len(value.inputs), type(value)
    number = _forms.get(form)
    if number is None:
        number = _forms[form] = next(_numbers)
    return number


def new_form() -> int:
    """The number of something that is like nothing else."""
    return next(_numbers)


def forget_forms() -> None:
    """Number forms and graphs anew: plans are found by their signatures no more."""
    _forms.clear()
    _signatures.clear()


def are_too_many_forms() -> bool:
    """Whether it is time to `forget_forms`."""
    return len(_forms) > MOST_FORMS
