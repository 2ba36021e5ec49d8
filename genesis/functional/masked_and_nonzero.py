"""Masks: choosing by a condition.

What has the shape of its input is a `where`. What a mask selects is picked by positions, and their
number is data: it is computed first.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import cast, where
from genesis.functional.error_messages import broadcast_shapes
from genesis.functional.function import is_tensor, plain
from genesis.functional.indexing import Pick, take
from genesis.functional.movement import clone, expand, ravel
from genesis.functional.registry import method
from genesis.ir.dtype import bool_, int64
from genesis.ndarray import NDArray
from genesis.ndarray.core.primitive import kind_rank


@method(in_place=True)
def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """`input` with one number where the mask holds."""
    _require_mask("masked_fill", mask)
    given = value if is_tensor(value) or isinstance(value, NDArray) else None
    if given is None:
        if isinstance(value, complex) and not input.dtype.is_complex:
            raise TypeError(f"masked_fill: {value} does not fit into {input.dtype}")
        given = nd.full((), value, input.dtype, input.device)
    if given.shape:
        raise ValueError(f"masked_fill: expected one number, got shape {tuple(given.shape)}")
    if kind_rank(given.dtype) > kind_rank(input.dtype):
        raise TypeError(f"masked_fill: a {given.dtype} value does not fit into {input.dtype}")
    return where(mask, cast(given, input.dtype), input)


@method
def masked_select(input: Any, mask: Any) -> Any:
    """The elements where the mask holds, as a vector."""
    flat, chosen = _together("masked_select", input, mask)
    place = plain(lambda m: nd.nonzero(m, as_tuple=True)[0], chosen)
    return Pick.apply(flat, (0,), place)


@method(in_place=True)
def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """`input` with the elements of `source`, in order, where the mask holds."""
    _require_mask("masked_scatter", mask)
    if source.dtype is not input.dtype:
        raise TypeError(f"masked_scatter: {source.dtype} does not go into {input.dtype}")
    shape = broadcast_shapes("masked_scatter", tuple(input.shape), tuple(mask.shape))
    if 0 in shape or 0 in source.shape:
        return clone(expand(input, shape))
    return where(mask, take(source, plain(_order, expand(mask, shape))), input)


def _order(mask: NDArray) -> NDArray:
    """For what is selected, how many are before it; 0 elsewhere."""
    count = mask.reshape(-1).astype(int64)
    return nd.where(mask, (nd.cumsum(count, 0) - count).reshape(mask.shape), 0)


def _together(name: str, input: Any, mask: Any) -> tuple[Any, Any]:
    """The input and the mask as rows of one length."""
    _require_mask(name, mask)
    shape = broadcast_shapes(name, tuple(input.shape), tuple(mask.shape))
    return ravel(expand(input, shape)), ravel(expand(mask, shape))


def _require_mask(name: str, mask: Any) -> None:
    if mask.dtype is not bool_:
        raise TypeError(f"{name}: the mask must be bool, not {mask.dtype}")


@method
def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """The positions of the elements that are not zero: a row for each, or a column by dimension."""
    if as_tuple and not input.shape:
        input = ravel(input)
    return plain(nd.nonzero, input, as_tuple=as_tuple)


@method
def nonzero_static(input: Any, *, size: int, fill_value: int = -1) -> Any:
    """`nonzero` with so many rows: the first ones, or `fill_value` where there are too few.

    It asks for no contents, so it can be part of a function that `jit` records.
    """

    def found(x: NDArray) -> NDArray:
        exists = nd.arange(size, device=x.device).reshape(size, 1) < nd.count_nonzero(x)
        return nd.where(exists, nd.nonzero(x, size=size), fill_value)

    return plain(found, input)


@method
def argwhere(input: Any) -> Any:
    """The positions of the elements that are not zero, a row for each."""
    return plain(nd.argwhere, input)


__all__ = [
    "argwhere",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "nonzero",
    "nonzero_static",
]
