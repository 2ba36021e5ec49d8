"""A profile as text: a row per kernel, and below it where the rest of the time went."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genesis.profiling.machine import Machine, this_machine

if TYPE_CHECKING:
    from genesis.profiling.profiler import KernelProfile, Profile

#: Lines of user code that are named per kernel.
LINES = 4

_HEAD = ("kernel", "calls", "time", "share", "GFLOP/s", "GB/s", "of roof", "from")


def table(profile: Profile, limit: int) -> str:
    """The text; kernels beyond `limit` are one row."""
    kernels = profile.kernels()
    total = sum(k.seconds for k in kernels)
    rows = [_row(k, total) for k in kernels[:limit]]
    if rest := kernels[limit:]:
        calls, seconds = sum(k.calls for k in rest), sum(k.seconds for k in rest)
        head = f"{len(rest)} others", f"{calls}", duration(seconds), _percent(seconds, total)
        rows.append((*head, "", "", "", ""))
    parts = [aligned([_HEAD, *rows], left=(0, 7)), "", _summary(profile, total)]
    if any(k.least is not None for k in kernels):
        parts.append(described(this_machine()))
    return "\n".join(parts)


def _row(k: KernelProfile, total: float) -> tuple[str, ...]:
    name = k.name if k.kind == "kernel" else f"{k.name} ({k.kind})"
    return (
        name,
        f"{k.calls}",
        duration(k.seconds),
        _percent(k.seconds, total),
        rate(k.flops_per_second),
        rate(k.bytes_per_second),
        "" if k.efficiency is None else f"{100 * k.efficiency:.0f} %",
        places(k.lines),
    )


def _summary(profile: Profile, kernels: float) -> str:
    parts = [f"{duration(kernels)} in kernels of {duration(profile.seconds)} watched"]
    parts += [
        f"{duration(seconds)} {what}"
        for what, kinds in (
            ("compiling", ("compile",)),
            ("loading programs", ("load",)),
            ("copying", ("copy",)),
        )
        if (seconds := profile.seconds_of(*kinds))
    ]
    return ", ".join(parts)


def described(machine: Machine) -> str:
    """A machine's roof in one line."""
    computes = ", ".join(f"{rate(peak)} GFLOP/s in {d}" for d, peak in machine.peaks.items())
    caches = "/".join(rate(r) for _, r in machine.bandwidths[:-1])
    moves = f"{rate(machine.bandwidths[-1][1])} GB/s from memory, {caches} from caches"
    threads = f"{machine.threads} thread{'s' * (machine.threads != 1)}"
    return f"roof of this machine, {threads}: {computes}; {moves}"


# ---- formats


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Rows of a table in columns; numbers go to the right, the columns `left` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def duration(seconds: float) -> str:
    """A time with a unit that suits it.

    >>> duration(0.00123), duration(12.3)
    ('1.23 ms', '12.3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def rate(per_second: float | None) -> str:
    """Billions a second, to three digits."""
    return "" if per_second is None else _three(per_second / 1e9)


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def places(lines: Sequence[str]) -> str:
    """Lines of code, each file named once, and only so many of them.

    >>> places(["/a/train.py:7", "/a/train.py:12"])
    'train.py:7,12'
    """
    files: dict[str, list[int]] = {}
    shown: list[str] = []
    for line in lines[:LINES]:
        file, _, number = line.rpartition(":")
        if number.isdecimal():
            files.setdefault(file, []).append(int(number))
        else:  # a module of PyTorch's
            shown.append(line)
    for file, numbers in files.items():
        shown.append(f"{_short(file)}:{','.join(map(str, sorted(numbers)))}")
    hidden = len(lines) - LINES
    return " ".join(shown) + f" and {hidden} more" * (hidden > 0)


def _short(file: str) -> str:
    """A file as seen from the working directory, if it is below it; else its name."""
    if os.path.isabs(file) and Path(file).is_relative_to(Path.cwd()):
        return str(Path(file).relative_to(Path.cwd()))
    return Path(file).name
