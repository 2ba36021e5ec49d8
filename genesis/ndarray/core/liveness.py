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

from collections.abc import Collection, Iterable
from sys import getrefcount


def references(objects: Collection[object]) -> list[int]:
    """How many references there are to each object, whose ever they are."""
    return list(map(getrefcount, objects))


def holders(references: Iterable[int], uses: Iterable[int]) -> list[int]:
    """Of `references` to objects, how many are from outside: `uses` are those that are known."""
    own = _own
    return [n - used - own for n, used in zip(references, uses, strict=True)]


def _calibrate() -> int:
    """The references that asking adds."""
    return holders(references([object() for _ in range(3)]), [1] * 3)[1]


_own = 0
_own = _calibrate()
