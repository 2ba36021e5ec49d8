"""Products of bytes: sums exact, static and dynamic layers, models whose values stay bytes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional, nn
from genesis.compress.fold_norms import fold_
from genesis.compress.int8_products import as_bytes, packed, sums
from genesis.compress.static import (
    Int8Conv2d,
    Int8Linear,
    RoundedTensor,
    Rounding,
    quantize_dynamic_,
    quantize_static_,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# ---- sums


def laid(w: Any) -> Any:
    """Weights packed in memory, as layers hold them."""
    return genesis.tensor(np.ascontiguousarray(packed(genesis.tensor(w)).numpy()))


@pytest.mark.parametrize(
    ("channels", "rows", "kernel", "stride", "dilation", "padding"),
    [
        (3, 40, (7, 7), (2, 2), (1, 1), (3, 3)), (8, 32, (3, 3), (1, 1), (1, 1), (1, 1)),
        (6, 5, (1, 1), (2, 2), (1, 1), (0, 0)), (5, 64, (3, 2), (1, 2), (2, 1), (2, 0)),
    ],
)  # fmt: skip
def test_sums_of_convolutions_are_exact(
    channels: int, rows: int, kernel: Any, stride: Any, dilation: Any, padding: Any
) -> None:
    x = rng().integers(0, 256, (2, 9, 11, channels)).astype(np.uint8)
    w = rng().integers(-127, 128, (rows, channels, *kernel)).astype(np.int8)
    zero, ends = 7, [(p, p) for p in padding]
    byte = genesis.tensor(np.uint8(zero))
    found = sums(genesis.tensor(x), laid(w), rows, stride, dilation, ends, byte)
    whole = np.pad(x, ((0, 0), *ends, (0, 0)), constant_values=zero).astype(np.int64)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(whole, reach, (1, 2))
    windows = windows[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]
    wanted = np.einsum("nabcuv,rcuv->nabr", windows, w.astype(np.int64))
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize(("rows", "k", "columns"), [(1, 7, 3), (13, 64, 100), (6, 130, 32)])
def test_sums_of_products_are_exact(rows: int, k: int, columns: int) -> None:
    x = rng().integers(0, 256, (rows, k)).astype(np.uint8)
    w = rng().integers(-127, 128, (columns, k)).astype(np.int8)
    found = sums(genesis.tensor(x), laid(w), columns)
    np.testing.assert_array_equal(found.numpy(), x.astype(np.int32) @ w.astype(np.int32).T)


def test_bytes_are_rounded_to_even_and_end_at_the_last_ones() -> None:
    x = genesis.tensor([-3.0, 0.5, 1.5, 254.6, 300.0, float("nan")])
    assert as_bytes(x).tolist() == [0, 0, 2, 255, 255, 0]
    assert as_bytes(-x, genesis.int8).tolist() == [3, 0, -2, -128, -128, 0]


# ---- layers


def test_a_dynamic_layer_is_off_by_what_rounding_may_do() -> None:
    layer = nn.Linear(100, 37)
    x = rng().standard_normal((5, 3, 100)).astype(np.float32)
    x[1, 1] = 0
    x[2] *= 1e4
    found, wanted = Int8Linear(layer)(genesis.tensor(x)), layer(genesis.tensor(x)).detach()
    weight = layer.weight.detach().numpy()
    input_step = np.abs(x).max(-1, keepdims=True) / 127
    weight_step = np.abs(weight).max(1) / 127
    bound = input_step / 2 * np.abs(weight).sum(1) + weight_step / 2 * np.abs(x).sum(-1)[..., None]
    bound = bound + input_step * weight_step * 100 / 4 + 1e-5
    assert (np.abs(found.numpy() - wanted.numpy()) <= bound).all()
    np.testing.assert_allclose(found.numpy()[1, 1], layer.bias.detach().numpy(), atol=1e-6)


def test_the_weight_of_a_layer_comes_back() -> None:
    layer = nn.Conv2d(5, 40, (3, 2))
    made = Int8Conv2d(layer, Rounding(-1, 1, images=True))
    weight = layer.weight.detach().numpy()
    step = np.abs(weight).reshape(40, -1).max(1).reshape(-1, 1, 1, 1) / 127
    assert (np.abs(made.dequantize().numpy() - weight) <= step * 0.501).all()


def test_rounded_numbers_are_rounded_once() -> None:
    rounding = Rounding(-2.0, 3.0)
    once = rounding(genesis.tensor(rng().standard_normal(1000).astype(np.float32)))
    assert isinstance(once, RoundedTensor)
    assert rounding.bytes(once) is once.bytes
    plain = genesis.tensor(once.numpy().copy())
    np.testing.assert_array_equal(rounding.bytes(plain).numpy(), once.bytes.numpy())


# ---- models


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 32, 1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, out, 3, stride, 1), nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(channels, out, 1, stride) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.down is None else self.down(x)))


def network() -> nn.Sequential:
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), Block(32, 32, 1), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    for _ in range(2):
        model(genesis.randn(4, 3, 16, 16))  # norms with statistics of their own
    return model.eval()


def images() -> Any:
    return genesis.tensor(rng().standard_normal((2, 3, 16, 16)).astype(np.float32))


def test_a_static_model_is_near_and_stores_nothing_but_bytes() -> None:
    model, x = network(), images()
    wanted = model(x).detach().numpy()
    static = quantize_static_(copy.deepcopy(model), [x])
    found = static(x).numpy()
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    assert not any(isinstance(m, nn.BatchNorm2d | nn.Conv2d | nn.Linear) for m in static.modules())
    blocks = nn.Sequential(*list(static)[3:5])
    given = static[2](static[1](static[0](x)))
    with genesis.no_grad():
        kernels = genesis.explain(lambda q: blocks(static[2].rounding(q)), given).kernels
    stored = [k.signature if hasattr(k, "signature") else str(k) for k in kernels]
    results = [line for text in stored for line in text.splitlines() if " kernel " in line]
    assert all("y0: out uint8" in line or "y0: out int32" in line for line in results[:-1]), results


def test_a_static_model_has_a_state() -> None:
    model, x = network(), images()
    one = quantize_static_(copy.deepcopy(model), [x])
    other = quantize_static_(copy.deepcopy(model), [x * 0.1])
    assert np.abs(other(x).numpy() - one(x).numpy()).max() > 1e-3
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(other(x).numpy(), one(x).numpy())
    np.testing.assert_array_equal(copy.deepcopy(one)(x).numpy(), one(x).numpy())


def test_a_calibrator_that_clips_serves_inputs_with_outliers() -> None:
    x = rng().standard_normal((4000, 64)).astype(np.float32)
    x[0, 0] = 400
    model = nn.Sequential(nn.Linear(64, 16)).eval()
    wanted = model(genesis.tensor(x)).detach().numpy()[1:]

    def error(calibrator: str) -> float:
        made = quantize_static_(copy.deepcopy(model), [genesis.tensor(x)], calibrator)
        return float(np.square(made(genesis.tensor(x)).numpy()[1:] - wanted).mean())

    assert error("percentile") < 0.01 * error("minmax")


def test_folding_finds_norms_behind_their_layers() -> None:
    model, x = network(), images()
    wanted = model(x).detach().numpy()
    fold_(model, x)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=1e-5)


class Twice(nn.Module):
    """A convolution whose result is read beside its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return self.bn(y) * 3 + y


