"""Sorting and searching, along the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def sort(options: tuple[bool], x: Array) -> tuple[Array, Array]:
    """Sorted elements and where they came from; options (descending).

    Stable: equal elements keep their order. NaN is greater than every number, and -0.0 equals 0.0.
    """
    (descending,) = options
    # Reversed before and after: so equal elements keep their order from largest to smallest, too.
    ordered = x[..., ::-1] if descending else x
    if ordered.dtype.kind == "V":  # bfloat16, whose NaN NumPy does not put in order
        ordered = ordered.astype(np.float32)
    order = np.argsort(ordered, axis=-1, kind="stable")
    if descending:
        order = x.shape[-1] - 1 - order[..., ::-1]
    return np.take_along_axis(x, order, -1), order.astype(np.int64)


def select(options: tuple[()], x: Array, ranks: Array) -> tuple[Array, Array]:
    """The elements at some places of each sorted row, from 0 on, and where they came from.

    `ranks` are several for each row; those below 0 and past the end stand for the ends.
    """
    values, order = sort((False,), x)
    where = np.clip(ranks, 0, x.shape[-1] - 1)
    return np.take_along_axis(values, where, -1), np.take_along_axis(order, where, -1)


def topk(options: tuple[int, bool], x: Array) -> tuple[Array, Array]:
    """The first k of the sorted elements and where they came from; options (k, largest)."""
    k, largest = options
    values, order = sort((largest,), x)
    return values[..., :k], order[..., :k]


__all__ = ["select", "sort", "topk"]
