"""Attention with several heads, each looking at its own projections of the features."""

from __future__ import annotations

import math
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.attention import attention_and_weights, scaled_dot_product_attention
from genesis.functional.function import one_operation
from genesis.functional.movement import reshape, transpose, unsqueeze
from genesis.nn import init
from genesis.nn.linear import Linear
from genesis.nn.module import Module
from genesis.nn.new_parameters import add_parameters
from genesis.tensor.tensor import Tensor


class MultiheadAttention(Module):
    """Attention in `num_heads` parallel heads of ``embed_dim / num_heads`` features each.

    Keys and values may have other numbers of features, `kdim` and `vdim`. `add_bias_kv` appends a
    learnt key and value to those given, `add_zero_attn` a key and value of zeros.

    >>> import genesis
    >>> attention = MultiheadAttention(8, 2, batch_first=True)
    >>> x = genesis.ones(3, 5, 8)
    >>> y, weights = attention(x, x, x)
    >>> y.shape, weights.shape
    (genesis.Size([3, 5, 8]), genesis.Size([3, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: embed_dim {embed_dim} must be a multiple of num_heads "
                f"{num_heads}"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.batch_first = batch_first
        together = self.kdim == self.vdim == embed_dim
        shapes = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if together else None,
            "q_proj_weight": None if together else (embed_dim, embed_dim),
            "k_proj_weight": None if together else (embed_dim, self.kdim),
            "v_proj_weight": None if together else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
            "bias_k": (1, 1, embed_dim) if add_bias_kv else None,
            "bias_v": (1, 1, embed_dim) if add_bias_kv else None,
        }
        add_parameters(self, device, dtype, **shapes)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights anew; biases become zero."""
        for name, x in self.named_parameters(recurse=False):
            if name.endswith("weight"):
                init.xavier_uniform_(x)
            elif name == "in_proj_bias":
                init.zeros_(x)
            else:
                init.xavier_normal_(x)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """What the queries find, and with `need_weights` where: the mean over heads, or each head.

        Tensors are ``(time, batch, features)``, batch and time exchanged if `batch_first`, or have
        no batch. Masks are True where a query must *not* look, or numbers to add to the scores:
        `key_padding_mask` is ``(batch, keys)``, `attn_mask` ``(queries, keys)``, or with a first
        dimension ``batch * num_heads``. `is_causal` stands for, and takes the place of, an
        `attn_mask` that hides the keys after each query. Without `need_weights` the weights are
        never in memory.
        """
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise ValueError(
                "MultiheadAttention: query, key and value are (time, batch, features) or (time, "
                f"features), not {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        rate = self.dropout if self.training else 0.0
        found = (_attention if rate else _attention_at_once)(
            query,
            None if key is query else key,
            None if value is key else value,
            *(self.in_proj_weight, self.in_proj_bias),
            *(self.q_proj_weight, self.k_proj_weight, self.v_proj_weight),
            *(self.bias_k, self.bias_v, self.add_zero_attn),
            *(self.num_heads, self.batch_first),
            *(key_padding_mask, attn_mask, is_causal, rate),
            *(need_weights, average_attn_weights),
        )
        y, weights = found if need_weights else (found, None)
        return self.out_proj(y), weights

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.embed_dim}, {self.num_heads}" + self._unusual(batch_first=False)


def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """What `MultiheadAttention` does with its parameters, on ``(time, batch, features)``.

    `static_k` and `static_v`, heads that were projected before, are not taken.
    """
    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward: static_k and static_v")
    if query.shape[-1] != embed_dim_to_check:
        raise ValueError(
            f"multi_head_attention_forward: the query {tuple(query.shape)} has not "
            f"{embed_dim_to_check} features"
        )
    if embed_dim_to_check % num_heads:
        raise ValueError(
            f"multi_head_attention_forward: {embed_dim_to_check} features are no multiple of "
            f"num_heads {num_heads}"
        )
    apart = use_separate_proj_weight
    each = q_proj_weight, k_proj_weight, v_proj_weight
    q_weight, k_weight, v_weight = each if apart else (None, None, None)
    found = _attention(
        query,
        None if key is query else key,
        None if value is key else value,
        *(None if apart else in_proj_weight, in_proj_bias),
        *(q_weight, k_weight, v_weight),
        *(bias_k, bias_v, add_zero_attn, num_heads, False),
        *(key_padding_mask, attn_mask, is_causal, dropout_p if training else 0.0),
        *(need_weights, average_attn_weights),
    )
    y, weights = found if need_weights else (found, None)
    return functional.linear(y, out_proj_weight, out_proj_bias), weights


