"""Single elements of a sorted row, without sorting the row.

A short row is sorted all the same. The items of a long one are told apart by the digits of their
keys, from the first to the last. Of each digit only those items are kept that have the same one as
the element that is looked for; digits that all items left have in common need no look. What is left
in the end are equal elements, in their order.
"""

from __future__ import annotations

from functools import lru_cache

from genesis.backends.base import Binary, NativeCall
from genesis.backends.cpu.library.merge_sort import RUN, SLACK, merge_items
from genesis.backends.cpu.library.phase_builder import Code, PhaseBuilder, TypedMemory
from genesis.backends.cpu.library.sort import BUCKETS, LONGEST, SHORT, Items
from genesis.ir.dtype import DType
from genesis.ir.node import LibraryCall
from genesis.ir.size import bounds, product

FEW = 128  # elements of the rows that are sorted


def native_select(call: LibraryCall) -> NativeCall | None:
    """Elements of each row by their places in its order, and their positions."""
    (dtype, shape), (_, ranks) = call.operands
    rows, n, m = product(shape[:-1]), shape[-1], ranks[-1]
    longest = bounds(n)[1]
    if dtype.is_complex or longest > LONGEST:
        return None
    capacity = 1 << max(4, (longest - 1).bit_length())
    if capacity <= FEW:
        return NativeCall(sort_few(dtype, capacity), (), (rows, n, m))
    if longest <= SHORT:
        return NativeCall(select_ranks(dtype, capacity), (), (rows, m, n))
    items = rows * m * n * (8 * Items(dtype, False).words)
    return NativeCall(select_ranks(dtype, None), (items,), (rows, m, n))


# Arguments: elements, ranks, selected elements, positions, then scratch memory and numbers.
_X, _RANKS, _VALUES, _POSITIONS = range(4)


@lru_cache(maxsize=64)
def sort_few(dtype: DType, capacity: int) -> Binary:
    """Rows of at most `capacity` elements. Numbers: rows, length, ranks for each row."""
    items = Items(dtype, False)
    rows_slot, n_slot, m_slot = range(4, 7)
    library = PhaseBuilder(f"select_few_{dtype.name}")
    nbytes = (capacity + SLACK) * 8 * items.words
    with library.phase(rows_slot) as code:
        n, m = code.number(n_slot), code.number(m_slot)
        x, values = code.array(_X, items.element), code.array(_VALUES, items.element)
        ranks, positions = code.array(_RANKS, "i64"), code.array(_POSITIONS, "i64")
        made, other = code.scratch(0, "i64"), code.scratch(nbytes, "i64")
        ends = code.scratch(2 * nbytes, "i64")
        with code.loop(code.begin, code.end) as row:
            mine = x.at(row.index * n)
            ends[0] = made.pointer.convert("ptrtoint", "i64")
            ends[1] = other.pointer.convert("ptrtoint", "i64")
            with code.loop(0, n) as each:
                items.write(made, each.index, items.key(mine[each.index]), each.index)
            merge_items(code, items, n, ends.at(8), ends)
            done = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
            with code.loop(0, m) as each:
                place = row.index * m + each.index
                rank = ranks[place].intrinsic("smin", n - 1).intrinsic("smax", 0)
                position = items.position(done, rank)
                positions[place] = position
                values[place] = mine[position]
    return library.binary(2 * nbytes + 64 + (RUN + SLACK) * 8)


@lru_cache(maxsize=256)
def select_ranks(dtype: DType, capacity: int | None) -> Binary:
    """Numbers: rows, ranks for each, length. Without a capacity, scratch memory for all items."""
    items = Items(dtype, False)
    rows_slot, m_slot, n_slot = (slot + (capacity is None) for slot in range(4, 7))
    library = PhaseBuilder(f"select_{dtype.name}")
    nbytes = 0 if capacity is None else capacity * 8 * items.words
    with library.phase(rows_slot, m_slot) as code:
        n, m = code.number(n_slot), code.number(m_slot)
        x, values = code.array(_X, items.element), code.array(_VALUES, items.element)
        ranks, positions = code.array(_RANKS, "i64"), code.array(_POSITIONS, "i64")
        counts = code.scratch(nbytes, "i64")
        state = code.scratch(nbytes + BUCKETS * 8, "i64")  # items left, rank, bits that differ
        with code.loop(code.begin, code.end) as unit:
            mine = x.at(unit.index.binary("udiv", m) * n)
            if capacity is None:
                left = code.array(4, "i64").at(unit.index * n * items.words)
            else:
                left = code.scratch(0, "i64")
            every, some = code.const(-1), code.const(0)
            with code.loop(0, n, every, some) as each:
                items.write(left, each.index, items.key(mine[each.index]), each.index)
                head = items.head(left, each.index)
                every, some = each.carried
                each.next(every & head, some | head)
            state[0] = n
            state[1] = ranks[unit.index].intrinsic("smin", n - 1).intrinsic("smax", 0)
            state[2] = every ^ some
            for number in reversed(range(items.passes)):
                with code.out.guard(items.digit_of(state[2], number).differs(0)):
                    keep_digit(code, items, left, number, counts, state)
            position = items.position(left, state[1])
            positions[unit.index] = position
            values[unit.index] = mine[position]
    return library.binary(nbytes + BUCKETS * 8 + 64)


def keep_digit(
    code: Code,
    items: Items,
    left: TypedMemory,
    number: int,
    counts: TypedMemory,
    state: TypedMemory,
) -> None:
    """Keep the items that have the same digit as the one looked for."""
    with code.loop(0, BUCKETS) as each:
        counts[each.index] = 0
    with code.loop(0, state[0]) as each:
        digit = items.digit(left, each.index, number)
        counts[digit] = counts[digit] + 1
    rank, zero = state[1], code.const(0)
    with code.repeat(zero, zero) as search:
        bucket, before = search.carried
        through = before + counts[bucket]
        search.leave(through > rank)
        search.next(bucket + 1, through)
    state[1] = rank - before
    every, some = code.const(-1), zero
    with code.loop(0, state[0], zero, every, some) as each:
        found, every, some = each.carried
        head = items.head(left, each.index)
        same = items.digit_of(head, number).equal(bucket)
        # Written in any case, and overwritten if it was not the same: no branch to predict.
        items.move(left, each.index, head, left, found)
        each.next(
            found + same.convert("zext", "i64"),
            every & same.select(head, -1),
            some | same.select(head, 0),
        )
    state[0] = found
    state[2] = every ^ some
