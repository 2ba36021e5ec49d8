"""What Python's objects are, seen from code that watches others use them.

Which classes report themselves what is read of them, which objects move on when they are asked,
which attributes come before others: the questions that decide what reading one means.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from functools import cache, wraps
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)  # fmt: skip
from typing import Any, TypeVar
from weakref import ReferenceType, finalize

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

#: What a place holds that holds nothing.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
#: Containers whose contents change.
CONTAINERS = (list, dict, set, deque, bytearray)
#: Objects that show the contents of a dictionary.
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), MappingProxyType)
_OPEN = (*CONTAINERS, *VIEWS, tuple, np.ndarray)

_reporting: set[type] = set()  # classes that were said to report what is read of them
_answers: list[dict[int, bool]] = []  # of the questions below
#: Methods that are taken for what they stand for.
atomics: set[CodeType] = set()


def _asked_once(question: Callable[[type], bool]) -> Callable[[type], bool]:
    """A question about classes, whose answers are known as long as the classes live.

    Keeping the classes would keep what their methods can reach. A class is asked about at every
    attribute that a recording sees, so that the look-up is by number.
    """
    answers: dict[int, bool] = {}
    _answers.append(answers)

    @wraps(question)
    def ask(kind: type) -> bool:
        found = answers.get(id(kind))
        if found is None:
            found = answers[id(kind)] = question(kind)
            finalize(kind, answers.pop, id(kind), None).atexit = False
        return found

    return ask


def opaque(*kinds: type) -> None:
    """Take objects of these classes, and of classes below, to report what is read of them."""
    _reporting.update(kinds)
    for answers in _answers:
        answers.clear()


def atomic(function: F) -> F:
    """Take a method such as `__setattr__` for what it stands for, and do not look inside."""
    atomics.add(function.__code__)
    return function


@_asked_once
def is_opaque(kind: type) -> bool:
    """Whether objects of a class report what is read of them, or have nothing to report."""
    known = not _reporting.isdisjoint(kind.__mro__)
    return known or kind in _IMMUTABLE or (kind in PLAIN)


_IMMUTABLE = frozenset(
    (bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, type(None),
     type(Ellipsis), MethodType, BuiltinFunctionType, type(list.append), property, CodeType,
     ReferenceType)
)  # fmt: skip
#: Those among them that nobody has given methods of their own.
PLAIN = frozenset((list, dict, set, deque, bytearray, OrderedDict, defaultdict))


def is_random(kind: type) -> bool:
    """Whether objects of a class have a state of random numbers."""
    return any(
        base.__module__.startswith(("_random", "random", "numpy.random")) for base in kind.__mro__
    )


@_asked_once
def is_iterator(kind: type) -> bool:
    """Whether objects of a class, written in C, move on when they are asked."""
    written = isinstance(lookup(kind, "__next__"), FunctionType)
    return issubclass(kind, Iterator | Generator) and not written


@_asked_once
def is_hidden(kind: type) -> bool:
    """Whether objects of a class, written in C, hold what can be neither watched nor compared."""
    base = next(filter(_is_written_in_c, kind.__mro__), object)
    known = is_opaque(kind) or base.__module__.partition(".")[0] in _VISIBLE
    return base is memoryview or not known


@_asked_once
def is_inert(kind: type) -> bool:
    """Whether there is no looking into objects of a class by code that is not seen."""
    return not (issubclass(kind, _OPEN) or is_iterator(kind) or is_hidden(kind))


def _is_written_in_c(kind: type) -> bool:
    new = kind.__dict__.get("__new__")
    return isinstance(new, BuiltinFunctionType) or bool(kind.__flags__ & _MADE_BY_C_ONLY)


_MADE_BY_C_ONLY = 1 << 7  # of the flags of a class: calling it makes no object
#: Modules of C functions that compute from their arguments alone.
STATELESS = frozenset((
    "builtins", "math", "cmath", "_operator", "operator", "itertools", "functools", "_functools",
    "collections", "_collections", "_abc", "_struct", "struct", "_sre", "re", "string", "_string",
    "_weakref", "weakref", "_weakrefset", "copy", "copyreg", "types", "typing", "_typing",
    "dataclasses", "enum", "_bisect", "_heapq", "bisect", "heapq", "_json", "json", "_warnings",
    "warnings", "fractions", "numbers", "statistics", "_statistics", "abc", "ml_dtypes", "ast",
    "_ast", "unicodedata", "_thread", "threading", "contextlib",
))  # fmt: skip
#: Modules whose objects are immutable, watched, or refused for reasons of their own.
_VISIBLE = STATELESS.union(
    ("datetime", "decimal", "numpy", "_random", "random", "_io", "io", "_contextvars", "genesis")
)


@_asked_once
def is_of_library(kind: type) -> bool:
    """Whether a class is of a library, whose classes nobody changes.

    By where its module lies: users, too, have a ``test`` or ``code``, and ``exec`` has none.
    """
    if not kind.__flags__ & _HEAP_TYPE:
        return True
    top = kind.__module__.partition(".")[0]
    if top == "__main__" or top not in (*sys.stdlib_module_names, "numpy", "torch"):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None:  # built in
        return getattr(module, kind.__name__, None) is kind
    return str(file).startswith(_places())


_HEAP_TYPE = 1 << 9  # of the flags of a class: it was not compiled into something


@cache
def _places() -> tuple[str, ...]:
    import sysconfig  # importing Genesis asks where nothing is

    return tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))


def is_data(x: Any) -> bool:
    """Whether a descriptor comes before what an object has itself."""
    return lookup(type(x), "__set__") is not MISSING or lookup(type(x), "__delete__") is not MISSING


def is_plain_method(kind: type, name: str) -> bool:
    """Whether a class has a method as its base among the builtins has it, or one that counts."""
    method = lookup(kind, name)
    return not isinstance(method, FunctionType) or method.__code__ in atomics


def builtin_base(x: Any) -> type:
    """The builtin container that an object is one of."""
    for kind in (OrderedDict, defaultdict, *CONTAINERS):
        if isinstance(x, kind):
            return kind
    raise TypeError(type(x).__name__)


def lookup(kind: type, name: str) -> Any:
    """An attribute as a class or one of its bases has it."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


