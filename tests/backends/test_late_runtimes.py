"""Random sequences of what a GPU's runtime does, against a model that does one thing at a time.

The pretended drivers do asynchronous work as late as they may, or streams go ahead each at its own
pace, and fill memory that nobody may look at. So a buffer, an event or an argument that is used
again too early gives other numbers than the model.
"""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from genesis.backends.base import Binary, Host, Launch, Operand
from genesis.backends.gpu.backend import CUDABackend, HIPBackend
from genesis.backends.gpu.runtime import amd as hip
from genesis.backends.gpu.runtime import nvidia, transfer
from genesis.ir.dtype import int64, uint8
from tests.fake_cuda import FakeDriver
from tests.fake_hip import FakeHIP

CHUNK = 64
SIZES = (
    8, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 4 * CHUNK - 1, 4 * CHUNK, 4 * CHUNK + 1, 5 * CHUNK,
    8 * CHUNK + 3, 11 * CHUNK,
)  # fmt: skip

KINDS: dict[str, tuple[Any, Any, Any]] = {
    "cuda": (FakeDriver, CUDABackend, nvidia.driver),
    "hip": (FakeHIP, HIPBackend, hip.driver),
}


@pytest.fixture(params=[("cuda", None), ("cuda", 1), ("cuda", 2), ("hip", None), ("hip", 3)])
def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """A pretended driver and a backend on it, with small pinned buffers."""
    kind, pace = request.param
    driver, backend, current = KINDS[kind]
    monkeypatch.setattr(transfer, "CHUNK", CHUNK)
    monkeypatch.setattr(transfer, "WORDS", 3)
    fake = driver(memory=64 << 20).install(monkeypatch)
    fake.pace = None if pace is None else Random(pace)
    yield fake, backend()
    gc.collect()  # programs die while their driver is there
    current.cache_clear()


def bytes_at(address: int, count: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * count).from_address(address), np.uint8)


def add(name: str, blocks: int, places: list[int]) -> None:
    """y = x + 1, byte by byte."""
    x, y, n = (ctypes.c_uint64.from_address(place).value for place in places[:3])
    bytes_at(y, n)[:] = bytes_at(x, n) + 1


PHASE = {
    "name": "add", "size": 3, "grid": 1, "threads": 128, "shared": 0, "waits": True, "ahead": [],
}  # fmt: skip
ENTRY = {"phases": [PHASE], "buffers": 2, "symbols": 1, "hidden": 0, "written": [1]}
STEP = Binary("add", b"add", ENTRY)


class Programs:
    """What may be run: frames are x, y, a temporary, z, and how many elements there are."""

    def __init__(self, fake: Any, backend: Any) -> None:
        fake.kernels[b"add"] = add
        operands = Operand(1, uint8, (4,)), Operand(2, uint8, (4,)), Operand(3, int64, (4,))
        #: y = x + 3 by way of the temporary and itself.
        self.three = backend.assemble(
            [Launch(STEP, (0, 2, 4)), Launch(STEP, (2, 1, 4)), Launch(STEP, (1, 1, 4))]
        )
        #: The temporary = sort(x + 1), y = that + 1; z is where everything was.
        host = Host("sorting.sort", (False,), operands[:1], operands[1:])
        self.sort = backend.assemble([Launch(STEP, (0, 1, 4)), host, Launch(STEP, (2, 1, 4))])


