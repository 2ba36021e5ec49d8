"""`Statistics`: what is known of the inputs of a layer, from one pass over some data.

They are gathered layer by layer, so that a layer may be seen with the inputs that the quantised
ones before it give (`calibrate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from genesis import nn
from genesis.autograd import no_grad
from genesis.nn import functional
from genesis.tensor.tensor import Tensor

#: Bins of a histogram. It begins at zero and is doubled in width until the greatest value fits.
BINS = 2048


@dataclass
class Statistics:
    """Of inputs (.., k): peaks, sums and second moments of the channels, a histogram of sizes.

    >>> seen = Statistics(2)
    >>> seen.add(np.float32([[1, -3], [2, 0]]))
    >>> seen.peak, seen.mean, seen.second
    (array([2., 3.]), array([ 1.5, -1.5]), array([[ 2.5, -1.5],
           [-1.5,  4.5]]))
    """

    k: int
    #: Whether products of channels are summed up, (k, k): what GPTQ and SparseGPT need.
    products: bool = True
    count: int = 0
    peak: Any = field(init=False)
    total: Any = field(init=False)
    squares: Any = field(init=False)
    low: float = 0.0
    high: float = 0.0
    histogram: Any = field(init=False)
    width: float = 2.0**-20

    def __post_init__(self) -> None:
        self.peak, self.total = np.zeros(self.k), np.zeros(self.k)
        self.squares = np.zeros((self.k, self.k) if self.products else self.k)
        self.histogram = np.zeros(BINS)

    def add(self, inputs: Any) -> None:
        """Take more inputs into account."""
        x = np.asarray(inputs, np.float32).reshape(-1, self.k)
        if not np.isfinite(x).all():
            raise ValueError(f"Statistics: an input of {x.shape} has NaN or infinite values")
        self.count += len(x)
        self.peak = np.maximum(self.peak, np.abs(x).max(0, initial=0))
        self.total += x.sum(0, dtype=np.float64)
        self.squares += x.T @ x if self.products else np.square(x).sum(0, dtype=np.float64)
        self.low = min(self.low, float(x.min(initial=0)))
        self.high = max(self.high, float(x.max(initial=0)))
        self._count(np.abs(x))

    def _count(self, sizes: Any) -> None:
        while self.width * BINS <= max(self.high, -self.low):
            pairs = self.histogram.reshape(-1, 2).sum(1)
            self.histogram = np.concatenate([pairs, np.zeros(BINS // 2)])
            self.width *= 2
        places = (sizes * np.float32(1 / self.width)).astype(np.int64).reshape(-1)
        self.histogram += np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    @property
    def mean(self) -> Any:
        """The means of the channels."""
        return self.total / max(1, self.count)

    @property
    def second(self) -> Any:
        """The means of products of channels (k, k)."""
        if not self.products:
            raise ValueError("Statistics: products of channels were not gathered")
        return self.squares / max(1, self.count)

    @property
    def energy(self) -> Any:
        """The mean squares of the channels."""
        squares = np.diag(self.squares) if self.products else self.squares
        return squares / max(1, self.count)


# ---- from data to statistics


@contextmanager
def watched(layers: dict[str, nn.Module], products: bool = True) -> Any:
    """Statistics of the inputs that layers get while this is entered, by their names."""
    seen: dict[str, Statistics] = {}

    def hook(name: str) -> Callable[..., None]:
        def before(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            rows = _rows(layer, x.detach() if isinstance(x, Tensor) else x)
            own = seen.setdefault(name, Statistics(rows.shape[-1], products))
            own.add(rows)

        return before

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for each in hooks:
            each.remove()


def _rows(layer: nn.Module, x: Any) -> Any:
    """What the rows of a layer's weight as a matrix are multiplied by."""
    if not isinstance(layer, nn.Conv2d):
        return x.numpy()
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise ValueError(f"calibrate: inputs of {layer} are not watched")
    columns = functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return columns.permute(0, 2, 1).numpy()


