"""Modules: parts by name, state dicts, hooks, moves, printing, and what a recording assumes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn


class Small(nn.Module):
    """Two linear layers that share a weight, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(genesis.ones(1))
        self.register_buffer("steps", genesis.zeros(1))
        self.register_buffer("cache", genesis.zeros(2), persistent=False)

    def forward(self, x: Any, shift: float = 0.0) -> Any:
        return self.second(self.first(x)) * self.scale + shift


def test_parts_by_name() -> None:
    net = Small()
    assert [n for n, _ in net.named_parameters()] == ["scale", "first.weight", "first.bias"]
    every = [n for n, _ in net.named_parameters(remove_duplicate=False)]
    assert every == ["scale", "first.weight", "first.bias", "second.weight"]
    assert [n for n, _ in net.named_buffers()] == ["steps", "cache"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "second"]
    assert list(net.children()) == [net.first, net.second]
    assert net.get_submodule("first") is net.first
    assert net.get_parameter("first.bias") is net.first.bias
    assert net.get_buffer("steps") is net.steps
    with pytest.raises(AttributeError, match="no submodule 'third'"):
        net.get_submodule("third.linear")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = net.nothing
    assert {"first", "scale", "steps"} <= set(dir(net))


def test_attributes_find_their_place() -> None:
    net = Small()
    with pytest.raises(TypeError, match="is a Parameter"):
        net.scale = 3.0
    net.scale = None
    assert net.scale is None and "scale" not in dict(net.named_parameters())
    net.steps = genesis.ones(1)
    assert dict(net.named_buffers())["steps"].item() == 1.0
    net.second = None
    assert [n for n, _ in net.named_children()] == ["first"]
    del net.first
    assert not list(net.parameters())
    for call in (
        lambda: net.register_parameter("p", genesis.ones(1)),
        lambda: net.register_buffer("b", 3),
        lambda: net.add_module("m", genesis.ones(1)),
    ):
        with pytest.raises(TypeError, match="or None, not"):
            call()
    with pytest.raises(ValueError, match="without dots"):
        net.add_module("a.b", nn.Linear(1, 1))
    with pytest.raises(KeyError, match="already"):
        net.register_buffer("forward", None)

    class Hasty(nn.Module):
        def __init__(self) -> None:
            self.x = 1

    with pytest.raises(AttributeError, match=r"super\(\).__init__"):
        Hasty()


def test_buffers_by_assignment() -> None:
    net = nn.Module()
    net.kept, net.lost = nn.Buffer(genesis.ones(2)), nn.Buffer(genesis.ones(1), persistent=False)
    assert [n for n, _ in net.named_buffers()] == ["kept", "lost"]
    assert list(net.state_dict()) == ["kept"] and not list(net.parameters())


def test_state_dict_goes_there_and_back() -> None:
    one, other = Small(), Small()
    state = one.state_dict()
    assert list(state) == ["scale", "steps", "first.weight", "first.bias", "second.weight"]
    one.steps.array.assign(5)
    assert state["steps"].item() == 5.0  # it shares the module's memory
    shared = other.first.weight
    result = other.load_state_dict(state)
    assert result.missing_keys == [] and result.unexpected_keys == []
    x = genesis.randn(2, 3)
    np.testing.assert_array_equal(one(x).detach().numpy(), other(x).detach().numpy())
    assert other.first.weight is shared is other.second.weight


def test_a_state_dict_that_does_not_fit_says_what() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = net[1].weight.detach().numpy().copy()
    state = dict(net.state_dict())
    state["0.weight"] = genesis.ones(3, 4)
    state["2.weight"] = genesis.ones(1)
    state["1.weight"] = genesis.ones(1, 3)
    del state["1.bias"]
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    message = str(error.value)
    assert "0.weight: the module has shape (3, 2), the state dict (3, 4)" in message
    assert "missing: 1.bias" in message and "unexpected: 2.weight" in message
    np.testing.assert_array_equal(net[1].weight.detach().numpy(), before)  # all or nothing
    state["0.weight"] = genesis.ones(3, 2)
    result = net.load_state_dict(state, strict=False)
    assert result.missing_keys == ["1.bias"] and result.unexpected_keys == ["2.weight"]
    assert net[1].weight.detach().numpy().tolist() == [[1.0] * 3]


