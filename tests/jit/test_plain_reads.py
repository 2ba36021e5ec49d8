"""Variables and attributes that are plain values: looked at by identity first, then by value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import genesis


class Shape(NamedTuple):
    width: int
    name: str


#: What is read, what is as good, and what is not.
VALUES: list[tuple[Any, Any, Any]] = [
    (True, True, False),
    (None, None, 2.0),
    (3, int("3"), 4),
    (0.0, float("0"), -0.0),
    (float("nan"), float("nan"), 1.0),
    ("layer", "".join(["lay", "er"]), "rms"),
    ((2, "a", (1.5, None)), (2, "a", (float("1.5"), None)), (2, "a", (1.5, True))),
    (Shape(192, "tiny"), Shape(192, "tiny"), Shape(384, "tiny")),
    (1 + 2j, complex(1, 2), complex(1, -2)),
    (1, int("1"), True),  # equal, and not the same to code that asks for its type
]


def weight(value: Any) -> float:
    """A number that tells values apart."""
    return float(sum(map(ord, f"{type(value).__name__} {value!r}")))


@pytest.mark.parametrize("place", ["variable", "attribute"])
@pytest.mark.parametrize(("value", "equal", "other"), VALUES, ids=[repr(v[0]) for v in VALUES])
def test_a_plain_value_is_guarded_by_what_it_is(
    place: str, value: Any, equal: Any, other: Any
) -> None:
    holder, variable = SimpleNamespace(value=value), value

    def plain(x: Any) -> Any:
        return x * weight(holder.value if place == "attribute" else variable)

    recorded = genesis.jit(plain)
    x = genesis.ones(3)
    counts = []
    for each in (value, equal, other, value, equal, other):
        holder.value = variable = each
        assert recorded(x).tolist() == plain(x).tolist()
        counts.append(recorded.captures)
    assert counts == [1, 1, 2, 2, 2, 2]
