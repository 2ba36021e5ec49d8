"""Elementwise functions and reductions where it gets difficult: narrow types, integers, infinities,
few elements, random equations, wrong arguments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from tests.gradients import Case, check

_rng = np.random.default_rng(3)


def _between(low: float, high: float, *shape: int) -> np.ndarray:
    return _rng.uniform(low, high, shape)


def _words(text: str) -> list[str]:
    return text.split()


def _case(name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return Case(name, call, tuple(np.asarray(x) for x in arguments), **options)


X, P = _between(-2, 2, 3, 4), _between(0.2, 2, 3, 4)
C = _between(-1, 1, 2, 3) + 1j * _between(-1, 1, 2, 3)

# ---- other types

SMOOTH = _words(
    "exp expm1 log1p sqrt rsqrt sin cos tanh atan asinh sigmoid silu mish gelu softplus softsign "
    "erf ndtr log_ndtr lgamma i0 elu selu logsigmoid sinc abs relu hardswish"
)


@pytest.mark.parametrize("dtype", [genesis.float32, genesis.bfloat16, genesis.float16])
def test_narrow_types_are_as_good_as_their_rounding(dtype: Any) -> None:
    """Values of narrow types are those of float64, rounded once; gradients may see rounded ones."""
    unit = {32: 2.0**-24, 16: 2.0**-8 if dtype is genesis.bfloat16 else 2.0**-11}[dtype.bits]
    start = genesis.tensor(_between(0.2, 2.5, 40)).to(dtype)
    results = []
    for name in SMOOTH:
        for kind in (dtype, genesis.float64):
            x = start.to(kind).requires_grad_()
            y = getattr(genesis, name, None) or getattr(genesis.functional.special, name, None)
            y = (y or getattr(genesis.functional, name))(x)
            (g,) = genesis.autograd.grad(y.sum(), x)
            assert y.dtype is g.dtype is kind
            results += [y.to(genesis.float64), g.to(genesis.float64)]
    genesis.ndarray.realize(*(x.array for x in results))
    values = [x.detach().numpy() for x in results]
    for k, name in enumerate(SMOOTH):
        y, g, wide_y, wide_g = values[4 * k : 4 * k + 4]
        slack = 8 if dtype is genesis.float32 else 1.01
        np.testing.assert_allclose(y, wide_y, rtol=slack * unit, atol=slack * unit, err_msg=name)
        slack = max(slack, 5)
        np.testing.assert_allclose(g, wide_g, rtol=slack * unit, atol=slack * unit, err_msg=name)


def test_single_precision() -> None:
    """The types of values and gradients are PyTorch's, and so are they."""
    x, y = X.astype(np.float32), P.astype(np.float32)
    z = C.astype(np.complex64)
    check(
        [
            _case("softmax", lambda m, x: m.softmax(x, 1), x, tolerance=1e-5),
            _case("var", lambda m, x: m.var(x, 1), x, tolerance=1e-5),
            _case("logsumexp", lambda m, x: m.logsumexp(x, 1), x, tolerance=1e-5),
            _case("norm", lambda m, x: m.norm(x, 3, 0), x, tolerance=1e-4),
            _case("pow", lambda m, x, y: m.pow(y, x), x, y, tolerance=1e-4),
            _case("matmul", lambda m, x, y: m.matmul(x, y.mT), x, y, tolerance=1e-5),
            _case("cumprod", lambda m, x: m.cumprod(x, 1), x, tolerance=1e-4),
            _case("abs", lambda m, z: m.abs(z), z, tolerance=1e-4),
            _case("mixed", lambda m, z, x: m.sum(z) * m.sum(x), z, x, tolerance=1e-4),
            _case("wider", lambda m, x, y: m.mul(x, y), x, P, tolerance=1e-5),
        ]
    )


