"""Processes that help to make machine code: they may fail in any way, and the results are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from operator import neg
from pathlib import Path
from typing import Any

import pytest

from genesis.backends import compile_workers
from genesis.backends.cpu.compile import CompileError, emit
from tests.worker_functions import fails_outside, only_in, say


@pytest.fixture(autouse=True)
def eager_helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three processors, and workers as soon as there is a second argument."""
    monkeypatch.setattr(compile_workers, "FEW", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    yield
    for crew in compile_workers._crews:
        settled(crew._function)
        for worker in list(crew.workers):
            crew._end(worker)
        crew.forget()


def module(k: int) -> str:
    return f'define i64 @"f{k}"() {{\nret i64 {k}\n}}\n'


def settled(function: Callable[..., Any]) -> list[int]:
    """The processes of a function's workers, once they are idle."""
    for thread in threading.enumerate():
        if thread.name == "genesis-code":
            thread.join()
    crew = compile_workers._crew(function)
    assert len(crew._idle) == len(crew.workers)
    return [w.process.pid for w in crew.workers]


def test_results_are_in_order_and_the_same_from_every_process() -> None:
    texts = [module(k) for k in range(12)]
    alone = [emit(text) for text in texts]
    assert compile_workers.each(emit, iter(texts), "LLVM") == alone
    assert len(settled(emit)) == 2  # one processor is this process's
    assert compile_workers.each(emit, texts, "LLVM") == alone
    assert compile_workers.each(emit, [], "LLVM") == []


def test_several_processes_take_part(tmp_path: Path) -> None:
    assert compile_workers.each(say, range(4), "test")
    pids = settled(say)
    assert len(pids) == 2
    assert set(compile_workers.each(say, [str(tmp_path)] * 3, "test")) == {os.getpid(), *pids}


def test_few_arguments_start_no_process() -> None:
    assert compile_workers.each(neg, [1], "test") == [-1]
    assert settled(neg) == []


def test_who_is_expected_is_there_before_the_first_argument(tmp_path: Path) -> None:
    compile_workers.expect(say)
    compile_workers.expect(say)
    (pid,) = settled(say)
    assert pid in compile_workers.each(say, [str(tmp_path)] * 3, "test")


def test_a_worker_that_dies_at_work_is_replaced_by_this_process() -> None:
    assert compile_workers.each(only_in, [os.getpid()] * 40, "test") == [os.getpid()] * 40
    settled(only_in)
    assert compile_workers.each(only_in, [os.getpid()] * 4, "test") == [os.getpid()] * 4


def test_arguments_larger_than_a_pipe() -> None:
    large = [bytes([k]) * (1 << 20) for k in range(8)]
    compile_workers.each(len, large, "test")
    settled(len)
    assert compile_workers.each(len, large, "test") == [1 << 20] * 8


def test_idle_workers_may_be_killed() -> None:
    compile_workers.each(say, range(4), "test")
    killed = settled(say)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert len(compile_workers.each(say, range(8), "test")) == 8
    assert not set(killed) & set(settled(say))


def test_without_processes_all_is_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert compile_workers.each(neg, range(8), "test") == [-k for k in range(8)]
    assert settled(neg) == []


def test_errors_are_raised_here() -> None:
    compile_workers.each(emit, [module(k) for k in range(6)], "LLVM")
    settled(emit)
    with pytest.raises(CompileError, match="ret i33 0"):
        compile_workers.each(
            emit, [module(0), module(1), "define i32 @f() {\nret i33 0\n}"], "LLVM"
        )
    assert compile_workers.each(fails_outside, [os.getpid()] * 20, "test") == [os.getpid()] * 20


def test_an_error_while_arguments_are_made_stops_the_work() -> None:
    def arguments() -> Iterator[str]:
        yield from map(module, range(6))
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        compile_workers.each(emit, arguments(), "LLVM")
    settled(emit)
    assert not [t for t in threading.enumerate() if t.name == "genesis-code"]


def test_the_child_of_a_fork_leaves_the_workers_to_its_parent() -> None:
    compile_workers.each(neg, range(8), "test")
    before = settled(neg)
    child = os.fork()
    if not child:
        os._exit(compile_workers.each(neg, range(3), "test") != [0, -1, -2])
    assert os.waitpid(child, 0)[1] == 0
    assert compile_workers.each(neg, range(8), "test") == [-k for k in range(8)]
    assert set(before) <= set(settled(neg))


EXIT = """
import os
from operator import neg
from genesis.backends import compile_workers
compile_workers.FEW = 0
os.sched_getaffinity = lambda _: {0, 1, 2}
assert compile_workers.each(neg, range(8), "test") == [-k for k in range(8)]
print(*(w.process.pid for crew in compile_workers._crews for w in crew.workers))
"""


def test_workers_end_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=True)
    pids = list(map(int, done.stdout.split()))
    assert pids and done.stderr == ""
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
