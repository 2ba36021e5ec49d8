"""Joining axes: a kernel over a matrix that lies in one piece is a kernel over a vector.

`merge_axes` joins neighbouring axes wherever every access runs through memory as if they were one;
`flatten` gives buffers one dimension where that spares divisions. Fewer axes mean longer vectors
and less index arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from genesis.compiler.schedule.steps.vectorise import innermost
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, fixed, simplify
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import Rules, replaced, rewrite, substitute

#: States one loop carries, at most: each takes several registers.
STATES = 4


def join_axes(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with the fewest axes and dimensions that say the same."""
    return merge_axes(flatten(kernel))


def merge_axes(kernel: kir.Kernel) -> kir.Kernel:
    """Join neighbouring axes wherever every access runs through memory as if they were one."""
    changed = True
    while changed:
        changed = False
        (phase,) = kernel.phases
        for outer, inner in pairwise(phase.grid):
            merged = _merge_grid(kernel, outer, inner)
            if merged is not None:
                kernel, changed = merged, True
                break
        else:
            for s in kir.walk(phase.body):
                if isinstance(s, kir.Loop) and len(s.body) == 1 and isinstance(s.body[0], kir.Loop):
                    merged = _merge_loops(kernel, s, s.body[0])
                    if merged is not None:
                        kernel, changed = merged, True
                        break
    return kernel


def _merge_grid(kernel: kir.Kernel, outer: kir.Axis, inner: kir.Axis) -> kir.Kernel | None:
    joined = _joined(kernel, outer, inner)
    if joined is None:
        return None
    axis, kernel = joined
    (phase,) = kernel.phases
    grid = tuple(axis if a == outer else a for a in phase.grid if a != inner)
    return kernel.with_phase(0, kir.Phase(grid, phase.body))


def _merge_loops(kernel: kir.Kernel, outer: kir.Loop, inner: kir.Loop) -> kir.Kernel | None:
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

    def join(s: kir.Statement) -> kir.Statement:
        if isinstance(s, kir.Loop) and s.axis == outer.axis:
            deep = s.body[0]
            assert isinstance(deep, kir.Loop)
            names = {
                i.local.node: o.local.node for i, o in zip(deep.carried, s.carried, strict=True)
            }
            carried = tuple(
                kir.Carry(o.local, o.init, replaced(i.step, names))
                for i, o in zip(deep.carried, s.carried, strict=True)
            )
            body = kir.map_expressions(deep.body, lambda n: replaced(n, names))
            return kir.Loop(axis, body, carried, s.merge)
        if isinstance(s, kir.Loop):
            return replace(s, body=tuple(map(join, s.body)))
        return s

    (phase,) = kernel.phases
    return kernel.with_phase(0, kir.Phase(phase.grid, tuple(map(join, phase.body))))


def join_loops(kernel: kir.Kernel, most: int = STATES) -> kir.Kernel:
    """Reduce in one loop what is reduced over the same axes, if neither needs the other's result.

    Both sums of a norm's gradient then read their inputs once. A loop carries at most so many.
    """
    (phase,) = kernel.phases
    body: list[kir.Statement] = []
    for s in phase.body:
        host = _host(body, s, most) if isinstance(s, kir.Loop) else None
        if host is None:
            body.append(s)
        else:
            assert isinstance(s, kir.Loop)
            first = body[host]
            assert isinstance(first, kir.Loop)
            body[host] = _both(first, s, {})
    return kernel.with_phases([kir.Phase(phase.grid, tuple(body))])


def _host(body: Sequence[kir.Statement], s: kir.Loop, most: int) -> int | None:
    """The loop before `s` that can do its work, too."""
    if not _reduces(s):
        return None
    needs = {n for x in kir.walk((s,)) for e in kir.expressions(x) for n in mentions(e)}
    for at in reversed(range(len(body))):
        before = body[at]
        made = [c.local.node for c in before.carried] if isinstance(before, kir.Loop) else []
        if not isinstance(before, kir.Loop) or not needs.isdisjoint(made):
            return None
        fits = _extents(before) == _extents(s) and len(made) + len(s.carried) <= most
        if _reduces(before) and fits:
            return at
    return None


def _reduces(s: kir.Loop) -> bool:
    """Whether a loop, or a nest of them, only combines what it reads."""
    only_loops = all(isinstance(x, kir.Loop) and x.merge is not None for x in kir.walk((s,)))
    return only_loops and innermost(s) is not None


def _extents(nest: kir.Loop) -> list[kir.Index]:
    return [s.axis.extent for s in kir.walk((nest,)) if isinstance(s, kir.Loop)]


