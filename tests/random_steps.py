"""The steps random graphs grow by: each primitive applied to a given value, in a given place.

A step takes the graph so far and a value, finds or makes the other operands, and adds its node; it
raises `Unfit` when the value's type, rank or range does not allow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from random_values import EXTENTS, LARGEST, Growth, Known, Unfit, epsilon, is_one, same

from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.dtype import bool_, int64, uint64
from genesis.ir.node import Prefix, Shape, const, elementwise, node
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, Symbol, bounds, product
from genesis.ir.size import evaluate as size_value

Step = Callable[[Growth, Known], Known]
Labels = Sequence[int]


def common_divisor(size: Dim) -> int:
    """The greatest integer known to divide a size."""
    terms = size.terms if isinstance(size, Size) else (((), size),)
    multiples = [math.prod(a.multiple for a in m if isinstance(a, Symbol)) for m, _ in terms]
    return math.gcd(*(k * c for k, (_, c) in zip(multiples, terms, strict=True)))


# ---- elementwise


def _unary(g: Growth, x: Known) -> Known:
    if x.dtype is bool_:
        return g.add(ops.NOT, [x])
    if x.dtype.is_integer:
        return g.add(g.random.choice((ops.NEG, ops.ABS, ops.NOT)), [x])
    op = g.random.choice((ops.NEG, ops.ABS, *SLOPES, ops.SQRT, ops.LOG, ops.LOG2, *JUMPS))
    if op in (ops.NEG, ops.ABS):
        return g.add(op, [x])
    if op in JUMPS:
        if x.error:
            raise Unfit
        return g.add(op, [x])
    if op in (ops.SQRT, ops.LOG, ops.LOG2):
        return g.rounded(op, [g.one_plus(x)], 1.5)
    if op in (ops.EXP, ops.EXP2, ops.SIN, ops.COS):
        x = g.scaled(x, 3.0)
    if op is ops.TAN:
        x = g.scaled(x, 1.0)
    return g.rounded(op, [x], SLOPES[op])


def _binary(g: Growth, x: Known) -> Known:
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    if x.dtype is bool_:
        op = g.random.choice((ops.AND, ops.OR, ops.XOR, ops.MAX, ops.MIN))
    elif x.dtype.is_integer:
        return _integer_binary(g, x, y)
    else:
        return _float_binary(g, x, y)
    return g.add(op, _either_way(g, x, y))


def _integer_binary(g: Growth, x: Known, y: Known) -> Known:
    op = g.random.choice(INTEGER_BINARY)
    if op is ops.RANDOM:
        x, y = g.cast_to(x, uint64), g.cast_to(y, uint64)
    if op in (ops.SHL, ops.SHR, ops.POW):  # counts and exponents: small, not negative
        y = g.add(ops.AND, [y, g.known_leaf(const(3, y.dtype))], shape=y.shape)
        return g.add(op, [x, y], shape=x.shape)
    return g.add(op, _either_way(g, x, y), shape=x.shape)


def _float_binary(g: Growth, x: Known, y: Known) -> Known:
    op = g.random.choice(FLOAT_BINARY)
    if op is ops.POW:
        exponent = g.scaled(y, 3.0)
        return g.rounded(op, [g.scaled(g.one_plus(x), 3.0), exponent], 40.0)
    if op is ops.FMOD:
        if x.error or y.error:
            raise Unfit
        return g.add(op, [x, y])
    if op in (ops.DIV, ops.ATAN2):
        return g.rounded(op, [x, g.one_plus(y)], 1.0 + x.largest)
    if op is ops.MUL:
        return g.rounded(op, _either_way(g, x, y), 1.0 + max(x.largest, y.largest))
    return g.rounded(op, _either_way(g, x, y), 1.0)


def _either_way(g: Growth, x: Known, y: Known) -> list[Known]:
    return [x, y] if g.random.random() < 0.5 else [y, x]


def _compare(g: Growth, x: Known) -> Known:
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    if x.error or y.error:
        raise Unfit
    op = g.random.choice((ops.LT, ops.LE, ops.EQ, ops.NE))
    return g.add(op, _either_way(g, x, y), dtype=bool_, shape=x.shape)


def _where_condition(g: Growth, x: Known) -> Known:
    if x.dtype is not bool_:
        raise Unfit
    a = g.operand(x.shape, g.usual, keep=not x.shape)
    b = g.operand(x.shape, g.usual, keep=not x.shape)
    return g.add(ops.WHERE, [x, a, b], dtype=a.dtype)


def _where_value(g: Growth, x: Known) -> Known:
    condition = g.operand(x.shape, bool_)
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    a, b = _either_way(g, x, y)
    return g.add(ops.WHERE, [condition, a, b], dtype=x.dtype)


def _fma(g: Growth, x: Known) -> Known:
    if not x.dtype.is_float:
        raise Unfit
    others = [g.operand(x.shape, x.dtype) for _ in range(2)]
    slope = 1.0 + max(x.largest, *(o.largest for o in others))
    return g.rounded(ops.FMA, [x, *others], slope)


def _ternary(g: Growth, x: Known) -> Known:
    return g.random.choice((_where_value, _where_value, _fma))(g, x)


def _cast(g: Growth, x: Known) -> Known:
    target = g.random.choice([d for d in (g.usual, *dtypes.ALL) if d is not x.dtype])
    return g.cast_to(x, target)


def _bitcast(g: Growth, x: Known) -> Known:
    # The sign of a zero, or a NaN's other bits, are nobody's promise once something was computed.
    if x.dtype.is_float and (x.node.op is not ops.BUFFER or x.wild):
        raise Unfit
    if x.dtype is bool_:
        raise Unfit
    same = [d for d in dtypes.ALL if d.bits == x.dtype.bits and d is not x.dtype]
    to = [d for d in same if d.is_integer]
    return g.add(ops.BITCAST, [x], dtype=g.random.choice(to))


# ---- movement


def _reshape(g: Growth, x: Known) -> Known:
    shape = list(x.shape)
    for _ in range(g.random.randint(1, 3)):
        way = g.random.choice(("merge", "merge", "split", "split", "one", "squeeze", "all"))
        d = g.random.randrange(len(shape) + 1)
        if way == "one" or not shape:
            shape.insert(d, 1)
        elif way == "squeeze" and d < len(shape) and is_one(shape[d]):
            del shape[d]
        elif way == "all" and not any(isinstance(e, Size) for e in shape[1:]):
            shape = [product(shape)]
        elif way == "merge" and d + 1 < len(shape) and isinstance(shape[d + 1], int):
            # Behind a symbolic extent only: merged behind another, it would be divided by.
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        elif way == "split" and d < len(shape):
            whole = common_divisor(shape[d])
            factors = [k for k in (2, 3, 4, 5, 7, 8) if whole % k == 0]
            if factors and whole:
                k = g.random.choice(factors)
                parts = [k, shape[d] // k]
                shape[d : d + 1] = parts if g.random.random() < 0.5 else parts[::-1]
    if same(tuple(shape), x.shape) or len(shape) > 5:
        raise Unfit
    return g.add(ops.RESHAPE, [x], shape=tuple(shape))


def _permute(g: Growth, x: Known) -> Known:
    if len(x.shape) < 2:
        raise Unfit
    axes = tuple(g.random.sample(range(len(x.shape)), len(x.shape)))
    return g.add(ops.PERMUTE, [x], axes, shape=tuple(x.shape[a] for a in axes))


def _expand(g: Growth, x: Known) -> Known:
    shape = tuple(g.extent() if is_one(e) and g.random.random() < 0.8 else e for e in x.shape)
    if sum(isinstance(e, Size) for e in shape) > 1 or same(shape, x.shape):
        raise Unfit
    return g.add(ops.EXPAND, [x], shape=shape)


def _steps(g: Growth, extent: Dim) -> tuple[Dim, int, Dim]:
    """(start, step, count) inside an extent."""
    least = bounds(extent)[0]
    if same(extent, 0):
        return 0, 1, 0
    ways: list[tuple[Dim, int, Dim]] = [(0, 1, extent), (0, 2, (extent + 1) // 2)]
    if least >= 1:
        ways += [(0, 1, 1), (extent - 1, -1, extent), (extent - 1, 1, 1), (1, 1, extent - 1)]
        ways += [(extent - 1, -2, (extent + 1) // 2)]
    if least >= 4:
        ways += [(1, 1, extent - 2), (extent - 2, -1, extent - 2), (2, 3, (extent - 3) // 3 + 1)]
    return g.random.choice(ways)


def _slice(g: Growth, x: Known) -> Known:
    if not x.shape:
        raise Unfit
    steps = [_steps(g, e) for e in x.shape]
    attr = tuple((start, step) for start, step, _ in steps)
    return g.add(ops.SLICE, [x], attr, shape=tuple(count for _, _, count in steps))


def _places(g: Growth, shape: Shape) -> tuple[tuple[tuple[Dim, int], ...], Shape]:
    """Where padding puts the elements, and the shape around them."""
    places: list[tuple[Dim, int]] = []
    around: list[Dim] = []
    for extent in shape:
        step = g.random.choice((1, 1, 1, 2, 3, -1))
        low, high = g.random.choice((0, 0, 1, 2, -1)), g.random.choice((0, 1, 3, -1))
        span = abs(step) * (extent - 1) + 1 if bounds(extent)[0] >= 1 else extent
        if bounds(extent)[0] < 1:
            step, low, high = 1, max(low, 0), max(high, 0)
        # Running backwards, the first element lands at the far end.
        places.append((low + span - 1 if step < 0 else low, step))
        around.append(low + span + high)
    return tuple(places), tuple(around)


def _pad(g: Growth, x: Known) -> Known:
    if not x.shape:
        raise Unfit
    places, shape = _places(g, x.shape)
    fill = g.const(x.dtype) if g.random.random() < 0.7 else g.scalar(x.dtype)
    return g.add(ops.PAD, [x, fill], places, shape=shape)


def _pad_fill(g: Growth, fill: Known) -> Known:
    if fill.shape:
        raise Unfit
    x = g.operand(g.new_shape(g.random.choice((1, 2))), fill.dtype)
    places, shape = _places(g, x.shape)
    return g.add(ops.PAD, [x, fill], places, shape=shape)


def _window(g: Growth, x: Known) -> Known:
    if not x.shape or len(x.shape) > 4:
        raise Unfit
    axis = g.random.randrange(len(x.shape))
    width, stride, dilation = (g.random.choice(c) for c in ((1, 2, 3), (1, 1, 2), (1, 1, 2)))
    reach = dilation * (width - 1) + 1
    if bounds(x.shape[axis])[0] < reach:
        raise Unfit
    count = (x.shape[axis] - reach) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], width)
    return g.add(ops.WINDOW, [x], (axis, stride, dilation), shape=shape)


# ---- reductions and contraction


def _reduction(op: Op) -> Step:
    def reduce(g: Growth, x: Known) -> Known:
        if not x.shape or (x.dtype is bool_ and op in (ops.SUM, ops.PROD)):
            raise Unfit
        rank = len(x.shape)
        axes = tuple(sorted(g.random.sample(range(rank), g.random.randint(1, rank))))
        shape = tuple(e for d, e in enumerate(x.shape) if d not in axes)
        error = None
        if x.dtype.is_float and op in (ops.SUM, ops.PROD):
            count = max(product(size_value(x.shape[a], sizes) for a in axes) for sizes in g.sizes)
            largest = max(1.0, x.largest)
            if op is ops.PROD and count * math.log(largest) > math.log(LARGEST):
                raise Unfit
            slope = count * (1.0 if op is ops.SUM else largest ** max(0, count - 1))
            wide = epsilon(x.dtype.accumulator)
            error = slope * (x.error + wide * x.largest)
            if x.wild:
                raise Unfit
        return g.add(op, [x], axes, shape=shape, error=error, rounded=error is not None)

    return reduce


def _contract(g: Growth, x: Known) -> Known:
    if not x.shape or x.dtype is bool_ or x.wild:
        raise Unfit
    labels = list(range(len(x.shape)))
    roles = {label: g.random.choice(("sum", "sum", "batch", "keep", "keep")) for label in labels}
    if g.random.random() < 0.1:
        roles[labels[0]] = "alone"  # summed, and only the left operand has it
    extents: dict[int, Dim] = dict(zip(labels, x.shape, strict=True))
    right = [label for label in labels if roles[label] in ("sum", "batch")]
    for _ in range(g.random.choice((0, 1, 1, 2))):
        label = len(extents)
        extents[label] = g.random.choice((1, 2, 3, 5, 8, 9, 17, 33))
        right.append(label)
        roles[label] = "keep"
    g.random.shuffle(right)
    out = [label for label in extents if roles[label] in ("keep", "batch")]
    g.random.shuffle(out)
    y = g.operand(tuple(extents[label] for label in right), x.dtype)
    if g.random.random() < 0.5:
        x, labels, y, right = y, right, x, labels
    return _sum_of_products(g, x, labels, y, right, out)


def _sum_of_products(
    g: Growth, x: Known, left: Labels, y: Known, right: Labels, out: Labels
) -> Known:
    if x.wild or y.wild:
        raise Unfit
    extents = dict(zip((*left, *right), (*x.shape, *y.shape), strict=True))
    summed = [extents[label] for label in extents if label not in out]
    count = max(product(size_value(e, sizes) for e in summed) for sizes in g.sizes)
    wide = epsilon(x.dtype.accumulator)
    error = count * (x.error * y.largest + y.error * x.largest + wide * x.largest * y.largest)
    attr = (tuple(left), tuple(right), tuple(out))
    shape = tuple(extents[label] for label in out)
    rounded = x.dtype.is_float
    return g.add(ops.CONTRACT, [x, y], attr, shape=shape, error=error, rounded=rounded)


# ---- prefixes


def _prefix(g: Growth, x: Known) -> Known:
    """A running fold, or for integers now and then a linear recurrence: its states are pairs."""
    if not x.shape or x.dtype is bool_:
        raise Unfit
    axis, reverse = g.random.randrange(len(x.shape)), g.random.random() < 0.3
    left, right = (node(ops.PARAMETER, (), k, x.dtype) for k in (0, 1))
    if x.dtype.is_integer and g.random.random() < 0.3:
        y = g.operand(x.shape, x.dtype)
        factor, term = (node(ops.PARAMETER, (), k, x.dtype) for k in (2, 3))
        merge = (left * factor, right * factor + term)
        identity = (const(1, x.dtype), const(0, x.dtype))
        parts = [Prefix(merge, identity, axis, reverse, item) for item in (0, 1)]
        return [g.add(ops.PREFIX, [x, y], part) for part in parts][g.random.randrange(2)]
    starts = {ops.ADD: 0, ops.MAX: x.dtype.min, ops.MIN: x.dtype.max}
    op = g.random.choice(list(starts))
    error = None
    if op is ops.ADD and x.dtype.is_float:
        count = max(size_value(x.shape[axis], sizes) for sizes in g.sizes)
        error = count * (x.error + epsilon(x.dtype) * count * x.largest)
        if x.wild:
            raise Unfit
    how = Prefix((elementwise(op, left, right),), (const(starts[op], x.dtype),), axis, reverse)
    return g.add(ops.PREFIX, [x], how, error=error, rounded=error is not None)


# ---- indexing


def _index(g: Growth, shape: Shape, extent: Dim) -> Known:
    """Positions in an extent, some of them outside."""
    dtype = g.random.choice((int64, int64, dtypes.int32, dtypes.uint8, dtypes.int16))
    known = g.buffer(shape, dtype)
    low = 0 if dtype.kind == "uint" else -2
    for run, memory in enumerate(g.memory[-1]):
        high = size_value(extent, g.sizes[run]) + 2
        memory[...] = g.numbers.integers(low, high, memory.size).astype(dtype.numpy)
    g.pool.remove(known)
    return g.known_leaf(known.node)


def _gather_x(g: Growth, x: Known) -> Known:
    axes = [d for d, e in enumerate(x.shape) if bounds(e)[0] >= 1]
    if not axes:
        raise Unfit
    axis = g.random.choice(axes)
    where = _index(g, g.new_shape(g.random.choice((0, 1, 1, 2))), x.shape[axis])
    return _gather(g, x, where, axis)


def _gather_index(g: Growth, where: Known) -> Known:
    if where.dtype not in INDICES or len(where.shape) > 3:
        raise Unfit
    x = g.operand(tuple(g.random.choice(EXTENTS) for _ in range(g.random.randint(1, 2))), g.usual)
    return _gather(g, x, where, g.random.randrange(len(x.shape)))


def _gather(g: Growth, x: Known, where: Known, axis: int) -> Known:
    shape = x.shape[:axis] + where.shape + x.shape[axis + 1 :]
    if len(shape) > 5 or sum(isinstance(e, Size) for e in shape) > 1:
        raise Unfit
    return g.add(ops.GATHER, [x, where], (axis,), shape=shape, error=x.error)


def _scatter(g: Growth, x: Known | None, where: Known | None, new: Known | None) -> Known:
    """A scatter that adds, with one operand given and the others found."""
    known = x or new
    dtype = g.random.choice((g.usual, dtypes.float32)) if known is None else known.dtype
    if dtype is bool_ or (known is not None and (not known.shape or known.wild)):
        raise Unfit
    if new is not None:
        axis = g.random.randrange(len(new.shape))
        rank = g.random.randint(1, len(new.shape) - axis)
        extent: Dim = g.random.choice((1, 3, 5, 8))
        shape = (*new.shape[:axis], extent, *new.shape[axis + rank :])
        x, where = g.operand(shape, dtype), _index(g, new.shape[axis : axis + rank], extent)
    else:
        if x is None:
            extents = tuple(g.random.choice(EXTENTS) for _ in range(g.random.randint(1, 2)))
            x = g.operand(extents, dtype)
        axis = g.random.randrange(len(x.shape))
        if where is None:
            where = _index(g, (g.random.choice((1, 3, 7)),), x.shape[axis])
        new = g.operand(x.shape[:axis] + where.shape + x.shape[axis + 1 :], dtype)
    assert where is not None
    if where.dtype not in INDICES or x.wild or new.wild:
        raise Unfit
    error = 0.0
    if dtype.is_float:
        count = max(w.size for w in where.values)
        error = x.error + count * new.error
        error += epsilon(dtype) * (count + 1) * (x.largest + count * new.largest)
    return g.add(ops.SCATTER, [x, where, new], ((axis,), "add"), shape=x.shape, error=error)


def _update_base(g: Growth, x: Known) -> Known:
    if not x.shape:
        raise Unfit
    steps = [_steps(g, e) for e in x.shape]
    attr = tuple((start, step) for start, step, _ in steps)
    shape = tuple(count for _, _, count in steps)
    way = g.random.random()
    if way < 0.3:  # the value reads what it overwrites
        value = g.add(ops.SLICE, [x], attr, shape=shape)
        value = g.random.choice((_unary, _binary))(g, value)
        if value.dtype is not x.dtype or not same(value.shape, shape):
            raise Unfit
    else:
        value = g.operand(shape, x.dtype)
    made = g.add(ops.UPDATE, [x, value], attr)
    if way > 0.8:  # a chain
        return _update_base(g, made)
    return made


def _update_value(g: Growth, value: Known) -> Known:
    if not value.shape or any(bounds(e)[0] < 1 for e in value.shape):
        raise Unfit
    attr: list[tuple[Dim, int]] = []
    shape: list[Dim] = []
    for extent in value.shape:
        step = g.random.choice((1, 1, 2, -1))
        low, high = g.random.choice((0, 0, 1)), g.random.choice((0, 2))
        span = abs(step) * (extent - 1) + 1
        attr.append((low + span - 1 if step < 0 else low, step))
        shape.append(low + span + high)
    base = g.operand(tuple(shape), value.dtype)
    return g.add(ops.UPDATE, [base, value], tuple(attr))


# ---- compositions that fusion looks for


def _concatenate(g: Growth, x: Known) -> Known:
    """Joined along an axis: padded parts chosen by position."""
    if not x.shape:
        raise Unfit
    axis = g.random.randrange(len(x.shape))
    y = g.operand(x.shape, x.dtype)
    extent = x.shape[axis]
    shape = (*x.shape[:axis], 2 * extent, *x.shape[axis + 1 :])
    zero = g.known_leaf(const(0, x.dtype))
    low = tuple((0, 1) for _ in shape)
    high = tuple((extent if d == axis else 0, 1) for d in range(len(shape)))
    a = g.add(ops.PAD, [x, zero], low, shape=shape)
    b = g.add(ops.PAD, [y, zero], high, shape=shape)
    position = g.known_leaf(node(ops.IOTA, (), None, int64, (2 * extent,)))
    limit = g.known_leaf(
        node(ops.SIZE, (), extent, int64) if isinstance(extent, Size) else const(extent, int64)
    )
    first = g.add(ops.LT, [position, limit], dtype=bool_)
    along = tuple(2 * extent if d == axis else 1 for d in range(len(shape)))
    mask = g.spread(g.add(ops.RESHAPE, [first], shape=along), shape)
    return g.add(ops.WHERE, [mask, a, b], dtype=x.dtype)


def _softmax(g: Growth, x: Known) -> Known:
    """Two reductions over the same axis and everything around them."""
    if not x.shape or not x.dtype.is_float or x.wild or any(bounds(e)[0] < 1 for e in x.shape):
        raise Unfit
    return _softmax_over(g, g.scaled(x, 4.0), g.random.randrange(len(x.shape)))


def _softmax_over(g: Growth, x: Known, axis: int) -> Known:
    kept = tuple(1 if d == axis else e for d, e in enumerate(x.shape))

    def back(r: Known) -> Known:
        return g.spread(g.add(ops.RESHAPE, [r], shape=kept), x.shape)

    top = _reduction_over(g, ops.AMAX, x, axis)
    e = g.rounded(ops.EXP, [g.rounded(ops.SUB, [x, back(top)])])
    total = _reduction_over(g, ops.SUM, e, axis)
    return g.rounded(ops.DIV, [e, back(total)], 2.0)


def _attention(g: Growth, queries: Known) -> Known:
    """``softmax(queries @ keys) @ values``, with the scores scaled and perhaps masked."""
    if len(queries.shape) < 2 or not queries.dtype.is_float:
        raise Unfit
    if any(bounds(e)[0] < 1 for e in queries.shape):
        raise Unfit
    *batch, m, k = range(len(queries.shape))
    n, v = k + 1, k + 2
    extents = dict(zip((*batch, m, k), queries.shape, strict=True))
    extents |= {n: g.random.choice((3, 8, 17, 40)), v: g.random.choice((2, 7, 16))}
    first, second = [*batch, k, n], [*batch, n, v]
    keys = g.operand(tuple(extents[label] for label in first), queries.dtype)
    values = g.operand(tuple(extents[label] for label in second), queries.dtype)
    scores = _sum_of_products(g, queries, [*batch, m, k], keys, first, [*batch, m, n])
    scores = g.scaled(scores, 4.0)
    if g.random.random() < 0.5:
        mask = g.operand(scores.shape, bool_)
        scores = g.add(ops.WHERE, [mask, scores, g.known_leaf(const(-4, scores.dtype))],
                       dtype=scores.dtype)  # fmt: skip
    weights = _softmax_over(g, scores, len(scores.shape) - 1)
    return _sum_of_products(g, weights, [*batch, m, n], values, second, [*batch, m, v])


def _normalise(g: Growth, x: Known) -> Known:
    """Subtract the sum over an axis, divide by one plus the sum of squares."""
    if not x.shape or not x.dtype.is_float or x.wild:
        raise Unfit
    axis = g.random.randrange(len(x.shape))
    kept = tuple(1 if d == axis else e for d, e in enumerate(x.shape))

    def back(r: Known) -> Known:
        return g.spread(g.add(ops.RESHAPE, [r], shape=kept), x.shape)

    centred = g.rounded(ops.SUB, [x, back(_reduction_over(g, ops.SUM, x, axis))])
    squares = g.rounded(ops.MUL, [centred, centred], 1.0 + centred.largest)
    scale = g.one_plus(_reduction_over(g, ops.SUM, squares, axis))
    return g.rounded(ops.DIV, [centred, back(scale)], 1.0 + centred.largest)


def _reduction_over(g: Growth, op: Op, x: Known, axis: int) -> Known:
    shape = tuple(e for d, e in enumerate(x.shape) if d != axis)
    error = None
    if op is ops.SUM:
        count = max(size_value(x.shape[axis], s) for s in g.sizes)
        error = count * (x.error + epsilon(x.dtype.accumulator) * x.largest)
    return g.add(op, [x], (axis,), shape=shape, error=error, rounded=error is not None)


# ---- tables

#: How much each function may stretch an error, on the range it is given.
SLOPES = {
    ops.EXP: 21.0, ops.EXP2: 6.0, ops.SIN: 1.0, ops.COS: 1.0, ops.TANH: 1.0, ops.ERF: 1.2,
    ops.TAN: 4.0,
}  # fmt: skip
JUMPS = (ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC)
FLOAT_BINARY = (
    ops.ADD, ops.ADD, ops.SUB, ops.MUL, ops.MUL, ops.DIV, ops.POW, ops.ATAN2, ops.MAX, ops.MIN,
    ops.FMOD,
)  # fmt: skip
INTEGER_BINARY = (
    ops.ADD, ops.SUB, ops.MUL, ops.FLOORDIV, ops.MOD, ops.POW, ops.MAX, ops.MIN,
    ops.AND, ops.OR, ops.XOR, ops.SHL, ops.SHR, ops.RANDOM,
)  # fmt: skip
INDICES = (int64, dtypes.int32, dtypes.int16, dtypes.int8, dtypes.uint8, dtypes.uint32)

LEAVES: dict[str, Callable[[Growth], Known]] = {
    "buffer": Growth.buffer,
    "scalar": Growth.scalar,
    "const": Growth.const,
    "iota": Growth.iota,
    "size": Growth.size,
}
CONSUMERS: dict[str, Step] = {
    "unary": _unary,
    "binary": _binary,
    "compare": _compare,
    "ternary.condition": _where_condition,
    "ternary.value": _ternary,
    "cast": _cast,
    "bitcast": _bitcast,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad.x": _pad,
    "pad.fill": _pad_fill,
    "window": _window,
    "sum": _reduction(ops.SUM),
    "prod": _reduction(ops.PROD),
    "amax": _reduction(ops.AMAX),
    "amin": _reduction(ops.AMIN),
    "contract": _contract,
    "prefix": _prefix,
    "gather.x": _gather_x,
    "gather.index": _gather_index,
    "scatter.base": lambda g, x: _scatter(g, x, None, None),
    "scatter.index": lambda g, x: _scatter(g, None, x, None),
    "scatter.updates": lambda g, x: _scatter(g, None, None, x),
    "update.base": _update_base,
    "update.value": _update_value,
}
#: What graphs have more of than one in so many.
MORE = (
    _concatenate,
    _attention,
    _attention,
    _softmax,
    _normalise,
    *(_unary, _binary, _ternary) * 3,
)
#: What the inputs of an operation are to it, where that makes a difference.
POSITIONS: dict[Op, tuple[str, ...]] = {
    ops.WHERE: ("condition", "value", "value"),
    ops.FMA: ("value", "value", "value"),
    ops.PAD: ("x", "fill"),
    ops.GATHER: ("x", "index"),
    ops.SCATTER: ("base", "index", "updates"),
    ops.UPDATE: ("base", "value"),
}

__all__ = ["CONSUMERS", "LEAVES", "MORE", "POSITIONS", "Step"]
