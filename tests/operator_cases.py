"""The register of cases: which function draws operands for an operator and compares results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.operator_draw import FLOATS, HALVES, SIGNED, Draw

Case = Callable[[Draw], None]

REAL = (*HALVES, *FLOATS)
#: The integers PyTorch can compute with.
COUNTED = (*SIGNED, "uint8")

CASES: dict[str, Case] = {}


def case(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a case under the name of its function, or for several functions with that name."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        if not names:
            CASES[function.__name__.strip("_")] = function
        for name in names:
            CASES[name] = partial(function, name=name)
        return function

    return register
