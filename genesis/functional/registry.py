"""What is made of an operation besides the function: said once, by decorators where it is defined.

A function of this package is a function of `genesis` where its module's `__all__` has it. `method`
makes it a method of tensors as well, `layer` a layer of `genesis.nn`, and `aten` says which of
PyTorch's operators it is. Nothing is built here: those who build methods (`tensor.methods`), layers
(`nn.parameterless_layers`) and stubs read the entries, so that no name is written a second time::

    @method(in_place=True)
    @layer("Sigmoid")
    @aten("sigmoid")
    @scalar(nd.sigmoid, of_result=True)
    def sigmoid(y): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])


class StatelessLayer(NamedTuple):
    """A layer without parameters: a function whose settings are the layer's."""

    name: str
    #: What `forward` takes: the function's first so many arguments, or those with these names.
    inputs: int | Sequence[str] = 1
    #: What the constructor takes, in its order; None: all other arguments, but for `training`.
    settings: Sequence[str] | None = None
    #: Settings that are tensors, moved and saved with the layer.
    buffers: Sequence[str] = ()
    #: Settings that are, unless given, what another one is.
    defaults: Mapping[str, str] = MappingProxyType({})


class Operation:
    """A function and what else is made of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    #: ``x.f(..)`` is ``f(x, ..)``; a "property" is read as ``x.f``.
    method: bool | Literal["property"] = False
    #: ``x.f_(..)`` writes the result into x; with "view", x becomes that view of itself.
    in_place: bool | Literal["view"] = False
    layer: StatelessLayer | None = None
    #: PyTorch's names: "mish", or with an overload "clamp.Tensor".
    aten: tuple[str, ...] = ()
    #: The `Scalar` of an elementwise function: its array function and the derivative.
    rule: Any = None

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__


#: All entries, by function: an alias is the same function by another name.
operations: dict[Callable[..., Any], Operation] = {}


def operation(function: Callable[..., Any]) -> Operation:
    """The entry of a function, made when it is first asked for."""
    return operations.setdefault(function, Operation(function))


def public(names: Mapping[str, Any]) -> list[str]:
    """The functions and classes of Genesis that a namespace has by public names."""
    return sorted(
        name
        for name, x in names.items()
        if name[0] != "_" and getattr(x, "__module__", "").startswith("genesis.")
    )


@overload
def method(function: F) -> F: ...


@overload
def method(
    *, in_place: bool | Literal["view"] = False, as_property: bool = False
) -> Callable[[F], F]: ...


def method(
    function: Any = None, *, in_place: bool | Literal["view"] = False, as_property: bool = False
) -> Any:
    """Have a function as a method of tensors, too, and its result written in place if wanted."""

    def entered(function: F) -> F:
        entry = operation(function)
        entry.method, entry.in_place = "property" if as_property else True, in_place
        return function

    return entered if function is None else entered(function)


def layer(
    name: str,
    inputs: int | Sequence[str] = 1,
    *,
    settings: Sequence[str] | None = None,
    buffers: Sequence[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[F], F]:
    """Have a function as a layer, too; see `StatelessLayer`."""

    def entered(function: F) -> F:
        operation(function).layer = StatelessLayer(name, inputs, settings, buffers, defaults)
        return function

    return entered


def by_rule(rule: Any) -> Callable[[F], F]:
    """Say which `Scalar` an elementwise function with more than one argument is."""

    def entered(function: F) -> F:
        operation(function).rule = rule
        return function

    return entered


def aten(*names: str) -> Callable[[F], F]:
    """Say which of PyTorch's operators a function is."""

    def entered(function: F) -> F:
        operation(function).aten = names
        return function

    return entered


__all__ = [
    "StatelessLayer", "Operation", "aten", "by_rule", "layer", "method", "operation", "operations",
    "public",
]  # fmt: skip
