"""`Codes`: weights of a `Format` as NumPy arrays, made from floats and made floats again.

This is the reference that products, files and packings are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from genesis.compress.format import Float, Format, Integer, Table
from genesis.ir import dtype as dtypes

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
        element = self.format.element
        if isinstance(element, Integer):
            return codes.astype(np.float32) - np.float32(element.zero)
        return np.take(values_of(element), codes)

    def _spread(self, x: Any) -> Any:
        """A number of every group for each of its codes."""
        k, group = self.shape[-1], self.format.group
        return np.repeat(x, group, axis=1)[:, :k] if k % group else x[:, :, None]


def _numbers(x: Any) -> Any:
    """Scales or minima as float32."""
    return x.decode() if isinstance(x, Codes) else np.asarray(x, np.float32)


def values_of(element: Float | Table) -> Any:
    """The number of every code."""
    if isinstance(element, Table):
        return np.array(element.values, np.float32)
    every = np.arange(256, dtype=np.uint8)
    return every.view(dtypes.as_dtype(element.dtype).numpy).astype(np.float32)


def chunks(rows: int, k: int) -> Iterator[slice]:
    """Slices of rows with about as many values as fit a cache."""
    step = max(1, _CHUNK // max(k, 1))
    return (slice(row, row + step) for row in range(0, rows if k else 0, step))


# ---- encoding


@np.errstate(all="ignore")
def encode(values: Any, format: Format) -> Codes:
    """Values (.., k) as the nearest weights of a format; k is filled up to whole spans by zeros.

    >>> from genesis.compress.format import FORMATS
    >>> encode(np.float32([[1, -7, 3, 5]]), FORMATS["int4"]).decode()[:, :4]
    array([[ 1., -7.,  3.,  5.]], dtype=float32)
    """
    x = np.asarray(values, np.float32)
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % format.span)])
    grouped = x.reshape(*x.shape[:-1], -1, format.group)
    scale, zero, minimum = _shared(grouped, format)
    steps, shape = _numbers(scale)[..., None], x.shape
    moved = grouped if minimum is None else grouped - _numbers(minimum)[..., None]
    scaled = np.where(steps != 0, moved / np.where(steps != 0, steps, 1), 0)
    codes = _nearest(scaled, format.element, 0 if zero is None else zero[..., None])
    return Codes(format, codes.reshape(shape), scale, zero, minimum)


def _shared(x: Any, format: Format) -> tuple[Any, Any, Any]:
    """Scales, zeros and minima of groups (.., group)."""
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    if isinstance(format.element, Integer) and (format.zero or format.minimum is not None):
        width = (high - low) / np.float32((1 << format.bits) - 1)
        if format.minimum is not None:
            return _stored(width, format.scale), None, _stored(low, format.minimum)
        scale = _stored(width, format.scale)
        places = np.where(scale > 0, -low / np.where(scale > 0, scale, 1), 0)
        return scale, np.clip(np.rint(places), 0, (1 << format.zero) - 1).astype(np.uint8), None
    return _stored(np.maximum(-low, high) / _greatest(format), format.scale), None, None


def _greatest(format: Format) -> Any:
    """The value that the greatest weight of a group becomes."""
    element = format.element
    if isinstance(element, Integer):
        return np.float32(max(1, (1 << element.bits) - 1 - element.zero))
    values = np.abs(values_of(element))
    return values[np.isfinite(values)].max()


def _stored(x: Any, format: str | Format) -> Any:
    """Scales or minima as they are stored."""
    if isinstance(format, Format):
        sign = np.where(x.min() < 0, np.float32(-1), np.float32(1))  # minima are below zero
        coded = encode(x * sign, format)
        return replace(coded, scale=coded.scale * coded.scale.dtype.type(sign))
    if format == "e8m0":
        return np.ldexp(np.float32(1), np.ceil(np.log2(np.maximum(x, 1e-37))).astype(np.int32))
    return x.astype(dtypes.as_dtype(format).numpy)


def _nearest(scaled: Any, element: Integer | Float | Table, zero: Any) -> Any:
    if isinstance(element, Integer):
        codes = np.rint(scaled) + zero + element.zero
        least = 1 if element.zero else 0  # as far below zero as above it
        return np.clip(np.nan_to_num(codes), least, (1 << element.bits) - 1).astype(np.uint8)
    if isinstance(element, Float):
        return scaled.astype(dtypes.as_dtype(element.dtype).numpy).view(np.uint8)
    table = values_of(element)
    order = np.argsort(table, kind="stable")
    between = (table[order][1:] + table[order][:-1]) / 2
    return order.astype(np.uint8)[np.searchsorted(between, np.nan_to_num(scaled))]


__all__ = ["Codes", "chunks", "encode", "values_of"]
