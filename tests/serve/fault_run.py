"""Clients of every bad kind at once, for as long as is asked for:

    python -m tests.serve.fault_run --minutes 30 --clients 64

The server is a process of its own, in which steps fail now and then, and whose disk is full half of
the time. Meanwhile healthy requests end right, or with the step that failed; `/health` answers; and
in the end pages, connections and memory are as they were before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from genesis.serve.app import ServerOptions
from genesis.serve.limits import Caps
from tests.serve.running import Running, save_model, tiny

JSON = {"content-type": "application/json"}
CHAT: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "seed": 1}
PROMPTS = [f"the cat sat on mat {k} " * (1 + 4 * k) for k in range(6)]
BOMBS: list[Any] = [
    {"type": "object", "properties": {f"p{k}": {"type": "string"} for k in range(600)}},
    {"type": "string", "pattern": "(a|aa)+(b|bb)+$" * 20},
    {"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100})"},
    {"allOf": [{"anyOf": [{"const": i} for i in range(300)]} for _ in range(12)]},
    {"$ref": "#"},
    {"type": "string", "pattern": "("},
]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
#: A client to be killed: it has read the beginning of an answer when it says so.
CLIENT = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(sys.stdin.buffer.read())
s.recv(1)
print(flush=True)
while s.recv(10): pass
"""


# ---- the server


def serve(folder: str, pipe: Any) -> None:
    """A server with faults of its own, and what it says about itself when it is asked."""
    root = Path(folder)
    sys.setswitchinterval(5e-4)  # as the command does
    specs = [tiny(root / "model", host_bytes=1 << 20, disk=root / "pages", cache_bytes=1 << 19)]
    specs.append(tiny(root / "looping", "looping"))
    caps = Caps(body=2 << 20, body_seconds=30, send_seconds=10)
    running = Running(specs, ServerOptions(keys=root / "keys.toml", caps=caps))
    broken, decode = random.Random(3), running.engine.executor.decode
    faults = {"steps": 0.0}

    def sometimes(*args: Any) -> Any:
        if broken.random() < faults["steps"]:
            raise RuntimeError("injected")
        return decode(*args)

    running.engine.executor.decode = sometimes
    pipe.send(running.port)
    while (said := pipe.recv()) is not None:
        faults["steps"] = said["steps"]
        most = 1 << 14 if said["full"] else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        scheduler = running.engine.scheduler
        pipe.send({
            "requests": len(running.engine) + running.server.active,
            "pages": sum(sum(group) for group in scheduler.pool.references),
            "memory": _resident(),
        })  # fmt: skip
    running.engine.scheduler.check()
    running.close()


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---- the clients


