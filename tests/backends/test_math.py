"""Errors of the vector mathematics, in units in the last place, over whole domains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from genesis.backends.cpu.chip import CPU, host
from genesis.ir import ops
from genesis.ir.dtype import DType, float32, float64
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder
from genesis.ir.node import elementwise
from tests.backends.test_render_llvm import Compiled

Array = np.ndarray[Any, Any]
COUNT = 1 << 16
#: The most a result may differ from the exact one, in ulps.
LIMIT = {float32: 2.0, float64: 4.0}
#: Where the exact result comes from: float64 for float32, the longest type for float64.
WIDER: dict[DType, Any] = {float32: np.float64, float64: np.longdouble}
TYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
# One chip scales by powers of two in one instruction, the other in two multiplications.
PLAIN = replace(host(), features=frozenset())
CHIPS = pytest.mark.parametrize("chip", [host(), PLAIN], ids=["host", "plain"])


def kernel(op: ops.Op, dtype: DType, inputs: int) -> Kernel:
    k = Builder(f"math_{op.name}")
    n = k.symbol("n")
    xs = [k.input(f"x{j}", dtype, n) for j in range(inputs)]
    y = k.output("y", dtype, n)
    b, v = k.grid("b", (n + 31) // 32), k.tile("v", 32)
    i = b * 32 + v
    k.store(y, (i,), elementwise(op, *(x.load(i, mask=i < n) for x in xs)), i < n)
    return k.kernel()


def specials(dtype: DType) -> Array:
    info = np.finfo(dtype.numpy)
    positive = [
        0.0, 1.0, 0.5, 2.0, 3.0, 2.5, 0.99, 1.01, 1e-30, 1e5, 99999.0, np.inf, info.max, info.tiny,
        info.smallest_subnormal, info.tiny / 8, 88.72, 88.73, 103.9, 104.1, 709.78, 709.79, 745.2,
    ]  # fmt: skip
    return np.array([*positive, *(-p for p in positive), np.nan], dtype.numpy)


def any_bits(dtype: DType, rng: np.random.Generator) -> Array:
    """Numbers of every exponent, sign and kind."""
    return rng.integers(0, 1 << 8, COUNT * dtype.itemsize, np.uint8).view(dtype.numpy)


def check(got: Array, exact: Array, dtype: DType, limit: float | None = None) -> None:
    """Finite results within the limit; infinities, NaN and the sign of zeros as they should be."""
    with np.errstate(all="ignore"):
        want = exact.astype(dtype.numpy)
        finite = np.isfinite(want) & np.isfinite(got)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        zero = (want == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
        ulp = np.spacing(np.abs(want[finite])).astype(exact.dtype)
        error = np.abs(got[finite].astype(exact.dtype) - exact[finite]) / ulp
    assert error.max() <= (limit or LIMIT[dtype])


def reference_erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)])


UNARY: list[tuple[ops.Op, Callable[..., Any]]] = [
    (ops.EXP, np.exp),
    (ops.EXP2, np.exp2),
    (ops.LOG, np.log),
    (ops.LOG2, np.log2),
    (ops.SIN, np.sin),
    (ops.COS, np.cos),
    (ops.TAN, np.tan),
    (ops.TANH, np.tanh),
    (ops.ERF, reference_erf),
]


@CHIPS
@TYPES
@pytest.mark.parametrize(("op", "reference"), UNARY, ids=[op.name for op, _ in UNARY])
def test_one_argument(
    op: ops.Op, reference: Callable[..., Any], dtype: DType, chip: CPU, rng: np.random.Generator
) -> None:
    parts = [
        specials(dtype),
        any_bits(dtype, rng),
        rng.normal(0, 1, COUNT),
        rng.uniform(-110, 100, COUNT),  # the range of exp in float32
        rng.uniform(-760, 720, COUNT),  # and in float64
        np.exp(rng.uniform(-20, 20, COUNT)),
        1 + rng.normal(0, 1e-3, COUNT),  # zeros of logarithms
        rng.integers(-40000, 40000, COUNT) * np.longdouble(math.pi) / 2,  # zeros of sin and cos
        [6381956970095103 * 2.0**797] if dtype is float64 else [16367173 * 2.0**72],
    ]
    x = np.concatenate([np.asarray(p).astype(dtype.numpy) for p in parts])
    got = np.empty_like(x)
    Compiled(kernel(op, dtype, 1), chip)(x, got, symbols=[len(x)])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(WIDER[dtype]))
    # The C library's erf has an error of its own.
    check(got, exact, dtype, 3.0 if op is ops.ERF and dtype is float64 else None)


@CHIPS
@TYPES
@pytest.mark.parametrize(
    ("op", "reference"), [(ops.POW, np.power), (ops.ATAN2, np.arctan2), (ops.FMOD, np.fmod)]
)
def test_two_arguments(
    op: ops.Op, reference: Callable[..., Any], dtype: DType, chip: CPU, rng: np.random.Generator
) -> None:
    a, b = (g.ravel() for g in np.meshgrid(specials(dtype), specials(dtype)))
    exponents = 120 if dtype is float32 else 1000
    base = np.exp2(rng.uniform(-exponents, exponents, COUNT))
    near_one = 1 + rng.normal(0, 1e-2, COUNT)
    pairs = [
        (a, b),
        (any_bits(dtype, rng), any_bits(dtype, rng)),
        # Powers over the whole range of results
        (base, rng.uniform(-exponents, exponents, COUNT) / np.log2(base)),
        (near_one, rng.uniform(-exponents, exponents, COUNT) / np.log2(near_one)),
        (rng.normal(0, 3, COUNT), rng.integers(-20, 20, COUNT)),
        (rng.normal(0, 1, COUNT), rng.normal(0, 1, COUNT)),
    ]
    x, y = (np.concatenate([p[k].astype(dtype.numpy) for p in pairs]) for k in (0, 1))
    got = np.empty_like(x)
    Compiled(kernel(op, dtype, 2), chip)(x, y, got, symbols=[len(x)])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(WIDER[dtype]), y.astype(WIDER[dtype]))
    check(got, exact, dtype)


@TYPES
def test_scalars_take_the_same_path(dtype: DType, rng: np.random.Generator) -> None:
    """Without tile axes nothing is a vector; results are the same to the bit."""
    x = rng.normal(0, 5, 100).astype(dtype.numpy)
    for op, _ in UNARY:
        k = Builder("scalar")
        a, y = k.input("a", dtype, 100), k.output("y", dtype, 100)
        i = k.grid("i", 100)
        k.store(y, (i,), elementwise(op, a[i]))
        got, wide = np.empty_like(x), np.empty_like(x)
        Compiled(k.kernel())(x, got)
        Compiled(kernel(op, dtype, 1))(x, wide, symbols=[100])
        np.testing.assert_array_equal(got, wide)


@CHIPS
@TYPES
def test_quotients_by_one_divisor(dtype: DType, chip: CPU, rng: np.random.Generator) -> None:
    """As divisions round, but where what is left of a tiny number is denormal: within one ulp."""
    k = Builder("quotients")
    rows, n = k.symbol("rows"), 64
    x, d, y = k.input("x", dtype, n), k.input("d", dtype, rows), k.output("y", dtype, rows, n)
    row, v = k.grid("row", rows), k.tile("v", n)
    k.store(y, (row, v), elementwise(ops.DIV, x[v], d[row]))
    usual = rng.normal(0, 1, 5000).astype(dtype.numpy)
    divisors = np.concatenate([specials(dtype), usual, any_bits(dtype, rng)[:5000]])
    divided = Compiled(k.kernel(), chip)
    info = np.finfo(dtype.numpy)
    for part in (specials(dtype), any_bits(dtype, rng), usual):
        numbers = np.resize(part, n)
        got = np.empty((len(divisors), n), dtype.numpy)
        divided(numbers, divisors, got, symbols=[len(divisors)])
        with np.errstate(all="ignore"):
            want = numbers / divisors[:, None]
            tiny = (np.abs(numbers) < info.tiny / info.eps) | (np.abs(want) < info.tiny)
            assert not (np.abs(got - want) > np.spacing(np.abs(want))).any()
        np.testing.assert_array_equal(got[~tiny], want[~tiny])
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
