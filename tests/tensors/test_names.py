"""Names and spellings that programs written for PyTorch use, against PyTorch."""

from __future__ import annotations

from importlib import import_module
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import distributions, nn

BOTH = (genesis, torch)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "name",
    [
        "autograd.functional",
        "distributions",
        "func",
        "nn.utils.fusion",
        "nn.utils.parametrizations",
        "nn.utils.parametrize",
        "nn.utils.rnn",
        "optim.swa_utils",
        "sparse",
        "utils.checkpoint",
        "utils.data",
    ],
)
def test_modules_are_where_pytorch_has_them(name: str) -> None:
    import_module(f"torch.{name}")
    assert import_module(f"genesis.{name}").__doc__


def test_other_spellings_of_arguments() -> None:
    for m in BOTH:
        x = m.arange(6.0).reshape(2, 3)
        assert x.sum(axis=1).tolist() == [3.0, 12.0]
        assert x.mean(axis=0, keepdims=True).tolist() == [[1.5, 2.5, 3.5]]
        assert m.cat([x, x], axis=1).shape == (2, 6)
        assert m.argmax(x, axis=1, keepdims=True).tolist() == [[2], [2]]
        assert m.flip(x, dims=(0,)).tolist() == x.flip(0).tolist()
    with pytest.raises(TypeError, match="one argument"):
        genesis.sum(genesis.ones(2), axis=0, dim=0)


def test_out_is_written() -> None:
    for m in BOTH:
        x, out = m.arange(4.0).reshape(2, 2), m.empty(2, 2)
        base = m.zeros(3, 2, 2)
        assert m.matmul(x, x, out=out) is out and out.tolist() == (x @ x).tolist()
        m.add(x, 1, out=base[1])
        assert base.tolist()[1] == (x + 1).tolist()
        values, where = m.empty(2), m.empty(2, dtype=m.int64)
        m.max(x, 1, out=(values, where))
        assert (values.tolist(), where.tolist()) == ([1.0, 3.0], [1, 1])
        empty = m.empty(0)
        m.sin(x, out=empty)
        assert tuple(empty.shape) == (2, 2)
        with pytest.raises(RuntimeError):
            m.add(x, 1.5, out=m.empty(2, 2, dtype=m.int64))
        with pytest.raises(RuntimeError):
            m.add(m.ones(2, requires_grad=True), 1, out=m.empty(2))


def test_sizes_devices_and_types() -> None:
    for m in BOTH:
        x = m.ones(2, 3, 4)
        assert x.shape.numel() == 24 and x.shape[1:].numel() == 12 and m.Size([2]) == (2,)
        more = x.shape + x.shape[:1]
        assert more.numel() == 48 and x.size() == x.shape
        assert repr(x.shape) == f"{m.__name__}.Size([2, 3, 4])"
        assert x.device.type == "cpu" and m.device("cuda:1").index == 1
        assert m.float32.is_floating_point and not m.int64.is_floating_point
        assert m.complex64.is_complex and m.float16.itemsize == 2
        assert x.layout is m.strided and not x.is_sparse
        image = m.ones(1, 2, 3, 4)
        assert image.contiguous(memory_format=m.channels_last).shape == image.shape
        assert image.to(memory_format=m.channels_last).clone(
            memory_format=m.contiguous_format
        ).shape == (1, 2, 3, 4)
        assert m.zeros_like(image, memory_format=m.preserve_format).sum().item() == 0


def test_old_constructors() -> None:
    for m in BOTH:
        assert (m.Tensor([1, 2]).dtype, m.Tensor([1, 2]).tolist()) == (m.float32, [1.0, 2.0])
        assert tuple(m.Tensor(2, 3).shape) == (2, 3) and tuple(m.Tensor(m.Size([4])).shape) == (4,)
        kinds = (
            "Float:float32 Double:float64 Half:float16 Int:int32 Long:int64 Bool:bool Byte:uint8"
        )
        for pair in kinds.split():
            name, dtype = pair.split(":")
            made = getattr(m, f"{name}Tensor")([1, 0])
            assert made.dtype is getattr(m, dtype) and made.tolist() == [1, 0]
        assert tuple(m.LongTensor(2, 3).shape) == (2, 3)


def test_generators() -> None:
    for m in BOTH:
        first, second = (m.rand(3, generator=m.Generator().manual_seed(5)) for _ in range(2))
        assert first.tolist() == second.tolist()
        generator = m.manual_seed(4)
        assert isinstance(generator, m.Generator) and m.initial_seed() == 4
        source = m.Generator()
        source.manual_seed(1)
        state = source.get_state()
        drawn = m.rand(3, generator=source)
        source.set_state(state)
        assert m.rand(3, generator=source).tolist() == drawn.tolist()
        assert source.seed() == source.initial_seed()


