"""The stages, one after the other: from a graph to a program.

simplify -> fuse -> lower -> build (schedule, verify, compile) -> plan memory and assemble. What is
decided here is what concerns kernels together: which updates happen in place and which outputs
take over an input's memory. The body of a loop goes through the same stages, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from genesis.backends.base import GPU, Backend
from genesis.compiler.assemble import assemble
from genesis.compiler.calls import LoweredCall, defined, lower_call, on_host
from genesis.compiler.complex import without_complex
from genesis.compiler.even import even
from genesis.compiler.fuse import fuse
from genesis.compiler.groups import Group, is_row_major
from genesis.compiler.kernels import Pairs, build
from genesis.compiler.layout import channels_last
from genesis.compiler.loops import LoweredLoop, Steps, kernels, opened, stored_inputs
from genesis.compiler.lower import Lowered
from genesis.compiler.neighbours import spoiled
from genesis.compiler.options import Options
from genesis.compiler.order import ordered, work_of
from genesis.compiler.program import Program, results
from genesis.compiler.recognise import Known, lower_once
from genesis.compiler.recompute import within
from genesis.compiler.sharing import pointwise
from genesis.compiler.shifted import one_pass
from genesis.compiler.simplify import simplify
from genesis.compiler.verify_program import verify_program
from genesis.compiler.winograd import winograd
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Role
from genesis.ir.node import Node, topological
from genesis.spans import span


def compile_stages(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    """Compile the graph below `roots`. Memory in the `donated` input slots may be overwritten."""
    became: dict[Node, Node] = {}
    origins: dict[Node, Node] = {}
    real = without_complex(defined(roots, backend), origins)
    real = _suited(real, backend, options, origins)
    simple = _simplified(real, options, became)
    if options.simplify and isinstance(backend.chip, GPU):
        simple = even(simple, became)
    # A step on the host may fail, so that the rest does not run: then inputs must be as they were.
    overwrites = options.donate and not on_host(simple, backend)
    slots = donated if overwrites else frozenset()
    # Simplification may drop inputs; whoever runs the program still passes them.
    buffers = max((n.attr.slot + 1 for n in topological(roots) if n.op is ops.BUFFER), default=0)
    fresh = count(buffers)
    steps, in_place = _lower(simple, slots, backend, options, lambda: next(fresh))
    reuses = {n: slot for n, slot in in_place.items() if n in simple}
    plain = _plain(steps, slots - set(in_place.values()), reuses, frozenset(simple))
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
        made = assemble(simple, buffers, order, chosen, in_place, reuses, backend, origins)
        with span("verify program"):
            return replace(made, accesses=verify_program(made, order, simple, slots))

    budget = options.memory_budget
    with span("assemble"):
        work = work_of(steps, built, simple, in_place | reuses, costs=budget is not None)
        order = ordered(work)
        return program(order) if budget is None else within(budget, work, order, program)


def _suited(
    roots: Sequence[Node], backend: Backend, options: Options, origins: dict[Node, Node]
) -> list[Node]:
    """The graph as it suits the chip: where products decide, with fewer of them.

    GPUs multiply so fast that moving what is multiplied decides: channels last, and read once.
    """
    if isinstance(backend.chip, GPU):
        with span("layout"):
            if not options.simplify:
                return list(roots)
            return channels_last(one_pass(roots, origins), origins)
    with span("winograd"):
        return winograd(roots, origins) if options.winograd else list(roots)


def _simplified(
    roots: Sequence[Node], options: Options, became: dict[Node, Node]
) -> tuple[Node, ...]:
    with span("simplify"):
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
            gpu = isinstance(backend.chip, GPU)
            fusion = fuse(roots, donated, options.fuse, converts=gpu, totals=not gpu)
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
    scan: Node,
    items: Sequence[Node],
    backend: Backend,
    options: Options,
    fresh: Callable[[], int],
) -> LoweredLoop:
    """The body of a SCAN of which `items` are asked for, as kernels."""
    body = opened(scan, items, fresh)
    inner = _suited(defined(body.roots, backend), backend, options, {})
    body = replace(body, roots=_simplified(inner, options, {}))
    steps, _ = _lower(body.roots, frozenset(), backend, options, fresh)
    return LoweredLoop(body, tuple(steps))


def _bases(groups: Sequence[Group]) -> dict[Node, int]:
    """For every update done in place: the slot it writes into."""
    slots: dict[Node, int] = {}
    for group in groups:  # inner updates come first
        if group.in_place:
            base = group.root.inputs[0]
            slots[group.root] = base.attr.slot if base.op is ops.BUFFER else slots[base]
    return slots


def _plain(
    steps: Steps, donated: frozenset[int], reuses: dict[Node, int], roots: frozenset[Node]
) -> list[tuple[Kernel, Pairs]]:
    """The kernels, each with the (input, output) pairs that share memory. `reuses` is added to."""
    last_read = {
        n.attr.slot: i for i, k in enumerate(steps) for n in k.arguments if n.op is ops.BUFFER
    }
    plain: list[tuple[Kernel, Pairs]] = []
    for i, step in enumerate(steps):
        if isinstance(step, LoweredLoop):
            plain += [(low.kernel, ()) for low in kernels(step.steps)]
            continue
        if isinstance(step, LoweredCall):
            continue
        free = frozenset(slot for slot in donated if last_read.get(slot) == i)
        free -= set(reuses.values())
        plain.append((step.kernel, _takeovers(step, free, reuses, roots) if free else ()))
    return plain


def _takeovers(
    low: Lowered, free: frozenset[int], reuses: dict[Node, int], roots: frozenset[Node]
) -> Pairs:
    """Outputs that may take over the memory of an input in a `free` slot.

    Nothing reads such an input later, and each of its elements is read where it is written. What
    an optimizer updates stays where it is: outputs come in turn by how many inputs they are made
    from, element by element, and take one of those, if they can.
    """
    pairs: list[tuple[str, str]] = []
    by_buffer = dict(zip(low.kernel.buffers, low.arguments, strict=True))
    inputs = {b: n for b, n in by_buffer.items() if b.role is Role.INPUT and n.op is ops.BUFFER}
    outputs = {b: n for b, n in by_buffer.items() if b.role is Role.OUTPUT and n in roots}
    given = {leaf for leaf in inputs.values() if leaf.attr.slot in free}
    parts = {out: _parts(n) & given for out, n in outputs.items()}
    for out, n in sorted(outputs.items(), key=lambda x: len(parts[x[0]]) or len(inputs) + 1):
        if n in reuses:
            continue
        for buffer, leaf in sorted(inputs.items(), key=lambda x: x[1] not in parts[out]):
            slot = leaf.attr.slot
            alone = [x for x in inputs.values() if x.attr.slot == slot] == [leaf]
            fits = leaf.shape == n.shape and leaf.dtype.itemsize == n.dtype.itemsize
            if (
                slot in free - set(reuses.values())
                and alone
                and fits
                and is_row_major(leaf)
                and pointwise(low.kernel, buffer, out)
            ):
                reuses[n] = slot
                pairs.append((buffer.name, out.name))
                break
    return tuple(pairs)


def _parts(n: Node) -> set[Node]:
    """What a value is made from by arithmetic, element by element."""
    found: set[Node] = set()
    stack = [n]
    while stack:
        m = stack.pop()
        if m not in found:
            found.add(m)
            stack += m.inputs if m.op.is_elementwise else ()
    return found
