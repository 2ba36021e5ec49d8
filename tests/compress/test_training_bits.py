"""Training with rounded numbers: gradients, learned steps, prepare and convert, distillation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import QuantizedConv2d, QuantizedLinear
from genesis.compress.format import E2M1, Integer, Table
from genesis.compress.training import (
    convert_,
    distillation,
    element_of,
    fake_quantize,
    fake_table,
    prepare_,
)  # fmt: skip


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bits", [1, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_rounded_values_and_their_gradients(bits: int) -> None:
    element, step = element_of(bits), np.float32(0.37)
    x = 2 * numbers(200)
    a = genesis.tensor(x, requires_grad=True)
    s = genesis.tensor(step, requires_grad=True)
    y = fake_quantize(a, s, element)
    weights = numbers(200, seed=1)
    (y * genesis.tensor(weights)).sum().backward()
    low = 0 if bits <= 2 else 1
    levels = np.arange(low, 1 << bits) - element.zero
    near = levels[np.abs(x[:, None] / step - levels).argmin(1)]
    np.testing.assert_allclose(y.detach().numpy(), near * step, atol=1e-6)
    inside = (x / step >= levels[0]) & (x / step <= levels[-1])
    np.testing.assert_array_equal(a.grad.numpy() != 0, inside & (weights != 0))
    np.testing.assert_allclose(a.grad.numpy()[inside], weights[inside], rtol=1e-6)
    # Of the step: what rounding changes within reach, and the last value beyond.
    wanted = np.where(inside, near - x / step, np.where(x > 0, levels[-1], levels[0]))
    assert s.grad.item() == pytest.approx((wanted * weights).sum(), rel=1e-3, abs=1e-3)


def test_floats_of_four_bits_are_not_fifteen_equal_steps() -> None:
    x = genesis.tensor(np.linspace(-7, 7, 400).astype(np.float32), requires_grad=True)
    y = fake_table(x, genesis.tensor(0.5), Table(E2M1))
    found = np.unique(np.abs(y.detach().numpy()))
    np.testing.assert_allclose(found, [0, 0.5, 1, 1.5, 2, 3, 4, 6])
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), (np.abs(x.detach().numpy()) <= 6).astype("f4"))


def test_rounding_alone_has_no_gradient() -> None:
    x = genesis.tensor([0.3, 1.2], requires_grad=True)
    genesis.functional.round(x).sum().backward()
    assert not x.grad.numpy().any()  # which is why it goes straight through


def network() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


@pytest.mark.parametrize("bits", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_converted_models_give_what_prepared_ones_gave(bits: int) -> None:
    genesis.manual_seed(0)
    model = prepare_(network(), bits)
    x = genesis.tensor(numbers(3, 1, 6, 6))
    wanted, rounded = model(x).detach().numpy(), model[3].rounded().detach().numpy()
    convert_(model)
    assert type(model[0]) is QuantizedConv2d and type(model[3]) is QuantizedLinear
    np.testing.assert_allclose(model[3].weight.dequantize().numpy(), rounded, rtol=1e-6)
    # The product rounds its input to bytes.
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=0.02 * np.abs(wanted).max())
    packed = model[3].values.nbytes
    assert packed <= 32 * (144 // 8 * bits + 8 * bits + 4)  # and it is truly small
    with pytest.raises(ValueError, match="was not prepared"):
        convert_(network())
    with pytest.raises(ValueError, match="has no layers to round"):
        prepare_(nn.Sequential(nn.ReLU()))


def test_bits_are_lowered_in_stages_and_layers_left_out() -> None:
    genesis.manual_seed(0)
    model = prepare_(network(), {"0": 8, "3": 4}, activation="int8", skip=["3"])
    assert type(model[3]) is nn.Linear and model[0].element == Integer(8, 128)
    weight = model[0].weight
    prepare_(model, {"0": 2}, activation="fp4")
    assert model[0].weight is weight and model[0].element == Integer(2, 1.5)
    with pytest.raises(ValueError, match="activations are int8, int4, fp4, not 'int5'"):
        prepare_(network(), 4, activation="int5")


@pytest.mark.parametrize("chunk", [0, 3])
def test_distillation_is_a_scaled_divergence(chunk: int) -> None:
    s, t = numbers(7, 11), numbers(7, 11, seed=1)
    a = genesis.tensor(s, requires_grad=True)
    value = distillation(a, genesis.tensor(t), 3.0, chunk)
    value.backward()

    def soft(x: Any) -> Any:
        e = np.exp(x / 3 - (x / 3).max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    p, q = soft(t.astype(np.float64)), soft(s.astype(np.float64))
    assert value.item() == pytest.approx(9 * (p * np.log(p / q)).sum() / 7, rel=1e-4)
    np.testing.assert_allclose(a.grad.numpy(), 9 * (q - p) / 3 / 7, atol=1e-5)


# ---- digits


def fit(model: Any, steps: int, teacher: Any = None, rate: float = 0.004) -> int:
    """Train some steps; how many of the 360 digits held out are read right."""
    from genesis.recipes.digits import prepared, shifted

    images, labels = genesis.datasets.digits("train")
    inputs, targets = shifted(prepared(images)), labels.repeat(9)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = genesis.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    schedule = genesis.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)

    @genesis.jit
    def step() -> Any:
        drawn = genesis.randint(0, len(targets), (128,))
        scores = model(inputs[drawn])
        if teacher is None:
            loss = nn.functional.cross_entropy(scores, targets[drawn], label_smoothing=0.05)
        else:
            with genesis.no_grad():
                wanted = teacher(inputs[drawn])
            loss = distillation(scores, wanted, 2.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    model.train()
    for _ in range(steps):
        step()
        schedule.step()
    return right(model)


def right(model: Any) -> int:
    from genesis.recipes.digits import prepared

    images, labels = genesis.datasets.digits("test")
    model.eval()
    with genesis.no_grad():
        return int((model(prepared(images)).argmax(1) == labels).sum().item())


@pytest.mark.slow
def test_digits_in_two_bits() -> None:
    from genesis.recipes.digits import network as digits

    genesis.manual_seed(0)
    teacher = digits()
    assert fit(teacher, 600, rate=0.01) >= 356
    rounded = prepare_(copy.deepcopy(teacher), 2)
    start = right(rounded)
    plain = fit(rounded, 200)
    taught = fit(prepare_(copy.deepcopy(teacher), 2), 200, teacher.eval())
    assert start < 340 and plain >= 352 and taught >= 354, (start, plain, taught)
    low = fit(prepare_(copy.deepcopy(teacher), 2, "fp4", skip=["0"]), 200, teacher)
    assert low >= 342, low  # weights of 2 bits, activations of 4: 95 %
    assert right(convert_(rounded)) >= plain - 2
