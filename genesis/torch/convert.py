"""Between PyTorch's objects and ours: dtypes, CPU tensors, and the arguments of an operator.

A CPU tensor becomes an array on the same memory, whatever its strides, and an array a tensor on the
same memory. Nothing is copied either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from genesis.ir import dtype as dtypes
from genesis.ir.dtype import DType
from genesis.ndarray.core.interop import window
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import backend_of, realize_values
from genesis.ndarray.core.value import Value
from genesis.torch.aten.registry import Unsupported

#: PyTorch's dtypes that arrays have, too.
DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, d.name): d for d in (*dtypes.ALL, *dtypes.STORED, *dtypes.COMPLEX)
}
TORCH_DTYPES: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in DTYPES.items()}

#: Arguments that say where and how a result lies in memory: not a kernel's business.
PLACEMENT = frozenset(("device", "layout", "memory_format", "non_blocking", "pin_memory"))


def as_dtype(dtype: torch.dtype) -> DType:
    """Our dtype for PyTorch's.

    >>> as_dtype(torch.float32), as_dtype(torch.bool)
    (float32, bool)
    """
    found = DTYPES.get(dtype)
    if found is None:
        raise Unsupported(f"{dtype} has no counterpart among the dtypes of Genesis")
    return found


def from_torch(tensor: torch.Tensor) -> NDArray:
    """An array on the memory of a dense CPU tensor, which is kept alive and never written.

    >>> from_torch(torch.arange(6).reshape(2, 3).t()).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise Unsupported(f"a {tensor.layout} tensor on {tensor.device} is not dense CPU memory")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor._is_zerotensor():  # a promise of zeros, without memory
        tensor = tensor.clone()
    dtype = as_dtype(tensor.dtype)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = backend_of("cpu").foreign(tensor.data_ptr(), span * dtype.itemsize, tensor)
    return wrap(Value.realised(memory, dtype, shape, strides, "cpu", foreign=True))


def to_torch(array: NDArray) -> torch.Tensor:
    """A CPU tensor on the memory of an array, which is computed now.

    >>> from genesis import ndarray as nd
    >>> to_torch(nd.arange(3) * 2)
    tensor([0, 2, 4])
    """
    value = array.value
    realize_values((value,))
    contents = window(array.to("cpu"))
    if any(stride < 0 for stride in contents.strides):
        contents = contents.copy()  # PyTorch has no negative strides
    if array.dtype in dtypes.FOREIGN:
        bits = torch.from_numpy(contents.view(f"int{array.dtype.bits}"))
        return bits.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(contents)


def arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], leaf: Callable[[Any], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator as its kernel wants them; `leaf` converts tensors and sizes."""

    def convert(x: Any) -> Any:
        if isinstance(x, bool | int | float | complex | str) or x is None:
            return x
        if isinstance(x, torch.dtype):
            return as_dtype(x)
        if isinstance(x, list | tuple):
            return [convert(y) for y in x]
        return leaf(x)

    named = {key: convert(x) for key, x in kwargs.items() if key not in PLACEMENT}
    named.pop("generator", None)
    return [convert(x) for x in args], named
