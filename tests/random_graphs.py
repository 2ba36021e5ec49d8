"""Random tensor graphs, small and tame, for differential testing.

`random_case(seed)` builds a graph of `ir.Node`s out of every primitive, with the memory, scalars
and sizes to run it on. Each node is evaluated while the graph grows, so the generator knows what
values flow and how far two correct implementations may differ: rounding errors are carried along
as an absolute bound, and operations that jump (comparisons, rounding, conversion to integers) take
only values that every implementation computes to the same bits.

Graphs are drawn around *wishes*: ordered pairs of primitives, the second reading the first. A
range of seeds as long as `PAIRS` therefore exercises every pair on purpose; the rest is chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, bool_, int64, uint64
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Leaf, Node, Shape, const, node, topological
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, bounds, common_divisor, product
from genesis.ir.size import evaluate as size_value

Array = np.ndarray[Any, Any]

#: Values beyond this are refused: float16 ends at 65504, and one more product must fit.
LARGEST = 200.0
#: Elements of the largest intermediate value.
MOST = 4096
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13, 16, 17, 31)
EPSILON = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-22}
NUMBERS = tuple(d for d in dtypes.ALL if d is not bool_)
INTEGERS = tuple(d for d in dtypes.ALL if d.is_integer)
FLOATS = tuple(d for d in dtypes.ALL if d.is_float)


@dataclass(frozen=True)
class Case:
    """A graph, and one or more sets of sizes and memory to run it on."""

    seed: int
    roots: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    donated: frozenset[int]
    sizes: tuple[dict[str, int], ...]
    memory: tuple[tuple[Array, ...], ...]  # flat buffers by slot, for each of `sizes`
    errors: tuple[float, ...]  # how far a root may be off

    def expected(self, run: int) -> list[Array]:
        """The oracle's values of the roots."""
        return evaluate(self.roots, self.memory[run], self.scalars, self.sizes[run])


@dataclass(frozen=True, eq=False)
class Known:
    """A node, its value in every run, and how far another implementation's may be off."""

    node: Node
    values: tuple[Array, ...]
    error: float = 0.0  # 0: the same bits everywhere, so that operations that jump may read it
    wild: bool = False  # may hold NaN and infinities

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def largest(self) -> float:
        """The greatest finite magnitude."""
        finite = [np.abs(v.astype(np.float64)) for v in self.values if v.size]
        return max((float(np.max(v, where=np.isfinite(v), initial=0)) for v in finite), default=0)


def random_case(seed: int) -> Case:
    """The graph of a seed."""
    return _Generator(seed).case()


def pairs_of(roots: Sequence[Node]) -> set[tuple[str, str]]:
    """The pairs of primitives in a graph: what is read, and what reads it."""
    found = set()
    for n in topological(roots):
        positions = POSITIONS.get(n.op)
        for k, i in enumerate(n.inputs):
            consumer = _kind(n.op) if positions is None else f"{_kind(n.op)}.{positions[k]}"
            found.add((_kind(i.op), consumer))
    return found


def _kind(op: Op) -> str:
    """Elementwise operations go by their group, all others by name."""
    if op in (ops.CAST, ops.BITCAST):
        return op.name
    return op.group if op.is_elementwise else op.name


class _Unfit(Exception):
    """The operation does not fit the value, or leads out of the tame range."""


