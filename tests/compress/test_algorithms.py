"""Algorithms make the error that matters smaller; statistics, calibrators, equalisers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import FORMATS, Format, Integer, quantize_
from genesis.compress.algorithms import ALGORITHMS, clipped, gptq, hqq, nearest, searched
from genesis.compress.equalise import (
    Rotated,
    activation_aware_,
    correct_bias_,
    hadamard,
    recenter_,
    smooth_,
)  # fmt: skip
from genesis.compress.format import named
from genesis.compress.statistics import (
    CALIBRATORS,
    Range,
    Statistics,
    gather,
    least_squares,
    minmax,
    percentile,
)  # fmt: skip
from genesis.compress.training import ACTIVATIONS

K = 128
#: int2 in groups of 32 with minima of 16 bits: 3 bits a weight.
UNEVEN2 = Format("uneven2", Integer(2), 32, "float16", minimum="float16")


def later(name: str) -> Any:
    """A case for the slow tests."""
    return pytest.param(name, marks=pytest.mark.slow)


def case(rows: int = 16, k: int = K, seed: int = 0) -> tuple[Any, Any, Statistics]:
    """A weight, inputs whose channels depend on each other, and their statistics."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((k, k)) * np.exp(rng.standard_normal(k))
    x = (rng.standard_normal((600, k)) @ mix.T / math.sqrt(k)).astype(np.float32)
    seen = Statistics(k)
    seen.add(x)
    return rng.standard_normal((rows, k)).astype(np.float32), x, seen


def error(codes: Any, w: Any, seen: Statistics) -> float:
    off = (codes.decode()[:, : w.shape[1]] - w).astype(np.float64)
    return float(np.einsum("ij,jk,ik->", off, seen.second, off, optimize=True))


@pytest.mark.parametrize(
    "name", ["int3/64", "Q2_K", "NVFP4", *map(later, ("uint4/64", "nf4", "MXFP4", "int8/row"))]
)
def test_gptq_is_better_than_rounding_in_any_format(name: str) -> None:
    w, _, seen = case()
    format = named(name, "")
    plain, better = (error(f(w, seen, format), w, seen) for f in (nearest, gptq))
    assert better < 0.5 * plain


@pytest.mark.parametrize(
    "name", ["int4", "uint4/64", *map(later, ("int3/64", "Q4_K", "nf4", "NVFP4"))]
)
def test_searches_are_better_than_the_greatest(name: str) -> None:
    w = np.random.default_rng(0).standard_t(4, (32, 256)).astype(np.float32)
    format = named(name, "")

    def off(codes: Any) -> float:
        return float(((codes.decode()[:, :256] - w) ** 2).sum())

    plain = off(nearest(w, None, format))
    assert off(clipped(w, None, format)) < (1 if name in ("Q4_K", "NVFP4") else 0.97) * plain
    assert off(searched(w, None, format)) < 0.99 * plain


def test_columns_that_were_seen_matter_more() -> None:
    w, _, seen = case(rows=96)
    seen.squares = np.diag(np.where(np.arange(K) < 8, 1e4, 1.0) * seen.count)
    for algorithm in (clipped, searched):
        off = np.square(algorithm(w, seen, named("int2/32", "")).decode() - w).mean(0)
        plain = np.square(algorithm(w, None, named("int2/32", "")).decode() - w).mean(0)
        assert off[:8].mean() < 0.9 * plain[:8].mean()


@pytest.mark.slow
def test_hqq_spares_outliers() -> None:
    w = np.random.default_rng(0).standard_t(3, (64, 256)).astype(np.float32)
    sums = [(np.abs(f(w, None, UNEVEN2).decode() - w) ** 0.7).sum() for f in (nearest, hqq)]
    assert sums[1] < 0.98 * sums[0]
    with pytest.raises(ValueError, match="hqq: needs integers with a minimum"):
        hqq(w, None, FORMATS["int4"])


