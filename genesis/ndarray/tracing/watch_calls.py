"""Watching calls: what a function that is about to be called may read and write.

A call of Python code needs nothing: its instructions are seen in turn. A call of a C function is
seen from outside only: what it may do follows from which function it is. It reads the containers it
is given; methods of containers are known by name; functions of modules that compute from their
arguments alone are fine; everything else (time, files, random numbers that are not Genesis's,
threads) is refused, unless the user declares it static.
"""

from __future__ import annotations

import builtins
import operator
import sys
import threading
from collections.abc import Callable
from functools import _lru_cache_wrapper, partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import numpy as np

from genesis.ndarray.core.value import thread
from genesis.ndarray.tracing import python_objects as objects
from genesis.ndarray.tracing.interpreter_stack import NOTHING
from genesis.ndarray.tracing.journal import Journal
from genesis.ndarray.tracing.python_objects import CONTAINERS, MISSING, lookup, name_of

_MODULES = frozenset((
    "builtins", "math", "cmath", "_operator", "operator", "itertools", "functools", "_functools",
    "collections", "_collections", "_abc", "_struct", "struct", "_sre", "re", "string", "_string",
    "_weakref", "weakref", "_weakrefset", "copy", "copyreg", "types", "typing", "_typing",
    "dataclasses", "enum", "_bisect", "_heapq", "bisect", "heapq", "_json", "json", "_warnings",
    "warnings", "fractions", "numbers", "statistics", "_statistics", "abc", "ml_dtypes", "ast",
    "_ast", "unicodedata", "_thread", "threading", "contextlib",
))  # fmt: skip
_REFUSED = frozenset((
    "open", "input", "exec", "eval", "compile", "breakpoint", "start_new_thread", "start_new",
    "start_joinable_thread", "getrefcount", "gettrace", "settrace", "setprofile",
    "getallocatedblocks", "id",
))  # fmt: skip
#: Methods that change a container without regard to what it holds, and those that regard it.
_OF_KEYS = frozenset((
    "get", "pop", "setdefault", "add", "discard", "remove",
    "__contains__", "__getitem__", "__setitem__", "__delitem__",
))  # fmt: skip
_ADDS = frozenset(("append", "appendleft", "extend", "extendleft", "add", "update", "discard"))
_CHANGES = frozenset((
    "insert", "pop", "popleft", "popitem", "remove", "clear", "sort", "reverse", "rotate",
    "setdefault", "move_to_end", "difference_update", "intersection_update",
    "symmetric_difference_update", "__setitem__", "__delitem__", "__iadd__", "__ior__",
    "__iand__", "__isub__", "__ixor__",
))  # fmt: skip


