"""Reports: what a program does, kernel by kernel, for people.

Counts of arithmetic and bytes say what there is to do, however it is scheduled: every value is
computed once, and every distinct element moved once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from genesis.compiler.chip_passes import passes_of
from genesis.compiler.fuse.groups import summed_labels
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.program.program import Program, as_size
from genesis.compiler.schedule import matched
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.node import Node, topological
from genesis.ir.size import Dim, evaluate, product

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
    rule: str = ""  # that scheduled it
    claims: tuple[str, ...] = ()  # what had to be proven, and what became of each

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
    arrays: int = 1  # that it is given
    nbytes: int = 0  # of these
    axis: str = ""  # of the mesh along which processes exchange them
    first: int = 0  # kernels before it
    meanwhile: int = 0  # kernels that run while a collective is under way,
    share: float = 0.0  # and what they move of all that kernels do
    proven: bool = False  # that nobody touches what is under way

    def __str__(self) -> str:
        head = f"call {self.name}: {'native code' if self.native else 'on the host'}"
        if self.axis:
            count = f"{self.arrays} array{'s' * (self.arrays != 1)}"
            kind = self.name.removeprefix("collectives.")
            head = f"collective {kind} along {self.axis}: {count}, {_si(self.nbytes)}B"
            kernels = f"{self.meanwhile} kernel{'s' * (self.meanwhile != 1)}"
            head += f"\n  while {kernels} run, {self.share:.0%} of their traffic"
            head += ", proven" * self.proven
        return head + "".join(f"\n  from {line}" for line in self.lines)


@dataclass(frozen=True)
class Report:
    """A whole program: its kernels in order, its calls of the library, its memory, its proofs."""

    kernels: tuple[KernelReport, ...]
    calls: tuple[CallReport, ...]
    temporary_bytes: int
    peak_bytes: int  # outputs and temporaries: what a run needs on top of its inputs
    accesses: int | None  # reads and writes of launches proven to meet the right values

    @property
    def flops(self) -> int:
        """Arithmetic of one run."""
        return sum(k.flops * k.repeats for k in self.kernels)

    @property
    def proven(self) -> bool:
        """Whether every kernel is proven, and that launches find in memory what they read."""
        return self.accesses is not None and all(k.proven for k in self.kernels)

    def __str__(self) -> str:
        count = len(self.kernels)
        calls = f"{len(self.calls)} library call{'s' * (len(self.calls) != 1)}, "
        calls *= bool(self.calls)
        head = (
            f"{count} kernel{'s' * (count != 1)}, {calls}{_si(self.flops)}FLOP, "
            f"{_si(self.peak_bytes)}B of memory on top of its inputs, "
            f"{'all proven' if self.proven else 'NOT ALL PROVEN'}\n"
            f"{self.accesses or 0} reads and writes of launches meet the right values"
        )
        return "\n\n".join([head, *map(str, self.kernels), *map(str, self.calls)])


def report(
    program: Program, where: Where = lambda n: None, sizes: Mapping[str, int] | None = None
) -> Report:
    """Describe a program; `where` gives the place in the user's code a graph node came from."""
    known = dict(sizes or {})
    kernels = []
    for step in program.steps:
        plain, built = step.lowered.kernel, step.built
        members = [m for m in step.lowered.members if not m.op.is_movement]
        # What is inside a loop came from where the loop was written.
        lines = lines_of(program, (*step.lowered.members, *step.loops), where)
        claims = len(built.verdict.claims)
        verdict = f"proven ({claims} claims)" if built.verdict.proven else str(built.verdict)
        kernels.append(
            KernelReport(
                plain.name,
                tuple(dict.fromkeys(m.op.name for m in members)),
                lines,
                arithmetic(step.lowered, known),
                traffic(plain, known),
                evaluate(step.repeats, known),
                verdict,
                built.verdict.proven,
                str(plain),
                str(built.kernel),
                built.binary.source,
                bool(step.loops),
                matched(plain, program.backend.chip, passes_of(program.backend.chip))[0].name,
                tuple(map(str, built.verdict.claims)),
            )
        )
    total = program.placement(known).total
    moved = [k.nbytes * k.repeats for k in kernels]
    calls = []
    for position, call in enumerate(program.derivation.steps):
        if isinstance(call, LoweredCall):
            name, options = call.call.name, call.call.options
            axis = options[1] if name.startswith("collectives.") else ""
            beside = _meanwhile(program, position) if axis else range(0)
            calls.append(
                CallReport(
                    name,
                    lines_of(program, (call.node, *call.items.values()), where),
                    bool(call.native),
                    len(call.call.operands),
                    sum(evaluate(product(s), known) * d.itemsize for d, s in call.call.operands),
                    axis,
                    beside.start,
                    len(beside),
                    sum(moved[k] for k in beside) / max(1, sum(moved)),
                    program.accesses is not None,
                )
            )
    return Report(tuple(kernels), tuple(calls), total, program.peak_bytes(known), program.accesses)


