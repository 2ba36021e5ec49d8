"""How weights become codes: functions of a weight, statistics of its inputs and a format.

`nearest` needs no statistics. The others make the error smaller that matters, which is that of the
layer's output: of inputs x, a row w and what it became, q, ``(w - q) E[x xᵀ] (w - q)ᵀ``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

import genesis
from genesis import ndarray as nd
from genesis.compress.codes import (
    Codes,
    GroupNumbers,
    coded,
    element_values,
    encode,
    greatest,
    nearest_values,
    prepared,
    rounded,
    shared,
    stored,
)
from genesis.compress.format import Element, Format, Integer
from genesis.compress.statistics import Statistics

Algorithm = Callable[[Any, Statistics | None, Format], Codes]


def nearest(weight: Any, seen: Statistics | None, format: Format) -> Codes:
    """Every weight by itself."""
    return encode(weight, format)


# ---- scales of least error


def clipped(weight: Any, seen: Statistics | None, format: Format) -> Codes:
    """Scales that reach less far, where clipping loses less than rounding gains.

    Errors are weighted by the mean squares of the inputs, if there are statistics.
    """
    x, format = prepared(weight, format)
    return coded(x, format, _reaching(x, format, _importance(seen, x.shape[-1])))


def _reaching(x: Any, format: Format, importance: Any, tries: int = 24) -> GroupNumbers:
    """Scales of least weighted error among those that reach a share of the way."""
    best: Any = None
    reach: Any = np.float32(1)
    # A power of two may be too small for the peak of its group, which more reach makes good.
    for share in [*np.linspace(1, 0.4, tries, dtype=np.float32), np.float32(1.34)]:
        off = _errors(x, coded(x, format, shared(x, format, share)), importance)
        off = off if format.rows == 1 else off.sum((0, 1), keepdims=True)
        best = off if best is None else best
        reach = np.where(off < best, share, reach)
        best = np.minimum(off, best)
    return shared(x, format, reach)


def _importance(seen: Statistics | None, k: int) -> Any:
    """The weights of columns' errors, whose mean is 1: one for all, if nothing was seen."""
    if seen is None:
        return 1.0
    energy = seen.energy / max(seen.energy.mean(), 1e-30) + 1e-6
    return np.pad(energy, (0, k - len(energy))).astype(np.float32)


def _errors(x: Any, codes: Codes, importance: Any) -> Any:
    """The weighted squared errors of groups (rows, groups)."""
    off = np.square(codes.decode() - x) * importance
    return off.reshape(*x.shape[:-1], -1, codes.format.group).sum(-1)


def hqq(weight: Any, seen: Statistics | None, format: Format, rounds: int = 20) -> Codes:
    """Minima at which errors are few and large rather than many and small (half-quadratic).

    The errors that shrinking leaves are outliers; the rest of the weights chooses the minimum.
    """
    if format.minimum is None or not isinstance(format.element, Integer):
        raise ValueError(f"hqq: needs integers with a minimum, which {format.name} has not")
    x, format = prepared(weight, format)
    own, beta = shared(x, format), 10.0
    for _ in range(rounds):
        codes = coded(x, format, own)
        grouped = (x - codes.decode()).reshape(*x.shape[:-1], -1, format.group)
        size = np.abs(grouped)
        spared = np.sign(grouped) * np.maximum(size - np.maximum(size, 1e-8) ** -0.3 / beta, 0)
        moved = own.floats()[2] + (grouped - spared).mean(-1, dtype=np.float32)
        stored = shared(np.repeat(moved, format.group, -1), format).minimum
        own, beta = own._replace(minimum=stored), beta * 1.01
    before, after = encode(x, format), coded(x, format, own)
    return after if _total(x, after) < _total(x, before) else before


def _total(x: Any, codes: Codes) -> float:
    return float((np.abs(codes.decode() - x) ** 0.7).sum(dtype=np.float64))


def searched(weight: Any, seen: Statistics | None, format: Format) -> Codes:
    """Scales, and minima, by least squares over the codes that several reaches give.

    Then superblocks' scales are rounded, and codes chosen again for what they became.
    """
    x, format = prepared(weight, format)
    return coded(x, format, searched_numbers(x, seen, format))


def searched_numbers(x: Any, seen: Statistics | None, format: Format) -> GroupNumbers:
    """The scales and minima that `searched` finds, of weights in whole spans."""
    return _scales(x, format, _importance(seen, x.shape[-1]))