def _both(a: kir.Loop, b: kir.Loop, turned: Mapping[Node, Node]) -> kir.Loop:
    """One loop, or nest, that carries the states of two; `turned` are the axes around."""
    assert a.merge is not None and b.merge is not None
    turned = {**turned, b.axis.node: a.axis.node}
    names = {
        v.node: replace(v, name=f"{v.name}{len(a.carried)}").node
        for v in (*b.merge.left, *b.merge.right)
    }

    def renamed(locals_: Sequence[kir.Local]) -> tuple[kir.Local, ...]:
        return tuple(names[v.node].attr for v in locals_)

    merge = kir.Merge(
        (*a.merge.left, *renamed(b.merge.left)),
        (*a.merge.right, *renamed(b.merge.right)),
        (*a.merge.result, *substitute(b.merge.result, names)),
    )
    steps = substitute([c.step for c in b.carried], turned)
    more = (replace(c, step=x) for c, x in zip(b.carried, steps, strict=True))
    body: kir.Body = ()
    if a.body:
        (inner,), (other,) = a.body, b.body
        assert isinstance(inner, kir.Loop) and isinstance(other, kir.Loop)
        body = (_both(inner, other, turned),)
    return kir.Loop(a.axis, body, (*a.carried, *more), merge)


def _joined(
    kernel: kir.Kernel, outer: kir.Axis, inner: kir.Axis
) -> tuple[kir.Axis, kir.Kernel] | None:
    """The joined axis and the kernel whose accesses use it, or None if some access forbids it."""
    if not isinstance(inner.extent, int):
        return None
    extent = fixed(simplify(kir.as_index(outer.extent) * inner.extent))
    axis = replace(outer, name=outer.name + inner.name, extent=extent)
    (phase,) = kernel.phases
    pair = (outer.node, inner.node)
    dims: dict[kir.Buffer, set[range | None]] = {}
    scattered: set[kir.Buffer] = set()  # where data or callers say: bounds are known by dimension
    for s in kir.walk(phase.body):
        roots = list(kir.expressions(s))
        accesses: list[tuple[kir.Buffer, tuple[Node, ...]]] = []
        if isinstance(s, kir.Store):
            accesses.append((s.buffer, s.index))
            roots = [s.value, s.mask]
        accesses += [kir.load_parts(n)[:2] for n in topological(roots) if n.op is ops.LOAD]
        # Outside of accesses the axes may not occur at all.
        if any(n in pair for n in topological(roots, _outside_access)):
            return None
        for buffer, at in accesses:
            if _join_linear(at, outer, inner, axis) is not None:
                dims.setdefault(buffer, set()).add(None)
                if any(n.op in (ops.LOAD, ops.PARAM) for n in topological(at)):
                    scattered.add(buffer)
            else:
                d = _joint_dimensions(buffer, at, outer, inner)
                if d is None:
                    return None
                dims.setdefault(buffer, set()).add(d)
    if any(len(found - {None}) > 1 for found in dims.values()):
        return None
    merged = {b: d for b, found in dims.items() for d in found if d is not None}
    if not scattered.isdisjoint(merged):
        return None
    renamed = {b: _merge_dims(b, d) for b, d in merged.items()}

    def join(buffer: kir.Buffer, at: tuple[Node, ...]) -> tuple[kir.Buffer, tuple[Node, ...]]:
        linear = _join_linear(at, outer, inner, axis)
        if buffer not in merged:
            return buffer, at if linear is None else linear
        d, position = merged[buffer], axis.node
        if linear is not None:  # by other axes, which may be joined in their turn
            at = linear
            position = simplify(at[d[0]] * inner.extent + at[d[-1]])
        return renamed[buffer], (*at[: d.start], position, *at[d.stop :])

    body = map_accesses(phase.body, join)
    buffers = tuple(renamed.get(x, x) for x in kernel.buffers)
    return axis, replace(kernel, buffers=buffers, phases=(kir.Phase(phase.grid, body),))


def _joint_dimensions(
    buffer: kir.Buffer, at: Sequence[Node], outer: kir.Axis, inner: kir.Axis
) -> range | None:
    """The dimensions that (outer, inner) count through, if memory runs on through both.

    Those between have one element.
    """
    pair = (outer.node, inner.node)
    used = [d for d, i in enumerate(at) if not mentions(i).isdisjoint(pair)]
    if len(used) != 2 or tuple(at[d] for d in used) != pair:
        return None
    first, last = used
    whole = buffer.shape[last] == inner.extent
    whole = whole and all(extent == 1 for extent in buffer.shape[first + 1 : last])
    together = simplify(buffer.layout[last] * inner.extent) is simplify(buffer.layout[first])
    return range(first, last + 1) if whole and together else None


def _join_linear(
    at: tuple[Node, ...], outer: kir.Axis, inner: kir.Axis, axis: kir.Axis
) -> tuple[Node, ...] | None:
    """The index with ``c*(extent*outer + inner)`` written as ``c*axis``, if it is all there is."""
    pair = (outer.node, inner.node)
    result = []
    for i in at:
        if mentions(i).isdisjoint(pair):
            result.append(i)
            continue
        linear = LinearIndex.of(i)
        a, b = (linear.terms.pop(x, 0) for x in pair)
        elsewhere = any(not mentions(t).isdisjoint(pair) for t in linear.terms)
        if elsewhere or not b or a != b * inner.extent:
            return None
        result.append(LinearIndex({**linear.terms, axis.node: b}, linear.constant).emit())
    return tuple(result)


def flatten(kernel: kir.Kernel) -> kir.Kernel:
    """Give a row-major buffer one dimension where that spares divisions in its indices.

    An element reached through a reshape is read at ``[i // 100, i % 100]``: flat, that is ``[i]``.
    """
    (phase,) = kernel.phases
    seen: dict[kir.Buffer, list[tuple[Node, ...]]] = {}

    def note(buffer: kir.Buffer, at: tuple[Node, ...]) -> tuple[kir.Buffer, tuple[Node, ...]]:
        seen.setdefault(buffer, []).append(at)
        return buffer, at

    map_accesses(phase.body, note)
    spares: set[kir.Buffer] = set()
    for buffer, accesses in seen.items():
        divided = any(_divides(at) for at in accesses)
        if (
            buffer.strides is None
            and divided
            and not any(_divides([offset(buffer, at)]) for at in accesses)
        ):
            spares.add(buffer)
    return flat(kernel, spares)


def flat(kernel: kir.Kernel, buffers: Collection[kir.Buffer]) -> kir.Kernel:
    """The kernel with these row-major buffers as vectors."""
    (phase,) = kernel.phases
    vectors = {buffer: as_vector(buffer) for buffer in buffers}

    def change(buffer: kir.Buffer, at: tuple[Node, ...]) -> tuple[kir.Buffer, tuple[Node, ...]]:
        return (vectors[buffer], (offset(buffer, at),)) if buffer in vectors else (buffer, at)

    body = map_accesses(phase.body, change)
    changed = tuple(vectors.get(b, b) for b in kernel.buffers)
    return replace(kernel, buffers=changed, phases=(kir.Phase(phase.grid, body),))


def as_vector(buffer: kir.Buffer) -> kir.Buffer:
    """A row-major buffer with one dimension."""
    size = kir.as_index(1)
    for extent in buffer.shape:
        size = size * extent
    return replace(buffer, shape=(fixed(simplify(size)),))


def offset(buffer: kir.Buffer, at: Sequence[Node]) -> Node:
    """Where an element of a buffer lies, in elements from its first."""
    total = kir.as_index(0)
    for i, stride in zip(at, buffer.layout, strict=True):
        total = total + i * stride
    return simplify(total)


def _divides(indices: Sequence[Node]) -> bool:
    return any(n.op in (ops.FLOORDIV, ops.MOD) for n in topological(indices))


Access = Callable[[kir.Buffer, tuple[Node, ...]], tuple[kir.Buffer, tuple[Node, ...]]]


def map_accesses(body: kir.Body, change: Access) -> kir.Body:
    """A body whose loads and stores go through ``change(buffer, index)``."""

    def load(n: Node) -> Node | None:
        buffer, at, mask, other = kir.load_parts(n)
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

    def one(s: kir.Statement) -> kir.Statement:
        if isinstance(s, kir.Store):
            buffer, at = change(s.buffer, tuple(map(expr, s.index)))
            return replace(s, buffer=buffer, index=at, value=expr(s.value), mask=expr(s.mask))
        if isinstance(s, kir.Loop):
            carried = tuple(kir.Carry(c.local, expr(c.init), expr(c.step)) for c in s.carried)
            return replace(s, body=tuple(map(one, s.body)), carried=carried)
        if isinstance(s, kir.If):
            return kir.If(expr(s.condition), tuple(map(one, s.body)), tuple(map(one, s.orelse)))
        (result,) = kir.map_expressions((s,), expr)
        return result

    return tuple(map(one, body))


def _outside_access(n: Node) -> tuple[Node, ...]:
    """A node's inputs that are not indices of a load."""
    return n.inputs[len(n.attr.shape) :] if n.op is ops.LOAD else n.inputs


def _merge_dims(b: kir.Buffer, d: range) -> kir.Buffer:
    extent = fixed(simplify(kir.as_index(b.shape[d[0]]) * kir.as_index(b.shape[d[-1]])))
    shape = (*b.shape[: d.start], extent, *b.shape[d.stop :])
    strides = None if b.strides is None else (*b.strides[: d.start], *b.strides[d[-1] :])
    return replace(b, shape=shape, strides=strides)