class _Generator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.pool: list[Known] = []
        self.scalars: list[Scalar] = []
        self.memory: list[list[Array]] = []
        self.symbol: Size | None = None
        self.sizes: tuple[dict[str, int], ...] = ({},)
        self.wishes = [PAIRS[(seed * 3 + k) % len(PAIRS)] for k in range(3)]
        if seed % 4 == 3 or any("size" in wish for wish in self.wishes):
            low = self.random.choice((0, 1, 4))
            self.symbol = Size.symbol("n", low, 64)
            some = (low, 1, 4, 5, 7, 16, 23)
            first, second = self.random.sample(sorted({n for n in some if n >= low}), 2)
            self.sizes = ({"n": first}, {"n": second})
        #: The type most values have, or graphs fall apart into casts.
        self.usual = self.random.choice((dtypes.float32,) * 10 + FLOATS * 2 + dtypes.ALL)

    def case(self) -> Case:
        for producer, consumer in self.wishes:
            self.wish(producer, consumer)
        for _ in range(self.random.randint(2, 5)):
            self.attempt(self.random.choice([*MORE, *CONSUMERS.values()]))
        used = {i for known in self.pool for i in known.node.inputs}
        ends = [k for k in self.pool if k.node not in used and k.node.op.group != "leaf"]
        inner = [k for k in self.pool if k.node in used and k.node.op.group != "leaf"]
        chosen = ends[-5:] + self.random.sample(inner, min(len(inner), self.random.choice((0, 1))))
        self.random.shuffle(chosen)
        leaves = [n for n in topological(k.node for k in chosen) if n.op is ops.BUFFER]
        slots = sorted({n.attr.slot for n in leaves})
        donated = [s for s in slots if self.random.random() < 0.7]
        return Case(
            self.seed,
            tuple(k.node for k in chosen),
            tuple(self.scalars),
            frozenset(donated),
            self.sizes,
            tuple(tuple(slot[run] for slot in self.memory) for run in range(len(self.sizes))),
            tuple(k.error for k in chosen),
        )

    def wish(self, producer: str, consumer: str) -> None:
        """Add the producer and a consumer of it, if some attempt fits."""
        for _ in range(100):
            size = len(self.pool)
            try:
                CONSUMERS[consumer](self, self.produce(producer))
                return
            except _Unfit:
                del self.pool[size:]

    def attempt(self, step: Callable[[_Generator, Known], Known]) -> None:
        size = len(self.pool)
        try:
            step(self, self.pick())
        except _Unfit:
            del self.pool[size:]

    def produce(self, kind: str) -> Known:
        if kind in LEAVES:
            return LEAVES[kind](self)
        ways = [way for name, way in CONSUMERS.items() if name.split(".")[0] == kind]
        return self.random.choice(ways)(self, self.pick())

    def pick(self) -> Known:
        """Something to work on."""
        if self.pool and self.random.random() < 0.7:
            return self.random.choice(self.pool[-self.random.choice((1, 2, 5, 20)) :])
        return self.buffer()

    # ---- growing
    def add(
        self,
        op: Op,
        inputs: Sequence[Known],
        attr: Any = None,
        dtype: DType | None = None,
        shape: Shape | None = None,
        error: float | None = None,
    ) -> Known:
        """A node with its values. Without an error given, it is the worst of the inputs'."""
        dtype = inputs[0].dtype if dtype is None else dtype
        if shape is None:
            shape = next((i.shape for i in inputs if i.shape), ())
        if any(bounds(extent)[0] < 0 for extent in shape):
            raise _Unfit
        made = node(op, tuple(i.node for i in inputs), attr, dtype, shape)
        alone = node(op, tuple(map(_leaf, range(len(inputs)), inputs)), attr, dtype, shape)
        values = []
        for run, sizes in enumerate(self.sizes):
            if product(size_value(extent, sizes) for extent in shape) > MOST:
                raise _Unfit
            flat = [i.values[run].reshape(-1) for i in inputs]
            values += evaluate([alone], flat, [], sizes)
        if error is None:
            error = max((i.error for i in inputs), default=0.0)
        # What conversion, or a sum over nothing, makes of infinity is the same everywhere.
        wild = dtype.is_float and any(not np.isfinite(v.astype(np.float64)).all() for v in values)
        known = Known(made, tuple(values), error, wild)
        if dtype.is_float and (known.largest > LARGEST or error > 0.1 * LARGEST):
            raise _Unfit
        if wild and error:
            raise _Unfit
        self.pool.append(known)
        return known

    # ---- leaves
    def extent(self) -> Dim:
        if self.symbol is not None and self.random.random() < 0.4:
            n = self.symbol
            return self.random.choice((n, n, n + 1, 2 * n, 3 * n))
        if self.random.random() < 0.02:
            return 0
        return self.random.choice(EXTENTS)

    def new_shape(self, rank: int | None = None) -> Shape:
        rank = self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            shape = tuple(self.extent() for _ in range(rank))
            symbolic = sum(isinstance(e, Size) for e in shape)
            if symbolic <= 1 and all(
                product(size_value(e, s) for e in shape) <= 700 for s in self.sizes
            ):
                return shape

    def buffer(self, shape: Shape | None = None, dtype: DType | None = None) -> Known:
        """A leaf in memory, laid out in one of many ways."""
        if shape is None and dtype is None and self.memory and self.random.random() < 0.1:
            return self.again()
        shape = self.new_shape() if shape is None else shape
        if dtype is None:
            dtype = self.usual if self.random.random() < 0.7 else self.random.choice(dtypes.ALL)
        strides = list(_row_major(shape))
        offset: Dim = 0
        way = self.random.choice(("plain", "plain", "plain", "odd"))
        slot = len(self.memory)
        if way == "odd":
            strides, offset = self.layout(shape)
        runs = []
        for sizes in self.sizes:
            ends = [
                (size_value(e, sizes) - 1) * size_value(s, sizes)
                for e, s in zip(shape, strides, strict=True)
            ]
            empty = any(size_value(e, sizes) == 0 for e in shape)
            reach = size_value(offset, sizes) + sum(e for e in ends if e > 0) + 1
            runs.append(self.elements(dtype, 0 if empty else reach))
        self.memory.append(runs)
        leaf = node(ops.BUFFER, (), Leaf(slot, tuple(strides), offset), dtype, shape)
        return self.known_leaf(leaf)

    def again(self) -> Known:
        """A leaf in memory that another leaf has too: all of it, forwards or backwards."""
        slot = self.random.randrange(len(self.memory))
        counts = {memory.size for memory in self.memory[slot]}
        count = min(counts)
        step = self.random.choice((1, -1)) if count else 1
        dtype = dtypes.as_dtype(self.memory[slot][0].dtype)
        leaf = Leaf(slot, (step,), count - 1 if step < 0 else 0)
        return self.known_leaf(node(ops.BUFFER, (), leaf, dtype, (count,)))

    def layout(self, shape: Shape) -> tuple[list[Dim], Dim]:
        """Strides and offset: permuted, with gaps, backwards, repeated."""
        order = self.random.sample(range(len(shape)), len(shape))
        strides: list[Dim] = [0] * len(shape)
        total: Dim = 1
        offset: Dim = self.random.choice((0, 1, 5))
        for d in order:
            way = self.random.choice(("plain", "plain", "gap", "backwards", "repeat"))
            if way == "repeat" and self.random.random() < 0.5:
                continue
            step = total * 2 if way == "gap" else total
            strides[d] = step
            total = step * shape[d]
            if way == "backwards" and bounds(shape[d])[0] >= 1:
                strides[d] = -step
                offset = offset + step * (shape[d] - 1)
        return strides, offset

    def elements(self, dtype: DType, count: int) -> Array:
        """Tame values: few distinct magnitudes, both signs, zeros; now and then a wild one."""
        if dtype is bool_:
            return self.numbers.integers(0, 2, count).astype(np.bool_)
        if dtype.is_integer:
            low = 0 if dtype.kind == "uint" else -9
            return self.numbers.integers(low, 10, count).astype(dtype.numpy)
        values = self.numbers.integers(-16, 17, count) / 8.0
        if count and self.seed % 10 == 7:
            wild = self.numbers.choice([np.nan, np.inf, -np.inf, -0.0], count)
            values = np.where(self.numbers.random(count) < 0.1, wild, values)
        return values.astype(dtype.numpy)

    def known_leaf(self, leaf: Node) -> Known:
        flat = [[slot[run] for slot in self.memory] for run in range(len(self.sizes))]
        values = [
            evaluate([leaf], memory, self.scalars, sizes)[0]
            for memory, sizes in zip(flat, self.sizes, strict=True)
        ]
        wild = leaf.dtype.is_float and any(
            not np.isfinite(v.astype(np.float64)).all() for v in values
        )
        known = Known(leaf, tuple(values), 0.0, wild)
        self.pool.append(known)
        return known

    def number(self, dtype: DType) -> Scalar:
        value = self.random.choice((0, 1, -1, 2, 3, 0.5, -1.5, 2.0, 7))
        return dtype.cast(int(value) if dtype.is_integer else value)

    def const(self, dtype: DType | None = None) -> Known:
        dtype = dtype or self.random.choice((self.usual, *dtypes.ALL))
        return self.known_leaf(const(self.number(dtype), dtype))

    def scalar(self, dtype: DType | None = None) -> Known:
        dtype = dtype or self.random.choice((self.usual, *dtypes.ALL))
        self.scalars.append(self.number(dtype))
        return self.known_leaf(node(ops.SCALAR, (), len(self.scalars) - 1, dtype))

    def iota(self) -> Known:
        shape = (self.extent(),)
        return self.known_leaf(node(ops.IOTA, (), None, int64, shape))

    def size(self) -> Known:
        if self.symbol is None:
            raise _Unfit
        extent = self.random.choice((self.symbol, 2 * self.symbol + 1))
        return self.known_leaf(node(ops.SIZE, (), extent, int64))

    # ---- operands
    def operand(self, shape: Shape, dtype: DType, keep: bool = True) -> Known:
        """A value of this shape and type (or a scalar, unless `keep`)."""
        chance = self.random.random()
        if not keep and chance < 0.15:
            return self.const(dtype) if chance < 0.07 else self.scalar(dtype)
        if chance < 0.75:
            fitting = [k for k in self.pool if k.dtype is dtype and k.shape == shape]
            if fitting and chance < 0.5:
                return self.random.choice(fitting)
            spread = [k for k in self.pool if k.dtype is dtype and _spreads(k.shape, shape)]
            if spread:
                return self.spread(self.random.choice(spread), shape)
        return self.buffer(shape, dtype)

    def spread(self, x: Known, shape: Shape) -> Known:
        """`x` broadcast to `shape`."""
        full = (1,) * (len(shape) - len(x.shape)) + x.shape
        if full != x.shape:
            x = self.add(ops.RESHAPE, [x], shape=full)
        return x if full == shape else self.add(ops.EXPAND, [x], shape=shape)

    def cast_to(self, x: Known, dtype: DType) -> Known:
        if x.dtype is dtype:
            return x
        jumps = x.dtype.is_float and not dtype.is_float
        if jumps and (x.error or (x.wild and dtype is not bool_)):
            raise _Unfit
        error = None
        if dtype.is_float and (x.error or x.dtype.is_float or x.dtype.bits > 8):
            # Rounding to a narrower type is exact everywhere; it only moves what is off already.
            error = x.error + _epsilon(dtype) * x.largest if x.error else 0.0
        return self.add(ops.CAST, [x], dtype=dtype, error=error)

    def scaled(self, x: Known, largest: float) -> Known:
        """`x` brought below a magnitude."""
        if x.largest <= largest:
            return x
        bound = self.known_leaf(const(largest, x.dtype))
        x = self.add(ops.MIN, [x, bound])
        return self.add(ops.MAX, [x, self.known_leaf(const(-largest, x.dtype))])

    def one_plus(self, x: Known) -> Known:
        """``abs(x) + 1``: something to divide by and to take the logarithm of."""
        one = self.known_leaf(const(1, x.dtype))
        return self.rounded(ops.ADD, [self.add(ops.ABS, [x]), one])

    def rounded(self, op: Op, inputs: Sequence[Known], slope: float = 1.0) -> Known:
        """A float operation with one rounding; errors of the inputs grow by `slope`.

        Additions may be contracted with a product they read, which changes a bit.
        """
        error = sum(i.error for i in inputs) * slope
        inexact = op not in EXACT or (
            op in (ops.ADD, ops.SUB) and any(i.node.op is ops.MUL for i in inputs)
        )
        if error or inexact:
            dtype = inputs[0].dtype
            rough = self.add(op, inputs, error=error)
            self.pool.pop()
            error += 2 * _epsilon(dtype) * max(rough.largest, 1e-3)
            error += _epsilon(dtype) * max(i.largest for i in inputs) if op is ops.FMA else 0.0
        return self.add(op, inputs, error=error)


