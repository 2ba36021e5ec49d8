"""Functions of one, two and three dimensions, made of one that is told how many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from genesis.functional.error_messages import named
from genesis.functional.registry import StatelessLayer, operation

P = ParamSpec("P")

Sizes = int | Sequence[int]  #: one for all dimensions, or one for each
Wanted = int | Sequence[int | None] | None  #: None: as many as there are

DIMENSIONS = {1: "dimension", 2: "two dimensions", 3: "three dimensions"}
SIZES = {1: "length", 2: "height, width", 3: "depth, height, width"}


def of_ranks(
    function: Callable[Concatenate[int, P], Any], *ranks: int, layer: StatelessLayer | None = None
) -> tuple[Callable[P, Any], ...]:
    """A function for each rank, its first argument, as ``f1d``, ``f2d``, ..; and their layers.

    ``{dimensions}`` and ``{sizes}`` in the description, and ``{}`` in the name of the layer, stand
    for the rank.
    """
    signature = inspect.signature(function)
    rest = signature.replace(parameters=list(signature.parameters.values())[1:])
    return tuple(_of_rank(function, rank, rest, layer) for rank in ranks)


def _of_rank(
    function: Callable[..., Any],
    rank: int,
    signature: inspect.Signature,
    layer: StatelessLayer | None,
) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(rank, *args, **kwargs)

    named(called, f"{function.__name__}{rank}d")
    doc = (function.__doc__ or "").replace("{dimensions}", DIMENSIONS[rank])
    called.__doc__ = doc.replace("{sizes}", SIZES[rank])
    called.__module__ = function.__module__
    called.__signature__ = signature  # type: ignore[attr-defined]
    if layer is not None:
        operation(called).layer = layer._replace(name=layer.name.format(rank))
    return called


__all__ = ["Sizes", "Wanted", "of_ranks"]
