"""Scatters taken apart, and shared among blocks: writes at positions that come from data.

A block owns whatever it writes. Where single elements are scattered there are no columns to share:
the updates are cut into chunks, each with sums of its own, and a last phase adds those up. The
number of chunks follows from the sizes alone, so that results do not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from genesis.compiler.schedule.steps.join_axes import map_accesses
from genesis.compiler.schedule.steps.queries import points, stride
from genesis.compiler.schedule.steps.substitute_axes import respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.index import ceil_div, fixed, least, simplify
from genesis.ir.node import Node, const, elementwise, topological
from genesis.ir.pattern import Scatter
from genesis.ir.rewrite import replaced

#: Chunks the updates of single elements are cut into, at most.
CHUNKS = 16
#: Fewer updates than this are not worth a second thread.
FEW = 1 << 14
#: Vectors of columns a block owns, at most: long runs of memory, and blocks enough to share.
COLUMNS = 8


@dataclass(frozen=True)
class Updates:
    """The parts of a plain scatter."""

    store: kir.Store  # of one update
    loops: tuple[kir.Axis, ...]  # over the updates
    fill: kir.Store | None  # of the value before, unless it is there already
    filled: tuple[kir.Axis, ...]  # loops over the elements a block owns

    @property
    def combine(self) -> ops.Op | None:
        """How an update is combined with what is there; None: it takes its place."""
        value = self.store.value
        if value.op not in ops.MODES.values() or value.inputs[0].op is not ops.LOAD:
            return None
        return value.op if value.inputs[0].attr == self.store.buffer else None


def updated(kernel: kir.Kernel) -> Updates | None:
    """The parts of a kernel that does nothing but write where data says, else None."""
    found, (phase,) = kernel.pattern, kernel.phases
    if not isinstance(found, Scatter):
        return None
    nests = [nest for s in phase.body if (nest := _nest(s)) and nest[1].buffer.name == found.target]
    if len(nests) < len(phase.body):
        return None
    loops, store = nests[-1]
    if not any(n.op in (ops.LOAD, ops.PARAM) for n in topological(store.index)):
        return None  # there is one place only, or it is counted through
    filled, fill = nests[0] if len(nests) == 2 else ((), None)
    return Updates(store, loops, fill, filled)


def _nest(s: kir.Statement) -> tuple[tuple[kir.Axis, ...], kir.Store] | None:
    """The loops around a single store."""
    axes: list[kir.Axis] = []
    while isinstance(s, kir.Loop) and not s.carried and len(s.body) == 1:
        axes.append(s.axis)
        s = s.body[0]
    return (tuple(axes), s) if isinstance(s, kir.Store) else None


def column_axis(grid: Sequence[kir.Axis], store: kir.Store) -> kir.Axis | None:
    """The axis along which a block's columns lie next to each other."""
    found = [a for a in grid if stride(store.buffer, store.index, a) == 1]
    return found[0] if found else None


def chunk_count(parts: Updates, owners: int) -> int:
    """In how many chunks to do the updates, if there are not enough owners to share them."""
    updates, elements = points(parts.loops), points(map(_loop, parts.store.buffer.shape))
    data = [i for i in parts.store.index if i.op is not ops.AXIS]
    plain = all(any(n.op is ops.LOAD for n in topological([i])) for i in data)
    if parts.fill is not None:
        plain = plain and all(i.op is ops.AXIS for i in parts.fill.index)
    if parts.combine is None or not plain or owners >= COLUMNS or updates < FEW:
        return 1
    return max(1, min(CHUNKS, updates * owners // max(1, elements)))


def _loop(size: int | Node) -> kir.Axis:
    return kir.Axis.loop("", size)


def separated(kernel: kir.Kernel, parts: Updates) -> kir.Kernel:
    """The value before is written in a phase of its own, in the order of memory."""
    (phase,) = kernel.phases
    if parts.fill is None:
        return kernel
    # Axes of its own: the phases are tiled each in its way, and tiles are named after axes.
    turned = {
        a.node: replace(a, name=f"f{a.name}", kind=kir.AxisKind.GRID)
        for a in (*phase.grid, *parts.filled)
    }
    (fill,) = respecialise((parts.fill,), {a: b.node for a, b in turned.items()})
    assert isinstance(fill, kir.Store)
    named = [i.attr for i in fill.index if i.op is ops.AXIS]
    grid = [*named, *(a for a in turned.values() if a not in named)]
    return kernel.with_phases(
        [kir.Phase(tuple(grid), (fill,)), kir.Phase(phase.grid, phase.body[1:])]
    )


def chunked(kernel: kir.Kernel, parts: Updates, count: int) -> kir.Kernel:
    """Chunks of updates are combined side by side, each from nothing, and then with each other."""
    (phase,) = kernel.phases
    out, combine = parts.store.buffer, parts.combine
    assert combine is not None
    first, *inner = parts.loops
    size = ceil_div(first.extent, count)
    chunk = kir.Axis.grid("chunk", count)
    partial = kir.Buffer("partial", out.dtype, (count, *out.shape), kir.Role.TEMPORARY)
    start = chunk.node * kir.as_index(size)
    left = simplify(elementwise(ops.MAX, kir.as_index(first.extent) - start, kir.as_index(0)))
    some = replace(first, extent=least(size, fixed(left)))
    turned = {first.node: start + some.node}

    def own(buffer: kir.Buffer, at: tuple[Node, ...]) -> tuple[kir.Buffer, tuple[Node, ...]]:
        return (partial, (chunk.node, *at)) if buffer == out else (buffer, at)

    steps = kir.nest((some, *inner), map_accesses(respecialise((parts.store,), turned), own))
    every = tuple(kir.Axis.loop(f"z{d}", e) for d, e in enumerate(out.shape))
    owned = [a.node for a in phase.grid]
    here = tuple(i if i in owned else a.node for i, a in zip(parts.store.index, every, strict=True))
    zero = kir.Store(partial, (chunk.node, *here), nothing(combine, out.dtype))
    zeros = kir.nest([a for a in every if a.node in here], (zero,))
    grid = tuple(kir.Axis.grid(f"i{d}", e) for d, e in enumerate(out.shape))
    at = tuple(a.node for a in grid)
    if parts.fill is None:
        total = out.load(*at)
    else:
        places = dict(zip(parts.fill.index, at, strict=True))
        total = replaced(parts.fill.value, places)
    for k in range(count):
        total = elementwise(combine, total, partial.load(k, *at))
    by_chunk = kir.Phase((chunk, *phase.grid), (*zeros, *steps))
    return kernel.with_phases([by_chunk, kir.Phase(grid, (kir.Store(out, at, total),))], [partial])


def nothing(combine: ops.Op, dtype: DType) -> Node:
    """What changes nothing when it is combined; -0.0 because adding 0.0 would change that."""
    values = {
        ops.ADD: -0.0 if dtype.is_float else 0,
        ops.MUL: 1,
        ops.MAX: dtype.min,
        ops.MIN: dtype.max,
    }
    return const(values[combine], dtype)
