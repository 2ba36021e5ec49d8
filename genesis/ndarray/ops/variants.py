"""Families of functions, made of one that is told by its first argument which of them it is.

They are functions like any other: with a name, a description and a signature of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


def variant(
    function: Callable[Concatenate[A, P], R], first: A, name: str, doc: str | None = None
) -> Callable[P, R]:
    """The function with its first argument given; its description, too, unless there is another."""
    whole = cast(FunctionType, function)

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(first, *args, **kwargs)

    code = called.__code__.replace(co_name=name, co_qualname=name)
    # Of the module that the function is in: errors and tracebacks look for the caller there.
    made = FunctionType(code, whole.__globals__, name, None, called.__closure__)
    made.__doc__ = whole.__doc__ if doc is None else doc
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[1:]
    made.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return cast(Callable[P, R], made)


_WORDS: dict[str, dict[int | None, str]] = {
    "axes": {None: "spatial axes", 1: "one axis", 2: "two axes", 3: "three axes"},
    "dimensions": {1: "dimension", 2: "two dimensions", 3: "three dimensions"},
    "sizes": {1: "length", 2: "height, width", 3: "depth, height, width"},
}


def of_ranks(
    function: Callable[Concatenate[Any, P], R], *ranks: int | None, name: str | None = None
) -> tuple[Callable[P, R], ...]:
    """A function for each rank, its first argument, as ``f1d``, ``f2d``, .., or ``f`` for None.

    ``{axes}``, ``{dimensions}`` and ``{sizes}`` in the description stand for the rank.
    """
    family = name or function.__name__.strip("_")
    made = []
    for rank in ranks:
        doc = function.__doc__ or ""
        for word, meant in _WORDS.items():
            doc = doc.replace(f"{{{word}}}", meant.get(rank, ""))
        made.append(variant(function, rank, family if rank is None else f"{family}{rank}d", doc))
    return tuple(made)


__all__ = ["of_ranks", "variant"]
