"""Functions of elements: `Scalar`, those of one variable with a derivative, and those without one.

Such a function is an array function and its derivative. `scalar` makes one of both: the function
it decorates is the derivative, in terms of the argument or, where that is simpler, of the result.
Only one of them is saved. Derivatives of half precisions are computed in float32, like the
functions themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, TypeVar, overload

from genesis.functional.arithmetic import cast, conj
from genesis.functional.error_messages import named
from genesis.functional.function import Function, plain, written
from genesis.functional.registry import method, operation
from genesis.ir.dtype import DType, bool_

F = TypeVar("F", bound=Callable[..., Any])


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


class BinaryScalar(Protocol):
    """A function of two tensors or arrays, or of one and a number."""

    def __call__(self, input: Any, other: Any) -> Any:
        """The function of every pair of elements."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        """The function as a method."""


class InPlaceUnary(Protocol):
    """A function of one tensor or array that can write into it."""

    def __call__(self, input: Any, inplace: bool = False) -> Any:
        """The function of every element."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Any:
        """The function as a method."""


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


@overload
def scalar(
    function: Callable[..., Any], *, of_result: bool = False
) -> Callable[[Callable[[Any], Any]], Unary]: ...


@overload
def scalar(
    function: Callable[..., Any], *, of_result: bool = False, inplace: Literal[True]
) -> Callable[[Callable[[Any], Any]], InPlaceUnary]: ...


def scalar(
    function: Callable[..., Any], *, of_result: bool = False, inplace: bool = False
) -> Callable[[Callable[[Any], Any]], Any]:
    """An array function of one variable, given the derivative that this decorates.

    With `inplace` it takes an argument of that name, and can write into what it is given.
    """

    def made(derivative: Callable[[Any], Any]) -> Any:
        applied = rule(function, derivative, of_result)

        def called(input: Any) -> Any:
            return applied.apply(input)

        def called_in_place(input: Any, inplace: bool = False) -> Any:
            return written(input, applied.apply(input), inplace)

        found: Any = called_in_place if inplace else called
        named(found, derivative.__name__)
        found.__doc__, found.__module__ = derivative.__doc__, derivative.__module__
        operation(found).rule = applied
        return found

    return made


def smooth(
    name: str,
    function: Callable[..., Any],
    doc: str,
    *,
    of_argument: Callable[[Any], Any] | None = None,
    of_result: Callable[[Any], Any] | None = None,
) -> Unary:
    """A function, and a method, whose derivative is an expression of the argument or the result."""
    derivative = of_argument or of_result
    assert derivative is not None
    named(derivative, name).__doc__ = doc
    return method(in_place=True)(scalar(function, of_result=of_argument is None)(derivative))


# ---- without a derivative


def unary(name: str, function: Callable[..., Any], doc: str, in_place: bool = False) -> Unary:
    """A function of every element that has no gradient, as a method as well."""

    def called(input: Any) -> Any:
        return plain(function, input)

    return _described(called, name, doc, in_place)


def binary(
    name: str, function: Callable[..., Any], doc: str, in_place: bool = True
) -> BinaryScalar:
    """A function of pairs of elements that has no gradient, as a method as well."""

    def called(input: Any, other: Any) -> Any:
        return plain(function, input, other)

    return _described(called, name, doc, in_place)


def _described(called: F, name: str, doc: str, in_place: bool) -> F:
    named(called, name).__doc__ = doc
    return method(in_place=in_place)(called)


__all__ = ["BinaryScalar", "Scalar", "Unary", "binary", "rule", "scalar", "smooth", "unary"]
