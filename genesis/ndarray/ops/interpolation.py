"""Interpolation: an array read on a finer or coarser grid.

Every output position of an axis is a weighted sum of a few input positions (taps), and positions
and weights of an axis are two short vectors for each tap. Axes are done one after the other, so
that two taps of three axes are six reads an element, not eight, and all but the last axis read
whole rows. Measured for two axes and two taps this takes 0.4 of the time of reading all four
neighbours at once, and half that of multiplying by the matrices of weights.

Positions and weights must agree on which side of an integer a coordinate lies, though kernels may
compute it apart. So a coordinate is never written ``a*b + c``, which may be rounded once or twice,
but with `fma`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index as as_int

import numpy as np

from genesis.ir.dtype import DType, float32, float64, int64
from genesis.ir.size import Dim, Size, as_size
from genesis.ndarray.core import primitive
from genesis.ndarray.core.interop import realize
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.value import unrecorded
from genesis.ndarray.ops.adaptive_pooling import adaptive_avg_pool, adaptive_avg_pool_gradient
from genesis.ndarray.ops.creation import asarray, zeros
from genesis.ndarray.ops.elementwise import clip, floor, fma, maximum, minimum, ratio, trunc, where
from genesis.ndarray.ops.movement import reshape
from genesis.ndarray.ops.sliding_windows import counting, pick, spread

#: The free parameter of cubic interpolation (Keys 1981), and the one used when antialiasing.
CUBIC = -0.75
SMOOTH_CUBIC = -0.5

#: Up to so many taps are written out, so that rows are read whole.
_FEW = 8
_SHIFT = {"nearest": 0.0, "nearest-exact": 0.5}
_RANKS = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,),
    "bilinear": (2,), "trilinear": (3,), "bicubic": (2,),
}  # fmt: skip


def interpolate(
    x: NDArray,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> NDArray:
    """``(batch, channels, *spatial)`` resampled to a spatial `size`, or by a `scale_factor`.

    Modes are "nearest", "nearest-exact" and "area" for one to three spatial axes, "linear",
    "bilinear" and "bicubic", "trilinear" for one, two and three. With `align_corners` the centres
    of the corner elements stay where they are, otherwise the edges of the array.
    `recompute_scale_factor` takes the scale from the rounded size. `antialias` widens "bilinear"
    and "bicubic" to average over all that falls into an output element.

    >>> from genesis import ndarray as nd
    >>> interpolate(nd.array([[[0.0, 4.0]]]), scale_factor=2, mode="linear").tolist()
    [[[0.0, 1.0, 3.0, 4.0]]]
    """
    if mode not in _RANKS:
        raise ValueError(f"interpolate: no mode {mode!r}; there are {', '.join(_RANKS)}")
    rank = x.ndim - 2
    if rank not in _RANKS[mode]:
        needed = " or ".join(str(r + 2) for r in _RANKS[mode])
        raise ValueError(f"interpolate: mode {mode!r} needs {needed} axes, got shape {x.shape}")
    smooth = mode.endswith(("linear", "cubic"))
    if align_corners is not None and not smooth:
        raise ValueError(f"interpolate: align_corners has no meaning for mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"interpolate: antialias is for bilinear and bicubic, not {mode!r}")
    if not x.dtype.is_float and not mode.startswith("nearest"):
        raise TypeError(
            f"interpolate: mode {mode!r} needs floating point, not {x.dtype}; cast with .astype"
        )
    grids = _grids(x, x.shape, size, scale_factor, align_corners, recompute_scale_factor)
    if mode == "area":
        return adaptive_avg_pool(x, [grid.count for grid in grids], rank=rank)
    if not smooth:
        nearest = [grid.nearest(_SHIFT[mode]) for grid in grids]
        return pick(x, [spread(at, a, rank) for a, at in enumerate(nearest)])
    result = x.astype(grids[0].dtype)
    for a, grid in enumerate(grids, 2):
        if grid.unchanged:
            continue
        if antialias:
            result = _wide(result, a, *grid.fixed().filtered(cubic=mode == "bicubic"))
        else:
            result = _few(result, a, grid.taps(mode))
    return result.astype(x.dtype)


def interpolate_gradient(
    gradient: NDArray,
    shape: Sequence[int],
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> NDArray:
    """The gradient of `interpolate` for its input, which has the given shape."""
    grids = _grids(gradient, shape, size, scale_factor, align_corners, recompute_scale_factor)
    if mode == "area":
        return adaptive_avg_pool_gradient(gradient, [grid.length for grid in grids])
    result = gradient.astype(grids[0].dtype)
    cubic = mode == "bicubic"
    for a, grid in reversed(list(enumerate(grids, 2))):
        if grid.unchanged and not mode.startswith("nearest"):
            continue
        places, weights = grid.transposed(mode, antialias, cubic)
        few = as_int(places.shape[1])
        if few > _FEW:
            result = _wide(result, a, places, weights)
        else:
            result = _few(result, a, [(places[:, k], weights[:, k]) for k in range(few)])
    return result.astype(gradient.dtype)


def cubic_weights(t: NDArray) -> list[NDArray]:
    """The weights of the four neighbours of a point a fraction t after the second of them."""
    a = CUBIC
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
    return [far[0], near[0], near[1], far[1]]


def _grids(
    like: NDArray,
    shape: Sequence[Dim],
    size: int | Sequence[int] | None,
    scale_factor: float | Sequence[float] | None,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
) -> list[_Grid]:
    """The spatial axes of an array of the given shape, from where they are to where they go."""
    lengths = [as_size(n) for n in shape[2:]]
    wanted, factors = _sizes(shape, lengths, size, scale_factor, bool(recompute_scale_factor))
    wide = like.dtype.accumulator if like.dtype.is_float else float32
    return [
        _Grid(n, o, f, bool(align_corners), wide, like)
        for n, o, f in zip(lengths, wanted, factors, strict=True)
    ]


def _sizes(
    shape: Sequence[Dim],
    lengths: Sequence[Dim],
    size: int | Sequence[Dim] | None,
    scale_factor: float | Sequence[float] | None,
    recompute: bool,
) -> tuple[list[Dim], list[float | None]]:
    """The spatial size of the result, and the scale of each axis where one was given."""
    rank = len(lengths)
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate: give size or scale_factor")
    factors: list[float | None] = [None] * rank
    if size is not None:
        wanted: list[Dim] = [size] * rank if isinstance(size, int) else list(map(as_size, size))
        if len(wanted) != rank:
            raise ValueError(f"interpolate: size {size} is for {len(wanted)} axes, not {rank}")
    else:
        assert scale_factor is not None
        one = isinstance(scale_factor, int | float)
        listed = [scale_factor] * rank if one else list(scale_factor)  # type: ignore[arg-type]
        if len(listed) != rank:
            raise ValueError(f"interpolate: {len(listed)} scale factors for {rank} spatial axes")
        wanted = [_times(n, float(f)) for n, f in zip(lengths, listed, strict=True)]  # type: ignore[arg-type]
        if not recompute:
            factors = [float(f) for f in listed]  # type: ignore[arg-type]
    if any(n < 1 for n in (*lengths, *wanted)):
        raise ValueError(
            f"interpolate: spatial sizes must be positive: from shape {tuple(shape)} "
            f"to {tuple(wanted)}"
        )
    return wanted, factors


def _times(n: Dim, factor: float) -> Dim:
    """``floor(n * factor)`` in floating point."""
    above, below = factor.as_integer_ratio()
    if isinstance(n, int) or max(above, below) > 1 << 16:
        return math.floor(as_int(n) * factor)
    return n * above // below  # exact in floating point, too


@dataclass(frozen=True)
class _Grid:
    """One axis: from `length` to `count` positions."""

    length: Dim
    count: Dim
    factor: float | None
    align_corners: bool
    dtype: DType  # of coordinates and weights
    like: NDArray

    def fixed(self) -> _Grid:
        """The grid with numbers, for what is worked out before the program runs."""
        return replace(self, length=as_int(self.length), count=as_int(self.count))

    @property
    def unchanged(self) -> bool:
        """Whether every position is an input position."""
        return self.length == self.count and (self.factor in (None, 1) or self.align_corners)

    @property
    def scale(self) -> float | NDArray:
        """Input positions from one output position to the next: a float, or a scalar array."""
        like = wrap(primitive.constant(0, self.dtype, self.like.device))
        if self.align_corners:
            return ratio(self.length - 1, self.count - 1, like) if self.count > 1 else 0.0
        return 1 / self.factor if self.factor else ratio(self.length, self.count, like)

    def positions(self) -> NDArray:
        """0, 1, .. count - 1 as floating point."""
        return counting(self.count, self.like).astype(self.dtype)

    def sources(self) -> NDArray:
        """Where in the input each output position lies."""
        if self.align_corners:
            return self.positions() * self.scale
        return fma(self.positions() + 0.5, self.scale, -0.5)

    def inside(self, at: NDArray) -> NDArray:
        """Whole numbers as positions, those outside moved to the edge."""
        return clip(at, 0, self.length - 1).astype(int64)

    def nearest(self, shift: float) -> NDArray:
        """The position to copy for each output position."""
        at = self.positions()
        return self.inside(floor((at + shift if shift else at) * self.scale))

    def linear(self) -> list[tuple[NDArray, NDArray]]:
        """Two taps."""
        source = maximum(self.sources(), 0)
        first = minimum(floor(source), self.length - 1)
        part = clip(source - first, 0, 1)
        return [(self.inside(first), 1 - part), (self.inside(first + 1), part)]

    def cubic(self) -> list[tuple[NDArray, NDArray]]:
        """Four taps."""
        source = self.sources()
        first = floor(source)
        weights = cubic_weights(source - first)
        return [(self.inside(first + k), w) for k, w in enumerate(weights, -1)]

    def taps(self, mode: str, antialias: bool = False) -> list[tuple[NDArray, NDArray]]:
        """The positions and weights of all taps."""
        if mode in _SHIFT:
            return [(self.nearest(_SHIFT[mode]), self.positions() * 0 + 1)]
        if antialias:
            at, shares = self.filtered(mode == "bicubic")
            return [(at[:, k], shares[:, k]) for k in range(as_int(at.shape[1]))]
        return self.cubic() if mode == "bicubic" else self.linear()

    def support(self, cubic: bool) -> float:
        """How far the filter reaches to either side, in input positions."""
        assert isinstance(self.scale, float)
        return (2.0 if cubic else 1.0) * max(self.scale, 1.0)

    def transposed(self, mode: str, antialias: bool, cubic: bool) -> tuple[NDArray, NDArray]:
        """For every input position the outputs that read it: positions and weights (length, few).

        Which outputs may read an input is worked out here, with room for rounding; whether they
        do, and how much, the taps say. This depends on no data, so it is computed at once: kernels
        read two small tables rather than doing it for every element.
        """
        if isinstance(self.length, Size):
            return self._transposed(mode, antialias, cubic)
        assert isinstance(self.count, int)
        with unrecorded():
            scale = self.scale
            assert isinstance(scale, float)
            steps = np.arange(self.count)
            corners = self.align_corners and not antialias
            source = steps * scale if corners else (steps + 0.5) * scale - 0.5
            before, after = (1.0, 2.0) if cubic else (0.0, 1.0)
            if mode in _SHIFT:
                source = (steps + _SHIFT[mode]) * scale
            elif antialias:
                before, after = self.support(cubic) - 1, self.support(cubic)
            slack = 1e-6 * self.length
            low = np.clip(np.floor(source - before - slack), 0, self.length - 1)
            high = np.clip(np.floor(source + after + slack), 0, self.length - 1)
            first = np.searchsorted(high, np.arange(self.length), side="left")
            last = np.searchsorted(low, np.arange(self.length), side="right")
            start = reshape(asarray(first, device=self.like.device), (self.length, 1))
            outputs = start + counting(max(int((last - first).max()), 1), self.like)
            places = minimum(outputs, self.count - 1)
            weights = self.shares(self.taps(mode, antialias), places, outputs < self.count)
            realize(places, weights)
            tables = places.value, weights.value
        return wrap(tables[0]), wrap(tables[1])

    def _transposed(self, mode: str, antialias: bool, cubic: bool) -> tuple[NDArray, NDArray]:
        """The same for a symbolic length, in the program."""
        if antialias or self.align_corners or not self.factor:
            # How many outputs read an input depends on the length.
            return self.fixed().transposed(mode, antialias, cubic)
        factor, shift = self.factor, 0.5
        before, after = (2, 2) if cubic else (1, 1)  # where a coordinate that reads position 0 lies
        if mode in _SHIFT:
            before, after, shift = 0, 1, _SHIFT[mode]
        mine = reshape(counting(self.length, self.like), (self.length, 1))
        middle = mine.astype(float64) + (0 if mode in _SHIFT else 0.5)
        # With room for rounding on both sides.
        first = floor((middle - before) * factor - shift).astype(int64) - 1
        few = math.ceil((before + after) * factor) + 4
        outputs = first + counting(few, self.like)
        places = clip(outputs, 0, wrap(primitive.extent(self.count - 1, int64, self.like.device)))
        return places, self.shares(self.taps(mode), places, outputs == places)

    def shares(
        self, taps: Sequence[tuple[NDArray, NDArray]], places: NDArray, exists: NDArray
    ) -> NDArray:
        """How much of every input position the outputs at `places` take, as far as they exist."""
        mine = reshape(counting(self.length, self.like), (self.length, 1))
        weights = zeros(places.shape, dtype=self.dtype, device=self.like.device)
        for at, share in taps:
            read, much = (wrap(primitive.gather(x.value, places.value, 0)) for x in (at, share))
            weights = weights + where((read == mine) & exists, much, 0)
        return weights

    def filtered(self, cubic: bool) -> tuple[NDArray, NDArray]:
        """As many taps as an output element covers: positions and weights (count, taps)."""
        scale, support = self.scale, self.support(cubic)
        assert isinstance(scale, float)
        stretch = max(scale, 1.0)
        middle = reshape(self.positions() + 0.5, (self.count, 1))
        begin = maximum(trunc(fma(middle, scale, -support) + 0.5), 0)
        end = minimum(trunc(fma(middle, scale, support) + 0.5), self.length)
        centre = middle * scale
        taps = counting(math.ceil(support) * 2 + 1, self.like).astype(centre.dtype)
        at = begin + taps
        weight = _filter(abs((at - centre + 0.5) / stretch), cubic)
        weight = where(at < end, weight, 0)
        return self.inside(at), weight / weight.sum(1, keepdims=True)


def _filter(d: NDArray, cubic: bool) -> NDArray:
    """The filter's value at a distance from its centre."""
    if not cubic:
        return maximum(1 - d, 0)
    a = SMOOTH_CUBIC
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return where(d < 1, near, where(d < 2, far, 0))


def _few(x: NDArray, axis: int, taps: Sequence[tuple[NDArray, NDArray]]) -> NDArray:
    """The sum of a few taps along an axis, each a position and a weight for every output."""
    total: NDArray | None = None
    for at, weight in taps:
        seen = wrap(primitive.gather(x.value, at.value, axis))
        term = seen * spread(weight, 0, x.ndim - axis)
        total = term if total is None else total + term
    assert total is not None
    return total


def _wide(x: NDArray, axis: int, at: NDArray, weights: NDArray) -> NDArray:
    """The sum of many taps along an axis: positions and weights (outputs, taps)."""
    seen = wrap(primitive.gather(x.value, at.value, axis))
    return (seen * reshape(weights, (*weights.shape, *(1,) * (x.ndim - axis - 1)))).sum(axis + 1)


__all__ = ["interpolate", "interpolate_gradient"]
