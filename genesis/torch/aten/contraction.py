"""Matrix products and what is added to them.

Every operator here is one contraction, with the scaled input added to it afterwards, where the
compiler puts it into the contraction's own kernel.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, float32, int32
from genesis.ndarray import NDArray
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.torch.aten.registry import Unsupported, implements, operators


@implements("mm", "bmm", "dot", "matmul", "mv", "linalg_matmul")
def product(a: NDArray, b: NDArray) -> NDArray:
    """The matrix product; bools multiply as numbers do, and give a bool."""
    if a.dtype.kind == "bool":
        return nd.matmul(a.astype(int32), b.astype(int32)).astype(a.dtype)
    return nd.matmul(a, b)


def _plus(total: NDArray, addend: NDArray, beta: Any, alpha: Any) -> NDArray:
    """``beta * addend + alpha * total``; what is multiplied by 0 is not looked at."""
    dtype = total.dtype
    if dtype.is_integer:
        alpha, beta = int(alpha), int(beta)
    if (alpha, beta) == (1, 0):
        return total
    wide = dtype.accumulator if dtype.is_float else dtype
    total = total.astype(wide)
    if alpha != 1:
        total = total * alpha
    if beta != 0:
        addend = addend.astype(wide)
        total = total + (addend if beta == 1 else addend * beta)
    return total.astype(dtype)


@implements("mm.dtype", "bmm.dtype")
def _product_in(x: NDArray, y: NDArray, out_dtype: DType) -> NDArray:
    return product(x.astype(out_dtype), y.astype(out_dtype))


@implements("baddbmm")
def _add_matrix_products(
    addend: NDArray, x: NDArray, y: NDArray, *, beta: Any = 1, alpha: Any = 1
) -> NDArray:
    """Rounded once, when all has been added: so PyTorch does it, other than `addmm`."""
    dtype = x.dtype
    wide = dtype.accumulator if dtype.is_float else dtype
    return _plus(_product_in(x, y, wide), addend, beta, alpha).astype(dtype)


@implements("addr")
def _add_outer(
    addend: NDArray, x: NDArray, y: NDArray, *, beta: Any = 1, alpha: Any = 1
) -> NDArray:
    dtype = common_dtype((addend, x, y))
    x, y = nd.unsqueeze(x, 1), nd.unsqueeze(y, 0)
    if dtype.kind == "bool":
        each = x & y & bool(alpha)
        return each | addend if beta else nd.broadcast_to(each, each.shape)
    wide = dtype.accumulator if dtype.is_float else dtype
    return _plus(x.astype(wide) * y.astype(wide), addend, beta, alpha).astype(dtype)


@implements("linear")
def _linear(x: NDArray, weight: NDArray, bias: NDArray | None = None) -> NDArray:
    total = product(x, nd.swapaxes(weight, 0, 1) if weight.ndim == 2 else weight)
    return total if bias is None else total + bias


@implements("_trilinear")
def _trilinear(*given: Any) -> NDArray:
    factors, missing, summed = given[:3], given[3:6], given[6]
    labels = [chr(ord("a") + d) for d in range(factors[0].ndim + len(missing[0]))]
    terms = [
        "".join(c for d, c in enumerate(labels) if d not in absent) for absent in (*missing, summed)
    ]
    dtype = common_dtype(factors)
    wide = dtype.accumulator if dtype.is_float else dtype
    operands = (x.astype(wide) for x in factors)
    return nd.einsum(f"{','.join(terms[:3])}->{terms[3]}", *operands).astype(dtype)


@implements("_scaled_mm")
def _scaled_mm(
    x: NDArray,
    y: NDArray,
    scale_a: NDArray,
    scale_b: NDArray,
    bias: NDArray | None = None,
    scale_result: NDArray | None = None,
    out_dtype: DType | None = None,
    use_fast_accum: bool = False,
) -> NDArray:
    total = nd.matmul(x.astype(float32), y.astype(float32)) * scale_a * scale_b
    if bias is not None:
        total = total + bias
    if scale_result is not None:
        raise Unsupported("_scaled_mm with a scale for its result")
    return total.astype(out_dtype or x.dtype)


operators(
    {
        "addmm addmv": lambda addend, x, y, beta=1, alpha=1: _plus(
            product(x, y), addend, beta, alpha
        ),
        "addmm.dtype baddbmm.dtype": lambda addend, x, y, out_dtype, beta=1, alpha=1: _plus(
            _product_in(x, y, out_dtype), addend, beta, alpha
        ),
        "addbmm": lambda addend, x, y, beta=1, alpha=1: _plus(
            nd.einsum("bij,bjk->ik", x, y), addend, beta, alpha
        ),
        "outer": nd.outer,
        "tensordot": lambda x, y, dims_self, dims_other: nd.tensordot(
            x, y, (dims_self, dims_other)
        ),
        "vdot": lambda x, y: product(nd.conj(x), y),
        "_int_mm": lambda x, y: nd.matmul(x.astype(int32), y.astype(int32)),
    }
)
