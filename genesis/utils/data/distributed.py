"""Part of `genesis.data` by the module PyTorch has it in."""

from genesis.data import DistributedSampler

__all__ = ["DistributedSampler"]
