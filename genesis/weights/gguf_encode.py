"""Weights in the block formats of GGUF files: one program for a format, whatever the shapes.

Formats with a scale for each block are rounded as llama.cpp does, bit by bit. For those with
superblocks, and for tables, scales are searched for first (`genesis.compress.algorithms`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from operator import add
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import ndarray as nd
from genesis.compress import FORMATS, Codes, Format, Integer
from genesis.compress.algorithms import searched_numbers
from genesis.compress.codes import GroupNumbers, chunks, inverses, nearest_values
from genesis.compress.format import E2M1, IQ4
from genesis.compress.statistics import Statistics
from genesis.weights.gguf_types import BY_NAME, BlockType, packed_blocks


class Encoded(NamedTuple):
    """A tensor in a block format, to be written to a file."""

    format: BlockType
    shape: tuple[int, ...]
    raw: Any
    #: The squares of what rounding changed, and of the values, summed.
    off: float = 0.0
    total: float = 0.0


def encode(values: Any, format: str, importance: Any = None) -> Encoded:
    """Values in a block format, as llama.cpp rounds them.

    Of formats with one scale for a block that is so bit by bit; scales of superblocks are searched
    for, weighted by the `importance` of columns where that is known.

    >>> encode(np.ones((2, 64), np.float32), "Q8_0").raw.shape
    (136,)
    """
    kind = BY_NAME.get(format)
    if kind is None or kind.pack is None:
        known = [name for name, f in BY_NAME.items() if f.pack]
        raise ValueError(f"encode: the formats are {', '.join(known)}, not {format!r}")
    x = np.asarray(values)
    if x.dtype.name not in ("float16", "bfloat16"):  # programs make floats of these
        x = np.asarray(x, np.float32)
    if not x.ndim or x.shape[-1] % kind.block:
        raise ValueError(
            f"encode: rows of {format} are multiples of {kind.block} values, which those of "
            f"{x.shape} are not"
        )
    if not x.size:
        return Encoded(kind, x.shape, np.zeros(0, np.uint8))
    # How long rows are matters only where columns do.
    flat = x.reshape(-1, kind.block if importance is None else x.shape[-1])
    each = flat.shape[1] // kind.block
    raw, off, total = np.empty((len(flat) * each, kind.size), np.uint8), 0.0, 0.0
    for rows in chunks(len(flat), flat.shape[1]):
        codes, one, all_ = _coded(flat[rows], kind, importance)
        blocks = slice(rows.start * each, rows.stop * each)
        raw[blocks] = packed_blocks(codes, kind).reshape(-1, kind.size)
        off, total = off + one, total + all_
    return Encoded(kind, x.shape, raw.reshape(-1), off, total)


def _coded(x: Any, kind: BlockType, importance: Any) -> tuple[Codes, float, float]:
    """The codes of rows; the squares of what they are off by, and of the rows, summed."""
    format, given = FORMATS[kind.name], nd.from_numpy(x)
    if not _finite(given).item():
        raise ValueError(f"encode: some of the weights {x.shape} are NaN or infinite")
    if kind.name in _ENCODERS:
        codes, scale, *more, off, total = _blocks(kind.name)(given.reshape(-1, kind.block))
        own = GroupNumbers(scale.numpy(), None, *(y.numpy() for y in more))
        if not np.isfinite(own.scale).all():
            raise ValueError(f"encode: the weights {x.shape} have scales too large for {kind.name}")
    else:
        seen = None
        if importance is not None:
            seen = Statistics(x.shape[-1], products=False, count=1)
            seen.squares = np.asarray(importance, np.float64)
        own = searched_numbers(x, seen, format)
        step, _, least = own.floats()
        fields = [step, inverses(own.scale), *([] if own.minimum is None else [least])]
        codes, off, total = _superblocks(kind.name)(given, *map(nd.from_numpy, fields))
    return Codes(format, codes.numpy(), *own), off.item(), total.item()


@genesis.jit
def _finite(x: Any) -> Any:
    return nd.isfinite(x.astype("float32")).all()


@cache
def _blocks(name: str) -> Any:
    """The program of a format with a scale, and perhaps a minimum, for each block."""

    @genesis.jit
    def blocks(x: Any) -> Any:
        x = x.astype("float32")
        codes, values, *own = _ENCODERS[name](x, FORMATS[name])
        own = [y.astype("float16") for y in own] if name != "MXFP4" else own
        scale, *least = (y.astype("float32") for y in own)
        return codes, *own, *_squares(x, values * scale + (least[0] if least else 0.0))

    return blocks


@cache
def _superblocks(name: str) -> Any:
    """The program of a format whose scales, and minima, are given: of groups (rows, groups)."""
    format = FORMATS[name]

    @genesis.jit
    def superblocks(x: Any, step: Any, inverse: Any, least: Any = None) -> Any:
        grouped = x.astype("float32").reshape(*step.shape, format.group)
        step, inverse = step[..., None], inverse[..., None]
        least = 0.0 if least is None else least[..., None]
        if isinstance(format.element, Integer):
            scaled = nd.where(step != 0, (grouped - least) / step, 0.0)
            values = nearest_values(scaled, format.element)
            codes = (values + format.element.zero).astype("uint8")
        else:
            limits = [(a + b) / 2 for a, b in itertools.pairwise(IQ4)]
            codes = _count((grouped - least) * inverse, limits)
            values = _listed(codes, IQ4)
        return codes.reshape(x.shape), *_squares(grouped, values * step + least)

    return superblocks


def _squares(x: Any, back: Any) -> tuple[Any, Any]:
    return nd.square(back - x).sum(), nd.square(x).sum()


def _count(x: Any, limits: Sequence[float]) -> Any:
    """How many limits numbers are beyond."""
    return functools.reduce(add, ((x > limit).astype("uint8") for limit in limits))


def _listed(codes: Any, table: Sequence[int]) -> Any:
    """The numbers of a table as floats."""
    found = nd.lookup(codes, [x & 255 for x in table])
    return nd.bitcast(found, "int8").astype("float32")


# ---- blocks (n, block) to codes, their values before scaling, scales and minima (n, 1)


def _inverse(x: Any) -> Any:
    return nd.where(x != 0, 1 / x, 0.0)


def _even(x: Any, format: Format) -> tuple[Any, ...]:
    """Integers about zero of which both sides have as many; halves go away from zero."""
    assert isinstance(format.element, Integer)
    zero = float(format.element.zero)
    scale = nd.abs(x).max(1, keepdims=True) / max(zero - 1, 1.0)
    size = nd.minimum(nd.abs(x) * _inverse(scale), zero)  # so that it is rounded before the sum
    values = nd.copysign(nd.floor(size + 0.5), x)
    return (values + zero).astype("uint8"), values, scale


def _uneven(x: Any, format: Format) -> tuple[Any, ...]:
    """The same where the value of the greatest size, with its sign, becomes the code 0."""
    assert isinstance(format.element, Integer)
    zero, size, place = float(format.element.zero), nd.abs(x), nd.arange(format.group)
    ties = nd.where(size == size.max(1, keepdims=True), place, format.group)
    peak = nd.where(place == ties.min(1, keepdims=True), x, 0.0).sum(1, keepdims=True)
    scale = peak / -zero
    moved = nd.maximum(x * _inverse(scale), -zero - 1) + (zero + 0.5)
    codes = nd.minimum(moved.astype("uint8"), int(2 * zero - 1))
    return codes, codes.astype("float32") - zero, scale


def _above(x: Any, format: Format) -> tuple[Any, ...]:
    """Integers above the least value."""
    low, most = x.min(1, keepdims=True), (1 << format.bits) - 1
    scale = (x.max(1, keepdims=True) - low) / float(most)
    moved = nd.minimum((x - low) * _inverse(scale), most + 1.0) + 0.5
    codes = nd.minimum(moved.astype("uint8"), most)
    return codes, codes.astype("float32"), scale, low


def _tiny(x: Any, format: Format) -> tuple[Any, ...]:
    """Floats of 4 bits, doubled; of two that are equally near, the smaller."""
    size = nd.abs(x)
    peak = size.max(1, keepdims=True)
    exponent = nd.where(peak > 0, nd.maximum(nd.frexp(peak)[1] - 4, -128), -128)
    half, one = (-exponent) >> 1, nd.ones_like(peak)  # two factors, neither of which is infinite
    scaled = size * nd.ldexp(one, half) * nd.ldexp(one, -exponent - half)
    codes = _count(scaled, [(a + b) / 2 for a, b in itertools.pairwise(E2M1[:8])])
    codes = codes | (((x < 0) & (codes > 0)).astype("uint8") << 3)
    return codes, _listed(codes, E2M1), nd.ldexp(one, exponent)


_ENCODERS: dict[str, Callable[[Any, Format], tuple[Any, ...]]] = {
    "Q8_0": _even, "Q4_0": _uneven, "Q4_1": _above, "Q5_0": _uneven, "Q5_1": _above,
    "TQ1_0": _even, "TQ2_0": _even, "MXFP4": _tiny,
}  # fmt: skip

__all__ = ["Encoded", "encode"]
