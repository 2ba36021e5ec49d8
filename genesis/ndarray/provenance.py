"""Where in the user's program a value was made.

An operation remembers the code object and the instruction of the first frame outside this package.
That costs a fraction of a microsecond; a file name and a line are worked out only when asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"


class _Ours(dict[str, bool]):
    """Whether a file is part of Genesis, found out once for each."""

    def __missing__(self, file: str) -> bool:
        found = self[file] = file.startswith(_PACKAGE)
        return found


#: Frames of these files belong to Genesis, not to the user.
OURS = _Ours()


def caller() -> tuple[CodeType | None, int]:
    """The code object and instruction offset of the innermost frame outside the package."""
    frame = sys._getframe(1)
    while OURS[frame.f_code.co_filename]:
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