def test_integers() -> None:
    n = np.array([[3, -2, 5], [7, 0, -4]])
    m8 = n.astype(np.int8)
    check(
        _case(name, call, n, order=0, tolerance=1e-6)
        for name, call in {
            "sum": lambda m, x: m.sum(x, 1),
            "sum dtype": lambda m, x: m.sum(x, dtype=m.float32),
            "prod": lambda m, x: m.prod(x),
            "cumsum": lambda m, x: m.cumsum(x, 0),
            "max": lambda m, x: tuple(m.max(x, 1)),
            "amin": lambda m, x: m.amin(x),
            "sort": lambda m, x: tuple(m.sort(x, 1)),
            "div": lambda m, x: m.div(x, 3),
            "floor_divide": lambda m, x: m.floor_divide(x, 3),
            "remainder": lambda m, x: m.remainder(x, -3),
            "fmod": lambda m, x: m.fmod(x, -3),
            "bits": lambda m, x: m.bitwise_xor(m.bitwise_left_shift(x, 2), m.bitwise_not(x)),
            "logic": lambda m, x: m.logical_and(m.logical_not(x), x < 4),
            "gcd": lambda m, x: m.gcd(x, x + 3),
            "clamp": lambda m, x: m.clamp(x, -1, 4),
            "any": lambda m, x: m.any(x, 1),
            "count_nonzero": lambda m, x: m.count_nonzero(x),
            "median": lambda m, x: m.median(x),
            "matmul": lambda m, x: m.matmul(x, x.mT),
            "deg2rad": lambda m, x: m.deg2rad(x),
        }.items()
    )
    check([_case("sum of bytes", lambda m, x: m.sum(x), m8, order=0)])


# ---- infinities


def test_infinities_and_zeros() -> None:
    """Values and gradients at the ends of the numbers are PyTorch's, NaN where it has NaN."""
    inf, nan = np.inf, np.nan
    ends = np.array([-inf, -1.0, 0.0, 1.0, inf])
    rows = np.array([[-inf, -inf, -inf], [0.0, -inf, 1.0], [inf, 0.0, 1.0]])
    flat = np.zeros((2, 3))
    once: dict[str, Any] = {"order": 1}
    check(
        [
            *(
                _case(n, lambda m, x, n=n: getattr(m, n)(x), ends, **once)
                for n in _words(
                    "exp tanh sigmoid relu softplus silu abs sign atan erf sqrt log elu "
                    "logsigmoid hardtanh expm1 log1p rsqrt reciprocal asinh"
                )
            ),
            _case("logsumexp", lambda m, x: m.logsumexp(x, 1), rows[1:2], **once),
            _case("logsumexp of nothing", lambda m, x: m.logsumexp(x, 1).exp(), rows[:1], order=0),
            _case("softmax", lambda m, x: m.softmax(x, 1), rows[1:2], **once),
            _case("logcumsumexp", lambda m, x: m.logcumsumexp(x, 1), rows[1:2], **once),
            _case("maximum", lambda m, x, y: m.maximum(x, y), ends, ends[::-1].copy(), **once),
            _case("fmax", lambda m, x, y: m.fmax(x, y), [nan, 1.0, nan], [1.0, nan, nan], **once),
            _case("logaddexp", lambda m, x, y: m.logaddexp(x, y), [-inf, 1.0], [0.0, inf], order=0),
            _case("norm", lambda m, x: m.norm(x, 2, 1), flat, **once),
            _case("norm 3", lambda m, x: m.norm(x, 3, 1), flat, **once),
            _case("norm inf", lambda m, x: m.norm(x, inf, 1), flat, order=0),
            _case("std", lambda m, x: m.std(x, 1), flat, **once),
            _case("cdist", lambda m, x: m.cdist(x, x), flat, **once),
            _case("nansum", lambda m, x: m.nansum(x), [nan, 1.0, inf], **once),
            _case("max", lambda m, x: m.max(x, 1)[0], [[nan, 1.0], [2.0, inf]], **once),
            _case("sort", lambda m, x: tuple(m.sort(x)), [nan, 1.0, -inf, 2.0], **once),
            _case(
                "quantile", lambda m, x: m.quantile(x, 0.5, 1), [[nan, 1.0], [2.0, 3.0]], order=0
            ),
            _case("prod", lambda m, x: m.prod(x, 1), [[0.0, 0.0, 2.0], [0.0, 1.0, inf]], order=0),
            _case(
                "xlogy", lambda m, x, y: m.xlogy(x, y), [0.0, 0.0, 2.0], [0.0, nan, 0.0], order=0
            ),
        ]
    )


