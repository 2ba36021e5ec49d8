"""`Checkpoints`: a training that can be stopped at any moment, and goes on bit for bit.

Saving copies all state and returns; a thread writes the copy. What is written is described in
`checkpoint_files.py`.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from genesis.ir.dtype import uint64
from genesis.ndarray import NDArray, from_numpy
from genesis.ndarray import random as genesis_random
from genesis.ndarray.random import Generator
from genesis.serialization import BadFile, flattened
from genesis.tensor.tensor import Tensor
from genesis.train.checkpoint_files import Checkpoint, prune, read, readable, steps, write


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, or could not be written; the training goes on."""


class Stateful(Protocol):
    """What can be saved: models, optimizers, schedules, scalers, loaders."""

    def state_dict(self) -> Any:
        """All that is to be kept."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take over what `state_dict` gave."""
        ...


class Checkpoints:
    """Checkpoints of a training in a folder.

    `parts` are what the training is made of, by name: whatever has a ``state_dict``, and
    generators. Those that are used where none is given, and those of `random` and NumPy, are saved
    with them. The last `keep` checkpoints stay, and each whose step is a multiple of `keep_every`.

    >>> import genesis, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = genesis.nn.Linear(2, 1)
    >>> with Checkpoints(folder.name, model=model) as checkpoints:
    ...     checkpoints.save(10, loss=0.5)
    >>> with Checkpoints(folder.name, model=genesis.nn.Linear(2, 1)) as checkpoints:
    ...     checkpoints.resume()
    10
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int | None = None,
        **parts: Stateful | Generator,
    ) -> None:
        if keep < 1 or (keep_every is not None and keep_every < 1):
            raise ValueError(f"Checkpoints: keep={keep}, keep_every={keep_every}; both at least 1")
        for name, part in parts.items():
            if not isinstance(part, Generator) and not hasattr(part, "load_state_dict"):
                raise TypeError(
                    f"Checkpoints: {name} is a {type(part).__name__} without state_dict"
                )
        self.folder, self.keep, self.keep_every, self.parts = Path(folder), keep, keep_every, parts
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._last: Checkpoint | None = None  # what this process has written or loaded last

    # ---- saving
    def save(self, step: int, **metrics: float) -> None:
        """Save everything as it is now, under the number of a step.

        Returns when it is copied. If the one before is still being written, that is waited for
        first. One that could not be written is warned about; `wait` raises.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"save: the step is a number from 0 on, not {step!r}")
        self._join()
        if self._failure is not None:
            self._warn(f"was not written: {self._failure}")
            self._failure = None
        state = {name: _state_of(part) for name, part in self.parts.items()}
        copy = _copied({"parts": state, "generators": _generators()})
        flattened(copy, "", {})  # what cannot be saved at all is said here, not in the thread
        numbers = {name: float(value) for name, value in metrics.items()}
        self._writer = threading.Thread(target=self._write, args=(step, copy, numbers))
        self._writer.start()

    def _write(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        try:
            self._last = write(self.folder, step, state, metrics, self._last)
            prune(self.folder, self._kept)
        except Exception as error:  # whoever waits for it gets it
            self._failure = error

    def _kept(self, found: list[Checkpoint]) -> set[int]:
        every = self.keep_every
        recent = {c.step for c in found[: self.keep]}
        return recent | {c.step for c in found if every and c.step % every == 0}

    def wait(self) -> None:
        """Return when everything is written, or raise what kept it from being written."""
        self._join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    # ---- resuming
    def resume(self, step: int | None = None) -> int | None:
        """Put everything where a checkpoint has it: the last that is whole, or that of a step.

        Gives its step; None if there is none. One that is damaged is warned about, and left out.
        """
        self._join()
        if step is not None:
            return self._restore(read(self.folder, step))
        damaged = set(steps(self.folder)) - {c.step for c in readable(self.folder)}
        for found in sorted(damaged, reverse=True):
            self._warn(f"of step {found} is damaged")
        for checkpoint in readable(self.folder):
            try:
                return self._restore(checkpoint)
            except BadFile as error:
                self._warn(f"is not used: {error}")
        if damaged or steps(self.folder):
            raise BadFile(f"resume: no checkpoint in {self.folder} is whole")
        return None

    def _restore(self, checkpoint: Checkpoint) -> int:
        state = checkpoint.load()
        parts = state["parts"]
        if parts.keys() != self.parts.keys():
            raise ValueError(
                f"resume: checkpoint {checkpoint.step} in {self.folder} has {sorted(parts)}, this "
                f"training {sorted(self.parts)}"
            )
        for name, part in self.parts.items():
            if isinstance(part, Generator):
                part.state = _on(part.device, parts[name])
            else:
                part.load_state_dict(parts[name])
        _restore_generators(state["generators"])
        self._last = checkpoint
        return checkpoint.step

    def _warn(self, problem: str) -> None:
        message = f"a checkpoint in {self.folder} {problem}"
        warnings.warn(message, CheckpointWarning, stacklevel=3)

    # ---- the end
    def close(self) -> None:
        """Wait, and let another process write to the folder."""
        try:
            self.wait()
        finally:
            self._lock.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.close()
        else:  # what is already on its way must not hide why
            self._join()
            self._lock.close()


def _locked(folder: Path) -> Any:
    """A file that one process has a lock on; a lock that its children do not inherit."""
    file = open(folder / ".lock", "w")  # noqa: SIM115 - it stays open
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RuntimeError(f"Checkpoints: another process writes to {folder}") from None
    return file


# ---- state


def _state_of(part: Stateful | Generator) -> Any:
    return part.state if isinstance(part, Generator) else part.state_dict()


def _copied(x: Any) -> Any:
    """The same, with tensors in memory of their own on the host."""
    if isinstance(x, Tensor | NDArray):
        array = x.detach().array if isinstance(x, Tensor) else x
        return from_numpy(np.array(array.numpy()), "cpu")
    if isinstance(x, Mapping):
        return {key: _copied(value) for key, value in x.items()}
    return type(x)(map(_copied, x)) if type(x) in (list, tuple) else x


def _generators() -> dict[str, Any]:
    """Where the generators are that are used where none is given."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()
    seed, states = genesis_random.default_states()
    return {
        "random": [version, from_numpy(np.array(words, np.int64), "cpu"), gauss],
        "numpy": [kind, from_numpy(np.array(key), "cpu"), position, has_gauss, cached],
        "genesis": [seed, dict(states)],
    }


def _restore_generators(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, key, *rest = state["numpy"]
    np.random.set_state((kind, key.numpy(), *rest))
    seed, states = state["genesis"]
    genesis_random.restore_default_states((seed, {d: _on(d, x) for d, x in states.items()}))


def _on(device: str, state: Any) -> NDArray:
    """The state of a generator, on its device."""
    from genesis.ndarray import array

    return array(state.numpy(), uint64, device)
