"""Rotary positions, with every way in which models are stretched to longer texts.

Pair i of a head turns by ``position * frequency[i]``. What depends on how long a text has become
(dynamic NTK, LongRoPE) depends here on `span`, the greater of the prompt's length and the position
plus one: that is what a token saw when it was computed first, whatever pieces it is computed in.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import genesis
from genesis import functional, nn
from genesis.llm.config import BadModel, Rope
from genesis.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]


def frequencies(rope: Rope, span: int = 0) -> tuple[Array, float]:
    """How fast every pair turns, and a factor of cosines and sines.

    >>> frequencies(Rope(4, 100.0))[0].tolist()
    [1.0, 0.10000000149011612]
    """
    try:
        found = _KINDS[rope.kind](rope, span)
    except KeyError as e:
        if rope.kind not in _KINDS:
            raise BadModel(
                f"rope scaling {rope.kind!r} is none of {', '.join(sorted(_KINDS))}"
            ) from None
        raise BadModel(f"rope scaling {rope.kind!r} has no entry {e}") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as e:
        raise BadModel(f"rope scaling {rope.kind!r}: {e}") from None
    if found[0].shape != (rope.size // 2,) or not np.isfinite(found[0]).all():
        raise BadModel(f"rope scaling {rope.kind!r}: entries do not fit {rope.size} features")
    return found


def depends_on_span(rope: Rope | None) -> bool:
    """Whether frequencies change when a text grows long."""
    return rope is not None and rope.kind in ("dynamic", "longrope")


def same_span(rope: Rope, span: int) -> int:
    """The least span with the same frequencies: keys of two texts can be shared if these agree."""
    limit = _limit(rope)
    if span <= limit:
        return 0
    return span if rope.kind == "dynamic" else limit + 1


def switch(rope: Rope | None) -> int | None:
    """The length beyond which a text has other frequencies from its beginning on; None: none."""
    return _limit(rope) if rope and rope.anew and rope.kind == "longrope" else None


def _limit(rope: Rope) -> int:
    key = (
        "max_position_embeddings" if rope.kind == "dynamic" else "original_max_position_embeddings"
    )
    return int(rope.scaling[key])


def _powers(rope: Rope, theta: float | None = None) -> Array:
    exponents = np.arange(0, rope.size, 2, dtype=np.float32) / np.float32(rope.size)
    powers: Array = np.power(np.float32(theta or rope.theta), exponents, dtype=np.float32)
    return powers


def _plain(rope: Rope, span: int) -> tuple[Array, float]:
    return np.float32(1) / _powers(rope), 1.0


def _linear(rope: Rope, span: int) -> tuple[Array, float]:
    return np.float32(1) / _powers(rope) / np.float32(rope.scaling["factor"]), 1.0


def _dynamic(rope: Rope, span: int) -> tuple[Array, float]:
    factor, longest = rope.scaling["factor"], _limit(rope)
    growth = factor * max(span, longest) / longest - (factor - 1)
    theta = rope.theta * growth ** (rope.size / (rope.size - 2))
    return np.float32(1) / _powers(rope, theta), 1.0


def _yarn(rope: Rope, span: int) -> tuple[Array, float]:
    s = rope.scaling
    longest, factor = s["original_max_position_embeddings"], s["factor"]

    def pair(rotations: float) -> float:
        return (
            rope.size * math.log(longest / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = pair(s.get("beta_fast") or 32), pair(s.get("beta_slow") or 1)
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.size - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(rope.size // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    powers = _powers(rope)
    far, near = np.float32(1) / (np.float32(factor) * powers), np.float32(1) / powers
    return (far * ramp + near * (1 - ramp)).astype(np.float32), _yarn_factor(s, factor)


def _yarn_factor(s: Any, factor: float) -> float:
    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    if s.get("attention_factor") is not None:
        return float(s["attention_factor"])
    if s.get("mscale") and s.get("mscale_all_dim"):
        return scale(s["mscale"]) / scale(s["mscale_all_dim"])
    return scale(1.0)


def _long(rope: Rope, span: int) -> tuple[Array, float]:
    s = rope.scaling
    longest = _limit(rope)
    factor = s.get("factor") or s["max_position_embeddings"] / longest
    attention = s.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(longest))
    factors = np.asarray(s["long_factor" if span > longest else "short_factor"], np.float32)
    if factors.shape != (rope.size // 2,):
        raise ValueError(f"{factors.size} factors for {rope.size // 2} pairs")
    return np.float32(1) / (factors * _powers(rope)), float(attention)


def _llama3(rope: Rope, span: int) -> tuple[Array, float]:
    s = rope.scaling
    factor, low, high = s["factor"], s["low_freq_factor"], s["high_freq_factor"]
    plain = np.float32(1) / _powers(rope)
    wavelength = 2 * math.pi / plain
    turns = s["original_max_position_embeddings"] / wavelength
    smooth = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - smooth) * plain / np.float32(factor) + smooth * plain, 1.0


def _factors(rope: Rope, span: int) -> tuple[Array, float]:
    """Factors that a GGUF file has in a tensor."""
    return np.float32(1) / (_powers(rope) * np.asarray(rope.scaling["factors"], np.float32)), 1.0


_KINDS = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _long,
    "llama3": _llama3,
    "factors": _factors,
}


class RotaryTables(nn.Module):
    """Turns heads by their positions: cosines and sines of all positions are kept.

    Of LongRoPE there are two tables, the second for texts longer than the model was trained with.
    With dynamic NTK every length has frequencies of its own, which are computed where needed.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: Rope, length: int) -> None:
        super().__init__()
        self.rope, self.length = rope, length
        self.limit = _limit(rope) if depends_on_span(rope) else length
        spans = [0, self.limit + 1] if self.limit < length and rope.kind == "longrope" else [0]
        angles, scales = [], []
        for span in spans:
            speed, factor = frequencies(rope, span)
            angles.append(np.arange(length, dtype=np.float32)[:, None] * speed)
            scales.append(np.float32(factor))
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            table = [function(x) * scale for x, scale in zip(angles, scales, strict=True)]
            self.register_buffer(name, genesis.tensor(np.concatenate(table)), persistent=False)

    def rows(self, positions: Any, spans: Any) -> tuple[Any, Any]:
        """Cosines and sines ``(tokens, size / 2)`` at positions of texts of some spans."""
        if self.limit < self.length:
            if self.rope.kind == "dynamic":
                return self._computed(positions, spans)
            positions = positions + (spans > self.limit).to(positions.dtype) * self.length
        return functional.embedding(positions, self.cos), functional.embedding(positions, self.sin)

    def _computed(self, positions: Any, spans: Any) -> tuple[Any, Any]:
        size, factor = self.rope.size, self.rope.scaling["factor"]
        spans = functional.clamp(spans, min=self.limit).to(genesis.float32)
        growth = factor * spans / self.limit - (factor - 1)
        base = self.rope.theta * growth ** (size / (size - 2))
        exponents = genesis.arange(0, size, 2).to(genesis.float32) / size
        angles = positions[:, None].to(genesis.float32) / base[:, None] ** exponents
        return functional.cos(angles), functional.sin(angles)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """``(tokens, heads, features)`` turned."""
        cos, sin = cos[:, None], sin[:, None]
        turned, rest = x[..., : self.rope.size], x[..., self.rope.size :]
        if self.rope.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            pairs = functional.stack([a * cos - b * sin, b * cos + a * sin], -1)
            turned = pairs.reshape(*turned.shape)
        else:
            a, b = functional.chunk(turned, 2, -1)
            turned = functional.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return turned if self.rope.size == x.shape[-1] else functional.cat([turned, rest], -1)


__all__ = ["RotaryTables", "depends_on_span", "frequencies", "same_span", "switch"]
