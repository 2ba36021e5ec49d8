"""`genesis profile`: run a script as Python would, and show its profile when it ends."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from genesis.profiling.profiler import Profile, profile


def run(script: str, arguments: Sequence[str]) -> tuple[Profile, int]:
    """Run a script to its end, however it ends: its profile and its exit status."""
    with profile() as found:
        status = run_script(script, arguments)
    return found, status


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a script to its end, however it ends; its exit status.

    It sees its own arguments, its folder is where it imports from, and it is ``__main__``.
    """
    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    try:
        return _status(script)
    finally:
        sys.argv, sys.path[0] = before


def _status(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        if stopped.code is None or isinstance(stopped.code, int):
            return stopped.code or 0
        print(stopped.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _print(error)
        return 130
    except BaseException as error:
        _print(error)
        return 1
    return 0


def _print(error: BaseException) -> None:
    """The traceback as Python prints it, without the frames that are ours."""
    frames: TracebackType | None = error.__traceback__
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)
