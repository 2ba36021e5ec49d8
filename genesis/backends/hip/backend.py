"""AMD's GPUs as backends."""

from __future__ import annotations

from genesis.backends.cuda.backend import GPUBackend
from genesis.backends.hip.driver import driver


class HIPBackend(GPUBackend):
    """An AMD GPU, by its number."""

    name = "hip"

    def __init__(self, number: int = 0) -> None:
        super().__init__(driver(), number)


__all__ = ["HIPBackend"]
