"""New parameters and buffers, before they are given their first values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.nn.module import Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor


def parameter(shape: Sequence[int], dtype: Any = None, device: str | None = None) -> Parameter:
    """A parameter of the default dtype and on the default device, unless told otherwise."""
    return Parameter(creation.empty(tuple(shape), dtype=dtype, device=device))


def filled(
    shape: Sequence[int], value: float, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A tensor that is one number everywhere."""
    return creation.full(tuple(shape), float(value), dtype=dtype, device=device)


__all__ = ["filled", "parameter"]
