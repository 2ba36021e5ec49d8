"""`Codes`: weights of a `Format` as NumPy arrays, made from floats and made floats again.

This is the reference that products, files and packings are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from genesis import ndarray as nd
from genesis.compress.format import ALL, Element, Float, Format, Integer, Table
from genesis.ir import dtype as dtypes

#: How a value becomes one of the two codes around it.
ROUNDINGS = ("nearest", "zero", "up", "stochastic")
_CHUNK = 1 << 20  # values made floats at once: what is in between stays in the cache


@dataclass(frozen=True)
class Codes:
    """Weights (.., k) as integers, with what makes them floats.

    >>> format = Format("mine", Integer(4, 8), 2)
    >>> Codes(format, np.uint8([[7, 9]]), np.float32([[0.5]])).decode()
    array([[-0.5,  0.5]], dtype=float32)
    """

    format: Format
    #: Unsigned bytes (.., k).
    codes: Any
    #: Floats (.., groups), or such numbers as codes of a format of their own.
    scale: Any
    #: Unsigned bytes (.., groups) that are subtracted from the codes; None where there are none.
    zero: Any = None
    #: What is added after scaling, as the scales are.
    minimum: Any = None
    #: Codes at position j belong to column ``order[j]`` of the matrix; None is in order.
    order: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return tuple(map(int, self.codes.shape))

    def __getitem__(self, rows: Any) -> Codes:
        """Some of the first dimension."""
        return self.each(lambda x: x[rows])

    def stacked(self, *shape: int) -> Codes:
        """The same with other dimensions before the last."""
        return self.each(lambda x: x.reshape(*shape, x.shape[-1]))

    def each(self, change: Callable[[Any], Any]) -> Codes:
        """What a change makes of all arrays but the order."""

        def changed(x: Any) -> Any:
            return x.each(change) if isinstance(x, Codes) else None if x is None else change(x)

        codes, scale = changed(self.codes), changed(self.scale)
        zero, minimum = changed(self.zero), changed(self.minimum)
        return Codes(self.format, codes, scale, zero, minimum, self.order)

    @np.errstate(all="ignore")  # not numbers are what a file may hold
    def decode(self) -> Any:
        """The weights as float32."""
        k = self.shape[-1]
        flat = self.stacked(math.prod(self.shape[:-1]))
        floats = np.empty(flat.shape, np.float32)
        for rows in chunks(len(floats), k):
            floats[rows] = flat[rows]._floats()
        if self.order is not None:
            floats = np.take(floats, np.argsort(self.order), 1)
        return floats.reshape(self.shape)

    def _floats(self) -> Any:
        """The weights of some rows."""
        k = self.shape[-1]
        group = self.format.group or k
        whole = k % group == 0
        values = self._values(self.codes.reshape(-1, k // group, group) if whole else self.codes)
        if self.zero is not None:
            values -= self._spread(self.zero.astype(np.float32))
        values *= self._spread(_numbers(self.scale))
        if self.minimum is not None:
            values += self._spread(_numbers(self.minimum))
        return values.reshape(-1, k)

    def _values(self, codes: Any) -> Any:
        return element_values(codes, self.format.element)

    def _spread(self, x: Any) -> Any:
        """A number of every group for each of its codes."""
        k, group = self.shape[-1], self.format.group
        return np.repeat(x, group, axis=1)[:, :k] if k % group else x[:, :, None]


def _numbers(x: Any) -> Any:
    """Scales or minima as float32."""
    return x.decode() if isinstance(x, Codes) else np.asarray(x, np.float32)


@cache
def bytes_of(element: Float | Table) -> tuple[tuple[int, ...], float]:
    """The numbers of at most 16 codes as signed bytes, and how many of those are 1.

    They are exact for floats of 4 bits and tables of integers. Other numbers are off by up to half
    a byte, a 250th of the greatest, as activations are.

    >>> bytes_of(Float(2, 1))
    ((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), 2.0)
    """
    values = values_of(element).astype(np.float64)
    greatest = 127 / np.abs(values).max()
    units = np.array([n for n in (1.0, 2.0, 4.0, 8.0) if n <= greatest])
    units = np.concatenate([units, np.linspace(greatest / 2, greatest, 500)])
    rounded = np.rint(values * units[:, None])
    off = np.abs(rounded / units[:, None] - values).max(1)
    best = int(np.argmin(off))
    return tuple(map(int, rounded[best])), float(units[best])


def values_of(element: Float | Table) -> Any:
    """The number of every code."""
    if isinstance(element, Table):
        return _frozen(np.array(element.values, np.float32))
    if element.bits > 8:
        raise ValueError(f"values_of: numbers of {element.bits} bits are not listed")
    code = np.arange(1 << element.bits - 1)
    exponent, mantissa = code >> element.mantissa, code & (1 << element.mantissa) - 1
    fraction = mantissa / (1 << element.mantissa) + (exponent > 0)
    bias = (1 << element.exponent - 1) - 1
    values = np.ldexp(fraction, np.maximum(exponent, 1) - bias).astype(np.float32)
    if element == Float(4, 3):
        values[-1] = np.nan
    elif element.bits == 8:
        last = exponent == exponent[-1]
        values[last] = np.where(mantissa[last], np.float32(np.nan), np.float32(np.inf))
    return _frozen(np.concatenate([values, -values]))


def _frozen(x: Any) -> Any:
    x.flags.writeable = False
    return x


def element_values(codes: Any, element: Element) -> Any:
    """The values of codes, before scaling."""
    if isinstance(element, Integer):
        return codes.astype(np.float32) - np.float32(element.zero)
    return np.take(values_of(element), codes)


def chunks(rows: int, k: int) -> Iterator[slice]:
    """Slices of rows with about as many values as fit a cache."""
    step = max(1, _CHUNK // max(k, 1))
    return (slice(row, row + step) for row in range(0, rows if k else 0, step))


# ---- encoding


class GroupNumbers(NamedTuple):
    """What belongs to groups, as it is stored: see `Codes`."""

    scale: Any
    zero: Any = None
    minimum: Any = None

    def floats(self) -> tuple[Any, Any, Any]:
        """Scales, zeros and minima (.., groups) as numbers to compute with."""
        zero = np.float32(0) if self.zero is None else self.zero.astype(np.float32)
        minimum = np.float32(0) if self.minimum is None else _numbers(self.minimum)
        return _numbers(self.scale), zero, minimum


def encode(values: Any, format: Format, rounding: str = "nearest", seed: int = 0) -> Codes:
    """Values (.., k) as weights of a format; k is filled up to whole spans by zeros.

    `rounding` is "nearest" (of two equally near ones the even code), "zero", "up" or
    "stochastic", which draws from `seed` and is right on average.

    >>> from genesis.compress.format import FORMATS
    >>> encode(np.float32([[1, -7, 3, 5]]), FORMATS["int4"]).decode()[:, :4]
    array([[ 1., -7.,  3.,  5.]], dtype=float32)
    """
    x, format = prepared(values, format)
    draw = np.random.default_rng(seed) if rounding == "stochastic" else None
    if format.rows != 1 or x.ndim < 2:
        return coded(x, format, shared(x, format), rounding, draw)
    flat = x.reshape(-1, x.shape[-1])
    parts = [
        coded(flat[rows], format, shared(flat[rows], format), rounding, draw)
        for rows in chunks(len(flat), flat.shape[1])
    ]
    return joined(parts).stacked(*x.shape[:-1])


def prepared(values: Any, format: Format) -> tuple[Any, Format]:
    """Values as float32, filled up to whole spans by zeros, and the format for rows so long."""
    x = np.asarray(values, np.float32)
    if not x.ndim or not x.size:
        raise ValueError(f"encode: there are no weights in an array of shape {x.shape}")
    format = format.fitted(x.shape[-1])
    if not format.group:
        raise ValueError(f"encode: {format.name} has no scales; cast the weights to it")
    bad = x.size - np.count_nonzero(np.isfinite(x))
    if bad:
        raise ValueError(f"encode: {bad} of the {x.size} weights are NaN or infinite")
    more = -x.shape[-1] % format.span
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x, format


@np.errstate(all="ignore")
def shared(x: Any, format: Format, reach: Any = 1) -> GroupNumbers:
    """Scales, zeros and minima for values (.., k) in whole spans.

    They reach as far as the values do, or a share of that (one for all, or one for every group).
    """
    element, grouped = format.element, x.reshape(*x.shape[:-1], -1, format.group)
    reach = np.float32(reach)
    if format.minimum is not None and not isinstance(element, Integer):
        middle = grouped.mean(-1, dtype=np.float32)
        width = np.abs(grouped - middle[..., None]).max(-1)
        return GroupNumbers(stored(width * reach / greatest(element), format.scale, format),
                      minimum=stored(middle, format.minimum, format))  # fmt: skip
    low, high = np.minimum(grouped.min(-1), 0) * reach, np.maximum(grouped.max(-1), 0) * reach
    low, high = _of_rows(low, format.rows, np.min), _of_rows(high, format.rows, np.max)
    if format.zero or format.minimum is not None:
        width = (high - low) / np.float32((1 << format.bits) - 1)
        scale = stored(width, format.scale, format)
        if format.minimum is not None:
            return GroupNumbers(scale, minimum=stored(low, format.minimum, format, -1))
        places = np.where(scale > 0, -low / np.where(scale > 0, scale, 1), 0)
        zero = np.clip(np.rint(places.astype(np.float32)), 0, (1 << format.zero) - 1)
        return GroupNumbers(scale, zero.astype(np.uint8))
    peak = np.maximum(-low, high)
    if format.scale in ("e8m0", "e8m0_half"):
        return GroupNumbers(_powers(peak, element, -128 if format.scale == "e8m0_half" else -127))
    return GroupNumbers(stored(peak / greatest(element), format.scale, format))


def _of_rows(x: Any, rows: int, extreme: Any) -> Any:
    """The extremes of rows (.., rows, groups) that have the same scales, in each of them."""
    if rows == 1 or x.ndim < 2:
        return x
    count = x.shape[-2]
    rows = count if rows == ALL else min(rows, count)
    filled = np.concatenate([x, np.repeat(x[..., -1:, :], -count % rows, -2)], -2)
    each = extreme(filled.reshape(*x.shape[:-2], -1, rows, x.shape[-1]), -2)
    if rows == count:  # of all rows, and where that is a row's only group, of all
        each = extreme(each, -1, keepdims=True) if x.shape[-1] == 1 else each
    return np.repeat(each, rows, -2)[..., :count, :]


def greatest(element: Element) -> Any:
    """The value that the greatest weight of a group becomes."""
    if isinstance(element, Integer):
        return np.float32((1 << element.bits) - 1 - element.zero)
    values = np.abs(values_of(element))
    return values[np.isfinite(values)].max()


def _powers(peak: Any, element: Element, least: int) -> Any:
    """The powers of two by which peaks have the exponent of an element's greatest value.

    A peak between that value and the next power of two becomes that value.
    """
    exponent = np.frexp(peak)[1] - np.frexp(greatest(element))[1]
    exponent = np.where(peak > 0, exponent, least)
    return np.ldexp(np.float32(1), np.clip(exponent, least, 127).astype(np.int32))


def stored(x: Any, kind: str | Format, format: Format, sign: int = 1) -> Any:
    """Scales, or minima of one sign, as they are stored."""
    if isinstance(kind, Format):
        if kind.rows == ALL and isinstance(kind.element, Float):
            unit = np.float32(x.max() / greatest(kind.element))
            least = np.float32(2.0 ** (2 - (1 << kind.element.exponent - 1)))
            return coded(
                np.maximum(x, least * unit), kind, GroupNumbers(np.full_like(x[..., :1], unit))
            )
        parts = coded(x * np.float32(sign), kind, shared(x * np.float32(sign), kind))
        return replace(parts, scale=parts.scale * parts.scale.dtype.type(sign))
    floats = x.astype(dtypes.as_dtype(kind).numpy)
    if not np.isfinite(floats).all():
        raise ValueError(
            f"encode: a scale of {np.abs(x).max():.3g} is too large for {format.name}, whose "
            f"scales are {kind}"
        )
    return floats


@np.errstate(all="ignore")
def coded(
    x: Any, format: Format, own: GroupNumbers, rounding: str = "nearest", draw: Any = None
) -> Codes:
    """The codes of values (.., k) in whole spans, whose scales are known."""
    grouped = x.reshape(*x.shape[:-1], -1, format.group)
    _, zero, minimum = (f[..., None] if np.ndim(f) else f for f in own.floats())
    moved = grouped if own.minimum is None else grouped - minimum
    if isinstance(format.element, Integer):
        steps = _numbers(own.scale)[..., None]
        scaled = np.where(steps != 0, moved / np.where(steps != 0, steps, 1), 0)
    else:
        scaled = moved * inverses(own.scale)[..., None]
    codes = rounded(scaled, format.element, zero, rounding, draw)
    return Codes(format, codes.reshape(x.shape), *own)


def inverses(scale: Any) -> Any:
    """What values are multiplied by; 0 where the scale is."""
    if isinstance(scale, Codes) and scale.minimum is None:
        inner = scale.format.element
        k = scale.shape[-1]
        outer = np.repeat(_inverse(_numbers(scale.scale)), scale.format.group, -1)[..., :k]
        return outer * _inverse(element_values(scale.codes, inner))
    return _inverse(_numbers(scale))


def _inverse(x: Any) -> Any:
    inverse = np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
    return np.minimum(inverse, np.finfo(np.float32).max)  # of the least powers of two


# ---- rounding to one of an element's values


def rounded(
    scaled: Any, element: Element, zero: Any = 0, rounding: str = "nearest", draw: Any = None
) -> Any:
    """The codes of scaled values; those out of reach get the nearest."""
    if rounding not in ROUNDINGS:
        raise ValueError(f"encode: rounds {', '.join(ROUNDINGS)}, not {rounding!r}")
    if isinstance(element, Integer):
        half = np.float32(element.zero % 1)  # of the one bit whose values are halves
        codes = _integers(scaled + half if half else scaled, rounding, draw)
        codes = codes + (zero + np.float32(element.zero) - half)
        return np.clip(codes, 0, (1 << element.bits) - 1).astype(np.uint8)
    if isinstance(element, Table):
        order, values = _sorted(element)
        return order[_places(scaled, values, rounding, draw)]
    return _floats(scaled, element, rounding, draw)


def _integers(x: Any, rounding: str, draw: Any) -> Any:
    if rounding == "stochastic":
        return np.floor(x + draw.random(x.shape, np.float32))
    return {"nearest": np.rint, "zero": np.trunc, "up": np.ceil}[rounding](x)


def _floats(x: Any, element: Float, rounding: str, draw: Any) -> Any:
    """Sign and magnitude: magnitudes are in the order of their codes."""
    top = greatest(element)
    if rounding == "nearest" and element.bits == 8 and element.dtype:
        return np.clip(x, -top, top).astype(dtypes.as_dtype(element.dtype).numpy).view(np.uint8)
    values = values_of(element)[: 1 << element.bits - 1]
    values = values[np.isfinite(values)]
    size, negative = np.abs(x), np.signbit(x)
    if rounding == "up":
        codes = np.where(negative, *(_places(size, values, r, draw) for r in ("zero", "up")))
    else:
        codes = _places(size, values, rounding, draw, even=True)
    return codes | negative.astype(np.uint8) << (element.bits - 1)


@cache
def _sorted(element: Table) -> tuple[Any, Any]:
    """The codes of a table in the order of their values, each value once, and those."""
    values, first = np.unique(values_of(element), return_index=True)
    return _frozen(first.astype(np.uint8)), _frozen(values)


def _places(x: Any, values: Any, rounding: str, draw: Any, even: bool = False) -> Any:
    """The place of one of the two ascending values that a number lies between."""
    low, high = values[:-1], values[1:]
    if rounding == "stochastic":
        x = np.clip(x, values[0], values[-1])
        place = np.minimum(np.searchsorted(values, x, "right"), len(values) - 1) - 1
        share = (x - low[place]) / (high[place] - low[place])
        return (place + (draw.random(x.shape, np.float32) < share)).astype(np.uint8)
    return np.searchsorted(_limits(low, high, rounding, even), x).astype(np.uint8)


def _limits(low: Any, high: Any, rounding: str, even: bool) -> Any:
    """The greatest float32 numbers that become the lower of two neighbours."""
    if rounding == "up":
        return low
    if rounding == "zero":  # towards zero from above, and from below
        return np.where(high > 0, np.nextafter(high, np.float32(-np.inf)), low)
    middle = (low.astype(np.float64) + high) / 2  # exactly
    limit = middle.astype(np.float32)
    upwards = np.arange(len(low)) % 2 == 1 if even else False
    beyond = (limit > middle) | (limit == middle) & upwards
    return np.where(beyond, np.nextafter(limit, np.float32(-np.inf)), limit)


def nearest_values(x: Any, element: Element) -> Any:
    """The values of the codes that `rounded` finds for an array: in a program, without codes."""
    if isinstance(element, Integer):
        half, zero = element.zero % 1, element.zero
        return nd.clip(nd.round(x + half) - half, -zero, (1 << element.bits) - 1 - zero)
    if isinstance(element, Table):
        _, values = _sorted(element)
        y: Any = float(values[0])
        limits = _limits(values[:-1], values[1:], "nearest", False)
        for limit, value in zip(map(float, limits), map(float, values[1:]), strict=True):
            y = nd.where(x > limit, value, y)
        return y
    # The distance between two floats follows from the exponent.
    least = 2.0 ** (2 - (1 << element.exponent - 1))
    power = nd.bitcast(nd.bitcast(x, "int32") & 0x7F800000, "float32")
    step = nd.maximum(power, least) * 2.0**-element.mantissa
    top = float(greatest(element))
    return nd.clip(nd.round(x / step) * step, -top, top)


def joined(parts: Sequence[Codes]) -> Codes:
    """Rows of codes of one format after each other."""
    if len(parts) == 1:
        return parts[0]

    def field(name: str) -> Any:
        xs = [getattr(p, name) for p in parts]
        if isinstance(xs[0], Codes):
            return joined(xs)
        return None if xs[0] is None else np.concatenate(xs, 0)

    codes, scale, zero, minimum = map(field, ("codes", "scale", "zero", "minimum"))
    return Codes(parts[0].format, codes, scale, zero, minimum, parts[0].order)


__all__ = [
    "Codes", "ROUNDINGS", "GroupNumbers", "chunks", "coded", "element_values", "encode", "greatest",
    "inverses", "joined", "nearest_values", "prepared", "rounded", "shared", "stored", "values_of",
]  # fmt: skip
