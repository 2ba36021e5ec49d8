"""Random models as GGUF files, in the layout that llama.cpp's conversion gives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from genesis.weights.gguf import write_gguf
from tests.llm.random_models import MODELS, make

#: What a conversion loses, as llama.cpp takes it for granted instead; and windows whose positions
#: are not stretched with those of the other layers.
CHANGED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2 moe": {"decoder_sparse_step": 1},
    "qwen3 moe": {"mlp_only_layers": []},
    "olmoe": {"clip_qkv": None},
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": {  # tokens that the tokenizer does not have are cut off
        "query_pre_attn_scalar": 32, "vocab_size": 289,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "olmo3": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                "rope_theta": 1e4, "attention_factor": 1.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "starcoder2": {"sliding_window": None},
    "smollm3": {"no_rope_layer_interval": 4},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
}  # fmt: skip
#: Dynamic NTK cannot be said.
NAMES = [name for name in MODELS if name != "llama dynamic"]

_ARCHITECTURES = {
    "mistral": "llama", "mixtral": "llama", "llama4_text": "llama4", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "olmo3": "olmo2", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss",
}  # fmt: skip
_KEYS = {
    "max_position_embeddings": "context_length", "n_positions": "context_length",
    "hidden_size": "embedding_length", "n_embd": "embedding_length",
    "num_hidden_layers": "block_count", "n_layer": "block_count",
    "intermediate_size": "feed_forward_length", "intermediate_size_mlp": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "head_dim": "attention.key_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    "num_local_experts": "expert_count", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
_WINDOWED = ("gemma2", "gemma3_text", "olmo3", "gpt_oss", "phi3")

_MODULES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "self_attn.sinks": "attn_sinks",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "attention.self.query": "attn_q",
    "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
#: Families that norm what comes out of attention, besides or instead of what goes in.
_AFTER = ("gemma2", "gemma3_text", "olmo2", "olmo3", "gpt_oss")
_LAYER = re.compile(r"(?:model\.layers|transformer\.h|encoder\.layer)\.(\d+)\.")


def made(name: str) -> Any:
    """A random model that a GGUF file can hold."""
    return make(name, **CHANGED.get(name, {}))


def metadata(model: Any) -> dict[str, Any]:
    """What a conversion writes about a model, except for its tokenizer."""
    c = model.config.to_dict()
    kind = c["model_type"]
    architecture = _ARCHITECTURES.get(kind, kind)
    own = {_KEYS[key]: value for key, value in c.items() if key in _KEYS and value is not None}
    rope = c.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if kind == "llama4_text":
        own["expert_feed_forward_length"] = c["intermediate_size"]
        own["feed_forward_length"] = c["intermediate_size_mlp"]
    if kind == "gpt2":
        own["feed_forward_length"] = 4 * c["n_embd"]
    if kind in _WINDOWED:
        own["attention.sliding_window"] = c["sliding_window"] or 0
    if kind == "olmo3":
        pattern = [x == "sliding_attention" for x in c["layer_types"]]
        own["attention.sliding_window_pattern"] = np.array(pattern)
    if "rope_theta" in rope and kind not in ("gemma", "gemma2"):
        own["rope.freq_base"] = float(rope["rope_theta"])
    if kind in ("gemma3_text", "olmo3"):
        own["rope.freq_base_swa"] = float(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        own["rope.scaling.type"] = rope["rope_type"]
        own["rope.scaling.factor"] = float(rope["factor"])
    if rope.get("attention_factor") is not None:
        own["rope.scaling.yarn_attn_factor"] = rope["attention_factor"]
    if rope.get("rope_type") in ("yarn", "longrope"):
        length = rope["original_max_position_embeddings"]
        own["rope.scaling.original_context_length"] = length
        stretched = c["max_position_embeddings"] / length
        if rope["rope_type"] == "longrope":
            factor = np.sqrt(1 + np.log(stretched) / np.log(length))
            own["rope.scaling.attn_factor"] = float(factor)
    own = {f"{architecture}.{key}": value for key, value in own.items()}
    return {"general.architecture": architecture, **own}


def tensors(model: Any) -> dict[str, Any]:
    """The tensors of a model as a conversion names and changes them."""
    c = model.config
    found: dict[str, Any] = {}
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("pooler")}
    if getattr(c, "tie_word_embeddings", False):
        state.pop("lm_head.weight", None)
    for name, x in state.items():
        name = name.replace("feed_forward.", "mlp.")
        for part, value in _split(c.model_type, name, x.float().numpy()):
            found[_renamed(c.model_type, part)] = np.ascontiguousarray(
                _changed(c, part, value), np.float32
            )
    rope = getattr(c, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = _llama3(rope, c.head_dim)
    for kind in ("long", "short"):
        if rope.get("rope_type") == "longrope":
            found[f"rope_factors_{kind}.weight"] = np.float32(rope[f"{kind}_factor"])
    return found


def _split(family: str, name: str, x: Any) -> list[tuple[str, Any]]:
    """Experts in the layout of GGUF files: gate and up apart, outputs before inputs."""
    if ".experts." not in name:
        return [(name, x)]
    base, kind = (name.removesuffix("_bias"), "bias") if "_bias" in name else (name, "weight")
    if family in ("llama4_text", "gpt_oss") and kind == "weight":
        x = x.swapaxes(1, 2)
    if "gate_up_proj" not in base:
        return [(f"{base}.{kind}", x)]
    half = x.shape[1] // 2
    gate, up = (x[:, ::2], x[:, 1::2]) if family == "gpt_oss" else (x[:, :half], x[:, half:])
    return [(f"{base.replace('gate_up', p)}.{kind}", y) for p, y in (("gate", gate), ("up", up))]


def _renamed(family: str, name: str) -> str:
    layer = _LAYER.match(name)
    module, _, kind = (name if layer is None else name[layer.end() :]).rpartition(".")
    if kind == "sinks":
        module, kind = f"{module}.sinks", "weight"
    theirs = _MODULES[module]
    if family in _AFTER and module == "post_attention_layernorm":
        theirs = "post_attention_norm"
    return f"{theirs}.{kind}" if layer is None else f"blk.{layer[1]}.{theirs}.{kind}"


def _changed(c: Any, name: str, x: Any) -> Any:
    family = c.model_type
    if family in ("llama", "mistral", "mixtral", "granite", "smollm3"):
        for part, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
            if part in name:  # halves of heads become neighbours
                return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if family.startswith("gemma") and "norm" in name:
        return x + 1
    if family == "gpt2" and x.ndim == 2 and ".h." in name:
        return x.T
    return x


def _llama3(rope: Any, size: int) -> Any:
    """How many times slower pairs turn than they would unstretched."""
    speeds = rope["rope_theta"] ** -(np.arange(0, size, 2) / size)
    turns = rope["original_max_position_embeddings"] * speeds / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def vocabulary(folder: Path) -> dict[str, Any]:
    """The tokenizer of a folder."""
    found = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(found["model"]["vocab"], key=found["model"]["vocab"].get)
    special = {token["content"] for token in found["added_tokens"]}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in found["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index(config["bos_token"]),
        "tokenizer.ggml.eos_token_id": tokens.index(config["eos_token"]),
        "tokenizer.ggml.add_bos_token": False,
    }


def save(model: Any, path: Path, **more: Any) -> None:
    """Write a model to a GGUF file, with more metadata."""
    write_gguf(path, {**metadata(model), **more}, tensors(model))
