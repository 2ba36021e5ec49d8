"""Random generators by the module PyTorch has them in, and a way to leave them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from genesis.ndarray.random import initial_seed, manual_seed, seed
from genesis.tensor.creation import get_rng_state, set_rng_state


@contextmanager
def fork_rng(
    devices: Any = None, enabled: bool = True, device_type: str = "cuda", **options: Any
) -> Iterator[None]:
    """Leave the generator as it was before the ``with`` block, whatever is drawn inside."""
    before = get_rng_state() if enabled else None
    try:
        yield
    finally:
        if before is not None:
            set_rng_state(before)


__all__ = [
    "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state",
]  # fmt: skip
