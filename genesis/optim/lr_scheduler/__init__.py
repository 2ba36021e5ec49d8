"""Learning rate schedules: what follows what, on the host.

A schedule sets ``group["lr"]`` (some also the momentum) between steps; the number lies in memory
that a recorded step reads, so nothing is recorded or compiled again. Call ``scheduler.step()``
after the optimizer's step, outside of functions under `genesis.jit`.

Where it can, a schedule changes the rate as it is now by a factor, rather than setting it. So
several schedules can act on one optimizer.
"""

from genesis.optim.lr_scheduler.base import LRScheduler
from genesis.optim.lr_scheduler.combined import ChainedScheduler, SequentialLR
from genesis.optim.lr_scheduler.cosine import (
    CosineAnnealingLR, CosineAnnealingWarmRestarts, WarmupCosineLR,
)  # fmt: skip
from genesis.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from genesis.optim.lr_scheduler.factors import (
    ConstantLR, ExponentialLR, LambdaLR, LinearLR, MultiplicativeLR, MultiStepLR, PolynomialLR,
    StepLR,
)  # fmt: skip
from genesis.optim.lr_scheduler.plateau import ReduceLROnPlateau

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
    "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR",
    "StepLR", "WarmupCosineLR",
]  # fmt: skip
