"""Attention and transformers against PyTorch, in double precision, with the same parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import functional, nn

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape)


def grad(outputs: Any, inputs: Any, **options: Any) -> Any:
    return genesis.autograd.grad(outputs, inputs, **options)


def leaf(x: Any) -> Any:
    return genesis.tensor(x, requires_grad=True)


def torch_leaf(x: Any) -> Any:
    return torch.tensor(x, requires_grad=True)


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = a.detach().numpy(), b.detach().numpy()
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---- scaled_dot_product_attention


MASK = RANDOM.random((2, 1, 5, 6)) > 0.4
MASK[0, 0, 1] = False  # a query that may look at nothing
MASK[1, 0, 3] = True

CASES: dict[str, Any] = {
    "plain": ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), None, {}),
    "causal": ((2, 3, 6, 4), (2, 3, 5, 4), (2, 3, 5, 7), None, {"is_causal": True}),
    "bool mask": ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), MASK, {"scale": 0.3}),
    "float mask": (
        (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), np.where(MASK, normal(2, 1, 5, 6), -np.inf), {},
    ),
    "groups": ((2, 6, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), MASK, {"enable_gqa": True}),
    "more batches": ((2, 2, 1, 3, 4), (2, 2, 1, 2, 4), (2, 2, 1, 2, 3), None, {}),
    "one key": ((3, 5, 4), (3, 1, 4), (3, 1, 4), MASK[0, :, :, :1], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_and_two_orders_of_gradients(case: str) -> None:
    *shapes, mask, options = CASES[case]
    arrays = [normal(*shape) for shape in shapes]
    weight = normal(*shapes[0][:-1], shapes[2][-1])

    def run(lib: Any, attention: Any, make: Any) -> list[Any]:
        given = [make(x) for x in arrays]
        masked = dict(options)
        if mask is not None:
            masked["attn_mask"] = lib.tensor(mask) if mask.dtype == bool else make(mask)
        result = attention(*given, **masked)
        if mask is not None and mask.dtype != bool:
            given.append(masked["attn_mask"])
        first = lib.autograd.grad((result * make(weight)).sum(), given, create_graph=True)
        second = lib.autograd.grad(sum((g * g).sum() for g in first), given)
        return [result, *first, *second]

    theirs = run(torch, torch.nn.functional.scaled_dot_product_attention, torch_leaf)
    assert_close(run(genesis, functional.scaled_dot_product_attention, leaf), theirs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(dtype: str) -> None:
    """The result is that of double precision, to the last bits of a half-precision number."""
    given = [genesis.tensor(normal(2, 9, 8)).to(getattr(genesis, dtype)) for _ in range(3)]
    exact = functional.scaled_dot_product_attention(*(x.double() for x in given))
    result = functional.scaled_dot_product_attention(*given)
    assert result.dtype is getattr(genesis, dtype)
    bits = {"float16": 2e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(result.float().numpy(), exact.numpy(), rtol=bits, atol=1e-3)


def test_forward_is_one_kernel() -> None:
    """Scores and weights are never in memory, whatever masks them, also in training."""
    q, k, v = (genesis.randn(2, 4, 64, 32) for _ in range(3))
    mask = genesis.rand(64, 64) > 0.5

    def kernels(function: Any, *args: Any) -> int:
        report = genesis.explain(function, *args)
        assert report.proven
        return len(report.kernels)

    attention = functional.scaled_dot_product_attention
    assert kernels(lambda q, k, v: attention(q, k, v), q, k, v) == 1
    assert kernels(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v) == 1
    grouped = genesis.randn(2, 8, 64, 32)
    assert kernels(lambda q, k, v: attention(q, k, v, enable_gqa=True), grouped, k, v) == 1
    halves = [x.bfloat16() for x in (q, k, v)]
    assert kernels(lambda q, k, v: attention(q, k, v), *halves) == 1
    assert kernels(lambda q, k, v, m: attention(q, k, v, m), q, k, v, mask) == 1

    def train(q: Any, k: Any, v: Any) -> Any:
        return grad((attention(q, k, v, is_causal=True) ** 2).sum(), [q, k, v])

    wanted = [x.requires_grad_() for x in (q, k, v)]
    report = genesis.explain(train, *wanted)
    assert report.proven
    # Forward, the gradient of softmax along the result, and all gradients at once.
    with_contractions = [x for x in report.kernels if "contract" in x.operations]
    assert len(with_contractions) == 2 and len(report.kernels) <= 4
    assert report.temporary_bytes < 2 * 4 * 64 * 64 * 4


def test_dropout_leaves_out_weights() -> None:
    genesis.manual_seed(0)
    q, k = leaf(normal(1, 50, 4)), leaf(normal(1, 50, 4))
    values = genesis.tensor(np.eye(50)[None])  # so that the result is the weights
    whole = functional.scaled_dot_product_attention(q, k, values)
    some = functional.scaled_dot_product_attention(q, k, values, dropout_p=0.25)
    kept = some.detach().numpy() != 0
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_allclose(
        some.detach().numpy(), np.where(kept, whole.detach().numpy() / 0.75, 0), rtol=1e-12
    )
    (ours,) = grad(some.sum(), q)
    (expected,) = grad((whole * genesis.tensor(kept / 0.75)).sum(), q)
    np.testing.assert_allclose(ours.numpy(), expected.numpy(), atol=1e-14)


def test_attention_refuses_what_does_not_fit() -> None:
    attention = functional.scaled_dot_product_attention
    x = genesis.ones(2, 3, 4)
    with pytest.raises(ValueError, match="queries must be as wide as keys"):
        attention(x, genesis.ones(2, 3, 5), x)
    with pytest.raises(ValueError, match="at least two dimensions"):
        attention(x[0, 0], x, x)
    with pytest.raises(TypeError, match="one floating dtype"):
        attention(x, x.double(), x)
    with pytest.raises(ValueError, match="not both"):
        attention(x, x, x, genesis.ones(3, 3) > 0, is_causal=True)
    with pytest.raises(TypeError, match="attn_mask is bool"):
        attention(x, x, x, genesis.ones(3, 3, dtype=genesis.int64))
    with pytest.raises(ValueError, match="multiple of those of the key"):
        attention(genesis.ones(3, 3, 4), x, x, enable_gqa=True)


# ---- modules


def compare(
    name: str, settings: dict[str, Any], arrays: list[Any], masks: dict[str, Any], **options: Any
) -> None:
    """Results and gradients of inputs and parameters are those of PyTorch's module."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(**settings, dtype=torch.float64)
    ours = getattr(nn, name)(**settings, dtype=genesis.float64)
    ours.load_state_dict({k: genesis.tensor(x.numpy()) for k, x in theirs.state_dict().items()})

    def run(lib: Any, module: Any, make: Any) -> list[Any]:
        given = [make(x) for x in arrays]
        same = given * 3 if options.get("same") else given
        told = {k: v for k, v in options.items() if k != "same"}
        results = module(*same, **{k: lib.tensor(m) for k, m in masks.items()}, **told)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum((x**3).sum() for x in results if x is not None)
        parameters = [x for _, x in sorted(module.named_parameters())]
        found = lib.autograd.grad(loss, [*given, *parameters], allow_unused=True)
        return [*results, *found]

    assert_close(run(genesis, ours, leaf), run(torch, theirs, torch_leaf))


