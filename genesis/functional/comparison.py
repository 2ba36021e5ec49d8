"""Comparisons, what follows from them (the greater one, a range), logic and bits."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import keep, kept, where
from genesis.functional.function import Function, plain
from genesis.functional.registry import method

# ---- comparisons


@method(in_place=True)
def eq(input: Any, other: Any) -> Any:
    """Whether elements are equal."""
    return plain(nd.equal, input, other)


@method(in_place=True)
def ne(input: Any, other: Any) -> Any:
    """Whether elements differ."""
    return plain(nd.not_equal, input, other)


@method(in_place=True)
def lt(input: Any, other: Any) -> Any:
    """Whether elements are less."""
    return plain(nd.less, input, other)


@method(in_place=True)
def le(input: Any, other: Any) -> Any:
    """Whether elements are less or equal."""
    return plain(nd.less_equal, input, other)


@method(in_place=True)
def gt(input: Any, other: Any) -> Any:
    """Whether elements are greater."""
    return plain(nd.greater, input, other)


@method(in_place=True)
def ge(input: Any, other: Any) -> Any:
    """Whether elements are greater or equal."""
    return plain(nd.greater_equal, input, other)


greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne


@method
def isclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Whether ``|input - other| <= atol + rtol * |other|``."""
    if not (rtol >= 0 and atol >= 0):
        raise ValueError(f"isclose: rtol {rtol} and atol {atol} must not be negative")
    return plain(nd.isclose, input, other, rtol, atol, equal_nan)


@method
def allclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close; see `isclose`."""
    return bool(plain(nd.allclose, input, other, rtol, atol, equal_nan))


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape and equal elements."""
    return bool(plain(nd.array_equal, input, other))


@method
def isnan(input: Any) -> Any:
    """Whether elements are NaN."""
    return plain(nd.isnan, input)


@method
def isinf(input: Any) -> Any:
    """Whether elements are infinite."""
    return plain(nd.isinf, input)


@method
def isfinite(input: Any) -> Any:
    """Whether elements are neither infinite nor NaN."""
    return plain(nd.isfinite, input)


@method
def isposinf(input: Any) -> Any:
    """Whether elements are plus infinity."""
    return plain(nd.isposinf, input)


@method
def isneginf(input: Any) -> Any:
    """Whether elements are minus infinity."""
    return plain(nd.isneginf, input)


# ---- the greater one


class Extreme(Function):
    """The greater or lesser of x and y. NaN wins, and equal ones share the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, greatest: bool) -> Any:
        ctx.greatest = greatest
        keep(ctx, x, y)
        return (nd.maximum if greatest else nd.minimum)(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = kept(ctx)
        loses, wins = (lt(x, y), lt(y, x)) if ctx.greatest else (lt(y, x), lt(x, y))
        shared = where(eq(x, y), grad / 2, grad)
        return where(loses, 0.0, shared), where(wins, 0.0, shared), None


class NumberExtreme(Function):
    """The greater or lesser of x and y. NaN loses, and x wins where both are equal."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, greatest: bool) -> Any:
        ctx.greatest = greatest
        keep(ctx, x, y)
        return (nd.fmax if greatest else nd.fmin)(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = kept(ctx)
        wins = plain(nd.logical_or, ge(x, y) if ctx.greatest else le(x, y), isnan(y))
        return where(wins, grad, 0.0), where(wins, 0.0, grad), None


@method
def maximum(input: Any, other: Any) -> Any:
    """The greater element; NaN wins."""
    return Extreme.apply(input, other, True)


@method
def minimum(input: Any, other: Any) -> Any:
    """The lesser element; NaN wins."""
    return Extreme.apply(input, other, False)


@method
def fmax(input: Any, other: Any) -> Any:
    """The greater element; NaN loses."""
    return NumberExtreme.apply(input, other, True)


@method
def fmin(input: Any, other: Any) -> Any:
    """The lesser element; NaN loses."""
    return NumberExtreme.apply(input, other, False)


class Clamp(Function):
    """x moved into a range; where a bound takes its place it is the bound's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, low: Any, high: Any) -> Any:
        keep(ctx, x, low, high)
        return nd.clip(x, low, high)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, low, high = kept(ctx)
        needs = ctx.needs_input_grad
        to_x, to_low, to_high = grad, None, None
        if low is not None:
            to_x = where(lt(x, low), 0.0, to_x)
        if high is not None:
            to_x = where(gt(x, high), 0.0, to_x)
        if needs[1]:
            to_low = where(lt(x, low), grad, 0.0)
            to_low = to_low if high is None else where(lt(low, high), to_low, 0.0)
        if needs[2]:
            to_high = where(gt(x, high), grad, 0.0)
            to_high = to_high if low is None else where(lt(high, low), grad, to_high)
        return to_x, to_low, to_high


@method(in_place=True)
def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """`input` moved into the range from `min` to `max`, numbers or tensors; None leaves it open."""
    if min is None and max is None:
        raise ValueError("clamp: give min, max or both")
    return Clamp.apply(input, min, max)


@method(in_place=True)
def clamp_min(input: Any, min: Any) -> Any:
    """`input`, but not less than `min`."""
    return clamp(input, min)


@method(in_place=True)
def clamp_max(input: Any, max: Any) -> Any:
    """`input`, but not more than `max`."""
    return clamp(input, None, max)


clip = clamp

# ---- logic and bits


@method(in_place=True)
def logical_not(input: Any) -> Any:
    """Whether elements are zero."""
    return plain(nd.logical_not, input)


@method(in_place=True)
def logical_and(input: Any, other: Any) -> Any:
    """Whether both are non-zero."""
    return plain(nd.logical_and, input, other)


@method(in_place=True)
def logical_or(input: Any, other: Any) -> Any:
    """Whether one of both is non-zero."""
    return plain(nd.logical_or, input, other)


@method(in_place=True)
def logical_xor(input: Any, other: Any) -> Any:
    """Whether exactly one of both is non-zero."""
    return plain(nd.logical_xor, input, other)


@method(in_place=True)
def bitwise_not(input: Any) -> Any:
    """Every bit inverted; of bool the opposite."""
    return plain(nd.bitwise_not, input)


@method(in_place=True)
def bitwise_and(input: Any, other: Any) -> Any:
    """The bits that both have."""
    return plain(nd.bitwise_and, input, other)


@method(in_place=True)
def bitwise_or(input: Any, other: Any) -> Any:
    """The bits that one of both has."""
    return plain(nd.bitwise_or, input, other)


@method(in_place=True)
def bitwise_xor(input: Any, other: Any) -> Any:
    """The bits that exactly one of both has."""
    return plain(nd.bitwise_xor, input, other)


@method(in_place=True)
def bitwise_left_shift(input: Any, other: Any) -> Any:
    """The bits moved up."""
    return plain(nd.left_shift, input, other)


@method(in_place=True)
def bitwise_right_shift(input: Any, other: Any) -> Any:
    """The bits moved down."""
    return plain(nd.right_shift, input, other)


__all__ = [
    "allclose", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "clamp", "clamp_max", "clamp_min", "clip", "eq", "equal",
    "fmax", "fmin", "ge", "greater", "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "le", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "maximum", "minimum", "ne", "not_equal",
]  # fmt: skip