# ---- equations


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """An equation of up to three operands, whose labels have sizes of 1 to 3, or broadcast."""
    letters = "abcd"[: draw(st.integers(1, 4))]
    sizes = {c: draw(st.integers(1, 3)) for c in letters}
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        term = "".join(draw(st.lists(st.sampled_from(letters), min_size=1, max_size=3)))
        dots = draw(st.sampled_from([(), (2,), (3, 2), (1,)]))
        single = len(set(term)) == len(term)
        shape = [1 if single and draw(st.integers(0, 5)) == 0 else sizes[c] for c in term]
        terms.append("..." + term if dots else term)
        shapes.append((*dots, *shape))
    used = sorted({c for term in terms for c in term if c != "."})
    out = "".join(draw(st.lists(st.sampled_from(used), unique=True, max_size=len(used))))
    dotted = "..." if any("..." in t for t in terms) else ""
    return f"{','.join(terms)}->{dotted}{out}", shapes


@settings(max_examples=25)
@given(equations())
def test_einsum(equation: tuple[str, list[tuple[int, ...]]]) -> None:
    text, shapes = equation
    operands = [np.random.default_rng(k).uniform(-1, 1, s) for k, s in enumerate(shapes)]
    check([_case(f"{text} {shapes}", lambda m, *xs: m.einsum(text, *xs), *operands)])


# ---- few elements

ROWS = [(0,), (1,), (1, 1), (2, 0), (0, 2), (3, 1), (2, 3, 1), ()]


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_few_elements(shape: tuple[int, ...]) -> None:
    """Reductions and scans of nothing, of one element, and of scalars."""
    x = _between(-1, 1, *shape) if shape else np.array(0.7)
    dims = [None, *range(len(shape))] if shape else [None, 0, -1]
    cases = []
    for d in dims:
        empty = x.size == 0 if d is None else bool(shape) and shape[d] == 0
        for name in _words("sum mean prod var std nansum logsumexp amax max sort cumsum cumprod"):
            if (empty and name in ("amax", "max")) or (d is None and name in _ALONG):
                continue
            count = x.size if d is None or not shape else shape[d]
            if name in ("mean", "var", "std") and (count < 2 or not x.size):
                continue  # NaN, and PyTorch warns
            wanted = () if d is None else (d,)
            cases.append(
                _case(
                    f"{name} {d}",
                    lambda m, x, n=name, w=wanted: _as_tuple(getattr(m, n)(x, *w)),
                    x,
                    order=1,
                )
            )
    check(cases)


_ALONG = ("logsumexp", "cumsum", "cumprod", "sort")


def _as_tuple(x: Any) -> Any:
    return tuple(x) if isinstance(x, tuple) else x


def test_bad_input_is_refused() -> None:
    f, x = genesis.functional, genesis.tensor(X)
    for error, message, call in (
        (ValueError, "clamp: give min", lambda: f.clamp(x)),
        (ValueError, "div: rounding_mode", lambda: f.div(x, x, rounding_mode="up")),
        (ValueError, "mm: needs a matrix", lambda: f.mm(x[0], x)),
        (ValueError, "matmul: shapes", lambda: f.matmul(x, x)),
        (ValueError, "dot: vectors of 4 and 3", lambda: f.dot(x[0], x[:, 0])),
        (ValueError, "glu: dim 0 of size 3", lambda: f.glu(x, 0)),
        (ValueError, "prelu: 3 slopes", lambda: f.prelu(x, x[:, 0])),
        (ValueError, "cdist: shapes", lambda: f.cdist(x, x[:, :2])),
        (ValueError, "tensordot: dims", lambda: f.tensordot(x, x, ([0], [1]))),
        (ValueError, "trapezoid: give positions", lambda: f.trapezoid(x, x, dx=1.0)),
        (ValueError, "quantile: there is no", lambda: f.quantile(x, 0.5, interpolation="best")),
        (TypeError, "imag: needs complex", lambda: f.imag(x)),
        (TypeError, "vector_norm: needs float", lambda: f.vector_norm(x > 0)),
        (TypeError, "rfft: needs real", lambda: f.fft.rfft(f.complex(x, x))),
        (ValueError, "matrix_power: needs square", lambda: f.linalg.matrix_power(x, 2)),
        (ValueError, "matrix_norm: there is no", lambda: f.linalg.matrix_norm(x, 7)),
        (NotImplementedError, "only with pivoting", lambda: f.linalg.lu(x, pivot=False)),
    ):
        with pytest.raises(error, match=message):
            call()
