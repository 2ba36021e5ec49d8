"""Where in a sequence an element stands: as a rotation of its features, or added to them.

Rotary embeddings turn pairs of features by an angle that grows with the position, each pair at its
own speed. The product of a query and a key then depends only on how far apart they are.
"""

from __future__ import annotations

import math
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.movement import reshape
from genesis.ir.dtype import float32, float64
from genesis.nn.dropout import Dropout
from genesis.nn.module import Module
from genesis.tensor.tensor import Tensor


class RotaryEmbedding(Module):
    """Rotates the first `dim` features of ``(..., time, features)`` by their positions.

    Pairs are features i and ``i + dim/2``; with `interleaved`, 2i and 2i + 1. Pair i turns by
    ``scale * position * base**(-2i / dim)``; a greater base or a `scale` below 1 stretches a model
    to longer sequences. Cosines and sines of `max_seq_len` positions are kept.

    >>> import genesis
    >>> turn = RotaryEmbedding(2)
    >>> turn(genesis.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    def __init__(
        self,
        dim: int,
        max_seq_len: int = 4096,
        base: float = 10000.0,
        interleaved: bool = False,
        scale: float = 1.0,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"RotaryEmbedding: features turn in pairs, so dim is even, not {dim}")
        self.dim, self.max_seq_len, self.base = dim, max_seq_len, base
        self.interleaved, self.scale = interleaved, scale
        angle = _angles(max_seq_len, dim, base, device) * scale
        kind = dtype or float32
        cos, sin = nd.astype(nd.cos(angle), kind), nd.astype(nd.sin(angle), kind)
        nd.realize(cos, sin)
        self.register_buffer("cos", Tensor(cos), persistent=False)
        self.register_buffer("sin", Tensor(sin), persistent=False)

    def forward(self, input: Any, offset: int = 0, positions: Any = None) -> Any:
        """The elements turned; the first is at position `offset`, or `positions` has them all.

        `positions` are integers that broadcast to ``(..., time)``, the input without its features.
        """
        if input.ndim < 2 or input.shape[-1] < self.dim:
            raise ValueError(
                f"RotaryEmbedding: the input is (..., time, at least {self.dim} features), not "
                f"{tuple(input.shape)}"
            )
        if positions is None:
            steps = input.shape[-2]
            if not 0 <= offset <= self.max_seq_len - steps:
                raise ValueError(
                    f"RotaryEmbedding: positions {offset} to {offset + steps} are not all below "
                    f"max_seq_len {self.max_seq_len}"
                )
            cos, sin = (x[offset : offset + steps] for x in (self.cos, self.sin))
        else:
            cos, sin = (functional.embedding(positions, x) for x in (self.cos, self.sin))
        turned = input if input.shape[-1] == self.dim else input[..., : self.dim]
        turned = functional.cast(self._rotated(turned, cos, sin), input.dtype)
        if input.shape[-1] == self.dim:
            return turned
        return functional.cat([turned, input[..., self.dim :]], -1)

    def _rotated(self, x: Any, cos: Any, sin: Any) -> Any:
        """(a, b) becomes (a cos - b sin, b cos + a sin)."""
        half = self.dim // 2
        along = -1 if self.interleaved else -2
        pairs = reshape(x, (*x.shape[:-1], *((half, 2) if self.interleaved else (2, half))))
        cos, sin = functional.unsqueeze(cos, along), functional.unsqueeze(sin, along)
        sin = functional.cat([-sin, sin], along)
        return reshape(pairs * cos + functional.flip(pairs, (along,)) * sin, x.shape)

    def extra_repr(self) -> str:
        """The settings."""
        told = f"{self.dim}, max_seq_len={self.max_seq_len}, base={self.base}"
        return told + self._unusual(scale=1, interleaved=False)


class PositionalEncoding(Module):
    """Adds sines and cosines of each position, of wavelengths up to 10000 turns, then drops out."""

    def __init__(
        self,
        d_model: int,
        dropout: float = 0.1,
        max_len: int = 5000,
        batch_first: bool = False,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"PositionalEncoding: d_model is even, not {d_model}")
        self.d_model, self.max_len, self.batch_first = d_model, max_len, batch_first
        self.dropout = Dropout(dropout)
        angle = _angles(max_len, d_model, 10000.0, device)
        table = nd.stack([nd.sin(angle), nd.cos(angle)], -1).reshape(max_len, d_model)
        table = nd.astype(table, dtype or float32).realize()
        self.register_buffer("table", Tensor(table), persistent=False)

    def forward(self, input: Any) -> Any:
        """``(time, batch, features)``, or with `batch_first` batch before time, and positions."""
        along = 1 if self.batch_first else 0
        steps = input.shape[along]
        if input.ndim != 3 or input.shape[-1] != self.d_model or steps > self.max_len:
            raise ValueError(
                f"PositionalEncoding: at most {self.max_len} steps of {self.d_model} features, not "
                f"an input of shape {tuple(input.shape)}"
            )
        return self.dropout(input + functional.unsqueeze(self.table[:steps], 1 - along))


def _angles(positions: int, dim: int, base: float, device: str | None) -> Any:
    """Every position (rows) times the speed of every pair of features, in double precision."""
    pair = nd.astype(nd.arange(dim // 2, device=device), float64)
    speed = nd.exp(pair * (-2 * math.log(base) / dim))
    return nd.unsqueeze(nd.astype(nd.arange(positions, device=device), float64), 1) * speed


__all__ = ["PositionalEncoding", "RotaryEmbedding"]
