"""gather, scatter, padding, and the gradients of movement, which put elements back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index as as_int
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.movement import steps_of, unview
from genesis.ir.dtype import bool_, uint8
from genesis.ir.size import Dim, product
from genesis.ndarray import NDArray
from genesis.ndarray.ops.movement import normal_axis
from genesis.torch.aten.half_precision import wide
from genesis.torch.aten.registry import Unsupported, implements, operators

Sizes = Sequence[Dim]

# ---- gather and scatter


@implements("gather")
def _gather(x: NDArray, dim: int, index: NDArray, sparse_grad: bool = False) -> NDArray:
    if 0 in index.shape:
        return nd.zeros(index.shape, x.dtype, x.device)
    if x.shape and not index.shape:
        return nd.reshape(_gather(x, dim, nd.reshape(index, (1,))), ())
    found: NDArray = functional.gather(x, dim, index)
    return found


def _row(x: Any) -> Any:
    """What has no dimensions, with one."""
    return nd.reshape(x, (1,)) if isinstance(x, NDArray) and not x.shape else x


@implements("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _scatter(x: NDArray, dim: int, index: NDArray, src: Any, reduce: str | None = None) -> NDArray:
    if 0 in index.shape:
        return x
    result: NDArray = functional.scatter(_row(x), dim, _row(index), _row(src), reduce=reduce)
    return nd.reshape(result, x.shape)


@implements("scatter_add")
def _scatter_add(x: NDArray, dim: int, index: NDArray, src: NDArray) -> NDArray:
    if 0 in index.shape:
        return x
    result: NDArray = functional.scatter_add(_row(x), dim, _row(index), _row(src))
    return nd.reshape(result, x.shape)


_OF_BOOL = {"sum": "amax", "prod": "amin", "amax": "amax", "amin": "amin"}


def _folded(function: Any, x: NDArray, src: NDArray, reduce: str) -> NDArray:
    """`function` folds `src` into `x`, both with at least one dimension; bool as bytes."""
    if x.dtype is not bool_:
        return nd.reshape(function(_row(x), _row(src), reduce), x.shape)
    if reduce not in _OF_BOOL:
        raise Unsupported(f"the {reduce} of bool")
    bits = (nd.astype(_row(y), uint8) for y in (x, src))
    return nd.reshape(nd.astype(function(*bits, _OF_BOOL[reduce]), bool_), x.shape)


@implements("scatter_reduce.two")
def _scatter_reduce(
    x: NDArray, dim: int, index: NDArray, src: NDArray, reduce: str, include_self: bool = True
) -> NDArray:
    if 0 in index.shape:
        return x

    def folded(x: NDArray, src: NDArray, reduce: str) -> NDArray:
        return nd.scatter_reduce(x, _row(index), src, dim, reduce, include_self)

    return _folded(folded, x, src, reduce)


@implements("index_reduce")
def _index_reduce(
    x: NDArray, dim: int, index: NDArray, source: NDArray, reduce: str, include_self: bool = True
) -> NDArray:
    def folded(x: NDArray, source: NDArray, reduce: str) -> NDArray:
        return nd.index_reduce(x, _row(index), source, reduce, dim, include_self)

    return _folded(folded, x, source, reduce)


# ---- padding


@implements("constant_pad_nd")
def _constant_pad(x: NDArray, pad: Sequence[Dim], value: Any = 0) -> NDArray:
    return nd.pad(x, _widths(x, pad), x.dtype.cast(value))  # type: ignore[arg-type]


def _widths(x: NDArray, pad: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """(before, after) of every dimension; PyTorch names the last dimension first."""
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


def _require_reach(x: NDArray, widths: Sequence[tuple[int, int]], mode: str) -> None:
    """What lies beyond an edge comes from what was not cut off."""
    for extent, (low, high) in zip(x.shape, widths, strict=True):
        kept = extent + min(low, 0) + min(high, 0)
        if max(low, high) > 0 and (kept < 1 or (mode == "reflect" and max(low, high) >= kept)):
            raise Unsupported(f"pad: {(low, high)} around {kept} of {extent} elements")


def _nearest(x: NDArray, widths: Sequence[tuple[int, int]]) -> list[NDArray] | None:
    """Where elements of every dimension come from, if all that was there may be cut off."""
    pairs = list(zip(x.shape, widths, strict=True))
    if 0 in x.shape or all(n + min(low, 0) + min(high, 0) > 0 for n, (low, high) in pairs):
        return None
    return [
        nd.clip(nd.arange(-low, n + high, device=x.device), 0, n - 1) for n, (low, high) in pairs
    ]


def _pad(mode: str, x: NDArray, padding: Sequence[int]) -> NDArray:
    widths: Any = _widths(x, padding)
    if mode == "replicate" and (positions := _nearest(x, widths)) is not None:
        for axis, places in enumerate(positions):
            x = nd.index_select(x, places, axis)
        return x
    _require_reach(x, widths, mode)
    return nd.pad(x, widths, mode=mode)


def _pad_backward(mode: str, grad: NDArray, x: NDArray, padding: Sequence[int]) -> NDArray:
    widths: Any = _widths(x, padding)
    if mode == "replicate" and (positions := _nearest(x, widths)) is not None:
        total = wide(grad)
        for axis, places in enumerate(positions):
            shape = (*total.shape[:axis], x.shape[axis], *total.shape[axis + 1 :])
            total = nd.index_add(nd.zeros(shape, total.dtype, x.device), places, total, axis)
        return total.astype(grad.dtype)
    _require_reach(x, widths, mode)
    return nd.pad_gradient(grad, widths, mode)


for _name, _mode in {"reflection": "reflect", "replication": "replicate"}.items():
    implements(*(f"{_name}_pad{_rank}d" for _rank in (1, 2, 3)))(partial(_pad, _mode))
    implements(*(f"{_name}_pad{_rank}d_backward" for _rank in (1, 2, 3)))(
        partial(_pad_backward, _mode)
    )


# ---- windows of images


@implements("im2col")
def _im2col(x: NDArray, *parameters: Any) -> NDArray:
    if x.dtype is bool_:  # a byte, for there are zeros around it
        return nd.astype(nd.unfold(nd.astype(x, uint8), *parameters), bool_)
    return nd.unfold(x, *parameters)


# ---- gradients of movement: zeros, with elements where they came from


def _put_back(grad: NDArray, sizes: Sizes, function: Any, *args: Any) -> Any:
    """What a function of views read put back to where it read it."""
    shape = tuple(sizes)
    steps = steps_of(function, nd.zeros(shape, grad.dtype, grad.device), *args)
    return unview(grad, steps, shape)


@implements("slice_backward")
def _slice_backward(
    grad: NDArray, input_sizes: Sizes, dim: int, start: Dim, end: Dim, step: int
) -> Any:
    axis = normal_axis("slice_backward", dim, grad.ndim)
    key = (*[slice(None)] * axis, slice(start, end, step))
    return _put_back(grad, input_sizes, NDArray.__getitem__, key)


@implements("unfold_backward")
def _unfold_backward(
    grad_in: NDArray, input_sizes: Sizes, dim: int, size: int, step: int
) -> NDArray:
    if not input_sizes:
        return nd.sum(grad_in)
    if size == 0 or 0 in grad_in.shape:
        return nd.zeros(tuple(input_sizes), grad_in.dtype, grad_in.device)
    axis = normal_axis("unfold_backward", dim, len(input_sizes))
    shape = list(input_sizes)
    shape[axis] = grad_in.shape[axis]
    grad_in = nd.broadcast_to(grad_in, (*shape, size))  # the window of `istft` is one for all rows
    return nd.overlap_add(grad_in, axis, as_int(input_sizes[axis]), step)


@implements("index_select_backward")
def _index_select_backward(grad: NDArray, self_sizes: Sizes, dim: int, index: NDArray) -> Any:
    nothing = nd.zeros(tuple(self_sizes), grad.dtype, grad.device)
    return functional.index_add(nothing, dim, index, grad)


@implements("value_selecting_reduction_backward")
def _selected_backward(
    grad: NDArray, dim: int, indices: NDArray, sizes: Sizes, keepdim: bool
) -> NDArray:
    if not keepdim and sizes:
        grad, indices = nd.unsqueeze(grad, dim), nd.unsqueeze(indices, dim)
    return _scatter(nd.zeros(tuple(sizes), grad.dtype, grad.device), dim, indices, grad)


@implements("masked_scatter_backward")
def _masked_scatter_backward(grad: NDArray, mask: NDArray, sizes: Sizes) -> NDArray:
    taken = nd.masked_select(grad, nd.astype(mask, bool_), product(sizes))  # type: ignore[arg-type]
    return nd.reshape(taken, sizes)


operators(
    {
        "col2im": nd.fold,
        "select_backward": lambda grad, input_sizes, dim, index: _put_back(
            grad, input_sizes, nd.select, index, dim
        ),
        "diagonal_backward": lambda grad, input_sizes, *where: _put_back(
            grad, input_sizes, functional.diagonal, *where
        ),
        "trace_backward": lambda grad, sizes: (
            nd.eye(sizes[0], sizes[1], grad.dtype, grad.device) * grad
        ),
    }
)