def _scales(x: Any, format: Format, importance: Any) -> GroupNumbers:
    """Scales of least error: by least squares, or by reach where a scale is no plain number."""
    inner = format.scale
    by_reach = (
        format.zero or format.rows != 1 or str(inner).startswith("e8m0")
        or (isinstance(inner, Format) and not isinstance(inner.element, Integer))
    )  # fmt: skip
    search = _reaching if by_reach else _searched
    return search(x, format, importance)


def _searched(x: Any, format: Format, importance: Any) -> GroupNumbers:
    scale, minimum = _fitted(x, format, importance)
    least = None if format.minimum is None else _rounded(minimum, format.minimum, format, -1)
    return GroupNumbers(_rounded(scale, format.scale, format), None, least)


def _fitted(x: Any, format: Format, importance: Any) -> tuple[Any, Any]:
    """Scales and minima (.., groups) of least weighted error."""
    *outer, k = x.shape
    rows, groups = math.prod(outer), k // format.group
    heed = importance
    if np.ndim(heed):
        heed = nd.array(heed.reshape(groups, format.group).T[:, :, None])
    begin, attempt = _search(format.element, format.minimum is not None)
    known, state = begin(nd.from_numpy(x.reshape(rows, groups, format.group)), heed)
    for share in _shares():
        state = attempt(heed, *known, *state, share)
    return tuple(y.numpy().T.reshape(*outer, groups) for y in state[1:])


@cache
def _shares() -> list[Any]:
    """The reaches that are tried, as shares of the way to the peak."""
    return [nd.array(share) for share in np.linspace(0.7, 1.15, 20, dtype=np.float32)]


@cache
def _search(element: Element, free: bool) -> tuple[Any, Any]:
    """What begins a search for scales of columns, and what tries a reach; `free` have minima."""
    zero = element.zero if isinstance(element, Integer) else 0
    last = float(zero or greatest(element))

    def reached(low: Any, high: Any, share: Any) -> tuple[Any, Any]:
        if free:
            return (high - low) * share / last, low
        # The peak becomes the last of the side that has one more.
        return -nd.where(-low > high, low, high) * share / last, nd.zeros_like(low)

    def codes(x: Any, step: Any, least: Any) -> Any:
        inverse = nd.where(step != 0, 1 / step, 0.0)
        return nearest_values((x - least) * inverse, element)

    @genesis.jit
    def begin(x: Any, heed: Any) -> Any:
        # A group is a column, so that vectors go through many groups at once.
        x = nd.permute(x.astype("float32"), (2, 1, 0)).copy()
        low, high = nd.minimum(x.min(0), 0.0), nd.maximum(x.max(0), 0.0)
        sums = (nd.ones_like(x) * heed).sum(0), (heed * x).sum(0)
        # Where errors are too large to be squared, the reach stays the whole way.
        return (x, low, high, *sums), (nd.full_like(low, np.inf), *reached(low, high, 1.0))

    @genesis.jit
    def attempt(heed: Any, x: Any, low: Any, high: Any, n: Any, sx: Any, *rest: Any) -> Any:
        *state, share = rest
        step, least = reached(low, high, share)
        step, least = _least_squares(x, codes(x, step, least), heed, free, n, sx)
        y = codes(x, step, least) * step + least
        off = (heed * nd.square(y - x)).sum(0)
        return tuple(
            nd.where(off < state[0], new, old)
            for new, old in zip((off, step, least), state, strict=True)
        )

    return begin, attempt


def _least_squares(x: Any, y: Any, heed: Any, free: bool, n: Any, sx: Any) -> tuple[Any, Any]:
    """The scale a and the minimum b <= 0 for which ``a y + b`` is nearest to x."""
    heeded = heed * y
    syy, sxy = (heeded * y).sum(0), (heeded * x).sum(0)
    alone = nd.where(syy > 0, sxy / syy, 0.0)
    if not free:
        return alone, nd.zeros_like(alone)
    sy = heeded.sum(0)
    across = n * syy - sy * sy
    scale = nd.where(across > 1e-12 * n * syy, (n * sxy - sx * sy) / across, 0.0)
    minimum = nd.where(n > 0, (sx - scale * sy) / n, 0.0)
    outside = (minimum > 0) | (scale <= 0)
    return nd.where(outside, alone, scale), nd.where(outside, 0.0, minimum)


