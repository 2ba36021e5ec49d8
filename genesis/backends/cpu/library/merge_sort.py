"""Sorting few items: short runs by rank, then merges of two runs into one.

An item's rank is the number of items before it. For up to `RUN` items a vector of ranks costs one
comparison for each item, and no branch. Two runs of one length merge from both ends at once: either
end gives as many items as a run has, so neither can come to the end of a run, and nothing is asked
but which item comes first. Items are filled up so that all runs have one length.
"""

from __future__ import annotations

from typing import Protocol

from genesis.backends.cpu.codegen.emit import LLVMValue, Operand
from genesis.backends.cpu.library.phase_builder import Code, TypedMemory

RUN = 16  # items that are sorted by rank
MANY = 512  # items up to which this is faster than distributing them by digits
_LANES = 8  # ranks that are worked out together

#: Free memory that is needed after the items, in items.
SLACK = 2 * MANY // RUN + _LANES


class ItemLayout(Protocol):
    """How items lie in memory: `words` of 64 bits, the first of which they are ordered by."""

    words: int

    def head(self, items: TypedMemory, i: LLVMValue) -> LLVMValue:
        """The first word of item i."""
        ...

    def move(
        self, source: TypedMemory, i: LLVMValue, head: LLVMValue, target: TypedMemory, j: LLVMValue
    ) -> None:
        """Put item i, whose first word is known, at place j."""
        ...


def merge_items(
    code: Code, items: ItemLayout, n: LLVMValue, ranks: TypedMemory, ends: TypedMemory
) -> None:
    """Sort n items. `ends` holds the addresses of the items and of as much free memory.

    Which of the two has the result is the first of `ends` afterwards. `ranks` is memory for `RUN`
    numbers and a vector.
    """
    with code.repeat(n, code.const(1)) as halving:
        length, runs = halving.carried
        halving.leave(length <= RUN)
        halving.next((length + 1).binary("lshr", 1), runs << 1)
    made = _array(ends[0])
    with code.loop(n, length * runs) as each:
        # After all others, and different from each other.
        made[each.index * items.words] = code.const(-1) - (each.index - n) * (2 - items.words)
    _rank_runs(code, items, length, runs, ranks, ends)
    with code.repeat(length, runs) as level:
        half, count = level.carried
        level.leave(count <= 1)
        _merge_pairs(code, items, half, count.binary("lshr", 1), ends)
        level.next(half << 1, count.binary("lshr", 1))


def _array(address: LLVMValue) -> TypedMemory:
    return TypedMemory(address.convert("inttoptr", "ptr"), "i64")


def _swap(ends: TypedMemory) -> None:
    first, second = ends[0], ends[1]
    ends[0] = second
    ends[1] = first


def _rank_runs(
    code: Code,
    items: ItemLayout,
    length: LLVMValue,
    runs: LLVMValue,
    ranks: TypedMemory,
    ends: TypedMemory,
) -> None:
    """Sort each of some runs."""
    source, target = _array(ends[0]), _array(ends[1])
    with code.loop(0, runs) as run:
        start = run.index * length * items.words
        mine, sorted_ = source.at(start), target.at(start)
        with code.loop(0, (length + (_LANES - 1)).binary("lshr", 3)) as block:
            first = block.index * _LANES
            heads = mine.vector(first * items.words, _LANES * items.words)
            if items.words == 2:
                heads = heads.shuffle(None, range(0, 2 * _LANES, 2))
            rank = code.const(0).splat(_LANES)
            if items.words == 1:  # no two items are equal
                rank = _counted(code, items, mine, 0, length, "ult", heads, rank)
            else:  # of equal items the first comes first
                own = (first + _LANES).intrinsic("smin", length)
                rank = _counted(code, items, mine, 0, first, "ule", heads, rank)
                with code.loop(first, own, rank) as each:
                    other = items.head(mine, each.index).splat(_LANES)
                    earlier = (each.index - first).splat(_LANES) < code.out.iota("i64", _LANES)
                    before = other.compare("ult", heads) | (other.equal(heads) & earlier)
                    each.next(each.carried[0] + before.convert("zext", "i64"))
                rank = _counted(code, items, mine, own, length, "ult", heads, each.carried[0])
            ranks[first] = rank
        with code.loop(0, length) as each:
            head = items.head(mine, each.index)
            items.move(mine, each.index, head, sorted_, ranks[each.index])
    _swap(ends)


def _counted(
    code: Code,
    items: ItemLayout,
    mine: TypedMemory,
    begin: Operand,
    end: LLVMValue,
    before: str,
    heads: LLVMValue,
    rank: LLVMValue,
) -> LLVMValue:
    """Ranks, increased by how many of some items come before each of a vector of items."""
    with code.loop(begin, end, rank) as each:
        other = items.head(mine, each.index).splat(_LANES)
        each.next(each.carried[0] + other.compare(before, heads).convert("zext", "i64"))
    return each.carried[0]


def _merge_pairs(
    code: Code, items: ItemLayout, half: LLVMValue, pairs: LLVMValue, ends: TypedMemory
) -> None:
    """Merge every two neighbouring runs of a length."""
    source, target = _array(ends[0]), _array(ends[1])
    with code.loop(0, pairs) as pair:
        start = pair.index * half << 1
        middle, end = start + half, start + (half << 1)
        with code.loop(0, half, start, middle, middle - 1, end - 1) as each:
            i, j, p, q = each.carried
            left, right = items.head(source, i), items.head(source, j)
            second = right.compare("ult", left)
            head = second.select(right, left)
            items.move(source, second.select(j, i), head, target, start + each.index)
            left, right = items.head(source, p), items.head(source, q)
            first = right.compare("ult", left)
            head = first.select(left, right)
            items.move(source, first.select(p, q), head, target, end - 1 - each.index)
            up, down = second.convert("zext", "i64"), first.convert("zext", "i64")
            each.next(i + 1 - up, j + up, p - down, q - 1 + down)
    _swap(ends)
