"""What is known of watched code does not keep functions alive that are gone."""

from __future__ import annotations

import gc
from types import FunctionType
from typing import Any
from weakref import ref

import pytest

import genesis
from genesis.ndarray.tracing import bytecode_tracer


def function(number: int) -> FunctionType:
    names: dict[str, Any] = {}
    exec(f"def f(x):\n    return x * {number} + len([{number}])", names)
    made: FunctionType = names["f"]
    return made


def test_code_of_functions_that_are_gone_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode_tracer, "MOST_PLANS", 8)
    x = genesis.ones(2)
    codes = []
    for number in range(2, 32):
        f = function(number)
        assert genesis.jit(f)(x).tolist() == [number + 1.0] * 2
        codes.append(ref(f.__code__))
        del f
    gc.collect()
    assert len(bytecode_tracer._plans) <= 8
    assert sum(code() is not None for code in codes) <= 8
