"""`checkpoint` by the name PyTorch has for it; see `genesis.func`."""

from genesis.func.activation_checkpointing import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
