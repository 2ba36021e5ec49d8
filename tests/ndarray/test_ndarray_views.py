"""Views and in-place writes: every array that shares a storage sees a write, as in PyTorch."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from oracle_program import engine  # noqa: F401

from genesis import ndarray as nd

Pair = tuple[nd.NDArray, torch.Tensor]


def same(x: nd.NDArray, t: torch.Tensor) -> None:
    np.testing.assert_array_equal(x.numpy(), t.numpy())


def base(*shape: int) -> Pair:
    count = int(np.prod(shape))
    return nd.arange(count, dtype="float32").reshape(shape).copy(), torch.arange(
        count, dtype=torch.float32
    ).reshape(shape)


def test_writes_reach_every_view() -> None:
    x = nd.zeros((3, 4))
    row, column, flat, transposed = x[1], x[:, 2], x.reshape(-1), x.T
    row += 1
    column[0] = 7
    transposed[3, 2] = 9
    flat[0] = -1
    want = [[-1, 0, 7, 0], [1, 1, 1, 1], [0, 0, 0, 9]]
    assert x.tolist() == want
    assert column.tolist() == [7, 1, 0] and row.tolist() == [1, 1, 1, 1]
    assert flat.tolist() == [element for line in want for element in line]
    assert x.version == 4 and row.version == 4


def test_results_do_not_alias() -> None:
    x = nd.ones((2, 2))
    y = x + 0
    z = x.copy()
    x += 5
    assert y.tolist() == z.tolist() == [[1, 1], [1, 1]]
    z[0] = 3
    assert x.tolist() == [[6, 6], [6, 6]]


def test_what_was_computed_before_a_write_stays() -> None:
    x = nd.arange(4)
    before = x[1:3] * 10
    x[1:3] = 0
    after = x[1:3] * 10
    assert before.tolist() == [10, 20] and after.tolist() == [0, 0]


def test_overlapping_assignment_reads_the_old_value() -> None:
    x = nd.arange(5)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]


def test_reshape_copies_where_strides_cannot_alias() -> None:
    x, t = base(2, 3)
    ours, theirs = x.T.reshape(6), t.T.reshape(6)
    x += 1
    t += 1
    same(ours, theirs)
    assert ours[1].item() == 3  # the old value: a copy


def test_slices_with_steps() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = nd.array(a)
    keys: list[Any] = [
        np.s_[::2], np.s_[::-1], np.s_[3:0:-2, ::3], np.s_[-2:, -1], np.s_[None, 1, None, 2:],
        np.s_[..., 0], np.s_[1, ...], np.s_[:, 5:1:-3], np.s_[10:], np.s_[0:0], np.s_[-1],
        np.s_[..., None], np.s_[2:1], np.s_[np.int64(1)],
    ]  # fmt: skip
    for key in keys:
        np.testing.assert_array_equal(x[key].numpy(), a[key], err_msg=str(key))
    for n, key in enumerate(keys):
        x[key] = n
        a[key] = n
        np.testing.assert_array_equal(x.numpy(), a, err_msg=str(key))
    x[::-1, 1:3] += nd.arange(2)
    a[::-1, 1:3] += np.arange(2)
    np.testing.assert_array_equal(x.numpy(), a)


def test_in_place_operators() -> None:
    x, t = base(2, 3)
    for target, other in ((x, nd.array([1.0, 2.0, 4.0])), (t, torch.tensor([1.0, 2.0, 4.0]))):
        target += 1
        target *= other
        target -= 3.0
        target /= 2
        target[:, 1] *= target[:, 0]
    same(x, t)


def test_write_errors() -> None:
    with pytest.raises(TypeError, match=r"\+=: a float32 result does not fit into int64"):
        x = nd.arange(3)
        x += 0.5
    with pytest.raises(ValueError, match="cannot write through a view expanded to shape"):
        nd.zeros((1, 3)).expand(2, 3)[:, 0] = 1
    with pytest.raises(ValueError, match=r"assignment: shape \(3,\) does not fit into \(1,\)"):
        nd.zeros(3)[:1] = nd.ones(3)
    with pytest.raises(ValueError, match=r"\*=: the result's shape \(2, 3\) is not \(3,\)"):
        y = nd.ones(3)
        y *= nd.ones((2, 3))
    with pytest.raises(ValueError, match=r"assignment: shapes \(2,\) and \(3,\) do not"):
        nd.zeros(3)[nd.array([0, 1])] = nd.ones(3)


def test_assignment_casts_and_broadcasts() -> None:
    x = nd.zeros((2, 3), "int32")
    x[:] = nd.array([1.9, -2.9, 3.0])
    assert x.tolist() == [[1, -2, 3], [1, -2, 3]]
    x[0] = nd.full((1, 1, 3), 5)
    assert x[0].tolist() == [5, 5, 5]


def _random_view(r: random.Random, pair: Pair) -> Pair | None:
    x, t = pair
    kind = r.choice(["slice", "int", "permute", "reshape", "unsqueeze", "squeeze"])
    if kind == "slice" and t.ndim:
        axis = r.randrange(t.ndim)
        low, high = sorted(r.randrange(t.shape[axis] + 1) for _ in range(2))
        if low == high:
            return None
        key = (slice(None),) * axis + (slice(low, high, r.choice([1, 1, 2])),)
        return x[key], t[key]
    if kind == "int" and t.ndim:
        axis = r.randrange(t.ndim)
        key = (slice(None),) * axis + (r.randrange(t.shape[axis]),)
        return x[key], t[key]
    if kind == "permute":
        axes = list(range(t.ndim))
        r.shuffle(axes)
        return x.permute(axes), t.permute(axes)
    if kind == "reshape":
        shape = r.choice([(-1,), (t.numel(), 1), (2, -1), (-1, 3)])
        if t.numel() % int(abs(np.prod(shape))) == 0:
            return x.reshape(shape), t.reshape(shape)
    if kind == "unsqueeze":
        axis = r.randrange(t.ndim + 1)
        return x.unsqueeze(axis), t.unsqueeze(axis)
    if kind == "squeeze":
        return x.squeeze(), t.squeeze()
    return None


@pytest.mark.parametrize("seed", range(30))
def test_random_views_and_writes_against_torch(seed: int) -> None:
    r = random.Random(seed)
    pairs: list[Pair] = [base(4, 6), base(2, 3, 4)]
    for step in range(40):
        x, t = r.choice(pairs)
        action = r.random()
        if action < 0.5:
            view = _random_view(r, (x, t))
            if view is not None:
                pairs.append(view)
        elif action < 0.65:
            x += step
            t += step
        elif action < 0.8:
            x[...] = -step
            t[...] = -step
        elif action < 0.9:
            others = [p for p in pairs if p[1].shape == t.shape]
            y, u = r.choice(others)
            x *= y + 1
            t *= u.clone() + 1
        else:
            same(x, t)
        if len(pairs) > 12:
            pairs.pop(r.randrange(len(pairs)))
        if t.abs().max() > 1000:  # keep integers exact in float32
            x[...] = 1
            t[...] = 1
    for x, t in pairs:
        same(x, t)


def test_writes_are_in_place_when_nobody_holds_the_old_value() -> None:
    x = nd.zeros(1000).realize()
    pointer = x.value.memory.pointer  # type: ignore[union-attr]
    for _ in range(3):
        x += 1
        x.realize()
    assert x.value.memory.pointer == pointer  # type: ignore[union-attr]
    held = x.copy()
    x += 1
    x.realize()
    assert x.value.memory.pointer != pointer  # type: ignore[union-attr]
    assert held[0].item() == 3 and x[0].item() == 4


def test_a_view_that_was_read_does_not_prevent_reuse() -> None:
    x = nd.zeros(1000).realize()
    view = x[10:20]
    assert view.sum().item() == 0
    pointer = x.value.memory.pointer  # type: ignore[union-attr]
    x += 1
    x.realize()
    assert x.value.memory.pointer == pointer  # type: ignore[union-attr]
    assert view.sum().item() == 10


def test_memory_seen_by_numpy_is_not_reused() -> None:
    x = nd.zeros(1000).realize()
    window = x.numpy()
    x += 1
    x.realize()
    assert window.sum() == 0 and x.sum().item() == 1000
    foreign = np.zeros(1000, np.float32)
    y = nd.asarray(foreign)
    y += 1
    y.realize()
    assert foreign.sum() == 0 and y.sum().item() == 1000


def test_pending_views_keep_what_they_read() -> None:
    x = nd.zeros(1000).realize()
    view = x[:5].copy()  # a pending slice of the old value, held
    x += 1
    x.realize()
    assert view.tolist() == [0] * 5 and x[0].item() == 1
