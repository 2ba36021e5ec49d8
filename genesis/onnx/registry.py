"""The table of operators: each is a function of tensors, and says what it is by its signature.

A function's positional parameters are the operator's inputs, its keyword parameters the attributes.
What was an attribute in old versions and is an input in new ones (the axes of ``Squeeze``, say) is
one parameter that is passed either way, so most versions of an operator are one function. Where the
meaning changed there are several, each with the version it came with (`since`).

Annotations say in which form an input is wanted: `Host` as a NumPy array, because sizes or what is
computed at all depend on it; `Operand` as it is, a tensor or a constant; everything else as a
tensor. A parameter called ``outputs`` is given how many results the node names, ``version`` which
version of the operator is meant. A subgraph is given as a function of its inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: An input that must be known while the graph is built.
Host = Any
#: An input that may be a tensor or a NumPy array.
Operand = Any

Implementation = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """An operator from some version on."""

    function: Implementation
    since: int
    #: The inputs by name, and in which form each is wanted.
    inputs: tuple[tuple[str, str], ...]
    #: The form of all further inputs, if there may be any.
    more: str | None
    #: All that may be given by name; None: anything.
    options: frozenset[str] | None
    #: How many of the inputs must be given.
    required: int

    def form(self, position: int) -> str | None:
        """In which form an input is wanted; None: there is no such input."""
        return self.inputs[position][1] if position < len(self.inputs) else self.more


_TABLE: dict[tuple[str, str], list[Operator]] = {}
#: NumPy's versions of operators: what shapes are computed with, and texts.
_HOST: dict[tuple[str, str], Implementation] = {}


def operator(
    name: str, since: int = 1, domain: str = ""
) -> Callable[[Implementation], Implementation]:
    """Enter a function as the operator `name` from version `since` on."""

    def entered(function: Implementation) -> Implementation:
        versions = _TABLE.setdefault((domain, name), [])
        versions.append(_described(function, since))
        versions.sort(key=lambda e: -e.since)
        return function

    return entered


def _described(function: Implementation, since: int) -> Operator:
    parameters = list(inspect.signature(function).parameters.values())
    kinds = inspect.Parameter
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    anything = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    rest = [_form(p) for p in parameters if p.kind is kinds.VAR_POSITIONAL]
    return Operator(
        function,
        since,
        tuple((p.name, _form(p)) for p in named if p.kind is kinds.POSITIONAL_OR_KEYWORD),
        rest[0] if rest else None,
        None if anything else frozenset(p.name for p in named),
        sum(p.kind is kinds.POSITIONAL_OR_KEYWORD and p.default is kinds.empty for p in parameters),
    )


def _form(parameter: inspect.Parameter) -> str:
    return parameter.annotation if parameter.annotation in ("Host", "Operand") else "Tensor"


def on_host(name: str, domain: str = "") -> Callable[[Implementation], Implementation]:
    """Enter a function of NumPy arrays, which is used where all inputs are such arrays."""

    def entered(function: Implementation) -> Implementation:
        _HOST[domain, name] = function
        return function

    return entered


def find(domain: str, name: str, version: int) -> Operator | None:
    """What computes an operator in a version of its domain."""
    for entry in _TABLE.get((domain, name), ()):
        if entry.since <= version:
            return entry
    return None


def find_on_host(domain: str, name: str) -> Implementation | None:
    """What computes an operator of NumPy arrays."""
    return _HOST.get((domain, name))


def names() -> list[tuple[str, str]]:
    """All operators: domain and name."""
    return sorted(_TABLE.keys() | _HOST.keys())
