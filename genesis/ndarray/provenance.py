"""Where in the user's program a value was made.

An operation remembers the code object and the instruction of the first frame outside this package.
That costs a fraction of a microsecond; a file name and a line are worked out only when asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

#: Frames whose file lies under this directory belong to Genesis, not to the user.
PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"


def caller() -> tuple[CodeType | None, int]:
    """The code object and instruction offset of the innermost frame outside the package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE):
        if frame.f_back is None:
            return None, 0
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def describe(code: CodeType | None, instruction: int) -> str:
    """``file:line`` of an instruction.

    >>> describe(None, 0)
    '<unknown>'
    """
    if code is None:
        return "<unknown>"
    line: int | None = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number
    return f"{code.co_filename}:{line}"
