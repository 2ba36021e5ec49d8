"""Models from GGUF files score as transformers does with the same weights; bad files are named."""

from __future__ import annotations

import os
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import genesis
from genesis.llm import LLM, BadModel
from genesis.llm.decoder import Decoder
from genesis.llm.layers import Linear
from genesis.llm.loading import Settings, decoder_of
from genesis.weights import open_weights
from genesis.weights import repack_quantized as quantized_weights
from genesis.weights.gguf import GGUFFile, write_gguf
from genesis.weights.gguf_encode import Encoded, encode
from genesis.weights.gguf_types import BY_NAME
from tests.llm import gguf_files
from tests.llm.gguf_files import NAMES, made, save
from tests.llm.random_models import make
from tests.llm.run_decoder import Runner
from tests.llm.tiny_tokenizer import save_tokenizer

#: What differs most: the others are run with `-m slow`.
QUICK = ("llama", "gemma3", "gpt-oss", "phi3 long")
CONVERTER = os.environ.get("GENESIS_GGUF_CONVERTER")


def load(path: Path, **how: Any) -> Decoder:
    return decoder_of(path, open_weights(path), Settings(**how))


def scores(decoder: Decoder, tokens: list[int]) -> Any:
    """After every token, without compiling anything."""
    runner = Runner(decoder)
    runner.step = runner._step
    return runner.run(tokens, 0, list(range(1, 32)), len(tokens), False)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = made(name)
    save(model, tmp_path / "x.gguf")
    tokens = np.random.default_rng(1).integers(3, 289, 56).tolist()  # more than windows hold
    with torch.no_grad():
        want = model(torch.tensor([tokens])).logits[0]
    got = scores(load(tmp_path / "x.gguf"), tokens)
    np.testing.assert_allclose(got, want, atol=1e-4)


