"""Whether ``p.data = x`` can be told from a write to `p`: only by whoever refers to either.

A loop that scales its weights by ``p.data = p.data * c`` gives them other memory in every turn, and
what was recorded with the old one, such as an optimizer's program, would have to be recorded again.
CPython counts references, so it is known whether anybody could see the difference. As everywhere
(`genesis.ndarray.core.liveness`), one reference too many is no mistake.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from genesis.ndarray import NDArray, zeros


def are_own(mine: NDArray, its: NDArray) -> bool:
    """Whether two arrays are alike, and nobody refers to them or their storages but one tensor."""
    if mine.steps or its.steps or mine.shape != its.shape or mine.dtype is not its.dtype:
        return False
    return mine.device == its.device and _counted(mine) == _counted(its) == _own


def _counted(x: NDArray) -> tuple[int, int]:
    return getrefcount(x), getrefcount(x.storage)


class _Probe:
    """What has an array, and is told how many references there are to what is assigned to it."""

    def __init__(self) -> None:
        self.array = zeros(())
        self.seen: list[int] = []

    @property
    def data(self) -> Any:
        return self

    @data.setter
    def data(self, value: _Probe) -> None:
        self.seen.append(getrefcount(value))
        self.counted = self._compare(self.array)

    def _compare(self, mine: NDArray) -> tuple[int, int]:
        return _counted(mine)


def _calibrate() -> tuple[int, tuple[int, int]]:
    """The references to a temporary value, and to an array and a storage of one tensor."""
    x, variable = _Probe(), _Probe()
    x.data = _Probe()
    x.data = variable
    temporary, named = x.seen
    # Where a variable of the caller's makes no difference, nothing is taken for temporary.
    return temporary if temporary < named else -1, x.counted


TEMPORARY, _own = _calibrate()  #: references that a setter sees to what nobody else has
