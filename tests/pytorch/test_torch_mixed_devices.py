"""Graphs with tensors on two devices: what a program computes, and what PyTorch does.

PyTorch's meta device stands for a GPU: graphs are traced, and nothing is run. On a GPU
`tests/gpu_torch_compile.py` compares results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from genesis.torch.compile import trace
from genesis.torch.compile.sizes import Sizes

PLACE = torch.device("meta")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "place_of", lambda device: PLACE)


def traced(f: Callable[..., Any], *inputs: Any) -> trace.Trace:
    return trace.Trace(make_fx(f, tracing_mode="fake")(*inputs), Sizes(), "cpu")


def foreign(found: trace.Trace) -> list[str]:
    """The operators left to PyTorch, in order."""
    return [str(n.target) for part in found.parts for n in part.foreign]


def test_what_is_made_to_be_brought_is_made_by_the_program() -> None:
    def f(x: Any, scale: Any, table: Any) -> Any:
        position = torch.arange(8)
        distance = (position[None] - position[:, None]).abs().float().log1p().clamp(max=3)
        one, other = torch.arange(16).split(8)
        known = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
        here = distance.to(PLACE) + torch.eye(8).to(PLACE) + (one + other).to(PLACE)
        return (x * (1 - 0.5 * scale) + here + known.to(PLACE) + table.to(PLACE),)

    x = torch.empty(8, 8, device=PLACE)
    found = traced(f, x, torch.tensor(2.0), torch.ones(8))
    assert not found.reasons and len(found.parts) == 1 and not foreign(found)
    read = [n.name for n in found.parts[0].inputs if found.is_elsewhere(n)]
    assert read == ["scale_1", "table_1"]


def test_what_is_wanted_elsewhere_is_computed_there() -> None:
    """A result on the CPU, numbers drawn there, rows of a table that need not come as a whole."""

    def f(x: Any, scale: Any, table: Any) -> Any:
        twice = scale * 2
        drawn = torch.rand(4).to(PLACE)
        rows = table[torch.arange(2)].to(PLACE)
        return x + drawn + rows + twice.to(PLACE), twice, x.sum().cpu()

    x = torch.empty(2, 4, device=PLACE)
    found = traced(f, x, torch.tensor(2.0), torch.ones(1000, 4))
    left = Counter(foreign(found))
    assert left == {
        "aten.mul.Tensor": 1, "aten.rand.default": 1, "aten.index.Tensor": 1,
        "aten._to_copy.default": 1, "aten.arange.default": 1,
    }  # fmt: skip
    assert "aten._to_copy.default" not in found.reasons  # nobody else brings it to the CPU