@_asked_once
def is_asked_in_python(kind: type) -> bool:
    """Whether code that is seen says what attributes objects of a class have."""
    methods = lookup(kind, "__getattribute__"), lookup(kind, "__getattr__")
    return any(isinstance(f, FunctionType) and f.__code__ not in atomics for f in methods)


def attribute_of(x: Any, name: str) -> Any:
    """An attribute, MISSING if there is none. Code of its class that is seen does not run."""
    try:
        if is_asked_in_python(type(x)):
            return _found_plainly(x, name)
        return getattr(x, name)
    except (AttributeError, ValueError):  # an empty cell
        return MISSING


def _found_plainly(x: Any, name: str) -> Any:
    try:
        return object.__getattribute__(x, name)
    except AttributeError:
        for kind in type(x).__mro__:  # a layer keeps its parameters apart
            getter = kind.__dict__.get("__getattr__")
            if isinstance(getter, FunctionType) and getter.__code__ in atomics:
                return getter(x, name)
        raise


def put_back(x: Any, name: str, before: Any) -> None:
    """Give an attribute the value it had."""
    if before is MISSING:
        delete_attribute(x, name)
        return
    try:
        setattr(x, name, before)
    except TypeError:  # a module keeps parameters apart from other attributes
        delete_attribute(x, name)
        setattr(x, name, before)


def set_plainly(x: Any, name: str, value: Any = MISSING) -> None:
    """Give an attribute a value, or delete it, whatever the class of the object makes of that."""
    plain: Any = type if isinstance(x, type) else object
    if value is not MISSING:
        plain.__setattr__(x, name, value)
    elif attribute_of(x, name) is not MISSING:
        plain.__delattr__(x, name)


def delete_attribute(x: Any, name: str) -> None:
    """Delete an attribute, if it is there."""
    if attribute_of(x, name) is not MISSING:
        delattr(x, name)


def delete_item(x: Any, name: Any) -> None:
    """Delete an item of a dictionary, if it is there."""
    if dict.__contains__(x, name):
        (OrderedDict if isinstance(x, OrderedDict) else dict).__delitem__(x, name)


def contents(x: Any) -> Any:
    """A copy of what a container holds, as a plain one."""
    if isinstance(x, OrderedDict):  # whose order is not that of the dictionary it is
        return dict(OrderedDict.items(x))
    for kind in (list, dict, set, bytearray):
        if isinstance(x, kind):
            copy: Any = kind.copy
            return copy(x)
    return list(deque.__iter__(x))


def restore(x: Any, before: Any) -> None:
    """Give a container the contents it had, whatever its class makes of that."""
    kind: Any = builtin_base(x)
    if isinstance(x, list | bytearray):
        kind.__setitem__(x, slice(None), before)
        return
    kind.clear(x)
    if isinstance(x, OrderedDict):
        for name, value in before.items():
            kind.__setitem__(x, name, value)
    else:
        (kind.extend if isinstance(x, deque) else kind.update)(x, before)


def became(x: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """The change that makes a container hold what it holds now."""
    return restore, (contents(x),)


def item(x: Any, name: Any) -> Any:
    """An item of a container, MISSING if there is none."""
    try:
        return dict.get(x, name, MISSING) if isinstance(x, dict) else x[name]
    except (IndexError, TypeError):
        return MISSING


def name_of(f: Any) -> str:
    """What a function is called."""
    owner = getattr(f, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        return f"{type(owner).__name__}.{f.__name__}"
    return f"{getattr(f, '__module__', None) or type(f).__module__}.{getattr(f, '__name__', f)}"
