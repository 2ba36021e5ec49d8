"""Movement: the same elements in other shapes, orders and places.

What are views in PyTorch are kernels like any other here: whether memory is shared is for the
front ends to know. The operators are those of `genesis.functional`, with PyTorch's arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.strided import as_strided
from genesis.ir.dtype import DType, bool_, int64, uint8
from genesis.ir.size import Dim, UndecidableSize, product
from genesis.ndarray import NDArray
from genesis.ndarray.core.layout import is_row_major
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.ndarray.ops.movement import normal_axes, normal_axis
from genesis.torch.aten.registry import Unsupported, implements, operators, table

Arrays = tuple[NDArray, ...]

table(nd, """
    channel_shuffle native_channel_shuffle=channel_shuffle numpy_T=transpose permute
    permute_copy=permute pixel_shuffle pixel_unshuffle prims::transpose=permute repeat=tile reshape
    _reshape_alias_copy=reshape _reshape_copy=reshape stack _stack=stack t=transpose
    t_copy=transpose unsqueeze unsqueeze_copy=unsqueeze _unsafe_view=reshape view=reshape
    view_copy=reshape
""")  # fmt: skip
table(functional, """
    chunk diag_embed diagonal diagonal_copy=diagonal flatten.using_ints moveaxis.int
    moveaxis.intlist movedim.int movedim.intlist narrow narrow_copy=narrow
    repeat_interleave.self_int repeat_interleave.self_Tensor rot90 split.Tensor
    split_copy.Tensor=split squeeze squeeze.dim squeeze.dims squeeze_copy=squeeze
    squeeze_copy.dim=squeeze squeeze_copy.dims=squeeze tensor_split.indices tensor_split.sections
    tile unbind.int unbind_copy.int=unbind unflatten.int unsafe_chunk=chunk
    unsafe_split.Tensor=split
