"""Device memory: what is in use, what is kept for reuse, and giving it back.

>>> from genesis import memory, ndarray as nd
>>> before = memory.stats().live_bytes
>>> x = nd.ones((256, 256)).realize()
>>> memory.stats().live_bytes - before
262144
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genesis.backends.base import MemoryStats


class MemoryGrowthWarning(UserWarning):
    """Memory in use has been growing for a while."""


def stats(device: str = "cpu") -> MemoryStats:
    """The state of a device's allocator."""
    from genesis.backends import get  # importing Genesis loads no backend

    return get(device).memory_stats()


def reset_peak(device: str = "cpu") -> None:
    """Count the peak from what is in use now."""
    from genesis.backends import get

    get(device).reset_peak()


def trim(device: str = "cpu") -> None:
    """Give memory that is kept for reuse back to the system."""
    from genesis.backends import get

    get(device).trim()


@dataclass(frozen=True)
class Alive:
    """Arrays that are alive: where they were made, how many, and the bytes they take."""

    where: str
    count: int
    nbytes: int


def alive(device: str = "cpu") -> list[Alive]:
    """What lies in a device's memory, by the line that made it, the largest first.

    It is found by looking at all objects there are: nothing is noted while programs run.

    >>> from genesis import ndarray as nd
    >>> x = nd.ones((1000, 1000)).realize()
    >>> any(line.nbytes == 4_000_000 for line in alive())
    True
    """
    from genesis.ndarray.core.value import Value

    seen: set[int] = set()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for x in gc.get_objects():
        # Not `isinstance`, which asks objects of other libraries for their class.
        if not issubclass(type(x), Value) or x.memory is None or x.device != device:
            continue
        if id(x.memory) not in seen:  # views and copies share it
            seen.add(id(x.memory))
            counts[x.where] += 1
            sizes[x.where] += x.memory.nbytes
    return [Alive(where, counts[where], nbytes) for where, nbytes in sizes.most_common()]


@dataclass
class track:  # noqa: N801 - used like a function
    """Watch memory while something is repeated: call `step` each time.

    A step costs one look at a counter. When the least that was in use within `window` steps has
    become more `patience` times in a row, a warning names the lines whose arrays have become more.

    >>> kept, watch = [], track(window=2, patience=2)
    >>> import genesis
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for _ in range(12):
    ...         kept.append(genesis.ones(1000) + 1)
    ...         _ = kept[-1].sum().item()
    ...         watch.step()
    >>> "has been growing" in str(caught[0].message)
    True
    """

    device: str = "cpu"
    window: int = 20
    patience: int = 5

    def __post_init__(self) -> None:
        self._steps, self._least, self._before = 0, 0, 0
        self._grown, self._base = 0, {x.where: x for x in alive(self.device)}
        self._told = False

    def step(self) -> None:
        """Look at how much is in use."""
        now = stats(self.device).live_bytes
        first = self._steps % self.window == 0
        self._least = now if first else min(self._least, now)
        self._steps += 1
        if self._steps % self.window == 0:
            self._compare()

    def _compare(self) -> None:
        self._grown = self._grown + 1 if self._least > self._before > 0 else 0
        self._before = self._least
        if self._grown >= self.patience and not self._told:
            self._told = True
            lines = "".join(
                f"\n{x.where}: {x.count} more arrays, {x.nbytes} bytes" for x in self.grown()[:5]
            )
            warnings.warn(
                f"memory in use has been growing for {self._grown * self.window} steps, to "
                f"{self._least} bytes. Since tracking began:{lines}",
                MemoryGrowthWarning,
                stacklevel=3,
            )

    def grown(self) -> list[Alive]:
        """The lines whose arrays have become more since tracking began, the largest first."""
        nothing = Alive("", 0, 0)
        found = []
        for x in alive(self.device):
            before = self._base.get(x.where, nothing)
            if x.nbytes > before.nbytes:
                more = Alive(x.where, x.count - before.count, x.nbytes - before.nbytes)
                found.append(more)
        return sorted(found, key=lambda x: x.nbytes, reverse=True)
