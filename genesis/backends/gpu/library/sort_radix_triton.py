"""Sorting long rows, in Triton: by 8 bits of their keys at a time, the lowest first.

A block has some tiles of a row. A pass counts, for each block, the elements with each digit; sums
these counts up over the blocks that come before; and moves every element to where the digit begins
in the row, behind those of earlier blocks and of its own that have the digit, too. A row that is
one tile needs no counts.

Within a tile, elements are brought into the order of the higher half of their digits, through
memory that is the block's own, so that those that stay together are stored together. How many
elements of a line have each of 16 values is counted by the bytes of two numbers: one scan counts
all of them.
"""

import triton
import triton.language as tl


@triton.jit
def both_sums(a, b, c, d):
    """Two pairs of numbers added up."""
    return a + c, b + d


@triton.jit
def places_by_digit(digit, ORDERED: tl.constexpr):
    """How many earlier elements have the same digit of 4 bits; if `ORDERED`, and how many a lower.

    Lines have at most 255 elements.
    """
    shift = ((digit & 7) * 8).to(tl.int64)
    one = tl.full([], 1, tl.int64) << shift
    low = tl.where(digit < 8, one, 0)
    high = tl.where(digit < 8, 0, one)
    below, above = tl.associative_scan((low, high), 1, both_sums)
    seen = ((tl.where(digit < 8, below, above) >> shift) & 255).to(tl.int32)
    value = tl.arange(0, 16)[None, :]
    lines = tl.where(value < 8, tl.sum(low, 1)[:, None], tl.sum(high, 1)[:, None])
    lines = ((lines >> ((value & 7) * 8).to(tl.int64)) & 255).to(tl.int32)
    start = tl.cumsum(lines, 0) - lines
    if ORDERED:
        every = tl.sum(lines, 0)
        start += (tl.cumsum(every, 0) - every)[None, :]
    return tl.gather(start, digit, 1) + seen - 1


@triton.jit
def tile_of(n, turn, LINES: tl.constexpr, LINE: tl.constexpr, TURNS: tl.constexpr):
    """The row of this block, its number among all, where its tile begins, and the elements."""
    blocks = tl.cdiv(n, LINES * LINE * TURNS)
    block = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    return block // blocks, block, (block % blocks * TURNS + turn) * (LINES * LINE), i


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
    return tl.histogram(tl.reshape(digit, [digit.numel]), 256)


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
def ranks_in_row(digit, starts, found):
    """Where the elements of a tile go that are in the order of the higher halves of digits."""
    several = tl.reshape(found, [16, 16])
    others = tl.reshape(tl.cumsum(several, 0) - several, [256])  # with the same lower half
    begin = tl.gather(starts - others, tl.reshape(digit, [digit.numel]), 0)
    return tl.reshape(begin, digit.shape) + places_by_digit(digit & 15, False)


@triton.jit
def sorted_digits(digit, i):
    """The digits of a tile in order, and which elements they are of; stable."""
    SIZE: tl.constexpr = digit.numel
    both = tl.sort(tl.reshape(digit * SIZE + i, [SIZE]))
    return both // SIZE, both % SIZE


@triton.jit
def sorted_ranks(digit, starts, found):
    """Where the elements of a tile go that are in order."""
    before = tl.cumsum(found, 0) - found
    return tl.gather(starts - before, digit, 0) + tl.arange(0, digit.numel)


@triton.jit
def through_memory(own, at, value, i, left):
    """The first values of a tile in another order, by way of memory that the block owns."""
    tl.debug_barrier()  # whatever was there has been read
    tl.store(own + at, value, mask=at < left)
    tl.debug_barrier()
    return tl.load(own + i, mask=i < left, other=0)


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
