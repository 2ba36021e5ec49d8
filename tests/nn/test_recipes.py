"""Recipes in a short form: what they reach means something, and the same seed gives it again."""

from importlib import import_module
from pathlib import Path

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
