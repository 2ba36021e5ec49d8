"""The CPU's pool with workers that are late wherever they may be; memory spoilt when it is freed.

A second copy of the native runtime has a delay at the beginning of every block of its code: most
take no time, some let others run, a few sleep. So threads meet in orders that a quiet machine never
shows. Whatever the order, results are the same.
"""

import ctypes
import os
import random
import re
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.cpu.compile import compile_object, load
from genesis.backends.cpu.runtime import memory, runtime
from genesis.backends.cpu.runtime.runtime import pack_program
from tests.backends.test_cpu_runtime import launch
from tests.interrupts import interrupted_at, moments

DELAY = """
@delays = internal global i64 88172645463325252
declare i32 @usleep(i32)
declare i32 @sched_yield()
define internal void @delay() noinline nounwind {
  %old = atomicrmw add ptr @delays, i64 -7046029254386353131 seq_cst
  %a = lshr i64 %old, 29
  %b = xor i64 %a, %old
  %c = mul i64 %b, -4658895280553007687
  %kind = lshr i64 %c, 58
  switch i64 %kind, label %none [ i64 0, label %sleep
    i64 1, label %yield
    i64 2, label %yield
    i64 3, label %yield ]
sleep:
  %slept = call i32 @usleep(i32 60)
  br label %none
yield:
  %yielded = call i32 @sched_yield()
  br label %none
none:
  ret void
}
"""


def delayed(text: str) -> str:
    """The pool's code, with a delay at the beginning of every block that has a label."""
    lines, pending = [], False
    for line in text.splitlines():
        if pending and "= phi" not in line and not line.strip().startswith(";"):
            lines.append("  call void @delay()")
            pending = False
        lines.append(line)
        pending = pending or bool(re.fullmatch(r"[a-z][\w.]*:", line))
    return "\n".join(lines) + DELAY


class Pool:
    """A runtime of its own, which is always late."""

    def __init__(self) -> None:
        names = ("genesis_run", "genesis_after_fork")
        symbols = load(compile_object(delayed(runtime.source())), names)
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.run = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(symbols["genesis_run"])
        self.after_fork = ctypes.CFUNCTYPE(None)(symbols["genesis_after_fork"])


@cache
def pool() -> Pool:
    return Pool()


def work(seed: int, count: int) -> list[str]:
    """Random programs of launches that depend on each other; what came out wrong."""
    rng, wrong = random.Random(seed), []
    for _ in range(count):
        n, length = rng.choice((1, 2, 3, 7, 40, 300)), rng.randrange(1, 7)
        x, y = np.zeros(n, np.int64), np.zeros(n, np.int64)
        chosen = [rng.randrange(2) for _ in range(length)]
        scratch = rng.random() < 0.3
        program = pack_program([launch("affine", k, 2, 3 + k, 5) for k in chosen], 64 * scratch)
        frame = array("Q", [x.ctypes.data, y.ctypes.data, n, seed, seed + 1, 1])
        assert pool().run(program.pointer, frame.buffer_info()[0], rng.choice((1, 2, 3, 6))) == 0
        for k, found in enumerate((x, y)):
            expected = chosen.count(k) * (np.arange(n) * (seed + k) + 1)
            if not np.array_equal(found, expected):
                wrong.append(f"seed {seed}, {n} points, {chosen}")
    return wrong


def test_late_workers_change_nothing() -> None:
    assert "call void @delay()" in delayed(runtime.source())
    assert work(1, 60) == []


def test_several_callers_with_late_workers() -> None:
    wrong: list[str] = []
    threads = [threading.Thread(target=lambda k=k: wrong.extend(work(k, 25))) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_fork_while_workers_are_late() -> None:
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            assert work(9, 2) == []

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for seed in range(4):
            child = os.fork()
            if not child:
                pool().after_fork()
                os._exit(bool(work(seed, 5)))
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


# ---- memory that is spoilt


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks that are freed are filled at once with what nobody can take for a number."""
    freed = memory._freed.append

    def spoil(self: Any) -> None:
        ctypes.memset(self.pointer, 0xA5, self.capacity)
        freed((self.pointer, self.capacity))

    monkeypatch.setattr(memory._Block, "__del__", spoil)
    yield
    monkeypatch.undo()


class Model:
    """Arrays, and what NumPy says they contain."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = [(nd.ones(n), np.ones(n, np.float32)) for n in (3, 64, 1000, 70_000)]
        self.windows: list[tuple[Any, Any]] = []
        self.step = genesis.jit(lambda x, y: (x * 0.5 + y, y - x))

    def act(self) -> None:
        rng = self.rng
        k = rng.randrange(len(self.known))
        x, expected = self.known[k]
        kind = rng.randrange(7)
        if kind == 0:
            x += 1.0
            self.known[k] = x, expected + 1
        elif kind == 1:
            x[1:] = x[:-1] * 2
            moved = expected.copy()
            moved[1:] = expected[:-1] * 2
            self.known[k] = x, moved
        elif kind == 2:
            np.testing.assert_array_equal(x.numpy(), expected)
        elif kind == 3:  # who has a window keeps what it shows
            self.windows.append((x.numpy(), expected))
            del self.windows[:-4]
        elif kind == 4:
            first, second = self.step(x, x + 1)
            left, right = expected * np.float32(0.5) + (expected + 1), expected + 1 - expected
            self.known[k] = (first, left) if rng.random() < 0.5 else (second, right)
        elif kind == 5:
            self.known[k] = nd.ones(len(expected)), np.ones(len(expected), np.float32)
        else:
            self.known[k] = x.copy() * 1.0, expected
        if abs(self.known[k][1]).max() > 1e3:
            self.known[k] = nd.zeros(len(expected)), np.zeros(len(expected), np.float32)

    def check(self) -> None:
        for x, expected in self.known:
            np.testing.assert_array_equal(x.numpy(), expected)
        for window, expected in self.windows:
            np.testing.assert_array_equal(window, expected)


def test_nothing_reads_memory_that_is_freed(spoilt: None) -> None:
    model = Model(0)
    for k in range(250):
        model.act()
        if k % 25 == 0:
            model.check()
    model.check()


def test_nothing_reads_memory_that_is_freed_by_other_threads(spoilt: None) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            model = Model(seed)
            for _ in range(60):
                model.act()
            model.check()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # half an object
def test_an_interrupt_frees_nothing_that_is_needed(spoilt: None) -> None:
    """Wherever it comes, the state is that before the update or that behind it."""
    state, other, one = nd.zeros(5000).realize(), nd.zeros(5000).realize(), nd.ones(5000).realize()

    @genesis.jit
    def step() -> Any:
        state.__iadd__(one)
        other.__isub__(one)
        return state + other

    for _ in range(3):
        assert not step().numpy().any()
    for moment in range(1, 1 + moments(step)):
        before = state.numpy()[0]
        result = None
        with interrupted_at(moment), suppress(KeyboardInterrupt):
            result = step()
        found = state.numpy()
        assert (found == found[0]).all() and found[0] in (before, before + 1)
        assert (other.numpy() == -found).all()
        assert result is None or not result.numpy().any()


def test_the_child_of_a_fork_has_memory_of_its_own(spoilt: None) -> None:
    model = Model(3)
    for _ in range(20):
        model.act()
    child = os.fork()
    if not child:
        try:
            for _ in range(30):
                model.act()
            model.check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    for _ in range(30):
        model.act()
    model.check()
    assert os.waitpid(child, 0)[1] == 0
