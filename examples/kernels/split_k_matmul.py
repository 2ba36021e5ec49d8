"""Matrix multiplication of few rows and columns over a long K: the sum itself is split.

A small C has too few tiles to occupy a machine. So the grid gets a third axis: block ``(s, i, j)``
multiplies only the s-th stretch of K and writes its share to a temporary, and after the barrier a
second phase adds the shares in order. A stretch has a fixed length, so the number of shares, and
with it every bit of the result, depends on K and on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder


def build(stretch: int = 256, rows: int = 4, columns: int = 16) -> Kernel:
    """``C[M, N] = A[M, K] @ B[K, N]`` in stretches of K, by tiles of `rows` x `columns`."""
    k = Builder("split_k_matmul")
    M, N, K = k.symbol("M"), k.symbol("N"), k.symbol("K")
    A, B = k.input("A", float32, M, K), k.input("B", float32, K, N)
    C = k.output("C", float32, M, N)
    row_tiles, column_tiles = (M + (rows - 1)) // rows, (N + (columns - 1)) // columns
    shares = (K + (stretch - 1)) // stretch
    partial = k.temporary("partial", float32, shares, M, N)
    zero = k.const(0.0, float32)
    i, j = k.tile("i", rows), k.tile("j", columns)

    s = k.grid("s", shares)
    row = k.grid("rt", row_tiles) * rows + i
    column = k.grid("ct", column_tiles) * columns + j
    inside = (row < M) & (column < N)
    with k.loop("d", stretch, acc=zero, tiles=[i, j]) as (d, acc):
        at = s * stretch + d
        left = A.load(row, at, mask=(row < M) & (at < K))
        right = B.load(at, column, mask=(at < K) & (column < N))
        k.step(acc=acc + left * right)
    k.store(partial, (s, row, column), acc, mask=inside)

    k.barrier()
    row = k.grid("rt1", row_tiles) * rows + i
    column = k.grid("ct1", column_tiles) * columns + j
    inside = (row < M) & (column < N)
    with k.loop("share", shares, total=zero, tiles=[i, j]) as (share, total):
        k.step(total=total + partial.load(share, row, column, mask=inside))
    k.store(C, (row, column), total, mask=inside)
    return k.kernel()


def arguments(rng: np.random.Generator, M: int, N: int, K: int) -> dict[str, Any]:
    """Random matrices of these sizes."""
    return {
        "A": rng.standard_normal((M, K), np.float32),
        "B": rng.standard_normal((K, N), np.float32),
        "C": np.empty((M, N), np.float32),
        "M": M,
        "N": N,
        "K": K,
    }


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The product in float64."""
    return {"C": arguments["A"].astype(np.float64) @ arguments["B"].astype(np.float64)}
