"""Sorting and what follows from it, against PyTorch and NumPy."""

from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as npst
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd

REAL = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]


def same(found: nd.NDArray, expected: Any) -> None:
    """The same elements in the same dtype and shape; NaN equals NaN."""
    given_, wanted = found.numpy(), np.asarray(expected)
    assert given_.dtype == wanted.dtype and given_.shape == wanted.shape
    np.testing.assert_array_equal(given_.astype(np.float64), wanted.astype(np.float64))


def pairs(found: Sequence[nd.NDArray], expected: Sequence[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def contents(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Few different values, so that many are equal, and for floats NaN, infinities and zeros."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    values = rng.integers(0, 9, shape).astype(np.float64)
    if "float" in dtype:
        special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 3.0, 1e-7])
        return special[values.astype(int)].astype(kind)
    return values.astype(kind)


def as_torch(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(x)


def from_torch(x: torch.Tensor) -> np.ndarray:
    if x.dtype is torch.bfloat16:
        return x.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
    return x.numpy()


def stable(x: torch.Tensor, axis: int, descending: bool = False) -> Any:
    return torch.sort(x, stable=True, dim=axis, descending=descending)


@pytest.mark.parametrize("dtype", REAL)
def test_all_dtypes_sort_stably(rng: np.random.Generator, dtype: str) -> None:
    x = contents(rng, dtype, (3, 40))
    array, tensor = nd.array(x), as_torch(x)
    for descending in (False, True):
        expected = stable(tensor, -1, descending)
        pairs(nd.sort(array, -1, descending), [from_torch(part) for part in expected])
        same(nd.argsort(array, -1, descending), expected.indices)
    values, indices = nd.topk(array, 7, -1, largest=False)
    pairs((values, indices), [from_torch(p[:, :7]) for p in stable(tensor, -1)])
    kth = nd.kthvalue(array, 11)
    pairs(kth, [from_torch(p[:, 10]) for p in stable(tensor, -1)])


@settings(max_examples=25)
@given(
    x=npst.arrays(
        np.float32,
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
        elements=st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, np.inf, -np.inf, np.nan]),
    ),
    data=st.data(),
)
def test_any_shape_and_axis(x: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    descending = data.draw(st.booleans())
    tensor = torch.from_numpy(x)
    pairs(nd.sort(nd.array(x), axis, descending), stable(tensor, axis, descending))
    k = data.draw(st.integers(0, x.shape[axis]))
    first = [p.narrow(axis, 0, k) for p in stable(tensor, axis, descending)]
    pairs(nd.topk(nd.array(x), k, axis, descending), first)
    if k:
        keepdims = data.draw(st.booleans())
        place = [p.narrow(axis, k - 1, 1) for p in stable(tensor, axis)]
        found = nd.kthvalue(nd.array(x), k, axis, keepdims)
        pairs(found, place if keepdims else [p.squeeze(axis) for p in place])


def test_views_and_numbers(rng: np.random.Generator) -> None:
    x = rng.standard_normal((6, 8)).astype(np.float32)
    view, expected = nd.array(x)[::2, ::-1].T, x[::2, ::-1].T
    same(nd.msort(view), np.sort(expected, 0))
    same(nd.sort(view * 2, 0).values, np.sort(expected * 2, 0))
    number = nd.array(3.0)
    for found in (nd.sort(number), nd.topk(number, 1), nd.kthvalue(number, 1)):
        assert [part.tolist() for part in found] == [3.0, 0]


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    function = genesis.jit(lambda x: (*nd.sort(x, -1, True), nd.median(x, -1).values))
    short = genesis.jit(lambda x: (nd.topk(x, 3).values, nd.kthvalue(x, 2).values))
    for shape in ((2, 5), (2, 6), (2, 70), (2, 1000), (3, 3), (5, 70_000)):
        x = rng.integers(0, 50, shape).astype(np.float32)
        values, indices, middle = function(nd.array(x))
        expected = stable(torch.from_numpy(x), -1, True)
        pairs((values, indices), expected)
        same(middle, torch.median(torch.from_numpy(x), -1).values)
        pairs(short(nd.array(x)), (expected.values[:, :3], np.sort(x, -1)[:, 1]))
    assert function.captures == 3  # the first shape, then any length, then any number of rows


def test_lexsort(rng: np.random.Generator) -> None:
    keys = [rng.integers(0, 3, (2, 20)) for _ in range(3)]
    same(nd.lexsort([nd.array(key) for key in keys]), np.lexsort(keys))
    with pytest.raises(ValueError, match="lexsort: keys of shapes"):
        nd.lexsort([nd.zeros(3), nd.zeros(4)])


def test_isin(rng: np.random.Generator) -> None:
    x, tested = rng.integers(0, 9, (4, 5)), rng.integers(0, 9, 4)
    for invert in (False, True):
        expected = torch.isin(torch.from_numpy(x), torch.from_numpy(tested), invert=invert)
        same(nd.isin(nd.array(x), nd.array(tested), invert=invert), expected)
    assert nd.isin(nd.array([1.0, float("nan")]), [float("nan"), 1.0]).tolist() == [True, False]
    assert nd.isin(nd.array([1, 2]), nd.zeros(0)).tolist() == [False, False]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32"])
def test_unique(rng: np.random.Generator, dtype: str) -> None:
    x = rng.integers(0, 6, (4, 9)).astype(dtype)
    expected = torch.unique(torch.from_numpy(x), True, True, True)
    pairs(nd.unique(nd.array(x), True, True, True), expected)
    same(nd.unique(nd.array(x)), expected[0])
    pairs(nd.unique(nd.array(x), return_counts=True), (expected[0], expected[2]))
    expected = torch.unique_consecutive(torch.from_numpy(x), True, True)
    pairs(nd.unique_consecutive(nd.array(x), True, True), expected)


@settings(max_examples=15)
@given(
    x=npst.arrays(
        np.int64,
        npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
        elements=st.integers(0, 2),
    ),
    data=st.data(),
)
def test_unique_rows(x: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, x.ndim - 1))
    tensor = torch.from_numpy(x)
    expected = torch.unique(tensor, True, True, True, dim=axis)
    pairs(nd.unique(nd.array(x), True, True, True, axis=axis), expected)
    expected = torch.unique_consecutive(tensor, True, True, dim=axis)
    pairs(nd.unique_consecutive(nd.array(x), True, True, axis=axis), expected)


