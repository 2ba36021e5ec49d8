"""The families of decoders: how their configurations are read.

Each is a function from the entries of a ``config.json`` to a `DecoderConfig`; what most of them
share is `_decoder`. `names` knows what their tensors are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from genesis.llm.config import (
    BadModel,
    ConfigFields,
    DecoderConfig,
    ExpertsConfig,
    LayerConfig,
    Rope,
)

Reader = Callable[[ConfigFields], DecoderConfig]

#: Readers by the ``model_type`` of a configuration.
FAMILIES: dict[str, Reader] = {}

#: More layers than any model has: a configuration may say anything.
MOST_LAYERS = 4096

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def family(*model_types: str) -> Callable[[Reader], Reader]:
    """Register a reader."""

    def register(reader: Reader) -> Reader:
        FAMILIES.update(dict.fromkeys(model_types, reader))
        return reader

    return register


def read_config(entries: dict[str, Any], file: str = "config.json") -> DecoderConfig:
    """The decoder that a ``config.json`` describes.

    >>> read_config({"model_type": "abacus"})
    Traceback (most recent call last):
    genesis.llm.config.BadModel: config.json: 'abacus' is no known family; known are gemma, ...
    """
    c = ConfigFields(entries, file)
    kind = c.text("model_type")
    if kind not in FAMILIES and "text_config" in c:  # the decoder of a model that also sees
        c = c.inner("text_config")
        kind = c.text("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise BadModel(f"{file}: {kind!r} is no known family; known are {known}")
    return FAMILIES[kind](c)


def activation(c: ConfigFields, key: str = "hidden_act", usual: str = "silu") -> str:
    """The nonlinearity that an entry names, in our words."""
    name = c.text(key, usual)
    if name not in ACTIVATIONS:
        raise c.bad(key, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _head_size(c: ConfigFields) -> int:
    return c.integer("head_dim", c.integer("hidden_size") // c.integer("num_attention_heads"))


def _rope(c: ConfigFields, kind: str, theta: float = 10000.0, interleaved: bool = False) -> Rope:
    """The rotary positions of the layers of one kind, in the old words or in the new."""
    given = c.inner("rope_parameters")
    if kind in given:
        given = given.inner(kind)
    elif any(isinstance(x, dict) for x in given.entries.values()):
        given = ConfigFields({}, given.file)
    scaling = c.inner("rope_scaling")
    own = {**scaling.entries, **given.entries}
    fields = ConfigFields(own, given.file)
    name = fields.text("rope_type", fields.text("type", "default"))
    name = {"su": "longrope", "mrope": "default"}.get(name, name)
    context = c.integer("max_position_embeddings", 2048)
    own["max_position_embeddings"] = context
    if own.get("original_max_position_embeddings") is None:
        own["original_max_position_embeddings"] = c.integer(
            "original_max_position_embeddings", context
        )
    if name == "longrope" and own.get("factor") is None:
        own["factor"] = context / own["original_max_position_embeddings"]
    part = fields.number("partial_rotary_factor", c.number("partial_rotary_factor", 1.0))
    return Rope(
        int(_head_size(c) * part),
        fields.number("rope_theta", c.number("rope_theta", theta)),
        interleaved,
        name,
        {k: v for k, v in own.items() if k not in ("rope_type", "type", "rope_theta")},
    )


def _kinds(c: ConfigFields, usual: Callable[[int], bool]) -> Sequence[str]:
    """``layer_types``, or where there are none, windows in the layers that usually have them."""
    count = c.integer("num_hidden_layers", most=MOST_LAYERS)
    given = c.sequence("layer_types", count)
    if given is not None:
        return [str(kind) for kind in given]
    return ["sliding_attention" if usual(k) else "full_attention" for k in range(count)]


def _layers(
    c: ConfigFields, usual: Callable[[int], bool] = lambda k: False, theta: float = 10000.0
) -> tuple[LayerConfig, ...]:
    hidden = c.integer("intermediate_size")
    found = []
    for kind in _kinds(c, usual):
        if kind not in ("full_attention", "sliding_attention"):
            raise BadModel(f"{c.file}: layers of kind {kind!r:.60} are not known")
        window = c.integer("sliding_window") if kind == "sliding_attention" else None
        found.append(LayerConfig(hidden, window, rope=_rope(c, kind, theta)))
    return tuple(found)


def _decoder(c: ConfigFields, **own: Any) -> DecoderConfig:
    """What configurations say in the same words, and what a family has of its own."""
    heads = c.integer("num_attention_heads")
    bias = c.flag("attention_bias")
    given: dict[str, Any] = {
        "family": c.text("model_type"),
        "width": c.integer("hidden_size"),
        "heads": heads,
        "key_heads": c.integer("num_key_value_heads", heads),
        "head_size": _head_size(c),
        "vocabulary": c.integer("vocab_size"),
        "context": c.integer("max_position_embeddings", 2048),
        "epsilon": c.number("rms_norm_eps", 1e-6),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": c.flag("mlp_bias"),
        "activation": activation(c),
        "tied": c.flag("tie_word_embeddings"),
    }
    if "layers" not in own:
        given["layers"] = _layers(c)
    return DecoderConfig(**{**given, **own})


def _windowed(c: ConfigFields) -> tuple[LayerConfig, ...]:
    """Layers that all have the window, if there is one."""
    return _layers(c, lambda k: "sliding_window" in c)


@family("llama")
def _llama(c: ConfigFields) -> DecoderConfig:
    return _decoder(c)


@family("mistral", "ministral")
def _mistral(c: ConfigFields) -> DecoderConfig:
    return _decoder(c, layers=_windowed(c))


def _chosen(c: ConfigFields, hidden: str, **own: Any) -> ExpertsConfig:
    count = "num_local_experts" if "num_local_experts" in c else "num_experts"
    return ExpertsConfig(
        c.integer(count), c.integer("num_experts_per_tok"), c.integer(hidden), **own
    )


@family("mixtral")
def _mixtral(c: ConfigFields) -> DecoderConfig:
    experts = _chosen(c, "intermediate_size", renormalise=True)
    layers = tuple(replace(layer, experts=experts) for layer in _windowed(c))
    return _decoder(c, layers=layers)


def _qwen_layers(c: ConfigFields) -> tuple[LayerConfig, ...]:
    first = c.integer("max_window_layers", 28, least=0)
    windows = c.flag("use_sliding_window") and "sliding_window" in c
    return _layers(c, lambda k: windows and k >= first)


@family("qwen2")
def _qwen2(c: ConfigFields) -> DecoderConfig:
    return _decoder(c, layers=_qwen_layers(c), qkv_bias=True, out_bias=False)


@family("qwen3")
def _qwen3(c: ConfigFields) -> DecoderConfig:
    return _decoder(c, layers=_qwen_layers(c), qk_norm="head", head_size=c.integer("head_dim", 128))


def _sparse(
    c: ConfigFields, layers: Sequence[LayerConfig], experts: ExpertsConfig
) -> tuple[LayerConfig, ...]:
    """Experts in every layer but those that a Qwen configuration leaves out."""
    dense = c.sequence("mlp_only_layers") or ()
    step = c.integer("decoder_sparse_step", 1)
    return tuple(
        layer if k in dense or (k + 1) % step else replace(layer, experts=experts)
        for k, layer in enumerate(layers)
    )


@family("qwen2_moe")
def _qwen2_moe(c: ConfigFields) -> DecoderConfig:
    experts = _chosen(
        c, "moe_intermediate_size",
        renormalise=c.flag("norm_topk_prob"),
        shared=c.integer("shared_expert_intermediate_size"), shared_gate=True,
    )  # fmt: skip
    layers = _sparse(c, _qwen_layers(c), experts)
    return _decoder(c, layers=layers, qkv_bias=c.flag("qkv_bias", True), out_bias=False)


@family("qwen3_moe")
def _qwen3_moe(c: ConfigFields) -> DecoderConfig:
    experts = _chosen(c, "moe_intermediate_size", renormalise=c.flag("norm_topk_prob"))
    windows = c.flag("use_sliding_window") and "sliding_window" in c
    layers = _sparse(c, _layers(c, lambda k: windows), experts)
    return _decoder(c, layers=layers, qk_norm="head")


def _plain_windows(
    c: ConfigFields, layers: Sequence[LayerConfig], theta: float | None = None
) -> tuple[LayerConfig, ...]:
    """Layers of which those with a window were never stretched to longer texts."""
    if "rope_parameters" in c:  # which say what holds for which kind of layer
        return tuple(layers)
    ropes = [cast(Rope, layer.rope) for layer in layers]
    return tuple(
        layer if layer.window is None else replace(layer, rope=Rope(r.size, theta or r.theta))
        for layer, r in zip(layers, ropes, strict=True)
    )


@family("olmo2")
def _olmo2(c: ConfigFields) -> DecoderConfig:
    return _decoder(c, norm_before=False, norm_after=True, qk_norm="all heads")


@family("olmo3")
def _olmo3(c: ConfigFields) -> DecoderConfig:
    layers = _plain_windows(c, _layers(c, lambda k: (k + 1) % 4 != 0))
    return _decoder(c, layers=layers, norm_before=False, norm_after=True, qk_norm="all heads")


@family("olmoe")
def _olmoe(c: ConfigFields) -> DecoderConfig:
    experts = _chosen(c, "intermediate_size", renormalise=c.flag("norm_topk_prob"))
    layers = tuple(replace(layer, experts=experts) for layer in _layers(c))
    return _decoder(c, layers=layers, qk_norm="all heads", clip_qkv=c.optional("clip_qkv"))


def _gemma(c: ConfigFields, **own: Any) -> DecoderConfig:
    shared: dict[str, Any] = {
        "norm_offset": 1.0,
        "embedding_scale": c.integer("hidden_size") ** 0.5,
        "tied": c.flag("tie_word_embeddings", True),
        "head_size": c.integer("head_dim", 256),
        "activation": activation(c, "hidden_activation", "gelu_pytorch_tanh"),
    }
    return _decoder(c, **{**shared, **own})


@family("gemma")
def _gemma1(c: ConfigFields) -> DecoderConfig:
    plain = c.text("hidden_act", "gelu") == "gelu"  # as first files say, where tanh is meant
    return _gemma(c, activation="gelu_tanh" if plain else activation(c, "hidden_act"))


@family("gemma2")
def _gemma2(c: ConfigFields) -> DecoderConfig:
    return _gemma(
        c,
        layers=_layers(c, lambda k: (k + 1) % 2 != 0),
        norm_after=True,
        attention_scale=c.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=c.optional("attn_logit_softcapping"),
        logit_cap=c.optional("final_logit_softcapping"),
    )


@family("gemma3_text")
def _gemma3(c: ConfigFields) -> DecoderConfig:
    pattern = c.integer("sliding_window_pattern", 6)
    local = c.number("rope_local_base_freq", 10000.0)
    layers = _layers(c, lambda k: (k + 1) % pattern != 0, theta=1e6)
    return _gemma(
        c,
        layers=_plain_windows(c, layers, local),
        norm_after=True,
        qk_norm="head",
        attention_scale=c.number("query_pre_attn_scalar", 256.0) ** -0.5,
        logit_cap=c.optional("final_logit_softcapping"),
    )


@family("phi3")
def _phi3(c: ConfigFields) -> DecoderConfig:
    layers = tuple(replace(x, rope=x.rope and replace(x.rope, anew=True)) for x in _windowed(c))
    return _decoder(c, layers=layers, qkv_bias=False, out_bias=False, mlp_bias=False)


@family("granite")
def _granite(c: ConfigFields) -> DecoderConfig:
    return _decoder(
        c,
        attention_scale=c.number("attention_multiplier", 1.0),
        embedding_scale=c.number("embedding_multiplier", 1.0),
        residual_scale=c.number("residual_multiplier", 1.0),
        logit_scale=1 / c.number("logits_scaling", 1.0),
    )


@family("starcoder2")
def _starcoder2(c: ConfigFields) -> DecoderConfig:
    bias = c.flag("use_bias", True)
    return _decoder(
        c, layers=_windowed(c), norm="layer", epsilon=c.number("norm_epsilon", 1e-5), gated=False,
        qkv_bias=bias, out_bias=bias, mlp_bias=bias, tied=c.flag("tie_word_embeddings", True),
        activation=activation(c, usual="gelu_pytorch_tanh"),
    )  # fmt: skip


def _without_rope(c: ConfigFields, layers: Sequence[LayerConfig]) -> tuple[LayerConfig, ...]:
    """The layers, of which some have no positions."""
    given = c.sequence("no_rope_layers", len(layers))
    step = c.integer("no_rope_layer_interval", 4)
    turns = given or [(k + 1) % step != 0 for k in range(len(layers))]
    pairs = zip(layers, turns, strict=True)
    return tuple(layer if turn else replace(layer, rope=None) for layer, turn in pairs)


@family("smollm3")
def _smollm3(c: ConfigFields) -> DecoderConfig:
    layers = _without_rope(c, _layers(c))
    if c.flag("use_sliding_window") and "layer_types" not in c:
        window = c.integer("sliding_window")
        layers = tuple(x if x.rope else replace(x, window=window) for x in layers)
    return _decoder(c, layers=layers, tied=c.flag("tie_word_embeddings", True))


@family("gpt2")
def _gpt2(c: ConfigFields) -> DecoderConfig:
    width, heads = c.integer("n_embd", 768), c.integer("n_head", 12)
    positions, hidden = c.integer("n_positions", 1024), c.integer("n_inner", 4 * width)
    fade = c.flag("scale_attn_by_inverse_layer_idx")
    layers = tuple(
        LayerConfig(hidden, score_scale=1 / (k + 1) if fade else 1.0)
        for k in range(c.integer("n_layer", 12, most=MOST_LAYERS))
    )
    return DecoderConfig(
        "gpt2", width, heads, heads, width // heads, c.integer("vocab_size", 50257), positions,
        layers, c.number("layer_norm_epsilon", 1e-5), "layer", qkv_bias=True, out_bias=True,
        mlp_bias=True, gated=False, activation=activation(c, "activation_function", "gelu_new"),
        learned_positions=positions, tied=c.flag("tie_word_embeddings", True),
        attention_scale=None if c.flag("scale_attn_weights", True) else 1.0,
    )  # fmt: skip


@family("gpt_oss")
def _gpt_oss(c: ConfigFields) -> DecoderConfig:
    experts = _chosen(
        c, "intermediate_size", scoring="softmax of chosen", bias=True,
        limit=c.number("swiglu_limit", 7.0), alpha=c.number("swiglu_alpha", 1.702),
    )  # fmt: skip
    layers = _layers(c, lambda k: (k + 1) % 2 != 0, theta=150000.0)
    return _decoder(
        c, layers=tuple(replace(layer, experts=experts) for layer in layers), sinks=True,
        qkv_bias=c.flag("attention_bias", True), out_bias=c.flag("attention_bias", True),
    )  # fmt: skip


@family("llama4_text")
def _llama4(c: ConfigFields) -> DecoderConfig:
    count = c.integer("num_hidden_layers", most=MOST_LAYERS)
    hidden = c.integer("intermediate_size")
    experts = _chosen(
        c, "intermediate_size", scoring="sigmoid", scale_input=True,
        shared=hidden,
    )  # fmt: skip
    step = c.integer("interleave_moe_layer_step", 1)
    sparse = c.sequence("moe_layers")
    sparse = range(step - 1, count, step) if sparse is None else sparse
    rope = _rope(c, "full_attention", 500000.0, interleaved=True)
    plain = LayerConfig(c.integer("intermediate_size_mlp", hidden), rope=rope)
    tuning = None
    if c.flag("attn_temperature_tuning", True):
        tuning = c.number("floor_scale", 8192.0), c.number("attn_scale", 0.1)
    layers = []
    for k, layer in enumerate(_without_rope(c, [plain] * count)):
        if layer.rope is None:
            layer = replace(layer, temperature=tuning)
        else:
            chunk = c.integer("attention_chunk_size", 8192)
            layer = replace(layer, chunk=chunk, l2_norm=c.flag("use_qk_norm", True))
        layers.append(replace(layer, experts=experts) if k in sparse else layer)
    return _decoder(c, layers=tuple(layers))


__all__ = ["FAMILIES", "activation", "family", "read_config"]
