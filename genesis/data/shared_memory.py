"""Batches in memory that two processes see.

A *slot* is memory without a name (memfd): it is mapped by a worker, which writes batches to it, and
by the training process, whose tensors lie in it. When the last of these tensors is gone the worker
writes another batch to the slot, into pages that are there already. Memory without a name goes with
the last process that has it, however that ends.

A batch is pickled with its arrays left out; they and, if it is long, the pickle are in the slot. So
what goes through the pipe is short, and a worker never waits for the training process to read it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from genesis.data.collate import Array, ToTensor, allocated
from genesis.ndarray import NDArray, from_numpy
from genesis.tensor.tensor import Tensor

_MAPPED = mmap.MAP_SHARED | mmap.MAP_POPULATE  # all pages at once, not one by one
_MOST = 32  # slots in use: each has a descriptor; who keeps more batches gets copies
_SHORT = 8192  # bytes of a pickle that go through the pipe, far less than one holds


def _aligned(size: int, step: int = 64) -> int:
    return -(-size // step) * step


class BatchMessage(NamedTuple):
    """Where a batch is: in a slot of so many bytes, with its pickle here or at the slot's end."""

    slot: int
    size: int
    pickled: bytes | tuple[int, int]
    is_new: bool  #: the slot's descriptor follows


class _Pickler(pickle.Pickler):
    """Pickles with arrays left out. Those that are not in the slot yet, `arrays` has with places.

    The first `room` bytes of a slot at address `start` are taken already.
    """

    def __init__(self, file: io.BytesIO, start: int, room: int) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[tuple[int, Array]] = []
        self.room, self._start, self._taken = room, start, room

    def persistent_id(self, x: Any) -> Any:
        if isinstance(x, ToTensor):
            return self._place(x.array, True)
        if isinstance(x, Tensor | NDArray):
            array = (x.detach() if isinstance(x, Tensor) else x).numpy()
            return self._place(array, isinstance(x, Tensor))
        if type(x) is np.ndarray and not x.dtype.hasobject:
            return self._place(x, None)
        return None

    def _place(self, x: Array, is_tensor: bool | None) -> Any:
        place = x.__array_interface__["data"][0] - self._start
        if not (0 <= place < self._taken and x.flags.c_contiguous):
            place = self.room
            self.arrays.append((place, x))
            self.room += _aligned(x.nbytes)
        return is_tensor, place, x.shape, x.dtype


class _Unpickler(pickle.Unpickler):
    """Puts views of a slot where arrays were left out."""

    def __init__(self, pickled: bytes, memory: Array) -> None:
        super().__init__(io.BytesIO(pickled))
        self._memory = memory

    def persistent_load(self, entry: Any) -> Any:
        is_tensor, place, shape, dtype = entry
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array = self._memory[place : place + nbytes].view(dtype).reshape(shape)
        if is_tensor is None:
            return array
        return Tensor(from_numpy(array, "cpu")) if is_tensor else from_numpy(array, "cpu")


class Slots:
    """The slots of one worker, as it sees them. One of them is being written to, `current`."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}
        self.current, self._taken = 0, 0
        self._new: int | None = None  # the descriptor of a slot that the reader does not have yet

    def begin(self, slot: int) -> None:
        """Write to this slot next."""
        self.current, self._taken = slot, 0

    def allocate(self, wanted: list[tuple[tuple[int, ...], Any]]) -> list[Array]:
        """Memory in the current slot, if that is still empty, for arrays of shapes and dtypes."""
        if self._taken:
            return allocated(wanted)
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in wanted]
        ends = list(accumulate(map(_aligned, sizes), initial=0))
        self._provide(ends[-1])
        self._taken, memory = ends[-1], self._mapped[self.current]
        where = zip(wanted, ends, strict=False)
        return [np.ndarray(shape, dtype, memory, place) for (shape, dtype), place in where]

    def write(self, batch: Any) -> tuple[BatchMessage, int | None]:
        """Write a batch: what to tell the reader, and the descriptor of a new slot."""
        while True:
            pickled, pickler = self._pickled(batch)
            room = pickler.room + (len(pickled) if len(pickled) > _SHORT else 0)
            if not self._provide(room):
                break
            self._taken = 0  # what was allocated is in memory that is no slot any more
        memory = self._mapped[self.current]
        for place, x in pickler.arrays:
            np.ndarray(x.shape, x.dtype, memory, place)[...] = x
        where: bytes | tuple[int, int] = pickled
        if len(pickled) > _SHORT:
            memory[pickler.room : room] = pickled
            where = pickler.room, room
        message = BatchMessage(self.current, len(memory), where, self._new is not None)
        descriptor, self._new = self._new, None
        return message, descriptor

    def _pickled(self, batch: Any) -> tuple[bytes, _Pickler]:
        memory = self._mapped.get(self.current)
        start = 0 if memory is None else np.frombuffer(memory, np.uint8).ctypes.data
        file = io.BytesIO()
        pickler = _Pickler(file, start, self._taken)
        pickler.dump(batch)
        return file.getvalue(), pickler

    def _provide(self, room: int) -> bool:
        """Have enough room in the current slot; whether that took another."""
        if self.current in self._mapped and len(self._mapped[self.current]) >= room:
            return False
        # A little more, so that batches of varying size do not need another each time.
        size = _aligned(room + room // 8 + 1, mmap.PAGESIZE)
        if self._new is not None:
            os.close(self._new)
        self._new = os.memfd_create("genesis-batch", os.MFD_CLOEXEC)
        os.ftruncate(self._new, size)
        self._mapped[self.current] = mmap.mmap(self._new, size, _MAPPED)
        return True


class Readers:
    """The slots of one worker, as the training process sees them."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._count = 0

    def taken(self) -> int:
        """A slot to write to: one that nobody reads any more, or a new one."""
        if self._free:
            return self._free.pop()
        self._count += 1
        return self._count - 1

    def read(self, message: BatchMessage, descriptor: Callable[[], int]) -> Any:
        """The batch, on the slot's memory: it is free when the last of its arrays is gone."""
        if message.is_new:
            received = descriptor()
            try:
                mapped = mmap.mmap(received, message.size, _MAPPED, mmap.PROT_READ)
                self._mapped[message.slot] = mapped
            finally:
                os.close(received)
        memory: Any = np.ndarray((message.size,), np.uint8, self._mapped[message.slot])
        if self._count - len(self._free) > _MOST:
            memory = memory.copy()
            self._free.append(message.slot)
        else:
            # All views of it have this array as their base. A list's append needs no lock.
            finalize(memory, self._free.append, message.slot).atexit = False
        place = message.pickled
        pickled = place if isinstance(place, bytes) else memory[slice(*place)].tobytes()
        return _Unpickler(pickled, memory).load()
