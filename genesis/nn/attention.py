"""Attention with several heads, each looking at its own projections of the features."""

from __future__ import annotations

import math
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.attention import attention_and_weights, scaled_dot_product_attention
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
        batched = query.ndim == 3
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise ValueError(
                "MultiheadAttention: query, key and value are (time, batch, features) or (time, "
                f"features), not {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        q, k, v = self._projected(query, key, value)
        if not batched:
            q, k, v = (unsqueeze(x, 0) for x in (q, k, v))
            if key_padding_mask is not None:
                key_padding_mask = unsqueeze(key_padding_mask, 0)
        elif not self.batch_first:
            q, k, v = (transpose(x, 0, 1) for x in (q, k, v))
        extra = 0
        if self.bias_k is not None:
            k, v = (_appended(x, b) for x, b in ((k, self.bias_k), (v, self.bias_v)))
            extra += 1
        if self.add_zero_attn:
            k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
            extra += 1
        q, k, v = (self._in_heads(x) for x in (q, k, v))
        only_causal = is_causal and key_padding_mask is None and not extra
        if only_causal:
            attn_mask = None
        elif is_causal and attn_mask is None:
            attn_mask = _after(q.shape[-2], k.shape[-2] - extra, q.device)
        mask = self._mask(attn_mask, key_padding_mask, extra, q)
        rate = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            y, weights = attention_and_weights(q, k, v, mask, rate, only_causal)
            weights = functional.mean(weights, 1) if average_attn_weights else weights
        else:
            y = scaled_dot_product_attention(q, k, v, mask, rate, only_causal)
        y = reshape(transpose(y, 1, 2), (y.shape[0], y.shape[2], self.embed_dim))
        if batched and not self.batch_first:
            y = transpose(y, 0, 1)
        y = self.out_proj(y)
        if not batched:
            y, weights = y[0], None if weights is None else weights[0]
        return y, weights

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Any, ...]:
        """Queries, keys and values; where they are of the same tensor, by one product."""
        size, bias = self.embed_dim, self.in_proj_bias
        biases = (None,) * 3 if bias is None else functional.chunk(bias, 3)
        weight = self.in_proj_weight
        if weight is None:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
            return tuple(map(functional.linear, (query, key, value), weights, biases))
        if query is key is value:
            return tuple(functional.chunk(functional.linear(query, weight, bias), 3, -1))
        if key is value:
            q = functional.linear(query, weight[:size], biases[0])
            both = None if bias is None else bias[size:]
            return q, *functional.chunk(functional.linear(key, weight[size:], both), 2, -1)
        weights = functional.chunk(weight, 3)
        return tuple(map(functional.linear, (query, key, value), weights, biases))

    def _in_heads(self, x: Any) -> Any:
        """(batch, time, features) as (batch, heads, time, features of a head)."""
        return transpose(reshape(x, (*x.shape[:2], self.num_heads, self.head_dim)), 1, 2)

    def _mask(self, attention: Any, padding: Any, extra: int, query: Any) -> Any:
        """One mask as `scaled_dot_product_attention` takes it; `extra` keys are open to all."""
        masks = []
        if attention is not None:
            if attention.ndim == 3:
                attention = reshape(attention, (-1, self.num_heads, *attention.shape[1:]))
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

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.embed_dim}, {self.num_heads}" + self._unusual(batch_first=False)


def _after(queries: Any, keys: Any, device: str) -> Tensor:
    """Which keys come after a query."""
    rows = nd.unsqueeze(nd.arange(queries, device=device), 1)
    return Tensor(nd.arange(keys, device=device) > rows)


def _appended(x: Any, one: Any) -> Any:
    """Keys or values and one more, the same for every example."""
    return functional.cat([x, functional.expand(one, (x.shape[0], 1, x.shape[2]))], 1)


__all__ = ["MultiheadAttention"]
