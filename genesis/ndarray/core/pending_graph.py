"""The graph below values that are to be computed: who is in it, who holds them, what graph it is.

Every realisation begins with it, so it is little for each value. Its `signature` is equal for
graphs that a realisation treats alike: operations and how they are wired, what is held, how inputs
lie in memory, what they share and what of it may be overwritten. Values of scalars and where in its
memory an input begins are not in it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from operator import attrgetter, is_
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
_signatures: dict[Any, int] = {}

_PLAIN = {Value, CopyPart, SubgraphCopy}

_sources, _memory, _form = map(attrgetter, ("sources", "memory", "form"))


#: Whole numbers side by side, whose bytes are a key.
Words = array  # of "q"


def _walk(order: list[Any], wiring: Words[int], first: int) -> set[type]:
    """Add what is below the values from the first one on, and where what each refers to is.

    Gives the kinds of all values.
    """
    places = dict(zip(order, count()))
    place_of = places.setdefault
    for value in islice(order, first, None):  # it grows
        for x in value.sources:
            place = place_of(x, len(order))
            if place == len(order):
                order.append(x)
            wiring.append(place)
    return set(map(type, order))


def _survey(order: list[Any]) -> tuple[list[Memory], Words[int], Words[int], Words[int]]:
    """The memories of values that lie in some, the forms of all; references to those and these."""
    memories = list(filter(None, map(_memory, order)))
    counts = references(order), references(memories)
    forms, of_values, of_memories = [array("q", x) for x in (map(_form, order), *counts)]
    return memories, forms, of_values, of_memories


def _of_kind(kind: type, order: list[Any]) -> list[Any]:
    """The values of a kind, not of kinds that are derived from it."""
    return [x for x in order if type(x) is kind]


#: Every realisation looks so at all values below its roots. PyTorch's device, which is compiled,
#: puts its own functions here, which do the same.
walk: Callable[[list[Any], Words[int], int], set[type]] = _walk
survey: Callable[[list[Any]], tuple[list[Memory], Words[int], Words[int], Words[int]]] = _survey
of_kind: Callable[[type, list[Any]], list[Any]] = _of_kind


class PendingGraph:
    """The values below some roots, and which of them others refer to.

    States that were advanced from one of them are roots, too. References are counted as soon as the
    values are found: when, of all that belongs to a realisation, only this object refers to them.
    So the variables of whoever works with it decide nothing about what is computed or kept.
    """

    __slots__ = (
        "blocks", "counts", "forms", "known", "memories", "memory_counts", "order", "plain",
        "roots", "_within", "_wiring",
    )  # fmt: skip

    def __init__(self, roots: dict[Value, None], *within: PendingGraph) -> None:
        """`within` are other graphs, whose own references count as little as this one's."""
        self.roots = roots
        #: Values, and blocks of them, in the order in which they are found: the roots come first.
        self.order: list[Any] = list(roots)
        #: Where what each value refers to is, one value after another.
        self._wiring = array("q")
        kinds = walk(self.order, self._wiring, 0)
        while advanced and (found := self._add_states()):
            kinds = found
        #: Whether some values are parts of blocks.
        self.blocks = SubgraphCopy in kinds
        #: Whether none is a check, or several results.
        self.plain = kinds <= _PLAIN
        if self.blocks:
            self._add_parts()
        #: The memories of leaves; references to values and to those, whose ever they are.
        self.memories, self.forms, self.counts, self.memory_counts = survey(self.order)
        self._within = within
        #: Whether one with as many references to each value was met before.
        self.known = False

    @property
    def places(self) -> dict[Any, int]:
        """Where the values are, made anew: kept, it would be one more reference to each."""
        return dict(zip(self.order, count()))

    def _add(self, values: Sequence[Any]) -> set[type]:
        """Add values, and what is below them; gives the kinds of all."""
        first = len(self.order)
        known = set(self.order)
        self.order += [x for x in dict.fromkeys(values) if x not in known]
        return walk(self.order, self._wiring, first)

    def _add_states(self) -> set[type] | None:
        """Make states roots that were advanced from what is in the graph; None: there are none."""
        known = set(self.order)
        states = [s.actual for s in pending_states() if s.base() in known]
        before = len(self.roots)
        self.roots.update(dict.fromkeys(states))
        return self._add(states) if len(self.roots) > before else None

    def _add_parts(self) -> None:
        """Add the parts of blocks that nothing here reads.

        They may be computed on the way, and need what their block reads.
        """
        blocks = of_kind(SubgraphCopy, self.order)
        parts = [part() for block in blocks if len(block.parts) > 1 for part in block.parts]
        if parts:
            self._add([x for x in parts if x is not None and x.memory is None])

    @property
    def inputs_first(self) -> list[Value]:
        """The values in another order."""
        return topological(self.order, _sources)

    @property
    def held(self) -> list[int]:
        """How many others refer to each value."""
        uses = [1] * len(self.order)  # in the order
        for place in self._wiring:
            uses[place] += 1
        for graph in self._within:
            inside = set(graph.order)
            for place, value in enumerate(self.order):
                uses[place] += value in inside
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

    def leave(self) -> None:
        """Refer to nothing but the roots: the next graph of the same values counts, too."""
        self.order = []
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
        forms, memories, place = self.forms, self.memories, -1
        for _ in range(forms.count(0)):
            place = forms.index(0, place + 1)
            form = numbered_here(self.order[place])
            if form is None:
                return None
            forms[place] = form
        numbers: dict[Memory, int] = dict(zip(memories, count()))
        shared = [numbers[m] for m in memories] if len(numbers) < len(memories) else ()
        begin = array("q", (len(forms), len(self.roots), *self._root_places())) + self._wiring
        counts = self.counts + self.memory_counts + array("q", shared)
        brief = (begin + forms + counts).tobytes()
        found = _signatures.get(brief)
        self.known = found is not None
        if found is None:
            words, sure = self._described(forms, numbers)
            full = begin.tobytes(), tuple(words)
            found = _signatures.get(full)
            if found is None:
                found = next(_numbers)
            if len(_signatures) >= MOST_SIGNATURES:
                _signatures.clear()
            _signatures[full] = found
            if sure:
                _signatures[brief] = found
        return found

    def _root_places(self) -> Iterable[int]:
        if all(map(is_, self.roots, self.order)):  # unless a state was something's input before
            return range(len(self.roots))
        return map(self.places.__getitem__, self.roots)

    def _described(
        self, forms: Words[int], numbers: Mapping[Memory, int]
    ) -> tuple[list[int], bool]:
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
