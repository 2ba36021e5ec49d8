"""The tape: what backward does with its arguments, hooks and modes, and what it leaves behind."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.autograd import AnomalyError, Function, detect_anomaly
from genesis.nn.functional import cross_entropy, layer_norm, scaled_dot_product_attention

BOTH = pytest.mark.parametrize("m", [genesis, torch], ids=["genesis", "torch"])


# ---- backward and grad


@BOTH
def test_arguments_of_backward(m: Any) -> None:
    x = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * x
    y.backward(m.tensor([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [2, 40, 600]
    (x * 2).sum().backward()
    assert x.grad.tolist() == [4, 42, 602]  # gradients add up
    with pytest.raises(RuntimeError):
        y.sum().backward()  # what y saved is gone
    with pytest.raises(RuntimeError):
        (x * 2).backward()  # not a scalar
    with pytest.raises(RuntimeError):
        x.detach().sum().backward()
    with pytest.raises((RuntimeError, ValueError)):
        (x * 2).backward(m.ones(2))


@BOTH
def test_the_graph_is_kept_if_asked_to(m: Any) -> None:
    x = m.tensor(3.0, requires_grad=True)
    y = x**3
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 54
    with pytest.raises(RuntimeError):
        y.backward()


def test_a_rule_that_reads_nothing_can_be_applied_again() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = genesis.tensor(1.0, requires_grad=True)
    y = Twice.apply(x)
    y.backward()
    y.backward()
    assert x.grad is not None and x.grad.item() == 4


@BOTH
def test_inputs_of_backward(m: Any) -> None:
    x, w = (m.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    seen: list[str] = []
    w.register_hook(lambda g: seen.append("w"))
    aside = w * 3
    aside.register_hook(lambda g: seen.append("aside"))
    y = x * w
    z = (y * y + aside).sum()
    z.backward(inputs=[x], retain_graph=True)
    assert (w.grad, seen) == (None, []) and x.grad.tolist() == [2, 16]
    z.backward(inputs=[w], retain_graph=True)
    assert w.grad.tolist() == [5, 19] and x.grad.tolist() == [2, 16] and seen == ["aside", "w"]
    with pytest.raises(RuntimeError):
        z.backward(inputs=[])
    with pytest.raises(RuntimeError):
        z.backward(inputs=[m.ones(2)])


@BOTH
def test_grad(m: Any) -> None:
    x, unused = (m.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    y = x * 3
    z = (y * y).sum()
    found = m.autograd.grad(z, [y, x], retain_graph=True)
    assert [g.tolist() for g in found] == [[6, 12], [18, 36]] and x.grad is None
    found = m.autograd.grad([z, y], x, [m.tensor(2.0), m.ones(2)], retain_graph=True)
    assert found[0].tolist() == [39, 75]
    with pytest.raises(RuntimeError):
        m.autograd.grad(z, unused, retain_graph=True)
    assert m.autograd.grad(z, unused, retain_graph=True, allow_unused=True) == (None,)
    (zero,) = m.autograd.grad(z, unused, retain_graph=True, materialize_grads=True)
    assert zero.tolist() == [0, 0]
    with pytest.raises(RuntimeError):
        m.autograd.grad(z, m.ones(2))
    (itself,) = m.autograd.grad(x.sum() * 0 + x[0], x)
    assert itself.tolist() == [1, 0]


@pytest.mark.filterwarnings("ignore:Using backward")
@BOTH
def test_derivatives_of_any_order(m: Any) -> None:
    x = m.tensor(2.0, requires_grad=True)
    y, found = x**5, []
    for _ in range(6):
        (y,) = m.autograd.grad(y, x, create_graph=True, materialize_grads=True)
        found.append(y.item())
    assert found == [80, 160, 240, 240, 120, 0]
    x.grad = None
    (x**3).backward(create_graph=True)
    assert x.grad is not None and x.grad.requires_grad
    x.grad.backward()
    assert x.grad.item() == 12 + 12  # the second derivative was added to the first
    x.grad = None  # it is part of its own graph


@BOTH
def test_results_of_one_operation(m: Any) -> None:
    x = m.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    values, positions = m.sort(x, dim=1)
    assert not positions.requires_grad
    values[0, 0].backward()  # the others' gradients are zero
    assert x.grad.tolist() == [[0, 1, 0]]


# ---- what was saved


@BOTH
def test_a_leaf_can_be_overwritten_without_gradients(m: Any) -> None:
    x = m.tensor([1.0, 2.0], requires_grad=True)
    with m.no_grad():
        x.mul_(2)
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 8]
    with pytest.raises(RuntimeError):
        x.mul_(2)


def test_saved_values_are_those_of_the_time() -> None:
    """PyTorch refuses this; here what is saved is a value, which writes do not reach."""
    x = genesis.tensor([1.0, 2.0], requires_grad=True)
    w = genesis.tensor([3.0, 5.0], requires_grad=True)
    y = x * w
    with genesis.no_grad():
        w.fill_(100.0)
        x.fill_(-1.0)
    (dx, dw) = genesis.autograd.grad(y.sum(), [x, w], create_graph=True)
    assert dx is not None and dw is not None
    assert dx.tolist() == [3, 5] and dw.tolist() == [1, 2]
    (mixed,) = genesis.autograd.grad(dx.sum(), w)
    assert mixed is not None and mixed.tolist() == [1, 1]
    z = genesis.exp(x)
    kept = z * 1
    z.zero_()
    kept.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([-1, -1]), rtol=1e-6)


@BOTH
def test_detach(m: Any) -> None:
    x = m.tensor([2.0], requires_grad=True)
    y = x * x
    (y.detach() * y).backward()
    assert x.grad.item() == 16 and not y.detach().requires_grad
    y = (x * 3).detach_()
    assert y.is_leaf and not y.requires_grad


# ---- hooks


@BOTH
def test_hooks(m: Any) -> None:
    x = m.tensor([1.0, 2.0], requires_grad=True)
    seen: list[Any] = []
    x.register_hook(lambda g: seen.append(("leaf", g.tolist())))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(("after", t.grad.tolist())))
    y = x * 2
    tenfold = y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen.append(("result", g.tolist())))
    y.sum().backward(retain_graph=True)
    assert seen == [("result", [10, 10]), ("leaf", [20, 20]), ("after", [20, 20])]
    tenfold.remove()
    tenfold.remove()
    y.sum().backward()
    assert seen[3:] == [("result", [1, 1]), ("leaf", [2, 2]), ("after", [22, 22])]
    with pytest.raises(RuntimeError):
        m.ones(1).register_hook(lambda g: None)
    with pytest.raises(RuntimeError):
        (x * 2).register_post_accumulate_grad_hook(lambda t: None)


@BOTH
def test_hooks_that_go_or_do_wrong(m: Any) -> None:
    x = m.tensor([1.0, 2.0], requires_grad=True)
    seen: list[str] = []

    def first(g: Any) -> None:
        seen.append("once")
        once.remove()

    once: Any = x.register_hook(first)
    x.register_hook(lambda g: seen.append("always"))
    x.sum().backward()
    x.sum().backward()
    assert seen == ["once", "always", "always"]
    y = x * 2
    y.register_hook(lambda g: m.ones(3))
    with pytest.raises(RuntimeError):
        y.sum().backward()


@BOTH
def test_retained_gradients(m: Any) -> None:
    x = m.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    assert y.retains_grad and y.grad.tolist() == [4, 8] and x.grad.tolist() == [8, 16]
    y.sum().backward()
    assert y.grad.tolist() == [5, 9]
    x.retain_grad()
    assert not x.retains_grad  # a leaf keeps its gradient anyway
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y[0] *= 5
    y.sum().backward()
    assert y.retains_grad and y.grad.tolist() == [1, 1]  # of what it is in the end


# ---- modes


@BOTH
def test_modes(m: Any) -> None:
    x = m.ones(2, requires_grad=True)
    with m.no_grad():
        assert not (x * 2).requires_grad and not m.is_grad_enabled()
        with m.enable_grad():
            assert (x * 2).requires_grad
        with m.set_grad_enabled(True):
            assert m.is_grad_enabled()
        assert not m.is_grad_enabled()
    m.set_grad_enabled(False)
    assert not m.is_grad_enabled()
    m.set_grad_enabled(True)
    with m.inference_mode():
        y = x * 2
        assert m.is_inference_mode_enabled() and y.is_inference() and not y.requires_grad
    with m.inference_mode(False):
        assert m.is_grad_enabled()
    with pytest.raises(RuntimeError):
        x * y
    with pytest.raises(ZeroDivisionError), m.no_grad():
        raise ZeroDivisionError
    assert m.is_grad_enabled() and not m.is_inference_mode_enabled()


@BOTH
def test_modes_of_functions(m: Any) -> None:
    @m.no_grad()  # type: ignore[untyped-decorator]
    def fold(n: int) -> list[bool]:
        return [m.is_grad_enabled(), *(fold(n - 1) if n else [])]

    @m.set_grad_enabled(False)  # type: ignore[untyped-decorator]
    def without() -> bool:
        return bool(m.is_grad_enabled())

    @m.no_grad  # type: ignore[untyped-decorator]
    def bare() -> bool:
        return bool(m.is_grad_enabled())

    assert bare() is False and m.is_grad_enabled()
    assert fold(2) == [False] * 3 and m.is_grad_enabled() and fold.__name__ == "fold"
    assert without() is False and m.is_grad_enabled()


@BOTH
def test_modes_of_generators(m: Any) -> None:
    """The mode holds while a generator runs, and not for who asks it for values."""
    seen: list[Any] = []

    @m.no_grad()  # type: ignore[untyped-decorator]
    def steps() -> Iterator[Any]:
        try:
            seen.append((yield m.is_grad_enabled()))
            yield m.is_grad_enabled()
        except KeyError:
            yield m.is_grad_enabled()
        finally:
            seen.append(m.is_grad_enabled())

    running: Any = steps()
    assert next(running) is False and m.is_grad_enabled()
    assert running.send("given") is False and m.is_grad_enabled()
    assert running.throw(KeyError()) is False and m.is_grad_enabled()
    running.close()
    assert seen == ["given", False] and list(steps()) == [False, False] and m.is_grad_enabled()


def test_modes_belong_to_threads() -> None:
    found: list[bool] = []
    with genesis.no_grad():
        thread = threading.Thread(target=lambda: found.append(genesis.is_grad_enabled()))
        thread.start()
        thread.join()
    assert found == [True]


def test_threads_do_not_disturb_each_other() -> None:
    found: dict[int, Any] = {}

    def train(k: int) -> None:
        x = genesis.full((8,), float(k), requires_grad=True)
        for _ in range(10):
            with genesis.no_grad():
                assert not (x * 2).requires_grad
            (x * x).sum().backward()
        assert x.grad is not None
        found[k] = x.grad.tolist()

    threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [20.0 * k] * 8 for k in range(4)}


def test_threads_add_to_one_gradient() -> None:
    x = genesis.zeros(3, requires_grad=True)

    def add() -> None:
        for _ in range(50):
            (x * 1).sum().backward()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad is not None and x.grad.tolist() == [200] * 3


# ---- errors


class Wrong(Function):
    """Its rule does what it is told to."""

    @staticmethod
    def forward(ctx: Any, x: Any, rule: Any) -> Any:
        ctx.rule = rule
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.rule(grad)


def test_errors_in_rules() -> None:
    x = genesis.ones(2, requires_grad=True)

    def fails(grad: Any) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(KeyError) as caught:
        Wrong.apply(x, fails).sum().backward()
    assert "in the gradient of Wrong" in caught.value.__notes__[0]
    assert genesis.is_grad_enabled()
    with pytest.raises(RuntimeError, match="gives 1 gradients for 2 arguments"):
        Wrong.apply(x, lambda grad: grad).sum().backward()
    assert x.grad is None and genesis.is_grad_enabled()


def test_anomalies() -> None:
    x = genesis.tensor([0.0, 1.0], requires_grad=True)
    with detect_anomaly():
        with pytest.raises(AnomalyError, match=r"Log at .*test_autograd.py.* makes an infinity"):
            genesis.log(x)
        y = genesis.sqrt(x)
        with pytest.raises(AnomalyError, match=r"gradient of Sqrt called at .*test_autograd.py"):
            y.sum().backward()
        nan = genesis.tensor(float("nan"), requires_grad=True) * 2  # it was so before
    with pytest.raises(ZeroDivisionError), detect_anomaly():
        raise ZeroDivisionError
    assert genesis.log(x).tolist()[0] == -np.inf and nan.isnan().item()


# ---- what is left behind


def test_deep_graphs() -> None:
    """Neither going through a long chain nor freeing it recurses."""
    x = genesis.ones(3, requires_grad=True)
    y = x
    for _ in range(10_000):
        y = y + x
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [10_001] * 3
    z = genesis.autograd.grad(y[0], x, retain_graph=True)
    assert z[0] is not None and z[0].tolist() == [10_001, 0, 0]
    del y, z
    y = x
    for _ in range(50_000):
        y = y * 2
    del y


def _in_place(w: Any) -> Any:
    y = w * 1
    view = y[0]
    view.add_(2)
    y[1] = view
    return y


def _retained(w: Any) -> Any:
    y = w * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    return y


def _second(w: Any) -> Any:
    (first,) = genesis.autograd.grad((w**3).sum(), w, create_graph=True)
    return first


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda w: w * 2 + w,
    "view": lambda w: w[1:, None],
    "in place": _in_place,
    "retained": _retained,
    "second gradient": _second,
    "softmax": lambda w: genesis.softmax(w, 1),
    "norm": lambda w: layer_norm(w, (4,)),
    "product": lambda w: w @ w,
    "positions": lambda w: genesis.sort(w, dim=1)[0] + w.max(1)[0],
    "gather": lambda w: w[genesis.tensor([0, 2])],
    "several": lambda w: genesis.cat([w, *w.split(2)]),
    "loss": lambda w: cross_entropy(w * 1, genesis.tensor([0, 1, 2, 3])),
    "attention": lambda w: scaled_dot_product_attention(*[w.reshape(1, 1, 4, 4) * 1] * 3),
}


@pytest.mark.parametrize("after", ["forward", "backward"])
def test_graphs_are_freed_at_once(after: str) -> None:
    """By counting references: memory must not wait for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for name, build in GRAPHS.items():
            w = genesis.ones(4, 4, requires_grad=True)
            y = build(w)
            loss = (y * y).sum()
            if after == "backward":
                loss.backward()
            refs = [weakref.ref(x) for x in (w, y, y.creator, loss.creator, y.array.storage)]
            del w, y, loss
            assert [r() for r in refs] == [None] * len(refs), name
    finally:
        gc.enable()


