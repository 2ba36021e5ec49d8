"""The metadata of GGUF files as the entries of a ``config.json``, which `families` reads.

What the conversion to GGUF does to tensors shows in two places of the configuration: some
architectures have the queries and keys of heads in pairs of neighbours (`Rope.interleaved`), and
Gemma's norms have their 1 added already. `gguf_names` knows what tensors are called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from genesis.llm import encoder, families
from genesis.llm.config import BadModel, ConfigFields, DecoderConfig, Rope
from genesis.llm.encoder import EncoderConfig
from genesis.llm.gguf_names import ENCODER_NAMES, FACTORS
from genesis.llm.weight_names import Shape
from genesis.weights.checkpoint_reader import Weights

#: ``general.architecture``, and our word for the family.
_DECODERS = {
    "llama": "llama", "llama4": "llama4_text", "qwen2": "qwen2", "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "olmo2": "olmo2", "olmoe": "olmoe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "granite": "granite", "starcoder2": "starcoder2", "smollm3": "smollm3", "gpt2": "gpt2",
    "gpt-oss": "gpt_oss",
}  # fmt: skip
ENCODERS = ("bert",)
_INTERLEAVED = ("llama", "granite", "smollm3")
#: Layers with a window have positions of their own, never stretched: the base, 0 if the same.
_LOCAL_BASE = {"olmo2": 0.0, "gemma3": 10000.0}
#: The models, by family and layers, that scale scores by the mean size of heads, not their own.
_MEAN_SCALE = (("gemma2", 46), ("gemma3", 62))
_POOLING = {1: "mean", 2: "cls"}

#: Metadata, and the entries of configurations that say the same.
_ENTRIES = {
    "context_length": "max_position_embeddings n_positions",
    "embedding_length": "hidden_size n_embd",
    "block_count": "num_hidden_layers n_layer",
    "feed_forward_length": "intermediate_size intermediate_size_mlp n_inner",
    "attention.head_count": "num_attention_heads n_head",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "norm_epsilon layer_norm_epsilon layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.scale": "attention_multiplier",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_ROPE = {
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
}


class _File(ConfigFields):
    """The metadata of a file without the name of its architecture, and its tensors.

    Zeros are left out: in GGUF files they say that there is nothing.
    """

    def __init__(self, weights: Weights, where: str) -> None:
        given = weights.metadata or {}
        self.weights = weights
        self.architecture = ConfigFields(given, where).text("general.architecture")
        known = [*_DECODERS, *ENCODERS]
        if self.architecture not in known:
            raise BadModel(
                f"{where}: {self.architecture!r:.60} is no known architecture; known are "
                f"{', '.join(sorted(known))}"
            )
        prefix = f"{self.architecture}."
        own = {key.removeprefix(prefix): x for key, x in given.items() if key.startswith(prefix)}
        plain = {key: x.tolist() if hasattr(x, "tolist") else x for key, x in own.items()}
        super().__init__({key: x for key, x in plain.items() if x}, f"{where}: {prefix[:-1]}")
        self.layers = self.integer("block_count")
        there = {name.split(".")[1] for name in weights.names() if name.startswith("blk.")}
        if self.layers > len(there):  # nothing is made for layers that are only said to be there
            raise self.bad("block_count", "the number of layers whose tensors are there")

    def translated(self, table: Mapping[str, str]) -> dict[str, Any]:
        """The entries of a table that are there, in its words."""
        return {
            word: self.entries[key]
            for key, words in table.items()
            for word in words.split()
            if key in self
        }

    def shape(self, name: str) -> Shape:
        """The shape of a tensor, which must be there."""
        if name not in self.weights or not self.weights.shape(name):
            raise BadModel(f"{self.file}: there is no tensor {name!r}")
        return self.weights.shape(name)

    def config(self) -> dict[str, Any]:
        """The entries that all configurations have."""
        for key in ("embedding_length", "context_length", "feed_forward_length"):
            self.integer(key)
        return {**self.translated(_ENTRIES), "vocab_size": self.shape("token_embd.weight")[0]}


# ---- decoders


def read_config(weights: Weights, where: str) -> DecoderConfig:
    """The decoder that a GGUF file describes."""
    file = _File(weights, where)
    mean = file.integer("embedding_length") // file.integer("attention.head_count")
    size = file.integer("attention.key_length", mean)
    if file.integer("attention.value_length", size) != size:
        raise file.bad("attention.value_length", f"{size}, as that of keys")
    turning = file.integer("rope.dimension_count", size)
    entries = {
        **file.config(),
        **_shown_by_tensors(file),
        "head_dim": size,
        "query_pre_attn_scalar": mean if (file.architecture, file.layers) in _MEAN_SCALE else size,
        "layer_types": _kinds(file),
        "rope_parameters": _rope(file, turning),
        "norm_topk_prob": file.architecture == "qwen3moe",
    }
    entries |= _variant(file, _DECODERS[file.architecture])
    config = families.read_config(entries, where)
    pairs = file.architecture in _INTERLEAVED

    def turned(rope: Rope | None) -> Rope | None:
        return rope and replace(rope, size=turning, interleaved=rope.interleaved or pairs)

    layers = tuple(replace(layer, rope=turned(layer.rope)) for layer in config.layers)
    return replace(config, layers=layers, norm_offset=0.0)


def _shown_by_tensors(file: _File) -> dict[str, Any]:
    """What metadata do not say."""
    weights = file.weights
    sparse = [k for k in range(file.layers) if f"blk.{k}.ffn_gate_inp.weight" in weights]
    return {
        "tie_word_embeddings": "output.weight" not in weights,
        "attention_bias": "blk.0.attn_output.bias" in weights,
        "mlp_bias": "blk.0.ffn_up.bias" in weights,
        "moe_layers": sparse,
        "mlp_only_layers": [k for k in range(file.layers) if k not in sparse],
    }


def _variant(file: _File, family: str) -> dict[str, Any]:
    """The family, and what its configurations call otherwise."""
    if family == "llama4_text":
        hidden, count = file.integer("expert_feed_forward_length"), file.integer("expert_count")
        scout = count != 128  # Maverick's queries and keys have no norm
        return {"model_type": family, "intermediate_size": hidden, "use_qk_norm": scout}
    if family == "llama" and "expert_count" in file:
        family = "mixtral"
    if family == "olmo2" and "attention.sliding_window" in file:
        family = "olmo3"
    return {"model_type": family}


def _kinds(file: _File) -> list[str] | None:
    """Which layers have windows; None: those that usually have them."""
    key, count = "attention.sliding_window_pattern", file.layers
    if "attention.sliding_window" not in file:
        windows: Any = [False] * count
    elif key not in file:
        return None
    elif isinstance(file.entries[key], list):
        windows = file.sequence(key, count)
    else:
        step = file.integer(key)
        windows = [k % step < step - 1 for k in range(count)]
    return ["sliding_attention" if window else "full_attention" for window in windows]


def _rope(file: _File, size: int) -> dict[str, Any]:
    """The ``rope_parameters`` of a configuration."""
    factors = {key: name for key, name in FACTORS.items() if name in file.weights}
    for name in factors.values():
        if (shape := file.shape(name)) != (size // 2,):
            raise BadModel(f"{file.file}: {name} has the shape {shape}, and {size} features turn")
    kind = file.text("rope.scaling.type", "linear" if "rope.scaling.factor" in file else "none")
    kind = "factors" if "factors" in factors else "longrope" if factors else kind
    rope = {
        **file.translated(_ROPE),
        **{key: file.weights.read(name).tolist() for key, name in factors.items()},
        "rope_type": "default" if kind == "none" else kind,
        "mscale": 1.0,
        "truncate": file.architecture != "gpt-oss",
    }
    if file.architecture not in _LOCAL_BASE:
        return rope
    base = file.number("rope.freq_base_swa", _LOCAL_BASE[file.architecture])
    local = {"rope_theta": base or rope.get("rope_theta")}
    return {"full_attention": rope, "sliding_attention": local}


# ---- encoders


def read_encoder(weights: Weights, where: str) -> EncoderConfig:
    """The encoder that a GGUF file describes."""
    file = _File(weights, where)
    modules = set(ENCODER_NAMES.values())
    for name in weights.names():
        found = re.fullmatch(r"(?:blk\.(\d{1,9})\.)?(\w+)\.(weight|bias)", name)
        if found is None or found[2] not in modules or int(found[1] or 0) >= file.layers:
            raise BadModel(f"{where}: an encoder of {file.layers} layers has no {name!r:.80}")
    entries = {
        **file.config(),
        "model_type": file.architecture,
        "max_position_embeddings": file.shape("position_embd.weight")[0],
        "type_vocab_size": file.shape("token_types.weight")[0],
    }
    pooling = file.integer("pooling_type", 1)
    if pooling not in _POOLING:
        raise file.bad("pooling_type", "1, the mean of all tokens, or 2, the first one")
    return encoder.read_config(entries, where, pooling=_POOLING[pooling])


__all__ = ["ENCODERS", "read_config", "read_encoder"]
