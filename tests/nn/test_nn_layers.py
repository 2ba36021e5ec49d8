"""Layers against their PyTorch twins with the same weights: results and all gradients, in float64.

Constructor arguments are drawn at random from what a layer takes, always the same ones.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from against_torch import MODULES, Comparison

import genesis
from genesis import nn

# ---- the comparison


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def load(mine: nn.Module, theirs: torch.nn.Module, rng: np.random.Generator) -> None:
    """Random parameters, and statistics that are not those of a fresh layer, for both."""
    for name, x in theirs.state_dict().items():
        if x.is_floating_point():
            drawn = torch.tensor(rng.standard_normal(tuple(x.shape)))
            x.copy_(drawn.abs() + 0.5 if name.endswith("var") else drawn)
    mine.load_state_dict({k: genesis.tensor(x.numpy()) for k, x in theirs.state_dict().items()})


class Twins(Comparison):
    """A layer here and there, and what they make of the same inputs."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(zlib.crc32(repr((name, args, kwargs)).encode()))
        self.label = f"{name}{args}{kwargs}"
        self.layers = [getattr(m.nn, name)(*args, **kwargs).double() for m in MODULES]
        load(*self.layers, self.rng)

    def call(self, *inputs: np.ndarray, order: int = 1) -> Twins:
        """Call both; derivatives are by inputs and parameters."""
        names = [[n for n, _ in layer.named_parameters()] for layer in self.layers]
        assert names[0] == names[1]
        results, leaves = [], []
        for m, layer in zip(MODULES, self.layers, strict=True):
            xs = [m.tensor(a, requires_grad=a.dtype.kind == "f" and order > 0) for a in inputs]
            found = layer(*xs)
            results.append(found if isinstance(found, tuple) else (found,))
            leaves.append([x for x in xs if x.requires_grad] + list(layer.parameters()))
        self.derivatives(self.label, results, leaves, order)
        return self

    def state(self) -> Twins:
        """Compare buffers too, as they are now."""
        buffers = [layer.named_buffers() for layer in self.layers]
        for (n, a), (m, b) in zip(*buffers, strict=True):
            assert n == m
            self.add(f"{self.label}: {n}", genesis.Tensor(a.array.copy()), b.clone())
        return self


