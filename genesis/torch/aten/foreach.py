"""Operators on lists of tensors: the kernel of one tensor for each of them.

Optimizers call these; the arrays of a whole list become one program.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten import activation, arithmetic, special  # noqa: F401
from genesis.torch.aten.registry import Implementation, implementations, implements

Arrays = list[NDArray]

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip

#: The overload of one tensor for those of two lists, a list and a number or a tensor.
_BINARY = {
    "add": ("add.Tensor", ("List", "Scalar", "ScalarList", "Tensor")),
    "clamp_max": ("clamp_max.Tensor", ("List", "Scalar", "ScalarList")),
    "clamp_min": ("clamp_min.Tensor", ("List", "Scalar", "ScalarList")),
    "copy": ("copy", ("",)),
    "div": ("div.Tensor", ("List", "Scalar", "ScalarList", "Tensor")),
    "maximum": ("maximum", ("List", "Scalar", "ScalarList")),
    "minimum": ("minimum", ("List", "Scalar", "ScalarList")),
    "mul": ("mul.Tensor", ("List", "Scalar", "ScalarList", "Tensor")),
    "pow": ("pow.Tensor_Tensor", ("List", "Scalar", "ScalarList")),
    "sub": ("sub.Tensor", ("List", "Scalar", "ScalarList")),
}


def _each(function: Implementation) -> Implementation:
    """For every array of a list; other arguments are lists of as many, or the same for all."""

    def list_kernel(xs: Arrays, *others: Any, **named: Any) -> Arrays:
        spread = [y if isinstance(y, list) else [y] * len(xs) for y in others]
        return [function(x, *rest, **named) for x, *rest in zip(xs, *spread, strict=True)]

    return list_kernel


def _register() -> None:
    for name in _UNARY:
        implements(f"_foreach_{name}")(_each(implementations[f"aten::{name}"]))
    for name, (one, overloads) in _BINARY.items():
        names = [f"_foreach_{name}.{o}" if o else f"_foreach_{name}" for o in overloads]
        implements(*names)(_each(implementations[f"aten::{one}"]))
    lerps = ("List", "Scalar", "ScalarList")
    implements(*(f"_foreach_lerp.{o}" for o in lerps))(_each(implementations["aten::lerp.Tensor"]))
    implements("_foreach_zero")(_each(nd.zeros_like))
    implements("_foreach_max")(_each(nd.max))
    implements("_foreach_mm")(_each(nd.matmul))


_register()


@implements("_foreach_pow.ScalarAndTensor")
def _powers(base: Any, exponents: Arrays) -> Arrays:
    power = implementations["aten::pow.Scalar"]
    return [power(base, x) for x in exponents]


def _with_products(function: Implementation) -> Implementation:
    def list_kernel(xs: Arrays, first: Arrays, second: Arrays, value: Any = 1) -> Arrays:
        if isinstance(value, NDArray):
            value = [value[k] for k in range(len(xs))]
        factors = value if isinstance(value, list) else [value] * len(xs)
        each = zip(xs, first, second, factors, strict=True)
        return [function(x, a, b, value=factor) for x, a, b, factor in each]

    return list_kernel


for _name in ("addcmul", "addcdiv"):
    _overloads = (f"_foreach_{_name}.{o}" for o in ("Scalar", "ScalarList", "Tensor"))
    implements(*_overloads)(_with_products(implementations[f"aten::{_name}"]))


@implements("_foreach_powsum.Scalar")
def _power_sums(xs: Arrays, ord: float = 2, dtype: DType | None = None) -> Arrays:
    return [_power_sum(x, ord, dtype) for x in xs]


@implements("_foreach_norm.Scalar")
def _norms(xs: Arrays, ord: float = 2, dtype: DType | None = None) -> Arrays:
    norm = implementations["aten::linalg_vector_norm"]
    return [norm(x, ord, None, False, dtype=dtype) for x in xs]


def _power_sum(x: NDArray, order: float, dtype: DType | None) -> NDArray:
    result = x.dtype.real if dtype is None else dtype
    size = nd.abs(x).astype(result.accumulator)
    return nd.sum(nd.pow(size, order)).astype(result)
