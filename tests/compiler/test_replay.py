"""The compiler still makes of a fixed set of programs what it made before."""

from __future__ import annotations

import json

import pytest
from replay import FILE, PROGRAMS, entries

RECORDED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def now() -> dict[str, list[dict[str, object]]]:
    return entries()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, now: dict[str, list[dict[str, object]]]) -> None:
    hint = "if the change is meant, run python tests/replay.py and look at the file's diff"
    assert now[name] == RECORDED[name], hint
    assert all(kernel["proven"] for kernel in now[name])


def test_nothing_else_is_recorded() -> None:
    assert set(RECORDED) == set(PROGRAMS)
