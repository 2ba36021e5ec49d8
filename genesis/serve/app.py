"""The server: routes, and what every request goes through.

A request is read within limits of size and time, belongs to a key, and runs for as long as its
client is there. Its endpoint is a generator; what that raises is the answer's status before the
first piece, and an event of the stream after it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from genesis.serve import endpoints
from genesis.serve.answers import Asked
from genesis.serve.chat import chat
from genesis.serve.completions import completions
from genesis.serve.errors import ApiError, explained
from genesis.serve.limits import TIERS, Caps, Keys, Tier
from genesis.serve.metrics import Metrics
from genesis.serve.model_pool import Models, Spec
from genesis.serve.request_body import RequestBody, parse
from genesis.serve.responses import responses

_log = logging.getLogger("genesis.serve")
Endpoint = Callable[[Asked, RequestBody, Models], AsyncIterator[Any]]
_NOBODY = Keys().meters[""]
_PAGE = Path(__file__).with_name("page.html")
_POLICY = (
    "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass
class ServerOptions:
    """How a server is run."""

    keys: Path | None = None
    memory: int = 0
    idle: float = 0.0  # seconds after which a model that nobody asks for is dropped; 0: never
    stall: float = 300.0  # seconds without a step after which an engine is restarted
    grace: float = 30.0  # seconds that requests have to end when the server does
    share_prefixes: bool = False
    local: bool = True  # only names of this machine are its own
    cors: list[str] = field(default_factory=list)
    log: Path | None = None
    record: Path | None = None
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)
    caps: Caps = field(default_factory=Caps)


class Left(Exception):
    """The client has gone."""


class Server:
    """Models behind an interface; `app` is the ASGI application."""

    def __init__(self, specs: list[Spec], options: ServerOptions | None = None) -> None:
        self.options = options = options or ServerOptions()
        self.keys = Keys() if options.keys is None else Keys.read(options.keys)
        self.metrics = Metrics(lambda: list(self.models.models.values()))
        self.models = Models(
            specs, options.memory, options.idle, self.keys.shares, self.metrics.watch
        )
        self.active, self.draining = 0, False
        self._log = _opened(options.log)
        self._record, self._recorded = _opened(options.record), 0
        self._tasks: list[asyncio.Task[None]] = []
        self.app = self._application()

    def _application(self) -> Any:
        posts: dict[str, Endpoint] = {
            "/v1/chat/completions": chat, "/v1/completions": completions,
            "/v1/responses": responses, "/v1/embeddings": endpoints.embeddings,
            "/tokenize": endpoints.tokenize, "/detokenize": endpoints.detokenize,
            "/v1/load_lora_adapter": endpoints.load_adapter,
            "/v1/unload_lora_adapter": endpoints.unload_adapter,
        }  # fmt: skip
        routes = [Route(path, Post(self, path, e), methods=["POST"]) for path, e in posts.items()]
        models = Post(self, "/v1/models", endpoints.listing)
        pages: dict[str, Any] = {
            "/v1/models": models, "/v1/models/{model:path}": models, "/health": self._health,
            "/ready": self._ready, "/metrics": self._metrics, "/debug/trace": self._trace,
            "/": self._page,
        }  # fmt: skip
        routes += [Route(path, page, methods=["GET"]) for path, page in pages.items()]
        errors: Any = {404: _http_error, 405: _http_error, 500: _http_error}
        app: Any = Starlette(routes=routes, lifespan=self._life, exception_handlers=errors)
        if self.options.cors:
            app = CORSMiddleware(
                app, allow_origins=self.options.cors, allow_methods=["*"], allow_headers=["*"]
            )
        if self.options.local:
            app = TrustedHostMiddleware(app, ["localhost", "127.0.0.1"])
        return app

    @asynccontextmanager
    async def _life(self, app: Any) -> AsyncIterator[None]:
        for model in self.models.models.values():
            if model.spec.pinned:
                await self.models.loaded(model)
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._pauses())]
        yield
        self.draining = True
        for task in self._tasks:
            task.cancel()
        self._note_systems()
        await self.models.close()
        for file in (self._log, self._record):
            if file is not None:
                file.close()

    async def drain(self) -> None:
        """Take nothing more; what runs has its time to end, and then is told that it is over."""
        self.draining = True
        for seconds in (self.options.grace, 5.0):
            end = time.monotonic() + seconds
            while self.active and time.monotonic() < end:
                await asyncio.sleep(0.02)
            for model in self.models.models.values():
                if model.generates and self.active and model.llm is not None:
                    model.llm.loop.cancel_all()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.options.stall / 4))
            with suppress(ApiError):  # it is in the log
                await self.models.sweep(self.options.stall)

    async def _pauses(self) -> None:
        """How long the event loop was kept from anything else, at most."""
        longest = self.metrics.pause
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            late = time.monotonic() - before - 0.05
            longest.set(max(late, longest._value.get()))

    # ---- pages that need no key, or an operator's

    async def _health(self, request: Any) -> Response:
        well = self.models.healthy(self.options.stall)
        return JSONResponse({"status": "ok" if well else "stalled"}, 200 if well else 503)

    async def _ready(self, request: Any) -> Response:
        ready = not self.draining and self.models.healthy(self.options.stall)
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: Any) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _trace(self, request: Any) -> Response:
        try:
            _admin(self.keys.find(request.headers.get("authorization", "")))
        except ApiError as error:
            return JSONResponse(error.body(), error.status)
        return JSONResponse(self.metrics.last(time.monotonic()))

    async def _page(self, request: Any) -> Response:
        page = _PAGE.read_bytes()
        policy = _POLICY.format(_inside(page, b"script"), _inside(page, b"style"))
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff",
                   "referrer-policy": "no-referrer"}  # fmt: skip
        return Response(page, media_type="text/html", headers=headers)

    # ---- requests

    def asked(self, path: str, meter: Any) -> Asked:
        """A request that came now."""
        options = self.options
        kind = {"/v1/chat/completions": "chatcmpl", "/v1/responses": "resp"}.get(path, "cmpl")
        return Asked(
            meter, options.caps, self.metrics, options.tiers, self._record is not None,
            options.share_prefixes, f"{kind}-{uuid.uuid4().hex}", path,
        )  # fmt: skip

    def note(self, asked: Asked, status: int) -> None:
        """A request is over."""
        seconds = time.monotonic() - asked.started
        self.metrics.requests.labels(asked.path, str(status)).inc()
        self.metrics.whole.labels(asked.path).observe(seconds)
        self.metrics.event(f"requests: {asked.path}", asked.started, time.monotonic(), asked.record)
        parts = asked.parts or [asked]
        traces = [part.record.pop("trace", None) for part in parts]
        about = {
            "time": round(time.time(), 3), "id": asked.id, "path": asked.path,
            "key": asked.meter.key.name, "status": status, "seconds": round(seconds, 6),
        }  # fmt: skip
        for part, trace in zip(parts, traces, strict=True):
            _write(self._log, {**about, **part.record})
            if self._record is not None and trace is not None and status == 200:
                _write(self._record, {**trace, **_lengths(part.record), "key": about["key"]})
                self._recorded += 1
                if self._recorded % 64 == 1:
                    self._note_systems()

    def _note_systems(self) -> None:
        """What the simulator has to know of an engine, as it was learned up to now."""
        for model in self.models.models.values():
            if model.generates:
                _write(self._record, {"system": model.system()})


class Post:
    """An endpoint as an ASGI application."""

    def __init__(self, server: Server, path: str, endpoint: Endpoint) -> None:
        self._server, self._path, self._endpoint = server, path, endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        server = self._server
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        reply = Reply(send, server.options.caps.send_seconds)
        asked, status = server.asked(self._path, _NOBODY), 500
        server.active += 1
        try:
            asked.meter = meter = server.keys.find(headers.get("authorization", ""))
            if "lora" in self._path:
                _admin(meter)
            if server.draining:
                raise ApiError(503, "the server is about to end", retry_after=5)
            body = RequestBody(scope["path_params"])
            if scope["method"] == "POST":
                body = parse(await _read(receive, headers, server.options.caps))
            with meter.request(), _span(self._path):
                await _while_there(receive, self._answer(asked, body, reply))
            status = 200
        except (Left, TimeoutError, asyncio.CancelledError) as left:
            status = 499
            if isinstance(left, asyncio.CancelledError):
                raise
        except Exception as error:
            found = explained(error)
            status = found.status
            if found.code == "internal":
                _log.exception("%s %s", self._path, asked.id)
            with suppress(TimeoutError):
                await reply.error(found)
        finally:
            server.active -= 1
            server.note(asked, status)

    async def _answer(self, asked: Asked, body: RequestBody, reply: Reply) -> None:
        async with aclosing(self._endpoint(asked, body, self._server.models)) as items:  # type: ignore[type-var]
            first = await anext(items)
            names = ", ".join(body.ignored())
            warned = {"warning": f'299 genesis "ignored: {names}"'} if names else {}
            if not body.flag("stream"):
                return await reply.whole(200, first, warned)
            await reply.begin(warned)
            await reply.event(first)
            async for item in items:
                await reply.event(item)
            await reply.end("responses" not in self._path)


class Reply:
    """What is sent; a reader who takes nothing for too long is a TimeoutError."""

    def __init__(self, send: Callable[[Any], Awaitable[None]], seconds: float) -> None:
        self._send, self._seconds, self._begun = send, seconds, False

    async def _pass(self, message: dict[str, Any]) -> None:
        async with asyncio.timeout(self._seconds):
            await self._send(message)

    async def _start(self, status: int, kind: str, more: Mapping[str, str]) -> None:
        self._begun = True
        pairs = {"content-type": kind, "cache-control": "no-store", **more}.items()
        headers = [(k.encode(), v.encode("latin-1", "replace")) for k, v in pairs]
        await self._pass({"type": "http.response.start", "status": status, "headers": headers})

    async def whole(self, status: int, content: Any, headers: Mapping[str, str]) -> None:
        """An answer in one piece."""
        data = json.dumps(content).encode()
        more = {"content-length": str(len(data)), **headers}
        await self._start(status, "application/json", more)
        await self._pass({"type": "http.response.body", "body": data})

    async def begin(self, headers: Mapping[str, str]) -> None:
        """An answer in events."""
        await self._start(200, "text/event-stream; charset=utf-8", headers)

    async def event(self, content: dict[str, Any]) -> None:
        """One of them."""
        kind = content.get("type")
        head = f"event: {kind}\n" if isinstance(kind, str) else ""
        data = f"{head}data: {json.dumps(content)}\n\n".encode()
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, said: bool) -> None:
        """No more events, which some clients are to be told."""
        data = b"data: [DONE]\n\n" if said else b""
        await self._pass({"type": "http.response.body", "body": data})

    async def error(self, error: ApiError) -> None:
        """What went wrong: as the status, or in the stream."""
        if not self._begun:
            return await self.whole(error.status, error.body(), error.headers())
        await self.event(error.body())
        await self.end(False)


async def _read(receive: Any, headers: Mapping[str, str], caps: Caps) -> bytes:
    """The body of a request."""
    if "json" not in headers.get("content-type", ""):
        raise ApiError(415, "the body is JSON: Content-Type: application/json")
    found = bytearray()
    if int("0" + "".join(filter(str.isdecimal, headers.get("content-length", "")))) > caps.body:
        raise ApiError(413, f"the body has more than {caps.body} bytes")
    try:
        async with asyncio.timeout(caps.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Left
                found += message.get("body", b"")
                if len(found) > caps.body:
                    raise ApiError(413, f"the body has more than {caps.body} bytes")
                if not message.get("more_body"):
                    return bytes(found)
    except TimeoutError:
        text = f"the body did not come within {caps.body_seconds:g} s"
        raise ApiError(408, text) from None


async def _while_there(receive: Any, work: Coroutine[Any, Any, None]) -> None:
    """Do something for as long as the client is there."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Left
        await doing
    finally:
        leaving.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})