def check(*twins: Twins, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Compute all results in one program, then compare."""
    together = Comparison()
    together.pairs = [pair for twin in twins for pair in twin.pairs]
    together.check(rtol, atol)


def pick(rng: np.random.Generator, *options: Any) -> Any:
    return options[rng.integers(len(options))]


# ---- linear maps and convolutions


def test_linear_layers(rng: np.random.Generator) -> None:
    check(
        Twins("Linear", 4, 3).call(numbers(rng, (2, 5, 4)), order=2),
        Twins("Linear", 4, 3, bias=False).call(numbers(rng, (4,)), order=2),
        Twins("Bilinear", 3, 4, 2).call(numbers(rng, (5, 3)), numbers(rng, (5, 4)), order=2),
        Twins("Bilinear", 2, 3, 1, False).call(numbers(rng, (2, 3, 2)), numbers(rng, (2, 3, 3))),
        Twins("Flatten", 0, 1).call(numbers(rng, (2, 3, 4))),
        Twins("Unflatten", 1, (2, -1)).call(numbers(rng, (3, 6, 2))),
        Twins("Identity", 3, foo=4).call(numbers(rng, (3,))),
        Twins("CosineSimilarity", 1, 1e-6).call(numbers(rng, (3, 4)), numbers(rng, (3, 4))),
        Twins("PairwiseDistance", 3.0, 1e-5, True).call(numbers(rng, (3, 4)), numbers(rng, (3, 4))),
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(rank: int, rng: np.random.Generator) -> None:
    twins = []
    for mode in ("zeros", "zeros", "zeros", "reflect", "replicate", "circular")[: 8 - 2 * rank]:
        groups = pick(rng, 1, 2)
        sizes = {
            "kernel_size": tuple(int(k) for k in rng.integers(1, 4, rank)),
            "stride": tuple(int(s) for s in rng.integers(1, 3, rank)),
            "padding": tuple(int(p) for p in rng.integers(0, 3, rank)),
            "dilation": tuple(int(d) for d in rng.integers(1, 3, rank)),
        }
        if rng.random() < 0.3:
            sizes["padding"], sizes["stride"] = pick(rng, "same", "valid"), 1
        name, bias = f"Conv{rank}d", bool(rng.integers(2))
        twin = Twins(name, 4, 2, groups=groups, bias=bias, padding_mode=mode, **sizes)
        batch = (2,) if rng.random() < 0.7 else ()
        twins.append(twin.call(numbers(rng, (*batch, 4, *[7, 6, 5][:rank])), order=1 + (rank < 3)))
    check(*twins)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(rank: int, rng: np.random.Generator) -> None:
    twins = []
    for _ in range(4 - rank):
        stride = tuple(int(s) for s in rng.integers(1, 4, rank))
        dilation = tuple(int(d) for d in rng.integers(1, 4, rank))
        settings = {
            "kernel_size": tuple(int(k) for k in rng.integers(1, 4, rank)),
            "stride": stride,
            "padding": tuple(int(p) for p in rng.integers(0, 2, rank)),
            "dilation": dilation,
            # It may be larger than the stride, as long as it is smaller than the dilation.
            "output_padding": tuple(
                int(rng.integers(max(s, d))) for s, d in zip(stride, dilation, strict=True)
            ),
            "groups": pick(rng, 1, 2),
            "bias": bool(rng.integers(2)),
        }
        twin = Twins(f"ConvTranspose{rank}d", 4, 2, **settings)
        batch = (2,) if rng.random() < 0.7 else ()
        twins.append(twin.call(numbers(rng, (*batch, 4, *[4, 3, 3][:rank])), order=1 + (rank < 3)))
    check(*twins)


def test_transposed_convolution_of_a_wanted_size(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 4, 5))
    mine, theirs = nn.ConvTranspose2d(2, 3, 3, 2), torch.nn.ConvTranspose2d(2, 3, 3, 2)
    wanted = theirs(torch.tensor(x, dtype=torch.float32), output_size=(10, 11)).shape
    assert mine(genesis.tensor(x, dtype=genesis.float32), output_size=(10, 11)).shape == wanted
    with pytest.raises(ValueError, match="not between"):
        mine(genesis.tensor(x, dtype=genesis.float32), output_size=(20, 11))


def test_columns(rng: np.random.Generator) -> None:
    check(
        Twins("Unfold", (2, 3), 1, 1, 2).call(numbers(rng, (2, 3, 5, 6))),
        Twins("Unfold", 2, 2).call(numbers(rng, (3, 5, 6))),
        Twins("Fold", (4, 5), 2, 1, 0, 1).call(numbers(rng, (2, 8, 12))),
    )


# ---- pooling


def test_max_pooling(rng: np.random.Generator) -> None:
    check(
        Twins("MaxPool1d", 3, 2, 1, 1, True).call(numbers(rng, (2, 3, 11))),
        Twins("MaxPool1d", 3, 2, ceil_mode=True, dilation=2).call(numbers(rng, (3, 12))),
        Twins("MaxPool2d", (3, 2), (1, 2), (1, 0), (2, 1)).call(numbers(rng, (2, 2, 9, 8))),
        Twins("MaxPool2d", 3, 1, 1, ceil_mode=True).call(numbers(rng, (1, 2, 6, 5))),
        Twins("MaxPool3d", 2, None, 1, return_indices=True).call(numbers(rng, (2, 4, 5, 4))),
        Twins("AdaptiveMaxPool1d", 4).call(numbers(rng, (2, 3, 10))),
        Twins("AdaptiveMaxPool2d", (4, None), True).call(numbers(rng, (2, 3, 10, 3))),
        Twins("AdaptiveMaxPool3d", 2).call(numbers(rng, (1, 4, 5, 4))),
    )


def test_max_pooling_of_equal_elements_goes_to_the_first(rng: np.random.Generator) -> None:
    level = rng.integers(0, 2, (2, 3, 7, 8)).astype(np.float64)
    check(Twins("MaxPool2d", 3, 2, 1).call(level), Twins("AdaptiveMaxPool2d", 3).call(level))


def test_fractional_pooling(rng: np.random.Generator) -> None:
    for rank, name in ((2, "FractionalMaxPool2d"), (3, "FractionalMaxPool3d")):
        samples = rng.random((2, 3, rank))
        shape = (2, 3, *[9, 8, 7][:rank])
        x = rng.standard_normal(shape)
        mine = getattr(nn, name)(2, 4, _random_samples=genesis.tensor(samples))
        theirs = getattr(torch.nn, name)(2, 4, _random_samples=torch.tensor(samples))
        a, b = genesis.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        got, wanted = mine(a), theirs(b)
        (got * got).sum().backward()
        (wanted**2).sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12)
    drawn = nn.FractionalMaxPool2d(2, output_ratio=0.5)(genesis.randn(1, 2, 8, 6))
    assert drawn.shape == (1, 2, 4, 3)


def test_unpooling(rng: np.random.Generator) -> None:
    for rank in (1, 2, 3):
        x = rng.standard_normal((2, 3, *[8, 6, 4][:rank]))
        results = []
        for module, tensor in ((nn, genesis.tensor), (torch.nn, torch.tensor)):
            y = tensor(x, requires_grad=True)
            pool = getattr(module, f"MaxPool{rank}d")(2, return_indices=True)
            best, places = pool(y * y)
            up = getattr(module, f"MaxUnpool{rank}d")(2)(best, places)
            (up * up).sum().backward()
            results.append((up.detach().numpy(), y.grad.numpy()))
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_average_pooling(rng: np.random.Generator) -> None:
    x = numbers(rng, (2, 2, 6, 5, 4)) + 3
    check(
        Twins("AvgPool1d", 3, 2, 1, True, False).call(numbers(rng, (2, 3, 10))),
        Twins("AvgPool2d", (3, 2), (2, 1), (1, 1), True).call(numbers(rng, (2, 3, 8, 7))),
        Twins("AvgPool2d", 3, 2, 1, divisor_override=5).call(numbers(rng, (3, 8, 7))),
        Twins("AvgPool3d", 2, 1, 1, False, False).call(numbers(rng, (1, 2, 4, 5, 4))),
        Twins("AdaptiveAvgPool1d", 4).call(numbers(rng, (2, 3, 10))),
        Twins("AdaptiveAvgPool2d", (4, 7)).call(numbers(rng, (3, 10, 3))),
        Twins("AdaptiveAvgPool2d", 1).call(numbers(rng, (2, 3, 4, 3))),
        Twins("AdaptiveAvgPool3d", (None, 2, 3)).call(x),
        Twins("LPPool1d", 2, 3, 2).call(numbers(rng, (2, 3, 10))),
        Twins("LPPool2d", 3.0, (2, 3), 1, True).call(abs(numbers(rng, (2, 3, 5, 6)))),
        Twins("LPPool3d", 1.5, 2).call(x + 3),
    )


def test_a_window_of_zeros_learns_nothing_from_its_norm() -> None:
    x = genesis.zeros(1, 1, 4, requires_grad=True)
    nn.LPPool1d(2, 2)(x).sum().backward()
    assert x.grad.tolist() == [[[0.0] * 4]]


# ---- normalisation


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["BatchNorm", "InstanceNorm"])
def test_norms_with_statistics(name: str, training: bool, rng: np.random.Generator) -> None:
    twins = []
    for rank, shape in ((1, (4, 3, 5)), (2, (2, 3, 4, 3)), (3, (2, 3, 2, 3, 2)), (1, (6, 3))):
        if len(shape) == 2 and name == "InstanceNorm":
            shape = (3, 6)  # without a batch
        settings = {
            "eps": float(rng.uniform(1e-6, 1e-1)),
            "momentum": pick(rng, 0.1, 0.7, None) if name == "BatchNorm" else 0.3,
            "affine": bool(rng.integers(2)),
            "track_running_stats": rank != 3,
        }
        twin = Twins(f"{name}{rank}d", 3, **settings)
        for module in twin.layers:
            module.train(training)
        for _ in range(2):  # running statistics are not those of one batch
            twin.call(numbers(rng, shape) + 2, order=0)
        twins.append(twin.call(numbers(rng, shape) + 2, order=2).state())
    check(*twins, rtol=1e-8, atol=1e-9)


def test_norms_without_statistics(rng: np.random.Generator) -> None:
    check(
        Twins("LayerNorm", (4, 5)).call(numbers(rng, (3, 4, 5)), order=2),
        Twins("LayerNorm", 6, 1e-2, bias=False).call(numbers(rng, (2, 6)), order=2),
        Twins("LayerNorm", 6, elementwise_affine=False).call(numbers(rng, (2, 2, 6)), order=2),
        Twins("RMSNorm", (5,)).call(numbers(rng, (3, 4, 5)), order=2),
        Twins("RMSNorm", (4, 5), 0.1, False).call(numbers(rng, (3, 4, 5)), order=2),
        Twins("GroupNorm", 2, 6, 1e-3).call(numbers(rng, (2, 6, 4)), order=2),
        Twins("GroupNorm", 3, 3, affine=False).call(numbers(rng, (2, 3, 2, 3)), order=2),
        Twins("LocalResponseNorm", 4, 0.3, 0.6, 2.0).call(numbers(rng, (2, 6, 5)), order=2),
        Twins("LocalResponseNorm", 7, 0.3).call(numbers(rng, (2, 4, 3, 2))),
        rtol=1e-8,
    )  # fmt: skip


def test_cross_map_norm(rng: np.random.Generator) -> None:
    # PyTorch never takes the first channel out of its running sum: two channels are all it can do.
    x = rng.standard_normal((2, 2, 3, 4))
    mine = nn.CrossMapLRN2d(3, 0.4, 0.6, 1.5)(genesis.tensor(x))
    theirs = torch.nn.CrossMapLRN2d(3, 0.4, 0.6, 1.5)(torch.tensor(x))
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-12)


def test_norms_in_half_precision_round_once(rng: np.random.Generator) -> None:
    x = (rng.standard_normal((4, 64)) * 10 + 50).astype(np.float16)
    exact = torch.nn.functional.layer_norm(torch.tensor(x.astype(np.float64)), (64,)).numpy()
    mine = nn.functional.layer_norm(genesis.tensor(x), (64,)).numpy()
    assert mine.dtype == np.float16
    np.testing.assert_array_equal(mine, exact.astype(np.float16))


def test_batch_norm_under_jit_updates_its_statistics(rng: np.random.Generator) -> None:
    layers = [nn.BatchNorm1d(3, momentum=m) for m in (None, None)]
    step = genesis.jit(lambda x: layers[0](x))
    for _ in range(4):
        x = genesis.tensor(rng.standard_normal((5, 3)).astype(np.float32))
        step(x)
        layers[1](x)
    for a, b in zip(layers[0].buffers(), layers[1].buffers(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert layers[0].num_batches_tracked.item() == 4


# ---- activations


ACTIVATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("CELU", (0.5,)), ("ELU", (1.3,)), ("GELU", ()), ("GELU", ("tanh",)), ("GLU", (1,)),
    ("Hardshrink", (0.3,)), ("Hardsigmoid", ()), ("Hardswish", ()), ("Hardtanh", (-0.5, 0.8)),
    ("LeakyReLU", (0.2,)), ("LogSigmoid", ()), ("LogSoftmax", (1,)), ("Mish", ()), ("PReLU", ()),
    ("PReLU", (4,)), ("ReLU", ()), ("ReLU6", ()), ("SELU", ()), ("SiLU", ()), ("Sigmoid", ()),
    ("Softmax", (0,)), ("Softmax2d", ()), ("Softmin", (-1,)), ("Softplus", (2.0, 1.5)),
    ("Softshrink", (0.4,)), ("Softsign", ()), ("Tanh", ()), ("Tanhshrink", ()),
    ("Threshold", (0.1, 2.0)),
]  # fmt: skip


def test_activations(rng: np.random.Generator) -> None:
    twins = []
    for name, args in ACTIVATIONS:
        shape = (2, 4, 3, 2) if name in ("Softmax2d", "PReLU") else (3, 4)
        twins.append(Twins(name, *args).call(numbers(rng, shape)))
    random = Twins("RReLU", 0.1, 0.4)
    for layer in random.layers:
        layer.eval()
    twins.append(random.call(numbers(rng, (3, 4))))
    check(*twins, rtol=1e-7)  # PyTorch has 1/6 and the like in float32 there


def test_every_activation_of_pytorch_is_here() -> None:
    named = set(torch.nn.modules.activation.__all__) - {"MultiheadAttention"}
    assert named <= set(dir(nn)) and named - {"RReLU"} <= {name for name, _ in ACTIVATIONS}


def test_activations_in_place() -> None:
    for name in ("ReLU", "ELU", "Hardtanh", "LeakyReLU", "SiLU", "Threshold", "RReLU", "Mish"):
        args = (0.5, 0.0) if name == "Threshold" else ()
        start = genesis.tensor([-1.0, 0.3, 2.0], requires_grad=True)
        x = start * 1
        y = getattr(nn, name)(*args, inplace=True).eval()(x)
        assert y is x
        y.sum().backward()
        theirs = torch.tensor([-1.0, 0.3, 2.0], requires_grad=True)
        wanted = getattr(torch.nn, name)(*args).eval()(theirs)
        wanted.sum().backward()
        np.testing.assert_allclose(x.detach().numpy(), wanted.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(start.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)


# ---- dropout


@pytest.mark.parametrize(
    ("name", "shape", "planes"),
    [
        ("Dropout", (40, 50), (40, 50)),
        ("Dropout1d", (60, 20, 3), (60, 20, 1)),
        ("Dropout1d", (600, 3), (600, 1)),
        ("Dropout2d", (60, 20, 2, 2), (60, 20, 1, 1)),
        ("Dropout3d", (60, 20, 1, 2, 2), (60, 20, 1, 1, 1)),
    ],
)
def test_dropout(name: str, shape: tuple[int, ...], planes: tuple[int, ...]) -> None:
    p = 0.3
    layer = getattr(nn, name)(p)
    x = genesis.ones(shape, requires_grad=True)
    y = layer(x)
    y.backward(genesis.full(shape, 2.0))
    values, grads = y.detach().numpy(), x.grad.numpy()
    assert set(np.unique(values)) == {0.0, np.float32(1 / (1 - p))}
    np.testing.assert_array_equal(grads, 2 * values)  # the same elements, drawn once
    corner = tuple(slice(n) for n in planes)
    np.testing.assert_array_equal(values, np.broadcast_to(values[corner], shape))
    count = math.prod(planes)
    kept = np.count_nonzero(values[corner]) / count
    assert abs(kept - (1 - p)) < 4 * math.sqrt(p * (1 - p) / count)
    assert not np.array_equal(values, layer(x).detach().numpy())
    assert layer.eval()(x) is x


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(name: str) -> None:
    genesis.manual_seed(1)
    y = getattr(nn, name)(0.4)(genesis.randn(300, 200)).numpy()
    assert abs(y.mean()) < 0.03 and abs(y.var() - 1) < 0.05
    assert np.array_equal(getattr(nn, name)(1.0)(genesis.ones(2, 3)).numpy(), np.zeros((2, 3)))


def test_a_recorded_dropout_draws_anew() -> None:
    layer = nn.Dropout(0.5)
    step = genesis.jit(lambda x: layer(x))
    x = genesis.ones(200)
    first, second = step(x).numpy(), step(x).numpy()
    assert not np.array_equal(first, second)
    layer.p = 0.0
    assert np.array_equal(step(x).numpy(), np.ones(200, np.float32))


def test_dropout_refuses_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match="probability"):
        nn.Dropout(1.5)


# ---- tables


def test_embeddings(rng: np.random.Generator) -> None:
    index = rng.integers(0, 7, (3, 5))
    flat = rng.integers(0, 7, 11)
    begin = np.array([0, 3, 3, 8])
    twins = [
        Twins("Embedding", 7, 4).call(index),
        Twins("Embedding", 7, 4, padding_idx=-2).call(index, order=2),
        Twins("Embedding", 7, 4, scale_grad_by_freq=True).call(index),
        Twins("Embedding", 7, 4, max_norm=0.8, norm_type=1.5).call(index),
    ]
    for mode in ("sum", "mean", "max"):
        twins += [
            Twins("EmbeddingBag", 7, 4, mode=mode).call(index),
            Twins("EmbeddingBag", 7, 4, mode=mode, padding_idx=3).call(index),
            Twins("EmbeddingBag", 7, 4, mode=mode, padding_idx=3).call(flat, begin),
            Twins("EmbeddingBag", 7, 4, mode=mode, include_last_offset=True).call(
                flat, np.append(begin, 11)
            ),
        ]
    weighted = Twins("EmbeddingBag", 7, 4, mode="sum")
    twins.append(weighted.call(flat, begin, numbers(rng, (11,))))
    check(*twins)
    # The rows that were shortened.
    mine, theirs = (layer.weight.detach().numpy() for layer in twins[3].layers)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_embeddings_refuse() -> None:
    table = nn.Embedding(5, 2)
    with pytest.raises(IndexError, match="embedding: index 5 is out of range for dim 0 of size 5"):
        table(genesis.tensor([1, 5])).numpy()
    with pytest.raises(NotImplementedError, match="sparse"):
        nn.Embedding(5, 2, sparse=True)
    with pytest.raises(ValueError, match="padding_idx 9"):
        nn.Embedding(5, 2, padding_idx=9)
    with pytest.raises(ValueError, match="offsets"):
        nn.EmbeddingBag(5, 2)(genesis.tensor([1, 2]))
    frozen = nn.Embedding.from_pretrained(genesis.ones(3, 2))
    assert not frozen.weight.requires_grad and frozen.num_embeddings == 3
    assert nn.Embedding(4, 3, padding_idx=1).weight.detach().numpy()[1].tolist() == [0.0] * 3


# ---- padding, resampling, shuffling


def test_padding(rng: np.random.Generator) -> None:
    twins = []
    for kind in ("ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
        for rank in (1, 2, 3):
            padding = pick(rng, 1, tuple(int(p) for p in rng.integers(0, 3, 2 * rank)))
            args = (padding, 1.5) if kind == "ConstantPad" else (padding,)
            batch = (2,) if rng.random() < 0.5 else ()
            twin = Twins(f"{kind}{rank}d", *args)
            twins.append(twin.call(numbers(rng, (*batch, 2, *[4, 3, 3][:rank]))))
    check(*twins)


def test_upsampling(rng: np.random.Generator) -> None:
    check(
        Twins("Upsample", scale_factor=2.0).call(numbers(rng, (2, 2, 5))),
        Twins("Upsample", (7, 3)).call(numbers(rng, (1, 2, 5, 4))),
        Twins("Upsample", scale_factor=2.3, mode="linear").call(numbers(rng, (1, 2, 5))),
        Twins("Upsample", (7, 3), mode="bilinear", align_corners=True).call(
            numbers(rng, (1, 2, 5, 4))
        ),
        Twins("Upsample", scale_factor=(1.5, 0.7), mode="bicubic").call(numbers(rng, (1, 2, 5, 6))),
        Twins("Upsample", (3, 4, 5), mode="trilinear").call(numbers(rng, (1, 1, 2, 3, 4))),
        Twins("UpsamplingNearest2d", scale_factor=3).call(numbers(rng, (1, 2, 2, 3))),
        Twins("UpsamplingBilinear2d", (5, 4)).call(numbers(rng, (1, 2, 2, 3))),
        Twins("PixelShuffle", 2).call(numbers(rng, (2, 8, 3, 2))),
        Twins("PixelUnshuffle", 3).call(numbers(rng, (2, 6, 3))),
        Twins("ChannelShuffle", 3).call(numbers(rng, (2, 6, 4))),
    )


# ---- first values


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("Linear", (50, 40)),
        ("Bilinear", (20, 10, 30)),
        ("Conv2d", (8, 16, 5, 1, 0, 1, 4)),
        ("ConvTranspose1d", (12, 20, 7)),
        ("Embedding", (60, 50)),
    ],
)
def test_first_values_are_distributed_as_in_pytorch(name: str, args: tuple[int, ...]) -> None:
    mine, theirs = getattr(nn, name)(*args), getattr(torch.nn, name)(*args)
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for (key, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        x, y = a.detach().numpy(), b.detach().numpy()
        assert x.shape == y.shape and x.dtype == y.dtype
        if x.size > 500:
            assert abs(x.mean()) < 0.1 * y.std(), key
            np.testing.assert_allclose(x.std(), y.std(), rtol=0.1)
        if name != "Embedding" and x.size > 500:
            np.testing.assert_allclose(abs(x).max(), abs(y).max(), rtol=0.05)
    again = getattr(nn, name)(*args)
    assert not np.array_equal(again.weight.detach().numpy(), mine.weight.detach().numpy())


def test_float32_layers_are_as_close_as_pytorch(rng: np.random.Generator) -> None:
    """A small network: the error against float64 is of the size of PyTorch's own."""
    layers = "Conv2d(2, 6, 3), BatchNorm2d(6), GELU(), MaxPool2d(2), Flatten(), Linear(54, 5)"
    mine = eval(f"Sequential({layers})", vars(nn))
    theirs = eval(f"Sequential({layers})", vars(torch.nn))
    mine.load_state_dict({k: genesis.tensor(x.numpy()) for k, x in theirs.state_dict().items()})
    x = rng.standard_normal((4, 2, 8, 8)).astype(np.float32)
    got, wanted = mine(genesis.tensor(x)), theirs(torch.tensor(x))
    (got * got).mean().backward()
    (wanted**2).mean().backward()
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    for (key, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        # The bias before a batch norm has no effect: its gradient is nothing but rounding.
        np.testing.assert_allclose(
            a.grad.numpy(), b.grad.numpy(), rtol=1e-3, atol=1e-5, err_msg=key
        )


# ---- containers


def test_containers() -> None:
    a, b, c = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)
    chain = nn.Sequential(a, b)
    chain.append(c)
    assert len(chain) == 3 and chain[-1] is c and list(chain) == [a, b, c]
    assert [n for n, _ in chain.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert chain(genesis.ones(4, 2)).shape == (4, 2)
    head = chain[:2]
    assert isinstance(head, nn.Sequential) and list(head) == [a, b]
    chain[1] = nn.Tanh()
    assert isinstance(chain[1], nn.Tanh)
    del chain[0]
    assert list(chain._modules) == ["0", "1"] and chain[-1] is c
    chain.insert(0, a)
    assert chain[0] is a and len(chain) == 3 and chain.pop(0) is a
    with pytest.raises(IndexError, match="no position 7"):
        chain[7]
    named = nn.Sequential({"first": a, "second": b})
    assert named.first is a and list(named.state_dict()) == ["first.weight", "first.bias"]

    listed = nn.ModuleList([a])
    listed += [b, c]
    assert len(listed) == 3 and listed[1:][0] is b and len(listed + nn.ModuleList([b])) == 4
    assert len(list(listed.parameters())) == 4

    table = nn.ModuleDict({"x": a})
    table["y"] = c
    assert set(table) == {"x", "y"} and "y" in table and table.pop("y") is c and len(table) == 1
    assert dict(table.items()) == {"x": a} and list(table.parameters()) == list(a.parameters())
    table.clear()
    assert not list(table.parameters())


def test_parameter_containers() -> None:
    values = nn.ParameterList([genesis.ones(2), nn.Parameter(genesis.zeros(3))])
    values.append(genesis.ones(1))
    assert [n for n, _ in values.named_parameters()] == ["0", "1", "2"]
    assert len(values) == 3 and values[-1].shape == (1,) and len(values[:2]) == 2
    with pytest.raises(TypeError, match="not int"):
        values.append(3)
    table = nn.ParameterDict({"a": genesis.ones(2)})
    table["b"] = nn.Parameter(genesis.ones(3))
    assert list(table) == ["a", "b"] and isinstance(table["a"], nn.Parameter)
    assert sorted(table.state_dict()) == ["a", "b"] and table.pop("a").shape == (2,)


def test_lazy_layers_become_what_they_stand_for() -> None:
    for name, args, shape in (
        ("Linear", (3,), (2, 5)), ("Conv2d", (3, 2), (2, 4, 5, 5)), ("BatchNorm1d", (), (4, 6)),
        ("ConvTranspose1d", (3, 2), (4, 5)), ("InstanceNorm2d", (), (1, 2, 3, 3)),
    ):  # fmt: skip
        lazy, theirs = (getattr(m, f"Lazy{name}")(*args) for m in (nn, torch.nn))
        lazy.eval()
        seen: list[Any] = []
        lazy.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        assert not list(lazy.parameters())
        call = genesis.jit(lambda x, lazy=lazy: lazy(x))
        assert call(genesis.ones(shape)).shape == tuple(theirs(torch.ones(shape)).shape)
        call(genesis.ones(shape))
        assert type(lazy) is getattr(nn, name) and not lazy.training and seen
        mine = {k: tuple(x.shape) for k, x in lazy.state_dict().items()}
        assert mine == {k: tuple(x.shape) for k, x in theirs.state_dict().items()}


# ---- parametrisations


@pytest.mark.parametrize("training", [True, False])
def test_weight_and_spectral_norm(training: bool, rng: np.random.Generator) -> None:
    shapes = {"Linear": ((5, 4), (3, 5)), "ConvTranspose1d": ((3, 4, 2), (2, 3, 6))}
    for make, settings in (("weight_norm", {}), ("weight_norm", {"dim": None}),
                           ("spectral_norm", {"n_power_iterations": 2})):  # fmt: skip
        for name, (args, shape) in shapes.items():
            twin = Twins(name, *args)
            ours = getattr(nn.parametrizations, make)
            twin.layers[0] = ours(twin.layers[0], **settings).train(training)
            theirs = getattr(torch.nn.utils.parametrizations, make)
            twin.layers[1] = theirs(twin.layers[1], **settings).train(training)
            assert list(twin.layers[0].state_dict()) == list(twin.layers[1].state_dict())
            state = {k: genesis.tensor(x.numpy()) for k, x in twin.layers[1].state_dict().items()}
            twin.layers[0].load_state_dict(state)
            check(twin.call(rng.standard_normal(shape)).state())
            before = twin.layers[0].eval().weight.detach().numpy()
            nn.parametrizations.remove_parametrizations(twin.layers[0], "weight")
            assert type(twin.layers[0]) is getattr(nn, name)
            np.testing.assert_allclose(twin.layers[0].weight.detach().numpy(), before)
