"""Values while a graph is executed: tensors, and NumPy arrays of what is known beforehand.

Sizes are known while a graph is built, whatever the contents of tensors will be. What is computed
from them alone, an index or the shape of a reshape, is computed with NumPy. Where a size is
symbolic, because `genesis.jit` has one program for all sizes, the array holds it as an object.
Texts and types that Genesis does not compute in are NumPy arrays, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import tensor
from genesis.ir.size import Size
from genesis.onnx.dtypes import is_ours
from genesis.tensor.tensor import Tensor


def on_host(x: Any) -> bool:
    """Whether a value is known: an array of NumPy's, nothing, or a sequence of such."""
    if isinstance(x, list):
        return all(on_host(item) for item in x)
    return not isinstance(x, Tensor)


def is_symbolic(x: Any) -> bool:
    """Whether an array holds symbolic sizes."""
    return x.dtype == object and any(isinstance(n, Size) for n in x.flat)


def sizes(shape: Sequence[Any]) -> Any:
    """A shape as an array."""
    if all(isinstance(n, int) for n in shape):
        return np.array(shape, np.int64).reshape(len(shape))
    return settled(np.array([*shape, None], object)[:-1])


def settled(x: Any) -> Any:
    """An array of objects as an array of integers, if they are such."""
    objects = isinstance(x, np.ndarray) and x.dtype == object and x.size
    if objects and all(isinstance(n, int | np.integer) for n in x.flat):
        return x.astype(np.int64)
    return x


def as_tensor(x: Any) -> Any:
    """A value as a tensor."""
    if x is None or isinstance(x, Tensor):
        return x
    if isinstance(x, list):
        return [as_tensor(item) for item in x]
    if not isinstance(x, np.ndarray):
        raise TypeError(f"a tensor is needed, not a {type(x).__name__}")
    if x.dtype == object:
        if not is_symbolic(x):
            raise TypeError("texts can only be moved and compared, not computed with")
        return _tensor_of_sizes(x)
    if not is_ours(x.dtype):
        raise TypeError(f"tensors of {x.dtype} are not computed with; convert them by Cast")
    return tensor(np.ascontiguousarray(x).reshape(x.shape))


def _tensor_of_sizes(x: Any) -> Any:
    from genesis import full, int64, stack

    flat = [full((), n, dtype=int64) for n in x.flat]
    return stack(flat).reshape(x.shape) if x.ndim else flat[0]


def as_host(x: Any) -> Any:
    """A value as a NumPy array; contents that are not known yet are computed."""
    if isinstance(x, Tensor):
        return x.array.numpy()
    if isinstance(x, list):
        return [as_host(item) for item in x]
    return settled(x)


def ints(x: Any) -> list[Any] | None:
    """An array as a list of integers and sizes."""
    if x is None:
        return None
    return [n if isinstance(n, Size) else int(n) for n in np.asarray(x).reshape(-1)]
