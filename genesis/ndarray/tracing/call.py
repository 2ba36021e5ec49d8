"""Calls: the arguments of a function that `jit` runs, seen as inputs of a program.

An array argument is memory and a layout. Where in its memory a view starts does not matter: a
pointer says that, so ``f(x[i], x[j])`` is the same kind of call for every i and j. Only where an
argument is all of a storage and another one a view of it, or where the function writes to a view,
the storage itself is the input and the way from it to the view belongs to the kind of call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis.ir.size import Dim, Size
from genesis.ndarray.core.interop import from_numpy
from genesis.ndarray.core.layout import Shape, Strides, lowest, row_major, through
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.realisation import realize_values
from genesis.ndarray.core.storage import Steps, Storage
from genesis.ndarray.core.value import Value
from genesis.ndarray.pytree import Path, Pinned, Structure, flatten, repeats, unflatten, unwrapper
from genesis.ndarray.tracing.guards import fingerprint


class ArrayInput(NamedTuple):
    """An array argument as a program sees it."""

    array: NDArray
    shape: Shape
    strides: Strides
    offset: int  # in elements, of the array's first element from the one that lies first in memory
    start: int  # in bytes, of the one that lies first from the beginning of the memory
    steps: Steps  # from the input to what the function is given

    @property
    def is_part(self) -> bool:
        """Whether the input is only part of its storage: then it cannot be written."""
        return len(self.steps) < len(self.array.steps)

    @property
    def is_plain(self) -> bool:
        """Whether elements are packed in order, so that an extent may be symbolic."""
        return not self.steps and not self.offset and self.strides == row_major(self.shape)


class CallArguments:
    """The arguments of a call, and keys that say what kind of call it is.

    `kind` leaves out shapes and strides, `key` has them. `whole`: all inputs are whole storages.
    Arguments at the paths `pinned` are themselves, not what they hold: the function meets them
    elsewhere, too.
    """

    __slots__ = ("inputs", "key", "kind", "leaves", "numpy", "pinned", "structure", "tree")

    structure: Structure

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        whole: bool = False,
        pinned: Collection[Path] = (),
    ) -> None:
        self.tree = (args, kwargs)
        self.pinned = tuple(pinned)
        self.leaves, self.structure = flatten(self.tree, pinned=pinned)
        uses: dict[Storage, list[NDArray]] = {}
        foreign: list[bool] = []  # of the arrays, which are NumPy's
        for position, x in enumerate(self.leaves):
            given = x
            if isinstance(x, np.ndarray):
                x = self.leaves[position] = from_numpy(x)
            if type(x) is NDArray:
                foreign.append(given is not x)
                uses.setdefault(x.storage, []).append(x)
        self.numpy = {k for k, is_foreign in enumerate(foreign) if is_foreign}
        realize_values([storage.actual for storage in uses])
        shared = {
            storage
            for storage, views in uses.items()
            if whole or (len(views) > 1 and not all(as_input(x, False).is_part for x in views))
        }
        numbers = {storage: k for k, storage in enumerate(uses)}
        self.inputs: list[ArrayInput] = []
        kinds: list[Any] = [whole, repeats(self.tree) if self.structure_is_nested else ()]
        for x in self.leaves:
            if type(x) is not NDArray:
                kinds.append(fingerprint(x))
                continue
            value = x.storage.actual
            if x.steps:
                value.require_whole("a view as an argument of a jitted function")
            found = as_input(x, whole=x.storage in shared)
            self.inputs.append(found)
            what = value.dtype, value.device, numbers[x.storage], found.steps, value.placement
            kinds.append(what)
        self.kind = (self.structure, tuple(kinds))
        layouts = [(i.shape, i.strides, i.offset, i.is_part) for i in self.inputs]
        self.key = (self.kind, tuple(layouts))

    @property
    def structure_is_nested(self) -> bool:
        """Whether there are containers among the arguments."""
        assert self.structure is not None
        parts = [s for part in self.structure[2] for s in part[2]]
        return any(s is not None and unwrapper(s) is None for s in parts)

    @property
    def is_flat(self) -> bool:
        """Whether every argument is an array, or an object around one."""
        assert self.structure is not None
        parts = [s for part in self.structure[2] for s in part[2]]
        alone = all(s is None or unwrapper(s) is not None for s in parts)
        return alone and all(type(x) is NDArray for x in self.leaves)

    @property
    def is_divided(self) -> bool:
        """Whether this process has only blocks of some arrays."""
        return any(i.array.storage.actual.placement is not None for i in self.inputs)

    @property
    def arrays(self) -> list[NDArray]:
        """The array arguments."""
        return [i.array for i in self.inputs]

    @property
    def starts(self) -> list[int] | None:
        """Where the inputs start in their memory, in bytes; None: all of them at the beginning."""
        starts = [i.start for i in self.inputs]
        return starts if any(starts) else None

    def stand_ins(self, shapes: Sequence[Shape]) -> list[NDArray]:
        """Arrays to record with, one for each input, of the given (maybe symbolic) shapes."""
        storages: dict[Any, Storage] = {}
        result: list[NDArray] = []
        for number, (i, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            original = i.array.storage
            place = number if i.is_part else original  # nobody writes to a part
            if place not in storages:
                symbolic = any(isinstance(d, Size) for d in shape)
                strides = row_major(shape) if symbolic else i.strides
                first = i.start // original.actual.dtype.itemsize
                storages[place] = Storage(twin(original.actual, shape, strides, first + i.offset))
            result.append(NDArray(storages[place], i.steps))
        return result

    def arguments(self, arrays: Sequence[NDArray]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other arrays in place of the inputs."""
        replaced = iter(arrays)
        given = [next(replaced) if type(x) is NDArray else x for x in self.leaves]
        given = [x.object if type(x) is Pinned else x for x in given]
        args, kwargs = unflatten(self.structure, given)
        return args, kwargs


def as_input(x: NDArray, whole: bool) -> ArrayInput:
    """`x` as an input, or the whole of its storage as one."""
    value = x.storage.actual
    shape, strides, offset, steps = value.shape, value.strides, value.offset, x.steps
    if steps and not whole:
        for step in steps:
            layout = through(step.op, step.attr, shape, strides, offset, step.shape)
            if layout is None:  # no strides describe it
                shape, strides, offset = value.shape, value.strides, value.offset
                break
            (strides, offset), shape = layout, step.shape
        else:
            steps = ()
    first = lowest(shape, strides, offset)
    assert isinstance(offset, int)
    return ArrayInput(x, shape, strides, offset - first, first * value.dtype.itemsize, steps)


def twin(value: Value, shape: Shape, strides: Strides, offset: Dim) -> Value:
    """Another value in the memory of a realised one."""
    assert value.memory is not None
    foreign, placement = bool(value.attr), value.placement
    where = value.device, offset, foreign, placement
    return Value.realised(value.memory, value.dtype, shape, strides, *where)
