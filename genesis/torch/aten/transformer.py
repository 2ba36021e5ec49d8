"""The short cut of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` for inference.

PyTorch has one operator for each, without a gradient. Here they are what they stand for.
"""

from __future__ import annotations

import math

from genesis import ndarray as nd
from genesis.functional import gelu, layer_norm, linear, scaled_dot_product_attention
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import implementations, implements


@implements("_native_multi_head_attention")
def _multi_head_attention(
    query: NDArray,
    key: NDArray,
    value: NDArray,
    embed_dim: int,
    num_head: int,
    qkv_weight: NDArray,
    qkv_bias: NDArray,
    proj_weight: NDArray,
    proj_bias: NDArray,
    mask: NDArray | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[NDArray, NDArray | None]:
    def heads(x: NDArray, part: int) -> NDArray:
        rows = slice(part * embed_dim, (part + 1) * embed_dim)
        y: NDArray = linear(x, qkv_weight[rows], qkv_bias[rows])
        size = (*y.shape[:2], num_head, embed_dim // num_head)
        return nd.swapaxes(nd.reshape(y, size), 1, 2)

    q, k, v = (heads(x, part) for part, x in enumerate((query, key, value)))
    weights = None
    if mask is None and not need_weights:
        joined: NDArray = scaled_dot_product_attention(q, k, v)
    else:
        scores = nd.matmul(q * (1 / math.sqrt(embed_dim // num_head)), nd.swapaxes(k, -1, -2))
        if mask is None:
            weights = nd.softmax(scores, -1)
        else:
            weights = implementations["aten::_masked_softmax"](scores, mask != 0, -1, mask_type)
        joined = nd.matmul(weights, v)
        weights = nd.mean(weights, 1) if average_attn_weights else weights
    joined = nd.reshape(nd.swapaxes(joined, 1, 2), query.shape)
    return linear(joined, proj_weight, proj_bias), weights if need_weights else None


@implements("_transformer_encoder_layer_fwd")
def _encoder_layer(
    src: NDArray,
    embed_dim: int,
    num_heads: int,
    qkv_weight: NDArray,
    qkv_bias: NDArray,
    proj_weight: NDArray,
    proj_bias: NDArray,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: NDArray,
    norm_bias_1: NDArray,
    norm_weight_2: NDArray,
    norm_bias_2: NDArray,
    ffn_weight_1: NDArray,
    ffn_bias_1: NDArray,
    ffn_weight_2: NDArray,
    ffn_bias_2: NDArray,
    mask: NDArray | None = None,
    mask_type: int | None = None,
) -> NDArray:
    def attend(x: NDArray) -> NDArray:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        given = (x, x, x, embed_dim, num_heads, *projections, mask)
        return _multi_head_attention(*given, need_weights=False, mask_type=mask_type)[0]

    def feed(x: NDArray) -> NDArray:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        inner = gelu(inner) if use_gelu else nd.relu(inner)
        y: NDArray = linear(inner, ffn_weight_2, ffn_bias_2)
        return y

    x = src
    for layer, weight, bias in (
        (attend, norm_weight_1, norm_bias_1),
        (feed, norm_weight_2, norm_bias_2),
    ):
        if norm_first:
            x = x + layer(layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = layer_norm(x + layer(x), (embed_dim,), weight, bias, eps)
    return x
