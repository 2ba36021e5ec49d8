"""Reports: what a program does, kernel by kernel, for people.

Counts of arithmetic and bytes come from the plain kernels: arithmetic is what the loops execute,
bytes are compulsory traffic, each distinct element moved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from genesis.compiler.calls import LoweredCall
from genesis.compiler.program import Program, as_size
from genesis.compiler.schedule.heuristics import accesses
from genesis.ir import ops
from genesis.ir.kernel import (
    Body,
    Index,
    Kernel,
    Loop,
    Role,
    Store,
    as_index,
    expressions,
)
from genesis.ir.node import Node, topological
from genesis.ir.size import evaluate, product

Where = Callable[[Node], str | None]


@dataclass(frozen=True)
class KernelReport:
    """One launch of a program."""

    name: str
    operations: tuple[str, ...]  # the user's operations computed here
    lines: tuple[str, ...]  # where the user wrote them
    flops: int  # of one run
    nbytes: int
    repeats: int  # how often it runs: more than once in a loop
    verdict: str
    proven: bool
    plain: str
    scheduled: str
    code: str

    in_loop: bool = False

    def __str__(self) -> str:
        head = (
            f"kernel {self.name}: {', '.join(self.operations) or 'copy'}\n"
            f"  {_si(self.flops)}FLOP, {_si(self.nbytes)}B, {self.verdict}"
            f"{f', in a loop: runs {self.repeats} times' * self.in_loop}"
        )
        lines = "".join(f"\n  from {line}" for line in self.lines)
        body = "\n".join("  " + line for line in self.scheduled.splitlines())
        return f"{head}{lines}\n{body}"


@dataclass(frozen=True)
class CallReport:
    """One operation of the library in a program."""

    name: str
    lines: tuple[str, ...]
    native: bool  # the backend's own code; otherwise a step on the host

    def __str__(self) -> str:
        head = f"call {self.name}: {'native code' if self.native else 'on the host'}"
        return head + "".join(f"\n  from {line}" for line in self.lines)


@dataclass(frozen=True)
class Report:
    """A whole program: its kernels in order, its calls of the library, its memory, its proofs."""

    kernels: tuple[KernelReport, ...]
    calls: tuple[CallReport, ...]
    temporary_bytes: int
    peak_bytes: int  # outputs and temporaries: what a run needs on top of its inputs

    @property
    def flops(self) -> int:
        """Arithmetic of one run."""
        return sum(k.flops * k.repeats for k in self.kernels)

    @property
    def proven(self) -> bool:
        """Whether every kernel is proven."""
        return all(k.proven for k in self.kernels)

    def __str__(self) -> str:
        count = len(self.kernels)
        calls = f"{len(self.calls)} library call{'s' * (len(self.calls) != 1)}, "
        calls *= bool(self.calls)
        head = (
            f"{count} kernel{'s' * (count != 1)}, {calls}{_si(self.flops)}FLOP, "
            f"{_si(self.peak_bytes)}B of memory on top of its inputs, "
            f"{'all proven' if self.proven else 'NOT ALL PROVEN'}"
        )
        return "\n\n".join([head, *map(str, self.kernels), *map(str, self.calls)])


def report(
    program: Program, where: Where = lambda n: None, sizes: Mapping[str, int] | None = None
) -> Report:
    """Describe a program; `where` gives the place in the user's code a graph node came from."""
    known = dict(sizes or {})
    kernels = []

    def lines_of(nodes: Iterable[Node]) -> tuple[str, ...]:
        found = [where(program.origins.get(n, n)) for n in nodes]
        return tuple(sorted({line for line in found if line is not None}))

    for step in program.steps:
        plain, built = step.lowered.kernel, step.built
        members = [m for m in step.lowered.members if not m.op.is_movement]
        # What is inside a loop came from where the loop was written.
        lines = lines_of((*step.lowered.members, *step.loops))
        claims = len(built.verdict.claims)
        verdict = f"proven ({claims} claims)" if built.verdict.proven else str(built.verdict)
        kernels.append(
            KernelReport(
                plain.name,
                tuple(dict.fromkeys(m.op.name for m in members)),
                lines,
                flops(plain, known),
                traffic(plain, known),
                evaluate(step.repeats, known),
                verdict,
                built.verdict.proven,
                str(plain),
                str(built.kernel),
                built.binary.source,
                bool(step.loops),
            )
        )
    total = program.placement(known).total
    calls = [
        CallReport(step.call.name, lines_of((step.node, *step.items.values())), bool(step.claim))
        for step in program.derivation.steps
        if isinstance(step, LoweredCall)
    ]
    return Report(tuple(kernels), tuple(calls), total, program.peak_bytes(known))


def flops(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Floating-point operations one run of a plain kernel executes; a multiply-add counts two."""
    total = 0
    for phase in kernel.phases:
        grid = 1
        for axis in phase.grid:
            grid *= _extent(axis.extent, sizes)
        total += grid * _body_flops(phase.body, sizes)
    return total


def _body_flops(body: Body, sizes: Mapping[str, int]) -> int:
    total = 0
    for s in body:
        if isinstance(s, Loop):
            each = _body_flops(s.body, sizes) + _float_operations(c.step for c in s.carried)
            total += _extent(s.axis.extent, sizes) * each
        else:
            total += _float_operations(expressions(s))
    return total


def _float_operations(roots: Iterable[Node]) -> int:
    return sum(
        1
        for n in topological(roots)
        if n.op.is_elementwise and n.op not in (ops.CAST, ops.BITCAST) and n.dtype.is_float
    )


def traffic(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Bytes of all buffers a plain kernel reads or writes, each element once."""
    total = 0
    (phase,) = kernel.phases
    touched = {b for b, _ in accesses(phase.body)}
    for b in kernel.buffers:
        if b in touched:
            extents = [_extent(e, sizes) for e in b.shape]
            count = evaluate(product(extents), sizes)
            if b.role is Role.INOUT:  # an update in place touches its region only
                stores = [s for s in phase.body if isinstance(s, Store) and s.buffer == b]
                count = product(_extent(a.extent, sizes) for a in phase.grid) if stores else count  # type: ignore[assignment]
            total += count * b.dtype.itemsize
    return total


def _extent(extent: Index, sizes: Mapping[str, int]) -> int:
    return extent if isinstance(extent, int) else evaluate(as_size(as_index(extent)), sizes)


def _si(count: int) -> str:
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} T"
