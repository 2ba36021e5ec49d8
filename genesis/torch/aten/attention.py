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
from genesis.ir.dtype import int64
from genesis.ndarray import NDArray
from genesis.torch.aten.backward import gradient_of
from genesis.torch.aten.registry import Unsupported, generator, implements, operators

_TILE = 32


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
    _require_no(dropout_p)
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
    grad: NDArray, qkv: tuple[NDArray, ...], saved: tuple[NDArray, ...], *how: Any
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """The gradients for query, key and value, and for the scores.

    `saved` are the results of forward; `how` are the mask, whether it is causal, and the scale.
    """
    (query, key, value), (out, logsumexp), (mask, causal, scale) = qkv, saved, how
    dtype, scale, heads = query.dtype, _usual(query, scale), key.shape[-3]
    keys, values = (_each_head(x, query) for x in (key, value))
    given = query, keys, values, mask, out, nd.unsqueeze(logsumexp, -1)
    found = gradient_of(Attention, given, grad, 0.0, causal=causal, scale=scale)
    to_query, to_key, to_value, to_scores, *_ = found
    to_key, to_value = (_over_heads(x, heads) for x in (to_key, to_value))
    return to_query.astype(dtype), to_key.astype(dtype), to_value.astype(dtype), to_scores


def _over_heads(x: NDArray, heads: Any) -> NDArray:
    """The sum over the heads that share a key."""
    *batch, all_heads, length, width = x.shape
    if all_heads == heads:
        return x
    return nd.sum(nd.reshape(x, (*batch, heads, all_heads // heads, length, width)), -3)


@implements("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_for_cpu_backward(
    grad: NDArray, *given: Any, attn_mask: NDArray | None = None, scale: float | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    *qkv, out, logsumexp, dropout_p, causal = given
    _require_no(dropout_p)
    saved = out, logsumexp
    return _attention_backward(grad, tuple(qkv), saved, attn_mask, causal, scale)[:3]


@implements("_scaled_dot_product_flash_attention_backward")
def _flash_backward(
    grad: NDArray, *given: Any, scale: float | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    *qkv, out, logsumexp = given[:5]
    dropout_p, causal = given[9:11]  # after lengths
    _require_no(dropout_p)
    return _attention_backward(grad, tuple(qkv), (out, logsumexp), None, causal, scale)[:3]


def _require_no(dropout_p: float) -> None:
    if dropout_p:
        raise Unsupported("dropout inside of attention")


def _seed(query: NDArray, *shape: int) -> NDArray:
    """What stands for the state of the generator that nothing was drawn from."""
    return nd.zeros(shape, int64, query.device)


def _with_bias(
    wanted: list[bool], grad: NDArray, qkv: tuple[NDArray, ...], saved: Any, *how: Any
) -> tuple[NDArray | None, ...]:
    """The gradients that are wanted, of the bias as well; `how`: see `_attention_backward`."""
    *gradients, to_scores = _attention_backward(grad, qkv, saved, *how)
    bias, to_bias = how[0], None
    if bias is not None and wanted[3]:
        to_bias = fit(to_scores, bias.shape, bias.dtype)
    found = (*gradients, to_bias)
    return tuple(x if asked else None for x, asked in zip(found, wanted, strict=True))


@implements("_scaled_dot_product_fused_attention_overrideable_backward")
def _fused_backward(
    grad: NDArray, *given: Any, scale: float | None = None
) -> tuple[NDArray | None, ...]:
    *qkv, bias, wanted, out, logsumexp = given[:7]
    dropout_p, causal = given[11:13]  # after lengths
    _require_no(dropout_p)
    return _with_bias(wanted, grad, tuple(qkv), (out, logsumexp), bias, causal, scale)


@implements("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    grad: NDArray, *given: Any, scale: float | None = None
) -> tuple[NDArray | None, ...]:
    *qkv, bias, out, logsumexp, _, _, dropout_p, wanted = given[:10]
    _require_no(dropout_p)
    causal = bool(given[10:] and given[10])
    logsumexp = logsumexp[..., : out.shape[-2]]  # see `_efficient`
    return _with_bias(wanted, grad, tuple(qkv), (out, logsumexp), bias, causal, scale)


def _weighted(
    qkv: tuple[NDArray, ...],
    mask: NDArray | None,
    dropout_p: float,
    causal: bool,
    kept: NDArray | None,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[NDArray, NDArray]:
    """The result and the weights, some of which may be dropped."""
    query, key, value = qkv
    if enable_gqa:
        key, value = (_each_head(x, query) for x in (key, value))
    how = mask, 0.0, causal, _usual(query, scale)
    result, weights = attention_and_weights(query, key, value, *how)
    if kept is None and dropout_p:
        kept = nd.random.uniform(weights.shape, generator=generator()) >= dropout_p
    if kept is not None:
        weights = nd.where(kept, weights * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0), 0.0)
        result = nd.matmul(weights, value)
    return result, weights


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
    how = attn_mask, dropout_p, is_causal, dropout_mask, scale, enable_gqa
    return _weighted((query, key, value), *how)


@implements("scaled_dot_product_attention")
def _whole(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_mask: NDArray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **how: Any,
) -> NDArray:
    if dropout_p:
        scale, shared = how.get("scale"), how.get("enable_gqa", False)
        given = attn_mask, dropout_p, is_causal, None, scale, shared
        return _weighted((query, key, value), *given)[0]
    result: NDArray = scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, **how
    )
    return result


operators(
    {
        "_scaled_dot_product_flash_attention_for_cpu": (
            lambda q, k, v, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None: _attention(
                q, k, v, attn_mask, dropout_p, is_causal, scale
            )
        ),
    }
)


@implements("_scaled_dot_product_flash_attention")
def _flash(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    found = _attention(query, key, value, None, dropout_p, is_causal, scale)
    lengths = None, None, query.shape[-2], key.shape[-2]
    nothing = nd.zeros((0,), query.dtype, query.device)
    return *found, *lengths, _seed(query, 2), _seed(query), nothing


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
) -> tuple[NDArray, ...]:
    result, totals = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    length = totals.shape[-1]
    if compute_log_sumexp:  # PyTorch has room for whole tiles of queries
        room: Any = (length + _TILE - 1) // _TILE * _TILE - length
        totals = nd.pad(totals, [(0, 0)] * (totals.ndim - 1) + [(0, room)])
    else:
        totals = totals[..., :0]
    return result, totals, _seed(query), _seed(query)


@implements("_scaled_dot_product_fused_attention_overrideable")
def _fused(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    attn_bias: NDArray | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    scale: float | None = None,
) -> tuple[Any, ...]:
    found = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return *found, None, None, query.shape[-2], key.shape[-2], _seed(query), _seed(query), None
