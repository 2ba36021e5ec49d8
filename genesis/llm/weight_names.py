"""What the tensors of a model are called in its files.

The decoder asks a `DecoderTensors` for tensors by names of its own
(``layers.3.attention.q.weight``) and by the shape it needs. A table per family says under which
name a file has it, or of which larger tensor it is a part. What is missing, misshapen or left over
is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from genesis import functional
from genesis.llm.config import BadModel, DecoderConfig
from genesis.weights.array_cache import ArrayCache
from genesis.weights.repack_quantized import QuantizedParameter, stacked

Shape = tuple[int, ...]


class Files(Protocol):
    """Tensors by name."""

    def names(self) -> Iterable[str]:
        """All names."""

    def read(self, name: str) -> Any:
        """The tensor of a name, or a `QuantizedParameter`."""


#: Our names of modules, and theirs; "name#k" is the k-th of the parts that were stored as one.
_LLAMA = {
    "tokens": "embed_tokens",
    "norm": "norm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention": "self_attn",
    "before_attention": "input_layernorm",
    "before_mlp": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "experts.router": "mlp.gate",
    "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj",
    "shared.gate": "mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_expert.up_proj",
    "shared.down": "mlp.shared_expert.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
}
_AFTER = {
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
_FED = {k: v.replace("mlp.", "feed_forward.") for k, v in _LLAMA.items() if "mlp." in v}
_OWN: dict[str, dict[str, str]] = {
    "gemma2": _AFTER,
    "gemma3_text": _AFTER,
    "olmo2": _AFTER,
    "olmo3": _AFTER,
    "phi3": {
        "attention.q": "self_attn.qkv_proj#0",
        "attention.k": "self_attn.qkv_proj#1",
        "attention.v": "self_attn.qkv_proj#2",
        "mlp.gate": "mlp.gate_up_proj#0",
        "mlp.up": "mlp.gate_up_proj#1",
    },
    "starcoder2": {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
    "llama4_text": {**_FED, "experts.router": "feed_forward.router"},
    "mixtral": {k: v.replace("mlp.", "block_sparse_moe.") for k, v in _LLAMA.items()},
    "gpt_oss": {"experts.router": "mlp.router"},
    "gpt2": {
        "tokens": "wte",
        "positions": "wpe",
        "norm": "ln_f",
        "before_attention": "ln_1",
        "attention.q": "attn.c_attn#0",
        "attention.k": "attn.c_attn#1",
        "attention.v": "attn.c_attn#2",
        "attention.o": "attn.c_proj",
        "before_mlp": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    },
}
#: Experts in modules of their own: what a stack of them is made of.
_EXPERT_PARTS = {
    "experts.gate_up": ("{}.gate_proj", "{}.up_proj"),
    "experts.down": ("{}.down_proj",),
}
_MIXTRAL_PARTS = {"experts.gate_up": ("{}.w1", "{}.w3"), "experts.down": ("{}.w2",)}
#: Tensors that mean nothing to a decoder: constants that old files keep, and other modalities.
_IGNORED = re.compile(
    r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|position_ids)$"
    r"|(^|\.)(vision_|visual|multi_modal_|mm_|audio_)"
)
_LAYER = re.compile(r"layers\.(\d+)\.(.*)")


def plain(value: Any) -> Any:
    """A tensor, be it quantised in the files or not."""
    return value.dequantize() if isinstance(value, QuantizedParameter) else value


def stack(matrices: Sequence[Sequence[Any]]) -> Any:
    """Matrices (count, rows, columns) that lie in parts: a tensor, or a `QuantizedParameter`."""
    flat = [x for parts in matrices for x in parts]
    if all(isinstance(x, QuantizedParameter) for x in flat) and (found := stacked(matrices)):
        return found
    rows = [[plain(x).reshape(-1, x.shape[-1]) for x in parts] for parts in matrices]
    return functional.stack([functional.cat(parts, 0) for parts in rows])


class DecoderTensors:
    """The tensors of a decoder, by its own names, from files in the words of Hugging Face."""

    def __init__(
        self,
        files: Files,
        config: DecoderConfig,
        where: str,
        format: str | None = None,
        array_cache: ArrayCache | None = None,
    ) -> None:
        self.files, self.config, self.where, self.format = files, config, where, format
        self.array_cache = array_cache or ArrayCache()
        self.all = frozenset(files.names())
        self.used: set[str] = set()
        self.table = self._table()
        first = self.table["tokens"] + ".weight"
        found = sorted((n for n in self.all if n == first or n.endswith(f".{first}")), key=len)
        if not found:
            raise BadModel(f"{where}: there is no tensor {first!r}, the table of tokens")
        self.prefix = found[0].removesuffix(first)
        self.transposed = config.family == "gpt2"
        self.layers = "h" if config.family == "gpt2" else "layers"

    # ---- what the decoder asks for

    def take(self, name: str, *shape: int) -> Any:
        """The tensor of one of our names, as float32 or as it is stored."""
        module, _, kind = name.rpartition(".")
        layer = ""
        if found := _LAYER.fullmatch(module):
            layer, module = found.groups()
        if module.startswith("experts.") and module != "experts.router":
            return self._experts(name, int(layer), module, kind, shape)
        if name == "head.weight":
            return self._checked(self._head(), self._named(name, self._head()), shape)
        theirs, _, part = self._place(layer, module).partition("#")
        value = self._named(name, f"{theirs}.{kind}")
        if self.transposed and layer and kind == "weight" and value.ndim == 2:
            value = plain(value).T
        if part:
            value = self._part(name, value, module, int(part))
        return self._checked(f"{theirs}.{kind}: {name}", value, shape)

    def theirs(self, module: str) -> str:
        """What the files call one of our modules."""
        layer = ""
        if found := _LAYER.fullmatch(module):
            layer, module = found.groups()
        return self._place(layer, module).partition("#")[0]

    def has_head(self) -> bool:
        """Whether there is a head besides the table of tokens."""
        return self._head() in self.all

    def finish(self) -> None:
        """Complain about tensors that nobody asked for."""
        left = sorted(n for n in self.all - self.used if not _IGNORED.search(n))
        if self.config.tied:
            left = [n for n in left if n != self._head()]
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise BadModel(
                f"{self.where}: a model of family {self.config.family} with "
                f"{len(self.config.layers)} layers has no tensors {', '.join(left[:5])}{more}"
            )

    # ---- where it lies

    def _table(self) -> dict[str, str]:
        return {**_LLAMA, **_OWN.get(self.config.family, {})}

    def _head(self) -> str:
        outer = self.prefix.removesuffix("model.").removesuffix("transformer.")
        return f"{outer}lm_head.weight"

    def _place(self, layer: str, module: str) -> str:
        theirs = self.table.get(module, module)
        return f"{self.prefix}{self.layers}.{layer}.{theirs}" if layer else self.prefix + theirs

    def _named(self, ours: str, theirs: str) -> Any:
        if theirs not in self.all:  # Mixtral's files have two ages
            theirs = theirs.replace("block_sparse_moe.", "mlp.")
        if theirs not in self.all:
            raise BadModel(f"{self.where}: there is no tensor {theirs!r} ({ours})")
        self.used.add(theirs)
        return self.files.read(theirs)

    def _checked(self, ours: str, value: Any, shape: Shape) -> Any:
        if tuple(value.shape) != shape:
            raise BadModel(
                f"{self.where}: {ours} has the shape {tuple(value.shape)}, where the configuration "
                f"means {shape}"
            )
        return value

    def _part(self, ours: str, value: Any, module: str, part: int) -> Any:
        c = self.config
        if module.startswith("attention."):
            shared = c.key_heads * c.head_size
            sizes = [c.heads * c.head_size, shared, shared]
        else:
            sizes = [value.shape[0] // 2] * 2
        begin = sum(sizes[:part])
        if value.shape[0] != sum(sizes):
            raise BadModel(
                f"{self.where}: {ours} is a part of {value.shape[0]} rows, where the configuration "
                f"means {sum(sizes)}"
            )
        return value[begin : begin + sizes[part]]

    # ---- experts

    def _experts(self, name: str, layer: int, module: str, kind: str, shape: Shape) -> Any:
        """A stack of experts, however they were stored: (experts, rows, columns)."""
        theirs = self._place(str(layer), module)
        stacked = theirs if kind == "weight" else f"{theirs}_bias"
        if stacked not in self.all:
            stacked = stacked.replace("block_sparse_moe.", "mlp.")
        if stacked in self.all:
            value = self._named(name, stacked)
            changes = self.config.family in ("llama4_text", "gpt_oss")
            value = plain(value) if changes else value
            if self.config.family in ("llama4_text", "gpt_oss") and value.ndim == 3:
                value = value.transpose(1, 2)
            if self.config.family == "gpt_oss" and module == "experts.gate_up":
                value = functional.cat([value[:, 0::2], value[:, 1::2]], 1)
            value = self._checked(name, value, shape)
            quantised = isinstance(value, QuantizedParameter)
            return stack([[value[e : e + 1]] for e in range(shape[0])]) if quantised else value
        folder = theirs.rsplit(".", 1)[0]
        mixtral = f"{folder}.0.w1.weight" in self.all
        parts = (_MIXTRAL_PARTS if mixtral else _EXPERT_PARTS)[module]
        count, rows, columns = shape
        each = rows // len(parts), columns
        made = []
        for expert in range(count):
            rowsets = [f"{folder}.{part.format(expert)}.weight" for part in parts]
            made.append([self._checked(n, self._named(name, n), each) for n in rowsets])
        return stack(made)


__all__ = ["Files", "DecoderTensors", "plain", "stack"]
