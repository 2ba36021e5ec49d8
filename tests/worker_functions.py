"""What the workers of `test_compile_workers` compute: a module that is imported in no time."""

from __future__ import annotations

import os
import time


def say(folder: object) -> int:
    """The process that computes this; given a folder, when three processes do."""
    if isinstance(folder, str):
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while len(os.listdir(folder)) < 3:
            time.sleep(0.001)
    return os.getpid()


def only_in(process: int) -> int:
    """Its argument; no other process survives this."""
    if os.getpid() != process:
        os._exit(1)
    time.sleep(0.01)  # others have their chance
    return process


def fails_outside(process: int) -> int:
    """Its argument; an error in any other process."""
    if os.getpid() != process:
        raise RuntimeError("not here")
    time.sleep(0.01)
    return process