def test_a_state_dict_can_be_taken_over() -> None:
    net = nn.Linear(2, 2)
    given = {"weight": genesis.ones(2, 2, dtype=genesis.float64), "bias": genesis.zeros(2)}
    net.load_state_dict(given, assign=True)
    assert net.weight.dtype is genesis.float64 and isinstance(net.weight, nn.Parameter)
    assert net.weight.array is given["weight"].array


def test_hooks() -> None:
    net = nn.Linear(2, 2)
    seen: list[str] = []

    def before(module: Any, args: Any) -> Any:
        seen.append("before")
        return (args[0] * 2,)

    def after(module: Any, args: Any, result: Any) -> Any:
        seen.append("after")
        return result + 1

    x = genesis.randn(1, 2)
    plain = net(x * 2).detach().numpy()
    handles = [net.register_forward_pre_hook(before), net.register_forward_hook(after)]
    np.testing.assert_allclose(net(x).detach().numpy(), plain + 1, rtol=1e-6)
    net.register_forward_pre_hook(lambda m, a: seen.append("first"), prepend=True)
    net(x)
    assert seen == ["before", "after", "first", "before", "after"]
    for handle in handles:
        handle.remove()
        handle.remove()
    np.testing.assert_allclose(net(x * 2).detach().numpy(), plain, rtol=1e-6)

    small = Small()
    small.register_forward_pre_hook(lambda m, a, k: (a, {"shift": 10.0}), with_kwargs=True)
    small.register_forward_hook(lambda m, a, k, r: r + k["shift"], with_kwargs=True)
    y = small.forward(x=genesis.zeros(1, 3)).detach().numpy()
    np.testing.assert_allclose(small(genesis.zeros(1, 3)).detach().numpy(), y + 20, rtol=1e-6)


def test_backward_hooks(rng: np.random.Generator) -> None:
    weight, x = rng.standard_normal((2, 3)), rng.standard_normal((4, 3))
    found = []
    for library in (genesis, torch):
        net = library.nn.Linear(3, 2, bias=False)
        net.weight = library.nn.Parameter(library.tensor(weight))
        seen: list[Any] = []
        net.register_full_backward_pre_hook(lambda m, out: (out[0] * 2,))
        handle = net.register_full_backward_hook(
            lambda m, into, out, seen=seen: seen.extend([into[0], out[0]]) or (into[0] * 3,)
        )
        a = library.tensor(x, requires_grad=True)
        (net(a) ** 2).sum().backward()
        handle.remove()
        (net(a) ** 2).sum().backward()
        found.append([v.numpy() for v in (*seen, a.grad, net.weight.grad)])
    assert len(found[0]) == len(found[1]) == 4
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    net = nn.Linear(2, 1)
    without: list[Any] = []  # no argument needs a gradient
    net.register_full_backward_hook(lambda m, into, out: without.append((into, out[0].shape)))
    net(genesis.ones(1, 2)).sum().backward()
    assert without == [((None,), (1, 1))] and net.weight.grad.tolist() == [[1.0, 1.0]]


def test_copies() -> None:
    net = Small()
    other = copy.deepcopy(net)
    assert other.second.weight is other.first.weight is not net.first.weight
    x = genesis.ones(1, 3)
    wanted = net(x).detach().numpy()
    np.testing.assert_array_equal(other(x).detach().numpy(), wanted)
    other.first.weight.array.assign(0)
    np.testing.assert_array_equal(net(x).detach().numpy(), wanted)
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again(x).detach().numpy(), wanted)


