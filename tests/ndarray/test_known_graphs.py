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


@pytest.fixture(autouse=True, params=["by signature", "by matcher"])
def often(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is met again is recognised in one way or the other."""
    monkeypatch.setattr(realisation, "OFTEN", 1 if request.param == "by matcher" else 1 << 30)


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch, often: None) -> list[bool]:
    """For every realisation from now on, whether a matcher recognised it."""
    found: list[bool] = []
    match = realisation.Programs.matched

    def noted(self: Any, *args: Any) -> Any:
        answer = match(self, *args)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(thread, "written", [])
    monkeypatch.setattr(realisation, "OFTEN", 1)
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    monkeypatch.setattr(realisation.Programs, "matched", noted)
    return found


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


def test_a_loop_is_matched_until_somebody_holds_what_is_inside(matched: list[bool]) -> None:
    x, y = nd.array([1.0, 2.0]), nd.array([3.0, 5.0])
    held: list[Any] = []
    for turn in range(8):
        middle = x * (turn + 2)
        total = (middle + y).sum()
        if turn == 5:
            held.append(middle)
        del middle
        assert total.item() == 3 * (turn + 2) + 8
    assert held[0].value.is_realised
    assert matched == [False, False, True, True, True, False, True, True]


def test_one_leaf_in_two_places_is_another_graph(matched: list[bool]) -> None:
    def pair() -> list[Any]:
        return [nd.array([float(k), 2.0 * k]).realize() for k in (1, 3)]

    for turn in range(9):
        a, b = pair()
        if turn % 3 == 2:
            b = a
        first = a.value.memory
        assert (a * 2 + b * 3).tolist() == ([5.0, 10.0] if b is a else [11.0, 22.0])
        assert a.tolist() == [1, 2] and a.value.memory is first
    assert matched.count(True) >= 3


def test_memory_of_a_known_graph_is_kept_once_somebody_holds_it(matched: list[bool]) -> None:
    state, seen = nd.zeros(16).realize(), []
    for turn in range(10):
        if turn in (4, 7):
            seen.append((turn, state.copy()))  # the same memory
        state += 1
        state.realize()
    assert [old.tolist() for _, old in seen] == [[turn] * 16 for turn, _ in seen]
    # The zeros were filled, not computed.
    assert matched[3] and not matched[4] and matched[6] and not matched[7] and matched[9]


def test_an_index_is_checked_whenever_its_graph_comes(matched: list[bool]) -> None:
    table = nd.array(np.arange(12.0).reshape(4, 3))
    for k in (0, 3, 1, 2, 3):
        index = nd.array([k, k]) + 0
        assert table[index].sum().item() == 6 * (3 * k + 1)
    with pytest.raises(IndexError, match="index 4 is out of range"):
        table[nd.array([0, 4]) + 0].sum().item()


def test_draws_go_on_where_a_graph_is_matched(matched: list[bool]) -> None:
    def drawn(count: int) -> list[float]:
        nd.random.manual_seed(3)
        return [(nd.random.normal((4,)) * 2).sum().item() for _ in range(count)]

    expected = drawn(1) + drawn(2)[1:] + drawn(3)[2:]
    found = drawn(8)
    assert found[:3] == expected and len(set(found)) == 8
    assert matched.count(True) > 4


def test_a_part_of_a_block_that_somebody_holds_or_not(matched: list[bool]) -> None:
    stand_in = primitive.parameter(nd.zeros(3).dtype, (3,), "cpu")
    inner = nd.exp(wrap(stand_in))
    graph = Subgraph([stand_in], [inner.value, inner.sum().value])
    given = nd.array(np.ones(3, np.float32))
    for turn in range(14):
        copied = graph.copy([given.value], "cpu")
        part, total = (wrap(copied[place]) for place in graph.places)
        del copied
        if turn in (5, 9):
            part.realize()
        if turn % 4 != 3 and turn != 9:
            assert total.item() == pytest.approx(3 * np.e, rel=1e-6)
            assert part.value.is_realised  # it was computed on the way
        else:
            del part
            assert total.item() == pytest.approx(3 * np.e, rel=1e-6)
    assert matched.count(True) >= 5


def test_a_slice_is_told_from_other_movements_below_the_same_root(matched: list[bool]) -> None:
    x, row = nd.array([[1.0, 2.0], [3.0, 4.0]]), nd.array([[5.0, 6.0]])
    below: list[Callable[[], nd.NDArray]] = [
        lambda: x[:1], lambda: row.swapaxes(0, 1), lambda: nd.array([7.0, 8.0]).reshape(1, 2),
        lambda: nd.exp(row), lambda: nd.pad(row, ((0, 0), (1, 1)))[:, ::2], lambda: x[1:],
    ]  # fmt: skip
    wanted = [made().tolist() for made in below]
    for number in range(len(below)):
        for _ in range(3):  # until it has a matcher, which all others then meet
            below[number]().reshape(2).tolist()
        for made, values in zip(below, wanted, strict=True):
            assert made().reshape(2).tolist() == np.ravel(values).tolist()
    assert matched.count(True) >= len(below)
