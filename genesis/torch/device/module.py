"""``torch.genesis``: what PyTorch and its users ask a device's module for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from genesis import memory
from genesis.gpu_devices import GPUs, Properties
from genesis.torch.device.storage_contents import device_names, name_of_device, runtime, synchronize

Place = int | str | torch.device | None


class _Process:
    """Whether this process was forked from one that had imported this module."""

    forked = False


def _note_fork() -> None:
    _Process.forked = True


os.register_at_fork(after_in_child=_note_fork)


class Genesis(ModuleType):
    """The devices that Genesis offers to PyTorch."""

    Stream = torch.Stream
    Event = torch.Event

    #: ``torch.utils.checkpoint`` keeps the states of generators only if this says so.
    _initialized = True

    @property
    def Scheduling(self) -> None:  # noqa: N802 - the name by which Inductor looks for it
        """Nothing: where Inductor asks for it, it is told of the device by its own functions."""
        from genesis.torch import inductor_version

        if inductor_version.is_supported():
            import genesis.torch.inductor  # noqa: F401

    # ---- devices

    def is_available(self) -> bool:
        """Whether there is a device."""
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        """Whether devices can be used."""
        return True

    def _is_in_bad_fork(self) -> bool:
        # A driver of GPUs does not survive a fork; the CPU's threads do.
        return _Process.forked and self.device_count() > 1

    def _lazy_init(self) -> None:
        return None

    def device_count(self) -> int:
        """How many devices there are."""
        return runtime.device_count()

    def current_device(self) -> int:
        """The index of the device that tensors are on where none is given."""
        return runtime.current_device()

    def set_device(self, device: Place) -> None:
        """Choose the current device of the calling thread."""
        runtime.set_device(_index(device))

    def get_device_name(self, device: Place = None) -> str:
        """The Genesis device behind a PyTorch device, such as ``cpu``."""
        return device_names()[_index(device)]

    def get_device_properties(self, device: Place = None) -> Properties:
        """What a device is: its name, memory and processors."""
        name = name_of_device(_index(device))
        if name != "cpu":
            return _gpus(name).get_device_properties(name)
        return Properties(name, 0, 0, self.mem_get_info(device)[1], os.cpu_count() or 1)

    def get_device_capability(self, device: Place = None) -> tuple[int, int]:
        """The architecture of a GPU; (0, 0) of another chip."""
        found = self.get_device_properties(device)
        return found.major, found.minor

    class device:  # noqa: N801
        """Another current device inside the ``with`` block."""

        def __init__(self, device: Place) -> None:
            self.index = _index(device)
            self.before = 0

        def __enter__(self) -> None:
            self.before = runtime.current_device()
            runtime.set_device(self.index)

        def __exit__(self, *error: object) -> None:
            runtime.set_device(self.before)

    # ---- time

    def synchronize(self, device: Place = None) -> None:
        """Compute everything that is pending."""
        synchronize(_index(device))

    def current_stream(self, device: Place = None) -> torch.Stream:
        """The one stream of a device."""
        return torch.Stream(torch.device("genesis", _index(device)))

    default_stream = current_stream

    def set_stream(self, stream: torch.Stream) -> None:
        """Let a stream be the current one: there is one, in which everything happens in order."""

    def stream(self, stream: torch.Stream | None) -> AbstractContextManager[None]:
        """Another current stream inside the ``with`` block, which is the same one."""
        return nullcontext()

    # ---- random numbers

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        """The generator of each device."""
        return tuple(runtime.default_generator(i) for i in range(self.device_count()))

    def manual_seed(self, seed: int) -> None:
        """Start the generator of the current device afresh."""
        runtime.default_generator(runtime.current_device()).manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Start the generators of all devices afresh."""
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def initial_seed(self) -> int:
        """The seed of the current device's generator."""
        return runtime.default_generator(runtime.current_device()).initial_seed()

    def get_rng_state(self, device: Place = None) -> torch.Tensor:
        """The state of a device's generator."""
        return runtime.default_generator(_index(device)).get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Place = None) -> None:
        """Let the generator of a device go on from a state."""
        runtime.default_generator(_index(device)).set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The states of all devices' generators."""
        return [generator.get_state() for generator in self.default_generators]

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        """Let the generators of all devices go on from their states."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def seed(self) -> None:
        """Start the generator of the current device from a seed that nobody knows."""
        runtime.default_generator(runtime.current_device()).seed()

    def seed_all(self) -> None:
        """Start the generators of all devices from one such seed."""
        self.seed()
        self.manual_seed_all(self.initial_seed())

    # ---- memory

    def memory_stats(self, device: Place = None) -> dict[str, int]:
        """What tensors take, as PyTorch's allocators say it, and what the device holds for them.

        A tensor counts from when it is made until it is gone, whether it is computed or pending.
        The most that was allocated is at least what programs really had.
        """
        index = _index(device)
        size, most, ever, *storages = runtime.storages(index)
        real = memory.stats(name_of_device(index))
        peak = max(most, real.peak_live_bytes)
        return {
            "allocated_bytes.all.current": size,
            "allocated_bytes.all.peak": peak,
            "allocated_bytes.all.allocated": ever,
            "allocated_bytes.all.freed": ever - size,
            "reserved_bytes.all.current": max(size, real.live_bytes + real.cached_bytes),
            "reserved_bytes.all.peak": max(peak, real.live_bytes + real.cached_bytes),
            "reserved_bytes.all.allocated": ever,
            "active.all.current": storages[0],
            "allocation.all.current": storages[0],
            "allocation.all.peak": storages[1],
            "allocation.all.allocated": storages[2],
        }

    def memory_allocated(self, device: Place = None) -> int:
        """Bytes of the tensors that there are."""
        return self.memory_stats(device)["allocated_bytes.all.current"]

    def max_memory_allocated(self, device: Place = None) -> int:
        """The most bytes that were in use, by tensors or by programs."""
        return self.memory_stats(device)["allocated_bytes.all.peak"]

    def memory_reserved(self, device: Place = None) -> int:
        """Bytes in use or kept for reuse."""
        return self.memory_stats(device)["reserved_bytes.all.current"]

    def reset_peak_memory_stats(self, device: Place = None) -> None:
        """Count the peak from what is in use now."""
        runtime.collect()  # what is freed by now is not in use
        runtime.reset_peak(_index(device))
        memory.reset_peak(name_of_device(_index(device)))

    def mem_get_info(self, device: Place = None) -> tuple[int, int]:
        """The bytes that are free on a device, and all it has."""
        name = name_of_device(_index(device))
        if name != "cpu":
            return _gpus(name).mem_get_info(name)
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def empty_cache(self) -> None:
        """Give memory that is kept for reuse back to the system."""
        runtime.collect()
        for name in device_names():
            memory.trim(name)

    # ---- precision

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The dtypes that autocast may choose."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, *_: Any) -> bool:
        """Whether bfloat16 can be used."""
        return True


def _gpus(name: str) -> GPUs:
    return GPUs(name.partition(":")[0])


def _index(device: Place) -> int:
    index = device if isinstance(device, int | None) else torch.device(device).index
    if index is None:
        return runtime.current_device()
    count = runtime.device_count()
    if not 0 <= index < count:
        are = "is 1 device" if count == 1 else f"are {count} devices"
        raise RuntimeError(f"genesis:{index} does not exist: there {are}")
    return index
