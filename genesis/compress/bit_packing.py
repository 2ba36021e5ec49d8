"""Where the bits of quantised weights lie: in the order in which they are multiplied.

Rows are in blocks of 32, a block in spans, a span in groups, a group in chunks of 32 neighbours.
The codes of a chunk are cut into planes of 8, 4, 2 and 1 bits: of a plane of 4 bits, the two halves
of a chunk lie in the low and the high bits of the same bytes, of a plane of 2 bits its quarters. In
a plane, four neighbours of a row are a word, and the words of the block's rows follow each other;
floats, which are multiplied one by one, are words of one.
Behind the codes of a group lie its scale, zero and minimum, behind its groups what belongs to all
of a span: of every such number first the lowest byte of all rows, then the next. So a product reads
the weights once, from the first byte to the last, and memory sees a single stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis import functional
from genesis.compress.codes import Codes, values_of
from genesis.compress.format import CHUNK, Float, Format, Integer
from genesis.ir.dtype import as_dtype

#: Rows of a block, and neighbours along k that are multiplied together.
BLOCK, QUAD = 32, 4


class PackedLayout:
    """The sizes that follow from a format."""

    def __init__(self, format: Format) -> None:
        self.format = format
        group = format.group
        self.chunk = min(CHUNK, group & -group)
        self.chunks = group // self.chunk
        #: Neighbours of a word, and words of a row in each plane of a chunk.
        self.word = QUAD if format.integers else 1
        self.words = [self.chunk * p // 8 // self.word for p in format.planes]
        shared, together = format.shared
        #: Bytes that a row has in a group, and in a span.
        self.codes = group * sum(format.planes) // 8
        self.each = self.codes + shared
        self.span = self.each * format.groups + together

    def shape(self, rows: int, k: int) -> tuple[int, int, int]:
        """Of the bytes of a matrix: blocks of rows, spans, bytes."""
        return -(-rows // BLOCK), -(-k // self.format.span), self.span * BLOCK


def pack(format: Format, codes: Any, shared: list[Any], together: list[Any]) -> Any:
    """The bytes of a matrix.

    `codes` are (rows, k), whole blocks and spans of them; `shared` the bytes of numbers of groups
    (rows, groups, n) and `together` of spans (rows, spans, n). They are NumPy's or tensors.
    """
    layout = PackedLayout(format)
    rows, k = codes.shape
    blocks, spans, _ = layout.shape(rows, k)
    outer = (blocks, BLOCK, spans, format.groups)
    chunk = codes.reshape(*outer, layout.chunks, layout.chunk)
    planes, below = [], 0
    for plane in format.planes:
        parts = 8 // plane
        bits = (chunk >> below) & ((1 << plane) - 1) if len(format.planes) > 1 else chunk
        bits = bits.reshape(*outer, layout.chunks, parts, -1, layout.word)
        packed = bits[:, :, :, :, :, 0]
        for k in range(1, parts):
            packed = packed | (bits[:, :, :, :, :, k] << (k * plane))
        planes.append(packed)
        below += plane
    words = planes[0] if len(planes) == 1 else _joined(planes, 5)
    whole = [_moved(words, 0, 2, 3, 4, 5, 1, 6).reshape(blocks, spans, format.groups, -1)]
    for x in shared:
        whole.append(_moved(x.reshape(*outer, -1), 0, 2, 3, 4, 1).reshape(*whole[0].shape[:3], -1))
    bytes_ = [_joined(whole, 3).reshape(blocks, spans, -1)]
    for x in together:
        own = _moved(x.reshape(blocks, BLOCK, spans, -1), 0, 2, 3, 1)
        bytes_.append(own.reshape(blocks, spans, -1))
    return bytes_[0] if len(bytes_) == 1 else _joined(bytes_, 2)


def _moved(x: Any, *axes: int) -> Any:
    return x.transpose(axes) if isinstance(x, np.ndarray) else x.permute(*axes)


def _joined(parts: list[Any], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    return functional.cat(parts, axis)


def packed(codes: Codes) -> Any:
    """The bytes of a matrix of which there are codes."""
    format = codes.format
    rows, k = codes.shape
    element = format.element
    if isinstance(element, Float) and not np.isfinite(values_of(element)[codes.codes]).all():
        raise ValueError(f"of the weights {codes.shape} some are NaN or infinite")
    spans = -(-k // format.span)
    both = [(codes.scale, format.scale), (codes.minimum, format.minimum)]
    nested = [x for x, _ in both if isinstance(x, Codes)]
    shared = [_signed(x) for x in nested]
    if format.joint:
        shared = [shared[0] | shared[1] << 4]
    shared += [_bytes(x, kind) for x, kind in both if isinstance(kind, str)]
    shared += [] if codes.zero is None else [codes.zero[..., None]]
    together = [
        _bytes(field, str(kind))
        for x in nested
        for field, kind in zip((x.scale, x.minimum), x.format.fields, strict=False)
    ]
    return pack(
        format,
        _filled(codes.codes[..., None], rows, spans * format.span)[..., 0],
        [_filled(x, rows, spans * format.groups) for x in shared],
        [_filled(x, rows, spans) for x in together],
    )


def _filled(x: Any, rows: int, columns: int) -> Any:
    """Rows (.., columns, n) with zeros up to whole blocks and so many columns."""
    more = -rows % BLOCK, columns - x.shape[1]
    return np.pad(x, ((0, more[0]), (0, more[1]), (0, 0))) if max(more) > 0 else x


def _signed(x: Codes) -> Any:
    """A scale's codes (rows, groups, 1); of integers their values, as bytes of signed ones."""
    element = x.format.element
    codes = x.codes - np.uint8(element.zero) if isinstance(element, Integer) else x.codes
    return codes[..., None]


def _bytes(x: Any, kind: str) -> Any:
    """The bytes of numbers (rows, n) as (rows, n, size)."""
    if kind in ("e8m0", "e8m0_half"):
        x = np.clip(np.frexp(x)[1] + (126 if kind == "e8m0" else 127), 0, 255).astype(np.uint8)
    else:
        x = np.asarray(x, as_dtype(kind).numpy)
    return np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, -1)


__all__ = ["BLOCK", "PackedLayout", "QUAD", "pack", "packed"]
