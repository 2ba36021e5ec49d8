"""Resampling images, and sampling them where a grid says.

PyTorch has an operator for each mode, number of dimensions and direction; all of them are
`interpolate` or its transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product as combinations
from operator import and_, index, mul
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.ir.dtype import int64
from genesis.ndarray import NDArray
from genesis.ndarray.ops.interpolation import CUBIC, cubic_weights
from genesis.ndarray.ops.sliding_windows import counting, pick
from genesis.torch.aten.registry import Unsupported, kernel

#: Of every family of operators: the mode, the numbers of dimensions, and whether it is smoothed.
_FAMILIES = {
    "upsample_nearest": ("nearest", (1, 2, 3), False),
    "_upsample_nearest_exact": ("nearest-exact", (1, 2, 3), False),
    "upsample_linear": ("linear", (1,), False),
    "upsample_bilinear": ("bilinear", (2,), False),
    "upsample_trilinear": ("trilinear", (3,), False),
    "upsample_bicubic": ("bicubic", (2,), False),
    "_upsample_bilinear2d_aa": ("bilinear", (2,), True),
    "_upsample_bicubic2d_aa": ("bicubic", (2,), True),
}


def _how(
    mode: str,
    antialias: bool,
    lengths: Sequence[int],
    sizes: Sequence[int] | None,
    align_corners: bool | None,
    scales: Sequence[float | None],
) -> dict[str, Any]:
    """How to interpolate: to a size, or by scales that lead to it."""
    how = {"mode": mode, "align_corners": align_corners, "antialias": antialias}
    factors = [f for f in scales if f]
    if not factors or (sizes is not None and align_corners):
        return {"size": sizes, **how}
    if len(factors) < len(lengths):
        raise Unsupported("scales for some dimensions only")
    led = [math.floor(n * f) for n, f in zip(lengths, factors, strict=True)]
    if sizes is not None and led != list(sizes):
        raise Unsupported(f"scales {factors} of {lengths} that do not lead to {sizes}")
    return {"scale_factor": factors, **how}


def _rest(smooth: bool, rest: Sequence[Any], named: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Whether corners are aligned, and the scales, from what comes after the sizes."""
    listed = [*rest, *named.values()]
    return (listed[0], listed[1:]) if smooth else (None, listed)


def _plain(mode: str, antialias: bool) -> Callable[..., NDArray]:
    smooth = not mode.startswith("nearest")

    def forward(x: NDArray, output_size: Sequence[Any], *rest: Any, **named: Any) -> NDArray:
        if smooth and not x.dtype.is_float:
            raise Unsupported(f"{mode} interpolation of {x.dtype}")
        align_corners, scales = _rest(smooth, rest, named)
        lengths, sizes = list(map(index, x.shape[2:])), list(map(index, output_size))
        return nd.interpolate(x, **_how(mode, antialias, lengths, sizes, align_corners, scales))

    return forward


def _by_list(mode: str, antialias: bool) -> Callable[..., NDArray]:
    smooth = not mode.startswith("nearest")

    def forward(x: NDArray, output_size: Sequence[Any] | None, *rest: Any, **named: Any) -> NDArray:
        if smooth and not x.dtype.is_float:
            raise Unsupported(f"{mode} interpolation of {x.dtype}")
        align_corners, listed = _rest(smooth, rest, named)
        scales = listed[0] if listed and listed[0] is not None else []
        lengths = list(map(index, x.shape[2:]))
        sizes = None if output_size is None else list(map(index, output_size))
        return nd.interpolate(x, **_how(mode, antialias, lengths, sizes, align_corners, scales))

    return forward


