"""One decoder for all families, over pages of keys and values.

Texts of many requests run together. What they have in common are rows: a row is one token of one
text. Its key and value are written to a place in a page, and its query looks at the pages in its
text's block table. So the decoder never knows how texts were cut into pieces or put together.

`forward` takes either the rows of many texts, one block table each (decoding), or the rows of one
text with its only block table (prefill): the same module, two programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import genesis
from genesis import functional, nn
from genesis.functional.attention import attention_and_totals
from genesis.llm.config import DecoderConfig, LayerConfig
from genesis.llm.experts import ExpertNetwork
from genesis.llm.kv_cache import Cache
from genesis.llm.layers import FeedForward, linear, norm, projection
from genesis.llm.rope import RotaryTables
from genesis.llm.weight_names import DecoderTensors


@dataclass(frozen=True)
class StepRows:
    """Where the rows of a step belong, as arrays.

    `tables` are block tables ``(rows, pages)``, or ``(pages,)`` if all rows are of one text;
    `pages` and `places` are where keys and values are written. Of `pages` and `tables` there is one
    for each group of layers that see equally far back. `spans` are the greater of a prompt's length
    and a position plus one, `adapters` slots of `lora`, if there are any.
    """

    positions: Any
    spans: Any
    places: Any
    pages: Sequence[Any]
    tables: Sequence[Any]
    adapters: Any = None


class Attention(nn.Module):
    """Every row as a mean of the values of the rows before it in its text."""

    def __init__(self, config: DecoderConfig, layer: LayerConfig, take: Any) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        heads, shared = config.heads * config.head_size, config.key_heads * config.head_size
        self.sizes = [heads, shared, shared]
        # Queries, keys and values are one product: a small matrix is read more slowly.
        parts = zip("qkv", self.sizes, strict=True)
        self.project = projection(
            [take.part(part) for part, _ in parts], self.sizes, config.width, config.qkv_bias
        )
        self.out = linear(take.part("o"), config.width, heads, config.out_bias)
        self.project.adaptable = self.out.adaptable = True
        if config.qk_norm != "none":
            whole = config.qk_norm == "all heads"
            sizes = self.sizes[:2] if whole else [config.head_size] * 2
            self.q_norm = norm(config, take.part("q_norm"), sizes[0])
            self.k_norm = norm(config, take.part("k_norm"), sizes[1])
        if config.sinks:
            self.register_buffer("sinks", take("sinks", config.heads).to(genesis.float32))

    def forward(self, x: Any, rows: StepRows, cache: Cache, turn: Any) -> Any:
        """``(rows, width)`` to the same."""
        query, key, value = functional.split(self.project(x, rows.adapters), self.sizes, -1)
        query, key = self._normed(query, key, "all heads")
        if (clip := self.config.clip_qkv) is not None:
            query, key, value = (functional.clamp(y, -clip, clip) for y in (query, key, value))
        split = [y.reshape(y.shape[0], -1, self.config.head_size) for y in (query, key, value)]
        query, key = self._normed(split[0], split[1], "head")
        if turn is not None:
            module, cos, sin = turn
            query, key = module(query, cos, sin), module(key, cos, sin)
        if self.layer.l2_norm:
            shape = (self.config.head_size,)
            query, key = (
                functional.rms_norm(y, shape, eps=self.config.epsilon) for y in (query, key)
            )
        if self.layer.temperature is not None:
            query = query * self._temperature(rows.positions)[:, None, None]
        cache.write(key, split[2], rows.pages[cache.group], rows.places)
        mixed = self._mixed(query, *cache.read(rows.tables[cache.group]), rows)
        mixed = mixed.reshape(x.shape[0], self.sizes[0]).to(x.dtype)
        return self.out(mixed, rows.adapters)

    def _normed(self, query: Any, key: Any, kind: str) -> tuple[Any, Any]:
        if self.config.qk_norm == kind:
            return self.q_norm(query), self.k_norm(key)
        return query, key

    def _temperature(self, positions: Any) -> Any:
        floor, scale = self.layer.temperature  # type: ignore[misc]
        far = functional.floor((positions.to(genesis.float32) + 1.0) / floor)
        return functional.log1p(far) * scale + 1.0

    def _mixed(self, query: Any, keys: Any, values: Any, rows: StepRows) -> Any:
        """``(rows, heads, features)`` of queries that look at keys (.., key heads, places, ..)."""
        c = self.config
        alone = keys.ndim == 4  # every row has keys of its own
        group = c.heads // c.key_heads
        query = query.reshape(-1, c.key_heads, group, c.head_size)
        seen = self._seen(rows.positions, keys.shape[-2])
        sinks = self.sinks.reshape(c.key_heads, group) if c.sinks else None
        if alone:
            mask = seen[:, None, None]  # (rows, 1, 1, places)
            sinks = None if sinks is None else sinks[:, :, None]
        else:
            query = query.permute(1, 2, 0, 3)
            keys, values, mask = keys[:, None], values[:, None], seen
            sinks = None if sinks is None else sinks[:, :, None, None]
        mixed = self._attended(query, keys, values, mask, sinks)
        return mixed if alone else mixed.permute(2, 0, 1, 3)

    def _attended(self, query: Any, keys: Any, values: Any, mask: Any, sinks: Any) -> Any:
        c, scale = self.config, self.config.scale * self.layer.score_scale
        if c.attention_cap is not None:
            scores = functional.matmul(query, keys.to(query.dtype).transpose(-1, -2)) * scale
            scores = c.attention_cap * functional.tanh(scores / c.attention_cap)
            weights = functional.softmax(functional.where(mask, scores, -float("inf")), -1)
            return functional.matmul(weights, values.to(query.dtype))
        mixed, totals = attention_and_totals(
            query.to(keys.dtype), keys, values, attn_mask=mask, scale=scale
        )
        return mixed if sinks is None else mixed * functional.sigmoid(totals - sinks)

    def _seen(self, positions: Any, count: Any) -> Any:
        """Which places each row looks at: (rows, places)."""
        place, at = genesis.arange(count), positions[:, None]
        seen = place <= at
        if self.layer.window is not None:
            seen = seen & (place > at - self.layer.window)
        if self.layer.chunk is not None:
            seen = seen & (place >= at // self.layer.chunk * self.layer.chunk)
        return seen


class DecoderLayer(nn.Module):
    """Attention and a network, or experts, each added to what goes through."""

    def __init__(self, config: DecoderConfig, layer: LayerConfig, take: Any) -> None:
        super().__init__()
        self.config = config
        self.attention = Attention(config, layer, take.inner("attention"))
        if layer.experts is not None:
            self.mlp: Any = ExpertNetwork(config, layer.experts, take)
        else:
            self.mlp = FeedForward(config, layer.hidden, take.inner("mlp"))
        for name in ("attention", "mlp"):
            for when, there in (("before", config.norm_before), ("after", config.norm_after)):
                module = norm(config, take.part(f"{when}_{name}"), config.width) if there else None
                setattr(self, f"{when}_{name}", module)

    def forward(self, x: Any, rows: StepRows, cache: Cache, turn: Any) -> Any:
        """``(rows, width)`` to the same."""

        def added(x: Any, before: Any, module: Any, after: Any, *rest: Any) -> Any:
            y = module(x if before is None else before(x), *rest)
            y = y if after is None else after(y)
            return x + (y if self.config.residual_scale == 1 else y * self.config.residual_scale)

        x = added(x, self.before_attention, self.attention, self.after_attention, rows, cache, turn)
        return added(x, self.before_mlp, self.mlp, self.after_mlp, rows.adapters)


class Decoder(nn.Module):
    """Scores for the next token, of any family."""

    def __init__(self, config: DecoderConfig, source: DecoderTensors, length: int) -> None:
        super().__init__()
        self.config, self.longest = config, length
        take = Take(source)
        self.tokens = linear(take.part("tokens"), config.vocabulary, config.width)
        if config.learned_positions:
            table = take("positions.weight", config.learned_positions, config.width)
            self.register_buffer("positions", table.to(genesis.float32))
        self.turns = nn.ModuleList()
        ropes: dict[Any, int] = {}
        self.turn_of = []
        for layer in config.layers:
            if layer.rope is None:
                self.turn_of.append(-1)
                continue
            key = repr(layer.rope)
            if key not in ropes:
                ropes[key] = len(self.turns)
                self.turns.append(RotaryTables(layer.rope, length))
            self.turn_of.append(ropes[key])
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, take.inner(f"layers.{k}"))
            for k, layer in enumerate(config.layers)
        )
        self.norm = norm(config, take.part("norm"), config.width)
        if config.tied and not source.has_head():
            self.head = self.tokens
        else:
            self.head = linear(take.part("head"), config.vocabulary, config.width)
        source.finish()

    def forward(self, tokens: Any, rows: StepRows, caches: Any) -> Any:
        """What the last layer with a cache says of every row, normalised: ``(rows, width)``."""
        x = self.tokens.rows(tokens)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.config.learned_positions:
            x = x + functional.embedding(rows.positions, self.positions)
        turns = [(turn, *turn.rows(rows.positions, rows.spans)) for turn in self.turns]
        for layer, cache, k in zip(self.layers, caches, self.turn_of, strict=False):
            x = layer(x, rows, cache, None if k < 0 else turns[k])
        return self.norm(x)

    def scores(self, x: Any) -> Any:
        """The scores of all tokens after some rows that `forward` gave."""
        y = self.head(x)
        if self.config.logit_scale != 1:
            y = y * self.config.logit_scale
        if (cap := self.config.logit_cap) is not None:
            y = cap * functional.tanh(y / cap)
        return y


class Take:
    """Tensors of a `DecoderTensors` below some name."""

    def __init__(self, source: DecoderTensors, prefix: str = "") -> None:
        self.source, self.prefix = source, prefix
        self.format = source.format  # of matrices; None: as they are stored
        self.array_cache = source.array_cache

    def inner(self, name: str) -> Take:
        """Those below a name."""
        return Take(self.source, f"{self.prefix}{name}.")

    part = inner

    @property
    def theirs(self) -> str:
        """What the files call the module of this name."""
        return self.source.theirs(self.prefix.rstrip("."))

    def __call__(self, name: str, *shape: int) -> Any:
        """The tensor of a name, which must have a shape."""
        return self.source.take(self.prefix + name, *shape)


__all__ = ["Attention", "Decoder", "DecoderLayer", "StepRows", "Take"]
