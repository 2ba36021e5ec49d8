"""Worker processes: they fetch batches from a copy of the dataset, and end when they are to.

A worker has one pipe to the training process. It ends when the pipe does: when the training process
closes it or is gone, in whatever way. The training process, for its part, finds the pipe ended when
the worker is gone. Neither waits for a lock or a queue that the other could leave behind.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NoReturn
from weakref import WeakSet, finalize

import numpy as np

from genesis.data.collate import (
    Allocate,
    Collate,
    ToTensor,
    allocated,
    collated,
    default_collate,
    mapped,
)  # fmt: skip
from genesis.data.dataset import IterableDataset
from genesis.data.seeds import seed_all, seeded
from genesis.data.shared_memory import BatchMessage, Readers, Slots

_PATIENCE = 5.0  # seconds for a worker to end by itself before it is killed


class WorkerFailed(RuntimeError):
    """A worker process has ended without being told to, or does not answer."""


class _WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Exhausted:
    """What a worker answers with when its iterable dataset has no more samples."""


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this process is: number `id` of `num_workers`, with its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """What is known about this worker process; None in the process that trains."""
    return _info


def shard(samples: Any) -> Iterator[Any]:
    """This worker's part of what is iterated over: every n-th, where there are n workers.

    >>> list(shard("abc"))
    ['a', 'b', 'c']
    """
    if _info is None:
        return iter(samples)
    return islice(iter(samples), _info.id, None, _info.num_workers)


@dataclass(frozen=True)
class BatchTask:
    """A batch to be made: its samples' numbers, or how many to take from an iterable dataset."""

    what: Any
    seed: int
    slot: int
    restart: bool = False  #: iterate over an iterable dataset from its beginning


class Fetcher:
    """Makes batches of a dataset. `collate` None: single samples, as they are."""

    def __init__(self, dataset: Any, collate: Collate | None, drop_last: bool) -> None:
        self.dataset, self._collate, self._drop_last = dataset, collate, drop_last
        self._iterator: Iterator[Any] | None = None

    def __call__(self, what: Any, restart: bool = False, allocate: Allocate = allocated) -> Any:
        """The batch, with `ToTensor` for its tensors; or `Exhausted`."""
        if isinstance(self.dataset, IterableDataset):
            return self._next(what, restart, allocate)
        if self._collate is None:
            return _converted(self.dataset[what])
        several = getattr(self.dataset, "__getitems__", None)
        samples = several(what) if several else (self.dataset[k] for k in what)
        return self._batch(samples, len(what), allocate)

    def _next(self, count: int | None, restart: bool, allocate: Allocate) -> Any:
        if restart or self._iterator is None:
            self._iterator = iter(self.dataset)
        samples = list(islice(self._iterator, count or 1))
        if not samples or (count and len(samples) < count and self._drop_last):
            return Exhausted()
        return self._batch(samples, len(samples), allocate) if count else _converted(samples[0])

    def _batch(self, samples: Any, count: int, allocate: Allocate) -> Any:
        assert self._collate is not None
        if self._collate is default_collate and count:
            return collated(samples, count, allocate)
        return self._collate(samples if isinstance(samples, list) else list(samples))


def _converted(sample: Any) -> Any:
    """A sample with tensors for its arrays."""

    def marked(x: Any) -> Any:
        return ToTensor(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biufcV" else x

    return mapped(marked, sample)


# ---- in the worker


def serve(
    connection: Connection, fetcher: Fetcher, info: WorkerInfo, init: Callable[[int], Any] | None
) -> None:
    """Answer tasks until the pipe ends."""
    global _info
    _info = info
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that trains
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _use_one_thread()
    slots = Slots()
    try:
        with seeded(info.seed):
            failure = _attempt(lambda: init(info.id)) if init else None
        while True:
            task = connection.recv()
            _answer(connection, slots, fetcher, task, failure)
    except (EOFError, OSError):
        return  # the pipe has ended


def _answer(
    connection: Connection, slots: Slots, fetcher: Fetcher, task: BatchTask, failure: Any
) -> None:
    message: Any = failure
    descriptor = None
    if failure is None:
        seed_all(task.seed)
        try:
            slots.begin(task.slot)
            message, descriptor = slots.write(fetcher(task.what, task.restart, slots.allocate))
        except Exception as error:
            message = _described(error)
    connection.send(message)
    if descriptor is not None:
        send_handle(connection, descriptor, os.getppid())
        os.close(descriptor)


def _attempt(call: Callable[[], Any]) -> Any:
    try:
        call()
    except Exception as error:
        return _described(error)
    return None


def _described(error: Exception) -> tuple[Exception, str]:
    """An exception that can be sent, and its traceback."""
    text = traceback.format_exc()
    try:
        return (pickle.loads(pickle.dumps(error)), text)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}"), text


