"""What a request can do wrong, and that it does so alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genesis.serve.app import Server, ServerOptions
from genesis.serve.limits import Bucket, Caps, Keys
from genesis.serve.model_pool import Spec
from tests.serve.running import HTTP, Running, tiny

MESSAGES = [{"role": "user", "content": "the cat"}]
# What is sampled ends where it is told to, whatever is drawn.
CHAT: dict[str, Any] = {
    "model": "tiny", "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True
}  # fmt: skip
DEEP: Any = {}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def post(running: Running, body: Any, path: str = "/v1/chat/completions", **how: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **how}
    return HTTP.post(running.url + path, content=data, headers=headers)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits as long as a slow machine may take."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[1]", None),
        (b'{"a": NaN}', None),
        (b'{"a": "\xff"}', None),
        (b"[" * 100_000, None),
        (b'{"seed": ' + b"1" * 5000 + b"}", None),
        ({}, "messages"),
        ({**CHAT, "messages": "x"}, "messages"),
        ({**CHAT, "messages": [{"role": "wizard", "content": ""}]}, "messages.0.role"),
        ({**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages.0.content.0.type"),
        ({**CHAT, "temperature": "hot"}, "temperature"),
        ({**CHAT, "temperature": -1}, "temperature"),
        ({**CHAT, "top_p": 0}, "top_p"),
        ({**CHAT, "n": True}, "n"),
        ({**CHAT, "n": 1000}, "n"),
        ({**CHAT, "max_tokens": 0}, "max_tokens"),
        ({**CHAT, "max_tokens": 100_000}, None),
        ({**CHAT, "stop": ["x"] * 99}, "stop"),
        ({**CHAT, "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({**CHAT, "logit_bias": {"x": 1}}, "logit_bias"),
        ({**CHAT, "logit_bias": {"99999": 1}}, "logit_bias"),
        ({**CHAT, "tools": [{"type": "function"}]}, "tools.0.function"),
        ({**CHAT, "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"a": {"enum": 5}}}}}]},
         "tools.0.function.parameters"),
        ({**CHAT, "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({**CHAT, "tool_choice": "required"}, "tool_choice"),
        ({**CHAT, "tool_choice": {"function": {"name": "f"}}}, "tool_choice"),
        ({**CHAT, "tool_choice": {"function": "f"}}, "tool_choice.function"),
        ({**CHAT, "response_format": {"type": "yaml"}}, "response_format.type"),
        ({**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
         "response_format"),
        ({**CHAT, "response_format": {"type": "json_schema",
                                      "json_schema": {"schema": {"type": "wrong"}}}},
         "response_format"),
        ({**CHAT, "service_tier": "gold"}, "service_tier"),
        ({**CHAT, "deadline_ms": -5}, "deadline_ms"),
    ],
)  # fmt: skip
def test_bad_requests_are_named(running: Running, body: Any, param: str | None) -> None:
    answer = post(running, body)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["type"] == "invalid_request_error" and error["message"]
    assert error["param"] == param


def test_other_errors_have_the_same_form(running: Running) -> None:
    for answer, status in (
        (HTTP.get(running.url + "/v1/nothing"), 404),
        (HTTP.get(running.url + "/v1/completions"), 405),
        (post(running, {**CHAT, "model": "gone"}), 404),
        (post(running, b" " * (5 << 20)), 413),
        (post(running, CHAT, **{"content-type": "text/plain"}), 415),
        (post(running, {"model": "tiny", "input": "x"}, "/v1/embeddings"), 400),
        (post(running, {**CHAT, "deadline_ms": 0}), 408),
    ):
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    long = post(running, {**CHAT, "messages": [{"role": "user", "content": "a b " * 100_000}]})
    assert long.status_code == 400 and "1024" in long.json()["error"]["message"]
    assert HTTP.get(running.url + "/health", headers={"host": "evil.example"}).status_code == 400


def test_unknown_fields_are_ignored_and_said(running: Running) -> None:
    answer = post(running, {**CHAT, "sparkle": 1, "user": "me", "bad\nname": 2})
    assert answer.status_code == 200
    assert answer.headers["warning"] == '299 genesis "ignored: sparkle, user"'


def test_a_client_that_leaves_frees_its_pages(running: Running) -> None:
    body = {**CHAT, "max_tokens": 900, "stream": True}
    with HTTP.stream("POST", running.url + "/v1/chat/completions", json=body) as s:
        next(s.iter_lines())
    data = json.dumps({**body, "stream": False}).encode()
    with socket.create_connection(("127.0.0.1", running.port)) as other:  # waits for all of it
        other.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        eventually(lambda: running.server.active > 0)
    eventually(lambda: len(running.engine) == 0)
    running.call(_between_steps(running))


async def _between_steps(running: Running) -> None:
    """Pages are all accounted for, and none is held."""
    llm = running.server.models.models["tiny"].llm
    assert llm is not None
    scheduler = llm.engine.scheduler
    await asyncio.wrap_future(llm.loop.call(scheduler.check))
    assert not any(map(any, scheduler.pool.references))


def test_a_template_that_takes_long_keeps_only_chats_waiting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, release = running.server.models.models["tiny"].llm, threading.Event()
    assert llm is not None
    render = llm.template.render
    waiting = lambda *args, **how: release.wait() and render(*args, **how)  # noqa: E731
    monkeypatch.setattr(llm.template, "render", waiting)
    found: list[int] = []
    asks = [
        threading.Thread(target=lambda: found.append(post(running, CHAT).status_code))
        for _ in range(40)  # more than there are threads
    ]
    for ask in asks:
        ask.start()
    eventually(lambda: running.server.active == 40)
    plain = {"model": "tiny", "prompt": "the cat", "max_tokens": 2}
    assert post(running, plain, "/v1/completions").status_code == 200
    assert not found
    release.set()
    for ask in asks:
        ask.join()
    assert found == [200] * 40


def test_a_step_that_raises_ends_its_requests_only(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = post(running, {**CHAT, "seed": 1}).json()["choices"]
    executor = running.engine.executor

    def broken(*args: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("a step that fails")

    monkeypatch.setattr(executor, "decode", broken)
    answer = post(running, CHAT)
    assert answer.status_code == 500 and "a step that fails" in answer.json()["error"]["message"]
    monkeypatch.setattr(executor, "decode", broken)
    stream = post(running, {**CHAT, "stream": True, "logprobs": True})
    assert stream.status_code == 200  # the first token was there
    assert "a step that fails" in stream.text.strip().split("\n")[-1]
    assert post(running, {**CHAT, "seed": 1}).json()["choices"] == want
    running.call(_between_steps(running))


def test_a_scheduler_that_raises_is_replaced(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = running.engine.scheduler

    def broken(*args: Any) -> Any:
        before._step = None
        before.pool._free[0].pop()  # a page is lost
        raise AssertionError("a bug")

    monkeypatch.setattr(before, "done", broken)
    assert post(running, CHAT).status_code == 500
    assert running.engine.scheduler is not before
    assert post(running, CHAT).status_code == 200
    running.call(_between_steps(running))


def test_an_engine_without_a_sign_of_life_is_restarted(folder: Path) -> None:
    running = Running([tiny(folder)])
    try:
        engine, release = running.engine, threading.Event()
        engine.step = lambda: release.wait() and []
        statuses: list[int] = []
        asks = [
            threading.Thread(target=lambda: statuses.append(post(running, CHAT).status_code))
            for _ in range(2)
        ]
        asks[0].start()
        eventually(lambda: len(engine) == 1)
        asks[1].start()  # waits in the inbox
        llm = running.server.models.models["tiny"].llm
        eventually(lambda: llm.loop._inbox.qsize() == 1)
        assert not running.server.models.healthy(0.0)
        running.call(running.server.models.sweep(0.0))
        for ask in asks:
            ask.join()
        release.set()
        assert statuses == [500, 500]
        assert running.engine is not engine
        assert post(running, CHAT).status_code == 200
        assert HTTP.get(running.url + "/health").status_code == 200
    finally:
        running.close()


def test_draining_loses_nothing_that_was_accepted(running: Running) -> None:
    body = {**CHAT, "max_tokens": 100}
    found: list[Any] = []
    asks = [
        threading.Thread(target=lambda: found.append(post(running, body).json())) for _ in range(4)
    ]
    for ask in asks:
        ask.start()
    eventually(lambda: len(running.engine) == 4)
    drained = asyncio.run_coroutine_threadsafe(running.server.drain(), running.loop)
    eventually(lambda: running.server.draining)
    late = post(running, CHAT)
    assert late.status_code == 503 and int(late.headers["retry-after"]) > 0
    assert HTTP.get(running.url + "/ready").status_code == 503
    for ask in asks:
        ask.join()
    drained.result(120)
    running.server.draining = False
    assert [f["usage"]["completion_tokens"] for f in found] == [100] * 4


def _half_a_body(running: Running) -> None:
    """It is not waited for."""
    with socket.create_connection(("127.0.0.1", running.port)) as half:
        half.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer ann\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        half.settimeout(120)
        assert b" 408 " in half.recv(4096)
    eventually(lambda: running.server.active == 0)


def test_keys(folder: Path, tmp_path: Path) -> None:
    secret = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("ann", "bob")}
    file = tmp_path / "keys.toml"
    file.write_text(
        f'[ann]\nsha256 = "{secret["ann"]}"\nadmin = true\n'
        f'[bob]\nsha256 = "{secret["bob"]}"\nrequests = 1\ntokens = 100000\n'
    )
    running = Running([tiny(folder)], ServerOptions(keys=file, caps=Caps(body_seconds=5)))
    try:
        _half_a_body(running)
        assert post(running, CHAT).status_code == 401
        assert post(running, CHAT, authorization="Bearer eve").status_code == 401
        long = {**CHAT, "messages": [{"role": "user", "content": "the cat sat " * 60}]}
        for name, cached in (("ann", False), ("ann", True), ("bob", False)):
            answer = post(running, long, authorization=f"Bearer {name}").json()
            assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == cached
        busy = post(running, CHAT, authorization="Bearer bob")
        assert busy.status_code == 429 and 0 < int(busy.headers["retry-after"]) <= 60
        for name, status in (("bob", 403), ("ann", 200)):
            trace = HTTP.get(
                running.url + "/debug/trace", headers={"authorization": f"Bearer {name}"}
            )
            assert trace.status_code == status
        assert any(e["name"] == "tiny: step" for e in trace.json()["traceEvents"])
    finally:
        running.close()
    file.write_text('[ann]\nsha256 = "1"\n')
    with pytest.raises(ValueError, match="ann has no sha256"):
        Keys.read(file)


def test_a_bucket_says_when() -> None:
    bucket = Bucket(60)
    assert bucket.wait(60) == 0
    bucket.left -= 60
    assert 9 < bucket.wait(10) <= 10


def test_metrics_count_what_happened(running: Running) -> None:
    def value(name: str) -> float:
        text = HTTP.get(running.url + "/metrics").text
        rows = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in rows)

    names = ("genesis_generation_tokens_total", "genesis_prompt_tokens_total",
             "genesis_time_to_first_token_seconds_count")  # fmt: skip
    before = [value(name) for name in names]
    usage = post(running, CHAT).json()["usage"]
    after = [value(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [4, usage["prompt_tokens"], 1]
    assert value("genesis_num_requests_running") == value("genesis_kv_cache_usage_ratio") == 0
    assert value("genesis_memory_bytes") > 0


def test_models_share_the_memory(folder: Path) -> None:
    async def run() -> None:
        specs = [tiny(folder, name) for name in ("a", "b", "c")]
        for spec in specs:
            spec.pinned = spec.name == "a"
        server = Server([*specs], ServerOptions())
        models = server.models
        need = sum(models.models["b"].planned().values())
        async with models.use("a") as (a, _):
            held = sum(a.planned().values())
            models.memory = need + held + held // 2
            async with models.use("b") as (b, _):
                pass
            assert b.llm is not None
            async with models.use("c") as (c, _):
                assert b.llm is None and c.llm is not None  # b made room
                with pytest.raises(Exception, match="MB are missing"):
                    async with models.use("b"):
                        pass
        await models.close()

    asyncio.run(run())


def test_two_models_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="same name"):
        Server([Spec("a", folder), Spec("a", folder)])
