"""The first few of each row, in Triton.

A block has one chunk of a row, or several rows, in registers. It finds the key of the last element
that is wanted bit by bit, by counting how many keys are below, and writes what is below it, and as
many of those that equal it as are missing, in the order of their places. Long rows are chunks of
which each leaves its first few, until these are one chunk. Those a block sorts.
"""

import triton
import triton.language as tl


@triton.jit
def first_of(key, inside, k, KEY: tl.constexpr, BITS: tl.constexpr):
    """Where the first `k` elements of each row go, in the order of their places; -1: nowhere."""
    key = tl.where(inside, key, tl.zeros([], KEY) - 1)
    limit = tl.zeros([key.shape[0], 1], KEY)
    missing = tl.zeros([key.shape[0], 1], tl.int32) + 1  # 0 where just k elements are below
    bit = tl.full([], 1, KEY) << (BITS - 1)
    while (bit > 0) & (tl.max(tl.max(missing, 1), 0) > 0):
        probe = limit | bit
        below = tl.sum((key < probe).to(tl.int32), 1)[:, None]
        limit = tl.where((missing > 0) & (below <= k), probe, limit)
        missing = tl.where(below == k, 0, missing)
        bit = bit >> 1
    below, equal = key < limit, key == limit
    counted = below.to(tl.int32) | (equal.to(tl.int32) << 16)
    seen = tl.cumsum(counted, 1)
    room = k.to(tl.int32) - tl.sum(below.to(tl.int32), 1)[:, None]
    taken = below | (equal & (seen >> 16 <= room))
    slot = (seen & 0xFFFF) + tl.minimum(seen >> 16, room) - 1
    return tl.where(taken & inside, slot, -1)


@triton.jit
def chunk_of(rows, n, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """The rows of this block, its chunk of them, where the elements are, and which there are."""
    chunks = tl.cdiv(n, CHUNK)
    row = tl.program_id(0) // chunks * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)
    chunk = tl.program_id(0) % chunks
    i = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    return row, chunk, i, (row < rows) & (i < n)
