"""The CUDA driver: calls that raise, the device with its context, and its queues.

Everything goes through cuda-bindings' driver API. The primary context is used, which is the one
that PyTorch, CuPy and JAX use, too; a thread that had another context current has it again after
every call of ours. A device has two queues: programs and whatever they depend on run in order in
`stream`; arrays come in through `uploads`, beside them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any


class CUDAError(RuntimeError):
    """A call of the CUDA driver failed, or there is no driver."""


class OutOfDeviceMemory(CUDAError):
    """The device has no memory left for a request."""


@cache
def bindings() -> Any:
    """The driver API, initialised."""
    try:
        from cuda.bindings import driver
    except ImportError:
        message = "the cuda backend needs cuda-bindings: pip install genesis-dl[cuda]"
        raise ImportError(message) from None
    try:
        (error,) = driver.cuInit(0)
    except RuntimeError as problem:  # the library of the driver is not there
        raise CUDAError(f"there is no NVIDIA driver on this machine: {problem}") from None
    if int(error):
        raise CUDAError(f"CUDA cannot be used: {_described(driver, error)}")
    os.register_at_fork(after_in_child=_forked)
    return driver


def call(name: str, *arguments: Any) -> Any:
    """What a function of the driver gives: nothing, one value or several.

    Raises `CUDAError` with its name where it fails.
    """
    driver = bindings()
    if _child:
        raise CUDAError(
            "CUDA was used before this process was forked, and cannot be used after; start "
            'processes with multiprocessing\'s method "spawn"'
        )
    error, *values = getattr(driver, name)(*arguments)
    if int(error):
        fail(name, error)
    return values[0] if len(values) == 1 else tuple(values) or None


def fail(name: str, error: Any) -> None:
    """Raise what a result that is not success means."""
    driver = bindings()
    kind = OutOfDeviceMemory if int(error) == _OUT_OF_MEMORY else CUDAError
    hint = ""
    if int(error) in _LOST:
        hint = "; a kernel failed, and this process cannot use the device any more"
    raise kind(f"{name}: {_described(driver, error)}{hint}")


def device_count() -> int:
    """How many devices there are."""
    count: int = call("cuDeviceGetCount")
    return count


class Device:
    """One device: its primary context, and its queues."""

    def __init__(self, number: int) -> None:
        count = device_count()
        if number >= count:
            raise ValueError(f"there is no device cuda:{number}: this machine has {count}")
        self.number = number
        self.handle = call("cuDeviceGet", number)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        self._address = int(self.context)
        with self:
            self.stream = call("cuStreamCreate", _NON_BLOCKING)
            self.uploads = call("cuStreamCreate", _NON_BLOCKING)
        #: What was put into `stream` so far. Memory that is freed notes it.
        self.serial = 0

    # Entered around every use. Almost always the context is current already.
    def __enter__(self) -> None:
        error, current = bindings().cuCtxGetCurrent()
        if int(error):
            fail("cuCtxGetCurrent", error)
        other = int(current) != self._address
        if other or _child:
            call("cuCtxPushCurrent", self.context)
        _thread.pushed.append(other)

    def __exit__(self, *_: object) -> None:
        if _thread.pushed.pop():
            call("cuCtxPopCurrent")

    def attribute(self, name: str) -> int:
        """A number that describes the device, by the name of its attribute."""
        kinds = bindings().CUdevice_attribute
        number: int = call("cuDeviceGetAttribute", getattr(kinds, name), self.handle)
        return number

    @cached_property
    def name(self) -> str:
        """What the vendor calls it."""
        text: bytes = call("cuDeviceGetName", 128, self.handle)
        return text.split(b"\0")[0].decode()

    @cached_property
    def memory_bytes(self) -> int:
        """How much memory it has."""
        nbytes: int = call("cuDeviceTotalMem", self.handle)
        return nbytes

    def free_bytes(self) -> int:
        """How much memory nobody uses now."""
        with self:
            free, _ = call("cuMemGetInfo")
        return int(free)

    def synchronize(self) -> None:
        """Wait until both queues are empty."""
        with self:
            call("cuStreamSynchronize", self.uploads)
            call("cuStreamSynchronize", self.stream)

    def event(self, timing: bool = False) -> Any:
        """A new event; the caller destroys it."""
        with self:
            return call("cuEventCreate", 0 if timing else _DISABLE_TIMING)

    @contextmanager
    def event_on(self, stream: Any) -> Iterator[Any]:
        """An event at the end of what is in a queue now."""
        event = self.event()
        try:
            with self:
                call("cuEventRecord", event, stream)
                yield event
        finally:
            call("cuEventDestroy", event)


def _described(driver: Any, error: Any) -> str:
    def text(function: Callable[[Any], Any]) -> str:
        _, found = function(error)
        return found.decode() if isinstance(found, bytes) else str(found)

    return f"{text(driver.cuGetErrorName)} ({text(driver.cuGetErrorString)})"


def _forked() -> None:
    global _child
    _child = True


class _Thread(threading.local):
    """For every device entered: whether its context had to be made the current one."""

    def __init__(self) -> None:
        self.pushed: list[bool] = []


_thread = _Thread()
_child = False  # of a process that used CUDA
_NON_BLOCKING = 1  # the queue does not wait for the default one
_DISABLE_TIMING = 2
_OUT_OF_MEMORY = 2
_LOST = (700, 710, 714, 715, 716, 717, 718, 719)  # illegal address .. launch failure

__all__ = [
    "CUDAError", "Device", "OutOfDeviceMemory", "bindings", "call", "device_count", "fail",
]  # fmt: skip
