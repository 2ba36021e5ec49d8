"""Reductions: sums, means, extremes, truth, spread, norms, and softmax.

`dim` is one dimension, several, or None; no dimensions at all mean all of them, and a number passes
for a vector of one. An extreme of nothing is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.functional.activation import log_softmax_gradient, softmax_gradient
from genesis.ir.dtype import DType, bool_, float32, floating, int64, uint8
from genesis.ir.size import product
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.half_precision import wide
from genesis.torch.aten.registry import implements, operators

Dims = int | Sequence[int] | None


def dimension(dim: int, rank: int) -> int:
    """A dimension counted from the front; a number has one, too.

    >>> dimension(-1, 3), dimension(-1, 0)
    (2, 0)
    """
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
            f"but got {dim})"
        )
    return dim % rank


def dimensions(x: NDArray, dim: Dims) -> tuple[int, ...]:
    """The axes that `dim` means, all of them if it names none."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(x.ndim))
    listed = [dim] if isinstance(dim, int) else list(dim)
    found = [dimension(d, x.ndim) for d in listed]
    for d in found:
        if found.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return tuple(sorted(found)) if x.shape else ()


def pair(found: Iterable[NDArray]) -> tuple[NDArray, NDArray]:
    """Two arrays, whatever the tuple that holds them is called."""
    first, second = found
    return first, second


def inexact(x: NDArray) -> NDArray:
    """The array itself if it is of floating point or complex, else in the default float."""
    return nd.astype(x, floating(x.dtype))


# ---- sums


def _as(x: NDArray, dtype: DType | None) -> NDArray:
    return x if dtype is None else nd.astype(x, dtype)


def _totals(function: Callable[..., NDArray], *names: str) -> None:
    @implements(*names)
    def total(self: NDArray, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> NDArray:
        return _as(function(_as(self, dtype), dimensions(self, dim), keepdim), dtype)


_totals(nd.sum, "sum", "sum.dim_IntList")
_totals(nd.nansum, "nansum")
_totals(nd.prod, "prod", "prod.dim_int")


@implements("mean", "mean.dim")
def _mean(self: NDArray, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> NDArray:
    x = _as(self, dtype)
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {x.dtype}"
        )
    return nd.mean(x, dimensions(self, dim), keepdim)


# ---- extremes


def require_elements(name: str, x: NDArray, dims: Sequence[int], given: bool = True) -> None:
    """Refuse to look for one of no elements."""
    for d in dims:
        if x.shape[d] == 0:
            if given:
                raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
            raise (IndexError if name.startswith("arg") else RuntimeError)(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )


def _extremes(name: str, function: Callable[..., NDArray], at: Callable[..., NDArray]) -> None:
    """Register ``amax``, ``max``, ``max.dim`` and ``argmax``, or the others."""

    @implements(f"a{name}")
    def over(self: NDArray, dim: Dims = None, keepdim: bool = False) -> NDArray:
        dims = dimensions(self, dim)
        require_elements(f"a{name}", self, dims, dim is not None and dim != [])
        return function(self, dims, keepdim)

    @implements(name)
    def of_all(self: NDArray) -> NDArray:
        require_elements(name, self, range(self.ndim), False)
        return function(self)

    @implements(f"{name}.dim")
    def along(self: NDArray, dim: int, keepdim: bool = False) -> tuple[NDArray, NDArray]:
        dims = dimensions(self, dim)
        require_elements(name, self, dims)
        if not dims:
            return self, nd.zeros((), int64, self.device)
        return function(self, dims, keepdim), at(self, dims[0], keepdim)

    @implements(f"arg{name}")
    def position(self: NDArray, dim: int | None = None, keepdim: bool = False) -> NDArray:
        if self.dtype is bool_:
            raise RuntimeError(f"arg{name}(): does not support bool input")
        dims = dimensions(self, dim)
        require_elements(f"arg{name}", self, dims, dim is not None)
        return at(self, None if dim is None or not dims else dims[0], keepdim)


_extremes("max", nd.amax, nd.argmax)
_extremes("min", nd.amin, nd.argmin)


@implements("aminmax")
def _aminmax(
    self: NDArray, dim: int | None = None, keepdim: bool = False
) -> tuple[NDArray, NDArray]:
    dims = dimensions(self, dim)
    if dim is None and 0 in self.shape:
        raise RuntimeError(
            "aminmax(): cannot compute aminmax over an empty dimension as the operation has no "
            "identity."
        )
    require_elements("aminmax", self, dims)
    return nd.amin(self, dims, keepdim), nd.amax(self, dims, keepdim)


# ---- truth


def _truths(name: str, function: Callable[..., NDArray]) -> None:
    def result(x: NDArray, dims: Sequence[int], keepdim: bool) -> NDArray:
        found = function(x, tuple(dims), keepdim)
        return nd.astype(found, uint8) if x.dtype is uint8 else found  # as long ago

    @implements(name)
    def of_all(self: NDArray) -> NDArray:
        return result(self, range(self.ndim), False)

    @implements(f"{name}.dim")
    def along(self: NDArray, dim: int, keepdim: bool = False) -> NDArray:
        return result(self, dimensions(self, dim), keepdim)

    @implements(f"{name}.dims")
    def over(self: NDArray, dim: Dims = None, keepdim: bool = False) -> NDArray:
        none = dim is not None and not isinstance(dim, int) and not dim
        return result(self, () if none else dimensions(self, dim), keepdim)


_truths("any", nd.any)
_truths("all", nd.all)
implements("_is_any_true")(nd.any)
implements("_is_all_true")(nd.all)


# ---- spread


def _spread(name: str, function: Callable[..., NDArray]) -> None:
    """Register every overload of ``var`` and ``var_mean``, or of the others."""

    def of(x: NDArray, dim: Dims, correction: Any, keepdim: bool) -> NDArray:
        dims, less = dimensions(x, dim), 1 if correction is None else correction
        if not (x.dtype.is_float or x.dtype.is_complex):
            raise RuntimeError(f"{name} only support floating point and complex dtypes")
        if less == int(less):
            return function(x, dims, int(less), keepdim)
        count = int(product(x.shape[d] for d in dims))
        ratio = count / (count - less) if count > less else math.inf
        result = function(wide(x), dims, 0, keepdim)
        return nd.astype(result * (math.sqrt(ratio) if name == "std" else ratio), x.dtype.real)

    @implements(f"{name}.correction")
    def corrected(
        self: NDArray, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> NDArray:
        return of(self, dim, correction, keepdim)

    @implements(f"{name}_mean.correction")
    def with_mean(
        self: NDArray, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> tuple[NDArray, NDArray]:
        return of(self, dim, correction, keepdim), _mean(self, dim, keepdim)

    @implements(f"{name}.dim")
    def along(self: NDArray, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> NDArray:
        return of(self, dim, int(unbiased), keepdim)

    @implements(f"{name}_mean")
    def all_with_mean(self: NDArray, unbiased: bool = True) -> tuple[NDArray, NDArray]:
        return of(self, None, int(unbiased), False), _mean(self)

    implements(name)(lambda self, unbiased=True: of(self, None, int(unbiased), False))

    @implements(f"{name}_mean.dim")
    def along_with_mean(
        self: NDArray, dim: Dims, unbiased: bool = True, keepdim: bool = False
    ) -> tuple[NDArray, NDArray]:
        return of(self, dim, int(unbiased), keepdim), _mean(self, dim, keepdim)


_spread("var", nd.var)
_spread("std", nd.std)


# ---- norms


@implements("linalg_vector_norm")
def _vector_norm(
    self: NDArray, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> NDArray:
    dims = dimensions(self, dim)
    x = _as(self, dtype)
    if (ord < 0 or ord == math.inf) and any(x.shape[d] == 0 for d in dims):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord} norm on an empty tensor because the "
            "operation does not have an identity"
        )
    result = nd.linalg.vector_norm(_norm_input(x), ord, dims, keepdim)
    return nd.astype(result, x.dtype.real)


def _norm_input(x: NDArray) -> NDArray:
    return wide(x) if x.dtype.is_float else inexact(x)


@implements("renorm")
def _renorm(self: NDArray, p: Any, dim: int, maxnorm: Any) -> NDArray:
    result = nd.renorm(wide(self), float(p), dimension(dim, self.ndim), float(maxnorm))
    return nd.astype(result, self.dtype)


# ---- exponentials


@implements("logsumexp", "special_logsumexp")
def _logsumexp(self: NDArray, dim: Dims, keepdim: bool = False) -> NDArray:
    x = inexact(self)
    dims = dimensions(self, dim)
    if not x.dtype.is_complex:
        return nd.logsumexp(x, dims, keepdim)
    if any(x.shape[d] == 0 for d in dims):
        return nd.log(nd.sum(x, dims, keepdim))
    shift = nd.amax(nd.real(x), dims, True)
    shift = nd.where(nd.isfinite(shift), shift, 0.0)
    result = nd.log(nd.sum(nd.exp(x - shift), dims, True)) + shift
    return result if keepdim else nd.squeeze(result, dims)


def _along(function: Callable[..., NDArray]) -> Callable[..., NDArray]:
    def along(self: NDArray, dim: int, half_to_float: bool = False) -> NDArray:
        x = nd.astype(self, float32) if half_to_float else self
        if not x.shape:
            return nd.reshape(function(nd.reshape(x, (1,)), 0), ())
        return function(x, dimension(dim, x.ndim))

    return along


_softmax = implements("_softmax")(_along(nd.softmax))
implements("_log_softmax")(_along(nd.log_softmax))


@implements("_safe_softmax")
def _safe_softmax(self: NDArray, dim: int, dtype: Any = None) -> NDArray:
    x = _as(self, dtype)
    hidden = nd.all(nd.equal(x, -math.inf), dimensions(x, dim), keepdims=True)
    return nd.where(hidden, 0.0, _softmax(x, dim))


@implements("_masked_softmax")
def _masked_softmax(
    self: NDArray, mask: NDArray, dim: int | None = None, mask_type: int | None = None
) -> NDArray:
    if mask_type == 1:  # one for each example and each key
        mask = nd.reshape(mask, (mask.shape[0], *(1,) * (self.ndim - 2), mask.shape[1]))
    return _softmax(nd.where(mask, -math.inf, self), -1 if dim is None else dim)


def _backward(gradient: Callable[..., NDArray]) -> Callable[..., NDArray]:
    def backward(grad: NDArray, output: NDArray, dim: int, input_dtype: Any) -> NDArray:
        return gradient(wide(grad), dimensions(output, dim), wide(output)).astype(input_dtype)

    return backward


_softmax_backward = implements("_softmax_backward_data")(_backward(softmax_gradient))
implements("_log_softmax_backward_data")(_backward(log_softmax_gradient))


@implements("_masked_softmax_backward")
def _masked_softmax_backward(
    grad: NDArray, output: NDArray, mask: NDArray, dim: int | None = None
) -> NDArray:
    axis = -1 if dim is None else dim
    return nd.where(mask, 0.0, _softmax_backward(grad, output, axis, output.dtype))


operators(
    {
        "count_nonzero count_nonzero.dim_IntList": lambda self, dim=None: nd.count_nonzero(
            self, dimensions(self, dim)
        ),
        "trace": nd.trace,
        "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype": (
            lambda self, p=2, dim=None, keepdim=False, dtype=None: _vector_norm(
                self, 2 if p is None else p, dim, keepdim, dtype
            )
        ),
        "dist": lambda self, other, p=2: _vector_norm(self - other, p),
    }
)
