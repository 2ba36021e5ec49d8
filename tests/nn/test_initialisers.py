"""First values of parameters, bounds for gradients, and parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional
from genesis import ndarray as nd
from genesis.nn import init, utils
from genesis.tensor.tensor import Tensor

SHAPES = [(4, 3), (3,), (2, 2, 3)]


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    """PyTorch computes in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("order", [2.0, 1.0, 3.0, float("inf")])
def test_clipping(order: float) -> None:
    rng = np.random.default_rng(5)
    grads = [rng.normal(size=s) * 3 for s in SHAPES]
    theirs = [torch.zeros(s, requires_grad=True) for s in SHAPES]
    ours = [Tensor(nd.zeros(s, genesis.float64), requires_grad=True) for s in SHAPES]
    for p, q, g in zip(theirs, ours, grads, strict=True):
        p.grad, q.grad = torch.tensor(g), Tensor(nd.array(g))
    theirs.append(torch.zeros(1, requires_grad=True))
    ours.append(Tensor(nd.zeros(1), requires_grad=True))  # without a gradient
    for limit in (1.5, 100.0):
        expected = torch.nn.utils.clip_grad_norm_(theirs, limit, order)
        found = utils.clip_grad_norm_(ours, limit, order)
        np.testing.assert_allclose(found.item(), expected.item(), 1e-12)
    torch.nn.utils.clip_grad_value_(theirs, 0.2)
    utils.clip_grad_value_(ours, 0.2)
    for p, q in zip(theirs[:-1], ours[:-1], strict=True):
        np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), 1e-9)
    ours[0].grad = Tensor(nd.full(SHAPES[0], float("nan"), genesis.float64))
    with pytest.raises(RuntimeError, match="nan"):
        utils.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    assert utils.get_total_norm([]).item() == 0


def test_vectors() -> None:
    rng = np.random.default_rng(1)
    params = [Tensor(nd.array(rng.normal(size=s)), requires_grad=True) for s in SHAPES]
    vector = utils.parameters_to_vector(params)
    functional.sum(vector * vector).backward()
    for p in params:
        assert np.array_equal(p.grad.numpy(), 2 * p.array.numpy())
    flat = vector.detach().numpy()
    utils.vector_to_parameters(Tensor(nd.array(flat[::-1].copy())), params)
    assert np.array_equal(utils.parameters_to_vector(params).detach().numpy(), flat[::-1])
    with pytest.raises(ValueError, match="27"):
        utils.vector_to_parameters(Tensor(nd.zeros(28)), params)


def test_initialisers() -> None:
    genesis.manual_seed(0)

    def filled(fill: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        x = Tensor(nd.zeros(shape, genesis.float64), requires_grad=True)
        assert fill(x, *args, **kwargs) is x
        return x.array.numpy()

    large = (300, 200)
    for name in ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"):
        for kwargs in ({}, {"gain": 2.0} if "xavier" in name else {"a": 1.0, "mode": "fan_out"}):
            expected = getattr(torch.nn.init, name)(torch.empty(large), **kwargs)
            found = filled(getattr(init, name), large, **kwargs)
            np.testing.assert_allclose(found.std(), expected.std().item(), 0.02)
            if "uniform" in name:
                np.testing.assert_allclose(np.abs(found).max(), expected.abs().max().item(), 0.01)
    x = filled(init.trunc_normal_, large, 1.0, 2.0, -2.0, 2.0)
    expected = torch.nn.init.trunc_normal_(torch.empty(large), 1.0, 2.0, -2.0, 2.0)
    assert x.min() >= -2 and x.max() <= 2
    np.testing.assert_allclose([x.mean(), x.std()], [expected.mean(), expected.std()], 0.05)
    x = filled(init.uniform_, large, -3.0, 1.0)
    np.testing.assert_allclose([x.min(), x.max(), x.mean()], [-3, 1, -1], atol=0.02)
    assert filled(init.constant_, 3, 2.5).tolist() == [2.5] * 3
    assert filled(init.ones_, 2).tolist() == [1, 1] and filled(init.zeros_, 1).tolist() == [0]
    assert np.array_equal(filled(init.eye_, (3, 5)), np.eye(3, 5))
    for shape, groups in (((4, 2, 3), 2), ((3, 5, 3, 4), 1), ((6, 2, 1, 2, 3), 3)):
        wanted = torch.nn.init.dirac_(torch.empty(shape), groups).numpy()
        assert np.array_equal(filled(init.dirac_, shape, groups), wanted)
    for shape in ((5, 3), (3, 2, 4)):
        x = filled(init.orthogonal_, shape, 2.0).reshape(shape[0], -1)
        gram = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-12)
    x = filled(init.sparse_, (50, 20), 0.3, 2.0)
    assert ((x == 0).sum(axis=0) == 15).all() and 1.8 < x[x != 0].std() < 2.2
    assert len({tuple(column) for column in (x == 0).T}) > 15
    for name, value in (("selu", None), ("leaky_relu", 0.3), ("tanh", None), ("conv2d", None)):
        assert init.calculate_gain(name, value) == torch.nn.init.calculate_gain(name, value)
    with pytest.raises(ValueError, match="fan_in"):
        init.xavier_normal_(Tensor(nd.zeros(3)))
    with pytest.raises(ValueError, match="'swish'"):
        init.calculate_gain("swish")