# ---- elementwise


def _unary(g: _Generator, x: Known) -> Known:
    if x.dtype is bool_:
        return g.add(ops.NOT, [x])
    if x.dtype.is_integer:
        return g.add(g.random.choice((ops.NEG, ops.ABS, ops.NOT)), [x])
    op = g.random.choice((ops.NEG, ops.ABS, *SLOPES, ops.SQRT, ops.LOG, ops.LOG2, *JUMPS))
    if op in (ops.NEG, ops.ABS):
        return g.add(op, [x])
    if op in JUMPS:
        if x.error:
            raise _Unfit
        return g.add(op, [x])
    if op in (ops.SQRT, ops.LOG, ops.LOG2):
        return g.rounded(op, [g.one_plus(x)], 1.5)
    if op in (ops.EXP, ops.EXP2, ops.SIN, ops.COS):
        x = g.scaled(x, 3.0)
    return g.rounded(op, [x], SLOPES[op])


def _binary(g: _Generator, x: Known) -> Known:
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    if x.dtype is bool_:
        op = g.random.choice((ops.AND, ops.OR, ops.XOR, ops.MAX, ops.MIN))
    elif x.dtype.is_integer:
        return _integer_binary(g, x, y)
    else:
        return _float_binary(g, x, y)
    return g.add(op, _either_way(g, x, y))