@no_grad()
def gather(
    model: nn.Module, data: Iterable[Any], names: Iterable[str], products: bool = True
) -> dict[str, Statistics]:
    """The statistics of some layers' inputs, from a pass of data through a model."""
    layers = {name: model.get_submodule(name) for name in names}
    with watched(layers, products) as seen:
        for x in data:
            model(x)
    found: dict[str, Statistics] = seen
    missing = [name for name in layers if name not in seen]
    if missing:
        raise ValueError(f"gather: {missing[0]!r} was not called with this data")
    return found


# ---- how far a scale of activations reaches


def minmax(seen: Statistics) -> float:
    """As far as any value."""
    return max(seen.high, -seen.low)


def percentile(seen: Statistics, share: float = 0.9999) -> float:
    """As far as a share of all values."""
    inside = np.cumsum(seen.histogram) >= share * seen.histogram.sum()
    return min(minmax(seen), float((np.argmax(inside) + 1) * seen.width))


def least_squares(seen: Statistics, bits: int = 8) -> float:
    """Where rounding and clipping have the least squared error together."""
    middles = (np.arange(BINS) + 0.5) * seen.width
    reaches = _reaches(seen)
    steps = reaches[:, None] / ((1 << bits - 1) - 1)
    off = np.minimum(np.rint(middles / steps) * steps, reaches[:, None]) - middles
    return float(reaches[np.argmin((off**2 * seen.histogram).sum(1))])


def divergence(seen: Statistics, bits: int = 8) -> float:
    """Where the histogram of rounded values is nearest to that of the values, by KL divergence."""
    levels = 1 << bits - 1
    best, found = np.inf, minmax(seen)
    for reach in _reaches(seen):
        bins = max(levels, round(reach / seen.width))
        if bins > BINS:
            continue
        kept = seen.histogram[:bins].copy()
        kept[-1] += seen.histogram[bins:].sum()
        edges = np.arange(levels + 1) * bins // levels
        own = np.add.reduceat(seen.histogram[:bins], edges[:-1])
        filled = np.add.reduceat(seen.histogram[:bins] > 0, edges[:-1])
        each = np.repeat(own / np.maximum(filled, 1), np.diff(edges))
        each = np.where(seen.histogram[:bins] > 0, each, 0) + 1e-9
        p, q = kept / kept.sum(), each / each.sum()
        value = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
        if value < best:
            best, found = value, float(reach)
    return found


def _reaches(seen: Statistics) -> Any:
    return minmax(seen) * np.linspace(0.02, 1, 99)


#: How far scales reach, by name.
CALIBRATORS: dict[str, Callable[[Statistics], float]] = {
    "minmax": minmax, "percentile": percentile, "mse": least_squares, "kl": divergence,
}  # fmt: skip


@dataclass
class Range:
    """A reach that follows a stream: it grows when much saturates, and shrinks when nothing does.

    >>> reach = Range(1.0)
    >>> for _ in range(30):
    ...     reach.update(np.float32([5, -4, 3, 2] * 100))
    >>> 4.9 < reach.value < 6
    True
    """

    value: float
    #: The shares of values beyond the reach between which it stays as it is.
    least: float = 1e-4
    most: float = 1e-2
    factor: float = 1.1

    def update(self, inputs: Any) -> None:
        """Take the next inputs into account."""
        share = float(np.mean(np.abs(np.asarray(inputs)) > self.value))
        if share > self.most:
            self.value *= self.factor
        elif share < self.least:
            inside = float(np.quantile(np.abs(np.asarray(inputs)), 1 - self.least))
            self.value = max(self.value / self.factor, inside)


__all__ = [
    "BINS", "CALIBRATORS", "Range", "Statistics", "divergence", "gather", "least_squares",
    "minmax", "percentile", "watched",
]  # fmt: skip
