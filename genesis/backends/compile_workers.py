"""Machine code from several processes: code generators take a core for long, and one at a time.

The process that wants code can make all of it alone; workers only help. So one that was killed, or
lost in a fork, costs time and never a result, and an error is always raised here. A worker (see
`worker_process.py`) is started when a few kernels wait for code, or many are to be expected, and
stays for the next ones. Until it is there a thread of this process does the work. From then on this
process only makes what is to be computed, and helps when it has made all: its processor is better
used so, as everybody waits for what is made.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from genesis.events import span

#: How many wait for each worker that is being started, which takes a tenth of a second or, with
#: Triton, a whole one.
FEW = 3

A = TypeVar("A")
R = TypeVar("R")


def each(function: Callable[[A], R], arguments: Iterable[A], kind: str) -> list[R]:
    """The results of a function of some module for all arguments, in order.

    They are computed while the next arguments are made. They and the arguments are pickled, and
    None is no result. `kind` is what watchers know the computation by.
    """
    waiting: SimpleQueue[tuple[Future[R], A] | None] = SimpleQueue()
    wanted: list[Future[R]] = []
    threads: list[threading.Thread] = []
    at_work: list[threading.Thread] = []
    helped = threading.Event()
    crew = _crew(function)

    def computed(compute: Callable[[A], R], future: Future[R], argument: A) -> None:
        try:
            with span(kind):
                result = compute(argument)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        at_work.append(threading.current_thread())
        while not helped.is_set() and (item := waiting.get()) is not None:
            computed(function, *item)

    def work_with(worker: _Worker) -> None:
        try:
            worker.arrive()
            helped.set()
            at_work.append(threading.current_thread())
            while (item := waiting.get()) is not None:
                computed(lambda argument: worker(argument, function), *item)
        finally:
            crew.left(worker)

    def start(target: Callable[..., Any], *arguments: Any) -> None:
        threads.append(threading.Thread(target=target, args=arguments, name="genesis-code"))
        threads[-1].start()

    try:
        for argument in arguments:
            wanted.append(Future())
            waiting.put((wanted[-1], argument))
            # None is started for one argument: it may stay alone.
            if worker := crew.joined(waiting.qsize() if threads else -1):
                start(work_with, worker)
            if not threads:
                start(work)
        with suppress(Empty):
            while (item := waiting.get_nowait()) is not None:
                computed(function, *item)
        return [future.result() for future in wanted]
    finally:
        with suppress(Empty):  # if there was an error
            while True:
                waiting.get_nowait()
        for _ in threads:
            waiting.put(None)
        for thread in at_work:  # a worker that is still being started is not waited for
            thread.join()


def expect(function: Callable[[Any], Any]) -> None:
    """Start a worker, if there is none: `each` will be asked for many results soon."""
    crew = _crew(function)

    def idle(worker: _Worker) -> None:
        try:
            worker.arrive()
        finally:
            crew.left(worker)

    if worker := crew.first():
        threading.Thread(target=idle, args=(worker,), name="genesis-code").start()


class _Worker:
    """A process that computes what this one would compute otherwise."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.there = False  #: whether it has been started
        script = Path(__file__).with_name("worker_process.py")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), function.__module__, function.__qualname__],
            bufsize=0,  # the child of a fork must not write what is left in a buffer
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,  # an interrupt from the keyboard is not for it
        )
        assert self.process.stdout is not None
        self._answers = open(self.process.stdout.fileno(), "rb", closefd=False)  # noqa: SIM115

    def __call__(self, argument: Any, function: Callable[[Any], Any]) -> Any:
        """The function's result: its answer or, where it has none, what is computed here."""
        assert self.process.stdin is not None
        rest = memoryview(pickle.dumps(argument))
        with suppress(OSError):
            while rest:
                rest = rest[self.process.stdin.write(rest) :]
        answer = self._heard()
        return function(argument) if answer is None else answer

    def arrive(self) -> None:
        """Wait until it has been started."""
        if not self.there:
            self._heard()
            self.there = True

    def _heard(self) -> Any:
        """What it says next; None if that is not to be understood, because it was killed, say."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):
            return pickle.load(self._answers)
        self.process.kill()
        return None

    def close(self) -> None:
        """Take no more answers. It ends when it has noticed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()


class _Crew:
    """The workers that compute one function: with this process as many as there are processors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.forget()

    def forget(self) -> None:
        """Have none."""
        self._lock = threading.Lock()
        self.workers: list[_Worker] = []
        self._idle: list[_Worker] = []

    def joined(self, waiting: int) -> _Worker | None:
        """One that is idle or, where enough is `waiting`, new."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._end(worker)
            expected = sum(not worker.there for worker in self.workers)
            return None if waiting < FEW * (expected + 1) else self._started()

    def first(self) -> _Worker | None:
        """A new one, where there is none."""
        with self._lock:
            return None if self.workers else self._started()

    def _started(self) -> _Worker | None:
        if len(self.workers) < len(os.sched_getaffinity(0)) - 1:
            with suppress(OSError):  # there may be no process to be had
                self.workers.append(_Worker(self._function))
                return self.workers[-1]
        return None

    def left(self, worker: _Worker) -> None:
        """It is idle again, if it is still there."""
        with self._lock:
            if worker.process.poll() is None:
                self._idle.append(worker)
            else:
                self._end(worker)

    def _end(self, worker: _Worker) -> None:
        worker.close()
        worker.process.wait()
        self.workers.remove(worker)


@cache
def _crew(function: Callable[..., Any]) -> _Crew:
    _crews.append(_Crew(function))
    return _crews[-1]


def _stop() -> None:
    workers = [worker for crew in _crews for worker in crew.workers]
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.process.wait()


def _forget() -> None:
    """In the child of a fork: they are its parent's workers."""
    for crew in _crews:
        for worker in crew.workers:
            worker.close()
            worker.process.returncode = 0  # nobody here can wait for it
        crew.forget()


_crews: list[_Crew] = []
atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
