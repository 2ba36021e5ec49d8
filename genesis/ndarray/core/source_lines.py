"""Where in the user's program a value was made.

An operation remembers the code object and the instruction of the first frame outside this package.
That costs a fraction of a microsecond; a file name and a line are worked out only when asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from os.path import dirname, realpath
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genesis.ir.node import Node

_folders: tuple[str, ...] = (dirname(dirname(dirname(realpath(__file__)))) + "/",)


class _Ours(dict[str, bool]):
    """Whether a file is not the user's, found out once for each."""

    def __missing__(self, file: str) -> bool:
        found = self[file] = file.startswith(_folders)
        return found


#: Frames of these files belong to Genesis, or to a library on top of it, not to the user.
OURS = _Ours()


def leave_out(folder: str) -> None:
    """Take files below a folder for a library's: the user wrote what calls them."""
    global _folders
    _folders = (*_folders, folder.rstrip("/") + "/")
    OURS.clear()


class Places:
    """Where the user wrote the nodes of a graph, and what it computes, in a few words.

    Only code objects are kept: no array, and no memory.
    """

    __slots__ = ("_lines", "title")

    def __init__(self, title: str, lines: Mapping[Node, tuple[CodeType | None, int]]) -> None:
        self.title = title
        self._lines = lines

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Places):
            return NotImplemented
        return self.title == other.title and self._lines == other._lines

    __hash__ = None  # type: ignore[assignment]

    def where(self, n: Node) -> str | None:
        """``file:line`` of the user's call that made a node."""
        code, instruction = self._lines.get(n, (None, 0))
        return None if code is None else describe(code, instruction)


def caller(above: int = 1) -> tuple[CodeType | None, int]:
    """The code object and instruction offset of the innermost frame outside the package.

    The first frames, this function's among them, are known to be inside: looking at one is slow.
    """
    frame = sys._getframe(above)
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
