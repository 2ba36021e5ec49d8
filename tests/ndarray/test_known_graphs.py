"""Graphs that were realised before are realised again without being planned: what may differ."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from genesis import ndarray as nd
from genesis.compiler import options
from genesis.ndarray.core import primitive, realisation
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.subgraph_copies import Subgraph
from genesis.ndarray.core.value import thread


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Realisations that had to be planned, from now on."""
    found: list[int] = []
    plan = realisation._execution_plan

    def noted(graph: Any, *rest: Any) -> Any:
        found.append(len(graph.order))
        return plan(graph, *rest)

    monkeypatch.setattr(thread, "written", [])  # what others have left goes along with nothing
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr(realisation, "_execution_plan", noted)
    return found


def test_a_loop_is_planned_once(planned: list[int]) -> None:
    x = nd.array(np.arange(12.0).reshape(3, 4))
    for turn in range(5):
        scaled = x * (turn + 0.5)
        total = scaled.sum(axis=0)
        assert total.tolist() == (np.arange(12.0).reshape(3, 4) * (turn + 0.5)).sum(0).tolist()
    assert len(planned) == 1


def test_slices_anywhere_are_one_graph(planned: list[int]) -> None:
    given = np.random.default_rng(0).standard_normal((9, 7), np.float32)
    x = nd.array(given)
    for i, j in ((0, 1), (3, 2), (8, 8), (1, 0)):
        assert (x[i, ::-2] + x[j, ::-2]).tolist() == (given[i, ::-2] + given[j, ::-2]).tolist()
    assert len(planned) == 1


def test_inputs_may_begin_anywhere_in_their_memory(planned: list[int]) -> None:
    given = np.random.default_rng(1).standard_normal(40, np.float32)
    whole = nd.array(given)
    for first in (0, 4, 17):
        part = whole[first : first + 8].realize()
        assert nd.exp(part * 2).tolist() == pytest.approx(np.exp(given[first : first + 8] * 2))
        assert (part - part[::-1]).tolist() == (
            given[first : first + 8] - given[first : first + 8][::-1]
        ).tolist()
    assert len(planned) <= 5  # an alias and two programs, and two that share memory another way


def test_what_is_held_makes_another_graph(planned: list[int]) -> None:
    x = nd.array([1.0, 2.0])
    total = nd.exp(x + 1).sum()
    assert total.item() == pytest.approx(np.exp([2.0, 3.0]).sum())
    middle = x + 1
    total = nd.exp(middle).sum()
    assert total.item() == pytest.approx(np.exp([2.0, 3.0]).sum())
    assert middle.value.is_realised
    assert len(planned) == 2


def test_memory_is_overwritten_only_where_nobody_sees_it(planned: list[int]) -> None:
    kept: list[Any] = []
    for turn in range(6):
        x = nd.exp(nd.zeros(16)).realize()
        if turn % 2:
            kept.append(x.copy())  # the same memory
        x += turn + 2
        x.realize()
        assert x.tolist() == [3 + turn] * 16
    assert all(old.tolist() == [1] * 16 for old in kept)
    assert len(planned) == 3  # exp, and += in memory of its own and in memory of another


def test_signs_of_zero_and_numbers_of_inputs_are_told_apart() -> None:
    x = nd.array([1.0])
    for _ in range(2):
        assert np.signbit((x * 0.0).numpy()).tolist() == [False]
        assert np.signbit((x * -0.0).numpy()).tolist() == [True]
        for count in (2, 3, 4):
            assert nd.concat([x] * count).sum().item() == count


@pytest.mark.parametrize("forget", [realisation.forget_programs, lambda: None])
def test_forgotten_programs_and_other_options(
    planned: list[int], forget: Callable[[], Any]
) -> None:
    x = nd.array([1.0, 4.0])
    assert nd.sqrt(x).tolist() == [1, 2]
    forget()
    with options.using(fuse=False):
        assert nd.sqrt(x).tolist() == [1, 2]
    assert nd.sqrt(x).tolist() == [1, 2]
    assert len(planned) == 3


def test_no_more_plans_are_kept_than_programs(
    planned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realisation, "MOST_PROGRAMS", 4)
    for size in range(2, 12):
        assert (nd.ones(size) + 1).sum().item() == 2 * size
    assert len(realisation._programs.plans) <= 4


def test_a_block_of_which_another_part_is_held_is_planned_once(planned: list[int]) -> None:
    x = nd.array(np.zeros((2, 3), np.float32))
    stand_in = primitive.parameter(x.dtype, x.shape, x.device)
    inner = nd.exp(wrap(stand_in))
    graph = Subgraph([stand_in], [inner.sum(axis=1).value, inner.reshape(3, 2).value])
    for turn in range(3):
        given = np.random.default_rng(turn).standard_normal((2, 3), np.float32)
        copied = graph.copy([nd.array(given).value], "cpu")
        total, held = (wrap(copied[place]) for place in graph.places)
        del copied
        assert total.numpy() == pytest.approx(np.exp(given).sum(1), rel=1e-6)
        held.realize()  # what it is made of was computed with the sum
        assert held.numpy() == pytest.approx(np.exp(given).reshape(3, 2), rel=1e-6)
    assert len(planned) == 2


def test_a_known_graph_whose_slices_are_of_memory_that_is_free(planned: list[int]) -> None:
    """Where a slice begins matters once its memory may be overwritten: references tell."""
    given = np.arange(24, dtype=np.float32).reshape(6, 4)
    for k in (0, 3, 5, 3, 0):
        x = nd.array(given)
        part = x[k] * 2 + x[1]
        kept = nd.array(given)
        other = kept[k] * 2 + kept[1]
        del x
        assert part.tolist() == (given[k] * 2 + given[1]).tolist()
        assert other.tolist() == part.tolist() and kept.tolist() == given.tolist()
    assert len(planned) <= 4


def test_a_known_graph_whose_inputs_share_memory(planned: list[int]) -> None:
    """The same references, but other leaves in one memory: not the same graph."""
    given = np.arange(24, dtype=np.float32).reshape(3, 8)
    whole = nd.array(given)
    rows = [whole[k].realize() for k in range(3)]
    apart = [nd.array(row) for row in given]
    for i, j in ((0, 1), (1, 2), (2, 0), (1, 1)):
        for xs in (rows, apart):
            assert (xs[i] * 3 - xs[j]).tolist() == (given[i] * 3 - given[j]).tolist()
