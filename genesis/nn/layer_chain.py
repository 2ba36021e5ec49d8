"""Layers in sequence as one operation, where each is a function of its input and of what it has.

A small network is a dozen calls to Python, and three operations for the tape. What it computes is
one composition (`genesis.autograd.composite_cache`) of its input, parameters and settings. Layers
that somebody watches, or has changed, are called one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import cache, lru_cache
from typing import Any, NamedTuple

from genesis.autograd import composite_cache
from genesis.functional.registry import operations
from genesis.nn.layer_from_function import parts
from genesis.nn.module import Module

#: Layers of a chain, at most.
MOST_LAYERS = 32

_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
#: Arguments of functions that draw numbers, behave in another way in training, or give several
#: results.
_MORE = {"training", "_random_samples", "return_indices"}


class LayerFunction(NamedTuple):
    """A class of layers: ``forward(input)`` is ``function(input, **attributes)``."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    are_parameters: bool
    forward: Callable[..., Any]  # that of the class, unless somebody changes it


def chained(modules: Collection[Module], input: Any) -> Any:
    """What modules in sequence make of an input; None if they are to be called."""
    known = layer_functions()
    args = [input]
    functions = []
    for module in modules:
        layer = known.get(type(module))
        if layer is None or type(module).forward is not layer.forward:
            return None
        fields = module.__dict__
        if any(map(fields.__getitem__, _HOOKS)) or "forward" in fields:
            return None
        home = fields["_parameters"] if layer.are_parameters else fields
        for name in layer.names:
            if name not in home or (name == "inplace" and home[name]):
                return None
            args.append(home[name])
        functions.append(layer)
    if not 1 < len(functions) <= MOST_LAYERS:
        return None
    return composite_cache.copied(_composed(tuple(functions)), args)


@cache
def layer_functions() -> dict[type, LayerFunction]:
    """The layers that chains may have, by their classes."""
    from genesis.nn import functional, parameterless_layers
    from genesis.nn.linear import Linear

    linear: type = Linear
    found = {linear: LayerFunction(functional.linear, ("weight", "bias"), True, Linear.forward)}
    for operation in operations.values():
        if operation.layer is not None and operation.layer.inputs == 1:
            function = operation.function
            names = tuple([parameter.name for parameter in parts(operation)[1]])
            kind = getattr(parameterless_layers, operation.layer.name)
            if _MORE.isdisjoint(inspect.signature(function).parameters):
                found[kind] = LayerFunction(function, names, False, kind.forward)
    return found


@lru_cache(maxsize=256)
def _composed(layers: tuple[LayerFunction, ...]) -> Callable[..., Any]:
    def sequential(input: Any, *attributes: Any) -> Any:
        rest = iter(attributes)
        for function, names, _, _ in layers:
            input = function(input, **{name: next(rest) for name in names})
        return input

    return sequential