def test_a_training_is_freed_at_once() -> None:
    """Recordings, which outlive an optimizer, keep neither it nor its parameters."""
    gc.collect()
    gc.disable()
    try:
        model = genesis.nn.Linear(3, 2)
        optimizer = genesis.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(genesis.ones(4, 3)).sum().backward()
            optimizer.step()
        refs = [weakref.ref(x) for x in (model, model.weight, optimizer)]
        del model, optimizer
        assert [r() for r in refs] == [None] * 3
    finally:
        gc.enable()


def test_modules_made_in_a_recorded_function() -> None:
    """They die with the call, and that says nothing against the recording."""

    @genesis.jit
    def f(x: Any) -> Any:
        return genesis.nn.ReLU()(x)

    for _ in range(3):
        assert f(genesis.tensor([-1.0, 2.0])).tolist() == [0, 2]
    assert f.captures == 1


def test_backward_frees_what_was_saved() -> None:
    x = genesis.ones(4, requires_grad=True)
    y = x * 2
    saved = weakref.ref(y.array.value)
    loss = (y * y).sum()
    del y
    assert saved() is not None
    loss.backward()
    genesis.ndarray.realize(loss.array, x.grad.array)  # type: ignore[union-attr]
    assert saved() is None


def test_going_backward_twice_is_refused_where_something_was_saved() -> None:
    """As PyTorch has it, at the first call of an operation and at later ones, which are copied."""
    cases: dict[str, Any] = {
        "a number": lambda lib, x: x * 4.0,
        "divided": lambda lib, x: x / 2.0,
        "nothing": lambda lib, x: 1 - (x + 1),
        "a tensor": lambda lib, x: x * lib.tensor([1.0, 2.0]),
        "the result": lambda lib, x: x.exp(),
        "shapes": lambda lib, x: lib.cat([x, x]).view(2, 2).expand(3, 2, 2).mean(),
        "a layer": lambda lib, x: lib.nn.functional.gelu(x),
        "a loss": lambda lib, x: lib.nn.functional.mse_loss(x, lib.tensor([0.0, 0.0])),
        "a layer of numbers": lambda lib, x: (x.double() + 2).sum() * 3,
    }

    def refused(lib: Any, function: Any) -> bool:
        y = function(lib, lib.tensor([1.0, 0.5], requires_grad=True)).sum()
        y.backward()
        try:
            y.backward()
        except RuntimeError:
            return True
        return False

    for name, function in cases.items():
        wanted = refused(torch, function)
        assert [refused(genesis, function) for _ in range(4)] == [wanted] * 4, name
