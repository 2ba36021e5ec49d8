"""Recurrent layers and packed sequences against PyTorch, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.nn.utils import rnn as sequences

RANDOM = np.random.default_rng(11)

INPUT, HIDDEN, STEPS, BATCH = 3, 4, 5, 3


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape)


def leaf(x: Any) -> Any:
    return genesis.tensor(x, requires_grad=True)


def torch_leaf(x: Any) -> Any:
    return torch.tensor(x, requires_grad=True)


def assert_close(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        a, b = a.detach().numpy(), b.detach().numpy()
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def pair(name: str, **settings: Any) -> tuple[Any, Any]:
    """Our module and PyTorch's, with the same parameters."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(INPUT, HIDDEN, dtype=torch.float64, **settings)
    ours = getattr(nn, name)(INPUT, HIDDEN, dtype=genesis.float64, **settings)
    ours.load_state_dict({k: genesis.tensor(x.numpy()) for k, x in theirs.state_dict().items()})
    return ours, theirs


def flat(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


LAYERS: list[tuple[str, dict[str, Any], str]] = [
    ("RNN", {}, "first states"),
    ("RNN", {"nonlinearity": "relu", "bias": False, "bidirectional": True}, "packed"),
    ("RNN", {"num_layers": 3, "batch_first": True}, "no batch, first states"),
    ("LSTM", {"batch_first": True}, ""),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}, "packed, first states"),
    ("LSTM", {"bias": False, "proj_size": 3, "bidirectional": True}, "no batch"),
    ("GRU", {"num_layers": 2, "bidirectional": True}, "first states"),
    ("GRU", {"batch_first": True, "bidirectional": True}, "packed, first states"),
    ("GRU", {"bias": False}, "no batch"),
]


@pytest.mark.parametrize(("name", "settings", "how"), LAYERS)
def test_results_and_gradients(name: str, settings: dict[str, Any], how: str) -> None:
    ours, theirs = pair(name, **settings)
    count = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    batch_first = settings.get("batch_first", False)
    batch = () if "no batch" in how else (BATCH,)
    shape = (*batch, STEPS, INPUT) if batch_first else (STEPS, *batch, INPUT)
    widths = [settings.get("proj_size", HIDDEN), HIDDEN][: 2 if name == "LSTM" else 1]
    x, first = normal(*shape), [normal(count, *batch, width) for width in widths]

    def run(lib: Any, tools: Any, module: Any, make: Any) -> list[Any]:
        given, states = make(x), [make(s) for s in first if "first states" in how]
        hx = tuple(states) if len(states) > 1 else states[0] if states else None
        packed = given
        if "packed" in how:
            packed = tools.pack_padded_sequence(given, [2, 5, 3], batch_first, False)
        y, last = module(packed, hx)
        if "packed" in how:
            y, lengths = tools.pad_packed_sequence(y, batch_first)
            assert lengths.tolist() == [2, 5, 3]
        loss = (y**3).sum() + sum((s * s).sum() for s in flat(last))
        parameters = [p for _, p in sorted(module.named_parameters())]
        found = lib.autograd.grad(loss, [given, *states, *parameters])
        return [y, *flat(last), *found]

    expected = run(torch, torch.nn.utils.rnn, theirs, torch_leaf)
    assert_close(run(genesis, sequences, ours, leaf), expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("RNNCell", {"nonlinearity": "relu"}), ("LSTMCell", {}), ("GRUCell", {"bias": False})],
)
@pytest.mark.parametrize("batch", [(), (BATCH,)])
def test_cells(name: str, settings: dict[str, Any], batch: tuple[int, ...]) -> None:
    ours, theirs = pair(name, **settings)
    x, first = normal(*batch, INPUT), [normal(*batch, HIDDEN) for _ in range(2)]

    def run(lib: Any, module: Any, make: Any) -> list[Any]:
        given = [make(x), *(make(s) for s in first)]
        state = module(given[0], tuple(given[1:]) if name == "LSTMCell" else given[1])
        last = module(given[0], state)
        loss = sum((s**3).sum() for s in flat(last)) + sum(s.sum() for s in flat(module(given[0])))
        used = given if name == "LSTMCell" else given[:2]
        parameters = [p for _, p in sorted(module.named_parameters())]
        return [*flat(last), *lib.autograd.grad(loss, [*used, *parameters])]

    assert_close(run(genesis, ours, leaf), run(torch, theirs, torch_leaf))


def test_second_gradients() -> None:
    ours, theirs = pair("LSTM")
    x = normal(STEPS, BATCH, INPUT)

    def run(lib: Any, module: Any, make: Any) -> list[Any]:
        given = [make(x), *(p for _, p in sorted(module.named_parameters()))]
        first = lib.autograd.grad((module(given[0])[0] ** 2).sum(), given, create_graph=True)
        return list(lib.autograd.grad(sum((g * g).sum() for g in first), given))

    assert_close(run(genesis, ours, leaf), run(torch, theirs, torch_leaf))


