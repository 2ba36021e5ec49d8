"""Operators of classical learning (domain ai.onnx.ml): scalers, linear models, trees."""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis.ir import dtype as dtypes
from genesis.onnx.registry import operator

_ML = "ai.onnx.ml"


@operator("Scaler", domain=_ML)
def scaler(x: Any, *, offset: Any, scale: Any) -> Any:
    """(x - offset) scale."""
    from genesis import tensor

    return (x.to(dtypes.float32) - tensor(offset)) * tensor(scale)


@operator("Normalizer", domain=_ML)
def normalizer(x: Any, *, norm: str = "MAX") -> Any:
    """Rows divided by a norm."""
    if norm == "MAX":
        return x / fn.amax(fn.abs(x), -1, True)
    if norm == "L1":
        return x / fn.sum(fn.abs(x), -1, True)
    return x / fn.sqrt(fn.sum(fn.square(x), -1, True))
