"""The first elements of a sorted row, without sorting the row.

A row is read once, a vector at a time. Candidates are collected, and only what comes before the
last of the best so far is a candidate: in most vectors there is none, and one comparison says so.
When there is no more room for candidates they are sorted and only the best are kept.
"""

from __future__ import annotations

from functools import lru_cache

from genesis.backends.base import Binary, NativeCall
from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.library.merge_sort import SLACK
from genesis.backends.cpu.library.phase_builder import Code, PhaseBuilder, TypedMemory
from genesis.backends.cpu.library.sort import BUCKETS, LONGEST, Items, sort_items
from genesis.ir.dtype import DType
from genesis.ir.node import LibraryCall
from genesis.ir.size import bounds, product

VECTOR = 16  # elements looked at together
ROOM = 2  # times as many candidates as are wanted


def native_topk(call: LibraryCall) -> NativeCall | None:
    """The k largest or smallest elements of each row, in order, and their positions."""
    ((dtype, shape),) = call.operands
    k, largest = call.options
    rows, n = product(shape[:-1]), shape[-1]
    longest = bounds(n)[1]
    if dtype.is_complex or longest > LONGEST:
        return None
    wanted = min(max(ROOM * k, 32), longest)
    capacity = (1 << (wanted - 1).bit_length()) + VECTOR
    return NativeCall(select_rows(dtype, largest, capacity), (), (rows, n, k))


_X, _VALUES, _POSITIONS, _ROWS, _N, _K = range(6)


@lru_cache(maxsize=256)
def select_rows(dtype: DType, largest: bool, capacity: int) -> Binary:
    """Room for `capacity` candidates. Numbers: rows, length, how many are wanted."""
    items = Items(dtype, largest)
    library = PhaseBuilder(f"topk_{dtype.name}")
    nbytes = (capacity + SLACK) * 8 * items.words
    with library.phase(_ROWS) as code:
        n, k = code.number(_N), code.number(_K)
        x, values = code.array(_X, items.element), code.array(_VALUES, items.element)
        positions = code.array(_POSITIONS, "i64")
        counts = code.scratch(2 * nbytes, "i64")
        ends = code.scratch(2 * nbytes + items.passes * BUCKETS * 8, "i64")
        with code.loop(code.begin, code.end) as row:
            mine = x.at(row.index * n)
            ends[0] = code.scratch(0, "i64").pointer.convert("ptrtoint", "i64")
            ends[1] = code.scratch(nbytes, "i64").pointer.convert("ptrtoint", "i64")
            ends[2] = 0  # candidates
            ends[3] = 0  # the key that a candidate must be below,
            ends[4] = 1  # unless all are candidates so far
            whole = n.binary("udiv", VECTOR)
            with code.loop(0, whole) as each:
                first = each.index * VECTOR
                vector = mine.vector(first, VECTOR)
                limit = ends[3] if items.bits == 64 else ends[3].convert("trunc", items.element)
                below = items.keys(vector).compare("ult", limit.splat(VECTOR))
                any_ = code.out.op(f"bitcast {below} to i{VECTOR}", f"i{VECTOR}").differs(0)
                with code.out.guard(any_ | ends[4].differs(0)):
                    for lane in range(VECTOR):
                        consider(items, mine, first + lane, ends)
                    with code.out.guard(ends[2] > capacity - VECTOR):
                        keep_best(code, items, k, capacity, counts, ends)
            with code.loop(whole * VECTOR, n) as each:
                consider(items, mine, each.index, ends)
            sort_items(code, items, ends[2], capacity, counts, ends)
            done = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
            with code.loop(0, k) as each:
                position = items.position(done, each.index)
                positions[row.index * k + each.index] = position
                values[row.index * k + each.index] = mine[position]
    return library.binary(2 * nbytes + items.passes * BUCKETS * 8 + 64)


def consider(items: Items, x: TypedMemory, i: LLVMValue, ends: TypedMemory) -> None:
    """Collect element i if it is a candidate."""
    key = items.key(x[i])
    chosen = key.compare("ult", ends[3]) | ends[4].differs(0)
    found = ends[2]
    # Written in any case, and overwritten if it was not chosen: no branch to predict.
    items.write(TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64"), found, key, i)
    ends[2] = found + chosen.convert("zext", "i64")


def keep_best(
    code: Code, items: Items, k: LLVMValue, capacity: int, counts: TypedMemory, ends: TypedMemory
) -> None:
    """Reduce the candidates to the k best. Equal elements after the last of them come too late."""
    sort_items(code, items, ends[2], capacity, counts, ends)
    done = TypedMemory(ends[0].convert("inttoptr", "ptr"), "i64")
    ends[2] = k
    ends[3] = items.key_of(items.head(done, k - 1))
    ends[4] = 0
