"""Every family gives the tokens that transformers gives, and bad files are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from genesis.llm import BadModel
from genesis.llm.config import Rope
from genesis.llm.families import FAMILIES, read_config
from genesis.llm.rope import frequencies
from tests.llm import random_configs
from tests.llm.random_models import MODELS, made, saved
from tests.llm.run_decoder import Runner, load

#: What differs most: the others are run with `-m slow`.
QUICK = ("gemma3", "gpt-oss", "qwen2 moe")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path)
    count = 40 if name in QUICK else 64
    prompt = np.random.default_rng(1).integers(3, 320, 20).tolist()
    got, scores = Runner(load(tmp_path)).greedy(prompt, count)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        want = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    assert got == want.sequences[0, len(prompt) :].tolist()
    np.testing.assert_allclose(scores, torch.stack([x[0] for x in want.logits]), atol=1e-4)


#: Drawn ones that are run every time: positions that change on the way, layers that look less.
DRAWN = (("Mixtral", 0), ("Gemma", 0), ("GPT2", 0))


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        (f, k) if (f, k) in DRAWN else pytest.param(f, k, marks=pytest.mark.slow)
        for k in range(4)
        for f in random_configs.FAMILIES
    ],
)
def test_any_configuration_scores_as_in_transformers(
    family: str, seed: int, tmp_path: Path
) -> None:
    """After a prompt, and row by row as an answer goes on; without compiling the whole."""
    number = 100 * seed + random_configs.FAMILIES.index(family)
    kind, arguments = random_configs.drawn(family, number)
    model = made(kind, arguments, seed, scale=4.0)
    model.save_pretrained(tmp_path)
    model.generation_config.eos_token_id = None
    length = (20, 45)[seed % 2]
    prompt = np.random.default_rng(seed).integers(3, arguments["vocab_size"], length)
    with torch.no_grad():
        want = model.generate(
            torch.tensor([prompt.tolist()]), max_new_tokens=64, do_sample=False,
            return_dict_in_generate=True, output_logits=True, pad_token_id=0,
        )  # fmt: skip
    got = Runner(load(tmp_path), jit=False).followed(want.sequences[0].tolist(), length)
    expected = torch.stack([x[0] for x in want.logits])
    np.testing.assert_allclose(got, expected, atol=1e-4, err_msg=f"{kind} {arguments}")
    assert (got.argmax(-1) == expected.argmax(-1).numpy()).all()


def test_there_are_twenty_families() -> None:
    assert len({MODELS[name][0] for name in MODELS}) >= 18
    assert len(FAMILIES) >= 20


_LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 320,
}  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"model_type": "abacus"}, "'abacus' is no known family; known are .*llama"),
        ({**_LLAMA, "hidden_size": "wide"}, "hidden_size is 'wide', not a whole number"),
        ({**_LLAMA, "hidden_size": -1}, "hidden_size is -1"),
        ({**_LLAMA, "num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({**_LLAMA, "hidden_act": "sine"}, "hidden_act is 'sine', not one of"),
        ({**_LLAMA, "head_dim": 15}, "cannot turn in pairs"),
        ({**_LLAMA, "layer_types": ["full_attention"]}, "layer_types is .* not a list of 2"),
        ({**_LLAMA, "layer_types": ["spiral"] * 2}, "kind 'spiral'"),
        ({k: v for k, v in _LLAMA.items() if k != "vocab_size"}, "no entry 'vocab_size'"),
        ({**_LLAMA, "rope_scaling": [1]}, "rope_scaling is"),
    ],
)
def test_bad_configurations_are_named(entries: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=said):
        read_config(entries)


@pytest.mark.parametrize(
    "rope",
    [
        Rope(8, kind="spiral"),
        Rope(8, kind="linear"),
        Rope(8, kind="linear", scaling={"factor": "x"}),
        Rope(8, kind="longrope", scaling={"original_max_position_embeddings": 4, "factor": 2.0,
                                          "short_factor": [1.0], "long_factor": [1.0]}),
    ],
)  # fmt: skip
def test_bad_rope_scalings_are_named(rope: Rope) -> None:
    with pytest.raises(BadModel, match="rope scaling"):
        frequencies(rope)


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.k_proj.weight"
    for change, said in (
        ({name: None}, f"there is no tensor '{name}'"),
        (
            {name: np.zeros((3, 64), np.float32)},
            r"layers\.1\.attention\.k\.weight has the shape \(3",
        ),
        ({"model.layers.9.mlp.up_proj.weight": tensors[name]}, r"has no tensors model\.layers\.9"),
    ):
        changed = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        save_file(changed, file)
        with pytest.raises(BadModel, match=said):
            load(tmp_path)


def test_experts_in_one_tensor_or_in_many(tmp_path: Path) -> None:
    """Files of Mixtral have both layouts."""
    saved("mixtral", tmp_path)
    prompt = [5, 6, 7, 8]
    want, _ = Runner(load(tmp_path)).greedy(prompt, 3)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    stacked = {k: v for k, v in tensors.items() if ".experts." not in k}
    for layer in range(json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]):
        old = f"model.layers.{layer}.block_sparse_moe"
        new = f"model.layers.{layer}.mlp"
        parts = {
            w: [tensors[f"{old}.experts.{e}.{w}.weight"] for e in range(4)]
            for w in ("w1", "w2", "w3")
        }
        gates = [np.concatenate(pair) for pair in zip(parts["w1"], parts["w3"], strict=True)]
        stacked[f"{new}.experts.gate_up_proj"] = np.stack(gates)
        stacked[f"{new}.experts.down_proj"] = np.stack(parts["w2"])
        stacked[f"{new}.gate.weight"] = stacked.pop(f"{old}.gate.weight")
    save_file(stacked, file)
    assert Runner(load(tmp_path)).greedy(prompt, 3)[0] == want


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("qwen2 moe", "int8"),
        pytest.param("gpt-oss", "int8", marks=pytest.mark.slow),
        pytest.param("llama", "int4", marks=pytest.mark.slow),
        pytest.param("gemma3", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_programs_of_one_row_round_as_those_of_many(name: str, format: str, tmp_path: Path) -> None:
    """Each recorded for its own number of rows, so that nothing but rounding could be shared."""
    saved(name, tmp_path)
    decoder, table = load(tmp_path, format=format), [1, 2, 3]
    tokens = np.random.default_rng(0).integers(3, 320, 16).tolist()
    together = Runner(decoder).run(tokens, 0, table, 16, False)
    alone = Runner(decoder)
    for k in range(6):
        np.testing.assert_array_equal(
            alone.run(tokens[k : k + 1], k, table, 16, True)[0], together[k]
        )
