"""Views of what a jitted function made: a later write to one of them is a write to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis

MADE: dict[str, Callable[[Any, Any], Any]] = {
    "a tensor and all of it": lambda m, y: (y, y[:]),
    "all of a tensor, and it": lambda m, y: (y[:], y),
    "two views": lambda m, y: (y[:], y.view(1, 2)),
    "a view and a view of it": lambda m, y: (lambda v: (v, v[1:]))(y.view(1, 2)[0]),
    "a row and its end": lambda m, y: (lambda z: (z[0], z[0, 1:]))(m.stack([y, y + 1])),
}


def written(m: Any, jit: Callable[[Any], Any], name: str, needs_grad: bool) -> list[Any]:
    """The second result and its gradients, after a write to the first."""
    function = jit(lambda x: MADE[name](m, x * 3))
    found: list[Any] = []
    for _ in range(2):  # recorded, and run
        x = m.tensor([1.0, 2.0], requires_grad=needs_grad)
        w = m.tensor([2.0, 3.0], requires_grad=True)
        first, second = function(x)
        first.mul_(w)
        gradients = m.autograd.grad((second * second).sum(), [w, x] if needs_grad else [w])
        found.append([y.tolist() for y in (first, second, *gradients)])
    return found


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_a_write_to_one_is_a_write_to_the_other(name: str, needs_grad: bool) -> None:
    expected = written(torch, lambda f: f, name, needs_grad)
    assert written(genesis, lambda f: f, name, needs_grad) == expected
    assert written(genesis, genesis.jit, name, needs_grad) == expected
