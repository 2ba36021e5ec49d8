"""Loops into tiles: vectors, with a peeled and masked tail.

A loop without carried values becomes a loop of tiles. A reduction carries one partial state per
point of the tile, and combines them after the loop. A prefix combines the elements of a tile with
those before them, and then all of it with the state that the loop carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from genesis.compiler.schedule.steps.queries import lets
from genesis.compiler.schedule.steps.substitute_axes import Respecialise, respecialise
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.index import LinearIndex, ceil_div, fixed, floor_div, least, simplify, static
from genesis.ir.node import FALSE, TRUE, Node, elementwise, topological
from genesis.ir.pattern import Pattern, Prefix
from genesis.ir.rewrite import replaced, substitute


def vectorise(
    kernel: kir.Kernel, width: Callable[[kir.Loop], int], number: int = 0, shared: bool = False
) -> kir.Kernel:
    """Turn every innermost loop into a loop of tiles, `width(loop)` points each.

    With `shared`, loops of equal width share a tile axis, so that equal values in them are equal.
    """
    phase = kernel.phases[number]
    body = _Vectorise(width, shared, kernel.pattern).body(phase.body)
    return kernel.with_phase(number, kir.Phase(phase.grid, body))


class _Vectorise:
    def __init__(
        self, width: Callable[[kir.Loop], int], shared: bool, pattern: Pattern | None
    ) -> None:
        self.width = width
        self.shared = shared
        self.pattern = pattern
        self.count = 0

    def body(self, body: kir.Body) -> kir.Body:
        result: list[kir.Statement] = []
        for s in body:
            if not isinstance(s, kir.Loop):
                result.append(s)
            elif s.carried and s.merge is not None and innermost(s) is not None:
                result += self.reduction(s)
            elif (parts := parts_of_prefix(s, self.pattern)) is not None:
                result += self.prefix(s, parts)
            elif not any(isinstance(x, kir.Loop) for x in s.body):
                result += self.pointwise(s) if _independent(s) else [s]
            else:
                result.append(replace(s, body=self.body(s.body)))
        return tuple(result)

    def split(self, axis: kir.Axis, width: int) -> tuple[kir.Axis, kir.Axis, Node, Node]:
        """(outer loop, tile, index in the full tiles, index in the tail)"""
        self.count += 1
        outer = kir.Axis.loop(f"{axis.name}o{self.count}", floor_div(axis.extent, width))
        name = f"t{width}" if self.shared else f"{axis.name}t{self.count}"
        tile = kir.Axis.tile(name, width)
        tail = simplify(kir.as_index(outer.extent) * width) + tile.node
        return outer, tile, outer.node * width + tile.node, tail

    def pointwise(self, s: kir.Loop) -> list[kir.Statement]:
        width = self.width(s)
        if width == 1 or s.axis.extent == 0:
            return [s]
        outer, _, main, tail = self.split(s.axis, width)
        n = static(s.axis.extent)
        result: list[kir.Statement] = []
        if n is None or n >= width:
            result.append(kir.Loop(outer, respecialise(s.body, {s.axis.node: main})))
        if n is None or n % width:
            extent = kir.as_index(s.axis.extent)
            inside = simplify(tail < extent)
            masked = respecialise(_renamed(s.body, "_tail"), {s.axis.node: tail}, inside)
            result += _where(simplify(kir.as_index(outer.extent) * width < extent), masked)
        return result

    def reduction(self, s: kir.Loop) -> list[kir.Statement]:
        """Carry one partial state per tile point; combine them after the loop."""
        deep = innermost(s)
        assert deep is not None and s.merge is not None
        width = self.width(deep)
        if width == 1:
            return [s]
        outer, tile, main, tail = self.split(deep.axis, width)
        extent = kir.as_index(deep.axis.extent)
        inside = simplify(tail < extent)
        n = static(deep.axis.extent)
        has_main = n is None or n >= width
        has_tail = inside is not FALSE if n is None else n % width != 0

        def level(loop: kir.Loop, inits: Sequence[Node]) -> tuple[list[kir.Statement], list[Node]]:
            """The statements of one loop of the nest, started from `inits`, and its results."""
            carried = [kir.Local(c.local.name + "_", c.local.dtype, (tile,)) for c in loop.carried]
            names = {c.local.node: v.node for c, v in zip(loop.carried, carried, strict=True)}
            if loop is not deep:
                inner = loop.body[0]
                assert isinstance(inner, kir.Loop)
                body, results = level(inner, [v.node for v in carried])
                carries = tuple(map(kir.Carry, carried, inits, results))
                return [kir.Loop(loop.axis, tuple(body), carries, loop.merge)], [
                    v.node for v in carried
                ]
            statements: list[kir.Statement] = []
            values = list(inits)
            if has_main:
                changed = Respecialise({deep.axis.node: main, **names}, TRUE)
                steps = [changed.expr(c.step) for c in loop.carried]
                carries = tuple(map(kir.Carry, carried, inits, steps))
                statements.append(kir.Loop(outer, changed.body(loop.body), carries, loop.merge))
                values = [v.node for v in carried]
            if has_tail:
                start = {c.local.node: v for c, v in zip(loop.carried, values, strict=True)}
                masked = Respecialise({deep.axis.node: tail, **start}, inside)
                statements += masked.body(loop.body)
                for c, v in zip(loop.carried, list(values), strict=True):
                    last = kir.Local(c.local.name + "_tail", c.local.dtype, (tile,))
                    value = elementwise(ops.WHERE, inside, masked.expr(c.step), v)
                    statements.append(kir.Let(last, value))
                values = [
                    kir.Local(c.local.name + "_tail", c.local.dtype, (tile,)).node
                    for c in loop.carried
                ]
            return statements, values

        statements, results = level(s, [c.init for c in s.carried])
        totals = tuple(c.local for c in s.carried)
        return [*statements, kir.Reduce(totals, tuple(results), tile, s.merge)]

    def prefix(self, s: kir.Loop, parts: PrefixParts) -> list[kir.Statement]:
        """Carry the state before a tile; the last prefix inside a tile takes it to the next."""
        width = self.width(s)
        if width == 1 or s.axis.extent == 0:
            return [s]
        assert s.merge is not None
        outer, tile, main, tail = self.split(s.axis, width)
        n = static(s.axis.extent)
        result: list[kir.Statement] = []
        if n is None or n >= width:
            last = tuple(kir.Local(f"last{k}", c.local.dtype) for k, c in enumerate(s.carried))
            body = _scanned(s, parts, tile, main, last=last)
            steps = merged(s.merge, nodes(c.local for c in s.carried), nodes(last))
            carried = tuple(replace(c, step=x) for c, x in zip(s.carried, steps, strict=True))
            result.append(kir.Loop(outer, body, carried))
        else:
            result += [kir.Let(c.local, c.init) for c in s.carried]
        if n is None or n % width:
            extent = kir.as_index(s.axis.extent)
            masked = _scanned(s, parts, tile, tail, simplify(tail < extent), "_tail")
            result += _where(simplify(kir.as_index(outer.extent) * width < extent), masked)
        return result


def _where(condition: Node, body: kir.Body) -> kir.Body:
    """Statements under a condition; a symbolic extent may be known to leave no tail."""
    if condition is FALSE:
        return ()
    return body if condition is TRUE else (kir.If(condition, body),)


def _renamed(body: kir.Body, suffix: str) -> kir.Body:
    """The statements with other names for their values: both may be in the body of one loop."""
    lets = [s.local for s in body if isinstance(s, kir.Let)]
    names = {v.node: replace(v, name=v.name + suffix) for v in lets}
    known = {n: v.node for n, v in names.items()}
    body = kir.map_expressions(body, lambda n: replaced(n, known))
    return tuple(
        replace(s, local=names[s.local.node]) if isinstance(s, kir.Let) else s for s in body
    )


def _scanned(
    s: kir.Loop,
    parts: PrefixParts,
    tile: kir.Axis,
    at: Node,
    inside: Node = TRUE,
    suffix: str = "",
    last: tuple[kir.Local, ...] = (),
) -> kir.Body:
    """One tile of a prefix's loop; `last` receives its last state, without what came before it."""
    merge = s.merge
    assert merge is not None
    here, prefixes, rest = parts
    changed = Respecialise({s.axis.node: at}, inside)
    values = tuple(changed.expr(x.value) for x in here)
    if not rest:  # only the total counts
        return (kir.Reduce(last, values, tile, merge),)
    own, states = (
        tuple(
            kir.Local(f"{name}{k}{suffix}", c.local.dtype, (tile,)) for k, c in enumerate(s.carried)
        )
        for name in ("own", "prefix")
    )
    body: list[kir.Statement] = [kir.Scan(own, values, tile, merge)]
    if last:  # combining so that the right is kept
        keep = kir.Merge(merge.left, merge.right, nodes(merge.right))
        body.append(kir.Reduce(last, nodes(own), tile, keep))
    body += map(kir.Let, states, merged(merge, nodes(c.local for c in s.carried), nodes(own)))
    changed.memo |= dict(zip(nodes(p.local for p in prefixes), nodes(states), strict=True))
    return (*body, *changed.body(rest))


