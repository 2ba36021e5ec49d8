"""Modules under the names that PyTorch has for them."""

from genesis.utils import data

__all__ = ["data"]
