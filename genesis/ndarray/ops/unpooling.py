"""Positions that a pooling returned: what stands there, and what comes back to them."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.ir.dtype import int64
from genesis.ir.size import Dim, Size, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops.creation import zeros
from genesis.ndarray.ops.elementwise import where
from genesis.ndarray.ops.gather_scatter import combined
from genesis.ndarray.ops.movement import reshape
from genesis.ndarray.ops.sliding_windows import (
    PerAxis,
    added,
    batched,
    counting,
    number,
    pad_spatial,
    parameters,
    slide,
)


def at_positions(x: NDArray, indices: NDArray, rank: int) -> NDArray:
    """Of each plane of x the elements at positions that a pooling returned."""
    lead = x.shape[: x.ndim - rank]
    axes, where = _places(indices, lead, x.shape[len(lead) :])
    planes = reshape(x, (product(lead), *axes))
    found = primitive.gather_at(planes.value, where, range(len(where)))
    return reshape(wrap(found), indices.shape)


def put_at_positions(x: NDArray, indices: NDArray, lengths: Sequence[Dim]) -> NDArray:
    """The transpose of `at_positions`: zeros of spatial lengths, with x added at positions."""
    lead = x.shape[: x.ndim - len(lengths)]
    axes, where = _places(indices, lead, lengths)
    nothing = zeros((product(lead), *axes), dtype=x.dtype, device=x.device)
    new = reshape(x, (product(lead), *x.shape[len(lead) :])).value
    total = combined(nothing.value, where, new, tuple(range(len(where))), "add")
    return reshape(wrap(total), (*lead, *lengths))


def _places(
    indices: NDArray, lead: Sequence[Dim], lengths: Sequence[Dim]
) -> tuple[Sequence[Dim], list[Value]]:
    """The axes of a plane as they are indexed, and the indices: of planes, then in each of them.

    A plane is one axis where it can be: positions are counted along that. Of several symbolic sizes
    it cannot, for nothing would be known about their product.
    """
    planes = product(lead)
    at = reshape(indices.astype(int64), (planes, *indices.shape[len(lead) :]))
    rows = primitive.along(primitive.iota(planes, at.device), 0, at.shape)
    if sum(isinstance(n, Size) for n in lengths) < 2:
        return (product(lengths),), [rows, at.value]
    along: list[Value] = []
    for n in reversed(lengths[1:]):
        along.insert(0, (at % number(n, at)).value)
        at = at // number(n, at)
    return lengths, [rows, at.value, *along]


def max_pool_gradient(
    gradient: NDArray,
    indices: NDArray,
    lengths: Sequence[Dim],
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
) -> NDArray:
    """The gradient of `max_pool` for its input, whose spatial axes have the given lengths.

    A core goes from window to window and adds. Where many threads would have to wait for each
    other then, each element looks at the few windows it lies in instead.
    """
    if gradient.device == "cpu":
        return put_at_positions(gradient, indices, lengths)
    return looked_up(gradient, indices, lengths, kernel_size, stride, padding, dilation)


def looked_up(
    gradient: NDArray,
    indices: NDArray,
    lengths: Sequence[Dim],
    kernel_size: PerAxis,
    stride: PerAxis | None,
    padding: PerAxis,
    dilation: PerAxis,
) -> NDArray:
    """For each element the sum of what comes from windows whose positions are its own."""
    rank, name = len(lengths), "max_pool_gradient"
    step = kernel_size if stride is None or stride == () else stride
    size, step, apart, edge = parameters(name, rank, kernel_size, step, dilation, padding)
    batched(name, gradient, rank)
    counts = gradient.shape[gradient.ndim - rank :]
    each = zip(lengths, counts, size, step, apart, edge, strict=True)
    # The last window may reach farther than the padding does.
    edges = [(p, max(0, (c - 1) * s + d * (k - 1) + 1 - n - p)) for n, c, k, s, d, p in each]
    places = reshape(counting(product(lengths), gradient).astype(indices.dtype), lengths)
    places = slide(pad_spatial(places, edges, -1), size, step, apart)
    ones = (1,) * rank
    wide = reshape(gradient.astype(gradient.dtype.accumulator), (*gradient.shape, *ones))
    found = reshape(indices, (*indices.shape, *ones)) == places
    shares = where(found, wide, zeros((), dtype=wide.dtype, device=wide.device))
    return added(shares, lengths, step, apart, edge).astype(gradient.dtype)


__all__ = ["at_positions", "max_pool_gradient", "put_at_positions"]
