"""Which release of PyTorch has the Inductor that `genesis.torch.inductor` is for."""

from __future__ import annotations

import torch

#: Inductor's interfaces change with every minor release.
SUPPORTED = "2.13"


def is_supported() -> bool:
    """Whether that is the release that runs."""
    return torch.__version__.split(".")[:2] == SUPPORTED.split(".")
