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

from genesis import gpu_devices
from genesis.gpu_devices import Properties
from genesis.ndarray import random

_gpus = gpu_devices.GPUs("cuda")


class Event(gpu_devices.Event):
    """A mark in a device's queue: it can be waited for, and time passes between two of them."""

    gpus = _gpus


class Stream(gpu_devices.Stream):
    """The queue that a device's programs run in, of which each has one."""

    event = Event

    @property
    def cuda_stream(self) -> int:
        """Its handle, by the name that other libraries have for it."""
        return self.handle


current_stream = Stream.current
device_count, is_available = _gpus.device_count, _gpus.is_available
get_device_name, get_device_capability = _gpus.get_device_name, _gpus.get_device_capability
get_device_properties, synchronize = _gpus.get_device_properties, _gpus.synchronize
memory_stats, mem_get_info = _gpus.memory_stats, _gpus.mem_get_info
memory_allocated, memory_reserved = _gpus.memory_allocated, _gpus.memory_reserved
max_memory_allocated, empty_cache = _gpus.max_memory_allocated, _gpus.empty_cache
reset_peak_memory_stats = _gpus.reset_peak_memory_stats


def manual_seed(seed: int) -> None:
    """Have random numbers begin anew where there is such a device; see `genesis.manual_seed`."""
    if is_available():
        random.manual_seed(seed)


manual_seed_all = manual_seed


def current_device() -> int:
    """The number of the device that "cuda" stands for."""
    return 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether there is a device that computes with bfloat16."""
    return is_available()


__all__ = [
    "Event", "Properties", "Stream", "current_device", "current_stream", "device_count",
    "empty_cache", "get_device_capability", "get_device_name", "get_device_properties",
    "is_available", "is_bf16_supported", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
    "reset_peak_memory_stats", "synchronize",
]  # fmt: skip
