"""Rules: what a rank computes of a node, given what it has of the inputs, by groups of operations.

A rule looks at the states of the inputs and says in which it wants each, what the result then is,
and with which attribute the operation runs on blocks. A rule that knows nothing better wants all
inputs whole: that is always right.

Splits that are *stored* are weak: they hold among arrays stored the same way, and give in to any
other. A partial sum stays one through linear operations as long as it has one reader and does not
grow; anything else sums it up first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from genesis.compiler.partition.resharding import PARTIAL, State, elements
from genesis.ir import ops
from genesis.ir.dtype import int64
from genesis.ir.evaluate import evaluate as evaluated
from genesis.ir.node import Node, const, elementwise, node, topological
from genesis.ir.ops import Op
from genesis.ir.size import Dim, evaluate

if TYPE_CHECKING:
    from genesis.compiler.partition.axis_pass import AxisPass


class ShardedForm(NamedTuple):
    """What becomes of a node: the state of the result, and those wanted of the inputs."""

    state: State
    wanted: tuple[State, ...]
    attr: Any = None  #: if it is another one for blocks
    stored: bool = False


Rule = Callable[["AxisPass", Node], "ShardedForm | Node"]


def whole(p: AxisPass, n: Node) -> ShardedForm:
    """Everybody computes everything."""
    return ShardedForm(None, (None,) * len(n.inputs))


# ---- elementwise
def pointwise(p: AxisPass, n: Node) -> ShardedForm:
    """Blocks stay blocks, where the inputs can agree on a dimension."""
    same = [bool(n.shape) and i.shape == n.shape for i in n.inputs]
    dim, stored = agreed(p, [i for i, s in zip(n.inputs, same, strict=True) if s])
    if dim is None and PARTIAL in p.states(n):
        if _is_linear(p, n):
            return ShardedForm(PARTIAL, tuple(p.states(n)))
        dim, stored = p.hints.get(n), True
        if dim is None:
            hints = [p.hints[i] for i, s in zip(n.inputs, same, strict=True) if s and i in p.hints]
            dim = hints[0] if hints else None
    if dim is None:
        return whole(p, n)
    return ShardedForm(dim, tuple(dim if s else None for s in same), stored=stored)


def agreed(p: AxisPass, inputs: list[Node]) -> tuple[int | None, bool]:
    """The dimension that most inputs are split along, and whether that is only how they lie."""
    for stored in (False, True):
        found = [
            s for i in inputs if isinstance(s := p.state[i], int) and (i in p.stored) is stored
        ]
        if found:
            return Counter(found).most_common(1)[0][0], stored
    return None, False


def _is_linear(p: AxisPass, n: Node) -> bool:
    """Whether the sum of what ranks compute of partial inputs is the node."""
    states = p.states(n)
    partial = [s == PARTIAL for s in states]
    rest = [s for s in states if s != PARTIAL]
    if any(s is not None for s in rest) or not all(
        stays(p, i, n) for i, s in zip(n.inputs, partial, strict=True) if s
    ):
        return False
    if n.op in (ops.ADD, ops.SUB, ops.NEG):
        return all(partial)
    if n.op is ops.MUL:
        return sum(partial) == 1
    if n.op is ops.DIV:
        return partial == [True, False]
    if n.op is ops.CAST:
        return _is_wider(n)
    if n.op is ops.WHERE:
        both = zip(n.inputs[1:], partial[1:], strict=True)
        return not partial[0] and all(s or is_zero(i) for i, s in both)
    return False


def _is_wider(n: Node) -> bool:
    source = n.inputs[0].dtype
    return source.kind == n.dtype.kind == "float" and n.dtype.itemsize >= source.itemsize


def stays(p: AxisPass, i: Node, n: Node) -> bool:
    """Whether a partial sum is better summed up after `n`: nobody else reads it, and it is more."""
    return p.uses[i] == 1 and elements(n.shape) <= elements(i.shape)


def is_zero(n: Node) -> bool:
    """Whether a node is zeros, on sight."""
    while n.op in (ops.EXPAND, ops.RESHAPE):
        n = n.inputs[0]
    return n.op is ops.CONST and n.attr == 0


# ---- movement
def moved(
    p: AxisPass, n: Node, dim: Callable[[int], int | None], keeps: bool = False
) -> ShardedForm:
    """Movement of input 0: a block along a dimension is one along `dim` of it, or of nothing.

    What is stored is gathered first, unless the operation `keeps` it.
    """
    x, *others = n.inputs
    state = p.state[x]
    rest = (None,) * len(others)
    if state == PARTIAL:
        fits = stays(p, x, n) and all(is_zero(i) for i in others)
        return ShardedForm(PARTIAL, (PARTIAL, *rest)) if fits else whole(p, n)
    if state is None or (x in p.stored and not keeps):
        return whole(p, n)
    assert isinstance(state, int)
    target = dim(state)
    if target is None:
        return whole(p, n)
    return ShardedForm(target, (state, *rest), stored=x in p.stored)


def permute(p: AxisPass, n: Node) -> ShardedForm:
    """The dimension goes along."""
    return moved(p, n, n.attr.index, keeps=True)


def expand(p: AxisPass, n: Node) -> ShardedForm:
    """What repeats was there once; other dimensions stay."""
    return moved(p, n, lambda dim: dim if n.shape[dim] == n.inputs[0].shape[dim] else None)


def reshape(p: AxisPass, n: Node) -> ShardedForm:
    """A block is one again where a dimension begins at the same place.

    One in the middle of dimensions that become one is turned to the first of these: everybody sends
    everybody a piece, rather than everything.
    """
    x = n.inputs[0]
    state = p.state[x]
    if isinstance(state, int) and x not in p.stored and reshaped(p, x, n, state) is None:
        for dim in filter(lambda d: p.divides(x.shape, d), range(state)):
            target = reshaped(p, x, n, dim)
            if target is not None:
                return ShardedForm(target, (dim,))
    return moved(p, n, lambda dim: reshaped(p, x, n, dim), keeps=True)


def reshaped(p: AxisPass, source: Node, target: Node, dim: int) -> int | None:
    """The dimension of `target` whose blocks are those of `source` along `dim`, if there is one."""
    before = elements(source.shape[:dim])
    for d in range(len(target.shape)):
        if elements(target.shape[:d]) == before and p.divides(target.shape, d):
            return d
    return None


def steps(p: AxisPass, n: Node) -> ShardedForm:
    """SLICE and PAD: dimensions that they leave alone."""
    x = n.inputs[0]
    return moved(p, n, lambda d: d if n.shape[d] == x.shape[d] and n.attr[d] == (0, 1) else None)


def window(p: AxisPass, n: Node) -> ShardedForm:
    """All dimensions but the one that windows slide along."""
    return moved(p, n, lambda dim: None if dim == n.attr[0] else dim)


# ---- sums
def reduction(p: AxisPass, n: Node) -> ShardedForm | Node:
    """A block of the result, or what all ranks have combined."""
    x = n.inputs[0]
    state = p.state[x]
    if state == PARTIAL and n.op is ops.SUM and stays(p, x, n):
        return ShardedForm(PARTIAL, (PARTIAL,))
    if not isinstance(state, int):
        return whole(p, n)
    if state not in n.attr:
        kept = state - sum(axis < state for axis in n.attr)
        return ShardedForm(kept, (state,), stored=x in p.stored)
    if n.op is ops.SUM:
        return ShardedForm(PARTIAL, (state,))
    how = {ops.PROD: "prod", ops.AMAX: "max", ops.AMIN: "min"}[n.op]
    return p.reduce(n.with_inputs((p.to(x, state),)), how)


def contract(p: AxisPass, n: Node) -> ShardedForm:
    """Blocks along one label; a block of a label that is summed over gives a partial sum."""
    states = p.states(n)
    for k, other in ((0, 1), (1, 0)):
        if states[k] == PARTIAL and states[other] is None and stays(p, n.inputs[k], n):
            return ShardedForm(PARTIAL, tuple(states))
    lhs, rhs, out = n.attr
    found: list[tuple[Any, Any]] = []  # sizes and labels
    for i, labels in zip(n.inputs, (lhs, rhs), strict=True):
        state = p.state[i]
        if isinstance(state, int) and i not in p.stored:
            found.append((elements(i.shape), labels[state]))
    if not found:
        return whole(p, n)
    label = max(found, key=lambda pair: pair[0])[1]
    if len(found) == 2:
        label = _cheaper(p, n, label)
    wanted = tuple(labels.index(label) if label in labels else None for labels in (lhs, rhs))
    return ShardedForm(out.index(label) if label in out else PARTIAL, wanted)


def _cheaper(p: AxisPass, n: Node, label: Any) -> Any:
    """Of two operands in blocks along different labels, the label that less is moved for.

    The operand without it is gathered; one that has both labels is turned, which moves a piece for
    every rank only. So tokens go to experts rather than experts to tokens.
    """
    states = p.states(n)
    own = [labels[s] for labels, s in zip(n.attr[:2], states, strict=True) if isinstance(s, int)]

    def moved(to: Any) -> float:
        total = 0.0
        for i, labels in zip(n.inputs, n.attr[:2], strict=True):
            wanted = labels.index(to) if to in labels else None
            if not p.has(i, wanted):
                total += elements(i.shape) / (1 if wanted is None else p.size)
        if to not in n.attr[2]:
            total += 2 * elements(n.shape)  # what it gives is still to be summed up
        return total

    return min((label, *own), key=moved)


# ---- indexing
def gather(p: AxisPass, n: Node) -> ShardedForm | Node:
    """Rows for this rank's indices, a block of every row, or zero for rows that lie elsewhere."""
    x, *indices = n.inputs
    axes, first, rank = n.attr, n.attr[0], len(n.inputs[1].shape)
    dim, stored = agreed(p, indices)
    dim = None if stored else dim
    state = p.state[x] if x not in p.stored else None
    sources = _sources(p, n) if axes == (state,) else None
    if sources is not None:
        return p.split(n, first, p.call("permute", p.to(x, state), None, sources))
    own = _row_by_row(n, state, dim)
    if own is not None:
        axis, along = own
        shape = p.shape(n.shape, first + along)
        local = (p.to(x, axis), *_own_indices(p, n, axis, along))
        return p.split(n, first + along, node(n.op, local, n.attr, n.dtype, shape))
    if dim is not None:
        return ShardedForm(first + dim, (None, *(dim,) * len(indices)))
    if isinstance(state, int) and state not in axes:
        return ShardedForm(_kept(state, axes, rank), (state, *(None,) * len(indices)))
    if isinstance(state, int):
        return p.partial(n, _own_rows(p, n, p.to(x, state), state))
    return whole(p, n)


