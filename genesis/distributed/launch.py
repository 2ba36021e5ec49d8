"""`genesis launch`: a script on several processes of this machine, which begin and end together.

The launcher holds the store that processes find each other by, and looks after them: if one fails,
the others, which would wait for it, are ended, and its status is the launcher's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from genesis.distributed.process_groups import TIMEOUT, c10d

#: Seconds that processes have to end by themselves when they are asked to.
GRACE = 5.0


def launch(
    count: int,
    script: str,
    arguments: Sequence[str] = (),
    restarts: int = 0,
    elastic: bool = False,
) -> int:
    """Run a Python script on `count` processes; the status of the first that fails, or 0.

    Where one fails, all are started again, up to so many times: they go on from their checkpoint.
    If the script is `elastic`, only the lost one is: the others go on meanwhile.
    """
    store = c10d().TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=TIMEOUT), wait_for_workers=False
    )
    threads = max(1, (os.cpu_count() or 1) // count)
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already
        "GENESIS_LAUNCHER": str(os.getpid()),
    }
    if elastic:
        start = partial(_started, script, arguments, shared, threads)
        return _Elastic(store, start, count, restarts).run()
    status = 0
    for generation in range(restarts + 1):
        shared["TORCHELASTIC_RESTART_COUNT"] = str(generation)  # notes of the last are not read
        processes: list[subprocess.Popen[bytes]] = []
        with _ended(processes):
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(_started(script, arguments, shared, threads, own))
            notes = c10d().PrefixStore(f"genesis/{generation}/0", store)
            status = _watched(processes, notes)
        if not status:
            break
    return status


def _started(
    script: str,
    arguments: Sequence[str],
    shared: Mapping[str, str],
    threads: int,
    own: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """A process of the group."""
    environment = {"GENESIS_NUM_THREADS": str(threads), **os.environ, **shared, **own}
    return subprocess.Popen([sys.executable, script, *arguments], env=environment)


class _Elastic:
    """Processes that are replaced one by one, and whose number can change (`elastic`)."""

    def __init__(
        self,
        store: Any,
        start: Callable[[Mapping[str, str]], subprocess.Popen[bytes]],
        count: int,
        restarts: int,
    ) -> None:
        self._store, self._start = c10d().PrefixStore("elastic", store), start
        self._first, self._left = count, restarts
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended: dict[int, int] = {}

    def run(self) -> int:
        """Until all have ended; 0 if one has come to the end of the training."""
        with _ended(self._processes):
            for _ in range(self._first):
                self._add()
            while len(self._ended) < len(self._processes):
                self._look()
                time.sleep(0.01)
        if self._store.check(["done"]):
            return 0
        last = next((s for s in reversed(self._ended.values()) if s), 1)
        return last if last > 0 else 128 - last

    def _add(self) -> None:
        number = str(len(self._processes))
        own = {"RANK": number, "LOCAL_RANK": number, "GENESIS_MEMBER": number}
        self._processes.append(self._start(own | {"GENESIS_FIRST": str(self._first)}))

    def _look(self) -> None:
        """Say who is gone, and start those that are missing."""
        for number, process in enumerate(self._processes):
            status = process.poll()
            if status is None or number in self._ended:
                continue
            self._ended[number] = status
            self._store.set(f"gone/{number}", str(status).encode())
            if status:
                print(
                    f"genesis launch: process {number} ended with status {status}", file=sys.stderr
                )
                if self._left and not self._store.check(["done"]):
                    self._left -= 1
                    self._add()
        if self._store.check(["more"]):  # processes that are wished for
            wanted = int(self._store.get("more"))
            self._store.delete_key("more")
            for _ in range(wanted - (len(self._processes) - len(self._ended))):
                self._add()


def _watched(processes: Sequence[subprocess.Popen[bytes]], notes: Any) -> int:
    """Wait until all have ended well or one has not; the first that failed may have said why."""
    while True:
        statuses = [process.poll() for process in processes]
        failed = [status for status in statuses if status]
        if failed:
            cause = f"process {statuses.index(failed[0])} ended with status {failed[0]}"
            if notes.check(["failed"]):
                cause = notes.get("failed").decode()
            print(f"genesis launch: {cause}", file=sys.stderr)
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in statuses:
            return 0
        time.sleep(0.02)


@contextmanager
def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave no process behind, however this ends."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + GRACE
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
