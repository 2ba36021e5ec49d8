"""New parameters and buffers, before they are given their first values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis.nn.module import Module, Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor


def parameter(shape: Sequence[int], dtype: Any = None, device: str | None = None) -> Parameter:
    """A parameter of the default dtype and on the default device, unless told otherwise."""
    return Parameter(creation.empty(tuple(shape), dtype=dtype, device=device))


def add_parameters(
    module: Module, device: str | None, dtype: Any, **shapes: Sequence[int] | None
) -> None:
    """Give a module parameters by name; None keeps the place of one that is not used."""
    for name, shape in shapes.items():
        made = None if shape is None else parameter(shape, dtype, device)
        module.register_parameter(name, made)


def filled(
    shape: Sequence[int], value: float, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A tensor that is one number everywhere."""
    return creation.full(tuple(shape), float(value), dtype=dtype, device=device)