class PrefixParts(NamedTuple):
    """A loop of a prefix: the element, the state with it, and what is done with that."""

    elements: tuple[kir.Let, ...]
    states: tuple[kir.Let, ...]
    rest: kir.Body


def parts_of_prefix(s: kir.Loop, pattern: Pattern | None) -> PrefixParts | None:
    """The parts of a loop that a pattern tells to carry a prefix; None for any other."""
    if not isinstance(pattern, Prefix):
        return None
    named = lets(s.body)
    if not named.keys() >= {*pattern.elements, *pattern.states}:
        return None
    elements, states = (
        tuple(named[name] for name in names) for names in (pattern.elements, pattern.states)
    )
    rest = tuple(x for x in s.body if x not in (*elements, *states))
    return PrefixParts(elements, states, rest)


def nodes(states: Iterable[kir.Local]) -> tuple[Node, ...]:
    """The values of locals."""
    return tuple(v.node for v in states)


def merged(merge: kir.Merge, left: Sequence[Node], right: Sequence[Node]) -> list[Node]:
    """Two states combined."""
    places = (*merge.left, *merge.right)
    known = {v.node: x for v, x in zip(places, (*left, *right), strict=True)}
    return substitute(merge.result, known)


def _independent(s: kir.Loop) -> bool:
    """Whether the points of a loop may run at once: each writes elsewhere, none reads another's.

    A scatter's loop is not: where it writes is data, and it reads what it wrote before.
    """
    stores = [x for x in kir.walk(s.body) if isinstance(x, kir.Store)]
    apart = all(any(s.axis.node in LinearIndex.of(i).terms for i in x.index) for x in stores)
    nodes = topological(e for x in kir.walk(s.body) for e in kir.expressions(x))
    reads = [kir.load_parts(n)[:2] for n in nodes if n.op is ops.LOAD]
    own = all(at == x.index for x in stores for buffer, at in reads if buffer == x.buffer)
    return not s.carried and apart and own


