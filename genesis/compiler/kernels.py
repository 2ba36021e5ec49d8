"""From plain kernels to binaries: schedule, verify, compile, each structure once.

Kernels of equal structure share everything: a table keyed by the kernel's structure holds the
scheduled kernel, its verdict and its machine code for the life of the process.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from genesis.backends.base import Backend, Binary
from genesis.compiler.guard import guard
from genesis.compiler.options import Options
from genesis.compiler.schedule import schedule
from genesis.compiler.verify import ClaimKind, UnprovenKernel, Verdict, verify
from genesis.ir.check import check
from genesis.ir.kernel import Kernel
from genesis.ir.structure import structure

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Built:
    """A kernel ready to run: as it was scheduled, with its proof and its code.

    `shared` are the (input, output) pairs that are proven to be able to share memory, `known`
    what was found out about others.
    """

    kernel: Kernel
    verdict: Verdict
    binary: Binary
    shared: Pairs = ()
    known: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)


_built: dict[Hashable, Built] = {}


def build(plain: Sequence[tuple[Kernel, Pairs]], backend: Backend, options: Options) -> list[Built]:
    """Binaries for plain kernels, each with (input, output) pairs that are to share memory."""
    target = backend.name, backend.target
    keys: dict[tuple[Kernel, Pairs], Hashable] = {
        (kernel, donated): (
            structure(kernel), donated, target, options.schedule, options.strict
        )
        for kernel, donated in dict.fromkeys(plain)
    }  # fmt: skip
    missing: dict[Hashable, tuple[Kernel, Verdict, Pairs]] = {}

    def proven() -> Iterator[Kernel]:
        for (kernel, donated), key in keys.items():
            if key not in _built and key not in missing:
                missing[key] = made = _prove(kernel, donated, backend, options)
                yield made[0]

    binaries = backend.compile(proven())
    for (key, (kernel, verdict, shared)), binary in zip(missing.items(), binaries, strict=True):
        _built[key] = Built(kernel, verdict, binary, shared)
    made = {wanted: _built[key] for wanted, key in keys.items()}
    return [made[wanted] for wanted in plain]


def _prove(
    plain: Kernel, donated: Pairs, backend: Backend, options: Options
) -> tuple[Kernel, Verdict, Pairs]:
    """The scheduled kernel and its verdict; no kernel goes on unproven and unguarded.

    Where a schedule does not allow memory to be shared, it is not.
    """
    kernel = schedule(plain, backend.chip) if options.schedule else plain
    check(kernel)
    verdict = verify(kernel, donated)
    open_claims = (*verdict.unknown, *verdict.refuted)
    if any(c.kind is ClaimKind.DONATION for c in open_claims):
        verdict, donated = verify(kernel), ()
    if verdict.proven:
        return kernel, verdict, donated
    if options.strict or verdict.refuted:
        raise UnprovenKernel(f"kernel {kernel.name} is not proven:\n{verdict}\n{kernel}")
    return guard(kernel, verdict), verdict, donated
