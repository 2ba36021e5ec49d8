"""Sorting rows: a radix sort that goes through the digits from the last to the first.

Every element becomes an *item*: a key, an unsigned integer in whose order the elements are to
come, and the position it was at. A pass distributes items by one digit of their keys and keeps the
order of equal digits; after the last digit they are sorted, and equal elements are in the order
they had. Short rows are sorted one by one in a thread's own memory, those of few items by merging
(`merge`), which spares them the counting. Long rows are cut into blocks
of fixed length: count the digits in each block, work out where each block's items of each digit
begin, distribute; so the result does not depend on who does which block.
"""

from __future__ import annotations

from functools import lru_cache

from genesis.backends.base import Binary, NativeCall
from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.library.merge_sort import MANY, SLACK, merge_items
from genesis.backends.cpu.library.phase_builder import Code, PhaseBuilder, TypedMemory
from genesis.ir.dtype import DType
from genesis.ir.node import LibraryCall
from genesis.ir.size import Dim, bounds, product

DIGIT = 8  # bits: 256 places to write to at a time stay in the first-level cache
BUCKETS = 1 << DIGIT
SHORT = 1 << 16  # rows up to here are sorted in a thread's own memory
BLOCK = 1 << 16
LONGEST = (1 << 32) - SLACK  # of the rows whose positions, and what fills them up, have 32 bits


class Items:
    """How items of a dtype lie in memory, and what their keys are.

    A key of up to 32 bits shares a word with the position. A wider one has a word to itself.
    """

    def __init__(self, dtype: DType, descending: bool) -> None:
        self.dtype = dtype
        self.descending = descending
        self.bits = max(8, dtype.bits)
        self.element = f"i{self.bits}"
        self.words = 2 if self.bits == 64 else 1
        self.passes = self.bits // DIGIT

    def key(self, x: LLVMValue) -> LLVMValue:
        """The unsigned integer for an element's bits, as i64."""
        key = self.keys(x)
        return key if self.bits == 64 else key.convert("zext", "i64")

    def keys(self, x: LLVMValue) -> LLVMValue:
        """The unsigned integers for the bits of an element or a vector of them."""
        bits = self.bits
        if self.dtype.is_float:
            zero, sign = x.like(0), x.like(-(1 << (bits - 1)))
            magnitude = x & ((1 << (bits - 1)) - 1)
            infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}
            limit = infinity.get(self.dtype.name, 0x7FF0000000000000)
            # Negative numbers in reverse below the others; -0.0 as 0.0; NaN above all.
            mask = (x >> (bits - 1)) | sign
            x = magnitude.equal(0).select(zero ^ sign, x ^ mask)
            x = (magnitude > limit).select(x.like(-1), x)
        elif self.dtype.kind == "int":
            x = x ^ (-(1 << (bits - 1)))
        return ~x if self.descending else x

    def element_of(self, head: LLVMValue) -> LLVMValue | None:
        """The element of an item's first word, unless several have that key: zeros, and NaN."""
        if self.dtype.is_float:
            return None
        key = self.key_of(head)
        key = key if self.bits == 64 else key.convert("trunc", self.element)
        key = ~key if self.descending else key
        return key ^ (-(1 << (self.bits - 1))) if self.dtype.kind == "int" else key

    def write(self, items: TypedMemory, i: LLVMValue, key: LLVMValue, position: LLVMValue) -> None:
        """Make item i."""
        if self.words == 2:
            items[i * 2] = key
            items[i * 2 + 1] = position
        else:
            items[i] = (key << 32) | position

    def digit(self, items: TypedMemory, i: LLVMValue, number: int) -> LLVMValue:
        """A digit of item i, counted from the last."""
        return self.digit_of(self.head(items, i), number)

    def head(self, items: TypedMemory, i: LLVMValue) -> LLVMValue:
        """The word of item i that has its key."""
        return items[i * self.words]

    def key_of(self, head: LLVMValue) -> LLVMValue:
        """The key in an item's first word."""
        return head if self.words == 2 else head.binary("lshr", 32)

    def digit_of(self, head: LLVMValue, number: int) -> LLVMValue:
        """A digit of the key in an item's first word."""
        shift = number * DIGIT + (0 if self.words == 2 else 32)
        return (head.binary("lshr", shift) if shift else head) & (BUCKETS - 1)

    def move(
        self, source: TypedMemory, i: LLVMValue, head: LLVMValue, target: TypedMemory, j: LLVMValue
    ) -> None:
        """Put item i, whose first word is known, at place j."""
        target[j * self.words] = head
        if self.words == 2:
            target[j * 2 + 1] = source[i * 2 + 1]

    def position(self, items: TypedMemory, i: LLVMValue) -> LLVMValue:
        """Where the element of item i was."""
        return items[i * 2 + 1] if self.words == 2 else items[i] & 0xFFFFFFFF


