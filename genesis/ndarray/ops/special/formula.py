"""Formulas on values: what the elementary and special functions are written with.

A `Term` is a value with operators. A formula takes terms of one floating-point type and gives one;
`unary`, `binary` and `wide` make functions of arrays from formulas. Half precisions are widened
around a formula, so it sees float32 or float64, and picks its coefficients by `Term.format`.

Products and sums of different terms may be contracted to fused multiply-adds; where a formula
depends on the rounding error of one operation it says `fma`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, float32, float64, int32, int64
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.value import Value
from genesis.ndarray.ops import complexes
from genesis.ndarray.ops import elementwise as of_arrays
from genesis.ndarray.ops.elementwise import Operand


@dataclass(frozen=True)
class FloatLayout:
    """How a floating-point type is laid out in bits."""

    integer: DType  # of the same width
    mantissa: int  # stored bits
    bias: int

    @property
    def sign(self) -> int:
        """An integer with only the sign bit set."""
        return -1 << (self.integer.bits - 1)

    @property
    def rounder(self) -> float:
        """Adding this rounds to an integer, which the low bits then hold."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The least normal number."""
        return 2.0 ** (1 - self.bias)


SINGLE = FloatLayout(int32, 23, 127)
DOUBLE = FloatLayout(int64, 52, 1023)


class Term:
    """A value with operators. Python numbers are constants of the value's type."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.value.dtype

    @property
    def format(self) -> FloatLayout:
        """The layout of this floating-point type, or of the one that has these bits."""
        return SINGLE if self.dtype.bits == 32 else DOUBLE

    def of(self, number: Scalar) -> Term:
        """A constant of this type."""
        return Term(primitive.constant(number, self.value.dtype, self.value.device))

    def argument(self, number: Scalar) -> Term:
        """A user's number of this type: another one makes no other program."""
        return Term(primitive.scalar(number, self.value.dtype, self.value.device))

    def binary(self, op: ops.Op, other: Term | Scalar) -> Term:
        """An operation on this and another term."""
        y = other if isinstance(other, Term) else self.of(other)
        return Term(primitive.elementwise(op, self.value, y.value))

    def apply(self, op: ops.Op) -> Term:
        """A unary operation."""
        return Term(primitive.elementwise(op, self.value))

    # ---- arithmetic
    def __add__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.ADD, other)

    def __sub__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.SUB, other)

    def __mul__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.MUL, other)

    def __truediv__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.DIV, other)

    def __radd__(self, other: Scalar) -> Term:
        return self.of(other) + self

    def __rsub__(self, other: Scalar) -> Term:
        return self.of(other) - self

    def __rmul__(self, other: Scalar) -> Term:
        return self.of(other) * self

    def __rtruediv__(self, other: Scalar) -> Term:
        return self.of(other) / self

    def divide(self, other: Term | Scalar) -> Term:
        """The quotient of integers, rounded down."""
        return self.binary(ops.FLOORDIV, other)

    def __mod__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.MOD, other)

    def __neg__(self) -> Term:
        return self.apply(ops.NEG)

    def __abs__(self) -> Term:
        return self.apply(ops.ABS)

    def fma(self, factor: Term | Scalar, summand: Term | Scalar) -> Term:
        """``self * factor + summand`` in one rounding."""
        y, z = (v if isinstance(v, Term) else self.of(v) for v in (factor, summand))
        return Term(primitive.elementwise(ops.FMA, self.value, y.value, z.value))

    def max(self, other: Term | Scalar) -> Term:
        """The greater one; NaN wins."""
        return self.binary(ops.MAX, other)

    def min(self, other: Term | Scalar) -> Term:
        """The lesser one; NaN wins."""
        return self.binary(ops.MIN, other)

    def clamp(self, low: float, high: float) -> Term:
        """Moved into a range; NaN stays."""
        below = (self > high).where(self.of(high), self)
        return (below < low).where(self.of(low), below)

    # ---- bits
    def __and__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.AND, other)

    def __or__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.OR, other)

    def __xor__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.XOR, other)

    def __lshift__(self, other: int) -> Term:
        return self.binary(ops.SHL, other)

    def __rshift__(self, other: int) -> Term:
        return self.binary(ops.SHR, other)

    def __invert__(self) -> Term:
        return self.apply(ops.NOT)

    def bits(self) -> Term:
        """A float's bits as a signed integer."""
        return Term(primitive.elementwise(ops.BITCAST, self.value, dtype=self.format.integer))

    def real(self) -> Term:
        """The float that has these bits."""
        dtype = float32 if self.dtype.bits == 32 else float64
        return Term(primitive.elementwise(ops.BITCAST, self.value, dtype=dtype))

    def cast(self, dtype: DType) -> Term:
        """Converted to another type."""
        return Term(primitive.cast(self.value, dtype))

    def with_sign_of(self, other: Term) -> Term:
        """The size of this number with the sign of another."""
        sign = self.format.sign
        return ((self.bits() & ~sign) | (other.bits() & sign)).real()

    # ---- comparisons and choice
    def __lt__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.LT, other)

    def __le__(self, other: Term | Scalar) -> Term:
        return self.binary(ops.LE, other)

    def __gt__(self, other: Term | Scalar) -> Term:
        return (other if isinstance(other, Term) else self.of(other)).binary(ops.LT, self)

    def __ge__(self, other: Term | Scalar) -> Term:
        return (other if isinstance(other, Term) else self.of(other)).binary(ops.LE, self)

    def equals(self, other: Term | Scalar) -> Term:
        """Whether both are the same; not for NaN."""
        return self.binary(ops.EQ, other)

    def differs(self, other: Term | Scalar) -> Term:
        """Whether both are not the same; so for NaN."""
        return self.binary(ops.NE, other)

    def where(self, then: Term | Scalar, orelse: Term | Scalar) -> Term:
        """One of two, by this condition; one of them must be a term."""
        like = then if isinstance(then, Term) else orelse
        assert isinstance(like, Term)
        a, b = (v if isinstance(v, Term) else like.of(v) for v in (then, orelse))
        return Term(primitive.where(self.value, a.value, b.value))


