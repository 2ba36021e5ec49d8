"""The stages, one after the other: from a graph to a program.

simplify -> fuse -> lower -> build (schedule, verify, compile) -> plan memory and assemble. What is
decided here is what concerns kernels together: which updates happen in place and which outputs
take over an input's memory. The body of a loop goes through the same stages, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from genesis.backends.base import Backend
from genesis.compiler.build import build
from genesis.compiler.chip_passes import GraphPass, passes_of
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.fuse.groups import FusionGroup
from genesis.compiler.fuse.horizontal import spoiled
from genesis.compiler.graph.complex import without_complex
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.dedupe import Known, lower_once
from genesis.compiler.lower.library_calls import LoweredCall, lower_call, on_host
from genesis.compiler.lower.lower import Lowered
from genesis.compiler.lower.scan import LoweredLoop, Steps, kernels, opened, stored_inputs
from genesis.compiler.options import Options
from genesis.compiler.program.assemble import assemble
from genesis.compiler.program.kernel_order import ordered, work_of
from genesis.compiler.program.overlap import overlapped
from genesis.compiler.program.program import GraphStage, Program, results
from genesis.compiler.program.rematerialise import within
from genesis.compiler.program.reuse_inputs import with_reuses
from genesis.compiler.verify.collectives import verify_flights
from genesis.compiler.verify.program import verify_program
from genesis.events import span
from genesis.ir import ops
from genesis.ir.node import Node, topological

#: The stage whose rules are `genesis.compiler.graph.simplify.RULES`.
SIMPLIFY = "simplify"
#: Nodes of a graph that becomes enough kernels to have help with them.
MANY = 200


def compile_program(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    """Compile the graph below `roots`. Memory in the `donated` input slots may be overwritten."""
    written = topological(roots)
    if len(written) > MANY:
        backend.expect_kernels()
    became: dict[Node, Node] = {}
    origins: dict[Node, Node] = {}
    stages = [GraphStage("as written", tuple(roots))]
    real: Sequence[Node] = without_complex(roots, origins)
    _note(stages, "complex", real)
    passes = passes_of(backend.chip)
    real = _passed(real, passes.before_simplify, origins, options, stages)
    simple = _simplified(real, options, became)
    _note(stages, SIMPLIFY, simple)
    simple = tuple(_passed(simple, passes.after_simplify, became, options, stages))
    # A step on the host may fail, so that the rest does not run: then inputs must be as they were.
    overwrites = options.donate and not on_host(simple, backend)
    slots = donated if overwrites else frozenset()
    # Simplification may drop inputs; whoever runs the program still passes them.
    buffers = max((n.attr.slot + 1 for n in written if n.op is ops.BUFFER), default=0)
    fresh = count(buffers)
    steps, in_place = _lower(simple, slots, backend, options, lambda: next(fresh))
    reuses = {n: slot for n, slot in in_place.items() if n in simple}
    plain = with_reuses(steps, slots - set(in_place.values()), reuses, frozenset(simple))
    built = build(plain, backend, options)
    for low, (_, wanted), made in zip(kernels(steps), plain, built, strict=True):
        by_name = {b.name: n for b, n in zip(low.kernel.buffers, low.arguments, strict=True)}
        for pair in set(wanted) - set(made.shared):
            del reuses[by_name[pair[1]]]
    given = set(topological(real))  # simplification also says what became of its own nodes
    origins |= {new: origins.get(old, old) for old, new in became.items() if old in given}

    parts = iter(built)
    by_step = [[next(parts) for _ in kernels([step])] for step in steps]

    def program(sequence: Sequence[int]) -> Program:
        chosen = [b for k in sequence for b in by_step[k]]
        order = [steps[k] for k in sequence]
        made = assemble(
            roots, simple, buffers, order, chosen, in_place, reuses, backend, origins, stages
        )
        with span("verify program"):
            verify_flights(made)
            return replace(made, accesses=verify_program(made, order, simple, slots))

    budget = options.memory_budget
    with span("assemble"):
        work = work_of(steps, built, simple, in_place | reuses, costs=budget is not None)
        order = overlapped(ordered(work), steps)
        return program(order) if budget is None else within(budget, work, order, program)


def _passed(
    roots: Sequence[Node],
    passes: Sequence[GraphPass],
    noted: dict[Node, Node],
    options: Options,
    stages: list[GraphStage],
) -> Sequence[Node]:
    """The graph after some passes of its chip."""
    for each in passes:
        with span(each.name):
            roots = each(roots, noted, options)
        _note(stages, each.name, roots)
    return roots


def _note(stages: list[GraphStage], name: str, roots: Sequence[Node]) -> None:
    """Add a stage, if it changed the graph."""
    if tuple(roots) != stages[-1].roots:
        stages.append(GraphStage(name, tuple(roots)))


def _simplified(
    roots: Sequence[Node], options: Options, became: dict[Node, Node]
) -> tuple[Node, ...]:
    with span(SIMPLIFY):
        simple = simplify(roots, became) if options.simplify else roots
        return results(stored_inputs(simple))


def _lower(
    roots: tuple[Node, ...],
    donated: frozenset[int],
    backend: Backend,
    options: Options,
    fresh: Callable[[], int],
) -> tuple[Steps, dict[Node, int]]:
    """Fuse and lower. Updates are done in place only where no later kernel reads an old value."""
    while True:
        with span("fuse"):
            fusion = fuse(roots, donated, options.fuse, passes_of(backend.chip).fusing)
        known = Known()
        steps: list[Lowered | LoweredCall | LoweredLoop] = []
        with span("lower"):
            for group in fusion.groups:
                items = [item for item, _ in group.also]
                if group.root.op is ops.SCAN:
                    steps.append(_lower_loop(group.root, items, backend, options, fresh))
                elif group.root.op is ops.CALL:
                    steps.append(lower_call(group.root, items, backend))
                else:
                    steps.append(lower_once(group, fusion.stored, known))
        in_place = _bases(fusion.groups)
        old = spoiled(fusion.groups, [step.arguments for step in steps], in_place)
        if not old:
            return steps, in_place
        donated -= old


def _lower_loop(
    scan: Node, items: Sequence[Node], backend: Backend, options: Options, fresh: Callable[[], int]
) -> LoweredLoop:
    """The body of a SCAN of which `items` are asked for, as kernels."""
    body = opened(scan, items, fresh)
    passes = passes_of(backend.chip)
    inner = _passed(body.roots, passes.before_simplify, {}, options, [GraphStage("", ())])
    body = replace(body, roots=_simplified(inner, options, {}))
    steps, _ = _lower(body.roots, frozenset(), backend, options, fresh)
    return LoweredLoop(body, tuple(steps))


def _bases(groups: Sequence[FusionGroup]) -> dict[Node, int]:
    """For every update done in place: the slot it writes into."""
    slots: dict[Node, int] = {}
    for group in groups:  # inner updates come first
        if group.in_place:
            base = group.root.inputs[0]
            slots[group.root] = base.attr.slot if base.op is ops.BUFFER else slots[base]
    return slots
