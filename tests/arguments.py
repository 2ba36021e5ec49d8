"""The arguments that PyTorch's functions and classes take, and how those here differ.

Where Python cannot tell them they are read from the schemas PyTorch keeps of its operations: one
for each way to call an operation, of which the nearest counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from tests.parity import NAMESPACES

#: Where the schemas of a namespace are found.
PREFIXES = {"torch.linalg": "linalg_", "torch.fft": "fft_", "torch.special": "special_"}
REQUIRED = inspect.Parameter.empty
#: Kinds that schemas write as numbers.
NUMBERED = ("dtype", "reduction")

Arguments = dict[str, Any]  # with their defaults


def differences(namespace: str, name: str) -> list[str]:
    """PyTorch's arguments of something that is here, but take another name or default, or none."""
    place = torch.Tensor if namespace == "torch.Tensor" else import_module(namespace)
    theirs, ours = getattr(place, name), getattr(NAMESPACES[namespace], name)
    own = _signature(ours)
    if own is None or (namespace == "torch" and hasattr(torch.nn.functional, name)):
        return []  # a layer's function takes what it takes in `nn.functional`
    kinds = {p.kind for p in inspect.signature(ours).parameters.values()}
    open_ended = kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    found = []
    for wanted in _ways_to_call(theirs, PREFIXES.get(namespace, "") + name):
        differing = [
            argument
            for argument, default in wanted.items()
            if (argument not in own and not open_ended)
            or (argument in own and _simple(default) not in (REQUIRED, _simple(own[argument])))
        ]
        found.append(differing)
    return min(found, key=len, default=[])


def _ways_to_call(function: Any, operation: str) -> list[Arguments]:
    told = _signature(function)
    if told is not None or inspect.isfunction(function):
        return [told or {}]
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{operation}"):
        # The first argument is what the operation is applied to, and has many names.
        arguments = schema.arguments[1:]
        if not any(a.is_out for a in arguments):
            found.append(
                {
                    a.name: a.default_value if a.has_default_value() else REQUIRED
                    for a in arguments
                    if a.name not in NUMBERED and a.name != "self"
                }
            )
    return found


def _signature(function: Callable[..., Any]) -> Arguments | None:
    """What Python knows of a function's arguments; None if that is nothing."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = {p.name: p.default for p in parameters if p.kind not in variable}
    found.pop("self", None)
    return found or None


def _simple(default: Any) -> Any:
    """A default that may be compared: one number stands for as many as there are dimensions."""
    if isinstance(default, list | tuple):
        return default[0] if len(set(default)) == 1 else tuple(default) or None
    return default.__name__ if inspect.isfunction(default) else default
