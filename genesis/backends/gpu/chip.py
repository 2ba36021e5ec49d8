"""What a GPU can do, as its driver describes it."""

from __future__ import annotations

from dataclasses import dataclass

from genesis.backends.base import GPU
from genesis.backends.gpu.runtime.driver import GPUDevice


@dataclass(frozen=True, kw_only=True)
class Described(GPU):
    """A GPU that Triton compiles for.

    `architecture` is what code is compiled for: sm_90 for the H100 and H200, gfx942 for the MI300.
    `capability` are the numbers of the vendor for it: (9, 0) and (9, 4).
    """

    architecture: str
    capability: tuple[int, int]

    @property
    def key(self) -> str:
        """A text that differs between chips for which schedules differ."""
        return f"{self.architecture} {self.multiprocessors} {self.l1_bytes} {self.l2_bytes}"


def describe(device: GPUDevice) -> Described:
    """The chip of a device."""
    number = device.attribute
    architecture = device.driver.architecture(device)
    return Described(
        name=device.name,
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=number("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=number("L2_CACHE_SIZE"),
        multiprocessors=number("MULTIPROCESSOR_COUNT"),
        memory_bytes=device.memory_bytes,
        groups=2 if architecture == "sm_90" else 1,
        architecture=architecture,
        capability=(number("COMPUTE_CAPABILITY_MAJOR"), number("COMPUTE_CAPABILITY_MINOR")),
    )