class Clients:
    """Healthy and bad clients of a server, what they saw and what was wrong."""

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}/v1/chat/completions"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        headers = {"authorization": "Bearer ann"}
        self.http = httpx.Client(timeout=600, limits=limits, headers=headers)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.health: list[float] = []
        self.over, self._loops = threading.Event(), threading.Lock()
        self.want = [self._answer(k).json()["choices"] for k in range(len(PROMPTS))]

    def _answer(self, number: int, **how: Any) -> httpx.Response:
        messages = [{"role": "user", "content": PROMPTS[number]}]
        return self.http.post(self.url, json={**CHAT, "messages": messages, **how})

    def run(self, seed: int) -> None:
        """One client after the other, until it is over."""
        rng = random.Random(seed)
        kinds = [self.healthy] * 8 + [
            self.half, self.leaving, self.killed, self.malformed, self.huge, self.bomb, self.slow,
            self.noise, self.long, self.looping, self.limited, self.nobody,
        ]  # fmt: skip
        while not self.over.is_set():
            kind = rng.choice(kinds)
            try:
                kind(rng)
                self.seen[kind.__name__] += 1
            except (httpx.TransportError, OSError) as error:
                self.seen[f"{kind.__name__}: {type(error).__name__}"] += 1
            except Exception as error:
                self.wrong.append(f"{kind.__name__}: {type(error).__name__}: {str(error)[:300]}")

    def watch(self) -> None:
        """Whether the server is well, all the time."""
        with httpx.Client(timeout=600) as http:
            while not self.over.wait(0.1):
                begin = time.monotonic()
                if http.get(f"http://127.0.0.1:{self.port}/health").status_code != 200:
                    self.wrong.append("health: not well")
                self.health.append(time.monotonic() - begin)

    def healthy(self, rng: random.Random) -> None:
        """An answer is right, unless a step failed."""
        number = rng.randrange(len(PROMPTS))
        answer = self._answer(number)
        if answer.status_code == 500 and "injected" in answer.text:
            self.seen["injected"] += 1
        else:
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"] == self.want[number], answer.text

    def _status(self, body: Any, *wanted: int) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status = self.http.post(self.url, content=data, headers=JSON).status_code
        assert status in wanted, status

    def malformed(self, rng: random.Random) -> None:
        deep = b'{"messages":' + b"[" * 10**5
        kinds = [deep, b'{"a": "\xff\xfe"}', b"{]", b'{"a":' * 5000, os.urandom(99), b"[NaN]"]
        self._status(rng.choice(kinds), 400)

    def huge(self, rng: random.Random) -> None:
        """50 MB, announced or not."""
        parts = (b" " * (1 << 20) for _ in range(50))
        data = b" " * (50 << 20) if rng.random() < 0.5 else parts
        status = self.http.post(self.url, content=data, headers=JSON).status_code
        assert status == 413, status

    def bomb(self, rng: random.Random) -> None:
        schema = {"type": "json_schema", "json_schema": {"schema": rng.choice(BOMBS)}}
        messages = [{"role": "user", "content": "cat"}]
        asked = {**CHAT, "max_tokens": 3, "response_format": schema, "messages": messages}
        self._status(asked, 200, 400, 500)

    def long(self, rng: random.Random) -> None:
        self._status({**CHAT, "messages": [{"role": "user", "content": "cat " * 50_000}]}, 400)

    def looping(self, rng: random.Random) -> None:
        """One at a time: each takes a second of a processor."""
        messages = [{"role": "user", "content": "cat"}]
        if self._loops.acquire(blocking=False):
            try:
                self._status({**CHAT, "model": "looping", "messages": messages}, 400)
            finally:
                self._loops.release()

    def limited(self, rng: random.Random) -> None:
        """A key that is over its limit."""
        headers = {"authorization": "Bearer bob"}
        messages = [{"role": "user", "content": "cat"}]
        answer = self.http.post(self.url, json={**CHAT, "messages": messages}, headers=headers)
        assert answer.status_code in (200, 429, 500), answer.text
        assert answer.status_code != 429 or int(answer.headers["retry-after"]) > 0

    def nobody(self, rng: random.Random) -> None:
        headers = {"authorization": f"Bearer {rng.random()}"}
        assert self.http.post(self.url, json=CHAT, headers=headers).status_code == 401

    # ---- those who do not wait for an answer

    def _request(self, length: int | None = None) -> bytes:
        """A long answer is asked for, streamed."""
        messages = [{"role": "user", "content": "the cat"}]
        asked = {**CHAT, "messages": messages, "max_tokens": 900, "ignore_eos": True}
        body = json.dumps({**asked, "stream": True}).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ann"
            b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (length or len(body), body)
        )

    def _raw(self, data: bytes, seconds: float, read: int = 0) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(data)
            if read:
                s.recv(read)
            self.over.wait(seconds)

    def half(self, rng: random.Random) -> None:
        self._raw(self._request(5000), 45 * rng.random())

    def leaving(self, rng: random.Random) -> None:
        self._raw(self._request(), rng.random(), read=100)

    def slow(self, rng: random.Random) -> None:
        self._raw(self._request(), 15 * rng.random())

    def noise(self, rng: random.Random) -> None:
        self._raw(os.urandom(200), 0.0)

    def killed(self, rng: random.Random) -> None:
        command = [sys.executable, "-SE", "-c", CLIENT, str(self.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(self._request())
            client.stdin.close()
            client.stdout.readline()
            client.kill()


# ---- a run


def prepare(root: Path) -> None:
    """Two models, one of which has a template that loops, and keys."""
    for name in ("model", "looping"):
        (root / name).mkdir()
        save_model(root / name)
    (root / "looping" / "chat_template.jinja").write_text(LOOP)
    ann, bob = (hashlib.sha256(name.encode()).hexdigest() for name in ("ann", "bob"))
    keys = f'[ann]\nsha256 = "{ann}"\n[bob]\nsha256 = "{bob}"\nrequests = 30\nconcurrency = 2\n'
    (root / "keys.toml").write_text(keys)


@contextmanager
def served() -> Iterator[tuple[Clients, Any]]:
    """Clients of a server in a process of its own, and a pipe to it."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        pipe, theirs = context.Pipe()
        server = context.Process(target=serve, args=(folder, theirs))
        server.start()
        theirs.close()
        try:
            yield Clients(pipe.recv()), pipe
            pipe.send(None)
            server.join(120)
            assert server.exitcode == 0, server.exitcode
        finally:
            server.kill()
            server.join()


def fault_run(seconds: float, clients: int, say: Callable[[str], None] = print) -> Clients:
    """Run all clients for a while; AssertionError if something is not as it was before."""
    with served() as (found, pipe):
        _crowd(found, pipe, seconds, clients, say)
        return found


def grown(requests: int, say: Callable[[str], None] = print) -> float:
    """How much the memory of a server grows by so many requests, after a fourth as many."""
    sizes, quarter = [], requests // 4
    with served() as (found, pipe), ThreadPoolExecutor(8) as pool:
        for part in range(5):
            seeds = range(part * quarter, (part + 1) * quarter)
            list(pool.map(found.healthy, map(random.Random, seeds)))
            sizes.append(_asked(pipe)["memory"])
            say(f"{seeds.stop} requests, {sizes[-1] / 1e6:.1f} MB")
    return sizes[-1] / sizes[0] - 1


def _asked(pipe: Any, steps: float = 0.0, full: bool = False) -> dict[str, int]:
    pipe.send({"steps": steps, "full": full})
    found: dict[str, int] = pipe.recv()
    return found


def _crowd(
    found: Clients, pipe: Any, seconds: float, clients: int, say: Callable[[str], None]
) -> None:
    threads = [threading.Thread(target=found.run, args=(k,)) for k in range(clients)]
    for thread in (*threads, threading.Thread(target=found.watch)):
        thread.start()
    begin, memory = time.monotonic(), list[int]()
    while (passed := time.monotonic() - begin) < seconds:
        time.sleep(min(10.0, seconds / 6))
        state = _asked(pipe, steps=0.002, full=bool(int(passed / 20) % 2))
        memory.append(state["memory"])
        say(f"{passed:6.0f} s  {state['requests']} requests, {state['memory'] / 1e6:.0f} MB, "
            f"{found.seen['healthy']} right, {len(found.wrong)} wrong")  # fmt: skip
    found.over.set()
    for thread in threads:
        thread.join()
    while (state := _asked(pipe))["requests"]:  # slow readers are cut off
        time.sleep(0.2)
    after = [found._answer(k).json()["choices"] for k in range(len(PROMPTS))]
    state = _asked(pipe)
    slowest = np.percentile(found.health, (50, 99, 100)) * 1e3
    say(f"health: {slowest[0]:.0f} ms, {slowest[1]:.0f} at the 99th, {slowest[2]:.0f} at most")
    say(f"memory: {memory[len(memory) // 2] / 1e6:.0f} MB half way, {state['memory'] / 1e6:.0f}")
    say(", ".join(f"{name} {count}" for name, count in sorted(found.seen.items())))
    assert not found.wrong, Counter(found.wrong).most_common(10)
    assert after == found.want
    assert state["pages"] == 0 and state["requests"] == 0, state
    assert state["memory"] < 1.1 * memory[len(memory) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--grow", type=int, help="healthy requests instead: does memory grow?")
    options = parser.parse_args()
    if options.grow:
        print(f"memory grew by {grown(options.grow):.2%}")
    else:
        fault_run(60 * options.minutes, options.clients)


if __name__ == "__main__":
    main()
