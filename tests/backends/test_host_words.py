"""Words that programs write to memory of the host: late, in turns, and by whom."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import ndarray as nd
from genesis.backends.gpu.runtime import mapped_host_memory
from genesis.ndarray.core.realisation import backend_of
from tests.interpreted_cuda import passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_gpu = pytest.mark.gpu


def rows() -> tuple[Any, Any]:
    """A jitted look-up, and its table."""
    table = nd.array(np.arange(12, dtype=np.float32).reshape(4, 3), device="cuda").realize()
    return genesis.jit(lambda table, index: table[index]), table


def index(*positions: int) -> Any:
    return nd.array(np.array(positions), device="cuda").realize()


@on_gpu
def test_more_runs_than_words_all_checked() -> None:
    look_up, table = rows()
    good, results = index(1, 3), list[Any]()
    results += [look_up(table, good) for _ in range(11)]
    assert all(x.tolist() == [[3, 4, 5], [9, 10, 11]] for x in results)


@on_gpu
@pytest.mark.parametrize("later", [0, 1, 3, 4, 9])
def test_a_wrong_index_is_found_whoever_asks_first(later: int) -> None:
    look_up, table = rows()
    good, bad = index(1, 3), index(1, 4)
    for _ in range(3):
        look_up(table, good)
    genesis.cuda.synchronize()
    nd.ones((2,), device="cuda").tolist()  # nothing is undecided

    def run() -> None:
        look_up(table, bad)
        for _ in range(later):
            look_up(table, good)
        look_up(table, good).tolist()

    with pytest.raises(IndexError, match=r"index 4 is out of range for axis 0 of size 4"):
        run()
    assert look_up(table, good).tolist() == [[3, 4, 5], [9, 10, 11]]  # said once


@on_gpu
def test_two_programs_have_words_of_their_own() -> None:
    look_up, table = rows()
    other = genesis.jit(lambda table, index: table[index] * 2)
    good, bad = index(0), index(-5)
    for _ in range(6):
        look_up(table, good)
        other(table, good)
    look_up(table, good).tolist()

    def run() -> None:
        other(table, bad)
        for _ in range(3):
            look_up(table, good)
        look_up(table, good).tolist()

    with pytest.raises(IndexError, match="index -5"):
        run()


@on_gpu
def test_runs_wait_for_no_other_and_share_a_graph() -> None:
    """However many are under way: the frames of all of them are the same."""
    _, table = rows()
    look_up = genesis.jit(lambda table, index: table[index] * 7 + 1)
    good = index(1, 3)
    for _ in range(9):
        look_up(table, good)
    executable: Any = look_up.recording(table, good)[0].program.executable
    assert executable.runs == 9 and len(executable._graphs) == 1


@on_gpu
def test_the_smallest_axis_of_an_index_decides() -> None:
    table = nd.array(np.arange(12, dtype=np.float32).reshape(4, 3), device="cuda").realize()
    call = genesis.jit(lambda table, index: (table[index], table[:2][index]))
    call(table, index(1, -2))
    genesis.cuda.synchronize()
    call(table, index(0, 3))
    with pytest.raises(IndexError, match="index 3 is out of range for axis 0 of size 2"):
        genesis.cuda.synchronize()
    call(table, index(-5))
    with pytest.raises(IndexError, match="index -5 is out of range for axis 0 of size 4"):
        call(table, index(0))  # or whoever reads first
        genesis.cuda.synchronize()


@on_gpu
def test_words_come_back_when_nobody_writes_to_them() -> None:
    backend: Any = backend_of("cuda")
    word = backend.word()
    free = len(backend._words)
    assert word.take() == 0
    mapped_host_memory.ctypes.c_uint64.from_address(word.pointer).value = 12
    assert word.take() == 12 and word.take() == 0
    del word
    assert len(backend._words) == free + 1


@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.parametrize("pace", ["", "3"])
def test_by_the_interpreter(pace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", pace)
    passes(__file__)
