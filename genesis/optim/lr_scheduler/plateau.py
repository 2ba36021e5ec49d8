"""A schedule by results: a lower rate when they get no better."""

from __future__ import annotations

import math
from typing import Any

from genesis.optim.lr_scheduler.base import LRScheduler, for_groups
from genesis.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a metric has not improved for more than `patience` steps.

    An improvement is more than `threshold`, relative to the best (``"rel"``) or absolute
    (``"abs"``). After a reduction nothing is counted for `cooldown` steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if not factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor is {factor}; it must be below 1")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode is {mode!r}; it is 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: threshold_mode is {threshold_mode!r}; it is 'rel' or 'abs'"
            )
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = for_groups("ReduceLROnPlateau: min_lr", optimizer, min_lr)
        self.eps = eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0
        self.last_epoch = 0
        self._last_lr = self._now

    def step(self, metrics: Any = None) -> None:
        """Look at the metric of the last steps: a number or a tensor of one."""
        if metrics is None:
            raise TypeError("ReduceLROnPlateau: step needs the metric that it is to look at")
        current = float(metrics.item() if hasattr(metrics, "item") else metrics)
        self.last_epoch += 1
        if self._is_better(current):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self._groups, self.min_lrs, strict=True):
                rate = max(group["lr"] * self.factor, least)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._now

    def _is_better(self, current: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * current > sign * self.best * (1 + sign * self.threshold)
        return sign * current > sign * self.best + self.threshold
