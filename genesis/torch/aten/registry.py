"""Which array function computes which PyTorch operator.

An implementation is a function of arrays for an overload of an operator, as PyTorch prints it:
``"add.Tensor"``, ``"relu"`` for ``relu.default``, ``"prims::convert_element_type"`` in another
namespace. `torch.compile` and the device share the table. It holds functional overloads only: what
writes in place or to ``out=`` is a functional operator whose result is assigned.

What it is given (see `genesis.torch.convert`): arrays in place of tensors, `DType` in place
of ``torch.dtype``, sizes that may be symbolic; device, layout, memory format, pinning and generator
are left out. It gives an array of the dtype and the shape PyTorch gives, or a tuple of them with
None where PyTorch gives no tensor. It may raise `Unsupported` for arguments that it does not cover:
then PyTorch computes this call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from genesis.ndarray.random import Generator, default_generator

Implementation = Callable[..., Any]
K = TypeVar("K", bound=Implementation)

#: Kernels by the full name of their operator, such as ``aten::add.Tensor``.
implementations: dict[str, Implementation] = {}

_generator: ContextVar[Generator | None] = ContextVar("generator", default=None)


class FallbackWarning(UserWarning):
    """PyTorch computes an operator itself, on the CPU."""


class Unsupported(NotImplementedError):
    """An implementation does not cover these arguments."""


def implements(*names: str) -> Callable[[K], K]:
    """Register a function as what computes these operators.

    >>> @implements("demo::twice")
    ... def twice(x):
    ...     return x * 2
    >>> implementations.pop("demo::twice") is twice
    True
    """

    def register(function: K) -> K:
        for name in names:
            full = name if "::" in name else f"aten::{name}"
            if full in implementations:
                raise ValueError(f"{full} is implemented already")
            implementations[full] = function
        return function

    return register


def operators(expressions: Mapping[str, Implementation]) -> None:
    """Register expressions for the operators under whose names, blanks between them, they stand."""
    for names, function in expressions.items():
        implements(*names.split())(function)


def table(
    functions: object,
    names: str,
    wrapped: Callable[[Implementation], Implementation] = lambda function: function,
) -> None:
    """Register functions of a module for the operators of the same names, all overloads alike.

    ``"fmod.Tensor igamma=gammainc"`` are `fmod`, for that overload, and `gammainc` for ``igamma``.
    """
    for word in names.split():
        name, _, other = word.partition("=")
        implements(name)(wrapped(getattr(functions, other or name.partition(".")[0])))


def name_of(operator: Any) -> str:
    """The full name of a ``torch._ops.OpOverload``, by which its implementation is found.

    >>> import torch
    >>> name_of(torch.ops.aten.add.Tensor), name_of(torch.ops.aten.relu.default)
    ('aten::add.Tensor', 'aten::relu')
    """
    name: str = operator._schema.name
    overload: str = operator._schema.overload_name
    return f"{name}.{overload}" if overload else name


@contextmanager
def drawing_from(generator: Generator | None) -> Iterator[None]:
    """Let implementations draw random numbers from `generator` inside the ``with`` block."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def generator() -> Generator:
    """The generator that implementations draw random numbers from."""
    return _generator.get() or default_generator()
