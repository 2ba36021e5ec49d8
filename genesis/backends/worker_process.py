"""A process that computes one function for another: ``python worker_process.py MODULE FUNCTION``.

It says that it is there, then answers pickled arguments on its standard input with pickled results
on its standard output, or with None where the function fails. It ends when its input does, or
when nobody has asked for a while.

It is started as a file, and the packages that `MODULE` is in are put in place without running what
is in their ``__init__``: all of Genesis takes longer to import than most kernels to compile.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

#: Seconds without a request after which a worker ends.
PATIENCE = 60.0


def found(module: str, name: str) -> Callable[[Any], Any]:
    """A function by its module's name and its own. Nothing is imported that it can do without."""
    root, parts = Path(__file__).parents[2], module.split(".")
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[package.__name__] = package
    function: Callable[[Any], Any] = getattr(import_module(module), name)
    return function


def serve(function: Callable[[Any], Any], requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    answer = None
    while True:
        pickle.dump(answer, answers)
        answers.flush()
        if not select.select([requests], [], [], PATIENCE)[0]:
            return
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = function(request)
        except Exception:
            answer = None  # who asked will see why, and raise it where it is wanted


if __name__ == "__main__":
    # What a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(found(*sys.argv[1:]), sys.stdin.buffer, answers)
    except BrokenPipeError:  # nobody is there any more to hear it
        os._exit(1)
