"""The cost model of fusion: what is stored, and what is computed again where it is used.

Bytes saved are weighed against work repeated, all in units of one float multiply-add. Every number
that decides is at the top, with what it stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from genesis.ir import ops
from genesis.ir.index import bounds as index_bounds
from genesis.ir.kernel import Axis
from genesis.ir.node import Node, Shape
from genesis.ir.size import bounds

if TYPE_CHECKING:
    from genesis.compiler.fuse.groups import FusionGroup

#: Elementwise operations in a row before a value is stored anyway.
MAX_CHAIN = 64
#: Operations in one kernel: code size and compile time grow with it.
MAX_NODES = 400
#: Results one kernel stores.
MAX_STORES = 32
#: Moving one float to memory and back costs as much as about this many multiply-adds.
BYTES_PRICE = 48
#: Loading a value that was stored before costs as much as about this many multiply-adds.
LOAD_PRICE = 16
#: Converting a float to an integer, in multiply-adds.
CONVERSION_PRICE = 16
#: Rows that a kernel goes through one after the other to total their columns, at least, and totals
#: that it keeps, at most: they are to stay in the caches.
TOTALLED_ROWS = 256
TOTALS = 1 << 14
#: Rows that a kernel for elements must have to reduce them on the way, and elements of a row.
JOINED_ROWS = 64
JOINED_ROW = 128
#: Fewer rows than this leave cores idle when a long reduction is computed once per row.
MIN_ROWS = 8
#: Rows that a contraction has at least for its operand to be worth rounding before.
MANY_ROWS = 512
#: Below this many elements a kernel is too short for that to matter.
SMALL = 1 << 15
#: What a symbolic extent counts as.
TYPICAL = 256
#: Axes as short as this are unrolled, so that what they do not change is computed once.
UNROLLED = 2


def chains(order: Sequence[Node], columns: bool = False) -> tuple[dict[Node, int], dict[Node, int]]:
    """For each node: how long the elementwise chain above it is, and what computing it costs.

    What is made from a reduction is computed with it. So a chain ends where it meets a later one:
    the layers of a network, each added to what comes in, are no chain. Where tiles have
    `columns`, what is repeated from row to row is computed once.
    """
    length: dict[Node, int] = {}
    cost: dict[Node, int] = {}
    latest: dict[Node, int] = {}  # the last reduction that a node is made from, by its place
    for place, n in enumerate(order):
        through = n.op.is_elementwise or n.op.is_movement
        inputs = n.inputs if through else ()
        latest[n] = max((latest[i] for i in inputs), default=place if n.inputs else -1)
        above = (length[i] for i in inputs if latest[i] == latest[n])
        length[n] = max(above, default=0) + n.op.is_elementwise
        each = price(n) + sum(cost[i] for i in inputs)
        if columns and n.op is ops.EXPAND and n.shape[-1:] == n.inputs[0].shape[-1:]:
            each = max(1, each * count(n.inputs[0].shape) // max(1, count(n.shape)))
        cost[n] = min(10**6, each)
    return length, cost


def price(n: Node) -> int:
    """What an operation costs; a float made an integer saturates, and is several operations."""
    saturates = n.op is ops.CAST and n.inputs[0].dtype.is_float and n.dtype.is_integer
    return CONVERSION_PRICE if saturates else n.op.cost


def arithmetic(n: Node, given: Collection[Node]) -> int:
    """What an element costs where those of some other values are at hand."""
    seen: set[Node] = set()
    stack = [n]
    while stack:
        m = stack.pop()
        if m not in seen and m not in given and (m.op.is_elementwise or m.op.is_movement):
            seen.add(m)
            stack += m.inputs
    return sum(map(price, seen))


def folded(order: Sequence[Node]) -> set[Node]:
    """What is made from a reduction by arithmetic: it belongs where the reduction is computed."""
    found: set[Node] = set()
    for n in order:
        if n.op.group in ("boundary", "prefix"):
            continue
        if n.op.group in ("reduce", "contract") or not found.isdisjoint(n.inputs):
            found.add(n)
    return found


def contracted(order: Sequence[Node]) -> set[Node]:
    """What is made from a contraction by arithmetic, element by element: its epilogue."""
    return epilogue(order, {n for n in order if n.op is ops.CONTRACT})


def epilogue(order: Sequence[Node], sums: Collection[Node]) -> set[Node]:
    """What is made from some sums by arithmetic, element by element."""
    found: set[Node] = set()
    for n in order:
        through = n.op.is_elementwise or n.op in (ops.RESHAPE, ops.PERMUTE)
        if n in sums or (through and not found.isdisjoint(n.inputs)):
            found.add(n)
    return found


def reads(order: Sequence[Node]) -> dict[Node, int]:
    """For each node: how many elements are read from memory to compute all of it once."""
    reads: dict[Node, int] = {}
    for n in order:
        if n.op.is_elementwise:
            total = sum(reads[i] for i in set(n.inputs))
            reads[n] = min(total, MAX_NODES * count(n.shape))
        elif n.op.is_movement:
            reads[n] = reads[n.inputs[0]]
        else:
            reads[n] = 0 if n.op.group == "leaf" and n.op is not ops.BUFFER else count(n.shape)
    return reads


def sources(n: Node) -> int:
    """How many elements of memory a value is made from, before they are repeated.

    As `reads`, but that of what is cut out of something larger it counts only the piece.
    """
    if n.op.is_elementwise:
        return sum(map(sources, set(n.inputs)))
    return min(count(n.shape), sources(n.inputs[0])) if n.op.is_movement else count(n.shape)


def recompute_pays(evaluations: float, kernels: int, cost: int, reads: float) -> bool:
    """Whether to compute a value again in every kernel that uses it; all costs are per element.

    Storing it costs one write, and a read in each kernel. Computing it again costs the arithmetic,
    and reading what it is made from in each kernel but one. What is made from nothing, such as a
    mask, is not worth a load.
    """
    if not reads and cost <= LOAD_PRICE:
        return True
    moving = BYTES_PRICE / 2
    again = (evaluations - 1) * cost + moving * (kernels - 1) * reads
    return again <= moving * (1 + kernels)


def launch_pays(price: int, evaluations: int, cost: int, reads: float) -> bool:
    """Whether to store a value, in a kernel more at that price, rather than evaluate it again."""
    return evaluations * (cost + LOAD_PRICE * reads) > price


def repetition_pays(extra: int, cost: int) -> bool:
    """Whether computing a broadcast value again is better than a launch, and loads of it."""
    return cost <= LOAD_PRICE or extra * cost <= SMALL


def joins(host: FusionGroup, guest: FusionGroup) -> bool:
    """Side by side pays where launches are short or an input is read once instead of twice.

    Long kernels that share nothing only take each other's registers.
    """
    if host.prefix and guest.prefix and host.prefix != guest.prefix:
        return False
    stores = len(host.also) + len(guest.also) + 2
    nodes = host.nodes + guest.nodes
    fits = nodes <= MAX_NODES and stores <= MAX_STORES
    short = host.rows is None and host.softmax is None
    short = short and (nodes <= MAX_CHAIN or points(host.axes) <= SMALL)
    return fits and (short or not host.reads.isdisjoint(guest.reads))


def row_joins(host: FusionGroup, guest: FusionGroup) -> bool:
    """Whether reductions of rows find many of them, and long ones, where a kernel reads them."""
    rows, whole = points(guest.axes), points(host.axes)
    enough = rows >= JOINED_ROWS and whole >= rows * JOINED_ROW and whole > SMALL
    stores = len(host.also) + len(guest.also) + 2
    fits = host.nodes + guest.nodes <= MAX_NODES and stores <= MAX_STORES
    shared = host.reads & guest.reads
    return enough and fits and any(count(n.shape) == whole for n in shared)


def rows_pay(rows: Sequence[Axis], whole: Node, kernel: Iterable[Axis] = ()) -> bool:
    """Whether going through `whole`, and what a `kernel` visits, leaves enough parallel rows."""
    return points(rows) >= MIN_ROWS or max(count(whole.shape), points(kernel)) <= SMALL


def column_sums_pay(rows: Iterable[Axis], sums: Sequence[Node]) -> bool:
    """Whether a kernel keeps sums of its columns while it goes through its rows."""
    known = all(isinstance(e, int) for n in sums for e in n.shape)
    kept = [count(n.shape) for n in sums]
    return known and min(kept) > 1 and sum(kept) <= TOTALS and points(rows) >= TOTALLED_ROWS


def points(axes: Iterable[Axis]) -> int:
    """How many points axes have together."""
    total = 1
    for axis in axes:
        extent = axis.extent
        total *= extent if isinstance(extent, int) else min(TYPICAL, index_bounds(extent)[1])
    return total


def count(shape: Shape) -> int:
    """How many elements a shape has."""
    total = 1
    for extent in shape:
        total *= extent if isinstance(extent, int) else min(TYPICAL, bounds(extent)[1])
    return total
