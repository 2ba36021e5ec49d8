"""Softmax of every row, in three passes over it.

The first kernel with TILE axes to read. A row is cut into tiles of 16 columns: ``v`` is the
position inside a tile, and every expression that mentions it is 16 values at once. The last tile
may stick out of the row, so each access has a mask, and a load says what a masked-off element
counts as: minus infinity, which changes no maximum and has exponential 0.

The loops carry a whole tile (16 running maxima, 16 running sums). Only after a loop does `reduce`
combine the 16 into one: the expensive step across lanes happens once a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder, exp, maximum
from genesis.ir.node import Node


def build(width: int = 16) -> Kernel:
    """``y[r, :] = softmax(x[r, :])`` for any number of rows and columns."""
    k = Builder("softmax")
    M, N = k.symbol("M"), k.symbol("N")
    x, y = k.input("x", float32, M, N), k.output("y", float32, M, N)
    r, v = k.grid("r", M), k.tile("v", width)
    tiles = (N + (width - 1)) // width
    lowest = k.const(-math.inf, float32)

    def read(column: Node) -> Node:
        return x.load(r, column, mask=column < N, other=lowest)

    with k.loop("c0", tiles, largest=lowest, tiles=[v]) as (c, largest):
        k.step(largest=maximum(largest, read(c * width + v)))
    (m,) = k.reduce(v, ops.MAX, m=largest)
    with k.loop("c1", tiles, sums=k.const(0.0, float32), tiles=[v]) as (c, sums):
        k.step(sums=sums + exp(read(c * width + v) - m))
    (total,) = k.reduce(v, ops.ADD, total=sums)
    with k.loop("c2", tiles) as (c,):
        column = c * width + v
        k.store(y, (r, column), exp(read(column) - m) / total, mask=column < N)
    return k.kernel()


def arguments(rng: np.random.Generator, M: int, N: int) -> dict[str, Any]:
    """Rows with large entries: exponentials overflow unless the maximum is subtracted."""
    x = 50 * rng.standard_normal((M, N), np.float32)
    return {"x": x, "y": np.empty_like(x), "M": M, "N": N}


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Softmax in float64."""
    x = arguments["x"].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-math.inf))
    return {"y": e / e.sum(axis=1, keepdims=True)}
