"""Values of a growing random graph: nodes that are evaluated as soon as they are made.

A `Growth` makes leaves in many layouts and adds nodes to them. It knows what values flow and how
far two correct implementations may differ: rounding errors are carried along as an absolute bound,
and what every implementation computes to the same bits has error 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, bool_, int64
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Leaf, Node, Shape, const, node
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, bounds, product
from genesis.ir.size import evaluate as size_value

Array = np.ndarray[Any, Any]

#: Values beyond this are refused: float16 ends at 65504, and one more product must fit.
LARGEST = 200.0
#: Elements of the largest intermediate value.
MOST = 4096
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 13, 16, 17, 31)
EPSILON = {dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7, dtypes.float32: 2.0**-22}
FLOATS = tuple(d for d in dtypes.ALL if d.is_float)
#: Rounded once, the same way by everybody.
EXACT = frozenset({ops.ADD, ops.SUB, ops.MUL, ops.DIV, ops.SQRT, ops.MAX, ops.MIN})


class Unfit(Exception):
    """An operation does not fit a value, or leads out of the tame range."""


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


class Growth:
    """A graph that grows; `pool` holds every value it has so far."""

    def __init__(self, seed: int, symbolic: bool) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.pool: list[Known] = []
        self.scalars: list[Scalar] = []
        self.memory: list[list[Array]] = []
        self.symbol: Size | None = None
        self.sizes: tuple[dict[str, int], ...] = ({},)
        if symbolic:
            low = self.random.choice((0, 1, 4))
            self.symbol = Size.symbol("n", low, 64)
            some = (low, 1, 4, 5, 7, 16, 23)
            first, second = self.random.sample(sorted({n for n in some if n >= low}), 2)
            self.sizes = ({"n": first}, {"n": second})
        #: The type most values have, or graphs fall apart into casts.
        self.usual = self.random.choice((dtypes.float32,) * 10 + FLOATS * 2 + dtypes.ALL)

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
        rounded: bool = False,
    ) -> Known:
        """A node with its values. Without an error given, it is the worst of the inputs'.

        `rounded`: implementations may differ in the last bits of the result, too.
        """
        dtype = inputs[0].dtype if dtype is None else dtype
        if shape is None:
            shape = next((i.shape for i in inputs if i.shape), ())
        if any(bounds(extent)[0] < 0 for extent in shape):
            raise Unfit
        made = node(op, tuple(i.node for i in inputs), attr, dtype, shape)
        alone = node(op, tuple(map(_leaf, range(len(inputs)), inputs)), attr, dtype, shape)
        values = []
        for run, sizes in enumerate(self.sizes):
            if product(size_value(extent, sizes) for extent in shape) > MOST:
                raise Unfit
            flat = [i.values[run].reshape(-1) for i in inputs]
            values += evaluate([alone], flat, [], sizes)
        if error is None:
            error = max((i.error for i in inputs), default=0.0)
        # What conversion, or a sum over nothing, makes of infinity is the same everywhere.
        wild = dtype.is_float and any(not np.isfinite(v.astype(np.float64)).all() for v in values)
        known = Known(made, tuple(values), error, wild)
        if rounded:
            error += 2 * epsilon(dtype) * max(known.largest, 1e-3)
            known = replace(known, error=error)
        if dtype.is_float and (known.largest > LARGEST or error > 0.1 * LARGEST):
            raise Unfit
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
            raise Unfit
        extent = self.random.choice((self.symbol, 2 * self.symbol + 1))
        return self.known_leaf(node(ops.SIZE, (), extent, int64))

    # ---- operands
    def operand(self, shape: Shape, dtype: DType, keep: bool = True) -> Known:
        """A value of this shape and type (or a scalar, unless `keep`)."""
        chance = self.random.random()
        if not keep and chance < 0.15:
            return self.const(dtype) if chance < 0.07 else self.scalar(dtype)
        if chance < 0.75:
            fitting = [k for k in self.pool if k.dtype is dtype and same(k.shape, shape)]
            if fitting and chance < 0.5:
                return self.random.choice(fitting)
            spread = [k for k in self.pool if k.dtype is dtype and _spreads(k.shape, shape)]
            if spread:
                return self.spread(self.random.choice(spread), shape)
        return self.buffer(shape, dtype)

    def spread(self, x: Known, shape: Shape) -> Known:
        """`x` broadcast to `shape`."""
        full = (1,) * (len(shape) - len(x.shape)) + x.shape
        if not same(full, x.shape):
            x = self.add(ops.RESHAPE, [x], shape=full)
        return x if same(full, shape) else self.add(ops.EXPAND, [x], shape=shape)

    def cast_to(self, x: Known, dtype: DType) -> Known:
        if x.dtype is dtype:
            return x
        jumps = x.dtype.is_float and not dtype.is_float
        if jumps and (x.error or (x.wild and dtype is not bool_)):
            raise Unfit
        error = None
        if dtype.is_float and (x.error or x.dtype.is_float or x.dtype.bits > 8):
            # Rounding to a narrower type is exact everywhere; it only moves what is off already.
            error = x.error + epsilon(dtype) * x.largest if x.error else 0.0
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
        if any(i.wild and i.error for i in inputs):
            raise Unfit  # 0 times infinity is not near anything
        error = sum(i.error for i in inputs) * slope
        inexact = op not in EXACT or (
            op in (ops.ADD, ops.SUB) and any(i.node.op is ops.MUL for i in inputs)
        )
        if op in (ops.ADD, ops.SUB, ops.FMA) and inexact:  # the product's rounding may be left out
            error += epsilon(inputs[0].dtype) * max(i.largest for i in inputs) ** 2
        return self.add(op, inputs, error=error, rounded=bool(error) or inexact)


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
    return all(is_one(a) or same(a, b) for a, b in zip(shape, target[missing:], strict=True))


def same(a: Shape | Dim, b: Shape | Dim) -> bool:
    """Whether shapes or extents are known to be equal; a size itself answers only the compiler."""
    return str(a) == str(b)


def is_one(extent: Dim) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, int) and extent == 1


def epsilon(dtype: DType) -> float:
    """How far one rounding may move a value, relative to it; 0 for integers."""
    return EPSILON.get(dtype, 2.0**-50) if dtype.is_float else 0.0


__all__ = ["EXTENTS", "LARGEST", "Array", "Growth", "Known", "Unfit", "epsilon", "is_one", "same"]
