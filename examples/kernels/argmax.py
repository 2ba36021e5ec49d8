"""The largest element of a vector and where it is: a reduction of a pair, of any length.

A reduction is an initial state and a way to *merge* two states. Here a state is a pair (value,
position), and merging keeps the larger value, or the earlier position of equal ones. 16 lanes
search for themselves in a loop that carries 16 pairs, then `reduce` merges the lanes.

The length is known only at launch. The loop takes the full tiles without any mask; the rest, fewer
than 16 elements, is one more step outside of it (a *peeled* tail), with a mask. NaNs never win.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genesis.ir.dtype import float32, int64
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder, where
from genesis.ir.node import Node


def better(left: Sequence[Node], right: Sequence[Node]) -> tuple[Node, Node]:
    """Merge two pairs of value and position."""
    (a, i), (b, j) = left, right
    take = (b > a) | (b.equal(a) & (j < i))
    return where(take, b, a), where(take, j, i)


def build(width: int = 16) -> Kernel:
    """The largest of N elements (N > 0) and its first position."""
    k = Builder("argmax")
    N = k.symbol("N", low=1)
    x = k.input("x", float32, N)
    value, position = k.output("value", float32), k.output("position", int64)
    v = k.tile("v", width)
    lowest, first = k.const(-math.inf, float32), k.const(0, int64)

    with k.loop("c", N // width, merge=better, tiles=[v], most=lowest, at=first) as (c, most, at):
        i = c * width + v
        new_most, new_at = better((most, at), (x[i], i))
        k.step(most=new_most, at=new_at)
    i = N // width * width + v
    last = x.load(i, mask=i < N, other=lowest)
    tail = better((most, at), (last, where(i < N, i, first)))
    most = k.let("tail_most", tail[0])
    at = k.let("tail_at", tail[1])
    largest, where_it_is = k.reduce(v, better, largest=most, where_it_is=at)
    k.store(value, (), largest)
    k.store(position, (), where_it_is)
    return k.kernel()


def arguments(rng: np.random.Generator, N: int) -> dict[str, Any]:
    """A vector of few different values: there are ties."""
    x = rng.integers(-4, 4, N).astype(np.float32)
    return {"x": x, "value": np.empty((), np.float32), "position": np.empty((), np.int64), "N": N}


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """NumPy's maximum and first position."""
    x = arguments["x"].astype(np.float64)
    return {"value": x.max(), "position": x.argmax()}
