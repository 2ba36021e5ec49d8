"""How weights become codes: functions of a weight, statistics of its inputs and a format.

`nearest` needs no statistics. The others make the error smaller that matters, which is that of the
layer's output: of inputs x, a row w and what it became, q, ``(w - q) E[x xᵀ] (w - q)ᵀ``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from genesis.compress.codes import (
    Codes,
    GroupNumbers,
    coded,
    element_values,
    encode,
    greatest,
    prepared,
    rounded,
    shared,
    stored,
)
from genesis.compress.format import Format, Integer
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
    """The weights of columns' errors, whose mean is 1."""
    if seen is None:
        return np.ones(k, np.float32)
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
    return coded(x, format, _scales(x, format, _importance(seen, x.shape[-1])))


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
    grouped = x.reshape(*x.shape[:-1], -1, format.group)
    heed = np.broadcast_to(importance.reshape(-1, format.group), grouped.shape)
    scale, minimum = _fitted(grouped, heed, format)
    least = None if format.minimum is None else _rounded(minimum, format.minimum, format, -1)
    return GroupNumbers(_rounded(scale, format.scale, format), None, least)


def _fitted(x: Any, heed: Any, format: Format, tries: int = 20) -> tuple[Any, Any]:
    """Scales and minima (.., groups) of least weighted error."""
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    free = format.minimum is not None
    peak = np.where(-low > high, low, high)
    best = np.full_like(low, np.inf)
    scale = minimum = np.zeros_like(low)
    for share in np.linspace(0.7, 1.15, tries, dtype=np.float32):
        if free:
            step, least = (high - low) * share / np.float32((1 << format.bits) - 1), low
        else:  # the peak becomes the last of the side that has one more
            step, least = -peak * share / np.float32(_last(format)), np.zeros_like(low)
        codes = _codes(x, step, least, format)
        step, least = _least_squares(x, element_values(codes, format.element), heed, free)
        y = element_values(_codes(x, step, least, format), format.element)
        y = y * step[..., None] + least[..., None]
        off = (heed * np.square(y - x)).sum(-1)
        better = off < best
        best = np.where(better, off, best)
        scale, minimum = np.where(better, step, scale), np.where(better, least, minimum)
    return scale, minimum


def _last(format: Format) -> float:
    element = format.element
    return element.zero if isinstance(element, Integer) and element.zero else greatest(element)


def _codes(x: Any, step: Any, least: Any, format: Format) -> Any:
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
    return rounded((x - least[..., None]) * inverse[..., None], format.element)


def _least_squares(x: Any, y: Any, heed: Any, free: bool) -> tuple[Any, Any]:
    """The scale a and the minimum b <= 0 for which ``a y + b`` is nearest to x."""
    n, sy, sx = heed.sum(-1), (heed * y).sum(-1), (heed * x).sum(-1)
    syy, sxy = (heed * y * y).sum(-1), (heed * x * y).sum(-1)
    alone = np.divide(sxy, syy, out=np.zeros_like(sxy), where=syy > 0)
    if not free:
        return alone, np.zeros_like(alone)
    across = n * syy - sy * sy
    usable = across > 1e-12 * n * syy
    scale = np.divide(n * sxy - sx * sy, across, out=np.zeros_like(alone), where=usable)
    minimum = np.divide(sx - scale * sy, n, out=np.zeros_like(alone), where=n > 0)
    outside = (minimum > 0) | (scale <= 0)
    return np.where(outside, alone, scale), np.where(outside, 0, minimum)


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
    "upper_factor",
]