def test_poisson_has_the_probabilities() -> None:
    genesis.manual_seed(0)
    for rate in (0.5, 4.0, 60.0):
        drawn = genesis.poisson(genesis.full((20000,), rate)).numpy()
        assert abs(drawn.mean() - rate) < 5 * (rate / 20000) ** 0.5
        assert abs(drawn.var() - rate) < 0.06 * rate and (drawn == drawn.round()).all()
    assert genesis.poisson(genesis.zeros(3)).tolist() == [0, 0, 0]


def test_numpy_goes_both_ways() -> None:
    for m in BOTH:
        x = m.zeros(3)
        x.numpy()[1] = 5.0
        assert x.tolist() == [0.0, 5.0, 0.0]
        assert np.allclose(np.asarray(np.exp(x)), np.exp([0.0, 5.0, 0.0]))
        assert np.concatenate([x, x]).shape == (6,)
    row = genesis.tensor([0.0, 5.0, 0.0])
    assert np.sum(row).item() == 5.0 and np.mean(row).item() == pytest.approx(5 / 3)
    y = genesis.zeros(2, requires_grad=True)
    total = (np.array([2.0, 3.0], np.float32) * y).sum()
    total.backward()
    assert y.grad.tolist() == [2.0, 3.0]
    kept = genesis.ones(4)
    later = kept + 1  # computed after somebody writes
    copy = kept.clone()
    kept.numpy()[:] = 7
    assert copy.tolist() == [1, 1, 1, 1] and later.tolist() == [2, 2, 2, 2]


def test_numbers_keep_the_types_that_numpy_gave_them() -> None:
    for m in BOTH:
        assert m.tensor([np.float64(1.5)]).dtype is m.float64
        assert m.tensor([[np.float32(1.5)]]).dtype is m.float32
        assert m.tensor([np.int32(1)]).dtype is m.int32
        assert m.tensor([1.5]).dtype is m.float32
        assert m.tensor([-1, 300]).byte().tolist() == [255, 44]
        assert m.tensor([-1.5, 300.0]).byte().tolist() == [255, 44]
        assert f"{m.tensor(1.5):.3f} {m.tensor(3):d}" == "1.500 3"


@pytest.mark.parametrize(
    "key", [[[0, 1], [1, 2]], [[[0, 1]], [[1, 0]]], [[0, 1]], [slice(None), 0], [0, 1]]
)
def test_lists_as_indices(key: Any) -> None:
    expected = torch.arange(6).reshape(2, 3)[key]
    assert genesis.arange(6).reshape(2, 3)[key].tolist() == expected.tolist()


def test_modules_move_and_convert() -> None:
    for m in BOTH:
        layer = m.nn.Linear(2, 2)
        assert layer.cpu() is layer and layer.type(m.float64).weight.dtype is m.float64
        assert layer.to(memory_format=m.channels_last) is layer
        assert callable(layer.cuda)
        m.use_deterministic_algorithms(True)
        assert m.are_deterministic_algorithms_enabled()
        m.use_deterministic_algorithms(False)


def _write(array: Any) -> None:
    array[0] = 9.0


def test_memory() -> None:
    x = genesis.arange(4.0)
    view = x[2:]
    assert view.data_ptr() == x.data_ptr() + 8
    assert view.untyped_storage() == x.untyped_storage()
    assert x.untyped_storage().nbytes() == 16 and not x.is_shared()
    assert x.share_memory_().is_shared()
    process = get_context("fork").Process(target=_write, args=(x.numpy(),))
    process.start()
    process.join()
    assert x.tolist() == [9.0, 1.0, 2.0, 3.0]


