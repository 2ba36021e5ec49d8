"""`LRScheduler`: what all schedules share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from genesis.optim.optimizer import Optimizer, ParameterGroup


class LRScheduler:
    """The base of all schedules. A subclass gives `get_lr`: a rate for every group.

    `last_epoch` is the number of steps so far, `base_lrs` the rates that the optimizer began with.
    To go on with an optimizer whose state was loaded, give the `last_epoch` it had.

    >>> import genesis
    >>> x = genesis.zeros(3, requires_grad=True)
    >>> optimizer = genesis.optim.SGD([x], lr=1.0)
    >>> scheduler = genesis.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(4):
    ...     optimizer.step()
    ...     scheduler.step()
    >>> optimizer.param_groups[0]["lr"], scheduler.get_last_lr()
    (0.25, [0.25])
    """

    _not_saved: tuple[str, ...] = ("optimizer",)
    _starting = False  # whether the schedule is just being made

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: {type(optimizer).__name__} is no Optimizer")
        self.optimizer = optimizer
        for k, group in enumerate(self._groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"{type(self).__name__}: group {k} has no 'initial_lr' to go on from at "
                    f"last_epoch={last_epoch}; load the optimizer's state first"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in self._groups]
        self.last_epoch = last_epoch
        self._start()

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`, one for every group."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr")

    def get_last_lr(self) -> list[float]:
        """The rates that this schedule has set last."""
        return self._last_lr

    def step(self) -> None:
        """Set the rates for the next step."""
        self._step_count += 1
        self.last_epoch += 1
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k not in self._not_saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.__dict__.update(state_dict)

    def _start(self) -> None:
        self._step_count = 0
        self._starting = True
        self.step()
        del self._starting

    def _rewind(self) -> None:
        """Undo the step that was taken when the schedule was made, but for the rate."""
        self.last_epoch -= 1

    def _restart(self) -> None:
        """Go back to the beginning, whatever the rate is now."""
        self.last_epoch = 0
        self._set(self._first_lr())

    def _first_lr(self) -> list[float]:
        return self.base_lrs

    def _set(self, rates: Iterable[float]) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = self._now

    @property
    def _groups(self) -> list[ParameterGroup]:
        return self.optimizer.param_groups

    @property
    def _now(self) -> list[float]:
        return [group["lr"] for group in self._groups]

    def _times(self, factor: float) -> list[float]:
        return [group["lr"] * factor for group in self._groups]


def for_groups(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """A setting for every group: the same for all, or a sequence of one for each."""
    count = len(optimizer.param_groups)
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values, the optimizer {count} groups")
    return list(value)
