"""Apple's GPUs, which no backend is for: what programs ask before they choose a device."""

from __future__ import annotations


def is_available() -> bool:
    """Whether there is such a device."""
    return False


def is_built() -> bool:
    """Whether there is code for such devices."""
    return False


__all__ = ["is_available", "is_built"]