PADDING = np.zeros((3, 6), bool)
PADDING[0, 4:] = True
LATER = np.triu(np.ones((6, 6), bool), 1)
HIDDEN = RANDOM.random((6, 4, 6)) > 0.7


def test_multihead_attention_with_everything() -> None:
    settings = {
        "embed_dim": 8, "num_heads": 2, "add_bias_kv": True, "add_zero_attn": True, "kdim": 3,
        "vdim": 5,
    }  # fmt: skip
    arrays = [normal(4, 3, 8), normal(6, 3, 3), normal(6, 3, 5)]
    masks = {"key_padding_mask": PADDING, "attn_mask": HIDDEN}
    compare("MultiheadAttention", settings, arrays, masks, average_attn_weights=False)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multihead_attention_of_a_sequence_to_itself() -> None:
    settings = {"embed_dim": 8, "num_heads": 4, "batch_first": True, "bias": False}
    masks = {"attn_mask": LATER, "key_padding_mask": np.where(PADDING, -np.inf, 0.5)}
    compare("MultiheadAttention", settings, [normal(3, 6, 8)], masks, same=True, need_weights=False)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multihead_attention_without_a_batch() -> None:
    arrays = [normal(4, 8), normal(6, 8), normal(6, 8)]
    masks = {"attn_mask": normal(2, 4, 6), "key_padding_mask": PADDING[0]}
    compare("MultiheadAttention", {"embed_dim": 8, "num_heads": 2}, arrays, masks)


def test_causal_stands_for_its_mask() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=genesis.float64)
    x = genesis.tensor(normal(3, 6, 8))
    masked, weights = attention(x, x, x, attn_mask=genesis.tensor(LATER))
    assert np.abs(weights.detach().numpy()[:, LATER]).max() == 0
    for options in ({}, {"need_weights": False}, {"attn_mask": genesis.tensor(LATER)}):
        assert_close([attention(x, x, x, is_causal=True, **options)[0]], [masked])
    padding = genesis.tensor(PADDING)
    both = attention(x, x, x, padding, attn_mask=genesis.tensor(LATER))
    assert_close(attention(x, x, x, padding, is_causal=True), both)


LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first: bool) -> None:
    settings = {**LAYER, "batch_first": True, "norm_first": norm_first, "activation": "gelu"}
    masks = {"src_key_padding_mask": PADDING, "src_mask": LATER}
    compare("TransformerEncoderLayer", settings, [normal(3, 6, 8)], masks)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first: bool) -> None:
    masks = {"memory_key_padding_mask": PADDING, "tgt_mask": LATER[:4, :4]}
    settings = {**LAYER, "norm_first": norm_first}
    compare("TransformerDecoderLayer", settings, [normal(4, 3, 8), normal(6, 3, 8)], masks)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer() -> None:
    settings = {**LAYER, "num_encoder_layers": 2, "num_decoder_layers": 2, "bias": False}
    masks = {
        "src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING,
        "tgt_mask": torch.nn.Transformer.generate_square_subsequent_mask(4).double().numpy(),
    }  # fmt: skip
    compare("Transformer", settings, [normal(6, 3, 8), normal(4, 3, 8)], masks)


def test_layers_of_a_stack_are_copies() -> None:
    layer = nn.TransformerEncoderLayer(**LAYER)  # type: ignore[arg-type]
    stack = nn.TransformerEncoder(layer, 2)
    first, second = (x.linear1.weight for x in stack.layers)
    assert first is not second
    np.testing.assert_array_equal(first.detach().numpy(), second.detach().numpy())
    with genesis.no_grad():
        first.zero_()
    assert second.detach().numpy().any()


def test_a_transformer_trains_under_jit() -> None:
    genesis.manual_seed(0)
    settings = {**LAYER, "dropout": 0.1}
    layer = nn.TransformerEncoderLayer(**settings, batch_first=True)  # type: ignore[arg-type]
    model = nn.TransformerEncoder(layer, 2)
    x = genesis.randn(4, 6, 8)

    @genesis.jit
    def train(x: Any) -> Any:
        model.zero_grad()
        loss = ((model(x, is_causal=True) - x.flip(-1)) ** 2).mean()
        loss.backward()
        with genesis.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad
        return loss

    losses = [train(x).item() for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]


# ---- positions


def rotated(x: Any, interleaved: bool, base: float, scale: float, first: int) -> Any:
    """Rotary embedding by complex numbers."""
    half = x.shape[-1] // 2
    speed = base ** (-2.0 * np.arange(half) / x.shape[-1])
    turn = np.exp(1j * scale * (first + np.arange(x.shape[-2]))[:, None] * speed)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (a + 1j * b) * turn
    parts = [z.real, z.imag]
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(interleaved: bool) -> None:
    x = normal(2, 3, 5, 8)
    turn = nn.RotaryEmbedding(8, 16, 500.0, interleaved, 0.5, dtype=genesis.float64)
    expected = rotated(x, interleaved, 500.0, 0.5, 7)
    given = leaf(x)
    result = turn(given, offset=7)
    np.testing.assert_allclose(result.detach().numpy(), expected, atol=1e-12)
    # Turning back is the gradient of turning.
    (back,) = grad((result * genesis.tensor(expected)).sum(), given)
    np.testing.assert_allclose(back.numpy(), x, atol=1e-12)

    places = genesis.tensor(np.array([[7, 8, 9, 10, 11], [0, 1, 2, 3, 4]])[:, None])
    both = turn(given, positions=places).detach().numpy()
    np.testing.assert_allclose(both[0], expected[0], atol=1e-12)
    np.testing.assert_allclose(both[1], rotated(x[1], interleaved, 500.0, 0.5, 0), atol=1e-12)
    with pytest.raises(ValueError, match="max_seq_len 16"):
        turn(given, offset=12)
    assert not turn.state_dict()


def test_rotary_embedding_of_some_features() -> None:
    x = normal(5, 8)
    part = nn.RotaryEmbedding(4, dtype=genesis.float64)(genesis.tensor(x)).numpy()
    np.testing.assert_allclose(part[:, :4], rotated(x[:, :4], False, 1e4, 1.0, 0), atol=1e-12)
    np.testing.assert_array_equal(part[:, 4:], x[:, 4:])


def test_positional_encoding() -> None:
    place, pair = np.arange(5)[:, None], np.arange(3)
    angle = place / 10000 ** (pair / 3)
    table = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(5, 6)
    x = normal(2, 5, 6)
    encoding = nn.PositionalEncoding(6, 0.0, batch_first=True, dtype=genesis.float64)
    np.testing.assert_allclose(encoding(genesis.tensor(x)).numpy(), x + table, atol=1e-12)


def test_swiglu() -> None:
    network = nn.FeedForwardSwiGLU(6, dtype=genesis.float64)
    assert (
        network.gate_proj.out_features == 64
        and nn.FeedForwardSwiGLU(96).up_proj.out_features == 256
    )
    gate, up, down = (x.detach().numpy() for x in network.parameters())
    x = normal(3, 6)
    g = x @ gate.T
    expected = (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(network(genesis.tensor(x)).detach().numpy(), expected, rtol=1e-10)
    assert math.prod(gate.shape) == 6 * 64
