"""What a GPU can do, as its driver describes it."""

from __future__ import annotations

from dataclasses import dataclass

from genesis.backends.base import GPU
from genesis.backends.cuda.driver import Device


@dataclass(frozen=True)
class NVIDIA(GPU):
    """A GPU of NVIDIA; `capability` is its architecture: 90 for the H100 and H200."""

    capability: int

    @property
    def architecture(self) -> str:
        """What code is compiled for."""
        return f"sm_{self.capability}"

    @property
    def key(self) -> str:
        """A text that differs between chips for which schedules differ."""
        return f"{self.architecture} {self.multiprocessors} {self.l1_bytes} {self.l2_bytes}"


def describe(device: Device) -> NVIDIA:
    """The chip of a device."""

    def number(name: str) -> int:
        return device.attribute(f"CU_DEVICE_ATTRIBUTE_{name}")

    major, minor = (number(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    return NVIDIA(
        name=device.name,
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=number("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=number("L2_CACHE_SIZE"),
        multiprocessors=number("MULTIPROCESSOR_COUNT"),
        memory_bytes=device.memory_bytes,
        capability=10 * major + minor,
    )


__all__ = ["NVIDIA", "describe"]
