"""Mixed precision: half precision where it is safe, float32 where it is not.

`autocast` chooses for every operation, and `GradScaler` keeps small gradients from vanishing in
float16.
"""

from genesis.amp.autocast import (
    FLOAT32, LOW_PRECISION, WIDEST, autocast, custom_bwd, custom_fwd,
)  # fmt: skip
from genesis.amp.grad_scaler import GradScaler

__all__ = [
    "FLOAT32",
    "LOW_PRECISION",
    "WIDEST",
    "GradScaler",
    "autocast",
    "custom_bwd",
    "custom_fwd",
]
