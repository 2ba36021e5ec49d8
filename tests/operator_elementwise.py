"""Functions of each element: their references, and cases of those that take more than arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from genesis import ndarray as nd
from tests.operator_cases import COUNTED, REAL, case
from tests.operator_draw import (
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    SIGNED,
    Draw,
)


@dataclass(frozen=True)
class Elementwise:
    """A reference in PyTorch, and the types of operands it is tried with.

    Where `wide`, results of 32 bits and less are compared with those of float64, rounded.
    """

    reference: Callable[..., Any]
    arity: int = 1
    types: tuple[str, ...] = (*HALVES, *FLOATS, "int32", "bool")
    wide: bool = True
    special: bool = True


def _float(reference: Callable[..., Any], arity: int = 1, **options: Any) -> Elementwise:
    return Elementwise(reference, arity, **{"types": (*REAL, "int32"), **options})


def _exact(
    reference: Callable[..., Any], arity: int, *types: str, special: bool = True
) -> Elementwise:
    return Elementwise(reference, arity, types, wide=False, special=special)


def _numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function as one of tensors."""
    return lambda *xs: torch.from_numpy(np.asarray(function(*(x.numpy() for x in xs))))


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


_special: Any = torch.special

ELEMENTWISE: dict[str, Elementwise] = {
    # exponentials, logarithms, angles
    **{
        name: _float(getattr(torch, name), types=(*REAL, "int32", "bool"))
        for name in (
            "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "deg2rad", "erf",
            "erfc", "erfinv", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "rad2deg",
            "rsqrt", "sigmoid", "sin", "sinc", "sinh", "sqrt", "tan", "tanh", "reciprocal",
        )
    },
    **{
        name: _float(getattr(torch, name), 2)
        for name in ("atan2", "xlogy", "divide")
    },
    **{
        name: _float(getattr(torch, name), 2, types=REAL)
        for name in ("hypot", "logaddexp", "logaddexp2")
    },
    "exp10": _float(lambda x: torch.pow(10.0, x)),
    "xlog1py": _float(_special.xlog1py, 2),
    "float_power": Elementwise(torch.float_power, 2, (*FLOATS, "int32")),
    "lerp": _float(torch.lerp, 3, types=FLOATS, special=False),
    # special functions; PyTorch is not exact near the ends of their domains, `test_special` is
    **{
        name: _float(getattr(torch, name), special=False)
        for name in ("digamma", "lgamma", "i0")
    },
    **{
        name: _float(getattr(_special, name), special=False, types=FLOATS)
        for name in (
            "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "erfcx", "i0e", "i1", "i1e",
            "log_ndtr", "ndtr", "ndtri",
        )
    },
    **{
        name: _float(getattr(_special, longer), special=False, types=FLOATS)
        for name, longer in {
            "k0": "modified_bessel_k0", "k0e": "scaled_modified_bessel_k0",
            "k1": "modified_bessel_k1", "k1e": "scaled_modified_bessel_k1",
        }.items()
    },
    # activations
    **{
        name: _float(getattr(F, name), types=REAL, special=False)
        for name in (
            "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
            "leaky_relu", "mish", "relu6", "selu", "silu", "softshrink", "softsign", "tanhshrink",
        )
    },
    "log_sigmoid": _float(lambda x: -_softplus(-x), types=REAL, special=False),
    "softplus": _float(_softplus, types=REAL, special=False),
    "logit": _float(torch.logit, types=REAL),
    "relu": _exact(torch.relu, 1, *COUNTED, *FLOATS),
    # arithmetic
    **{
        name: _exact(getattr(torch, name), 2, *COUNTED, *FLOATS, *HALVES)
        for name in ("add", "subtract", "multiply", "maximum", "minimum")
    },
    **{
        name: _exact(getattr(torch, name), 2, *COUNTED, *REAL, "bool")
        for name in (
            "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
            "logical_and", "logical_or", "logical_xor",
        )
        if name != "equal"
    },
    "equal": _exact(torch.eq, 2, *COUNTED, *REAL, "bool"),
    "logical_not": _exact(torch.logical_not, 1, *COUNTED, *REAL, "bool"),
    "neg": _exact(torch.neg, 1, *COUNTED, *REAL),
    "abs": _exact(torch.abs, 1, *COUNTED, *REAL),
    "square": _exact(torch.square, 1, *COUNTED, *FLOATS),
    "sign": _exact(torch.sign, 1, *COUNTED, *FLOATS),
    "fma": _exact(lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype), 3, "float32",
                  special=False),
    "fmod": _exact(_numpy(lambda a, b: np.where(b == 0, _fmod_zero(a), np.fmod(a, b))), 2,
                   *COUNTED, *FLOATS),
    "remainder": _exact(_numpy(lambda a, b: np.where(b == 0, _fmod_zero(a), np.mod(a, b))), 2,
                        *COUNTED, *FLOATS),
    "floor_divide": _exact(_numpy(np.floor_divide), 2, *SIGNED, "uint8"),
    "pow": _float(torch.pow, 2, types=FLOATS),
    "gcd": _exact(_numpy(np.gcd), 2, "int32", "int64"),
    "lcm": _exact(torch.lcm, 2, "int32", "int64", special=False),
    **{
        name: _exact(getattr(torch, name), 2, "bool", *COUNTED)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "bitwise_not": _exact(torch.bitwise_not, 1, "bool", *COUNTED),
    # rounding and bits of floats
    **{
        name: _exact(getattr(torch, name), 1, *COUNTED, *REAL)
        for name in ("ceil", "floor", "round", "trunc", "isnan", "isinf", "isfinite", "isneginf",
                     "isposinf")
    },
    "signbit": _exact(torch.signbit, 1, *COUNTED, "float16", *FLOATS),
    "frac": _exact(torch.frac, 1, *FLOATS, special=False),
    "frexp": _exact(lambda x: torch.frexp(x), 1, *FLOATS, special=False),
    "copysign": _exact(torch.copysign, 2, *FLOATS),
    "nextafter": _exact(torch.nextafter, 2, *FLOATS),
    "heaviside": _exact(torch.heaviside, 2, *FLOATS, "int32"),
    "fmax": _exact(torch.fmax, 2, *FLOATS, "int32"),
    "fmin": _exact(torch.fmin, 2, *FLOATS, "int32"),
    "nan_to_num": _exact(torch.nan_to_num, 1, *FLOATS, "int32"),
    "isclose": _exact(_numpy(np.isclose), 2, *FLOATS, "int16"),
}  # fmt: skip


