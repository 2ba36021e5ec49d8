"""Configurations drawn at random: what families allow, as nobody would combine it."""

from __future__ import annotations

from typing import Any

import numpy as np

FAMILIES = (
    "Llama", "Mistral", "Ministral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Olmo2",
    "Olmo3", "Olmoe", "Gemma", "Gemma2", "Gemma3Text", "Phi3", "Granite", "Starcoder2", "SmolLM3",
    "GPT2", "GptOss", "Llama4Text",
)  # fmt: skip


class _Draw:
    """Choices, one after the other."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def of(self, *options: Any) -> Any:
        return options[int(self._rng.integers(len(options)))]

    def flag(self) -> bool:
        return bool(self.of(False, True))

    def kinds(self, layers: int) -> list[str]:
        return [self.of("sliding_attention", "full_attention") for _ in range(layers)]


def drawn(family: str, seed: int) -> tuple[str, dict[str, Any]]:
    """A configuration class of transformers, and its arguments."""
    d = _Draw(seed)
    shared = d.of(1, 2, 3)
    heads, size = shared * d.of(1, 2, 3), d.of(8, 12, 16, 20, 32)
    # These do not take heads that are not a part of the width each.
    whole = family in ("Llama", "Olmoe", "Gemma2", "Gemma3Text", "Phi3") or d.flag()
    layers, window = d.of(1, 2, 3, 5), d.of(7, 16, 24)
    c = {
        "vocab_size": d.of(97, 131, 320, 333),
        "hidden_size": heads * size if whole else d.of(36, 40, 64, 72),
        "intermediate_size": d.of(44, 64, 96, 100), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": size,
        "max_position_embeddings": d.of(128, 256), "rms_norm_eps": d.of(1e-5, 1e-6),
        "tie_word_embeddings": d.flag(), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if family == "GPT2":
        return "GPT2Config", {
            "vocab_size": c["vocab_size"], "n_embd": heads * size, "n_layer": layers,
            "n_head": heads, "n_positions": 128, "n_inner": d.of(None, 76), "bos_token_id": 1,
            "eos_token_id": 2, "activation_function": d.of("gelu_new", "gelu", "relu"),
            "scale_attn_weights": d.flag(), "tie_word_embeddings": d.flag(),
            "scale_attn_by_inverse_layer_idx": d.flag(),
        }  # fmt: skip
    c |= _own(family, d, layers, window)
    _add_rope(family, d, c, size // 2)
    return f"{family}Config", c


def _own(family: str, d: _Draw, layers: int, window: int) -> dict[str, Any]:
    """What a family has that others have not."""
    bias = {"attention_bias": d.flag()}
    windows = {
        "use_sliding_window": d.flag(), "sliding_window": window,
        "max_window_layers": d.of(*range(layers + 1)),
    }  # fmt: skip
    kinds = {"sliding_window": window} | ({"layer_types": d.kinds(layers)} if d.flag() else {})
    experts = {"num_experts_per_tok": d.of(1, 2, 3)}
    many = experts | windows | {
        "num_experts": 7, "moe_intermediate_size": 36, "norm_topk_prob": d.flag(),
        "decoder_sparse_step": d.of(1, 2), "mlp_only_layers": d.of([], [0]),
    }  # fmt: skip
    gelu = d.of("gelu_pytorch_tanh", "gelu", "silu")
    gemma = kinds | bias | {
        "hidden_activation": gelu, "query_pre_attn_scalar": d.of(16, 48),
        "attn_logit_softcapping": d.of(None, 5.0), "final_logit_softcapping": d.of(None, 5.0),
    }  # fmt: skip
    return {
        "Llama": bias | {"mlp_bias": d.flag(), "hidden_act": gelu},
        "Mistral": {"sliding_window": d.of(None, window)},
        "Ministral": kinds,
        "Mixtral": experts | {"sliding_window": d.of(None, window), "num_local_experts": 5},
        "Qwen2": windows,
        "Qwen2Moe": many | {"shared_expert_intermediate_size": 52, "qkv_bias": d.flag()},
        "Qwen3": windows | bias,
        "Qwen3Moe": many | bias,
        "Olmo2": bias,
        "Olmo3": bias | kinds,
        "Olmoe": experts
        | bias
        | {"num_experts": 6, "norm_topk_prob": d.flag(), "clip_qkv": d.of(None, 0.5)},
        "Gemma": bias | {"hidden_act": gelu},
        "Gemma2": gemma,
        "Gemma3Text": gemma,
        "Phi3": {"sliding_window": d.of(None, window)},
        "Granite": bias
        | {
            "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4,
            "logits_scaling": 3.0, "mlp_bias": d.flag(),
        },
        "Starcoder2": {
            "use_bias": d.flag(), "hidden_act": gelu, "sliding_window": d.of(None, window),
            "norm_epsilon": d.of(1e-5, 1e-6),
        },
        "SmolLM3": bias
        | {
            "no_rope_layer_interval": d.of(2, 3), "use_sliding_window": d.flag(),
            "sliding_window": window, "mlp_bias": d.flag(),
        },
        "GptOss": kinds | experts | bias | {"num_local_experts": 5},
        "Llama4Text": bias
        | {
            "intermediate_size_mlp": 80, "num_local_experts": 4, "num_experts_per_tok": d.of(1, 2),
            "attention_chunk_size": d.of(16, 32), "floor_scale": 16, "use_qk_norm": d.flag(),
            "interleave_moe_layer_step": d.of(1, 2), "attn_temperature_tuning": d.flag(),
        },
    }[family]  # fmt: skip


def _add_rope(family: str, d: _Draw, c: dict[str, Any], pairs: int) -> None:
    """Positions that are stretched in some way, which is crossed by 64 tokens more."""
    if family in ("Gemma3Text", "Olmo3"):
        local = {"rope_type": "default", "rope_theta": d.of(1e4, 5e4)}
        far = _rope(d, d.of("default", "linear", "yarn"), pairs)
        c["rope_parameters"] = {"full_attention": far, "sliding_attention": local}
        return
    kinds = ["default", "linear", "dynamic", "yarn", "llama3", "longrope"]
    kind = d.of(*{"Phi3": ["default", "longrope"], "Llama4Text": ["default", "llama3"]}.get(
        family, kinds
    ))  # fmt: skip
    c["rope_parameters"] = _rope(d, kind, pairs)
    if kind == "dynamic":
        c["max_position_embeddings"] = 40
    if family == "Phi3" and kind == "longrope":
        length = c["rope_parameters"]["original_max_position_embeddings"]
        c["original_max_position_embeddings"] = length


def _rope(d: _Draw, kind: str, pairs: int) -> dict[str, Any]:
    long, maybe = d.of(30, 48), d.of({}, {}, {"attention_factor": d.of(0.8, 1.2)})
    own: dict[str, Any] = {
        "default": {},
        "linear": {"factor": d.of(1.5, 4.0)},
        "dynamic": {"factor": d.of(2.0, 4.0)},
        "yarn": {
            "factor": d.of(4.0, 8.0), "original_max_position_embeddings": d.of(32, 64),
            **d.of({}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"truncate": False},
                   {"mscale": 0.8, "mscale_all_dim": 1.2}), **maybe,
        },
        "llama3": {
            "factor": d.of(4.0, 32.0), "low_freq_factor": 1.0, "high_freq_factor": d.of(2.0, 4.0),
            "original_max_position_embeddings": d.of(16, 64),
        },
        "longrope": {
            "original_max_position_embeddings": long, **maybe,
            "short_factor": [1.0 + k / 8 for k in range(pairs)],
            "long_factor": [1.0 + k for k in range(pairs)],
        },
    }[kind]  # fmt: skip
    return {"rope_type": kind, "rope_theta": d.of(1e4, 5e5, 1e6), **own}
