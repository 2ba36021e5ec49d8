"""The recorder: what a function sees of arrays, and who it tells, while `jit` records it.

It stands between the function and the storages: it gives every storage that the function reads a
stand-in for its value, and keeps what the function writes to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from genesis.ir import ops
from genesis.ir.dtype import Scalar
from genesis.ir.node import Leaf, Node, node
from genesis.ir.size import Dim
from genesis.ndarray.core.layout import Strides, row_major
from genesis.ndarray.core.realisation import realize_values
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.core.value import Value, unrecorded
from genesis.ndarray.tracing.call import twin
from genesis.ndarray.tracing.journal import Journal

if TYPE_CHECKING:
    from genesis.ndarray.core.layout import Shape


class Recorder:
    """What a function sees of storages while it is recorded; reached by ``thread.recorder``."""

    name = "genesis.jit"

    def __init__(self, stand_ins: Iterable[Storage], parts: Collection[Storage] = ()) -> None:
        #: Storages from outside, with the stand-ins for the values they came with.
        self.inputs = {storage: storage.actual for storage in stand_ins}
        #: Those that stand for parts of storages, where it did not matter so far which parts.
        self.parts = frozenset(parts)
        self.located = False  #: whether it does
        #: What every storage holds by now.
        self.now = dict(self.inputs)
        #: What it reads and writes of Python's objects.
        self.journal = Journal()

    def create(self, storage: Storage) -> None:
        """A storage is made."""
        self.now[storage] = storage.actual

    def read(self, storage: Storage) -> Value:
        """A storage's value is asked for."""
        value = self.now.get(storage)
        if value is None:
            with unrecorded():
                value = storage.actual
                realize_values([value])
                value = twin(value, value.shape, value.strides, value.offset)
            self.inputs[storage] = self.now[storage] = value
        return value

    def write(self, storage: Storage, value: Value) -> None:
        """A storage gets another value."""
        self.read(storage)
        self.now[storage] = value

    def part(self, storage: Storage) -> Strides | None:
        """How what stands for a part of a storage lies in that; None for all other storages."""
        return self.inputs[storage].strides if storage in self.parts else None

    def locate(self, storage: Storage) -> None:
        """It matters where in its storage an array lies."""
        self.located = self.located or storage in self.parts

    @property
    def written(self) -> dict[Storage, Value]:
        """The storages from outside that hold another value by now, with that value."""
        return {s: self.now[s] for s, value in self.inputs.items() if self.now[s] is not value}


class NeedsStorage(Exception):
    """A function writes to an argument that is only part of a storage, or asks which part."""


class Refined(Exception):
    """A function asked about sizes: with these `shapes`, symbols say what was assumed.

    `fixed` are the extents, as numbers of inputs and axes, that it needs as numbers.
    """

    def __init__(self, shapes: tuple[Shape, ...], fixed: set[tuple[int, int]]) -> None:
        super().__init__(shapes, fixed)
        self.shapes = shapes
        self.fixed = fixed


class Failed(Exception):
    """A function raised an exception while it was recorded.

    `changes`: it had written to something before, which the plain function is to do again.
    """

    def __init__(self, error: Exception, changes: bool) -> None:
        super().__init__(str(error))
        self.error, self.changes = error, changes


def interned(
    order: list[Value],
    slots: Mapping[Value, int],
    layouts: Mapping[Value, tuple[Strides, Dim]],
    known: Collection[Value] = (),
    constant: Collection[Value] = (),
) -> tuple[dict[Value, Node], list[Scalar]]:
    """The recorded graph as the compiler sees it: every input has a slot of its own.

    So has what is `known` though the recording computed it. What is `constant` is said to be.
    """
    nodes: dict[Value, Node] = {}
    scalars: list[Scalar] = []
    for v in order:
        if v.memory is None and v in known:
            nodes[v] = node(ops.BUFFER, (), Leaf(slots[v], row_major(v.shape), 0), v.dtype, v.shape)
        elif v.memory is not None:
            strides, offset = layouts.get(v, (v.strides, v.offset))
            leaf = Leaf(slots[v], strides, offset, constant=v in constant)
            nodes[v] = node(ops.BUFFER, (), leaf, v.dtype, v.shape)
        elif v.op is ops.SCALAR:
            nodes[v] = node(ops.SCALAR, (), len(scalars), v.dtype)
            scalars.append(v.attr)
        else:
            nodes[v] = node(v.op, tuple([nodes[i] for i in v.inputs]), v.attr, v.dtype, v.shape)
    return nodes, scalars
