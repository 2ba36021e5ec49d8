"""What there is to know about dtypes: their limits, and what they combine to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genesis.ir.dtype import DType, as_dtype, promote
from genesis.ndarray.core.primitive import kind_rank
from genesis.ndarray.ops.elementwise import broadcast_shapes as broadcast
from genesis.ndarray.ops.elementwise import common_dtype
from genesis.tensor.tensor import Tensor


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point type."""

    dtype: DType
    bits: int
    eps: float  #: the distance from 1 to the next number
    max: float
    min: float
    tiny: float  #: the least positive number of full precision
    smallest_normal: float
    resolution: float  #: so many decimal digits are certain


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer type."""

    dtype: DType
    bits: int
    max: int
    min: int


def finfo(type: Any = None) -> FloatInfo:
    """The limits of a floating-point type, the default one unless given.

    >>> import genesis
    >>> genesis.finfo(genesis.float16).max
    65504.0
    """
    import ml_dtypes

    from genesis.tensor.creation import get_default_dtype

    dtype = get_default_dtype() if type is None else as_dtype(type).real
    if not dtype.is_float:
        raise TypeError(f"finfo: needs a floating-point type, not {dtype}; see iinfo")
    known: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    tiny = float(known.smallest_normal)
    limits = float(known.eps), float(known.max), float(known.min), tiny, tiny
    return FloatInfo(dtype, dtype.bits, *limits, 10.0 ** -int(known.precision))


def iinfo(type: Any) -> IntegerInfo:
    """The limits of an integer type.

    >>> import genesis
    >>> genesis.iinfo(genesis.int8).min
    -128
    """
    dtype = as_dtype(type)
    if not dtype.is_integer:
        raise TypeError(f"iinfo: needs an integer type, not {dtype}; see finfo")
    return IntegerInfo(dtype, dtype.bits, int(dtype.max), int(dtype.min))


def promote_types(type1: Any, type2: Any) -> DType:
    """The type that tensors of two types combine to."""
    return promote(as_dtype(type1), as_dtype(type2))


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The type that two tensors or numbers combine to."""
    given = [x.array if isinstance(x, Tensor) else x for x in (tensor1, tensor2)]
    return common_dtype(given)


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a result of one type may be written to a tensor of another."""
    return kind_rank(as_dtype(from_)) <= kind_rank(as_dtype(to))


def broadcast_shapes(*shapes: Any) -> tuple[Any, ...]:
    """The shape that tensors of the given shapes combine to."""
    listed = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    return broadcast("broadcast_shapes", *listed) if listed else ()
