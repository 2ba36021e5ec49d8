"""The smaller endpoints: embeddings, models, tokens, adapters."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from genesis.llm.tokenizer import Tokenizer
from genesis.serve.answers import Asked, aside, prompt_of
from genesis.serve.chat import Json, message_of
from genesis.serve.errors import ApiError
from genesis.serve.model_pool import Models, ServedModel
from genesis.serve.request_body import RequestBody

Array = np.ndarray[Any, Any]


_VECTORS = 4096  # of texts that came lately, for each model


async def _embedded(model: ServedModel, texts: list[str]) -> list[Array]:
    """The vectors of texts, of which only new ones are computed."""
    assert model.llm is not None
    keys, known = [hashlib.sha256(text.encode()).digest() for text in texts], model.vectors
    found = {key: known[key] for key in keys if key in known}
    new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
    if new:
        found |= dict(zip(new, await aside(model.llm.embed, [*new.values()]), strict=True))
    for key in keys:
        known[key] = found[key]
        known.move_to_end(key)
    while len(known) > _VECTORS:
        known.popitem(last=False)
    return [found[key] for key in keys]


async def embeddings(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/embeddings`."""
    texts = body.texts("input", asked.caps.inputs, asked.caps.body)
    if not texts:
        raise body.wrong("input", "a text or a list of some")
    how = body.text("encoding_format", "float", ("float", "base64"))
    size = body.integer("dimensions", None, 1)
    async with models.use(body.text("model")) as (model, _):
        assert model.llm is not None
        if model.generates:
            text = f"model {model.name} generates texts, it does not embed them"
            raise ApiError(400, text, param="model")
        vectors = await _embedded(model, texts)
        if size not in (None, vectors[0].size):
            raise body.wrong("dimensions", f"{vectors[0].size}, which the model has")
        count = await aside(_count, model.llm.tokenizer, texts)
        asked.meter.charge(count)
        asked.record |= {"model": model.name, "prompt_tokens": count}
        data = [
            {"object": "embedding", "index": k, "embedding": _encoded(vector, how)}
            for k, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        yield {"object": "list", "data": data, "model": model.name, "usage": usage}


def _count(tokenizer: Tokenizer, texts: list[str]) -> int:
    return sum(len(tokenizer.encode(text)) for text in texts)


def _encoded(vector: Array, how: str) -> Any:
    if how == "float":
        return [float(x) for x in vector]
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


async def listing(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/models`, and `/v1/models/NAME`."""
    name = body.text("model")
    if name is not None:
        yield _about(name, *models.find(name))
    else:
        data = [_about(name, *found) for name, found in models.names().items()]
        yield {"object": "list", "data": data}


def _about(name: str, model: ServedModel, adapter: str | None) -> Json:
    return {
        "id": name, "object": "model", "created": int(model.created), "owned_by": "genesis",
        "root": adapter or str(model.spec.path.name), "loaded": model.llm is not None,
    }  # fmt: skip


async def tokenize(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/tokenize`: a prompt, or a conversation, as tokens."""
    prompt, messages = body.text("prompt"), body.tables("messages", asked.caps.messages)
    async with models.use(body.text("model")) as (model, _):
        llm = model.llm
        assert llm is not None
        if messages:
            said = [message_of(m) for m in messages]
            prompt = await aside(llm.template.render, said, lane=model.rendering)
        if prompt is None:
            raise body.wrong("prompt", "a text")
        tokens = await aside(prompt_of, llm, prompt, bool(messages))
        yield {"tokens": tokens, "count": len(tokens), "max_model_len": llm.context}


async def detokenize(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/detokenize`."""
    tokens = body.raw("tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t for t in tokens):
        raise body.wrong("tokens", "a list of tokens")
    async with models.use(body.text("model")) as (model, _):
        assert model.llm is not None
        yield {"prompt": await aside(model.llm.tokenizer.decode, tokens)}


async def load_adapter(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/load_lora_adapter`: a folder becomes a model's name."""
    name, path = body.text("lora_name", ""), Path(body.text("lora_path", ""))
    model, _ = models.find(body.text("model"))
    if not name or name in models.names():
        raise body.wrong("lora_name", "a name that is not taken")
    if not (path / "adapter_config.json").is_file():
        raise body.wrong("lora_path", "a folder with an adapter_config.json")
    if not model.spec.how.get("adapters"):
        raise body.wrong("model", "a model with room for adapters: serve it with --adapters N")
    model.spec.adapters[name] = path
    yield {"loaded": name}


async def unload_adapter(asked: Asked, body: RequestBody, models: Models) -> AsyncIterator[Json]:
    """`/v1/unload_lora_adapter`."""
    name = body.text("lora_name", "")
    model, adapter = models.find(name)
    if adapter is None:
        raise body.wrong("lora_name", "the name of an adapter")
    del model.spec.adapters[name]
    yield {"unloaded": name}


__all__ = [
    "detokenize", "embeddings", "listing", "load_adapter", "tokenize", "unload_adapter",
]  # fmt: skip
