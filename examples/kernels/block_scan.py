"""Prefix sums of a long vector, by blocks: ``y[i] = x[0] + .. + x[i]``.

A prefix sum looks sequential; three phases make it parallel. Every block sums its elements; one
block turns these totals into the offset each block starts from; then every block scans its
elements from its offset. The input is read twice and the output written once.

Inside a block the vector goes by in tiles. `scan` gives all 16 prefixes of a tile at once, and a
loop carries the sum of the tiles before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder


def build(tiles: int = 64, width: int = 16) -> Kernel:
    """Inclusive prefix sums of N floats; a block has `tiles` tiles of `width`."""
    k = Builder("block_scan")
    N = k.symbol("N")
    x, y = k.input("x", float32, N), k.output("y", float32, N)
    size = tiles * width
    blocks = (N + (size - 1)) // size
    totals = k.temporary("totals", float32, blocks)
    offsets = k.temporary("offsets", float32, blocks + 1)
    zero = k.const(0.0, float32)
    v = k.tile("v", width)

    b = k.grid("b0", blocks)
    with k.loop("t0", tiles, sums=zero, tiles=[v]) as (t, sums):
        i = b * size + t * width + v
        k.step(sums=sums + x.load(i, mask=i < N))
    (block_sum,) = k.reduce(v, ops.ADD, block_sum=sums)
    k.store(totals, (b,), block_sum)

    k.barrier()
    k.store(offsets, (0,), zero)
    with k.loop("t1", (blocks + (width - 1)) // width, before=zero) as (t, before):
        i = t * width + v
        total = totals.load(i, mask=i < blocks)
        (prefix,) = k.scan(v, ops.ADD, prefix=total)
        (tile_sum,) = k.reduce(v, ops.ADD, tile_sum=total)
        k.store(offsets, (i + 1,), before + prefix, mask=i < blocks)
        k.step(before=before + tile_sum)

    k.barrier()
    b = k.grid("b2", blocks)
    with k.loop("t2", tiles, running=offsets[b]) as (t, running):
        i = b * size + t * width + v
        element = x.load(i, mask=i < N)
        (within,) = k.scan(v, ops.ADD, within=element)
        (sum_here,) = k.reduce(v, ops.ADD, sum_here=element)
        k.store(y, (i,), running + within, mask=i < N)
        k.step(running=running + sum_here)
    return k.kernel()


def arguments(rng: np.random.Generator, N: int) -> dict[str, Any]:
    """A random vector."""
    x = rng.standard_normal(N, np.float32)
    return {"x": x, "y": np.empty_like(x), "N": N}


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prefix sums in float64."""
    return {"y": np.cumsum(arguments["x"].astype(np.float64))}
