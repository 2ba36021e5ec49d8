"""Plans equal brute force, fronts too; sensitivities are what they say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import plan as planning
from genesis.compress import quantize_
from genesis.compress.plan import Choice, Front, choose, evolve, halving, plan


def drawn(layers: int, formats: int, seed: int) -> dict[str, list[Choice]]:
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(layers):
        sizes = np.sort(rng.integers(1, 1000, formats))[::-1]
        losses = np.sort(rng.random(formats)) * rng.choice([0.1, 1, 10])
        found[str(k)] = [
            Choice(f"f{j}", int(sizes[j]), float(losses[j]), float(rng.random()))
            for j in range(formats)
        ]
    return found


def brute(choices: dict[str, list[Choice]], limited: str, limit: float, sought: str) -> float:
    places = np.indices([len(c) for c in choices.values()]).reshape(len(choices), -1)
    totals = []
    for field in (limited, sought):
        parts = [np.array([getattr(x, field) for x in c])[p] for c, p in
                 zip(choices.values(), places, strict=True)]  # fmt: skip
        totals.append(np.sum(parts, 0))
    return float(totals[1][totals[0] <= limit].min())


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_that_of_brute_force(seed: int) -> None:
    choices = drawn(8, 4, seed)  # 65,536 plans
    sizes = [[c.bytes for c in own] for own in choices.values()]
    least, most = sum(map(min, sizes)), sum(map(max, sizes))
    for share in (0.0, 0.3, 0.7):
        limit = least + share * (most - least)
        found = choose(choices, bytes=limit)
        assert found.bytes <= limit
        assert found.loss == pytest.approx(brute(choices, "bytes", limit, "loss"), rel=1e-12)
    limit = choose(choices, bytes=(least + most) / 2).loss
    found = choose(choices, loss=limit)
    assert found.bytes == pytest.approx(brute(choices, "loss", limit * (1 + 1e-12), "bytes"))
    times = sum(np.mean([c.time for c in own]) for own in choices.values())
    found = choose(choices, latency=times)
    assert found.time <= times and found.loss == pytest.approx(
        brute(choices, "time", times, "loss")
    )


@pytest.mark.slow
def test_plans_of_many_layers_land_near_the_bytes_and_beat_uniform_ones() -> None:
    choices = drawn(100, 6, 5)
    for place in range(1, 5):
        uniform = [own[place] for own in choices.values()]
        budget = sum(c.bytes for c in uniform)
        found = choose(choices, bytes=budget)
        assert found.loss <= sum(c.loss for c in uniform)
        assert 0.99 * budget <= found.bytes <= budget


def test_limits_that_cannot_be_met_are_told() -> None:
    choices = drawn(3, 3, 0)
    least = sum(min(c.bytes for c in own) for own in choices.values())
    with pytest.raises(
        ValueError, match=f"no choice has bytes of {least - 1}; the least is {least}"
    ):
        choose(choices, bytes=least - 1)
    with pytest.raises(ValueError, match="takes one of bytes=, latency= and loss="):
        choose(choices, bytes=1, loss=1)


@pytest.mark.parametrize("objectives", [1, 2, 4])
def test_a_front_is_that_of_brute_force(objectives: int) -> None:
    points = np.random.default_rng(objectives).integers(0, 12, (400, objectives))
    front = Front()
    for number, point in enumerate(points):
        front.add(point, number)
    unique = {tuple(map(int, p)) for p in points}
    wanted = {
        p for p in unique
        if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in unique)
    }  # fmt: skip
    assert set(front.points) == wanted
    assert all(tuple(map(int, points[number])) == point for point, number in front.items())
    with pytest.raises(ValueError, match="no number"):
        front.add([float("nan")] * objectives)


def test_evolution_finds_the_front_of_a_small_space() -> None:
    costs = np.random.default_rng(0).random((5, 3, 2))

    def measure(one: tuple[int, ...]) -> Any:
        return costs[np.arange(5), list(one)].sum(0).round(6)

    found = evolve([range(3)] * 5, measure, rounds=30, seed=1)
    whole = Front()
    for one in itertools.product(range(3), repeat=5):
        whole.add(measure(one), one)
    assert set(found.points) == set(whole.points)
    assert halving(range(16), lambda x, budget: abs(x - 11) + 1 / budget) == 11


def tiny() -> tuple[nn.Module, list[Any], Any]:
    genesis.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )
    x = np.random.default_rng(0).standard_normal((64, 12)).astype(np.float32)
    y = np.stack([x[:, 0] * x[:, 1], x[:, 2], np.abs(x[:, 3])], 1).astype(np.float32)
    data = [(genesis.tensor(x), genesis.tensor(y))]

    def loss(model: Any, pair: Any) -> Any:
        return ((model(pair[0]) - pair[1]) ** 2).mean()

    return model, data, loss


def test_curvature_by_random_signs_is_the_trace_of_the_hessian() -> None:
    model, data, loss = tiny()
    found = planning.hutchinson(model, data[0], loss, ["4"], draws=60)["4"]
    # The last layer is linear: its Hessian is that of least squares.
    hidden = model[:4](data[0][0]).detach().numpy().astype(np.float64)
    wanted = 2 / 3 * np.mean(hidden**2)
    assert found == pytest.approx(wanted, rel=0.08)


@pytest.mark.parametrize(
    "sensitivity",
    ["fisher", *(pytest.param(s, marks=pytest.mark.slow) for s in ("perturbation", "hutchinson"))],
)
def test_a_plan_of_a_model_fits_and_is_carried_out(sensitivity: str) -> None:
    model, data, loss = tiny()
    whole = plan(model, data, loss, formats=("int8", "int4"), sensitivity=sensitivity, bytes=1e9)
    assert whole.loss <= 0  # some rounding may make an untrained model better
    if sensitivity != "perturbation":
        assert set(whole.formats.values()) == {None}
    found = plan(
        model, data, loss, formats=("int8", "int4"), keep=False, sensitivity=sensitivity,
        bytes=2500,
    )  # fmt: skip
    assert found.bytes <= 2500 and set(found.formats.values()) == {"int8", "int4"}
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(before[name], p.detach().numpy())
    quantize_(model, found.formats)
    layers = [m for m in model.modules() if hasattr(m, "values")]
    assert sum(m.values.nbytes for m in layers) == found.bytes
    assert "together" in str(found)
    with pytest.raises(ValueError, match="sensitivity is perturbation, fisher or"):
        plan(tiny()[0], data, loss, sensitivity="guess", bytes=1)
