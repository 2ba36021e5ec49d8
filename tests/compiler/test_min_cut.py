"""What jit saves for gradients: the cheapest, so that only what fuses is computed twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from jit_gradients import MODELS

import genesis
from genesis.autograd import jit_gradients
from genesis.autograd import min_cut as cuts
from genesis.autograd.min_cut import NEVER, FlowNetwork, priced
from genesis.ir.node import topological
from genesis.ndarray.core.value import Value

Asked = tuple[Sequence[Value], Sequence[Value], Sequence[Value]]


def subsets(xs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(combinations(xs, n) for n in range(len(xs) + 1))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Every cut that is made: gradients, results and what is saved."""
    found: list[Asked] = []

    def cut(gradients: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        saved = cuts.cut(gradients, results)
        found.append((gradients, results, saved))
        return saved

    monkeypatch.setattr(jit_gradients, "cut", cut)
    return found


def test_cuts_of_networks(rng: np.random.Generator) -> None:
    for _ in range(200):
        vertices = int(rng.integers(2, 8))
        pairs = rng.integers(0, vertices, (int(rng.integers(1, 20)), 2)).tolist()
        edges = [(a, b, int(rng.integers(0, 9))) for a, b in pairs]
        network = FlowNetwork(vertices)
        for edge in edges:
            network.add(*edge)

        def through(side: Iterable[int], edges: Any = edges) -> int:
            inside = {0, *side}
            return sum(c for a, b, c in edges if a in inside and b not in inside)

        least = min(map(through, subsets(range(1, vertices - 1))))
        found = network.cut(0, vertices - 1)
        assert 0 in found
        assert vertices - 1 not in found
        assert through(found) == least


def price(prices: dict[Value, cuts.Price], saved: Iterable[Value]) -> float:
    """What it costs to save these and nothing else: the obvious way."""
    total = 0.0
    there: set[Value] = set()
    stack = [v for v, p in prices.items() if p.is_asked]
    while stack:
        v = stack.pop()
        if v not in there:
            there.add(v)
            is_input = v.memory is not None or v.op.group == "leaf"
            total += prices[v].save if v in saved or is_input else prices[v].again
            stack += () if v in saved or is_input else v.inputs
    return total


FUNCTIONS = {
    "relu": lambda x, w: genesis.relu(x @ w) @ w,
    "norm": lambda x, w: (x - x.mean()) / x.std(),
    "residual": lambda x, w: genesis.tanh(x + x @ w) + x,
    "chain": lambda x, w: genesis.exp(genesis.sin(x * 2) * w),
    "dropout": lambda x, w: genesis.nn.functional.dropout(x @ w, 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_other_choice_is_cheaper(name: str, asked: list[Asked]) -> None:
    x, w = genesis.ones(4, 4, requires_grad=True), genesis.ones(4, 4, requires_grad=True)
    genesis.jit(FUNCTIONS[name])(x, w)
    ((gradients, results, saved),) = asked
    prices = priced(gradients, results)
    choices = [v for v in prices if v.memory is None and v.op.group != "leaf"]
    used = [v for v in choices if prices[v].save < NEVER]
    found = price(prices, saved)
    assert found < NEVER
    for others in chain.from_iterable(combinations(used, n) for n in range(min(len(used), 3) + 1)):
        assert found <= price(prices, others) + 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_nothing_that_does_not_fuse_is_computed_twice(name: str, asked: list[Asked]) -> None:
    make, inputs = MODELS[name]
    genesis.jit(make())(inputs(0))
    ((gradients, results, saved),) = asked
    forward = {v for v in topological(results) if v.memory is None}
    again = [
        v
        for v in topological(gradients, lambda v: () if v in saved else v.inputs)
        if v in forward and v not in saved
    ]
    assert all(v.op.is_elementwise or v.op.is_movement or v.op.group == "leaf" for v in again)


def test_what_products_read_is_saved(asked: list[Asked]) -> None:
    layers = [genesis.nn.Linear(8, 8), genesis.nn.ReLU()] * 3
    genesis.jit(genesis.nn.Sequential(*layers, genesis.nn.Linear(8, 1)))(genesis.ones(4, 8))
    ((_, _, saved),) = asked
    assert [v.op.name for v in saved] == ["max"] * 3  # not the sums before, nor masks


def test_what_is_expanded_is_saved_before_it_is(asked: list[Asked]) -> None:
    """A number for every column is not computed again for every row."""
    x, w = genesis.ones(64, 4, requires_grad=True), genesis.ones(4)
    genesis.jit(lambda x: x * genesis.exp(w + 1))(x)
    ((gradients, _, saved),) = asked
    again = topological(gradients, lambda v: () if v in saved else v.inputs)
    assert "exp" not in [v.op.name for v in again if v not in saved]


def test_where_the_greatest_are_is_found_once(asked: list[Asked]) -> None:
    """By the program that looks for them, not by that of gradients: nothing rounds."""
    genesis.jit(genesis.nn.MaxPool2d(2))(genesis.rand(4, 3, 8, 8, requires_grad=True))
    ((gradients, _, saved),) = asked
    again = topological(gradients, lambda v: () if v in saved else v.inputs)
    assert not {"amax", "amin"} & {v.op.name for v in again}
