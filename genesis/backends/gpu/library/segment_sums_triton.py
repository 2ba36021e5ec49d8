"""Sums of rows by where they go, in Triton: rows that go to the same place follow each other.

`find_starts` looks up where each row of the result finds its first update, by binary search.
`sum_chunks` adds up those chunks of updates that all go to the same row, so that a row with very
many updates is no long loop, and `sum_rows` writes every row of the result once: what comes before
its first whole chunk, the sums of whole chunks, and the rest; most rows of a large table get no
update, and zeros for several of them are written at once. The order of every sum is fixed.

`segment_sums` makes kernels of these functions: the text is compiled, nothing imports this module.
"""

import triton
import triton.language as tl


@triton.jit
def find_starts(positions, starts, n, rows, BLOCK: tl.constexpr):
    """For each row, and past the last, how many updates go to earlier ones."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + n.to(tl.int32)
    size = n
    while size > 0:
        middle = (low + high) // 2
        probe = tl.load(positions + middle, mask=low < high, other=0)
        before = probe < row
        high = tl.where(before, high, middle)
        low = tl.where(before & (low < high), middle + 1, low)
        size = size // 2
    tl.store(starts + row, low, mask=row <= rows)


@triton.jit
def gathered(places, updates, total, start, end, columns, c, ROWS: tl.constexpr):
    """A total, and the updates from one to another in the order of their rows."""
    for first in range(start, end, ROWS):
        which = first + tl.arange(0, ROWS)
        place = tl.load(places + which, mask=which < end, other=0)
        inside = (which < end)[:, None] & (columns < c)[None, :]
        found = tl.load(updates + place[:, None] * c + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(found.to(total.dtype), 0)
    return total


@triton.jit
def sum_chunks(positions, places, updates, partial, c, CHUNK: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr, TOTAL: tl.constexpr):  # fmt: skip
    """The sums of whole chunks of updates that go to one row."""
    blocks = tl.cdiv(c, COLUMNS)
    chunk = (tl.program_id(0) // blocks).to(tl.int32)
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    start = chunk * CHUNK
    if tl.load(positions + start) == tl.load(positions + start + CHUNK - 1):
        total = tl.zeros([COLUMNS], TOTAL)
        total = gathered(places, updates, total, start, start + CHUNK, columns, c, ROWS)
        tl.store(partial + chunk.to(tl.int64) * c + columns, total, mask=columns < c)


@triton.jit
def summed(places, updates, partial, start, end, columns, c, CHUNK: tl.constexpr,
           ROWS: tl.constexpr, TOTAL: tl.constexpr):  # fmt: skip
    """The sum of the updates from one to another, which all go to the same row."""
    first, last = (start + CHUNK - 1) // CHUNK, end // CHUNK
    whole = first < last
    total = tl.zeros([columns.shape[0]], TOTAL)
    before = tl.where(whole, first * CHUNK, end)
    total = gathered(places, updates, total, start, before, columns, c, ROWS)
    for chunk in range(first, last, ROWS):
        which = chunk + tl.arange(0, ROWS)
        inside = (which < last)[:, None] & (columns < c)[None, :]
        at = which.to(tl.int64)[:, None] * c + columns[None, :]
        total += tl.sum(tl.load(partial + at, mask=inside, other=0.0), 0)
    after = tl.where(whole, last * CHUNK, end)
    return gathered(places, updates, total, after, end, columns, c, ROWS)


@triton.jit
def sum_rows(places, updates, result, starts, partial, rows, c, CHUNK: tl.constexpr,
             ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOTAL: tl.constexpr,
             TOGETHER: tl.constexpr):  # fmt: skip
    """Some rows of the result: zeros at once, if none of them has an update."""
    blocks = tl.cdiv(c, COLUMNS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * TOGETHER
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    end = tl.minimum(row + TOGETHER, rows)
    if tl.load(starts + row) == tl.load(starts + end):
        which = row + tl.arange(0, TOGETHER)
        inside = (which < end)[:, None] & (columns < c)[None, :]
        nothing = tl.zeros([TOGETHER, COLUMNS], result.dtype.element_ty)
        tl.store(result + which[:, None] * c + columns[None, :], nothing, mask=inside)
    else:
        for each in range(row, end):
            start, stop = tl.load(starts + each), tl.load(starts + each + 1)
            total = summed(places, updates, partial, start, stop, columns, c, CHUNK, ROWS, TOTAL)
            at = result + each * c + columns
            tl.store(at, total.to(result.dtype.element_ty), mask=columns < c)
