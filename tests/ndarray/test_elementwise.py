"""Elementwise operations against PyTorch: values, types and the corners of every type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genesis import ndarray as nd

Array = np.ndarray[Any, Any]
CORNERS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 1e-40, 1e-30, 3e38, -3e38,
    123456.0, math.inf, -math.inf, math.nan,
]  # fmt: skip
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16]


def pairs(values: list[Any], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = zip(*itertools.product(values, repeat=2), strict=True)
    return torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)


def same(got: nd.NDArray, want: torch.Tensor, ulp: int = 0, what: str = "") -> None:
    """Equal types and values, NaN and the sign of zeros included."""
    a, b = got.numpy(), want.numpy()
    assert a.dtype == b.dtype, what
    if not ulp or a.dtype.kind != "f":
        np.testing.assert_array_equal(a, b, what)
    else:
        finite = np.isfinite(b) & np.isfinite(a)
        np.testing.assert_array_equal(a[~finite], b[~finite], what)
        np.testing.assert_array_max_ulp(a[finite], b[finite], ulp)
    if a.dtype.kind == "f":
        zero = (a == 0) & (b == 0)
        np.testing.assert_array_equal(np.signbit(a[zero]), np.signbit(b[zero]), what)


# ---- division

DIVISION: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "floor_divide": (nd.floor_divide, torch.floor_divide),
    "remainder": (nd.remainder, torch.remainder),
    "fmod": (nd.fmod, torch.fmod),
    "trunc": (
        lambda a, b: nd.divide(a, b, rounding_mode="trunc"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    ),
    "floor": (
        lambda a, b: nd.divide(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
    ),
}


@pytest.mark.parametrize("name", DIVISION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_float_division(name: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    ours, theirs = DIVISION[name]
    a, b = pairs(CORNERS, dtype)
    more = torch.from_numpy(rng.normal(0, 10, (2, 500))).to(dtype)
    a, b = torch.cat([a, more[0]]), torch.cat([b, more[1]])
    want = theirs(a, b)
    if name in ("remainder", "fmod"):  # PyTorch's in float32 is not exact
        want = theirs(a.double(), b.double()).to(dtype)
    same(ours(nd.array(a.numpy()), nd.array(b.numpy())), want, what=name)


@pytest.mark.parametrize("name", DIVISION)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division(name: str, dtype: torch.dtype) -> None:
    ours, theirs = DIVISION[name]
    info = torch.iinfo(dtype)
    values = sorted({info.min, info.min + 1, 0, 1, 2, 3, 7, 100, info.max - 1, info.max})
    if info.min < 0:
        values += [-1, -2, -3, -7, -100]
    a, b = pairs(values, dtype)
    # PyTorch refuses to divide by 0, and the least integer by -1 stops its process.
    fine = (b != 0) & ~((b == -1) & (a == info.min))
    a, b = a[fine], b[fine]
    same(ours(nd.array(a.numpy()), nd.array(b.numpy())), theirs(a, b), what=name)


def test_integer_division_by_zero_gives_zero() -> None:
    x, zero = nd.array([5, -5, 0]), nd.array([0, 0, 0])
    for ours, _ in DIVISION.values():
        assert ours(x, zero).tolist() == [0, 0, 0]


def test_remainders_are_exact_however_large_the_quotient(rng: np.random.Generator) -> None:
    a = np.exp(rng.uniform(-600, 600, 2000)) * rng.choice([-1, 1], 2000)
    b = np.exp(rng.uniform(-600, 600, 2000)) * rng.choice([-1, 1], 2000)
    np.testing.assert_array_equal(nd.fmod(nd.array(a), nd.array(b)).numpy(), np.fmod(a, b))


def test_an_unknown_rounding_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="rounding_mode is 'trunc', 'floor' or None"):
        nd.divide(nd.array([1.0]), 2.0, rounding_mode="up")


# ---- functions of one and two arguments that are exact or nearly so

ONE: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "signbit": (nd.signbit, torch.signbit, 0),
    "frac": (nd.frac, torch.frac, 0),
    "sign": (nd.sign, torch.sign, 0),
    "square": (nd.square, torch.square, 0),
    "reciprocal": (nd.reciprocal, torch.reciprocal, 0),
    "isposinf": (nd.isposinf, torch.isposinf, 0),
    "isneginf": (nd.isneginf, torch.isneginf, 0),
    "isfinite": (nd.isfinite, torch.isfinite, 0),
    "nan_to_num": (nd.nan_to_num, torch.nan_to_num, 0),
    "nan_to_num 2": (
        lambda x: nd.nan_to_num(x, 1.0, 2.0, -2.0),
        lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
        0,
    ),
    "round 2": (lambda x: nd.round(x, 2), lambda x: torch.round(x, decimals=2), 1),
    "round -1": (lambda x: nd.round(x, -1), lambda x: torch.round(x, decimals=-1), 1),
    "deg2rad": (nd.deg2rad, torch.deg2rad, 1),
    "rad2deg": (nd.rad2deg, torch.rad2deg, 1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_one_argument(dtype: torch.dtype) -> None:
    x = torch.tensor(CORNERS, dtype=dtype)
    for name, (ours, theirs, ulp) in ONE.items():
        if dtype is torch.float16 and name.startswith("round"):
            continue  # PyTorch rounds between the steps
        want = theirs(x)
        if name == "sign":  # NaN has the sign 0 in both, -0 gives 0 here
            want = want + 0
        same(ours(nd.array(x.numpy())), want, ulp, name)


TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "copysign": (nd.copysign, torch.copysign, 0),
    "nextafter": (nd.nextafter, torch.nextafter, 0),
    "heaviside": (nd.heaviside, torch.heaviside, 0),
    "xlogy": (nd.xlogy, torch.xlogy, 2),
    "isclose": (nd.isclose, torch.isclose, 0),
    "isclose nan": (
        lambda a, b: nd.isclose(a, b, equal_nan=True),
        lambda a, b: torch.isclose(a, b, equal_nan=True),
        0,
    ),
    "hypot": (nd.hypot, torch.hypot, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_of_two_arguments(dtype: torch.dtype) -> None:
    a, b = pairs(CORNERS, dtype)
    x, y = nd.array(a.numpy()), nd.array(b.numpy())
    for name, (ours, theirs, ulp) in TWO.items():
        if name == "hypot":
            exact = np.hypot(a.numpy(), b.numpy())
            same(ours(x, y), torch.from_numpy(exact), ulp, name)
        else:
            same(ours(x, y), theirs(a, b), ulp, name)
    for ours, reference in ((nd.fmax, np.fmax), (nd.fmin, np.fmin)):
        np.testing.assert_array_equal(ours(x, y).numpy(), reference(a.numpy(), b.numpy()))
    for ours, reference in ((nd.logaddexp, np.logaddexp), (nd.logaddexp2, np.logaddexp2)):
        with np.errstate(all="ignore"):
            want = reference(a.double().numpy(), b.double().numpy()).astype(a.numpy().dtype)
        np.testing.assert_allclose(ours(x, y).numpy(), want, rtol=1e-6, atol=1e-7)


def test_nextafter_of_half_precision() -> None:
    x = np.array([0.0, 1.0, -1.0, 65504.0, 6e-8], np.float16)
    got = nd.nextafter(nd.array(x), nd.array(np.full(5, np.inf, np.float16))).numpy()
    np.testing.assert_array_equal(got, np.nextafter(x, np.float16(np.inf)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_frexp_and_ldexp(dtype: torch.dtype) -> None:
    tiny = float(np.finfo(str(dtype).removeprefix("torch.")).smallest_subnormal)
    x = torch.tensor([*CORNERS, tiny, -3 * tiny, 1e-310], dtype=dtype)
    m, e = nd.frexp(nd.array(x.numpy()))
    want_m, want_e = np.frexp(x.numpy())
    np.testing.assert_array_equal(m.numpy(), want_m)
    np.testing.assert_array_equal(e.numpy(), np.where(np.isfinite(want_m), want_e, 0))
    back = nd.ldexp(m, e)
    np.testing.assert_array_equal(back.numpy(), x.numpy())
    powers = np.arange(-1100, 1100, 7)
    got = nd.ldexp(nd.array(np.asarray(1.7, x.numpy().dtype)), nd.array(powers)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.ldexp(x.numpy().dtype.type(1.7), powers))


# ---- activations

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (nd.relu, torch.relu),
    "relu6": (nd.relu6, torch.nn.functional.relu6),
    "leaky_relu": (nd.leaky_relu, torch.nn.functional.leaky_relu),
    "leaky_relu 2": (
        lambda x: nd.leaky_relu(x, 0.3), lambda x: torch.nn.functional.leaky_relu(x, 0.3),
    ),
    "elu": (lambda x: nd.elu(x, 0.7), lambda x: torch.nn.functional.elu(x, 0.7)),
    "selu": (nd.selu, torch.selu),
    "celu": (lambda x: nd.celu(x, 0.7), lambda x: torch.celu(x, 0.7)),
    "gelu": (nd.gelu, torch.nn.functional.gelu),
    "gelu tanh": (
        lambda x: nd.gelu(x, "tanh"), lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "silu": (nd.silu, torch.nn.functional.silu),
    "mish": (nd.mish, torch.nn.functional.mish),
    "sigmoid": (nd.sigmoid, torch.sigmoid),
    "log_sigmoid": (nd.log_sigmoid, torch.nn.functional.logsigmoid),
    "softplus": (nd.softplus, torch.nn.functional.softplus),
    "softplus 2": (
        lambda x: nd.softplus(x, 2.0, 5.0), lambda x: torch.nn.functional.softplus(x, 2.0, 5.0),
    ),
    "hardtanh": (
        lambda x: nd.hardtanh(x, -2.0, 0.5), lambda x: torch.nn.functional.hardtanh(x, -2.0, 0.5),
    ),
    "hardsigmoid": (nd.hardsigmoid, torch.nn.functional.hardsigmoid),
    "hardswish": (nd.hardswish, torch.nn.functional.hardswish),
    "softsign": (nd.softsign, torch.nn.functional.softsign),
    "tanhshrink": (nd.tanhshrink, torch.nn.functional.tanhshrink),
    "softshrink": (
        lambda x: nd.softshrink(x, 0.7), lambda x: torch.nn.functional.softshrink(x, 0.7),
    ),
    "hardshrink": (
        lambda x: nd.hardshrink(x, 0.7), lambda x: torch.nn.functional.hardshrink(x, 0.7),
    ),
    "threshold": (
        lambda x: nd.threshold(x, 0.2, 9.0), lambda x: torch.nn.functional.threshold(x, 0.2, 9.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, rng: np.random.Generator) -> None:
    ours, theirs = ACTIVATIONS[name]
    x = np.concatenate([CORNERS, rng.normal(0, 1, 300), rng.normal(0, 30, 300)]).astype(np.float32)
    x = x[np.isfinite(x) | (name in ("relu", "sigmoid", "leaky_relu", "hardshrink", "softshrink"))]
    got = ours(nd.array(x)).numpy()
    assert got.dtype == np.float32
    want = theirs(torch.from_numpy(x).double()).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=3e-6, atol=2e-7)


def test_sigmoid_keeps_small_results() -> None:
    x = np.array([-80.0, -88.8, -100.0], np.float32)
    want = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(nd.sigmoid(nd.array(x)).numpy(), want, rtol=2e-7, atol=1e-45)


def test_logit_is_accurate_in_the_middle_and_clamps() -> None:
    x = np.array([0.0, 1e-30, 0.1, 0.3, 0.5 + 2**-20, 0.7, 1 - 2**-20, 1.0, 2.0], np.float32)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        want = np.log(wide / (1 - wide)).astype(np.float32)
    np.testing.assert_array_max_ulp(nd.logit(nd.array(x)).numpy()[:-1], want[:-1], 3)
    assert math.isnan(nd.logit(nd.array(x)).numpy()[-1])
    clamped = torch.logit(torch.from_numpy(x), eps=1e-3)
    np.testing.assert_allclose(nd.logit(nd.array(x), 1e-3).numpy(), clamped.numpy(), rtol=1e-5)


# ---- the rest


LEAST = -(2**63) + 1  # NumPy has no absolute value of the one below


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(LEAST, -LEAST), st.integers(-1000, 1000)), min_size=1))
def test_common_divisors(numbers: list[tuple[int, int]]) -> None:
    a, b = (np.array(side, np.int64) for side in zip(*numbers, strict=True))
    of_one_size = np.arange(40) % len(a)  # one program for all examples
    got = nd.gcd(nd.array(a[of_one_size]), nd.array(b[of_one_size])).numpy()
    np.testing.assert_array_equal(got, np.gcd(a, b)[of_one_size])


def test_common_divisors_take_as_many_steps_as_fibonacci_numbers_need() -> None:
    fibonacci = [1, 1]
    while fibonacci[-1] + fibonacci[-2] < 2**63:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    a, b = np.array(fibonacci[1:]), np.array(fibonacci[:-1])
    assert (nd.gcd(nd.array(a), nd.array(b)).numpy() == 1).all()
    small = np.array([[0, 0, 4, -6, 127], [0, 5, 6, 4, -128]], np.int8)
    np.testing.assert_array_equal(
        nd.gcd(nd.array(small[0]), nd.array(small[1])).numpy(), np.gcd(*small.astype(int))
    )
    whole = np.array([[0, 3, 4, -6], [0, 0, 6, 4]])
    np.testing.assert_array_equal(
        nd.lcm(nd.array(whole[0]), nd.array(whole[1])).numpy(), [0, 0, 12, 12]
    )


def test_divisors_of_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="gcd: needs integers, not float32"):
        nd.gcd(nd.array([1.0]), nd.array([2.0]))


def test_lerp_is_exact_at_both_ends(rng: np.random.Generator) -> None:
    a, b = rng.normal(0, 1, (2, 100)).astype(np.float32)
    w = rng.uniform(-0.5, 1.5, 100).astype(np.float32)
    got = nd.lerp(nd.array(a), nd.array(b), nd.array(w))
    want = torch.lerp(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(w))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(nd.lerp(nd.array(a), nd.array(b), 1.0).numpy(), b)


def test_clip_by_arrays_and_broadcasting() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    low, high = np.array([[1], [6], [9]], np.float32), np.array([3, 5, 8, 10], np.float32)
    got = nd.clip(nd.array(x), nd.array(low), nd.array(high)).numpy()
    want = torch.clamp(*map(torch.from_numpy, (x, low, high))).numpy()
    np.testing.assert_array_equal(got, want)


def test_float_power_is_float64() -> None:
    got = nd.float_power(nd.array([2, 3]), nd.array([0.5, -2.0]))
    assert got.dtype.name == "float64"
    np.testing.assert_allclose(got.numpy(), [2**0.5, 3**-2.0], rtol=1e-15)


def test_closeness_of_whole_arrays() -> None:
    x = nd.array([1.0, math.inf, math.nan])
    assert not nd.allclose(x, x)
    assert nd.allclose(x, x, equal_nan=True)
    assert nd.array_equal(nd.arange(3), nd.arange(3))
    assert not nd.array_equal(nd.arange(3), nd.arange(4))


def test_sinc(rng: np.random.Generator) -> None:
    x = np.concatenate([[0.0, 1.0, -2.0, 0.5, 1e-20], rng.normal(0, 5, 500)]).astype(np.float32)
    want = np.sinc(x.astype(np.float64))
    want[1:3] = 0
    np.testing.assert_allclose(nd.sinc(nd.array(x)).numpy(), want, rtol=5e-7, atol=1e-15)


@settings(max_examples=8)
@given(st.sampled_from([(0,), (1,), (3, 0, 2), (5, 1, 3), (2, 17)]), st.booleans())
def test_shapes_and_views(shape: tuple[int, ...], turned: bool) -> None:
    x = np.linspace(-2, 2, math.prod(shape), dtype=np.float32).reshape(shape)
    array = nd.array(x)
    if turned:
        x, array = x.T, array.T
    np.testing.assert_allclose(nd.asinh(array).numpy(), np.arcsinh(x), rtol=1e-6)
    np.testing.assert_array_equal(nd.signbit(array).numpy(), np.signbit(x))
