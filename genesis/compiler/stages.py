"""The stages, one after the other: from a graph to a program.

simplify -> fuse -> lower -> build (schedule, verify, compile) -> plan memory and assemble. What is
decided here is what concerns kernels together: which updates happen in place, which outputs take
over an input's memory, and where each kernel finds its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genesis.backends.base import Backend, Launch
from genesis.compiler.fuse import Group, fuse, is_row_major
from genesis.compiler.kernels import Pairs, build
from genesis.compiler.lower import Lowered, lower
from genesis.compiler.options import Options
from genesis.compiler.plan import Temporary
from genesis.compiler.program import Derivation, Output, Program, Step, as_size, results
from genesis.compiler.simplify import simplify
from genesis.ir import ops
from genesis.ir.kernel import Buffer, Kernel, Loop, Role, Store, expressions, load_parts, walk
from genesis.ir.node import Node, topological
from genesis.ir.size import Dim


def compile_stages(
    roots: Sequence[Node], donated: frozenset[int], backend: Backend, options: Options
) -> Program:
    """Compile the graph below `roots`. Memory in the `donated` input slots may be overwritten."""
    became: dict[Node, Node] = {}
    simple = results(simplify(roots, became) if options.simplify else roots)
    slots = donated if options.donate else frozenset()
    groups, lowered, in_place = _lower(simple, slots, options)
    # Simplification may drop inputs; whoever runs the program still passes them.
    buffers = max((n.attr.slot + 1 for n in topological(roots) if n.op is ops.BUFFER), default=0)
    origins = {new: old for old, new in became.items()}
    return _assemble(simple, buffers, groups, lowered, in_place, slots, backend, options, origins)


def _lower(
    roots: tuple[Node, ...], donated: frozenset[int], options: Options
) -> tuple[tuple[Group, ...], list[Lowered], dict[Node, int]]:
    """Fuse and lower. Updates are done in place only where no later kernel reads the old value."""
    while True:
        fusion = fuse(roots, donated, options.fuse)
        memo: dict[Node, Node] = {}
        lowered = [lower(g, fusion.stored, memo) for g in fusion.groups]
        in_place = _bases(fusion.groups)
        spoiled = {
            slot
            for position, group in enumerate(fusion.groups)
            if group.in_place and (slot := in_place[group.root]) is not None
            for later in lowered[position:]
            for n in later.arguments
            if n.op is ops.BUFFER and n.attr.slot == slot
        }
        if not spoiled:
            return fusion.groups, lowered, in_place
        donated -= spoiled


def _bases(groups: Sequence[Group]) -> dict[Node, int]:
    """For every update done in place: the slot it writes into."""
    slots: dict[Node, int] = {}
    for group in groups:  # inner updates come first
        if group.in_place:
            base = group.root.inputs[0]
            slots[group.root] = base.attr.slot if base.op is ops.BUFFER else slots[base]
    return slots


def _assemble(
    roots: tuple[Node, ...],
    buffers: int,
    groups: Sequence[Group],
    lowered: Sequence[Lowered],
    in_place: dict[Node, int],
    donated: frozenset[int],
    backend: Backend,
    options: Options,
    origins: Mapping[Node, Node],
) -> Program:
    reuses: dict[Node, int] = {n: slot for n, slot in in_place.items() if n in roots}
    last_read = {
        n.attr.slot: i for i, k in enumerate(lowered) for n in k.arguments if n.op is ops.BUFFER
    }
    wanted = frozenset(roots)
    pairs = []
    for i, k in enumerate(lowered):
        free = frozenset(slot for slot in donated if last_read.get(slot) == i)
        pairs.append(_takeovers(k, free - set(reuses.values()), reuses, wanted) if free else ())
    built = build([(k.kernel, p) for k, p in zip(lowered, pairs, strict=True)], backend, options)

    order = topological(roots)
    scalars = tuple(
        sorted({(n.attr, n.dtype) for n in order if n.op is ops.SCALAR}, key=lambda s: s[0])
    )
    symbols = tuple(sorted({s.name for b in built for s in b.kernel.symbols}))

    frame: dict[object, int] = {}
    for slot in range(buffers):
        frame["input", slot] = slot
    for slot, _ in scalars:
        frame["scalar", slot] = len(frame)
    for i in range(len(roots)):
        frame["output", i] = len(frame)
    for name in symbols:
        frame["symbol", name] = len(frame)

    temporaries: list[Temporary] = []
    place_of: dict[Node, int] = {n: frame["output", i] for i, n in enumerate(roots)}
    place_of |= in_place
    last_use = {n: position for position, low in enumerate(lowered) for n in low.arguments}
    launches: list[Launch] = []
    for position, (low, made) in enumerate(zip(lowered, built, strict=True)):
        arguments: list[int] = []
        for n in low.arguments:
            if n.op is ops.BUFFER and n not in place_of:
                arguments.append(n.attr.slot)
                continue
            if n not in place_of:
                place_of[n] = len(frame)
                frame["temporary", len(temporaries)] = len(frame)
                nbytes = n.size * n.dtype.itemsize
                temporaries.append(Temporary(nbytes, position, last_use[n]))
            arguments.append(place_of[n])
        for b in made.kernel.buffers[len(low.arguments) :]:
            arguments.append(len(frame))
            frame["temporary", len(temporaries)] = len(frame)
            temporaries.append(Temporary(_bytes(b), position, position))
        arguments += [frame["scalar", slot] for slot in low.scalars]
        arguments += [frame["symbol", s.name] for s in made.kernel.symbols]
        launches.append(Launch(made.binary, tuple(arguments)))

    outputs = tuple(Output(n.dtype, n.shape, reuses.get(n)) for n in roots)
    derivation = Derivation(tuple(map(Step, lowered, built)), origins)
    return Program(
        outputs,
        tuple(temporaries),
        scalars,
        symbols,
        buffers,
        tuple(launches),
        sum(len(made.verdict.claims) for made in built),
        sum(len(made.verdict.unknown) for made in built),
        backend,
        backend.assemble(launches),
        lambda: derivation,
    )


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


def _bytes(buffer: Buffer) -> Dim:
    total: Dim = buffer.dtype.itemsize
    for extent in buffer.shape:
        total = total * (extent if isinstance(extent, int) else as_size(extent))
    return total
