"""`genesis serve` under load, side by side with `llama-server` where it is given.

    python -m benchmarks.serve MODEL.gguf [--llama-server PATH] [--clients 32] [--rounds 3]

Both serve the same GGUF file, one after the other and again, so that a machine that gets slower
slows both. Clients wait for their answers; a figure is the median of the rounds. All clients begin
at once, so first tokens of their first requests tell how long a burst takes; these requests are
left out of the other times, which are those of a server in use. *others* is the share of the
machine that neither the server nor its clients had: a round with a large one tells little.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from genesis.serve.load_generator import Target, measure

PORT = 8765


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a GGUF file, or for genesis alone a folder")
    parser.add_argument("--llama-server", help="the program to compare with")
    parser.add_argument("--format", help="of the weights in genesis (as the file has them)")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    length = options.input + options.output + 64
    commands = {"genesis": genesis_command(options.model, options.format, length, options.clients)}
    if options.llama_server:
        commands["llama-server"] = llama_command(options, length)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for seed in range(options.rounds):
        for name, command in commands.items():
            with served(command) as server:
                how = {
                    "seed": seed, "trace": None, "rate": None, "shared": 0, "input": options.input,
                    "output": options.output, "clients": options.clients,
                }  # fmt: skip
                target = Target(f"http://127.0.0.1:{PORT}", None, None)
                measure(target, {**how, "requests": 2, "clients": 2, "seed": -1})  # compiles
                how |= {"requests": options.requests, "warm": options.clients}
                with other_work(server.pid) as others:
                    found[name].append(measure(target, how))
                found[name][-1]["others %"] = 100 * others[0]
                print(name, {k: float(f"{v:.4g}") for k, v in found[name][-1].items()}, flush=True)
    names = ("pieces/s", "burst p95 ms", "first token p50 ms", "first token p95 ms",
             "between p50 ms", "between p99 ms", "answered", "others %")  # fmt: skip
    print(f"{'':20}" + "".join(f"{name:>16}" for name in found))
    for figure in names:
        values = [median(round[figure] for round in rounds) for rounds in found.values()]
        print(f"{figure:20}" + "".join(f"{value:16.4g}" for value in values))


def genesis_command(model: str, format: str | None, length: int, clients: int) -> list[str]:
    return [
        sys.executable, "-m", "genesis", "serve", model, "--port", str(PORT),
        "--max-length", str(length), "--sequences", str(clients),
        *(["--format", format] if format else []),
    ]  # fmt: skip


def llama_command(options: Any, length: int) -> list[str]:
    return [
        options.llama_server, "-m", options.model, "--port", str(PORT), "-np", str(options.clients),
        "-c", str(length * options.clients), "-t", str(os.cpu_count()), "--no-webui",
    ]  # fmt: skip


@contextmanager
def other_work(server: int) -> Iterator[list[float]]:
    """The share of the processors that others had meanwhile than this process and the server."""

    def busy() -> tuple[float, float]:
        machine = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        fields = Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()
        ours = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()
        return (sum(machine) - machine[3] - machine[4]) / os.sysconf("SC_CLK_TCK") - ours, (
            time.monotonic() * (os.cpu_count() or 1)
        )

    before, share = busy(), list[float]()
    yield share
    work, whole = (b - a for a, b in zip(before, busy(), strict=True))
    share.append(work / whole)


@contextmanager
def served(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from the moment that it answers."""
    with open(Path(os.devnull), "w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise SystemExit(f"{command[0]} ended with {process.returncode}") from None
                    time.sleep(0.5)
            yield process
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
