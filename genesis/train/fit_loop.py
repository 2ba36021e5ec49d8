"""`fit`: the loop that most trainings are, with callbacks for what they differ in.

It does nothing that a loop of one's own could not: gradients of a loss, a step of the optimizer,
a schedule, a look at other data after each epoch, checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from genesis.amp import GradScaler, autocast
from genesis.autograd import no_grad
from genesis.ir.dtype import as_dtype, float16
from genesis.ndarray.tracing.jit import jit as jitted
from genesis.nn.module import Module
from genesis.nn.utils import clip_grad_norm_
from genesis.optim.optimizer import Optimizer
from genesis.tensor.tensor import Tensor
from genesis.train.callbacks import Callback, Progress
from genesis.train.checkpoints import Checkpoints

#: ``loss(model, batch)``: a tensor, or several by name. Those whose names begin with ``loss`` are
#: what is made small, the others are only shown.
Loss = Callable[[Any, Any], "Tensor | Mapping[str, Tensor]"]


@dataclass
class Training:
    """A training as callbacks see it. Set `stopped` to end it after the step."""

    model: Module
    loader: Any
    optimizer: Optimizer
    loss: Loss
    schedule: Any = None
    scaler: GradScaler | None = None
    accumulate: int = 1  #: batches whose gradients make a step
    step: int = 0
    epoch: int = 0
    stopped: bool = False
    metrics: dict[str, float] = field(default_factory=dict)  #: the latest of each
    history: list[dict[str, float]] = field(default_factory=list)  #: those of each epoch

    def state_dict(self) -> dict[str, Any]:
        """Counts and history: all that is neither the model's nor the optimizer's."""
        names = ("accumulate", "step", "epoch", "stopped", "metrics", "history")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        vars(self).update(state_dict)

    def evaluate(self, loader: Iterable[Any], model: Any = None) -> dict[str, float]:
        """The means over batches of what the loss gives, in the model's evaluation mode."""
        chosen = self.model if model is None else model
        mode = chosen.training
        chosen.eval()
        sums: dict[str, float] = {}
        count = 0
        try:
            with no_grad():
                for batch in loader:
                    for name, value in named(self.loss(chosen, batch)).items():
                        sums[name] = sums.get(name, 0.0) + value.item()
                    count += 1
        finally:
            chosen.train(mode)
        return {name: total / count for name, total in sums.items()}


