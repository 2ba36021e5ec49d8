"""Schedules along a cosine, with restarts or after a warm-up."""

from __future__ import annotations

import math

from genesis.optim.lr_scheduler.base import LRScheduler
from genesis.optim.optimizer import Optimizer


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate down to `eta_min` in `T_max` steps, and up again."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        if self._starting:
            return self._now
        least, t, turn = self.eta_min, self.last_epoch, math.pi / self.T_max
        if self._step_count == 1 and t > 0:
            return [eased(base, least, t / self.T_max) for base in self.base_lrs]
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:  # at the bottom there is nothing to scale
            rise = (1 - math.cos(turn)) / 2
            pairs = zip(self._now, self.base_lrs, strict=True)
            return [rate + (base - least) * rise for rate, base in pairs]
        ratio = (1 + math.cos(turn * t)) / (1 + math.cos(turn * (t - 1)))
        return [ratio * (rate - least) + least for rate in self._now]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine down to `eta_min` in `T_0` steps, then again, each `T_mult` times as long.

    `step` takes a fraction of an epoch, too: ``scheduler.step(epoch + batch / batches)``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"CosineAnnealingWarmRestarts: {name} is {value}; it must be an integer >= 1"
                )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        return [eased(base, self.eta_min, self.T_cur / self.T_i) for base in self.base_lrs]

    _first_lr = get_lr

    def step(self, epoch: float | None = None) -> None:
        """Set the rates for the next step, or for any epoch."""
        if epoch is None and self.last_epoch >= 0:
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
            super().step()
            return
        time = 0 if epoch is None else epoch
        if time < 0:
            raise ValueError(
                f"CosineAnnealingWarmRestarts: epoch is {time}; it must not be negative"
            )
        self.T_i, self.T_cur = self.T_0, time
        while self.T_cur >= self.T_i:
            if self.T_mult == 1:
                self.T_cur %= self.T_i
            else:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        self.last_epoch = math.floor(time) - 1
        super().step()


class WarmupCosineLR(LRScheduler):
    """A straight line up to the first rate in `warmup_iters` steps, then half a cosine down.

    It begins at `start_factor` times the rate, and is at `eta_min` from `total_iters` on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_iters: int,
        total_iters: int,
        start_factor: float = 0.0,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup_iters < total_iters:
            raise ValueError(
                f"WarmupCosineLR: warmup_iters is {warmup_iters} and total_iters {total_iters}; it "
                "must be less"
            )
        self.warmup_iters = warmup_iters
        self.total_iters = total_iters
        self.start_factor = start_factor
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        t, warm = self.last_epoch, self.warmup_iters
        if t < warm:
            factor = self.start_factor + (1 - self.start_factor) * t / warm
            return [base * factor for base in self.base_lrs]
        done = min(1.0, (t - warm) / (self.total_iters - warm))
        return [eased(base, self.eta_min, done) for base in self.base_lrs]

    _first_lr = get_lr


def eased(start: float, end: float, done: float) -> float:
    """Between two numbers along half a cosine; `done` goes from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
