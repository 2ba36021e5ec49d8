"""What every test shares: strict proofs, reproducible random numbers, GPU tests only on a GPU."""

import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest

from genesis.compiler import using

# Programs that a test compiles are kept for this run only, and are not found from an earlier one.
_cache = tempfile.TemporaryDirectory(prefix="genesis-cache-")
os.environ["GENESIS_CACHE"] = _cache.name

# A shell ignores interrupts in what it runs in the background; some tests send themselves one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no limit on time: the first example of a property may compile.
hypothesis.settings.register_profile("genesis", derandomize=True, deadline=None)
hypothesis.settings.load_profile("genesis")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="the device that arrays are on by default")


@pytest.fixture(autouse=True, scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Arrays are on the device that the command line names."""
    from genesis.ndarray import on_device

    name: str = request.config.getoption("--device")
    with on_device(name):
        yield name


@pytest.fixture(autouse=True, scope="session")
def strict() -> Iterator[None]:
    """No kernel runs in a test unless it is proven."""
    with using(strict=True):
        yield


@pytest.fixture(autouse=True, scope="module")
def young_heap() -> Iterator[None]:
    """Collections look at what a module's tests make, not at all that was loaded before them.

    What is frozen stays so: to look at all of it again takes seconds, for every module.
    """
    gc.collect()
    gc.freeze()
    yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A random generator that starts afresh, and the same, for every test."""
    return np.random.default_rng(0)


def pytest_runtest_setup() -> None:
    """Random numbers are the same whatever ran before: tests are dealt out to processes."""
    import genesis

    genesis.manual_seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    pretended = config.pluginmanager.hasplugin("tests.interpreted_cuda")
    if gpu_tests and not pretended and not _has_gpu():
        for item in gpu_tests:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


def _has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return not failed and count.value > 0