def native_sort(call: LibraryCall) -> NativeCall | None:
    """Sorted elements and their positions, along the last axis."""
    ((dtype, shape),) = call.operands
    (descending,) = call.options
    rows, n = product(shape[:-1]), shape[-1]
    longest = bounds(n)[1]
    if dtype.is_complex or longest > LONGEST:
        return None
    if longest <= SHORT:
        capacity = 1 << max(4, (longest - 1).bit_length())
        return NativeCall(short_rows(dtype, descending, capacity), (), (rows, n))
    blocks: Dim = (n + (BLOCK - 1)) // BLOCK
    made = Items(dtype, descending)
    items = rows * n * (8 * made.words)
    counts = rows * blocks * (BUCKETS * 8)
    sides = rows * (8 * (made.passes + 1))
    return NativeCall(
        long_rows(dtype, descending), (items, items, counts, sides), (rows, n, blocks)
    )


# Arguments: elements, sorted elements, positions, then scratch memory and numbers.
_X, _SORTED, _POSITIONS = range(3)


@lru_cache(maxsize=256)
def short_rows(dtype: DType, descending: bool, capacity: int) -> Binary:
    """Rows of at most `capacity` elements, each sorted by one thread. Numbers: rows, length."""
    items = Items(dtype, descending)
    rows_slot, n_slot = 3, 4
    library = PhaseBuilder(f"sort_{dtype.name}")
    nbytes = (capacity + SLACK) * 8 * items.words
    with library.phase(rows_slot) as code:
        n = code.number(n_slot)
        x, sorted_ = code.array(_X, items.element), code.array(_SORTED, items.element)
        positions = code.array(_POSITIONS, "i64")
        with code.loop(code.begin, code.end) as row:
            start = row.index * n
            mine = x.at(start)
            counts = code.scratch(2 * nbytes, "i64")
            ends = code.scratch(2 * nbytes + items.passes * BUCKETS * 8, "i64")
            ends[0] = code.scratch(0, "i64").pointer.convert("ptrtoint", "i64")
            ends[1] = code.scratch(nbytes, "i64").pointer.convert("ptrtoint", "i64")
            made = code.scratch(0, "i64")
            with code.loop(0, n) as each:
                items.write(made, each.index, items.key(mine[each.index]), each.index)
            sort_items(code, items, n, capacity, counts, ends)
            done = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
            with code.loop(0, n) as each:
                i = each.index
                position = items.position(done, i)
                positions[start + i] = position
                sorted_[start + i] = mine[position]
    return library.binary(2 * nbytes + items.passes * BUCKETS * 8 + 64)


def sort_items(
    code: Code, items: Items, n: LLVMValue, most: int, counts: TypedMemory, ends: TypedMemory
) -> None:
    """Sort n items, at most `most`. `ends` holds their address, and that of as much free memory.

    Which of the two has the result is the first of `ends` afterwards. `counts` is memory for how
    often every digit has each value.
    """
    if most <= MANY:
        merge_items(code, items, n, counts, ends)
        return
    code.choose(
        n <= MANY,
        lambda: merge_items(code, items, n, counts, ends),
        lambda: distribute_items(code, items, n, counts, ends),
    )


def distribute_items(
    code: Code, items: Items, n: LLVMValue, counts: TypedMemory, ends: TypedMemory
) -> None:
    """Sort many items, digit by digit. A digit that is the same everywhere needs no pass."""
    with code.loop(0, items.passes * BUCKETS) as each:
        counts[each.index] = 0
    made = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
    with code.loop(0, n) as each:
        head = items.head(made, each.index)
        for number in range(items.passes):
            count = counts.at(number * BUCKETS)
            digit = items.digit_of(head, number)
            count[digit] = count[digit] + 1
    for number in range(items.passes):
        count = counts.at(number * BUCKETS)
        source = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
        target = TypedMemory(ends[1].convert("inttoptr", "ptr"), "i64")
        first = items.digit(source, code.const(0), number)
        with code.out.guard(count[first].differs(n)):
            with code.loop(0, BUCKETS, code.const(0)) as bucket:
                (before,) = bucket.carried
                here = count[bucket.index]
                count[bucket.index] = before
                bucket.next(before + here)
            with code.loop(0, n) as each:
                head = items.head(source, each.index)
                digit = items.digit_of(head, number)
                place = count[digit]
                count[digit] = place + 1
                items.move(source, each.index, head, target, place)
            swapped = ends[0]
            ends[0] = ends[1]
            ends[1] = swapped


