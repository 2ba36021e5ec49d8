"""Encoders of the BERT family: texts as vectors.

A text runs alone, so its vector is the same whatever else is embedded with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import genesis
from genesis import functional, nn
from genesis.llm.config import BadModel, ConfigFields
from genesis.llm.families import activation
from genesis.llm.layers import Linear, Norm, activate
from genesis.weights.checkpoint_reader import read_json

#: Families, and whether their positions begin after that of padding.
FAMILIES = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}


@dataclass(frozen=True)
class EncoderConfig:
    """An encoder, and what becomes of the vectors of its tokens."""

    family: str
    width: int
    heads: int
    hidden: int
    layers: int
    vocabulary: int
    positions: int
    kinds: int = 2  # of segments of a text
    first: int = 0
    epsilon: float = 1e-12
    activation: str = "gelu"
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True

    @property
    def longest(self) -> int:
        """The most tokens of a text."""
        return self.positions - self.first


def read_config(entries: dict[str, Any], file: str = "config.json", **own: Any) -> EncoderConfig:
    """The encoder that a ``config.json`` describes; `own` are pooling and normalising."""
    c = ConfigFields(entries, file)
    family = c.text("model_type")
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise BadModel(f"{file}: {family!r} is no known family of encoders; known are {known}")
    first = c.integer("pad_token_id", 1, least=0) + 1 if FAMILIES[family] else 0
    return EncoderConfig(
        family, c.integer("hidden_size"), c.integer("num_attention_heads"),
        c.integer("intermediate_size"), c.integer("num_hidden_layers"), c.integer("vocab_size"),
        c.integer("max_position_embeddings"), c.integer("type_vocab_size", 2), first,
        c.number("layer_norm_eps", 1e-12), activation(c, usual="gelu"), **own,
    )  # fmt: skip


def read_pooling(folder: Path) -> dict[str, Any]:
    """How a folder of sentence-transformers says its tokens become one vector."""
    modules, pooling = folder / "modules.json", folder / "1_Pooling" / "config.json"
    if not pooling.exists():
        return {}
    c = ConfigFields(read_json(pooling), str(pooling))
    mode = c.text("pooling_mode", "mean")
    if c.flag("pooling_mode_cls_token") or mode == "cls":
        mode = "cls"
    elif not c.flag("pooling_mode_mean_tokens", mode == "mean"):
        raise BadModel(f"{pooling}: neither the mean of all tokens nor the first one is asked for")
    return {
        "pooling": mode,
        "normalise": modules.exists() and "Normalize" in modules.read_text(),
    }


class Encoder(nn.Module):
    """The vectors of the tokens of a text, each of which sees all others."""

    def __init__(self, config: EncoderConfig, read: Callable[[str, tuple[int, ...]], Any]) -> None:
        super().__init__()
        self.config = config
        width = config.width
        tables = (
            ("word", config.vocabulary), ("position", config.positions),
            ("token_type", config.kinds),
        )  # fmt: skip
        for name, rows in tables:
            table = read(f"embeddings.{name}_embeddings.weight", (rows, width))
            self.register_buffer(name, table.to(genesis.float32))
        self.norm = _norm(config, read, "embeddings.LayerNorm")
        self.layers = nn.ModuleList(
            EncoderLayer(config, read, f"encoder.layer.{k}") for k in range(config.layers)
        )
        self._jitted = genesis.jit(self._pooled)

    def forward(self, tokens: Any) -> Any:
        """``(tokens,)`` to ``(tokens, width)``."""
        at = genesis.arange(tokens.shape[0]) + self.config.first
        x = functional.embedding(tokens, self.word) + self.token_type[0]
        x = self.norm(x + functional.embedding(at, self.position))
        for layer in self.layers:
            x = layer(x)
        return x

    def _pooled(self, tokens: Any) -> Any:
        with genesis.no_grad():
            x = self(tokens)
            y = x[0] if self.config.pooling == "cls" else x.mean(0)
            if self.config.normalise:
                y = y / functional.clamp((y * y).sum().sqrt(), min=1e-12)
            return y

    def embed(self, texts: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
        """A vector for each text of tokens."""
        rows = []
        for tokens in texts:
            if not 0 < len(tokens) <= self.config.longest:
                raise ValueError(
                    f"embed: a text of {len(tokens)} tokens, where the model takes 1 to "
                    f"{self.config.longest}"
                )
            rows.append(self._jitted(genesis.tensor(np.asarray(tokens, np.int64))).numpy())
        return np.stack(rows) if rows else np.zeros((0, self.config.width), np.float32)


class EncoderLayer(nn.Module):
    """Attention among all tokens, and a network; norms of what comes out."""

    def __init__(
        self, config: EncoderConfig, read: Callable[[str, tuple[int, ...]], Any], name: str
    ) -> None:
        super().__init__()
        self.heads, self.activation = config.heads, config.activation
        width, hidden = config.width, config.hidden

        def linear(part: str, rows: int, columns: int) -> Linear:
            return Linear(
                read(f"{name}.{part}.weight", (rows, columns)), read(f"{name}.{part}.bias", (rows,))
            )

        own = [linear(f"attention.self.{k}", width, width) for k in ("query", "key", "value")]
        self.project = Linear(
            functional.cat([x.pieces[0].values for x in own], 0),
            functional.cat([x.bias for x in own], 0),
        )
        self.out = linear("attention.output.dense", width, width)
        self.attention_norm = _norm(config, read, f"{name}.attention.output.LayerNorm")
        self.up = linear("intermediate.dense", hidden, width)
        self.down = linear("output.dense", width, hidden)
        self.norm = _norm(config, read, f"{name}.output.LayerNorm")

    def forward(self, x: Any) -> Any:
        """``(tokens, width)`` to the same."""
        split = self.project(x).reshape(x.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2])
        x = self.attention_norm(x + self.out(mixed.transpose(0, 1).reshape(*x.shape)))
        return self.norm(x + self.down(activate(self.up(x), self.activation)))


def _norm(config: EncoderConfig, read: Any, name: str) -> Norm:
    shape = (config.width,)
    return Norm(read(f"{name}.weight", shape), config.epsilon, read(f"{name}.bias", shape))


__all__ = ["Encoder", "EncoderConfig", "EncoderLayer", "read_config", "read_pooling"]
