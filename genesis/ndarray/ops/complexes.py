"""Complex arrays: what every primitive means for them, and the functions that are theirs alone.

A complex value exists above; below there are only its real and its imaginary part. Operations that
move elements keep a complex value whole, everything else is *defined* here by real operations on
the parts: `primitive` hands over whatever it is asked to do with complex numbers. So a formula
written with primitives holds for complex numbers too, and the compiler sees real arithmetic.
"""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from genesis.ir import ops
from genesis.ir.dtype import DType, Number, bool_, float32, float64
from genesis.ir.ops import Op
from genesis.ir.size import product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import ViewStep
from genesis.ndarray.core.value import Value

if TYPE_CHECKING:
    from genesis.ndarray.ops.elementwise import Operand
    from genesis.ndarray.ops.special.complex_functions import Function


class ComplexWarning(RuntimeWarning):
    """An imaginary part is dropped by a conversion to a real type."""


# ---- parts


def joined(re: Value, im: Value) -> Value:
    """The complex value of two parts of one shape, or ()."""
    shape = re.shape or im.shape
    return Value(ops.COMPLEX, (re, im), None, re.dtype.complex, shape, re.device)


def parts(x: Value) -> tuple[Value, Value]:
    """The real and the imaginary part of a complex value."""
    return (
        Value(ops.REAL, (x,), None, x.dtype.real, x.shape, x.device),
        Value(ops.IMAG, (x,), None, x.dtype.real, x.shape, x.device),
    )


def as_real(x: Value) -> Value:
    """Both parts along a new last axis; it is the same memory."""
    return Value(ops.AS_REAL, (x,), None, x.dtype.real, (*x.shape, 2), x.device)


def as_complex(x: Value) -> Value:
    """A last axis of two as the parts of complex numbers; it is the same memory."""
    return Value(ops.AS_COMPLEX, (x,), None, x.dtype.complex, x.shape[:-1], x.device)


def number(value: Number, dtype: DType, device: str) -> Value:
    """A Python number as a scalar of the program, each part for itself."""
    whole = builtins.complex(value)
    re, im = (primitive.scalar(part, dtype.real, device) for part in (whole.real, whole.imag))
    return joined(re, im)


def constant(value: Number, dtype: DType, device: str) -> Value:
    """A number that is part of the program."""
    whole = builtins.complex(value)
    re, im = (primitive.constant(part, dtype.real, device) for part in (whole.real, whole.imag))
    return joined(re, im)


def _real_alone(x: Value) -> Value | None:
    """The real part of a value that was converted from a real one."""
    if x.op is ops.COMPLEX and x.inputs[1].op is ops.CONST and x.inputs[1].attr == 0:
        return primitive.broadcast(x.inputs[0], x.shape)
    return None


# ---- the primitives


def cast(x: Value, dtype: DType) -> Value:
    """`x` converted, where one of both types is complex."""
    if dtype.is_complex and not x.dtype.is_complex:
        return joined(primitive.cast(x, dtype.real), primitive.constant(0, dtype.real, x.device))
    re, im = parts(x)
    if dtype.is_complex:
        return joined(primitive.cast(re, dtype.real), primitive.cast(im, dtype.real))
    if dtype is bool_:
        return primitive.elementwise(ops.OR, primitive.cast(re, bool_), primitive.cast(im, bool_))
    warnings.warn(
        f"converting {x.dtype} to {dtype} drops the imaginary part; take .real to say so",
        ComplexWarning,
        stacklevel=4,
    )
    return primitive.cast(re, dtype)


