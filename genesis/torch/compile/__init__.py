"""``torch.compile(model, backend="genesis")``."""

from genesis.torch.compile.backend import genesis, register

__all__ = ["genesis", "register"]
