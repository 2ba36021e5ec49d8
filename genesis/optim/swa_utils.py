"""Averages of weights over training: `AveragedModel`, running or equal, and the rate for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

from genesis import ndarray as nd
from genesis.autograd import no_grad
from genesis.ir.dtype import float64, int64
from genesis.nn.module import Module, Parameter
from genesis.optim.lr_scheduler.base import LRScheduler, for_groups
from genesis.optim.optimizer import Optimizer
from genesis.tensor.tensor import Tensor

#: ``average(averaged, current, count)``: the average with another tensor taken in.
Average = Callable[[Any, Any, Any], Any]
Averages = Callable[[list[Tensor], list[Tensor], Tensor], None]


class AveragedModel(Module):
    """A copy of a model whose weights are averages of the model's.

    Call `update_parameters` after steps of the optimizer; the first time it copies the weights. All
    weights count alike, or as `avg_fn` says, a function of arrays such as `get_ema_avg_fn` gives.
    `multi_avg_fn` writes to lists of averages instead.
    Buffers are averaged, too, with `use_buffers`, and else copied. An update is lazy, and in a
    function under `genesis.jit` part of its program.
    """

    def __init__(
        self,
        model: Module,
        device: str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        super().__init__()
        self.module = _copied(model)
        if device is not None:
            self.module.to(device)
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        self.use_buffers = use_buffers
        self.register_buffer("n_averaged", Tensor(nd.array(0, int64)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model gives."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the weights of the model, as they are now, into the average."""
        average_of = get_swa_avg_fn() if self.avg_fn is None else self.avg_fn
        count = self.n_averaged.array
        exact = count.astype(float64)
        pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
        with no_grad():
            averaged = pairs + buffers * self.use_buffers
            if self.multi_avg_fn is not None:
                mines, others = (list(xs) for xs in zip(*averaged, strict=True))
                self.multi_avg_fn(mines, others, self.n_averaged)
            for mine, other in averaged:
                average = mine.array
                if self.multi_avg_fn is None:
                    average = average_of(average, other.array, exact)
                mine.array.assign(nd.where(count == 0, other.array, average))
            for mine, other in buffers * (not self.use_buffers):
                mine.array.assign(other.array)
            count.assign(count + 1)


def get_swa_avg_fn() -> Average:
    """The average in which all weights count alike."""

    def equal(averaged: Any, current: Any, count: Any) -> Any:
        return averaged + (current - averaged) / (count + 1)

    return equal


def get_ema_avg_fn(decay: float = 0.999, warmup: bool = False) -> Average:
    """The running average: ``decay`` times what it was.

    With `warmup` the decay begins low and grows, ``min(decay, (1 + n) / (10 + n))`` after n
    updates, so that the first weights are soon forgotten.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"get_ema_avg_fn: decay is {decay}; it must be from 0 to 1")

    def running(averaged: Any, current: Any, count: Any) -> Any:
        kept = nd.minimum((count + 1) / (count + 10), decay) if warmup else decay
        return kept * averaged + (1 - kept) * current

    return running


def get_swa_multi_avg_fn() -> Averages:
    """The average in which all weights count alike, of lists."""

    def equal(averaged: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        for mine, other in zip(averaged, current, strict=True):
            mine.add_((other - mine) / (count + 1))

    return equal


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """The running average, of lists."""
    if not 0 <= decay <= 1:
        raise ValueError(f"get_ema_multi_avg_fn: decay is {decay}; it must be from 0 to 1")

    def running(averaged: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        for mine, other in zip(averaged, current, strict=True):
            mine.lerp_(other, 1 - decay)

    return running


def update_bn(loader: Iterable[Any], model: Module) -> None:
    """Compute the statistics of all batch norms of a model anew, over the batches of a loader.

    A batch is the model's input, or a tuple or list that begins with it.
    """
    norms = [m for m in model.modules() if hasattr(m, "reset_running_stats")]
    if not norms:
        return
    settings = [(m, m.momentum) for m in norms]
    training = model.training
    model.train()
    try:
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # the equal average of all batches
        with no_grad():
            for batch in loader:
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for m, momentum in settings:
            m.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """From the rate as it is to `swa_lr` in `anneal_epochs` steps; there it stays."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"SWALR: anneal_strategy is {anneal_strategy!r}; it is 'cos' or 'linear'"
            )
        if anneal_epochs < 0:
            raise ValueError(f"SWALR: anneal_epochs is {anneal_epochs}; it must not be negative")
        rates = for_groups("SWALR: swa_lr", optimizer, swa_lr)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs = anneal_epochs
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rates for the next step, from those as they are now."""
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._done(step - 1), self._done(step)
        rates = []
        for group in self._groups:
            rate, target = group["lr"], group["swa_lr"]
            start = target if before == 1 else (rate - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates

    def _done(self, step: int) -> float:
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2


def _copied(model: Module) -> Module:
    """A copy of a model, with tensors of its own."""
    memo: dict[int, Any] = {}
    for x in (*model.parameters(), *model.buffers()):
        array = nd.array(x.array)
        memo[id(x)] = (
            Parameter(array, x.requires_grad) if isinstance(x, Parameter) else Tensor(array)
        )
    nd.realize(*(x.array for x in memo.values()))
    return copy.deepcopy(model, memo)


__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn",
    "get_swa_multi_avg_fn", "update_bn",
]  # fmt: skip
