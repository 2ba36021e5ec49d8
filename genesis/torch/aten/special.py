"""Special functions: error functions, gamma functions, Bessel functions and polynomials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional import polynomials, special
from genesis.ir.dtype import float32
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.value import thread
from genesis.torch.aten.precision import rounded_once
from genesis.torch.aten.registry import Kernel, Unsupported, kernel

_FUNCTIONS: dict[str, Kernel] = {
    "digamma": nd.digamma,
    "erfc": nd.erfc,
    "erfinv": nd.erfinv,
    "i0": nd.i0,
    "igamma": nd.gammainc,
    "igammac": nd.gammaincc,
    "lgamma": nd.lgamma,
    "mvlgamma": nd.multigammaln,
    "polygamma": nd.polygamma,
    "special_airy_ai": nd.airy_ai,
    "special_bessel_j0": nd.bessel_j0,
    "special_bessel_j1": nd.bessel_j1,
    "special_bessel_y0": nd.bessel_y0,
    "special_bessel_y1": nd.bessel_y1,
    "special_entr": rounded_once(special.entr),
    "special_erfcx": nd.erfcx,
    "special_i0e": nd.i0e,
    "special_i1": nd.i1,
    "special_i1e": nd.i1e,
    "special_log_ndtr": nd.log_ndtr,
    "special_modified_bessel_i0": nd.i0,
    "special_modified_bessel_i1": nd.i1,
    "special_modified_bessel_k0": nd.k0,
    "special_modified_bessel_k1": nd.k1,
    "special_ndtri": nd.ndtri,
    "special_scaled_modified_bessel_k0": nd.k0e,
    "special_scaled_modified_bessel_k1": nd.k1e,
    "special_spherical_bessel_j0": rounded_once(special.spherical_bessel_j0),
    "xlogy.Scalar_Other": nd.xlogy,
    "xlogy.Scalar_Self": nd.xlogy,
    "xlogy.Tensor": nd.xlogy,
}

for _name, _function in _FUNCTIONS.items():
    kernel(_name)(_function)

for _name, _function in {"special_xlog1py": nd.xlog1py, "special_zeta": nd.zeta}.items():
    kernel(_name, f"{_name}.other_scalar", f"{_name}.self_scalar")(_function)


# ---- orthogonal polynomials

_GREATEST_DEGREE = 64

Polynomial = Callable[[Any, int], Any]


def _of_degree(polynomial: Polynomial) -> Kernel:
    """A polynomial of one degree for all elements; it is unrolled."""

    def function(x: NDArray, n: Any) -> NDArray:
        if n > _GREATEST_DEGREE:
            raise Unsupported(f"the degree is up to {_GREATEST_DEGREE}, not {n}")
        return rounded_once(lambda t: polynomial(t, int(n)))(x)

    return function


def _of_degrees(polynomial: Polynomial) -> Kernel:
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
    kernel(f"special_{_name}.n_scalar")(_of_degree(_polynomial))
    kernel(f"special_{_name}", f"special_{_name}.x_scalar")(_of_degrees(_polynomial))
