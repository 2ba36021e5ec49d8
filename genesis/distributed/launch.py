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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from genesis.distributed.world import TIMEOUT, c10d

#: Seconds that processes have to end by themselves when they are asked to.
GRACE = 5.0


def launch(count: int, script: str, arguments: Sequence[str] = (), restarts: int = 0) -> int:
    """Run a Python script on `count` processes; the status of the first that fails, or 0.

    Where one fails, all are started again, up to so many times: they go on from their checkpoint.
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
    status = 0
    for generation in range(restarts + 1):
        shared["TORCHELASTIC_RESTART_COUNT"] = str(generation)  # notes of the last are not read
        processes: list[subprocess.Popen[bytes]] = []
        with _ended(processes):
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                environment = {"GENESIS_NUM_THREADS": str(threads), **os.environ, **shared, **own}
                command = [sys.executable, script, *arguments]
                processes.append(subprocess.Popen(command, env=environment))
            status = _watched(processes)
        if not status:
            break
    return status


def _watched(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended well or one has not."""
    while True:
        statuses = [process.poll() for process in processes]
        failed = [status for status in statuses if status]
        if failed:
            rank = statuses.index(failed[0])
            print(f"genesis launch: process {rank} ended with status {failed[0]}", file=sys.stderr)
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