def _leave(*_: Any) -> NoReturn:
    sys.exit(0)


def _use_one_thread() -> None:
    """Other workers have the other processors."""
    os.environ["GENESIS_NUM_THREADS"] = "1"
    if runtime := sys.modules.get("genesis.backends.cpu.runtime.runtime"):
        runtime.set_num_threads(1)


# ---- in the process that trains


class LoaderWorker:
    """A worker process, seen from the one that trains."""

    def __init__(
        self, context: Any, fetcher: Fetcher, info: WorkerInfo, init: Callable[[int], Any] | None
    ) -> None:
        self.number, self.slots = info.id, Readers()
        self.outstanding: list[BatchTask] = []
        self.connection, theirs = context.Pipe()
        arguments = (theirs, fetcher, info, init)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        _workers.add(self)
        # Until it has said that interrupts are not for it, they wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def submit(self, what: Any, seed: int, restart: bool = False) -> None:
        """Have a batch made."""
        task = BatchTask(what, seed, self.slots.taken(), restart)
        self.outstanding.append(task)
        try:
            self.connection.send(task)
        except OSError:
            self._lost()

    def receive(self, timeout: float) -> Any:
        """The next batch, which was asked for before."""
        try:
            if timeout and not self.connection.poll(timeout):
                raise WorkerFailed(
                    f"DataLoader worker {self.number} (pid {self.process.pid}) has not answered "
                    f"for {timeout} seconds"
                )
            message = self.connection.recv()
        except (EOFError, OSError):
            self._lost()
        task = self.outstanding.pop(0)
        if isinstance(message, BatchMessage):
            return self.slots.read(message, lambda: recv_handle(self.connection))
        error, text = message
        error.add_note(f"in DataLoader worker {self.number}, for samples {_shortened(task.what)}")
        raise error from _WorkerTraceback(text)

    def discard(self) -> None:
        """Wait for what was asked for, and forget it."""
        while self.outstanding:
            with suppress(Exception):
                self.receive(0)
            if not self.process.is_alive():
                self._lost()

    def _lost(self) -> NoReturn:
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        by_signal = code is not None and code < 0
        how = f"was killed by {signal.Signals(-code).name}" if by_signal else f"ended with {code}"
        raise WorkerFailed(
            f"DataLoader worker {self.number} (pid {self.process.pid}) {how}; if memory is short, "
            "use fewer workers or a smaller prefetch_factor"
        ) from None


def _shortened(what: Any) -> str:
    return str(what) if not isinstance(what, list) or len(what) <= 8 else f"{what[:8]} .."


class Pool:
    """Worker processes that end with this object, at the latest."""

    def __init__(
        self,
        fetcher: Fetcher,
        count: int,
        seed: int,
        init: Callable[[int], Any] | None,
        context: Any,
    ) -> None:
        if context is None or isinstance(context, str):
            context = get_context(context or "fork")
        self.workers: list[LoaderWorker] = []
        self.close = finalize(self, _end, self.workers, os.getpid())
        try:
            for k in range(count):
                info = WorkerInfo(k, count, seed, fetcher.dataset)
                self.workers.append(LoaderWorker(context, fetcher, info, init))
        except BaseException:
            self.close()
            raise

    def is_ready(self) -> bool:
        """Whether all are there and have nothing to do, after what they were doing."""
        if not self.close.alive:
            return False
        try:
            for worker in self.workers:
                worker.discard()
        except WorkerFailed:
            self.close()
            return False
        return True


def _end(workers: list[LoaderWorker], owner: int) -> None:
    """End processes and wait for that: those at work are interrupted, and killed if need be."""
    if os.getpid() != owner:  # in the child of a fork: they are its parent's
        return
    for worker in workers:
        worker.connection.close()
        if worker.outstanding and worker.process.pid is not None:
            worker.process.terminate()
    for worker in workers:
        if worker.process.pid is None:
            continue
        worker.process.join(_PATIENCE)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()
    workers.clear()


_workers: WeakSet[LoaderWorker] = WeakSet()


def _forget() -> None:
    """In the child of a fork: a pipe must end when the process that trains is gone."""
    for worker in list(_workers):
        worker.connection.close()


os.register_at_fork(after_in_child=_forget)
