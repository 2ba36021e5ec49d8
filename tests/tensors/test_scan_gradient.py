"""`genesis.scan`: gradients of loops, to first and second order, against loops in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional, nn


def unrolled(body: Any, carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """What `scan` means, on PyTorch's or on our tensors; the ys are tuples."""
    ys: list[Any] = []
    count = len(xs)
    for t in reversed(range(count)) if reverse else range(count):
        carry, y = body(carry, xs[t])
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    join = torch.stack if isinstance(xs, torch.Tensor) else functional.stack
    return carry, tuple(join(list(each)) for each in zip(*ys, strict=True))


def leaf(x: Any) -> Any:
    return genesis.tensor(x, requires_grad=True)


def grad(outputs: Any, inputs: Any, **options: Any) -> Any:
    return genesis.autograd.grad(outputs, inputs, **options)


def torch_leaf(x: Any) -> Any:
    return torch.tensor(x, requires_grad=True)


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        a, b = a.detach().numpy(), b.detach().numpy()
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reverse", [False, True])
def test_first_and_second_gradients_are_those_of_the_unrolled_loop(
    reverse: bool, rng: np.random.Generator
) -> None:
    """Carries, xs and what the body uses from outside: matrices, and whatever they are made of."""
    shapes = [(5, 2, 3), (2, 3), (3, 3), (3,), (3, 3)]
    arrays = [rng.standard_normal(s) * 0.7 for s in shapes]
    weight = rng.standard_normal((5, 2, 3))

    def run(lib: Any, loop: Any, make: Any) -> list[Any]:
        x, h, w, b, v = given = [make(a) for a in arrays]
        product, both = w.T * 1.0, v @ v  # from outside, but no leaves; `both` is also made of v

        def body(carry: Any, x: Any) -> Any:
            h, count = carry
            z = lib.tanh(h @ product + x + b) * 1.5 + 0.3 * h
            z = z + (z @ both) * lib.sin(both.sum() + v.sum()) + h @ w.T[:, 1:3] @ w[:2]
            return (z, count + 1), (z * z * count, (h * x).sum())

        start = (h, lib.zeros((), dtype=lib.int64))
        (last, count), (ys, scalars) = loop(body, start, x, reverse=reverse)
        assert count.item() == 5
        loss = (last * last).sum() + (ys * make(weight)).sum() + scalars.sum()
        first = lib.autograd.grad(loss, given, create_graph=True)
        second = lib.autograd.grad(sum((g * g).sum() for g in first), given)
        return [last, ys, scalars, *first, *second]

    ours = run(genesis, genesis.scan, leaf)
    assert_close(ours, run(torch, unrolled, torch_leaf))


def test_trees_integers_and_nothing(rng: np.random.Generator) -> None:
    """Carries and xs of any structure; an unused y; an index from the xs into an outside table."""
    table, x = rng.standard_normal((7, 3)), rng.standard_normal((4, 3))
    index = np.array([6, 0, 6, 2])

    def ours() -> list[Any]:
        given = [leaf(table), leaf(x)]

        def body(c: Any, step: Any) -> Any:
            row = given[0][step["index"]] * step["x"]
            return {"sum": c["sum"] + row, "none": None}, (row, None, row * 2)

        carry = {"sum": genesis.zeros(3, dtype=genesis.float64), "none": None}
        xs = {"x": given[1], "index": genesis.tensor(index)}
        last, (rows, nothing, _) = genesis.scan(body, carry, xs)
        assert nothing is None
        loss = (last["sum"] ** 3).sum() + (rows**2).sum()
        return [loss, *grad(loss, given)]

    t, e = torch_leaf(table), torch_leaf(x)
    rows = t[torch.tensor(index)] * e
    loss = (rows.sum(0) ** 3).sum() + (rows**2).sum()
    assert_close(ours(), [loss, *torch.autograd.grad(loss, [t, e])])


def test_only_what_needs_gradients_has_them(rng: np.random.Generator) -> None:
    x = genesis.tensor(rng.standard_normal((3, 2)))
    w = leaf(rng.standard_normal(2))
    last, ys = genesis.scan(lambda c, x: (c + x, c * x), genesis.tensor(np.zeros(2)), x)
    assert not last.requires_grad and not ys.requires_grad
    with genesis.no_grad():
        last, ys = genesis.scan(lambda c, x: (c * w, c), x[0], x)
    assert not last.requires_grad and not ys.requires_grad
    last, ys = genesis.scan(lambda c, x: (c * w, x), x[0], x)
    assert last.requires_grad
    (gradient,) = grad(last.sum(), w)
    np.testing.assert_allclose(gradient.numpy(), (3 * x[0] * w**2).detach().numpy())


def test_the_body_may_write_to_what_it_is_given(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3))

    matrix = rng.standard_normal((3, 3))

    def body(c: Any, x: Any) -> Any:
        c *= x
        c[0] = x.sum()
        product = genesis.tanh(c[None] @ weight)
        product *= x
        c[1] += product[0, 1]
        return c, c.clone()

    given, weight = leaf(x), leaf(matrix)
    _, ys = genesis.scan(body, genesis.ones(3, dtype=genesis.float64), given)
    ours = grad((ys**2).sum(), [given, weight])

    other, theirs = torch_leaf(x), torch_leaf(matrix)
    carry, total = torch.ones(3, dtype=torch.float64), torch.zeros(())
    for t in range(4):
        carry = carry * other[t]
        carry = torch.cat([other[t].sum()[None], carry[1:]])
        added = torch.tanh(carry @ theirs)[1] * other[t, 1]
        carry = torch.stack([carry[0], carry[1] + added, carry[2]])
        total = total + (carry**2).sum()
    assert_close(ours, torch.autograd.grad(total, [other, theirs]))


