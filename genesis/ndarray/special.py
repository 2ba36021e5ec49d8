"""Functions composed of elementwise primitives with an eye on accuracy, and activations.

Each is a short formula on one floating-point value, computed in float32 for half precisions.
Identities that cancel are replaced by ones that do not (Kahan's forms of ``log(1 + x)`` and
``exp(x) - 1``), and infinities are kept out of ``inf - inf`` and ``inf / inf``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from genesis.ir import ops
from genesis.ir.dtype import Scalar
from genesis.ndarray.elementwise import Operand, float_value
from genesis.ndarray.ndarray import NDArray, wrap
from genesis.ndarray.primitive import cast, constant, elementwise, where
from genesis.ndarray.value import Value


class _Real:
    """A floating-point value with operators, so that the formulas below read as such."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def of(self, number: Scalar) -> _Real:
        """A constant of this value's type."""
        return _Real(constant(number, self.value.dtype, self.value.device))

    def _with(self, op: ops.Op, other: _Real | Scalar) -> _Real:
        y = other if isinstance(other, _Real) else self.of(other)
        return _Real(elementwise(op, self.value, y.value))

    def __add__(self, other: _Real | Scalar) -> _Real:
        return self._with(ops.ADD, other)

    def __sub__(self, other: _Real | Scalar) -> _Real:
        return self._with(ops.SUB, other)

    def __mul__(self, other: _Real | Scalar) -> _Real:
        return self._with(ops.MUL, other)

    def __truediv__(self, other: _Real | Scalar) -> _Real:
        return self._with(ops.DIV, other)

    def __lt__(self, other: _Real | Scalar) -> _Real:
        return self._with(ops.LT, other)

    def __neg__(self) -> _Real:
        return _Real(elementwise(ops.NEG, self.value))

    def __or__(self, other: _Real) -> _Real:
        return self._with(ops.OR, other)

    def equals(self, other: _Real | Scalar) -> _Real:
        """Where both are the same."""
        return self._with(ops.EQ, other)

    def max(self, other: _Real | Scalar) -> _Real:
        """The greater one."""
        return self._with(ops.MAX, other)

    def where(self, then: _Real, orelse: _Real) -> _Real:
        """One of two, by this condition."""
        return _Real(where(self.value, then.value, orelse.value))

    def apply(self, op: ops.Op) -> _Real:
        """A unary operation."""
        return _Real(elementwise(op, self.value))


Formula = Callable[[_Real], _Real]


def _function(formula: Formula) -> Callable[[Operand], NDArray]:
    """The user's function for a formula: any operand in, half precisions widened around it."""
    name = formula.__name__

    def function(x: Operand) -> NDArray:
        value = float_value(name, x)
        result = formula(_Real(cast(value, value.dtype.accumulator))).value
        return wrap(cast(result, value.dtype))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = formula.__doc__
    return function


def _log1p(x: _Real) -> _Real:
    shifted = x + 1
    # What was really added; x over it corrects the logarithm for the rounding of the sum.
    added = shifted - 1
    exact = added.equals(0) | shifted.equals(math.inf)
    return exact.where(x, shifted.apply(ops.LOG) * (x / added))


def _expm1(x: _Real) -> _Real:
    power = x.apply(ops.EXP)
    less = power - 1
    # log(power) is what was really exponentiated; x over it corrects for the rounding of power.
    corrected = less * (x / power.apply(ops.LOG))
    saturated = less.equals(-1) | less.equals(math.inf)
    return power.equals(1).where(x, saturated.where(less, corrected))


def _sigmoid(x: _Real) -> _Real:
    return x.of(1) / ((-x).apply(ops.EXP) + 1)


@_function
def log1p(x: _Real) -> _Real:
    """log(1 + x), accurate for small x."""
    return _log1p(x)


@_function
def expm1(x: _Real) -> _Real:
    """exp(x) - 1, accurate for small x."""
    return _expm1(x)


@_function
def tan(x: _Real) -> _Real:
    """The tangent."""
    return x.apply(ops.SIN) / x.apply(ops.COS)


@_function
def sinh(x: _Real) -> _Real:
    """The hyperbolic sine."""
    size = x.apply(ops.ABS)
    small = _expm1(size)
    small = (small + small / (small + 1)) * 0.5
    half = (size * 0.5).apply(ops.EXP)  # its square overflows only where the result does
    result = (size < 22).where(small, (half * 0.5) * half)
    return size.equals(0).where(x, (x < 0).where(-result, result))


@_function
def cosh(x: _Real) -> _Real:
    """The hyperbolic cosine."""
    half = (x.apply(ops.ABS) * 0.5).apply(ops.EXP)
    return (half * 0.5) * half + (half.of(0.5) / half) / half


@_function
def sigmoid(x: _Real) -> _Real:
    """1 / (1 + exp(-x))"""
    return _sigmoid(x)


@_function
def silu(x: _Real) -> _Real:
    """x * sigmoid(x), also called swish."""
    return x * _sigmoid(x)


@_function
def softplus(x: _Real) -> _Real:
    """log(1 + exp(x)) without overflow."""
    return x.max(0) + _log1p((-x.apply(ops.ABS)).apply(ops.EXP))


@_function
def _gelu_erf(x: _Real) -> _Real:
    return x * 0.5 * ((x * math.sqrt(0.5)).apply(ops.ERF) + 1)


@_function
def _gelu_tanh(x: _Real) -> _Real:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.apply(ops.TANH) + 1)


def gelu(x: Operand, approximate: str = "none") -> NDArray:
    """x times the normal distribution's cumulative probability; approximate: "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return _gelu_erf(x) if approximate == "none" else _gelu_tanh(x)


def relu(x: NDArray) -> NDArray:
    """The greater of x and 0."""
    zero = constant(0, x.dtype, x.device)
    return wrap(elementwise(ops.MAX, x.value, zero))