def _integer_binary(g: _Generator, x: Known, y: Known) -> Known:
    op = g.random.choice(INTEGER_BINARY)
    if op is ops.RANDOM and x.dtype is not uint64:
        op = ops.ADD
    if op in (ops.SHL, ops.SHR, ops.POW):  # counts and exponents: small, not negative
        y = g.add(ops.AND, [y, g.known_leaf(const(3, y.dtype))], shape=y.shape)
        return g.add(op, [x, y], shape=x.shape)
    return g.add(op, _either_way(g, x, y), shape=x.shape)


def _float_binary(g: _Generator, x: Known, y: Known) -> Known:
    op = g.random.choice(FLOAT_BINARY)
    if op is ops.POW:
        exponent = g.scaled(y, 3.0)
        return g.rounded(op, [g.scaled(g.one_plus(x), 3.0), exponent], 40.0)
    if op in (ops.DIV, ops.ATAN2):
        return g.rounded(op, [x, g.one_plus(y)], 1.0 + x.largest)
    if op is ops.MUL:
        return g.rounded(op, _either_way(g, x, y), 1.0 + max(x.largest, y.largest))
    return g.rounded(op, _either_way(g, x, y), 1.0)


def _either_way(g: _Generator, x: Known, y: Known) -> list[Known]:
    return [x, y] if g.random.random() < 0.5 else [y, x]


