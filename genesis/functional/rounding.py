"""Rounding, signs, remainders and the parts of floating-point numbers.

Functions that are constant in steps have the gradient 0, as in PyTorch: it is there, so that a
graph stays connected, and it is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from genesis import ndarray as nd
from genesis.functional.arithmetic import divisor, keep, kept, mul, pow, where
from genesis.functional.function import Function, plain
from genesis.functional.registry import method
from genesis.functional.scalar import Unary
from genesis.functional.wording import named


class Steps(Function):
    """A function that is constant in steps."""

    function: ClassVar[Callable[..., Any]]

    @classmethod
    def forward(cls, ctx: Any, x: Any, *numbers: Any) -> Any:
        """The function of every element."""
        ctx.count = len(numbers)
        return cls.function(x, *numbers)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Nothing changes but at the edges."""
        return (plain(nd.zeros_like, grad), *(None for _ in range(ctx.count)))


def _steps(name: str, function: Callable[..., Any], doc: str) -> Unary:
    members = {"__doc__": doc, "function": staticmethod(function)}
    operation: type[Steps] = type(name.capitalize(), (Steps,), members)

    def called(input: Any) -> Any:
        return operation.apply(input)

    named(called, name)
    called.__doc__ = doc
    return method(in_place=True)(called)


floor = _steps("floor", nd.floor, "The greatest integer not above `input`.")
ceil = _steps("ceil", nd.ceil, "The least integer not below `input`.")
trunc = _steps("trunc", nd.trunc, "`input` without its fraction.")
sign = _steps("sign", nd.sign, "-1, 0 or 1: the sign.")
fix = trunc


class Round(Steps):
    """The nearest number with so many decimals."""

    function = staticmethod(nd.round)


@method(in_place=True)
def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest number with so many decimal places, halves to even."""
    return Round.apply(input, decimals)


class Frac(Function):
    """What rounding toward zero takes away."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return nd.frac(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


@method(in_place=True)
def frac(input: Any) -> Any:
    """`input` without its integer part."""
    return Frac.apply(input)


# ---- division with remainder


@method(in_place=True)
def floor_divide(input: Any, other: Any) -> Any:
    """The quotient rounded down; it has no gradient."""
    return plain(nd.floor_divide, input, divisor("floor_divide", input, other))


class Remainder(Function):
    """What is left of x after taking away y a whole number of times."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, mode: str) -> Any:
        ctx.mode = mode
        keep(ctx, x, y)
        return (nd.remainder if mode == "floor" else nd.fmod)(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = kept(ctx)
        if not ctx.needs_input_grad[1]:
            return grad, None, None
        return grad, -grad * plain(nd.divide, x, y, rounding_mode=ctx.mode), None


@method(in_place=True)
def remainder(input: Any, other: Any) -> Any:
    """What is left of `input` after `floor_divide`; it has the sign of `other`."""
    return Remainder.apply(input, divisor("remainder", input, other), "floor")


@method(in_place=True)
def fmod(input: Any, other: Any) -> Any:
    """What is left of `input` after dividing and rounding toward 0; it has its sign."""
    return Remainder.apply(input, divisor("fmod", input, other), "trunc")


# ---- parts of numbers


class Copysign(Function):
    """The size of x with the sign of y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        result = nd.copysign(x, y)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, result = ctx.saved_tensors
        signs = plain(nd.multiply, plain(nd.sign, x), plain(nd.sign, result))
        return grad * signs, plain(nd.zeros_like, grad)


@method(in_place=True)
def copysign(input: Any, other: Any) -> Any:
    """The size of `input` with the sign of `other`."""
    return Copysign.apply(input, other)


class Ldexp(Function):
    """x * 2**n."""

    @staticmethod
    def forward(ctx: Any, x: Any, n: Any) -> Any:
        keep(ctx, n)
        return nd.ldexp(x, n)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (n,) = kept(ctx)
        return Ldexp.apply(grad, n), None


@method(in_place=True)
def ldexp(input: Any, other: Any) -> Any:
    """``input * 2**other``."""
    if isinstance(other, int) or (hasattr(other, "dtype") and other.dtype.is_integer):
        return Ldexp.apply(input, other)
    return mul(input, pow(2.0, other))


class MantissaExponent(NamedTuple):
    """``mantissa * 2**exponent``, the mantissa from 1/2 up to 1."""

    mantissa: Any
    exponent: Any


class Frexp(Function):
    """Mantissa and exponent."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        mantissa, exponent = nd.frexp(x)
        ctx.save_for_backward(exponent)
        return mantissa, exponent

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        (exponent,) = ctx.saved_tensors
        return Ldexp.apply(grad, plain(nd.neg, exponent))


@method
def frexp(input: Any) -> MantissaExponent:
    """Mantissa, from 1/2 up to 1, and exponent of floating-point numbers."""
    if not input.dtype.is_float:
        raise TypeError(f"frexp: needs floating point, not {input.dtype}")
    return MantissaExponent(*Frexp.apply(input))


@method(in_place=True)
def nextafter(input: Any, other: Any) -> Any:
    """The next number after `input` in the direction of `other`; it has no gradient."""
    return plain(nd.nextafter, input, other)


@method
def signbit(input: Any) -> Any:
    """Whether the sign is minus, also of -0."""
    return plain(nd.signbit, input)


@method(in_place=True)
def heaviside(input: Any, values: Any) -> Any:
    """0 for negative numbers, 1 for positive ones, `values` at 0; it has no gradient."""
    return plain(nd.heaviside, input, values)


class NanToNum(Function):
    """x with other numbers for NaN and infinities."""

    @staticmethod
    def forward(ctx: Any, x: Any, *numbers: Any) -> Any:
        ctx.save_for_backward(x)
        return nd.nan_to_num(x, *numbers)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return where(plain(nd.isfinite, x), grad, 0.0), None, None, None


@method(in_place=True)
def nan_to_num(
    input: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """NaN and infinities replaced; infinities by the greatest finite numbers if not given."""
    return NanToNum.apply(input, 0.0 if nan is None else nan, posinf, neginf)


@method(in_place=True)
def gcd(input: Any, other: Any) -> Any:
    """The greatest common divisor of integers."""
    return plain(nd.gcd, input, other)


@method(in_place=True)
def lcm(input: Any, other: Any) -> Any:
    """The least common multiple of integers."""
    return plain(nd.lcm, input, other)


__all__ = [
    "ceil", "copysign", "fix", "floor", "floor_divide", "fmod", "frac", "frexp", "gcd",
    "heaviside", "lcm", "ldexp", "nan_to_num", "nextafter", "remainder", "round", "sign",
    "signbit", "trunc",
]  # fmt: skip
