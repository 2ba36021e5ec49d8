"""Elementary and special functions of arrays: their errors over whole domains, and their limits.

The exact results come from float64 for float32 and from 40 digits (mpmath) or 80-bit arithmetic for
float64. ``python tests/ndarray/test_special.py`` prints the table of `docs/numerics.md`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from genesis import ndarray as nd

Array = np.ndarray[Any, Any]
COUNT = 1 << 15
#: The most a result may differ from the exact one, in units in the last place.
LIMIT = {np.float32: 2.25, np.float64: 4.0}
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])


def errors(got: Array, exact: Array, floor: float = 0.0) -> Array:
    """Errors in ulps, of results at least `floor` large; special values must be as they should."""
    with np.errstate(all="ignore"):
        want = exact.astype(got.dtype)
        finite = np.isfinite(want) & np.isfinite(got)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        zero = (want == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
        ulp = np.spacing(np.maximum(np.abs(want), got.dtype.type(floor))).astype(exact.dtype)
        return np.where(finite, np.abs(got.astype(exact.dtype) - exact) / ulp, 0).astype(float)


def samples(dtype: Any) -> Array:
    """Numbers of every kind, and many where functions change."""
    rng = np.random.default_rng(0)
    info = np.finfo(dtype)
    bits = rng.integers(0, 1 << 8, COUNT * info.bits // 8, np.uint8).view(dtype)
    special = [0.0, 1.0, 0.5, 2.0, 3.0, 5.0, np.inf, info.max, info.tiny, info.smallest_subnormal]
    parts = [
        special, [-s for s in special], [np.nan], bits,
        rng.normal(0, 1, COUNT), rng.uniform(-1, 1, COUNT), rng.normal(0, 10, COUNT),
        rng.normal(0, 1e-3, COUNT), 1 + rng.normal(0, 1e-3, COUNT), rng.uniform(-110, 110, COUNT),
        rng.uniform(-750, 750, COUNT), np.exp(rng.uniform(-40, 40, COUNT)),
        1 - np.exp(rng.uniform(-20, 0, COUNT)),
    ]  # fmt: skip
    return np.concatenate([np.asarray(p).astype(dtype) for p in parts])


# ---- elementary functions: NumPy has them in long double

ELEMENTARY: dict[str, Callable[..., Any]] = {
    "expm1": np.expm1, "log1p": np.log1p, "log10": np.log10, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "exp": np.exp, "log": np.log, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "exp10": lambda x: np.power(x.dtype.type(10), x),
}  # fmt: skip


def elementary_error(name: str, dtype: Any) -> tuple[float, float]:
    x = samples(dtype)
    got = getattr(nd, name)(nd.array(x)).numpy()
    with np.errstate(all="ignore"):
        exact = ELEMENTARY[name](x.astype(np.float64 if dtype is np.float32 else np.longdouble))
    found = errors(got, exact)
    return float(found.max()), float(x[found.argmax()])


@TYPES
@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(name: str, dtype: Any) -> None:
    worst, where = elementary_error(name, dtype)
    print(f"{name} {np.dtype(dtype).name}: {worst:.2f} ulp at {where:.9g}")
    assert worst <= LIMIT[dtype]


# ---- special functions


@dataclass(frozen=True)
class Special:
    """A function: one of float64 to compare float32 with, mpmath's, and the range for the latter.

    `floor` is the size below which errors of float64 count in absolute terms: a root is near.
    """

    reference: Callable[[Array], Array]
    exact: Callable[..., Any]
    low: float
    high: float
    floor: float = 0.0


def _torch(function: Callable[..., torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: function(torch.from_numpy(x)).numpy()


def _libm(name: str) -> Callable[[Array], Array]:
    """The C library's function in long double, which PyTorch's does not always come close to."""
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), f"{name}l")
    function.argtypes, function.restype = [ctypes.c_longdouble], ctypes.c_longdouble
    return lambda x: np.array([function(v) for v in x.tolist()])


def _exactly(function: Callable[..., Any]) -> Callable[[Array], Array]:
    return lambda x: np.array([float(function(v)) for v in x.tolist()])


def _wave(kind: Callable[..., Any], order: int) -> Callable[..., Any]:
    return lambda x: kind(order, x)


SPECIAL: dict[str, Special] = {
    "erf": Special(_torch(torch.erf), mpmath.erf, -6, 6),
    "erfc": Special(_torch(torch.erfc), mpmath.erfc, -6, 27),
    "erfcx": Special(
        _torch(torch.special.erfcx), lambda x: mpmath.exp(x * x) * mpmath.erfc(x), -25, 40
    ),
    "erfinv": Special(_torch(torch.erfinv), mpmath.erfinv, -1, 1),
    "ndtr": Special(lambda x: _libm("erfc")(x * -math.sqrt(0.5)) / 2, mpmath.ncdf, -38, 9),
    "ndtri": Special(
        _torch(torch.special.ndtri), lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), 0, 1
    ),
    "log_ndtr": Special(
        _torch(torch.special.log_ndtr), lambda x: mpmath.log(mpmath.ncdf(x)), -40, 5
    ),
    "lgamma": Special(
        _torch(torch.lgamma), lambda x: mpmath.log(abs(mpmath.gamma(x))), -4, 40, floor=0.5
    ),
    "digamma": Special(_torch(torch.digamma), mpmath.digamma, 0, 40),
    "trigamma": Special(_torch(lambda x: torch.polygamma(1, x)), lambda x: mpmath.psi(1, x), 0, 40),
    "i0": Special(_torch(torch.special.i0), _wave(mpmath.besseli, 0), -30, 700),
    "i0e": Special(
        _torch(torch.special.i0e), lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), -30, 100
    ),
    "i1": Special(_torch(torch.special.i1), _wave(mpmath.besseli, 1), -30, 700),
    "i1e": Special(
        _torch(torch.special.i1e), lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x), -30, 100
    ),
    "bessel_j0": Special(_libm("j0"), _wave(mpmath.besselj, 0), 0, 40, floor=0.25),
    "bessel_j1": Special(_libm("j1"), _wave(mpmath.besselj, 1), 0, 40, floor=0.25),
    "bessel_y0": Special(_libm("y0"), _wave(mpmath.bessely, 0), 0, 40, floor=0.5),
    "bessel_y1": Special(_libm("y1"), _wave(mpmath.bessely, 1), 0, 40, floor=0.5),
    "k0": Special(_torch(torch.special.modified_bessel_k0), _wave(mpmath.besselk, 0), 0, 700),
    "k0e": Special(
        _torch(torch.special.scaled_modified_bessel_k0),
        lambda x: mpmath.exp(x) * mpmath.besselk(0, x), 0, 100,
    ),
    "k1": Special(_torch(torch.special.modified_bessel_k1), _wave(mpmath.besselk, 1), 0, 700),
    "k1e": Special(
        _torch(torch.special.scaled_modified_bessel_k1),
        lambda x: mpmath.exp(x) * mpmath.besselk(1, x), 0, 100,
    ),
    "airy_ai": Special(_exactly(mpmath.airyai), mpmath.airyai, -40, 100, floor=0.5),
}  # fmt: skip


def compute(name: str, x: Array) -> Array:
    if name == "trigamma":
        return nd.polygamma(1, nd.array(x)).numpy()
    return getattr(nd, name)(nd.array(x)).numpy()  # type: ignore[no-any-return]


def special_error(name: str, dtype: Any) -> tuple[float, float]:
    case = SPECIAL[name]
    rng = np.random.default_rng(1)
    if dtype is np.float32:
        x = np.concatenate([samples(dtype), rng.uniform(case.low, case.high, COUNT).astype(dtype)])
        if name in ("i0", "i1", "i1e"):  # PyTorch has NaN at infinity, and loses the sign of 0
            x = x[np.isfinite(x) & (x != 0)]
        if name == "trigamma":
            x = x[x > 0]
        if name == "airy_ai":  # of which PyTorch knows seven digits
            x = x[abs(x) < 100][::80]
        exact = case.reference(x.astype(np.float64))
    else:
        low, high = case.low, case.high
        x = np.concatenate(
            [rng.uniform(low, high, 300), rng.uniform(max(low, 0), min(high, 6), 300)]
        )
        with mpmath.workdps(40):
            # Rounded to double, which adds half a unit.
            exact = np.array([float(case.exact(mpmath.mpf(float(v)))) for v in x])
    found = errors(compute(name, x), exact, case.floor if dtype is np.float64 else 0.0)
    return float(found.max()), float(x[found.argmax()])


@TYPES
@pytest.mark.parametrize(
    "name",
    # With forty digits, these take seconds each.
    [pytest.param(n, marks=pytest.mark.slow) if n in ("k0e", "k1e") else n for n in SPECIAL],
)
def test_special_functions(name: str, dtype: Any) -> None:
    worst, where = special_error(name, dtype)
    print(f"{name} {np.dtype(dtype).name}: {worst:.2f} ulp at {where:.9g}")
    assert worst <= LIMIT[dtype] + (0.5 if dtype is np.float64 else 0)


def against_torch(name: str, got: nd.NDArray, want: torch.Tensor, rtol: float = 2e-6) -> None:
    actual = got.numpy()
    assert actual.dtype == want.numpy().dtype, name
    np.testing.assert_allclose(actual, want.numpy(), rtol=rtol, atol=1e-7, err_msg=name)


def test_functions_with_parameters(rng: np.random.Generator) -> None:
    x = rng.uniform(0.1, 20, 400).astype(np.float32)
    q = rng.uniform(0.1, 30, 400).astype(np.float32)
    a, b, ta, tb = nd.array(x), nd.array(q), torch.from_numpy(x), torch.from_numpy(q)
    for n in (0, 1, 2, 5):
        want = torch.polygamma(n, ta.double()).float()
        against_torch(f"polygamma {n}", nd.polygamma(n, a), want)
    want = torch.special.zeta(ta.double() + 1, tb.double()).float()
    against_torch("zeta", nd.zeta(a + 1, b), want)
    want = torch.special.multigammaln(ta.double() + 1, 3).float()
    against_torch("multigammaln", nd.multigammaln(a + 1, 3), want, 1e-5)
    want = torch.special.xlog1py(ta, tb)
    against_torch("xlog1py", nd.xlog1py(a, b), want)


def _shares(a: float, x: float) -> tuple[float, float]:
    """The exact incomplete gamma functions, lower and upper; the lesser is not a difference."""
    if x < a:
        lower = mpmath.gammainc(a, 0, x, regularized=True)
        return float(lower), float(1 - lower)
    upper = mpmath.gammainc(a, x, mpmath.inf, regularized=True)
    return float(1 - upper), float(upper)


def test_incomplete_gamma_functions(rng: np.random.Generator) -> None:
    n = 60
    small, large = np.exp(rng.uniform(-9, 3, n)), np.exp(rng.uniform(3, 6, n))
    middle = rng.uniform(15, 25, n)
    a = np.concatenate([small, small, middle, large, large])
    x = np.concatenate([
        small * np.exp(rng.normal(0, 1, n)), rng.uniform(0, 3, n),
        middle * np.exp(rng.normal(0, 0.5, n)), abs(large + np.sqrt(large) * rng.normal(0, 3, n)),
        large * rng.uniform(0.4, 2.2, n),
    ])  # fmt: skip
    with mpmath.workdps(40):
        exact = np.array([_shares(*pair) for pair in zip(a.tolist(), x.tolist(), strict=True)])
    for k, function in enumerate((nd.gammainc, nd.gammaincc)):
        want = exact[:, k]
        there = want > 1e-290
        got = function(nd.array(a), nd.array(x)).numpy()[there]
        want = want[there]
        # In a tail the error of an exponent is one of the result.
        allowed = (20 + 2 * abs(np.log(want))) * np.finfo(np.float64).eps * want
        assert (abs(got - want) <= allowed).all()
        single = function(nd.array(a.astype(np.float32)), nd.array(x.astype(np.float32)))
        theirs = (torch.special.gammainc, torch.special.gammaincc)[k](
            *(torch.from_numpy(v.astype(np.float32)).double() for v in (a, x))
        )
        against_torch(function.__name__, single, theirs.float())


def test_incomplete_gamma_functions_at_the_ends() -> None:
    special = [0.0, -0.0, 2.5, 30.0, 1e30, math.inf, -1.0, -math.inf, math.nan]
    a, x = (g.ravel() for g in np.meshgrid(special, special))
    for ours, theirs in (
        (nd.gammainc, torch.special.gammainc), (nd.gammaincc, torch.special.gammaincc),
    ):  # fmt: skip
        want = theirs(torch.from_numpy(a), torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(ours(nd.array(a), nd.array(x)).numpy(), want, rtol=1e-8)


def test_negative_orders_and_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="polygamma: the order"):
        nd.polygamma(-1, nd.array([1.0]))
    with pytest.raises(ValueError, match="multigammaln: the dimension"):
        nd.multigammaln(nd.array([1.0]), 0)


def test_polygamma_on_the_negative_side() -> None:
    x = np.array([-0.5, -1.25, -3.75, -7.1])
    for n in (1, 2, 3, 4):
        want = [float(mpmath.psi(n, v)) for v in x]
        np.testing.assert_allclose(nd.polygamma(n, nd.array(x)).numpy(), want, rtol=1e-12)
    poles = nd.array([0.0, -1.0, -2.0])
    assert nd.polygamma(1, poles).tolist() == [math.inf] * 3
    assert nd.polygamma(2, poles).tolist() == [-math.inf] * 3


def test_half_precisions_compute_in_float32(rng: np.random.Generator) -> None:
    x = rng.uniform(0.5, 3, 200).astype(np.float16)
    wide = nd.array(x.astype(np.float32))
    for name in ("expm1", "asinh", "erfc", "lgamma", "digamma", "i0", "log10"):
        function = getattr(nd, name)
        want = function(wide).numpy().astype(np.float16)
        got = function(nd.array(x))
        assert got.dtype.name == "float16", name
        np.testing.assert_array_equal(got.numpy(), want, err_msg=name)


def test_integers_become_float32() -> None:
    for name in ("expm1", "log10", "asinh", "erfc", "lgamma", "i0", "sigmoid", "sinc", "log1p"):
        x = nd.array([0, 1, 3, 7])
        want = getattr(nd, name)(nd.array([0.0, 1.0, 3.0, 7.0]))
        assert getattr(nd, name)(x).dtype is want.dtype
        assert getattr(nd, name)(x).tolist() == want.tolist(), name


def table() -> str:
    """The largest errors, as the table of the documentation."""
    lines = ["| function | float32 | at | float64 | at |", "|---|---|---|---|---|"]
    for names, error in ((ELEMENTARY, elementary_error), (SPECIAL, special_error)):
        for name in sorted(names):
            cells = [f"{w:.2f} | {x:.9g}" for w, x in (error(name, d) for d in LIMIT)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
