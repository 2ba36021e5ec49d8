"""What `vmap` does beyond arithmetic: random numbers, loops, writes, modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import func, nn

X = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)


def test_random_numbers_of_examples() -> None:
    x = genesis.zeros(5, 3)

    def drawn(randomness: str) -> Any:
        return func.vmap(lambda x: x + genesis.rand(3), randomness=randomness)(x).numpy()

    genesis.manual_seed(0)
    first, second = drawn("different"), drawn("different")
    assert len(np.unique([first, second])) == 30
    genesis.manual_seed(0)
    np.testing.assert_array_equal(drawn("different"), first)
    equal = drawn("same")
    np.testing.assert_array_equal(equal, np.broadcast_to(equal[0], equal.shape))
    assert not np.array_equal(drawn("same"), equal)  # the generator has gone on


def test_random_numbers_are_independent_and_nest() -> None:
    x = genesis.zeros(5, 3)
    many = func.vmap(lambda _: genesis.randn(2000), randomness="different")(x).numpy()
    assert abs(many.mean()) < 0.03 and abs(many.std() - 1) < 0.03
    assert abs(np.corrcoef(many) - np.eye(5)).max() < 0.1

    def one(x: Any) -> Any:
        return x + genesis.rand(())

    inner = func.vmap(one, randomness="different")
    assert len(np.unique(func.vmap(inner, randomness="different")(x).numpy())) == 15
    shared = func.vmap(inner, randomness="same")(x).numpy()
    assert len(np.unique(shared)) == 3 and (shared[0] == shared[1]).all()
    chunks = func.vmap(one, randomness="different", chunk_size=2)(x[:, 0]).numpy()
    assert len(np.unique(chunks)) == 5


def test_dropout_of_examples_in_a_jitted_gradient() -> None:
    def f(x: Any) -> Any:
        return nn.functional.dropout(x, 0.5).sum()

    masks = genesis.jit(func.vmap(func.grad(f), randomness="different"))
    first, second = (masks(genesis.ones(50, 20)).numpy() for _ in range(2))
    assert set(np.unique(first)) == {0.0, 2.0}
    assert len({tuple(row) for row in np.concatenate([first, second])}) == 100


def test_scan_inside() -> None:
    rate = genesis.tensor(0.7)

    def f(x: Any) -> Any:
        last, ys = genesis.scan(lambda c, e: ((c * rate + e).tanh(), c), x[0] * 0, x)
        return last + ys.sum()

    def loop(x: Any) -> Any:
        c, total = x[0] * 0, 0
        for e in x:
            total = total + c
            c = (c * 0.7 + e).tanh()
        return c + total

    x, other = genesis.tensor(X), torch.tensor(X)
    pairs = [
        (func.vmap(f)(x), torch.func.vmap(loop)(other)),
        (func.vmap(func.grad(f))(x), torch.func.vmap(torch.func.grad(loop))(other)),
        (
            func.grad(lambda x: func.vmap(f)(x).sin().sum())(x),
            torch.func.grad(lambda x: torch.func.vmap(loop)(x).sin().sum())(other),
        ),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-5, 1e-5)


def test_a_carry_that_differs_only_later() -> None:
    xs, scales = genesis.tensor(X[:, 0]), genesis.tensor([1.0, 2.0, 3.0])

    def f(s: Any) -> Any:
        return genesis.scan(lambda c, e: (c + e * s, c), genesis.tensor(0.0), xs)[1]

    expected = [np.cumsum([0.0, *(X[:-1, 0] * s)]) for s in (1.0, 2.0, 3.0)]
    np.testing.assert_allclose(func.vmap(f)(scales).numpy(), expected, 1e-5, 1e-5)


def test_writes_to_arguments_and_to_what_is_shared() -> None:
    x = genesis.tensor(X)
    func.vmap(lambda row: row.add_(1))(x)
    np.testing.assert_allclose(x.numpy(), X + 1)
    columns = genesis.tensor(X)
    func.vmap(lambda column: column[1:].mul_(2).sum(), in_dims=1)(columns)
    np.testing.assert_allclose(columns.numpy(), np.concatenate([X[:1], 2 * X[1:]]))
    calls, total = genesis.zeros(()), genesis.zeros(())

    def counted(row: Any) -> Any:
        calls.add_(1)
        return row

    func.vmap(counted)(x)
    assert calls.item() == 1
    with pytest.raises(RuntimeError, match=r"differs between examples .*test_vmap.py"):
        func.vmap(lambda row: total.add_(row.sum()))(x)


def test_an_ensemble_of_modules() -> None:
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(6)]
    params, buffers = func.stack_module_state(models)
    x = genesis.tensor(X)
    call = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)))
    found, expected = call(params, buffers), genesis.stack([model(x) for model in models])
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), 1e-5, 1e-6)
    found.square().sum().backward()
    expected.square().sum().backward()
    each = [model[0].weight.grad.numpy() for model in models]
    np.testing.assert_allclose(params["0.weight"].grad.numpy(), each, 1e-4, 1e-5)


def test_functional_call_ties_restores_and_checks() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    before = model[0].weight
    x, new = genesis.ones(2), genesis.eye(2) * 2
    tied = func.functional_call(model, {"0.weight": new}, x)
    assert tied.tolist() == [4.0, 4.0] and model[0].weight is model[1].weight is before
    apart = func.functional_call(model, {"0.weight": new}, x, tie_weights=False)
    np.testing.assert_allclose(apart.detach().numpy(), (before @ (2 * x)).detach().numpy())
    with pytest.raises(KeyError, match="no parameter or buffer 'weight'"):
        func.functional_call(model, {"weight": new}, x)
    with pytest.raises(RuntimeError, match="strict"):
        func.functional_call(model, {}, x, strict=True)
    step = genesis.jit(lambda w: func.functional_call(model, {"0.weight": w}, (x,)).sum())
    assert [step(new * k).item() for k in (1.0, 2.0, 3.0)] == [8.0, 32.0, 72.0]
    assert step.captures == 1 and model[0].weight is before


def test_per_example_gradients_of_a_convolutional_network() -> None:
    def made(m: Any) -> Any:
        return m.nn.Sequential(
            m.nn.Conv2d(3, 4, 3, padding=1), m.nn.ReLU(), m.nn.MaxPool2d(2),
            m.nn.Conv2d(4, 6, 3), m.nn.GroupNorm(2, 6), m.nn.Flatten(), m.nn.Linear(24, 5),
        )  # fmt: skip

    theirs, ours = made(torch), made(genesis)
    ours.load_state_dict({k: genesis.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(2)
    images, labels = rng.standard_normal((4, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, 4)

    def gradients(m: Any, f: Any, model: Any) -> Any:
        def loss(p: Any, x: Any, y: Any) -> Any:
            logits = f.functional_call(model, p, (x.unsqueeze(0),))
            return m.nn.functional.cross_entropy(logits, y.unsqueeze(0))

        params = {name: p.detach() for name, p in model.named_parameters()}
        per_example = f.vmap(f.grad(loss), in_dims=(None, 0, 0))
        return per_example(params, m.tensor(images), m.tensor(labels))

    expected = gradients(torch, torch.func, theirs)
    for name, found in gradients(genesis, func, ours).items():
        np.testing.assert_allclose(found.numpy(), expected[name].numpy(), 1e-3, 1e-4)


def test_custom_derivatives() -> None:
    sine = func.custom_jvp(lambda x: x.sin())
    sine.defjvp(lambda primals, tangents: (primals[0].sin(), primals[0].cos() * tangents[0]))
    x = genesis.tensor(X)
    np.testing.assert_allclose(func.grad(lambda x: sine(x).sum())(x).numpy(), np.cos(X), 1e-5)
    tangent = func.jvp(sine, (x,), (x,))[1]
    np.testing.assert_allclose(tangent.numpy(), np.cos(X) * X, 1e-5)
    second = func.vmap(func.grad(lambda x: func.grad(lambda x: sine(x).sum())(x).sum()))
    np.testing.assert_allclose(second(x).numpy(), -np.sin(X), 1e-5)

    doubled = func.custom_vjp(lambda pair, k: pair[0] * pair[1] * k)
    doubled.defvjp(
        lambda pair, k: (pair[0] * pair[1] * k, (pair, k)),
        lambda kept, grad: (tuple(2 * grad * kept[1] * p for p in reversed(kept[0])), None),
    )
    both = genesis.jit(func.vmap(func.grad(lambda x: doubled((x, x), 3.0).sum())))
    np.testing.assert_allclose(both(x).numpy(), 12 * X, 1e-5)
    with pytest.raises(RuntimeError, match="call defjvp"):
        func.custom_jvp(lambda x: x)(x)
