"""Functions of one, two and three dimensions, and the layers that compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from genesis.functional.registry import Layer, operation
from genesis.ndarray.ops import variants

P = ParamSpec("P")

Sizes = int | Sequence[int]  #: one for all dimensions, or one for each
Wanted = int | Sequence[int | None] | None  #: None: as many as there are


def of_ranks(
    function: Callable[Concatenate[int, P], Any], *ranks: int, layer: Layer | None = None
) -> tuple[Callable[P, Any], ...]:
    """A function for each rank, its first argument, as ``f1d``, ``f2d``, ..; and their layers.

    ``{}`` in the name of the layer stands for the rank, as ``{dimensions}`` and ``{sizes}`` do in
    the description.
    """
    found = variants.of_ranks(function, *ranks)
    for rank, each in zip(ranks, found, strict=True):
        if layer is not None:
            operation(each).layer = layer._replace(name=layer.name.format(rank))
    return found


__all__ = ["Sizes", "Wanted", "of_ranks"]
