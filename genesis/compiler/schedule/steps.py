"""The scheduling steps: each is a function from Kernel to Kernel that changes how, never what.

`merge_axes` joins axes that run through memory together, `sink` and `split_grid` move work from
the grid into a block, `vectorise` turns innermost loops into tiles with a peeled, masked tail,
`tile_grid` makes a grid axis a tile, `split_reduction` cuts a long reduction into two phases.
All of them rest on `respecialise`: replace axes by expressions and work out again which tile axes
every local value has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from genesis.ir import ops
from genesis.ir.index import Linear, simplify
from genesis.ir.kernel import (
    Axis,
    AxisKind,
    Body,
    Buffer,
    Carry,
    If,
    Index,
    Kernel,
    Let,
    Local,
    Loop,
    Phase,
    Reduce,
    Role,
    Scan,
    Statement,
    Store,
    as_index,
    expressions,
    load_parts,
    map_expressions,
    tile_axes,
    walk,
)
from genesis.ir.node import TRUE, Node, both, elementwise, topological
from genesis.ir.rewrite import Rules, rewrite, substitute

# ---- replacing axes


def respecialise(body: Body, axes: dict[Node, Node], mask: Node = TRUE) -> Body:
    """`body` with AXIS nodes replaced; accesses that then mention mask's tile axes are masked.

    Locals get the tile axes of their new values. Loops over replaced axes must be gone already.
    """
    return _Respecialise(axes, mask).body(body)


class _Respecialise:
    def __init__(self, axes: dict[Node, Node], mask: Node) -> None:
        self.memo: dict[Node, Node] = dict(axes)
        self.mask = mask
        self.masked_by = tile_axes(mask)
        self.rules = Rules("mask")
        if mask is not TRUE:
            self.rules.on(ops.LOAD)(self._mask_load)
        self.index: dict[Node, Node] = {}
        self.done: set[Node] = set()

    def _mask_load(self, n: Node) -> Node | None:
        buffer, at, mask, other = load_parts(n)
        if n in self.done or not (tile_axes(*at) & self.masked_by):
            return None
        masked = buffer.load(*at, mask=both(mask, self.mask), other=other)
        self.done.add(masked)
        return masked

    def expr(self, n: Node) -> Node:
        return simplify(rewrite([n], self.rules, self.memo)[0], self.index)

    def rename(self, local: Local, tiles: frozenset[Axis]) -> Local:
        new = Local(local.name, local.dtype, tuple(sorted(tiles, key=lambda a: a.name)))
        self.memo[local.node] = new.node
        return new

    def body(self, body: Body) -> Body:
        return tuple(self.statement(s) for s in body)

    def statement(self, s: Statement) -> Statement:
        if isinstance(s, Let):
            value = self.expr(s.value)
            return Let(self.rename(s.local, tile_axes(value)), value)
        if isinstance(s, Store):
            at = tuple(map(self.expr, s.index))
            value, mask = self.expr(s.value), self.expr(s.mask)
            if tile_axes(*at) & self.masked_by:
                mask = both(mask, self.mask)
            return replace(s, index=at, value=value, mask=mask)
        if isinstance(s, Loop):
            return self.loop(s)
        if isinstance(s, If):
            return If(self.expr(s.condition), self.body(s.body), self.body(s.orelse))
        if isinstance(s, Reduce | Scan):
            values = tuple(map(self.expr, s.values))
            drop = frozenset([s.axis]) if isinstance(s, Reduce) else frozenset()
            locals_ = tuple(
                self.rename(v, tile_axes(x) - drop) for v, x in zip(s.locals, values, strict=True)
            )
            return replace(s, values=values, locals=locals_)
        return s

    def loop(self, s: Loop) -> Loop:
        extent = s.axis.extent
        axis = s.axis
        if isinstance(extent, Node):
            axis = replace(axis, extent=_fixed(self.expr(extent)))
            self.memo[s.axis.node] = axis.node
        inits = [self.expr(c.init) for c in s.carried]
        tiles = [tile_axes(i) for i in inits]
        # A carried value has the tile axes of its init and of its step, which may depend on it.
        while True:
            before = dict(self.memo)
            locals_ = [self.rename(c.local, t) for c, t in zip(s.carried, tiles, strict=True)]
            body = self.body(s.body)
            steps = [self.expr(c.step) for c in s.carried]
            wider = [t | tile_axes(x) for t, x in zip(tiles, steps, strict=True)]
            if wider == tiles:
                break
            tiles, self.memo = wider, before
        carried = tuple(
            Carry(v, i, x) for v, i, x in zip(locals_, inits, steps, strict=True)
        )
        return Loop(axis, body, carried, s.merge)


def _fixed(n: Node) -> Index:
    return n.attr if n.op is ops.CONST else n


def static(extent: Index) -> int | None:
    """The extent as an int, or None when it is known only at launch."""
    return extent if isinstance(extent, int) else None


def ceil_div(a: Index, b: int) -> Index:
    """``a / b`` rounded up."""
    return _fixed(simplify((as_index(a) + (b - 1)) // b))


def floor_div(a: Index, b: int) -> Index:
    """``a / b`` rounded down."""
    return _fixed(simplify(as_index(a) // b))


def least(a: Index, b: Index) -> Index:
    """The smaller of two extents."""
    return _fixed(simplify(elementwise(ops.MIN, as_index(a), as_index(b))))


def rebuild(kernel: Kernel, number: int, phase: Phase) -> Kernel:
    """The kernel with one phase replaced."""
    phases = list(kernel.phases)
    phases[number] = phase
    return kernel.with_phases(phases)


# ---- joining axes


def merge_axes(kernel: Kernel) -> Kernel:
    """Join neighbouring axes wherever every access runs through memory as if they were one."""
    changed = True
    while changed:
        changed = False
        (phase,) = kernel.phases
        for outer, inner in zip(phase.grid, phase.grid[1:]):
            merged = _merge_grid(kernel, outer, inner)
            if merged is not None:
                kernel, changed = merged, True
                break
        else:
            for s in walk(phase.body):
                if isinstance(s, Loop) and len(s.body) == 1 and isinstance(s.body[0], Loop):
                    merged = _merge_loops(kernel, s, s.body[0])
                    if merged is not None:
                        kernel, changed = merged, True
                        break
    return kernel


def _merge_grid(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel | None:
    joined = _joined(kernel, outer, inner)
    if joined is None:
        return None
    axis, kernel = joined
    (phase,) = kernel.phases
    grid = tuple(axis if a == outer else a for a in phase.grid if a != inner)
    return rebuild(kernel, 0, Phase(grid, phase.body))


def _merge_loops(kernel: Kernel, outer: Loop, inner: Loop) -> Kernel | None:
    if outer.carried:
        passes = len(inner.carried) == len(outer.carried) and all(
            i.init is o.local.node and o.step is i.local.node
            for i, o in zip(inner.carried, outer.carried, strict=True)
        )
        if not passes:
            return None
    elif inner.carried:
        return None
    joined = _joined(kernel, outer.axis, inner.axis)
    if joined is None:
        return None
    axis, kernel = joined

    def join(s: Statement) -> Statement:
        if isinstance(s, Loop) and s.axis == outer.axis:
            deep = s.body[0]
            assert isinstance(deep, Loop)
            names = {
                i.local.node: o.local.node for i, o in zip(deep.carried, s.carried, strict=True)
            }
            carried = tuple(
                Carry(o.local, o.init, substitute([i.step], names)[0])
                for i, o in zip(deep.carried, s.carried, strict=True)
            )
            body = map_expressions(deep.body, lambda n: substitute([n], names)[0])
            return Loop(axis, body, carried, s.merge)
        if isinstance(s, Loop):
            return replace(s, body=tuple(map(join, s.body)))
        return s

    (phase,) = kernel.phases
    return rebuild(kernel, 0, Phase(phase.grid, tuple(map(join, phase.body))))


def _joined(kernel: Kernel, outer: Axis, inner: Axis) -> tuple[Axis, Kernel] | None:
    """The joined axis and the kernel whose accesses use it, or None if some access forbids it."""
    if not isinstance(inner.extent, int):
        return None
    extent = _fixed(simplify(as_index(outer.extent) * inner.extent))
    axis = replace(outer, name=outer.name + inner.name, extent=extent)
    (phase,) = kernel.phases
    pair = (outer.node, inner.node)
    dims: dict[Buffer, set[int | None]] = {}
    for s in walk(phase.body):
        roots = list(expressions(s))
        accesses: list[tuple[Buffer, tuple[Node, ...]]] = []
        if isinstance(s, Store):
            accesses.append((s.buffer, s.index))
            roots = [s.value, s.mask]
        accesses += [load_parts(n)[:2] for n in topological(roots) if n.op is ops.LOAD]
        # Outside of accesses the axes may not occur at all.
        if any(n in pair for n in topological(roots, _outside_access)):
            return None
        for buffer, at in accesses:
            if _join_linear(at, outer, inner, axis) is not None:
                dims.setdefault(buffer, set()).add(None)
            else:
                d = _joint_dimension(buffer, at, outer, inner)
                if d is None:
                    return None
                dims.setdefault(buffer, set()).add(d)
    if any(len(found) != 1 for found in dims.values()):
        return None
    merged = {b: d for b, (d,) in dims.items() if d is not None}
    renamed = {b: _merge_dims(b, d) for b, d in merged.items()}

    def join(buffer: Buffer, at: tuple[Node, ...]) -> tuple[Buffer, tuple[Node, ...]]:
        if buffer in merged:
            d = merged[buffer]
            return renamed[buffer], (*at[:d], axis.node, *at[d + 2 :])
        linear = _join_linear(at, outer, inner, axis)
        return buffer, at if linear is None else linear

    body = map_accesses(phase.body, join)
    buffers = tuple(renamed.get(x, x) for x in kernel.buffers)
    return axis, replace(kernel, buffers=buffers, phases=(Phase(phase.grid, body),))


def _joint_dimension(buffer: Buffer, at: Sequence[Node], outer: Axis, inner: Axis) -> int | None:
    """The dimension d where ``at[d:d+2]`` is (outer, inner) and memory runs on through both."""
    pair = (outer.node, inner.node)
    used = [d for d, i in enumerate(at) if any(n in pair for n in topological([i]))]
    if len(used) != 2 or used[1] != used[0] + 1 or tuple(at[used[0] : used[1] + 1]) != pair:
        return None
    d = used[0]
    whole = buffer.shape[d + 1] == inner.extent
    together = simplify(buffer.layout[d + 1] * inner.extent) is simplify(buffer.layout[d])
    return d if whole and together else None


def _join_linear(
    at: tuple[Node, ...], outer: Axis, inner: Axis, axis: Axis
) -> tuple[Node, ...] | None:
    """The index with ``c*(extent*outer + inner)`` written as ``c*axis``, if that is all there is."""
    pair = (outer.node, inner.node)
    result = []
    for i in at:
        if not any(n in pair for n in topological([i])):
            result.append(i)
            continue
        linear = Linear.of(i)
        a, b = (linear.terms.pop(x, 0) for x in pair)
        elsewhere = any(n in pair for n in topological(linear.terms))
        if elsewhere or not b or a != b * inner.extent:
            return None
        result.append(Linear({**linear.terms, axis.node: b}, linear.constant).emit())
    return tuple(result)


def flatten(kernel: Kernel) -> Kernel:
    """Give a row-major buffer one dimension where that spares divisions in its indices.

    An element reached through a reshape is read at ``[i // 100, i % 100]``: flat, that is ``[i]``.
    """
    (phase,) = kernel.phases
    seen: dict[Buffer, list[tuple[Node, ...]]] = {}

    def note(buffer: Buffer, at: tuple[Node, ...]) -> tuple[Buffer, tuple[Node, ...]]:
        seen.setdefault(buffer, []).append(at)
        return buffer, at

    map_accesses(phase.body, note)
    flat: dict[Buffer, Buffer] = {}
    for buffer, accesses in seen.items():
        divided = any(_divides(at) for at in accesses)
        if buffer.strides is None and divided and not any(_divides([_offset(buffer, at)]) for at in accesses):
            size = as_index(1)
            for extent in buffer.shape:
                size = size * extent
            flat[buffer] = replace(buffer, shape=(_fixed(simplify(size)),))

    def change(buffer: Buffer, at: tuple[Node, ...]) -> tuple[Buffer, tuple[Node, ...]]:
        return (flat[buffer], (_offset(buffer, at),)) if buffer in flat else (buffer, at)

    body = map_accesses(phase.body, change)
    buffers = tuple(flat.get(b, b) for b in kernel.buffers)
    return replace(kernel, buffers=buffers, phases=(Phase(phase.grid, body),))


def _offset(buffer: Buffer, at: Sequence[Node]) -> Node:
    total = as_index(0)
    for i, stride in zip(at, buffer.layout, strict=True):
        total = total + i * stride
    return simplify(total)


def _divides(indices: Sequence[Node]) -> bool:
    return any(n.op in (ops.FLOORDIV, ops.MOD) for n in topological(indices))


Access = Callable[[Buffer, tuple[Node, ...]], tuple[Buffer, tuple[Node, ...]]]


def map_accesses(body: Body, change: Access) -> Body:
    """A body whose loads and stores go through ``change(buffer, index)``."""

    def load(n: Node) -> Node | None:
        buffer, at, mask, other = load_parts(n)
        if n in done:
            return None
        new_buffer, new_at = change(buffer, at)
        result = new_buffer.load(*new_at, mask=mask, other=other)
        done.add(result)
        return result

    done: set[Node] = set()
    rules = Rules("accesses")
    rules.on(ops.LOAD)(load)
    memo: dict[Node, Node] = {}

    def expr(n: Node) -> Node:
        return rewrite([n], rules, memo)[0]

    def one(s: Statement) -> Statement:
        if isinstance(s, Store):
            buffer, at = change(s.buffer, tuple(map(expr, s.index)))
            return replace(s, buffer=buffer, index=at, value=expr(s.value), mask=expr(s.mask))
        if isinstance(s, Loop):
            carried = tuple(Carry(c.local, expr(c.init), expr(c.step)) for c in s.carried)
            return replace(s, body=tuple(map(one, s.body)), carried=carried)
        (result,) = map_expressions((s,), expr)
        return result

    return tuple(map(one, body))


def _outside_access(n: Node) -> tuple[Node, ...]:
    """A node's inputs that are not indices of a load."""
    return n.inputs[len(n.attr.shape) :] if n.op is ops.LOAD else n.inputs


def _merge_dims(b: Buffer, d: int) -> Buffer:
    extent = _fixed(simplify(as_index(b.shape[d]) * as_index(b.shape[d + 1])))
    shape = (*b.shape[:d], extent, *b.shape[d + 2 :])
    strides = None if b.strides is None else (*b.strides[:d], *b.strides[d + 1 :])
    return replace(b, shape=shape, strides=strides)


# ---- from the grid into the block


def sink(kernel: Kernel, axis: Axis, number: int = 0) -> Kernel:
    """Run a GRID axis as a LOOP around the block's body."""
    phase = kernel.phases[number]
    loop = replace(axis, kind=AxisKind.LOOP)
    body = respecialise(phase.body, {axis.node: loop.node})
    grid = tuple(a for a in phase.grid if a != axis)
    return rebuild(kernel, number, Phase(grid, (Loop(loop, body),)))


def split_grid(kernel: Kernel, axis: Axis, chunk: int, number: int = 0) -> Kernel:
    """Give every block `chunk` consecutive points of a GRID axis; the last block may have fewer."""
    phase = kernel.phases[number]
    outer = Axis(axis.name + "b", AxisKind.GRID, ceil_div(axis.extent, chunk))
    left = as_index(axis.extent) - outer.node * chunk
    n = static(axis.extent)
    count = chunk if n is not None and n % chunk == 0 else least(chunk, _fixed(simplify(left)))
    inner = Axis(axis.name, AxisKind.LOOP, count)
    body = respecialise(phase.body, {axis.node: outer.node * chunk + inner.node})
    grid = tuple(outer if a == axis else a for a in phase.grid)
    return rebuild(kernel, number, Phase(grid, (Loop(inner, body),)))


def tile_grid(kernel: Kernel, axis: Axis, width: int, number: int = 0) -> Kernel:
    """Do `width` points of a GRID axis at once; the last, partial tile gets a masked body."""
    phase = kernel.phases[number]
    outer = Axis(axis.name + "b", AxisKind.GRID, ceil_div(axis.extent, width))
    tile = Axis(axis.name + "t", AxisKind.TILE, width)
    at = outer.node * width + tile.node
    body = respecialise(phase.body, {axis.node: at})
    n = static(axis.extent)
    if n is None or n % width:
        inside = simplify(at < as_index(axis.extent))
        partial = respecialise(phase.body, {axis.node: at}, inside)
        full = simplify(outer.node < as_index(floor_div(axis.extent, width)))
        body = partial if full.op is ops.CONST else (If(full, body, partial),)
    grid = tuple(outer if a == axis else a for a in phase.grid)
    return rebuild(kernel, number, Phase(grid, body))


# ---- loops into tiles


def vectorise(kernel: Kernel, width: Callable[[Loop], int], number: int = 0) -> Kernel:
    """Turn every innermost loop into a loop of tiles, `width(loop)` points each."""
    phase = kernel.phases[number]
    return rebuild(kernel, number, Phase(phase.grid, _Vectorise(width).body(phase.body)))


class _Vectorise:
    def __init__(self, width: Callable[[Loop], int]) -> None:
        self.width = width
        self.count = 0

    def body(self, body: Body) -> Body:
        result: list[Statement] = []
        for s in body:
            if not isinstance(s, Loop):
                result.append(s)
            elif s.carried and s.merge is not None and _innermost(s) is not None:
                result += self.reduction(s)
            elif not any(isinstance(x, Loop) for x in s.body):
                result += self.pointwise(s) if _independent(s) else [s]
            else:
                result.append(replace(s, body=self.body(s.body)))
        return tuple(result)

    def split(self, axis: Axis, width: int) -> tuple[Axis, Axis, Node, Node]:
        """(outer loop, tile, index in the full tiles, index in the tail)"""
        self.count += 1
        outer = Axis(f"{axis.name}o{self.count}", AxisKind.LOOP, floor_div(axis.extent, width))
        tile = Axis(f"{axis.name}t{self.count}", AxisKind.TILE, width)
        tail = simplify(as_index(outer.extent) * width) + tile.node
        return outer, tile, outer.node * width + tile.node, tail

    def pointwise(self, s: Loop) -> list[Statement]:
        width = self.width(s)
        if width == 1 or s.axis.extent == 0:
            return [s]
        outer, _, main, tail = self.split(s.axis, width)
        n = static(s.axis.extent)
        result: list[Statement] = []
        if n is None or n >= width:
            result.append(Loop(outer, respecialise(s.body, {s.axis.node: main})))
        if n is None or n % width:
            extent = as_index(s.axis.extent)
            inside = simplify(tail < extent)
            masked = respecialise(s.body, {s.axis.node: tail}, inside)
            some = simplify(as_index(outer.extent) * width < extent)
            result += masked if some is TRUE else [If(some, masked)]
        return result

    def reduction(self, s: Loop) -> list[Statement]:
        """Carry one partial state per tile point; combine them after the loop."""
        deep = _innermost(s)
        assert deep is not None and s.merge is not None
        width = self.width(deep)
        if width == 1:
            return [s]
        outer, tile, main, tail = self.split(deep.axis, width)
        extent = as_index(deep.axis.extent)
        inside = simplify(tail < extent)
        n = static(deep.axis.extent)
        has_main = n is None or n >= width
        has_tail = n is None or n % width != 0
        def level(loop: Loop, inits: Sequence[Node]) -> tuple[list[Statement], list[Node]]:
            """The statements of one loop of the nest, started from `inits`, and its results."""
            carried = [Local(c.local.name + "_", c.local.dtype, (tile,)) for c in loop.carried]
            names = {c.local.node: v.node for c, v in zip(loop.carried, carried, strict=True)}
            if loop is not deep:
                inner = loop.body[0]
                assert isinstance(inner, Loop)
                body, results = level(inner, [v.node for v in carried])
                carries = tuple(map(Carry, carried, inits, results))
                return [Loop(loop.axis, tuple(body), carries, loop.merge)], [
                    v.node for v in carried
                ]
            statements: list[Statement] = []
            values = list(inits)
            if has_main:
                changed = _Respecialise({deep.axis.node: main, **names}, TRUE)
                steps = [changed.expr(c.step) for c in loop.carried]
                statements.append(Loop(outer, (), tuple(map(Carry, carried, inits, steps)), loop.merge))
                values = [v.node for v in carried]
            if has_tail:
                start = {c.local.node: v for c, v in zip(loop.carried, values, strict=True)}
                masked = _Respecialise({deep.axis.node: tail, **start}, inside)
                for c, v in zip(loop.carried, list(values), strict=True):
                    last = Local(c.local.name + "_tail", c.local.dtype, (tile,))
                    value = elementwise(ops.WHERE, inside, masked.expr(c.step), v)
                    statements.append(Let(last, value))
                values = [
                    Local(c.local.name + "_tail", c.local.dtype, (tile,)).node
                    for c in loop.carried
                ]
            return statements, values

        statements, results = level(s, [c.init for c in s.carried])
        totals = tuple(c.local for c in s.carried)
        return [*statements, Reduce(totals, tuple(results), tile, s.merge)]


def _independent(s: Loop) -> bool:
    """Whether the points of a loop may run at once: each writes elsewhere, none reads a write.

    A scatter's loop is not: where it writes is data, and it reads what it wrote before.
    """
    stores = [x for x in walk(s.body) if isinstance(x, Store)]
    apart = all(any(s.axis.node in Linear.of(i).terms for i in x.index) for x in stores)
    loads = topological(e for x in walk(s.body) for e in expressions(x))
    read = {n.attr for n in loads if n.op is ops.LOAD}
    return not s.carried and apart and not any(x.buffer in read for x in stores)


def _innermost(s: Loop) -> Loop | None:
    """The innermost loop of a nest that only passes its carried values down, else None."""
    while s.body:
        inner = s.body[0]
        if len(s.body) != 1 or not isinstance(inner, Loop) or len(inner.carried) != len(s.carried):
            return None
        passes = all(
            i.init is o.local.node and o.step is i.local.node
            for i, o in zip(inner.carried, s.carried, strict=True)
        )
        if not passes:
            return None
        s = inner
    return s


def interchange(nest: Loop, order: Sequence[Axis]) -> Loop:
    """A reduction's loop nest with its axes in another order, outermost first.

    The nest must only pass its carried values down (`_innermost` finds its end).
    """
    assert _innermost(nest) is not None
    inner = nest.body[0] if nest.body else None
    body = (interchange(inner, order[1:]),) if isinstance(inner, Loop) else ()
    return replace(nest, axis=order[0], body=body)


# ---- two phases


def split_reduction(kernel: Kernel, chunk: int) -> Kernel:
    """Reduce chunks of the outermost reduction loop in parallel, then combine the partial states.

    The number of chunks follows from the extent alone, so results do not depend on thread counts.
    """
    (phase,) = kernel.phases
    position = next(i for i, s in enumerate(phase.body) if isinstance(s, Loop) and s.carried)
    loop = phase.body[position]
    assert isinstance(loop, Loop) and loop.merge is not None
    axis = loop.axis
    chunks = Axis(axis.name + "b", AxisKind.GRID, ceil_div(axis.extent, chunk))
    left = as_index(axis.extent) - chunks.node * chunk
    inner = replace(axis, extent=least(chunk, _fixed(simplify(left))))
    shape = (*(a.extent for a in phase.grid), chunks.extent)
    at = tuple(a.node for a in phase.grid)
    partial = tuple(
        Buffer(f"partial{i}", c.local.dtype, shape, Role.TEMPORARY)
        for i, c in enumerate(loop.carried)
    )
    body = respecialise(
        (replace(loop, axis=inner),), {axis.node: chunks.node * chunk + inner.node}
    )
    stores = tuple(
        Store(b, (*at, chunks.node), c.local.node)
        for b, c in zip(partial, loop.carried, strict=True)
    )
    again = replace(chunks, kind=AxisKind.LOOP)
    loads = [b.load(*at, again.node) for b in partial]
    merge = loop.merge
    left_right = {v.node: c.local.node for v, c in zip(merge.left, loop.carried, strict=True)}
    left_right |= {v.node: x for v, x in zip(merge.right, loads, strict=True)}
    steps = substitute(merge.result, left_right)
    carried = tuple(
        Carry(c.local, c.init, x) for c, x in zip(loop.carried, steps, strict=True)
    )
    combine = Loop(again, (), carried, merge)
    rest = tuple(combine if s is loop else s for s in phase.body)
    return replace(
        kernel,
        buffers=(*kernel.buffers, *partial),
        phases=(Phase((*phase.grid, chunks), (*body, *stores)), Phase(phase.grid, rest)),
    )
