"""Operators on elements: arithmetic, comparisons, activations, types."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.ir.dtype import STORED, as_dtype
from genesis.ir.size import Size
from genesis.onnx.dtypes import is_ours, numpy_dtype
from genesis.onnx.registry import Implementation, Operand, operator
from genesis.onnx.values import Whole, as_host, as_tensor, integers_of, is_symbolic
from genesis.tensor.tensor import Tensor

# ---- one operand

for _name, _function in {
    "Abs": fn.abs, "Acos": fn.acos, "Acosh": fn.acosh, "Asin": fn.asin, "Asinh": fn.asinh,
    "Atan": fn.atan, "Atanh": fn.atanh, "Ceil": fn.ceil, "Cos": fn.cos, "Cosh": fn.cosh,
    "Erf": fn.erf, "Exp": fn.exp, "Floor": fn.floor, "IsNaN": fn.isnan, "Log": fn.log,
    "Neg": fn.neg, "Reciprocal": fn.reciprocal, "Relu": fn.relu, "Round": fn.round,
    "Sigmoid": fn.sigmoid, "Sign": fn.sign, "Sin": fn.sin, "Sinh": fn.sinh, "Softplus": fn.softplus,
    "Softsign": fn.softsign, "Sqrt": fn.sqrt, "Tan": fn.tan, "Tanh": fn.tanh,
    "HardSwish": fn.hardswish, "Mish": fn.mish, "Not": fn.logical_not, "BitwiseNot": fn.bitwise_not,
    "Det": fn.linalg.det,
}.items():  # fmt: skip

    def _one(function: Any) -> Implementation:
        def computed(x: Any, *, consumed_inputs: Any = None) -> Any:
            return function(x)

        return computed

    operator(_name)(_one(_function))


@operator("Identity")
def identity(x: Operand) -> Any:
    """The value itself, be it a sequence."""
    return x


@operator("IsInf")
def isinf(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    """Which elements are infinite, by their sign."""
    found = fn.isinf(x)
    if not detect_negative:
        found = fn.logical_and(found, x > 0)
    return found if detect_positive else fn.logical_and(found, x < 0)


@operator("Elu")
def elu(x: Any, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Any:
    """The exponential linear unit."""
    return fn.where(x < 0, alpha * (fn.exp(fn.minimum(x, fn.mul(x, 0))) - 1), x)


@operator("Celu")
def celu(x: Any, *, alpha: float = 1.0) -> Any:
    """The continuously differentiable exponential linear unit."""
    return fn.celu(x, alpha)


@operator("Selu")
def selu(
    x: Any, *, alpha: float = 1.67326319, gamma: float = 1.05070102, consumed_inputs: Any = None
) -> Any:
    """The scaled exponential linear unit."""
    return gamma * fn.where(x <= 0, alpha * (fn.exp(fn.clamp(x, max=0)) - 1), x)


@operator("LeakyRelu")
def leaky_relu(x: Any, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Any:
    """A line with a bend."""
    return fn.leaky_relu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(x: Any, *, alpha: float = 1.0) -> Any:
    """What is above a threshold."""
    return fn.where(x > alpha, x, fn.mul(x, 0))


@operator("HardSigmoid")
def hard_sigmoid(
    x: Any, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None
) -> Any:
    """A line between 0 and 1."""
    return fn.clamp(x * alpha + beta, 0, 1)


@operator("Shrink")
def shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    """Towards zero by the bias; zero where |x| is at most lambd."""
    return fn.where(x < -lambd, x + bias, fn.where(x > lambd, x - bias, fn.mul(x, 0)))


@operator("Gelu")
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """The Gaussian error linear unit."""
    return fn.gelu(x, approximate)


@operator("Swish")
def swish(x: Any, *, alpha: float = 1.0) -> Any:
    """x sigmoid(alpha x)."""
    return x * fn.sigmoid(x * alpha)


@operator("PRelu")
def prelu(x: Any, slope: Any, *, consumed_inputs: Any = None, version: int = 7) -> Any:
    """A line with a bend, with a slope for each channel."""
    if version < 7 and slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return fn.where(x < 0, x * slope, x)


@operator("Clip")
def clip(x: Any, min: Operand = None, max: Operand = None, *, consumed_inputs: Any = None) -> Any:
    """Values brought between two bounds, the upper one last."""
    if min is not None:
        x = (
            fn.maximum(x, as_tensor(min))
            if isinstance(min, Tensor)
            else fn.clamp(x, min=_item(min))
        )
    if max is not None:
        x = (
            fn.minimum(x, as_tensor(max))
            if isinstance(max, Tensor)
            else fn.clamp(x, max=_item(max))
        )
    return x


def _item(x: Any) -> Any:
    return x.item() if isinstance(x, np.ndarray) else x


# ---- two operands


def pair(a: Any, b: Any, axis: int | None = None, broadcast: int = 0) -> tuple[Any, Any]:
    """Two operands: a constant that is one number stays one, so that it is no array."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return as_tensor(a), as_tensor(b)
    if isinstance(b, Tensor) and _is_number(a, b):
        return a.item(), b
    if isinstance(a, Tensor) and _is_number(b, a):
        return a, b.item()
    a, b = as_tensor(a), as_tensor(b)
    if broadcast and axis is not None and b.ndim < a.ndim:
        b = b.reshape(*b.shape, *(1,) * (a.ndim - b.ndim - axis % a.ndim))
    return a, b


