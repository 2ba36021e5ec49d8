"""Values while a graph is executed: tensors, and NumPy arrays of what is known beforehand.

Sizes are known while a graph is built, whatever the contents of tensors will be. What is computed
from them alone, an index or the shape of a reshape, is computed with NumPy. Where a size is
symbolic, because `genesis.jit` has one program for all sizes, the array holds it as an object.
Texts and types that Genesis does not compute in are NumPy arrays, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis import tensor
from genesis.ir.dtype import as_dtype, int64
from genesis.ir.size import Size
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import wrap
from genesis.onnx.dtypes import is_ours
from genesis.tensor.tensor import Tensor


class Whole:
    """A real number that is a symbolic size: loops count in floats, too, and cast back and forth.

    What leaves the whole numbers is a TypeError, and is then computed of known numbers instead.
    """

    __slots__ = ("dtype", "size")

    def __init__(self, size: Size, dtype: Any) -> None:
        self.size, self.dtype = size, dtype

    def _with(self, other: Any, how: Callable[[Any, Any], Any]) -> Any:
        number = _whole_number(other)
        found = NotImplemented if number is None else how(self.size, number)
        return Whole(found, self.dtype) if isinstance(found, Size) else found

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a < b)

    def __le__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a >= b)


def _whole_number(x: Any) -> Any:
    if isinstance(x, Whole):
        return x.size
    return int(x) if isinstance(x, int | float) and float(x).is_integer() else None


def on_host(x: Any) -> bool:
    """Whether a value is known: an array of NumPy's, nothing, or a sequence of such."""
    if isinstance(x, list):
        return all(on_host(item) for item in x)
    return not isinstance(x, Tensor)


def is_symbolic(x: Any) -> bool:
    """Whether an array holds symbolic sizes."""
    return x.dtype == object and any(isinstance(n, Size | Whole) for n in x.flat)


def real_type(*arrays: Any) -> Any:
    """The type of the symbolic sizes in arrays that are real numbers; None: there are none."""
    return next((n.dtype for x in arrays for n in x.flat if isinstance(n, Whole)), None)


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
    from genesis import stack

    real = real_type(x)
    if real is not None:
        return as_tensor(integers_of(x)).to(as_dtype(real))
    first, *_ = sizes = list(x.flat)
    apart = [n - first for n in sizes]
    if all(isinstance(n, int) for n in apart):  # one of them, counted on
        return _number(first) + tensor(np.array(apart, np.int64).reshape(x.shape))
    return stack([_number(n) for n in sizes]).reshape(x.shape)


def _number(n: Any) -> Any:
    """A size as a tensor, which knows it when the program runs."""
    return Tensor(wrap(primitive.extent(n, int64, "cpu")))


def integers_of(x: Any) -> Any:
    """Symbolic sizes that were real numbers, as the integers they are."""
    numbers = [n if isinstance(n, Size) else _whole_number(n) for n in x.flat]
    if None in numbers:
        raise TypeError("a number with a fraction among sizes")
    return np.array([*numbers, None], object)[:-1].reshape(x.shape)


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
