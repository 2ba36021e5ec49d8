"""Functions of one, two and three spatial axes, made of one that is told how many."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

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
    made = cast(FunctionType, function)
    return tuple(_of_rank(made, rank, name or made.__name__.strip("_")) for rank in ranks)


def _of_rank(function: FunctionType, rank: int | None, name: str) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(rank, *args, **kwargs)

    public = name if rank is None else f"{name}{rank}d"
    code = called.__code__.replace(co_name=public, co_qualname=public)
    # Of the module that the function is in: errors and tracebacks look for the caller there.
    made = FunctionType(code, function.__globals__, public, None, called.__closure__)
    made.__doc__ = function.__doc__ or ""
    for word, meant in _WORDS.items():
        made.__doc__ = made.__doc__.replace(f"{{{word}}}", meant.get(rank, ""))
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[1:]
    made.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return made


__all__ = ["of_ranks"]
