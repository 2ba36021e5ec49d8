"""What `genesis.cuda` and `genesis.hip` have in common: all but the vendor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from genesis.backends.base import MemoryStats
    from genesis.backends.gpu.backend import GPUBackend


class Properties(NamedTuple):
    """What a device is."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


class GPUs:
    """The GPUs of a vendor; `kind` is what their names begin with.

    A device is given by its name or by its number.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def is_available(self) -> bool:
        """Whether arrays can be on such a device."""
        return self.device_count() > 0

    def device_count(self) -> int:
        """How many devices there are; 0 where there is no driver."""
        from genesis.backends.gpu.runtime import amd, nvidia  # importing Genesis loads no backend

        try:
            return (nvidia.driver() if self.kind == "cuda" else amd.driver()).device_count()
        except (ImportError, RuntimeError):
            return 0

    def get_device_name(self, device: str | int = 0) -> str:
        """What the vendor calls a device."""
        return self.backend(device).chip.name

    def get_device_capability(self, device: str | int = 0) -> tuple[int, int]:
        """The architecture of a device: (9, 0) for an H100 or H200, (9, 4) for an MI300."""
        return self.backend(device).chip.capability

    def get_device_properties(self, device: str | int = 0) -> Properties:
        """What a device is."""
        chip = self.backend(device).chip
        return Properties(chip.name, *chip.capability, chip.memory_bytes, chip.multiprocessors)

    def synchronize(self, device: str | int = 0) -> None:
        """Wait until a device has done all that was started, and raise what is wrong with it."""
        from genesis.ndarray.core.index_checks import settle

        self.backend(device).synchronize()
        settle(wait=True)

    def memory_stats(self, device: str | int = 0) -> MemoryStats:
        """The state of a device's allocator."""
        return self.backend(device).memory_stats()

    def memory_allocated(self, device: str | int = 0) -> int:
        """Bytes in use."""
        return self.memory_stats(device).live_bytes

    def max_memory_allocated(self, device: str | int = 0) -> int:
        """The most bytes that were ever in use, or since `reset_peak_memory_stats`."""
        return self.memory_stats(device).peak_live_bytes

    def memory_reserved(self, device: str | int = 0) -> int:
        """Bytes in use or kept for reuse."""
        stats = self.memory_stats(device)
        return stats.live_bytes + stats.cached_bytes

    def reset_peak_memory_stats(self, device: str | int = 0) -> None:
        """Count the peak from what is in use now."""
        self.backend(device).reset_peak()

    def empty_cache(self, device: str | int = 0) -> None:
        """Give memory that is kept for reuse back to the device."""
        self.backend(device).trim()

    def mem_get_info(self, device: str | int = 0) -> tuple[int, int]:
        """The bytes that are free on a device, and all it has."""
        backend = self.backend(device)
        return backend.device.free_bytes(), backend.chip.memory_bytes

    def backend(self, device: str | int) -> GPUBackend:
        """The backend of a device."""
        from genesis.backends import get  # importing Genesis loads no backend

        own, name = self.kind, f"{self.kind}:{device}" if isinstance(device, int) else device
        kind, _, number = name.partition(":")
        if kind != own:
            raise ValueError(
                f"{device!r} is not a {own.upper()} device; write {own!r} or '{own}:1'"
            )
        found: Any = get(f"{own}:{number}" if int(number or 0) else own)
        backend: GPUBackend = found
        return backend


class Event:
    """A mark in a device's queue: it can be waited for, and time passes between two of them."""

    gpus: ClassVar[GPUs]

    def __init__(self, device: str | int = 0) -> None:
        self._device = self.gpus.backend(device).device
        self.handle = self._device.event(timing=True)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "handle") and not ending():
            self._device.call("EventDestroy", self.handle)

    def record(self, stream: Stream | None = None) -> None:
        """Put it behind everything that was started so far."""
        device = self._device if stream is None else stream._device
        with device:
            device.call("EventRecord", self.handle, device.stream)

    def synchronize(self) -> None:
        """Wait until all before it is done."""
        with self._device:
            self._device.call("EventSynchronize", self.handle)

    def elapsed_time(self, end: Event) -> float:
        """The milliseconds from this event to a later one, which is waited for."""
        end.synchronize()
        milliseconds: float = self._device.call("EventElapsedTime", self.handle, end.handle)
        return milliseconds


class Stream:
    """The queue that a device's programs run in; `handle` is for other libraries.

    There is one for each device: programs are started in the order in which they are realised.
    """

    event: ClassVar[type[Event]]

    def __init__(self, device: str | int = 0) -> None:
        self._device = self.event.gpus.backend(device).device
        self.handle = int(self._device.stream)

    @classmethod
    def current(cls, device: str | int = 0) -> Self:
        """The queue of a device."""
        return cls(device)

    def synchronize(self) -> None:
        """Wait until all that is in it is done."""
        self._device.synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """An event at its end."""
        event = self.event(self._device.number) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what comes next wait for an event."""
        with self._device:
            self._device.call("StreamWaitEvent", self._device.stream, event.handle, 0)
