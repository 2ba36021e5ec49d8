"""What the host CPU can do, read from the operating system.

Schedules need the vector width, the number of vector registers and the cache sizes; the on-disk
cache needs a key that changes with the machine. Both come from /proc and /sys, so neither needs
LLVM in the process.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from genesis.backends.base import Chip

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class CPU(Chip):
    """A CPU: the sizes every `Chip` has, the shared cache, and the instruction set."""

    l3_bytes: int
    features: frozenset[str]

    @property
    def vector_bits(self) -> int:
        """The width of a vector register."""
        return 8 * self.vector_bytes

    @property
    def has_avx512(self) -> bool:
        """Whether instructions scale by powers of two, and look up 16 lanes in a register."""
        return self.features >= _AVX512

    @property
    def has_byte_dots(self) -> bool:
        """Whether one instruction adds four products of bytes to every lane of a vector (VNNI)."""
        return {"avx512_vnni", "avx512vl"} <= self.features or "avx_vnni" in self.features

    @property
    def has_bfloat16_dots(self) -> bool:
        """Whether one instruction adds two products of bfloat16 to every lane of a vector."""
        return {"avx512_bf16", "avx512vl"} <= self.features

    @property
    def key(self) -> str:
        """A short text that differs between machines whose code must not be exchanged."""
        features = " ".join(sorted(self.features))
        return hashlib.sha256(f"{self.name}\n{features}".encode()).hexdigest()[:16]


@cache
def host() -> CPU:
    """The CPU this process runs on."""
    model, features = _cpuinfo()
    if platform.machine() in ("aarch64", "arm64"):
        vector_bytes, registers = 16, 32
    elif features >= _AVX512:
        vector_bytes, registers = 64, 32
    elif "avx2" in features:
        vector_bytes, registers = 32, 16
    else:
        vector_bytes, registers = 16, 16
    caches = _cache_sizes()
    return CPU(
        name=model,
        vector_bytes=vector_bytes,
        vector_registers=registers,
        l1_bytes=caches.get(1, 32 << 10),
        l2_bytes=caches.get(2, 512 << 10),
        l3_bytes=caches.get(3, caches.get(2, 512 << 10)),
        features=features,
    )


def _cpuinfo() -> tuple[str, frozenset[str]]:
    """The model's name and its feature flags."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    parts = ["model name", "cpu family", "model", "CPU implementer", "CPU part"]
    model = " ".join(fields[p] for p in parts if p in fields) or platform.machine()
    flags = fields.get("flags", fields.get("Features", ""))
    return model, frozenset(flags.split())


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data or unified cache of each level of the first core."""
    sizes: dict[int, int] = {}
    for entry in _CACHES.glob("index*"):
        try:
            kind, level, size = (
                (entry / field).read_text().strip() for field in ("type", "level", "size")
            )
        except OSError:  # containers may hide some of it
            continue
        if kind != "Instruction":
            unit = _UNITS.get(size[-1])
            sizes[int(level)] = int(size[:-1]) * unit if unit else int(size)
    return sizes