def _admin(meter: Any) -> None:
    if not meter.key.admin:
        raise ApiError(403, f"key {meter.key.name} is not an operator's", code="not_admin")


async def _http_error(request: Any, error: Any) -> Response:
    status = getattr(error, "status_code", 500)
    text = getattr(error, "detail", "the server failed")
    found = ApiError(status, f"{request.method} {request.url.path}: {text}")
    return JSONResponse(found.body(), status)


@cache  # an import that fails looks through all folders every time
def _tracer() -> Any:
    """OpenTelemetry's, where it is installed."""
    with suppress(ImportError):
        from opentelemetry import trace

        return trace.get_tracer("genesis.serve")
    return None


def _span(path: str) -> Any:
    return nullcontext() if _tracer() is None else _tracer().start_as_current_span(path)


def _inside(page: bytes, tag: bytes) -> str:
    """What a page has inside of a tag, as its policy names it."""
    start, end = page.find(b"<%s>" % tag) + len(tag) + 2, page.find(b"</%s>" % tag)
    digest = hashlib.sha256(page[start:end]).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _opened(path: Path | None) -> IO[str] | None:
    return None if path is None else open(path, "a", buffering=1)


def _write(file: IO[str] | None, record: dict[str, Any]) -> None:
    if file is not None:
        with suppress(OSError, ValueError):  # a full disk loses lines, not requests
            file.write(json.dumps(record) + "\n")


def _lengths(record: dict[str, Any]) -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "first_token", "tier", "model")
    return {name: record.get(name) for name in names}


__all__ = ["ServerOptions", "Server"]
