"""Quantised weights: how far off they are, products with them, layers, files, and a decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import (
    FORMATS,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedTensor,
    quantize,
    quantize_,
)
from genesis.models import Llama, LlamaConfig

INTEGERS = ("int8", "int4")
CONFIG = LlamaConfig(2, width=64, heads=4, key_heads=2, hidden=96, vocabulary=90, context=24)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- weights


@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize("shape", [(64, 64), (40, 100), (1, 7)])
@pytest.mark.parametrize("group", [8, 32])
def test_weights_are_off_by_at_most_half_a_scale(
    format: str, shape: tuple[int, int], group: int
) -> None:
    w = numbers(*shape)
    w[0] = 0
    q = quantize(genesis.tensor(w), format, group)
    padded = np.pad(np.abs(w), ((0, 0), (0, -shape[1] % group)))
    peak = padded.reshape(shape[0], -1, group).max(2)
    # Scales are bfloat16, whose rounding is within 2^-8 of them.
    scale = peak / ((1 << FORMATS[format].bits - 1) - 1) * (1 + 2**-8)
    bound = np.repeat(scale, group, 1)[:, : shape[1]] / 2
    assert (np.abs(q.dequantize().numpy() - w) <= bound + 1e-12).all()
    assert q.nbytes == q.values.nbytes and q.group == group


@pytest.mark.parametrize("format", ["bfloat16", "float16"])
def test_half_precision_weights(format: str) -> None:
    w, x = numbers(70, 33), numbers(3, 33, seed=1)
    q = quantize(genesis.tensor(w), format)
    np.testing.assert_allclose(q.dequantize().numpy(), w, rtol=2**-8)
    given = genesis.tensor(x)
    used = given.to(genesis.bfloat16).to(genesis.float32) if format == "bfloat16" else given
    near = used.numpy().astype(np.float64) @ q.dequantize().numpy().astype(np.float64).T
    np.testing.assert_allclose(q.linear(given).numpy(), near, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize("shape", [(64, 96), (37, 50)])
def test_products_are_near_those_with_the_same_weights(format: str, shape: tuple[int, int]) -> None:
    q = quantize(genesis.tensor(numbers(*shape)), format)
    weights = q.dequantize().numpy().astype(np.float64)
    for rows in (1, 2, 6, 7, 9):
        x = numbers(rows, shape[1], seed=rows) * 10.0 ** (rows - 4)
        padded = np.pad(np.abs(x), ((0, 0), (0, -shape[1] % 32)))
        peak = np.repeat(padded.reshape(rows, -1, 32).max(2), 32, 1)[:, : shape[1]]
        # An activation is off by at most half a step of its group.
        bound = (peak / 254 * 1.0001) @ np.abs(weights).T
        y = q.linear(genesis.tensor(x)).numpy()
        assert (np.abs(y - x.astype(np.float64) @ weights.T) <= bound + 1e-30).all()


def test_products_of_nothing_and_of_what_is_no_number() -> None:
    q = quantize(genesis.tensor(numbers(32, 64)), "int8")
    x = np.zeros((5, 64), np.float32)
    x[1, 3], x[2, 40], x[3] = np.nan, np.inf, 1e-40
    y = q.linear(genesis.tensor(x), genesis.ones(32)).numpy()
    np.testing.assert_array_equal(y[0], 1)
    assert np.isnan(y[1:3]).all()
    np.testing.assert_allclose(y[3], 1)
    assert q.linear(genesis.zeros(0, 64)).shape == (0, 32)


@pytest.mark.parametrize("format", INTEGERS)
def test_a_product_and_what_follows_are_one_kernel(format: str) -> None:
    q = quantize(genesis.tensor(numbers(64, 64)), format)
    x, bias, residual = (genesis.tensor(numbers(*s)) for s in ((2, 64), (64,), (2, 64)))

    def layer(x: Any, bias: Any, residual: Any) -> Any:
        return residual + genesis.functional.silu(q.linear(x, bias))

    report = genesis.explain(layer, x, bias, residual)
    assert len(report.kernels) <= 4  # peaks, integers and their sums; then all the rest
    assert "uint8" in str(report.kernels[-1]) and "exp" in str(report.kernels[-1])
    near = q.linear(x).numpy() + bias.numpy()
    near = residual.numpy() + near / (1 + np.exp(-near))
    np.testing.assert_allclose(layer(x, bias, residual).numpy(), near, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_told() -> None:
    w = genesis.ones(4, 8)
    with pytest.raises(ValueError, match=r"formats are .*int4.*, not 'int9'"):
        quantize(w, "int9")
    with pytest.raises(ValueError, match=r"multiple of 8 values, not 12"):
        quantize(w, "int4", 12)
    with pytest.raises(ValueError, match=r"Q4_K has no groups of another size"):
        quantize(w, "Q4_K", 32 * 2)
    with pytest.raises(ValueError, match=r"takes a matrix with weights, not .* of shape \(8,\)"):
        quantize(w[0])
    with pytest.raises(ValueError, match=r"\(2, 7\) does not fit a matrix of \(4, 8\)"):
        quantize(w).linear(genesis.ones(2, 7))
    with pytest.raises(ValueError, match=r"quantize_: the formats are"):
        quantize_(nn.Linear(2, 2), "int9")


# ---- layers


@pytest.mark.parametrize("format", ["bfloat16", "int8", "int4", "uint4", "Q4_K"])
def test_an_embedding_and_its_head_share_a_quantised_table(format: str) -> None:
    model = nn.Sequential(nn.Embedding(50, 40), nn.Linear(40, 40), nn.Linear(40, 50, bias=False))
    model[2].weight = model[0].weight
    table = quantize(model[0].weight, format).dequantize().numpy()
    assert quantize_(model, format) is model
    assert [type(m) for m in model] == [QuantizedEmbedding, QuantizedLinear, QuantizedLinear]
    assert model[0].values is model[2].values and not list(model.parameters())
    places = genesis.tensor([[3, 49], [0, 33]])
    np.testing.assert_array_equal(model[0](places).numpy(), table[places.numpy()])
    assert model(places).shape == (2, 2, 50)


@pytest.mark.parametrize("format", ["bfloat16", "int4"])
def test_a_quantised_model_in_a_file(format: str, tmp_path: Path) -> None:
    def made(seed: int) -> nn.Module:
        genesis.manual_seed(seed)
        return quantize_(nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8)), format)

    model, other, x = made(0), made(1), genesis.tensor(numbers(3, 40))
    genesis.save(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(genesis.load(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())


def test_formats_by_names_and_patterns() -> None:
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2),
        nn.Flatten(), nn.Linear(36, 20), nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 5)),
    )  # fmt: skip
    x = genesis.tensor(numbers(2, 3, 10, 10))
    wanted = model(x).detach().numpy()
    quantize_(model, {"5.1": None, "5.*": "int8/row", "4": "Q8_0", "?": "int8"})
    formats = {n: m.format.name for n, m in model.named_modules() if hasattr(m, "format")}
    assert formats == {"0": "int8", "2": "int8", "4": "Q8_0", "5.0": "int8"}
    assert type(model[5][1]) is nn.Linear and model[5][0].format.group == 32
    assert type(model[0]) is QuantizedConv2d and model[0].shape == (8, 27)
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=0.02)


def test_patterns_that_fit_nothing_and_models_quantised_twice_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with pytest.raises(ValueError, match=r"quantize_: 'head\*' fits no layer that is left; .* 0"):
        quantize_(model, {"*": "int4", "head*": "int8"})
    assert type(model[0]) is nn.Linear
    quantize_(model, "int4")
    with pytest.raises(ValueError, match=r"nothing to quantise in Sequential: .* already"):
        quantize_(model, "int4")
    with pytest.raises(ValueError, match=r"nothing to quantise in ReLU: it has no layers"):
        quantize_(nn.ReLU(), "int4")
    with pytest.raises(ValueError, match=r"and not the module itself"):
        quantize_(nn.Linear(8, 8), "int4")


def test_a_state_of_another_layout_or_format_is_refused() -> None:
    def made(format: str) -> nn.Module:
        return quantize_(nn.Sequential(nn.Linear(128, 32)), format)

    state = made("int4/64").state_dict()
    made("int4/64").load_state_dict(state)
    old = {name: x for name, x in state.items() if not name.endswith("layout")}
    with pytest.raises(RuntimeError, match=r"0\.values: were saved before .* quantise the model"):
        made("int4/64").load_state_dict(old, strict=False)
    with pytest.raises(
        RuntimeError, match=r"0\.values: are '2 int4/64 .*the module's are '2 uint4"
    ):
        made("uint4/64").load_state_dict(state)


# ---- a decoder


def reference(model: Llama, tokens: list[int]) -> np.ndarray:
    """The scores after the last token, in float64 and without a cache."""
    c = model.config
    size, half = c.width // c.heads, c.width // c.heads // 2
    w = {name: x.numpy().astype(np.float64) for name, x in model.state_dict().items()}
    angle = np.arange(len(tokens))[:, None] * c.theta ** (-np.arange(half) / half)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.epsilon) * w[f"{name}.weight"]

    def heads(x: np.ndarray, turns: bool) -> np.ndarray:
        x = x.reshape(len(tokens), -1, size).swapaxes(0, 1)
        if turns:
            a, b = x[..., :half], x[..., half:]
            cos, sin = np.cos(angle), np.sin(angle)
            x = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        return x

    x = w["tokens.weight"][tokens]
    for k in range(c.layers):
        at = f"layers.{k}"
        n = norm(x, f"{at}.attention_norm")
        projected = n @ w[f"{at}.attention.project.weight"].T
        q, key, value = np.split(projected, [c.width, c.width + c.key_heads * size], -1)
        query = heads(q, True)
        shared = [np.repeat(heads(y, y is key), c.heads // c.key_heads, 0) for y in (key, value)]
        scores = query @ shared[0].swapaxes(1, 2) / np.sqrt(size)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ shared[1]
        x = x + mixed.swapaxes(0, 1).reshape(x.shape) @ w[f"{at}.attention.out.weight"].T
        n = norm(x, f"{at}.norm")
        gate, wide = np.split(n @ w[f"{at}.up.weight"].T, 2, -1)
        x = x + gate / (1 + np.exp(-gate)) * wide @ w[f"{at}.down.weight"].T
    return norm(x[-1], "norm") @ w["tokens.weight"].T


def test_a_decoder_is_its_reference_and_compiles_once_for_all_positions() -> None:
    genesis.manual_seed(0)
    model = Llama(CONFIG)
    prompt = [3, 14, 15, 9, 26]
    result = model.generate(prompt, 8)
    text = list(prompt)
    for token in result:
        scores = reference(model, text)
        assert scores[token] >= scores.max() - 1e-4
        text.append(token)
    assert model._next.captures == 2  # a prompt, and a single token wherever it is
    with genesis.no_grad():
        again = model(genesis.tensor(text), genesis.tensor(0)).numpy()
    np.testing.assert_allclose(again, reference(model, text), rtol=1e-3, atol=1e-4)


def test_a_quantised_decoder_gives_scores_near_the_others() -> None:
    genesis.manual_seed(0)
    model = Llama(CONFIG)
    text = [3, 14, 15, 9, 26, 5]
    near = reference(model, text)
    quantize_(model, "int8")
    with genesis.no_grad():
        scores = model(genesis.tensor(text), genesis.tensor(0)).numpy()
    assert np.abs(scores - near).max() < 0.05 * np.abs(near).max()
    assert len(model.generate(text, 3)) == 3


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"width": 60, "heads": 8}, "8 heads do not divide a width of 60"),
        ({"width": 36, "heads": 4}, "4 heads do not divide a width of 36 .* even size"),
        ({"heads": 4, "key_heads": 3}, "4 query heads cannot share 3 key heads"),
    ],
)
def test_heads_that_do_not_fit_are_told(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(CONFIG, **sizes)


def test_rows_of_input_are_rounded_as_the_weights_are() -> None:
    rng = np.random.default_rng(5)
    w, x = rng.standard_normal((70, 96)), rng.standard_normal((2, 15, 96))
    q = quantize(genesis.tensor(w.astype(np.float32)), "bfloat16")
    weights = q.dequantize().numpy().astype(np.float64)
    given = genesis.tensor(x.astype(np.float32))
    rounded = given.to(genesis.bfloat16).to(genesis.float32).numpy().astype(np.float64)
    np.testing.assert_allclose(q.linear(given).numpy(), rounded @ weights.T, rtol=0, atol=1e-4)
    few = rounded[0, :3] @ weights.T
    np.testing.assert_allclose(q.linear(given[0, :3]).numpy(), few, rtol=0, atol=1e-4)


def test_a_text_longer_than_the_cache_is_told() -> None:
    with pytest.raises(ValueError, match=r"20 tokens and 5 more, where the cache has 24"):
        Llama(CONFIG).generate([0] * 20, 5)


def test_a_quantised_tensor_tells_what_it_is() -> None:
    q = quantize(genesis.ones(3, 16), "int4", group=16)
    assert repr(q) == "QuantizedTensor((3, 16), 'int4', group=16)"
    assert isinstance(q, QuantizedTensor) and q.bits == 4