def _rounded(x: Any, kind: str | Format, format: Format, sign: int = 1) -> Any:
    """Scales, or minima of one sign, as a format stores them."""
    if isinstance(kind, str):
        return stored(x, kind, format)
    element, x = kind.element, x * np.float32(sign)
    assert isinstance(element, Integer)
    grouped = x.reshape(*x.shape[:-1], -1, kind.group)
    peak = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1)[..., 0]
    unit = -peak / np.float32(element.zero) if element.zero else peak / greatest(element)
    unit = stored(unit, kind.scale, format)
    return replace(coded(x, kind, GroupNumbers(unit)), scale=unit * unit.dtype.type(sign))


# ---- errors made good by the weights that are still to be rounded


def gptq(
    weight: Any, seen: Statistics | None, format: Format, damping: float = 0.01, block: int = 128
) -> Codes:
    """Column by column: what a column is off by, those after it make good.

    By how much follows from the second moments of the inputs. The scales of a group are chosen
    when its first column is reached, from the weights as they are by then.
    """
    if seen is None:
        raise ValueError("gptq: needs statistics of the layer's inputs")
    x, format = prepared(weight, format)
    if x.ndim != 2 or format.rows != 1:
        raise ValueError(f"gptq: takes a matrix and scales of its rows, not {x.shape}, {format}")
    rows, k = x.shape
    block = block // format.span * format.span or (format.span if format.span < k else block)
    importance = _importance(seen, k)
    x, upper = x.astype(np.float64), upper_factor(seen.second, k, damping)
    codes, parts = np.zeros(x.shape, np.uint8), []
    for begin in range(0, k, block):
        end, off = min(begin + block, k), np.zeros((rows, min(block, k - begin)))
        for j in range(begin, end):
            if j % format.span == 0:
                span = slice(j, j + format.span)
                parts.append(_scales(x[:, span].astype(np.float32), format, importance[span]))
                steps, zeros, minima = (_wide(f, rows, format) for f in parts[-1].floats())
            g = j % format.span // format.group
            step, zero, least = steps[:, g], zeros[:, g], minima[:, g]
            scaled = np.divide(x[:, j] - least, step, out=np.zeros(rows), where=step != 0)
            codes[:, j] = rounded(scaled.astype(np.float32), format.element, zero)
            value = (element_values(codes[:, j], format.element) - zero) * step + least
            off[:, j - begin] = (x[:, j] - value) / upper[j, j]
            x[:, j + 1 : end] -= np.outer(off[:, j - begin], upper[j, j + 1 : end])
        x[:, end:] -= off @ upper[begin:end, end:]
    return Codes(format, codes, *_side_by_side(parts))


def upper_factor(second: Any, k: int, damping: float) -> Any:
    """The upper Cholesky factor of the inverse of second moments (k, k), damped."""
    h = np.zeros((k, k))
    h[: len(second), : len(second)] = second
    dead = np.diag(h) <= 0
    h[dead, dead] = 1
    mean = np.diag(h)[~dead].mean() if not dead.all() else 1.0
    inverse = np.linalg.inv(h + damping * mean * np.eye(k))
    return np.linalg.cholesky((inverse + inverse.T) / 2).T


def _wide(x: Any, rows: int, format: Format) -> Any:
    return np.broadcast_to(x, (rows, format.groups)).astype(np.float64)


def _side_by_side(parts: list[GroupNumbers]) -> tuple[Any, Any, Any]:
    """What belongs to groups of spans, one after the other."""

    def field(xs: list[Any]) -> Any:
        if xs[0] is None:
            return None
        if isinstance(xs[0], Codes):
            codes, scale = (
                np.concatenate([getattr(x, n) for x in xs], 1) for n in ("codes", "scale")
            )
            minimum = field([x.minimum for x in xs])
            return Codes(xs[0].format, codes, scale, None, minimum)
        return np.concatenate(xs, 1)

    scale, zero, minimum = (field([getattr(p, n) for p in parts]) for n in GroupNumbers._fields)
    return scale, zero, minimum


#: The algorithms by name.
ALGORITHMS: dict[str, Algorithm] = {
    "nearest": nearest, "clipped": clipped, "hqq": hqq, "searched": searched, "gptq": gptq,
}  # fmt: skip

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "clipped",
    "gptq",
    "hqq",
    "nearest",
    "searched",
    "searched_numbers",
    "upper_factor",
]
