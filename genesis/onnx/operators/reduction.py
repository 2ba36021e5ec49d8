"""Operators that reduce axes, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import Host, Implementation, operator
from genesis.onnx.values import ints


def _reducing(
    function: Callable[[Any, Any, bool], Any], before: Any = None, after: Any = None
) -> Implementation:
    def computed(
        x: Any, axes: Host = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        given = before(x) if before else x
        chosen = ints(axes)
        if not chosen:
            if noop_with_empty_axes:
                return after(given) if after else given
            chosen = list(range(x.ndim))
        if not chosen:  # of a scalar
            result = function(given.reshape(1), (0,), False)
        else:
            result = function(given, tuple(chosen), bool(keepdims))
        return (after(result) if after else result).to(x.dtype)

    return computed


def _prod(x: Any, axes: Any, keepdims: bool) -> Any:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = fn.prod(x, axis, keepdim=keepdims)
    return x


def _mean(x: Any, axes: Any, keepdims: bool) -> Any:
    if x.dtype.is_float:
        return fn.mean(x, axes, keepdims)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return fn.div(fn.sum(x, axes, keepdims), count, rounding_mode="trunc")


def _extreme(function: Any) -> Any:
    def computed(x: Any, axes: Any, keepdims: bool) -> Any:
        if all(x.shape[a] != 0 for a in axes):
            return function(x, axes, keepdims)
        from genesis import full

        gone = {a % x.ndim for a in axes}
        worst = x.dtype.min if function is fn.amax else x.dtype.max
        extents = [1 if k in gone else n for k, n in enumerate(x.shape)]
        shape = [n for k, n in enumerate(extents) if keepdims or k not in gone]
        return full(tuple(shape), worst, dtype=x.dtype)

    return computed


def _logsumexp(x: Any, axes: Any, keepdims: bool) -> Any:
    if any(x.shape[a] == 0 for a in axes):
        return fn.log(fn.sum(fn.exp(x), axes, keepdims))
    return fn.logsumexp(x if x.dtype.is_float else x.to(dtypes.float64), axes, keepdims)


def _sum(x: Any, axes: Any, keepdims: bool) -> Any:
    return fn.sum(x, axes, keepdims)


def _double(x: Any) -> Any:
    return x if x.dtype.is_float else x.to(dtypes.float64)


operator("ReduceSum")(_reducing(_sum))
operator("ReduceMean")(_reducing(_mean))
operator("ReduceProd")(_reducing(_prod))
operator("ReduceMax")(_reducing(_extreme(fn.amax)))
operator("ReduceMin")(_reducing(_extreme(fn.amin)))
operator("ReduceL1")(_reducing(_sum, before=fn.abs))
operator("ReduceL2")(_reducing(_sum, before=lambda x: fn.square(_double(x)), after=fn.sqrt))
operator("ReduceSumSquare")(_reducing(_sum, before=fn.square))
operator("ReduceLogSum")(_reducing(_sum, before=_double, after=fn.log))
operator("ReduceLogSumExp")(_reducing(_logsumexp))


def _place(function: Any) -> Implementation:
    def computed(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        if not select_last_index:
            return function(x, axis, bool(keepdims)).to(dtypes.int64)
        found = function(fn.flip(x, (axis,)), axis, bool(keepdims))
        return (x.shape[axis] - 1 - found).to(dtypes.int64)

    return computed


operator("ArgMax")(_place(fn.argmax))
operator("ArgMin")(_place(fn.argmin))


@operator("CumSum")
def cumsum(x: Any, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running sums."""
    return _running(fn.cumsum, 0, x, int(axis), exclusive, reverse)


@operator("CumProd")
def cumprod(x: Any, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running products."""
    return _running(fn.cumprod, 1, x, int(axis), exclusive, reverse)


def _running(function: Any, first: int, x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    if reverse:
        x = fn.flip(x, (axis,))
    y = function(x, axis).to(x.dtype)
    if exclusive:
        from genesis import full_like

        n = x.shape[axis]
        y = fn.cat([full_like(fn.narrow(y, axis, 0, 1), first), fn.narrow(y, axis, 0, n - 1)], axis)
    return fn.flip(y, (axis,)) if reverse else y
