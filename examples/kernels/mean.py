"""The mean of a long vector in two phases: the smallest kernel with a barrier.

Blocks sum pieces of the vector and leave their sums in a temporary; after the barrier one block
adds these and divides. The phases are separate launches on a GPU. The size of a piece is fixed,
so the order of the additions, and every bit of the result, depends on the length alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder, cast


def build(tiles: int = 64, width: int = 16) -> Kernel:
    """The mean of N floats; a block sums `tiles` tiles of `width`."""
    k = Builder("mean")
    N = k.symbol("N")
    x, y = k.input("x", float32, N), k.output("y", float32)
    size = tiles * width
    blocks = (N + (size - 1)) // size
    sums = k.temporary("sums", float32, blocks)
    zero = k.const(0.0, float32)
    v = k.tile("v", width)

    b = k.grid("b", blocks)
    with k.loop("t", tiles, acc=zero, tiles=[v]) as (t, acc):
        i = b * size + t * width + v
        k.step(acc=acc + x.load(i, mask=i < N))
    (block_sum,) = k.reduce(v, ops.ADD, block_sum=acc)
    k.store(sums, (b,), block_sum)

    k.barrier()
    with k.loop("n", blocks, total=zero) as (n, total):
        k.step(total=total + sums[n])
    k.store(y, (), total / cast(N, float32))
    return k.kernel()


def arguments(rng: np.random.Generator, N: int) -> dict[str, Any]:
    """A vector whose mean is not near zero."""
    x = 3 + rng.standard_normal(N, np.float32)
    return {"x": x, "y": np.empty((), np.float32), "N": N}


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The mean in float64."""
    return {"y": arguments["x"].mean(dtype=np.float64)}
