"""Sorting long rows, in Triton: by 8 bits of their keys at a time, the lowest first.

A block has some tiles of a row. A pass counts, for each block, the elements with each digit; sums
these counts up over the blocks that come before; and moves every element to where the digit begins
in the row, behind those of earlier blocks and of its own that have the digit, too. A row that is
one tile needs no counts. A tile is sorted by a bitonic network, of digits and places in one number.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(n, turn, TILE: tl.constexpr, TURNS: tl.constexpr):
    """The row of this block, its number among all, where its tile begins, and the elements."""
    blocks = tl.cdiv(n, TILE * TURNS)
    block = tl.program_id(0).to(tl.int64)
    return block // blocks, block, (block % blocks * TURNS + turn) * TILE, tl.arange(0, TILE)


@triton.jit
def digit_of(key, inside):
    """The digits of elements; the last one past the end of a row, where they come last."""
    return tl.where(inside, (key & 255).to(tl.int32), 255)


@triton.jit
def turned(key, BITS: tl.constexpr):
    """A key with its lowest bits behind its highest: the next digit becomes the lowest."""
    return (key >> BITS) | (key << (key.dtype.primitive_bitwidth - BITS))


@triton.jit
def counted(digit):
    """How many elements of a tile have each digit."""
    return tl.histogram(digit, 256)


@triton.jit
def put_counts(counts, found, block, start, n, TILE: tl.constexpr):
    """Write what a block has counted, but elements past the end, which count as the last digit."""
    i = tl.arange(0, 256)
    outside = tl.minimum(tl.maximum(start + TILE - n, 0), TILE).to(tl.int32)
    tl.store(counts + block * 256 + i, found - tl.where(i == 255, outside, 0))


@triton.jit
def sum_counts(counts, totals, n, TILE: tl.constexpr, BLOCKS: tl.constexpr, DIGITS: tl.constexpr):
    """For each block of a row, how many elements of earlier ones have each digit; and of all."""
    blocks = tl.cdiv(n, TILE)
    row = (tl.program_id(0) // (256 // DIGITS)).to(tl.int64)
    digit = tl.program_id(0) % (256 // DIGITS) * DIGITS + tl.arange(0, DIGITS)
    total = tl.zeros([DIGITS], tl.int32)
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)[:, None]
        at = (row * blocks + block) * 256 + digit[None, :]
        found = tl.load(counts + at, mask=block < blocks, other=0)
        tl.store(counts + at, total[None, :] + tl.cumsum(found, 0) - found, mask=block < blocks)
        total += tl.sum(found, 0)
    tl.store(totals + row * 256 + digit, total)


@triton.jit
def starts_of(counts, totals, row, block):
    """Where in the row the elements of a block with each digit begin."""
    i = tl.arange(0, 256)
    total = tl.load(totals + row * 256 + i)
    return tl.cumsum(total, 0) - total + tl.load(counts + block * 256 + i)


@triton.jit
def sorted_digits(digit, i):
    """The digits of a tile in order, and which elements they are of; stable."""
    SIZE: tl.constexpr = digit.numel
    both = tl.sort(digit * SIZE + i)
    return both // SIZE, both % SIZE


@triton.jit
def sorted_ranks(digit, starts, found):
    """Where the elements of a tile go that are in order."""
    before = tl.cumsum(found, 0) - found
    return tl.gather(starts - before, digit, 0) + tl.arange(0, digit.numel)


@triton.jit
def paired(key, place):
    """A key and a place in one number."""
    return (key.to(tl.uint64) << 32) | place.to(tl.uint64)


@triton.jit
def key_in(pair):
    """The key of a pair."""
    return (pair >> 32).to(tl.uint32)


@triton.jit
def place_in(pair):
    """The place of a pair."""
    return (pair & 0xFFFFFFFF).to(tl.int32)