def greedy(model: Any, path: Path) -> None:
    """Asserts that 64 tokens are those of transformers."""
    prompt = np.random.default_rng(1).integers(3, 289, 20).tolist()
    got, found = Runner(load(path)).greedy(prompt, 64)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        want = model.generate(
            torch.tensor([prompt]), max_new_tokens=64, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    assert got == want.sequences[0, len(prompt) :].tolist()
    np.testing.assert_allclose(found, torch.stack([x[0] for x in want.logits]), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = made(name)
    save(model, tmp_path / "x.gguf")
    greedy(model, tmp_path / "x.gguf")


@pytest.mark.skipif(CONVERTER is None, reason="GENESIS_GGUF_CONVERTER names no llama.cpp")
@pytest.mark.parametrize("name", NAMES)
def test_the_real_conversion(name: str, tmp_path: Path) -> None:
    """Files of these tests are those of llama.cpp's conversion, from which models run, too."""
    model = made(name)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    convert(tmp_path, tmp_path / "x.gguf")
    file, metadata, tensors = (
        GGUFFile(tmp_path / "x.gguf"), gguf_files.metadata(model), gguf_files.tensors(model)
    )  # fmt: skip
    for key, value in metadata.items():
        found = file.metadata[key]
        assert found == value if isinstance(value, str) else np.allclose(found, value, rtol=1e-6)
    assert file.tensors.keys() == tensors.keys()
    for key, value in tensors.items():
        np.testing.assert_allclose(file.read(key), value, atol=1e-6)
    greedy(model, tmp_path / "x.gguf")


def convert(folder: Path, target: Path) -> None:
    """Run the conversion, which would refuse a tokenizer that it does not know."""
    for place in (f"{CONVERTER}/gguf-py", CONVERTER):
        if place not in sys.path:
            sys.path.insert(0, str(place))
    import conversion  # type: ignore[import-not-found]
    import gguf  # type: ignore[import-not-found]

    hparams = conversion.ModelBase.load_hparams(folder, False)
    name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    base = conversion.get_model_class(name)

    class Converter(base):  # type: ignore[misc]
        model_arch = base.model_arch

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.hparams.setdefault("n_ctx", self.hparams.get("n_positions"))

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
            return "gpt-2"

        def set_vocab(self) -> None:
            self._set_vocab_gpt2()

    with torch.inference_mode():
        Converter(folder, gguf.LlamaFileType.ALL_F32, target).write()


def test_other_layouts_of_the_same_tensors(tmp_path: Path) -> None:
    """Conversions can put tensors together, and older ones dropped dimensions of 1."""
    model = made("qwen2 moe")
    save(model, tmp_path / "x.gguf")
    tensors = gguf_files.tensors(model)
    for k in range(4):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{k}.attn_{part}.{kind}") for part in "qkv"]
            tensors[f"blk.{k}.attn_qkv.{kind}"] = np.concatenate(parts)
        parts = [tensors.pop(f"blk.{k}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        tensors[f"blk.{k}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)
        tensors[f"blk.{k}.ffn_gate_inp_shexp.weight"].shape = (64,)
    write_gguf(tmp_path / "y.gguf", gguf_files.metadata(model), tensors)
    both = [scores(load(tmp_path / name), [5, 6, 7]) for name in ("x.gguf", "y.gguf")]
    np.testing.assert_array_equal(*both)


# ---- what users see


def test_a_file_answers_as_its_folder(llama: Path, llm: LLM, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    more = {**gguf_files.vocabulary(llama), "tokenizer.chat_template": template}
    save(model, tmp_path / "x.gguf", **more)
    with LLM(tmp_path / "x.gguf", cache_bytes=1 << 24) as found:
        prompts = ["the cat sat", "on the mat"]
        assert [found.encode(p) for p in prompts] == [llm.encode(p) for p in prompts]
        how: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
        got, want = found.generate(prompts, **how), llm.generate(prompts, **how)
        assert [x.text for x in got] == [x.text for x in want]
        chat = found.render([{"role": "user", "content": "the cat"}])
        assert found.tokenizer.decode(chat, skip_special_tokens=False) == (
            "<|im_start|>the cat<|im_end|>"
        )


FLOATS = {"F16": genesis.float16, "BF16": genesis.bfloat16}


def encoded(x: Any, format: str) -> Any:
    return x.astype(FLOATS[format].numpy) if format in FLOATS else encode(x, format)


@pytest.mark.parametrize("format", ["F16", "BF16"])
def test_floats_stay_as_they_are(format: str, tmp_path: Path) -> None:
    model = made("mixtral")
    tensors = gguf_files.tensors(model)
    stored = {k: v if v.ndim == 1 else encoded(v, format) for k, v in tensors.items()}
    write_gguf(tmp_path / "x.gguf", gguf_files.metadata(model), stored)
    file, decoder = GGUFFile(tmp_path / "x.gguf"), load(tmp_path / "x.gguf")
    layer = decoder.layers[0]
    for linear in (decoder.tokens, layer.attention.project):
        assert linear.pieces[0].values.dtype == FLOATS[format]
    assert layer.mlp.gate_up.values.dtype == FLOATS[format]
    np.testing.assert_array_equal(
        layer.mlp.down.values.to(genesis.float32).numpy(),
        np.asarray(file.read("blk.0.ffn_down_exps.weight"), np.float32),
    )
    want = load(tmp_path / "x.gguf", format="float32")
    tokens = [5, 6, 7, 8]
    # Inputs of products with bfloat16 are rounded to it.
    atol = 0.05 if format == "BF16" else 1e-4
    np.testing.assert_allclose(scores(decoder, tokens), scores(want, tokens), atol=atol)


#: Where the float16 numbers of a block are, and how large they may be.
HALVES = {
    "Q8_0": (1 / 512, 0), "Q4_0": (1 / 32, 0), "Q4_1": (1 / 32, 0), "Q5_1": (1 / 64, 0),
    "Q4_K": (1 / 1024, 0, 2), "Q6_K": (1 / 16384, 208), "Q2_K": (1 / 64, 80, 82),
    "IQ4_NL": (1 / 512, 0), "IQ4_XS": (1 / 16384, 0),
}  # fmt: skip


def blocks(shape: tuple[int, ...], format: str, rng: np.random.Generator) -> Encoded:
    """Random weights of a block format."""
    kind = BY_NAME[format]
    raw = rng.integers(0, 256, (int(np.prod(shape)) // kind.block, kind.size), dtype=np.uint8)
    greatest, *places = HALVES[format]
    for place in places:
        half = (rng.random((len(raw), 1)) * greatest).astype(np.float16)
        raw[:, place : place + 2] = half.view(np.uint8)
    if format in ("Q4_1", "Q5_1"):  # a minimum makes the middle zero
        half = raw[:, :2].view(np.float16) * (-8 if format == "Q4_1" else -16)
        raw[:, 2:4] = half.astype(np.float16).view(np.uint8)
    return Encoded(kind, shape, raw.reshape(-1))


def quantised(path: Path, *formats: str) -> None:
    """A Llama 256 wide whose matrices are in some formats, one after the other."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    model = make("llama", **sizes, num_key_value_heads=2, head_dim=64)
    rng, kinds = np.random.default_rng(3), cycle(formats)
    stored = {
        k: v if v.ndim == 1 else blocks(v.shape, next(kinds), rng)
        for k, v in gguf_files.tensors(model).items()
    }
    write_gguf(path, gguf_files.metadata(model), stored)


@pytest.mark.parametrize(
    "formats",
    [("Q4_K", "Q6_K"), ("Q8_0",)]
    + [
        pytest.param((f,), marks=pytest.mark.slow)
        for f in ("Q4_0", "Q4_1", "Q5_1", "Q2_K", "IQ4_NL", "IQ4_XS")
    ],
)
def test_quantised_files_keep_their_bits(formats: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    quantised(path, *formats)
    decoder, floats = load(path), load(path, format="float32")
    weights = {name: x for name, x in decoder.state_dict().items() if name.endswith("values")}
    assert {x.dtype for x in weights.values()} == {genesis.uint8}
    size = sum(x.nbytes for x in {id(x): x for x in weights.values()}.values())
    assert size < 1.1 * path.stat().st_size
    linears = [[m for m in x.modules() if isinstance(m, Linear)] for x in (decoder, floats)]
    for one, other in zip(*linears, strict=True):
        parts = [p.weight.dequantize().numpy() for p in one.pieces]
        np.testing.assert_array_equal(np.concatenate(parts), other.pieces[0].values.numpy())
    tokens = [5, 6, 7, 8, 250, 3]
    got, want = scores(decoder, tokens), scores(floats, tokens)
    # Activations are rounded to 1/254 of the greatest of a group, in every product of every layer.
    assert np.sqrt(((got - want) ** 2).mean()) < 0.05 * np.sqrt((want**2).mean())


@pytest.mark.parametrize("format", ["Q4_0", pytest.param("Q8_0", marks=pytest.mark.slow)])
def test_quantised_experts_are_read_where_they_lie(format: str, tmp_path: Path) -> None:
    model, rng = make("mixtral", hidden_size=64, intermediate_size=96), np.random.default_rng(4)
    tensors = gguf_files.tensors(model)
    stored = {k: blocks(v.shape, format, rng) if "exps" in k else v for k, v in tensors.items()}
    write_gguf(tmp_path / "x.gguf", gguf_files.metadata(model), stored)
    decoder, floats = load(tmp_path / "x.gguf"), load(tmp_path / "x.gguf", format="float32")
    for one, other in zip(decoder.layers, floats.layers, strict=True):
        for name in ("gate_up", "down"):
            weight = getattr(one.mlp, name).weight
            assert weight.format.name == format
            want = getattr(other.mlp, name).values.numpy()
            np.testing.assert_array_equal(weight.dequantize().numpy(), want)
    tokens = [5, 6, 7, 8, 250, 3]
    got, want = scores(decoder, tokens), scores(floats, tokens)
    assert np.sqrt(((got - want) ** 2).mean()) < 0.05 * np.sqrt((want**2).mean())


def test_the_second_start_maps_what_the_first_one_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "x.gguf"
    quantised(path, "Q4_K", "Q6_K")

    def values() -> dict[str, Any]:
        found = load(path).state_dict().items()
        return {name: x.numpy().copy() for name, x in found if name.endswith("values")}

    first = values()
    monkeypatch.setattr(quantized_weights, "_fill", lambda *_: pytest.fail("packed again"))
    for name, x in values().items():
        np.testing.assert_array_equal(x, first[name])
    monkeypatch.undo()
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    (arrays,) = (tmp_path / "cache" / "weights").glob("*.arrays")
    whole = arrays.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (bytes(flipped), whole[:-1], b""):  # is packed anew
        arrays.unlink()  # who has it mapped keeps it
        arrays.write_bytes(damaged)
        for name, x in values().items():
            np.testing.assert_array_equal(x, first[name])
        assert arrays.read_bytes() == whole


def test_an_encoder_embeds_as_transformers(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁cat", "s"]
    words += [f"▁w{k}" for k in range(32)]
    vocabulary = {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * 35, "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip
    for kind, pool in ((1, lambda x: x.mean(0)), (2, lambda x: x[0])):
        path = tmp_path / f"{kind}.gguf"
        save(model, path, **{**vocabulary, "bert.pooling_type": kind})
        with LLM(path) as llm, torch.no_grad():
            tokens = llm.encode("the cats")
            assert tokens == [2, 5, 6, 7, 3]
            want = pool(model(torch.tensor([tokens])).last_hidden_state[0])
            np.testing.assert_allclose(llm.embed(["the cats"])[0], want / want.norm(), atol=1e-5)
    tensors = gguf_files.tensors(model)
    for change, said in (
        ({"cls.weight": np.zeros((2, 32), np.float32)}, "has no 'cls.weight'"),
        ({"blk.1.attn_k.bias": None}, "no tensor 'blk.1.attn_k.bias'"),
        ({"blk.1.attn_k.bias": np.zeros(7, np.float32)}, r"attn_k.bias has the shape \(7,\)"),
    ):
        left = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        write_gguf(tmp_path / "x.gguf", {**gguf_files.metadata(model), **vocabulary}, left)
        with pytest.raises(BadModel, match=said):
            LLM(tmp_path / "x.gguf")


_ONE = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "said"),
    [
        ({"general.architecture": "abacus"}, {}, "'abacus' is no known architecture; .*llama4"),
        ({"general.architecture": None}, {}, "'' is no known architecture"),
        ({"llama.embedding_length": None}, {}, "llama: no entry 'embedding_length'"),
        ({"llama.attention.head_count": "x"}, {}, "attention.head_count is 'x'"),
        ({"llama.attention.head_count": [4, 4, 4, 4]}, {}, r"head_count is \[4, 4"),
        ({"llama.attention.value_length": 8}, {}, "value_length is 8, not 16"),
        ({"llama.block_count": 2_000_000_000}, {}, "block_count is 2000000000, not the number"),
        (
            {"llama.block_count": 2_000_000_000},
            {"blk.1999999999.attn_q.weight": _ONE},
            "block_count is 2000000000",
        ),
        ({"llama.block_count": 3}, {}, "has no tensors blk.3.attn_k"),
        ({"llama.rope.scaling.type": "spiral"}, {}, "rope scaling 'spiral' is none of"),
        ({}, {"rope_freqs.weight": _ONE}, r"rope_freqs.weight has the shape \(1,\)"),
        ({}, {"rope_factors_long.weight": np.ones(8, np.float32)}, "no entry 'short_factor'"),
        ({}, {"token_embd.weight": None}, "no tensor 'token_embd.weight'"),
        ({}, {"blk.2.ffn_up.weight": None}, "no tensor 'blk.2.ffn_up.weight'"),
        ({}, {"blk.2.ffn_up.weight": _ONE}, r"blk.2.ffn_up.weight: .* has the shape \(1,\)"),
        ({}, {"blk.2.ffn_up.scale": _ONE}, "has no tensors blk.2.ffn_up.scale"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 2}, {}, "'blk.0.ffn_gate_inp.weigh"),
    ],
)
def test_bad_files_are_named(
    metadata: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    model = made("llama")
    known = {**gguf_files.metadata(model), **metadata}
    stored = {**gguf_files.tensors(model), **tensors}
    write_gguf(
        tmp_path / "x.gguf",
        {k: v for k, v in known.items() if v is not None},
        {k: v for k, v in stored.items() if v is not None},
    )
    with pytest.raises(BadModel, match=said):
        load(tmp_path / "x.gguf", max_length=64)
