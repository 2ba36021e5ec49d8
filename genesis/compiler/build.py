"""From plain kernels to binaries: schedule, verify, compile, each structure once.

Kernels of equal structure share everything: a table keyed by the kernel's structure holds the
scheduled kernel, its verdict and its machine code, as long as it is not too long. Kernels that were
tuned are scheduled as tuning found best.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from genesis.backends.base import Backend, Binary
from genesis.compiler.options import Options
from genesis.compiler.schedule import schedule
from genesis.compiler.schedule.decisions import deciding
from genesis.compiler.tuning_records import decisions_for
from genesis.compiler.verify.guard_unproven import guard
from genesis.compiler.verify.kernel import ClaimKind, UnprovenKernel, Verdict, verify
from genesis.events import span
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


#: Kernels that are found again, at most: each takes about 50 KB.
MOST = 1024

_built: dict[Hashable, Built] = {}  # those that were used longest ago first


def build(plain: Sequence[tuple[Kernel, Pairs]], backend: Backend, options: Options) -> list[Built]:
    """Binaries for plain kernels, each with (input, output) pairs that are to share memory."""
    target = backend.name, backend.target
    known = {kernel: decisions_for(kernel, backend) for kernel, _ in plain}
    keys: dict[tuple[Kernel, Pairs], Hashable] = {
        (kernel, donated): (
            structure(kernel), donated, target, options.schedule, options.strict,
            options.float32_matmul,
            tuple(sorted(known[kernel].items())),
        )
        for kernel, donated in dict.fromkeys(plain)
    }  # fmt: skip
    missing: dict[Hashable, tuple[Kernel, Verdict, Pairs]] = {}

    def proven() -> Iterator[Kernel]:
        for (kernel, donated), key in keys.items():
            if key not in _built and key not in missing:
                with span("schedule", kernel.name), deciding(known[kernel]):
                    scheduled = schedule(kernel, backend.chip) if options.schedule else kernel
                missing[key] = made = prove(scheduled, donated, options)
                yield made[0]

    binaries = backend.compile(proven(), options.float32_matmul)
    for (key, made), binary in zip(missing.items(), binaries, strict=True):
        _built[key] = Built(made[0], made[1], binary, made[2])
    for key in keys.values():
        _built[key] = _built.pop(key)
    found = [_built[keys[wanted]] for wanted in plain]
    if len(_built) > MOST:
        for key in list(islice(_built, len(_built) - MOST * 3 // 4)):
            del _built[key]
    return found


def prove(kernel: Kernel, donated: Pairs, options: Options) -> tuple[Kernel, Verdict, Pairs]:
    """A scheduled kernel and its verdict; no kernel goes on unproven and unguarded.

    Where a schedule does not allow memory to be shared, it is not.
    """
    with span("verify", kernel.name):
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
