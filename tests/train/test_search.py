"""Searches: what is tried, what a stop costs, and that all methods find a minimum."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from genesis.cli import main
from genesis.train import Uniform, search

SPACE: dict[str, Any] = {"x": Uniform(-3.0, 5.0), "n": Uniform(1, 8), "kind": ["a", "b"]}


def bowl(config: dict[str, Any], budget: int) -> float:
    return (config["x"] - 1) ** 2 + abs(config["n"] - 4) + (config["kind"] == "a") + 1 / budget


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "halving", "bayes"])
def test_a_minimum_is_found(method: str) -> None:
    found = search(bowl, SPACE, trials=40, method=method, budget=9)
    best = found[0]
    assert best.value is not None and best.value < 2.2
    assert best.budget == 9
    assert isinstance(best.config["n"], int)
    spent = sum(t.budget for t in found)
    assert spent == 40 + 13 * 3 + 4 * 9 if method == "halving" else spent == 360


def test_what_is_tried_does_not_depend_on_the_processes() -> None:
    one, two = (search(bowl, SPACE, trials=6, processes=p) for p in (1, 2))
    assert one == two
    assert len({t.config["x"] for t in one}) == 6


def test_failures_are_trials(tmp_path: Path) -> None:
    def fails(config: dict[str, Any], budget: int) -> float:
        if config["kind"] == "a":
            os.kill(os.getpid(), signal.SIGKILL)
        if config["n"] > 4:
            raise KeyError("too many")
        return float("nan") if config["x"] < 0 else 1.0

    found = search(fails, SPACE, trials=12)
    assert len(found) == 12
    for t in found:
        a, n, x = t.config["kind"] == "a", t.config["n"] > 4, t.config["x"] < 0
        expected = "ended with -9" if a else "too many" if n else "is nan" if x else ""
        assert expected in t.error and (t.value is None) == bool(expected)


@pytest.mark.parametrize("method", ["random", pytest.param("bayes", marks=pytest.mark.slow)])
def test_a_search_goes_on(tmp_path: Path, method: str) -> None:
    path, calls = tmp_path / "journal", tmp_path / "calls"
    calls.write_text("")

    def counted(config: dict[str, Any], budget: int) -> float:
        with open(calls, "a") as file:
            file.write("x")
        return bowl(config, budget)

    first = search(counted, SPACE, trials=3, method=method, journal=path)
    with open(path, "a") as file:
        file.write('{"number": 3, "bud')  # as a search leaves it that is stopped
    second = search(counted, SPACE, trials=5, method=method, journal=path)
    assert {t.number for t in second} == set(range(5))
    assert all(t in second for t in first)
    assert len(calls.read_text()) == 5
    assert search(counted, SPACE, trials=5, method=method, journal=path) == second
    with pytest.raises(ValueError, match="another search"):
        search(counted, SPACE, trials=5, method=method, seed=1, journal=path)


def test_halving_spends_most_on_the_best() -> None:
    found = search(bowl, SPACE, trials=6, method="halving", budget=9)
    assert [t.budget for t in found] == [9, 3, 3, *[1] * 6]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        "from genesis.train import Uniform\n"
        "SPACE = {'x': Uniform(0.0, 1.0)}\n"
        "def objective(config, budget):\n    return config['x']\n"
    )
    assert main(["search", str(script), "--trials", "3"]) == 0
    values = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(values) == 3 and values == sorted(values)
    assert (tmp_path / "s.py.search.jsonl").exists()
    script.write_text("x = 1\n")
    assert main(["search", str(script)]) != 0
    with pytest.raises(ValueError, match="low < high"):
        Uniform(2, 1)
