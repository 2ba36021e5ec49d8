"""What scripts ask about CUDA before they choose a device."""

from __future__ import annotations


def is_available() -> bool:
    """Whether arrays can be on the device "cuda"."""
    from genesis.backends import get  # importing Genesis loads no backend

    try:
        get("cuda")
    except ValueError:
        return False
    return True


__all__ = ["is_available"]