class User:
    """Somebody who uses a device, and knows what everything ought to be."""

    def __init__(self, backend: Any, programs: Programs, rng: Random) -> None:
        self.backend, self.programs, self.rng = backend, programs, rng
        self.known: list[tuple[Any, Any]] = []  # memory, and what is in it
        self.later: list[tuple[Any, int]] = []
        self.interrupted = 0

    def act(self) -> None:
        actions = (
            self.upload, self.upload, self.download, self.add, self.add, self.add, self.overwrite,
            self.sort, self.free, self.free, self.copy, self.ask, self.ask, self.look, self.trim,
        )  # fmt: skip
        try:
            self.rng.choice(actions)()
        except KeyboardInterrupt:
            self.interrupted += 1
        if len(self.known) > 12:
            self.free()

    def upload(self) -> None:
        source = np.frombuffer(self.rng.randbytes(self.rng.choice(SIZES)), np.uint8)
        memory = self.backend.allocate(source.nbytes)
        self.backend.upload(memory, source)
        self.known.append((memory, source))

    def download(self) -> None:
        if self.known:
            memory, expected = self.rng.choice(self.known)
            found = self.backend.download(memory, uint8, expected.shape)
            np.testing.assert_array_equal(found, expected)

    def add(self) -> None:
        if not self.known:
            return
        x, values = self.rng.choice(self.known)
        n = len(values)
        y, temporary = self.backend.allocate_many((n, n))
        before = self.programs.three.runs
        try:
            self.programs.three.run(array("Q", [x.pointer, y.pointer, temporary.pointer, 0, n]))
        finally:
            if self.programs.three.runs > before:
                self.known.append((y, values + 3))

    def overwrite(self) -> None:
        """What an interrupted caller takes for done is done, and the other way round."""
        if not self.known:
            return
        x, values = self.known.pop()
        (temporary,) = self.backend.allocate_many((len(values),))
        three = self.programs.three
        before = three.runs
        try:
            three.run(array("Q", [x.pointer, x.pointer, temporary.pointer, 0, len(values)]))
        finally:
            self.known.append((x, values + 3 if three.runs > before else values))

    def sort(self) -> None:
        if not self.known:
            return
        x, values = self.rng.choice(self.known)
        n = len(values)
        y, ordered, at = self.backend.allocate_many((n, n, 8 * n))
        frame = array("Q", [x.pointer, y.pointer, ordered.pointer, at.pointer, n])
        self.programs.sort.run(frame)
        self.known += [(y, np.sort(values + 1) + 1), (ordered, np.sort(values + 1))]

    def free(self) -> None:
        if self.known:
            self.known.pop(self.rng.randrange(len(self.known)))

    def copy(self) -> None:
        if not self.known:
            return
        x, values = self.rng.choice(self.known)
        start = self.rng.randrange(len(values))
        y = self.backend.allocate(len(values) - start)
        self.backend.copy(y, x, len(values) - start, start)
        self.known.append((y, values[start:]))

    def ask(self) -> None:
        """For a word, the memory of which is freed or used for something else meanwhile."""
        if self.known:
            memory, values = self.rng.choice(self.known)
            if len(values) >= 8:
                later = self.backend.word_later(memory)
                self.later.append((later, int(values[:8].view(np.uint64)[0])))

    def look(self) -> None:
        if self.later:
            later, expected = self.later.pop(self.rng.randrange(len(self.later)))
            found = later(self.rng.random() < 0.5)
            assert found in (None, expected)

    def trim(self) -> None:
        if self.rng.random() < 0.05:
            self.backend.trim()

    def end(self) -> None:
        for later, expected in self.later:
            assert later(True) == expected
        for memory, expected in self.known:
            np.testing.assert_array_equal(
                self.backend.download(memory, uint8, expected.shape), expected
            )


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_comes_out_as_if_done_at_once(made: Any, seed: int) -> None:
    fake, backend = made
    user = User(backend, Programs(fake, backend), Random(seed))
    for _ in range(400):
        user.act()
    user.end()
    assert fake.launched["graph"] > 10 and fake.launched["update"] > 10


@pytest.mark.parametrize("seed", range(2))
def test_threads_do_not_disturb_each_other(made: Any, seed: int) -> None:
    fake, backend = made
    programs = Programs(fake, backend)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            user = User(backend, programs, Random(10 * seed + number))
            # How often a program ran is a number of all its users'.
            user.overwrite = user.add  # type: ignore[method-assign]
            for _ in range(150):
                user.act()
            user.end()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("made", [("cuda", None), ("cuda", 1), ("cuda", 2)], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_at_any_call_leaves_all_as_it_should_be(made: Any, seed: int) -> None:
    """A signal may come behind any call of the driver: then a run has happened, or has not."""
    fake, backend = made
    rng = Random(seed)
    user = User(backend, Programs(fake, backend), rng)

    def interrupt() -> None:
        if rng.random() < 0.04:
            raise KeyboardInterrupt

    fake.interrupt = interrupt
    for _ in range(600):
        user.act()
    fake.interrupt = lambda: None
    user.end()
    assert user.interrupted > 30


ARRAYS = """
import os, sys
import numpy as np
import pytest
from tests.interpreted_cuda import install
fake = install(pytest.MonkeyPatch())
from genesis import ndarray as nd
from genesis.backends.gpu import transfer
from genesis.ndarray import on_device
from tests.backends.test_late_cpu import Model
transfer.CHUNK = 256
with on_device("cuda"):
    for seed in range(3):
        model = Model(seed)
        model.known = [(nd.ones(n), np.ones(n, np.float32)) for n in (3, 64, 300)]
        for _ in range(100):
            model.act()
        model.check()
print(fake.launched["graph"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["", "1", "2"])
def test_arrays_on_a_late_device(pace: str) -> None:
    """Whole programs, eager and recorded, by an interpreter of kernels on a late driver."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PACE": pace}
    done = subprocess.run(
        [sys.executable, "-c", ARRAYS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 50
