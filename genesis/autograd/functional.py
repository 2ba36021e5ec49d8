"""Jacobians and products with them: `genesis.func.products` by the name PyTorch has for it."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("genesis.func.products"), name)
