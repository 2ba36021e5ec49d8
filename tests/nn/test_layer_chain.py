"""Layers in sequence are one operation; what they compute is what they compute one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.ndarray.core.value import Extended
from genesis.nn.layer_chain import chained, layer_functions


@pytest.fixture(autouse=True)
def only_tensors_of_genesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extended, "by_users", False)  # other tests have classes of tensors


def one_by_one(model: nn.Sequential, x: Any) -> Any:
    for module in model:
        x = module(x)
    return x


def creators(y: Any) -> list[str]:
    found, ahead = [], [y.grad_fn]
    while ahead:
        creator = ahead.pop()
        if creator is not None:
            found.append(creator.name)
            ahead += [source for source, _ in creator.next_functions]
    return found


@pytest.mark.parametrize("kind", sorted(layer_functions(), key=lambda k: k.__name__))
def test_every_layer_of_a_chain_is_what_it_is_alone(kind: type[nn.Module]) -> None:
    shapes = {"Fold": (2, 12, 4), "Unfold": (2, 3, 4, 4), "GLU": (2, 6), "Upsample": (1, 2, 3, 3)}
    given: dict[str, tuple[Any, ...]] = {
        "Linear": (6, 3), "Fold": (3, 2), "Unfold": (2,), "Threshold": (0.1, 2.0),
        "LPPool1d": (2, 2), "LPPool2d": (2, 2), "LPPool3d": (2, 2), "Upsample": (None, 2),
        "PixelShuffle": (2,), "PixelUnshuffle": (2,), "ChannelShuffle": (2,), "Softmax": (1,),
        "LogSoftmax": (1,), "Softmin": (1,),
    }  # fmt: skip
    name = kind.__name__
    if name.endswith(("Pool1d", "Pool2d", "Pool3d")):
        args, shape = given.get(name, (2,)), (2, 4, *[4] * int(name[-2]))
    elif name.startswith(("Pixel", "Channel")):
        args, shape = given[name], (2, 4, 4, 4)
    else:
        args, shape = given.get(name, ()), shapes.get(name, (2, 6))
    model = nn.Sequential(kind(*args), nn.Tanh())
    x = genesis.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    a, b = (genesis.tensor(x.numpy(), requires_grad=True) for _ in range(2))
    together, apart = model(a), one_by_one(model, b)
    assert (chained(model, a) is None) == (name == "Upsample")  # which is called as it is
    together.square().sum().backward()
    apart.square().sum().backward()
    np.testing.assert_allclose(together.detach().numpy(), apart.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-7)


def network() -> tuple[nn.Sequential, Any]:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 4, bias=False), nn.GELU())
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Softplus(), torch.nn.Linear(5, 4, bias=False),
        torch.nn.GELU(),
    )  # fmt: skip
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in model.state_dict().items()})
    return model, theirs


def test_gradients_of_gradients_are_pytorchs() -> None:
    model, theirs = network()
    given = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    for _ in range(3):
        found = []
        for lib, net in ((genesis, model), (torch, theirs)):
            x = lib.tensor(given, requires_grad=True)
            net.zero_grad()
            (slope,) = lib.autograd.grad(net(x).sin().sum(), x, create_graph=True)
            slope.square().sum().backward()
            found.append([x.grad.numpy(), *[p.grad.numpy() for p in net.parameters()]])
        for ours, reference in zip(*found, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=2e-4, atol=1e-5)


def test_a_chain_is_one_operation_until_a_layer_is_watched_or_changed() -> None:
    model, _ = network()
    x = genesis.ones(2, 3)
    assert creators(model(x)) == ["SequentialBackward"]
    seen: list[Any] = []
    hook = model[1].register_forward_hook(lambda module, args, result: seen.append(result))
    assert len(creators(model(x))) > 1 and len(seen) == 1
    hook.remove()
    assert creators(model(x)) == ["SequentialBackward"]
    model[1].forward = lambda x: x * 0
    assert model(x).detach().numpy().tolist() == [[0.0] * 4] * 2
    del model[1].forward
    model[1].beta = 3
    expected = one_by_one(model, x).detach().numpy()
    np.testing.assert_array_equal(model(x).detach().numpy(), expected)


def test_a_class_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = network()
    before = model(genesis.ones(2, 3)).detach().numpy()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight.T + 1)
    assert not np.array_equal(model(genesis.ones(2, 3)).detach().numpy(), before)


class Twice(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Linear(3, 3), nn.ReLU(inplace=True)],
        lambda: [Twice(3, 3), nn.ReLU()],
        lambda: [nn.Linear(3, 3), nn.Dropout(0.5)],
        lambda: [nn.Linear(3, 3)],
    ],
)
def test_what_is_no_chain(layers: Callable[[], list[nn.Module]]) -> None:
    model = nn.Sequential(*layers())
    assert chained(model, genesis.ones(2, 3)) is None
    assert model.eval()(genesis.ones(2, 3)).shape == (2, 3)


def test_errors_name_the_layer() -> None:
    model, _ = network()
    with pytest.raises(ValueError, match="linear: an input of shape") as error:
        model(genesis.ones(2, 4))
    assert "in Linear(in_features=3" in "".join(error.value.__notes__)


def test_parameters_that_are_replaced_frozen_or_cast() -> None:
    model, theirs = network()
    given = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)
    model(genesis.tensor(given))
    for lib, net in ((genesis, model), (torch, theirs)):
        with lib.no_grad():
            net[0].weight *= 2
    model[2].weight = nn.Parameter(model[2].weight.detach() + 1)
    theirs[2].weight = torch.nn.Parameter(theirs[2].weight.detach() + 1)
    for net in (model, theirs):
        net[0].bias.requires_grad_(False)
    for lib, net in ((genesis, model), (torch, theirs)):
        net(lib.tensor(given)).sum().backward()
    assert model[0].bias.grad is None
    for ours, reference in zip(model.parameters(), theirs.parameters(), strict=True):
        if reference.grad is not None:
            np.testing.assert_allclose(ours.grad.numpy(), reference.grad.numpy(), rtol=1e-5)
    with genesis.autocast("cpu", dtype=genesis.bfloat16):
        assert model(genesis.tensor(given)).dtype is one_by_one(model, genesis.tensor(given)).dtype
