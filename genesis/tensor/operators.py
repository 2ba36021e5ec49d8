"""What operators and transposes mean on tensors: each is a function of `genesis.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional
from genesis.functional import bitwise_left_shift, bitwise_right_shift

Operator = Callable[[Any, Any], Any]


def _reflected(function: Operator) -> Operator:
    """The operator for what stands on its left."""

    def operate(self: Any, other: Any) -> Any:
        return function(other, self)

    return operate


def _augmented(sign: str, function: Operator) -> Operator:
    """The operator that writes in place."""

    def operate(self: Any, other: Any) -> Any:
        return self._replace(sign, function(self, other))

    return operate


class Operators:
    """Python's operators; the augmented ones write in place."""

    __slots__ = ()

    __add__, __radd__ = functional.add, _reflected(functional.add)
    __sub__, __rsub__ = functional.sub, _reflected(functional.sub)
    __mul__, __rmul__ = functional.mul, _reflected(functional.mul)
    __truediv__, __rtruediv__ = functional.div, _reflected(functional.div)
    __floordiv__, __rfloordiv__ = functional.floor_divide, _reflected(functional.floor_divide)
    __mod__, __rmod__ = functional.remainder, _reflected(functional.remainder)
    __pow__, __rpow__ = functional.pow, _reflected(functional.pow)
    __matmul__, __rmatmul__ = functional.matmul, _reflected(functional.matmul)
    __and__, __rand__ = functional.bitwise_and, _reflected(functional.bitwise_and)
    __or__, __ror__ = functional.bitwise_or, _reflected(functional.bitwise_or)
    __xor__, __rxor__ = functional.bitwise_xor, _reflected(functional.bitwise_xor)
    __lshift__, __rlshift__ = bitwise_left_shift, _reflected(bitwise_left_shift)
    __rshift__, __rrshift__ = bitwise_right_shift, _reflected(bitwise_right_shift)

    __iadd__ = _augmented("+=", functional.add)
    __isub__ = _augmented("-=", functional.sub)
    __imul__ = _augmented("*=", functional.mul)
    __itruediv__ = _augmented("/=", functional.div)
    __ifloordiv__ = _augmented("//=", functional.floor_divide)
    __imod__ = _augmented("%=", functional.remainder)
    __ipow__ = _augmented("**=", functional.pow)
    __iand__ = _augmented("&=", functional.bitwise_and)
    __ior__ = _augmented("|=", functional.bitwise_or)
    __ixor__ = _augmented("^=", functional.bitwise_xor)
    __ilshift__ = _augmented("<<=", bitwise_left_shift)
    __irshift__ = _augmented(">>=", bitwise_right_shift)

    __lt__, __le__ = functional.lt, functional.le
    __gt__, __ge__ = functional.gt, functional.ge

    def __eq__(self, other: Any) -> Any:
        try:
            return functional.eq(self, other)
        except TypeError:  # such as a list: another kind of object
            return NotImplemented

    def __ne__(self, other: Any) -> Any:
        try:
            return functional.ne(self, other)
        except TypeError:  # such as a list: another kind of object
            return NotImplemented

    __neg__, __pos__, __abs__ = functional.neg, functional.positive, functional.abs
    __invert__ = functional.bitwise_not

    __hash__ = object.__hash__

    # ---- transposes
    @property
    def T(self: Any) -> Any:  # noqa: N802
        """Dimensions in reverse order."""
        return functional.permute(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self: Any) -> Any:  # noqa: N802
        """The last two dimensions exchanged; a number itself."""
        return functional.transpose(self, -2, -1) if self.ndim else self

    @property
    def H(self: Any) -> Any:  # noqa: N802
        """A matrix transposed and conjugated."""
        if self.ndim not in (0, 2):
            raise RuntimeError(f"H: expected a matrix, got shape {tuple(self.shape)}; use mH")
        return functional.conj(functional.t(self) if self.ndim else self)

    @property
    def mH(self: Any) -> Any:  # noqa: N802
        """The last two dimensions exchanged, and conjugated."""
        return functional.conj(self.mT)


__all__ = ["Operators"]
