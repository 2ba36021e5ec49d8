"""Models that GPTQ and AWQ made: multiplied in their own bits, as what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import genesis
from genesis.llm.decoder import Decoder
from genesis.llm.layers import Linear
from genesis.llm.loading import Settings, decoder_of
from genesis.weights import open_weights
from tests.llm.random_models import saved
from tests.llm.run_decoder import Runner
from tests.weights.test_weights import packed

GROUP = 32


def gptq(w: Any, rng: np.random.Generator, order: bool) -> dict[str, Any]:
    """A matrix of integers near another one, in the tensors of a checkpoint."""
    n, k = w.shape
    groups = np.arange(k) // GROUP
    groups = rng.permutation(groups) if order else groups
    scales = rng.random((n, k // GROUP)) * 0.02 + 0.01
    zeros = rng.integers(5, 11, (n, k // GROUP))
    codes = np.clip(np.rint(w / scales[:, groups]) + zeros[:, groups], 0, 15).astype(int)
    return {
        "qweight": np.ascontiguousarray(packed(codes, 4).T),
        "qzeros": packed(zeros.T - 1 & 15, 4),
        "scales": np.ascontiguousarray(scales.T).astype(np.float16),
        "g_idx": groups.astype(np.int32),
    }


def awq(w: Any, rng: np.random.Generator, _: bool) -> dict[str, Any]:
    """The same in AWQ's order."""
    n, k = w.shape
    scales = rng.random((k // GROUP, n)) * 0.02 + 0.01
    zeros = rng.integers(5, 11, (k // GROUP, n))
    spread = np.arange(k) // GROUP
    codes = np.clip(np.rint(w.T / scales[spread]) + zeros[spread], 0, 15).astype(int)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(x: Any) -> Any:
        return packed(x.reshape(len(x), -1, 8)[:, :, order].reshape(len(x), -1), 4)

    return {
        "qweight": words(codes), "qzeros": words(zeros), "scales": scales.astype(np.float16)
    }  # fmt: skip


def quantise(folder: Path, method: str, order: bool) -> None:
    """Quantise the matrices of a model's layers."""
    rng, made = np.random.default_rng(0), {}
    how = {"gptq": gptq, "awq": awq}[method]
    for name, x in load_file(folder / "model.safetensors").items():
        if "_proj.weight" not in name:
            made[name] = x
            continue
        for part, value in how(x.float().numpy(), rng, order).items():
            made[name.replace("weight", part)] = torch.from_numpy(value)
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": GROUP}
    (folder / "config.json").write_text(json.dumps(config))


def load(path: Path, **how: Any) -> Decoder:
    return decoder_of(path, open_weights(path), Settings(**how))


def scores(decoder: Decoder, tokens: list[int]) -> Any:
    """After every token, without compiling anything."""
    runner = Runner(decoder)
    runner.step = runner._step
    return runner.run(tokens, 0, list(range(1, 32)), len(tokens), False)


@pytest.mark.parametrize(
    ("method", "order"),
    [("gptq", True), ("awq", False), pytest.param("gptq", False, marks=pytest.mark.slow)],
)
def test_integers_stay_integers(method: str, order: bool, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    quantise(tmp_path, method, order)
    decoder, floats = load(tmp_path), load(tmp_path, format="float32")
    project = decoder.layers[0].attention.project
    assert all(p.values.dtype == genesis.uint8 for p in project.pieces)
    # Matrices with columns in orders of their own are pieces of their own.
    assert len(project.pieces) == (3 if order else 1)
    linears = [[m for m in x.modules() if isinstance(m, Linear)] for x in (decoder, floats)]
    for one, other in zip(*linears, strict=True):
        parts = []
        for piece in one.pieces:
            kept = piece.format == "float32"
            values = (piece.values if kept else piece.weight.dequantize()).numpy()
            if piece.order is not None:
                values = values[:, np.argsort(piece.order.numpy())]
            parts.append(values)
        np.testing.assert_array_equal(np.concatenate(parts), other.pieces[0].values.numpy())
    tokens = [5, 6, 7, 8, 250, 3]
    got, want = scores(decoder, tokens), scores(floats, tokens)
    assert np.sqrt(((got - want) ** 2).mean()) < 0.05 * np.sqrt((want**2).mean())
