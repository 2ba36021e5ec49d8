"""Operators that reduce windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.operators.contraction import padded, windows
from genesis.onnx.registry import Host, operator
from genesis.onnx.values import ints


class _Windows:
    """The windows of the last axes as further axes, with padding where they hang over."""

    def __init__(
        self, x: Any, kernel: Sequence[int], strides: Any, dilations: Any, pads: Any,
        auto_pad: str, ceil_mode: int,
    ) -> None:  # fmt: skip
        self.kernel, self.rank = list(kernel), len(kernel)
        self.steps, self.gaps, self.ends = windows(
            x.shape, kernel, strides, dilations, pads, auto_pad
        )
        self.over = [0] * self.rank
        if ceil_mode:
            self.over = [self._over(int(n), a) for a, n in enumerate(x.shape[-self.rank :])]

    def _over(self, n: int, a: int) -> int:
        """What the last window lacks, if it begins inside."""
        (before, after), step = self.ends[a], self.steps[a]
        reach = (self.kernel[a] - 1) * self.gaps[a] + 1
        rest = n + before + after - reach
        count = -(-rest // step) + 1
        if (count - 1) * step >= n + before:
            count -= 1
        return int(max(0, (count - 1) * step + reach - (n + before + after)))

    @property
    def plain(self) -> bool:
        """Whether both ends are padded alike, and nothing hangs over."""
        return not any(self.over) and all(a == b for a, b in self.ends)

    def of(self, x: Any, value: float, inner: float | None = None) -> Any:
        """The windows: the last `rank` axes go through each one."""
        y = padded(x, self.ends, value if inner is None else inner)
        y = padded(y, [(0, o) for o in self.over], value)
        first = x.ndim - self.rank
        for a in range(self.rank):
            reach = (self.kernel[a] - 1) * self.gaps[a] + 1
            y = fn.unfold(y, first + a, reach, self.steps[a])[..., :: self.gaps[a]]
        return y

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that go through a window."""
        return tuple(range(-self.rank, 0))


@operator("MaxPool")
def max_pool(
    x: Any, *, kernel_shape: Any, strides: Any = None, dilations: Any = None, pads: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """The greatest element of each window, and where it lies."""
    w = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    fits = all(2 * before <= k for (before, _), k in zip(w.ends, w.kernel, strict=True))
    if w.plain and outputs == 1 and fits and w.rank <= 3:
        function = (fn.max_pool1d, fn.max_pool2d, fn.max_pool3d)[w.rank - 1]
        return function(x, w.kernel, w.steps, [a for a, _ in w.ends], w.gaps)
    least = float("-inf") if x.dtype.is_float else x.dtype.min
    taken = w.of(x, least)
    values = fn.amax(taken, w.axes)
    if outputs == 1:
        return values
    return values, _places(x, w, taken, storage_order)


def _places(x: Any, w: _Windows, taken: Any, storage_order: int) -> Any:
    """The places of the greatest elements in their tensor."""
    from genesis import arange

    flat = taken.reshape(*taken.shape[: x.ndim], -1)
    tap = fn.argmax(flat, -1)
    spatial = [int(n) for n in x.shape[-w.rank :]]
    place: Any = 0
    coordinates = []
    for a in reversed(range(w.rank)):
        step = arange(taken.shape[x.ndim - w.rank + a]) * w.steps[a] - w.ends[a][0]
        shape = [1] * w.rank
        shape[a] = -1
        coordinates.append(step.reshape(*shape) + tap % w.kernel[a] * w.gaps[a])
        tap = tap // w.kernel[a]
    order = coordinates[::-1] if not storage_order else coordinates
    extents = spatial if not storage_order else spatial[::-1]
    for c, n in zip(order, extents, strict=True):
        place = place * n + c
    total = 1
    for n in spatial:
        total *= n
    planes = arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *(1,) * w.rank)
    return (planes * total + place).to(dtypes.int64)


@operator("AveragePool")
def average_pool(
    x: Any, *, kernel_shape: Any, strides: Any = None, dilations: Any = None, pads: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
) -> Any:  # fmt: skip
    """The mean of each window."""
    w = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    fits = all(2 * before <= k for (before, _), k in zip(w.ends, w.kernel, strict=True))
    if w.plain and fits and w.rank <= 3 and all(g == 1 for g in w.gaps):
        function = (fn.avg_pool1d, fn.avg_pool2d, fn.avg_pool3d)[w.rank - 1]
        before = [a for a, _ in w.ends]
        return function(x, w.kernel, w.steps, before, False, bool(count_include_pad))
    from genesis import ones

    there = ones(1, 1, *x.shape[-w.rank :], dtype=x.dtype)
    counted = w.of(there, 0, 1 if count_include_pad else 0)
    return fn.sum(w.of(x, 0), w.axes) / fn.sum(counted, w.axes)


@operator("LpPool")
def lp_pool(
    x: Any, *, kernel_shape: Any, strides: Any = None, dilations: Any = None, pads: Any = None,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, p: float = 2,
) -> Any:  # fmt: skip
    """The norm of each window."""
    w = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return fn.pow(fn.sum(fn.pow(fn.abs(w.of(x, 0)), p), w.axes), 1 / p)


@operator("GlobalAveragePool")
def global_average_pool(x: Any) -> Any:
    """The mean of all pixels."""
    return fn.mean(x, tuple(range(2, x.ndim)), True)


@operator("GlobalMaxPool")
def global_max_pool(x: Any) -> Any:
    """The greatest of all pixels."""
    return fn.amax(x, tuple(range(2, x.ndim)), True)


@operator("GlobalLpPool")
def global_lp_pool(x: Any, *, p: float = 2) -> Any:
    """The norm of all pixels."""
    return fn.pow(fn.sum(fn.pow(fn.abs(x), p), tuple(range(2, x.ndim)), True), 1 / p)


@operator("MaxUnpool")
def max_unpool(
    x: Any, places: Any, output_shape: Host = None, *, kernel_shape: Any, strides: Any = None,
    pads: Any = None,
) -> Any:  # fmt: skip
    """Elements put back where they were the greatest."""
    from genesis import zeros

    rank = len(kernel_shape)
    steps, ends = strides or [1] * rank, pads or [0] * (2 * rank)
    plain = [
        (int(n) - 1) * s - ends[k] - ends[k + rank] + kernel_shape[k]
        for k, (n, s) in enumerate(zip(x.shape[2:], steps, strict=True))
    ]
    wanted = ints(output_shape) or [*x.shape[:2], *plain]
    total = 1
    for n in plain:
        total *= n
    planes = x.shape[0] * x.shape[1]
    flat = zeros(planes * total, dtype=x.dtype)
    y = fn.scatter(flat, 0, places.reshape(-1), x.reshape(-1)).reshape(*x.shape[:2], *plain)
    return padded(y, [(0, n - m) for n, m in zip(wanted[2:], plain, strict=True)])
