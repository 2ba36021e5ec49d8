"""What the entry of a binary says: how to launch the phases of a kernel.

It is JSON, and may come from disk, so it is checked as if somebody hostile had written it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub
from typing import Any

from genesis.backends.base import BadBinary, Binary

#: A number of blocks: an int, or [operation, operand, operand] with ["symbol", number] as leaves.
Count = Any
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": add, "-": sub, "*": mul, "//": floordiv, "%": mod, "min": min, "max": max,
}  # fmt: skip


@dataclass(frozen=True)
class PhaseLaunch:
    """How to launch one phase: its function, and where its code is in the image."""

    name: str
    code: slice
    threads: int
    shared: int
    grid: Count
    waits: bool  # for the kernel before it, and so may start while that still runs
    ahead: tuple[int, ...]  # buffers that it reads before it waits


@dataclass(frozen=True)
class LaunchMetadata:
    """What a binary's entry says, checked."""

    phases: tuple[PhaseLaunch, ...]
    buffers: int  # arguments that are pointers come first
    symbols: int  # the last arguments
    hidden: int  # pointers that Triton adds, and that are not used
    written: tuple[int, ...]  # the buffers that are not only read


def parsed(binary: Binary) -> LaunchMetadata:
    """The entry of a binary, which may be from disk, so checked."""
    try:
        match binary.entry:
            case {"phases": [*found], "buffers": int(b), "symbols": int(n), "hidden": int(h)}:
                phases, at = [], 0
                for phase in found:
                    size, threads, shared = phase["size"], phase["threads"], phase["shared"]
                    if min(size, threads, shared) < 0 or not isinstance(phase["name"], str):
                        raise ValueError
                    evaluated(phase["grid"], range(1, n + 1))
                    code = slice(at, at + size)
                    ahead = tuple(int(k) for k in phase["ahead"])
                    how = threads, shared, phase["grid"], phase["waits"] is True, ahead
                    phases.append(PhaseLaunch(phase["name"], code, *how))
                    at += size
                written = tuple(int(k) for k in binary.entry["written"])
                named = [k for k in (*written, *(k for p in phases for k in p.ahead)) if k >= b]
                if at <= len(binary.image) and 0 <= min(b, n) and 0 <= h <= 8 and not named:
                    return LaunchMetadata(tuple(phases), b, n, h, written)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        pass
    raise BadBinary(f"{binary.entry!r} does not describe a kernel for a GPU")


def evaluated(count: Count, symbols: Sequence[int]) -> int:
    """The number of blocks, given the values of the kernel's symbols.

    >>> evaluated(["//", ["+", ["symbol", 0], 15], 16], [100])
    7
    """
    if isinstance(count, int):
        return count
    operation, *operands = count
    if operation == "symbol":
        return symbols[int(operands[0])]
    if operation not in OPERATIONS:
        raise ValueError(f"{operation!r} is not an operation on sizes")
    a, b = (evaluated(operand, symbols) for operand in operands)
    return OPERATIONS[operation](a, b)
