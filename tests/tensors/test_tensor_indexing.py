"""``x[...]`` and its relatives against PyTorch: values, gradients, aliasing and errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import Comparison
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, about its own future


def _keys(m: Any) -> dict[str, Any]:
    """Indices of a tensor of shape (4, 3, 5)."""
    t = m.tensor
    mask = t([True, False, True, True])
    grid = t([[i % 2 == 0, i % 3 == 0, i == 1] for i in range(4)])
    return {
        "int": 2,
        "negative": -1,
        "slice": slice(1, 3),
        "steps": (slice(None, None, 2), slice(1, None)),
        "slice beyond": slice(-9, 9),
        "empty slice": slice(3, 1),
        "none": (None, 1, slice(None), None),
        "ellipsis": (..., 2),
        "ellipsis in the middle": (1, ..., slice(0, 2)),
        "nothing": (),
        "only ellipsis": ...,
        "numpy integer": np.int64(1),
        "list": [0, 2, -1],
        "range": (slice(None), range(2)),
        "array": t([2, 0, 0, -1]),
        "matrix": t([[0, 1], [1, 0]]),
        "int32": t([3, 1], dtype=m.int32),
        "numpy": np.array([1, 2]),
        "no positions": t([], dtype=m.int64),
        "second": (slice(None), t([2, 0])),
        "last": (..., t([4, 4, 0])),
        "two": (t([0, 3, 1]), t([2, 0, 1])),
        "two that broadcast": (t([[0], [3]]), t([2, 0, 1])),
        "two behind": (slice(1, 3), t([2, 0]), t([1, 4])),
        "two apart": (t([0, 3]), slice(None), t([4, 1])),
        "apart by none": (t([0, 3]), None, t([2, 1])),
        "three": (t([0, 3]), t([2, 1]), t([4, 0])),
        "integer and array": (1, slice(None), t([4, 1])),
        "array and integer": (t([0, 2]), slice(None), 3),
        "integer next to array": (slice(None), 1, t([4, 1, 1])),
        "no dimension": t(2),
        "no dimension and array": (t(1), slice(None), t([4, 1])),
        "no dimension behind": (slice(None), t([0, 1]), t(-1)),
        "slice and array": (slice(0, 4, 2), t([0, 2, 2])),
        "mask": mask,
        "mask of a list": [True, False, False, True],
        "mask of two": grid,
        "mask and array": (mask, t([0, 1, 2])),
        "mask behind": (slice(None), t([True, False, True])),
        "mask and slice": (mask, slice(1, 3), 2),
        "mask of nothing": t([False] * 4),
        "true": True,
        "false": False,
        "none and array": (None, t([1, 2]), None),
    }


NAMES = list(_keys(torch))


def test_reading(rng: np.random.Generator) -> None:
    comparison = Comparison()
    x = rng.standard_normal((4, 3, 5))
    for name in NAMES:
        comparison.function(name, lambda m, x, name=name: x[_keys(m)[name]], x)
    comparison.check()


def test_writing(rng: np.random.Generator) -> None:
    """With gradients to what is written to and to what is written."""
    comparison = Comparison()
    x, v = rng.standard_normal((4, 3, 5)), rng.standard_normal(200)
    unique = [n for n in NAMES if n not in ("array", "last")]  # which of equal ones stays is open
    for name in unique:

        def write(m: Any, x: Any, v: Any, name: str = name) -> Any:
            key = _keys(m)[name]
            base = x * 2
            view = base[1:]
            shape = base[key].shape
            base[key] = v[: base[key].numel()].reshape(shape) * 3
            base[key] += 1
            return base * base, view

        comparison.function(name, write, x, v)
    comparison.check()


def test_writing_without_gradients(rng: np.random.Generator) -> None:
    comparison = Comparison()
    for dtype in (np.float32, np.int64):
        data = (rng.standard_normal((4, 3, 5)) * 9).astype(dtype)
        for name in NAMES:
            pair = [m.tensor(data) for m in (genesis, torch)]
            for m, x in zip((genesis, torch), pair, strict=True):
                key = _keys(m)[name]
                x[key] = 3
                x[:, 1:][..., 0] = m.tensor(data)[:, 1:, 3]
                if name not in ("array", "last"):
                    x[key] = m.tensor(data[0, 0, :1].reshape(1))
            comparison.add(name, pair[0], pair[1])
    comparison.check()


def test_values_broadcast_and_convert() -> None:
    for m in (genesis, torch):
        x = m.zeros(2, 3)
        x[0] = m.ones(1, 3)
        x[1] = m.tensor([1, 2, 3])
        x[:, 0] = True
        x[[0, 1], 2] = m.tensor([[5.0, 6.0]])
        assert x.tolist() == [[1, 1, 5], [1, 2, 6]]
        n = m.zeros(3, dtype=m.int64)
        n[:2] = m.tensor([1.7, -1.7])
        assert n.tolist() == [1, -1, 0]


def test_writing_by_a_mask_is_a_choice() -> None:
    """It asks for no contents, so it can be recorded."""
    written = {
        "number": lambda m, x: x.__setitem__(x > 3, 0.5),
        "rows": lambda m, x: x.__setitem__(x[:, 0] > 3, m.tensor([1.0, 2.0, 3.0, 4.0])),
        "one row": lambda m, x: x.__setitem__(x[:, 0] > 3, m.ones(1, 4)),
        "columns": lambda m, x: x.__setitem__((slice(1, None), x[0] > 1), m.tensor([[7.0], [8.0]])),
        "one for each dimension": lambda m, x: x.__setitem__(x > 3, m.ones(1) * x.sum()),
    }
    for write in written.values():
        found = []
        for m in (genesis, torch):
            x = m.arange(12.0).reshape(3, 4)
            if m is genesis:
                genesis.jit(lambda x, write=write: write(genesis, x))(x)
            else:
                write(m, x)
            found.append(x.tolist())
        assert found[0] == found[1]
    with pytest.raises(ValueError, match="expand"):
        genesis.zeros(2, 3)[genesis.tensor([True, False])] = genesis.ones(2)


def test_views_and_their_base() -> None:
    for m in (genesis, torch):
        x = m.arange(12.0).reshape(3, 4)
        row, column = x[1], x[:, 1]
        x[1:3] = 0
        assert row.tolist() == [0] * 4 and column.tolist() == [1, 0, 0]
        row[1:3] = 5
        assert x[1].tolist() == [0, 5, 5, 0] and column.tolist() == [1, 5, 0]
        x[m.tensor([0, 2])] = -1
        assert column.tolist() == [-1, 5, -1]
        x[m.tensor([0, 2])].zero_()  # a copy
        assert column.tolist() == [-1, 5, -1]


def test_gradients_of_a_chain_of_writes() -> None:
    comparison = Comparison()

    def chain(m: Any, x: Any, w: Any) -> Any:
        y = x.clone()
        first, second = y[0], y[1:]
        before = y + w.sum()
        first += w[0] * 2
        second[0] = first * 2
        y[:, 1] = w
        first[1:].zero_()
        second.add_(y[0].sum())
        y[y.detach() > 100] = 0.5
        return y, before, first, second

    rng = np.random.default_rng(1)
    comparison.function("chain", chain, rng.standard_normal((3, 4)), rng.standard_normal(3))
    comparison.check()


def test_a_view_is_looked_at_without_gradients() -> None:
    for m in (genesis, torch):
        x = m.ones(3, requires_grad=True)
        y = x * 1
        view = y[1:]
        y.mul_(2)
        with m.no_grad():
            assert view.requires_grad  # this must not decide what it is part of later
        (view * view).sum().backward()
        assert x.grad.tolist() == [0, 8, 8]


def test_what_is_overwritten_after_it_was_saved() -> None:
    x = genesis.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1
    z = y * y  # PyTorch raises in backward; here the tape has kept the value
    y.zero_()
    z.sum().backward()
    assert x.grad.tolist() == [2, 4]


def test_a_fill_keeps_the_graph() -> None:
    for m in (genesis, torch):
        x = m.ones(3, requires_grad=True)
        y = x * 2
        y.zero_()
        assert y.requires_grad and not y.is_leaf
        (y.sum() + (x * 0).sum()).backward()
        assert x.grad.tolist() == [0, 0, 0]
        w = m.ones(2, requires_grad=True)
        z = m.zeros(3)
        z[:2] = w
        assert z.requires_grad
        (z * z).sum().backward()
        assert w.grad.tolist() == [2, 2]
        z = m.zeros(2)
        z.copy_(w)
        assert z.requires_grad and not z.is_leaf


def test_infinite_gradients_stay_where_they_belong() -> None:
    x = genesis.ones(3, requires_grad=True)
    y = x * 1
    y[0] = 2.0
    y.backward(genesis.tensor([float("inf"), float("nan"), 1.0]))
    assert str(x.grad.tolist()) == "[0.0, nan, 1.0]"


I = np.array([[0, 2, 1], [1, 1, 0]])  # noqa: E741
ALONG: dict[str, Any] = {
    "index_select": lambda m, x, i, s: m.index_select(x, 1, i[1]),
    "index_select scalar": lambda m, x, i, s: x[0, 0].index_select(0, i[0, :1] * 0),
    "gather": lambda m, x, i, s: m.gather(x, 0, i) + x.gather(1, i),
    "gather last": lambda m, x, i, s: m.gather(x, -1, i),
    "take": lambda m, x, i, s: m.take(x, i * 2),
    "take_along_dim": lambda m, x, i, s: m.take_along_dim(x, i[:, :1], 1),
    "take_along_dim flat": lambda m, x, i, s: m.take_along_dim(x, i),
    "scatter": lambda m, x, i, s: m.scatter(x, 0, i[:1], s[:1]),
    "scatter number": lambda m, x, i, s: m.scatter(x, 1, i, 2.5) * x.scatter(1, i, value=3.0),
    "scatter larger": lambda m, x, i, s: x.scatter(1, i[:1, :2], s.detach()),
    "scatter_add": lambda m, x, i, s: m.scatter_add(x, 1, i, s),
    "scatter reduce": lambda m, x, i, s: x.scatter(1, i, s, reduce="add").detach(),
    "sum": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "sum"),
    "sum without": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "sum", include_self=False),
    "mean": lambda m, x, i, s: m.scatter_reduce(x, 0, i, s, "mean"),
    "mean without": lambda m, x, i, s: m.scatter_reduce(x, 0, i, s, "mean", include_self=False),
    "prod": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "prod"),
    "prod without": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "prod", include_self=False),
    "amax": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "amax"),
    "amin without": lambda m, x, i, s: m.scatter_reduce(x, 1, i, s, "amin", include_self=False),
    "index_add": lambda m, x, i, s: m.index_add(x, 1, i[1], s, alpha=2),
    "index_copy": lambda m, x, i, s: m.index_copy(x, 1, i[0], s),
    "index_fill": lambda m, x, i, s: m.index_fill(x, 1, i[1], -2.0),
    "index_fill tensor": lambda m, x, i, s: x.index_fill(1, i[1], s[0, 0]),
    "index_put": lambda m, x, i, s: m.index_put(x, (i[0, :2] // 2, i[0, :2]), s[0, :2]),
    "index_put add": lambda m, x, i, s: m.index_put(x, (i[1], i[0]), s[0], accumulate=True),
    "put": lambda m, x, i, s: m.ravel(x.put(i[0] * 2, s[0])),
    "put add": lambda m, x, i, s: x.put(i * 2, s, accumulate=True),
    "where": lambda m, x, i, s: m.where(x > s, x, s * 2) + x.where(i == 1, s),
    "masked_fill": lambda m, x, i, s: m.masked_fill(x, i == 1, 4.0) * x.masked_fill(i > 0, s[0, 0]),
    "masked_fill wide": lambda m, x, i, s: x.masked_fill(i[:1] == 1, -1),
    "masked_select": lambda m, x, i, s: m.masked_select(x, i > 0),
    "masked_select wide": lambda m, x, i, s: x[:1].masked_select(i > 0),
    "masked_scatter": lambda m, x, i, s: m.masked_scatter(x, i == 1, s),
    "embedding": lambda m, x, i, s: m.nn.functional.embedding(i[1], x),
    "embedding padded": lambda m, x, i, s: m.nn.functional.embedding(i[1], x, padding_idx=-1),
}  # fmt: skip


def test_along_dimensions(rng: np.random.Generator) -> None:
    comparison = Comparison()
    x, s = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    functions = dict(ALONG)
    if not hasattr(genesis, "nn") or not hasattr(genesis.nn, "functional"):
        for name in ("embedding", "embedding padded"):
            del functions[name]
        padded = {"embedding padded": -1, "embedding": None}
        for name, row in padded.items():
            functions[name] = lambda m, x, i, s, row=row: (
                m.embedding(i[1], x, row)
                if m is genesis
                else m.nn.functional.embedding(i[1], x, padding_idx=row)
            )
    for name, function in functions.items():
        rows = I[:, :] % 2 if name in ("gather", "mean", "mean without", "scatter") else I
        rows = rows % 2 if "embedding" in name else rows
        comparison.function(name, lambda m, x, s, i, f=function: f(m, x, i, s), x, s, rows)
    comparison.check()


def test_other_types(rng: np.random.Generator) -> None:
    comparison = Comparison()
    x, s = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    chosen = ("gather", "take", "scatter_add", "index_add", "index_put add", "put add", "mean")
    for name in chosen:
        rows = I % 2 if name in ("gather", "mean") else I

        def half(m: Any, x: Any, s: Any, i: Any, name: str = name) -> Any:
            return ALONG[name](m, x.bfloat16(), i, s.bfloat16()).double()

        def complex_(m: Any, x: Any, s: Any, i: Any, name: str = name) -> Any:
            return ALONG[name](m, m.complex(x, s), i, m.complex(s, x)).real

        comparison.function(f"bfloat16 {name}", half, x, s, rows, order=1)
        if name != "mean":
            comparison.function(f"complex {name}", complex_, x, s, rows, order=1)
    comparison.check(rtol=2e-2, atol=1e-2)


def test_folds_with_ties_and_zeros() -> None:
    comparison = Comparison()
    x = np.array([[1.0, 0.0, 2.0, 3.0], [0.0, 5.0, 5.0, 1.0]])
    s = np.array([[1.0, 0.0, 0.0, 3.0], [2.0, 0.0, 5.0, 5.0]])
    i = np.array([[0, 0, 1, 3], [0, 0, 2, 2]])
    for reduce in ("amax", "amin", "prod"):
        for own in (True, False):

            def fold(m: Any, x: Any, s: Any, i: Any, reduce: str = reduce, own: bool = own) -> Any:
                return m.scatter_reduce(x, 1, i, s, reduce, include_self=own)

            comparison.function(f"{reduce} {own}", fold, x, s, i, order=1, squared=False)
            comparison.function(
                f"index {reduce} {own}",
                lambda m, x, s, i, reduce=reduce, own=own: m.index_reduce(
                    x, 1, i[0], s, reduce, include_self=own
                ),
                x, s, i, order=1, squared=False,
            )  # fmt: skip
    comparison.check()


def test_in_place_forms(rng: np.random.Generator) -> None:
    comparison = Comparison()
    steps: dict[str, Any] = {
        "index_add_": lambda x, i, s: x.index_add_(1, i[1], s),
        "index_copy_": lambda x, i, s: x.index_copy_(1, i[0], s),
        "index_fill_": lambda x, i, s: x.index_fill_(1, i[1], 2.0),
        "index_put_": lambda x, i, s: x.index_put_((i[1] * 0, i[0]), s[0]),
        "scatter_": lambda x, i, s: x.scatter_(1, i[:1], s[:1]),
        "scatter_add_": lambda x, i, s: x.scatter_add_(1, i, s),
        "scatter_reduce_": lambda x, i, s: x.scatter_reduce_(1, i, s, "amax"),
        "masked_fill_": lambda x, i, s: x.masked_fill_(i == 1, 2.0),
        "masked_scatter_": lambda x, i, s: x.masked_scatter_(i == 1, s),
        "put_": lambda x, i, s: x.put_(i[0], s[0]),
        "fill_diagonal_": lambda x, i, s: x.fill_diagonal_(7.0),
        "tril_": lambda x, i, s: x.tril_(),
    }
    x, s = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    for name, step in steps.items():

        def written(m: Any, x: Any, s: Any, i: Any, step: Any = step) -> Any:
            base = m.cat([x, x])
            found = step(base[1:3], i, s)
            return base * 2, found

        comparison.function(name, written, x, s, I)
    comparison.check()


def test_positions_are_remembered_as_they_were() -> None:
    for m in (genesis, torch):
        x = m.arange(4.0).requires_grad_()
        i = m.tensor([0, 1])
        y = x[i.clone()] if m is torch else x[i]  # PyTorch refuses where we keep the old ones
        i += 2
        y.sum().backward()
        assert x.grad.tolist() == [1, 1, 0, 0]


def test_selecting() -> None:
    x = genesis.tensor([[0, 3], [4, 0]])
    assert genesis.nonzero(x).tolist() == [[0, 1], [1, 0]]
    assert [v.tolist() for v in x.nonzero(as_tuple=True)] == [[0, 1], [1, 0]]
    assert genesis.argwhere(x > 3).tolist() == [[1, 0]]
    assert genesis.one_hot(genesis.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert genesis.tensor(5).nonzero(as_tuple=True)[0].tolist() == [0]
    for m in (genesis, torch):
        y = m.tensor([[0, 3], [4, 0]])
        assert m.nonzero_static(y, size=3).tolist() == [[0, 1], [1, 0], [-1, -1]]
        assert y.nonzero_static(size=1, fill_value=9).tolist() == [[0, 1]]
        assert [v.tolist() for v in m.where(y > 3)] == [[1], [0]]
        assert [v.tolist() for v in m.unravel_index(m.tensor([3, 4]), (2, 3))] == [[1, 1], [0, 1]]
    assert genesis.jit(lambda x: genesis.nonzero_static(x, size=2))(x).tolist() == [[0, 1], [1, 0]]


def test_where_this_differs_from_pytorch() -> None:
    x = genesis.arange(6).reshape(3, 2)
    with pytest.raises(IndexError, match="single Ellipsis"):
        x[..., ...]


@st.composite
def _random_index(draw: st.DrawFn) -> Any:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(0 if rank < 3 else 1, 4)) for _ in range(rank))
    key: list[Any] = []
    axis = 0
    length = draw(st.integers(1, 3))
    while axis < rank and draw(st.booleans() | st.just(True)):
        n = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "none", "array", "whole", "single"]))
        if kind == "none":
            key.append(None)
            if len(key) > 6:
                break
            continue
        if n == 0 or kind == "whole":
            key.append(slice(None))
        elif kind == "int":
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-n - 1, n + 1)
            key.append(slice(draw(bound), draw(bound), draw(st.integers(1, 3))))
        else:
            size = [] if kind == "single" else [draw(st.sampled_from([1, length]))]
            count = int(np.prod(size))
            places = draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count))
            key.append(np.array(places, np.int64).reshape(size))
        axis += 1
    return shape, tuple(key)


@settings(max_examples=60)
@given(_random_index())
def test_random_indices(case: Any) -> None:
    shape, key = case
    data = np.arange(float(np.prod(shape))).reshape(shape)

    def of(m: Any) -> Any:
        return tuple(m.tensor(k) if isinstance(k, np.ndarray) else k for k in key)

    mine, theirs = genesis.tensor(data), torch.tensor(data)
    found, expected = mine[of(genesis)], theirs[of(torch)]
    assert tuple(found.shape) == tuple(expected.shape)
    new = np.full(expected.shape, -1.0)
    mine[of(genesis)] = genesis.tensor(new)
    theirs[of(torch)] = torch.tensor(new)
    nd.realize(found.array, mine.array)
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    # A view has changed with its base. A tensor without dimensions is an integer to PyTorch, and
    # gives a view; here it is data, and gives a copy.
    if any(isinstance(k, np.ndarray) and k.ndim for k in key):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


ERRORS: dict[str, Any] = {
    "out of range": lambda m, x: x[4],
    "out of range below": lambda m, x: x[0, -4],
    "too many": lambda m, x: x[0, 0, 0],
    "float": lambda m, x: x[1.5],
    "float tensor": lambda m, x: x[m.tensor([1.0])],
    "string": lambda m, x: x["a"],
    "negative step": lambda m, x: x[::-1],
    "step of zero": lambda m, x: x[::0],
    "mask of another shape": lambda m, x: x[m.tensor([True, False])],
    "positions out of range": lambda m, x: x[m.tensor([0, 4])].tolist(),
    "positions that do not broadcast": lambda m, x: x[m.tensor([0, 1]), m.tensor([0, 1, 2])],
    "value too large": lambda m, x: x.__setitem__(0, m.zeros(2, 3)),
    "value of another shape": lambda m, x: x.__setitem__((slice(None), [0, 1]), m.zeros(3)),
    "gather rank": lambda m, x: m.gather(x, 0, m.tensor([0])),
    "scatter values": lambda m, x: x.scatter(0, m.zeros(2, 3, dtype=m.int64), m.zeros(1, 3)),
    "scatter dtype": lambda m, x: x.scatter(0, m.zeros(1, 3, dtype=m.int64), x.double()),
    "index_select of a matrix": lambda m, x: x.index_select(0, m.zeros(2, 2, dtype=m.int64)),
    "index_add shape": lambda m, x: x.index_add(0, m.tensor([0]), m.zeros(2, 3)),
    "mask of integers": lambda m, x: x.masked_fill(m.zeros(4, 3, dtype=m.int64), 1.0),
    "masked_fill with a vector": lambda m, x: x.masked_fill(x > 0, m.zeros(3)),
    "leaf": lambda m, x: m.zeros(2, requires_grad=True).__setitem__(0, 1.0),
    "view of a leaf": lambda m, x: m.zeros(2, 2, requires_grad=True)[0].zero_(),
    "leaf by positions": lambda m, x: m.zeros(2, requires_grad=True).__setitem__([0, 1], 1.0),
    "through an expansion": lambda m, x: x[:1].expand(4, 3).add_(x),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    for module in (genesis, torch):
        x = module.zeros(4, 3)
        with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
            ERRORS[name](module, x)


def _random_writes(m: Any, x: Any, seed: int) -> list[Any]:
    """Views of views and writes to all of them; linear, so that PyTorch saves nothing."""
    rng = np.random.default_rng(seed)
    pool = [x * 2, x + 1]
    for _ in range(10):
        y = pool[rng.integers(len(pool))]
        z = pool[rng.integers(len(pool))]
        rank = y.ndim
        match rng.integers(7):
            case 0 if rank > 1:
                pool.append(y[rng.integers(y.shape[0])])
            case 1 if rank > 0:
                pool.append(y[..., rng.integers(y.shape[-1]) :])
            case 2 if rank > 1:
                pool.append(y.transpose(0, -1))
            case 3:
                y.mul_(float(rng.integers(1, 4)) / 2)
            case 4:
                y.add_(z.sum() * 0.25)
            case 5 if rank > 0:
                y[..., : rng.integers(1, y.shape[-1] + 1)] = z.mean()
            case 6 if rank > 0:
                at = m.tensor(rng.permutation(y.shape[0])[:2].copy())
                y[at] = y[at] * 0.5 + z.sum()
    return pool


def test_random_views_and_writes() -> None:
    comparison = Comparison()
    data = np.random.default_rng(7).standard_normal((3, 4))
    for seed in range(12):
        comparison.function(
            f"seed {seed}", lambda m, x, seed=seed: _random_writes(m, x, seed), data, order=1
        )
    comparison.check(rtol=1e-9)


FLAGS = (
    True, False, (True, 0), (0, True), (slice(None), True), (Ellipsis, True), (True, Ellipsis),
    (None, True), (0, True, 1), (True, True), (False, True), (True, slice(0, 1)), (True, [0, 1]),
    ([0, 1], True), (slice(None), True, [0, 2]), (True, slice(None), [0, 2]), (Ellipsis, False, 0),
)  # fmt: skip


@pytest.mark.parametrize("key", FLAGS, ids=str)
@pytest.mark.parametrize("form", ["python", "array"])
def test_masks_without_dimensions(key: Any, form: str) -> None:
    """Each is a new dimension of extent 1, from which something or nothing is picked: a copy."""

    def as_form(make: Callable[[Any], Any]) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        made = [make(k) if isinstance(k, bool) and form == "array" else k for k in keys]
        return tuple(made) if isinstance(key, tuple) else made[0]

    held = np.arange(6, dtype=np.float32).reshape(2, 3)
    for x, mine, theirs, other in (
        (genesis.tensor(held), genesis.tensor, torch.tensor, torch.tensor(held)),
        (nd.array(held), nd.array, np.array, held.copy()),
    ):
        found, wanted = x[as_form(mine)], other[as_form(theirs)]
        assert tuple(found.shape) == tuple(wanted.shape)
        assert found.tolist() == wanted.tolist()
        found += 1  # does not reach what it was picked from
        assert x.tolist() == other.tolist()
        x[as_form(mine)] = 7.0
        other[as_form(theirs)] = 7.0
        assert x.tolist() == other.tolist()


@pytest.mark.parametrize("make", [genesis.zeros, nd.zeros])
def test_writing_nothing_writes_nothing(make: Callable[..., Any]) -> None:
    x = make(2)
    x[:, None][1, 0:0] = 63
    x[None][0:0, 1] = 63
    x[None, :, None][0:0, 1] = 63
    x.reshape(1, 2, 1)[0, 1, 1:] = 63
    x[1:1] = 63
    assert x.tolist() == [0, 0]