class Calls:
    """The part of a watch that is about calls."""

    journal: Journal
    static: set[int]
    skipped: set[CodeType]
    suspects: dict[int, Any]
    in_python: set[type]
    trusted: tuple[FrameType, int] | None

    if TYPE_CHECKING:
        top: Callable[[FrameType, int], list[Any]]
        touch: Callable[[FrameType, Any], None]
        item: Callable[[FrameType, Any, Any], None]
        set_item: Callable[[FrameType, Any, Any, Any], None]
        item_presence: Callable[[Any, Any], None]
        attribute: Callable[[Any, str], None]
        set_attribute: Callable[[Any, str, Any], None]
        write_attribute: Callable[[Any, str, Any], None]
        exact: Callable[[Any], None]
        hashed: Callable[[Any], None]
        refuse: Callable[[FrameType, str], None]
        refuse_outer: Callable[[FrameType, Any, str], None]

    def _call(self, frame: FrameType, given: tuple[int, tuple[str, ...]]) -> None:
        count, names = given
        below = self.top(frame, count + 2)
        first, second, args = below[0], below[1], below[2:]
        if sys.version_info >= (3, 13):
            called, args = first, args if second is NOTHING else [second, *args]
        else:
            called = second if first is NOTHING else first
            args = args if first is NOTHING else [second, *args]
        self.called(frame, called, args, names)

    def _call_keywords(self, frame: FrameType, count: int) -> None:  # from 3.13 on
        *below, names = self.top(frame, count + 3)
        args = below[2:] if below[1] is NOTHING else below[1:]
        self.called(frame, below[0], args, names)

    def _call_unpacked(self, frame: FrameType, flags: int) -> None:
        if sys.version_info >= (3, 14):
            called, _, args, named = self.top(frame, 4)
        elif sys.version_info >= (3, 13):
            called, _, args, *rest = self.top(frame, 3 + (flags & 1))
            named = rest[0] if rest else {}
        else:
            called, args, *rest = self.top(frame, 2 + (flags & 1))
            named = rest[0] if rest else {}
        self.touch(frame, args)
        self.touch(frame, named)
        given = args if isinstance(args, tuple | list) else ()
        named = named if isinstance(named, dict) else {}
        self.called(frame, called, [*given, *named.values()], tuple(named))

    def called(
        self, frame: FrameType, f: Any, args: list[Any], names: tuple[str, ...] = ()
    ) -> None:
        """Something is about to be called; the last arguments have `names`."""
        if type(f) in self.in_python:
            return
        if isinstance(f, MethodType):
            static = id(f.__self__) in self.static
            f, args = f.__func__, [f.__self__, *args]
        else:
            static = bool(args) and id(args[0]) in self.static
        if static or id(f) in self.static:
            if isinstance(f, FunctionType):
                self.skipped.add(f.__code__)
            return
        if isinstance(f, FunctionType):
            return  # it is seen when it starts
        if isinstance(f, partial):
            self.called(
                frame, f.func, [*f.args, *args, *f.keywords.values()], (*names, *f.keywords)
            )
        elif isinstance(f, type):
            self._made(frame, f, args)
        elif isinstance(f, _C_CALLABLES):
            self._c_call(frame, f, args, names)
        elif isinstance(f, _GETTERS):
            self._getter(frame, f, args[0])
        elif isinstance(f, _lru_cache_wrapper):
            self.refuse(
                frame, f"calls {name_of(f)}, whose results are cached: the cache cannot be seen"
            )
        elif isinstance(f, ReferenceType):
            self.journal.read(f, "target", None, f())
        elif isinstance(lookup(type(f), "__call__"), FunctionType):
            self.in_python.add(type(f))
        elif callable(f):
            self._c_call(frame, f, args, names)

    def begin(self, f: Any) -> None:
        """A function is about to be called by Genesis."""
        if isinstance(f, FunctionType | MethodType):
            return  # it is seen when it starts
        if isinstance(f, partial):
            self.journal.read(f, "attribute", "args", f.args)
            for name, value in f.keywords.items():
                self.journal.read(f.keywords, "item", name, value)
            self.begin(f.func)
        elif hasattr(f, "__wrapped__"):  # by another `jit`
            self.begin(f.__wrapped__)
        else:
            self.attribute(f, "__call__")

    def _made(self, frame: FrameType, kind: type, args: list[Any]) -> None:
        """An object is made: by Python code, that is seen, or by C code of this kind."""
        if kind.__module__.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        unseeded = objects.is_random(kind) and not args
        if unseeded or kind.__module__.partition(".")[0] in ("_io", "io", "socket", "_socket"):
            self.refuse(frame, f"makes a {kind.__module__}.{kind.__name__}")
        if not isinstance(lookup(kind, "__init__"), FunctionType):
            for x in args:
                self.touch(frame, x)
                if kind is str:
                    self.exact(x)

    def _getter(self, frame: FrameType, f: Any, x: Any) -> None:
        for name in f.__reduce__()[1]:
            if isinstance(f, operator.itemgetter):
                self.item(frame, x, name)
                continue
            for part in name.split("."):
                self.attribute(x, part)
                x = objects.attribute_of(x, part)

    def _c_call(self, frame: FrameType, f: Any, args: list[Any], names: tuple[str, ...]) -> None:
        name = getattr(f, "__name__", "")
        owner = getattr(f, "__self__", None)
        if owner is None or isinstance(owner, ModuleType):
            unbound = hasattr(f, "__objclass__") or (
                args and getattr(type(args[0]), name, None) is f
            )
            if unbound and args:
                owner, args = args[0], args[1:]
            else:
                self._function(frame, f, name, args)
                return
        self._method(frame, f, owner, name, args, names)

    def _method(
        self, frame: FrameType, f: Any, x: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        """A method written in C is about to be called."""
        if type(x).__module__.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        if isinstance(x, type):
            if x.__module__ not in _MODULES and not objects.is_of_library(x):
                self._refuse_unknown(frame, f)
            for a in args:
                self.touch(frame, a)
        elif isinstance(x, CONTAINERS):
            self._container_method(frame, x, name, args, names)
        elif name in ("__setattr__", "__delattr__") and args:
            self.write_attribute(x, args[0], args[1] if len(args) > 1 else MISSING)
        elif name == "__getattribute__" and args:
            self.attribute(x, args[0])
        elif isinstance(x, np.ndarray) and name in (
            "fill",
            "sort",
            "put",
            "resize",
            "partition",
            "itemset",
            "setfield",
        ):
            self.refuse_outer(frame, x, "writes to a NumPy array from outside")
        elif id(x) in self.suspects:
            self.touch(frame, x)
        elif objects.is_random(type(x)):
            if getattr(np.random, name, None) is f or self.journal.is_outer(x):
                self.refuse(frame, f"draws random numbers by {name_of(f)}")
        elif type(x).__module__.partition(".")[0] in ("_io", "_socket", "_queue", "_contextvars"):
            self._refuse_unknown(frame, f)
        elif isinstance(x, ModuleType):
            self._function(frame, f, name, args)
        else:
            for a in args:
                self.touch(frame, a)

    def _container_method(
        self, frame: FrameType, x: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        for a in args:
            self.touch(frame, a)
        if isinstance(x, dict | set) and name in _OF_KEYS and args:
            self.hashed(args[0])
        if name in ("get", "__contains__", "__getitem__") and isinstance(x, dict) and args:
            self.item_presence(x, args[0])
        elif name == "__len__":
            self.journal.read(x, "length", None, len(x))
        elif name in ("__setitem__", "__delitem__") and isinstance(x, dict):
            self.set_item(frame, x, args[0], args[1] if len(args) > 1 else MISSING)
        elif name in _ADDS or name in _CHANGES:
            if name in _CHANGES:
                self.touch(frame, x)
            method = getattr(objects.builtin_base(x), name)
            self.journal.change(x, _with_names(method, names) if names else method, tuple(args))
        elif name != "__init__":
            self.touch(frame, x)

    def _function(self, frame: FrameType, f: Any, name: str, args: list[Any]) -> None:
        """A C function of a module is about to be called."""
        module = str(getattr(f, "__module__", None) or type(f).__module__)
        if name in ("is_", "is_not") and module == "_operator":
            self.journal.compare(*args)
        if module == "builtins":
            special = _BUILTINS.get(name)
            if special is not None:
                special(self, frame, args)
                return
        if module.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        if module == "sys" and name == "_getframe":
            return
        if f is np.random.default_rng and args and args[0] is not None:
            return  # what it draws depends on the seed alone
        known = module in _MODULES or (module.startswith("numpy") and "random" not in module)
        if name in _REFUSED or not (known or isinstance(f, np.ufunc)):
            self._refuse_unknown(frame, f)
        for x in args:
            self.touch(frame, x)

    def _refuse_unknown(self, frame: FrameType, f: Any) -> None:
        self.refuse(
            frame,
            f"calls {name_of(f)}, a C function that Genesis knows nothing about: it may depend on "
            "time, files or hidden state",
        )


def _with_names(method: Any, names: tuple[str, ...]) -> Any:
    """A method whose last arguments have names."""

    def named(x: Any, *args: Any) -> Any:
        count = len(args) - len(names)
        return method(x, *args[:count], **dict(zip(names, args[count:], strict=True)))

    return named


# ---- builtins that look at one thing


def _getattr(watch: Any, frame: FrameType, args: list[Any]) -> None:
    if isinstance(args[1], str):
        watch.attribute(args[0], args[1])


def _setattr(watch: Any, frame: FrameType, args: list[Any]) -> None:
    watch.set_attribute(args[0], args[1], args[2] if len(args) > 2 else MISSING)


def _len(watch: Any, frame: FrameType, args: list[Any]) -> None:
    if args and isinstance(args[0], CONTAINERS):
        watch.journal.read(args[0], "length", None, len(args[0]))


def _vars(watch: Any, frame: FrameType, args: list[Any]) -> None:
    if args and hasattr(args[0], "__dict__") and not isinstance(args[0], type | ModuleType):
        watch.journal.read(args[0], "attribute", "__dict__", vars(args[0]))
        watch.touch(frame, vars(args[0]))


def _exactly(watch: Any, frame: FrameType, args: list[Any]) -> None:
    for x in args:
        watch.exact(x)
        watch.touch(frame, x)


def _hashed(watch: Any, frame: FrameType, args: list[Any]) -> None:
    for x in args:
        watch.hashed(x)


def _nothing(watch: Any, frame: FrameType, args: list[Any]) -> None:
    pass


_BUILTINS: dict[str, Callable[[Any, FrameType, list[Any]], None]] = {
    "getattr": _getattr, "hasattr": _getattr, "setattr": _setattr, "delattr": _setattr, "len": _len,
    "vars": _vars, "isinstance": _nothing, "issubclass": _nothing, "callable": _nothing,
    "id": _hashed, "locals": _nothing, "globals": _nothing,
    "repr": _exactly, "format": _exactly, "hash": _hashed,
}  # fmt: skip

_GETTERS = (operator.attrgetter, operator.itemgetter)
_C_CALLABLES = (
    BuiltinFunctionType,
    type(list.append),
    type(object.__init__),
    type([].__len__),
    type(dict.fromkeys),
    np.ufunc,
    type(np.concatenate),
)


class Printing:
    """`print`, while anything is recorded: every run is to print, with its own arrays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recordings = 0
        self._original: Any = print

    def begin(self) -> None:
        """A recording begins."""
        with self._lock:
            if not self._recordings:
                self._original, builtins.print = builtins.print, self._print
            self._recordings += 1

    def end(self) -> None:
        """A recording ends."""
        with self._lock:
            self._recordings -= 1
            if not self._recordings:
                builtins.print = self._original

    def _print(self, *args: Any, **options: Any) -> None:
        thread.listener.act(partial(self._original, **options), args)


printing = Printing()