def _meanwhile(program: Program, position: int) -> range:
    """Which kernels run while a collective is under way: until one reads its results."""
    steps = program.derivation.steps
    collective = steps[position]
    assert isinstance(collective, LoweredCall)
    results = set(collective.items.values())
    arguments = [(s if isinstance(s, LoweredCall) else s.lowered).arguments for s in steps]
    later = range(position + 1, len(steps))
    end = next((k for k in later if not results.isdisjoint(arguments[k])), len(steps))
    kernels = [not isinstance(step, LoweredCall) for step in steps]
    return range(sum(kernels[:position]), sum(kernels[:end]))


def lines_of(program: Program, nodes: Iterable[Node], where: Where) -> tuple[str, ...]:
    """Where the user wrote what became of these nodes of a program."""
    found = [where(program.origins.get(n, n)) for n in nodes]
    return tuple(sorted({line for line in found if line is not None}))


def arithmetic(low: Lowered, sizes: Mapping[str, int]) -> int:
    """Floating-point operations that the values of a kernel take, each computed once.

    A plain kernel may go about it in more: that of attention has the scores again in every column.
    """
    executed = flops(low.kernel, sizes)
    if any(m.op.group == "prefix" or m.op is ops.SCATTER for m in low.members):
        return executed
    return min(executed, sum(evaluate(_operations(m), sizes) for m in low.members))


def _operations(n: Node) -> Dim:
    """Floating-point operations that one node of a graph stands for."""
    if n.op is ops.CONTRACT:
        return 2 * n.size * product(summed_labels(n).values()) if n.dtype.is_float else 0
    if n.op.group == "reduce":
        return n.inputs[0].size if n.dtype.is_float else 0
    return n.size if _is_arithmetic(n) else 0


def flops(kernel: kir.Kernel, sizes: Mapping[str, int]) -> int:
    """Floating-point operations one run of a plain kernel executes; a multiply-add counts two."""
    return sum(_points(phase, sizes) * _body_flops(phase.body, sizes) for phase in kernel.phases)


def _body_flops(body: kir.Body, sizes: Mapping[str, int]) -> int:
    total = 0
    for s in body:
        if isinstance(s, kir.Loop):
            each = _body_flops(s.body, sizes) + _float_operations(c.step for c in s.carried)
            total += _extent(s.axis.extent, sizes) * each
        else:
            total += _float_operations(kir.expressions(s))
    return total


def _float_operations(roots: Iterable[Node]) -> int:
    return sum(map(_is_arithmetic, topological(roots)))


def _is_arithmetic(n: Node) -> bool:
    return n.op.is_elementwise and n.op not in (ops.CAST, ops.BITCAST) and n.dtype.is_float


def traffic(kernel: kir.Kernel, sizes: Mapping[str, int]) -> int:
    """Bytes a plain kernel has to move: of every buffer the elements it can touch, each once.

    A gather touches no more of its table than it reads, an update in place only its region.
    """
    (phase,) = kernel.phases
    reads, writes = Counter[kir.Buffer](), Counter[kir.Buffer]()
    _count_accesses(phase.body, _points(phase, sizes), sizes, reads, writes)
    total = 0
    for b in kernel.buffers:
        elements = math.prod(_extent(e, sizes) for e in b.shape)
        total += min(elements, max(reads[b], writes[b])) * b.dtype.itemsize
    return total


def _count_accesses(
    body: kir.Body,
    times: int,
    sizes: Mapping[str, int],
    reads: Counter[kir.Buffer],
    writes: Counter[kir.Buffer],
) -> None:
    """Add up how many elements the loads and stores of a body that runs so many times touch."""
    for s in body:
        inside = times * _extent(s.axis.extent, sizes) if isinstance(s, kir.Loop) else times
        for n in topological(kir.expressions(s)):
            if n.op is ops.LOAD:
                reads[kir.load_parts(n)[0]] += inside
        if isinstance(s, kir.Store):
            writes[s.buffer] += times
        for inner in kir.children(s):
            _count_accesses(inner, inside, sizes, reads, writes)


def _points(phase: kir.Phase, sizes: Mapping[str, int]) -> int:
    return math.prod(_extent(axis.extent, sizes) for axis in phase.grid)


def _extent(extent: kir.Index, sizes: Mapping[str, int]) -> int:
    return extent if isinstance(extent, int) else evaluate(as_size(kir.as_index(extent)), sizes)


def _si(count: int) -> str:
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} T"