def _fmod_zero(a: Any) -> Any:
    """What is left after a division by zero: 0 of integers, NaN of floats."""
    return np.zeros_like(a) if a.dtype.kind in "iu" else np.full_like(a, np.nan)


# ---- elementwise functions that take more than arrays


@case("left_shift", "right_shift")
def _shift(d: Draw, name: str) -> None:
    for dtype in INTEGERS:
        x = d.array(d.shape(), dtype, special=True)
        bits = np.dtype(dtype).itemsize * 8
        count = np.array(d.integer(0, bits - 1), dtype)
        want = getattr(np, name)(x.n, count)
        d.same(getattr(nd, name)(x.a, int(count)), want)


@case()
def _where(d: Draw) -> None:
    shape = d.shape(1)
    for dtype in ("bool", *INTEGERS, *REAL, *COMPLEX):
        chosen, x = d.array(shape, "bool"), d.array(shape, dtype, special=True)
        y = d.array(shape[1:], dtype)
        d.same(nd.where(chosen.a, x.a, y.a), np.where(chosen.n, x.n, y.n))


@case()
def _clip(d: Draw) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x = d.array(d.shape(), dtype, special=True)
        d.same(nd.clip(x.a, -2, 3) if dtype != "uint8" else nd.clip(x.a, 1, 3),
               torch.clip(x.t, -2 if dtype != "uint8" else 1, 3))  # fmt: skip


@case()
def _astype(d: Draw) -> None:
    for dtype in ("bool", *COUNTED, *REAL, *COMPLEX):
        x = d.array(d.shape(), dtype, special=dtype in INTEGERS)
        for to in ("bool", "int64", "uint8", "float32", "bfloat16", "complex64"):
            if dtype in COMPLEX and to not in COMPLEX and to != "bool":
                continue
            if dtype in (*REAL, *COMPLEX) and to == "uint8":
                continue  # negative floats: PyTorch's result is not defined
            d.same(nd.astype(x.a, to), x.t.to(getattr(torch, to)))


@case()
def _bitcast(d: Draw) -> None:
    x = d.array(d.shape(), "float32", special=True)
    d.same(nd.bitcast(x.a, "int32"), x.n.copy().view(np.int32))


@case()
def _ldexp(d: Draw) -> None:
    x = d.array(d.shape(), "float32")
    e = d.array(x.n.shape, "int32")
    d.same(nd.ldexp(x.a, e.a), np.ldexp(x.n, e.n))


@case()
def _threshold(d: Draw) -> None:
    x = d.array(d.shape())
    d.same(nd.threshold(x.a, 0.25, -1.5), F.threshold(x.t, 0.25, -1.5))


@case("polygamma")
def _polygamma(d: Draw, name: str) -> None:
    x = d.array(d.shape(), "float64")
    d.same(nd.polygamma(2, abs(x.a) + 0.1), torch.polygamma(2, abs(x.t) + 0.1), 10)


@case()
def _multigammaln(d: Draw) -> None:
    x = d.array(d.shape(), "float64")
    d.same(nd.multigammaln(abs(x.a) + 2, 3), torch.mvlgamma(abs(x.t) + 2, 3), 10)


@case()
def _zeta(d: Draw) -> None:
    s, q = d.array(d.shape(1), "float64"), d.array((), "float64")
    args = abs(s.a) + 1.25, abs(q.a) + 0.1
    d.same(nd.zeta(*args), torch.special.zeta(abs(s.t) + 1.25, abs(q.t) + 0.1), 10)
    powers, below = np.array([2.0, 3, 4, 5, 2.5, 2]), np.array([-0.5, -1.25, -2.7, -9.4, -1.5, -3])
    want = torch.special.zeta(torch.from_numpy(powers), torch.from_numpy(below))
    d.same(nd.zeta(nd.array(powers), nd.array(below)), want, 10)


@case("complex", "polar")
def _of_parts(d: Draw, name: str) -> None:
    for dtype in FLOATS:
        shape = d.shape()
        x, y = d.array(shape, dtype), d.array(shape, dtype)
        d.same(getattr(nd, name)(x.a, y.a), getattr(torch, name)(x.t, y.t))


@case("angle", "conj", "conj_physical", "real", "imag", "sgn", "view_as_real", "isreal")
def _of_complex(d: Draw, name: str) -> None:
    for dtype in COMPLEX:
        x = d.array(d.shape(), dtype)
        d.same(getattr(nd, name)(x.a), getattr(torch, name)(x.t), 2)


@case()
def _view_as_complex(d: Draw) -> None:
    x = d.array((*d.shape(), 2), "float64")
    d.same(nd.view_as_complex(x.a), x.n[..., 0] + 1j * x.n[..., 1])
