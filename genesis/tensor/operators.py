"""What operators mean on tensors: each is a function of `genesis.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genesis import functional


class Operators:
    """Python's operators; the augmented ones write in place."""

    __slots__ = ()

    if TYPE_CHECKING:
        _replace: Callable[[str, Any], Any]

    def __add__(self, other: Any) -> Any:
        return functional.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return functional.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return functional.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return functional.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return functional.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return functional.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return functional.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return functional.div(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return functional.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return functional.floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return functional.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return functional.remainder(other, self)

    def __pow__(self, other: Any) -> Any:
        return functional.pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return functional.pow(other, self)

    def __matmul__(self, other: Any) -> Any:
        return functional.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return functional.matmul(other, self)

    def __and__(self, other: Any) -> Any:
        return functional.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return functional.bitwise_and(other, self)

    def __or__(self, other: Any) -> Any:
        return functional.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return functional.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Any:
        return functional.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Any:
        return functional.bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Any:
        return functional.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Any:
        return functional.bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> Any:
        return functional.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return functional.bitwise_right_shift(other, self)

    def __iadd__(self, other: Any) -> Any:
        return self._replace("+=", functional.add(self, other))

    def __isub__(self, other: Any) -> Any:
        return self._replace("-=", functional.sub(self, other))

    def __imul__(self, other: Any) -> Any:
        return self._replace("*=", functional.mul(self, other))

    def __itruediv__(self, other: Any) -> Any:
        return self._replace("/=", functional.div(self, other))

    def __ifloordiv__(self, other: Any) -> Any:
        return self._replace("//=", functional.floor_divide(self, other))

    def __imod__(self, other: Any) -> Any:
        return self._replace("%=", functional.remainder(self, other))

    def __ipow__(self, other: Any) -> Any:
        return self._replace("**=", functional.pow(self, other))

    def __iand__(self, other: Any) -> Any:
        return self._replace("&=", functional.bitwise_and(self, other))

    def __ior__(self, other: Any) -> Any:
        return self._replace("|=", functional.bitwise_or(self, other))

    def __ixor__(self, other: Any) -> Any:
        return self._replace("^=", functional.bitwise_xor(self, other))

    def __ilshift__(self, other: Any) -> Any:
        return self._replace("<<=", functional.bitwise_left_shift(self, other))

    def __irshift__(self, other: Any) -> Any:
        return self._replace(">>=", functional.bitwise_right_shift(self, other))

    def __lt__(self, other: Any) -> Any:
        return functional.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return functional.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return functional.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return functional.ge(self, other)

    def __eq__(self, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        return functional.eq(self, other)

    def __ne__(self, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return NotImplemented
        return functional.ne(self, other)

    def __neg__(self) -> Any:
        return functional.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return functional.abs(self)

    def __invert__(self) -> Any:
        return functional.bitwise_not(self)

    __hash__ = object.__hash__


__all__ = ["Operators"]