def named(losses: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a loss gives, by name."""
    return dict(losses) if isinstance(losses, Mapping) else {"loss": losses}


def fit(
    model: Module,
    loader: Iterable[Any],
    optimizer: Optimizer,
    loss: Loss,
    *,
    epochs: int = 1,
    validation: Iterable[Any] | None = None,
    schedule: Any = None,
    callbacks: Sequence[Callback] = (),
    accumulate: int = 1,
    clip_norm: float | None = None,
    precision: Any = None,
    jit: bool = True,
    folder: str | os.PathLike[str] | None = None,
    save_every: int = 1000,
    progress: bool = True,
) -> Training:
    """Train a model for some epochs; gives the `Training` with its history.

    `schedule` takes a step after each of the optimizer's. `accumulate` batches make a step,
    gradients are clipped to `clip_norm`, `precision` is ``"bfloat16"`` or ``"float16"``. With
    `folder`, checkpoints are written there every `save_every` steps and after each epoch, and a
    training that is found there goes on. A step is one program, unless `jit` is switched off.

    >>> import genesis
    >>> x = genesis.linspace(-1, 1, 64).reshape(64, 1)
    >>> model = genesis.nn.Linear(1, 1)
    >>> training = fit(
    ...     model, genesis.data.DataLoader(genesis.data.TensorDataset(x, 3 * x), 16),
    ...     genesis.optim.SGD(model.parameters(), lr=0.3), epochs=20, progress=False,
    ...     loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
    ... )
    >>> training.step, round(model.weight.item(), 2)
    (80, 3.0)
    """
    if epochs < 0 or accumulate < 1 or save_every < 1:
        raise ValueError(f"fit: epochs={epochs}, accumulate={accumulate}, save_every={save_every}")
    dtype = None if precision is None else as_dtype(precision)
    scaler = GradScaler() if dtype is float16 else None
    training = Training(model, loader, optimizer, loss, schedule, scaler, accumulate)
    watching = [*callbacks, *([Progress(epochs)] if progress else [])]
    step = _Step(training, watching, clip_norm, dtype, jit)
    for callback in watching:
        callback.on_start(training)
    with _checkpoints(folder, training, watching) as checkpoints:
        if checkpoints is not None:
            checkpoints.resume()
        model.train()
        while training.epoch < epochs and not training.stopped:
            _epoch(training, step, watching, checkpoints, save_every)
            if training.stopped:
                break
            training.epoch += 1
            if validation is not None:
                found = training.evaluate(validation)
                training.metrics.update({f"val_{name}": x for name, x in found.items()})
            training.history.append({"epoch": training.epoch, **training.metrics})
            for callback in watching:
                callback.on_epoch(training)
            if checkpoints is not None:
                checkpoints.save(training.step, **training.metrics)
        for callback in watching:
            callback.on_end(training)
    return training


def _checkpoints(
    folder: str | os.PathLike[str] | None, training: Training, callbacks: Sequence[Callback]
) -> AbstractContextManager[Checkpoints | None]:
    if folder is None:
        return nullcontext()
    parts: dict[str, Any] = {
        "model": training.model, "optimizer": training.optimizer, "training": training,
        "loader": training.loader, "schedule": training.schedule, "scaler": training.scaler,
    }  # fmt: skip
    parts |= {f"callback{k}": callback for k, callback in enumerate(callbacks)}
    kept = {name: part for name, part in parts.items() if hasattr(part, "state_dict")}
    return Checkpoints(folder, **kept)


def _epoch(
    training: Training,
    step: _Step,
    callbacks: Sequence[Callback],
    checkpoints: Checkpoints | None,
    save_every: int,
) -> None:
    batches = iter(training.loader)
    while group := list(islice(batches, training.accumulate)):
        for callback in callbacks:
            group = [callback.on_batch(training, batch) for batch in group]
        step(group)
        training.step += 1
        if training.schedule is not None:
            training.schedule.step()
        for callback in callbacks:
            callback.on_step(training)
        if training.stopped:
            return
        if checkpoints is not None and training.step % save_every == 0:
            checkpoints.save(training.step, **training.metrics)


class _Step:
    """Gradients of some batches, and a step of the optimizer."""

    def __init__(
        self,
        training: Training,
        callbacks: Sequence[Callback],
        clip_norm: float | None,
        dtype: Any,
        jit: bool,
    ) -> None:
        self._training, self._callbacks, self._clip_norm = training, callbacks, clip_norm
        self._dtype = dtype
        # A function for each place in a group: whether to begin with no gradients, whether to step.
        self._parts: dict[tuple[bool, bool, int], Callable[[Any], Any]] = {}
        self._wrap = jitted if jit else lambda function: function

    def __call__(self, batches: list[Any]) -> None:
        count = len(batches)
        found = [self._part(k == 0, k == count - 1, count)(x) for k, x in enumerate(batches)]
        # Looked at together: each look waits for what was computed.
        sums: dict[str, float] = {}
        for losses in found:
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value.item() / count
        self._training.metrics.update(sums)

    def _part(self, first: bool, last: bool, count: int) -> Callable[[Any], Any]:
        key = first, last, count
        if key not in self._parts:
            self._parts[key] = self._wrap(lambda batch: self._run(batch, first, last, count))
        return self._parts[key]

    def _run(self, batch: Any, first: bool, last: bool, count: int) -> dict[str, Tensor]:
        training = self._training
        if first:
            training.optimizer.zero_grad()
        with autocast("cpu", self._dtype) if self._dtype else nullcontext():
            losses = named(training.loss(training.model, batch))
        wanted = {k: x / count for k, x in losses.items() if k.startswith("loss")}
        if not wanted:
            raise ValueError(f"fit: the loss gave {[*losses]}; none of these begins with 'loss'")
        if training.scaler is not None:
            wanted = {name: training.scaler.scale(x) for name, x in wanted.items()}
        for callback in self._callbacks:
            if callback.backward(training, wanted):
                break
        else:
            sum(wanted.values()).backward()
        if last:
            self._update()
        return {name: x.detach() for name, x in losses.items()}

    def _update(self) -> None:
        training, scaler = self._training, self._training.scaler
        if scaler is not None:
            scaler.unscale_(training.optimizer)
        for callback in self._callbacks:
            callback.on_gradients(training)
        if self._clip_norm is not None:
            clip_grad_norm_(training.model.parameters(), self._clip_norm)
        if scaler is None:
            training.optimizer.step()
        else:
            scaler.step(training.optimizer)
            scaler.update()
        for callback in self._callbacks:
            callback.on_update(training)
