"""From plain kernels to binaries: schedule, verify, compile, each structure once.

Kernels of equal structure share everything: a table keyed by the kernel's structure holds the
scheduled kernel, its verdict and its machine code for the life of the process.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from genesis.backends.base import Backend, Binary
from genesis.compiler.options import Options
from genesis.compiler.schedule import schedule
from genesis.compiler.verify import UnprovenKernel, Verdict, guard, verify
from genesis.ir.check import check
from genesis.ir.kernel import Axis, Buffer, Kernel, Local, Param
from genesis.ir.node import Node
from genesis.ir.size import Symbol

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Built:
    """A kernel ready to run: as it was scheduled, with its proof and its code."""

    kernel: Kernel
    verdict: Verdict
    binary: Binary


_built: dict[Hashable, Built] = {}


def build(plain: Sequence[tuple[Kernel, Pairs]], backend: Backend, options: Options) -> list[Built]:
    """Binaries for plain kernels; each comes with its (input, output) pairs that share memory."""
    keys: list[Hashable] = [
        (structure(kernel), donated, backend.name, options.schedule, options.strict)
        for kernel, donated in plain
    ]
    missing: dict[Hashable, tuple[Kernel, Verdict]] = {}
    for key, (kernel, donated) in zip(keys, plain, strict=True):
        if key not in _built and key not in missing:
            missing[key] = _prove(kernel, donated, backend, options)
    binaries = backend.compile([kernel for kernel, _ in missing.values()])
    for (key, (kernel, verdict)), binary in zip(missing.items(), binaries, strict=True):
        _built[key] = Built(kernel, verdict, binary)
    return [_built[key] for key in keys]


def _prove(
    plain: Kernel, donated: Pairs, backend: Backend, options: Options
) -> tuple[Kernel, Verdict]:
    """The scheduled kernel and its verdict; no kernel goes on unproven and unguarded."""
    kernel = schedule(plain, backend.chip) if options.schedule else plain
    check(kernel)
    verdict = verify(kernel, donated)
    if verdict.proven:
        return kernel, verdict
    if options.strict or verdict.refuted:
        raise UnprovenKernel(f"kernel {kernel.name} is not proven:\n{verdict}\n{kernel}")
    return guard(kernel, verdict), verdict


def structure(x: Any) -> Hashable:
    """A key that is equal for kernels of equal structure, whatever they are called."""
    if isinstance(x, Kernel):
        return (x.buffers, x.params, x.symbols, structure(x.phases))
    if isinstance(x, Node | Axis | Buffer | Local | Param | Symbol):
        return x
    if isinstance(x, tuple):
        return tuple(map(structure, x))
    if is_dataclass(x):
        return (type(x).__name__, *(structure(getattr(x, f.name)) for f in fields(x)))
    hashable: Hashable = x
    return hashable
