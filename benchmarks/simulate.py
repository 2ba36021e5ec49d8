"""What the simulator says of traffic, beside how it went: three traces, recorded and simulated.

    python -m benchmarks.simulate MODEL [--requests 96]

A server is put under load by clients that wait for their answers, by requests at random times, and
by such that share most of their prompts; each trace is then simulated with what was learned of
steps while it was recorded. The rate of requests is a part of what the clients got. Clients that
wait are simulated, too: a server that is never idle, at times at which requests came because it had
answered others, would be too late more and more if it were the least bit slower. Their first
requests are a burst, and left out of the times to first tokens, as in `benchmarks.serve`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.serve import PORT, genesis_command, served
from genesis.serve.load_generator import Target, measure
from genesis.serve.simulate import System, read, recorded, run

FIGURES = ("first p50", "first p95", "between p50", "between p95", "hit %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder or a GGUF file")
    parser.add_argument("--format", help="of the weights (as the files have them)")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--keep", type=Path, help="a folder for the traces")
    options = parser.parse_args()
    plain: dict[str, Any] = {
        "seed": 0, "trace": None, "rate": None, "shared": 0, "input": options.input,
        "output": options.output, "clients": options.clients, "requests": options.requests,
    }  # fmt: skip
    rate: float | None = None
    with TemporaryDirectory() as folder:
        for name, part in (("clients", None), ("random", 0.6), ("shared", 0.8)):
            trace = (options.keep or Path(folder)) / f"{name}.jsonl"
            shared = options.input * 3 // 4 if name == "shared" else 0
            how = {**plain, "shared": shared, "rate": part and rate and part * rate}
            length = options.input + options.output + 64
            command = genesis_command(options.model, options.format, length, 32)
            with served([*command, "--record", str(trace)]):
                found = measure(Target(f"http://127.0.0.1:{PORT}", None, None), how)
            rate = rate or found["answered"] / found["seconds"]
            show(name, trace, options.clients if name == "clients" else 0)


def show(name: str, trace: Path, clients: int) -> None:
    """Figures of a trace, as they were and as they are simulated."""
    arrivals, system = read(trace)
    found = recorded(sorted(arrivals, key=lambda arrival: arrival.at))
    simulated = run(arrivals, System(**system, clients=clients))
    for result in (found, simulated):
        del result.first[:clients]
    was, is_ = found.row(), simulated.row()
    print(f"{name:12}{'recorded':>12}{'simulated':>12}{'':>10}")
    for figure in FIGURES:
        a, b = was[figure], is_[figure]
        apart = f"{b - a:+.1f}" if "%" in figure else f"{b / a - 1:+.0%}"
        print(f"{figure:12}{a:12.4g}{b:12.4g}{apart:>10}", flush=True)


if __name__ == "__main__":
    main()