def apply(op: Op, inputs: Sequence[Value]) -> Value:
    """An elementwise operation on complex values (the condition of a WHERE is bool)."""
    if op is ops.WHERE:
        condition, then, orelse = inputs
        each = zip(parts(then), parts(orelse), strict=True)
        first, second = (primitive.where(condition, a, b) for a, b in each)
        return joined(first, second)
    if op in (ops.ADD, ops.SUB, ops.EQ, ops.NE):
        each = zip(*(parts(x) for x in inputs), strict=True)
        first, second = (primitive.elementwise(op, a, b) for a, b in each)
        if op.group != "compare":
            return joined(first, second)
        return primitive.elementwise(ops.AND if op is ops.EQ else ops.OR, first, second)
    reals = [Term(part) for x in inputs for part in parts(x)]
    if op is ops.ABS:
        return complex_functions.modulus(*reals).value
    if op is ops.NEG:
        re, im = -reals[0], -reals[1]
    elif op is ops.MUL:
        a, b, c, d = reals
        re, im = a * c - b * d, a * d + b * c
    elif op is ops.DIV:
        re, im = complex_functions.divide(*reals)
    elif op is ops.POW:
        re, im = complex_functions.power(*reals)
    else:
        re, im = _function(_NAMES.get(op, op.name), inputs[-1].dtype)(*reals)
    return joined(re.value, im.value)


#: What users call the operations that complex numbers do not have.
_NAMES = {ops.LT: "less", ops.LE: "less_equal", ops.MAX: "maximum", ops.MIN: "minimum"}


def function(name: str, x: Value) -> Value:
    """A function of one variable, by its name."""
    re, im = _function(name, x.dtype)(*(Term(part) for part in parts(x)))
    return joined(re.value, im.value)


def _function(name: str, dtype: DType) -> Function:
    found = complex_functions.FUNCTIONS.get(name)
    if found is None:
        raise TypeError(
            f"{name}: not defined for {dtype}; take the real part, the imaginary part or abs first"
        )
    return found


def reduce(op: Op, x: Value, axes: tuple[int, ...]) -> Value:
    """Fold the given axes away, by sum or product."""
    if op is ops.SUM:
        return as_complex(_pairs_sum(as_real(x), axes))
    if op is not ops.PROD:
        raise TypeError(f"{op.name}: {x.dtype} numbers have no order; take the real part or abs")
    return _product(x, axes)


