"""The contents of tensors as a whole: handed to NumPy, converted, moved, filled, drawn anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genesis import functional
from genesis.functional.argument_aliases import require_format
from genesis.ir import dtype as dtypes
from genesis.ir.dtype import DType, as_dtype
from genesis.ndarray import NDArray, demand, random
from genesis.ndarray.core.device import canonical
from genesis.ndarray.core.interop import shared
from genesis.ndarray.core.value import thread
from genesis.tensor.metadata import Description

if TYPE_CHECKING:
    from genesis.ndarray.random import Generator
    from genesis.tensor.sparse import SparseTensor
    from genesis.tensor.tensor import Tensor


def _as(name: str, dtype: DType) -> Callable[..., Any]:
    """The method that converts to a dtype."""

    def converted(self: Any, memory_format: Any = None) -> Any:
        return self.to(dtype, memory_format=memory_format)

    converted.__name__, converted.__doc__ = name, f"As {dtype}."
    converted.__qualname__ = f"Contents.{name}"
    return converted


class Contents(Description):
    """Conversion and filling."""

    __slots__ = ()

    if TYPE_CHECKING:
        overwrite: Callable[[Any], Tensor]
        resized: Callable[[str, Any], None]
        detach: Callable[[], Any]

        @property
        def requires_grad(self) -> bool:
            """Whether gradients are wanted."""

    # ---- for Python, NumPy and other libraries
    def item(self) -> Any:
        """The only element, as a Python number."""
        return self.array.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self.array.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """The contents as a NumPy array; with `force` also where gradients are needed.

        It is on the tensor's memory, so what is written to it is what the tensor contains, until
        the tensor is written: that gives it other memory. What is still to be computed of the
        tensor reads what is there when it is: ask for it before you write.
        """
        if self.requires_grad and not force:
            raise RuntimeError("numpy: the tensor requires a gradient; use x.detach().numpy()")
        return shared(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.requires_grad:
            raise RuntimeError("numpy: the tensor requires a gradient; use x.detach().numpy()")
        return self.array.__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("a tensor that requires a gradient is not shared; use x.detach()")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise RuntimeError(
                f"the truth of a tensor of shape {tuple(self.shape)} is ambiguous; use any or all"
            )
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer and self.dtype.kind != "bool":
            raise TypeError(
                f"only integer tensors of a single element are indices, not {self.dtype}"
            )
        return int(self.item())

    def __round__(self, ndigits: int = 0) -> Any:
        return functional.round(self, decimals=ndigits)

    def __format__(self, spec: str) -> str:
        known = not self.shape and (spec or thread.recorder is None)
        return format(self.item() if known else str(self), spec)

    # ---- types and places
    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Converted to a dtype, moved to a device, or both, as given or as another tensor is.

        The tensor itself if there is nothing to do, unless `copy` asks for one of its own.
        """
        copy, target = kwargs.pop("copy", False), self
        kwargs.pop("non_blocking", None)  # nothing here waits before it must
        require_format("to", kwargs.pop("memory_format", None), self)
        wanted = [*args, *kwargs.values()]
        for want in wanted:
            if want is None or isinstance(want, bool):
                continue
            if isinstance(want, Contents):
                wanted += [want.device, want.dtype]
            elif isinstance(want, str):
                target = functional.to_device(target, canonical(want))
            else:
                target = functional.cast(target, as_dtype(want))
        return functional.clone(target) if copy and target is self else target

    def type(self, dtype: DType | None = None) -> Any:
        """Converted to a dtype; without one, the name of the tensor's own."""
        return f"genesis.{self.dtype}" if dtype is None else self.to(as_dtype(dtype))

    def type_as(self, other: Tensor) -> Any:
        """Converted to the dtype of another tensor, and moved to where that is."""
        return self.to(other)

    def cpu(self, memory_format: Any = None) -> Any:
        """On the CPU."""
        return self.to("cpu", memory_format=memory_format)

    def pin_memory(self) -> Any:
        """The tensor itself: copies to devices pass through pinned memory anyway."""
        return self

    def cuda(self, device: int = 0) -> Any:
        """On an NVIDIA GPU."""
        return self.to(f"cuda:{device}")

    float = _as("float", dtypes.float32)
    double = _as("double", dtypes.float64)
    half = _as("half", dtypes.float16)
    bfloat16 = _as("bfloat16", dtypes.bfloat16)
    int = _as("int", dtypes.int32)
    long = _as("long", dtypes.int64)
    short = _as("short", dtypes.int16)
    char = _as("char", dtypes.int8)
    byte = _as("byte", dtypes.uint8)
    bool = _as("bool", dtypes.bool_)
    cfloat = _as("cfloat", dtypes.complex64)
    cdouble = _as("cdouble", dtypes.complex128)

    def to_sparse(self, sparse_dim: Any = None, *, layout: Any = None) -> SparseTensor:
        """The elements that are not zero, and where they are; see `genesis.sparse_coo_tensor`.

        With `sparse_dim`, blocks: only so many of the dimensions, the first ones, are sparse.
        """
        from genesis.tensor import sparse

        return sparse.to_sparse(self, layout, sparse_dim)  # type: ignore[arg-type]

    def to_sparse_csr(self) -> SparseTensor:
        """The elements of a matrix that are not zero, by rows."""
        from genesis.tensor import memory_formats, sparse

        return sparse.to_sparse(self, memory_formats.sparse_csr)  # type: ignore[arg-type]

    to_sparse_coo = to_sparse

    def to_dense(self) -> Any:
        """The tensor itself: all of its elements are stored."""
        return self

    # ---- written
    def copy_(self, src: Any, non_blocking: Any = False) -> Any:
        """The contents of another tensor, broadcast and converted, written into this one."""
        return self.overwrite(src)

    def fill_(self, value: Any) -> Any:
        """One number written everywhere."""
        if getattr(value, "shape", ()):
            raise RuntimeError(f"fill_: expected one number, got shape {tuple(value.shape)}")
        return self.overwrite(value)

    def zero_(self) -> Any:
        """Zero written everywhere."""
        return self.overwrite(0)

    def resize_(self, *sizes: Any, memory_format: Any = None) -> Any:
        """Another shape, in place: the first elements stay, and what is new holds zeros."""
        require_format("resize_", memory_format, self)
        shape = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        before = functional.reshape(self.detach(), (-1,))
        self.resized("resize_", shape)
        after = functional.reshape(self.detach(), (-1,))
        count = min(len(before), len(after))
        after[:count] = before[:count]
        return self

    def resize_as_(self, the_template: Any, *, memory_format: Any = None) -> Any:
        """The shape of another tensor, in place; see `resize_`."""
        return self.resize_(the_template.shape, memory_format=memory_format)

    def fill_diagonal_(self, fill_value: Any, wrap: Any = False) -> Any:
        """One number written on the main diagonal; with `wrap` it starts again below a square."""
        rank = len(self.shape)
        if rank < 2 or (rank > 2 and len(set(self.shape)) > 1):
            raise RuntimeError(
                f"fill_diagonal_: needs a matrix, or equal sizes, not shape {tuple(self.shape)}"
            )
        rows, columns = self.shape[:2]
        # A wrapped diagonal begins again below a row that it leaves out.
        for begin in range(0, rows if wrap and rank == 2 else 1, columns + 1):
            found = functional.getitem(self, slice(begin, None)) if begin else self
            for _ in range(rank - 1):
                found = functional.diagonal(found, 0, 0, -1)
            found.fill_(fill_value)
        return self

    def uniform_(
        self, low: Any = 0.0, high: Any = 1.0, *, generator: Generator | None = None
    ) -> Any:
        """Numbers equally likely anywhere from low to below high written into the tensor."""
        if low > high:
            raise ValueError(f"uniform_: {low} is above {high}")
        source = generator or random.default_generator(self.device)
        return self.overwrite(random.uniform(self.shape, low, high, self.dtype, source))

    def normal_(
        self, mean: Any = 0.0, std: Any = 1.0, *, generator: Generator | None = None
    ) -> Any:
        """Numbers from the normal distribution written into the tensor."""
        if std < 0:
            raise ValueError(f"normal_: the standard deviation {std} is negative")
        source = generator or random.default_generator(self.device)
        return self.overwrite(random.normal(self.shape, mean, std, self.dtype, source))

    def log_normal_(
        self, mean: Any = 1.0, std: Any = 2.0, *, generator: Generator | None = None
    ) -> Any:
        """Numbers whose logarithms are normally distributed written into the tensor."""
        if not std > 0:
            raise ValueError(f"log_normal_: the standard deviation {std} is not positive")
        source = generator or random.default_generator(self.device)
        drawn = random.normal(self.shape, mean, std, self.dtype, source)
        return self.overwrite(functional.exp(drawn))

    def exponential_(self, lambd: Any = 1.0, *, generator: Generator | None = None) -> Any:
        """Numbers from the exponential distribution written into the tensor."""
        if not lambd > 0:
            raise ValueError(f"exponential_: the rate {lambd} is not positive")
        source = generator or random.default_generator(self.device)
        drawn = random.uniform(self.shape, 0.0, 1.0, self.dtype, source)
        return self.overwrite(functional.log(1 - drawn) / -lambd)

    def bernoulli_(self, p: Any = 0.5, *, generator: Generator | None = None) -> Any:
        """1 with probability `p`, a number or a tensor, else 0, written into the tensor."""
        source = generator or random.default_generator(self.device)
        chance = p.array if isinstance(p, Contents) else p
        complaint = "bernoulli_: probabilities are not between 0 and 1"
        if isinstance(chance, NDArray):
            chance = demand(chance, lambda x: ~((x >= 0) & (x <= 1)), complaint)
        elif not 0 <= chance <= 1:
            raise ValueError(f"{complaint}: {p}")
        return self.overwrite(random.uniform(self.shape, generator=source) < chance)

    def random_(self, low: Any = 0, high: Any = None, *, generator: Generator | None = None) -> Any:
        """Integers from low to below high written; without `high` from 0 to below `low`."""
        if high is None:
            low, high = 0, low or _highest(self.dtype)
        source = generator or random.default_generator(self.device)
        return self.overwrite(random.integers(low, high, self.shape, generator=source))

    def cauchy_(
        self, median: Any = 0.0, sigma: Any = 1.0, *, generator: Generator | None = None
    ) -> Any:
        """Numbers from the Cauchy distribution written into the tensor."""
        if not sigma > 0:
            raise ValueError(f"cauchy_: sigma {sigma} is not positive")
        source = generator or random.default_generator(self.device)
        turn = random.uniform(self.shape, -0.5, 0.5, self.dtype, source)
        return self.overwrite(median + sigma * functional.tan(math.pi * turn))

    def geometric_(self, p: Any, *, generator: Generator | None = None) -> Any:
        """How many trials of probability `p` it took to succeed, written into the tensor."""
        if not 0 < p < 1:
            raise ValueError(f"geometric_: p must be between 0 and 1, not {p}")
        source = generator or random.default_generator(self.device)
        drawn = random.uniform(self.shape, generator=source)
        trials = functional.log(1 - drawn) / math.log1p(-p)
        return self.overwrite(functional.clamp(functional.ceil(trials), 1))

    def bernoulli(self, *, generator: Generator | None = None) -> Any:
        """1 with the probabilities in this tensor, else 0."""
        from genesis.tensor.creation import bernoulli

        return bernoulli(self, generator=generator)  # type: ignore[arg-type]

    def multinomial(
        self, num_samples: Any, replacement: Any = False, *, generator: Generator | None = None
    ) -> Any:
        """Positions drawn with the weights along the last dimension."""
        from genesis.tensor.creation import multinomial

        return multinomial(self, num_samples, replacement, generator=generator)  # type: ignore[arg-type]

    # ---- like this one
    def new_tensor(
        self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: Any = False
    ) -> Any:
        """A tensor of new data, of this dtype and on this device unless others are given."""
        from genesis.tensor.creation import tensor

        return tensor(
            data,
            dtype=dtype or self.dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    def new_full(
        self,
        size: Any,
        fill_value: Any,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: Any = False,
    ) -> Any:
        """A tensor of one number, of this dtype and on this device unless others are given."""
        from genesis.tensor.creation import full

        return full(
            size,
            fill_value,
            dtype=dtype or self.dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    def new_zeros(self, *size: Any, **options: Any) -> Any:
        """Zeros of this dtype on this device, unless others are given."""
        return self.new_full(_size(size), 0, **options)

    def new_ones(self, *size: Any, **options: Any) -> Any:
        """Ones of this dtype on this device, unless others are given."""
        return self.new_full(_size(size), 1, **options)

    def new_empty(self, *size: Any, **options: Any) -> Any:
        """A tensor to be written, of this dtype on this device, unless others are given."""
        return self.new_full(_size(size), 0, **options)

    def new_empty_strided(self, size: Any, stride: Any, **options: Any) -> Any:
        """`new_empty`: where its elements lie is the compiler's choice."""
        if len(tuple(size)) != len(tuple(stride)):
            raise RuntimeError(f"new_empty_strided: sizes {tuple(size)}, strides {tuple(stride)}")
        return self.new_empty(size, **options)


def _size(size: tuple[Any, ...]) -> Any:
    """Sizes given one by one, or as one sequence."""
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def _highest(dtype: DType) -> Any:
    """One more than the greatest integer that `random_` draws for a type."""
    if dtype.is_float:
        digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name]
        return 2**digits + 1
    return min(dtype.max, 2**63 - 2) + 1


__all__ = ["Contents"]
