"""Creation: tensors from a number or a rule.

What is not given follows from the arguments as in PyTorch: Python's floats take PyTorch's default
dtype. An empty tensor is one of zeros: nothing is computed for it unless somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as as_int
from typing import Any

import torch

from genesis import ndarray as nd
from genesis.ir.dtype import (
    DType,
    bool_,
    complex64,
    complex128,
    default_float,
    default_float_is,
    float64,
    int64,
)
from genesis.ir.size import Dim, Size
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import (
    Implementation,
    Unsupported,
    implements,
    operators,
    table,
)
from genesis.torch.convert import as_dtype

Sizes = Sequence[Dim]


def default_dtype() -> DType:
    """The dtype of tensors of Python's floats."""
    return as_dtype(torch.get_default_dtype())


def with_default_dtype(kernel: Implementation) -> Implementation:
    """A kernel that makes PyTorch's default dtype of integers where floating point is needed.

    >>> halved = with_default_dtype(lambda x: x / 2)
    >>> halved(nd.array([1])).dtype
    float32
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = default_dtype()
        if dtype is default_float():
            return kernel(*args, **kwargs)
        with default_float_is(dtype):
            return kernel(*args, **kwargs)

    return run


def dtype_of(value: Any) -> DType:
    """The dtype of a tensor made of a Python number, or that of an array.

    >>> dtype_of(1), dtype_of(True), dtype_of(0.5)
    (int64, bool, float32)
    """
    if isinstance(value, NDArray):
        return value.dtype
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int | Size):
        return int64
    if isinstance(value, complex):
        return complex128 if default_dtype() is float64 else complex64
    return default_dtype()


# ---- one number


def _repeated(value: Any, size: Sizes, dtype: DType, device: str | None = None) -> NDArray:
    """A number, one that is a size, or one that is data, everywhere."""
    if isinstance(value, Size):
        value = nd.zeros((), int64, device) + value
    if isinstance(value, NDArray):
        return nd.expand(nd.astype(value, dtype), tuple(size))
    return nd.full(tuple(size), value, dtype, device)


def _zeros(size: Sizes, dtype: DType | None = None, device: str | None = None) -> NDArray:
    return nd.zeros(tuple(size), dtype or default_dtype(), device)


def _full(size: Sizes, fill_value: Any, dtype: DType | None = None) -> NDArray:
    return _repeated(fill_value, size, dtype or dtype_of(fill_value))


def _new_full(x: NDArray, size: Sizes, fill_value: Any, dtype: DType | None = None) -> NDArray:
    return _repeated(fill_value, size, dtype or x.dtype, x.device)


table(nd, "empty_like=zeros_like ones_like zeros_like")


# ---- counting


@implements("arange.start", "arange.start_step")
def _arange_step(start: Any, end: Any, step: Any = 1, dtype: DType | None = None) -> NDArray:
    given = (start, end, step)
    if any(isinstance(x, NDArray) for x in given):
        raise Unsupported("arange between numbers that are data")
    whole = not any(isinstance(x, float) for x in given)
    target = dtype or (int64 if whole else default_dtype())
    if target is int64:
        start, end, step = (x if isinstance(x, Size) else int(x) for x in given)
        whole = True
    if step == 0 or (end - start) * (1 if step > 0 else -1) < 0:
        raise ValueError(f"arange: no numbers from {start} to {end} in steps of {step}")
    if whole:
        up = step > 0
        count = (end - start + step - 1) // step if up else (start - end - step - 1) // -step
    else:
        count = math.ceil((end - start) / step)
        if target.is_integer:
            start, step = int(start), int(step)
    return _iota(count, start, step, target)


@implements("prims::iota")
def _iota(
    length: Dim, start: Any, step: Any, dtype: DType = int64, requires_grad: bool = False
) -> NDArray:
    wide = float64 if isinstance(start, float) or isinstance(step, float) else int64
    count = nd.arange(length, dtype=wide)
    count = count if step == 1 else count * step
    return nd.astype(count if start == 0 else count + start, dtype)


@implements(
    "linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"
)
def _linspace(start: Any, end: Any, steps: int, dtype: DType | None = None) -> NDArray:
    target = dtype or _common(start, end)
    return nd.astype(_points(start, end, steps, target), target)


@implements(
    "logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor"
)
def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: DType | None = None
) -> NDArray:
    target = dtype or _common(start, end)
    points = _points(start, end, steps, target)
    return nd.astype(nd.pow(nd.full((), base, points.dtype), points), target)


def _common(start: Any, end: Any) -> DType:
    return dtype_of(1j if dtype_of(start).is_complex or dtype_of(end).is_complex else 1.0)


def _points(start: Any, end: Any, steps: int, dtype: DType) -> NDArray:
    """Numbers at equal distances, counted from both ends so that both are exact."""
    steps, wide = as_int(steps), complex128 if dtype.is_complex else float64
    first, last = (nd.astype(_repeated(x, (), dtype), wide) for x in (start, end))
    at = nd.arange(steps, dtype=float64)
    step = (last - first) / max(steps - 1, 1)
    up, down = first + at * step, last - (steps - 1 - at) * step
    return nd.where(at < max(steps / 2, 0.5), up, down)


# ---- matrices

table(nd, "tril triu")


operators(
    {
        "full": _full,
        "zeros empty.memory_format _efficientzerotensor": lambda size, dtype=None: _zeros(
            size, dtype
        ),
        "empty_strided empty_permuted": lambda size, stride, dtype=None: _zeros(size, dtype),
        "ones": lambda size, dtype=None: nd.ones(tuple(size), dtype or default_dtype()),
        "scalar_tensor": lambda s, dtype=None: _full((), s, dtype or default_dtype()),
        "full_like": lambda x, fill_value, dtype=None: _new_full(x, x.shape, fill_value, dtype),
        "new_full": _new_full,
        "new_zeros new_empty": lambda x, size, dtype=None: _zeros(size, dtype or x.dtype, x.device),
        "new_empty_strided": lambda x, size, stride, dtype=None: _zeros(
            size, dtype or x.dtype, x.device
        ),
        "new_ones": lambda x, size, dtype=None: nd.ones(tuple(size), dtype or x.dtype, x.device),
        "arange": lambda end, dtype=None: _arange_step(0, end, 1, dtype),
        "eye eye.m": lambda n, m=None, dtype=None: nd.eye(n, m, dtype or default_dtype()),
        "tril_indices": lambda row, col, offset=0, dtype=None: nd.astype(
            nd.tril_indices(row, col, offset), dtype or int64
        ),
        "triu_indices": lambda row, col, offset=0, dtype=None: nd.astype(
            nd.triu_indices(row, col, offset), dtype or int64
        ),
    }
)
