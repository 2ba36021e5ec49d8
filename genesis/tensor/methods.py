"""The methods of tensors that are functions.

A method ``x.f(..)`` is ``genesis.f(x, ..)``, and ``x.f_(..)`` writes the result into `x`. What a
function means, what its gradient is, and that it is a method, is said where it is defined, in
`genesis.functional`. Tools read `methods.pyi`, which ``python -m tests.stubs`` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional
from genesis.functional.argument_aliases import has_dim, spelled
from genesis.functional.registry import Operation, operations


def in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that writes what a function gives into its first argument."""

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._replace(name, function(self, *args, **kwargs))

    return _described(write, name, function, f"`{name[:-1]}`, written into the tensor.")


def view_in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The method that turns a tensor into the view of it that a function gives."""

    def become(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._become(name, lambda x: function(x, *args, **kwargs))

    doc = f"`{name[:-1]}`: from now on the tensor is that view of itself."
    return _described(become, name, function, doc)


def _described(method: Any, name: str, function: Callable[..., Any], doc: str) -> Any:
    method.__name__ = method.__qualname__ = name
    method.__doc__, method.__wrapped__ = doc, function
    return method


class Methods:
    """What a tensor can do by the name of a function; see `add_methods`."""

    __slots__ = ()

    # ---- functions whose arguments come in another order
    def where(self, condition: Any, other: Any) -> Any:
        """This tensor where the condition holds, `other` elsewhere."""
        return functional.where(condition, self, other)

    def sum_to_size(self, *size: Any) -> Any:
        """The sum over whatever broadcasting from a shape would repeat."""
        listed = len(size) == 1 and not isinstance(size[0], int)
        shape = tuple(size[0]) if listed else size
        return functional.sum_to(self, shape) if shape else functional.sum(self)

    def polygamma(self, n: int) -> Any:
        """The `n`-th derivative of `digamma`."""
        return functional.polygamma(n, self)

    polygamma_ = in_place("polygamma_", polygamma)


def add_methods(name: str, operation: Operation) -> None:
    """Give tensors the methods that an operation has, by one of its names."""
    function = operation.function
    as_property = operation.method == "property"
    if not as_property and (has_dim(function) or name in ("clone", "contiguous", "is_contiguous")):
        function = spelled(function)
    setattr(Methods, name, property(function) if as_property else function)
    if operation.in_place:
        write = view_in_place if operation.in_place == "view" else in_place
        setattr(Methods, f"{name}_", write(f"{name}_", function))


for _name, _function in vars(functional).items():
    _operation = operations.get(_function) if callable(_function) else None
    if _operation is not None and _operation.method:
        add_methods(_name, _operation)

__all__ = ["Methods", "add_methods", "in_place", "view_in_place"]
