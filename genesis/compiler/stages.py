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
from genesis.compiler.assemble import assemble
from genesis.compiler.fuse import Group, fuse, is_row_major
from genesis.compiler.kernels import Pairs, build
from genesis.compiler.loops import LoweredLoop, Steps, kernels, opened, stored_inputs
from genesis.compiler.lower import Lowered, lower
from genesis.compiler.options import Options
from genesis.compiler.program import Program, results
from genesis.compiler.simplify import simplify
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Kernel, Loop, Role, Store, expressions, load_parts, walk
from genesis.ir.node import Node, topological


def compile_stages(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    """Compile the graph below `roots`. Memory in the `donated` input slots may be overwritten."""
    became: dict[Node, Node] = {}
    simple = _simplified(roots, options, became)
    slots = donated if options.donate else frozenset()
    # Simplification may drop inputs; whoever runs the program still passes them.
    buffers = max((n.attr.slot + 1 for n in topological(roots) if n.op is ops.BUFFER), default=0)
    fresh = count(buffers)
    steps, in_place = _lower(simple, slots, options, lambda: next(fresh))
    reuses = {n: slot for n, slot in in_place.items() if n in simple}
    built = build(_plain(steps, slots, reuses, frozenset(simple)), backend, options)
    origins = {new: old for old, new in became.items()}
    return assemble(simple, buffers, steps, built, in_place, reuses, backend, origins)


def _simplified(
    roots: Sequence[Node], options: Options, became: dict[Node, Node]
) -> tuple[Node, ...]:
    simple = simplify(roots, became) if options.simplify else roots
    return results(stored_inputs(simple))


def _lower(
    roots: tuple[Node, ...], donated: frozenset[int], options: Options, fresh: Callable[[], int]
) -> tuple[Steps, dict[Node, int]]:
    """Fuse and lower. Updates are done in place only where no later kernel reads the old value."""
    while True:
        fusion = fuse(roots, donated, options.fuse)
        memo: dict[Node, Node] = {}
        steps = [
            _lower_loop(g, options, fresh)
            if g.root.op is ops.SCAN
            else lower(g, fusion.stored, memo)
            for g in fusion.groups
        ]
        in_place = _bases(fusion.groups)
        spoiled = {
            slot
            for position, group in enumerate(fusion.groups)
            if group.in_place and (slot := in_place[group.root]) is not None
            for later in steps[position:]
            for n in later.arguments
            if n.op is ops.BUFFER and n.attr.slot == slot
        }
        if not spoiled:
            return steps, in_place
        donated -= spoiled


def _lower_loop(group: Group, options: Options, fresh: Callable[[], int]) -> LoweredLoop:
    """The body of a SCAN, as kernels."""
    body = opened(group.root, [item for item, _ in group.also], fresh)
    body = replace(body, roots=_simplified(body.roots, options, {}))
    steps, _ = _lower(body.roots, frozenset(), options, fresh)
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
        free = frozenset(slot for slot in donated if last_read.get(slot) == i)
        free -= set(reuses.values())
        plain.append((step.kernel, _takeovers(step, free, reuses, roots) if free else ()))
    return plain


def _takeovers(
    low: Lowered, free: frozenset[int], reuses: dict[Node, int], roots: frozenset[Node]
) -> Pairs:
    """Outputs that may take over the memory of an input in a `free` slot.

    Nothing reads such an input later, and each of its elements is read where it is written.
    """
    pairs: list[tuple[str, str]] = []
    by_buffer = dict(zip(low.kernel.buffers, low.arguments, strict=True))
    inputs = {b: n for b, n in by_buffer.items() if b.role is Role.INPUT and n.op is ops.BUFFER}
    for out, n in by_buffer.items():
        if out.role is not Role.OUTPUT or n not in roots or n in reuses:
            continue
        for buffer, leaf in inputs.items():
            slot = leaf.attr.slot
            alone = [x for x in inputs.values() if x.attr.slot == slot] == [leaf]
            fits = leaf.shape == n.shape and leaf.dtype.itemsize == n.dtype.itemsize
            if (
                slot in free - set(reuses.values())
                and alone
                and fits
                and is_row_major(leaf)
                and _pointwise(low.kernel, buffer, out)
            ):
                reuses[n] = slot
                pairs.append((buffer.name, out.name))
                break
    return tuple(pairs)


def _pointwise(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    """Whether a plain kernel reads `source` only at the element of `target` it then writes."""
    (phase,) = kernel.phases
    if any(isinstance(s, Loop) and s.carried for s in walk(phase.body)):
        return False
    stores = [s for s in walk(phase.body) if isinstance(s, Store)]
    written = {s.index for s in stores if s.buffer == target}
    loads = [
        n
        for s in stores
        for n in topological(expressions(s))
        if n.op is ops.LOAD and n.attr == source
    ]
    last = stores[-1].buffer == target  # nothing may read after the write
    return last and len(written) == 1 and {load_parts(n)[1] for n in loads} == written
