"""Sorting short rows, in Triton, and what all sorts share.

An element becomes a *key*, an unsigned integer in whose order the elements are to come, and the
*place* it was at. Where both fit into one number, a block sorts these numbers, those of several
rows at once, by a bitonic network. Where they do not, it compares all pairs: the rank of an element
is how many come before it. Of equal keys the one at the earlier place comes first.

`sort` makes kernels of these functions: the text is compiled, nothing imports this module.
Longer rows are sorted in `sort_radix_triton`, and those of which few are wanted in
`sort_select_triton`.
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
def bits_of(key, x, at, mask, KEY: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
            INFINITY: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """The elements of keys, as bits: loaded where keys do not tell (zeros have signs, NaN bits)."""
    sign = tl.full([], 1, KEY) << (BITS - 1)
    highest = (sign - 1) * 2 + 1
    if DESCENDING:
        key = key ^ highest
    found = key
    if KIND == "float":
        vague = (key == sign) | (key == highest)
        found = tl.where(key >= sign, key ^ sign, key ^ highest)
        found = tl.where(vague, tl.load(x + at, mask=mask & vague, other=0).to(KEY), found)
    elif KIND == "int":
        found = key ^ sign
    return found


@triton.jit
def ranks_of(key, inside):
    """How many of the elements inside of a row come before each."""
    i = tl.arange(0, key.shape[0])
    equal = key[None, :] == key[:, None]
    before = (key[None, :] < key[:, None]) | (equal & (i[None, :] < i[:, None]))
    return tl.sum((before & inside[None, :]).to(tl.int32), 1)


@triton.jit
def sorted_run(x, n, RUN: tl.constexpr, KEY: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr,
               INFINITY: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """The row of this block, where its elements are in the row, and where they go."""
    row = tl.program_id(0)
    i = tl.arange(0, RUN)
    found = tl.load(x + row * n + i, mask=i < n, other=0)
    key = key_of(found, KEY, BITS, KIND, INFINITY, DESCENDING)
    return row, i, tl.where(i < n, ranks_of(key, i < n), -1)


@triton.jit
def sorted_rows(x, rows, n, LOG: tl.constexpr, ROWS: tl.constexpr, KEY: tl.constexpr,
                BITS: tl.constexpr, KIND: tl.constexpr, INFINITY: tl.constexpr,
                DESCENDING: tl.constexpr):  # fmt: skip
    """As `sorted_run`, of `ROWS` rows at once; in their order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, 1 << LOG)[None, :]
    inside = (row < rows) & (i < n)
    found = tl.load(x + row * n + i, mask=inside, other=0)
    key = key_of(found, KEY, BITS, KIND, INFINITY, DESCENDING)
    return row, sorted_places(key, inside, LOG, BITS), tl.where(inside, i, -1)


@triton.jit
def sorted_places(key, inside, LOG: tl.constexpr, BITS: tl.constexpr):
    """Where the elements of each row, in their order, have been; those that are not inside last."""
    PAIR: tl.constexpr = tl.int32 if BITS + LOG < 31 else tl.int64
    key = tl.where(inside, key.to(PAIR), tl.full([], 1, PAIR) << BITS)  # behind all others
    both = tl.sort((key << LOG) | tl.arange(0, 1 << LOG)[None, :], 1)
    return both & ((1 << LOG) - 1)


@triton.jit
def sorted_chosen(keys, places, row, rows, k, LOG: tl.constexpr, BITS: tl.constexpr):
    """The ranks and places of rows of `k` elements, which are in the order of their places."""
    i = tl.arange(0, 1 << LOG)[None, :]
    inside = (row < rows) & (i < k)
    key = tl.load(keys + row * k + i, mask=inside, other=0)
    which = sorted_places(key, inside, LOG, BITS)
    rank = tl.where(inside, i, -1)
    return rank, tl.load(places + row * k + which, mask=inside, other=0)


@triton.jit
def sorted_few(keys, places, row, rows, k, MOST: tl.constexpr):
    """As `sorted_chosen`, of one row, by comparing all with each other."""
    i = tl.arange(0, MOST)
    at = tl.sum(tl.sum(row, 1), 0) * k + i  # a block has one row here
    key = tl.load(keys + at, mask=i < k, other=0)
    rank = tl.where(i < k, ranks_of(key, i < k), -1)
    return rank[None, :], tl.load(places + row * k + i[None, :], mask=(i < k)[None, :], other=0)


@triton.jit
def put_run(keys, places, n, row, rank, key, place):
    """Write elements to where they go in a row that is not done yet."""
    tl.store(keys + row * n + rank, key, mask=rank >= 0)
    tl.store(places + row * n + rank, place.to(tl.int32), mask=rank >= 0)


@triton.jit
def put_places(places, n, row, rank, place):
    """Write where elements have been to where they go in a row."""
    tl.store(places + row * n + rank, place.to(tl.int32), mask=rank >= 0)


@triton.jit
def put_result(x, values, positions, n, k, row, rank, place):
    """Write elements and their places to the first `k` of a row."""
    wanted = (rank >= 0) & (rank < k)
    tl.store(values + row * k + rank, tl.load(x + row * n + place, mask=wanted), mask=wanted)
    tl.store(positions + row * k + rank, place.to(tl.int64), mask=wanted)


@triton.jit
def put_sorted(x, values, positions, n, k, row, rank, key, place, KEY: tl.constexpr,
               BITS: tl.constexpr, KIND: tl.constexpr, INFINITY: tl.constexpr,
               DESCENDING: tl.constexpr):  # fmt: skip
    """As `put_result`, of elements whose keys are known."""
    wanted = (rank >= 0) & (rank < k)
    found = bits_of(key, x, row * n + place, wanted, KEY, BITS, KIND, INFINITY, DESCENDING)
    tl.store(values + row * k + rank, found.to(values.dtype.element_ty), mask=wanted)
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
