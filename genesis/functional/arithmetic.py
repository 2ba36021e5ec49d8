"""Arithmetic: sums, products, quotients, powers, and choosing between values.

Gradients of broadcast operands are summed where they arrive (see `Function`), so a rule here is
the derivative of the scalar function and no more. Complex operands follow PyTorch: the gradient is
the direction of steepest ascent, so factors are conjugated.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.function import Function, keep, kept, plain, with_gradient
from genesis.functional.registry import method
from genesis.functional.value_checks import demanded
from genesis.ir.dtype import DType, bool_, int64, uint8


class Add(Function):
    """x + y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return nd.add(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad


@method(in_place=True)
def add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """``input + alpha * other``."""
    return Add.apply(input, other if alpha == 1 else _times("add", input, other, alpha))


def _times(name: str, x: Any, y: Any, alpha: Any) -> Any:
    """``alpha * y``, to be added to x: with no more kinds of numbers than both have."""
    kinds = [z.dtype for z in (x, y) if hasattr(z, "dtype")]
    if isinstance(alpha, float) and all(map(_is_whole, kinds)):
        raise TypeError(f"{name}: alpha is {alpha}, but the numbers are integers")
    return mul(y, bool(alpha) if all(d is bool_ for d in kinds) else alpha)


class Sub(Function):
    """x - y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return nd.subtract(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, -grad


@method(in_place=True)
def sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """``input - alpha * other``."""
    return Sub.apply(input, other if alpha == 1 else _times("sub", input, other, alpha))


def rsub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    """``other - alpha * input``."""
    return Sub.apply(other, input if alpha == 1 else _times("rsub", other, input, alpha))


class Mul(Function):
    """x * y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        needs = ctx.needs_input_grad or (True, True)
        keep(ctx, (x if needs[1] else None, y if needs[0] else None))
        return nd.multiply(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = kept(ctx)
        needs = ctx.needs_input_grad
        return grad * conj(y) if needs[0] else None, grad * conj(x) if needs[1] else None


@method(in_place=True)
def mul(input: Any, other: Any) -> Any:
    """``input * other``."""
    return Mul.apply(input, other)


class Div(Function):
    """x / y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        result = nd.divide(x, y)
        keep(ctx, (y, result if any(ctx.needs_input_grad[1:]) else None))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        y, result = kept(ctx)
        quotient = grad / conj(y)
        return quotient, -quotient * conj(result) if ctx.needs_input_grad[1] else None


def zeros(grad: Any) -> tuple[Any, Any]:
    """The gradients of a function of one or two arguments that is constant in steps."""
    nothing = plain(nd.zeros_like, grad)
    return nothing, nothing


@with_gradient(zeros)
def _rounded_div(x: Any, y: Any, mode: str) -> Any:
    return nd.divide(x, y, rounding_mode=mode)


@method(in_place=True)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """The quotient; `rounding_mode` "trunc" rounds it towards zero, "floor" down."""
    if rounding_mode is None:
        return Div.apply(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise ValueError(f"div: rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
    return _rounded_div(input, divisor("div", input, other), rounding_mode)


def divisor(name: str, input: Any, other: Any) -> Any:
    """What integers are divided by, which is not 0; floating-point numbers have infinity."""
    if any(hasattr(x, "dtype") and not _is_whole(x.dtype) for x in (input, other)):
        return other
    if hasattr(other, "dtype"):
        return demanded(other, lambda y: nd.equal(y, 0), f"{name}: integers divided by 0")
    if other == 0 and isinstance(other, int):
        raise ZeroDivisionError(f"{name}: integers divided by 0")
    return other


def _is_whole(dtype: DType) -> bool:
    return dtype is bool_ or dtype.is_integer


class Neg(Function):
    """-x."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return nd.neg(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -grad


@method(in_place=True)
def neg(input: Any) -> Any:
    """``-input``."""
    return Neg.apply(input)


def _conjugated(grad: Any) -> Any:
    return conj(grad)


@with_gradient(_conjugated)
def _conj(x: Any) -> Any:
    return nd.conj(x)


@method
def conj(input: Any) -> Any:
    """The complex conjugate; real values are their own."""
    if isinstance(input, complex):
        return input.conjugate()
    dtype = getattr(input, "dtype", None)
    return _conj(input) if dtype is not None and dtype.is_complex else input


class Pow(Function):
    """x ** y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        result = nd.pow(x, y)
        keep(ctx, (x, y, result if any(ctx.needs_input_grad[1:]) else None))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y, result = kept(ctx)
        to_x = to_y = None
        if ctx.needs_input_grad[0]:
            if ctx.numbers[1] == 0:
                to_x = plain(nd.zeros_like, grad)
            else:
                # y * x**(y-1), which is 0 for y = 0 whatever x is.
                slope = y * Pow.apply(x, y - 1)
                if ctx.numbers[1] is None:
                    slope = where(plain(nd.equal, y, 0), 0.0, slope)
                to_x = grad * conj(slope)
        if ctx.needs_input_grad[1]:
            to_y = grad * conj(_by_exponent(x, y, result))
        return to_x, to_y


def _by_exponent(x: Any, y: Any, result: Any) -> Any:
    """x**y * log x, which is 0 for x = 0 and y >= 0."""
    from genesis.functional.elementary import log

    if not hasattr(x, "dtype"):
        return 0 * result if x == 0 else result * _log(x)
    still = plain(nd.equal, x, 0)
    if not y.dtype.is_complex:
        still = plain(nd.logical_and, still, plain(nd.greater_equal, y, 0))
    return where(still, 0.0, result * log(where(still, 1.0, x)))


def _log(number: complex) -> complex:
    import cmath
    import math

    real = not isinstance(number, complex) and number > 0
    return math.log(number) if real else cmath.log(number)  # type: ignore[arg-type]


@method(in_place=True)
def pow(input: Any, exponent: Any) -> Any:
    """``input ** exponent``."""
    return Pow.apply(input, exponent)


class Cast(Function):
    """Conversion to another dtype."""

    @staticmethod
    def forward(ctx: Any, x: Any, dtype: Any) -> Any:
        return nd.astype(x, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None  # cast to the argument's dtype where it arrives


def cast(input: Any, dtype: Any) -> Any:
    """`input` in another dtype."""
    if dtype is uint8 and input.dtype.is_float:
        input = Cast.apply(input, int64)  # so that negative numbers wrap, as those of others do
    return input if input.dtype is dtype else Cast.apply(input, dtype)


class Where(Function):
    """x where a condition holds, y elsewhere."""

    @staticmethod
    def forward(ctx: Any, condition: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(condition)
        return nd.where(condition, x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (condition,) = ctx.saved_tensors
        return None, where(condition, grad, 0), where(condition, 0, grad)


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """`input` where the condition holds, `other` elsewhere; without both, where it holds."""
    if input is None and other is None:
        from genesis.functional.masked_and_nonzero import nonzero

        return nonzero(condition, as_tuple=True)
    if condition.dtype is uint8:  # a mask from before there was bool
        condition = cast(condition, bool_)
    return Where.apply(condition, input, other)


def _lerp(grad: Any, input: Any, end: Any, weight: Any, needs: Any) -> Any:
    to_weight = grad * conj(end - input) if needs[2] else None
    return grad * conj(1 - weight), grad * conj(weight), to_weight


@method(in_place=True)
@with_gradient(_lerp)
def lerp(input: Any, end: Any, weight: Any) -> Any:
    """``input + weight * (end - input)``, exact at both ends."""
    return nd.lerp(input, end, weight)


@method(in_place=True)
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """``input + value * tensor1 * tensor2``."""
    found = mul(tensor1, tensor2)
    if all(_is_whole(x.dtype) for x in (input, found)):
        value = int(value)
    return add(input, found, alpha=value)


@method(in_place=True)
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """``input + value * tensor1 / tensor2``."""
    if all(_is_whole(x.dtype) for x in (tensor1, tensor2)):
        raise TypeError("addcdiv: divides integers; use (input + value * trunc(tensor1 / tensor2))")
    return add(input, div(tensor1, tensor2), alpha=value)


@method
def positive(input: Any) -> Any:
    """`input` itself."""
    if not (input.dtype.is_float or input.dtype.is_complex or input.dtype.is_integer):
        raise TypeError(f"positive: not defined for {input.dtype}")
    return input


multiply, divide, true_divide, subtract, negative = mul, div, div, sub, neg

__all__ = [
    "add", "addcdiv", "addcmul", "conj", "div", "divide", "lerp", "mul", "multiply", "neg",
    "negative", "positive", "pow", "rsub", "sub", "subtract", "true_divide", "where",
]  # fmt: skip
