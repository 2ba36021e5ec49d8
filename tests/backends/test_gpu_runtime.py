"""The runtime on a real GPU: copies through pinned buffers, programs, interrupts, other libraries.

What the pretended drivers try in all orders (`tests.backends.test_late_runtimes`) is tried here
with one that is really late. By Triton's interpreter the same tests run on a pretended one.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.gpu.runtime.transfer import CHUNK, CHUNKS
from genesis.compiler import build
from genesis.ndarray.core import realisation
from tests.interpreted_cuda import passes
from tests.interrupts import interrupted_at, moments

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_gpu = pytest.mark.gpu

if INTERPRETED:
    MOST, ROUNDS = 3000, 12
else:
    MOST, ROUNDS = (2 * CHUNKS + 1) * CHUNK // 4, 60


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    with nd.on_device("cuda"):
        yield


FIRST = """
import sys
import numpy as np
from genesis import ndarray as nd
n, existing = 9 << 20, int(sys.argv[1])
x = nd.arange(n, device="cuda").realize()
if existing:
    nd.array(np.zeros(existing << 22, np.uint8), device="cuda").realize()
for _ in range(2):
    assert np.array_equal(x.numpy(), np.arange(n))
"""


@on_gpu
@pytest.mark.skipif(INTERPRETED, reason="a process of its own has no pretended driver")
@pytest.mark.parametrize("existing", range(5))
def test_the_first_large_array_that_comes_back(existing: int) -> None:
    """However many pinned buffers a process has by then."""
    subprocess.run([sys.executable, "-c", FIRST, str(existing)], check=True)


def use(seed: int) -> None:
    """Arrays of all sizes come and go and are computed with, and contain what NumPy says."""
    rng, numbers = Random(seed), np.random.default_rng(seed)
    known: list[tuple[nd.NDArray, Any]] = []
    step = genesis.jit(lambda x: (x * 2 + 1, x - 1))
    sizes = [n for k in range(-1, 2) for n in (CHUNK // 4 + k, CHUNK + k, 2 * CHUNK + k)]
    sizes = [min(n, MOST) for n in (1, 7, 1000, *sizes, MOST)]
    for _ in range(ROUNDS):
        kind = rng.randrange(6)
        if kind < 2 or not known:
            content = numbers.integers(-50, 50, rng.choice(sizes)).astype(np.float32)
            known.append((nd.array(content), content))
        k = rng.randrange(len(known))
        x, expected = known[k]
        if kind == 2:
            np.testing.assert_array_equal(x.numpy(), expected)
        elif kind == 3:
            first, second = step(x)
            known[k] = rng.choice([(first, expected * 2 + 1), (second, expected - 1)])
        elif kind == 4:
            x += 1.0
            known[k] = x, expected + 1
        elif kind == 5:
            del known[k]
        if known and abs(known[-1][1]).max() > 1e6:
            known.pop()
        del known[6:]
    for x, expected in known:
        np.testing.assert_array_equal(x.numpy(), expected)


@on_gpu
@pytest.mark.parametrize("seed", range(3))
def test_arrays_come_and_go(seed: int) -> None:
    use(seed)


@on_gpu
@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs in one thread")
def test_arrays_of_several_threads() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with nd.on_device("cuda"):
                use(seed)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@on_gpu
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # half an object
def test_an_interrupt_leaves_whole_steps() -> None:
    """Recorded, captured or only just compiled: a step has been taken, or has not."""
    state, other, one = (nd.full(1000, value).realize() for value in (0.0, 0.0, 1.0))

    def step() -> None:
        state.__iadd__(one)
        other.__isub__(one)

    run = genesis.jit(step)
    for _ in range(3):
        run()
    count = moments(run)
    for moment in range(1, count + 1, 1 + count // 60):
        if moment % 2:
            run = genesis.jit(step)  # recorded anew, so that its first run is what is interrupted
        before = state.numpy()[0]
        with interrupted_at(moment), suppress(KeyboardInterrupt):
            run()
        found = state.numpy()
        assert (found == found[0]).all() and found[0] in (before, before + 1)
        np.testing.assert_array_equal(other.numpy(), -found)


@on_gpu
def test_code_is_unloaded_and_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realisation, "MOST_PROGRAMS", 4)
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr(build, "MOST", 4)
    monkeypatch.setattr(build, "_built", {})
    held = [nd.arange(n) * 3 + 1 for n in range(1, 6)]
    for _ in range(2):
        for n in range(1, 12):
            assert (nd.arange(n) * 3 + 1).sum().item() == n * (3 * n - 1) // 2
    assert [x.tolist() for x in held] == [[3 * k + 1 for k in range(n)] for n in range(1, 6)]


@on_gpu
@pytest.mark.skipif(INTERPRETED, reason="PyTorch has no pretended GPU")
def test_memory_that_pytorch_has_too() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch without a GPU")
    x = nd.zeros(1 << 20).realize()
    copy = x.copy()
    theirs = torch.from_dlpack(x)
    theirs += 5
    torch.cuda.synchronize()
    assert (x.numpy() == 5).all() and (copy.numpy() == 0).all()
    # PyTorch is done with it before its queue is: the memory must not be given out until it is.
    weights = torch.randn(4096, 4096, device="cuda")
    for k in range(10):
        y = nd.zeros(1 << 20).realize()
        theirs = torch.from_dlpack(y)
        del y
        for _ in range(5):
            weights = weights @ weights * 1e-4
        theirs += 7
        del theirs
        fresh = [nd.full(1 << 20, float(k)).realize() for _ in range(2)]
        assert all((f.numpy() == k).all() for f in fresh)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__)
