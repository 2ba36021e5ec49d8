"""Special functions: error functions, gamma functions, Bessel functions and polynomials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional import polynomials, special
from genesis.ir.dtype import float32, float64
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.value import thread
from genesis.torch.aten.half_precision import rounded_once
from genesis.torch.aten.registry import Implementation, Unsupported, implements, table

table(nd, """
    digamma erfc erfinv i0 igamma=gammainc igammac=gammaincc lgamma mvlgamma=multigammaln
    special_airy_ai=airy_ai special_bessel_j0=bessel_j0 special_bessel_j1=bessel_j1
    special_bessel_y0=bessel_y0 special_bessel_y1=bessel_y1 special_erfcx=erfcx special_i0e=i0e
    special_i1=i1 special_i1e=i1e special_log_ndtr=log_ndtr special_modified_bessel_i0=i0
    special_modified_bessel_i1=i1 special_modified_bessel_k0=k0 special_modified_bessel_k1=k1
    special_ndtri=ndtri special_scaled_modified_bessel_k0=k0e special_scaled_modified_bessel_k1=k1e
    special_xlog1py=xlog1py special_xlog1py.other_scalar=xlog1py special_xlog1py.self_scalar=xlog1py
    special_zeta=zeta special_zeta.other_scalar=zeta special_zeta.self_scalar=zeta
    xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor
""")  # fmt: skip
#: As float32 has it.
_PI = 3.1415927410125732

table(special, "special_entr=entr special_spherical_bessel_j0=spherical_bessel_j0", rounded_once)


@implements("polygamma")
def _polygamma(n: int, x: NDArray) -> NDArray:
    """For n = 1 by PyTorch's formula, in its precision: left of zero it rounds ``pi * x``.

    Near the poles there that is far from the function, but programs are compared with PyTorch.
    """
    if n != 1 or x.dtype is float64 or not x.dtype.is_float:
        return nd.polygamma(n, x)
    y = x.astype(float32)
    left = nd.less(y, 0.5)
    sine = nd.sin(y * _PI)
    reflected = (_PI * _PI) / (sine * sine)
    z = nd.where(left, 1 - y, y)
    total = nd.where(left, -reflected, nd.zeros_like(y))
    for _ in range(6):
        total = total + 1 / (z * z)
        z = z + 1
    w = 1 / (z * z)
    series = w * (1 / 6 - w * (1 / 30 - w * (1 / 42)))
    total = total + (1 + 1 / (2 * z) + series) / z
    return nd.where(left, -total, total).astype(x.dtype)


# ---- orthogonal polynomials

_GREATEST_DEGREE = 64

Polynomial = Callable[[Any, int], Any]


def _of_degree(polynomial: Polynomial) -> Implementation:
    """A polynomial of one degree for all elements; it is unrolled."""

    def function(x: NDArray, n: Any) -> NDArray:
        if n > _GREATEST_DEGREE:
            raise Unsupported(f"the degree is up to {_GREATEST_DEGREE}, not {n}")
        return rounded_once(lambda t: polynomial(t, int(n)))(x)

    return function


def _of_degrees(polynomial: Polynomial) -> Implementation:
    """A polynomial of another degree for every element: one of all up to the greatest."""

    def function(x: Any, n: NDArray) -> NDArray:
        if thread.recorder is not None:
            raise Unsupported("the greatest degree is not known before the program runs")
        degrees = nd.trunc(n)
        greatest = max(0, int(nd.max(degrees).item())) if n.size else 0
        if greatest > _GREATEST_DEGREE // 4:
            raise Unsupported(f"degrees are up to {_GREATEST_DEGREE // 4}, not {greatest}")

        def choice(t: Any, m: NDArray) -> NDArray:
            t = t if isinstance(t, NDArray) else nd.full_like(m, t, float32)
            result = nd.where(m < 0, 0.0, polynomial(t, 0))
            for k in range(1, greatest + 1):
                result = nd.where(m == k, polynomial(t, k), result)
            return result

        return rounded_once(choice)(x, degrees)

    return function


for _name in polynomials.__all__:
    _polynomial = getattr(polynomials, _name)
    implements(f"special_{_name}.n_scalar")(_of_degree(_polynomial))
    implements(f"special_{_name}", f"special_{_name}.x_scalar")(_of_degrees(_polynomial))
