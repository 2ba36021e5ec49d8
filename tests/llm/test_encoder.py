"""Embeddings are those of the library that made the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from genesis.llm import LLM, BadModel
from tests.llm.tiny_tokenizer import save_tokenizer

TEXTS = ["the cat sat on the mat", "x", "and then the other cat sat there, too" * 3]


def made(folder: Path, kind: str, **own: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=320, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=80, max_position_embeddings=130, pad_token_id=0, **own,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def pooled(folder: Path, mode: str, normalise: bool) -> None:
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("kind", "mode", "normalise"),
    [("Bert", "mean", True), ("Bert", "cls", False), ("XLMRoberta", "cls", True)],
)
def test_embeddings(kind: str, mode: str, normalise: bool, tmp_path: Path) -> None:
    model = made(tmp_path, kind)
    pooled(tmp_path, mode, normalise)
    with LLM(tmp_path) as llm:
        got = llm.embed(TEXTS)
        alone = llm.embed(TEXTS[1])
        with pytest.raises(TypeError, match="does not generate"):
            llm.generate("x")
        with pytest.raises(ValueError, match="a text of 0 tokens"):
            llm.embed("")
        for text, vector in zip(TEXTS, got, strict=True):
            tokens = torch.tensor([llm.encode(text)])
            with torch.no_grad():
                x = model(tokens).last_hidden_state[0]
            want = x[0] if mode == "cls" else x.mean(0)
            want = torch.nn.functional.normalize(want, dim=0) if normalise else want
            np.testing.assert_allclose(vector, want, atol=1e-5)
    np.testing.assert_array_equal(alone, got[1])


def test_a_pooling_that_is_not_known(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    pooled(tmp_path, "max", True)
    with pytest.raises(BadModel, match="neither the mean"):
        LLM(tmp_path)