def test_sparse_matrices() -> None:
    dense = RNG.standard_normal((3, 2)).astype(np.float32)
    results = []
    for m in BOTH:
        values = m.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        at = m.tensor([[0, 1, 1, 0], [2, 0, 2, 2]])
        sparse = m.sparse_coo_tensor(at, values, (2, 3))
        other = m.tensor(dense, requires_grad=True)
        product = m.sparse.mm(sparse, other)
        product.square().sum().backward()
        merged = sparse.detach().coalesce()
        results.append(
            [product.detach().tolist(), values.grad.tolist(), other.grad.tolist(),
             sparse.detach().to_dense().tolist(), merged.indices().tolist(),
             merged.values().tolist()]
        )  # fmt: skip
        rows = m.sparse_csr_tensor([0, 1, 3], [2, 0, 2], [5.0, 2.0, 3.0], (2, 3))
        assert rows.to_dense().tolist() == [[0, 0, 5], [2, 0, 3]]
        assert (rows @ m.ones(3, 1)).tolist() == [[5], [5]]
        again = m.tensor([[0.0, 5.0], [1.0, 0.0]]).to_sparse()
        assert again.indices().tolist() == [[0, 1], [1, 0]] and again.values().tolist() == [5, 1]
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5)
    with pytest.raises(ValueError, match="indices from 0 to 3 for a size of 3"):
        genesis.sparse_coo_tensor([[0, 0], [0, 3]], [1.0, 1.0], (2, 3))
    with pytest.raises(ValueError, match="make no matrix"):
        genesis.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 1.0], (2, 3))


def test_sparse_blocks() -> None:
    """Tensors whose last dimensions are dense: gradients of tables, features of few nodes."""
    full = np.zeros((4, 3, 2), np.float32)
    full[1, 2], full[3, 0] = [5.0, 0.0], [1.0, 2.0]
    results = []
    for m in BOTH:
        values = m.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        x = m.sparse_coo_tensor(m.tensor([[2, 0, 2]]), values, (4, 2))
        assert (x.sparse_dim(), x.dense_dim(), tuple(x.shape)) == (1, 1, (4, 2))
        (x.to_dense() ** 2).sum().backward()
        merged = x.detach().coalesce()
        both = (x.detach() + x.detach() * 2).coalesce()
        found = [values.grad, merged.indices(), merged.values(), both.to_dense()]
        for count in (1, 2, 3):
            part = m.tensor(full).to_sparse(count)
            found += [part.indices(), part.values(), part.to_dense()]
            assert part.dense_dim() == 3 - count
        sized = m.sparse_coo_tensor(m.tensor([[2, 0]]), m.ones(2, 3))
        assert tuple(sized.shape) == (3, 3)
        results.append([y.tolist() for y in found])
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="is no sparse matrix"):
        genesis.ones(2, 2).to_sparse(1) @ genesis.ones(2, 1)
    with pytest.raises(ValueError, match="1 rows of indices and values of shape"):
        genesis.sparse_coo_tensor([[0]], [[1.0, 2.0]], (2, 3))
    with pytest.raises(ValueError, match="of which 1 and 2 dimensions are sparse"):
        genesis.ones(2, 2).to_sparse(1) + genesis.ones(2, 2).to_sparse()