def _backward(mode: str, antialias: bool) -> Callable[..., NDArray]:
    smooth = not mode.startswith("nearest")

    def backward(
        grad_output: NDArray,
        output_size: Sequence[Any],
        input_size: Sequence[Any],
        *rest: Any,
        **named: Any,
    ) -> NDArray:
        align_corners, scales = _rest(smooth, rest, named)
        shape, sizes = list(map(index, input_size)), list(map(index, output_size))
        how = _how(mode, antialias, shape[2:], sizes, align_corners, scales)
        return nd.interpolate_gradient(grad_output, shape, **how)

    return backward


for _family, (_mode, _ranks, _antialias) in _FAMILIES.items():
    for _rank in _ranks:
        _name = _family if _antialias else f"{_family}{_rank}d"
        kernel(_name)(_plain(_mode, _antialias))
        kernel(f"{_name}.vec")(_by_list(_mode, _antialias))
        kernel(f"{_name}_backward")(_backward(_mode, _antialias))


# ---- samples where a grid says

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


@kernel("grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "_grid_sampler_2d_cpu_fallback")
def _grid_sampler(
    x: NDArray, grid: NDArray, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> NDArray:
    how = _MODES[interpolation_mode], _PADDING[padding_mode], align_corners
    return nd.grid_sample(x, grid, *how)


class _Tap(NamedTuple):
    """One element along an axis that a sample is made of."""

    position: NDArray
    inside: NDArray
    weight: NDArray
    slope: NDArray  # of the weight, along the grid's coordinate


@kernel("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad_output: NDArray,
    x: NDArray,
    grid: NDArray,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[NDArray | None, NDArray | None]:
    wide, rank = x.dtype.accumulator, x.ndim - 2
    lengths = tuple(map(index, x.shape[2:]))
    axes = [
        _taps(grid[..., rank - 1 - a].astype(wide), n, interpolation_mode, padding_mode,
              align_corners)
        for a, n in enumerate(lengths)
    ]  # fmt: skip
    grad = grad_output.astype(wide)
    corners = list(combinations(*axes))
    if padding_mode == 0:
        corners = [_only_inside(corner) for corner in corners]
    to_x = _to_image(grad, corners, lengths).astype(x.dtype) if output_mask[0] else None
    to_grid = _to_grid(grad, x.astype(wide), corners).astype(grid.dtype) if output_mask[1] else None
    return to_x, to_grid


def _only_inside(corner: tuple[_Tap, ...]) -> tuple[_Tap, ...]:
    """A corner that counts for nothing if it is not inside the image."""
    inside = reduce(and_, [tap.inside for tap in corner])
    return tuple(
        tap._replace(weight=nd.where(inside, tap.weight, 0), slope=nd.where(inside, tap.slope, 0))
        for tap in corner
    )


def _to_image(grad: NDArray, corners: Sequence[Any], lengths: tuple[int, ...]) -> NDArray:
    """What every corner adds to the element it was read from."""
    batch, channels, *out = grad.shape
    places, shares = [], []
    for corner in corners:
        place = corner[0].position
        for n, tap in zip(lengths[1:], corner[1:], strict=True):
            place = place * n + tap.position
        places.append(place)
        shares.append(reduce(mul, [tap.weight for tap in corner]))
    count = len(corners)
    rows = (batch, channels, count, *out)
    each = nd.unsqueeze(grad, 2) * nd.unsqueeze(nd.stack(shares, 1), 1)
    where = nd.expand(nd.unsqueeze(nd.stack(places, 1), 1), rows)
    flat = (batch, channels, -1)
    total = nd.put_at_positions(each.reshape(flat), where.reshape(flat), (math.prod(lengths),))
    return total.reshape(batch, channels, *lengths)


def _to_grid(grad: NDArray, x: NDArray, corners: Sequence[Any]) -> NDArray:
    """How the samples change with the grid's coordinates, x before y before z."""
    rank = x.ndim - 2
    after = (1,) * rank
    plane = [
        counting(x.shape[0], x).reshape(-1, 1, *after),
        counting(x.shape[1], x).reshape(-1, *after),
    ]
    moves: list[NDArray | None] = [None] * rank
    for corner in corners:
        value = pick(x, [*plane, *(nd.unsqueeze(tap.position, 1) for tap in corner)])
        along = nd.sum(grad * value, 1)
        for a in range(rank):
            factors = [tap.slope if d == a else tap.weight for d, tap in enumerate(corner)]
            move, before = along * reduce(mul, factors), moves[a]
            moves[a] = move if before is None else before + move
    return nd.stack([move for move in reversed(moves) if move is not None], -1)


def _taps(at: NDArray, n: int, mode: int, padding_mode: int, align_corners: bool) -> list[_Tap]:
    """The elements around a grid's coordinate along an axis of n."""
    scale = (n - 1) / 2 if align_corners else n / 2
    at = nd.fma(at, scale, (n - 1) / 2)

    def tap(place: NDArray, weight: NDArray, slope: NDArray) -> _Tap:
        inside = (place >= 0) & (place <= n - 1)
        return _Tap(nd.clip(place, 0, n - 1).astype(int64), inside, weight, slope * scale)

    if _MODES[mode] == "bicubic":
        first = nd.floor(at)
        part = at - first
        places = [_within(first + k, n, padding_mode, align_corners)[0] for k in range(-1, 3)]
        each = zip(places, cubic_weights(part), _cubic_slopes(part), strict=True)
        return [tap(*of) for of in each]
    at, turn = _within(at, n, padding_mode, align_corners)
    if _MODES[mode] == "nearest":
        return [tap(nd.round(at), nd.ones_like(at), nd.zeros_like(at))]
    first = nd.floor(at)
    part = at - first
    return [tap(first, 1 - part, -turn), tap(first + 1, part, turn)]


def _within(at: NDArray, n: int, padding_mode: int, align_corners: bool) -> tuple[NDArray, NDArray]:
    """A coordinate moved into an axis of n elements, and which way it moves with the grid."""
    turn = nd.ones_like(at)
    if _PADDING[padding_mode] == "zeros":
        return at, turn
    if _PADDING[padding_mode] == "reflection":
        low, span = (0.0, n - 1.0) if align_corners else (-0.5, float(n))
        if span == 0:
            return at * 0, at * 0
        away = nd.remainder(at - low, 2 * span)
        back = (away > span) | ((away == span) & (at < low))
        turn = nd.where(back, -1.0, turn)
        at = span - nd.abs(span - away) + low
    still = (at <= 0) | (at >= n - 1)
    return nd.clip(at, 0, n - 1), nd.where(still, 0.0, turn)


def _cubic_slopes(part: NDArray) -> list[NDArray]:
    """The derivatives of `cubic_weights`."""

    def near(d: NDArray) -> NDArray:
        return (3 * (CUBIC + 2) * d - 2 * (CUBIC + 3)) * d

    def far(d: NDArray) -> NDArray:
        return (3 * CUBIC * d - 10 * CUBIC) * d + 8 * CUBIC

    return [far(part + 1), near(part), -near(1 - part), -far(2 - part)]


@kernel("affine_grid_generator")
def _affine_grid(theta: NDArray, size: Sequence[Any], align_corners: bool) -> NDArray:
    return nd.affine_grid(theta, list(map(index, size)), align_corners)


@kernel("affine_grid_generator_backward")
def _affine_grid_backward(grad: NDArray, size: Sequence[Any], align_corners: bool) -> NDArray:
    rank = len(size) - 2
    shape = (1, 1, *map(index, size[2:]))
    same = nd.eye(rank, rank + 1, dtype=grad.dtype, device=grad.device)
    places = nd.affine_grid(same.reshape(1, rank, rank + 1), shape, align_corners)
    points = places.reshape(-1, rank)
    ones = nd.ones((points.shape[0], 1), grad.dtype, grad.device)
    base = nd.concat([points, ones], 1)
    return nd.einsum("npi,pk->nik", grad.reshape(grad.shape[0], -1, rank), base)
