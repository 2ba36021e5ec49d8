"""``torch.compile(model, backend="genesis")``."""

from genesis.torch.compile.backend import genesis, register
from genesis.torch.compile.executable import FallbackWarning

__all__ = ["FallbackWarning", "genesis", "register"]
