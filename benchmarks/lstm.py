"""An LSTM layer, forward, against `torch.nn.LSTM`: is a loop inside a program as good as theirs?

Run ``python -m benchmarks.lstm``. The table ends with where the time of one step goes: the two
kernels of a step are also run on their own, as often as the layer runs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LENGTH, BATCH, HIDDEN, THREADS = 256, 32, 256, 2


def arrays() -> dict[str, np.ndarray]:
    """Inputs and weights, the same for both; weights as `torch.nn.LSTM` keeps them."""
    rng = np.random.default_rng(0)
    bound = HIDDEN**-0.5

    def weight(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    return {
        "x": rng.standard_normal((LENGTH, BATCH, HIDDEN)).astype(np.float32),
        "weight_ih": weight(4 * HIDDEN, HIDDEN),
        "weight_hh": weight(4 * HIDDEN, HIDDEN),
        "bias": weight(4 * HIDDEN),
    }


def cell(carry: tuple[Any, Any], gates: Any) -> tuple[tuple[Any, Any], Any]:
    """One step, given the four gates before their activations."""
    from genesis import ndarray as nd

    i, f, g, o = nd.split(gates, HIDDEN, axis=-1)
    c = nd.sigmoid(f) * carry[1] + nd.sigmoid(i) * nd.tanh(g)
    h = nd.sigmoid(o) * nd.tanh(c)
    return (h, c), h


def layer(x: Any, weight_ih: Any, weight_hh: Any, bias: Any) -> tuple[Any, Any]:
    """A layer: the inputs' part of all gates at once, then step by step."""
    from genesis import ndarray as nd

    start = nd.zeros((x.shape[1], HIDDEN))
    inputs = x @ weight_ih.T + bias
    return nd.scan(lambda c, part: cell(c, part + c[0] @ weight_hh.T), (start, start), inputs)


def best(work: Callable[[], Any], seconds: float = 4.0) -> float:
    """The shortest of several runs, in seconds."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def genesis_times() -> dict[str, float]:
    import genesis
    from genesis import ndarray as nd
    from genesis.backends.cpu.runtime import runtime

    runtime.set_num_threads(THREADS)
    inputs = {name: nd.array(a) for name, a in arrays().items()}
    run = genesis.jit(layer)
    begin = time.perf_counter()
    _, ys = run(**inputs)
    first = time.perf_counter() - begin
    h, z = nd.array(ys.numpy()[-1]), nd.array(np.zeros((BATCH, 4 * HIDDEN), np.float32))
    product = genesis.jit(lambda h, w: h @ w.T)
    gates = genesis.jit(lambda h, c, z: cell((h, c), z))
    projection = genesis.jit(lambda x, w, b: x @ w.T + b)
    empty = genesis.jit(lambda x: nd.scan(lambda c, _: (c + 1, None), x, length=LENGTH))
    return {
        "layer": best(lambda: run(**inputs)),
        "first call": first,
        "a step's product": best(lambda: product(h, inputs["weight_hh"]), 1.0),
        "a step's gates": best(lambda: gates(h, h, z), 1.0),
        "projection of all inputs": best(
            lambda: projection(inputs["x"], inputs["weight_ih"], inputs["bias"]), 1.0
        ),
        "a step that adds 1 to 1 number": best(lambda: empty(nd.array(0.0)), 1.0) / LENGTH,
        "check": float(np.abs(ys.numpy()).sum()),
    }


def torch_times() -> dict[str, float]:
    import torch

    torch.set_num_threads(THREADS)
    given = {name: torch.from_numpy(a) for name, a in arrays().items()}
    model = torch.nn.LSTM(HIDDEN, HIDDEN)
    with torch.no_grad():
        model.weight_ih_l0.copy_(given["weight_ih"])
        model.weight_hh_l0.copy_(given["weight_hh"])
        model.bias_ih_l0.copy_(given["bias"])
        model.bias_hh_l0.zero_()
        ys, (h, _) = model(given["x"])
        w = given["weight_hh"]
        return {
            "layer": best(lambda: model(given["x"])),
            "a step's product": best(lambda: h[0] @ w.T, 1.0),
            "projection of all inputs": best(lambda: given["x"] @ given["weight_ih"].T, 1.0),
            "check": float(ys.abs().sum()),
        }


def measured(who: str) -> dict[str, float]:
    """Times of one contender, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.lstm", "--only", who]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    times: dict[str, float] = json.loads(output)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["genesis", "torch"])
    only = parser.parse_args().only
    if only:
        print(json.dumps(genesis_times() if only == "genesis" else torch_times()))
        return
    ours, theirs = measured("genesis"), measured("torch")
    assert abs(ours.pop("check") / theirs.pop("check") - 1) < 1e-4, "results differ"
    print(f"LSTM, {LENGTH} steps, batch {BATCH}, hidden {HIDDEN}, {THREADS} threads; microseconds")
    print(f"{'':32}{'genesis':>12}{'torch':>12}{'ratio':>8}")
    for name, seconds in ours.items():
        other = theirs.get(name)
        compared = "" if other is None else f"{other * 1e6:12,.1f}{other / seconds:8.2f}"
        print(f"{name:32}{seconds * 1e6:12,.1f}{compared}")


if __name__ == "__main__":
    main()
