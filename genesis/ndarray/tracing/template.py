"""Templates: what a recorded function made, to be made again by every run.

The function returned objects, or stored some in others, that it had made itself: tuples, lists,
dataclasses, objects with attributes, and arrays at the bottom. A run makes them anew, with its own
arrays. Objects from outside stay what they are; an object that occurs twice is made once.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from genesis.ndarray import pytree
from genesis.ndarray.core.value import CaptureError
from genesis.ndarray.tracing.guards import weakly

#: Makes an object of what a run has got and what was made before.
Maker = Callable[[Any, list[Any]], Any]

_WHOLE = (bool, int, float, complex, str, bytes, type(None), type, slice, ModuleType)
_IN_PYTHON = 1 << 9  # the flag of classes that are not written in C


class Template:
    """How to make several values, each known by the number that `add` gave it.

    `leaf` gives the maker of an array and of an argument, or None for other objects; `is_array`
    tells which are arrays, `is_outer` which objects were there before.
    """

    def __init__(
        self,
        leaf: Callable[[Any, Template], Maker | None],
        is_array: Callable[[Any], bool],
        is_outer: Callable[[Any], bool],
    ) -> None:
        self._leaf = leaf
        self._is_array = is_array
        self._is_outer = is_outer
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no `id` is used twice
        self._makers: list[Maker | None] = []
        self._needed: list[tuple[int, Maker]] = []  # those that are made after all
        self._uses: list[int] = []

    def __len__(self) -> int:
        return len(self._makers)

    def add(self, x: Any) -> int:
        """The number of a value."""
        found = self._numbers.get(id(x))
        if found == -1:
            raise CaptureError(
                f"genesis.jit: the function made a {type(x).__name__} that contains itself; a run "
                "cannot make it again"
            )
        if found is None:
            self._numbers[id(x)] = -1
            self._kept.append(x)
            maker = self._maker(x)
            self._makers.append(maker)
            found = self._numbers[id(x)] = len(self._makers) - 1
            self._uses.append(0)
        self._uses[found] += 1
        return found

    def is_used_once(self, x: Any) -> bool:
        """Whether nothing but one result or action has a value."""
        return self._uses[self._numbers[id(x)]] == 1

    def drop(self, x: Any) -> None:
        """Make a value no more: it is made in another way."""
        self._makers[self._numbers[id(x)]] = None

    def make(self, run: Any) -> list[Any]:
        """All values, for one run."""
        made: list[Any] = [None] * len(self._makers)
        for number, maker in self._needed:
            made[number] = maker(run, made)
        return made

    def finish(self) -> None:
        """Nothing is added any more: let go of what was recorded."""
        self._needed = [(k, maker) for k, maker in enumerate(self._makers) if maker is not None]
        self._kept.clear()
        self._numbers.clear()
        del self._leaf, self._is_array, self._is_outer

    def _maker(self, x: Any) -> Maker:
        kind = type(x)
        maker = self._leaf(x, self)
        if maker is not None:
            return maker
        if isinstance(x, _WHOLE):
            return lambda run, made: x
        if kind is range:
            return lambda run, made: x[:]
        if kind is not tuple and kind is not frozenset and self._is_outer(x):
            source = weakly(x)
            return lambda run, made: source()
        if isinstance(x, tuple | list | set | frozenset | deque):
            return self._sequence(x)
        if kind is dict:
            keys, values = [self.add(k) for k in x], [self.add(v) for v in x.values()]
            return lambda run, made: {made[k]: made[v] for k, v in zip(keys, values, strict=True)}
        if pytree.has_fields(x) or self._is_simple(kind):
            fields = pytree.fields_of(x)
            parts = [self.add(part) for part in pytree.members(x, fields)]
            new, fill = pytree.empty, pytree.fill
            return lambda run, made: fill(new(kind), fields, [made[p] for p in parts])
        self._require_no_arrays(x)
        return lambda run, made: x

    def _sequence(self, x: Any) -> Maker:
        kind = type(x)
        parts = [self.add(part) for part in x]
        if isinstance(x, tuple):
            return lambda run, made: tuple.__new__(kind, [made[p] for p in parts])
        if isinstance(x, deque):
            longest = x.maxlen
            return lambda run, made: kind([made[p] for p in parts], longest)
        return lambda run, made: kind([made[p] for p in parts])

    @staticmethod
    def _is_simple(kind: type) -> bool:
        """Whether objects of a class are made of nothing but attributes."""
        new: Any = kind.__new__
        if new is not object.__new__ or not kind.__flags__ & _IN_PYTHON:
            return False
        try:
            object.__new__(kind)
        except TypeError:  # of C after all, or abstract
            return False
        return True

    def _require_no_arrays(self, x: Any) -> None:
        """Refuse what cannot be looked into and holds arrays of the recording."""
        if isinstance(x, Iterator):
            raise CaptureError(
                f"genesis.jit: the function returns or keeps a {type(x).__name__}: its code would "
                "run after the recording. Return the values, in a list for instance"
            )
        seen: set[int] = set()
        stack = [x]
        while stack:
            y = stack.pop()
            if id(y) in seen or isinstance(y, ModuleType | type) or self._is_outer(y):
                continue
            seen.add(id(y))
            if self._is_array(y):
                raise CaptureError(
                    f"genesis.jit: the function returns or keeps a {type(x).__name__} that holds "
                    "arrays; a run cannot make it again. Use tuples, lists, dictionaries, "
                    "dataclasses or plain objects"
                )
            stack.extend(gc.get_referents(y))
