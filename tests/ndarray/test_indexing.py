"""``x[...]`` read and written, masks, coordinates, and positions that do not exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd
from genesis.ndarray.core.integer_ranges import range_of
from genesis.ndarray.core.value import CaptureError

# ---- reading and writing like NumPy


@st.composite
def indices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and an index that NumPy accepts for it."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=4)))
    picked = draw(st.sampled_from([(), (1,), (2,), (3, 2), (0,)]))
    key: list[Any] = []
    axis = 0
    while axis < len(shape) and len(key) < 5:
        extent = shape[axis]
        kinds = ["slice", "slice", "array", "array", "mask", "none"] + ["integer"] * (extent > 0)
        kind = draw(st.sampled_from(kinds))
        if kind == "none":
            key.append(None)
            continue
        if kind == "integer":
            key.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "slice":
            edge = st.none() | st.integers(-extent - 1, extent + 1)
            step = draw(st.sampled_from([None, 1, 2, -1, -2]))
            key.append(slice(draw(edge), draw(edge), step))
        elif kind == "mask":
            # The positions that a mask selects must broadcast with the arrays.
            count = min(extent, picked[-1]) if picked else min(extent, 1)
            mask = np.zeros(extent, bool)
            mask[draw(st.permutations(range(extent)))[:count]] = True
            key.append(mask if mask.sum() in (1, *picked[-1:]) else slice(None))
        else:
            some = st.integers(-extent, extent - 1) if extent else st.nothing()
            size = int(np.prod(picked))
            if size and not extent:
                key.append(slice(None))
            else:
                numbers = draw(st.lists(some, min_size=size, max_size=size)) if size else []
                array = np.array(numbers, np.int64).reshape(picked)
                key.append(array.astype(draw(st.sampled_from([np.int64, np.int32]))))
        axis += 1
    if draw(st.booleans()):
        key.append(Ellipsis)
    return shape, tuple(key)


def ours(key: Any) -> Any:
    return nd.array(key) if isinstance(key, np.ndarray) else key


@settings(max_examples=120)
@given(indices())
def test_reads_and_writes_what_numpy_does(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = case
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    want = x[key]
    mine = tuple(map(ours, key))
    got = nd.array(x)[mine]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    written, expected = nd.array(x), x.copy()
    new = -1 - np.arange(want.size, dtype=np.float32).reshape(want.shape)
    written[mine] = nd.array(new)
    expected[key] = new
    np.testing.assert_array_equal(written, expected)


def test_writes_broadcast_and_the_last_one_stays() -> None:
    x, t = nd.zeros((4, 3)), torch.zeros(4, 3)
    x[[0, 2]] = nd.array([1.0, 2.0, 3.0])
    t[[0, 2]] = torch.tensor([1.0, 2.0, 3.0])
    x[[1, 1, 1], [0, 0, 2]] = [5.0, 6.0, 7.0]
    t[[1, 1], [0, 2]] = torch.tensor([6.0, 7.0])
    x[nd.array([3, 3])] += 1  # as in PyTorch, it counts once
    t[torch.tensor([3, 3])] += 1
    x[nd.array(0)] = -1
    t[0] = -1
    np.testing.assert_array_equal(x, t)


def test_views_see_writes_at_positions() -> None:
    x = nd.zeros((6, 2))
    y, z = x[2:], x.T
    y[nd.array([0, -1])] = 1
    z[1, nd.array([0])] = 5
    assert x.tolist() == [[0, 5], [0, 0], [1, 1], [0, 0], [0, 0], [1, 1]]
    assert y.tolist() == x.tolist()[2:]
    before = x.copy()
    x[1] = 9
    assert before[1].tolist() == [0, 0] and z[:, 1].tolist() == [9, 9]


def test_writes_read_what_was_there_before(rng: np.random.Generator) -> None:
    def run(x: Any, array: Any) -> Any:
        x[x.argmax(0)[0]] = 0
        x[array([0, 2, 5])] = x[array([2, 5, 0])]
        x[1] = x[0] * 2
        x[:, array([0, 1])] = x[:, 2:4] + x[:, array([1, 0])]
        x[array([0, 2, 5]), array([1, 2, 3])] += 1
        x[2:4][0] = x[3]
        return x

    start = rng.standard_normal((6, 4)).astype(np.float32)
    want = run(start.copy(), np.array)
    np.testing.assert_allclose(run(nd.array(start).realize(), nd.array), want, 1e-6)
    y = nd.array(start).realize()
    np.testing.assert_allclose(genesis.jit(lambda x: run(x, nd.array) * 1)(y), want, 1e-6)
    np.testing.assert_allclose(y, want, 1e-6)


def test_masks_write_by_choice_or_one_by_one() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows, all_of = np.array([True, False, True]), x > 4
    for mask, new in (
        (all_of, 0.5),
        (all_of, np.arange(7, dtype=np.float32)),
        (rows, np.arange(4, dtype=np.float32)),
        (rows, np.arange(8, dtype=np.float32).reshape(2, 4)),
        (rows, np.ones((1, 4), np.float32)),
    ):
        got, want = nd.array(x), x.copy()
        got[nd.array(mask)] = nd.array(new) if isinstance(new, np.ndarray) else new
        want[mask] = new
        np.testing.assert_array_equal(got, want)
    got = nd.array(x)
    got[got > 4] += 1
    np.testing.assert_array_equal(got, np.where(x > 4, x + 1, x))


# ---- places that are arguments


def test_a_loop_of_writes_is_one_program_in_place() -> None:
    x = nd.zeros((16, 4, 8)).realize()
    place = x.value.memory.pointer
    want = np.zeros(x.shape, np.float32)

    def at_integer(t: int) -> None:
        x[t] = 1.5 + t
        want[t] = 1.5 + t

    def at_two(t: int) -> None:
        x[t, 3] = 2.5 + t
        want[t, 3] = 2.5 + t

    def at_slice(t: int) -> None:
        x[-t, 1:3, None] = 3.5 + t
        want[-t, 1:3, None] = 3.5 + t

    def at_array(t: int) -> None:
        x[:, nd.array(t % 4)] = 4.5 + t
        want[:, t % 4] = 4.5 + t

    def at_run(t: int) -> None:
        start = nd.array(t)
        x[start : start + 3, 1] = 5.5 + t
        want[t : t + 3, 1] = 5.5 + t

    def at_view(t: int) -> None:
        x[t][1:][:, 2:7][t % 3] = 6.5 + t
        want[t][1:][:, 2:7][t % 3] = 6.5 + t

    for write in (at_integer, at_two, at_slice, at_array, at_run, at_view):
        write(2)
        x.realize()
        compiled = nd.statistics().compiled
        for t in (0, 1, 7, 13):
            write(t)
            x.realize()
        assert nd.statistics().compiled == compiled, write.__name__
        assert x.value.memory.pointer == place, write.__name__
        np.testing.assert_array_equal(x, want)


def test_a_cache_is_written_in_place_under_jit() -> None:
    @genesis.jit
    def step(cache: nd.NDArray, row: nd.NDArray, t: nd.NDArray) -> nd.NDArray:
        cache[:, t] = row
        return cache[:, t : t + 2].sum() * 1

    cache, row = nd.zeros((3, 8, 5)).realize(), nd.ones((3, 5)).realize()
    place = cache.value.memory.pointer
    assert [step(cache, row, nd.array(t)).item() for t in range(4)] == [15.0] * 4
    assert step.captures == 1 and cache.value.memory.pointer == place
    assert cache.sum().item() == 60

    @genesis.jit
    def write(cache: nd.NDArray, t: int) -> None:
        cache[t] = 7

    write(cache, 0)
    compiled = nd.statistics().compiled
    for t in (1, 2):
        write(cache, t)
    assert nd.statistics().compiled == compiled
    assert (cache == 7).all().item()


def test_dynamic_blocks_move_until_they_fit() -> None:
    x = np.arange(20).reshape(4, 5)
    for row, column in ((0, 0), (2, 3), (9, -7), (-1, 4)):
        r, c = np.clip(row, 0, 2), np.clip(column, 0, 2)
        got = nd.dynamic_slice(nd.array(x), [nd.array(row), column], [2, 3])
        np.testing.assert_array_equal(got, x[r : r + 2, c : c + 3])
        want = x.copy()
        want[r : r + 2, c : c + 3] = -1
        block = nd.full((2, 3), -1)
        np.testing.assert_array_equal(nd.dynamic_update(nd.array(x), block, [row, column]), want)
    with pytest.raises(ValueError, match=r"dynamic_slice: a block of \(5, 5\) does not fit"):
        nd.dynamic_slice(nd.array(x), [0, 0], [5, 5])
    start = nd.array(1)
    with pytest.raises(IndexError, match="needs a length known at the call"):
        nd.array(x)[start : start * 2]


# ---- positions that do not exist


def far(number: int) -> nd.NDArray:
    """An index that is computed, and known only when it is."""
    return nd.array([0.0, float(number)]).astype("int64")


OPERATIONS: dict[str, Any] = {
    "indexing": lambda x, i: x[i],
    "take": lambda x, i: nd.take(x, i, 0),
    "index_select": nd.index_select,
    "embedding": nd.embedding,
    "gather": lambda x, i: nd.gather(x, nd.stack([i, i], 1), 0),
    "index_add": lambda x, i: nd.index_add(x, i, nd.ones((2, 3))),
    "index_fill": lambda x, i: nd.index_fill(x, i, 7),
    "scatter_add": lambda x, i: nd.scatter_add(x, nd.stack([i, i], 1), nd.ones((2, 2))),
    "segment_sum": lambda x, i: nd.segment_sum(nd.ones(2), i, 4),
    "embedding_gradient": lambda x, i: nd.embedding_gradient(nd.ones((2, 3)), i, 4),
    "unravel_index": lambda x, i: nd.unravel_index(i, (2, 2))[0],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_positions_are_checked(name: str) -> None:
    x, call = nd.ones((4, 3)), OPERATIONS[name]
    call(x, far(3)).realize(), call(x, far(-4)).realize()
    for number in (4, -5):
        message = rf"{name}: index {number} is out of range for axis 0 of size 4"
        with pytest.raises(IndexError, match=message):  # it lies in memory
            call(x, far(number).realize()).realize()
        result = call(x, far(number))
        for _ in range(2):  # never a wrong result instead
            with pytest.raises(IndexError, match=message + r" \(.*test_indexing.py:\d+\)"):
                result.realize()
        recorded = genesis.jit(lambda x, i: call(x, i))
        recorded(x, far(1).realize())
        with pytest.raises(IndexError, match=message):
            recorded(x, far(number).realize())
        assert recorded.captures == 1


def test_known_positions_are_checked_at_the_call() -> None:
    x = nd.ones((4, 3))
    for index in ([0, 7], np.array([7]), nd.array([7]), nd.array([7, 0])[:1]):
        with pytest.raises(IndexError, match="index 7 is out of range for axis 0 of size 4"):
            x[index]
        with pytest.raises(IndexError, match="index 7 is out of range for axis 1 of size 3"):
            x[:, index] = 1
    with pytest.raises(IndexError, match="index 9223372036854775807 is out of range"):
        x[nd.array([0, 2**63 - 1])]
    with pytest.raises(IndexError, match="index -9223372036854775808 is out of range"):
        nd.take(x, nd.array([0, -(2**63)]), 1)
    with pytest.raises(IndexError, match="index 0 is out of range for axis 0 of size 0"):
        nd.zeros((0, 2))[nd.array([0])]
    big = nd.array(np.full(100_000, 3))
    with pytest.raises(IndexError, match="take: index 3 is out of range for axis 1 of size 3"):
        nd.take(x, big, 1)
    assert nd.take(x, big, 0).shape == (100_000, 3)
    assert x.tolist() == np.ones((4, 3)).tolist()


def test_nothing_is_written_when_a_check_fails() -> None:
    x = nd.zeros(4).realize()
    kept = x.copy()
    total = x.sum()
    x[far(9)] = 1
    with pytest.raises(IndexError, match="index 9"):
        x.realize()
    assert kept.tolist() == [0, 0, 0, 0] and total.item() == 0


def test_positions_in_range_by_construction_need_no_check() -> None:
    n = nd.array(5)
    x = nd.random.integers(0, 9, (3, 5))
    assert range_of((nd.arange(7) * 3 - 2).value) == (-2, 16)
    assert range_of(nd.clip(x.realize(), -2, 3).value) == (-2, 3)
    assert range_of(nd.argmax(x, 1).value) == (0, 4)
    assert range_of(nd.random.integers(2, 6, (3,)).value) == (2, 5)
    assert range_of((x % 4).value) == (0, 3)
    assert range_of(nd.where(x > 2, 1, 8).value) == (1, 8)
    assert range_of((x > 2).astype("int32").value) == (0, 1)
    assert range_of((nd.arange(4) * 2**62).value) is None  # it may wrap around
    deep = x.realize()
    for _ in range(100):
        deep = deep + nd.where(deep > 2, 1, 2)
    assert range_of(nd.clip(deep, -2, 3).value) == (-2, 3)  # however it is made
    assert range_of(n.value) is None and range_of((x + 1).value) is None
    table = nd.arange(5).realize()
    programs = nd.statistics().runs
    table[nd.argmax(nd.ones((2, 5)) * 2, 1)].realize()
    assert nd.statistics().runs == programs + 1


# ---- masks


def test_masks_against_pytorch(rng: np.random.Generator) -> None:
    for shape in ((7,), (3, 5), (2, 1, 4), (0, 3), ()):
        numbers = rng.integers(-1, 2, shape)
        x, t = nd.array(numbers), torch.tensor(numbers)
        np.testing.assert_array_equal(nd.nonzero(x), torch.nonzero(t))
        np.testing.assert_array_equal(nd.argwhere(x), torch.argwhere(t))
        assert nd.count_nonzero(x).item() == torch.count_nonzero(t)
        if shape:
            for got, want in zip(nd.nonzero(x, as_tuple=True), numbers.nonzero(), strict=True):
                np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(nd.count_nonzero(x, 0), torch.count_nonzero(t, 0))
        mask, chosen = x > 0, t > 0
        np.testing.assert_array_equal(nd.masked_select(x, mask), t.masked_select(chosen))
        np.testing.assert_array_equal(nd.masked_fill(x, mask, 9), t.masked_fill(chosen, 9))
        source = np.arange(100, 100 + numbers.size)
        np.testing.assert_array_equal(
            nd.masked_scatter(x, mask, nd.array(source)),
            t.masked_scatter(chosen, torch.tensor(source)),
        )


def test_selected_by_data_needs_a_size_under_jit() -> None:
    x = nd.array([0.0, 3.0, 0.0, 5.0, 6.0])
    for function in (
        lambda x: x[x > 1],
        lambda x: nd.nonzero(x),
        lambda x: nd.masked_select(x, x > 1),
    ):
        with pytest.raises(CaptureError, match=r"size=, or select with where"):
            genesis.jit(function)(x)
    found = genesis.jit(lambda x: nd.nonzero(x, size=4))(x)
    assert found.tolist() == [[1], [3], [4], [0]]
    some = genesis.jit(lambda x: nd.masked_select(x, x > 1, size=2, fill=-1))
    assert some(x).tolist() == [3, 5] and some(x - 4).tolist() == [2, -1]

    @genesis.jit
    def clip(x: nd.NDArray) -> nd.NDArray:
        x = x.copy()
        x[x > 4] = 4
        return x

    assert clip(x).tolist() == [0, 3, 0, 4, 4]
    with pytest.raises(ValueError, match=r"masked_scatter: the mask selects 3 elements.*only 2"):
        nd.masked_scatter(x, x > 1, nd.ones(2))
    with pytest.raises(TypeError, match="masked_fill: the mask must be bool, not float32"):
        nd.masked_fill(x, x, 1)


# ---- coordinates


def test_coordinates(rng: np.random.Generator) -> None:
    shape = (3, 4, 5)
    flat = rng.integers(-60, 60, (2, 6))
    for got, want in zip(
        nd.unravel_index(nd.array(flat), shape), np.unravel_index(flat % 60, shape), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    parts = [rng.integers(0, n, 7) for n in shape]
    np.testing.assert_array_equal(
        nd.ravel_multi_index(parts, shape), np.ravel_multi_index(parts, shape)
    )
    for rows, columns, offset in ((3, 3, 0), (4, 2, -1), (2, 5, 2)):
        for name in ("tril_indices", "triu_indices"):
            got = getattr(nd, name)(rows, columns, offset)
            np.testing.assert_array_equal(got, getattr(torch, name)(rows, columns, offset))
    vectors = [nd.arange(3), nd.arange(2), nd.arange(4)]
    for indexing in ("ij", "xy"):
        wanted = np.meshgrid(*(v.numpy() for v in vectors), indexing=indexing)
        for got, want in zip(nd.meshgrid(*vectors, indexing=indexing), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_searchsorted(rng: np.random.Generator) -> None:
    for size in (0, 1, 5, 64, 1000):
        ordered = np.sort(rng.integers(0, 200, size).astype(np.float32))
        values = np.append(rng.uniform(-5, 205, 40), [np.nan, np.inf, -np.inf, *ordered[:5]])
        values = values.astype(np.float32)
        for right in (False, True):
            got = nd.searchsorted(nd.array(ordered), nd.array(values), right=right)
            want = torch.searchsorted(torch.tensor(ordered), torch.tensor(values), right=right)
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(nd.bucketize(values, nd.array(ordered), right), want)
    rows, values = rng.standard_normal((3, 17)), rng.standard_normal((3, 8))
    order = np.argsort(rows, -1)
    got = nd.searchsorted(nd.array(rows), nd.array(values), sorter=nd.array(order))
    want = torch.searchsorted(torch.tensor(rows), torch.tensor(values), sorter=torch.tensor(order))
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match=r"searchsorted: rows of shape \(3, 17\)"):
        nd.searchsorted(nd.array(rows), nd.array(values[:2]))
