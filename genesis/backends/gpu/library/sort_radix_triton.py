"""Sorting long rows, in Triton: by 8 bits of their keys at a time, the lowest first.

A pass counts, for each tile of a row, the elements with each digit; sums these counts up over the
tiles that come before; and moves every element to where the digit begins in the row, behind those
of earlier tiles and of its own that have the digit, too. A row that is one tile needs no counts.

Within a tile, elements are sorted by half a digit, twice: how many elements of a line have each of
16 values is counted by the bytes of two numbers, so that one scan counts all of them. Between the
two, the elements go through memory that is the block's own.
"""

import triton
import triton.language as tl


@triton.jit
def both_sums(a, b, c, d):
    return a + c, b + d


@triton.jit
def places_by_digit(digit):
    """Where elements of lines of at most 255 go when all are sorted by digits of 4 bits; stable."""
    shift = ((digit & 7) * 8).to(tl.int64)
    one = tl.full([], 1, tl.int64) << shift
    low = tl.where(digit < 8, one, 0)
    high = tl.where(digit < 8, 0, one)
    below, above = tl.associative_scan((low, high), 1, both_sums)
    seen = ((tl.where(digit < 8, below, above) >> shift) & 255).to(tl.int32)
    value = tl.arange(0, 16)[None, :]
    lines = tl.where(value < 8, tl.sum(low, 1)[:, None], tl.sum(high, 1)[:, None])
    lines = ((lines >> ((value & 7) * 8).to(tl.int64)) & 255).to(tl.int32)
    every = tl.sum(lines, 0)
    start = tl.cumsum(lines, 0) - lines + (tl.cumsum(every, 0) - every)[None, :]
    return tl.gather(start, digit, 1) + seen - 1


@triton.jit
def tile_of(n, LINES: tl.constexpr, LINE: tl.constexpr):
    """The row of this block, the number of its tile among all, and where its elements are."""
    tiles = tl.cdiv(n, LINES * LINE)
    tile = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    return tile // tiles, tile, tile % tiles * (LINES * LINE), i


@triton.jit
def count_digits(key, inside, counts, tile, SHIFT: tl.constexpr):
    """How many elements of a tile have each digit."""
    digit = tl.where(inside, ((key >> SHIFT) & 255).to(tl.int32), 255)
    found = tl.histogram(tl.reshape(digit, [digit.numel]), 256)
    i = tl.arange(0, 256)
    # Elements past the end were counted as the last digit.
    outside = tl.sum(tl.reshape((~inside).to(tl.int32), [digit.numel]), 0)
    tl.store(counts + tile * 256 + i, found - tl.where(i == 255, outside, 0))


@triton.jit
def sum_counts(counts, before, totals, n, TILE: tl.constexpr, TILES: tl.constexpr,
               DIGITS: tl.constexpr):  # fmt: skip
    """How many elements of earlier tiles of a row have each digit, and of all tiles."""
    tiles = tl.cdiv(n, TILE)
    row = (tl.program_id(0) // (256 // DIGITS)).to(tl.int64)
    digit = tl.program_id(0) % (256 // DIGITS) * DIGITS + tl.arange(0, DIGITS)
    total = tl.zeros([DIGITS], tl.int32)
    for first in range(0, tiles, TILES):
        tile = first + tl.arange(0, TILES)[:, None]
        at = (row * tiles + tile) * 256 + digit[None, :]
        found = tl.load(counts + at, mask=tile < tiles, other=0)
        tl.store(before + at, total[None, :] + tl.cumsum(found, 0) - found, mask=tile < tiles)
        total += tl.sum(found, 0)
    tl.store(totals + row * 256 + digit, total)


@triton.jit
def find_starts(counts, before, totals, row, tile):
    """For each digit, how far elements of a sorted tile move: written over the counts."""
    i = tl.arange(0, 256)
    total, own = tl.load(totals + row * 256 + i), tl.load(counts + tile * 256 + i)
    start = tl.cumsum(total, 0) - total - (tl.cumsum(own, 0) - own)
    tl.store(counts + tile * 256 + i, start + tl.load(before + tile * 256 + i))


@triton.jit
def sorted_tile(key, inside, order, tile, i, SHIFT: tl.constexpr):
    """The elements of a tile in the order of a digit: which, their digits, where in the tile."""
    digit = tl.where(inside, ((key >> SHIFT) & 255).to(tl.int32), 255)
    own = order + tile * i.numel
    tl.store(own + places_by_digit(digit & 15), (i << 8) | digit)
    tl.debug_barrier()
    both = tl.load(own + i)
    digit = both & 255
    return both >> 8, digit, places_by_digit(digit >> 4)