# ---- building blocks


def polynomial(t: Term, coefficients: Sequence[float]) -> Term:
    """``c0 + c1*t + c2*t**2 + ..`` by Horner's rule."""
    result = t.of(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.fma(t, c)
    return result


def nearest_integer(t: Term) -> tuple[Term, Term]:
    """`t` rounded, as a float and as an integer, for ``|t| < 2**(mantissa - 1)``."""
    f = t.format
    shifted = t + f.rounder
    start = (f.bias + f.mantissa << f.mantissa) | 1 << (f.mantissa - 1)
    return shifted - f.rounder, shifted.bits() - start


def power_of_two(n: Term) -> Term:
    """``2**n`` of an integer n, where that is a normal number."""
    f = n.format
    return ((n + f.bias) << f.mantissa).real()


# ---- functions of arrays

P = ParamSpec("P")
Formula = Callable[Concatenate[Term, P], Term]
Formula2 = Callable[[Term, Term], Term]


def terms(name: str, operands: Sequence[Operand]) -> tuple[list[Term], DType]:
    """Operands as terms of one type to compute in, and the floating-point type of the result."""
    found = of_arrays.float_values(name, operands)
    dtype = found[0].dtype
    return [Term(primitive.cast(v, dtype.accumulator)) for v in found], dtype


def result(x: Term, dtype: DType) -> NDArray:
    """The array of a formula's result."""
    return wrap(primitive.cast(x.value, dtype))


def unary(
    formula: Formula[P], inside: DType | None = None
) -> Callable[Concatenate[Operand, P], NDArray]:
    """The function of one operand, and maybe some numbers, that a formula ``f_of`` describes.

    `inside` is the type that the formula needs, if it is not that of the operand.
    """
    name = formula.__name__.strip("_").removesuffix("_of")

    def function(x: Operand, *args: P.args, **kwargs: P.kwargs) -> NDArray:
        (term,), dtype = terms(name, (x,))
        if dtype.is_complex:
            return wrap(complexes.function(name, term.value))
        term = term if inside is None else term.cast(inside)
        return result(formula(term, *args, **kwargs), dtype)

    first, *numbers = inspect.signature(formula).parameters.values()
    given = [first.replace(name="x", annotation="Operand"), *numbers]
    function.__signature__ = inspect.Signature(given, return_annotation="NDArray")  # type: ignore[attr-defined]
    return of_arrays.named(function, name, formula.__doc__ or "")  # type: ignore[return-value]


def binary(formula: Formula2, inside: DType | None = None) -> of_arrays.Binary:
    """The function of two operands that a formula describes."""
    name = formula.__name__.strip("_")

    def function(a: Operand, b: Operand) -> NDArray:
        found, dtype = terms(name, (a, b))
        of_arrays.require(name, dtype, "float")
        x, y = found if inside is None else (term.cast(inside) for term in found)
        return result(formula(x, y), dtype)

    return of_arrays.named(function, name, formula.__doc__ or "")


def wide(formula: Formula[P]) -> Callable[Concatenate[Operand, P], NDArray]:
    """The same as `unary` for a formula in float64, whatever the type of the operand.

    For functions whose terms cancel: one set of coefficients serves all types, and all but float64
    are rounded correctly in nearly all cases.
    """
    return unary(formula, float64)


def wide_binary(formula: Formula2) -> of_arrays.Binary:
    """The same for two operands."""
    return binary(formula, float64)
