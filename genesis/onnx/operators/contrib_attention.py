"""Operators of transformers outside of the standard (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.operators.normalization import layer_norm
from genesis.onnx.registry import Host, operator

_MS = "com.microsoft"


@operator("Gelu", domain=_MS)
def gelu(x: Any) -> Any:
    """The Gaussian error linear unit."""
    return fn.gelu(x)


@operator("FastGelu", domain=_MS)
def fast_gelu(x: Any, bias: Any = None) -> Any:
    """The Gaussian error linear unit, by a hyperbolic tangent."""
    return fn.gelu(x if bias is None else x + bias, "tanh")


@operator("BiasGelu", domain=_MS)
def bias_gelu(x: Any, bias: Any) -> Any:
    """The Gaussian error linear unit of a sum."""
    return fn.gelu(x + bias)


@operator("QuickGelu", domain=_MS)
def quick_gelu(x: Any, *, alpha: float = 1.702) -> Any:
    """x sigmoid(alpha x)."""
    return x * fn.sigmoid(alpha * x)


@operator("SkipLayerNormalization", domain=_MS)
def skip_layer_norm(
    x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None, *, epsilon: float = 1e-5,
    outputs: int = 1,
) -> Any:  # fmt: skip
    """The layer norm of a sum, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    return (layer_norm(total, gamma, beta, epsilon=epsilon), None, None, total)[:outputs]


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=_MS)
def simplified_layer_norm(
    x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """The last axes divided by their root mean square, and scaled."""
    from genesis.onnx.operators.normalization import rms_norm

    return rms_norm(x, scale, axis=axis, epsilon=epsilon)


@operator("SkipSimplifiedLayerNormalization", domain=_MS)
def skip_simplified_layer_norm(
    x: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-5, outputs: int = 1
) -> Any:
    """The root mean square norm of a sum, and the sum."""
    total = x + skip if bias is None else x + skip + bias
    return (simplified_layer_norm(total, gamma, epsilon=epsilon), None, None, total)[:outputs]


@operator("EmbedLayerNormalization", domain=_MS)
def embed_layer_norm(
    ids: Any, segments: Any, words: Any, positions: Any, kinds: Any, gamma: Any, beta: Any,
    mask: Any = None, places: Any = None, *, epsilon: float = 1e-12, mask_index_type: int = 0,
    outputs: int = 1,
) -> Any:  # fmt: skip
    """The layer norm of the sum of three embeddings."""
    from genesis import arange, zeros

    at = arange(ids.shape[1]) if places is None else places
    total = fn.embedding(ids, words) + fn.embedding(at, positions)
    if segments is not None:
        total = total + fn.embedding(segments, kinds)
    index = zeros(ids.shape[0], dtype="int32") if mask is None else fn.sum(mask, 1).to(dtypes.int32)
    return (layer_norm(total, gamma, beta, epsilon=epsilon), index, total)[:outputs]


def _heads(x: Any, count: int) -> Any:
    batch, length, width = x.shape
    return fn.transpose(x.reshape(batch, length, count, width // count), 1, 2)


def _joined(x: Any) -> Any:
    batch, heads, length, width = x.shape
    return fn.transpose(x, 1, 2).reshape(batch, length, heads * width)


def _bias_of(mask: Any, length: Any, filler: float) -> Any:
    """A mask of keys, (batch, keys) or more axes, as what is added to scores."""
    if mask is None:
        return None
    if mask.ndim == 1:
        from genesis import arange

        mask = arange(length).reshape(1, -1) < mask.reshape(-1, 1)
    while mask.ndim < 4:
        mask = fn.unsqueeze(mask, 1)
    return fn.where(mask.to(dtypes.bool_), 0.0, filler)


def _attend(q: Any, k: Any, v: Any, bias: Any, scale: float, causal: bool) -> Any:
    scores = fn.matmul(q, fn.transpose(k, -1, -2)) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    if causal:
        from genesis import arange

        n, m = q.shape[-2], k.shape[-2]
        later = arange(m).reshape(1, -1) > arange(n).reshape(-1, 1) + (m - n)
        scores = fn.where(later, float("-inf"), scores)
    return fn.matmul(fn.softmax(scores, -1), v)


@operator("Attention", domain=_MS)
def attention(
    x: Any, weights: Any, bias: Any = None, mask: Any = None, past: Any = None,
    relative: Any = None, past_length: Any = None, *, num_heads: int, unidirectional: int = 0,
    scale: float = 0.0, mask_filter_value: float = -10000.0, qkv_hidden_sizes: Any = None,
    do_rotary: int = 0, past_present_share_buffer: int = 0, rotary_embedding_dim: int = 0,
    outputs: int = 1,
) -> Any:  # fmt: skip
    """Self-attention with one matrix for queries, keys and values."""
    if past_length is not None:
        raise NotImplementedError("Attention with a shared cache")
    y = fn.matmul(x, weights)
    y = y if bias is None else y + bias
    third = y.shape[-1] // 3
    return self_attention(
        fn.split(y, qkv_hidden_sizes or [third, third, third], -1), mask, past, relative,
        num_heads=num_heads, unidirectional=unidirectional, scale=scale,
        mask_filter_value=mask_filter_value, do_rotary=do_rotary, outputs=outputs,
    )  # fmt: skip


def self_attention(
    parts: Any, mask: Any = None, past: Any = None, relative: Any = None, *, num_heads: int,
    unidirectional: int = 0, scale: float = 0.0, mask_filter_value: float = -10000.0,
    do_rotary: int = 0, past_present_share_buffer: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Attention to what queries, keys and values were computed of, and what is kept of it."""
    if do_rotary:
        raise NotImplementedError("Attention with rotary positions")
    q, k, v = (_heads(p, num_heads) for p in parts)
    if past is not None:
        k, v = fn.cat([past[0], k], 2), fn.cat([past[1], v], 2)
    added = _bias_of(mask, k.shape[2], mask_filter_value)
    if relative is not None:
        added = relative if added is None else added + relative
    y = _joined(_attend(q, k, v, added, scale, bool(unidirectional)))
    return (y, fn.stack([k, v], 0))[:outputs] if outputs > 1 else y


@operator("MultiHeadAttention", domain=_MS)
def multi_head_attention(
    q: Any, k: Any = None, v: Any = None, bias: Any = None, mask: Any = None, relative: Any = None,
    past_key: Any = None, past_value: Any = None, *, num_heads: int, scale: float = 0.0,
    mask_filter_value: float = -10000.0, unidirectional: int = 0, outputs: int = 1,
) -> Any:  # fmt: skip
    """Attention with queries, keys and values given."""
    if k is None or q.ndim != 3:
        raise NotImplementedError("MultiHeadAttention with packed queries, keys and values")
    if bias is not None:
        n, m = q.shape[-1], k.shape[-1]
        q, k = q + bias[:n], k + bias[n : n + m]
        v = v + bias[n + m :] if v.ndim == 3 else v
    query = _heads(q, num_heads)
    key, value = (x if x.ndim == 4 else _heads(x, num_heads) for x in (k, v))
    if past_key is not None:
        key, value = fn.cat([past_key, key], 2), fn.cat([past_value, value], 2)
    added = _bias_of(mask, key.shape[2], mask_filter_value)
    if relative is not None:
        added = relative if added is None else added + relative
    y = _joined(_attend(query, key, value, added, scale, bool(unidirectional)))
    return (y, key, value)[:outputs]


@operator("RotaryEmbedding", domain=_MS)
def rotary_embedding(
    x: Any, positions: Any, cosines: Any, sines: Any, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: int = 0,
) -> Any:  # fmt: skip
    """Pairs of features turned by their positions."""
    from genesis import arange

    flat = x.ndim == 3
    width = 2 * cosines.shape[-1]
    heads = num_heads or (x.shape[-1] // width if flat else 0)
    h = _heads(x, heads) if flat else x
    if positions.numel() == 1:
        positions = positions.reshape(1, 1) + arange(h.shape[2]).reshape(1, -1)
    y = turned(h, positions, cosines, sines, bool(interleaved))
    return _joined(y) if flat else y


def turned(h: Any, positions: Any, cosines: Any, sines: Any, interleaved: bool) -> Any:
    """Pairs of the first features of heads, turned by the angles of their positions."""
    c, s = (fn.unsqueeze(fn.embedding(positions, t), 1) for t in (cosines, sines))
    width = 2 * cosines.shape[-1]
    pairs, rest = h[..., :width], h[..., width:]
    if interleaved:
        a, b = pairs[..., ::2], pairs[..., 1::2]
        y = fn.stack([a * c - b * s, a * s + b * c], -1).reshape(*pairs.shape)
    else:
        a, b = pairs[..., : width // 2], pairs[..., width // 2 :]
        y = fn.cat([a * c - b * s, a * s + b * c], -1)
    return fn.cat([y, rest], -1) if rest.shape[-1] else y


@operator("FusedMatMul", domain=_MS)
def fused_matmul(
    a: Any, b: Any, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:  # fmt: skip
    """A product of matrices, transposed and scaled as wished."""
    if transBatchA or transBatchB:
        raise NotImplementedError("FusedMatMul with transposed batches")
    left = fn.transpose(a, -1, -2) if transA else a
    y = fn.matmul(left, fn.transpose(b, -1, -2) if transB else b)
    return y if alpha == 1 else y * alpha


_ACTIVATIONS: dict[str, Any] = {"Relu": fn.relu, "Tanh": fn.tanh, "Sigmoid": fn.sigmoid}


def _activated(x: Any, name: str, numbers: Any) -> Any:
    if not name:
        return x
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name](x)
    first, second = [*(numbers or ()), None, None][:2]
    if name == "LeakyRelu":
        return fn.leaky_relu(x, first)
    if name == "Clip":
        return fn.clamp(x, first, second)
    if name == "HardSigmoid":
        return fn.clamp(first * x + second, 0, 1)
    raise NotImplementedError(f"the activation {name!r}")


@operator("FusedConv", domain=_MS)
def fused_conv(
    x: Any, w: Any, b: Any = None, z: Any = None, *, activation: str = "",
    activation_params: Any = None, **windows: Any,
) -> Any:  # fmt: skip
    """A convolution with what follows it."""
    from genesis.onnx.operators.contraction import conv

    y = conv(x, w, b, **windows)
    return _activated(y if z is None else y + z, activation, activation_params)


@operator("FusedGemm", domain=_MS)
def fused_gemm(
    a: Any, b: Any, c: Any = None, *, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, **options: Any,
) -> Any:  # fmt: skip
    """alpha A B + beta C with what follows it."""
    from genesis.onnx.operators.contraction import gemm

    y = gemm(a, b, c, **options)
    return _activated(y, activation, [activation_alpha, activation_beta])


__all__ = ["Host"]
