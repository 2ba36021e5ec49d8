"""Recipes in a short form: what they reach means something, and the same seed gives it again."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from genesis import recipes
from genesis.cli import main

FOLDER = Path(recipes.__file__).parent


def train(name: str, steps: int) -> dict[str, float]:
    found: dict[str, float] = import_module(f"genesis.recipes.{name}").train(steps=steps)
    return found


def test_recipes_are_short() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 250, path.name


def test_the_command_knows_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for path in FOLDER.glob("[a-z]*.py"):
        assert f"    {path.stem}" in shown


@pytest.mark.slow
def test_graphs() -> None:
    """Two labels of 34 are enough for most of the others; a guess has half of them."""
    found = train("graphs", 100)
    assert found["GCN"] > 0.9
    assert min(found.values()) > 0.75


@pytest.mark.slow
def test_unet() -> None:
    found = train("unet", 120)
    assert found["overlap"] > 0.75  # noise is half of the shapes' brightness
    assert train("unet", 120) == found


@pytest.mark.slow
def test_diffusion() -> None:
    found = train("diffusion", 400)
    assert found["distance"] < found["distance of noise"] / 10
    assert train("diffusion", 400) == found


@pytest.mark.slow
def test_vae() -> None:
    found = train("vae", 400)
    assert found["bound"] < 0.95 * found["without a model"]
    assert train("vae", 400) == found


@pytest.mark.slow
def test_gpt() -> None:
    found = train("gpt", 200)
    assert found["bits per letter"] < 0.85 * found["without what is before it"]
    assert train("gpt", 200) == found


@pytest.mark.slow
def test_ppo() -> None:
    found = train("ppo", 40)
    assert found["at first"] < 40 and found["at last"] > 150
    assert train("ppo", 40) == found


def test_recommender() -> None:
    found = train("recommender", 600)
    assert found["two towers"] > 1.5 * found["what is popular"] > 1.5 * found["by chance"]


#: Recipes in a short form, and what they must reach.
REACHED: list[tuple[str, int, Callable[[dict[str, float]], bool]]] = [
    ("adaptation", 300, lambda r: r["and teaching itself"] > r["other paper"] + 0.08),
    ("adversarial", 300, lambda r: r["plain, PGD"] < 0.1 and r["robust, PGD"] > 0.3),
    ("adversarial", 300, lambda r: r["plain, noise taken away"] > r["plain, noise"]),
    ("bert", 300, lambda r: r["right"] > 2 * r["always the most frequent word"]),
    ("continual", 300, lambda r: r["nothing"] < 0.65 and r["EWC"] > r["nothing"] + 0.1),
    ("continual", 300, lambda r: r["replay"] > 0.8),
    ("contrastive", 200, lambda r: r["right"] > 0.9),
    ("ctc", 400, lambda r: r["wrong digits"] < 0.02),
    ("federated", 30, lambda r: r["averaged"] > r["one clinic alone"] + 0.3),
    ("forecast", 300, lambda r: r["transformer error"] < 0.7 * r["last season"]),
    ("forecast", 300, lambda r: r["LSTM error"] < 0.9 * r["last season"]),
    ("forecast", 300, lambda r: all(0.77 < r[f"{k} held"] < 0.83 for k in ("LSTM", "transformer"))),
    ("impala", 150, lambda r: r["at first"] < 40 and r["at last"] > 200),
    ("neural_ode", 600, lambda r: r["error beyond"] < 0.05),
    ("pinn", 1000, lambda r: r["relative error"] < 0.02),
    ("private", 200, lambda r: r["with privacy"] > 0.85 and r["epsilon"] < 8),
    ("resnet", 150, lambda r: r["right"] > 0.95),
    ("retinanet", 300, lambda r: r["mAP"] > 0.35 and r["mAP at 50 %"] > 0.6),
    ("retrieval", 300, lambda r: r["read again"] > r["BM25"] + 0.04),
    ("wgan", 1200, lambda r: r["clouds"] == 8 and r["inside"] > 0.6),
    ("word2vec", 2000, lambda r: r["median rank"] < r["by chance"] / 20),
]


@cache
def once(name: str, steps: int) -> dict[str, float]:
    return train(name, steps)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "reached"), REACHED)
def test_reached(name: str, steps: int, reached: Callable[[dict[str, float]], bool]) -> None:
    found = once(name, steps)
    assert reached(found), found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, _, _ in REACHED}))
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    steps = next(steps for known, steps, _ in REACHED if known == name)
    assert train(name, steps) == once(name, steps)


def test_the_accountant_of_privacy_integrates_the_definition() -> None:
    """Moments of the ratio of two densities: noise, and noise around a share of the data."""
    from genesis.recipes.private import epsilon, log_moment

    x = np.linspace(-60.0, 60.0, 400_001)
    for noise, share, order in ((1.1, 0.05, 2), (2.0, 0.1, 5), (0.8, 0.01, 8), (1.0, 1.0, 3)):
        without = np.exp(-(x**2) / (2 * noise**2)) / (noise * np.sqrt(2 * np.pi))
        shift = share * np.exp((2 * x - 1) / (2 * noise**2))
        ratio = (1 - share) + shift
        moment = float(np.trapezoid(without * ratio**order, x))
        assert np.isclose(log_moment(order, noise, share), np.log(moment), rtol=1e-6)
    assert epsilon(100, 2.0, 0.01, 1e-5) < epsilon(1000, 2.0, 0.01, 1e-5)
    assert epsilon(100, 2.0, 0.01, 1e-5) < epsilon(100, 1.0, 0.01, 1e-5)


def test_average_precision_is_that_of_small_cases() -> None:
    from genesis.recipes.retinanet import average_precision, kept, overlaps

    box = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [8, 8, 9, 9]], np.float32)
    assert np.allclose(overlaps(box, box)[0], [1, 1 / 3, 0])
    assert kept(box, np.array([0.1, 0.9, 0.5], np.float32), 0.3) == [1, 2]
    truth = [box[:1], box[2:]]
    right = [(0, 0.9, box[0]), (1, 0.8, box[2])]
    assert np.isclose(average_precision(right, truth, 0.5), 1)
    # The best guess is wrong: one of two, then two of three.
    wrong = [(0, 0.95, box[2]), *right]
    assert np.isclose(average_precision(wrong, truth, 0.5), 2 / 3)
    assert average_precision([(0, 0.9, box[1])], truth, 0.5) == 0
