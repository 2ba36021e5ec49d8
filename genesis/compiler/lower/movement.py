"""Movement as index arithmetic: where an output element of a movement operation is read.

This is why movement never copies: fusion and lowering follow an element through reshapes, slices,
padding and windows by rewriting its index. Padding adds a condition under which there is an
element to read at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from genesis.ir import ops
from genesis.ir.dtype import index as index_dtype
from genesis.ir.index import simplify
from genesis.ir.kernel import as_index
from genesis.ir.node import TRUE, Node, Shape, both, const
from genesis.ir.size import Dim, Size, divide_exactly

Indices = tuple[Node, ...]
Memo = dict[Node, Node]
ZERO = const(0, index_dtype)


def source(n: Node, at: Indices, memo: Memo) -> tuple[Indices, Node]:
    """The index that element `at` of movement node `n` reads in its input, and the condition."""
    shape = n.inputs[0].shape
    condition = TRUE
    if n.op is ops.RESHAPE:
        found = _reshape(at, n.shape, shape)
    elif n.op is ops.PERMUTE:
        found = [ZERO] * len(at)
        for d, axis in enumerate(n.attr):
            found[axis] = at[d]
    elif n.op is ops.EXPAND:
        found = [ZERO if extent == 1 else i for i, extent in zip(at, shape, strict=True)]
    elif n.op is ops.SLICE:
        found = [
            i * as_index(step) + as_index(start)
            for i, (start, step) in zip(at, n.attr, strict=True)
        ]
    elif n.op is ops.WINDOW:
        axis, stride, dilation = n.attr
        found = list(at[:-1])
        found[axis] = at[axis] * stride + at[-1] * dilation
    elif n.op is ops.PAD:
        found, condition = placed(at, n.attr, shape)
    else:
        raise AssertionError(f"{n.op} is not a movement operation")
    return tuple(simplify(i, memo) for i in found), simplify(condition, memo)


def placed(
    at: Indices, places: tuple[tuple[Dim, int], ...], shape: Shape
) -> tuple[list[Node], Node]:
    """Undo "element i goes to low + step*i": the element at `at`, and whether there is one."""
    found, condition = [], TRUE
    for i, (low, step), extent in zip(at, places, shape, strict=True):
        if step < 0:  # low + step*i runs backwards: count from its other end
            low = low + step * (extent - 1)
            j = as_index(extent - 1) - (i - as_index(low)) // -step
        else:
            j = (i - as_index(low)) // step
        inside = both(i >= as_index(low), i < as_index(low + abs(step) * (extent - 1) + 1))
        if abs(step) != 1:
            inside = both(inside, ((i - as_index(low)) % abs(step)).equal(0))
        found.append(j)
        condition = both(condition, inside)
    return found, condition


def runs(outer: Shape, inner: Shape) -> Iterator[tuple[range, range]]:
    """Both shapes cut into the shortest runs with equal products: the axes of each.

    >>> list(runs((5, 24), (5, 4, 6)))
    [(range(0, 1), range(0, 1)), (range(1, 2), range(1, 3))]
    """
    o = i = 0
    while o < len(outer) or i < len(inner):
        o0, i0 = o, i
        a: Dim = 1
        b: Dim = 1
        # Grow the shorter side; a symbolic side grows until the canonical forms agree.
        while True:
            if o == o0 and o < len(outer):
                a, o = outer[o], o + 1
            elif i == i0 and i < len(inner):
                b, i = inner[i], i + 1
            elif a == b:
                break
            elif i < len(inner) and (o == len(outer) or _smaller(b, a)):
                b, i = b * inner[i], i + 1
            elif o < len(outer):
                a, o = a * outer[o], o + 1
            else:
                break
        yield range(o0, o), range(i0, i)


def _reshape(at: Indices, outer: Shape, inner: Shape) -> list[Node]:
    """Row-major renumbering, run by run: extents that stay the same are left alone.

    So ``(n, 4, 6) -> (n, 24)`` never divides by anything but 6, and a symbolic n passes through.
    """
    found: list[Node] = []
    for o, i in runs(outer, inner):
        found += _renumber(at[o.start : o.stop], outer[o.start : o.stop], inner[i.start : i.stop])
    return found


def _smaller(a: Dim, b: Dim) -> bool:
    if isinstance(a, int):
        return a < b if isinstance(b, int) else True
    return isinstance(b, Size) and a != b and divide_exactly(b, a) is not None


def _renumber(at: Indices, outer: Shape, inner: Shape) -> list[Node]:
    kept = [(i, e) for i, e in zip(at, outer, strict=True) if e != 1]
    wanted = [e for e in inner if e != 1]
    if len(kept) == len(wanted) == 1:
        values = [kept[0][0]]
    else:
        flat = ZERO
        for i, extent in kept:
            flat = flat * as_index(extent) + i
        values = []
        for extent in reversed(wanted[1:]):
            values.append(flat % as_index(extent))
            flat = flat // as_index(extent)
        values = [flat, *reversed(values)] if wanted else []
    result = iter(values)
    return [ZERO if e == 1 else next(result) for e in inner]