def test_dropout_is_between_layers_and_in_training_only() -> None:
    genesis.manual_seed(0)
    layer = nn.GRU(INPUT, 64, num_layers=2, dropout=0.5, dtype=genesis.float64)
    x = genesis.tensor(normal(STEPS, 2, INPUT))
    below = nn.GRU(INPUT, 64, dtype=genesis.float64)
    below.load_state_dict({k: v for k, v in layer.state_dict().items() if k.endswith("l0")})
    _, h = layer(x)
    assert_close([h[0]], [below(x)[1][0]])  # the first layer's state is whole
    assert not np.array_equal(h[1].detach().numpy(), layer(x)[1][1].detach().numpy())
    layer.eval()
    assert_close(layer(x), layer(x))


def test_a_layer_is_a_loop_with_one_product_in_it() -> None:
    """The inputs' product is outside, the state's inside; the weights' gradients are outside."""
    layer = nn.LSTM(8, 8)
    x = genesis.randn(12, 4, 8)

    def products(function: Any) -> list[int]:
        report = genesis.explain(function, x)
        assert report.proven
        return sorted(k.repeats for k in report.kernels if "contract" in k.operations)

    def train(x: Any) -> Any:
        layer.zero_grad()
        loss = (layer(x)[0] ** 2).mean()
        loss.backward()
        return loss

    assert products(lambda x: layer(x)[0]) == [1, 12]
    assert products(train) == [1, 1, 1, 12, 12]


def test_training_under_jit() -> None:
    """An LSTM learns to repeat its input one step later, and to say so under packing."""
    genesis.manual_seed(0)
    layer, read = nn.LSTM(2, 16), nn.Linear(16, 2)
    modules = nn.ModuleList([layer, read])
    x = genesis.randn(10, 8, 2)

    @genesis.jit
    def train(x: Any) -> Any:
        modules.zero_grad()
        loss = ((read(layer(x)[0])[1:] - x[:-1]) ** 2).mean()
        loss.backward()
        with genesis.no_grad():
            for p in modules.parameters():
                assert p.grad is not None
                p -= 0.5 * p.grad
        return loss

    losses = [train(x).item() for _ in range(150)]
    assert losses[-1] < 0.35 * losses[0]


def test_packing() -> None:
    parts = [normal(n, 2) for n in (2, 4, 1)]
    ours = [genesis.tensor(x) for x in parts]
    theirs = [torch.tensor(x) for x in parts]
    tools = torch.nn.utils.rnn
    options: dict[str, Any]
    for options in ({}, {"batch_first": True, "padding_value": -1.0}, {"padding_side": "left"}):
        padded = sequences.pad_sequence(ours, **options)
        assert_close([padded], [tools.pad_sequence(theirs, **options)])
    packed = sequences.pack_sequence(ours, enforce_sorted=False)
    other = tools.pack_sequence(theirs, enforce_sorted=False)
    options = {"batch_first": True, "padding_value": 9.0, "total_length": 6}
    assert_close(
        sequences.pad_packed_sequence(packed, **options),
        tools.pad_packed_sequence(other, **options),
    )
    assert_close(sequences.unpack_sequence(packed), theirs)
    with pytest.raises(RuntimeError, match="not in decreasing order"):
        sequences.pack_sequence(ours)
    with pytest.raises(ValueError, match="lengths between 1 and 4"):
        sequences.pack_padded_sequence(genesis.ones(4, 2), [4, 0])


def test_settings_and_shapes_that_do_not_fit() -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: nn.RNN(2, 3, nonlinearity="sin"), "'tanh' or 'relu'"),
        (lambda: nn.LSTM(2, 3, proj_size=3), "proj_size must be less"),
        (lambda: nn.GRU(2, 0), "must be positive"),
        (lambda: nn.GRU(2, 3, dropout=2.0), "a probability"),
        (lambda: nn.GRU(2, 3)(genesis.ones(4, 5, 3)), r"\(time, batch, 2\)"),
        (lambda: nn.GRU(2, 3)(genesis.ones(4, 5, 2), genesis.ones(1, 4, 3)), "first states"),
        (lambda: nn.GRUCell(2, 3)(genesis.ones(4, 3)), r"\(batch, 2\)"),
        (lambda: nn.LSTMCell(2, 3)(genesis.ones(4, 2), genesis.ones(4, 3)), "2 states of shape"),
    ]
    for make, text in cases:
        with pytest.raises(ValueError, match=text):
            make()
    assert (
        repr(nn.LSTM(2, 3, bidirectional=True))
        == "LSTM(2, 3, bidirectional=True)  # 168 parameters"
    )


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "complex64", "float64"])
def test_padding_keeps_the_type(dtype: str) -> None:
    def padded(module: Any) -> list[Any]:
        kind = getattr(module, dtype)
        rnn, F = module.nn.utils.rnn, module.nn.functional
        sequences = [module.ones(3, 2).to(kind), module.ones(1, 2).to(kind)]
        results = [
            rnn.pad_sequence(sequences),
            rnn.pad_sequence(sequences, batch_first=True, padding_value=1.0, padding_side="left"),
            rnn.pad_packed_sequence(rnn.pack_sequence(sequences), padding_value=1.0)[0],
            F.pad(sequences[0], (1, 1)),
            F.pad(sequences[0], (1, 1), value=1.75),
        ]
        return results

    for ours, theirs in zip(padded(genesis), padded(torch), strict=True):
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        assert ours.tolist() == theirs.tolist()
