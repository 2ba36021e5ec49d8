"""Pieces of graphs that are built again and again: copied, rather than computed anew.

Whoever calls the same function on arrays of the same forms builds the same values, but for what
they read. A `Subgraph` has them as data, and `copy` makes them of other inputs in one loop: shape
rules, promotion and broadcasting are decided once. Where the values are plain ones they are not
even made: a `SubgraphCopy` stands for them, and its parts for those that somebody else wants. A
graph that was realised before needs no more than that; whoever looks into a part has them made.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import topological
from genesis.ir.ops import Op
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.pending_graph import new_form, numbered
from genesis.ndarray.core.source_lines import caller
from genesis.ndarray.core.value import (
    MAX_DEPTH,
    Checked,
    CopyPart,
    Several,
    SubgraphCopy,
    Value,
    cut,
    thread,
)

if TYPE_CHECKING:
    from genesis.ndarray.ops.normalize_index import KnownChecks


class _Made(NamedTuple):
    """A value to be made: what it is, and the positions of its inputs."""

    kind: type[Value]
    inputs: Any  # a position, or what picks several; None: there are none
    several: bool
    op: Op
    attr: Any
    dtype: DType
    shape: Shape
    height: int  # above the inputs
    form: int  # as `pending_graph` numbers it, or 0
    more: tuple[Any, ...]  # of a check


class Subgraph:
    """Values as data: the inputs come first, then what is made, in order."""

    __slots__ = (
        "checks", "form", "height", "inputs", "made", "order", "outputs", "places", "plain",
        "single", "parts",
    )  # fmt: skip

    def __init__(
        self, inputs: Sequence[Value], roots: Sequence[Value], is_step: bool = False
    ) -> None:
        """The values between inputs and roots; nothing but the inputs may lie in memory.

        A copy makes a graph deeper by its height, or by one step where that is what is bounded.
        """
        places = {v: k for k, v in enumerate(inputs)}
        heights = [0] * len(inputs)
        same: dict[Any, int] = {}  # equal values are made once
        self.made: list[_Made] = []
        for v in topological(roots, lambda v: () if v in places else v.inputs):
            if v in places:
                continue
            if v.memory is not None or v.op is ops.PARAMETER:
                raise NotASubgraph(f"{v} is no input")
            below = tuple([places[i] for i in v.inputs])
            made = _described(v, below, 1 + max([heights[k] for k in below], default=0))
            key = v if type(v) is not Value or v.op in _ALONE else (numbered(v), below)
            places[v] = place = same.setdefault(key, len(heights))
            if place == len(heights):
                heights.append(made.height)
                self.made.append(made)
        self.height = 1 if is_step else max(heights, default=0)
        self.order = places  #: the values themselves, and where they are among all
        self.inputs = len(inputs)
        #: Whether indices in a copy are in range, as far as that is known; None: there are none.
        self.checks = _known_checks(places, inputs)
        self.plain = (self.checks is None or self.checks.decidable) and all(
            m.kind in (Value, Checked) and m.op is not ops.ITEM for m in self.made
        )
        #: Where among all are the values that a copy gives, by their numbers among what it gives.
        self.outputs: list[int] = []
        #: Their forms, heights, dtypes and shapes.
        self.parts: list[tuple[int, int, DType, Shape]] = []
        self.places = self.give([places[v] for v in roots])  #: where the roots are in a copy
        self.form = new_form()  #: of its blocks
        alone = self.plain and len(self.made) == 1 and self.checks is None
        self.single = self.made[0] if alone else None

    def give(self, places: Sequence[int]) -> list[int]:
        """Have copies give these values, too; says where they are in a copy."""
        for place in dict.fromkeys(places):
            if place >= self.inputs and place not in self.outputs:
                made = self.made[place - self.inputs]
                self.outputs.append(place)
                height = min(made.height, self.height)
                self.parts.append((new_form(), height, made.dtype, made.shape))
        given = {place: k for k, place in enumerate(self.outputs, self.inputs)}
        return [given.get(place, place) for place in places]

    def copy(self, inputs: Sequence[Value], device: str, passed: bool | None = None) -> list[Value]:
        """The inputs, and after them the values that are made of them and given.

        `passed` says whether all checks are known to pass, if somebody has asked before.
        """
        values = list(inputs)
        self.extend(values, device, passed)
        return values

    def extend(
        self, values: list[Value], device: str, passed: bool | None = None, inside: int = 2
    ) -> None:
        """Append to the inputs what `copy` gives after them.

        So many frames, this one's among them, are known to be `inside` of the package.
        """
        below = 0
        for v in values:
            if v.depth > below:
                below = v.depth
        if below + self.height >= MAX_DEPTH:
            cut(values)
            below = 0
        thread.__dict__["pending"] += len(self.made)
        if self.single is not None:  # a block would be more than what it stands for
            _, picked, several, op, attr, dtype, shape, _, form, _ = self.single
            value: Any = Value.__new__(Value)
            if several:
                value.inputs = value.sources = picked(values)
            else:
                value.inputs = value.sources = () if picked is None else (values[picked],)
            value.op = op
            value.attr = attr
            value.dtype = dtype
            value.shape = shape
            value.device = device
            value.depth = below + 1
            value.memory = None
            value.code, value.instruction = caller(inside + 1)
            value.form = form
            values.append(value)
            return
        block = SubgraphCopy()
        block.template = self
        block.sources = tuple(values)
        block.device = device
        block.parts = parts = []
        block.depth = below
        block.code, block.instruction = code, instruction = caller(inside + 1)
        block.form = self.form
        block.passed = self.passes(values) if passed is None else passed
        if not self.plain or not block.passed:
            made = self.expand(block)
            values += [made[place] for place in self.outputs]
            return
        new = CopyPart.__new__
        for form, height, dtype, shape in self.parts:
            value = new(CopyPart)
            value.sources = (block,)
            value.dtype = dtype
            value.shape = shape
            value.device = device
            value.depth = below + height
            value.memory = None
            value.code = code
            value.instruction = instruction
            value.form = form
            parts.append(ref(value))
            values.append(value)

    def passes(self, inputs: Sequence[Value]) -> bool:
        """Whether all checks of a copy are known to pass."""
        return self.checks is None or (self.plain and self.checks.pass_for(inputs))

    def expand(self, block: SubgraphCopy) -> list[Value]:
        """Make the values that a block stands for; its parts become plain ones."""
        values = list(block.sources)
        known: dict[int, Any] = {
            k: part() for k, part in zip(self.outputs, block.parts, strict=False)
        }
        new, device, below = Value.__new__, block.device, block.depth
        for kind, picked, several, op, attr, dtype, shape, height, form, more in self.made:
            value: Any = known.get(len(values))
            if value is None:
                value = new(kind)
            elif value.memory is not None:
                values.append(value)
                continue
            elif kind is Checked:
                kind = Value  # a block has parts only if all checks in it passed
            if several:
                value.inputs = value.sources = picked(values)
            else:
                value.inputs = value.sources = () if picked is None else (values[picked],)
            value.op = op
            value.attr = attr
            value.dtype = dtype
            value.shape = shape
            value.device = device
            value.depth = below + height
            value.memory = None
            value.code = block.code
            value.instruction = block.instruction
            value.form = form
            value.__class__ = kind  # at last: until then who looks into a part waits for the lock
            if kind is not Value:
                _complete(value, more, block.passed)
            elif op is ops.ITEM:
                value.inputs[0].items.append(ref(value))
            values.append(value)
        return values


def _known_checks(places: dict[Value, int], inputs: Sequence[Value]) -> KnownChecks | None:
    if not any(type(v) is Checked for v in places):
        return None
    from genesis.ndarray.ops.normalize_index import KnownChecks

    return KnownChecks(places, inputs)


class NotASubgraph(Exception):
    """A graph reads what is none of its inputs."""


#: Values of these are never taken for each other: a scalar is an argument of its own.
_ALONE = (ops.SCALAR, ops.ITEM)


def _described(v: Value, places: tuple[int, ...], height: int) -> _Made:
    several = len(places) > 1
    inputs = itemgetter(*places) if several else places[0] if places else None
    more = (v.name, v.extent, v.axis) if isinstance(v, Checked) else ()
    if type(v) not in (Value, Checked, Several):
        raise NotASubgraph(f"{v} is of a kind of its own")
    form = 0 if v.op is ops.SLICE else numbered(v)  # that of a slice depends on what it reads
    return _Made(
        type(v), inputs, several, v.op, v.attr, v.dtype, v.shape, height, form, more
    )  # fmt: skip


def _complete(value: Any, more: tuple[Any, ...], passed: bool) -> None:
    """Give a value of another kind what only it has."""
    if type(value) is Several:
        value.items = []
    else:
        value.name, value.extent, value.axis = more
        value.passed = passed
        Checked.waiting |= not passed
