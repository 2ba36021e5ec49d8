"""The gradient of layer normalisation, for the input and for both weights.

With ``xhat = (x - mean) * rstd`` and ``g = dy * gamma``, row by row::

    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))

which needs only its own row. The weights' gradients are sums over all rows, ``dgamma = sum(dy *
xhat)`` and ``dbeta = sum(dy)``, and many blocks must add to the same numbers. Instead of atomic
additions, whose order would change from run to run, every block writes the sums of its own rows
to a row of a temporary; after the barrier a second phase adds those in order. The same bits come
out whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder, cast
from genesis.ir.node import TRUE, Node


def build(rows: int = 8, width: int = 16) -> Kernel:
    """dx, dgamma and dbeta of an [M, N] layer norm; a block has `rows` rows."""
    k = Builder("layer_norm_backward")
    M, N = k.symbol("M"), k.symbol("N")
    dy, x = k.input("dy", float32, M, N), k.input("x", float32, M, N)
    mean, rstd = k.input("mean", float32, M), k.input("rstd", float32, M)
    gamma = k.input("gamma", float32, N)
    dx = k.output("dx", float32, M, N)
    dgamma, dbeta = k.output("dgamma", float32, N), k.output("dbeta", float32, N)
    blocks, tiles = (M + (rows - 1)) // rows, (N + (width - 1)) // width
    partial_gamma = k.temporary("partial_gamma", float32, blocks, N)
    partial_beta = k.temporary("partial_beta", float32, blocks, N)
    zero = k.const(0.0, float32)
    v = k.tile("v", width)

    def normalised(r: Node, column: Node, inside: Node, row_inside: Node = TRUE) -> Node:
        centred = x.load(r, column, mask=inside) - mean.load(r, mask=row_inside)
        return centred * rstd.load(r, mask=row_inside)

    block = k.grid("block", blocks)
    with k.loop("i", rows) as (i,), k.when(block * rows + i < M):
        r = block * rows + i
        with k.loop("c0", tiles, g_sum=zero, gx_sum=zero, tiles=[v]) as (c, g_sum, gx_sum):
            column = c * width + v
            inside = column < N
            g = dy.load(r, column, mask=inside) * gamma.load(column, mask=inside)
            k.step(g_sum=g_sum + g, gx_sum=gx_sum + g * normalised(r, column, inside))
        (g_total,) = k.reduce(v, ops.ADD, g_total=g_sum)
        (gx_total,) = k.reduce(v, ops.ADD, gx_total=gx_sum)
        g_mean = k.let("g_mean", g_total / cast(N, float32))
        gx_mean = k.let("gx_mean", gx_total / cast(N, float32))
        with k.loop("c1", tiles) as (c,):
            column = c * width + v
            inside = column < N
            g = dy.load(r, column, mask=inside) * gamma.load(column, mask=inside)
            change = g - g_mean - normalised(r, column, inside) * gx_mean
            k.store(dx, (r, column), change * rstd[r], mask=inside)
    with k.loop("c2", tiles) as (c,):
        column = c * width + v
        with k.loop("j", rows, dg=zero, db=zero, tiles=[v]) as (j, dg, db):
            r = block * rows + j
            inside = (column < N) & (r < M)
            gradient = dy.load(r, column, mask=inside)
            product = gradient * normalised(r, column, inside, row_inside=r < M)
            k.step(dg=dg + product, db=db + gradient)
        k.store(partial_gamma, (block, column), dg, mask=column < N)
        k.store(partial_beta, (block, column), db, mask=column < N)

    k.barrier()
    column = k.grid("tile", tiles) * width + v
    inside = column < N
    with k.loop("b", blocks, dg_sum=zero, db_sum=zero, tiles=[v]) as (b, dg_sum, db_sum):
        k.step(
            dg_sum=dg_sum + partial_gamma.load(b, column, mask=inside),
            db_sum=db_sum + partial_beta.load(b, column, mask=inside),
        )
    k.store(dgamma, (column,), dg_sum, mask=inside)
    k.store(dbeta, (column,), db_sum, mask=inside)
    return k.kernel()


def arguments(rng: np.random.Generator, M: int, N: int) -> dict[str, Any]:
    """A random gradient, and an input with the statistics a forward pass would have saved."""
    x = rng.standard_normal((M, N), np.float32)
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + np.float32(1e-5))
    return {
        "dy": rng.standard_normal((M, N), np.float32),
        "x": x,
        "mean": mean,
        "rstd": rstd,
        "gamma": rng.standard_normal(N, np.float32),
        "dx": np.empty((M, N), np.float32),
        "dgamma": np.empty(N, np.float32),
        "dbeta": np.empty(N, np.float32),
        "M": M,
        "N": N,
    }


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The formulas above in float64."""
    names = ("dy", "x", "mean", "rstd", "gamma")
    dy, x, mean, rstd, gamma = (arguments[n].astype(np.float64) for n in names)
    xhat = (x - mean[:, None]) * rstd[:, None]
    g = dy * gamma
    projected = xhat * (g * xhat).mean(axis=1, keepdims=True)
    dx = rstd[:, None] * (g - g.mean(axis=1, keepdims=True) - projected)
    return {"dx": dx, "dgamma": (dy * xhat).sum(axis=0), "dbeta": dy.sum(axis=0)}
