"""What a tensor is, without a look at its elements: shape, type, place and storage."""

from __future__ import annotations

from operator import index as as_int
from typing import TYPE_CHECKING, Any

from genesis.functional.movement import offset_of, strides_of
from genesis.ndarray.core.layout import row_major

if TYPE_CHECKING:
    from genesis.ndarray import NDArray


class Description:
    """Questions about a tensor."""

    __slots__ = ()

    if TYPE_CHECKING:
        array: NDArray
        _inference: bool

    @property
    def shape(self) -> Any:
        """The extents of the dimensions."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.array.dtype

    @property
    def device(self) -> str:
        """Where the elements are."""
        return self.array.device

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
        return self.array.shape if dim is None else self.array.shape[_dimension(self, dim)]

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


__all__ = ["Description"]