@lru_cache(maxsize=64)
def long_rows(dtype: DType, descending: bool) -> Binary:
    """Rows of any length. Scratch: twice items, counts, sides. Numbers: rows, length, blocks.

    The items of a row change between two sides with every pass. Which digits differ is known before
    the first pass, so which side they are on at each pass is, too: *sides* are the addresses.
    """
    items = Items(dtype, descending)
    first_slot, second_slot, counts_slot, sides_slot, rows_slot, n_slot, blocks_slot = range(3, 10)
    library = PhaseBuilder(f"sort_long_{dtype.name}")

    def block(code: Code, number: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue, LLVMValue]:
        """The row of a block, where the row begins, and where in it the block begins and ends."""
        n, blocks = code.number(n_slot), code.number(blocks_slot)
        row = number.binary("udiv", blocks)
        begin = (number - row * blocks) * BLOCK
        end = (begin + BLOCK).intrinsic("smin", n)
        return row, row * n, begin, end

    def sides(code: Code, row: LLVMValue) -> TypedMemory:
        return code.array(sides_slot, "i64").at(row * (items.passes + 1))

    with library.phase(rows_slot, blocks_slot) as code:
        x, made = code.array(_X, items.element), code.array(first_slot, "i64")
        with code.loop(code.begin, code.end) as grid:
            _, start, begin, end = block(code, grid.index)
            mine = made.at(start * items.words)
            with code.loop(begin, end, code.const(-1), code.const(0)) as each:
                items.write(mine, each.index, items.key(x[start + each.index]), each.index)
                every, some = each.carried
                head = items.head(mine, each.index)
                each.next(every & head, some | head)
            # Memory for counts is not needed yet.
            found = code.array(counts_slot, "i64").at(grid.index * BUCKETS)
            found[0] = every
            found[1] = some
    with library.phase(rows_slot) as code:
        blocks, n = code.number(blocks_slot), code.number(n_slot)
        with code.loop(code.begin, code.end) as grid:
            found = code.array(counts_slot, "i64").at(grid.index * blocks * BUCKETS)
            with code.loop(0, blocks, code.const(-1), code.const(0)) as each:
                every, some = each.carried
                mine = found.at(each.index * BUCKETS)
                each.next(every & mine[0], some | mine[1])
            differs = every ^ some
            offset = grid.index * n * (8 * items.words)
            here, there = (code.number(slot) + offset for slot in (first_slot, second_slot))
            places = sides(code, grid.index)
            places[0] = here
            for number in range(items.passes):
                moves = items.digit_of(differs, number).differs(0)
                here, there = moves.select(there, here), moves.select(here, there)
                places[number + 1] = here
    for number in range(items.passes):
        with library.phase(rows_slot, blocks_slot) as code:
            counts = code.array(counts_slot, "i64")
            with code.loop(code.begin, code.end) as grid:
                row, _, begin, end = block(code, grid.index)
                places = sides(code, row)
                with code.out.guard(places[number].differs(places[number + 1])):
                    count = counts.at(grid.index * BUCKETS)
                    with code.loop(0, BUCKETS) as each:
                        count[each.index] = 0
                    mine = TypedMemory(places[number].convert("inttoptr", "ptr"), "i64")
                    with code.loop(begin, end) as each:
                        digit = items.digit(mine, each.index, number)
                        count[digit] = count[digit] + 1
        with library.phase(rows_slot) as code:
            counts, blocks = code.array(counts_slot, "i64"), code.number(blocks_slot)
            with code.loop(code.begin, code.end) as grid:
                places = sides(code, grid.index)
                with code.out.guard(places[number].differs(places[number + 1])):
                    mine = counts.at(grid.index * blocks * BUCKETS)
                    with code.loop(0, BUCKETS, code.const(0)) as bucket:
                        with code.loop(0, blocks, bucket.carried[0]) as each:
                            (before,) = each.carried
                            place = each.index * BUCKETS + bucket.index
                            here = mine[place]
                            mine[place] = before
                            each.next(before + here)
                        bucket.next(before)
        with library.phase(rows_slot, blocks_slot) as code:
            counts = code.array(counts_slot, "i64")
            with code.loop(code.begin, code.end) as grid:
                row, _, begin, end = block(code, grid.index)
                places = sides(code, row)
                with code.out.guard(places[number].differs(places[number + 1])):
                    count = counts.at(grid.index * BUCKETS)
                    mine, other = (
                        TypedMemory(places[k].convert("inttoptr", "ptr"), "i64")
                        for k in (number, number + 1)
                    )
                    with code.loop(begin, end) as each:
                        head = items.head(mine, each.index)
                        digit = items.digit_of(head, number)
                        place = count[digit]
                        count[digit] = place + 1
                        items.move(mine, each.index, head, other, place)
    with library.phase(rows_slot, blocks_slot) as code:
        x, sorted_ = code.array(_X, items.element), code.array(_SORTED, items.element)
        positions = code.array(_POSITIONS, "i64")
        with code.loop(code.begin, code.end) as grid:
            row, start, begin, end = block(code, grid.index)
            done = TypedMemory(sides(code, row)[items.passes].convert("inttoptr", "ptr"), "i64")
            with code.loop(begin, end) as each:
                position = items.position(done, each.index)
                positions[start + each.index] = position
                element = items.element_of(items.head(done, each.index))
                sorted_[start + each.index] = element or x[start + position]
    return library.binary(0)
