"""Functions that are made of others are functions like any other."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from genesis import ndarray as nd
from genesis.ndarray.ops.function_variants import of_ranks, variant

SPACES = {"": nd, "fft.": nd.fft, "linalg.": nd.linalg}
FUNCTIONS = {
    f"{space}{name}": found
    for space, module in SPACES.items()
    for name in module.__all__
    if inspect.isfunction(found := getattr(module, name))
}
ALIASES = {"conj_physical": "conj", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_is(name: str) -> None:
    function, own = FUNCTIONS[name], name.rpartition(".")[2]
    assert function.__name__ == ALIASES.get(own, own)
    assert function.__doc__
    assert "{axes}" not in function.__doc__
    seen = set(inspect.signature(function).parameters)
    inner = {"op", "rank", "transform", "direction", "number"}
    assert not seen & inner or name == "at_positions"  # which is told a rank


def whole(x: int, y: int = 2, *, op: str = "+", name: str = "whole") -> tuple[Any, ...]:
    """Over {axes}."""
    return x, y, op, name


def ranked(x: int, *, rank: int | None = None, name: str = "ranked") -> tuple[Any, ...]:
    """Over {axes}."""
    return x, rank, name


def test_a_variant_has_its_own_defaults_and_leaves_the_function_alone() -> None:
    minus = variant(whole, "minus", "Less.", op="-")
    assert minus(1) == (1, 2, "-", "minus")
    assert minus(1, y=3) == (1, 3, "-", "minus")
    assert whole(1) == (1, 2, "+", "whole")
    assert str(inspect.signature(minus)) == "(x: 'int', y: 'int' = 2) -> 'tuple[Any, ...]'"
    assert (minus.__name__, minus.__doc__) == ("minus", "Less.")
    assert minus.__code__.co_name == "minus"  # type: ignore[attr-defined]


def test_ranks() -> None:
    found = of_ranks(ranked, None, 1, 3)
    assert [f(5) for f in found] == [(5, None, "ranked"), (5, 1, "ranked1d"), (5, 3, "ranked3d")]
    assert [f.__doc__ for f in found] == [
        "Over spatial axes.",
        "Over one axis.",
        "Over three axes.",
    ]
