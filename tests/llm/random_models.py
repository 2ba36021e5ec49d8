"""Tiny models of every family with random weights, saved as transformers saves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

#: What all configurations share; names that a family does not know are left out.
_SHARED = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}

#: Name: (configuration class, its arguments).
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama tied, biased": (
        "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama head 32": ("LlamaConfig", {"head_dim": 32, "rope_parameters": _LLAMA3}),
    "llama linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama dynamic": (
        "LlamaConfig",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            "max_position_embeddings": 48,
        },
    ),
    "llama yarn": ("LlamaConfig", {"rope_parameters": _YARN}),
    "llama4": (
        "Llama4TextConfig",
        {
            "intermediate_size_mlp": 80, "num_local_experts": 4, "num_experts_per_tok": 1,
            "head_dim": 16,
            "attention_chunk_size": 32, "floor_scale": 16, "interleave_moe_layer_step": 2,
        },
    ),
    "mistral": ("MistralConfig", {"sliding_window": 24}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": (
        "Qwen2Config", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2},
    ),
    "qwen2 moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 80, "decoder_sparse_step": 2, "mlp_only_layers": [],
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 32,
            "norm_topk_prob": True, "mlp_only_layers": [0],
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 24}),
    "olmoe": ("OlmoeConfig", {"num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
    "gemma": ("GemmaConfig", {"head_dim": 32}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48},
    ),
    "phi3": ("Phi3Config", {}),
    "phi3 long": (
        "Phi3Config",
        {
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0,
                "original_max_position_embeddings": 48,
                "short_factor": [1.0 + k / 8 for k in range(8)],
                "long_factor": [1.0 + k for k in range(8)],
            },
            "original_max_position_embeddings": 48,
        },
    ),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
        },
    ),
    "starcoder2": ("Starcoder2Config", {"sliding_window": 24}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "gpt-oss": (
        "GptOssConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 24},
    ),
}  # fmt: skip


def make(name: str, seed: int = 0, scale: float = 6.0, **changed: Any) -> Any:
    """The model of a name; greater weights than usual, so that scores are far apart.

    `changed` are arguments of its configuration.
    """
    kind, own = MODELS[name]
    shared = {"vocab_size": 320} if kind == "GPT2Config" else _SHARED
    return made(kind, {**shared, **own, **changed}, seed, scale)


def made(kind: str, arguments: Mapping[str, Any], seed: int = 0, scale: float = 6.0) -> Any:
    """A model by the class and the arguments of its configuration."""
    config = getattr(transformers, kind)(**arguments)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim >= 2:
                p.mul_(scale)
            elif "norm" in key or "ln_" in key or "bias" in key or "sinks" in key:
                p.add_(0.2 * torch.randn_like(p))
    return model.float().eval()


def saved(name: str, folder: Path, **how: Any) -> Any:
    """The model of a name, written to a folder."""
    model = make(name)
    model.save_pretrained(folder, **how)
    return model
