"""Compositions that are copied give what their operations give: bits, gradients, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.autograd import composite_cache
from genesis.functional import cross_entropy, layer_norm, linear, multilabel_margin_loss
from genesis.functional.function import one_operation
from genesis.ndarray.core.value import Extended

Case = tuple[Callable[..., Any], list[Any]]


def _numbers(*shape: int, grad: bool = True) -> genesis.Tensor:
    return genesis.randn(*shape).requires_grad_(grad)


def _classes(count: int, most: int) -> genesis.Tensor:
    return genesis.tensor(np.arange(count) % most)


def _cell(kind: type, *shape: int) -> Case:
    cell = kind(shape[-1], 5)
    states = [_numbers(*shape[:-1], 5) for _ in range(1 + (kind is nn.LSTMCell))]
    state = tuple(states) if len(states) > 1 else states[0]
    return lambda x, *others: cell(x, state), [_numbers(*shape), *states, *cell.parameters()]


def _layer(module: nn.Module, *shape: int) -> Case:
    return module, [_numbers(*shape)]


def _smooth(x: Any, classes: Any) -> Any:
    return cross_entropy(x, classes, label_smoothing=0.1)


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: (linear, [_numbers(3, 4), _numbers(5, 4), _numbers(5)]),
    "no bias": lambda: (linear, [_numbers(2, 3, 4), _numbers(5, 4)]),
    "some gradients": lambda: (linear, [_numbers(3, 4, grad=False), _numbers(5, 4), _numbers(5)]),
    "layer_norm": lambda: (lambda x, w: layer_norm(x, (4,), w), [_numbers(3, 4), _numbers(4)]),
    "group norm": lambda: _layer(nn.GroupNorm(2, 4), 3, 4, 5),
    "classes": lambda: (cross_entropy, [_numbers(6, 3), _classes(6, 3)]),
    "sets of classes": lambda: (
        multilabel_margin_loss, [_numbers(6, 5), genesis.randint(0, 5, (6, 5))]
    ),
    "smooth": lambda: (_smooth, [_numbers(6, 3), _classes(6, 3)]),
    "lstm cell": lambda: _cell(nn.LSTMCell, 2, 3),
    "lstm cell, no batch": lambda: _cell(nn.LSTMCell, 3),
    "gru cell": lambda: _cell(nn.GRUCell, 2, 3),
    "rnn cell": lambda: _cell(nn.RNNCell, 2, 3),
    "lstm": lambda: _layer(nn.LSTM(3, 5, 2, bidirectional=True), 4, 2, 3),
    "gru": lambda: _layer(nn.GRU(3, 5), 4, 2, 3),
    "encoder": lambda: _layer(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 4, 3, 8),
    "attention": lambda: (nn.MultiheadAttention(8, 2), [_numbers(n, 3, 8) for n in (4, 5, 5)]),
}  # fmt: skip


def _tensors(result: Any) -> list[genesis.Tensor]:
    if isinstance(result, genesis.Tensor):
        return [result]
    return [x for y in result for x in _tensors(y)]


def _step(function: Callable[..., Any], given: list[Any], only_first: bool) -> list[bytes]:
    """Results and gradients."""
    module = [*function.parameters()] if isinstance(function, nn.Module) else []
    leaves = [x for x in (*given, *module) if x.requires_grad]
    for x in leaves:
        x.grad = None
    outputs = _tensors(function(*given))
    total = outputs[0].sum() if only_first else sum((y * y).sum() for y in outputs)
    if total.requires_grad:
        total.backward()
    found = [*[y.detach() for y in outputs], *[x.grad for x in leaves if x.grad is not None]]
    return [x.numpy().tobytes() for x in found]


@pytest.mark.parametrize("only_first", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_copies_equal_the_operations(
    name: str, only_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composite_cache, "_known", {})
    genesis.manual_seed(3)
    function, given = CASES[name]()
    with monkeypatch.context() as users:
        users.setattr(Extended, "by_users", True)
        first = _step(function, given, only_first)  # by its operations
    assert not composite_cache._known
    for _ in range(3):
        assert _step(function, given, only_first) == first
    assert all(x for (name, *_), x in composite_cache._known.items() if not isinstance(name, type))
    with genesis.no_grad():
        plain = [y.numpy().tobytes() for y in _tensors(function(*given))]
        for _ in range(3):
            assert [y.numpy().tobytes() for y in _tensors(function(*given))] == plain


def _three(function: Callable[..., Any], *args: Any) -> list[Any]:
    return [function(*args) for _ in range(3)]


def test_derivatives_of_gradients() -> None:
    x, w = _numbers(3, 4), _numbers(2, 4)
    found = []
    for _ in range(3):
        y = genesis.tanh(linear(x, w)).sum()
        (dw,) = genesis.autograd.grad(y, w, create_graph=True)
        (dx,) = genesis.autograd.grad((dw * dw).sum(), x)
        found.append(dx.numpy().tobytes())
    assert found[0] == found[1] == found[2]


def test_one_argument_may_be_computed_from_another() -> None:
    found = []
    for _ in range(4):
        x = genesis.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = linear(x * x, x).sum()  # of x cubed, in part
        (dx,) = genesis.autograd.grad(y, x, create_graph=True)
        (again,) = genesis.autograd.grad(dx.sum(), x)
        found.append((dx.tolist(), again.tolist()))
    want = [[18.0, 44.0], [34.0, 68.0]], [[20.0, 32.0], [28.0, 40.0]]  # as PyTorch has it
    assert found == [want] * 4


def test_a_graph_can_be_kept_and_is_freed() -> None:
    x = _numbers(2, 3)
    w = _numbers(4, 3)
    y = _three(linear, x, w)[-1].sum()
    y.backward(retain_graph=True)
    y.backward()
    assert genesis.allclose(x.grad, 2 * w.detach().sum(0).expand(2, 3))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


def test_what_is_written_later_changes_nothing() -> None:
    for _ in range(3):
        x, w = _numbers(2, 3, grad=False), _numbers(4, 3)
        before = x.numpy().copy()
        y = linear(x, w)
        x += 100.0
        y.sum().backward()
        assert np.allclose(w.grad.numpy(), np.tile(before.sum(0), (4, 1)), atol=1e-5)  # type: ignore[union-attr]


def test_views_hooks_and_kept_gradients() -> None:
    base, w = _numbers(6, 4), _numbers(2, 4)
    for _ in range(3):
        base.grad = None
        seen: list[Any] = []
        y = linear(base[1::2], w)
        y.retain_grad()
        y.register_hook(lambda g, seen=seen: seen.append(g) or g * 2)
        y.sum().backward()
        assert len(seen) == 1 and y.grad is not None and y.grad.tolist() == [[2.0] * 2] * 3
        want = np.zeros((6, 4), np.float32)
        want[1::2] = 2 * w.detach().numpy().sum(0)
        assert np.allclose(base.grad.numpy(), want)  # type: ignore[union-attr]


def test_settings_are_told_apart() -> None:
    @one_operation
    def scaled(x: Any, by: Any, more: Any = 0.0) -> Any:
        return x * by + (1 if by is True else more)

    x = genesis.ones(2)
    cases = [(True, 2.0), (1, 1.0), (1.0, 1.0), (2.5, 2.5)]
    for by, want in cases * 3:
        assert scaled(x, by).tolist() == [want] * 2
    zeros = [np.signbit(scaled(x, 1.0, more=z).numpy()).any() for z in (0.0, -0.0) * 3]
    assert not any(zeros)
    signs = [np.signbit((scaled(x * 0.0, z, more=z)).numpy()).tolist() for z in (0.0, -0.0) * 3]
    assert signs == [[False] * 2, [True] * 2] * 3


def test_errors_stay_those_of_the_operations() -> None:
    for _ in range(4):
        with pytest.raises(ValueError, match="linear: an input of shape"):
            linear(genesis.ones(2, 3), genesis.ones(4, 5))
        with pytest.raises(IndexError, match="cross_entropy: index 7 is out of range"):
            cross_entropy(genesis.ones(2, 3), genesis.tensor([0, 7])).item()
    with genesis.inference_mode():
        x = genesis.ones(2, 3)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="inference_mode"):
            linear(x, _numbers(4, 3))


def test_what_cannot_be_copied_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composite_cache, "_known", {})
    counter = genesis.zeros(1)

    @one_operation
    def counting(x: Any) -> Any:
        counter.add_(1.0)
        return x * 2

    @one_operation
    def same(x: Any) -> Any:
        return x

    @one_operation
    def noisy(x: Any) -> Any:
        return linear(x, genesis.ones(2, 2)) + genesis.randn(2)  # after one that is copied

    x = genesis.ones(2)
    for _ in range(5):
        assert counting(x).tolist() == [2, 2]
        assert same(x) is x
    assert counter.item() >= 5  # recording it is one more call
    assert len({tuple(noisy(x).tolist()) for _ in range(5)}) == 5
    names = [f.__wrapped__ for f in (counting, same, noisy)]  # type: ignore[attr-defined]
    assert not any(x for (name, *_), x in composite_cache._known.items() if name in names)


def test_modes_that_watch_operations_see_them() -> None:
    x, w = _numbers(2, 3), _numbers(4, 3)
    _three(linear, x, w)
    with genesis.eager():
        assert linear(x, w).array.value.is_realised
    with genesis.autocast("cpu", dtype=genesis.bfloat16):
        assert linear(x, w).dtype is genesis.bfloat16
    with pytest.raises(genesis.autograd.AnomalyError), genesis.autograd.detect_anomaly():
        linear(x * float("nan"), w)


def test_other_sizes_are_other_compositions() -> None:
    w = _numbers(4, 3)
    for _ in range(3):
        for rows in (1, 2, 5):
            assert linear(genesis.ones(rows, 3), w).shape == (rows, 4)
        assert linear(genesis.ones(2, 3).double(), w.double()).dtype is genesis.float64


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composite_cache, "_known", {})
    monkeypatch.setattr(composite_cache, "MOST", 4)
    for rows in range(1, 12):
        assert linear(genesis.ones(rows, 3), genesis.ones(2, 3)).sum().item() == 6 * rows
    assert len(composite_cache._known) <= 4
