"""Gradients that are copied, stretch by stretch, are those that a walk finds creator by creator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.autograd import backward_cache
from genesis.autograd.tape import Walk
from genesis.functional import cross_entropy
from genesis.ndarray.core.value import Extended


def _numbers(*shape: int, seed: int = 0) -> genesis.Tensor:
    made = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return genesis.tensor(made, requires_grad=True)


def _chain(x: Any, y: Any) -> Any:
    """Broadcasting, views, what is used twice, and a constant."""
    z = (x * y[0] + x.T.exp().T) / 3.0
    z = genesis.cat([z[1:], z[:1].tanh()])
    return ((z @ y.T) ** 2).mean() + x[0, 0]


class _Cubed(genesis.autograd.Function):
    """A rule that is not known: it ends a stretch."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grads[0]


def _with_a_rule_of_users(x: Any, y: Any) -> Any:
    middle = _Cubed.apply(x + y)
    return (middle * x).sum() + (middle.relu() * y).mean()


def _part_unused(x: Any, y: Any) -> Any:
    """Results of which only some get a gradient."""
    values, places = (x * 2).max(1)
    first, _, last = (y - 1).chunk(3)
    return (values.sum() + first.sum() * last.sum()) * places.sum()


def _recurrent(x: Any, y: Any) -> Any:
    state = y
    for row in x.unbind(0):
        state = (state * row).sigmoid() + state.detach()
    return state.sum()


LOSSES = [_chain, _with_a_rule_of_users, _part_unused, _recurrent]


def _gradients(loss: Callable[..., Any], leaves: list[Any]) -> list[bytes]:
    for x in leaves:
        x.grad = None
    loss(*leaves).backward()
    return [x.grad.numpy().tobytes() for x in leaves]


@pytest.mark.parametrize("loss", LOSSES)
def test_bits_are_the_same(loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extended, "by_users", False)  # other tests have classes of tensors
    leaves = [_numbers(3, 4), _numbers(3, 4, seed=1)]
    with monkeypatch.context() as walks:
        walks.setattr(Walk, "advance", staticmethod(lambda walk: len(walk.pending)))
        want = [_gradients(loss, leaves) for _ in range(4)]
    backward_cache._known.clear()
    for _ in range(5):
        assert _gradients(loss, leaves) == want[-1]
    assert any(backward_cache._known.values())


def test_what_differs_is_another_stretch() -> None:
    """The same creators, wired otherwise, of other sizes or dtypes, from other settings."""
    x, y = _numbers(3), _numbers(3, seed=1)
    losses: list[Callable[[Any, Any], Any]] = [
        lambda a, b: ((a * b) - a.exp()).sum(),
        lambda a, b: ((a * b) - b.exp()).sum(),
        lambda a, b: ((b * b) - a.exp()).sum(),
        lambda a, b: ((a * b) * 0.5 - a.exp()).sum(),
        lambda a, b: ((a * b) * 0.25 - a.exp()).sum(),
        lambda a, b: a[:2].reshape(2, 1).sum() + (b[1:3].reshape(2, 1) * 1.0).sum(),
        lambda a, b: a[1:3].reshape(2, 1).sum() + (b[:2].reshape(2, 1) * 1.0).sum(),
    ]
    for _ in range(4):
        for dtype in (genesis.float32, genesis.float64):
            for size in (1, 2):
                a0 = x.detach().repeat(size).to(dtype)
                b0 = y.detach().repeat(size).to(dtype)
                for loss in losses:
                    a, b = a0.clone().requires_grad_(), b0.clone().requires_grad_()
                    loss(a, b).backward()
                    p = torch.tensor(a0.numpy(), requires_grad=True)
                    q = torch.tensor(b0.numpy(), requires_grad=True)
                    loss(p, q).backward()  # type: ignore[no-untyped-call]
                    for ours, theirs in ((a, p), (b, q)):
                        want = np.zeros(ours.shape) if theirs.grad is None else theirs.grad.numpy()
                        got = np.zeros(ours.shape) if ours.grad is None else ours.grad.numpy()
                        assert (ours.grad is None) == (theirs.grad is None)
                        assert np.allclose(got, want, 1e-5, 1e-6)
                        assert ours.grad is None or ours.grad.dtype is dtype


def test_hooks_and_kept_gradients_are_seen() -> None:
    x = _numbers(4)
    for turn in range(6):
        x.grad = None
        seen: list[Any] = []
        middle = (x * 2).exp()
        last = (middle * 3).tanh()
        if turn % 2:
            middle.register_hook(lambda g, seen=seen: seen.append(g) or g * 10)
            middle.retain_grad()
        last.sum().backward()
        want = 3 * (1 - last.detach() ** 2) * (10 if turn % 2 else 1)
        assert len(seen) == turn % 2
        assert genesis.allclose(x.grad, want * middle.detach() * 2, 1e-4, 1e-6)  # type: ignore[arg-type]
        if turn % 2:
            assert genesis.allclose(middle.grad, want, 1e-4, 1e-6)  # type: ignore[arg-type]


def test_graphs_are_kept_or_freed() -> None:
    x = _numbers(4)
    for _ in range(4):
        x.grad = None
        loss = ((x * 2).exp() * x).sum()
        loss.backward(retain_graph=True)
        first = x.grad.numpy().copy()  # type: ignore[attr-defined]
        loss.backward()
        assert np.allclose(x.grad.numpy(), 2 * first)  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            loss.backward()


def test_leaves_accumulate_over_two_losses() -> None:
    x, y = _numbers(4), _numbers(4, seed=1)
    found = []
    for _ in range(4):
        x.grad = y.grad = None
        shared = x * y
        (shared.exp() + x).sum().backward(retain_graph=True)
        (shared.tanh() * y).sum().backward()
        found.append((x.grad.numpy().tobytes(), y.grad.numpy().tobytes()))  # type: ignore[attr-defined]
    assert len(set(found)) == 1


def test_loops_of_many_lengths_stay_right() -> None:
    """More of them than are remembered."""
    x = _numbers(3)
    for length in [*range(1, 20)] * 2 + [600]:
        x.grad = None
        y = x
        for _ in range(length):
            y = y * 1.01
        y.sum().backward()
        assert np.allclose(x.grad.numpy(), 1.01**length, 1e-4)  # type: ignore[attr-defined]


def test_layers_train_as_pytorch_does() -> None:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    other = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
    )
    other.load_state_dict({k: torch.tensor(v.numpy()) for k, v in model.state_dict().items()})
    steps = genesis.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    x, y = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32), np.arange(6) % 3
    for _ in range(6):
        for optimizer in steps:
            optimizer.zero_grad()
        cross_entropy(model(genesis.tensor(x)), genesis.tensor(y)).backward()
        torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y)).backward()  # type: ignore[no-untyped-call]
        for optimizer in steps:
            optimizer.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert np.allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-4, 1e-5)