def innermost(s: kir.Loop) -> kir.Loop | None:
    """The innermost loop of a nest that only passes its carried values down, else None.

    It may store what it reads (see `keep`).
    """
    while s.body and not (s.carried and all(isinstance(x, kir.Store) for x in s.body)):
        inner = s.body[0]
        if (
            len(s.body) != 1
            or not isinstance(inner, kir.Loop)
            or len(inner.carried) != len(s.carried)
        ):
            return None
        passes = all(
            i.init is o.local.node and o.step is i.local.node
            for i, o in zip(inner.carried, s.carried, strict=True)
        )
        if not passes:
            return None
        s = inner
    return s


def split_prefix(
    kernel: kir.Kernel, loop: kir.Loop, chunk: int, outermost: bool = False
) -> kir.Kernel:
    """Walk chunks of the one loop in parallel, each from the state that those before it leave.

    The states of one row lie next to each other, or with `outermost` those of one chunk do.
    """
    (phase,) = kernel.phases
    assert phase.body == (loop,) and loop.merge is not None
    axis = loop.axis

    # Axes have other names in the first phase, as its tiles may have other extents.
    rows = [replace(a, name=a.name + "c") for a in phase.grid]
    whole = kir.Axis.grid(axis.name + "b", floor_div(axis.extent, chunk))
    inner = replace(axis, name=axis.name + "c", extent=chunk)
    turned = {a.node: row.node for a, row in zip(phase.grid, rows, strict=True)}
    turned[axis.node] = whole.node * chunk + inner.node
    total = respecialise((_total(kernel, loop, inner),), turned)

    def place(each: kir.Axis, rows: Sequence[kir.Axis]) -> tuple[kir.Axis, ...]:
        return (each, *rows) if outermost else (*rows, each)

    shape = tuple(a.extent for a in place(whole, rows))
    buffers = [
        kir.Buffer(f"chunks{k}", c.local.dtype, shape, kir.Role.TEMPORARY)
        for k, c in enumerate(loop.carried)
    ]
    at = tuple(a.node for a in place(whole, rows))
    stores = tuple(
        kir.Store(b, at, c.local.node) for b, c in zip(buffers, loop.carried, strict=True)
    )

    block = replace(whole, extent=ceil_div(axis.extent, chunk))
    earlier = kir.Axis.loop(axis.name + "e", block.node)
    states = [kir.Local(f"chunk{k}", c.local.dtype) for k, c in enumerate(loop.carried)]
    loads = [b.load(*(a.node for a in place(earlier, phase.grid))) for b in buffers]
    steps = merged(loop.merge, nodes(states), loads)
    # No merge is named: the states are few, and stay in order.
    start = kir.Loop(
        earlier, (), tuple(map(kir.Carry, states, [c.init for c in loop.carried], steps))
    )
    rest = kir.as_index(axis.extent) - block.node * chunk
    inner = replace(axis, extent=least(chunk, fixed(simplify(rest))))
    carried = tuple(replace(c, init=v.node) for c, v in zip(loop.carried, states, strict=True))
    walk = replace(loop, axis=inner, carried=carried)
    walked = respecialise((walk,), {axis.node: block.node * chunk + inner.node})
    by_chunk = kir.Phase((*rows, whole), (*total, *stores))
    return kernel.with_phases(
        [by_chunk, kir.Phase((*phase.grid, block), (start, *walked))], buffers
    )


def _total(kernel: kir.Kernel, loop: kir.Loop, axis: kir.Axis) -> kir.Loop:
    """The loop without what it stores; where the order does not matter, as a plain reduction."""
    parts = parts_of_prefix(loop, kernel.pattern)
    assert loop.merge is not None and parts is not None
    fold = kir.simple_fold(loop.merge)
    if fold is None or fold not in ops.COMMUTATIVE:
        return replace(loop, axis=axis, body=(*parts.elements, *parts.states))
    steps = merged(
        loop.merge, nodes(c.local for c in loop.carried), [x.value for x in parts.elements]
    )
    carried = tuple(replace(c, step=x) for c, x in zip(loop.carried, steps, strict=True))
    return kir.Loop(axis, (), carried, loop.merge)
