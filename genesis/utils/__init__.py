"""Modules under the names that PyTorch has for them."""

from genesis.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