def _compare(g: _Generator, x: Known) -> Known:
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    if x.error or y.error:
        raise _Unfit
    op = g.random.choice((ops.LT, ops.LE, ops.EQ, ops.NE))
    return g.add(op, _either_way(g, x, y), dtype=bool_, shape=x.shape)


def _where_condition(g: _Generator, x: Known) -> Known:
    if x.dtype is not bool_:
        raise _Unfit
    a = g.operand(x.shape, g.usual, keep=not x.shape)
    b = g.operand(x.shape, g.usual, keep=not x.shape)
    return g.add(ops.WHERE, [x, a, b], dtype=a.dtype)


def _where_value(g: _Generator, x: Known) -> Known:
    condition = g.operand(x.shape, bool_)
    y = g.operand(x.shape, x.dtype, keep=not x.shape)
    a, b = _either_way(g, x, y)
    return g.add(ops.WHERE, [condition, a, b], dtype=x.dtype)


def _fma(g: _Generator, x: Known) -> Known:
    if not x.dtype.is_float:
        raise _Unfit
    others = [g.operand(x.shape, x.dtype) for _ in range(2)]
    slope = 1.0 + max(x.largest, *(o.largest for o in others))
    return g.rounded(ops.FMA, [x, *others], slope)


def _ternary(g: _Generator, x: Known) -> Known:
    return g.random.choice((_where_value, _where_value, _fma))(g, x)


def _cast(g: _Generator, x: Known) -> Known:
    target = g.random.choice([d for d in (g.usual, *dtypes.ALL) if d is not x.dtype])
    return g.cast_to(x, target)


def _bitcast(g: _Generator, x: Known) -> Known:
    # The sign of a zero, or a NaN's other bits, are nobody's promise once something was computed.
    if x.dtype.is_float and (x.node.op is not ops.BUFFER or x.wild):
        raise _Unfit
    same = [d for d in NUMBERS if d.bits == x.dtype.bits and d is not x.dtype]
    to = [d for d in same if d.is_integer]
    if x.dtype is bool_ or not to:
        raise _Unfit
    return g.add(ops.BITCAST, [x], dtype=g.random.choice(to))


# ---- movement


def _reshape(g: _Generator, x: Known) -> Known:
    shape = list(x.shape)
    for _ in range(g.random.randint(1, 3)):
        way = g.random.choice(("merge", "merge", "split", "split", "one", "squeeze", "all"))
        d = g.random.randrange(len(shape) + 1)
        if way == "one" or not shape:
            shape.insert(d, 1)
        elif way == "squeeze" and 1 in shape:
            shape.remove(1)
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
    if tuple(shape) == x.shape or len(shape) > 5:
        raise _Unfit
    return g.add(ops.RESHAPE, [x], shape=tuple(shape))


def _permute(g: _Generator, x: Known) -> Known:
    if len(x.shape) < 2:
        raise _Unfit
    axes = tuple(g.random.sample(range(len(x.shape)), len(x.shape)))
    return g.add(ops.PERMUTE, [x], axes, shape=tuple(x.shape[a] for a in axes))


def _expand(g: _Generator, x: Known) -> Known:
    if x.shape and 1 in x.shape:
        full = x
    elif x.node.op.group == "leaf" and x.node.op is not ops.BUFFER:
        raise _Unfit  # a scalar leaf: only a reshape can read it
    else:
        full = x
        if g.random.random() < 0.5 and x.shape:  # keep the pair when the value has no axis of 1
            raise _Unfit
        at = g.random.randint(0, len(x.shape))
        full = g.add(ops.RESHAPE, [x], shape=(*x.shape[:at], 1, *x.shape[at:]))
    shape = tuple(g.extent() if e == 1 and g.random.random() < 0.8 else e for e in full.shape)
    if sum(isinstance(e, Size) for e in shape) > 1 or shape == full.shape:
        raise _Unfit
    return g.add(ops.EXPAND, [full], shape=shape)


