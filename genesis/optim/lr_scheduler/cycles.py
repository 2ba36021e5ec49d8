"""Schedules that go up and down, and let the momentum go the other way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis.optim.lr_scheduler.base import LRScheduler, for_groups
from genesis.optim.lr_scheduler.cosine import eased
from genesis.optim.optimizer import Optimizer, ParameterGroup


class CyclicLR(LRScheduler):
    """Straight up from `base_lr` to `max_lr`, straight down, and again.

    Each cycle is as high as the first (``mode="triangular"``), half as high as the last
    (``"triangular2"``), or lower by ``gamma ** step`` (``"exp_range"``). `scale_fn` gives another
    height, as a function of the cycle or the step (`scale_mode` ``"cycle"`` or ``"iterations"``).
    """

    _not_saved = ("optimizer", "scale_fn")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(
                f"CyclicLR: mode is {mode!r}; it is 'triangular', 'triangular2' or 'exp_range'"
            )
        base_lrs = for_groups("CyclicLR: base_lr", optimizer, base_lr)
        self.max_lrs = for_groups("CyclicLR: max_lr", optimizer, max_lr)
        self.total_size = float(
            step_size_up + (step_size_up if step_size_down is None else step_size_down)
        )
        self.step_ratio = step_size_up / self.total_size
        self.mode = mode
        self.gamma = gamma
        self.scale_fn = scale_fn
        by_step = mode == "exp_range" if scale_fn is None else scale_mode == "iterations"
        self.scale_mode = "iterations" if by_step else "cycle"
        self.cycle_momentum = cycle_momentum
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = rate
        if cycle_momentum:
            _begin_momentum("CyclicLR", optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`; it sets the momentum, too."""
        cycles = self.last_epoch / self.total_size
        cycle = math.floor(1 + cycles)
        x = 1.0 + cycles - cycle
        up = x <= self.step_ratio
        height = x / self.step_ratio if up else (x - 1) / (self.step_ratio - 1)
        height *= self._scale(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group in self._groups:
                low, high = group["base_momentum"], group["max_momentum"]
                _set_momentum(group, high - (high - low) * height)
        bases = self._now if self._starting and self.last_epoch == 0 else self.base_lrs
        pairs = zip(bases, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in pairs]

    _first_lr = get_lr

    def _scale(self, x: float) -> float:
        if self.scale_fn is not None:
            return self.scale_fn(x)
        if self.mode == "triangular":
            return 1.0
        return float(self.gamma**x if self.mode == "exp_range" else 0.5 ** (x - 1))


class OneCycleLR(LRScheduler):
    """One cycle: up to `max_lr` in the first `pct_start` of the steps, then far down.

    It begins at ``max_lr / div_factor`` and ends at that over `final_div_factor`. With
    `three_phase` it goes down as it went up, and only then further.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps < 1:
            raise ValueError(f"OneCycleLR: there are {total_steps} steps; it takes at least 1")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start is {pct_start}; it must be from 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy is {anneal_strategy!r}; it is 'cos' or 'linear'"
            )
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.cycle_momentum = cycle_momentum
        up = pct_start * total_steps - 1
        # For every phase: its last step, the rates and the momenta it goes from and to.
        self.phases: list[tuple[float, str, str, str, str]] = [
            (up, "initial_lr", "max_lr", "max_momentum", "base_momentum"),
            (total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"),
        ]
        if three_phase:
            down = 2 * pct_start * total_steps - 2
            self.phases[1:] = [
                (down, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                (total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        if last_epoch == -1:
            rates = for_groups("OneCycleLR: max_lr", optimizer, max_lr)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["max_lr"] = rate
                group["initial_lr"] = rate / div_factor
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            _begin_momentum("OneCycleLR", optimizer, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`; it sets the momentum, too."""
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"OneCycleLR: step {step} of a schedule of {self.total_steps} steps")
        begin = 0.0
        number = 0
        while number < len(self.phases) - 1 and step > self.phases[number][0]:
            begin = self.phases[number][0]
            number += 1
        end, *names = self.phases[number]
        done = (step - begin) / (end - begin)
        rates = []
        for group in self._groups:
            rates.append(self._between(group[names[0]], group[names[1]], done))
            if self.cycle_momentum:
                _set_momentum(group, self._between(group[names[2]], group[names[3]], done))
        return rates

    _first_lr = get_lr

    def _between(self, start: float, end: float, done: float) -> float:
        if self.anneal_strategy == "cos":
            return eased(start, end, done)
        return start + (end - start) * done


def _begin_momentum(
    name: str, optimizer: Optimizer, base: Any, greatest: Any, last_epoch: int
) -> None:
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError(
            f"{name}: {type(optimizer).__name__} has no momentum to cycle; use cycle_momentum=False"
        )
    if last_epoch != -1:
        return
    lows = for_groups(f"{name}: base_momentum", optimizer, base)
    highs = for_groups(f"{name}: max_momentum", optimizer, greatest)
    for group, low, high in zip(optimizer.param_groups, lows, highs, strict=True):
        group["base_momentum"], group["max_momentum"] = low, high
        _set_momentum(group, high)


def _set_momentum(group: ParameterGroup, momentum: float) -> None:
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum
