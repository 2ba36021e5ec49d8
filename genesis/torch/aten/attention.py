"""Attention, forward and backward, under the names of PyTorch's fused kernels.

Forward is one kernel that streams over the keys. Backward computes the weights again, from the
scores and the logarithm of their sums that forward gives.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

from genesis import ndarray as nd
from genesis.functional.attention import (
    Attention,
    attention_and_totals,
    attention_and_weights,
    scaled_dot_product_attention,
)
from genesis.functional.reduction import fit
from genesis.ndarray import NDArray
from genesis.torch.aten.gradient import gradient_of
from genesis.torch.aten.registry import Unsupported, generator, implements


def _usual(query: NDArray, scale: float | None) -> float:
    return 1 / math.sqrt(index(query.shape[-1]) or 1) if scale is None else scale


def _attention(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    mask: NDArray | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> tuple[NDArray, NDArray]:
    """The result, and the logarithms of the sums of what softmax divides by them."""
    if dropout_p:
        raise Unsupported("dropout inside of attention")
    key, value = (_each_head(x, query) for x in (key, value))
    # A query that may look at nothing has no weights: exp(-inf - 0) when they are computed again.
    result, totals = attention_and_totals(query, key, value, mask, causal, _usual(query, scale))
    return result, nd.squeeze(totals, -1)


def _each_head(x: NDArray, query: NDArray) -> NDArray:
    """Keys or values for every head of the query, if some share them."""
    if x.ndim < 3 or x.shape[-3] == query.shape[-3]:
        return x
    each = index(query.shape[-3]) // index(x.shape[-3])
    *batch, heads, length, width = x.shape
    shared = nd.expand(nd.unsqueeze(x, -3), (*batch, heads, each, length, width))
    return nd.reshape(shared, (*batch, heads * each, length, width))


def _attention_backward(
    grad: NDArray,
    query: NDArray,
    key: NDArray,
    value: NDArray,
    out: NDArray,
    logsumexp: NDArray,
    mask: NDArray | None,
    causal: bool,
    scale: float | None,
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """The gradients for query, key and value, and for the scores."""
    dtype, scale, heads = query.dtype, _usual(query, scale), key.shape[-3]
    keys, values = (_each_head(x, query) for x in (key, value))
    saved = query, keys, values, mask, out, nd.unsqueeze(logsumexp, -1)
    found = gradient_of(Attention, saved, grad, 0.0, causal=causal, scale=scale)
    to_query, to_key, to_value, to_scores, *_ = found
    to_key, to_value = (_over_heads(x, heads) for x in (to_key, to_value))
    return to_query.astype(dtype), to_key.astype(dtype), to_value.astype(dtype), to_scores


def _over_heads(x: NDArray, heads: Any) -> NDArray:
    """The sum over the heads that share a key."""
    *batch, all_heads, length, width = x.shape
    if all_heads == heads:
        return x
    return nd.sum(nd.reshape(x, (*batch, heads, all_heads // heads, length, width)), -3)


@implements("_scaled_dot_product_flash_attention_for_cpu")
def _flash_for_cpu(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: NDArray | None = None,
    scale: float | None = None,
) -> tuple[NDArray, NDArray]:
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)


@implements("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_for_cpu_backward(
    grad_out: NDArray,
    query: NDArray,
    key: NDArray,
    value: NDArray,
    out: NDArray,
    logsumexp: NDArray,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: NDArray | None = None,
    scale: float | None = None,
) -> tuple[NDArray, NDArray, NDArray]:
    if dropout_p:
        raise Unsupported("dropout inside of attention")
    given = grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale
    return _attention_backward(*given)[:3]


@implements("_scaled_dot_product_fused_attention_overrideable")
def _fused(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_bias: NDArray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, logsumexp = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    seed = nd.zeros((), nd.arange(0).dtype, query.device)
    lengths = query.shape[-2], key.shape[-2]
    return out, logsumexp, None, None, *lengths, seed, seed, None


def _with_bias(
    wanted: list[bool],
    grad: NDArray,
    query: NDArray,
    key: NDArray,
    value: NDArray,
    bias: NDArray | None,
    *how: Any,
) -> tuple[NDArray | None, ...]:
    """The gradients that are wanted, of the bias as well; `how`: see `_attention_backward`."""
    out, logsumexp, causal, scale = how
    given = grad, query, key, value, out, logsumexp, bias, causal, scale
    *gradients, to_scores = _attention_backward(*given)
    to_bias = None
    if bias is not None and wanted[3]:
        to_bias = fit(to_scores, bias.shape, bias.dtype)
    found = (*gradients, to_bias)
    return tuple(x if asked else None for x, asked in zip(found, wanted, strict=True))


@implements("_scaled_dot_product_fused_attention_overrideable_backward")
def _fused_backward(
    grad: NDArray, *given: Any, scale: float | None = None
) -> tuple[NDArray | None, ...]:
    query, key, value, bias, wanted, out, logsumexp, *rest = given
    causal = rest[5]  # after lengths and dropout
    return _with_bias(wanted, grad, query, key, value, bias, out, logsumexp, causal, scale)


@implements("_scaled_dot_product_efficient_attention")
def _efficient(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_bias: NDArray | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, logsumexp = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    seed = nd.zeros((), nd.arange(0).dtype, query.device)
    return out, logsumexp, seed, seed


@implements("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    grad: NDArray, *given: Any, scale: float | None = None
) -> tuple[NDArray | None, ...]:
    query, key, value, bias, out, logsumexp, _, _, _, wanted, *causal = given
    how = out, logsumexp, bool(causal and causal[0]), scale
    return _with_bias(wanted, grad, query, key, value, bias, *how)


@implements("_scaled_dot_product_attention_math")
def _math(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_mask: NDArray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: NDArray | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[NDArray, NDArray]:
    if attn_mask is not None:  # whatever it is, it is added
        attn_mask = attn_mask.astype(query.dtype)
    given = query, key, value, attn_mask, dropout_p, is_causal, dropout_mask
    return _weighted(*given, _usual(query, scale), enable_gqa)


def _weighted(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    mask: NDArray | None,
    dropout_p: float,
    causal: bool,
    kept: NDArray | None,
    scale: float,
    enable_gqa: bool,
) -> tuple[NDArray, NDArray]:
    """The result and the weights, some of which may be dropped."""
    if enable_gqa:
        key, value = (_each_head(x, query) for x in (key, value))
    result, weights = attention_and_weights(query, key, value, mask, 0.0, causal, scale)
    if kept is None and dropout_p:
        kept = nd.random.uniform(weights.shape, generator=generator()) >= dropout_p
    if kept is not None:
        weights = nd.where(kept, weights * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0), 0.0)
        result = nd.matmul(weights, value)
    return result, weights


@implements("scaled_dot_product_attention")
def _whole(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_mask: NDArray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> NDArray:
    if dropout_p:
        given = query, key, value, attn_mask, dropout_p, is_causal, None
        return _weighted(*given, _usual(query, scale), enable_gqa)[0]
    result: NDArray = scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
    )
    return result
