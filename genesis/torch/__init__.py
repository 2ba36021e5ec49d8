"""PyTorch on Genesis.

Importing this module makes ``torch.compile(model, backend="genesis")`` and
``torch.device("genesis")`` known to PyTorch. Where Genesis is installed as a package PyTorch
imports it by itself, through entry points.
"""

from genesis.torch.check import check
from genesis.torch.compile import FallbackWarning, register
from genesis.torch.explain import explain

register()

__all__ = ["FallbackWarning", "check", "explain"]
