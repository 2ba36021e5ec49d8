"""CUDA devices: what there is, waiting for them, timing on them, and their memory.

Arrays are computed when somebody asks for them, and a GPU computes while Python goes on. So to time
something, realise it between two events:

    start, end = cuda.Event(), cuda.Event()
    start.record()
    nd.realize(y)
    end.record()
    print(start.elapsed_time(end), "ms")
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from genesis.backends.base import MemoryStats
    from genesis.backends.cuda.backend import CUDABackend


class Properties(NamedTuple):
    """What a device is."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def is_available() -> bool:
    """Whether arrays can be on the device "cuda"."""
    return device_count() > 0


def device_count() -> int:
    """How many devices there are; 0 where CUDA cannot be used."""
    try:
        from genesis.backends.cuda import driver

        return driver.device_count()
    except (ImportError, RuntimeError):
        return 0


def get_device_name(device: str | int = "cuda") -> str:
    """What the vendor calls a device."""
    return _backend(device).chip.name


def get_device_capability(device: str | int = "cuda") -> tuple[int, int]:
    """The architecture of a device: (9, 0) for an H100 or H200."""
    return divmod(_backend(device).chip.capability, 10)


def get_device_properties(device: str | int = "cuda") -> Properties:
    """What a device is."""
    chip = _backend(device).chip
    return Properties(
        chip.name, *divmod(chip.capability, 10), chip.memory_bytes, chip.multiprocessors
    )


def synchronize(device: str | int = "cuda") -> None:
    """Wait until a device has done all that was started."""
    _backend(device).synchronize()


def memory_stats(device: str | int = "cuda") -> MemoryStats:
    """The state of a device's allocator."""
    return _backend(device).memory_stats()


def memory_allocated(device: str | int = "cuda") -> int:
    """Bytes in use."""
    return memory_stats(device).live_bytes


def max_memory_allocated(device: str | int = "cuda") -> int:
    """The most bytes that were ever in use, or since `reset_peak_memory_stats`."""
    return memory_stats(device).peak_live_bytes


def memory_reserved(device: str | int = "cuda") -> int:
    """Bytes in use or kept for reuse."""
    stats = memory_stats(device)
    return stats.live_bytes + stats.cached_bytes


def reset_peak_memory_stats(device: str | int = "cuda") -> None:
    """Count the peak from what is in use now."""
    _backend(device).reset_peak()


def empty_cache(device: str | int = "cuda") -> None:
    """Give memory that is kept for reuse back to the device."""
    _backend(device).trim()


def mem_get_info(device: str | int = "cuda") -> tuple[int, int]:
    """The bytes that are free on a device, and all it has."""
    backend = _backend(device)
    return backend.device.free_bytes(), backend.chip.memory_bytes


class Stream:
    """The queue that a device's programs run in; `cuda_stream` is its handle, for other libraries.

    There is one for each device: programs are started in the order in which they are realised.
    """

    def __init__(self, device: str | int = "cuda") -> None:
        self._device = _backend(device).device
        self.cuda_stream = int(self._device.stream)

    def synchronize(self) -> None:
        """Wait until all that is in it is done."""
        self._device.synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """An event at its end."""
        event = Event(f"cuda:{self._device.number}") if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what comes next wait for an event."""
        with self._device:
            _call("cuStreamWaitEvent", self._device.stream, event.handle, 0)


class Event:
    """A mark in a device's queue: it can be waited for, and time passes between two of them."""

    def __init__(self, device: str | int = "cuda") -> None:
        self._device = _backend(device).device
        self.handle = self._device.event(timing=True)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "handle") and not ending():
            _call("cuEventDestroy", self.handle)

    def record(self, stream: Stream | None = None) -> None:
        """Put it behind everything that was started so far."""
        device = self._device if stream is None else stream._device
        with device:
            _call("cuEventRecord", self.handle, device.stream)

    def synchronize(self) -> None:
        """Wait until all before it is done."""
        with self._device:
            _call("cuEventSynchronize", self.handle)

    def elapsed_time(self, end: Event) -> float:
        """The milliseconds from this event to a later one, which is waited for."""
        end.synchronize()
        milliseconds: float = _call("cuEventElapsedTime", self.handle, end.handle)
        return milliseconds


def current_stream(device: str | int = "cuda") -> Stream:
    """The queue of a device."""
    return Stream(device)


def _backend(device: str | int) -> CUDABackend:
    from genesis.backends import get  # importing Genesis loads no backend

    kind, _, number = (f"cuda:{device}" if isinstance(device, int) else device).partition(":")
    if kind != "cuda":
        raise ValueError(f"{device!r} is not a CUDA device; write 'cuda' or 'cuda:1'")
    backend: Any = get(f"cuda:{number}" if int(number or 0) else "cuda")
    found: CUDABackend = backend
    return found


def _call(name: str, *arguments: Any) -> Any:
    from genesis.backends.cuda.driver import call

    return call(name, *arguments)


__all__ = [
    "Event", "Properties", "Stream", "current_stream", "device_count", "empty_cache",
    "get_device_capability", "get_device_name", "get_device_properties", "is_available",
    "max_memory_allocated", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
    "reset_peak_memory_stats", "synchronize",
]  # fmt: skip