def _pairs_sum(x: Value, axes: tuple[int, ...]) -> Value:
    """The sum of pairs, which are the last axis of x, over other axes.

    Two elements fill no vector: of a long run many pairs are summed side by side, then these.
    """
    rank = len(x.shape) - 1
    kept = next((d for d in reversed(range(rank)) if d not in axes), -1) + 1
    count = product(x.shape[kept:rank])
    beside = 1
    while isinstance(count, int) and count % (2 * beside) == 0 and 4 * beside * beside <= count:
        beside *= 2
    if beside < 16:
        return primitive.reduce(ops.SUM, x, axes)
    x = primitive.reshape(x, (*x.shape[:kept], count // beside, 2 * beside))
    sums = primitive.reduce(ops.SUM, x, (*(a for a in axes if a < kept), kept))
    pairs = primitive.reshape(sums, (*sums.shape[:-1], beside, 2))
    return primitive.reduce(ops.SUM, pairs, (len(pairs.shape) - 2,))


def _product(x: Value, axes: tuple[int, ...]) -> Value:
    """A product in log2(n) steps: the first half of an axis times the second."""
    kept = [d for d in range(len(x.shape)) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    count = primitive.count(x, axes)
    if not isinstance(count, int):
        raise ValueError(f"prod: the product of {count} {x.dtype} numbers needs a known size")
    x = primitive.reshape(primitive.permute(x, (*kept, *axes)), (*shape, count))
    one = constant(1, x.dtype, x.device)
    if count == 0:
        return primitive.broadcast(one, shape)
    whole = ((0, 1),) * len(shape)
    while count > 1:
        half = (count + 1) // 2
        first = primitive.slice_(x, (*whole, (0, 1)), (*shape, half))
        second = primitive.slice_(x, (*whole, (half, 1)), (*shape, count - half))
        second = primitive.pad(second, (*whole, (0, 1)), (*shape, half), one)
        x, count = primitive.elementwise(ops.MUL, first, second), half
    return primitive.reshape(x, shape)


def contract(
    x: Value, y: Value, lhs: Sequence[Any], rhs: Sequence[Any], out: Sequence[Any]
) -> Value:
    """The sum of products over the labels that `out` does not name, as one real contraction.

    To multiply with c is to multiply a row (re, im) with the matrix [[re c, im c], [-im c, re c]].
    So this is a contraction of x, as it lies in memory, with the matrices of y: twice as many
    terms, twice as many results, and these lie in memory as complex numbers do.
    """
    if out and out[-1] not in rhs:
        # The last axis of the result is one of the matrices: so pairs lie next to each other.
        x, y, lhs, rhs = y, x, rhs, lhs
    left, right = _real_alone(x), _real_alone(y)
    pair, term = object(), object()
    others: Sequence[Any]
    if left is not None:
        first, second, others = left, as_real(y), [*rhs, pair]
    elif right is not None:
        first, second, lhs, others = as_real(x), right, [*lhs, pair], rhs
    else:
        # Behind the summed axis in both operands, so that it and the terms can be one axis.
        inner = [label for label in rhs if label in lhs and label not in out][-1:]
        last = [label for label in rhs if label in out[-1:]]
        order = [label for label in rhs if label not in (*inner, *last)] + inner
        y = primitive.permute(y, [rhs.index(label) for label in (*order, *last)])
        first, second, lhs = as_real(x), _matrices(y, len(order)), [*lhs, term]
        others = [*order, term, *last, pair]
    return as_complex(primitive.contract(first, second, lhs, others, [*out, pair]))


def _matrices(x: Value, axis: int) -> Value:
    """The real matrices of complex numbers: rows along a new axis, columns along the last one."""
    shape = (*x.shape[:axis], 2, *x.shape[axis:], 2)
    thin = (*x.shape[:axis], 1, *x.shape[axis:], 1)
    pair = primitive.iota(2, x.device)
    row, column = (primitive.along(pair, d, shape) for d in (axis, len(shape) - 1))
    re, im = (primitive.expand(primitive.reshape(part, thin), shape) for part in parts(x))
    below = primitive.elementwise(ops.LT, column, row)
    across = primitive.where(below, primitive.elementwise(ops.NEG, im), im)
    return primitive.where(primitive.elementwise(ops.EQ, row, column), re, across)


# ---- functions of arrays


def complex(re: Operand, im: Operand) -> NDArray:
    """The complex numbers with these real and imaginary parts, of float32 or float64.

    >>> from genesis import ndarray as nd
    >>> nd.complex(nd.array([1.0, 2.0]), nd.array([0.0, -1.0]))
    array([1.+0.j, 2.-1.j], dtype=complex64)
    """
    a, b = float_values("complex", (re, im))
    if a.dtype.bits < 32:
        raise TypeError(f"complex: parts are float32 or float64, not {a.dtype}")
    return wrap(joined(a, b))


def polar(length: Operand, angle: Operand) -> NDArray:
    """The complex numbers of a given modulus and angle."""
    r, phi = (wrap(v) for v in float_values("polar", (length, angle)))
    return complex(r * elementwise.cos(phi), r * elementwise.sin(phi))


def real(x: Operand) -> NDArray:
    """The real part, a view of what it is a part of; a real array is its own."""
    if isinstance(x, NDArray) and x.dtype.is_complex:
        return x.seen_through(ViewStep(ops.REAL, None, x.shape, x.dtype.real))
    (value,) = elementwise.values("real", (x,))
    return wrap(parts(value)[0] if value.dtype.is_complex else value)


def imag(x: Operand) -> NDArray:
    """The imaginary part, a view of what it is a part of; zeros for a real array."""
    if isinstance(x, NDArray) and x.dtype.is_complex:
        return x.seen_through(ViewStep(ops.IMAG, None, x.shape, x.dtype.real))
    (value,) = elementwise.values("imag", (x,))
    if value.dtype.is_complex:
        return wrap(parts(value)[1])
    zero = primitive.constant(0, value.dtype, value.device)
    return wrap(primitive.broadcast(zero, value.shape))


def conj(x: Operand) -> NDArray:
    """The imaginary part with the other sign; a real array is its own conjugate."""
    (value,) = elementwise.values("conj", (x,))
    if not value.dtype.is_complex:
        return wrap(value)
    re, im = parts(value)
    return wrap(joined(re, primitive.elementwise(ops.NEG, im)))


conj_physical = conj


def view_as_real(x: NDArray) -> NDArray:
    """Both parts along a new last axis: a view.

    >>> view_as_real(complex(1.0, 2.0)).tolist()
    [1.0, 2.0]
    """
    if not x.dtype.is_complex:
        raise TypeError(f"view_as_real: needs complex numbers, not {x.dtype}")
    return x.seen_through(ViewStep(ops.AS_REAL, None, (*x.shape, 2), x.dtype.real))


def view_as_complex(x: NDArray) -> NDArray:
    """A last axis of two as the parts of complex numbers: a view."""
    if x.dtype not in (float32, float64):
        raise TypeError(f"view_as_complex: needs float32 or float64, not {x.dtype}")
    if not x.shape or x.shape[-1] != 2:
        raise ValueError(f"view_as_complex: the last axis must have two elements, got {x.shape}")
    return x.seen_through(ViewStep(ops.AS_COMPLEX, None, x.shape[:-1], x.dtype.complex))


def angle(x: Operand) -> NDArray:
    """The angle to the positive real axis, from -pi to pi; of real numbers 0 or pi."""
    (value,) = elementwise.values("angle", (x,))
    if value.dtype.is_complex:
        re, im = parts(value)
        return wrap(primitive.elementwise(ops.ATAN2, im, re))
    known = elementwise.float_value("angle", x)
    zero, half = (primitive.constant(n, known.dtype, known.device) for n in (0, math.pi))
    result = primitive.where(primitive.elementwise(ops.LT, known, zero), half, zero)
    unknown = primitive.elementwise(ops.NE, known, known)
    return wrap(primitive.where(unknown, known, result))


def sgn(x: Operand) -> NDArray:
    """The number of modulus 1 in the same direction, 0 for 0; of real numbers the sign."""
    (value,) = elementwise.values("sgn", (x,))
    if not value.dtype.is_complex:
        return elementwise.sign(x)
    re, im = complex_functions.direction(*(Term(part) for part in parts(value)))
    return wrap(joined(re.value, im.value))


def isreal(x: Operand) -> NDArray:
    """Whether the imaginary part is zero."""
    return elementwise.equal(imag(x), 0)


def is_complex(x: NDArray) -> bool:
    """Whether the dtype is a complex one."""
    return x.dtype.is_complex


def every_part(test: Callable[[NDArray], NDArray], both: Op, x: Value) -> NDArray:
    """A question about both parts, the answers combined by AND or OR."""
    first, second = (test(wrap(part)).value for part in parts(x))
    return wrap(primitive.elementwise(both, first, second))


def float_values(name: str, operands: Sequence[Operand]) -> Sequence[Value]:
    """Operands as real floating-point values of one type and shape, or ()."""
    found = elementwise.float_values(name, operands)
    if found[0].dtype.is_complex:
        raise TypeError(f"{name}: needs real numbers, not {found[0].dtype}")
    return found


# They are written with arrays, and hand complex ones over to this module.
from genesis.ndarray.ops import elementwise  # noqa: E402
from genesis.ndarray.ops.special import complex_functions  # noqa: E402
from genesis.ndarray.ops.special.formula import Term  # noqa: E402

__all__ = [
    "ComplexWarning", "angle", "complex", "conj", "conj_physical", "imag", "is_complex", "isreal",
    "polar", "real", "sgn", "view_as_complex", "view_as_real",
]  # fmt: skip
