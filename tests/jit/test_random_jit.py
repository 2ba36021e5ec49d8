"""Random programs with state do the same with jit and without (see `random_jit`)."""

import time

import pytest
from random_jit import Run, difference, judged, run_many, shrunk
from random_jit_source import source

SLOW = 40  # blocks of 100 programs


def findings(seeds: range) -> tuple[list[str], int]:
    """What is found in the programs of these seeds, and how many of them jit refuses."""
    found: list[str] = []
    counts = run_many(seeds, time.monotonic() + 1e9, found.append)
    return found, counts["refused"]


def test_random_programs_do_the_same_under_jit() -> None:
    found, refused = findings(range(64))
    assert not found, "\n".join(found[:3])
    assert refused <= 16  # else the programs show little


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(1, 1 + SLOW))
def test_more_random_programs_do_the_same_under_jit(block: int) -> None:
    found, refused = findings(range(100 * block, 100 * block + 100))
    assert not found, "\n".join(found[:3])
    assert refused <= 25


def test_a_program_does_the_same_twice() -> None:
    for seed in range(8):
        first, second = (Run(lambda f: f).run(source(seed)) for _ in range(2))
        assert len(first) > 3 and difference(first, second) is None


@pytest.mark.parametrize(
    "defect",
    [
        "lambda f: f if f.__name__ != 'step' else lambda x: memo.setdefault(0, f(x))",  # stale
        "lambda f: lambda *a: f(*a).clone()",  # a result that should be an object of the state
        "lambda f: lambda x: (f(x), log.clear())[0]",  # what was written is lost
        "lambda f: lambda x: f(x.clone())",  # an argument in the state is another
    ],
)
def test_a_planted_defect_is_seen(defect: str) -> None:
    program = (
        "log = []\n"
        "@jit\n"
        "def step(x):\n"
        "    log.append(x)\n"
        "    return x\n"
        "see(step, vec(1, 2))\n"
        "see(step, vec(3, 4))\n"
    )
    want = Run(lambda f: f).run(program)
    broken = Run(lambda f: f)
    broken.names["memo"] = {}
    broken.given["memo"] = broken.names["memo"]
    broken.names["jit"] = eval(defect, broken.names)
    got = broken.run(program)
    assert difference(want, got) is not None


def test_a_program_that_fails_is_made_short() -> None:
    text = source(5) + "see(lambda: 1 / 0)\n"

    def fails(text: str) -> bool:
        return any("ZeroDivisionError" in what for what, _ in Run(lambda f: f).run(text))

    assert shrunk(text, fails) == "see(lambda: 1 / 0)\n"


def test_a_refusal_is_told_from_a_difference() -> None:
    text = "@jit\ndef step(x):\n    return x * x.sum().item()\nsee(step, vec(1, 2))\n"
    assert judged(text).kind in ("refused", "equal")
