"""What Python costs around the kernels: ``python -m benchmarks.costs``.

Microseconds on one thread, the best of many short batches, beside what is promised of a quiet
machine. `tests/project/test_costs.py` counts the lines that are run instead, which no machine
changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import genesis
from genesis import ndarray as nd
from genesis import nn, optim
from genesis.backends.cpu.runtime import runtime
from genesis.ndarray.core.ndarray import NDArray

#: Something to be called many times, for a number of arrays, kernels or names.
Make = Callable[[int], Callable[[], Any]]


def arrays(count: int, size: int = 8) -> list[NDArray]:
    """Arrays in memory."""
    made = [nd.full((size,), float(k + 2)) for k in range(count)]
    nd.realize(*made)
    return made


def node(_: int) -> Callable[[], Any]:
    """One operation, not computed."""
    x, y = arrays(2)
    return lambda: x + y


def realisation(_: int) -> Callable[[], Any]:
    """One operation, computed by a program that is there."""
    x, y = arrays(2)
    return lambda: (x + y).realize()


def replay(_: int) -> Callable[[], Any]:
    """Two arguments, one result, one kernel."""
    x, y = arrays(2)
    f = genesis.jit(lambda x, y: x + y)
    return lambda: f(x, y)


def with_arguments(count: int) -> Callable[[], Any]:
    """A replay with so many arguments."""
    given = arrays(count)
    f = genesis.jit(lambda *xs: sum(xs[1:], xs[0]))
    return lambda: f(*given)


def with_a_list(count: int) -> Callable[[], Any]:
    """A replay with a list of so many arrays as its argument."""
    given = arrays(count)
    f = genesis.jit(lambda xs, *, scale: sum(xs[1:], xs[0]) * scale)
    return lambda: f(given, scale=2.5)


def with_closures(count: int) -> Callable[[], Any]:
    """A replay that closes over so many arrays."""
    names = [f"w{k}" for k in range(count)]
    scope: dict[str, Any] = {}
    exec(
        f"def make({', '.join(names)}):\n"
        f"    def f(x):\n"
        f"        return x + {' + '.join(names)}\n"
        f"    return f",
        scope,
    )
    f, (x,) = genesis.jit(scope["make"](*arrays(count))), arrays(1)
    return lambda: f(x)


def with_a_closed_over_list(count: int) -> Callable[[], Any]:
    """A replay that closes over a list of so many arrays."""
    weights, (x,) = arrays(count), arrays(1)
    f = genesis.jit(lambda x: sum(weights, x))
    return lambda: f(x)


def with_results(count: int) -> Callable[[], Any]:
    """A replay with so many results."""
    (x,) = arrays(1)
    f = genesis.jit(lambda x: tuple(x + float(k + 2) for k in range(count)))
    return lambda: f(x)


def with_state(count: int) -> Callable[[], Any]:
    """A replay that updates so many arrays."""
    weights, (x,) = arrays(count), arrays(1)

    def step(x: NDArray) -> None:
        for w in weights:
            w -= x

    f = genesis.jit(step)
    return lambda: f(x)


def with_kernels(count: int) -> Callable[[], Any]:
    """A replay of so many kernels."""
    x, w = nd.ones((4, 4)).realize(), nd.ones((4, 4)).realize()

    def f(x: NDArray) -> NDArray:
        for _ in range(count):
            x = x @ w
        return x

    jitted = genesis.jit(f)
    launches = jitted.recording(x)[0].program.launches
    assert len(launches) == count
    return lambda: jitted(x)


def with_names(count: int) -> Callable[[], Any]:
    """A replay that reads so many global names."""
    names = [f"k{k}" for k in range(count)]
    scope: dict[str, Any] = dict.fromkeys(names, 1.5)
    exec(f"def f(x):\n    return x * ({' + '.join(names)})", scope)
    f, (x,) = genesis.jit(scope["f"]), arrays(1)
    return lambda: f(x)


def with_parameters(count: int) -> Callable[[], Any]:
    """A jitted model of layers with so many parameters, without gradients."""
    net, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(count // 2)]), genesis.ones(1, 4)
    f = genesis.jit(net)

    def call() -> None:
        with genesis.no_grad():
            f(x)

    return call


def with_settings(count: int) -> Callable[[], Any]:
    """A jitted layer of the user's that reads so many of its own numbers."""
    scope: dict[str, Any] = {}
    exec(
        f"def forward(self, x): return x * ({' + '.join(f'self.k{k}' for k in range(count))})",
        scope,
    )
    net: Any = type("Layer", (nn.Module,), scope)()
    for k in range(count):
        setattr(net, f"k{k}", k + 0.5)
    f, x = genesis.jit(net), genesis.ones(4)
    return lambda: f(x)


def with_a_step(count: int) -> Callable[[], Any]:
    """A jitted training step of so many parameters, with their gradients and SGD."""
    net, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(count // 2)]), genesis.ones(1, 4)
    update = optim.SGD(net.parameters(), 1e-3)

    def step(x: Any) -> Any:
        update.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        update.step()
        return loss

    f = genesis.jit(step)
    return lambda: f(x)


def best(work: Callable[[], Any], seconds: float = 0.3) -> float:
    """Microseconds of one call: the best of many short batches, between which others may run."""
    for _ in range(10):
        work()
    start = time.perf_counter()
    work()
    count = max(1, int(100e-6 / (time.perf_counter() - start + 1e-9)))
    least = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(count):
            work()
        least = min(least, (time.perf_counter() - start) / count)
    return least * 1e6


def fitted(make: Make, counts: Sequence[int]) -> tuple[float, float]:
    """Microseconds for none, and for each."""
    each, none = np.polyfit(counts, [best(make(n)) for n in counts], 1)
    return float(none), float(each)


def in_a_new_process(program: str, byte_code: Path) -> str:
    """What a program prints that finds its byte code in a directory."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(byte_code)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def imported(module: str, byte_code: Path) -> float:
    """Milliseconds that an import takes."""
    program = "import time; t = time.thread_time(); import {}; print(time.thread_time() - t)"
    return 1e3 * min(float(in_a_new_process(program.format(module), byte_code)) for _ in range(7))


def main() -> None:
    """Print everything."""
    runtime.set_num_threads(1)  # the cost of waking others is not what is measured
    for make, promised in ((node, 3.0), (realisation, 30.0), (replay, 6.4)):
        print(f"{make.__doc__} {best(make(1)):.2f} us (promised: {promised:g})")
    for make, promised in (
        (with_arguments, 0.3), (with_a_list, 0.3), (with_closures, 0.3),
        (with_a_closed_over_list, 0.3), (with_results, 1.2), (with_state, 1.2),
        (with_kernels, 0.5), (with_names, 0.3),
    ):  # fmt: skip
        none, each = fitted(make, [1, 8, 16, 32, 64])
        print(f"{make.__doc__} {none:.2f} us + {each:.3f} us each (promised: 5 + {promised:g})")
    for make, promised in ((with_parameters, 0.3), (with_settings, 0.3), (with_a_step, 1.5)):
        none, each = fitted(make, [2, 8, 16, 32])
        print(f"{make.__doc__} {none:.2f} us + {each:.3f} us each (promised: 5 + {promised:g})")
    with tempfile.TemporaryDirectory() as folder:
        ours, numpy = imported("genesis", Path(folder)), imported("numpy", Path(folder))
        print(f"import genesis: {ours:.0f} ms, of it NumPy {numpy:.0f} (promised: 150)")


if __name__ == "__main__":
    main()
