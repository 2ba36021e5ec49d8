"""What kernels take of an NVIDIA GPU: registers, shared memory, and how many run at once.

A multiprocessor runs as many blocks as its registers, shared memory, threads and block slots allow.
More of them hide how long memory takes; that is what occupancy is good for, and all.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genesis.backends.base import Binary

#: Registers of a multiprocessor, and of how many a warp takes some at once.
REGISTERS, GRANULE = 1 << 16, 256
WARP = 32
#: Shared memory that every block takes for itself.
RESERVED = 1024
#: By generation: threads, blocks and KiB of shared memory of a multiprocessor.
LIMITS = {
    75: (1024, 16, 64), 80: (2048, 32, 164), 86: (1536, 16, 100), 87: (1536, 16, 164),
    89: (1536, 24, 100), 90: (2048, 32, 228), 100: (2048, 32, 228), 103: (2048, 32, 228),
    120: (1536, 24, 100),
}  # fmt: skip

_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11  # of .nv.info


@dataclass(frozen=True)
class Occupancy:
    """What a kernel takes, and how much of a multiprocessor it fills."""

    name: str
    threads: int  #: of a block
    registers: int  #: of a thread
    shared: int  #: bytes of a block
    stack: int  #: bytes of a thread in memory: what registers did not hold
    blocks: int  #: that a multiprocessor runs at once
    occupancy: float  #: the share of its threads that this is
    limit: str  #: registers, shared memory, threads or blocks
    grid: int  #: blocks in all
    processors: int | None  #: of the GPU; None: nobody knows

    @property
    def waves(self) -> float | None:
        """How many times all multiprocessors are filled."""
        known = self.processors and self.blocks
        return self.grid / (self.processors * self.blocks) if self.processors and known else None

    @property
    def advice(self) -> str:
        """What may make it faster."""
        if self.stack:
            return (
                f"{self.stack} bytes of a thread do not fit its registers and lie in memory: "
                "smaller tiles (genesis tune) or fewer values at once"
            )
        waves = self.waves
        if self.processors is not None and self.grid < self.processors:
            idle = (
                f"{self.processors - self.grid} of {self.processors} multiprocessors have no work"
            )
            return f"{idle}: larger batches"
        if waves is not None and 1 < waves < 4 and 0 < waves % 1 < 0.5:
            return f"the last of {math.ceil(waves)} waves is {waves % 1:.0%} full"
        if self.occupancy < 0.25 and self.limit in ("registers", "shared memory"):
            return f"few blocks at once, by {self.limit}: smaller tiles (genesis tune)"
        return ""

    def __str__(self) -> str:
        spilled = f", {self.stack} B of stack" * bool(self.stack)
        waves = "" if self.waves is None else f", {self.waves:.3g} waves"
        text = (
            f"{self.name}: {self.threads} threads of {self.registers} registers, "
            f"{self.shared / 1024:.3g} KiB of shared memory{spilled}; {self.blocks} blocks "
            f"at once, "
            f"{self.occupancy:.0%} occupancy by {self.limit}{waves}"
        )
        return f"{text}\n  {self.advice}" if self.advice else text


def occupancy(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Occupancy]:
    """What the kernels take that ``genesis.jit(function)(*args, **kwargs)`` launches on a GPU."""
    from genesis.ndarray.tracing.jit import Jit

    jitted = function if isinstance(function, Jit) else Jit(function)
    recording, sizes = jitted.recording(*args, **kwargs)
    program = recording.program
    target = getattr(program.backend.chip, "architecture", program.backend.name)
    if not target.startswith("sm_"):
        raise ValueError(f"occupancy: the function runs on {target}; only NVIDIA GPUs are known")
    processors = getattr(program.backend.chip, "multiprocessors", None)
    return [
        found
        for step in program.steps
        for found in of_binary(
            step.built.binary,
            target,
            [sizes[s.name] for s in step.built.kernel.symbols],
            processors,
        )
    ]


def of_binary(
    binary: Binary, target: str, symbols: list[int], processors: int | None = None
) -> Iterator[Occupancy]:
    """What the phases of a compiled kernel take, for values of its symbols."""
    from genesis.backends.gpu.launch_metadata import (  # importing Genesis loads no backend
        evaluated,
        parsed,
    )

    most, slots, kib = limits(target)
    for phase in parsed(binary).phases:
        used = resources(binary.image[phase.code])
        registers, stack = used[_REGCOUNT], used.get(_FRAME_SIZE, 0)
        warps = -(-phase.threads // WARP)
        by_warp = -(-registers * WARP // GRANULE) * GRANULE
        fits = {
            "threads": most // (warps * WARP),
            "blocks": slots,
            "registers": REGISTERS // max(by_warp, 1) // warps,
            "shared memory": (kib << 10) // (phase.shared + RESERVED),
        }
        limit = min(fits, key=lambda name: fits[name])
        blocks = fits[limit]
        grid = evaluated(phase.grid, symbols)
        share = blocks * warps * WARP / most
        how = phase.threads, registers, phase.shared, stack
        yield Occupancy(phase.name, *how, blocks, share, limit, grid, processors)


def limits(target: str) -> tuple[int, int, int]:
    """Threads, blocks and KiB of shared memory of a multiprocessor.

    >>> limits("sm_90a")
    (2048, 32, 228)
    """
    found = re.fullmatch(r"sm_(\d+)[af]?", target)
    if found is None or int(found[1]) not in LIMITS:
        raise ValueError(f"occupancy: {target!r} is none of sm_{', sm_'.join(map(str, LIMITS))}")
    return LIMITS[int(found[1])]


def resources(cubin: bytes) -> Mapping[int, int]:
    """What the table of a cubin says of its function: attributes with a number each."""
    found: dict[int, int] = {}
    for name, content in _sections(cubin):
        place = 0
        while name == ".nv.info" and place + 4 <= len(content):
            kind, attribute, size = struct.unpack_from("<BBH", content, place)
            place += 4
            if kind == 4:  # others have their value in place of a size
                if size == 8:
                    found[attribute] = max(
                        found.get(attribute, 0), struct.unpack_from("<II", content, place)[1]
                    )
                place += size
    if _REGCOUNT not in found:
        raise ValueError("occupancy: the code does not say how many registers it takes")
    return found


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of an ELF file, by name."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("occupancy: the code is no ELF file")
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + size * k) for k in range(count)]
    for name, kind, _, _, offset, length in heads:
        start = heads[names][4] + name
        content = b"" if kind == 8 else elf[offset : offset + length]  # 8: it takes no room
        yield elf[start : elf.index(b"\0", start)].decode(), content
