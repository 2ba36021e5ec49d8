"""NCCL: collectives between processes with a GPU each, on the memory and in a queue of the device.

It is called directly, in its own library (the wheel ``nvidia-nccl-cu13`` or ``-cu12``). A
collective has a queue beside that of kernels: it waits for what was computed so far, and kernels
that need its results wait for it; both waits are events, and the host goes on.

What is sent is copied first, since its memory may be used again while the collective is under way:
into the memory of the result where that has room for it, which nobody touches meanwhile, as is
proven of every program; otherwise into memory of its own, which is kept as long.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_int, c_size_t, c_void_p
from functools import cache
from math import inf, prod
from threading import Event, Lock, Thread
from typing import Any

from genesis.backends.gpu.library.shared_objects import loaded
from genesis.backends.gpu.runtime.driver import (
    NON_BLOCKING,
    NOT_READY,
    DriverError,
    GPUDevice,
)
from genesis.backends.gpu.runtime.memory import MemoryPool
from genesis.backends.gpu.runtime.program import DeviceArray

#: As nccl.h numbers them.
TYPES = {
    "int8": 0, "bool": 1, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
BYTES = TYPES["uint8"]


class Unique(ctypes.Structure):
    """What ranks that belong together know."""

    _fields_ = (("internal", ctypes.c_char * 128),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "GetVersion": (c_void_p,),
    "GetUniqueId": (c_void_p,),
    "CommInitRank": (c_void_p, c_int, Unique, c_int),
    "CommAbort": (c_void_p,),
    "CommGetAsyncError": (c_void_p, c_void_p),
    "GroupStart": (),
    "GroupEnd": (),
    # what is sent and received, elements, type, operation, communicator, queue
    "AllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "AllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "Send": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "Recv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
}


@cache
def library() -> dict[str, Callable[..., None]] | None:
    """The functions of NCCL by their names; None where it is not installed."""
    found = loaded("nccl")
    if found is None:
        return None
    described = found.ncclGetErrorString
    described.argtypes, described.restype = (c_int,), ctypes.c_char_p

    def bound(name: str) -> Callable[..., None]:
        function = getattr(found, f"nccl{name}")
        function.argtypes, function.restype = _SIGNATURES[name], c_int

        def call(*given: Any) -> None:
            status = function(*given)
            if status:
                raise DriverError(f"nccl{name}: {described(status).decode()}")

        return call

    return {name: bound(name) for name in _SIGNATURES}


def version() -> int:
    """The version of NCCL, such as 22803; 0 where it is not installed."""
    calls, found = library(), c_int()
    if calls is not None:
        calls["GetVersion"](ctypes.byref(found))
    return found.value


def unique() -> bytes:
    """What the ranks of a new communicator have to know; the first one asks for it."""
    calls, made = library(), Unique()
    assert calls is not None
    calls["GetUniqueId"](ctypes.byref(made))
    return bytes(made)


#: What NCCL says of a communicator that is well: all has ended, or something is under way.
_WELL = (0, 7)
#: Seconds between two looks of a watchdog.
PATIENCE = 1.0


class Communicator:
    """One rank's end of what carries collectives: all ranks make theirs at the same time.

    Kernels of NCCL wait for other ranks without end. So a watchdog looks whether those are still
    there: `lost` gives the error to raise where they are not, or where it is told a cause that NCCL
    has found, or that nothing has ended for `timeout` seconds. Then it ends the kernels. What they
    leave behind is wrong: whoever reads from the device after that, or begins another collective,
    gets the error.
    """

    def __init__(
        self,
        device: GPUDevice,
        pool: MemoryPool,
        rank: int,
        size: int,
        known: bytes,
        lost: Callable[[str], Exception | None] = lambda cause: None,
        timeout: float = 600.0,
    ) -> None:
        calls = library()
        assert calls is not None
        self._calls, self._device, self._pool = calls, device, pool
        self.rank, self.size = rank, size
        self._handle = c_void_p()
        with device:
            self._stream = device.call("StreamCreate", NON_BLOCKING)
            made = Unique.from_buffer_copy(known)
            calls["CommInitRank"](ctypes.byref(self._handle), size, made, rank)
            self._last = device.event()  # behind the collective that was begun last, at `_begun`
        self._begun = inf  # nothing yet
        self._lost, self._timeout = lost, timeout
        self._closed, self._lock = Event(), Lock()
        self._watching = Thread(target=self._watch, name="genesis nccl", daemon=True)
        self._watching.start()

    def close(self) -> None:
        """Exchange nothing more: nobody is waited for."""
        self._closed.set()
        self._abort()
        self._device.failure = None

    def _abort(self) -> None:
        with self._lock, self._device:
            handle, self._handle = self._handle, c_void_p()
            if handle.value:
                self._calls["CommAbort"](handle)

    def _watch(self) -> None:
        """End what would never end, until this is closed."""
        while not self._closed.wait(PATIENCE):
            error = self._lost(self._trouble())
            if error is not None:
                self._device.failure = error  # before what waits goes on
                self._abort()
                return

    def _trouble(self) -> str:
        """What is wrong, if NCCL knows something, or nothing has ended for long."""
        status = c_int()
        with self._lock:
            if self._handle.value:
                self._calls["CommGetAsyncError"](self._handle, ctypes.byref(status))
        if status.value not in _WELL:
            return f"NCCL found error {status.value} in a collective"
        waited = time.monotonic() - self._begun
        if waited > self._timeout:
            with self._device:
                (error,) = self._device.driver.function("EventQuery")(self._last)
            if int(error) == NOT_READY:
                return f"a collective has been under way for {waited:.0f} seconds"
        return ""

    def start(
        self,
        name: str,
        options: tuple[Any, ...],
        given: Sequence[DeviceArray],
        made: Sequence[DeviceArray],
    ) -> Callable[[], None] | None:
        """Begin a collective; what lets the kernels that come then wait for it.

        None if it is of a type that NCCL does not add up; the host carries it.
        """
        if self._device.failure is not None:
            raise self._device.failure
        kind = name.removeprefix("collectives.")
        adds = kind in ("all_reduce", "reduce_scatter")
        if any(x.dtype.name not in TYPES or (adds and x.dtype.name == "bool") for x in given):
            return None
        device, kernels = self._device, self._device.stream
        pairs = [(x, y) for x, y in zip(given, made, strict=True) if x.nbytes]
        held = []
        sources = []
        for x, y in pairs:
            at = {"all_reduce": y.pointer, "all_gather": y.pointer + self.rank * x.nbytes}.get(kind)
            if at is None:
                (memory,) = self._pool.allocate_many([x.nbytes])
                held.append(memory)
                at = memory.pointer
            device.call("MemcpyAsync", at, x.pointer, x.nbytes, kernels)
            sources.append(at)
        self._ordered(kernels, self._stream)
        self._calls["GroupStart"]()
        try:
            for (x, y), source in zip(pairs, sources, strict=True):
                _CALLS[kind](self, options, source, x, y)
        finally:
            self._calls["GroupEnd"]()
        done = device.event()
        device.call("EventRecord", done, self._stream)
        device.call("EventRecord", self._last, self._stream)
        self._begun = time.monotonic()

        def wait() -> None:
            device.call("StreamWaitEvent", device.stream, done, 0)
            device.call("EventDestroy", done)
            held.clear()  # what comes next in the kernels' queue may use the memory

        return wait

    def _ordered(self, first: Any, second: Any) -> None:
        """Let a queue wait for what is in another one."""
        event = self._device.event()
        self._device.call("EventRecord", event, first)
        self._device.call("StreamWaitEvent", second, event, 0)
        self._device.call("EventDestroy", event)

    # ---- collectives, of one array
    def _all_reduce(self, options: Any, source: int, x: DeviceArray, y: DeviceArray) -> None:
        how = TYPES[x.dtype.name], OPERATIONS[options[2]]
        self._call("AllReduce", source, y.pointer, prod(x.shape), *how)

    def _reduce_scatter(self, options: Any, source: int, x: DeviceArray, y: DeviceArray) -> None:
        how = TYPES[x.dtype.name], OPERATIONS["sum"]
        self._call("ReduceScatter", source, y.pointer, prod(y.shape), *how)

    def _all_gather(self, options: Any, source: int, x: DeviceArray, y: DeviceArray) -> None:
        self._call("AllGather", source, y.pointer, x.nbytes, BYTES)

    def _all_to_all(self, options: Any, source: int, x: DeviceArray, y: DeviceArray) -> None:
        piece = x.nbytes // self.size
        for rank in range(self.size):
            self._call("Send", source + rank * piece, piece, BYTES, rank)
            self._call("Recv", y.pointer + rank * piece, piece, BYTES, rank)

    def _permute(self, options: Any, source: int, x: DeviceArray, y: DeviceArray) -> None:
        sources = options[2]
        self._call("Send", source, x.nbytes, BYTES, sources.index(self.rank))
        self._call("Recv", y.pointer, x.nbytes, BYTES, sources[self.rank])

    def _call(self, name: str, *given: int) -> None:
        self._calls[name](*given, self._handle, int(self._stream))


_CALLS: dict[str, Callable[[Communicator, Any, int, DeviceArray, DeviceArray], None]] = {
    "all_reduce": Communicator._all_reduce,
    "reduce_scatter": Communicator._reduce_scatter,
    "all_gather": Communicator._all_gather,
    "all_to_all": Communicator._all_to_all,
    "permute": Communicator._permute,
}
