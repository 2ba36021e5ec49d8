"""What the workers of `test_workers` compute: a module that is imported in no time."""

from __future__ import annotations

import os
import time


def pause_and_say(seconds: float) -> int:
    """The process that computes this, after a while."""
    time.sleep(seconds)
    return os.getpid()


def only_in(process: int) -> int:
    """Its argument; no other process survives this."""
    if os.getpid() != process:
        os._exit(1)
    time.sleep(0.01)
    return process


def fails_outside(process: int) -> int:
    """Its argument; an error in any other process."""
    if os.getpid() != process:
        raise RuntimeError("not here")
    time.sleep(0.01)
    return process
