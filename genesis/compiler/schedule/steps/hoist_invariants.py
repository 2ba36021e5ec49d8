"""Hoisting: what does not change in a loop is computed before it.

A broadcast value (the scale of a channel, the statistics of a row) is the same at every point of
the inner loops. `hoist` gives it a name before the outermost loop in which it is constant; inside,
the name is used. Loads are hoisted too, unless the loop writes to their buffer, or may have no
iterations: then they might be out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import index
from genesis.ir.index import bounds
from genesis.ir.node import Node, mentions, topological
from genesis.ir.rewrite import replaced


def hoist(kernel: kir.Kernel) -> kir.Kernel:
    """The kernel with loop-invariant values computed outside of their loops."""
    names = Names()
    return kernel.with_phases(kir.Phase(p.grid, _body(p.body, names)) for p in kernel.phases)


class Names:
    """Fresh names for hoisted values."""

    def __init__(self) -> None:
        self.count = 0

    def local(self, value: Node) -> kir.Local:
        """A local for a value, with the tile axes it has."""
        self.count += 1
        tiles = tuple(sorted(kir.tile_axes(value), key=lambda a: a.name))
        return kir.Local(f"fixed{self.count}", value.dtype, tiles)


def _body(body: kir.Body, names: Names) -> kir.Body:
    result: list[kir.Statement] = []
    for s in body:
        if isinstance(s, kir.Loop):
            lets, loop = hoisted(s, names)
            result += [*lets, replace(loop, body=_body(loop.body, names))]
        elif isinstance(s, kir.If):
            result.append(replace(s, body=_body(s.body, names), orelse=_body(s.orelse, names)))
        else:
            result.append(s)
    return tuple(result)


def hoisted(s: kir.Loop, names: Names) -> tuple[list[kir.Let], kir.Loop]:
    """What a loop can find computed before it, and the loop that uses it."""
    changing, written = _changing(s)
    inside = [*(c.step for c in s.carried), *_always(s.body)]
    found: dict[Node, kir.Local] = {}
    # What is proven of a loop is by what its extent is written with.
    loops = [x for x in kir.walk(s.body) if isinstance(x, kir.Loop)]
    extents = set(topological(kir.as_index(x.axis.extent) for x in loops))
    for n in _invariant(inside, changing, None if _skippable(s) else written):
        if n not in extents:
            found[n] = names.local(n)
    if not found:
        return [], s
    mapping = {n: local.node for n, local in found.items()}
    (changed,) = kir.map_expressions((s,), lambda e: replaced(e, mapping))
    assert isinstance(changed, kir.Loop)
    # What a carried value starts from is outside already.
    carried = tuple(
        replace(c, init=old.init) for c, old in zip(changed.carried, s.carried, strict=True)
    )
    return [kir.Let(local, n) for n, local in found.items()], replace(changed, carried=carried)


def _skippable(s: kir.Loop) -> bool:
    """Whether a loop may have no iterations; an extent that may be 0 says so."""
    extent = s.axis.extent
    return isinstance(extent, Node) and bounds(extent)[0] == 0


def _changing(s: kir.Loop) -> tuple[frozenset[Node], frozenset[kir.Buffer]]:
    """The names that mean something else in every iteration, and the buffers written."""
    names: set[Node] = set()
    written: set[kir.Buffer] = set()
    for x in kir.walk((s,)):
        if isinstance(x, kir.Loop):
            names.add(x.axis.node)
            names |= {c.local.node for c in x.carried}
        elif isinstance(x, kir.Let):
            names.add(x.local.node)
        elif isinstance(x, kir.Reduce | kir.Scan):
            names |= {v.node for v in x.locals}
        elif isinstance(x, kir.Store):
            written.add(x.buffer)
    return frozenset(names), frozenset(written)


def _always(body: kir.Body) -> Iterator[Node]:
    """What is evaluated in every iteration; other things may not be in bounds elsewhere."""
    for s in body:
        if isinstance(s, kir.Loop) and _skippable(s):
            yield from (kir.as_index(s.axis.extent), *(c.init for c in s.carried))
            continue
        yield from kir.expressions(s)
        if isinstance(s, kir.Loop):
            yield from _always(s.body)


def _invariant(
    roots: Sequence[Node], changing: frozenset[Node], written: frozenset[kir.Buffer] | None
) -> list[Node]:
    """The largest values below `roots` that neither change in the loop nor are trivial.

    They read no buffers that are `written`; None stands for all.
    """
    reads: dict[Node, bool] = {}  # whether a node reads a buffer that is written
    data: dict[Node, bool] = {}  # whether it reads any

    def fixed(n: Node) -> bool:
        # Plain index arithmetic is part of an address.
        constant = mentions(n).isdisjoint(changing) and not reads[n]
        return constant and (n.dtype is not index or data[n])

    order = topological(roots)
    for n in order:
        here = n.op is ops.LOAD and (written is None or n.attr in written)
        reads[n] = here or any(reads[i] for i in n.inputs)
        data[n] = n.op is ops.LOAD or any(data[i] for i in n.inputs)
    chosen: dict[Node, None] = {}
    covered: set[Node] = set()
    for n in reversed(order):  # users first, so that the largest is met first
        if n in covered or fixed(n):
            if n not in covered and n.inputs and n.dtype.kind != "bool":
                chosen[n] = None
            covered.update(n.inputs if n in chosen or n in covered else ())
    return [n for n in order if n in chosen]
