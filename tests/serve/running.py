"""A server in this process, on a port of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from safetensors.numpy import save_file

from genesis.serve.app import Server, ServerOptions
from genesis.serve.model_pool import Spec
from tests.llm.tiny_tokenizer import save_tokenizer

#: What is not the official client: one for all, since making one reads all certificates.
HTTP = httpx.Client(timeout=240, limits=httpx.Limits(max_connections=None))

THINKING = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}\
{{ '<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>\\n' }}{% endif -%}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "hidden_act": "silu", "rope_theta": 10000.0,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip


def save_model(folder: Path) -> None:
    """A Llama of one layer with random weights, a tokenizer, and a template that knows tools."""
    random = np.random.default_rng(0)
    shapes = {
        "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32),
        "mlp.down_proj": (32, 48),
    }  # fmt: skip
    names = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
    names |= {"model.embed_tokens.weight": (320, 32), "lm_head.weight": (320, 32)}
    tensors = {name: random.standard_normal(s, np.float32) / 3 for name, s in names.items()}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = np.ones(32, np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(THINKING)


class Running:
    """A server with its models, until it is closed."""

    def __init__(self, specs: list[Spec], options: ServerOptions | None = None) -> None:
        self.server: Server
        self.loop: asyncio.AbstractEventLoop
        self._specs, self._options = specs, options
        self._ready = threading.Event()
        self._uvicorn: uvicorn.Server
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(240), "the server does not come up"

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self._specs, self._options)
        config = uvicorn.Config(self.server.app, port=0, log_level="warning", timeout_keep_alive=60)
        self._uvicorn = uvicorn.Server(config)
        task = asyncio.create_task(self._uvicorn.serve())
        while not self._uvicorn.started:
            await asyncio.sleep(0.01)
        self.port = self._uvicorn.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready.set()
        await task

    def call(self, coroutine: Any) -> Any:
        """Run something in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(240)

    @property
    def engine(self) -> Any:
        """The engine of the first model."""
        llm = next(iter(self.server.models.models.values())).llm
        assert llm is not None
        return llm.engine

    def close(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(60)


def tiny(folder: Path, name: str = "tiny", **how: Any) -> Spec:
    """A small cache for a tiny model."""
    return Spec(name, folder, {"cache_bytes": 1 << 24, **how}, pinned=True)
