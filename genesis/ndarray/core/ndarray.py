"""`NDArray`: the array a user holds. A storage, seen through a chain of views.

Nothing is computed until a value is asked for (`item`, `numpy`, printing, `realize`). Methods and
operators are the functions in this package, which hold all meaning and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import ref

from genesis.ir.dtype import DType
from genesis.ir.size import Dim, product
from genesis.ndarray.core import primitive
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.storage import (
    Steps,
    Storage,
    ViewStep,
    seen,
    seen_dtype,
    write_through,
)
from genesis.ndarray.core.value import Value, thread

if TYPE_CHECKING:
    import numpy.typing as npt

    from genesis.ndarray.ops import complexes, elementwise, movement, reduction
    from genesis.ndarray.ops.elementwise import Operand


if TYPE_CHECKING:

    def _operator(x: NDArray, y: Operand) -> NDArray: ...

    def _sign(x: NDArray) -> NDArray: ...

    def _reduction(x: NDArray, axis: Any = None, keepdims: bool = False) -> NDArray: ...


class NDArray:
    """A lazy array. Make one with `array`, `zeros`, ..; assigning to it or a view writes in place.

    >>> from genesis import ndarray as nd
    >>> x = nd.zeros((2, 3))
    >>> x[:, 1] += 5
    >>> x
    array([[0., 5., 0.],
           [0., 5., 0.]], dtype=float32)
    """

    __slots__ = ("storage", "steps", "dtype", "shape", "device", "_cached", "__weakref__")

    storage: Storage
    steps: Steps
    dtype: DType
    shape: Shape
    device: str
    _cached: tuple[int, ref[Value]] | None

    # NumPy leaves mixed expressions to the operators below.
    __array_ufunc__ = None

    def __init__(self, storage: Storage, steps: Steps = ()) -> None:
        value = storage.actual  # whatever it becomes, dtype, shape and device stay
        self.storage = storage
        self.steps = steps
        self.dtype = seen_dtype(value.dtype, steps) if steps else value.dtype
        self.shape = steps[-1].shape if steps else value.shape
        self.device = value.device
        self._cached = None

    # ---- values and views
    @property
    def value(self) -> Value:
        """The current value: pending or realised."""
        storage = self.storage
        if not self.steps:
            return storage.value
        if thread.recorder is not None:  # sees its own writes; the cache belongs to everybody
            return seen(storage.value, self.steps)
        if self._cached is not None:
            version, cached = self._cached
            found = cached()  # referred to before the version is compared, so it cannot be donated
            if found is not None and version == storage.version:
                return found
        version = storage.version
        value = seen(storage.value, self.steps)
        # Weak: a view that was read once must not keep old memory from being reused.
        self._cached = (version, ref(value))
        return value

    def seen_through(self, *steps: ViewStep) -> NDArray:
        """Another view of the same storage: this one, then the given steps."""
        return NDArray(self.storage, self.steps + steps)

    def assign(self, value: Operand) -> NDArray:
        """Write `value`, broadcast and cast to this array; every view of the storage sees it."""
        if (
            isinstance(value, NDArray)
            and value.storage is self.storage
            and value.steps == self.steps
        ):
            return self  # ``x[0] += 1`` ends with ``x[0] = x[0]``
        (new,) = elementwise.values("assignment", (value,), self.dtype)
        missing = len(new.shape) - len(self.shape)
        if missing > 0 and all(s == 1 for s in new.shape[:missing]):
            new = primitive.reshape(new, new.shape[missing:])
        if elementwise.broadcast_shapes("assignment", self.shape, new.shape) != self.shape:
            raise ValueError(f"assignment: shape {new.shape} does not fit into {self.shape}")
        self._write(primitive.broadcast(new, self.shape))
        return self

    def _write(self, new: Value) -> None:
        self.storage.write(write_through(self.storage.value, self.steps, new))

    def _replace(self, name: str, result: NDArray) -> NDArray:
        """The end of an in-place operator: the result becomes this array's contents."""
        if result.shape != self.shape:
            raise ValueError(f"{name}: the result's shape {result.shape} is not {self.shape}")
        if primitive.kind_rank(result.dtype) > primitive.kind_rank(self.dtype):
            raise TypeError(f"{name}: a {result.dtype} result does not fit into {self.dtype}")
        self._write(primitive.cast(result.value, self.dtype))
        return self

    # ---- description
    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """The bytes all elements take."""
        return self.size * self.dtype.itemsize

    @property
    def version(self) -> int:
        """How often the storage has been written."""
        return self.storage.version

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of shape () has no length")
        return self.shape[0].__index__()

    def __repr__(self) -> str:
        return interop.show(self)

    # ---- realisation and conversion
    def realize(self) -> NDArray:
        """Compute the array now."""
        interop.realize(self)
        return self

    def numpy(self) -> npt.NDArray[Any]:
        """The contents as a read-only NumPy array, sharing memory where the host can see it."""
        return interop.to_numpy(self)

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        return interop.item(self)

    def tolist(self) -> Any:
        """The contents as nested lists of Python scalars."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return interop.as_array(self, dtype, copy)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The memory, read-only, for libraries that share it by NumPy's array interface."""
        return interop.array_interface(self)

    def __dlpack__(self, **options: Any) -> Any:
        return interop.to_dlpack(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.dlpack_device(self)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"an array of {self.dtype} is no index")
        return int(self.item())

    def to(self, device: str) -> NDArray:
        """This array on another device; itself if it is there already."""
        return interop.to_device(self, device)

    def copy(self) -> NDArray:
        """An array of its own with the same contents.

        Memory is copied only once one is written, or if another library could write to it.
        """
        return wrap(interop.own(self))

    # ---- indexing
    def __getitem__(self, key: Any) -> NDArray:
        return indexing.getitem(self, key)

    def __setitem__(self, key: Any, value: Operand) -> None:
        indexing.setitem(self, key, value)

    def __iter__(self) -> Iterator[NDArray]:
        for i in range(len(self)):
            yield self[i]

    # ---- operators and methods: each is a function of this package, by the table at the end
    if TYPE_CHECKING:
        __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = _operator
        __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = __floordiv__ = _operator
        __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = _operator
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = _operator
        __eq__ = __ne__ = _operator  # type: ignore[assignment]
        __neg__ = __abs__ = __invert__ = _sign
        astype, conj, expand = elementwise.astype, complexes.conj, movement.expand
        reshape, permute, transpose = movement.reshape, movement.permute, movement.transpose
        swapaxes, squeeze, flip = movement.swapaxes, movement.squeeze, movement.flip
        unsqueeze, mean, var, std = movement.unsqueeze, reduction.mean, reduction.var, reduction.std
        sum = prod = max = min = any = all = argmax = argmin = _reduction

    def __pos__(self) -> NDArray:
        return self

    __hash__ = object.__hash__

    @property
    def real(self) -> NDArray:
        """The real part."""
        return complexes.real(self)

    @property
    def imag(self) -> NDArray:
        """The imaginary part."""
        return complexes.imag(self)

    @property
    def T(self) -> NDArray:  # noqa: N802
        """Axes reversed."""
        return movement.transpose(self)

    @property
    def mT(self) -> NDArray:  # noqa: N802
        """The last two axes exchanged."""
        return movement.swapaxes(self, -1, -2)


