"""HIP devices: what there is, waiting for them, timing on them, and their memory.

The same functions as in `genesis.cuda`, for AMD's GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from genesis import gpu_devices
from genesis.gpu_devices import Properties

if TYPE_CHECKING:
    from genesis.backends.gpu.runtime.driver import Driver


def _driver() -> Driver:
    from genesis.backends.gpu.runtime.amd import driver  # importing Genesis loads no backend

    return driver()


_gpus = gpu_devices.GPUs("hip", _driver)


class Event(gpu_devices.Event):
    """A mark in a device's queue: it can be waited for, and time passes between two of them."""

    gpus = _gpus


class Stream(gpu_devices.Stream):
    """The queue that a device's programs run in, of which each has one."""

    event = Event


def current_stream(device: str | int = 0) -> Stream:
    """The queue of a device."""
    return Stream(device)


device_count = _gpus.device_count
empty_cache = _gpus.empty_cache
get_device_capability = _gpus.get_device_capability
get_device_name = _gpus.get_device_name
get_device_properties = _gpus.get_device_properties
is_available = _gpus.is_available
max_memory_allocated = _gpus.max_memory_allocated
mem_get_info = _gpus.mem_get_info
memory_allocated = _gpus.memory_allocated
memory_reserved = _gpus.memory_reserved
memory_stats = _gpus.memory_stats
reset_peak_memory_stats = _gpus.reset_peak_memory_stats
synchronize = _gpus.synchronize

__all__ = [
    "Event", "Properties", "Stream", "current_stream", "device_count", "empty_cache",
    "get_device_capability", "get_device_name", "get_device_properties", "is_available",
    "max_memory_allocated", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
    "reset_peak_memory_stats", "synchronize",
]  # fmt: skip
