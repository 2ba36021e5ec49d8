"""`genesis serve`: from options and files to a server that runs until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import uvicorn

from genesis.llm.loading import Settings
from genesis.serve.app import Server, ServerOptions
from genesis.serve.errors import ApiError
from genesis.serve.limits import TIERS, Caps, Tier
from genesis.serve.model_pool import ServedModel, Spec

_SETTINGS = {field.name for field in fields(Settings)}
_SPEC = ("name", "path", "aliases", "adapters", "pinned")


def serve(paths: list[str], config: str | None, **given: Any) -> int:
    """Serve models, by options of the command line and of a TOML file, in this order."""
    table = {} if config is None else tomllib.loads(Path(config).read_text())
    models = table.pop("model", [])
    tiers = {name: Tier(**tier) for name, tier in table.pop("tiers", {}).items()}
    caps = Caps(**table.pop("caps", {}))
    chosen = {**table, **{name: value for name, value in given.items() if value is not None}}
    shared = {name: chosen.pop(name) for name in _SETTINGS & chosen.keys()}
    adapters = dict(_pair(text) for text in chosen.pop("adapter", []))
    if adapters:
        shared.setdefault("adapters", max(4, len(adapters)))
    if "disk" in shared:
        shared.setdefault("host_bytes", 1 << 28)  # where pages wait on their way
    specs = [_spec(_named(path), shared) for path in paths]
    specs += [_spec(model, shared) for model in models]
    if not specs:
        raise ValueError("a model is wanted: a folder or a GGUF file")
    specs[0].adapters |= {name: Path(folder) for name, folder in adapters.items()}
    if len(specs) == 1:
        specs[0].pinned = True
    how = {n: chosen.pop(n) for n in ("host", "port", "tls_cert", "tls_key") if n in chosen}
    known = {field.name for field in fields(ServerOptions)}
    if unknown := sorted(chosen.keys() - known):
        raise ValueError(f"{config}: there is no option {unknown[0]}")
    for name in ("keys", "log", "record"):
        if name in chosen:
            chosen[name] = Path(chosen[name])
    host = how.get("host", "127.0.0.1")
    local = host in ("127.0.0.1", "localhost")
    sys.setswitchinterval(5e-4)  # an engine in Python code keeps the event loop from its sockets
    options = ServerOptions(**chosen, local=local, tiers={**TIERS, **tiers}, caps=caps)
    return asyncio.run(_run(specs, options, host, **how))


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    return (name, value) if found else (Path(text).stem, text)


def _named(text: str) -> dict[str, Any]:
    name, path = _pair(text)
    return {"name": name, "path": path}


def _spec(table: dict[str, Any], shared: dict[str, Any]) -> Spec:
    path = Path(table["path"])
    if not path.exists():
        raise FileNotFoundError(2, "there is no such file or folder", str(path))
    how = {**shared, **{name: table[name] for name in table.keys() - set(_SPEC)}}
    if unknown := sorted(how.keys() - _SETTINGS):
        raise ValueError(f"model {path}: there is no setting {unknown[0]}")
    return Spec(
        table.get("name", path.stem), path, how, list(table.get("aliases", [])),
        {name: Path(folder) for name, folder in table.get("adapters", {}).items()},
        bool(table.get("pinned", False)),
    )  # fmt: skip


class _Uvicorn(uvicorn.Server):
    """Signals are ours: they drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(
    specs: list[Spec], options: ServerOptions, host: str, port: int = 8000, tls_cert: Any = None,
    tls_key: Any = None, **_: Any,
) -> int:  # fmt: skip
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # clients that leave are no news
    server = Server(specs, options)
    try:
        for model in server.models.models.values():
            if model.spec.pinned:
                await server.models.loaded(model)
    except ApiError as error:
        raise ValueError(str(error)) from None
    config = uvicorn.Config(
        server.app, host, port, log_level="warning", access_log=False, ssl_certfile=tls_cert,
        ssl_keyfile=tls_key, timeout_graceful_shutdown=5, timeout_keep_alive=60, backlog=4096,
    )  # fmt: skip
    web = _Uvicorn(config)
    loop, draining = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, draining.set)
    task = asyncio.create_task(web.serve())

    async def end() -> None:
        await draining.wait()
        print("genesis: ending what runs", file=sys.stderr, flush=True)
        await server.drain()
        web.should_exit = True

    ending = asyncio.create_task(end())
    while not web.started and not task.done():
        await asyncio.sleep(0.02)
    if web.started:
        address = web.servers[0].sockets[0].getsockname()
        scheme = "https" if tls_cert else "http"
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        for line in plan(server, f"{scheme}://{shown}:{address[1]}"):
            print(line, flush=True)
    await task
    ending.cancel()
    return 0 if web.started else 1


def plan(server: Server, url: str) -> Iterator[str]:
    """What is served where, and what it takes."""
    for model in server.models.models.values():
        yield from _model_plan(model)
    yield f"memory   {server.models.memory / 1e9:.1f} GB for all"
    yield f"serving  {url}   chat page, /v1, /metrics, /health"
    name = next(iter(server.models.models))
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    yield f"try      curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def _model_plan(model: ServedModel) -> Iterator[str]:
    parts = ", ".join(f"{what} {size / 1e6:.0f} MB" for what, size in model.planned().items())
    state = "" if model.llm is not None else " (loaded when asked for)"
    yield f"model    {model.name}: {model.spec.path}{state}"
    yield f"         {parts}"
    if model.llm is not None and model.generates:
        scheduler = model.llm.engine.scheduler
        tokens = min(group.pages for group in scheduler.pool.groups) * scheduler.pool.page_size
        yield f"         {tokens} tokens fit, {scheduler.limits.context} in one text"
    for name, folder in model.spec.adapters.items():
        yield f"adapter  {name}: {folder}"


__all__ = ["plan", "serve"]