""")  # fmt: skip

# ---- shapes


@implements("resize")
def _resize(x: NDArray, size: Sequence[Dim]) -> NDArray:
    flat = nd.reshape(x, (product(x.shape),))
    missing: Any = product(size) - flat.shape[0]
    return nd.reshape(nd.pad(flat, [(0, missing)], x.dtype.cast(0)), size)


@implements("view.dtype", "view_copy.dtype")
def _view_dtype(x: NDArray, dtype: DType) -> NDArray:
    if dtype is x.dtype:
        return x
    # Bool are bytes.
    if x.dtype is bool_:
        return _view_dtype(nd.astype(x, uint8), dtype)
    if dtype is bool_:
        return nd.astype(_view_dtype(x, uint8), bool_)
    return nd.bitcast(x, dtype)


# ---- order of dimensions, parts


@implements("slice.Tensor", "slice_copy.Tensor")
def _slice(
    x: NDArray, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> NDArray:
    axis = normal_axis("slice", dim, x.ndim)
    return x[(*[slice(None)] * axis, slice(start, end, step))]


@implements("unfold", "unfold_copy")
def _unfold(x: NDArray, dimension: int, size: int, step: int) -> NDArray:
    if not x.shape:
        return nd.expand(x, (size,))  # one window at most
    axis = normal_axis("unfold", dimension, x.ndim)
    if size == 0:
        count = x.shape[axis] // step + 1
        return nd.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :], 0), x.dtype, x.device)
    return nd.windows(x, axis, size, step)


# ---- joining, repeating, turning


@implements("cat", "concat", "concatenate")
def _cat(tensors: Sequence[NDArray], dim: int = 0) -> NDArray:
    dtype = common_dtype(tensors)
    # An empty vector joins with anything: it counts for the dtype only.
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return nd.concat([nd.astype(x, dtype) for x in kept], dim)


@implements("_chunk_cat")
def _chunk_cat(tensors: Sequence[NDArray], dim: int, num_chunks: int) -> NDArray:
    parts = []
    for x in tensors:
        axis = normal_axis("_chunk_cat", dim, x.ndim)
        widths: Any = [(0, -x.shape[axis] % num_chunks if d == axis else 0) for d in range(x.ndim)]
        padded = nd.pad(x, widths, x.dtype.cast(0))
        parts.append(nd.reshape(padded, (*x.shape[:axis], num_chunks, -1)))
    return _cat(parts, axis + 1)


@implements("block_diag")
def _block_diag(tensors: Sequence[NDArray]) -> NDArray:
    dtype = common_dtype(tensors)
    joined: NDArray = functional.block_diag(*(nd.astype(x, dtype) for x in tensors))
    return joined


@implements("repeat_interleave.Tensor")
def _repeated_positions(repeats: NDArray, output_size: int | None = None) -> NDArray:
    """How many runs have ended before each place is the number of the run it is in."""
    if output_size is None:
        output_size = int(nd.sum(repeats).item())
    ends = nd.cumsum(nd.astype(repeats, int64), 0)
    ended = nd.segment_sum(nd.ones(ends.shape, int64, ends.device), ends, output_size + 1)
    return nd.astype(nd.cumsum(ended[:output_size], 0), repeats.dtype)


# ---- strides

#: How a tensor lies in its storage: the strides and the offset of its first element.
Layout = tuple[Sequence[Dim], Dim]


@implements("as_strided", "as_strided_copy")
def _as_strided(
    x: NDArray,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
    memory: Layout | None = None,
) -> NDArray:
    """Strides are over the memory of a tensor: `memory` says how it lies there."""
    order, offset = _memory(x, storage_offset, memory)
    flat = wrap(nd.reshape(nd.permute(x, order), (product(x.shape),)).value)
    return _strided(flat, size, stride, offset)


@implements("as_strided_scatter")
def _as_strided_scatter(
    x: NDArray,
    src: NDArray,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
    memory: Layout | None = None,
) -> NDArray:
    order, offset = _memory(x, storage_offset, memory)
    moved = nd.permute(x, order)
    flat = nd.reshape(moved, (product(x.shape),)).copy()
    view = _strided(flat, size, stride, offset)
    if view.storage is flat.storage:
        view.assign(src)
    else:
        count = nd.arange(flat.shape[0], device=x.device)
        flat = nd.put(flat, _strided(count, size, stride, offset), src)
    return nd.permute(nd.reshape(flat, moved.shape), sorted(range(x.ndim), key=order.__getitem__))


def _strided(flat: NDArray, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> NDArray:
    try:
        found: NDArray = as_strided(flat, size, stride, offset)  # type: ignore[arg-type]
    except UndecidableSize:
        raise
    except (RuntimeError, ValueError) as error:
        raise Unsupported(str(error)) from None
    return found


def _memory(x: NDArray, offset: Dim | None, memory: Layout | None) -> tuple[list[int], Dim]:
    """The dimensions in the order of memory, and where in it an offset into the storage is."""
    if memory is None:
        value = x.value
        if not value.is_realised or (value.attr and offset is not None):
            raise Unsupported("strides over a tensor that may lie in its storage anyhow")
        memory = value.strides, value.offset
    strides, first = memory
    order = sorted(range(x.ndim), key=lambda d: (-as_int(strides[d]), -as_int(x.shape[d])))
    shape, apart = (tuple(y[d] for d in order) for y in (x.shape, strides))
    if not is_row_major(shape, apart):
        raise Unsupported(f"strides over a tensor with the strides {tuple(strides)}")
    return order, 0 if offset is None else offset - first


def _select(x: NDArray, dim: int, index: int | NDArray) -> NDArray:
    """One place along an axis; it may be a number that a program computes."""
    if not isinstance(index, NDArray):
        return nd.select(x, index, dim)
    axis = normal_axis("select", dim, x.ndim)
    place = nd.where(nd.less(index, 0), index + x.shape[axis], index)
    return nd.select(nd.index_select(x, place.reshape(1), axis), 0, axis)


operators(
    {
        "transpose.int transpose_copy.int swapaxes swapdims": lambda x, dim0, dim1: (
            nd.swapaxes(x, dim0, dim1) if x.shape else x
        ),
        "mT": lambda x: nd.swapaxes(x, -2, -1),
        "adjoint mH": lambda x: nd.swapaxes(nd.conj_physical(x), -2, -1),
        "flip": lambda x, dims: nd.flip(x, normal_axes("flip", dims, x.ndim)) if x.shape else x,
        "roll": lambda x, shifts, dims=(): (
            functional.roll(x, shifts, dims) if dims else functional.roll(x, shifts[0])
        ),
        "select.int select_copy.int": _select,
        "split_with_sizes split_with_sizes_copy unsafe_split_with_sizes split.sizes": (
            lambda x, split_sizes, dim=0: tuple(nd.split(x, split_sizes, dim))
        ),
        "_reshape_alias": lambda x, size, stride: nd.reshape(x, size),
        "expand expand_copy": lambda x, size, implicit=False: nd.expand(x, size),
    }
)
