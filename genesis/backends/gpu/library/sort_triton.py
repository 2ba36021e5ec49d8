"""Sorting rows, in Triton: runs that a block sorts, then merged, some at a time.

An element becomes a *key*, an unsigned integer in whose order the elements are to come, and the
*place* it was at. Where both fit into one number, a block sorts these numbers, those of several
short rows at once, by a bitonic network. Where they do not, it compares all pairs of a shorter run:
the rank of an element is how many come before it. In a merge, an element's rank in its own run is
known, and a binary search tells how many elements of each other run come before it: the sum is
where it goes. Neighbours look for neighbouring keys: searching for the first and the last of a
block narrows down where all are, and the searches of a warp read the same few lines. Of equal keys
the one in the earlier run comes first, which makes sorting stable and every place be written once.

`sort` makes kernels of these functions: the text is compiled, nothing imports this module.
Where only the first `k` of a row are wanted, none but the first `k` of a run are looked at.
"""

import triton
import triton.language as tl


@triton.jit
def key_of(x, KEY: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, INFINITY: tl.constexpr,
           DESCENDING: tl.constexpr):  # fmt: skip
    """The keys of elements, which are given as their bits."""
    x = x.to(KEY)
    sign = tl.full([], 1, KEY) << (BITS - 1)
    highest = (sign - 1) * 2 + 1
    key = x
    if KIND == "float":
        magnitude = x & (sign - 1)
        # Negative numbers in reverse below the others; -0.0 as 0.0; NaN above all.
        key = tl.where(x >= sign, x ^ highest, x | sign)
        key = tl.where(magnitude == 0, sign, key)
        key = tl.where(magnitude > tl.full([], INFINITY, KEY), highest, key)
    elif KIND == "int":
        key = x ^ sign
    return key ^ highest if DESCENDING else key


@triton.jit
def sorted_run(x, n, RUN: tl.constexpr, KEY: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
               INFINITY: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """The row of this block, where its elements are in the row, their keys, and where they go."""
    runs = tl.cdiv(n, RUN)
    row = tl.program_id(0) // runs
    start = tl.program_id(0) % runs * RUN
    i = tl.arange(0, RUN)
    inside = start + i < n
    found = tl.load(x + row * n + start + i, mask=inside, other=0)
    key = key_of(found, KEY, BITS, KIND, INFINITY, DESCENDING)
    equal = key[None, :] == key[:, None]
    before = (key[None, :] < key[:, None]) | (equal & (i[None, :] < i[:, None]))
    rank = tl.sum((before & inside[None, :]).to(tl.int32), 1)
    return row, start + i, key, tl.where(inside, start + rank, -1)


@triton.jit
def sorted_rows(x, rows, n, LOG: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
                KIND: tl.constexpr, INFINITY: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """As `sorted_run`, of `ROWS` rows at once if they are no longer than a run; in their order."""
    runs = tl.cdiv(n, 1 << LOG)
    row = tl.program_id(0) // runs * ROWS + tl.arange(0, ROWS)[:, None]
    start = tl.program_id(0) % runs << LOG
    i = tl.arange(0, 1 << LOG)[None, :]
    inside = (row < rows) & (start + i < n)
    found = tl.load(x + row * n + start + i, mask=inside, other=0)
    key = key_of(found, tl.uint32, BITS, KIND, INFINITY, DESCENDING)
    PAIR: tl.constexpr = tl.int32 if BITS + LOG < 31 else tl.int64
    key = tl.where(inside, key.to(PAIR), tl.full([], 1, PAIR) << BITS)  # behind all others
    both = tl.sort((key << LOG) | i, 1)
    place = start + (both & ((1 << LOG) - 1))
    return row, place, (both >> LOG).to(tl.uint32), tl.where(inside, start + i, -1)


@triton.jit
def found_before(runs, low, high, key, earlier):
    """How many elements of sorted runs come before keys, where that is from `low` to `high`.

    Of equal keys, those of the runs that are `earlier` come first.
    """
    size = tl.max(tl.max(high - low, 1), 0)
    while size > 0:
        middle = (low + high) // 2
        probe = tl.load(runs + middle, mask=low < high, other=0)
        before = (probe < key) | ((probe == key) & earlier)
        high = tl.where(before, high, middle)
        low = tl.where(before & (low < high), middle + 1, low)
        size = size // 2
    return low


@triton.jit
def merged_run(keys, n, k, LOG: tl.constexpr, WAYS: tl.constexpr, BLOCK: tl.constexpr):
    """The row of this block, where its elements are now, and where they go when runs are merged.

    `WAYS` runs of 2 ** `LOG` become one; the elements of a block are in one run. An element that
    comes after `k` others goes nowhere: -1.
    """
    blocks = tl.cdiv(n, BLOCK)
    row = tl.program_id(0) // blocks
    start = tl.program_id(0) % blocks * BLOCK
    group = start // (WAYS << LOG) * (WAYS << LOG)
    own = (start - group) >> LOG
    first = start - group - (own << LOG)
    at = start + tl.arange(0, BLOCK)
    rank = (first + tl.arange(0, BLOCK)).to(tl.int32)
    if first < k:
        way = tl.arange(0, WAYS)[:, None]
        begin = group + (way.to(tl.int64) << LOG)
        length = tl.minimum(tl.minimum(n - begin, k), 1 << LOG)
        length = tl.where(way == own, 0, tl.maximum(length, 0)).to(tl.int32)
        mine = keys + row * n
        runs = mine + begin
        # All that the block looks for lies between what its first and its last element find.
        end = tl.minimum(start + tl.minimum(BLOCK, k - first), n) - 1
        low = found_before(runs, tl.zeros_like(length), length, tl.load(mine + start), way < own)
        high = found_before(runs, low, length, tl.load(mine + end), way < own)
        key = tl.load(mine + at, mask=at < n, other=0)[None, :]
        each = tl.zeros([WAYS, BLOCK], tl.int32)
        rank += tl.sum(found_before(runs, each + low, each + high, key, way < own), 0)
    return row, at, tl.where((at < n) & (rank < k), group + rank, -1)


@triton.jit
def put_run(keys, places, n, row, rank, key, place):
    """Write elements to where they go in a row that is not done yet."""
    tl.store(keys + row * n + rank, key, mask=rank >= 0)
    tl.store(places + row * n + rank, place.to(tl.int32), mask=rank >= 0)


@triton.jit
def put_result(x, values, positions, n, k, row, rank, place):
    """Write elements and their places to the first `k` of a row."""
    wanted = (rank >= 0) & (rank < k)
    tl.store(values + row * k + rank, tl.load(x + row * n + place, mask=wanted), mask=wanted)
    tl.store(positions + row * k + rank, place.to(tl.int64), mask=wanted)


@triton.jit
def put_selected(x, ranks, values, positions, places, n, m, BLOCK: tl.constexpr):
    """Write the elements of sorted rows that have the ranks asked for, `m` in a row."""
    blocks = tl.cdiv(m, BLOCK)
    row = tl.program_id(0) // blocks
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    rank = tl.load(ranks + row * m + at, mask=at < m, other=0)
    rank = tl.minimum(tl.maximum(rank, 0), n - 1)
    place = tl.load(places + row * n + rank, mask=at < m, other=0)
    tl.store(values + row * m + at, tl.load(x + row * n + place, mask=at < m), mask=at < m)
    tl.store(positions + row * m + at, place.to(tl.int64), mask=at < m)