def wrap(value: Value) -> NDArray:
    """An array of its own for the result of an operation."""
    array = NDArray(Storage(value))
    if thread.eager:
        interop.realize(array)
    return array


# These modules make arrays and so need the class above.
from genesis.ndarray.core import interop  # noqa: E402
from genesis.ndarray.ops import (  # noqa: E402
    complexes,
    contraction,
    elementwise,
    indexing,
    movement,
    reduction,
)


def _reflected(function: Any) -> Any:
    """What an operator does whose array stands on the right."""

    def operator(self: NDArray, other: Operand) -> NDArray:
        return function(other, self)  # type: ignore[no-any-return]

    return operator


def _in_place(symbol: str, function: Any) -> Any:
    """What an operator does that ends with ``=``."""

    def operator(self: NDArray, other: Operand) -> NDArray:
        return self._replace(symbol, function(self, other))

    return operator


_by: Any = elementwise
_operators = {
    "add": _by.add, "sub": _by.subtract, "mul": _by.multiply, "truediv": _by.divide,
    "floordiv": _by.floor_divide, "mod": _by.remainder, "pow": _by.pow,
    "matmul": contraction.matmul, "and": _by.bitwise_and, "or": _by.bitwise_or,
    "xor": _by.bitwise_xor, "lshift": _by.left_shift, "rshift": _by.right_shift, "lt": _by.less,
    "le": _by.less_equal, "gt": _by.greater, "ge": _by.greater_equal, "eq": _by.equal,
    "ne": _by.not_equal, "neg": _by.neg, "abs": _by.abs, "invert": _by.bitwise_not,
}  # fmt: skip
_methods = {f"__{name}__": function for name, function in _operators.items()}
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _methods[f"__r{_name}__"] = _reflected(_operators[_name])
for _name, _symbol in {"add": "+=", "sub": "-=", "mul": "*=", "truediv": "/="}.items():
    _methods[f"__i{_name}__"] = _in_place(_symbol, _operators[_name])
for _home, _names in {
    elementwise: "astype", complexes: "conj",
    movement: "expand flip permute reshape squeeze swapaxes transpose unsqueeze",
    reduction: "all any argmax argmin mean prod std sum var",
}.items():  # fmt: skip
    _methods |= {name: getattr(_home, name) for name in _names.split()}
_methods |= {name: getattr(reduction, f"a{name}") for name in ("max", "min")}
for _name, _method in _methods.items():
    setattr(NDArray, _name, _method)

__all__ = ["NDArray"]
