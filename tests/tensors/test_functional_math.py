"""Elementwise functions, reductions and contractions against PyTorch, to the second derivative."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.gradients import Case, check

_rng = np.random.default_rng(7)


def _between(low: float, high: float, *shape: int) -> np.ndarray:
    return _rng.uniform(low, high, shape or (2, 3))


def _unary(names: str, low: float, high: float, **options: Any) -> list[Case]:
    return [
        Case(name, lambda m, x, name=name: getattr(m, name)(x), (_between(low, high),), **options)
        for name in names.split()
    ]


def _binary(names: str, low: float, high: float, **options: Any) -> list[Case]:
    return [
        Case(
            name,
            lambda m, x, y, name=name: getattr(m, name)(x, y),
            (_between(low, high, 4, 3), _between(low, high, 3)),
            **options,
        )
        for name in names.split()
    ]


def _words(text: str) -> list[str]:
    return text.split()


def _case(name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return Case(name, call, tuple(np.asarray(x) for x in arguments), **options)


X, Y, Z = _between(-2, 2, 3, 4), _between(-2, 2, 3, 4), _between(-2, 2, 3, 4)
P = _between(0.2, 2, 3, 4)
HALVES = np.array([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0])
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5])

EXPONENTIALS = [
    *_unary("exp exp2 expm1 sin cos tan sinh cosh tanh atan asinh sinc square", -1.4, 1.4),
    *_unary("log log2 log10 log1p sqrt rsqrt reciprocal", 0.2, 3),
    *_unary("asin acos atanh", -0.9, 0.9),
    *_unary("acosh", 1.2, 3),
    *_unary("deg2rad rad2deg abs neg positive", -2, 2),
    *_binary("atan2 hypot logaddexp logaddexp2", -2, 2),
    _case("sinc at 0", lambda m, x: m.sinc(x), [0.0, 1.0, 2.5], order=1),
]

ACTIVATIONS = [
    *_unary(
        "sigmoid logsigmoid silu mish gelu softplus softsign tanhshrink elu celu selu relu relu6 "
        "leaky_relu hardtanh hardswish softshrink hardshrink",
        -4,
        4,
    ),
    *_unary("hardsigmoid", -4, 4, order=1, tolerance=1e-7),
    _case("gelu tanh", lambda m, x: m.gelu(x, approximate="tanh"), X),
    _case("softplus beta", lambda m, x: m.softplus(x, 1.7, 2.0), X),
    _case("elu alpha", lambda m, x: m.elu(x, 0.7), X),
    _case("celu alpha", lambda m, x: m.celu(x, 0.7), X, tolerance=1e-6),
    _case("leaky_relu slope", lambda m, x: m.leaky_relu(x, 0.3), X),
    _case("logit", lambda m, x: m.logit(x), _between(0.1, 0.9)),
    _case("logit eps", lambda m, x: m.logit(x, 0.2), _between(0.01, 0.99, 8)),
    _case("threshold", lambda m, x: m.threshold(x, 0.3, -0.5), X),
    _case("prelu", lambda m, x, w: m.prelu(x, w), X, _between(0.1, 0.5, 4)),
    _case("prelu one", lambda m, x, w: m.prelu(x, w), X, _between(0.1, 0.5, 1)),
    _case("rrelu", lambda m, x: m.rrelu(x), X),
    _case("glu", lambda m, x: m.glu(x, 1), X),
    _case("softmax", lambda m, x: m.softmax(x, 0), X),
    _case("log_softmax", lambda m, x: m.log_softmax(x, -1), X),
    _case("softmin", lambda m, x: m.softmin(x, 1), X),
    _case("normalize", lambda m, x: m.normalize(x, dim=1), X),
    *(
        _case(
            f"{name} at its edges",
            lambda m, x, name=name: getattr(m, name)(x),
            HALVES,
            order=1,
            tolerance=1e-7,
        )
        for name in _words(
            "relu relu6 hardtanh hardsigmoid hardswish softshrink hardshrink leaky_relu elu"
        )
    ),
]

SPECIAL = [
    *_unary("erf erfc erfcx ndtr log_ndtr", -1.5, 1.5, tolerance=1e-8),
    *_unary("erfinv", -0.9, 0.9, tolerance=1e-8),
    *_unary("ndtri", 0.05, 0.95, tolerance=1e-8),
    *_unary("entr", 0.1, 2),
    *_binary("xlogy xlog1py", 0.3, 2),
    _case("xlogy at 0", lambda m, x, y: m.xlogy(x, y), [0.0, 0.0, 1.0], [0.0, 2.0, 3.0], order=1),
]

GAMMA = [
    *_unary("lgamma digamma i0 i0e i1 i1e", 0.4, 3, tolerance=1e-7),
    _case("polygamma", lambda m, x: m.polygamma(2, x), P, tolerance=1e-7),
    _case("mvlgamma", lambda m, x: m.mvlgamma(x, 3), P + 2, tolerance=1e-7),
    _case("i1 at 0", lambda m, x: m.i1(x), [0.0, -1.0], order=1, tolerance=1e-7),
]

ARITHMETIC = [
    _case("add", lambda m, x, y: m.add(x, y, alpha=0.3), X, Y[0]),
    _case("sub", lambda m, x, y: m.sub(x, y, alpha=0.3), X, Y[0]),
    _case("rsub", lambda m, x: m.rsub(x, 2.0, alpha=0.3), X),
    *_binary("mul div pow", 0.3, 2),
    _case("pow number", lambda m, x: m.pow(x, 3), X),
    _case("pow fraction", lambda m, x: m.pow(x, 1.7), P),
    _case("pow of number", lambda m, x: m.pow(2.5, x), X),
    _case("pow at 0", lambda m, x, y: m.pow(x, y), [0.0, 0.0, 2.0], [2.0, 0.0, 0.0], order=1),
    _case("float_power", lambda m, x: m.float_power(x, 2), X.astype(np.float32), order=1),
    _case("div trunc", lambda m, x, y: m.div(x, y, rounding_mode="trunc"), X, P, order=1),
    _case("lerp", lambda m, x, y, w: m.lerp(x, y, w), X, Y, P),
    _case("lerp number", lambda m, x, y: m.lerp(x, y, 0.3), X, Y),
    _case("addcmul", lambda m, x, y, z: m.addcmul(x, y, z, value=0.5), X, Y, Z),
    _case("addcdiv", lambda m, x, y, z: m.addcdiv(x, y, z, value=0.5), X, Y, P),
    *_binary("maximum minimum fmax fmin", -2, 2),
    *(
        _case(
            f"{n} of equals",
            lambda m, x, y, n=n: getattr(m, n)(x, y),
            [1.0, 2, 3],
            [1.0, 3, 2],
            order=1,
        )
        for n in _words("maximum minimum fmax fmin")
    ),
    _case("clamp", lambda m, x: m.clamp(x, -0.5, 1.0), HALVES),
    _case("clamp min", lambda m, x: m.clamp(x, min=0.1), X),
    _case("clamp tensors", lambda m, x, a, b: m.clamp(x, a, b), X, Y * 0.5, Y * 0.4 + 0.3),
    _case("where", lambda m, x, y: m.where(x > y, x, y * 2), X, Y),
    *_unary("floor ceil trunc round sign frac nan_to_num", -3, 3),
    _case("nan_to_num odd", lambda m, x: m.nan_to_num(x, 2.0, 3.0), ODD, order=1),
    _case("round decimals", lambda m, x: m.round(x, decimals=1), X),
    _case("fmod", lambda m, x, y: m.fmod(x, y), X * 3, P),
    _case("remainder", lambda m, x, y: m.remainder(x, y), X * 3, P),
    _case("remainder number", lambda m, x: m.remainder(x, 0.7), X),
    _case("copysign", lambda m, x, y: m.copysign(x, y), X, Y, order=1),
    _case("ldexp", lambda m, x, y: m.ldexp(x, y), X, np.array([1, 2, 0, 3])),
    _case("frexp", lambda m, x: m.frexp(x)[0], X),
]

N = np.where(X > 1.2, np.nan, X)
TIES = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, -1.0, -1.0]])
WITH_ZEROS = np.array([[1.5, 0.0, 2.0], [0.5, 3.0, -2.0], [0.0, 0.0, 4.0]])

REDUCTIONS = [
    _case("sum", lambda m, x: m.sum(x, (0, 1)), X),
    _case("sum dim", lambda m, x: m.sum(x, 1, keepdim=True), X),
    _case("mean", lambda m, x: m.mean(x, 0), X),
    _case("nansum", lambda m, x: m.nansum(x, 1), N),
    _case("nanmean", lambda m, x: m.nanmean(x, 0), N),
    _case("prod", lambda m, x: m.prod(x), X),
    _case("prod dim", lambda m, x: m.prod(x, 0, keepdim=True), X),
    _case("prod with zeros", lambda m, x: m.prod(x, 1), WITH_ZEROS),
    _case("amax", lambda m, x: m.amax(x, (0, 1)), TIES, order=1),
    _case("amin", lambda m, x: m.amin(x, 1, keepdim=True), TIES, order=1),
    _case("aminmax", lambda m, x: tuple(m.aminmax(x, dim=1)), X),
    _case("max", lambda m, x: m.max(x), TIES, order=1),
    _case("min", lambda m, x: m.min(x), TIES, order=1),
    _case("max dim", lambda m, x: tuple(m.max(x, 1)), X),
    _case("min dim", lambda m, x: tuple(m.min(x, 0, keepdim=True)), X),
    _case("max of two", lambda m, x, y: m.max(x, y), X, Y),
    _case("var", lambda m, x: m.var(x), X),
    _case("var dim", lambda m, x: m.var(x, 1, unbiased=False), X),
    _case("var correction", lambda m, x: m.var(x, 0, keepdim=True, correction=2), X),
    _case("std", lambda m, x: m.std(x, 1), X),
    _case("std of equals", lambda m, x: m.std(x), np.ones(3), order=1),
    _case("var_mean", lambda m, x: m.var_mean(x, 1), X),
    _case("std_mean", lambda m, x: m.std_mean(x, 0, correction=0), X),
    _case("logsumexp", lambda m, x: m.logsumexp(x, (0, 1)), X),
    _case("logsumexp dim", lambda m, x: m.logsumexp(x, 1, keepdim=True), X),
    *(
        _case(f"norm {p}", lambda m, x, p=p: m.norm(x, p, 1), X)
        for p in (0, 0.5, 1, 1.5, 2, 3, np.inf, -np.inf)
    ),
    _case("norm of 0", lambda m, x: m.norm(x, 2, 1), np.array([[0.0, 0.0], [3.0, 4.0]]), order=1),
    _case("dist", lambda m, x, y: m.dist(x, y, 3), X, Y),
    _case("cdist", lambda m, x, y: m.cdist(x, y), X, Y[:2], order=1),
    _case("cdist 1", lambda m, x, y: m.cdist(x, y, 1), X, Y[:2], order=1),
    _case("pdist", lambda m, x: m.pdist(x), X, order=1),
    _case("renorm", lambda m, x: m.renorm(x, 2, 0, 1.5), X, order=1),
    _case("pairwise_distance", lambda m, x, y: m.pairwise_distance(x, y), X, Y),
    _case("cosine_similarity", lambda m, x, y: m.cosine_similarity(x, y), X, Y),
    _case("any", lambda m, x: m.any(x > 1, 0), X, order=0),
    _case("all", lambda m, x: m.all(x > -1, 1), X, order=0),
    _case("argmax", lambda m, x: m.argmax(x, 1), X, order=0),
    _case("argmin", lambda m, x: m.argmin(x), X, order=0),
    _case("count_nonzero", lambda m, x: m.count_nonzero(x, 1), WITH_ZEROS, order=0),
]

CUMULATIVE = [
    _case("cumsum", lambda m, x: m.cumsum(x, 1), X),
    _case("cumprod", lambda m, x: m.cumprod(x, 0), X),
    _case("cumprod with zeros", lambda m, x: m.cumprod(x, 1), WITH_ZEROS),
    _case("cummax", lambda m, x: tuple(m.cummax(x, 1)), X),
    _case("cummin", lambda m, x: tuple(m.cummin(x, 0)), X),
    _case("logcumsumexp", lambda m, x: m.logcumsumexp(x, 1), X),
    _case("diff", lambda m, x, y: m.diff(x, 2, 1, y), X, Y),
    _case("gradient", lambda m, x: tuple(m.gradient(x)), X),
    _case("gradient dim", lambda m, x: tuple(m.gradient(x, spacing=0.3, dim=1, edge_order=2)), X),
    _case(
        "gradient at positions",
        lambda m, x, s: tuple(m.gradient(x, spacing=(s,), dim=1)),
        X,
        np.array([0.0, 0.5, 1.5, 1.7]),
        order=1,
    ),
    _case("trapezoid", lambda m, y, x: m.trapezoid(y, x), X, Y[0]),
    _case("trapezoid dx", lambda m, y: m.trapezoid(y, dx=0.3, dim=0), X),
    _case("cumulative_trapezoid", lambda m, y, x: m.cumulative_trapezoid(y, x), X, Y),
]

ORDER = [
    _case("sort", lambda m, x: tuple(m.sort(x, 1)), X),
    _case("sort down", lambda m, x: tuple(m.sort(x, 0, descending=True)), X),
    _case("argsort", lambda m, x: m.argsort(x, 1), X, order=0),
    _case("msort", lambda m, x: m.msort(x), X),
    _case("topk", lambda m, x: tuple(m.topk(x, 2, 1)), X),
    _case("topk least", lambda m, x: tuple(m.topk(x, 2, 0, largest=False)), X),
    _case("kthvalue", lambda m, x: tuple(m.kthvalue(x, 2, 1)), X),
    _case("median", lambda m, x: m.median(x), TIES, order=1),
    _case("median dim", lambda m, x: tuple(m.median(x, 1, keepdim=True)), X),
    _case("nanmedian", lambda m, x: m.nanmedian(x), N, order=1),
    _case("mode", lambda m, x: m.mode(x, 1)[0], TIES, order=1),
    _case("quantile", lambda m, x, q: m.quantile(x, q), X, np.array([0.1, 0.5, 0.85]), order=1),
    _case("quantile dim", lambda m, x: m.quantile(x, 0.3, 1, keepdim=True), X, order=1),
    *(
        _case(f"quantile {i}", lambda m, x, i=i: m.quantile(x, 0.3, 0, interpolation=i), X, order=1)
        for i in _words("lower higher midpoint nearest")
    ),
    _case("nanquantile", lambda m, x: m.nanquantile(x, 0.4, 1), N, order=1),
    _case("histc", lambda m, x: m.histc(x, 4, -1, 1), X, order=0),
    _case("bucketize", lambda m, x, y: m.bucketize(x, y), X, np.array([-1.0, 0, 1]), order=0),
    _case(
        "searchsorted",
        lambda m, x, y: m.searchsorted(y, x, right=True),
        X[0],
        np.array([-1.0, 0, 1]),
        order=0,
    ),
]

V, W = _between(-1, 1, 4), _between(-1, 1, 4)
A, B = _between(-1, 1, 3, 4), _between(-1, 1, 4, 5)
BA, BB = _between(-1, 1, 2, 3, 4), _between(-1, 1, 2, 4, 5)
T = _between(-1, 1, 3, 3, 4)

PRODUCTS = [
    _case("dot", lambda m, x, y: m.dot(x, y), V, W),
    _case("vdot", lambda m, x, y: m.vdot(x, y), V, W),
    _case("inner", lambda m, x, y: m.inner(x, y), A, V),
    _case("outer", lambda m, x, y: m.outer(x, y), V, A[0, :3]),
    _case("mv", lambda m, x, y: m.mv(x, y), A, V),
    _case("mm", lambda m, x, y: m.mm(x, y), A, B),
    _case("bmm", lambda m, x, y: m.bmm(x, y), BA, BB),
    *(
        _case(f"matmul {x.shape} {y.shape}", lambda m, x, y: m.matmul(x, y), x, y)
        for x, y in ((V, W), (A, V), (V, B), (BA, B), (A, BB), (BA[:, None], BB), (V, BB), (BA, V))
    ),
    _case("addmm", lambda m, x, y, z: m.addmm(z, x, y, beta=0.5, alpha=2), A, B, B[0]),
    _case("addmv", lambda m, x, y, z: m.addmv(z, x, y, alpha=2), A, V, A[:, 0]),
    _case("addr", lambda m, x, y, z: m.addr(z, x, y, beta=0.5), A[:, 0], V, A),
    _case("baddbmm", lambda m, x, y, z: m.baddbmm(z, x, y, beta=0), BA, BB, B[:3]),
    _case("addbmm", lambda m, x, y, z: m.addbmm(z, x, y, beta=2), BA, BB, B[:3]),
    _case("einsum", lambda m, x, y: m.einsum("ij,jk->ki", x, y), A, B),
    _case("einsum three", lambda m, x, y, z: m.einsum("bij,jk,bk->i", x, y, z), BA, B, BB[:, 0]),
    _case("einsum dots", lambda m, x, y: m.einsum("...ij,...jk->...k", x, y), BA, BB),
    _case("einsum diagonal", lambda m, x: m.einsum("iij->j", x), T),
    _case("einsum alone", lambda m, x, y: m.einsum("ij,kl->il", x, y), A, B),
    _case("einsum numbers", lambda m, x, y: m.einsum(x, [0, 1], y, [1, 2], [2, 0]), A, B),
    _case(
        "tensordot",
        lambda m, x, y: m.tensordot(x, y, dims=([2, 0], [0, 1])),
        BA,
        BB.mT[:, :4, :4].transpose(2, 0, 1),
    ),
    _case("tensordot 1", lambda m, x, y: m.tensordot(x, y, dims=1), BA, B),
    _case("kron", lambda m, x, y: m.kron(x, y), A, V[:2]),
    _case(
        "bilinear",
        lambda m, x, y, w, b: m.bilinear(x, y, w, b),
        A,
        A[:, :3],
        _between(-1, 1, 2, 4, 3),
        V[:2],
    ),
    _case("cross", lambda m, x, y: m.cross(x, y, dim=0), A, A[::-1].copy() + 1),
    _case("trace", lambda m, x: m.trace(x), A),
    _case("cov", lambda m, x: m.cov(x), A),
    _case(
        "cov weighted",
        lambda m, x, w: m.cov(x, correction=0, aweights=w),
        A,
        np.array([1.0, 2, 3, 1]),
        order=1,
    ),
    _case("corrcoef", lambda m, x: m.corrcoef(x), A),
]


def _complex(*shape: int) -> np.ndarray:
    return _between(-1, 1, *shape) + 1j * _between(-1, 1, *shape)


C, D = _complex(2, 3), _complex(2, 3)

COMPLEX = [
    *(
        Case(n, lambda m, x, n=n: getattr(m, n)(x), (C,), order, 1e-8)
        for order, names in (
            (1, "log sqrt sin cos tanh sinh sigmoid"),
            (2, "exp square reciprocal abs angle sgn real imag conj view_as_real"),
        )
        for n in _words(names)
    ),
    _case("complex", lambda m, x, y: m.complex(x, y), X, Y),
    _case("polar", lambda m, x, y: m.polar(x, y), P, Y),
    _case("view_as_complex", lambda m, x: m.view_as_complex(x), _between(-1, 1, 3, 2)),
    *(
        _case(n, lambda m, x, y, n=n: getattr(m, n)(x, y), C, D)
        for n in _words("add sub mul div pow")
    ),
    _case("vdot", lambda m, x, y: m.vdot(x, y), C[0], D[0]),
    _case("real times complex", lambda m, x, y: m.mul(x, y), X[:2, :3], D),
    _case("sum", lambda m, x: m.sum(x, 0), C),
    _case("mean", lambda m, x: m.mean(x), C),
    _case("prod", lambda m, x: m.prod(x, 1), C),
    _case("var", lambda m, x: m.var(x, 1), C),
    _case("cumsum", lambda m, x: m.cumsum(x, 1), C),
    _case("cumprod", lambda m, x: m.cumprod(x, 1), C),
    _case("norm", lambda m, x: m.norm(x, 2, 1), C),
    _case("norm 3", lambda m, x: m.linalg.vector_norm(x, 3, 1), C),
    _case("matmul", lambda m, x, y: m.matmul(x, y), C, D.T.copy()),
    _case("einsum", lambda m, x, y: m.einsum("ij,kj->ik", x, y), C, D),
]

GROUPS = {
    "exponentials": EXPONENTIALS,
    "activations": ACTIVATIONS,
    "special": SPECIAL,
    "gamma": GAMMA,
    "arithmetic": ARITHMETIC,
    "reductions": REDUCTIONS,
    "cumulative": CUMULATIVE,
    "order": ORDER,
    "products": PRODUCTS,
    "complex": COMPLEX,
}


@pytest.mark.parametrize("group", GROUPS)
def test_against_pytorch(group: str) -> None:
    check(GROUPS[group])
