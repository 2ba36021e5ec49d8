"""Compilation in several processes: Triton takes a core for up to a second per kernel.

Workers are started when several kernels are wanted at once, and stay for the next time. Each is a
plain `python -m genesis.backends.cuda.workers` that answers pickled requests on its standard input
with binaries on its standard output; it ends when its input does.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any

from genesis.backends.base import Binary
from genesis.backends.cuda.binary import Request, made

#: Fewer kernels than this are compiled here: starting a worker takes a second.
FEW = 3


def compile_all(requests: Sequence[Request]) -> list[Binary]:
    """The binaries for several requests, in order."""
    count = min(len(requests), len(os.sched_getaffinity(0)))
    if len(requests) < FEW or count < 2:
        return [made(request) for request in requests]
    with _lock:
        while len(_workers) < count:
            _workers.append(_start())
        return _shared(requests, _workers[:count])


def _shared(requests: Sequence[Request], workers: Sequence[subprocess.Popen[bytes]]) -> list[Any]:
    results: list[Any] = [None] * len(requests)
    pending: SimpleQueue[int] = SimpleQueue()
    for number in range(len(requests)):
        pending.put(number)

    def serve(worker: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                number = pending.get_nowait()
            except Empty:
                return
            try:
                results[number] = _ask(worker, requests[number])
            except (OSError, EOFError, pickle.UnpicklingError):  # it was killed, say
                results[number] = None

    threads = [threading.Thread(target=serve, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(results):
        if result is None:
            results[number] = made(requests[number])
        elif isinstance(result, Exception):
            raise result
    for worker in [w for w in _workers if w.poll() is not None]:
        _workers.remove(worker)
    return results


def _ask(worker: subprocess.Popen[bytes], request: Request) -> Any:
    assert worker.stdin is not None and worker.stdout is not None
    pickle.dump(request, worker.stdin)
    worker.stdin.flush()
    return pickle.load(worker.stdout)


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "genesis.backends.cuda.workers"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _stop() -> None:
    for worker in _workers:
        assert worker.stdin is not None
        worker.stdin.close()
    for worker in _workers:
        worker.wait()


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        answer: Binary | Exception
        try:
            answer = made(request)
        except Exception as error:
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


_workers: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()
atexit.register(_stop)

__all__ = ["compile_all"]

if __name__ == "__main__":
    # What a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, answers)
