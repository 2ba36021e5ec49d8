"""What a decoder consists of, as data.

Families of models differ in a dozen choices: where they normalise, how positions enter, which
layers see how far back, which have experts. `DecoderConfig` names the choices, `families` reads
them from the files of a model, and `decoder` builds one module from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class BadModel(ValueError):
    """The files of a model do not say what a model needs, or contradict each other."""


@dataclass(frozen=True)
class Rope:
    """How positions turn the first `size` features of every head.

    Pairs are features i and ``i + size/2``; `interleaved`, 2i and 2i + 1. `kind` and `scaling` are
    those of the ``rope_scaling`` of a configuration: how a model was stretched to longer texts.
    A text that outgrows what it was trained with turns otherwise from there on; with `anew`
    (LongRoPE of Phi-3), from its beginning on.
    """

    size: int
    theta: float = 10000.0
    interleaved: bool = False
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    anew: bool = False


@dataclass(frozen=True)
class ExpertsConfig:
    """A layer whose tokens each choose some of many networks."""

    count: int
    chosen: int
    hidden: int
    #: Scores: of all experts, of the chosen ones alone, or each by itself.
    scoring: Literal["softmax", "softmax of chosen", "sigmoid"] = "softmax"
    renormalise: bool = False  # scores of the chosen sum to 1
    scale_input: bool = False  # scores multiply what goes in, not what comes out
    shared: int = 0  # hidden size of a network that sees every token
    shared_gate: bool = False
    bias: bool = False
    limit: float | None = None  # gates are clamped as in gpt-oss
    alpha: float = 1.702


@dataclass(frozen=True)
class LayerConfig:
    """What one layer has of its own."""

    hidden: int
    window: int | None = None  # keys a query sees, itself included
    chunk: int | None = None  # queries see the keys of their chunk
    rope: Rope | None = None
    experts: ExpertsConfig | None = None
    score_scale: float = 1.0  # scores of attention are multiplied with it besides
    l2_norm: bool = False  # queries and keys have length 1, without weights
    #: Queries at far positions are scaled up: (floor, scale).
    temperature: tuple[float, float] | None = None

    @property
    def reach(self) -> int | None:
        """How many keys can still be seen, itself included; None: all."""
        return self.window if self.chunk is None else self.chunk


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder: what its layers share, and `layers`."""

    family: str
    width: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    context: int
    layers: tuple[LayerConfig, ...]
    epsilon: float = 1e-5
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0  # added to the weights of norms
    #: Norms of what goes into attention and network, of what comes out, or both.
    norm_before: bool = True
    norm_after: bool = False
    qk_norm: Literal["none", "head", "all heads"] = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    gated: bool = True
    activation: str = "silu"
    tied: bool = False
    attention_scale: float | None = None
    attention_cap: float | None = None  # scores are cap * tanh(score / cap)
    logit_cap: float | None = None
    clip_qkv: float | None = None
    sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    learned_positions: int = 0

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise BadModel(
                f"{self.family}: {self.heads} query heads cannot share {self.key_heads} key heads"
            )
        for layer in self.layers:
            if layer.rope is not None and (layer.rope.size % 2 or layer.rope.size > self.head_size):
                raise BadModel(
                    f"{self.family}: {layer.rope.size} features of heads of {self.head_size} "
                    "cannot turn in pairs"
                )
            if layer.experts is not None and not 0 < layer.experts.chosen <= layer.experts.count:
                raise BadModel(
                    f"{self.family}: tokens cannot choose {layer.experts.chosen} of "
                    f"{layer.experts.count} experts"
                )

    @property
    def windows(self) -> list[int | None]:
        """How far back groups of layers see; layers of a group keep the same keys."""
        return list(dict.fromkeys(layer.reach for layer in self.layers))

    @property
    def scale(self) -> float:
        """What scores of attention are multiplied with."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale


class ConfigFields:
    """The entries of a configuration, each checked when it is read.

    >>> c = ConfigFields({"hidden_size": 64, "bias": None}, "config.json")
    >>> c.integer("hidden_size"), c.integer("heads", 4), c.flag("bias")
    (64, 4, False)
    >>> c.integer("layers")
    Traceback (most recent call last):
    genesis.llm.config.BadModel: config.json: no entry 'layers'
    """

    def __init__(self, entries: Mapping[str, Any], file: str) -> None:
        self.entries, self.file = entries, file

    def __contains__(self, key: str) -> bool:
        return self.entries.get(key) is not None

    def bad(self, key: str, expected: str) -> BadModel:
        """The error about an entry."""
        if key not in self:
            return BadModel(f"{self.file}: no entry {key!r}")
        return BadModel(f"{self.file}: {key} is {self.entries[key]!r:.80}, not {expected}")

    def integer(
        self, key: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        """A whole number, not smaller than `least` and not greater than `most`."""
        value = self.entries.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.bad(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.entries.get(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not abs(value) < float("inf"):  # type: ignore[arg-type]
            raise self.bad(key, "a number")
        return float(value)  # type: ignore[arg-type]

    def optional(self, key: str) -> float | None:
        """A number, or None."""
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool = False) -> bool:
        """True or False."""
        value = self.entries.get(key)
        if value is None:
            return default
        if type(value) not in (bool, int):
            raise self.bad(key, "true or false")
        return bool(value)

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self.entries.get(key)
        if value is None:
            return default
        if type(value) is not str:
            raise self.bad(key, "a string")
        return value

    def sequence(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        """A list, of a length if that is given; None if there is none."""
        value = self.entries.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.bad(key, "a list" if length is None else f"a list of {length}")
        return value

    def inner(self, key: str) -> ConfigFields:
        """The entries of an entry; none if it is missing."""
        value = self.entries.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.bad(key, "a table of entries")
        return ConfigFields(value, f"{self.file}: {key}")


__all__ = ["BadModel", "DecoderConfig", "ExpertsConfig", "ConfigFields", "LayerConfig", "Rope"]
