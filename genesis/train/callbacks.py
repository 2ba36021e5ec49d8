"""What may happen during `fit`: progress, early ends, averages, curves, batches that grow.

`backward`, `on_gradients` and `on_update` are part of the step's program, that is, they are
recorded: they compute with tensors. The others are called every time and may do anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis.data.sampler import SeededSampler
from genesis.optim.swa_utils import AveragedModel, get_ema_avg_fn
from genesis.tensor.tensor import Tensor

if TYPE_CHECKING:
    from genesis.train.fit_loop import Training


class Callback:
    """The base: does nothing at any time. One with a ``state_dict`` is part of checkpoints."""

    def on_start(self, training: Training) -> None:
        """Before anything else, resuming included."""

    def on_batch(self, training: Training, batch: Any) -> Any:
        """The batch to use instead of one."""
        return batch

    def backward(self, training: Training, losses: Mapping[str, Tensor]) -> bool:
        """Compute gradients in another way than that of the sum; whether it did."""
        return False

    def on_gradients(self, training: Training) -> None:
        """Gradients are there; they are neither clipped nor used yet."""

    def on_update(self, training: Training) -> None:
        """The optimizer has taken a step, in the same program."""

    def on_step(self, training: Training) -> None:
        """After a step; `training.metrics` has its numbers."""

    def on_epoch(self, training: Training) -> None:
        """After an epoch and its validation."""

    def on_end(self, training: Training) -> None:
        """After the last epoch."""


class Progress(Callback):
    """A bar with the latest numbers."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._bar: Any = None

    def on_step(self, training: Training) -> None:
        """Move the bar."""
        from tqdm import tqdm

        if self._bar is None:
            try:
                total = len(training.loader) // training.accumulate * self._epochs
            except TypeError:
                total = None
            self._bar = tqdm(total=total, initial=training.step - 1, unit="step")
        self._bar.set_postfix({k: f"{v:.4g}" for k, v in training.metrics.items()}, refresh=False)
        self._bar.update()

    def on_end(self, training: Training) -> None:
        """Leave it as it is."""
        if self._bar is not None:
            self._bar.close()


class EarlyStop(Callback):
    """End when a metric has not become smaller by `margin` for `patience` epochs."""

    def __init__(self, metric: str = "val_loss", patience: int = 3, margin: float = 0.0) -> None:
        self.metric, self.patience, self.margin = metric, patience, margin
        self.best, self.waited = float("inf"), 0

    def on_epoch(self, training: Training) -> None:
        """Compare."""
        if self.metric not in training.metrics:
            raise ValueError(f"EarlyStop: no {self.metric!r} among {[*training.metrics]}")
        value = training.metrics[self.metric]
        better = value < self.best - self.margin
        self.best, self.waited = (value, 0) if better else (self.best, self.waited + 1)
        training.stopped = training.stopped or self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """The best, and how long ago."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.best, self.waited = state_dict["best"], state_dict["waited"]


class EMA(Callback):
    """A running average of the weights, as a model: `averaged`."""

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = decay
        self.averaged: Any = None

    def on_start(self, training: Training) -> None:
        """Copy the model."""
        average = get_ema_avg_fn(self.decay)
        self.averaged = AveragedModel(training.model, avg_fn=average)

    def on_update(self, training: Training) -> None:
        """Take the new weights into the average."""
        self.averaged.update_parameters(training.model)

    def state_dict(self) -> Any:
        """The averaged model's."""
        return self.averaged.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.averaged.load_state_dict(state_dict)


class TensorBoard(Callback):
    """Curves of all metrics as TensorBoard's event files. Needs the extra ``tensorboard``."""

    def __init__(self, folder: str, every: int = 10) -> None:
        self.folder, self.every = folder, every
        self._writer: Any = None

    def on_start(self, training: Training) -> None:
        """Begin a file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self.folder)

    def on_step(self, training: Training) -> None:
        """Write the numbers of a step, now and then."""
        if training.step % self.every == 0:
            self._write(training)

    def on_epoch(self, training: Training) -> None:
        """Write the numbers of an epoch."""
        self._write(training)

    def _write(self, training: Training) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=k, simple_value=x) for k, x in training.metrics.items()]
        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=training.step, summary=summary))

    def on_end(self, training: Training) -> None:
        """Have everything on disk."""
        self._writer.close()


class AdaptiveBatch(Callback):
    """Make the batch larger instead of the learning rate smaller.

    When a metric has not become smaller for `patience` epochs, `factor` times as many batches make
    a step from then on, up to `most`.
    """

    def __init__(
        self, metric: str = "val_loss", patience: int = 2, factor: int = 2, most: int = 64
    ) -> None:
        self._wait = EarlyStop(metric, patience)
        self.factor, self.most = factor, most

    def on_epoch(self, training: Training) -> None:
        """Compare."""
        before, training.stopped = training.stopped, False
        self._wait.on_epoch(training)
        if training.stopped:
            training.accumulate = min(training.accumulate * self.factor, self.most)
            self._wait.waited = 0
        training.stopped = before

    def state_dict(self) -> dict[str, Any]:
        """The best, and how long ago."""
        return self._wait.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._wait.load_state_dict(state_dict)


class Curriculum(Callback, SeededSampler):
    """Easy samples first: a sampler for the loader, and the callback that lets harder ones in.

    `difficulty` has a number for each sample; `pace(epoch)` is the share of the samples, the
    easiest ones, that take part in an epoch.

    >>> lessons = Curriculum([3.0, 1.0, 2.0, 4.0], pace=lambda epoch: 0.5 + 0.5 * epoch)
    >>> sorted(lessons.seeded(0))
    [1, 2]
    """

    def __init__(self, difficulty: Sequence[float], pace: Callable[[int], float]) -> None:
        self.order = np.argsort(np.asarray(difficulty), kind="stable")
        self.pace, self.epoch = pace, 0

    def seeded(self, seed: int) -> Iterator[int]:
        """The samples of this epoch, in the order that belongs to a seed."""
        rng = np.random.Generator(np.random.Philox(seed))
        return iter(rng.permutation(self.order[: len(self)]).tolist())

    def __len__(self) -> int:
        share = min(max(self.pace(self.epoch), 0.0), 1.0)
        return max(1, round(share * len(self.order)))

    def on_epoch(self, training: Training) -> None:
        """Go on to the next lesson."""
        self.epoch = training.epoch

    def state_dict(self) -> dict[str, Any]:
        """Which lesson it is."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.epoch = state_dict["epoch"]