def test_apply_train_and_gradients() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)))
    order: list[str] = []
    assert net.apply(lambda m: order.append(type(m).__name__)) is net
    assert order == ["Linear", "Dropout", "Linear", "Sequential", "Sequential"]
    assert not any(m.training for m in net.eval().modules())
    assert all(m.training for m in net.train().modules())
    net(genesis.ones(1, 2)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(not p.grad.numpy().any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    net.requires_grad_(False)
    assert not net(genesis.ones(1, 2)).requires_grad


def test_moves_keep_the_objects() -> None:
    net = Small()
    net.register_buffer("count", genesis.tensor([3]))
    before = list(net.parameters())
    assert net.double() is net
    assert all(a is b for a, b in zip(net.parameters(), before, strict=True))
    assert {p.dtype for p in net.parameters()} == {genesis.float64}
    assert net.count.dtype is genesis.int64  # only floating ones change
    assert net.second.weight is net.first.weight
    assert net.to("cpu", genesis.bfloat16).scale.dtype is genesis.bfloat16
    assert net.float()(genesis.ones(1, 3)).dtype is genesis.float32


def test_tied_weights_get_both_gradients() -> None:
    net = Small().double()
    x = genesis.tensor(np.array([[1.0, 2.0, 3.0]]))
    net(x).sum().backward()
    weight, bias = (p.detach().numpy() for p in (net.first.weight, net.first.bias))
    hidden = x.numpy() @ weight.T + bias
    wanted = np.ones((3, 1)) @ hidden + weight.sum(0)[:, None] @ x.numpy()
    np.testing.assert_allclose(net.first.weight.grad.numpy(), wanted, rtol=1e-12)


def test_repr_counts_parameters() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU())
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)\n"
        "  (1): BatchNorm2d(2, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"
        "  (2): ReLU()\n"
        ")  # 22 parameters"
    )
    assert repr(nn.MaxPool2d(2)).startswith("MaxPool2d(kernel_size=2, stride=2, padding=0")
    assert repr(nn.Dropout(0.2)) == "Dropout(p=0.2)"
    nested = repr(nn.Sequential(nn.Sequential(nn.Tanh())))
    assert nested == "Sequential(\n  (0): Sequential(\n    (0): Tanh()\n  )\n)"


# ---- what a recording assumes


class Counted:
    """A jitted call of a module, and how often it was recorded."""

    def __init__(self, module: nn.Module) -> None:
        self.call = genesis.jit(lambda x: module(x))

    @property
    def recorded(self) -> int:
        return self.call.captures


def test_toggling_a_setting_records_anew_and_finds_the_old_recording_again() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    counted = Counted(net)
    x = genesis.ones(3, 4)
    plain = net.eval()(x).detach().numpy()
    np.testing.assert_allclose(counted.call(x).detach().numpy(), plain, rtol=1e-6)
    net.train()
    assert (counted.call(x).detach().numpy() == 0).any()
    assert counted.recorded == 2
    net.eval()
    np.testing.assert_allclose(counted.call(x).detach().numpy(), plain, rtol=1e-6)
    net.train()
    counted.call(x)
    assert counted.recorded == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "1", nn.Tanh()),
        lambda net: net.append(nn.Tanh()),
        lambda net: setattr(net[1], "negative_slope", 3.0),
        lambda net: net.register_forward_hook(lambda m, a, r: r * 2),
        lambda net: setattr(net[0], "weight", nn.Parameter(genesis.ones(2, 2))),
        lambda net: setattr(net[0], "bias", None),
        lambda net: net[0].weight.array.assign(2.0),
        lambda net: net.load_state_dict({k: x * 3 for k, x in net.state_dict().items()}),
    ],
)
def test_a_changed_module_is_seen_by_a_recording(change: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU())
    old = list(net.parameters())  # somebody, such as an optimizer, still has them
    counted = Counted(net)
    x = genesis.tensor([[1.0, -2.0]])
    before = counted.call(x).detach().numpy().copy()
    change(net)
    after = counted.call(x).detach().numpy()
    np.testing.assert_allclose(after, net(x).detach().numpy(), rtol=1e-6)
    assert not np.array_equal(before, after) and old


def test_a_removed_hook_and_a_frozen_parameter_are_seen() -> None:
    net = nn.Linear(2, 2)
    handle = net.register_forward_hook(lambda m, a, r: r * 2)
    counted = Counted(net)
    x = genesis.ones(1, 2)
    twice = counted.call(x).detach().numpy().copy()
    handle.remove()
    np.testing.assert_allclose(2 * counted.call(x).detach().numpy(), twice, rtol=1e-6)
    counted.call(x)
    assert counted.recorded == 2
    net.weight.requires_grad_(False)
    counted.call(x)
    assert counted.recorded == 3
