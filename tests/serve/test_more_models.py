"""Models that embed, and adapters as models, through the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI

from genesis.llm import LLM
from genesis.serve.model_pool import Spec
from tests.serve.running import HTTP, Running, tiny

pytestmark = pytest.mark.slow  # two more models to compile


def test_embeddings(tmp_path: Path) -> None:
    from tests.llm.test_encoder import made, pooled

    made(tmp_path, "Bert")
    pooled(tmp_path, "mean", True)
    texts = ["the cat", "sat on the mat", "the cat"]
    with LLM(tmp_path) as llm:
        want = llm.embed(texts)
    running = Running([Spec("bert", tmp_path)])
    try:
        client = OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        for how in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
            found = client.embeddings.create(model="bert", input=texts, **how)  # type: ignore[arg-type]
            assert np.allclose([row.embedding for row in found.data], want, atol=1e-6)
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model="bert", input="x", dimensions=3)
        with pytest.raises(openai.BadRequestError, match="does not generate"):
            client.chat.completions.create(
                model="bert", messages=[{"role": "user", "content": "x"}]
            )
    finally:
        running.close()


def _adapter(folder: Path) -> None:
    import json

    from safetensors.numpy import save_file

    random = np.random.default_rng(1)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": random.standard_normal((4, 32), np.float32),
        f"{name}.lora_B.weight": random.standard_normal((32, 4), np.float32),
    }
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_adapters_are_models(folder: Path, tmp_path: Path) -> None:
    _adapter(tmp_path / "lora")
    running = Running([tiny(folder, adapters=2)])
    try:
        how: Any = {"prompt": "the cat sat on the", "max_tokens": 8, "temperature": 0}

        def ask(model: str) -> Any:
            return HTTP.post(running.url + "/v1/completions", json={"model": model, **how}).json()

        plain = ask("tiny")["choices"][0]["text"]
        loaded = HTTP.post(
            running.url + "/v1/load_lora_adapter",
            json={"lora_name": "mine", "lora_path": str(tmp_path / "lora")},
        )
        assert loaded.status_code == 200
        assert ask("mine")["choices"][0]["text"] != plain == ask("tiny")["choices"][0]["text"]
        listed = HTTP.get(running.url + "/v1/models").json()["data"]
        assert [m["id"] for m in listed] == ["tiny", "mine"]
        gone = HTTP.post(running.url + "/v1/unload_lora_adapter", json={"lora_name": "mine"})
        assert gone.status_code == 200 and "there are tiny" in ask("mine")["error"]["message"]
    finally:
        running.close()
