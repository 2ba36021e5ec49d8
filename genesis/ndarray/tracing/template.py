"""Templates: what a recorded function made, to be made again by every run.

The function returned objects, or stored some in others, that it had made itself: tuples, lists,
dataclasses, objects with attributes, and arrays at the bottom. A run makes them anew, with its own
arrays. Objects from outside stay what they are; an object that occurs twice is made once.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from genesis.ndarray import pytree
from genesis.ndarray.core.value import CaptureError
from genesis.ndarray.tracing import object_introspection as objects

#: Makes an object of what a run has got and what was made before.
Maker = Callable[[Any, list[Any]], Any]

_WHOLE = (bool, int, float, complex, str, bytes, type(None), slice, ModuleType)
_IN_PYTHON = 1 << 9  # the flag of classes that are not written in C


class Template:
    """How to make several values, each known by the number that `add` gave it.

    `leaf` gives the maker of an array and of an argument, or None for other objects; `is_array`
    tells which are arrays that every run has its own of, `is_outer` which objects were there
    before, `source` how to find those again.
    """

    def __init__(
        self,
        leaf: Callable[[Any, Template], Maker | None],
        is_array: Callable[[Any], bool],
        is_outer: Callable[[Any], bool],
        source: Callable[[Any], Callable[[], Any]],
    ) -> None:
        self._leaf, self._source = leaf, source
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
        del self._leaf, self._is_array, self._is_outer, self._source

    def _maker(self, x: Any) -> Maker:
        kind = type(x)
        maker = self._leaf(x, self)
        if maker is not None:
            return maker
        if isinstance(x, _WHOLE) or (isinstance(x, type) and not gc.is_tracked(x)):
            return lambda run, made: x
        if kind is range:
            return lambda run, made: x[:]
        if self._is_outer(x):
            source = self._source(x)
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
        if maker := self._code(x):
            return maker
        if isinstance(x, np.ndarray) and (x.base is None or not self._is_outer(x.base)):
            return lambda run, made: x.copy()
        self._require_constant(x)
        return lambda run, made: x

    def _code(self, x: Any) -> Maker | None:
        """How to make what can be called, which has variables and arguments of its own."""
        kind = type(x)
        if kind is FunctionType:
            rest = self.add((x.__defaults__, x.__kwdefaults__, x.__dict__, x.__closure__))
            code, names, name, qualified = x.__code__, x.__globals__, x.__name__, x.__qualname__

            def function(run: Any, made: list[Any]) -> Any:
                defaults, named, attributes, cells = made[rest]
                f = FunctionType(code, names, name, defaults, cells)
                f.__kwdefaults__, f.__qualname__ = named, qualified
                f.__dict__.update(attributes)
                return f

            return function
        if kind is CellType:
            parts = [self.add(c) for c in gc.get_referents(x)]  # none, or what it holds
            return lambda run, made: CellType(*[made[p] for p in parts])
        if kind is MethodType:
            owner, f = self.add(x.__self__), self.add(x.__func__)
            return lambda run, made: MethodType(made[f], made[owner])
        if kind is BuiltinFunctionType and not isinstance(x.__self__, ModuleType):
            owner, name = self.add(x.__self__), x.__name__
            return lambda run, made: getattr(made[owner], name)
        if kind is partial:
            f, args, named = self.add(x.func), self.add(x.args), self.add(x.keywords)
            return lambda run, made: partial(made[f], *made[args], **made[named])
        if kind is ReferenceType and x() is not None:
            held = self.add(x())
            return lambda run, made: ref(made[held])
        return None

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

    def _require_constant(self, x: Any) -> None:
        """Refuse what would not be the same for every run, or holds arrays out of sight."""
        kind = type(x)
        if isinstance(x, Iterator):
            raise CaptureError(
                f"genesis.jit: the function returns or keeps a {kind.__name__}: its code would "
                "run after the recording. Return the values, in a list for instance"
            )
        stack = [x]
        seen: set[int] = set()
        refused = isinstance(x, type | np.ndarray)
        refused = refused or objects.is_hidden(kind) or objects.is_random(kind)
        while stack and not refused:
            y = stack.pop()
            refused = self._is_array(y)
            if id(y) not in seen and not isinstance(y, ModuleType | type) and not self._is_outer(y):
                seen.add(id(y))
                stack.extend(gc.get_referents(y))
        if refused:
            raise CaptureError(
                f"genesis.jit: the function returns or keeps a {kind.__name__} that it made; a run "
                "cannot make it again. Use tuples, lists, dictionaries, dataclasses or plain "
                "objects"
            )
