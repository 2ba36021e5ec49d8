"""Part of `genesis.data` by the module PyTorch has it in."""

from genesis.data import DataLoader, default_collate, get_worker_info

__all__ = ["DataLoader", "default_collate", "get_worker_info"]
