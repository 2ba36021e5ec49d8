"""Comparisons, what follows from them (the greater one, a range), logic and bits."""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import where
from genesis.functional.elementwise_function import binary, unary
from genesis.functional.error_messages import require_same_dtype
from genesis.functional.function import plain, with_gradient
from genesis.functional.registry import method

# ---- comparisons


eq = binary("eq", nd.equal, "Whether elements are equal.")
ne = binary("ne", nd.not_equal, "Whether elements differ.")
lt = binary("lt", nd.less, "Whether elements are less.")
le = binary("le", nd.less_equal, "Whether elements are less or equal.")
gt = binary("gt", nd.greater, "Whether elements are greater.")
ge = binary("ge", nd.greater_equal, "Whether elements are greater or equal.")
greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne


@method
def isclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Whether ``|input - other| <= atol + rtol * |other|``."""
    if not (rtol >= 0 and atol >= 0):
        raise ValueError(f"isclose: rtol {rtol} and atol {atol} must not be negative")
    require_same_dtype("isclose", input, other)
    return plain(nd.isclose, input, other, rtol, atol, equal_nan)


@method
def allclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close; see `isclose`."""
    return bool(plain(nd.all, isclose(input, other, rtol, atol, equal_nan)))


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape and equal elements."""
    return bool(plain(nd.array_equal, input, other))


isnan = unary("isnan", nd.isnan, "Whether elements are NaN.")
isinf = unary("isinf", nd.isinf, "Whether elements are infinite.")
isfinite = unary("isfinite", nd.isfinite, "Whether elements are neither infinite nor NaN.")


@method
def isposinf(input: Any) -> Any:
    """Whether elements are plus infinity."""
    return plain(nd.isposinf, _ordered("isposinf", input))


@method
def isneginf(input: Any) -> Any:
    """Whether elements are minus infinity."""
    return plain(nd.isneginf, _ordered("isneginf", input))


def _ordered(name: str, input: Any) -> Any:
    if input.dtype.is_complex:
        raise TypeError(f"{name}: complex numbers have no order; ask for real parts")
    return input


# ---- the greater one


def _maximum(grad: Any, input: Any, other: Any) -> Any:
    """Equal ones share the gradient."""
    share = where(eq(input, other), grad / 2, grad)
    return where(lt(input, other), 0.0, share), where(lt(other, input), 0.0, share)


@method
@with_gradient(_maximum)
def maximum(input: Any, other: Any) -> Any:
    """The greater element; NaN wins."""
    return nd.maximum(input, other)


@method
@with_gradient(lambda grad, input, other: _maximum(grad, other, input))  # the lesser one wins
def minimum(input: Any, other: Any) -> Any:
    """The lesser element; NaN wins."""
    return nd.minimum(input, other)


def _chosen(grad: Any, other: Any, first: Any) -> Any:
    """The gradients of two numbers, the first of which is chosen also where the other is none."""
    wins = logical_or(first, isnan(other))
    return where(wins, grad, 0.0), where(wins, 0.0, grad)


@method
@with_gradient(lambda grad, input, other: _chosen(grad, other, ge(input, other)))
def fmax(input: Any, other: Any) -> Any:
    """The greater element; NaN loses."""
    return nd.fmax(input, other)


@method
@with_gradient(lambda grad, input, other: _chosen(grad, other, le(input, other)))
def fmin(input: Any, other: Any) -> Any:
    """The lesser element; NaN loses."""
    return nd.fmin(input, other)


def _clamp(grad: Any, input: Any, min: Any, max: Any, needs: Any) -> Any:
    """Where a bound takes the place of the input it is the bound's gradient."""
    x, low, high = input, min, max
    to_x, to_low, to_high = grad, None, None
    if low is not None:  # NaN is in no range
        to_x = where(ge(x, low), to_x, 0.0)
    if high is not None:
        to_x = where(le(x, high), to_x, 0.0)
    if needs[1]:
        to_low = where(lt(x, low), grad, 0.0)
        to_low = to_low if high is None else where(lt(low, high), to_low, 0.0)
    if needs[2]:
        to_high = where(gt(x, high), grad, 0.0)
        to_high = to_high if low is None else where(lt(high, low), grad, to_high)
    return to_x, to_low, to_high


@method(in_place=True)
@with_gradient(_clamp)
def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """`input` moved into the range from `min` to `max`, numbers or tensors; None leaves it open."""
    if min is None and max is None:
        raise ValueError("clamp: give min, max or both")
    return nd.clip(input, min, max)


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


logical_not = unary("logical_not", nd.logical_not, "Whether elements are zero.", True)
logical_and = binary("logical_and", nd.logical_and, "Whether both are non-zero.")
logical_or = binary("logical_or", nd.logical_or, "Whether one of both is non-zero.")
logical_xor = binary("logical_xor", nd.logical_xor, "Whether exactly one of both is non-zero.")
bitwise_not = unary(
    "bitwise_not", nd.bitwise_not, "Every bit inverted; of bool the opposite.", True
)
bitwise_and = binary("bitwise_and", nd.bitwise_and, "The bits that both have.")
bitwise_or = binary("bitwise_or", nd.bitwise_or, "The bits that one of both has.")
bitwise_xor = binary("bitwise_xor", nd.bitwise_xor, "The bits that exactly one of both has.")
bitwise_left_shift = binary("bitwise_left_shift", nd.left_shift, "The bits moved up.")
bitwise_right_shift = binary("bitwise_right_shift", nd.right_shift, "The bits moved down.")

__all__ = [
    "allclose", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "clamp", "clamp_max", "clamp_min", "clip", "eq", "equal",
    "fmax", "fmin", "ge", "greater", "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "le", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "maximum", "minimum", "ne", "not_equal",
]  # fmt: skip
