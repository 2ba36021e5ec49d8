"""Guards: what a recorded program assumed about the Python around the function.

Recording runs the function once, so everything Python read on the way is an assumption of the
program. Arguments are part of the key a recording is found under; this module covers the names the
code uses: closure cells and globals, of the function and of the Python functions it names. Numbers,
strings and other plain values are compared by type and value; containers element by element; an
object that counts its changes (``__genesis_version__``) by its count; everything else by identity.

Not guarded: attributes of plain objects, and names reached only through attributes of modules.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from genesis.ndarray.pytree import flatten

Read = Callable[[], Any]
_MISSING = object()
_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Guards:
    """The assumptions about one function's names, and whether they still hold."""

    __slots__ = ("_checks",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._checks: list[tuple[Read, Any, Any]] = []
        seen: set[CodeType] = set()
        stack: list[Any] = [function]
        while stack:
            f = stack.pop()
            f = getattr(f, "__func__", f)
            if not isinstance(f, FunctionType) or f.__code__ in seen:
                continue
            seen.add(f.__code__)
            for read, value in _names(f):
                self._checks.append((read, value if _settled(value) else _MISSING, fingerprint(value)))
                # Functions of the same project are followed; libraries are trusted to stay.
                if isinstance(value, FunctionType) and value.__module__ == function.__module__:
                    stack.append(value)

    def hold(self) -> bool:
        """Whether every name still has the value it had."""
        for read, same, expected in self._checks:
            value = read()
            if value is not same and fingerprint(value) != expected:
                return False
        return True

    def __len__(self) -> int:
        return len(self._checks)


def fingerprint(value: Any) -> Any:
    """What is compared: equal fingerprints mean that code reading the value does the same."""
    if isinstance(value, _PLAIN):
        # repr tells 0.0 from -0.0 and nan equals itself.
        return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)
    if isinstance(value, tuple | list | dict):
        leaves, structure = flatten(value)
        return structure, tuple([fingerprint(x) for x in leaves])
    version = getattr(value, "__genesis_version__", None)
    return Identity(value), version


def _settled(value: Any) -> bool:
    """Whether the same object is proof enough: it cannot have changed in a guarded way."""
    return not isinstance(value, tuple | list | dict) and not hasattr(value, "__genesis_version__")


class Identity:
    """An object compared by identity, kept alive so that its identity stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _names(f: FunctionType) -> list[tuple[Read, Any]]:
    """The closure cells and globals that a function's code names, with their values now."""
    found: list[tuple[Read, Any]] = []
    for cell in f.__closure__ or ():
        read = _cell_reader(cell)
        found.append((read, read()))
    for name in _global_names(f.__code__):
        if name in f.__globals__:
            value = f.__globals__[name]
            if not isinstance(value, ModuleType | type):
                read = _global_reader(f.__globals__, name)
                found.append((read, value))
        elif not hasattr(builtins, name):
            read = _global_reader(f.__globals__, name)
            found.append((read, _MISSING))
    return found


def _global_names(code: CodeType) -> list[str]:
    """Global names used by a code object and the functions nested in it."""
    names = [str(i.argval) for i in dis.get_instructions(code) if i.opname in _LOADS_GLOBAL]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _cell_reader(cell: CellType) -> Read:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # an empty cell
            return _MISSING

    return read


def _global_reader(scope: dict[str, Any], name: str) -> Read:
    def read() -> Any:
        return scope.get(name, _MISSING)

    return read
