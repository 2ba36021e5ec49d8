"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from genesis.optim.lr_scheduler.base import LRScheduler
from genesis.optim.lr_scheduler.plateau import ReduceLROnPlateau
from genesis.optim.optimizer import Optimizer


class _Members(LRScheduler):
    """A schedule that leaves it to others to set the rates."""

    _not_saved = ("optimizer", "_schedulers")

    def __init__(self, optimizer: Optimizer | None, schedulers: Sequence[LRScheduler]) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name}: there are no schedules")
        self.optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        self._schedulers = list(schedulers)
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"{name}: ReduceLROnPlateau needs a metric at every step")
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(f"{name}: the schedules belong to different optimizers")

    def _rewind(self) -> None:
        for scheduler in self._schedulers:
            scheduler._rewind()

    def _restart(self) -> None:
        for group in self._groups:
            group["lr"] = group["initial_lr"]
        for scheduler in self._schedulers:
            scheduler.last_epoch = -1
        self._start()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, and the states of the members."""
        members = [scheduler.state_dict() for scheduler in self._schedulers]
        return {**super().state_dict(), "_schedulers": members}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class SequentialLR(_Members):
    """One schedule after the other; a milestone is the step at which the next one begins."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        super().__init__(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedules need {len(schedulers) - 1} milestones, "
                f"not {len(milestones)}"
            )
        self._milestones = list(milestones)
        for group in self._groups:
            group["lr"] = group["initial_lr"]
        self._rewind()
        self._start()

    def _start(self) -> None:
        self.last_epoch = 0
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._start()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:
        """Let the schedule whose turn it is set the rates."""
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            scheduler._restart()
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Members):
    """Several schedules at once: each changes what the one before has set."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        super().__init__(optimizer, schedulers)
        self._last_lr = self._now

    def _start(self) -> None:
        for scheduler in self._schedulers:
            scheduler._start()
        self._last_lr = self._now

    def step(self) -> None:
        """Let every schedule take its step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._now
