"""Clients of every bad kind at once: healthy requests end right, and everything is given back."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from genesis.serve.app import Options
from genesis.serve.limits import Caps
from tests.serve.running import HTTP, Running, tiny

pytestmark = pytest.mark.slow
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "the cat sat"}],
    "max_tokens": 8,
    "seed": 1,
}
BOMBS: list[Any] = [
    {"type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(600)}},
    {"type": "string", "pattern": "(a|aa)+(b|bb)+$" * 20},
    {"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100})"},
    {"allOf": [{"anyOf": [{"const": i} for i in range(300)]} for _ in range(12)]},
    {"$ref": "#"},
    {"type": "string", "pattern": "("},
]


def raw(port: int, data: bytes, wait: float = 0.0) -> None:
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(data)
        time.sleep(wait)


def head(length: int) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        b"\r\nContent-Length: %d\r\n\r\n" % length
    )


def bad(running: Running, rng: random.Random) -> None:
    """One bad client."""
    url, port = running.url + "/v1/chat/completions", running.port
    long = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    json_type = {"content-type": "application/json"}
    match rng.randrange(8):
        case 0:  # half a body
            raw(port, head(500) + b'{"model"', rng.random())
        case 1:  # leaves in the middle
            with HTTP.stream("POST", url, json=long) as s:
                next(s.iter_bytes())
        case 2:  # malformed, deep, not UTF-8
            data = rng.choice(
                [b"[" * 10**5, b'{"a": "\xff\xfe"}', b"{]", b'{"a":' * 5000, os.urandom(99)]
            )
            assert HTTP.post(url, content=data, headers=json_type).status_code == 400
        case 3:  # too large
            status = HTTP.post(url, content=b" " * (3 << 20), headers=json_type).status_code
            assert status == 413
        case 4:  # a schema that explodes
            schema = {"type": "json_schema", "json_schema": {"schema": rng.choice(BOMBS)}}
            asked = {**CHAT, "max_tokens": 3, "response_format": schema}
            assert HTTP.post(url, json=asked).status_code in (200, 400, 500)
        case 5:  # reads nothing
            data = json.dumps(long).encode()
            raw(port, head(len(data)) + data, 2 * rng.random())
        case 6:  # no HTTP
            raw(port, os.urandom(200))
        case 7:  # a prompt that is too long
            asked = {**CHAT, "messages": [{"role": "user", "content": "cat " * 50_000}]}
            assert HTTP.post(url, json=asked).status_code == 400


def test_faults(folder: Path) -> None:
    caps = Caps(body=2 << 20, body_seconds=5)
    running = Running([tiny(folder)], Options(caps=caps))
    try:
        want = HTTP.post(running.url + "/v1/chat/completions", json=CHAT).json()
        failures: list[Any] = []
        seen: Counter[str] = Counter()
        executor, broken = running.engine.executor, random.Random(3)
        decode = executor.decode

        def sometimes(*args: Any) -> Any:
            if broken.random() < 0.005:
                raise RuntimeError("injected")
            return decode(*args)

        def client(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(12):
                try:
                    if rng.random() < 0.6:
                        bad(running, rng)
                        continue
                    answer = HTTP.post(running.url + "/v1/chat/completions", json=CHAT, timeout=240)
                    if answer.status_code == 500 and "injected" in answer.text:
                        seen["injected"] += 1
                        continue
                    assert answer.json()["choices"] == want["choices"]
                    seen["right"] += 1
                except (httpx.TransportError, OSError):
                    seen["cut"] += 1
                except BaseException as error:
                    failures.append(error)

        executor.decode = sometimes
        threads = [threading.Thread(target=client, args=(k,)) for k in range(24)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert HTTP.get(running.url + "/health", timeout=60).status_code == 200
            time.sleep(0.5)
        executor.decode = decode
        assert not failures and seen["right"] > 20, (failures, seen)
        end = time.monotonic() + 120
        while len(running.engine) or running.server.active:
            assert time.monotonic() < end
            time.sleep(0.1)
        running.engine.scheduler.check()
        assert not any(map(any, running.engine.scheduler.pool.references))
        after = HTTP.post(running.url + "/v1/chat/completions", json=CHAT).json()
        assert after["choices"] == want["choices"]
    finally:
        running.close()


class Process:
    """`genesis serve` as a process."""

    def __init__(self, folder: Path, disk: Path) -> None:
        command = [sys.executable, "-m", "genesis", "serve", f"tiny={folder}", "--port", "0"]
        more = ["--disk", str(disk), "--cache-bytes", str(1 << 24)]
        self.process = subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = ""
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.url = line.split()[1]
            if line.startswith("try"):
                break

    def ask(self, **how: Any) -> Any:
        text = "the cat sat on the mat and then " * 12
        asked = {**CHAT, "messages": [{"role": "user", "content": text}], **how}
        return HTTP.post(self.url + "/v1/chat/completions", json=asked).json()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


def test_ends_of_a_process(folder: Path, tmp_path: Path) -> None:
    server = Process(folder, tmp_path)
    want, answers = server.ask(), list[Any]()
    long = {"max_tokens": 300, "ignore_eos": True}
    asks = [threading.Thread(target=lambda: answers.append(server.ask(**long))) for _ in range(3)]
    for ask in asks:
        ask.start()
    while (
        'genesis_num_requests_running{model="tiny"} 3' not in HTTP.get(server.url + "/metrics").text
    ):
        time.sleep(0.05)
    assert server.end(signal.SIGTERM) == 0
    for ask in asks:
        ask.join()
    assert [a["usage"]["completion_tokens"] for a in answers] == [300] * 3
    again = Process(folder, tmp_path)  # finds its pages on disk
    found = again.ask()
    assert found["choices"] == want["choices"]
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    again.end(signal.SIGKILL)
    (tmp_path / "000000000001.log").write_bytes(b"not a log")
    last = Process(folder, tmp_path)
    assert last.ask()["choices"] == want["choices"]
    assert last.end(signal.SIGTERM) == 0