def _steps(g: _Generator, extent: Dim) -> tuple[Dim, int, Dim]:
    """(start, step, count) inside an extent."""
    least = bounds(extent)[0]
    if least == 0 and extent == 0:
        return 0, 1, 0
    ways: list[tuple[Dim, int, Dim]] = [(0, 1, extent), (0, 2, (extent + 1) // 2)]
    if least >= 1:
        ways += [(0, 1, 1), (extent - 1, -1, extent), (extent - 1, 1, 1), (1, 1, extent - 1)]
        ways += [(extent - 1, -2, (extent + 1) // 2)]
    if least >= 4:
        ways += [(1, 1, extent - 2), (extent - 2, -1, extent - 2), (2, 3, (extent - 3) // 3 + 1)]
    return g.random.choice(ways)


def _slice(g: _Generator, x: Known) -> Known:
    if not x.shape:
        raise _Unfit
    steps = [_steps(g, e) for e in x.shape]
    attr = tuple((start, step) for start, step, _ in steps)
    return g.add(ops.SLICE, [x], attr, shape=tuple(count for _, _, count in steps))


def _places(g: _Generator, shape: Shape) -> tuple[tuple[tuple[Dim, int], ...], Shape]:
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


def _pad(g: _Generator, x: Known) -> Known:
    if not x.shape:
        raise _Unfit
    places, shape = _places(g, x.shape)
    fill = g.const(x.dtype) if g.random.random() < 0.7 else g.scalar(x.dtype)
    return g.add(ops.PAD, [x, fill], places, shape=shape)


def _pad_fill(g: _Generator, fill: Known) -> Known:
    if fill.shape:
        raise _Unfit
    x = g.operand(g.new_shape(g.random.choice((1, 2))), fill.dtype)
    places, shape = _places(g, x.shape)
    return g.add(ops.PAD, [x, fill], places, shape=shape)


def _window(g: _Generator, x: Known) -> Known:
    if not x.shape or len(x.shape) > 4:
        raise _Unfit
    axis = g.random.randrange(len(x.shape))
    width, stride, dilation = (g.random.choice(c) for c in ((1, 2, 3), (1, 1, 2), (1, 1, 2)))
    reach = dilation * (width - 1) + 1
    if bounds(x.shape[axis])[0] < reach:
        raise _Unfit
    count = (x.shape[axis] - reach) // stride + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], width)
    return g.add(ops.WINDOW, [x], (axis, stride, dilation), shape=shape)


# ---- reductions and contraction


def _reduction(op: Op) -> Callable[[_Generator, Known], Known]:
    def reduce(g: _Generator, x: Known) -> Known:
        if not x.shape or (x.dtype is bool_ and op in (ops.SUM, ops.PROD)):
            raise _Unfit
        rank = len(x.shape)
        axes = tuple(sorted(g.random.sample(range(rank), g.random.randint(1, rank))))
        shape = tuple(e for d, e in enumerate(x.shape) if d not in axes)
        error = None
        if x.dtype.is_float and op in (ops.SUM, ops.PROD):
            count = max(product(size_value(x.shape[a], sizes) for a in axes) for sizes in g.sizes)
            largest = max(1.0, x.largest)
            if op is ops.PROD and count * math.log(largest) > math.log(LARGEST):
                raise _Unfit
            slope = count * (1.0 if op is ops.SUM else largest ** max(0, count - 1))
            wide = _epsilon(x.dtype.accumulator)
            error = slope * (x.error + wide * x.largest) + _epsilon(x.dtype) * LARGEST / 8
            if x.wild:
                raise _Unfit
        return g.add(op, [x], axes, shape=shape, error=error)

    return reduce


def _contract(g: _Generator, x: Known) -> Known:
    if not x.shape or x.dtype is bool_ or x.wild:
        raise _Unfit
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
    if y.wild:
        raise _Unfit
    sides = [(x, tuple(labels)), (y, tuple(right))]
    if g.random.random() < 0.5:
        sides.reverse()
    count = 1
    for label in extents:
        if label not in out:
            count *= max(size_value(extents[label], s) for s in g.sizes)
    error = 0.0
    if x.dtype.is_float:
        wide = _epsilon(x.dtype.accumulator)
        error = count * (x.error * y.largest + y.error * x.largest + wide * x.largest * y.largest)
        error += _epsilon(x.dtype) * LARGEST / 8
    (a, left), (b, right_labels) = sides
    shape = tuple(extents[label] for label in out)
    return g.add(ops.CONTRACT, [a, b], (left, right_labels, tuple(out)), shape=shape, error=error)


# ---- indexing


def _index(g: _Generator, shape: Shape, extent: Dim) -> Known:
    """Positions in an extent, some of them outside."""
    dtype = g.random.choice((int64, int64, dtypes.int32, dtypes.uint8, dtypes.int16))
    known = g.buffer(shape, dtype)
    low = 0 if dtype.kind == "uint" else -2
    for run, memory in enumerate(g.memory[-1]):
        high = size_value(extent, g.sizes[run]) + 2
        memory[...] = g.numbers.integers(low, high, memory.size).astype(dtype.numpy)
    g.pool.remove(known)
    return g.known_leaf(known.node)


def _gather_x(g: _Generator, x: Known) -> Known:
    axes = [d for d, e in enumerate(x.shape) if bounds(e)[0] >= 1]
    if not axes:
        raise _Unfit
    axis = g.random.choice(axes)
    where = _index(g, g.new_shape(g.random.choice((0, 1, 1, 2))), x.shape[axis])
    return _gather(g, x, where, axis)


def _gather_index(g: _Generator, where: Known) -> Known:
    if where.dtype not in INDICES or len(where.shape) > 3:
        raise _Unfit
    x = g.operand(tuple(g.random.choice(EXTENTS) for _ in range(g.random.randint(1, 2))), g.usual)
    return _gather(g, x, where, g.random.randrange(len(x.shape)))


def _gather(g: _Generator, x: Known, where: Known, axis: int) -> Known:
    shape = x.shape[:axis] + where.shape + x.shape[axis + 1 :]
    if len(shape) > 5 or sum(isinstance(e, Size) for e in shape) > 1:
        raise _Unfit
    return g.add(ops.GATHER, [x, where], axis, shape=shape, error=x.error)


def _scatter(g: _Generator, x: Known | None, where: Known | None, new: Known | None) -> Known:
    """Scatter-add with one operand given and the others found."""
    known = x or new
    dtype = g.random.choice((g.usual, dtypes.float32)) if known is None else known.dtype
    if dtype is bool_ or (known is not None and (not known.shape or known.wild)):
        raise _Unfit
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
        raise _Unfit
    error = 0.0
    if dtype.is_float:
        count = max(w.size for w in where.values)
        error = x.error + count * new.error
        error += _epsilon(dtype) * (count + 1) * (x.largest + count * new.largest)
    return g.add(ops.SCATTER_ADD, [x, where, new], axis, shape=x.shape, error=error)


def _update_base(g: _Generator, x: Known) -> Known:
    if not x.shape:
        raise _Unfit
    steps = [_steps(g, e) for e in x.shape]
    attr = tuple((start, step) for start, step, _ in steps)
    shape = tuple(count for _, _, count in steps)
    way = g.random.random()
    if way < 0.3:  # the value reads what it overwrites
        value = g.add(ops.SLICE, [x], attr, shape=shape)
        value = g.random.choice((_unary, _binary))(g, value)
        if value.dtype is not x.dtype or value.shape != shape:
            raise _Unfit
    else:
        value = g.operand(shape, x.dtype)
    made = g.add(ops.UPDATE, [x, value], attr)
    if way > 0.8:  # a chain
        return _update_base(g, made)
    return made


def _update_value(g: _Generator, value: Known) -> Known:
    if not value.shape or any(bounds(e)[0] < 1 for e in value.shape):
        raise _Unfit
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


def _concatenate(g: _Generator, x: Known) -> Known:
    """Joined along an axis: padded parts chosen by position."""
    if not x.shape:
        raise _Unfit
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


def _softmax(g: _Generator, x: Known) -> Known:
    """Two reductions over the same axis and everything around them."""
    if not x.shape or not x.dtype.is_float or x.wild or any(bounds(e)[0] < 1 for e in x.shape):
        raise _Unfit
    axis = g.random.randrange(len(x.shape))
    kept = tuple(1 if d == axis else e for d, e in enumerate(x.shape))

    def back(r: Known) -> Known:
        return g.spread(g.add(ops.RESHAPE, [r], shape=kept), x.shape)

    x = g.scaled(x, 4.0)
    top = _reduction_over(g, ops.AMAX, x, axis)
    e = g.rounded(ops.EXP, [g.rounded(ops.SUB, [x, back(top)])])
    total = _reduction_over(g, ops.SUM, e, axis)
    return g.rounded(ops.DIV, [e, back(total)], 2.0)


def _normalise(g: _Generator, x: Known) -> Known:
    """Subtract the sum over an axis, divide by one plus the sum of squares."""
    if not x.shape or not x.dtype.is_float or x.wild:
        raise _Unfit
    axis = g.random.randrange(len(x.shape))
    kept = tuple(1 if d == axis else e for d, e in enumerate(x.shape))

    def back(r: Known) -> Known:
        return g.spread(g.add(ops.RESHAPE, [r], shape=kept), x.shape)

    centred = g.rounded(ops.SUB, [x, back(_reduction_over(g, ops.SUM, x, axis))])
    squares = g.rounded(ops.MUL, [centred, centred], 1.0 + centred.largest)
    scale = g.one_plus(_reduction_over(g, ops.SUM, squares, axis))
    return g.rounded(ops.DIV, [centred, back(scale)], 1.0 + centred.largest)


def _reduction_over(g: _Generator, op: Op, x: Known, axis: int) -> Known:
    shape = tuple(e for d, e in enumerate(x.shape) if d != axis)
    error = None
    if op is ops.SUM:
        count = max(size_value(x.shape[axis], s) for s in g.sizes)
        error = count * (x.error + _epsilon(x.dtype.accumulator) * x.largest)
        error += _epsilon(x.dtype) * LARGEST / 8
    return g.add(op, [x], (axis,), shape=shape, error=error)


# ---- pieces


def _leaf(slot: int, known: Known) -> Node:
    """A stand-in for a value, in row-major memory."""
    leaf = Leaf(slot, _row_major(known.shape))
    return node(ops.BUFFER, (), leaf, known.dtype, known.shape)


def _row_major(shape: Shape) -> tuple[Dim, ...]:
    strides: list[Dim] = []
    total: Dim = 1
    for extent in reversed(shape):
        strides.append(total)
        total = total * extent
    return tuple(reversed(strides))


def _spreads(shape: Shape, target: Shape) -> bool:
    missing = len(target) - len(shape)
    if missing < 0:
        return False
    return all(a in (1, b) for a, b in zip(shape, target[missing:], strict=True))


def _epsilon(dtype: DType) -> float:
    return EPSILON.get(dtype, 2.0**-50) if dtype.is_float else 0.0


# ---- tables

#: How much each function may stretch an error, on the range it is given.
SLOPES = {
    ops.EXP: 21.0, ops.EXP2: 6.0, ops.SIN: 1.0, ops.COS: 1.0, ops.TANH: 1.0, ops.ERF: 1.2,
}  # fmt: skip
JUMPS = (ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC)
#: Rounded once, the same way by everybody.
EXACT = frozenset({ops.ADD, ops.SUB, ops.MUL, ops.DIV, ops.SQRT, ops.MAX, ops.MIN})
FLOAT_BINARY = (
    ops.ADD, ops.ADD, ops.SUB, ops.MUL, ops.MUL, ops.DIV, ops.POW, ops.ATAN2, ops.MAX, ops.MIN,
)  # fmt: skip
INTEGER_BINARY = (
    ops.ADD, ops.SUB, ops.MUL, ops.FLOORDIV, ops.MOD, ops.POW, ops.MAX, ops.MIN,
    ops.AND, ops.OR, ops.XOR, ops.SHL, ops.SHR, ops.RANDOM,
)  # fmt: skip
INDICES = (int64, dtypes.int32, dtypes.int16, dtypes.int8, dtypes.uint8, dtypes.uint32)

LEAVES: dict[str, Callable[[_Generator], Known]] = {
    "buffer": _Generator.buffer,
    "scalar": _Generator.scalar,
    "const": _Generator.const,
    "iota": _Generator.iota,
    "size": _Generator.size,
}
CONSUMERS: dict[str, Callable[[_Generator, Known], Known]] = {
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
    "gather.x": _gather_x,
    "gather.index": _gather_index,
    "scatter_add.base": lambda g, x: _scatter(g, x, None, None),
    "scatter_add.index": lambda g, x: _scatter(g, None, x, None),
    "scatter_add.updates": lambda g, x: _scatter(g, None, None, x),
    "update.base": _update_base,
    "update.value": _update_value,
}
#: What graphs have more of than one in so many.
MORE = (_concatenate, _softmax, _normalise, *(_unary, _binary, _ternary) * 3)
#: What the inputs of an operation are to it, where that makes a difference.
POSITIONS: dict[Op, tuple[str, ...]] = {
    ops.WHERE: ("condition", "value", "value"),
    ops.FMA: ("value", "value", "value"),
    ops.PAD: ("x", "fill"),
    ops.GATHER: ("x", "index"),
    ops.SCATTER_ADD: ("base", "index", "updates"),
    ops.UPDATE: ("base", "value"),
}


def _pairs() -> tuple[tuple[str, str], ...]:
    """Every producer with every consumer whose type and rank it can have."""
    producers = [*LEAVES, *dict.fromkeys(name.split(".")[0] for name in CONSUMERS)]
    single = {"scalar", "const", "size"}  # leaves of rank 0
    takes_single = {"unary", "binary", "compare", "cast", "bitcast", "reshape", "pad.fill"}
    takes_single |= {"ternary.condition", "ternary.value"}
    never_bool = {"iota", "size", "bitcast", "sum", "prod", "contract", "scatter_add"}
    takes_number = {"bitcast", "sum", "prod", "contract", "gather.index"}
    takes_number |= {"scatter_add.base", "scatter_add.index", "scatter_add.updates"}
    never_single = {"buffer", "iota", "permute", "expand", "slice", "pad", "window"}
    never_single |= {"scatter_add", "update"}

    def sensible(producer: str, consumer: str) -> bool:
        if producer in single and consumer not in takes_single:
            return False
        if consumer == "ternary.condition" and producer in never_bool:
            return False
        if consumer in takes_number and producer == "compare":
            return False
        if consumer == "pad.fill" and producer in never_single:
            return False
        return not (producer == "iota" and consumer in ("permute", "expand"))

    return tuple((p, c) for p in producers for c in CONSUMERS if sensible(p, c))


#: The pairs of primitives that make sense: what is read, and what reads it.
PAIRS = _pairs()

__all__ = ["Case", "PAIRS", "pairs_of", "random_case"]
