"""What arithmetic makes of integers follows the default dtype, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import genesis

torch = pytest.importorskip("torch")

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "divided": lambda m, x: x / x,
    "times a float": lambda m, x: x * 0.5,
    "a float minus": lambda m, x: 1.5 - x.long(),
    "a power": lambda m, x: x**0.5,
    "power of a float": lambda m, x: 2.0**x,
    "remainder": lambda m, x: x % 0.3,
    "of unary functions": lambda m, x: m.sqrt(x) + m.sin(x) + m.special.expit(x) + m.erf(x),
    "of binary functions": lambda m, x: m.atan2(x, x + 1) + m.copysign(x, -1.0),
    "clamped": lambda m, x: x.long().clamp(0.5, 1.5),
    "chosen": lambda m, x: m.where(x > 1, x, 0.1),
    "numbers chosen": lambda m, x: m.where(x > 1, 0.1, 0.2),
    "logsumexp": lambda m, x: m.logsumexp(x, 0),
    "complex": lambda m, x: m.real(x + 1j),
    "that stay integers": lambda m, x: x * 2,
    "of a given dtype": lambda m, x: x.float() / 3,
}


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    genesis.set_default_dtype(genesis.float32)


def _set(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))
    genesis.set_default_dtype(getattr(genesis, name))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("data", ([1, 2, 7], [True, False, True]))
def test_integers(case: str, data: list[Any]) -> None:
    function = CASES[case]
    jitted = genesis.jit(lambda x: function(genesis, x))
    for default in ("float64", "float32", "bfloat16", "float64"):
        _set(default)
        wide = {"float64": 1e-15, "float32": 1e-6, "bfloat16": 1e-2}[default]
        expected = function(torch, torch.tensor(data))
        for found in (function(genesis, genesis.tensor(data)), jitted(genesis.tensor(data))):
            assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
            np.testing.assert_allclose(found.tolist(), expected.tolist(), wide, wide)


def test_layers_recorded_before_the_default_changed() -> None:
    """A composition is copied from its first calls: the default is part of what it was made for."""
    x = [[3, -1], [0, 5]]
    for default in ("float32",) * 3 + ("float64",) * 3:
        _set(default)
        found = genesis.nn.functional.pairwise_distance(genesis.tensor(x), genesis.tensor(x) * 2.0)
        expected = torch.nn.functional.pairwise_distance(torch.tensor(x), torch.tensor(x) * 2.0)
        assert str(found.dtype) == default
        rounding = 1e-6 if default == "float32" else 1e-14
        np.testing.assert_allclose(found.tolist(), expected.tolist(), rounding)


def test_fourier_transforms_of_integers() -> None:
    _set("float64")
    found = genesis.fft.fft(genesis.tensor([1, 2, 4]))
    assert found.dtype is genesis.complex128
    np.testing.assert_allclose(found.numpy(), np.fft.fft([1, 2, 4]), 1e-14, 1e-14)


def test_two_libraries_have_two_defaults() -> None:
    import genesis.torch

    x = torch.tensor([1, 2, 3], device="genesis")
    compiled = torch.compile(lambda x: torch.sqrt(x) / 3, backend="genesis")
    genesis.set_default_dtype(genesis.float64)
    assert torch.sqrt(x).dtype is compiled(x.cpu()).dtype is torch.float32
    assert genesis.sqrt(genesis.tensor([2])).dtype is genesis.float64
    genesis.set_default_dtype(genesis.float32)
    torch.set_default_dtype(torch.float64)
    for found in (torch.sqrt(x).cpu() / 3, compiled(x.cpu())):
        torch.testing.assert_close(found, torch.sqrt(x.cpu()) / 3, rtol=1e-15, atol=0)
    assert genesis.sqrt(genesis.tensor([2])).dtype is genesis.float32
