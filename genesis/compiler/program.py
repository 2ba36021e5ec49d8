"""Programs: a graph compiled into launches, and everything needed to run them in one call.

A program has a *frame*: one word per argument of any kernel (input memory, run-time scalars,
outputs, temporaries, sizes). A launch names its arguments by frame slot. Running means filling
the frame and making one call into the backend.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from genesis.backends import get
from genesis.backends.base import Backend, Executable, Launch, Memory
from genesis.compiler.fuse import Group, fuse, is_row_major
from genesis.compiler.kernels import Built, Pairs, build
from genesis.compiler.lower import Lowered, lower
from genesis.compiler.options import Options, current
from genesis.compiler.plan import Temporary, place
from genesis.compiler.simplify import simplify
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, encode
from genesis.ir.kernel import Buffer, Kernel, Loop, Role, Store, expressions, load_parts, walk
from genesis.ir.node import Node, Shape, node, topological
from genesis.ir.size import Dim, Size


@dataclass(frozen=True)
class Output:
    """A result of a program. `reuses` is the slot of the input whose memory it takes over."""

    dtype: DType
    shape: Shape
    reuses: int | None = None


@dataclass(frozen=True)
class Step:
    """One launch, with what it came from: for people and for tests."""

    lowered: Lowered
    built: Built


@dataclass(frozen=True)
class Program:
    """A compiled graph."""

    outputs: tuple[Output, ...]
    steps: tuple[Step, ...]
    temporaries: tuple[Temporary, ...]
    scalars: tuple[tuple[int, DType], ...]
    symbols: tuple[str, ...]
    buffers: int
    backend: Backend
    executable: Executable
    origins: Mapping[Node, Node] = field(default_factory=dict)  # simplified node -> the user's

    def run(
        self,
        buffers: Sequence[Memory],
        scalars: Sequence[Scalar],
        outputs: Sequence[Memory],
        sizes: Mapping[str, int],
    ) -> None:
        """Compute the outputs from the inputs."""
        frame = self.frame(scalars, sizes)
        for slot, memory in enumerate(buffers):
            frame[slot] = memory.pointer
        for slot, memory in enumerate(outputs, self.first_output):
            frame[slot] = memory.pointer
        self.launch(frame, sizes)

    def frame(self, scalars: Sequence[Scalar], sizes: Mapping[str, int]) -> array[int]:
        """A frame with scalars and sizes filled in; pointers of inputs and outputs are to come.

        Inputs come first, by slot; outputs from `first_output` on.
        """
        words = [0] * self.buffers
        words += [encode(scalars[slot], dtype) for slot, dtype in self.scalars]
        words += [0] * len(self.outputs)
        words += [sizes[name] for name in self.symbols]
        words += [0] * len(self.temporaries)
        return array("Q", words)

    @property
    def first_output(self) -> int:
        """The frame slot of the first output."""
        return self.buffers + len(self.scalars)

    def launch(self, frame: array[int], sizes: Mapping[str, int]) -> None:
        """Run on a complete frame. All memory is there before the first kernel starts."""
        if self.temporaries:
            offsets, total = self.placement(sizes)
            block = self.backend.allocate(total)
            start = block.pointer
            first = len(frame) - len(offsets)
            for slot, offset in enumerate(offsets, first):
                frame[slot] = start + offset
        self.executable.run(frame)

    def placement(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], int]:
        """Offsets of the temporaries and the size of their block."""
        key = tuple(sizes[name] for name in self.symbols)
        cache = cast("dict[tuple[int, ...], tuple[tuple[int, ...], int]]", _placements(self))
        if key not in cache:
            if len(cache) > 256:
                cache.clear()
            cache[key] = place(self.temporaries, sizes)
        return cache[key]


def _placements(program: Program) -> object:
    return program.__dict__.setdefault("_placements", {})


def compile_graph(
    roots: Sequence[Node], donated: frozenset[int] = frozenset(), backend: Backend | None = None
) -> Program:
    """Compile the graph below `roots`. Memory in the `donated` input slots may be overwritten."""
    options = current()
    backend = get("cpu") if backend is None else backend
    became: dict[Node, Node] = {}
    simple = results(simplify(roots, became) if options.simplify else roots)
    slots = frozenset(donated) if options.donate else frozenset()
    groups, lowered, in_place = _lower(simple, slots, options)
    # Simplification may drop inputs; whoever runs the program still passes them.
    buffers = max((n.attr.slot + 1 for n in topological(roots) if n.op is ops.BUFFER), default=0)
    program = _assemble(simple, buffers, groups, lowered, in_place, slots, backend, options)
    return replace(program, origins={new: old for old, new in became.items()})


def results(roots: Sequence[Node]) -> tuple[Node, ...]:
    """The roots, each a value of its own: an input or another result is copied."""
    distinct: dict[Node, None] = {}
    for n in roots:
        while n.op is ops.BUFFER or n in distinct:
            n = node(ops.RESHAPE, (n,), None, n.dtype, n.shape)
        distinct[n] = None
    return tuple(distinct)


def _lower(
    roots: tuple[Node, ...], donated: frozenset[int], options: Options
) -> tuple[tuple[Group, ...], list[Lowered], dict[Node, int]]:
    """Fuse and lower. Updates are done in place only where no later kernel reads the old value."""
    while True:
        fusion = fuse(roots, donated, options.fuse)
        lowered = [lower(g, fusion.stored) for g in fusion.groups]
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
) -> Program:
    reuses: dict[Node, int] = {n: slot for n, slot in in_place.items() if n in roots}
    pairs = [_takeovers(k, lowered[i + 1 :], donated, reuses, roots) for i, k in enumerate(lowered)]
    built = build(
        [(k.kernel, p) for k, p in zip(lowered, pairs, strict=True)], backend, options
    )

    order = topological(roots)
    scalars = tuple(sorted({(n.attr, n.dtype) for n in order if n.op is ops.SCALAR}, key=lambda s: s[0]))
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
    place_of |= {n: slot for n, slot in in_place.items()}
    launches: list[Launch] = []
    for position, (low, made) in enumerate(zip(lowered, built, strict=True)):
        arguments: list[int] = []
        for n in low.arguments:
            if n.op is ops.BUFFER and n not in place_of:
                arguments.append(n.attr.slot)
                continue
            if n not in place_of:
                last = max(j for j, k in enumerate(lowered) if n in k.arguments)
                place_of[n] = len(frame)
                frame["temporary", len(temporaries)] = len(frame)
                temporaries.append(Temporary(n.size * n.dtype.itemsize, position, last))
            arguments.append(place_of[n])
        for b in made.kernel.buffers[len(low.arguments) :]:
            arguments.append(len(frame))
            frame["temporary", len(temporaries)] = len(frame)
            temporaries.append(Temporary(_bytes(b), position, position))
        arguments += [frame["scalar", slot] for slot in low.scalars]
        arguments += [frame["symbol", s.name] for s in made.kernel.symbols]
        launches.append(Launch(made.binary, tuple(arguments)))

    outputs = tuple(Output(n.dtype, n.shape, reuses.get(n)) for n in roots)
    steps = tuple(Step(low, made) for low, made in zip(lowered, built, strict=True))
    return Program(
        outputs,
        steps,
        tuple(temporaries),
        scalars,
        symbols,
        buffers,
        backend,
        backend.assemble(launches),
    )


def _takeovers(
    low: Lowered,
    later: Sequence[Lowered],
    donated: frozenset[int],
    reuses: dict[Node, int],
    roots: Sequence[Node],
) -> Pairs:
    """Outputs that may lie in a donated input's memory: each element is read where it is written."""
    pairs: list[tuple[str, str]] = []
    by_buffer = dict(zip(low.kernel.buffers, low.arguments, strict=True))
    inputs = {b: n for b, n in by_buffer.items() if b.role is Role.INPUT and n.op is ops.BUFFER}
    for out, n in by_buffer.items():
        if out.role is not Role.OUTPUT or n not in roots or n in reuses:
            continue
        for buffer, leaf in inputs.items():
            slot = leaf.attr.slot
            alone = [x for x in inputs.values() if x.attr.slot == slot] == [leaf]
            read_later = any(
                a.op is ops.BUFFER and a.attr.slot == slot for k in later for a in k.arguments
            )
            fits = leaf.shape == n.shape and leaf.dtype.itemsize == n.dtype.itemsize
            if (
                slot in donated
                and slot not in reuses.values()
                and alone
                and fits
                and not read_later
                and is_row_major(leaf)
                and _pointwise(low.kernel, buffer, out)
            ):
                reuses[n] = slot
                pairs.append((buffer.name, out.name))
                break
    return tuple(pairs)


def _pointwise(kernel: Kernel, source: Buffer, target: Buffer) -> bool:
    """Whether a plain kernel reads `source` only at the element of `target` it is about to write."""
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


def as_size(n: Node) -> Dim:
    """An index expression over symbols as a size."""
    if n.op is ops.CONST:
        return int(n.attr)
    if n.op is ops.SYMBOL:
        return Size((((n.attr,), 1),))
    if n.op is ops.ADD:
        return as_size(n.inputs[0]) + as_size(n.inputs[1])
    if n.op is ops.MUL:
        return as_size(n.inputs[0]) * as_size(n.inputs[1])
    if n.op is ops.FLOORDIV:
        return as_size(n.inputs[0]) // int(n.inputs[1].attr)
    raise AssertionError(f"{n} is not a size")
