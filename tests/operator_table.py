"""What every public function of arrays is compared with.

`ELEMENTWISE` has the functions of each element, which the sweep applies to operands of all types
they take; `CASES` has everything else: a function that draws operands and compares. `EXEMPT` says
why a name is in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from genesis import ndarray as nd
from tests.operator_draw import (
    COMPLEX,
    FLOATS,
    HALVES,
    INTEGERS,
    SIGNED,
    Draw,
    Operand,
    as_numpy,
)

Case = Callable[[Draw], None]


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


REAL = (*HALVES, *FLOATS)
NUMBERS = (*INTEGERS, *REAL)
#: The integers PyTorch can compute with.
COUNTED = (*SIGNED, "uint8")


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
                     "isposinf", "signbit")
    },
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


CASES: dict[str, Case] = {}


def case(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a case under the name of its function, or for several functions with that name."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        if not names:
            CASES[function.__name__.strip("_")] = function
        for name in names:
            CASES[name] = partial(function, name=name)
        return function

    return register


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
    d.same(nd.bitcast(x.a, "int32"), np.ascontiguousarray(x.n).view(np.int32))


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


@case("gammainc", "gammaincc")
def _gammainc(d: Draw, name: str) -> None:
    shape = d.shape()
    a, x = d.array(shape, "float64"), d.array(shape, "float64")
    d.same(
        getattr(nd, name)(abs(a.a) * 4, abs(x.a) * 4),
        getattr(torch.special, name)(abs(a.t) * 4, abs(x.t) * 4),
        10,
    )


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


# ---- reductions

_TORCH_NAMES = {"max": "amax", "min": "amin"}


@case("sum", "prod", "any", "all", "count_nonzero")
def _reduction(d: Draw, name: str) -> None:
    for dtype in ("bool", *SIGNED, *REAL, *COMPLEX):
        if dtype in HALVES and name == "prod":
            continue
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        theirs = getattr(torch, name)
        d.same(getattr(nd, name)(x.a, axis), theirs(x.t, axis), 4)
        d.same(getattr(nd, name)(x.a), theirs(x.t), 4)


@case("amax", "amin", "max", "min")
def _extreme(d: Draw, name: str) -> None:
    for dtype in ("bool", *COUNTED, *REAL):
        x = d.array(d.shape(1, least=1), dtype, special=True)
        axis = d.axis(x.n.shape)
        theirs = getattr(torch, _TORCH_NAMES.get(name, name))
        d.same(getattr(nd, name)(x.a, axis, True), theirs(x.t, axis, True))


@case("argmax", "argmin")
def _position(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x = d.array(d.shape(1, least=1), dtype, special=True)
        axis = d.pick([None, d.axis(x.n.shape)])
        d.same(getattr(nd, name)(x.a, axis), getattr(np, name)(x.n, axis))


@case("mean", "var", "std", "logsumexp")
def _moment(d: Draw, name: str) -> None:
    for dtype in REAL:
        x = d.array(d.shape(1, least=2), dtype)
        axis = d.axis(x.n.shape)
        want = getattr(torch, name)(x.t.double(), axis, keepdim=True)
        d.same(getattr(nd, name)(x.a, axis, keepdims=True), want, 2, cast=True)


@case("softmax", "log_softmax")
def _softmax(d: Draw, name: str) -> None:
    for dtype in REAL:
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        want = getattr(torch, name)(x.t.double(), axis)
        d.same(getattr(nd, name)(x.a, axis), want, 2, cast=True)


# ---- cumulative


@case("cumsum", "cumprod", "logcumsumexp")
def _cumulative(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS) if name != "logcumsumexp" else FLOATS:
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        d.same(getattr(nd, name)(x.a, axis), getattr(torch, name)(x.t, axis), 8)


@case("cummax", "cummin")
def _running(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x = d.array(d.shape(1), dtype, special=True)
        axis = d.axis(x.n.shape)
        d.same(tuple(getattr(nd, name)(x.a, axis)), tuple(getattr(torch, name)(x.t, axis)))


@case()
def _diff(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, n = d.axis(x.n.shape), d.integer(0, 3)
    d.same(nd.diff(x.a, n, axis), torch.diff(x.t, n, axis))


@case("trapezoid", "cumulative_trapezoid")
def _trapezoid(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1), "float64")
    axis = d.axis(x.n.shape)
    d.same(getattr(nd, name)(x.a, dx=0.5, axis=axis), getattr(torch, name)(x.t, dx=0.5, dim=axis))


@case()
def _associative_scan(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis = d.axis(x.n.shape)
    got = nd.associative_scan(lambda a, b: a + b, x.a, 0.0, axis)
    d.same(got, torch.cumsum(x.t, axis), 8)


@case()
def _scan(d: Draw) -> None:
    x = d.array((4, *d.shape(0, 2)))
    carry, stacked = nd.scan(lambda c, row: (c * 0.5 + row, c), nd.zeros(x.n.shape[1:]), x.a)
    want, before = np.zeros(x.n.shape[1:], np.float32), []
    for row in x.n:
        before.append(want)
        want = want * np.float32(0.5) + row
    d.same([carry, stacked], [want, np.stack(before)], 2)


# ---- movement


@case()
def _flip(d: Draw) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x = d.array(d.shape(1), dtype)
        axis = d.axis(x.n.shape)
        d.same(nd.flip(x.a, axis), torch.flip(x.t, (axis,)))


@case()
def _squeeze(d: Draw) -> None:
    x = d.array((1, *d.shape(0, 2), 1))
    axis = d.pick((0, -1, (0, -1), None))
    d.same(nd.squeeze(x.a, axis), np.squeeze(x.n, axis))


@case()
def _unsqueeze(d: Draw) -> None:
    x = d.array(d.shape())
    axis = d.integer(-x.n.ndim - 1, x.n.ndim)
    d.same(nd.unsqueeze(x.a, axis), torch.unsqueeze(x.t, axis))


@case("moveaxis", "swapaxes")
def _axes(d: Draw, name: str) -> None:
    x = d.array(d.shape(1))
    a, b = d.axis(x.n.shape), d.axis(x.n.shape)
    d.same(getattr(nd, name)(x.a, a, b), getattr(torch, name)(x.t, a, b))


@case("permute", "transpose")
def _permute(d: Draw, name: str) -> None:
    x = d.array(d.shape(1))
    order = tuple(int(k) for k in d.rng.permutation(x.n.ndim))
    d.same(getattr(nd, name)(x.a, *order), x.n.transpose(order))


@case()
def _reshape(d: Draw) -> None:
    x = d.array(d.shape(1, least=1), d.pick(("int8", "float32", "complex64")))
    d.same(nd.reshape(x.a, -1, 1), x.n.reshape(-1, 1))
    d.same(nd.reshape(x.a, *x.n.shape[::-1]), x.n.reshape(x.n.shape[::-1]))


@case("broadcast_to", "expand")
def _expanded(d: Draw, name: str) -> None:
    x = d.array((d.integer(0, 3), 1))
    shape = (2, x.n.shape[0], d.integer(0, 5))
    given = (shape,) if name == "broadcast_to" else shape
    got = getattr(nd, name)(x.a if name == "broadcast_to" else x.a[None].expand(2, -1, 1), *given)
    d.same(got, np.broadcast_to(x.n, shape))


@case("concat", "stack")
def _joined(d: Draw, name: str) -> None:
    for dtype in ("bool", "uint8", "float16", "float32", "complex64"):
        shape = d.shape(1)
        x, y = d.array(shape, dtype), d.array(shape, dtype)
        axis = d.axis(shape)
        d.same(getattr(nd, name)([x.a, y.a, x.a], axis),
               getattr(torch, name)([x.t, y.t, x.t], axis))  # fmt: skip


@case()
def _split(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    first = d.integer(0, x.n.shape[axis])
    d.same(nd.split(x.a, 2, axis), torch.split(x.t, 2, axis))
    sizes = [first, x.n.shape[axis] - first]
    d.same(nd.split(x.a, sizes, axis), torch.split(x.t, sizes, axis))


@case()
def _roll(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, shift = d.axis(x.n.shape), d.integer(-40, 40)
    d.same(nd.roll(x.a, shift, axis), np.roll(x.n, shift, axis))


@case()
def _repeat(d: Draw) -> None:
    x = d.array(d.shape(1))
    axis, count = d.axis(x.n.shape), d.integer(0, 3)
    d.same(nd.repeat(x.a, count, axis), np.repeat(x.n, count, axis))


@case()
def _tile(d: Draw) -> None:
    x = d.array(d.shape(1, 2))
    counts = tuple(d.integer(0, 3) for _ in range(d.integer(x.n.ndim, 3)))
    d.same(nd.tile(x.a, counts), torch.tile(x.t, counts))


@case()
def _diagonal(d: Draw) -> None:
    n = d.integer(0, 4)
    x = d.array((n, 3, n))
    d.same(nd.diagonal(x.a, 0, 2), torch.diagonal(x.t, 0, 0, 2))


@case("tril", "triu")
def _triangle(d: Draw, name: str) -> None:
    for dtype in ("bool", "int8", "float32", "complex64"):
        x = d.array(d.shape(2), dtype)
        k = d.integer(-4, 4)
        d.same(getattr(nd, name)(x.a, k), getattr(torch, name)(x.t, k))


@case()
def _windows(d: Draw) -> None:
    x = d.array(d.shape(1, least=3))
    axis, size, step = d.axis(x.n.shape), d.integer(1, 3), d.integer(1, 3)
    d.same(nd.windows(x.a, axis, size, step), x.t.unfold(axis, size, step))


@case()
def _overlap_add(d: Draw) -> None:
    x = d.array((3, d.integer(1, 4)))
    want = np.zeros(2 * 2 + x.n.shape[1] + 1, np.float32)
    for k, row in enumerate(x.n):
        want[2 * k : 2 * k + len(row)] += row
    d.same(nd.overlap_add(x.a, 0, len(want), 2), want)


@case()
def _pad(d: Draw) -> None:
    for mode in ("constant", "reflect", "replicate", "circular"):
        x = d.array((2, 1, *d.shape(2, 2, least=3)))
        widths = [d.integer(-1, 2) for _ in range(4)]
        got = nd.pad(x.a, [(0, 0), (0, 0), tuple(widths[2:]), tuple(widths[:2])], mode=mode)
        d.same(got, F.pad(x.t, widths, mode))


@case()
def _pad_gradient(d: Draw) -> None:
    for mode in ("constant", "reflect", "replicate", "circular"):
        widths = [d.integer(0, 2) for _ in range(4)]
        x = torch.zeros(2, 1, 4, 3, dtype=torch.float64, requires_grad=True)
        padded = F.pad(x, widths, mode)
        g = d.array(padded.shape, "float64")
        padded.backward(g.t)
        edges = [(0, 0), (0, 0), tuple(widths[2:]), tuple(widths[:2])]
        d.same(nd.pad_gradient(g.a, edges, mode), x.grad)


@case()
def _pixel_shuffle(d: Draw) -> None:
    x = d.array((2, 8, *d.shape(2, 2)))
    d.same(nd.pixel_shuffle(x.a, 2), F.pixel_shuffle(x.t, 2))


@case()
def _pixel_unshuffle(d: Draw) -> None:
    x = d.array((2, 3, 4, 2 * d.integer(0, 3)))
    d.same(nd.pixel_unshuffle(x.a, 2), F.pixel_unshuffle(x.t, 2))


@case()
def _channel_shuffle(d: Draw) -> None:
    x = d.array((2, 6, 3, 2))
    d.same(nd.channel_shuffle(x.a, 3), F.channel_shuffle(x.t, 3))


# ---- creation


@case()
def _arange(d: Draw) -> None:
    start, stop, step = d.integer(-9, 9), d.integer(-9, 9), d.pick((1, 2, 3, -1, -2))
    d.same(nd.arange(start, stop, step), np.arange(start, stop, step))
    d.same(nd.arange(0, 1, 0.125), torch.arange(0, 1, 0.125))


@case()
def _linspace(d: Draw) -> None:
    n = d.integer(1, 9)
    d.same(nd.linspace(-1, 2.5, n), torch.linspace(-1, 2.5, n))


@case()
def _eye(d: Draw) -> None:
    m, n = d.integer(0, 4), d.integer(0, 4)
    d.same(nd.eye(m, n), torch.eye(m, n))


@case("zeros", "ones")
def _filled(d: Draw, name: str) -> None:
    shape = d.shape()
    for dtype in ("bool", *COUNTED, *FLOATS, *COMPLEX):
        d.same(getattr(nd, name)(shape, dtype), getattr(np, name)(shape, dtype))


@case("zeros_like", "ones_like")
def _filled_like(d: Draw, name: str) -> None:
    x = d.array(d.shape(), d.pick(("bool", "int8", "float32")))
    d.same(getattr(nd, name)(x.a), getattr(np, name)(np.ascontiguousarray(x.n)).reshape(x.n.shape))


@case()
def _full(d: Draw) -> None:
    shape = d.shape()
    d.same(nd.full(shape, 2.5), np.full(shape, 2.5, np.float32))
    d.same(nd.full(shape, 3), np.full(shape, 3))


@case()
def _full_like(d: Draw) -> None:
    x = d.array(d.shape(), "int8")
    d.same(nd.full_like(x.a, 7), np.full(x.n.shape, 7, np.int8))


@case("array", "asarray")
def _array(d: Draw, name: str) -> None:
    for dtype in ("bool", *INTEGERS, *REAL, *COMPLEX):
        x = d.numbers(d.shape(), dtype, special=True)
        d.same(getattr(nd, name)(x), x)
    d.same(getattr(nd, name)([[1.5, 2], [3, 4]]), np.array([[1.5, 2], [3, 4]], np.float32))


@case()
def _from_numpy(d: Draw) -> None:
    x = d.numbers(d.shape(2), "float32")
    d.same(nd.from_numpy(x.T[::-1]), x.T[::-1])


@case()
def _from_dlpack(d: Draw) -> None:
    x = torch.arange(12.0).reshape(3, 4).T
    d.same(nd.from_dlpack(x), x)


@case()
def _meshgrid(d: Draw) -> None:
    x, y = d.array(d.shape(1, 1)), d.array(d.shape(1, 1))
    for indexing in ("ij", "xy"):
        d.same(nd.meshgrid(x.a, y.a, indexing=indexing),
               torch.meshgrid(x.t, y.t, indexing=indexing))  # fmt: skip


@case("tril_indices", "triu_indices")
def _triangle_indices(d: Draw, name: str) -> None:
    m, n, k = d.integer(0, 5), d.integer(0, 5), d.integer(-3, 3)
    d.same(getattr(nd, name)(m, n, k), getattr(torch, name)(m, n, k))


# ---- contraction


@case()
def _matmul(d: Draw) -> None:
    for dtype in (*COUNTED, *REAL, *COMPLEX):
        m, k, n = (d.integer(0, 5) for _ in range(3))
        x, y = d.array((2, 1, m, k), dtype), d.array((3, k, n), dtype)
        want = torch.matmul(x.t.double() if dtype in HALVES else x.t,
                            y.t.double() if dtype in HALVES else y.t)  # fmt: skip
        d.same(nd.matmul(x.a, y.a), want, 8, cast=True)


@case()
def _dot(d: Draw) -> None:
    n = d.integer(0, 9)
    x, y = d.array((n,)), d.array((n,))
    d.same(nd.dot(x.a, y.a), torch.dot(x.t, y.t), 8)


@case()
def _outer(d: Draw) -> None:
    x, y = d.array(d.shape(1, 1)), d.array(d.shape(1, 1))
    d.same(nd.outer(x.a, y.a), torch.outer(x.t, y.t))


@case()
def _einsum(d: Draw) -> None:
    x, y = d.array((2, 3, 4), "float64"), d.array((4, 3, 5), "float64")
    for form in ("abc,cbd->ad", "abc,cbd->bda", "abc,cbd->", "abc,cde->abde"):
        d.same(nd.einsum(form, x.a, y.a), torch.einsum(form, x.t, y.t), 8)
    d.same(nd.einsum("aab->ab", nd.concat([x.a, x.a], 1)[:, :2]),
           torch.einsum("aab->ab", torch.cat([x.t, x.t], 1)[:, :2]))  # fmt: skip


@case()
def _tensordot(d: Draw) -> None:
    x, y = d.array((2, 3, 4), "float64"), d.array((4, 3, 5), "float64")
    axes = ([1, 2], [1, 0])
    d.same(nd.tensordot(x.a, y.a, axes), torch.tensordot(x.t, y.t, axes), 8)


# ---- indexing: gather and scatter


def _indexed(d: Draw, dtype: str, least: int = 1) -> tuple[Operand, Operand, int]:
    """An array, positions along one of its axes in an array of the same rank, and the axis."""
    x = d.array(d.shape(1, least=least), dtype)
    axis = d.axis(x.n.shape)
    shape = [d.integer(0, n) for n in x.n.shape]
    shape[axis] = d.integer(0, 6)
    return x, d.index(shape, x.n.shape[axis]), axis


@case("gather")
def _gather(d: Draw, name: str) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x, index, axis = _indexed(d, dtype)
        d.same(nd.gather(x.a, index.a, axis), torch.gather(x.t, axis, index.t.long()))


@case()
def _take_along_axis(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    index = d.index(x.n.shape, x.n.shape[axis], negative=True)
    d.same(nd.take_along_axis(x.a, index.a, axis), np.take_along_axis(x.n, index.n, axis))


@case()
def _take(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    index = d.index(d.shape(), x.n.size, negative=True)
    d.same(nd.take(x.a, index.a), np.take(x.n, index.n))
    axis = d.axis(x.n.shape)
    index = d.index(d.shape(0, 2), x.n.shape[axis], negative=True)
    d.same(nd.take(x.a, index.a, axis), np.take(x.n, index.n, axis))


@case()
def _index_select(d: Draw) -> None:
    for dtype in ("bool", "int16", *FLOATS, "complex128"):
        x = d.array(d.shape(1, least=1), dtype)
        axis = d.axis(x.n.shape)
        index = d.index((d.integer(0, 6),), x.n.shape[axis])
        d.same(nd.index_select(x.a, index.a, axis), torch.index_select(x.t, axis, index.t))


@case()
def _embedding(d: Draw) -> None:
    x = d.array((5, d.integer(0, 4)), d.pick(FLOATS))
    index = d.index(d.shape(), 5)
    d.same(nd.embedding(x.a, index.a), F.embedding(index.t.long(), x.t))


@case()
def _embedding_gradient(d: Draw) -> None:
    index = d.index(d.shape(0, 2), 5)
    g = d.array((*index.n.shape, 3), "float64")
    want = np.zeros((6, 3))
    np.add.at(want, index.n.astype(np.int64), g.n)
    d.same(nd.embedding_gradient(g.a, index.a, 6), want, 4)


@case("scatter_add")
def _scatter_add(d: Draw, name: str) -> None:
    for dtype in (*COUNTED, *FLOATS):
        x, index, axis = _indexed(d, dtype)
        y = d.array(index.n.shape, dtype)
        d.same(nd.scatter_add(x.a, index.a, y.a, axis),
               torch.scatter_add(x.t, axis, index.t.long(), y.t), 4)  # fmt: skip


@case("scatter_reduce")
def _scatter_reduce(d: Draw, name: str) -> None:
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        x, index, axis = _indexed(d, "float64")
        y = d.array(index.n.shape, "float64")
        own = d.pick((True, False))
        got = nd.scatter_reduce(x.a, index.a, y.a, axis, reduce, own)
        want = torch.scatter_reduce(x.t, axis, index.t.long(), y.t, reduce, include_self=own)
        d.same(got, want, 4)


@case("scatter")
def _scatter(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    index = d.permutation(x.n.shape, axis)
    y = d.array(x.n.shape)
    d.same(nd.scatter(x.a, index.a, y.a, axis), torch.scatter(x.t, axis, index.t, y.t))


def _rows(d: Draw, dtype: str = "float32") -> tuple[Operand, Operand, Operand, int]:
    """An array, distinct positions along an axis, and as many slices of it."""
    x = d.array(d.shape(1, least=1), dtype)
    axis = d.axis(x.n.shape)
    n = x.n.shape[axis]
    count = d.integer(0, n)
    index = d.rng.permutation(n)[:count]
    shape = list(x.n.shape)
    shape[axis] = count
    return x, Operand(nd.array(index), index), d.array(shape, dtype), axis


@case()
def _index_add(d: Draw) -> None:
    for dtype in ("int32", *FLOATS):
        x, index, y, axis = _rows(d, dtype)
        d.same(nd.index_add(x.a, index.a, y.a, axis, alpha=2),
               torch.index_add(x.t, axis, index.t, y.t, alpha=2))  # fmt: skip


@case()
def _index_copy(d: Draw) -> None:
    x, index, y, axis = _rows(d)
    d.same(nd.index_copy(x.a, index.a, y.a, axis), torch.index_copy(x.t, axis, index.t, y.t))


@case()
def _index_fill(d: Draw) -> None:
    x, index, _, axis = _rows(d)
    d.same(nd.index_fill(x.a, index.a, 2.5, axis), torch.index_fill(x.t, axis, index.t, 2.5))


@case()
def _index_reduce(d: Draw) -> None:
    for reduce in ("prod", "mean", "amax", "amin"):
        x, index, y, axis = _rows(d, "float64")
        d.same(nd.index_reduce(x.a, index.a, y.a, reduce, axis),
               torch.index_reduce(x.t, axis, index.t, y.t, reduce))  # fmt: skip


@case()
def _put(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    index = d.rng.permutation(x.n.size)[: d.integer(0, x.n.size)]
    y = d.array(index.shape)
    for more in (False, True):
        d.same(nd.put(x.a, nd.array(index), y.a, more),
               x.t.clone().put_(torch.from_numpy(index), y.t, more))  # fmt: skip


@case()
def _select(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    at = d.integer(-x.n.shape[axis], x.n.shape[axis] - 1)
    d.same(nd.select(x.a, at, axis), torch.select(x.t, axis, at))


@case()
def _select_scatter(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    at = d.integer(-x.n.shape[axis], x.n.shape[axis] - 1)
    part = d.array(torch.select(x.t, axis, at).shape)
    d.same(nd.select_scatter(x.a, part.a, at, axis), torch.select_scatter(x.t, part.t, axis, at))


@case()
def _slice_scatter(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    axis = d.axis(x.n.shape)
    n = x.n.shape[axis]
    start, step = d.integer(0, n), d.integer(1, 3)
    shape = list(x.n.shape)
    shape[axis] = len(range(start, n, step))
    part = d.array(shape)
    d.same(nd.slice_scatter(x.a, part.a, axis, start, n, step),
           torch.slice_scatter(x.t, part.t, axis, start, n, step))  # fmt: skip


@case()
def _diagonal_scatter(d: Draw) -> None:
    x = d.array(d.shape(2, least=2))
    k = d.integer(-1, 1)
    part = d.array(torch.diagonal(x.t, k).shape)
    d.same(nd.diagonal_scatter(x.a, part.a, k), torch.diagonal_scatter(x.t, part.t, k))


@case()
def _dynamic_slice(d: Draw) -> None:
    x = d.array((7, 5))
    i, j = d.integer(0, 4), d.integer(0, 3)
    d.same(nd.dynamic_slice(x.a, [i, nd.array(j)], (3, 2)), x.n[i : i + 3, j : j + 2])


@case()
def _dynamic_update(d: Draw) -> None:
    x, y = d.array((7, 5)), d.array((3, 2))
    i, j = d.integer(0, 4), d.integer(0, 3)
    want = x.n.copy()
    want[i : i + 3, j : j + 2] = y.n
    d.same(nd.dynamic_update(x.a, y.a, [nd.array(i), j]), want)


@case()
def _masked_fill(d: Draw) -> None:
    for dtype in ("bool", "int8", *REAL, "complex64"):
        x = d.array(d.shape(1), dtype)
        mask = d.array(x.n.shape[1:], "bool")
        d.same(nd.masked_fill(x.a, mask.a, 1), torch.masked_fill(x.t, mask.t, 1))


@case()
def _masked_select(d: Draw) -> None:
    for dtype in ("bool", "int8", *FLOATS):
        x = d.array(d.shape(1), dtype)
        mask = d.array(x.n.shape, "bool")
        d.same(nd.masked_select(x.a, mask.a), torch.masked_select(x.t, mask.t))


@case()
def _masked_scatter(d: Draw) -> None:
    x = d.array(d.shape(1))
    mask = d.array(x.n.shape, "bool")
    source = d.array((x.n.size,))
    d.same(nd.masked_scatter(x.a, mask.a, source.a), torch.masked_scatter(x.t, mask.t, source.t))


@case("nonzero", "argwhere")
def _nonzero(d: Draw, name: str) -> None:
    for dtype in ("bool", "int32", "float32"):
        x = d.array(d.shape(1), dtype)
        d.same(getattr(nd, name)(x.a), getattr(torch, name)(x.t))


@case()
def _one_hot(d: Draw) -> None:
    index = d.index(d.shape(), 6)
    d.same(nd.one_hot(index.a, 6), F.one_hot(index.t.long(), 6))


@case()
def _bincount(d: Draw) -> None:
    index = d.index((d.integer(1, 20),), 6)
    w = d.array(index.n.shape, "float64")
    d.same(nd.bincount(index.a, minlength=3), torch.bincount(index.t, minlength=3))
    d.same(nd.bincount(index.a, w.a), torch.bincount(index.t, w.t), 4)


@case("segment_sum", "segment_mean", "segment_max", "segment_min")
def _segment(d: Draw, name: str) -> None:
    x = d.array((d.integer(1, 9), *d.shape(0, 2)), "float64")
    index = d.index(x.n.shape[:1], 4)
    count = 4
    reduce = {"segment_sum": "sum", "segment_mean": "mean", "segment_max": "amax",
              "segment_min": "amin"}[name]  # fmt: skip
    empty = {"segment_max": -np.inf, "segment_min": np.inf}.get(name, 0.0)
    start = torch.full((count, *x.n.shape[1:]), empty, dtype=torch.float64)
    where = index.t.long().reshape(-1, *(1,) * (x.n.ndim - 1)).expand(x.n.shape)
    want = torch.scatter_reduce(start, 0, where, x.t, reduce, include_self=False)
    d.same(getattr(nd, name)(x.a, index.a, count), want, 4)


@case("searchsorted", "bucketize")
def _searchsorted(d: Draw, name: str) -> None:
    for dtype in ("int32", *FLOATS):
        edges = np.sort(d.numbers((d.integer(0, 9),), dtype))
        x = d.array(d.shape(), dtype)
        right = d.pick((True, False))
        given = (nd.array(edges), x.a) if name == "searchsorted" else (x.a, nd.array(edges))
        want = np.searchsorted(edges, x.n, "right" if right else "left")
        d.same(getattr(nd, name)(*given, right=right), np.asarray(want, np.int64))


@case()
def _ravel_multi_index(d: Draw) -> None:
    shape = (3, 4, 5)
    parts = [d.index((6,), n) for n in shape]
    want = np.ravel_multi_index([p.n for p in parts], shape)
    d.same(nd.ravel_multi_index([p.a for p in parts], shape), np.asarray(want, np.int64))


@case()
def _unravel_index(d: Draw) -> None:
    index = d.index(d.shape(), 60)
    want = np.unravel_index(index.n.astype(np.int64), (3, 4, 5))
    d.same(nd.unravel_index(index.a, (3, 4, 5)), [np.asarray(w, np.int64) for w in want])


# ---- convolution, pooling, interpolation


def _spatial(d: Draw, rank: int, least: int = 4, channels: int = 2) -> Operand:
    batch = d.pick(((), (0,), (1,), (2,)))
    dtype = d.pick(FLOATS)
    return d.array((*batch, channels, *(d.integer(least, 7) for _ in range(rank))), dtype)


def _rank(name: str) -> int:
    digits = [int(c) for c in name if c.isdigit()]
    return digits[-1] if digits else 2


@case("conv1d", "conv2d", "conv3d", "convolution")
def _conv(d: Draw, name: str) -> None:
    rank = _rank(name)
    groups = d.pick((1, 2))
    x = _spatial(d, rank, channels=4)
    w = d.array((4, 4 // groups, *(d.integer(1, 3) for _ in range(rank))), str(x.n.dtype))
    options = {"stride": d.integer(1, 2), "padding": d.integer(0, 1), "groups": groups}
    options["dilation"] = d.integer(1, 2) if options["padding"] else 1
    theirs = getattr(F, f"conv{rank}d")
    d.same(getattr(nd, name)(x.a, w.a, **options), theirs(x.t, w.t, **options), 8)
    if x.n.ndim == rank + 2 and x.n.size and options["groups"] == 1:
        mode = d.pick(("reflect", "replicate", "circular"))
        got = getattr(nd, name)(x.a, w.a, padding=2, padding_mode=mode)
        d.same(got, theirs(F.pad(x.t, (2, 2) * rank, mode), w.t), 8)


@case("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution_transpose")
def _conv_transpose(d: Draw, name: str) -> None:
    rank = _rank(name)
    groups = d.pick((1, 2))
    x = _spatial(d, rank, channels=4)
    w = d.array((4, 2, *(d.integer(1, 3) for _ in range(rank))), str(x.n.dtype))
    options = {"stride": d.integer(2, 3), "output_padding": d.integer(0, 1), "groups": groups}
    theirs = getattr(F, f"conv_transpose{rank}d")
    d.same(getattr(nd, name)(x.a, w.a, **options), theirs(x.t, w.t, **options), 8)


@case("convolution_input_gradient", "convolution_weight_gradient")
def _conv_gradient(d: Draw, name: str) -> None:
    groups = d.pick((1, 2, 4))
    x = d.array((2, 4, d.integer(3, 7), 5), "float64")
    w = d.array((4, 4 // groups, 3, d.integer(1, 3)), "float64")
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1), "groups": groups}
    a, b = x.t.clone().requires_grad_(), w.t.clone().requires_grad_()
    out = F.conv2d(a, b, None, **options)
    g = d.array(out.shape, "float64")
    out.backward(g.t)
    if name == "convolution_input_gradient":
        d.same(nd.convolution_input_gradient(g.a, w.a, x.n.shape, **options), a.grad, 8)
    else:
        d.same(nd.convolution_weight_gradient(g.a, x.a, w.n.shape, **options), b.grad, 8)


@case("avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool")
def _avg_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = _spatial(d, rank)
    size = tuple(d.integer(2, 3) for _ in range(rank))
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1),
               "ceil_mode": d.pick((True, False)),
               "count_include_pad": d.pick((True, False))}  # fmt: skip
    theirs = getattr(F, f"avg_pool{rank}d")
    d.same(getattr(nd, name)(x.a, size, **options), theirs(x.t, size, **options), 2)


@case("max_pool1d", "max_pool2d", "max_pool3d", "max_pool")
def _max_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = _spatial(d, rank)
    size = tuple(d.integer(2, 3) for _ in range(rank))
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1),
               "ceil_mode": d.pick((True, False)), "return_indices": True}  # fmt: skip
    theirs = getattr(F, f"max_pool{rank}d")
    d.same(getattr(nd, name)(x.a, size, **options), theirs(x.t, size, **options))


@case("lp_pool1d", "lp_pool2d", "lp_pool3d")
def _lp_pool(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(4, 6) for _ in range(rank))), "float64")
    d.same(getattr(nd, name)(x.a, 2, 2), getattr(F, name)(x.t, 2, 2), 8)


@case("avg_pool_gradient", "max_pool_gradient")
def _pool_gradient(d: Draw, name: str) -> None:
    x = d.array((2, 3, d.integer(4, 7), 5), "float64")
    leaf = x.t.clone().requires_grad_()
    options = {"stride": d.integer(1, 3), "padding": d.integer(0, 1)}
    if name == "avg_pool_gradient":
        out = F.avg_pool2d(leaf, (3, 2), **options)
        g = d.array(out.shape, "float64")
        got = nd.avg_pool_gradient(g.a, x.n.shape[2:], (3, 2), **options)
    else:
        out, indices = F.max_pool2d(leaf, (3, 2), **options, return_indices=True)
        g = d.array(out.shape, "float64")
        found = nd.array(indices.numpy())
        got = nd.max_pool_gradient(g.a, found, x.n.shape[2:], (3, 2), **options)
    out.backward(g.t)
    d.same(got, leaf.grad, 2)


@case("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def _adaptive(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(1, 9) for _ in range(rank))), d.pick(FLOATS))
    size = tuple(d.integer(1, 6) for _ in range(rank))
    more = {"return_indices": True} if "max" in name else {}
    d.same(getattr(nd, name)(x.a, size, **more), getattr(F, name)(x.t, size, **more), 2)


@case()
def _adaptive_avg_pool_gradient(d: Draw) -> None:
    x = torch.zeros(2, 3, d.integer(3, 9), 7, dtype=torch.float64, requires_grad=True)
    out = F.adaptive_avg_pool2d(x, (d.integer(1, 5), 3))
    g = d.array(out.shape, "float64")
    out.backward(g.t)
    d.same(nd.adaptive_avg_pool_gradient(g.a, x.shape[2:]), x.grad, 2)


@case("fractional_max_pool2d", "fractional_max_pool3d")
def _fractional(d: Draw, name: str) -> None:
    rank = _rank(name)
    x = d.array((2, 3, *(d.integer(6, 9) for _ in range(rank))), "float64")
    samples = np.abs(d.numbers((2, 3, rank), "float64")) % 1
    got = getattr(nd, name)(x.a, 2, 3, return_indices=True, random_samples=nd.array(samples))
    theirs = getattr(F, f"{name}_with_indices")
    d.same(got, theirs(x.t, 2, 3, _random_samples=torch.from_numpy(samples)))


@case("max_unpool1d", "max_unpool2d", "max_unpool3d", "max_unpool", "put_at_positions")
def _unpool(d: Draw, name: str) -> None:
    rank = _rank(name)
    lengths = tuple(2 * d.integer(2, 3) for _ in range(rank))
    x = d.array((2, 3, *lengths))
    pooled, indices = getattr(F, f"max_pool{rank}d")(x.t, 2, return_indices=True)
    want = getattr(F, f"max_unpool{rank}d")(pooled, indices, 2)
    a, at = nd.array(pooled.numpy()), nd.array(indices.numpy())
    given = (lengths,) if name in ("max_unpool", "put_at_positions") else (2,)
    d.same(getattr(nd, name)(a, at, *given), want)


@case()
def _at_positions(d: Draw) -> None:
    x = d.array((2, 3, 4, 6))
    pooled, indices = F.max_pool2d(x.t, 2, return_indices=True)
    d.same(nd.at_positions(x.a, nd.array(indices.numpy()), 2), pooled)


@case()
def _local_response_norm(d: Draw) -> None:
    x = d.array((2, 5, 3, 3))
    d.same(nd.local_response_norm(x.a, 3), F.local_response_norm(x.t, 3), 2)


@case()
def _unfold(d: Draw) -> None:
    x = d.array((2, 3, d.integer(4, 6), 5))
    options = {"dilation": d.integer(1, 2), "padding": 1, "stride": d.integer(1, 2)}
    d.same(nd.unfold(x.a, (2, 3), **options), F.unfold(x.t, (2, 3), **options))


@case()
def _fold(d: Draw) -> None:
    options = {"dilation": d.integer(1, 2), "padding": 1, "stride": d.integer(1, 2)}
    columns = F.unfold(torch.zeros(2, 3, 5, 6), (2, 3), **options)
    x = d.array(columns.shape)
    d.same(nd.fold(x.a, (5, 6), (2, 3), **options), F.fold(x.t, (5, 6), (2, 3), **options), 2)


_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")


@case()
def _interpolate(d: Draw) -> None:
    for mode in _MODES:
        x = d.array((2, 3, d.integer(2, 6), d.integer(2, 6)), "float64")
        size = (d.integer(1, 9), d.integer(1, 9))
        corners = d.pick((True, False)) if mode.startswith("bi") else None
        options = {"size": size, "mode": mode, "align_corners": corners}
        d.same(nd.interpolate(x.a, **options), F.interpolate(x.t, **options), 8)


@case()
def _interpolate_gradient(d: Draw) -> None:
    for mode in _MODES:
        x = torch.zeros(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
        size = (d.integer(1, 9), d.integer(1, 9))
        out = F.interpolate(x, size, mode=mode)
        g = d.array(out.shape, "float64")
        out.backward(g.t)
        d.same(nd.interpolate_gradient(g.a, x.shape, size, mode=mode), x.grad, 8)


@case()
def _grid_sample(d: Draw) -> None:
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            x = d.array((2, 3, d.integer(2, 5), 4), "float64")
            grid = d.array((2, 3, d.integer(0, 4), 2), "float64")
            options = {"mode": mode, "padding_mode": padding,
                       "align_corners": d.pick((True, False))}  # fmt: skip
            d.same(nd.grid_sample(x.a, grid.a, **options), F.grid_sample(x.t, grid.t, **options), 8)


@case()
def _affine_grid(d: Draw) -> None:
    theta = d.array((2, 2, 3), "float64")
    corners = d.pick((True, False))
    d.same(nd.affine_grid(theta.a, (2, 1, 3, 4), corners),
           F.affine_grid(theta.t, (2, 1, 3, 4), corners), 4)  # fmt: skip


# ---- sorting and statistics


@case("sort", "argsort", "topk", "kthvalue", "msort")
def _sorted(d: Draw, name: str) -> None:
    for dtype in ("bool", *COUNTED, *REAL):
        if dtype == "bool" and name in ("topk", "kthvalue"):
            continue
        x = d.array(d.shape(1, least=1), dtype, special=True)
        axis, down = d.axis(x.n.shape), d.pick((True, False))
        k = d.integer(1, x.n.shape[axis])
        if name == "sort":
            d.same(nd.sort(x.a, axis, down), torch.sort(x.t, dim=axis, descending=down, stable=True))
        elif name == "argsort":
            d.same(nd.argsort(x.a, axis, down),
                   torch.argsort(x.t, dim=axis, descending=down, stable=True))  # fmt: skip
        elif name == "topk":  # which of equal elements is up to the implementation
            d.same(nd.topk(x.a, k, axis, down)[0], torch.topk(x.t, k, axis, down)[0])
        elif name == "kthvalue":
            d.same(nd.kthvalue(x.a, k, axis)[0], torch.kthvalue(x.t, k, axis)[0])
        else:
            d.same(nd.msort(x.a), torch.msort(x.t))


@case()
def _lexsort(d: Draw) -> None:
    n = d.integer(0, 20)
    x, y = d.array((n,), "int8"), d.array((n,), "int8")
    d.same(nd.lexsort([x.a, y.a]), np.lexsort([x.n, y.n]))


@case()
def _isin(d: Draw) -> None:
    x, y = d.array(d.shape(), "int32"), d.array(d.shape(1, 1), "int32")
    d.same(nd.isin(x.a, y.a), np.isin(x.n, y.n))


@case("unique", "unique_consecutive")
def _unique(d: Draw, name: str) -> None:
    for dtype in ("int8", "int64", *FLOATS):
        x = d.array((d.integer(0, 20),), dtype)
        options = {"return_inverse": True, "return_counts": True}
        d.same(getattr(nd, name)(x.a, **options), getattr(torch, name)(x.t, **options))


@case("median", "nanmedian", "mode")
def _middle(d: Draw, name: str) -> None:
    for dtype in ("int32", *FLOATS):
        x = d.array(d.shape(1, least=1), dtype, special=name != "mode")
        axis = d.axis(x.n.shape)
        d.same(getattr(nd, name)(x.a, axis)[0], getattr(torch, name)(x.t, axis)[0])


@case("quantile", "nanquantile")
def _quantile(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1), "float64")
    axis = d.axis(x.n.shape)
    q = np.array([0.0, 0.25, 0.9])
    d.same(getattr(nd, name)(x.a, nd.array(q), axis),
           getattr(torch, name)(x.t, torch.from_numpy(q), axis), 2)  # fmt: skip


@case()
def _histogram(d: Draw) -> None:
    x = d.array((d.integer(1, 30),), "float64")
    d.same(nd.histogram(x.a, 5, range=(-2.0, 2.0)), torch.histogram(x.t, 5, range=(-2.0, 2.0)))


@case()
def _histc(d: Draw) -> None:
    x = d.array(d.shape(1, least=1))
    d.same(nd.histc(x.a, 7, -2, 2), torch.histc(x.t, 7, -2, 2))


@case()
def _aminmax(d: Draw) -> None:
    x = d.array(d.shape(1, least=1), d.pick((*COUNTED, *FLOATS)), special=True)
    axis = d.axis(x.n.shape)
    d.same(nd.aminmax(x.a, axis), torch.aminmax(x.t, dim=axis))


@case("nansum", "nanmean")
def _without_nan(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=1), "float64")
    numbers = np.where(x.n > 1, np.nan, x.n)
    axis = d.axis(x.n.shape)
    got = getattr(nd, name)(nd.where(x.a > 1, np.nan, x.a), axis)
    d.same(got, getattr(torch, name)(torch.from_numpy(numbers), axis), 4)


@case("var_mean", "std_mean")
def _two_moments(d: Draw, name: str) -> None:
    x = d.array(d.shape(1, least=2), "float64")
    axis = d.axis(x.n.shape)
    d.same(getattr(nd, name)(x.a, axis), getattr(torch, name)(x.t, axis), 4)


@case("cov", "corrcoef")
def _covariance(d: Draw, name: str) -> None:
    x = Operand(*(2 * [d.numbers((3, 6), "float64")]))
    d.same(getattr(nd, name)(nd.array(x.n)), getattr(torch, name)(x.t), 8)


@case()
def _dist(d: Draw) -> None:
    shape = d.shape()
    x, y = d.array(shape, "float64"), d.array(shape, "float64")
    for p in (0, 1, 2, 3.5, np.inf) if x.n.size else (0, 1, 2, 3.5):
        d.same(nd.dist(x.a, y.a, p), torch.dist(x.t, y.t, p), 4)


@case()
def _cdist(d: Draw) -> None:
    x, y = d.array((2, d.integer(0, 4), 3), "float64"), d.array((2, 5, 3), "float64")
    for p in (1, 2, np.inf):
        d.same(nd.cdist(x.a, y.a, p), torch.cdist(x.t, y.t, p), 8)


@case()
def _renorm(d: Draw) -> None:
    x = d.array(d.shape(2, least=1), "float64")
    axis = d.integer(0, x.n.ndim - 1)
    d.same(nd.renorm(x.a, 2, axis, 1.5), torch.renorm(x.t, 2, axis, 1.5), 4, cast=True)


@case()
def _trace(d: Draw) -> None:
    x = d.array(d.shape(2, 2), d.pick(("int32", *FLOATS)))
    d.same(nd.trace(x.a), torch.trace(x.t), 4)


# ---- linear algebra and Fourier transforms: namespaces of their own


def _matrix(d: Draw, m: int, n: int) -> Operand:
    """Matrices, well conditioned if square."""
    dtype = d.pick(("float64", "complex128"))

    def make(shape: tuple[int, ...]) -> Any:
        found = d.numbers(shape, dtype)
        return found + 8 * np.eye(*shape[-2:]).astype(dtype) if m == n else found

    return Operand(nd.array(found := make((*d.pick(((), (2,), (2, 1))), m, n))), found)


_linalg: Any = torch.linalg


@case(*(f"linalg.{name}" for name in (
    "inv", "det", "slogdet", "eigvals", "svdvals", "pinv", "matrix_rank", "cond", "matrix_norm",
    "matrix_exp", "eigvalsh", "cholesky", "vector_norm", "norm", "lu_factor", "lu", "trace",
    "eig", "eigh", "qr", "svd", "cholesky_inverse",
)))  # fmt: skip
def _of_matrix(d: Draw, name: str) -> None:
    short = name.removeprefix("linalg.")
    n = d.integer(1, 4)
    x = _matrix(d, n, n)
    if short in ("eigvalsh", "cholesky", "eigh", "cholesky_inverse"):
        symmetric = x.n @ x.n.conj().swapaxes(-1, -2)
        x = Operand(nd.array(symmetric), symmetric)
    mine = getattr(nd.linalg, short)
    if short in ("eig", "eigh", "qr", "svd"):  # unique up to signs: their product is
        parts = mine(x.a)
        if short in ("eig", "eigh"):
            values, vectors = parts
            d.same(x.a @ vectors, as_numpy((vectors * values.unsqueeze(-2))), 1e3, cast=True)
        elif short == "qr":
            d.same(parts[0] @ parts[1], x.n, 1e3)
        else:
            d.same((parts[0] * parts[1].unsqueeze(-2)) @ parts[2], x.n, 1e3)
        return
    if short == "trace":
        d.same(mine(x.a), np.trace(x.n, axis1=-2, axis2=-1), 1e3)
    elif short == "eigvals":
        want = np.sort_complex(np.linalg.eigvals(x.n))
        got = mine(x.a).numpy()
        d.same(nd.array(np.sort_complex(got)), want, 1e4)
    elif short == "cholesky_inverse":
        factor = np.linalg.cholesky(x.n)
        d.same(mine(nd.array(factor)), np.linalg.inv(x.n), 1e4)
    elif short == "lu_factor":
        factors, pivots = _linalg.lu_factor(x.t)
        d.same(mine(x.a), [factors, pivots.long()], 1e3)
    else:
        d.same(mine(x.a), getattr(_linalg, short)(x.t), 1e3)


@case("linalg.solve", "linalg.lstsq", "linalg.solve_triangular", "linalg.cholesky_solve",
      "linalg.lu_solve")  # fmt: skip
def _solution(d: Draw, name: str) -> None:
    n = d.integer(1, 4)
    x = _matrix(d, n, n)
    b = d.numbers((*x.n.shape[:-1], 3), str(x.n.dtype))
    a, rhs = x.a, nd.array(b)
    want = np.linalg.solve(x.n, b)
    short = name.removeprefix("linalg.")
    if short == "lstsq":
        d.same(nd.linalg.lstsq(a, rhs)[0], want, 1e4)
    elif short == "solve_triangular":
        got = nd.linalg.solve_triangular(a, rhs, upper=True)
        d.same(got, torch.linalg.solve_triangular(x.t, torch.from_numpy(b), upper=True), 1e4)
    elif short == "cholesky_solve":
        square = x.n @ x.n.conj().swapaxes(-1, -2)
        factor = nd.array(np.linalg.cholesky(square))
        d.same(nd.linalg.cholesky_solve(rhs, factor), np.linalg.solve(square, b), 1e5)
    elif short == "lu_solve":
        d.same(nd.linalg.lu_solve(*nd.linalg.lu_factor(a), rhs), want, 1e4)
    else:
        d.same(nd.linalg.solve(a, rhs), want, 1e4)


@case("linalg.matrix_power", "linalg.multi_dot", "linalg.cross", "linalg.vander",
      "linalg.householder_product")  # fmt: skip
def _other_matrices(d: Draw, name: str) -> None:
    short = name.removeprefix("linalg.")
    if short == "matrix_power":
        x = _matrix(d, 3, 3)
        k = d.integer(-3, 5)
        d.same(nd.linalg.matrix_power(x.a, k), np.linalg.matrix_power(x.n, k), 1e3)
    elif short == "multi_dot":
        xs = [d.array(shape, "float64") for shape in ((2, 5), (5, 3), (3, 4))]
        d.same(nd.linalg.multi_dot([x.a for x in xs]), xs[0].n @ xs[1].n @ xs[2].n, 1e3)
    elif short == "cross":
        x, y = d.array((2, 3), "float64"), d.array((2, 3), "float64")
        d.same(nd.linalg.cross(x.a, y.a), torch.linalg.cross(x.t, y.t), 4)
    elif short == "vander":
        x = d.array((d.integer(1, 4),), "float64")
        d.same(nd.linalg.vander(x.a), torch.linalg.vander(x.t), 4)
    else:
        x = d.numbers((4, 3), "float64")
        a, tau = torch.geqrf(torch.from_numpy(x))
        got = nd.linalg.householder_product(nd.array(a.numpy()), nd.array(tau.numpy()))
        d.same(got, torch.linalg.householder_product(a, tau), 1e3)


@case(*(f"fft.{name}" for name in (
    "fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn", "rfftn", "irfftn", "fft2",
    "ifft2", "rfft2", "irfft2", "fftshift", "ifftshift",
)))  # fmt: skip
def _transform(d: Draw, name: str) -> None:
    short = name.removeprefix("fft.")
    real = short in ("rfft", "rfftn", "rfft2", "ihfft")
    for dtype in FLOATS if real else (*FLOATS, *COMPLEX):
        x = d.array((d.integer(1, 3), d.integer(2, 9), d.integer(2, 9)), dtype)
        options: dict[str, Any] = {}
        if "shift" not in short:
            options["norm"] = d.pick(("backward", "ortho", "forward"))
        d.same(getattr(nd.fft, short)(x.a, **options),
               getattr(torch.fft, short)(x.t, **options), 20)  # fmt: skip


@case("fft.fftfreq", "fft.rfftfreq")
def _frequencies(d: Draw, name: str) -> None:
    short = name.removeprefix("fft.")
    n = d.integer(1, 9)
    d.same(getattr(nd.fft, short)(n, 0.5), getattr(torch.fft, short)(n, 0.5))


#: What is not compared here, and why.
EXEMPT: dict[str, str] = {
    **dict.fromkeys(
        ("ComplexWarning", "NDArray", "Statistics"), "a class; used by every other test"
    ),
    **dict.fromkeys(
        ("default_device", "eager", "on_device", "realize", "set_default_device", "statistics"),
        "about execution, not numbers: test_ndarray_lazy, test_cpu_runtime",
    ),
    **dict.fromkeys(("allclose", "array_equal", "is_complex"), "give a bool: test_elementwise"),
    "random": "drawn by a generator: test_ndarray_operations",
    "fft": "a namespace, whose functions are in the table",
    "linalg": "a namespace, whose functions are in the table",
}

__all__ = ["CASES", "ELEMENTWISE", "EXEMPT", "Elementwise", "as_numpy"]
