"""Training: checkpoints that go on bit for bit."""

from genesis.train.checkpoint_files import Checkpoint
from genesis.train.checkpoints import Checkpoints, CheckpointWarning

__all__ = ["Checkpoint", "CheckpointWarning", "Checkpoints"]
