"""Calls at the edges of what functions take: one line each, here and in PyTorch.

A line is an expression, after statements that end in ``;;``. `m` is the library, `t` makes a tensor
of contents and the name of a dtype, and needs a gradient if so told.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis

LINES = (Path(__file__).parents[1] / "calls.txt").read_text().splitlines()
DTYPES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128"


def evaluate(module: Any, line: str) -> Any:
    """What a line gives."""

    def tensor(contents: Any, dtype: str | None = None, gradient: bool = False) -> Any:
        kind = None if dtype is None else getattr(module, dtype)
        return module.tensor(contents, dtype=kind, requires_grad=gradient)

    names = {name: getattr(module, name) for name in DTYPES.split()}
    names |= {"m": module, "t": tensor, "bool_": module.bool, "np": np, "math": math}
    names |= {"nn": module.nn, "F": module.nn.functional, "init": module.nn.init}
    names |= {"L": module.linalg, "inf": math.inf, "nan": math.nan}
    module.manual_seed(0)
    *statements, expression = line.split(";;")
    for statement in statements:
        exec(statement, names)
    return described(eval(expression, names))


def described(x: Any) -> Any:
    """A result with names and NumPy arrays in place of what only one library has."""
    if isinstance(x, torch.Tensor | genesis.Tensor):
        dtype = str(x.dtype).removeprefix("torch.")
        plain = x.detach().float() if dtype == "bfloat16" else x.detach().resolve_conj()
        return dtype, np.array(plain.numpy())
    if isinstance(x, tuple | list):
        return [described(y) for y in x]
    if isinstance(x, torch.dtype | genesis.dtype):
        return str(x).removeprefix("torch.")
    return x if isinstance(x, bool | int | float | complex | str | None) else type(x).__name__


def is_same(x: Any, y: Any) -> bool:
    """Whether two descriptions agree, but for rounding."""
    if type(x) is not type(y):
        return False
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(map(is_same, x, y))
    if isinstance(x, np.ndarray):
        near = 2e-2 if x.dtype == np.float16 else 1e-4
        return x.shape == y.shape and np.allclose(x, y, near, near / 10, equal_nan=True)
    return x == y or (x != x and y != y) or (isinstance(x, float) and math.isclose(x, y))


def outcome(module: Any, line: str) -> tuple[bool, Any]:
    """Whether a line works, and what it gives."""
    try:
        return True, evaluate(module, line)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def differences(lines: list[str]) -> list[str]:
    """The lines that do not do here what they do in PyTorch."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in lines:
            (works, ours), (should, theirs) = (outcome(m, line) for m in (genesis, torch))
            if works != should or (works and not is_same(ours, theirs)):
                found.append(f"{line}\n  here: {ours}\n  PyTorch: {theirs}")
    return found


def test_every_tenth_call_does_what_it_does_in_pytorch() -> None:
    found = differences(LINES[::10])
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_every_call_does_what_it_does_in_pytorch() -> None:
    found = differences(LINES)
    assert not found, "\n".join(found)
