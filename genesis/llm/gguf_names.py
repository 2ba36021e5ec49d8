"""What the tensors of a model are called in GGUF files: in the same words for all architectures."""

from __future__ import annotations

import re
from typing import Any

from genesis import functional
from genesis.llm.config import DecoderConfig
from genesis.llm.weight_names import DecoderTensors, Files, Shape, plain, stack
from genesis.weights.array_cache import ArrayCache
from genesis.weights.repack_quantized import QuantizedParameter

#: Tensors that belong to the configuration.
FACTORS = {
    "factors": "rope_freqs.weight",
    "long_factor": "rope_factors_long.weight",
    "short_factor": "rope_factors_short.weight",
}

#: Our names of modules and theirs, as in `names`.
_NAMES = {
    "tokens": "token_embd", "positions": "position_embd", "norm": "output_norm",
    "attention": "attn", "attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v",
    "attention.o": "attn_output", "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm", "before_attention": "attn_norm",
    "after_attention": "post_attention_norm", "before_mlp": "ffn_norm",
    "after_mlp": "post_ffw_norm", "mlp.gate": "ffn_gate", "mlp.up": "ffn_up",
    "mlp.down": "ffn_down", "experts.router": "ffn_gate_inp", "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp", "shared.down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
_OWN = {
    "phi3": {"mlp.gate": "ffn_up#0", "mlp.up": "ffn_up#1"},
    "gpt_oss": {"before_mlp": "post_attention_norm"},
}
_TOGETHER = {f"attention.{part}": f"attn_qkv#{k}" for k, part in enumerate("qkv")}
#: Modules of encoders as Hugging Face calls them, and theirs.
ENCODER_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "attention.self.query": "attn_q",
    "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}  # fmt: skip


class GGUFSource(DecoderTensors):
    """The tensors of a decoder, by its own names, from a GGUF file."""

    def __init__(
        self,
        files: Files,
        config: DecoderConfig,
        where: str,
        format: str | None = None,
        array_cache: ArrayCache | None = None,
    ) -> None:
        super().__init__(files, config, where, format, array_cache)
        self.layers, self.transposed = "blk", False
        self.used |= set(FACTORS.values())

    def _table(self) -> dict[str, str]:
        together = _TOGETHER if "blk.0.attn_qkv.weight" in self.all else {}
        return {**_NAMES, **together, **_OWN.get(self.config.family, {})}

    def _head(self) -> str:
        return "output.weight"

    def _named(self, ours: str, theirs: str) -> Any:
        value = super()._named(ours, theirs.replace("attn.sinks", "attn_sinks.weight"))
        # Older conversions dropped the only row of this one.
        return value[None] if "inp_shexp" in theirs and value.ndim == 1 else value

    def _experts(self, name: str, layer: int, module: str, kind: str, shape: Shape) -> Any:
        def called(part: str) -> str:
            return f"blk.{layer}.ffn_{part}_exps.{kind}"

        parts = [module.removeprefix("experts.")]
        if parts == ["gate_up"] and called("gate_up") not in self.all:
            parts = ["gate", "up"]
        each = (shape[0], shape[1] // len(parts), *shape[2:])
        found = [self._checked(called(p), self._named(name, called(p)), each) for p in parts]
        if kind == "weight" and all(isinstance(x, QuantizedParameter) for x in found):
            return stack([[x[e : e + 1] for x in found] for e in range(shape[0])])
        return found[0] if len(found) == 1 else functional.cat([plain(x) for x in found], 1)


def encoder_name(name: str) -> str:
    """What a GGUF file calls a tensor of an encoder.

    >>> encoder_name("encoder.layer.3.attention.output.dense.bias")
    'blk.3.attn_output.bias'
    """
    module, _, kind = name.rpartition(".")
    layer = re.match(r"encoder\.layer\.(\d+)\.", module)
    if layer is None:
        return f"{ENCODER_NAMES[module]}.{kind}"
    return f"blk.{layer[1]}.{ENCODER_NAMES[module[layer.end() :]]}.{kind}"


__all__ = ["ENCODER_NAMES", "FACTORS", "GGUFSource", "encoder_name"]