def test_gptq_of_independent_inputs_is_rounding() -> None:
    w, _, seen = case()
    seen.squares = np.eye(K) * seen.count
    format = named("int4/64", "")
    np.testing.assert_array_equal(
        gptq(w, seen, format, damping=0).codes, searched(w, seen, format).codes
    )
    with pytest.raises(ValueError, match="gptq: needs statistics"):
        gptq(w, None, format)


def test_channels_that_are_never_used_and_widths_that_are_not_whole() -> None:
    w, x, _ = case(k=100)
    x[:, 3] = 0
    seen = Statistics(100)
    seen.add(x)
    codes = gptq(w, seen, named("int4/32", ""))
    assert codes.shape == (16, 128) and np.isfinite(codes.decode()).all()
    assert error(codes, w, seen) < 0.6 * error(nearest(w, None, named("int4/32", "")), w, seen)


# ---- statistics


def test_statistics_in_parts_are_those_of_the_whole() -> None:
    x = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32) * 3
    seen, slim = Statistics(5), Statistics(5, products=False)
    for part in np.split(x, 3):
        seen.add(part[None])
        slim.add(part)
    np.testing.assert_allclose(seen.second, x.T @ x / 300, rtol=1e-5)
    np.testing.assert_allclose(seen.mean, x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(seen.energy, slim.energy, rtol=1e-5)
    np.testing.assert_array_equal(seen.peak, np.abs(x).max(0))
    assert seen.histogram.sum() == x.size and minmax(seen) == np.abs(x).max()
    counts, _ = np.histogram(np.abs(x), np.arange(2049) * seen.width)
    np.testing.assert_array_equal(seen.histogram, counts)
    with pytest.raises(ValueError, match="has NaN or infinite"):
        seen.add(np.full((1, 5), np.nan))
    with pytest.raises(ValueError, match="were not gathered"):
        slim.second  # noqa: B018


def test_calibrators() -> None:
    x = np.random.default_rng(0).standard_t(3, (40_000, 1)).astype(np.float32)
    seen = Statistics(1)
    seen.add(x)
    reaches = {name: f(seen) for name, f in CALIBRATORS.items()}
    assert reaches["minmax"] == np.abs(x).max()
    assert percentile(seen, 0.99) == pytest.approx(np.quantile(np.abs(x), 0.99), abs=seen.width)
    for bits in (8, 4):  # against a scan of the values themselves
        steps = (1 << bits - 1) - 1

        def off(reach: float, steps: int = steps) -> float:
            rounded = np.clip(np.rint(x / reach * steps), -steps, steps) * reach / steps
            return float(((rounded - x) ** 2).sum())

        found = least_squares(seen, bits)
        best = min(off(r) for r in np.linspace(0.02, 1, 99) * np.abs(x).max())
        assert off(found) <= best * 1.02
        assert off(found) < 0.9 * off(minmax(seen))
    assert 0.02 * reaches["minmax"] < reaches["kl"] < 0.8 * reaches["minmax"]


def test_a_range_follows_a_drifting_stream() -> None:
    rng, reach = np.random.default_rng(0), Range(1.0)
    shares = []
    for step in range(400):
        size = 1 + 9 * (step / 200 if step < 200 else 2 - step / 200)
        x = size * rng.standard_normal(2000)
        reach.update(x)
        shares.append(np.mean(np.abs(x) > reach.value))
    assert np.mean(shares[20:]) < 0.02 and max(shares[20:]) < 0.05
    assert reach.value < 8  # it came down again


def test_layers_see_what_the_quantised_ones_before_give() -> None:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    data = [genesis.tensor(np.random.default_rng(k).standard_normal((64, 32)).astype("f4"))
            for k in range(3)]  # fmt: skip
    met: dict[int, Any] = {}

    def watching(weight: Any, seen: Any, format: Any) -> Any:
        met[len(met)] = seen
        return nearest(weight, seen, format)

    reference = copy.deepcopy(model)
    quantize_(model, "int2", algorithm=watching, data=data)
    quantize_(reference, {"0": "int2"})
    before = gather(reference, data, ["2"])["2"]
    np.testing.assert_allclose(met[1].second, before.second, rtol=1e-5)
    with pytest.raises(ValueError, match="the algorithms are nearest, clipped"):
        quantize_(reference, "int4", algorithm="magic")
    assert set(ALGORITHMS) == {"nearest", "clipped", "hqq", "searched", "gptq"}


@pytest.mark.slow
def test_statistics_of_convolutions_are_those_of_patches() -> None:
    genesis.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, padding=1, stride=2)
    x = genesis.tensor(np.random.default_rng(0).standard_normal((2, 2, 8, 8)).astype("f4"))
    seen = gather(nn.Sequential(layer), [x], ["0"])["0"]
    rows = genesis.nn.functional.unfold(x, 3, padding=1, stride=2).permute(0, 2, 1).reshape(-1, 18)
    np.testing.assert_allclose(seen.second, (rows.T @ rows / len(rows)).numpy(), atol=1e-5)
    y = layer(x).permute(0, 2, 3, 1).reshape(-1, 3).detach().numpy()
    back = rows.numpy() @ layer.weight.detach().reshape(3, 18).numpy().T
    np.testing.assert_allclose(y, back + layer.bias.detach().numpy(), atol=1e-5)