def test_scans_nest(rng: np.random.Generator) -> None:
    """The inner loop uses the outer carry, and a weight, from outside."""
    x, w = rng.standard_normal((3, 4, 2)), rng.standard_normal((2, 2))

    def run(lib: Any, loop: Any, make: Any) -> list[Any]:
        given = [make(x), make(w)]

        def outer(c: Any, row: Any) -> Any:
            def inner(d: Any, e: Any) -> Any:
                after = lib.tanh(d @ given[1] + e * c)
                return after, (after * c,)

            last, (ys,) = loop(inner, lib.ones(1, 2, dtype=lib.float64), row)
            return last[0] + ys.sum((0, 1)), (ys,)

        last, (ys,) = loop(outer, lib.ones(2, dtype=lib.float64), given[0])
        loss = (last**2).sum() + ys.sum()
        first = lib.autograd.grad(loss, given, create_graph=True)
        return [loss, *first, *lib.autograd.grad((first[1] ** 2).sum(), given)]

    assert_close(run(genesis, genesis.scan, leaf), run(torch, unrolled, torch_leaf))


def test_random_draws_are_the_same_in_the_gradient() -> None:
    """The gradient of a sum of dropped elements shows which were kept, in every step."""
    genesis.manual_seed(3)
    x = leaf(np.ones((5, 40)))
    _, ys = genesis.scan(lambda c, x: (c, functional.dropout(x, 0.5)), genesis.zeros(1), x)
    after = genesis.rand(2)
    (gradient,) = grad(ys.sum(), x)
    later = genesis.rand(2)
    kept = ys.detach().numpy()
    np.testing.assert_array_equal(gradient.numpy(), kept)
    assert len({row.tobytes() for row in kept}) == 5

    genesis.manual_seed(3)
    genesis.scan(lambda c, x: (c, functional.dropout(x, 0.5)), genesis.zeros(1), x.detach())
    np.testing.assert_array_equal(after.numpy(), genesis.rand(2).numpy())
    np.testing.assert_array_equal(later.numpy(), genesis.rand(2).numpy())


def test_the_gradient_is_of_what_the_body_saw() -> None:
    """Weights and buffers that are overwritten before backward."""
    w, x = leaf(np.array(3.0)), genesis.tensor(np.ones(2))
    buffer = genesis.tensor(np.array(5.0))
    last, _ = genesis.scan(
        lambda c, x: (c * w * buffer + x, None), genesis.tensor(np.array(1.0)), x
    )
    last.item()
    with genesis.no_grad():
        w.zero_()
        buffer.zero_()
    (gradient,) = grad(last, w)
    assert gradient.item() == 2 * 3 * 25 + 5  # of (15 w' + 1) with w' = w * 5


def test_no_steps() -> None:
    c = leaf(np.array([1.0, 2.0]))
    w = leaf(np.array([3.0, 4.0]))
    last, ys = genesis.scan(lambda c, x: (c * w, c), c, genesis.zeros(0, 2))
    assert ys.shape == (0, 2)
    to_c, to_w = grad(last.sum(), [c, w])
    assert to_c.tolist() == [1.0, 1.0] and to_w.tolist() == [0.0, 0.0]


def test_without_xs() -> None:
    """c -> c**2 thrice is c**8."""
    c = leaf(np.array(1.5))
    last, _ = genesis.scan(lambda c, _: (c * c, None), c, length=3)
    (first,) = grad(last, c, create_graph=True)
    (second,) = grad(first, c)
    np.testing.assert_allclose(first.item(), 8 * 1.5**7)
    np.testing.assert_allclose(second.item(), 56 * 1.5**6)


def test_recorded_training_is_one_loop_forward_and_one_backward() -> None:
    """The weight's gradient is one product over all steps, outside the loop."""
    cell = nn.Linear(8, 8)
    x = genesis.randn(20, 4, 8)

    def train(x: Any) -> Any:
        cell.zero_grad()
        last, ys = genesis.scan(lambda h, x: (functional.tanh(cell(h) + x), h.sum()), x[0], x)
        loss = (last * last).mean() + ys.mean()
        loss.backward()
        return loss

    train(x)
    assert cell.weight.grad is not None
    expected = cell.weight.grad.numpy().copy()
    report = genesis.explain(train, x)
    assert report.proven
    products = [k.repeats for k in report.kernels if "contract" in k.operations]
    assert products == [20, 20, 1]  # forward, to the carry, and to the weight
    genesis.jit(train)(x)
    np.testing.assert_allclose(cell.weight.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_anomalies_of_loops_are_found() -> None:
    x = leaf(np.array([1.0, 0.0, 1.0]))
    with genesis.autograd.detect_anomaly():
        last, _ = genesis.scan(lambda c, x: (c + x.sqrt(), None), genesis.tensor(np.array(1.0)), x)
        with pytest.raises(genesis.autograd.AnomalyError, match="the gradient of Scan"):
            last.backward()


def test_errors_name_the_problem() -> None:
    x = leaf(np.ones((3, 2)))
    with pytest.raises(TypeError, match="the body returns"):
        genesis.scan(lambda c, x: c, x[0], x)
    with pytest.raises(ValueError, match=r"carry\['h'\] of float64 \(2,\) into float64 \(\)"):
        genesis.scan(lambda c, x: ({"h": x.sum()}, None), {"h": x[0]}, x)
    with pytest.raises(ValueError, match="give xs or a length"):
        genesis.scan(lambda c, _: (c, None), x[0])
