"""What compressed models get wrong elsewhere, where no other test has it yet."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import FORMATS, compression_pipeline, quantize_
from genesis.compress.plan import plan
from genesis.compress.static import quantize_static_


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network() -> nn.Sequential:
    genesis.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).eval()


def test_scales_of_inputs_follow_the_data_and_not_the_weights() -> None:
    scales = []
    for size in (1.0, 10.0):
        model = quantize_static_(network(), [genesis.tensor(size * numbers(32, 64))])
        scales.append(float(model[0].rounding.scale.item()))
    assert scales[1] == pytest.approx(10 * scales[0], rel=1e-5)
    with pytest.raises(ValueError, match="needs some data"):
        quantize_static_(network(), [])


@pytest.mark.parametrize("format", ["int8", "int4/64", "nf4", "float8_e4m3fn", "Q6_K"])
def test_a_saved_model_has_its_bits_and_no_floats_beside_them(tmp_path: Path, format: str) -> None:
    model = nn.Sequential(nn.Linear(512, 256, bias=False), nn.Linear(256, 512, bias=False))
    genesis.save(quantize_(model, format).state_dict(), tmp_path / "small.safetensors")
    size = (tmp_path / "small.safetensors").stat().st_size
    bits = FORMATS[format.partition("/")[0]].rate
    assert size < 2 * 512 * 256 * bits / 8 + 2000
    state = genesis.load(tmp_path / "small.safetensors")
    assert {x.dtype for x in state.values()} == {genesis.uint8}


def test_a_shared_table_is_in_a_model_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(512, 64), nn.Linear(64, 512, bias=False)
            self.head.weight = self.table.weight

    tied, apart = Tied(), nn.Sequential(nn.Embedding(512, 64), nn.Linear(64, 512, bias=False))
    once, twice = (compression_pipeline.model_bytes(quantize_(m, "int8")) for m in (tied, apart))
    assert once < 0.51 * twice


class Branches(nn.Module):
    """Two layers, of which the result of one counts ten times."""

    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        genesis.manual_seed(0)
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.shares = first, second

    def forward(self, x: Any) -> Any:
        return self.shares[0] * self.a(x) + self.shares[1] * self.b(x)


@pytest.mark.parametrize("sensitivity", ["perturbation", "fisher"])
def test_what_matters_more_gets_more_bits(sensitivity: str) -> None:
    """An error budget in proportion to the sensitivity would give it to whom it hurts most."""
    x, found = genesis.tensor(numbers(64, 64)), []
    for shares in ((10.0, 1.0), (1.0, 10.0)):
        model = Branches(*shares)
        wanted = model(x).detach() + genesis.tensor(numbers(64, 64, seed=1))
        found.append(plan(
            model, [x], lambda m, x, wanted=wanted: ((m(x) - wanted) ** 2).mean(),
            formats=("int8", "int2"), keep=False, bytes=6_500, sensitivity=sensitivity,
        ).formats)  # fmt: skip
    assert found == [{"a": "int8", "b": "int2"}, {"a": "int2", "b": "int8"}]


def test_the_rate_of_learning_falls_when_the_loss_rises(monkeypatch: Any) -> None:
    made, rates = [], []
    adam = genesis.optim.AdamW

    def kept(*args: Any, **options: Any) -> Any:
        made.append(adam(*args, **options))
        return made[-1]

    class Data(list[Any]):
        def __getitem__(self, k: Any) -> Any:
            rates.append(float(made[-1].param_groups[0]["lr"]))
            return super().__getitem__(k)

    monkeypatch.setattr(genesis.optim, "AdamW", kept)
    student, teacher = network(), network()
    with genesis.no_grad():
        student[0].weight[:] = student[0].weight + 0.1
        teacher[2].weight[:] = teacher[2].weight * 5
    easy, hard = genesis.tensor(0.001 * numbers(16, 64)), genesis.tensor(30 * numbers(16, 64))
    compression_pipeline.recover_(student, teacher, Data([easy, easy, hard, easy]), 8)
    plain = [3e-3 * (1 - k / 8) for k in range(8)]
    assert rates[:3] == pytest.approx(plain[:3])
    assert rates[3] <= plain[3] / 2 + 1e-9  # after the loss rose
    assert all(b < a for a, b in itertools.pairwise(rates))