# ---- equalisers


def network() -> tuple[Any, Any]:
    genesis.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 16))
    rng = np.random.default_rng(0)
    with genesis.no_grad():
        model[0].weight.copy_(genesis.tensor(np.exp(2 * rng.standard_normal(32)).astype("f4")))
        model[0].bias.copy_(genesis.tensor(rng.standard_normal(32).astype("f4")))
    return model, genesis.tensor(rng.standard_normal((200, 32)).astype("f4"))


@pytest.mark.parametrize("kind", ["smooth", "aware", "recenter", "rotate"])
def test_an_equalised_model_is_the_same_function(kind: str) -> None:
    model, x = network()
    wanted = model(x).detach().numpy()
    seen = gather(model, [x], ["1"])["1"]
    norm, layer = model
    plain = np.abs(layer(norm(x)).detach().numpy()).max()
    if kind == "smooth":
        smooth_(norm, [layer], seen)
        peaks = np.abs(norm(x).detach().numpy()).max(0)
        assert peaks.max() / peaks.min() < 0.2 * seen.peak.max() / seen.peak.min()
    elif kind == "aware":
        before = error(nearest(layer.weight.detach().numpy(), None, named("int3/32", "")),
                       layer.weight.detach().numpy(), seen)  # fmt: skip
        activation_aware_(norm, [layer], seen, named("int3/32", ""))
        again = gather(model, [x], ["1"])["1"]
        after = error(nearest(layer.weight.detach().numpy(), None, named("int3/32", "")),
                      layer.weight.detach().numpy(), again)  # fmt: skip
        assert after < 0.7 * before
    elif kind == "recenter":
        recenter_(norm, [layer], seen)
        assert np.abs(norm(x).detach().numpy().mean(0)).max() < 1e-4
    else:
        model[1] = Rotated(layer)
        turned = (norm(x) @ model[1].turn).detach().numpy()
        assert np.abs(turned).max() < 0.8 * seen.peak.max()
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=1e-5 * plain)


def test_biases_make_good_what_is_off_on_average() -> None:
    model, x = network()
    seen = gather(model, [x], ["1"])["1"]
    wanted, before = model(x).detach().numpy(), model[1].weight.detach().clone()
    quantize_(model, "int2")
    off = np.abs((model(x).numpy() - wanted).mean(0)).max()
    correct_bias_(model[1], before, seen)
    assert np.abs((model(x).numpy() - wanted).mean(0)).max() < 0.1 * off


@pytest.mark.parametrize("n", [1, 2, 64, 12, 96, 20, 160])
def test_rotations_are_orthogonal_and_of_signs(n: int) -> None:
    turn = hadamard(n)
    np.testing.assert_allclose(turn @ turn.T, np.eye(n), atol=1e-12)
    np.testing.assert_allclose(np.abs(turn), 1 / math.sqrt(n))
    with pytest.raises(ValueError, match="7 channels have no such rotation"):
        hadamard(7)


