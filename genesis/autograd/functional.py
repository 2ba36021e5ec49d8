"""Jacobians and products with them: `genesis.func.autograd_functional` by PyTorch's name."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("genesis.func.autograd_functional"), name)
