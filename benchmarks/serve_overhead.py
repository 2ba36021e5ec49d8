"""What the server adds to the engine: processor time, time to a first token, memory of streams.

    python -m benchmarks.serve_overhead MODEL [--format int4] [--clients 32] [--streams 2000]

The server runs in this process, its clients in another. Processor time is told apart by threads:
that of the event loop, of those that tokenise and of the engine's between steps is the server's,
the rest the engine's. Streams are idle while they wait for their turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from genesis.serve.app import Server, ServerOptions
from genesis.serve.limits import Tier
from genesis.serve.model_pool import Spec

#: So many connections, each with a request; the end of the input ends them.
STREAMS = """
import socket, sys
request = sys.argv[3].replace("|", "\\r\\n").encode()
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].sendall(request)
print(flush=True)
sys.stdin.read()
"""


class Process:
    """A server in this process, and where its processor time goes."""

    def __init__(self, spec: Spec) -> None:
        tiers = {"default": Tier(1e6, 1e6)}  # nobody is refused, or in a hurry
        self.server = Server([spec], ServerOptions(tiers=tiers))
        config = uvicorn.Config(self.server.app, port=0, log_level="warning", backlog=4096)
        self._web = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="server")
        self._thread.start()
        while not self._web.started:
            time.sleep(0.05)
        self.port = self._web.servers[0].sockets[0].getsockname()[1]
        llm = self.server.models.models[spec.name].llm
        assert llm is not None
        self._engine, self._inside = llm.engine, 0.0
        step = llm.engine.step

        def timed() -> Any:
            begin = time.thread_time()
            try:
                return step()
            finally:
                self._inside += time.thread_time() - begin

        llm.engine.step = timed  # type: ignore[method-assign]

    def _run(self) -> None:
        asyncio.run(self._web.serve())

    def processor(self) -> tuple[float, float]:
        """Seconds of the server, and of the engine."""
        names = ("server", "asyncio", "ThreadPool", "genesis")
        threads = [t for t in threading.enumerate() if t.name.startswith(names)]
        own = sum(_thread_seconds(t.native_id) for t in threads) - self._inside
        return own, time.process_time() - own

    def during(self, work: Callable[[], None]) -> tuple[float, float]:
        """The processor time of something that clients do."""
        before = self.processor()
        work()
        after = self.processor()
        return after[0] - before[0], after[1] - before[1]

    def close(self) -> None:
        """End it."""
        self._web.should_exit = True
        self._thread.join()


def _thread_seconds(native: int | None) -> float:
    fields = Path(f"/proc/self/task/{native}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder or a GGUF file")
    parser.add_argument("--format", default="int4", help="of the weights (int4)")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--streams", type=int, default=2000)
    options = parser.parse_args()
    sys.setswitchinterval(5e-4)  # as `genesis serve` does
    how = {"format": options.format, "max_length": options.input + options.output + 64,
           "sequences": options.clients, "cache_bytes": 1 << 29}  # fmt: skip
    process = Process(Spec("model", Path(options.model), how, pinned=True))
    load = [sys.executable, "-m", "genesis", "llm", "load", f"http://127.0.0.1:{process.port}"]

    def clients(number: int, requests: int, tokens: int, output: int) -> tuple[float, float]:
        sizes = {"clients": number, "requests": requests, "input": tokens, "output": output}
        command = [*load, *(f"--{name}={size}" for name, size in sizes.items())]
        return process.during(lambda: subprocess.run(command, check=True, capture_output=True))

    clients(2, 4, 16, 4)
    print(f"idle streams  {idle(process, options.streams) / 1e6:.0f} MB for {options.streams}")
    own, engine = clients(options.clients, options.requests, options.input, options.output)
    tokens = options.requests * options.output
    print(f"load          {own / engine:.2%} of the engine's processor time, "
          f"{1e6 * own / tokens:.0f} us a token of {1e3 * engine / tokens:.1f} ms")  # fmt: skip
    own, _ = clients(1, 200, 16, 1)
    print(f"first token   {1e3 * own / 200:.2f} ms of the server's processor time")
    process.close()


def idle(process: Process, count: int) -> int:
    """The bytes that streams take which wait."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count + 100,) * 2)
    body = '{"prompt": "the", "max_tokens": 64, "ignore_eos": true, "stream": true}'
    head = f"POST /v1/completions HTTP/1.1|Host: localhost|Content-Length: {len(body)}"
    request = f"{head}|Content-Type: application/json||{body}"
    before = _resident()
    command = [sys.executable, "-c", STREAMS, str(process.port), str(count), request]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdout.readline()
        done = process.server.metrics.requests.labels("/v1/completions", "200")._value.get
        first = done()
        while process.server.active + done() - first < count:
            time.sleep(0.1)
        after = _resident()
        client.stdin.close()
    while process.server.active:
        time.sleep(0.1)
    return after - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