# ---- quality, on a character GPT


@pytest.fixture(scope="module")
def gpt() -> Any:
    from tests.compress import character_gpt as c

    model, learned, held = c.trained(c.KEPT)
    data = [x[:, :-1] for x in c.batches(learned, 16, 24, seed=9)]
    return c, model, data, held, c.perplexity(model, held)


def grown(gpt: Any, change: Any) -> float:
    """By how many per cent a change makes the perplexity larger."""
    c, model, _, held, base = gpt
    other = copy.deepcopy(model)
    change(other)
    return 100 * (c.perplexity(other, held) / base - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "algorithm", "most"),
    [
        ("int8", "nearest", 0.05), ("float8_e4m3fn/row", "nearest", 0.05),
        ("int4/128", "gptq", 0.2), ("uint3/128", "gptq", 0.6), (UNEVEN2, "gptq", 2.5),
        ("nf4", "nearest", 0.6), ("NVFP4", "nearest", 0.8), ("MXFP4", "nearest", 1.4),
    ],
)  # fmt: skip
def test_perplexity(gpt: Any, format: Any, algorithm: str, most: float) -> None:
    data = gpt[2] if algorithm == "gptq" else None
    found = grown(
        gpt, lambda m: quantize_(m, {"blocks.*": format, "head": format}, None, algorithm, data)
    )
    assert found <= most, f"{found:.3f} %"


def static_(model: Any, seen: Any, kind: str) -> None:
    """Weights and inputs of all layers in bytes, by scales that are known before."""
    names = [n for n, x in model.named_modules() if type(x) is nn.Linear]
    for name in names:
        layer = model.get_submodule(name)
        reach = minmax(seen[name])
        step = reach / 127

        def rounded(layer: Any, inputs: Any, step: float = step) -> Any:
            x = inputs[0]
            return (genesis.functional.clamp(genesis.functional.round(x / step), -127, 127) * step,)

        layer.register_forward_pre_hook(rounded)
        with genesis.no_grad():
            layer.weight.copy_(genesis.compress.quantize(layer.weight, "int8/row").dequantize())


@pytest.mark.slow
def test_outliers_are_smoothed_away(gpt: Any) -> None:
    c, model, data, held, base = gpt
    planted = copy.deepcopy(model)
    rng = np.random.default_rng(0)
    with genesis.no_grad():
        for block in planted.blocks:
            for norm, layer in ((block.n1, block.qkv), (block.n2, block.up)):
                factor = np.ones(256, np.float32)
                factor[rng.permutation(256)[:4]] = 50
                by = genesis.tensor(factor)
                norm.weight.copy_(norm.weight * by)
                norm.bias.copy_(norm.bias * by)
                layer.weight.copy_(layer.weight / by)
    names = [n for n, x in planted.named_modules() if type(x) is nn.Linear]
    found = {}
    for smoothed in (False, True):
        other = copy.deepcopy(planted)
        if smoothed:
            seen = gather(other, data, names)
            for number, block in enumerate(other.blocks):
                smooth_(block.n1, [block.qkv], seen[f"blocks.{number}.qkv"])
                smooth_(block.n2, [block.up], seen[f"blocks.{number}.up"])
        static_(other, gather(other, data, names), "int8")
        found[smoothed] = 100 * (c.perplexity(other, held) / base - 1)
    assert found[True] <= 0.2 and found[False] > 2, found


@pytest.mark.slow
def test_rotations_help_activations_of_few_bits(gpt: Any) -> None:
    found = {}
    for turned in (False, True):

        def change(m: Any, turned: bool = turned) -> None:
            for name, layer in list(m.named_modules()):
                if type(layer) is not nn.Linear:
                    continue
                if turned:
                    parent, _, last = name.rpartition(".")
                    setattr(m.get_submodule(parent), last, Rotated(layer))
                layer.register_forward_pre_hook(
                    lambda layer, inputs: (ACTIVATIONS["int4"](inputs[0]),)
                )

        found[turned] = grown(gpt, change)
    assert found[True] <= 0.4 * found[False], found