def _attention(
    query: Any,
    key: Any,
    value: Any,
    weight: Any,
    bias: Any,
    q_weight: Any,
    k_weight: Any,
    v_weight: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    num_heads: int,
    batch_first: bool,
    padding: Any,
    attn_mask: Any,
    is_causal: bool,
    rate: float,
    need_weights: bool,
    average: bool,
) -> Any:
    """What the queries find, before it is projected, and with `need_weights` where.

    A key that is None is the query, a value that is None the key.
    """
    batched = query.ndim == 3
    q, k, v = _projected(query, key, value, weight, bias, (q_weight, k_weight, v_weight))
    if not batched:
        q, k, v = (unsqueeze(x, 0) for x in (q, k, v))
        padding = None if padding is None else unsqueeze(padding, 0)
    elif not batch_first:
        q, k, v = (transpose(x, 0, 1) for x in (q, k, v))
    extra = 0
    if bias_k is not None:
        k, v = (_appended(x, b) for x, b in ((k, bias_k), (v, bias_v)))
        extra += 1
    if add_zero_attn:
        k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        extra += 1
    q, k, v = (_in_heads(x, num_heads) for x in (q, k, v))
    only_causal = is_causal and padding is None and not extra
    if only_causal:
        attn_mask = None
    elif is_causal and attn_mask is None:
        attn_mask = _after(q.shape[-2], k.shape[-2] - extra, q.device)
    mask = _mask(attn_mask, padding, extra, q)
    if need_weights:
        y, weights = attention_and_weights(q, k, v, mask, rate, only_causal)
        weights = functional.mean(weights, 1) if average else weights
    else:
        y = scaled_dot_product_attention(q, k, v, mask, rate, only_causal)
    y = reshape(transpose(y, 1, 2), (y.shape[0], y.shape[2], y.shape[1] * y.shape[3]))
    if not batched:
        y = y[0]
    elif not batch_first:
        y = transpose(y, 0, 1)
    if not need_weights:
        return y
    return y, weights if batched else weights[0]


_attention_at_once = one_operation(_attention)


def _projected(
    query: Any, key: Any, value: Any, weight: Any, bias: Any, apart: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Queries, keys and values; where they are of the same tensor, by one product."""
    if weight is not None and key is None and value is None:
        return tuple(functional.chunk(functional.linear(query, weight, bias), 3, -1))
    biases = (None,) * 3 if bias is None else functional.chunk(bias, 3)
    key = query if key is None else key
    if weight is not None and value is None:
        size = weight.shape[1]
        q = functional.linear(query, weight[:size], biases[0])
        both = None if bias is None else bias[size:]
        return q, *functional.chunk(functional.linear(key, weight[size:], both), 2, -1)
    weights = apart if weight is None else functional.chunk(weight, 3)
    inputs = query, key, key if value is None else value
    return tuple(map(functional.linear, inputs, weights, biases))


def _in_heads(x: Any, heads: int) -> Any:
    """(batch, time, features) as (batch, heads, time, features of a head)."""
    return transpose(reshape(x, (*x.shape[:2], heads, x.shape[2] // heads)), 1, 2)


def _mask(attention: Any, padding: Any, extra: int, query: Any) -> Any:
    """One mask as `scaled_dot_product_attention` takes it; `extra` keys are open to all."""
    masks = []
    if attention is not None:
        if attention.ndim == 3:
            attention = reshape(attention, (-1, query.shape[1], *attention.shape[1:]))
        masks.append(attention)
    if padding is not None:
        masks.append(unsqueeze(unsqueeze(padding, 1), 1))
    if not masks:
        return None
    if all(m.dtype.kind == "bool" for m in masks):
        hidden = functional.logical_or(*masks) if len(masks) == 2 else masks[0]
        return functional.logical_not(functional.pad(hidden, (0, extra)) if extra else hidden)
    added = [m if m.dtype.is_float else functional.where(m, -math.inf, 0.0) for m in masks]
    total = functional.cast(added[0] + added[1] if len(added) == 2 else added[0], query.dtype)
    return functional.pad(total, (0, extra)) if extra else total


def _after(queries: Any, keys: Any, device: str) -> Tensor:
    """Which keys come after a query."""
    rows = nd.unsqueeze(nd.arange(queries, device=device), 1)
    return Tensor(nd.arange(keys, device=device) > rows)


def _appended(x: Any, one: Any) -> Any:
    """Keys or values and one more, the same for every example."""
    return functional.cat([x, functional.expand(one, (x.shape[0], 1, x.shape[2]))], 1)


__all__ = ["MultiheadAttention", "multi_head_attention_forward"]