#: Rows that are looked at one by one when compiling.
_FEW = 1024


def _sources(p: AxisPass, n: Node) -> tuple[int, ...] | None:
    """Whose block every rank takes, if an index that is known now moves blocks as a whole."""
    x, index = n.inputs
    rows = x.shape[n.attr[0]]
    if index.shape != (rows,) or not isinstance(rows, int) or rows > _FEW:
        return None
    leaves = {i.op for i in topological([index]) if i.op.group == "leaf"}
    if not leaves <= {ops.IOTA, ops.CONST}:
        return None
    taken = evaluated((index,), [], [])[0].reshape(p.size, -1).tolist()
    each = rows // p.size
    sources = tuple(block[0] // each for block in taken)
    moved = [list(range(source * each, (source + 1) * each)) for source in sources]
    return sources if taken == moved and len(set(sources)) == p.size else None


def _kept(dim: int, axes: tuple[int, ...], rank: int) -> int:
    """Where a dimension that is not indexed is in the result."""
    position = dim - sum(axis < dim for axis in axes)
    return position if position < axes[0] else position + rank


def _row_by_row(n: Node, state: State, dim: int | None) -> tuple[int, int] | None:
    """An axis of which position i of an index takes row i, and along which dimension it counts.

    So it is where an index is for one axis and counts along the others. Then blocks of rows meet
    blocks of the index: those of the axis that is split, or those of dimension `dim`.
    """
    x = n.inputs[0]
    axes = n.attr if n.op is ops.GATHER else n.attr[0]
    found = {}
    for axis, index in zip(axes, n.inputs[1:], strict=False):
        along = _counted(index)
        if along is not None and index.shape[along] == x.shape[axis]:
            found[axis] = along
    if isinstance(state, int) and state in found:
        return state, found[state]
    matching = [axis for axis, along in found.items() if along == dim]
    return (matching[0], found[matching[0]]) if matching and state is None else None


def _counted(index: Node) -> int | None:
    """The dimension along which an index counts from 0, if it is the same along all others."""
    while index.op in (ops.EXPAND, ops.CAST):
        index = index.inputs[0]
    dims = [d for d, extent in enumerate(index.shape) if extent != 1]
    if index.op is ops.RESHAPE:
        index = index.inputs[0]
    return dims[0] if index.op is ops.IOTA and len(dims) == 1 else None


def _own_indices(p: AxisPass, n: Node, axis: int, along: int) -> list[Node]:
    """Blocks of indices; those of `axis` count from this rank's first row."""
    axes = n.attr if n.op is ops.GATHER else n.attr[0]
    rows = p.shape(n.inputs[0].shape, axis)[axis]
    blocks = [p.to(index, along) for _, index in zip(axes, n.inputs[1:], strict=False)]
    return [_shifted(p, b, rows) if a == axis else b for a, b in zip(axes, blocks, strict=True)]


def _own_rows(p: AxisPass, n: Node, x: Node, axis: int) -> Node:
    """What is gathered of this rank's rows along an axis, and zero for rows of others."""
    indices = [p.to(index, None) for index in n.inputs[1:]]
    number, first = n.attr.index(axis), n.attr[0]
    index, rows = indices[number], x.shape[axis]
    # GATHER takes the nearest row there is.
    last = n.inputs[0].shape[axis] - 1
    inside = elementwise(ops.MAX, _cast(index), const(0, int64))
    inside = elementwise(ops.MIN, inside, const(evaluate(last, {}), int64))
    own = indices[number] = _shifted(p, inside, rows)
    mine = elementwise(
        ops.AND,
        elementwise(ops.LE, const(0, int64), own),
        elementwise(ops.LT, own, const(evaluate(rows, {}), int64)),
    )
    found = node(ops.GATHER, (x, *indices), n.attr, n.dtype, n.shape)
    rest = len(n.shape) - first - len(index.shape)
    shape = (*(1,) * first, *index.shape, *(1,) * rest)
    mask = node(ops.RESHAPE, (mine,), None, mine.dtype, shape)
    mask = node(ops.EXPAND, (mask,), None, mask.dtype, n.shape)
    return elementwise(ops.WHERE, mask, found, const(0, n.dtype))


def _shifted(p: AxisPass, index: Node, rows: Dim) -> Node:
    """An index counted from this rank's first row."""
    return elementwise(ops.SUB, _cast(index), node(ops.SIZE, (), p.rank * rows, int64))


def _cast(index: Node) -> Node:
    return index if index.dtype is int64 else node(ops.CAST, (index,), None, int64, index.shape)


def scatter(p: AxisPass, n: Node) -> ShardedForm | Node:
    """Blocks of rows that are not indexed, own rows, or for sums into zeros each rank's updates."""
    x, *indices, updates = n.inputs
    axes, mode = n.attr
    first, rank = axes[0], len(indices[0].shape)
    state = p.state[x] if x not in p.stored else None
    given = p.state[updates] if updates not in p.stored else None
    inner = given - first if isinstance(given, int) and first <= given < first + rank else None
    along = agreed(p, indices)[0] if inner is None else inner
    whole_indices = (None,) * len(indices)
    if isinstance(state, int) and state not in axes:
        return ShardedForm(state, (state, *whole_indices, _kept(state, axes, rank)))
    own = _row_by_row(n, state, along)
    if own is not None:
        axis, dim = own
        local = (p.to(x, axis), *_own_indices(p, n, axis, dim), p.to(updates, first + dim))
        return p.split(n, axis, node(n.op, local, n.attr, n.dtype, p.shape(n.shape, axis)))
    if isinstance(state, int):
        number, rows = axes.index(state), p.shape(x.shape, state)[state]
        moved = [p.to(index, None) for index in indices]
        moved[number] = _shifted(p, moved[number], rows)
        local = (p.to(x, state), *moved, p.to(updates, None))
        return p.split(n, state, node(n.op, local, n.attr, n.dtype, p.shape(n.shape, state)))
    if isinstance(given, int) and inner is None and is_zero(x):
        dims = [d for d in range(len(x.shape)) if d not in axes]
        dim = next(d for d in dims if _kept(d, axes, rank) == given)
        return ShardedForm(dim, (dim, *whole_indices, given))
    if mode == "add" and is_zero(x) and along is not None:
        return ShardedForm(PARTIAL, (None, *(along,) * len(indices), first + along))
    return whole(p, n)


def update(p: AxisPass, n: Node) -> ShardedForm:
    """Dimensions that are written from end to end."""
    x, value = n.inputs
    states = p.states(n)
    if states == [PARTIAL, PARTIAL] and stays(p, x, n) and p.uses[value] == 1:
        return ShardedForm(PARTIAL, (PARTIAL, PARTIAL))
    for i in (x, value):
        dim = p.state[i]
        if (
            isinstance(dim, int)
            and i not in p.stored
            and x.shape[dim] == value.shape[dim]
            and n.attr[dim] == (0, 1)
        ):
            return ShardedForm(dim, (dim, dim))
    return whole(p, n)


def prefix(p: AxisPass, n: Node) -> ShardedForm:
    """All dimensions but the one that is run along."""
    dim, _ = agreed(p, list(n.inputs))
    if dim is None or dim == n.attr.axis:
        return whole(p, n)
    return ShardedForm(dim, (dim,) * len(n.inputs))


# ---- complex numbers
def as_real(p: AxisPass, n: Node) -> ShardedForm:
    """The parts are a dimension that comes or goes last."""
    state = p.state[n.inputs[0]]
    if isinstance(state, int) and state < len(n.shape):
        return ShardedForm(state, (state,))
    return whole(p, n)


# ---- boundaries
def item(p: AxisPass, n: Node) -> ShardedForm | Node:
    """A result of a call; collectives along other axes of the mesh go on with blocks."""
    called = n.inputs[0]
    if is_constraint(called):
        return _constrained(p, n)
    if called.op is not ops.CALL or not called.attr.is_collective:
        return node(n.op, (p.to(called, None),), n.attr, n.dtype, n.shape)
    x = called.inputs[0]
    state = p.state[x]
    reduces = called.attr.name == "collectives.all_reduce"
    if state == PARTIAL and not (not reduces or called.attr.options[2] == "sum"):
        state = None
    if state == 0 and not reduces:
        state = None
    return p.kept(n, state, x in p.stored, _again(p, n, p.to(x, state), p.shape(n.shape, state)))


def is_constraint(n: Node) -> bool:
    """Whether a node says where its operand is to lie (`genesis.distributed.constrain`)."""
    return n.op is ops.CALL and n.attr.name == "sharding_constraint.constrain"


def _constrained(p: AxisPass, n: Node) -> Node:
    """What lies as it is wished; along axes without a wish as it comes, if that leaves room."""
    (x,) = n.inputs[0].inputs
    axes, _, pairs = n.inputs[0].attr.options
    wishes, stored = dict(pairs), x in p.stored
    state = wishes.get(p.axis, p.state[x])
    if p.axis in wishes:
        stored = False
    elif isinstance(state, int):
        later = axes[[axis for axis, _ in axes].index(p.axis) + 1 :]
        parts = prod(size for axis, size in later if wishes.get(axis, -1) == state)
        state = None if evaluate(n.shape[state], {}) % (parts * p.size) else state
    return p.kept(n, state, stored, _again(p, n, p.to(x, state), p.shape(n.shape, state)))


def _again(p: AxisPass, n: Node, x: Node, shape: Any) -> Node:
    """A collective along another axis, or a constraint, of what this rank has."""
    what = n.inputs[0].attr
    forms = ((x.dtype, x.shape),), ((n.dtype, shape),)
    call = type(what)(what.name, what.options, *forms)
    return node(ops.ITEM, (node(ops.CALL, (x,), call, x.dtype, ()),), 0, n.dtype, shape)


def called(p: AxisPass, n: Node) -> ShardedForm | Node:
    """A call needs everything; a collective or a constraint is made again with its result."""
    if n.attr.is_collective or is_constraint(n):
        return n
    return whole(p, n)


_BY_GROUP: dict[str, Rule] = {
    "unary": pointwise, "binary": pointwise, "compare": pointwise, "ternary": pointwise,
    "reduce": reduction,
}  # fmt: skip
_BY_OP: dict[Op, Rule] = {
    ops.RESHAPE: reshape,
    ops.PERMUTE: permute,
    ops.EXPAND: expand,
    ops.SLICE: steps,
    ops.PAD: steps,
    ops.WINDOW: window,
    ops.CONTRACT: contract,
    ops.GATHER: gather,
    ops.SCATTER: scatter,
    ops.UPDATE: update,
    ops.PREFIX: prefix,
    ops.COMPLEX: pointwise,
    ops.REAL: pointwise,
    ops.IMAG: pointwise,
    ops.AS_REAL: as_real,
    ops.AS_COMPLEX: as_real,
    ops.SCAN: whole,
    ops.CALL: called,
    ops.ITEM: item,
}


def rule_of(op: Op) -> Rule:
    """The rule of an operation."""
    return _BY_OP.get(op) or _BY_GROUP[op.group]
