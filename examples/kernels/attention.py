"""Attention without the matrix of scores: softmax computed while the keys stream past.

A block owns some queries and loops over blocks of keys. It carries three values: the largest
score so far ``m``, the sum of exponentials ``total`` and the weighted sum of values ``acc``, both
relative to ``m``. When a block of keys brings a larger score, what was gathered is rescaled by
``exp(m_old - m_new)``; after the last block ``acc / total`` is the result. Memory traffic is that
of the inputs, however long the sequence is.

The weights of one block of keys are needed twice with different tile axes: as ``[query, key]``
when they are computed, and key by key when they multiply the values. A stage in fast memory
connects the two.

With `causal` a query sees the keys up to its own position: the mask says so element by element,
and the loop ends at the last block that any query of the block can see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder, exp, maximum, where


def build(head_size: int = 32, queries: int = 4, keys: int = 16, causal: bool = False) -> Kernel:
    """``out[h] = softmax(scale * q[h] @ k[h].T) @ v[h]`` for H heads and S positions."""
    b = Builder("causal_attention" if causal else "attention")
    H, S = b.symbol("H"), b.symbol("S")
    q = b.input("q", float32, H, S, head_size)
    k = b.input("k", float32, H, S, head_size)
    v = b.input("v", float32, H, S, head_size)
    out = b.output("out", float32, H, S, head_size)
    scale = b.param("scale", float32)
    h, qb = b.grid("h", H), b.grid("qb", (S + (queries - 1)) // queries)
    i, j, d = b.tile("i", queries), b.tile("j", keys), b.tile("d", head_size)
    row = qb * queries + i
    zero, lowest = b.const(0.0, float32), b.const(-math.inf, float32)
    weights = b.stage("weights", float32, queries, keys)

    blocks = (qb * queries + (queries + keys - 1)) // keys if causal else (S + (keys - 1)) // keys
    carried = {"m": [i], "total": [i], "acc": [i, d]}
    state = b.loop("kb", blocks, tiles=carried, m=lowest, total=zero, acc=zero)
    with state as (kb, m, total, acc):
        key = kb * keys + j
        with b.loop("e", head_size, dot=zero, tiles=[i, j]) as (e, dot):
            left = q.load(h, row, e, mask=row < S)
            right = k.load(h, key, e, mask=key < S)
            b.step(dot=dot + left * right)
        visible = (key < S) & (key <= row) if causal else key < S
        score = b.let("score", where(visible, dot * scale, lowest))
        (block_m,) = b.reduce(j, ops.MAX, block_m=score)
        new_m = b.let("new_m", maximum(m, block_m))
        weight = b.let("weight", exp(score - new_m))
        (block_total,) = b.reduce(j, ops.ADD, block_total=weight)
        rescale = b.let("rescale", exp(m - new_m))
        b.store(weights, (i, j), weight)
        with b.loop("n", keys, weighted=acc * rescale) as (n, weighted):
            one = kb * keys + n
            b.step(weighted=weighted + weights[i, n] * v.load(h, one, d, mask=one < S))
        b.step(m=new_m, total=total * rescale + block_total, acc=weighted)
    b.store(out, (h, row, d), acc / total, mask=row < S)
    return b.kernel()


def arguments(rng: np.random.Generator, H: int, S: int, head_size: int = 32) -> dict[str, Any]:
    """Random queries, keys and values."""
    q, k, v = rng.standard_normal((3, H, S, head_size), np.float32)
    scale = 1 / math.sqrt(head_size)
    return {"q": q, "k": k, "v": v, "out": np.empty_like(q), "scale": scale, "H": H, "S": S}


def reference(arguments: Mapping[str, Any], causal: bool = False) -> dict[str, Any]:
    """Attention through the matrix of scores, in float64."""
    q, k, v = (arguments[n].astype(np.float64) for n in "qkv")
    scores = arguments["scale"] * q @ k.transpose(0, 2, 1)
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -math.inf)
    e = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-math.inf))
    return {"out": e / e.sum(axis=2, keepdims=True) @ v}
