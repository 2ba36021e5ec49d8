"""`Scalar`: functions of one variable, applied to every element, and the chain rule for them.

Such a function is an array function and its derivative. `scalar` makes one of both: the function
it decorates is the derivative, in terms of the argument or, where that is simpler, of the result.
Only one of them is saved. Derivatives of half precisions are computed in float32, like the
functions themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from genesis.functional.arithmetic import cast, conj
from genesis.functional.function import Function
from genesis.ir.dtype import DType, bool_


class Scalar(Function):
    """A function of one variable: see `scalar`. Further arguments are numbers."""

    function: ClassVar[Callable[..., Any]]
    derivative: ClassVar[Callable[..., Any]]
    of_result: ClassVar[bool] = False

    @classmethod
    def forward(cls, ctx: Any, x: Any, *numbers: Any) -> Any:
        """The function of every element."""
        ctx.rule, ctx.numbers = cls, numbers
        result = cls.function(x, *numbers)
        ctx.save_for_backward(result if cls.of_result else x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The chain rule."""
        (saved,) = ctx.saved_tensors
        slope = ctx.rule.derivative(cast(saved, saved.dtype.accumulator), *ctx.numbers)
        return (grad * conj(slope), *(None for _ in ctx.numbers))


def as_number(value: Any, dtype: DType) -> Any:
    """A number as a dtype has it, so that it leaves the dtype of a tensor as it is."""
    if dtype is bool_:
        return bool(value)
    return int(value) if dtype.is_integer and not isinstance(value, bool | int) else value


class Unary(Protocol):
    """A function of one tensor or array."""

    def __call__(self, input: Any) -> Any:
        """The function of every element."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        """The function as a method."""


class Ruled(Unary, Protocol):
    """A function of one tensor or array that is one operation."""

    #: The operation.
    rule: type[Scalar]


def rule(
    function: Callable[..., Any], derivative: Callable[..., Any], of_result: bool = False
) -> type[Scalar]:
    """The operation that is an array function, with its derivative."""
    members = {
        "__doc__": derivative.__doc__,
        "function": staticmethod(function),
        "derivative": staticmethod(derivative),
        "of_result": of_result,
    }
    return type(derivative.__name__.strip("_").capitalize(), (Scalar,), members)


def scalar(
    function: Callable[..., Any], *, of_result: bool = False
) -> Callable[[Callable[[Any], Any]], Ruled]:
    """An array function of one variable, given the derivative that this decorates."""

    def made(derivative: Callable[[Any], Any]) -> Ruled:
        operation = rule(function, derivative, of_result)

        def called(input: Any) -> Any:
            return operation.apply(input)

        called.rule = operation  # type: ignore[attr-defined]
        called.__name__ = called.__qualname__ = derivative.__name__
        called.__doc__ = derivative.__doc__
        called.__module__ = derivative.__module__
        return called  # type: ignore[return-value]

    return made


__all__ = ["Ruled", "Scalar", "Unary", "rule", "scalar"]
