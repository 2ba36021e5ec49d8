"""A server in this process, on a port of its own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import uvicorn

from genesis.serve.app import Options, Server
from genesis.serve.models import Spec

THINKING = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}\
{{ '<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>\\n' }}{% endif -%}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""


class Running:
    """A server with its models, until it is closed."""

    def __init__(self, specs: list[Spec], options: Options | None = None) -> None:
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
