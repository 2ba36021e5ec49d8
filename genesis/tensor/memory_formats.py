"""Words for how tensors lie in memory.

The compiler decides that for what it computes, so a format is a wish that is granted by doing
nothing: elements, shapes and results are the same in all of them.
"""

from __future__ import annotations

from typing import Any

from genesis.ndarray.tracing.object_introspection import opaque


class Size(tuple[Any, ...]):
    """The extents of a tensor's dimensions: a tuple that knows how many elements they make.

    In formatted text it is a plain tuple.

    >>> Size([2, 3]), Size([2, 3]).numel(), Size([2, 3]) == (2, 3)
    (genesis.Size([2, 3]), 6, True)
    """

    __slots__ = ()

    def numel(self) -> Any:
        """The number of elements."""
        total: Any = 1
        for extent in self:
            total = total * extent
        return total

    def __repr__(self) -> str:
        return f"genesis.Size({list(self)})"

    def __format__(self, spec: str) -> str:
        return format(str(tuple(self)), spec)  # in a sentence it is what a reader knows

    def __add__(self, other: Any) -> Size:
        return Size(tuple(self) + tuple(other))

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Size(found) if isinstance(key, slice) else found


class _Word:
    """One of the words; there is one object of each."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"genesis.{self.name}"

    def __reduce__(self) -> str:
        return self.name


class memory_format(_Word):  # noqa: N801 - PyTorch's name
    """The order of dimensions in memory."""


class layout(_Word):  # noqa: N801
    """The kind of storage: all elements, or those that are not zero."""


contiguous_format, preserve_format, channels_last, channels_last_3d = map(
    memory_format,
    ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
)
strided, sparse_coo, sparse_csr = map(layout, ("strided", "sparse_coo", "sparse_csr"))

opaque(Size, memory_format, layout)

__all__ = [
    "Size", "channels_last", "channels_last_3d", "contiguous_format", "layout", "memory_format",
    "preserve_format", "sparse_coo", "sparse_csr", "strided",
]  # fmt: skip
