"""Programs come and go: what they take stays bounded, and what somebody uses stays."""

import gc
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu import backend
from genesis.compiler import build
from genesis.ndarray.core import realisation
from genesis.ndarray.core.realisation import statistics


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """At most so many programs and kernels are kept, and there are none now."""
    monkeypatch.setattr(realisation, "MOST_PROGRAMS", 8)
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr(build, "MOST", 8)
    monkeypatch.setattr(build, "_built", {})
    return 8


def loaded() -> int:
    """How many kernels have code in this process."""
    gc.collect()
    return sum(isinstance(x, backend._Code) for x in gc.get_objects())


def compute(n: int) -> float:
    return float(((nd.arange(n) * 3 + 1) % 7).sum().item())


def test_programs_that_were_not_used_for_long_are_forgotten(few: int) -> None:
    expected = [float(((np.arange(n) * 3 + 1) % 7).sum()) for n in range(1, 60)]
    before = loaded()
    for _ in range(2):
        assert [compute(n) for n in range(1, 60)] == expected
        assert len(realisation._programs) <= few and len(build._built) <= few
    assert loaded() - before <= 2 * few


def test_those_in_use_are_not(few: int) -> None:
    compute(1000)
    for n in range(1, 30):
        compute(n)
        before = statistics().compiled
        compute(1000)
        assert statistics().compiled == before


def test_a_recording_keeps_its_program(few: int) -> None:
    run = genesis.jit(lambda x: (x * 2 + 1).sum())
    x = nd.arange(1000).realize()
    assert run(x).item() == 1_000_000
    before = statistics().compiled
    for n in range(1, 30):
        compute(n)
    compiled = statistics().compiled
    assert compiled > before
    assert run(x).item() == 1_000_000 and statistics().compiled == compiled


MANY = """
    import numpy as np
    from genesis import ndarray as nd
    from genesis.compiler import kernels
    from genesis.ndarray import realisation

    realisation.MOST_PROGRAMS = build.MOST = 64
    x = np.random.default_rng(0).random(2001).astype(np.float32)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    for n in range(1, 2001):
        found = (nd.array(x[:n]).realize() * 2 + 1).sum().item()
        assert abs(found - (x[:n].astype(np.float64) * 2 + 1).sum()) < 1e-5 * found
        if n == 1200:  # what is remembered of expressions is bounded, too
            before = resident()
    print((resident() - before) / 800)
"""


@pytest.mark.slow
def test_two_thousand_shapes_do_not_fill_memory() -> None:
    """What is left of a program that was forgotten is little of the 100 KB it took."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MANY)],
        env=os.environ | {"GENESIS_CACHE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 20_000, done.stdout