def test_unique_of_nan_and_nothing() -> None:
    values, counts = nd.unique(
        nd.array([float("nan"), 1.0, -0.0, float("nan"), 0.0]), return_counts=True
    )
    assert values.tolist()[:2] == [0.0, 1.0] and np.isnan(values.numpy()[2:]).all()
    assert counts.tolist() == [2, 1, 1, 1]
    empty = nd.unique(nd.zeros((0, 3)), True, True, True)
    assert [part.shape for part in empty] == [(0,), (0, 3), (0,)]


def test_permutation() -> None:
    generator = nd.random.Generator(7)
    first, second = (nd.random.permutation(1000, generator=generator).numpy() for _ in range(2))
    assert np.array_equal(np.sort(first), np.arange(1000)) and not np.array_equal(first, second)
    generator.manual_seed(7)
    assert np.array_equal(nd.random.permutation(1000, generator=generator).numpy(), first)
    # Every element is equally likely at every place: 2000 permutations of 4, 500 of each at each.
    many = nd.random.uniform((2000, 4), generator=generator)
    counts = np.stack([np.bincount(c, minlength=4) for c in nd.argsort(many).numpy().T])
    assert np.abs(counts - 500).max() < 100
    assert nd.random.permutation(0).shape == (0,)


def test_positions_need_no_check(rng: np.random.Generator) -> None:
    x = nd.array(rng.standard_normal(50).astype(np.float32))
    before = nd.statistics().runs
    taken = nd.take_along_axis(x, nd.argsort(x), 0)
    same(taken, np.sort(x.numpy()))
    assert nd.statistics().runs == before + 1


def test_bad_input() -> None:
    x = nd.zeros((2, 3))
    z = nd.array([1j])
    for function in (nd.sort, nd.unique, nd.unique_consecutive, nd.msort, nd.argsort):
        with pytest.raises(TypeError, match="complex64 numbers have no order"):
            function(z)
    with pytest.raises(ValueError, match=r"topk: k = 4 is not between 0 and 3"):
        nd.topk(x, 4)
    with pytest.raises(ValueError, match=r"kthvalue: k = 0 is not between 1 and 3"):
        nd.kthvalue(x, 0)
    with pytest.raises(TypeError, match="topk: k is an integer"):
        nd.topk(x, 1.5)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="sort"):
        nd.sort(x, 2)
    with pytest.raises(RuntimeError, match="unique: how many elements there are depends on data"):
        genesis.jit(nd.unique)(x)
