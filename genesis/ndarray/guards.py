"""Guards: what a recorded program assumed about the Python around the function.

Recording runs the function once, so everything Python read on the way is an assumption of the
program. Arguments are part of the key a recording is found under; this module covers the names the
code uses: closure cells and globals, of the function and of the Python functions of its module
that it names. Numbers, strings and other plain values are compared by type and value; containers
element by element; an object that counts its changes (``__genesis_version__``) by its count;
everything else by identity. Nothing is kept alive by being compared.

Not guarded: attributes of plain objects, and names reached only through attributes of modules.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter, call, is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

Read = Callable[[], Any]
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_PLAIN = (bool, int, str, bytes, range, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset)


class Guard(NamedTuple):
    """What one value should be."""

    same: Read  # the object it was; None where that proves nothing
    elements: list[Read] | None  # of a container where identity of each proves enough
    expected: Any

    @staticmethod
    def on(value: Any) -> Guard:
        """A guard that accepts what is as good as `value`."""
        same = _weakly(value) if _is_settled(value) else _nothing
        return Guard(same, _elements(value), fingerprint(value))

    def accepts(self, value: Any) -> bool:
        """Whether code that reads `value` does the same."""
        same, elements, expected = self
        if value is same() and value is not None:  # None: the object has died
            return True
        kind = type(value)
        if elements is not None and kind is expected[0] and len(value) == len(elements):
            members = value.values() if kind is dict else value
            if all(map(is_, members, map(call, elements))):
                return kind is not dict or tuple(value) == expected[1]
        return bool(fingerprint(value) == expected)


class Guards:
    """The assumptions about one function's names, and whether they still hold."""

    __slots__ = ("_guards",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._guards = [(read, *Guard.on(read())) for read in _assumptions(function)]

    def hold(self) -> bool:
        """Whether every name still has the value it had."""
        try:
            for read, same, elements, expected in self._guards:
                value = read()
                if value is same() and value is not None:  # None: the object has died
                    continue
                if not Guard(same, elements, expected).accepts(value):
                    return False
        except (KeyError, ValueError):  # a global is deleted, a cell empty
            return False
        return True

    def __len__(self) -> int:
        return len(self._guards)


def fingerprint(value: Any) -> Any:
    """What is compared: equal fingerprints mean that code reading the value does the same."""
    kind = type(value)
    if isinstance(value, float | complex):
        return kind, repr(value)  # tells 0.0 from -0.0, and nan equals itself
    if isinstance(value, _PLAIN):
        return kind, value
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, tuple | list):
        return kind, tuple([fingerprint(x) for x in value])
    if isinstance(value, dict):
        return kind, tuple(value), tuple([fingerprint(x) for x in value.values()])
    if isinstance(value, set | frozenset):
        return kind, frozenset([fingerprint(x) for x in value])
    if kind is slice:
        return kind, fingerprint((value.start, value.stop, value.step))
    return Identity(value), getattr(value, "__genesis_version__", None)


class Identity:
    """An object compared by identity. It may die: then it equals nothing."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        self._value = _weakly(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return False
        mine = self._value()
        return self is other or (mine is not None and mine is other._value())

    def __hash__(self) -> int:
        return self._hash


def _weakly(value: Any) -> Read:
    """What gives `value` without keeping it alive, where its type allows that."""
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def bound(read: Read) -> tuple[Read, Callable[[Any], Any]]:
    """What gives the object a method is of, without keeping it alive, and the method of it."""
    if isinstance(read, MethodType):
        return ref(read.__self__), read.__func__
    return lambda: read, call


def _nothing() -> None:
    return None


def _is_settled(value: Any) -> bool:
    """Whether the same object is proof enough: it cannot have changed in a guarded way."""
    return not isinstance(value, _CONTAINERS) and not hasattr(value, "__genesis_version__")


def _elements(value: Any) -> list[Read] | None:
    """What identifies the elements of a plain container, if each of them is settled."""
    if type(value) not in (tuple, list, dict):
        return None
    members = list(value.values() if type(value) is dict else value)
    return [_weakly(x) for x in members] if all(map(_is_settled, members)) else None


# ---- the names a function uses


def _assumptions(function: Callable[..., Any]) -> Iterator[Read]:
    """How to read everything that a function's code names, itself or through functions it names.

    Functions of the same module are followed; libraries are trusted to stay.
    """
    read, root = _unwrapped(function)
    yield from read
    stack = [root]
    seen = set()
    while stack:
        f = stack.pop()
        if f is None or f in seen or f.__module__ != root.__module__:
            continue
        seen.add(f)
        for name in _names(f):
            value = name()
            if isinstance(value, ModuleType | type):
                continue
            yield name
            read, called = _unwrapped(value)
            yield from read
            stack.append(called)


def _unwrapped(f: Any) -> tuple[list[Read], FunctionType | None]:
    """The function that a callable comes down to, and what it is called with besides arguments."""
    reads: list[Read] = []
    while not isinstance(f, FunctionType):
        if isinstance(f, partial):
            reads.append(partial(attrgetter("args", "keywords"), f))
            f = f.func
        elif isinstance(f, MethodType):
            reads.append(_weakly(f.__self__))
            f = f.__func__
        elif hasattr(f, "__wrapped__"):  # by another `jit`
            f = f.__wrapped__
        elif isinstance(method := getattr(f, "__call__", None), MethodType):  # noqa: B004
            f = method
        else:
            return reads, None
    return reads, f


def _names(f: FunctionType) -> list[Read]:
    """How to read the closure cells, globals and changeable defaults that a function's code uses.

    A name that has no value was not used, and will not be while everything else stays the same.
    """
    reads: list[Read] = [
        partial(attrgetter("cell_contents"), cell) for cell in f.__closure__ or () if _is_full(cell)
    ]
    scope = f.__globals__
    reads += [partial(scope.__getitem__, x) for x in _global_names(f.__code__) if x in scope]
    defaults = (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())
    reads += [partial(_given, value) for value in defaults if not _is_settled(value)]
    return reads


def _global_names(code: CodeType) -> list[str]:
    """Global names used by a code object and the functions nested in it."""
    names = [str(i.argval) for i in dis.get_instructions(code) if i.opname in _LOADS_GLOBAL]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _is_full(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _given(value: Any) -> Any:
    return value
