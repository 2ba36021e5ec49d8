"""DLPack for memory that NumPy cannot see: capsules made and read.

A capsule holds a C structure that says where an array lies and how, and a function that its taker
calls when done. `lend` makes one, and keeps the memory's owner until then; `borrow` reads one, and
gives an owner that calls that function when it dies.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from genesis.ir.dtype import ALL, STORED, DType
from genesis.ndarray.core.layout import row_major

#: The kinds of device, by the names of backends.
DEVICES = {"cpu": 1, "cuda": 2, "hip": 10}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class Borrowed(NamedTuple):
    """What a capsule says: where element 0 is, and how the others lie; strides count elements."""

    pointer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: object


def lend(
    pointer: int,
    dtype: DType,
    shape: Sequence[int],
    strides: Sequence[int],
    device: tuple[int, int],
    owner: object,
) -> Any:
    """A capsule for an array; `owner` is kept until its taker is done."""
    rank = len(shape)
    extents, steps = ((ctypes.c_int64 * max(1, rank))(*numbers) for numbers in (shape, strides))
    managed = _Managed()
    managed.tensor = _Tensor(
        pointer, _Device(*device), rank, _Type(_CODES[dtype.kind, dtype.name], dtype.bits, 1),
        extents, steps, 0,
    )  # fmt: skip
    managed.context = next(_numbers)
    managed.deleter = _deleter
    _lent[managed.context] = (managed, extents, steps, owner)
    return _new_capsule(ctypes.addressof(managed), _FRESH, _destructor)


def borrow(capsule: Any, release: Callable[[], None]) -> Borrowed:
    """What a capsule holds. `release` is called before its memory is given back."""
    managed = _Managed.from_address(_pointer_in(capsule, _FRESH))
    tensor = managed.tensor
    found = _TYPES.get((tensor.dtype.code, tensor.dtype.bits))
    if found is None or tensor.dtype.lanes != 1:
        raise TypeError(f"from_dlpack: type {tensor.dtype.code} of {tensor.dtype.bits} bits")
    shape = tuple(tensor.shape[d] for d in range(tensor.ndim))
    strides: Any = row_major(shape)
    if tensor.strides:
        strides = tuple(tensor.strides[d] for d in range(tensor.ndim))
    _rename(capsule, _USED)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Borrowed(pointer, found, shape, strides, _Owner(managed, release))


class _Owner:
    """Gives a borrowed array back when it dies."""

    def __init__(self, managed: _Managed, release: Callable[[], None]) -> None:
        self._managed = managed
        self._release = release

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():
            return
        self._release()
        if self._managed.deleter:
            self._managed.deleter(ctypes.addressof(self._managed))


def _code(dtype: DType) -> int:
    named = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
    if dtype.name in named:
        return named[dtype.name]
    return {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}[dtype.kind]


_CODES = {(d.kind, d.name): _code(d) for d in (*ALL, *STORED)}
_TYPES = {(_code(d), d.bits): d for d in (*ALL, *STORED)}

_lent: dict[int, object] = {}
_numbers = count(1)


def _done(address: int) -> None:
    _lent.pop(_Managed.from_address(address).context, None)


_deleter = _DELETER(_done)


_FRESH, _USED = b"dltensor", b"used_dltensor"
_python = ctypes.pythonapi
_CAPSULE_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CAPSULE_DESTRUCTOR
)(("PyCapsule_New", _python))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _python)
)
# A capsule that dies is no object any more: it is looked at by its address.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)


def _dropped(capsule: int) -> None:
    if _is_valid(capsule, _FRESH):  # nobody took it
        _done(_pointer_at(capsule, _FRESH))


_destructor = _CAPSULE_DESTRUCTOR(_dropped)
