"""Cases of sorting, statistics, linear algebra and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from genesis import ndarray as nd
from tests.operator_cases import COUNTED, REAL, case
from tests.operator_draw import (
    COMPLEX,
    FLOATS,
    Draw,
    Operand,
    as_numpy,
)

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
            d.same(
                nd.sort(x.a, axis, down), torch.sort(x.t, dim=axis, descending=down, stable=True)
            )
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
            d.same(x.a @ vectors, as_numpy(vectors * values.unsqueeze(-2)), 1e3, cast=True)
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
        d.same(nd.linalg.vander(x.a), np.vander(x.n, increasing=True), 4)
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