def test_what_cannot_be_done_is_said() -> None:
    x = images()
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1, groups=2)).eval()
    made = quantize_static_(copy.deepcopy(model), [x])
    assert [type(m) for m in made] == [Int8Conv2d, nn.Conv2d]
    with pytest.raises(ValueError, match="needs some data"):
        quantize_static_(copy.deepcopy(model), [])
    with pytest.raises(ValueError, match="calibrators are"):
        quantize_static_(copy.deepcopy(model), [x], "best")
    with pytest.raises(ValueError, match="'nope' fits no layer"):
        quantize_static_(copy.deepcopy(model), [x], skip=["nope"])
    with pytest.raises(ValueError, match="nothing to quantise"):
        quantize_static_(copy.deepcopy(model), [x], skip=["*"])
    with pytest.raises(ValueError, match="call eval"):
        quantize_static_(copy.deepcopy(model).train(), [x])
    with pytest.raises(ValueError, match="nothing to quantise"):
        quantize_dynamic_(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="its last dimension is not 4"):
        Int8Linear(nn.Linear(4, 4))(genesis.ones(3))
    twice = Twice()
    twice(genesis.randn(2, 3, 4, 4))
    with pytest.raises(ValueError, match="something besides a norm"):
        fold_(twice.eval(), x)
    with pytest.raises(ValueError, match="NaN"), genesis.no_grad():
        bad = nn.Linear(4, 4)
        bad.weight.fill_(float("nan"))
        quantize_dynamic_(nn.Sequential(bad))


def test_attention_keeps_its_kernel_where_its_result_is_rounded() -> None:
    q = genesis.tensor(rng().standard_normal((2, 4, 64, 32)).astype(np.float32))

    def attend(q: Any) -> Any:
        y = functional.scaled_dot_product_attention(q, q, q)
        return as_bytes(y.permute(0, 2, 1, 3).reshape(2, 64, 128) * 10 + 128)

    report = genesis.explain(attend, q)
    assert len(report.kernels) == 2  # heads that are digits of a column are not streamed
    wanted = functional.scaled_dot_product_attention(q, q, q).numpy().transpose(0, 2, 1, 3)
    found = attend(q).numpy().astype(np.float32)
    assert np.abs(found - (wanted.reshape(2, 64, 128) * 10 + 128)).max() <= 0.5001