def _is_number(x: Any, other: Any) -> bool:
    return (
        isinstance(x, np.ndarray) and x.size == 1 and x.ndim <= other.ndim
        and x.dtype.kind == other.dtype.numpy.kind and x.dtype.itemsize <= 8
        and x.dtype == other.dtype.numpy
    )  # fmt: skip


def _binary(function: Callable[[Any, Any], Any]) -> Implementation:
    def computed(
        a: Operand, b: Operand, *, axis: int | None = None, broadcast: int = 0,
        consumed_inputs: Any = None,
    ) -> Any:  # fmt: skip
        return function(*pair(a, b, axis, broadcast))

    return computed


def _divided(a: Any, b: Any) -> Any:
    dtype = a.dtype if isinstance(a, Tensor) else b.dtype
    return fn.div(a, b) if dtype.is_float else fn.div(a, b, rounding_mode="trunc")


def _tensor_first(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function that wants a tensor on the left."""

    def computed(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor):
            from genesis import full

            a = full((), a, dtype=b.dtype)
        return function(a, b)

    return computed


for _name, _function in {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": _tensor_first(_divided), "And": _tensor_first(fn.logical_and),
    "Or": _tensor_first(fn.logical_or), "Xor": _tensor_first(fn.logical_xor),
    "Equal": lambda a, b: a == b, "Greater": lambda a, b: a > b, "Less": lambda a, b: a < b,
    "GreaterOrEqual": lambda a, b: a >= b, "LessOrEqual": lambda a, b: a <= b,
    "BitwiseAnd": _tensor_first(fn.bitwise_and), "BitwiseOr": _tensor_first(fn.bitwise_or),
    "BitwiseXor": _tensor_first(fn.bitwise_xor),
}.items():  # fmt: skip
    operator(_name)(_binary(_function))


@operator("Pow")
def power(a: Operand, b: Operand, *, axis: int | None = None, broadcast: int = 0) -> Any:
    """a to the b, in the type of a."""
    if isinstance(b, np.ndarray) and b.size == 1 and isinstance(a, Tensor) and b.ndim <= a.ndim:
        exponent = b.item()
        whole = a.dtype.is_float and float(exponent).is_integer()
        return fn.pow(a, int(exponent) if whole else exponent).to(a.dtype)
    a, b = as_tensor(a), as_tensor(b)
    if broadcast and axis is not None:
        a, b = pair(a, b, axis, broadcast)
    if a.dtype.is_integer and b.dtype.is_float:
        return fn.pow(a.to(dtypes.float64), b).to(a.dtype)
    return fn.pow(a, b.to(a.dtype) if a.dtype.is_float else b).to(a.dtype)


@operator("Mod")
def mod(a: Any, b: Any, *, fmod: int = 0) -> Any:
    """The remainder: with the sign of b, or with `fmod` that of a."""
    return (fn.fmod if fmod else fn.remainder)(a, b)


@operator("BitShift")
def bit_shift(a: Any, b: Any, *, direction: str) -> Any:
    """Bits moved to the left or to the right."""
    return (fn.bitwise_left_shift if direction == "LEFT" else fn.bitwise_right_shift)(a, b)


def _many(function: Callable[[Any, Any], Any]) -> Implementation:
    def computed(*values: Operand, consumed_inputs: Any = None) -> Any:
        return reduce(lambda a, b: function(*pair(a, b)), values)

    return computed


def _extreme(function: Callable[[Any, Any], Any], clamped: str) -> Callable[[Any, Any], Any]:
    def computed(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor):
            a, b = b, a
        return function(a, b) if isinstance(b, Tensor) else fn.clamp(a, **{clamped: b})

    return computed


operator("Max")(_many(_extreme(fn.maximum, "min")))
operator("Min")(_many(_extreme(fn.minimum, "max")))
operator("Sum")(_many(lambda a, b: a + b))


@operator("Mean")
def mean(*values: Any, consumed_inputs: Any = None) -> Any:
    """The mean of several tensors."""
    return reduce(lambda a, b: a + b, values) / len(values)


@operator("Where")
def where(condition: Any, a: Operand, b: Operand) -> Any:
    """Elements of a where the condition holds, and of b elsewhere."""
    if any(isinstance(x, np.ndarray) and x.dtype == object and not is_symbolic(x) for x in (a, b)):
        return np.where(as_host(condition), a, b)
    return fn.where(condition, as_tensor(a), as_tensor(b))


# ---- types


@operator("Cast")
def cast(x: Operand, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """The elements in another type."""
    return _converted(x, numpy_dtype(to), bool(saturate), round_mode)


@operator("CastLike")
def cast_like(x: Operand, like: Operand, *, saturate: int = 1, round_mode: str = "up") -> Any:
    """The elements in the type of another tensor."""
    dtype = like.dtype if isinstance(like, np.ndarray) else like.dtype.numpy
    return _converted(x, dtype, bool(saturate), round_mode)


def _converted(x: Any, dtype: np.dtype[Any], saturate: bool, rounding: str) -> Any:
    if not isinstance(x, Tensor):
        return cast_on_host(x, dtype, saturate, rounding)
    plain = is_ours(dtype) and as_dtype(dtype) not in STORED and x.dtype not in STORED
    if plain:
        return x.to(as_dtype(dtype))
    return cast_on_host(as_host(x), dtype, saturate, rounding)


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Types of 8 bits and fewer, whose largest number is where conversions end if they saturate.
_NARROW = {
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
}  # fmt: skip


def cast_on_host(x: Any, dtype: np.dtype[Any], saturate: bool = True, rounding: str = "up") -> Any:
    """A NumPy array in any type that ONNX has."""
    from genesis.onnx.dtypes import code_of

    if is_symbolic(x):
        return _sizes_as(x, dtype)
    with np.errstate(all="ignore"):
        if is_ours(dtype) and is_ours(x.dtype) and dtype not in _NARROW | {_BFLOAT16}:
            return np.asarray(x.astype(dtype))
        from onnx.reference.ops.op_cast import cast_to  # it imports every operator there is

        return np.asarray(cast_to(x, code_of(dtype), saturate, rounding))  # type: ignore[arg-type]


def _sizes_as(x: Any, dtype: np.dtype[Any]) -> Any:
    """Symbolic sizes in another type: they stay such where numbers of it can be so large."""
    integers = integers_of(x)
    if dtype == np.int64:
        return integers
    if dtype in (np.float32, np.float64):
        found = [Whole(n, dtype) if isinstance(n, Size) else float(n) for n in integers.flat]
        return np.array([*found, None], object)[:-1].reshape(x.shape)
    return np.array([int(n) for n in integers.flat], np.int64).reshape(x.shape).astype(dtype)


@operator("BitCast")
def bit_cast(x: Operand, *, to: int) -> Any:
    """The same bits read as another type."""
    return np.array(as_host(x)).view(numpy_dtype(to))
