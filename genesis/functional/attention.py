"""Attention: every query gives a mean of the values, weighted by how well it matches their keys.

Forward, ``softmax(scores) @ values`` is one kernel that streams over the keys: neither scores nor
weights are ever in memory. For backward it keeps the logarithm of what softmax divides by, so that
a weight is computed again from its score alone, a block at a time. The sum that the gradient of
softmax needs along the keys is one along the much shorter result instead.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.functional.activation import softmax
from genesis.functional.arithmetic import cast, where
from genesis.functional.contraction import matmul
from genesis.functional.dropout import dropout
from genesis.functional.elementary import exp
from genesis.functional.function import Function, plain
from genesis.functional.movement import reshape, transpose, unsqueeze
from genesis.functional.reduction import sum


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``softmax(query @ key.mT * scale) @ value``, over the last two dimensions.

    `attn_mask` is True where a query may look at a key, or a number to add to the score; a query
    that may look at nothing gives zeros. `is_causal` lets query i look at the keys up to i.
    `scale` is one over the root of the query's width unless given. With `enable_gqa`, dimension -3
    (heads) of the query is a multiple of that of key and value, and that many queries share a key.

    >>> import genesis
    >>> x = genesis.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> genesis.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.0)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    _check(query, key, value, attn_mask, is_causal)
    if key.shape[-2] == 0:  # nobody has anything to look at
        return matmul(matmul(query, transpose(key, -1, -2)), value)
    scale = _usual(query) if scale is None else scale
    if enable_gqa:
        heads = query.shape[-3]
        query, attn_mask = _in_groups(query, key, attn_mask)
        key, value = unsqueeze(key, -3), unsqueeze(value, -3)
    if dropout_p:
        result, _ = attention_and_weights(query, key, value, attn_mask, dropout_p, is_causal, scale)
    else:
        result, _ = attention_and_totals(query, key, value, attn_mask, is_causal, scale)
    if enable_gqa:
        result = reshape(result, (*result.shape[:-4], heads, *result.shape[-2:]))
    return result


def attention_and_totals(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Any, Any]:
    """`scaled_dot_product_attention`, and the logarithms of what softmax divides by.

    These are the ``logsumexp`` of the scores of every query, 0 for one that may look at nothing,
    and cost nothing. A weight is ``exp(score - total)``.
    """
    _check(query, key, value, attn_mask, is_causal)
    scale = _usual(query) if scale is None else scale
    result, totals = Attention.apply(query, key, value, attn_mask, is_causal, scale)
    return result, totals


def attention_and_weights(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Any, Any]:
    """`scaled_dot_product_attention`, and the weights of the means."""
    _check(query, key, value, attn_mask, is_causal)
    scale = _usual(query) if scale is None else scale
    weights, alive = _weights(_products(query, key) * scale, attn_mask, is_causal)
    if alive is not None:
        weights = where(alive, weights, 0.0)
    weights = cast(weights, query.dtype)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return matmul(weights, value), weights


def _usual(query: Any) -> float:
    """The scale that keeps scores of independent features at variance 1."""
    return 1 / math.sqrt(index(query.shape[-1]) or 1)


class Attention(Function):
    """Attention whose weights are not kept: its result, and the logarithms of their totals."""

    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float
    ) -> Any:
        wide = value.dtype.accumulator
        scores = _masked(_products(query, key) * scale, mask, causal)
        result = nd.matmul(nd.softmax(scores), nd.astype(value, wide))
        # Both are what softmax computes anyway.
        peak = nd.amax(scores, -1, True)
        total = nd.log(nd.sum(nd.exp(scores - peak), -1, True)) + peak
        if mask is not None:
            blind = peak == -math.inf
            result, total = nd.where(blind, 0.0, result), nd.where(blind, 0.0, total)
        result = nd.astype(result, value.dtype)
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(query, key, value, mask, result, total)
        return result, total

    @staticmethod
    def backward(ctx: Any, grad: Any, to_total: Any) -> Any:
        query, key, value, mask, result, total = ctx.saved_tensors
        needs, wide = ctx.needs_input_grad, value.dtype.accumulator
        scores = _masked(_products(query, key) * ctx.scale, mask, ctx.causal)
        # Minus infinity less the total of a query that may look at nothing, which is 0: no weight.
        weights = exp(scores - total)
        query, key, value, result = (cast(x, wide) for x in (query, key, value, result))
        grad = cast(grad, wide)
        to_value = matmul(transpose(weights, -1, -2), grad) if needs[2] else None
        along = sum(grad * result, -1, True) - to_total
        to_scores = weights * (matmul(grad, transpose(value, -1, -2)) - along)
        to_products = to_scores * ctx.scale
        to_query = matmul(to_products, key) if needs[0] else None
        to_key = matmul(transpose(to_products, -1, -2), query) if needs[1] else None
        return to_query, to_key, to_value, to_scores if needs[3] else None, None, None


def _products(query: Any, key: Any) -> Any:
    """How well queries match keys."""
    wide = key.dtype.accumulator
    return matmul(cast(query, wide), transpose(cast(key, wide), -1, -2))


def _masked(scores: Any, mask: Any, causal: bool) -> Any:
    """Scores that are minus infinity where a query may not look."""
    if causal:
        scores = where(plain(_past, scores), scores, -math.inf)
    if mask is None:
        return scores
    if mask.dtype.is_float:
        return scores + mask
    return where(mask, scores, -math.inf)


def _past(scores: Any) -> Any:
    """Which keys are not after the query."""
    rows, columns = scores.shape[-2:]
    query = nd.arange(rows, device=scores.device)
    return nd.unsqueeze(query, 1) >= nd.arange(columns, device=scores.device)


def _alive(mask: Any) -> Any:
    """Which queries may look at something; None if all may."""
    if mask is None:
        return None
    if mask.dtype.is_float:
        return plain(lambda x: nd.amax(x, -1, True) > -math.inf, mask)
    return plain(nd.any, mask, -1, True)


def _weights(scores: Any, mask: Any, causal: bool) -> tuple[Any, Any]:
    """The weights, finite for every query, and which queries may look at something."""
    scores = _masked(scores, mask, causal)
    alive = _alive(mask)
    if alive is not None:
        scores = where(alive, scores, 0.0)
    return softmax(scores), alive


def _in_groups(query: Any, key: Any, mask: Any) -> tuple[Any, Any]:
    """Query and mask with the heads that share a key in a dimension of their own."""
    if len(query.shape) < 3 or len(key.shape) < 3 or query.shape[-3] % key.shape[-3]:
        raise ValueError(
            f"scaled_dot_product_attention: enable_gqa needs the heads (dimension -3) of the query "
            f"{query.shape} to be a multiple of those of the key {key.shape}"
        )
    shared = key.shape[-3]
    each = query.shape[-3] // shared
    query = reshape(query, (*query.shape[:-3], shared, each, *query.shape[-2:]))
    if mask is not None and len(mask.shape) > 2:
        groups = (1, 1) if mask.shape[-3] == 1 else (shared, each)
        mask = reshape(mask, (*mask.shape[:-3], *groups, *mask.shape[-2:]))
    return query, mask


def _check(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if min(len(query.shape), len(key.shape), len(value.shape)) < 2:
        raise ValueError(f"scaled_dot_product_attention: {shapes} need at least two dimensions")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"scaled_dot_product_attention: {shapes} do not match: queries must be as wide as "
            "keys, and there must be as many keys as values"
        )
    if not (query.dtype is key.dtype is value.dtype and query.dtype.is_float):
        raise TypeError(
            "scaled_dot_product_attention: query, key and value must be of one floating dtype, not "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )
    if mask is None:
        return
    if causal:
        raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if not mask.dtype.is_float and mask.dtype.kind != "bool":
        raise TypeError(
            "scaled_dot_product_attention: attn_mask is bool, or floating point to be added, not "
            f"{mask.dtype}"
        )


__all__ = ["scaled_dot_product_attention"]
