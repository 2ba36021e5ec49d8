"""What a tensor is, without a look at its elements: shape, type, place and storage."""

from __future__ import annotations

from mmap import mmap
from operator import index as as_int
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis.functional.movement import offset_of, strides_of
from genesis.ir.size import product
from genesis.ndarray.core.device import Device, known_device
from genesis.ndarray.core.layout import row_major
from genesis.ndarray.core.value import CaptureError, thread
from genesis.tensor.memory_formats import Size, layout, strided

if TYPE_CHECKING:
    from genesis.ndarray import NDArray


class UntypedStorage:
    """The bytes of a storage, which all views of it share."""

    def __init__(self, array: NDArray) -> None:
        self._storage = array.storage

    def nbytes(self) -> int:
        """How many there are."""
        value = self._storage.actual
        return int(product(value.shape)) * value.dtype.itemsize

    size = __len__ = nbytes

    def data_ptr(self) -> int:
        """The address of the first one."""
        from genesis.ndarray.core.interop import address
        from genesis.ndarray.core.ndarray import NDArray

        return address(NDArray(self._storage))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and self._storage is other._storage

    def __hash__(self) -> int:
        return hash(self._storage)


class Description:
    """Questions about a tensor."""

    __slots__ = ()

    if TYPE_CHECKING:
        array: NDArray
        _inference: bool

    @property
    def shape(self) -> Any:
        """The extents of the dimensions."""
        return Size(self.array.shape)

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.array.dtype

    @property
    def device(self) -> Device:
        """Where the elements are."""
        return known_device(self.array.device)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    def dim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        """The extents of all dimensions, or of one."""
        return self.shape if dim is None else self.array.shape[_dimension(self, dim)]

    def numel(self) -> int:
        """The number of elements."""
        return self.array.size  # type: ignore[return-value]

    nelement = numel

    def element_size(self) -> int:
        """The bytes an element takes."""
        return self.array.dtype.itemsize

    itemsize = property(element_size)

    @property
    def nbytes(self) -> int:
        """The bytes all elements take."""
        return self.numel() * self.element_size()

    def stride(self, dim: int | None = None) -> Any:
        """How far apart neighbours along the dimensions, or one of them, lie in the storage."""
        found = strides_of(self.array) or row_major(self.shape)
        return found if dim is None else found[_dimension(self, dim)]

    def storage_offset(self) -> int:
        """Where in the storage the first element lies."""
        return offset_of(self.array)  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        """How often the storage has been written."""
        if thread.recorder is not None:
            raise CaptureError(
                f"{thread.recorder.name}: how often a tensor has been written is not known while "
                "a function is recorded"
            )
        return self.array.version

    def is_floating_point(self) -> bool:
        """Whether the elements are floating point."""
        return self.array.dtype.is_float

    def is_complex(self) -> bool:
        """Whether the elements are complex."""
        return self.array.dtype.is_complex

    def is_signed(self) -> bool:
        """Whether elements can be negative."""
        return self.array.dtype.kind not in ("uint", "bool")

    @property
    def layout(self) -> layout:
        """That all elements are stored."""
        return strided

    def data_ptr(self) -> int:
        """The address of the first element; it is computed now, and moves when it is written."""
        from genesis.ndarray.core.interop import address

        return address(self.array)

    def untyped_storage(self) -> UntypedStorage:
        """The memory that the elements are in."""
        return UntypedStorage(self.array)

    storage = untyped_storage

    def is_shared(self) -> bool:
        """Whether processes that were forked share the memory; see `share_memory_`."""
        memory = self.array.storage.actual.memory
        owner = None if memory is None else memory.owner
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap)

    def is_pinned(self) -> bool:
        """False: copies to devices pass through memory of their own."""
        return False

    @property
    def is_sparse(self) -> bool:
        """False: all elements are stored; see `genesis.sparse_coo_tensor`."""
        return False

    @property
    def is_cuda(self) -> bool:
        """Whether the elements are on an NVIDIA GPU."""
        return self.device.startswith("cuda")

    @property
    def is_cpu(self) -> bool:
        """Whether the elements are in the host's memory."""
        return self.device == "cpu"

    def is_inference(self) -> bool:
        """Whether the tensor was made in `inference_mode`."""
        return self._inference

    def is_conj(self) -> bool:
        """False: elements are conjugated when `conj` is computed, not when they are read."""
        return False

    def is_neg(self) -> bool:
        """False: elements are negated when `neg` is computed, not when they are read."""
        return False

    def resolve_conj(self) -> Any:
        """The tensor itself; see `is_conj`."""
        return self

    def resolve_neg(self) -> Any:
        """The tensor itself; see `is_neg`."""
        return self

    def is_same_size(self, other: Any) -> bool:
        """Whether another tensor has the same shape."""
        return tuple(self.shape) == tuple(other.shape)

    def is_set_to(self, tensor: Any) -> bool:
        """Whether another tensor sees the same elements of the same storage."""
        mine, other = self.array, tensor.array
        return mine.storage is other.storage and mine.steps == other.steps


def _dimension(x: Any, dim: int) -> int:
    number = as_int(dim)
    if not -x.ndim <= number < x.ndim:
        raise IndexError(f"dimension {number} does not exist in a tensor of shape {tuple(x.shape)}")
    return number


__all__ = ["Description", "UntypedStorage"]
