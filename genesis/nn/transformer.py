"""Transformers: layers of attention and a feed-forward network, and stacks of them.

Parts and parameters are named as in PyTorch. Tensors are ``(time, batch, features)``, or with
`batch_first` ``(batch, time, features)``; masks are those of `MultiheadAttention`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

from genesis import functional
from genesis import ndarray as nd
from genesis.nn import init
from genesis.nn.attention import MultiheadAttention
from genesis.nn.container import ModuleList
from genesis.nn.dropout import Dropout
from genesis.nn.linear import Linear
from genesis.nn.module import Family, Module
from genesis.nn.normalization import LayerNorm
from genesis.tensor.tensor import Tensor

Activation = str | Callable[[Any], Any]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": functional.relu, "gelu": functional.gelu}


class _Layer(Family):
    """What both kinds of layers share: the feed-forward network, norms and dropouts."""

    attentions: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ValueError(
                f"{type(self).__name__}: activation is 'relu', 'gelu' or a function, not "
                f"{activation!r}"
            )
        for name in self.attentions:
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype
            )
            self.add_module(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        for number in range(1, len(self.attentions) + 2):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
            self.add_module(f"norm{number}", norm)
            self.add_module(f"dropout{number}", Dropout(dropout))
        self.activation = activation

    def _block(self, number: int, part: Callable[[Any], Any], x: Any) -> Any:
        """`x` and what a part makes of it, normalised before or after."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(part(norm(x)))
        return norm(x + dropout(part(x)))

    def _feed_forward(self, x: Any) -> Any:
        activation = self.activation
        if isinstance(activation, str):
            activation = _ACTIVATIONS[activation]
        return self.linear2(self.dropout(activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer, attentions=("self_attn",)):
    """Attention of a sequence to itself, then a feed-forward network.

    >>> import genesis
    >>> layer = TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(genesis.ones(3, 5, 8)).shape
    genesis.Size([3, 5, 8])
    """

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """The sequence, every element of which has seen the others."""

        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask,
                                  is_causal=is_causal)[0]  # fmt: skip

        return self._block(2, self._feed_forward, self._block(1, attend, src))


class TransformerDecoderLayer(_Layer, attentions=("self_attn", "multihead_attn")):
    """Attention of a sequence to itself, then to a `memory`, then a feed-forward network."""

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """The sequence, every element of which has seen the others and the memory."""

        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask,
                                  is_causal=tgt_is_causal)[0]  # fmt: skip

        def remember(x: Any) -> Any:
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False,
                                       memory_mask, is_causal=memory_is_causal)[0]  # fmt: skip

        x = self._block(1, attend, tgt)
        return self._block(3, self._feed_forward, self._block(2, remember, x))


class _Stack(Module):
    """Copies of a layer, one after the other, and a norm at the end if given."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def _through(self, x: Any, *others: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *others)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Copies of an encoder layer, one after the other, and a norm at the end if given."""

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool | None = None,
    ) -> Any:
        """The sequence after all layers."""
        return self._through(src, mask, src_key_padding_mask, bool(is_causal))


class TransformerDecoder(_Stack):
    """Copies of a decoder layer, one after the other, and a norm at the end if given."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """The sequence after all layers."""
        return self._through(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
            bool(tgt_is_causal), memory_is_causal,
        )  # fmt: skip


class Transformer(Module):
    """An encoder, and a decoder that remembers what the encoder made."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        settings = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, device, dtype,
        )  # fmt: skip
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings), num_decoder_layers, norm()
        )
        for x in self.parameters():
            if x.ndim > 1:
                init.xavier_uniform_(x)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """The target sequence, every element of which has seen the source."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
            tgt_is_causal, memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: str | None = None, dtype: Any = None
    ) -> Tensor:
        """Numbers to add to scores so that no element sees those after it.

        >>> Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        place = nd.arange(sz, device=device)
        later = place > nd.unsqueeze(place, 1)
        mask = nd.where(later, -math.inf, 0.0)
        return Tensor(mask if dtype is None else nd.astype(mask, dtype))


class FeedForwardSwiGLU(Module):
    """``down(silu(gate(x)) * up(x))``: a feed-forward network whose hidden features are gated.

    Without `hidden_dim` there are 8/3 `dim` of them, rounded up to a multiple of `multiple_of`: as
    many parameters as a plain network of four times `dim` has.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        bias: bool = False,
        multiple_of: int = 64,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if hidden_dim is None:
            hidden_dim = -(-8 * dim // 3 // multiple_of) * multiple_of
        self.gate_proj = Linear(dim, hidden_dim, bias, device, dtype)
        self.up_proj = Linear(dim, hidden_dim, bias, device, dtype)
        self.down_proj = Linear(hidden_dim, dim, bias, device, dtype)

    def forward(self, input: Any) -> Any:
        """The network applied to the last dimension."""
        gated = functional.silu(self.gate_proj(input)) * self.up_proj(input)
        return self.down_proj(gated)


__all__ = [
    "FeedForwardSwiGLU", "Transformer", "TransformerDecoder", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip
