"""Element types, and PyTorch's rules for combining them.

A `DType` is a name, a kind and a width; everything else (NumPy's type, value range, what a sum
accumulates in) follows from those. Python scalars are *weak*: they take part in promotion by kind
only, so ``float16_array * 2.5`` stays float16 and ``int32_array * 2.5`` becomes the default float.
A complex type is two numbers of a `real` type, next to each other in memory.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Kind = Literal["bool", "int", "uint", "float", "complex"]
Scalar = bool | int | float
Number = Scalar | complex

# Order of kinds in promotion; signed and unsigned integers are one category.
_CATEGORY: dict[str, int] = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. There is exactly one instance per type, so compare with ``is``.

    >>> float32.itemsize, float32.kind
    (4, 'float')
    >>> promote(float16, bfloat16)
    float32
    """

    name: str
    kind: Kind
    bits: int
    numpy: Any = field(repr=False)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (as_dtype, (self.name,))

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.kind == "float"

    @property
    def is_floating_point(self) -> bool:
        """Whether values are floating point, by PyTorch's name."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is not)."""
        return self.kind in ("int", "uint")

    @property
    def is_complex(self) -> bool:
        """Whether values are complex numbers."""
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """The type of the real and the imaginary part; other types are their own."""
        if not self.is_complex:
            return self
        return float32 if self.bits == 64 else float64

    @property
    def complex(self) -> DType:
        """The complex type that holds values of this type, as far as there is one."""
        return complex128 if self is float64 or self.bits == 128 else complex64

    @property
    def min(self) -> Scalar:
        """The least value; minus infinity for floats."""
        if self.kind == "bool":
            return False
        if self.kind == "float":
            return -math.inf
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> Scalar:
        """The greatest value; infinity for floats."""
        if self.kind == "bool":
            return True
        if self.kind == "float":
            return math.inf
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    @property
    def accumulator(self) -> DType:
        """The type sums of this type are carried in: half precisions accumulate in float32."""
        return float32 if self.is_float and self.bits < 32 else self

    def cast(self, value: Number) -> Any:
        """`value` as a Python scalar of this type's kind, wrapped into range for integers."""
        if self.kind == "bool":
            return bool(value)
        if self.kind == "complex":
            return complex(value)
        if isinstance(value, complex):
            raise TypeError(f"the complex number {value} is no {self}; take its real part")
        if self.kind == "float":
            return float(value)
        wrapped = int(value) & ((1 << self.bits) - 1)
        if self.kind == "int" and wrapped >> (self.bits - 1):
            wrapped -= 1 << self.bits
        return wrapped


def _more(name: str) -> np.dtype[Any]:
    """A type that NumPy itself does not have."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


bool_ = DType("bool", "bool", 8, np.dtype(np.bool_))
int8 = DType("int8", "int", 8, np.dtype(np.int8))
int16 = DType("int16", "int", 16, np.dtype(np.int16))
int32 = DType("int32", "int", 32, np.dtype(np.int32))
int64 = DType("int64", "int", 64, np.dtype(np.int64))
uint8 = DType("uint8", "uint", 8, np.dtype(np.uint8))
uint16 = DType("uint16", "uint", 16, np.dtype(np.uint16))
uint32 = DType("uint32", "uint", 32, np.dtype(np.uint32))
uint64 = DType("uint64", "uint", 64, np.dtype(np.uint64))
float16 = DType("float16", "float", 16, np.dtype(np.float16))
float8_e4m3fn = DType("float8_e4m3fn", "float", 8, _more("float8_e4m3fn"))
float8_e5m2 = DType("float8_e5m2", "float", 8, _more("float8_e5m2"))
bfloat16 = DType("bfloat16", "float", 16, _more("bfloat16"))
float32 = DType("float32", "float", 32, np.dtype(np.float32))
float64 = DType("float64", "float", 64, np.dtype(np.float64))
complex64 = DType("complex64", "complex", 64, np.dtype(np.complex64))
complex128 = DType("complex128", "complex", 128, np.dtype(np.complex128))

#: Index arithmetic of kernels is done in this type.
index = int64

#: The types that kernels compute in. Complex arrays are pairs of them by then.
ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64,
)  # fmt: skip
COMPLEX = (complex64, complex128)
#: Types that values are stored in, and converted from and to. Nothing is computed in them.
STORED = (float8_e4m3fn, float8_e5m2)
#: Conversions to float8_e4m3fn, which has no infinity, end at its greatest number.
E4M3_MAX = 448.0
#: Types that NumPy does not have of its own.
FOREIGN = (bfloat16, *STORED)
_BY_NAME = {d.name: d for d in (*ALL, *STORED, *COMPLEX)}
_BY_NUMPY = {d.numpy: d for d in (*ALL, *STORED, *COMPLEX)}


def as_dtype(spec: Any) -> DType:
    """The `DType` meant by a DType, a name, a Python type or a NumPy type.

    >>> as_dtype("float32"), as_dtype(np.int8), as_dtype(float), as_dtype(bool)
    (float32, int8, float32, bool)
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    if spec is float:
        return float32
    if spec is int:
        return int64
    if spec is bool:
        return bool_
    if spec is complex:
        return complex64
    try:
        return _BY_NUMPY[np.dtype(spec)]
    except (TypeError, KeyError):
        names = ", ".join(_BY_NAME)
        raise TypeError(f"{spec!r} is not a Genesis dtype; use one of: {names}") from None


