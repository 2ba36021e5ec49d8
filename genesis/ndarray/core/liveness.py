"""Who holds a value? One function, on which donation and "compute it now" both rest.

A realisation visits a graph of values. A visited value is *held* when a reference to it exists
that is not one of the visited graph's own: an array's storage, a tape entry, a local variable, a
pending value outside this graph. CPython counts references, so the answer is a subtraction; what
the visit itself adds (a list, a dictionary, the loop below) differs between versions of Python and
is measured at import by asking about fresh objects.

The answer errs to one side only. A reference that somebody has without need, a variable of the
caller say, makes a value held: then it is stored, or its memory is not overwritten, which costs
memory and perhaps another program, never a number. Whoever can still read a value refers to it, so
what counts as not held is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getrefcount
from typing import TypeVar

T = TypeVar("T")


def holders(objects: Mapping[T, object], uses: Iterable[int]) -> list[int]:
    """For each object, the number of references from outside.

    `objects` is a dictionary with each object as a key, `uses` the numbers of known references in
    the same order; nothing else of the caller's may refer to them.
    """
    own = _own
    return [n - used - own for n, used in zip(map(getrefcount, objects), uses, strict=True)]


def _calibrate() -> int:
    """The references that asking adds."""
    return holders({object(): 0 for _ in range(3)}, [0] * 3)[1]


_own = 0
_own = _calibrate()
