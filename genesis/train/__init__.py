"""Training: checkpoints that go on bit for bit, and `fit`, the loop with callbacks."""

from genesis.train.callbacks import (
    EMA, AdaptiveBatch, Callback, Curriculum, EarlyStop, Progress, TensorBoard,
)  # fmt: skip
from genesis.train.checkpoint_files import Checkpoint
from genesis.train.checkpoints import Checkpoints, CheckpointWarning
from genesis.train.fit_loop import Training, fit
from genesis.train.search import Trial, Uniform, search
from genesis.train.multi_task import GradNorm, PCGrad, UncertaintyWeighting

__all__ = [
    "AdaptiveBatch", "Callback", "Checkpoint", "CheckpointWarning", "Checkpoints", "Curriculum",
    "EMA", "EarlyStop", "GradNorm", "PCGrad", "Progress", "TensorBoard", "Training", "Trial",
    "UncertaintyWeighting", "Uniform", "fit", "search",
]  # fmt: skip
