"""Schedules that are a factor of the step: given by a function, by steps, or by a simple curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from genesis.optim.lr_scheduler.base import LRScheduler, for_groups
from genesis.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class _WithFunctions(LRScheduler):
    """A schedule by functions of the step, one for all groups or one for each."""

    _not_saved = ("optimizer", "lr_lambdas")

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Factor | Sequence[Factor], last_epoch: int = -1
    ) -> None:
        self.lr_lambdas: list[Any] = for_groups("LambdaLR: lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and plain functions; objects are saved by attributes."""
        saved = [None if isinstance(f, FunctionType) else dict(f.__dict__) for f in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; plain functions stay as they are."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)


class LambdaLR(_WithFunctions):
    """The first rate times a function of the step."""

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        factors = [f(self.last_epoch) for f in self.lr_lambdas]
        return [base * factor for base, factor in zip(self.base_lrs, factors, strict=True)]

    _first_lr = get_lr


class MultiplicativeLR(_WithFunctions):
    """The last rate times a function of the step."""

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        if self._starting:
            return self._now
        factors = [f(self.last_epoch) for f in self.lr_lambdas]
        return [rate * factor for rate, factor in zip(self._now, factors, strict=True)]

    _first_lr = get_lr


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        due = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return self._times(self.gamma) if due else self._now


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at every milestone."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(milestones, Iterable):
            raise TypeError(f"MultiStepLR: milestones are several steps, not {milestones!r}")
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        times = self.milestones[self.last_epoch]
        return self._times(self.gamma**times) if times else self._now

    def _first_lr(self) -> list[float]:
        return [base * self.gamma ** self.milestones[0] for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The rate times `factor` for the first `total_iters` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is {factor}; it must be from 0 to 1")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        if self.last_epoch == 0:
            return self._times(self.factor)
        return self._times(1 / self.factor) if self.last_epoch == self.total_iters else self._now

    def _first_lr(self) -> list[float]:
        return [base * (self.factor if self.total_iters > 0 else 1.0) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The rate times a factor that goes straight from one number to another in some steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(
                f"LinearLR: the factors are {start_factor} and {end_factor}; they must be from 0 "
                "to 1, and the first one above 0"
            )
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self._starting or self.last_epoch > self.total_iters:
            return self._now
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._times(1.0 + rise / before)

    def _first_lr(self) -> list[float]:
        return [base * self.start_factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        return self._now if self._starting else self._times(self.gamma)


class PolynomialLR(LRScheduler):
    """The rate times ``(1 - step / total_iters) ** power``."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        if self._starting or self.last_epoch > self.total_iters:
            return self._now
        left, before = (1.0 - t / self.total_iters for t in (self.last_epoch, self.last_epoch - 1))
        return self._times((left / before) ** self.power)
