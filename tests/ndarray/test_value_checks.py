"""Numbers that an operation does not take: an error where PyTorch has one, eager and recorded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
from genesis import ndarray as nd

inf, nan = float("inf"), float("nan")

Function = Callable[..., Any]


def _bce(module: Any, x: Any) -> Any:
    return module.nn.functional.binary_cross_entropy(x, module.full_like(x, 0.5))


def _bce_target(module: Any, x: Any) -> Any:
    return module.nn.functional.binary_cross_entropy(module.full_like(x, 0.5), x)


#: A function, numbers that it takes, and some that it does not.
CASES: dict[str, tuple[Function, Any, list[Any]]] = {
    "multinomial": (
        lambda m, x: m.multinomial(x, 1),
        [1.0, 2.0, 0.0],
        [[nan, 1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 2.0, 3.0], [inf, 1.0, 1.0]],
    ),
    "multinomial of rows": (
        lambda m, x: m.multinomial(x, 2, True),
        [[1.0, 2.0], [0.0, 3.0]],
        [[[1.0, 1.0], [0.0, 0.0]], [[1.0, -1.0], [1.0, 1.0]], [[1.0, 1.0], [nan, 1.0]]],
    ),
    "multinomial without replacement": (
        lambda m, x: m.multinomial(x, 2),
        [1.0, 2.0, 0.5],
        [[nan, 1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 2.0, 3.0]],
    ),
    "bernoulli": (lambda m, x: m.bernoulli(x), [0.0, 0.5, 1.0], [[1.5, 0.0, 0.0], [nan, 0, 0]]),
    "normal": (lambda m, x: m.normal(m.zeros(3), x), [0.0, 0.5, 1.0], [[-0.1, 1.0, 1.0]]),
    "binary_cross_entropy": (_bce, [0.0, 0.5, 1.0], [[1.1, 0.5, 0.5], [-0.1, 1, 1], [nan, 0, 0]]),
    "its target": (_bce_target, [0.0, 0.5, 1.0], [[1.1, 0.5, 0.5], [-0.1, 1, 1]]),
}


def _shown(x: Any) -> None:
    x.detach().numpy()


@pytest.mark.parametrize("name", CASES)
def test_wrong_numbers_are_errors(name: str) -> None:
    function, right, cases = CASES[name]
    recorded = genesis.jit(lambda x: function(genesis, x))
    for x in (right, right, *cases, right):
        try:
            function(torch, torch.tensor(x, dtype=torch.float32))
            fails = False
        except RuntimeError:
            fails = True
        assert fails == (x is not right)
        given = genesis.tensor(x, dtype=genesis.float32)
        ways: list[Callable[[], Any]] = [
            lambda: function(genesis, given),  # noqa: B023
            lambda: function(genesis, given * 1),  # noqa: B023
            lambda: recorded(given),  # noqa: B023
        ]
        for way in ways:
            if fails:
                with pytest.raises(ValueError, match=name.split()[0] if name[0] != "i" else "bin"):
                    _shown(way())
            else:
                _shown(way())


TABLE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
POSITIONS: dict[str, Function] = {
    "gather": lambda m, x, i: m.gather(x, 0, m.stack([i, i], 1)),
    "index_select": lambda m, x, i: m.index_select(x, 0, i),
    "index_add": lambda m, x, i: m.index_add(x, 0, i, m.ones(2, 2)),
    "index_copy": lambda m, x, i: m.index_copy(x, 0, i, m.ones(2, 2)),
    "scatter": lambda m, x, i: m.scatter(x, 0, m.stack([i, i], 1), m.ones(2, 2)),
    "scatter_add": lambda m, x, i: m.scatter_add(x, 0, m.stack([i, i], 1), m.ones(2, 2)),
    "scatter_reduce": lambda m, x, i: m.scatter_reduce(
        x, 0, m.stack([i, i], 1), m.ones(2, 2), "amax"
    ),
    "embedding": lambda m, x, i: m.nn.functional.embedding(i, x),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_that_never_count_from_the_end(name: str) -> None:
    """A -1 that stands for padding is no last row."""
    function = POSITIONS[name]
    recorded = genesis.jit(lambda x, i: function(genesis, x, i))
    for places in ([2, 0], [1, -1], [0, -3], [0, 3], [1, 2]):
        theirs, mine = torch.tensor(TABLE), genesis.tensor(TABLE)
        index = genesis.tensor(places)
        ways: list[Callable[[], Any]] = [
            lambda: function(genesis, mine, index),  # noqa: B023
            lambda: function(genesis, mine, index * 1),  # noqa: B023
            lambda: recorded(mine, index),  # noqa: B023
        ]
        try:
            want = function(torch, theirs, torch.tensor(places)).tolist()
        except (IndexError, RuntimeError):
            wrong = next(n for n in places if not 0 <= n < 3)
            for way in ways:
                with pytest.raises(IndexError, match=f"{name}: index {wrong} is out of range for"):
                    way().tolist()
        else:
            assert [way().tolist() for way in ways] == [want] * 3


def test_wrong_numbers_are_found_by_whoever_needs_only_the_gradient() -> None:
    x = genesis.tensor([1.5, 0.5], requires_grad=True)
    genesis.binary_cross_entropy(x * 1, genesis.zeros(2)).backward()
    with pytest.raises(ValueError, match="input are not between 0 and 1"):
        x.grad.tolist()  # type: ignore[union-attr]


def test_the_error_names_the_line() -> None:
    pending = nd.array([1.0, 2.0]) * 2
    checked = nd.demand(pending, lambda x: x > 3, "small: takes small numbers")
    with pytest.raises(
        ValueError, match=r"small: takes small numbers \(.*test_value_checks.py:\d+\)"
    ):
        checked.numpy()


def test_nothing_is_demanded_of_no_elements() -> None:
    assert genesis.bernoulli(genesis.zeros(0)).shape == (0,)
    loss = genesis.binary_cross_entropy(genesis.zeros(0), genesis.zeros(0), reduction="sum")
    assert loss.item() == 0