PAIRS = {
    "Normal": [(0.5, 2.0), (-1.0, 0.7)], "LogNormal": [(0.5, 0.5), (0.1, 0.7)],
    "Laplace": [(0.5, 2.0)], "Gumbel": [(0.5, 2.0)], "HalfNormal": [(2.0,)],
    "Uniform": [(0.0, 2.0), (-1.0, 3.0)], "Exponential": [(0.5,), (2.0,)],
    "Gamma": [(2.5, 1.5), (0.6, 2.0)], "Beta": [(2.0, 3.0), (0.7, 0.9)],
    "Bernoulli": [(0.3,), (0.6,)], "Geometric": [(0.3,)], "Poisson": [(3.0,), (5.0,)],
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_distributions_are_pytorchs(name: str) -> None:
    made = [
        [getattr(m.distributions, name)(*map(m.tensor, args)) for args in PAIRS[name]] for m in BOTH
    ]
    values = (
        [0.0, 1.0]
        if name == "Bernoulli"
        else [1.0, 3.0]
        if name in ("Geometric", "Poisson")
        else [0.3, 0.8]
    )
    for ours, theirs in zip(*made, strict=True):
        for value in values:
            expected = theirs.log_prob(torch.tensor(value)).item()
            assert ours.log_prob(genesis.tensor(value)).item() == pytest.approx(expected, 1e-4)
        assert ours.mean.item() == pytest.approx(theirs.mean.item(), 1e-5)
        assert ours.variance.item() == pytest.approx(theirs.variance.item(), 1e-4)
        if name != "Poisson":
            assert ours.entropy().item() == pytest.approx(theirs.entropy().item(), 1e-4, 1e-5)
        genesis.manual_seed(1)
        drawn = ours.sample((20000,)).numpy()
        spread = theirs.variance.item() ** 0.5
        assert abs(drawn.mean() - theirs.mean.item()) < 6 * spread / 20000**0.5
    if len(made[0]) == 2 and name != "LogNormal":
        found = distributions.kl_divergence(*made[0]).item()
        assert found == pytest.approx(torch.distributions.kl_divergence(*made[1]).item(), 1e-4)


def test_choices_and_vectors() -> None:
    logits = RNG.standard_normal((2, 4)).astype(np.float32)
    root = (np.tril(RNG.standard_normal((3, 3))) * 0.3 + 2 * np.eye(3)).astype(np.float32)
    results = []
    for m in BOTH:
        d = m.distributions
        choice = d.Categorical(logits=m.tensor(logits))
        other = d.Categorical(probs=m.tensor([[0.1, 0.2, 0.3, 0.4]] * 2))
        vector = d.MultivariateNormal(m.ones(3), scale_tril=m.tensor(root))
        sphere = d.MultivariateNormal(m.zeros(3), m.eye(3))
        both = d.Independent(d.Normal(m.zeros(2, 3), m.ones(2, 3)), 1)
        numbers = [
            choice.log_prob(m.tensor([1, 3])), choice.entropy(), choice.probs,
            d.kl_divergence(choice, other), vector.log_prob(m.tensor([0.1, 0.2, 0.3])),
            vector.entropy(), vector.covariance_matrix, d.kl_divergence(vector, sphere),
            both.log_prob(m.ones(2, 3)), both.entropy(),
            d.Dirichlet(m.tensor([1.5, 2.0, 0.5])).log_prob(m.tensor([0.2, 0.3, 0.5])),
            d.Binomial(5, m.tensor(0.3)).log_prob(m.tensor(2.0)),
        ]  # fmt: skip
        results.append([x.numpy() for x in numbers])
        assert tuple(choice.sample((7,)).shape) == (7, 2)
        assert tuple(vector.rsample((7,)).shape) == (7, 3)
        assert tuple(d.OneHotCategorical(logits=m.tensor(logits)).sample().shape) == (2, 4)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)
    genesis.manual_seed(0)
    drawn = distributions.Categorical(logits=genesis.tensor(logits[0])).sample((20000,)).numpy()
    shares = np.bincount(drawn, minlength=4) / 20000
    np.testing.assert_allclose(shares, np.exp(logits[0]) / np.exp(logits[0]).sum(), atol=0.02)
    with pytest.raises(NotImplementedError, match="no rule for Normal and Poisson"):
        distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Poisson(1.0))


def test_gradients_reach_parameters_through_draws() -> None:
    loc = genesis.tensor(1.0, requires_grad=True)
    distributions.Normal(loc, 2.0).rsample((5,)).sum().backward()
    assert loc.grad.item() == 5.0
    assert not distributions.Normal(loc, 2.0).sample().requires_grad


def test_derivatives_by_autograds_names() -> None:
    x, v = RNG.standard_normal((2, 3)).astype(np.float32)
    results = []
    for m in BOTH:
        a, t = m.tensor(x), m.tensor(v)
        f = m.autograd.functional
        results.append(
            [f.jacobian(lambda z: z.sin() * z.sum(), a), f.hessian(lambda z: (z**3).sum(), a),
             f.vjp(lambda z: z.sin(), a, t)[1], f.jvp(lambda z: z.sin(), a, t)[1],
             f.hvp(lambda z: (z**3).sum(), a, t)[1], f.vhp(lambda z: (z**3).sum(), a, t)[1],
             *f.jacobian(lambda y, z: y * z, (a, t))]
        )  # fmt: skip
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-4, 1e-5)


def test_layers_without_first_values() -> None:
    for m in BOTH:
        layer = m.nn.utils.skip_init(m.nn.Linear, 3, out_features=2, dtype=m.float64)
        assert isinstance(layer, m.nn.Linear) and layer.weight.requires_grad
        assert tuple(layer.weight.shape) == (2, 3) and layer.bias.dtype is m.float64
        with pytest.raises((RuntimeError, TypeError)):
            m.nn.utils.skip_init(dict)


def test_parametrised_weights() -> None:
    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).T

    layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    weight = layer.weight.detach().numpy()
    np.testing.assert_array_equal(weight, weight.T)
    layer(genesis.ones(3)).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    for shape in ((3, 5), (5, 3), (4, 4)):
        turned = nn.utils.parametrizations.orthogonal(nn.Linear(*shape))
        with genesis.no_grad():
            turned.parametrizations.weight.original.add_(genesis.randn(3 if 3 in shape else 4, 1))
        w = turned.weight.detach().numpy()
        small = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
        np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)
