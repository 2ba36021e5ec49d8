"""Transposing a matrix in registers.

The matrix is turned in squares that lie side by side in every vector. Squares of 128 bits are
turned inside first; then they change places as wholes. Vector units do both in one instruction a
vector and step, and compilers see at once which, while shuffles across a whole vector need tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.backends.cpu.codegen.emit import LLVMValue, mangle

#: Bits of a vector between which elements move freely.
FREELY = 128


def transpose(rows: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The columns of equally wide vectors, as vectors; both counts are powers of two."""
    count, width = len(rows), rows[0].width
    side = min(count, width)
    rows = [_concatenate(rows[k::side]) for k in range(side)]
    bits = int(mangle(rows[0].element, 0)[1:])
    unit = min(side, FREELY // bits)
    rows = [x for k in range(0, side, unit) for x in _turn_inside(rows[k : k + unit], unit)]
    if rows[0].element in ("float", "double") and unit < side:
        # LLVM looks for better shuffles through all that lie behind one another, which takes it
        # most of its time for such a kernel. It does not look through these, and they are no code.
        rows = [x.intrinsic("arithmetic.fence") for x in rows]
    turned = [_turn_places(rows[k::unit], unit, side) for k in range(unit)]
    columns = [x for one_each in zip(*turned, strict=True) for x in one_each]
    if count < width:
        starts = range(0, width, side)
        columns = [x.shuffle(None, range(k, k + side)) for k in starts for x in columns]
    return columns


def _turn_inside(rows: Sequence[LLVMValue], side: int) -> Sequence[LLVMValue]:
    """Turn squares of `side` elements: interleave row r with row r + side/2, log2(side) times."""
    width, half = rows[0].width, side // 2
    starts = range(0, width, side)
    low = [start + x for start in starts for k in range(half) for x in (k, width + k)]
    high = [half + k for k in low]
    for _ in range(side.bit_length() - 1):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [a.shuffle(b, lanes) for a, b in pairs for lanes in (low, high)]
    return rows


def _turn_places(rows: Sequence[LLVMValue], unit: int, side: int) -> Sequence[LLVMValue]:
    """Turn squares of `side` elements, whose entries are `unit` elements each.

    What is at even places of neighbouring rows comes together, and what is at odd ones, until no
    row has a neighbour.
    """
    if len(rows) == 1:
        return rows
    width = rows[0].width
    entries = [
        start + row + k
        for start in range(0, width, side)
        for row in (0, width)
        for k in range(0, side, 2 * unit)
    ]
    halves = []
    for first in (0, unit):
        lanes = [first + entry + k for entry in entries for k in range(unit)]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        halves.append(_turn_places([a.shuffle(b, lanes) for a, b in pairs], unit, side))
    return [x for pair in zip(*halves, strict=True) for x in pair]


def _concatenate(parts: Sequence[LLVMValue]) -> LLVMValue:
    parts = list(parts)
    while len(parts) > 1:
        width = parts[0].width
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [a.shuffle(b, range(2 * width)) for a, b in pairs]
    return parts[0]
