"""Random programs of views, writes and values that wait: a few here, more with ``make fuzz``."""

from __future__ import annotations

import pytest

from tests.random_programs import KINDS, Program, check, failure


def right(kind: str, seed: int, count: int) -> None:
    for program, wrong in check(kind, seed, count):
        raise AssertionError(f"seed {program.seed}: {wrong}\n{program.source}")


@pytest.mark.parametrize("kind", KINDS)
def test_programs(kind: str) -> None:
    right(kind, 0, 40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(100_000, 108_000, 1000))
def test_more_programs(kind: str, seed: int) -> None:
    right(kind, seed, 1000)


FOUND = {
    "read between two updates": (
        "arrays",
        ("w = new((2, 2), 1)", "c = new((2,), 0)", "w[0] += 1", "c[:] = w[1] * 2", "w[1] += 3"),
        "read(w, c)",
    ),
    "a clone of a view of what is written": (
        "tensors",
        ("x = new((2, 2), 0)", "v = x[1]", "x[0] = 9.0", "c = v.clone()", "v += 3", "c *= 2"),
        "read(x, c)",
    ),
    "nothing through a new axis": (
        "arrays", ("x = new((2,), 0)", "x[:, None][1, 0:0] = 63"), "read(x)",
    ),
    "a mask without dimensions": (
        "tensors", ("x = new((2,), 0)", "y = x[ints(True)]", "y += 1", "x[ints(False)] = 9"),
        "read(x, y)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    kind, lines, read = FOUND[name]
    assert failure(Program(kind, 0, (*lines, read))) is None


def test_a_wrong_program_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester itself: with a write that is lost, programs fail, and few lines show it."""
    from genesis.ndarray import NDArray

    monkeypatch.setattr(NDArray, "__imul__", lambda x, other: x)
    ((program, wrong),) = check("arrays", 0, 200)
    assert "instead of" in wrong
    assert len(program.lines) <= 4
    assert any("*=" in line for line in program.lines)