class _DefaultFloat(threading.local):
    """What integers become where floating point is needed, and Python's floats on their own."""

    everywhere: DType = float32
    here: DType | None = None


_default_float = _DefaultFloat()


def default_float() -> DType:
    """The floating-point type of what no operand gives one: ``integers / 2``."""
    return _default_float.here or _DefaultFloat.everywhere


def set_default_float(dtype: DType) -> None:
    """Set the default of the process."""
    _DefaultFloat.everywhere = dtype


@contextmanager
def default_float_is(dtype: DType) -> Iterator[None]:
    """Another default in this thread, for the calls of a library with a default of its own."""
    before = _default_float.here
    _default_float.here = dtype
    try:
        yield
    finally:
        _default_float.here = before


def floating(dtype: DType) -> DType:
    """The type itself if it is floating point or complex, the default for bool and integers."""
    return dtype if dtype.is_float or dtype.is_complex else default_float()


def weak(value: Number) -> DType:
    """The type a Python scalar has on its own: bool, int64, float32 or complex64."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, complex):
        return complex64
    return int64 if isinstance(value, int) else float32


def promote(a: DType, b: DType) -> DType:
    """The common type of two arrays, by PyTorch's table.

    >>> promote(complex64, float64), promote(complex64, float16)
    (complex128, complex64)
    """
    if a is b:
        return a
    if a.is_complex or b.is_complex:
        return complex128 if a.complex is complex128 or b.complex is complex128 else complex64
    if a in STORED or b in STORED:
        raise TypeError(f"{a} and {b} have no common type: convert floats of 8 bits to another")
    if _CATEGORY[a.kind] != _CATEGORY[b.kind]:
        return a if _CATEGORY[a.kind] > _CATEGORY[b.kind] else b
    if a.is_float:
        if a.bits == b.bits:  # float16 with bfloat16
            return float32
        return a if a.bits > b.bits else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned.bits == 64:
        raise TypeError(f"{a} and {b} have no common integer type; cast one of them")
    return _BY_NAME[f"int{unsigned.bits * 2}"]


def promote_scalar(array: DType, value: Number) -> DType:
    """The type of an array combined with a Python scalar: the array's unless the kind is higher."""
    scalar = weak(value)
    if _CATEGORY[scalar.kind] <= _CATEGORY[array.kind]:
        return array
    if scalar.is_complex:
        return floating(array).complex
    return default_float() if scalar.is_float else scalar


def encode(value: Scalar, dtype: DType) -> int:
    """A scalar as a machine word: its bytes in `dtype`, low end first."""
    if dtype.kind != "float":
        return int(dtype.cast(value)) & ((1 << dtype.bits) - 1)
    if dtype is float32:
        try:
            return int.from_bytes(struct.pack("<f", value), "little")
        except OverflowError:  # NumPy rounds to infinity, struct refuses
            pass
    if dtype is float8_e4m3fn:
        value = np.clip(float(value), -E4M3_MAX, E4M3_MAX)
    with np.errstate(over="ignore"):
        return int.from_bytes(np.array(value, np.float64).astype(dtype.numpy).tobytes(), "little")
