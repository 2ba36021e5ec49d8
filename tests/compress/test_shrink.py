"""Recipes: every number of the report is measured, files load again, updates are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.cli import main
from genesis.compress.compression_pipeline import (
    PRESETS,
    Preset,
    apply_delta,
    delta,
    model_bytes,
    recover_,
    restored,
    shrink,
)  # fmt: skip
from genesis.compress.fold_norms import fold_
from genesis.serialization import BadFile


def network() -> Any:
    genesis.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 36, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4),
    )  # fmt: skip


def inputs(count: int = 3) -> list[Any]:
    rng = np.random.default_rng(0)
    return [genesis.tensor(rng.standard_normal((32, 1, 6, 6)).astype("f4")) for _ in range(count)]


def moved(model: Any) -> Any:
    """Norms with statistics of their own."""
    model.train()
    for x in inputs():
        model(x)
    return model.eval()


def test_folded_norms_are_part_of_the_layers() -> None:
    model = moved(network())
    x = inputs()[0]
    wanted = model(x).detach().numpy()
    fold_(model, x)
    assert [type(m) for m in model][1::4] == [nn.Identity, nn.Identity]
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, atol=1e-5)


TINY = Preset(0.5, "int4", "int8/row", "gptq", 6, True)


@pytest.mark.slow
def test_a_model_is_shrunk_and_its_file_loads_again(tmp_path: Path) -> None:
    model, data = moved(network()), inputs()
    before = {n: x.numpy().copy() for n, x in model.state_dict().items()}
    small, report = shrink(model, data, lambda m: float(m(data[0]).detach().numpy().mean()), TINY)
    for n, x in model.state_dict().items():
        np.testing.assert_array_equal(before[n], x.numpy())  # the model itself stays
    steps = [row[0] for row in report.rows]
    assert steps == ["as it was", "folded", "pruned", "recovered", "quantised"]
    sizes = [row[1] for row in report.rows]
    assert sizes[0] == sum(x.nbytes for x in before.values()) and sizes[-1] == model_bytes(small)
    assert (
        sizes[2] < 0.5 * sizes[0] and sizes[4] < sizes[3]
    )  # blocks of 32 rows, of which 8 are used
    assert all(row[3] > 0 for row in report.rows) and "quantised" in str(report)
    assert small[0].shape == (4, 9) and small[0].format.name == "int8"
    genesis.save(small.state_dict(), tmp_path / "small.safetensors")
    again = restored(network(), genesis.load(tmp_path / "small.safetensors")).eval()
    np.testing.assert_array_equal(again(data[0]).detach().numpy(), small(data[0]).detach().numpy())


@pytest.mark.slow
def test_layers_that_would_become_slower_stay_and_are_named(monkeypatch: Any) -> None:
    from genesis.compress import compression_pipeline

    def slow(layer: Any, format: Any) -> float:
        return 2.0 if format is not None and layer.weight.shape[0] == 4 else 1.0

    monkeypatch.setattr(compression_pipeline, "measured_time", slow)
    model = moved(network())
    small, report = shrink(model, inputs(), lambda m: 0.0, Preset(linear="int8"))
    assert report.notes == ["7 stays as it is: int8 is slower"]
    assert type(small[7]) is nn.Linear and hasattr(small[4], "values")
    with pytest.raises(ValueError, match="the presets are server, laptop, phone, tiny, not 'x'"):
        shrink(model, inputs(), lambda m: 0.0, "x")
    with pytest.raises(ValueError, match="needs some data"):
        shrink(model, [], lambda m: 0.0)
    assert set(PRESETS) == {"server", "laptop", "phone", "tiny"}


@pytest.mark.slow
def test_recovering_brings_a_model_nearer_to_its_teacher() -> None:
    teacher, data = moved(network()), inputs()
    student = network()
    with genesis.no_grad():
        for p in student.parameters():
            p.copy_(p * 0.5)
    fold_(student.eval(), data[0])

    def off() -> float:
        wanted = teacher(data[0]).detach().numpy()
        return float(np.abs(student(data[0]).detach().numpy() - wanted).mean())

    before = off()
    recover_(student, teacher, data, 40)
    assert off() < 0.7 * before and not student.training


def test_updates_carry_what_changed_and_are_checked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    old = {f"w{k}": genesis.tensor(rng.standard_normal((40, 40)).astype("f4")) for k in range(5)}
    new = {**old, "w1": genesis.zeros(40, 40), "renamed": old["w2"]}
    del new["w2"]
    for name, state in (("old", old), ("new", new)):
        genesis.save(state, tmp_path / f"{name}.safetensors")
    a, b, c, d = (tmp_path / f"{n}.safetensors" for n in ("old", "new", "update", "made"))
    assert delta(a, b, c) == 1 and c.stat().st_size < 0.4 * b.stat().st_size
    apply_delta(a, c, d)
    found = genesis.load(d)
    assert set(found) == set(new)
    for name, x in new.items():
        np.testing.assert_array_equal(found[name].numpy(), x.numpy())
    genesis.save({**old, "w0": genesis.ones(3)}, a)
    d.unlink()
    with pytest.raises(BadFile, match="'w0' is neither in"):
        apply_delta(a, c, d)
    assert not d.exists()
    with pytest.raises(BadFile, match="is no update"):
        apply_delta(a, b, d)


@pytest.mark.slow
def test_the_recipe_of_the_command(tmp_path: Path, capsys: Any) -> None:
    from genesis.recipes.digits import network as digits
    from genesis.recipes.digits import predicted, train

    source, target = str(tmp_path / "digits.safetensors"), str(tmp_path / "small.safetensors")
    assert train(400, output=source) > 0.97
    assert main(["compress", source, target, "--recipe", "tiny"]) == 0
    text = capsys.readouterr().out
    assert "quantised" in text and "recovered" in text
    small = restored(digits(), genesis.load(target))
    test = genesis.datasets.digits("test")
    right = sum(a == b for a, b in zip(predicted(small, test.images), test.labels.tolist(),
                                       strict=True))  # fmt: skip
    assert right >= 342
    assert 5 * Path(target).stat().st_size < Path(source).stat().st_size
    assert main(["compress", source, target, "--recipe", "watch"]) != 0
