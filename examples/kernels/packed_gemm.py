"""Matrix multiplication ``C = A @ B`` from packed panels.

A fast CPU multiplication spends its time in one small piece of code: a tile of 6 x 64 values of C
stays in registers while the loop over k adds ``column of A * row of B``. Everything around it
serves to feed that loop from contiguous memory:

- a block of the grid owns ``row_block x column_block`` elements of C,
- it walks over K in steps of `depth_block` and copies its piece of A and B into *stages*, private
  fast memory. A becomes panels of 6 rows stored column by column, ``a[panel][k][6]``; B becomes
  panels of 64 columns stored row by row, ``b[panel][k][64]``,
- the loop over k then reads both panels from front to back.

Edges are masked where data enters and leaves the block: packing fills with zeros what lies outside
of A and B, the final store writes only what lies inside of C, and the hot loop has no mask at all.
What is left of K after the full steps is a second copy of the same code with a shorter loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir.dtype import float32
from genesis.ir.kernel import Index, Kernel
from genesis.ir.kernel_builder import Builder

ROWS, COLUMNS = 6, 64  # the register tile: 24 vectors of 16 floats, and room for A and B


def build(row_block: int = 96, column_block: int = 256, depth_block: int = 256) -> Kernel:
    """``C[M, N] = A[M, K] @ B[K, N]`` for every M, N and K."""
    k = Builder("packed_gemm")
    M, N, K = k.symbol("M"), k.symbol("N"), k.symbol("K")
    A, B = k.input("A", float32, M, K), k.input("B", float32, K, N)
    C = k.output("C", float32, M, N)
    row_panels, column_panels = row_block // ROWS, column_block // COLUMNS
    rb = k.grid("rb", (M + (row_block - 1)) // row_block)
    cb = k.grid("cb", (N + (column_block - 1)) // column_block)
    i, j = k.tile("i", ROWS), k.tile("j", COLUMNS)

    with k.loop("p", row_panels) as (p,), k.loop("q", column_panels) as (q,):
        row, column = rb * row_block + p * ROWS + i, cb * column_block + q * COLUMNS + j
        k.store(C, (row, column), k.const(0.0, float32), mask=(row < M) & (column < N))

    def accumulate(name: str, first: Index, depth: Index) -> None:
        """Add the product over ``first <= k < first + depth``."""
        a = k.stage(f"{name}_a", float32, row_panels, depth_block, ROWS)
        b = k.stage(f"{name}_b", float32, column_panels, depth_block, COLUMNS)
        with k.loop(f"{name}_ap", row_panels) as (p,), k.loop(f"{name}_ak", depth) as (d,):
            row = rb * row_block + p * ROWS + i
            k.store(a, (p, d, i), A.load(row, d + first, mask=row < M))
        with k.loop(f"{name}_bp", column_panels) as (q,), k.loop(f"{name}_bk", depth) as (d,):
            column = cb * column_block + q * COLUMNS + j
            k.store(b, (q, d, j), B.load(d + first, column, mask=column < N))
        with k.loop(f"{name}_q", column_panels) as (q,), k.loop(f"{name}_p", row_panels) as (p,):
            top, left = rb * row_block + p * ROWS, cb * column_block + q * COLUMNS
            row, column = top + i, left + j
            inside = (row < M) & (column < N)
            with k.when((top < M) & (left < N)):
                start = C.load(row, column, mask=inside)
                with k.loop(f"{name}_k", depth, acc=start) as (d, acc):
                    k.step(acc=acc + a[p, d, i] * b[q, d, j])
                k.store(C, (row, column), acc, mask=inside)

    with k.loop("kb", K // depth_block) as (kb,):
        accumulate("full", kb * depth_block, depth_block)
    accumulate("tail", K // depth_block * depth_block, K % depth_block)
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
