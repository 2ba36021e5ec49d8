"""A Llama decoder (Touvron et al. 2023) for inference, with a cache of keys and values.

RMS norm, rotary positions, attention in which several query heads share a key head, and the gated
feed-forward network. The cache has a fixed size and is written at positions that are data: however
far a text has come, the program is the same. `Llama.next` is one program for a prompt of some
length and one for a single token, which runs a whole step without returning to Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import genesis
from genesis import functional, nn
from genesis.tensor.tensor import Tensor


@dataclass(frozen=True)
class LlamaConfig:
    """The size of a model; by default that of Llama 3.2 with a billion parameters."""

    layers: int = 16
    width: int = 2048
    heads: int = 32
    key_heads: int = 8
    hidden: int = 8192
    vocabulary: int = 128256
    context: int = 2048  # positions of the cache
    theta: float = 500000.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"LlamaConfig: {self.heads} heads do not divide a width of {self.width} into parts "
                "of an even size, which rotary positions need"
            )
        if self.heads % self.key_heads:
            raise ValueError(
                f"LlamaConfig: {self.heads} query heads cannot share {self.key_heads} key heads "
                "evenly"
            )


class Attention(nn.Module):
    """Every token as a mean of the values of those before it."""

    cache: Tensor  # keys and values: (2, key heads, positions, size)

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        self.size = config.width // config.heads
        # Queries, keys and values are one product: a small matrix is read more slowly.
        shared = config.key_heads * self.size
        self.sizes = [config.width, shared, shared]
        self.project = nn.Linear(config.width, sum(self.sizes), bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.turn = nn.RotaryEmbedding(self.size, config.context, config.theta)
        cache = genesis.zeros(2, config.key_heads, config.context, self.size)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Any:
        """``(tokens, width)`` at their positions, after what is in the cache."""

        def split(y: Tensor) -> Any:
            return y.reshape(len(positions), -1, self.size).transpose(0, 1)

        query, key, value = map(split, functional.split(self.project(x), self.sizes, -1))
        query, key = (self.turn(y, positions=positions) for y in (query, key))
        self.cache[:, :, positions] = functional.stack([key, value])
        keys, values = self.cache
        past = genesis.arange(keys.shape[1]) <= positions[:, None]
        mixed = functional.scaled_dot_product_attention(
            query.to(keys.dtype), keys, values, attn_mask=past, enable_gqa=True
        )
        return self.out(mixed.transpose(0, 1).reshape(x.shape).to(x.dtype))


class Layer(nn.Module):
    """Attention and the gated network, each of the normalised input and added to it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config)
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        # The gates, and what they let through.
        self.up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Any:
        """``(tokens, width)`` to the same."""
        x = x + self.attention(self.attention_norm(x), positions)
        gate, wide = functional.chunk(self.up(self.norm(x)), 2, -1)
        return x + self.down(functional.silu(gate) * wide)


class Llama(nn.Module):
    """Scores for the next token. The table of tokens is also the head.

    >>> config = LlamaConfig(1, width=32, heads=2, key_heads=1, hidden=64, vocabulary=50, context=8)
    >>> model = Llama(config)
    >>> len(model.generate([3, 1, 4], 5))
    5
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self._next = genesis.jit(self._step)

    def forward(self, tokens: Tensor, first: Any) -> Any:
        """The scores after the last of some tokens, of which the first is at position `first`."""
        positions = genesis.arange(len(tokens)) + first
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(self.norm(x[-1:]))[0]

    def _step(self, tokens: Tensor, first: Tensor) -> Any:
        with genesis.no_grad():
            return functional.argmax(self(tokens, first), 0, True)

    def next(self, tokens: Tensor, first: Any) -> Any:
        """The likeliest token after some, as a vector of one."""
        return self._next(tokens, genesis.as_tensor(first))

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """The likeliest tokens after a prompt, one after the other."""
        longest = self.config.context
        if not prompt or len(prompt) + count > longest:
            raise ValueError(
                f"Llama.generate: {len(prompt)} tokens and {count} more, where the cache has "
                f"{longest} positions and a prompt has at least one token"
            )
        # Nothing is read before the end: a device that runs on its own is not kept waiting.
        tokens = [self.next(genesis.tensor(prompt), 0)]
        for position in range(len(prompt), len(prompt) + count - 1):
            tokens.append(self.next(tokens[-1], position))
        result: list[int] = functional.cat(tokens).tolist()
        return result


__all__ = ["Attention", "Layer", "Llama", "LlamaConfig"]
