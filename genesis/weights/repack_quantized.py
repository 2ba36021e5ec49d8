"""`QuantizedParameter`: a quantised parameter of a checkpoint, to be multiplied by in its own bits.

`repack` puts rows of such parameters, which several tensors of a file may have, into one
`genesis.compress.QuantizedTensor`: every code and every scale stays what it is. That takes some
seconds for a gigabyte, so the bytes are kept in the cache directory (`ArrayCache`), where the next
start maps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import genesis
from genesis.compress import Codes, Format, QuantizedTensor
from genesis.compress.bit_packing import BLOCK, PackedLayout, packed
from genesis.compress.codes import chunks, joined
from genesis.content_store import digest
from genesis.weights.array_cache import ArrayCache
from genesis.weights.checkpoint_reader import Weights

#: Activations are rounded by the greatest of a group: of larger groups, too coarsely.
LARGEST_GROUP = 128


@dataclass(frozen=True)
class QuantizedParameter:
    """A quantised parameter, or some of its rows: what is known of it before it is read."""

    weights: Weights
    name: str
    shape: tuple[int, ...]
    #: Rows of the parameter, counted over all dimensions but the last.
    rows: range

    @staticmethod
    def of(weights: Weights, name: str) -> QuantizedParameter | None:
        """A parameter that can be multiplied by as it is stored; None for others."""
        format, shape = weights.format(name), weights.shape(name)
        if format is None or not (format.integers or format.small_floats):
            return None
        if format.group % 8 or len(shape) < 2 or not math.prod(shape):
            return None
        return QuantizedParameter(weights, name, shape, range(math.prod(shape[:-1])))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def format(self) -> Format:
        """The format it has when it is packed."""
        format = self.weights.format(self.name)
        assert format is not None
        group = math.gcd(format.group, LARGEST_GROUP)
        return replace(format, group=group) if format.group > LARGEST_GROUP else format

    def __getitem__(self, places: slice) -> QuantizedParameter:
        """Some of the first dimension."""
        each = len(self.rows) // self.shape[0]
        count = len(range(self.shape[0])[places])
        begin = (places.start or 0) * each
        return replace(
            self, shape=(count, *self.shape[1:]), rows=self.rows[begin : begin + count * each]
        )

    def codes(self, begin: int, end: int) -> Codes:
        """The codes of some of the rows, in groups that are not too large."""
        rows = self.rows[begin:end]
        codes = self.weights.codes(self.name, slice(rows.start, rows.stop))
        if codes.format == self.format:
            return codes
        times = codes.format.group // self.format.group
        zero = None if codes.zero is None else np.repeat(codes.zero, times, -1)
        minimum = None if codes.minimum is None else np.repeat(codes.minimum, times, -1)
        scale = np.repeat(codes.scale, times, -1)
        return Codes(self.format, codes.codes, scale, zero, minimum, codes.order)

    def dequantize(self) -> Any:
        """The weights as float32."""
        floats = self.weights.read(self.name).reshape(-1, self.shape[-1])
        floats = floats[self.rows.start : self.rows.stop].reshape(self.shape)
        return genesis.from_numpy(floats)

    def to(self, dtype: Any) -> Any:
        """The weights as floats of a type."""
        return self.dequantize().to(dtype)


def stacked(parts: Sequence[Sequence[QuantizedParameter]]) -> list[QuantizedParameter] | None:
    """The rows of several matrices, of each of which there are some parts, one after the other.

    None where they cannot be packed so: if formats differ, or matrices do not begin with a block.
    """
    flat = [part for matrix in parts for part in matrix]
    alike = len({p.format for p in flat}) == 1
    whole = all(len(p.rows) % BLOCK == 0 for p in flat)
    in_order = all(p.weights.order(p.name) is None for p in flat)
    return flat if alike and whole and in_order else None


def repack(
    parts: Sequence[QuantizedParameter], array_cache: ArrayCache
) -> tuple[QuantizedTensor, Any]:
    """The rows of some parameters of one format as a matrix, and the order of its columns.

    The order is None where that of the parameters is it.
    """
    format, k = parts[0].format, parts[0].shape[-1]
    rows = sum(len(p.rows) for p in parts)
    name = digest(*(f"{p.name}[{p.rows.start}:{p.rows.stop}]" for p in parts))
    values = array_cache.find(name, shape := PackedLayout(format).shape(rows, k))
    order = array_cache.find(f"{name} order", (k,), np.int64)
    if values is None:
        values = array_cache.make(name, shape)
        order = _fill(values, parts)
        if order is not None:
            kept = array_cache.make(f"{name} order", (k,), np.int64)
            kept[:] = order
    matrix = QuantizedTensor(genesis.from_numpy(values), (rows, k), format)
    return matrix, None if order is None else genesis.from_numpy(np.asarray(order))


def _fill(values: Any, parts: Sequence[QuantizedParameter]) -> Any:
    """Pack parameters one after the other, some blocks of rows at a time."""
    if any(len(p.rows) % BLOCK for p in parts[:-1]):
        whole = [p.codes(0, len(p.rows)) for p in parts]
        return _pack(values, joined(whole))
    order, block = None, 0
    for part in parts:
        for some in chunks(len(part.rows), part.shape[-1]):
            begin = some.start // BLOCK * BLOCK
            end = len(part.rows) if some.stop >= len(part.rows) else some.stop // BLOCK * BLOCK
            if end > begin:
                codes = part.codes(begin, end)
                order = codes.order
                first = block + begin // BLOCK
                _pack(values[first : first - (begin - end) // BLOCK], codes)
        block += -(-len(part.rows) // BLOCK)
    return order


def _pack(values: Any, codes: Codes) -> Any:
    values[:] = packed(codes)
    return codes.order


__all__ = ["LARGEST_GROUP", "QuantizedParameter", "repack", "stacked"]
