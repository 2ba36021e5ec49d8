"""Watching Python code while `jit` records it: every read and write of what is not its own.

Somebody tells which instruction comes next (`genesis.ndarray.tracing.opcode_events`), and its
operands can be seen (`genesis.ndarray.tracing.interpreter_stack`). Loads and stores of attributes,
items, globals and cells go into the journal as they are; operators, loops and formatting read the
containers they work on.

A call of Python code needs nothing: its instructions are seen in turn. A call of a C function is
seen from outside only: what it may do follows from which function it is. It reads the containers it
is given; methods of containers are known by name; functions of modules that compute from their
arguments alone are fine; everything else (time, files, random numbers that are not Genesis's,
threads) is refused, unless the user declares it static.

Code of Genesis below layers and schedules is not watched: it reports what it reads and writes.
"""

from __future__ import annotations

import abc
import bisect
import builtins
import gc
import heapq
import json
import operator
import struct
import sys
import threading
import types
import warnings
from collections import OrderedDict, _count_elements, defaultdict, deque  # type: ignore[attr-defined]
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dis import get_instructions
from functools import _lru_cache_wrapper, cache, partial, reduce
from importlib.util import resolve_name
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np

from genesis import backends
from genesis.ir.size import Size, UndecidableSize
from genesis.ndarray.core.value import CaptureError, Changes, thread
from genesis.ndarray.tracing import interpreter_stack as stack
from genesis.ndarray.tracing import object_introspection as objects
from genesis.ndarray.tracing.guards import READERS, defaults_of
from genesis.ndarray.tracing.journal import Effect, Journal
from genesis.ndarray.tracing.object_introspection import CONTAINERS, MISSING, attribute_of, lookup
from genesis.ndarray.tracing.opcode_events import Plan, is_watched, telling

Handler = Callable[["Watch", FrameType, Any], None]

_ROOT = str(Path(__file__).resolve().parents[2]) + "/"
#: Parts of Genesis that are written like a user's code, and watched like it.
_OPEN = tuple(_ROOT + part for part in ("nn/", "optim/lr_scheduler/", "models/", "recipes/"))
#: Python code that has no state a function could depend on, or only caches.
_LIBRARY = tuple(
    str(Path(m.__file__ or "").resolve())
    for m in map(__import__, ("abc", "copyreg", "enum", "re", "types", "typing", "warnings"))
)

#: Where libraries are: what they do for Genesis is not the function's doing.
_INSTALLED = (*(str(Path(m.__file__ or "").parents[1]) + "/" for m in (json, np)), "<frozen")

#: What code that is not seen looks into.
_LOOKED_INTO = (*CONTAINERS, tuple)

_INPLACE = {"+=": operator.iadd, "|=": operator.ior, "&=": operator.iand, "-=": operator.isub,
            "^=": operator.ixor, "*=": operator.imul}  # fmt: skip

#: Methods that fill a container from what they are given.
_FILLS = frozenset((
    "extend", "extendleft", "update", "difference_update", "intersection_update",
    "symmetric_difference_update", "__iadd__", "__ior__", "__iand__", "__isub__", "__ixor__",
))  # fmt: skip
#: What can be filled from again.
_REPEATABLE = (*CONTAINERS, *objects.VIEWS, tuple, frozenset, str, bytes, range, np.ndarray)

_REFUSED = frozenset((
    "open", "input", "exec", "eval", "compile", "breakpoint", "start_new_thread", "start_new",
    "start_joinable_thread", "getrefcount", "gettrace", "settrace", "setprofile",
    "getallocatedblocks", "id",
))  # fmt: skip
#: Functions of Genesis that change, or tell, what holds for the whole process.
_OF_PROCESS = frozenset((
    "set_num_threads", "get_num_threads", "set_printoptions", "use_deterministic_algorithms",
    "random.seed", "Generator.seed", "memory.stats", "memory.alive", "memory.trim",
    "memory.reset_peak",
))  # fmt: skip
_WRITES_ARRAYS = ("fill", "sort", "put", "resize", "partition", "itemset", "setfield")
#: Methods that change a container without regard to what it holds, and those that regard it.
_OF_KEYS = frozenset((
    "get", "pop", "setdefault", "add", "discard", "remove",
    "__contains__", "__getitem__", "__setitem__", "__delitem__",
))  # fmt: skip
#: Methods of an OrderedDict that call others, which a class may have replaced.
_ORDERED = {"update": "__setitem__", "setdefault": "__setitem__", "__ior__": "__setitem__",
            "pop": "__delitem__", "popitem": "__delitem__"}  # fmt: skip
_ADDS = frozenset(("append", "appendleft", "extend", "extendleft", "add", "update", "discard"))
_CHANGES = frozenset((
    "insert", "pop", "popleft", "popitem", "remove", "clear", "sort", "reverse", "rotate",
    "setdefault", "move_to_end", "difference_update", "intersection_update",
    "symmetric_difference_update", "__setitem__", "__delitem__", "__iadd__", "__ior__",
    "__iand__", "__isub__", "__ixor__",
))  # fmt: skip


class InstructionEntry(NamedTuple):
    """What to do before an instruction, where its operands end, and which one it is."""

    handler: Handler
    given: Any
    end: int
    at: tuple[CodeType, int]
    extended: bool  # whether its argument takes an instruction of its own, before


class ClassAttribute(NamedTuple):
    """What a class has by a name."""

    found: Any
    is_data: bool  # whether that goes first
    is_seen: bool  # and whether its code is seen
    is_asked: bool  # whether code that is seen gives what neither class nor object have


@contextmanager
def watched(journal: Journal, static: tuple[Any, ...] = (), function: Any = None) -> Iterator[None]:
    """Enter in `journal` what Python code on this thread does in the ``with`` block.

    `function` is what is going to be called there.
    """
    check()
    watch = Watch(journal, static)
    if function is not None:
        watch.begin(function)
    printing.begin()
    try:
        with telling(watch):
            yield
    finally:
        printing.end()
        watch.journal = Journal()  # frames may keep their trace functions
    if journal.refusal is not None:
        raise journal.refusal


@cache
def check() -> None:
    """Fail if this Python keeps operands in another place than is looked in."""
    found: list[Any] = []
    one, two, space = object(), object(), types.SimpleNamespace()

    def sample() -> Any:
        space.x = (one, two)
        return space.x

    class Looking(Watch):
        def admits(self, frame: FrameType) -> bool:
            return frame.f_code is sample.__code__

        def set_attribute(self, x: Any, name: str, value: Any) -> None:
            found.append((x, name, value))

    plan = {
        k: e for k, e in _plan_of(sample.__code__).items() if e.handler is Watch._store_attribute
    }
    before = _plans.get(sample.__code__)
    _plans[sample.__code__] = plan
    with telling(Looking(Journal(), ())):
        sample()
    _plans[sample.__code__] = before or {}
    if len(found) != 1 or found[0][0] is not space or found[0][2] != (one, two):
        raise RuntimeError(
            f"genesis.jit cannot see what functions read in this Python ({sys.version.split()[0]}, "
            f"{sys.implementation.name}); it knows CPython 3.11 to 3.14"
        )


class Watch:
    """The trace function of one recording."""

    def __init__(self, journal: Journal, static: tuple[Any, ...]) -> None:
        self.journal = journal
        # What is noted of the recording itself is nothing that the function reads.
        self.static = {id(Changes), id(thread), id(journal), *map(id, static)}
        self.skipped: set[CodeType] = set()  # of static functions
        self.in_python: dict[type, bool] = {}  # of objects to call: whether their code is seen
        #: Where a C function of a library is called: what that calls in turn is its own affair.
        self.trusted: tuple[FrameType, int] | None = None
        self._looks: dict[type, Callable[[Watch, Any, str], None]] = {}  # at attributes, by class
        self._found: dict[tuple[type, str], ClassAttribute] = {}
        self._started: set[int] = set()  # functions
        self._stack = stack.Stack()
        self._end = 0  # where the operands end of the instruction that is looked at
        self._ahead: tuple[FrameType, int] | None = None  # an instruction that was looked at early
        #: By call: the last instruction with an effect, that effect, and how much its owner held.
        self._entered: dict[FrameType, tuple[int, Effect, int]] = {}

    def plan(self, code: CodeType, names: dict[str, Any]) -> Plan:
        """What to look at in a code object; nothing in Genesis itself."""
        plan = _plans.get(code)
        if plan is None:
            while len(_plans) >= MOST_PLANS:  # they keep the code of functions that are gone
                del _plans[next(iter(_plans))]
            plan = _plans[code] = _plan(code, str(names.get("__name__")))
        return plan

    def admits(self, frame: FrameType) -> bool:
        """Whether a call is the user's doing."""
        code = frame.f_code
        if thread.recorder is None or code in self.skipped:
            return False
        caller = frame.f_back
        if not code.co_filename.startswith(_INSTALLED):
            self._starts(self._stack.function_of(frame))
            return True
        if not is_watched(caller):  # what Genesis, or static code, calls
            return False
        assert caller is not None
        if (caller, caller.f_lasti) == self.trusted:
            return False
        if code.co_filename == threading.__file__:
            if code.co_name in ("RLock", "current_thread", "main_thread", "name", "ident"):
                return False
            self.refuse(caller, f"calls {code.co_qualname}, which is for threads")
        self._starts(self._stack.function_of(frame))
        return True

    def _starts(self, f: FunctionType) -> None:
        """A function has been called, by whatever: arguments may come from itself."""
        if id(f) in self._started:
            return
        self._started.add(id(f))  # the journal keeps it
        if f.__defaults__ or f.__kwdefaults__:
            self.journal.read(f, "defaults", None, defaults_of(f))
            for x in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
                self.journal.found(x, f)
        self.journal.read(f, "code", None, f.__code__)

    def act(self, frame: FrameType, entry: InstructionEntry) -> None:
        """Look at an instruction that comes next."""
        handler, given, self._end, at, extended = entry
        if extended and self._has_seen(frame, at[1]):
            return
        effects = self.journal.effects
        count, self.journal.at = len(effects), at
        handler(self, frame, given)
        if len(effects) > count:
            owner = effects[count].owner
            size = len(owner) if isinstance(owner, CONTAINERS) else 0
            self._entered[frame] = at[1], effects[count], size

    def failed(self, frame: FrameType) -> None:
        """An instruction has raised: what it was about to do has not been done."""
        offset, effect, size = self._entered.pop(frame, (-1, None, 0))
        if offset != frame.f_lasti or effect is None:
            return
        self.journal.take_back(effect)
        owner = effect.owner
        if isinstance(owner, CONTAINERS) and (len(owner) != size or effect.function is list.sort):
            self.refuse_outer(frame, owner, "changes a container until that fails")

    def _has_seen(self, frame: FrameType, offset: int) -> bool:
        """Whether an instruction was looked at when what extends its argument came."""
        if offset != frame.f_lasti:
            self._ahead = (frame, offset)
            return False
        ahead, self._ahead = self._ahead, None
        return ahead == (frame, offset)

    def top(self, frame: FrameType, count: int) -> list[Any]:
        """The operands of the instruction that is looked at."""
        return self._stack.operands(frame, self._end, count)

    # ---- names
    def _load_global(self, frame: FrameType, name: str) -> None:
        names = frame.f_globals
        value = names.get(name, MISSING)
        self.journal.read(names, "item", name, value)
        if value is MISSING:
            value = getattr(builtins, name, MISSING)
        self.loaded(value)

    def _import(self, frame: FrameType, name: str) -> None:
        level, names = self.top(frame, 2)
        if frame.f_code.co_filename.startswith(_ROOT):
            return
        if level:
            name = resolve_name("." * level + name, frame.f_globals.get("__package__") or "")
        self.imported(name if names else name.partition(".")[0])

    def imported(self, name: str) -> None:
        """A module is looked up by its whole name."""
        self.journal.read(vars(sys), "item", "modules", sys.modules)
        self.journal.read(sys.modules, "item", name, sys.modules.get(name, MISSING))

    def _store_global(self, frame: FrameType, name: str) -> None:
        (value,) = self.top(frame, 1)
        self.journal.set_item(frame.f_globals, name, value, operator.setitem)

    def _delete_global(self, frame: FrameType, name: str) -> None:
        self.journal.read(frame.f_globals, "item", name, frame.f_globals.get(name, MISSING))
        self.journal.set_item(frame.f_globals, name, MISSING, objects.delete_item)

    def _load_cell(self, frame: FrameType, given: tuple[int, str]) -> None:
        cell = self._stack.value(frame, given[0])
        if isinstance(cell, types.CellType):
            value = attribute_of(cell, "cell_contents")
            self.journal.read(cell, "cell", given[1], value)
            self.loaded(value)

    def _store_cell(self, frame: FrameType, given: tuple[int, str]) -> None:
        cell = self._stack.value(frame, given[0])
        if isinstance(cell, types.CellType):
            name, before = "cell_contents", attribute_of(cell, "cell_contents")
            undo = partial(objects.put_back, cell, name, before)
            args = (name, self.top(frame, 1)[0])
            self.journal.write(cell, "cell", given[1], setattr, args, undo)

    # ---- attributes
    def _load_attribute(self, frame: FrameType, name: str) -> None:
        self.attribute(self._stack.value(frame, self._end - 1), name)

    def attribute(self, x: Any, name: str) -> None:
        """An attribute is read."""
        if id(x) in self.static:
            return
        kind = type(x)
        look = self._looks.get(kind)
        if look is None:
            look = self._looks[kind] = _look(kind)
        look(self, x, name)

    def _super_attribute(self, x: Any, name: str) -> None:
        self._super(x.__self_class__, x.__thisclass__, name)

    def _module_attribute(self, x: ModuleType, name: str) -> None:
        value = x.__dict__.get(name, MISSING)
        self.journal.read(x.__dict__, "item", name, value)
        self.loaded(value)

    def _opaque_attribute(self, x: Any, name: str) -> None:
        code = self.journal.at[0]
        if code is not None and not code.co_filename.startswith(_ROOT):
            # A user may give tensors methods, or others; Genesis itself does not.
            for kind in type(x).__mro__:
                if name in kind.__dict__:
                    self._class_attribute(kind, name)
                    break
        if name == "__class__":
            self._refuse_class(x)
        own = getattr(x, "__dict__", None)
        if own and name in own:
            if self.journal.has_written(x, name):
                return
            self.journal.belongs(own, x)
            self.journal.read(own, "item", name, own[name])
        elif own is not None and lookup(type(x), name) is MISSING:
            if self.journal.has_written(x, name):  # and deleted
                return
            if self.journal.is_known(x):
                raise_at = f"reads {name!r} of an argument, which only its arrays stand for"
                self.journal.refuse(CaptureError(f"genesis.jit: the function {raise_at}"))
            self.journal.read(x, "own", name, MISSING)

    def _watched_attribute(self, x: Any, name: str) -> None:
        pass  # the instructions of its `__getattribute__` are seen

    def _plain_attribute(self, x: Any, name: str) -> None:
        journal = self.journal
        number, kind = id(x), type(x)
        if journal.has_read((number, "attribute", name)):
            return
        if (number, "class", None) not in journal.reads:
            journal.read(x, "class", None, kind)
        known = self._found.get((kind, name))
        if known is None:
            known = self._found[kind, name] = _find(kind, name)
        own = getattr(x, "__dict__", None)
        if own is not None and name in own and journal.has_written(x, name):
            return
        if own is x and not known.is_data and (name in own or known.found is MISSING):
            value = objects.item(x, name)  # its items are its attributes
            journal.read(x, "item", name, value)
            self.loaded(value)
            return
        if known.is_data:
            if known.is_seen:
                self._class_attribute(kind, name)
                return
        elif own is not None and name not in own:
            if known.found is not MISSING or known.is_asked:
                if not journal.has_written(x, name):  # and deleted
                    journal.read(x, "own", name, MISSING)
                if not known.is_asked:
                    self._class_attribute(kind, name)
                return
        elif own is None and known.found is not MISSING:
            self._class_attribute(kind, name)
            return
        value = attribute_of(x, name)
        if name == "__dict__" and value is own:
            journal.belongs(own, x)
        journal.read(x, "attribute", name, value)
        self.loaded(value)

    def _load_super(self, frame: FrameType, name: str) -> None:  # from 3.12 on
        _, this, x = self.top(frame, 3)
        self._super(x if isinstance(x, type) else type(x), this, name)

    def _super(self, kind: type, this: type, name: str) -> None:
        bases = kind.__mro__
        if not objects.is_of_library(kind):
            self.journal.read(kind, "attribute", "__mro__", bases)
        for base in bases[bases.index(this) + 1 :] if this in bases else ():
            self._class_attribute(base, name)
            if name in base.__dict__:
                return

    def _class_attribute(self, kind: type, name: str) -> None:
        if self.journal.has_read((id(kind), "class attribute", name)):
            return
        if objects.is_of_library(kind) or id(kind) in self.static:
            return
        if isinstance(lookup(type(kind), name), property):
            return
        if name in self.journal.written_in_classes:
            self._attribute_of_bases(kind, name)
            return
        value = lookup(kind, name)
        self.journal.read(kind, "class attribute", name, value)
        if value is MISSING and type(kind) is not type:
            self._class_attribute(type(kind), name)
        self.loaded(value)

    def _attribute_of_bases(self, kind: type, name: str) -> None:
        """An attribute of a class is read that the function has given that, or one of its bases."""
        for base in kind.__mro__:
            value = base.__dict__.get(name, MISSING)
            if not self.journal.has_written(base, name, "class attribute"):
                if not objects.is_of_library(base):
                    self.journal.read(base, "class own", name, value)
                self.loaded(value)
            if value is not MISSING:
                return

    def related(self, kind: Any, asked: Any, x: Any = MISSING) -> None:
        """Whether a class, that of `x` maybe, is one of those asked for, or below."""
        if id(x) in self.journal.foreign and issubclass(np.ndarray, asked) != issubclass(
            kind, asked
        ):
            self._refuse_class(x)
        if not isinstance(kind, type) or objects.is_opaque(kind) or id(kind) in self.static:
            return
        known = objects.is_of_library(kind)
        if not known and not _is_own(kind):
            self.journal.read(kind, "attribute", "__mro__", kind.__mro__)
        for other in asked if isinstance(asked, tuple) else getattr(asked, "__args__", (asked,)):
            if isinstance(other, tuple):
                self.related(kind, other, x)
            elif isinstance(other, abc.ABCMeta) and not (known and objects.is_of_library(other)):
                # Classes are registered with it, and a protocol looks at what an object has.
                owner, place = (kind, "subclass") if x is MISSING else (x, "instance")
                self.journal.read(owner, place, other, READERS[place](owner, other))

    def _refuse_class(self, x: Any) -> None:
        if id(x) in self.journal.foreign:
            self.journal.refuse(
                CaptureError(
                    "genesis.jit: the function asks for the class of an argument that is a NumPy "
                    "array, for which an array of Genesis stands; pass genesis.from_numpy(x)"
                )
            )

    def _store_attribute(self, frame: FrameType, name: str) -> None:
        value, x = self.top(frame, 2)
        self.set_attribute(x, name, value)

    def _delete_attribute(self, frame: FrameType, name: str) -> None:
        (x,) = self.top(frame, 1)
        self.attribute(x, name)
        self.set_attribute(x, name, MISSING)

    def set_attribute(self, x: Any, name: str, value: Any) -> None:
        """An attribute is about to be written; one that is MISSING is to be deleted."""
        if id(x) in self.static:
            return
        kind = type(x)
        if isinstance(x, ModuleType) and not isinstance(lookup(kind, "__setattr__"), FunctionType):
            if value is MISSING:
                self._module_attribute(x, name)
            function = objects.delete_item if value is MISSING else operator.setitem
            self.journal.set_item(x.__dict__, name, value, function)
            return
        setter = lookup(kind, "__delattr__" if value is MISSING else "__setattr__")
        if isinstance(x, type) and isinstance(setter, FunctionType):
            return  # its instructions are seen
        if isinstance(x, type | ModuleType):
            self.write_attribute(x, name, value)
            return
        if isinstance(setter, FunctionType) and setter.__code__ not in objects.atomics:
            return  # its instructions are seen
        found = lookup(kind, name)
        if isinstance(found, property) or (
            found is not MISSING and isinstance(lookup(type(found), "__set__"), FunctionType)
        ):
            return
        if getattr(x, "__dict__", None) is x:  # its items are its attributes
            method = dict.__delitem__ if value is MISSING else dict.__setitem__
            self._set_plainly(x, method.__name__, name, value)
            return
        if not objects.is_opaque(kind) or (hasattr(x, "__dict__") and found is MISSING):
            self.write_attribute(x, name, value)

    def write_attribute(self, x: Any, name: str, value: Any, plainly: bool = False) -> None:
        """An attribute is about to be written as such, whatever its class makes of that.

        `plainly`: runs must not ask the class either; it has called `object` itself.
        """
        before = vars(x).get(name, MISSING) if isinstance(x, type) else attribute_of(x, name)
        if name in ("__dict__", "__class__") and self.journal.is_outer(x):
            what = f"gives an object another {name}, and a recorded program could not do that again"
            self.journal.refuse(CaptureError(f"genesis.jit: the function {what}"))
        if isinstance(x, type):
            self.journal.written_in_classes.add(name)
            self._looks.clear()
            self._found.clear()
            self.in_python.clear()
        args = (name,) if value is MISSING else (name, value)
        function = objects.delete_attribute if value is MISSING else setattr
        put_back: Callable[..., None] = objects.put_back
        if plainly:
            function = put_back = objects.set_plainly
        snapshot = None if plainly else getattr(x, "__genesis_snapshot__", None)
        undo = partial(put_back, x, name, before) if snapshot is None else snapshot()
        if snapshot is not None and not self.journal.has_written(x, name):
            for home in x.__genesis_homes__():  # what they hold decides where it is put
                if name not in home:
                    self.journal.read(home, "item", name, MISSING)
        kind = "class attribute" if isinstance(x, type) else "attribute"
        self.journal.write(x, kind, name, function, args, undo)

    # ---- the dictionary of an object's attributes
    def _owner_of(self, x: Any) -> Any:
        """The object whose attributes a dictionary has, as far as that can be said."""
        return self.journal.owners.get(id(x), MISSING) if type(x) is dict else MISSING

    def _field(self, x: Any, name: Any) -> None:
        """An attribute is read by the dictionary of all."""
        apart = objects.is_data(lookup(type(x), name))  # a slot, or a property
        owner, kind = (vars(x), "item") if apart else (x, "attribute")
        if self.journal.has_written(owner, name, kind):
            return
        value = vars(x).get(name, MISSING)
        if value is MISSING or apart:
            self.journal.read(x, "own", name, value)
        else:
            self.journal.read(x, "attribute", name, value)
        self.loaded(value)

    def _write_field(self, x: Any, name: Any, value: Any) -> None:
        """An attribute is written by the dictionary of all, or deleted."""
        if objects.is_data(lookup(type(x), name)):
            function = objects.delete_item if value is MISSING else operator.setitem
            self.journal.set_item(vars(x), name, value, function)
        else:
            self.write_attribute(x, name, value, plainly=True)

    def _fields(self, frame: FrameType, x: Any) -> None:
        """All attributes are read by their dictionary."""
        self.journal.read(x, "fields", None, self.journal.names_before(x))
        for name, value in list(vars(x).items()):
            self._field(x, name)
            if isinstance(value, _LOOKED_INTO):
                self.touch(frame, value)

    def _fields_method(
        self, frame: FrameType, x: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        """A method of the dictionary of an object's attributes is about to be called."""
        held = vars(x)
        if name in ("pop", "setdefault", "get", "__getitem__", "__contains__") and args:
            self._field(x, args[0])
            if name == "pop" and args[0] in held:
                self._write_field(x, args[0], MISSING)
            elif name == "setdefault" and args[0] not in held:
                self._write_field(x, args[0], args[1] if len(args) > 1 else None)
        elif name == "__setitem__":
            self._write_field(x, args[0], args[1])
        elif name == "__delitem__":
            self._field(x, args[0])
            self._write_field(x, args[0], MISSING)
        elif name in ("update", "__ior__"):
            count = len(args) - len(names)
            given = args[0] if count else {}
            if not isinstance(given, dict | list | tuple):
                self.refuse_outer(frame, x, "gives an object attributes from an iterator")
            for key, value in (dict(given) | dict(zip(names, args[count:], strict=True))).items():
                self._write_field(x, key, value)
        else:
            self._fields(frame, x)
            gone = {"clear": list(held), "popitem": list(held)[-1:]}.get(name, ())
            for key in gone:
                self._write_field(x, key, MISSING)

    # ---- items
    def _load_item(self, frame: FrameType, _: Any) -> None:
        x, name = self.top(frame, 2)
        self.item(frame, x, name)

    def item(self, frame: FrameType, x: Any, name: Any) -> None:
        """An item is read."""
        if (owner := self._owner_of(x)) is not MISSING:
            self._field(owner, name)
        elif isinstance(x, dict):
            self.hashed(name)
            if objects.is_plain_method(type(x), "__getitem__"):
                value = objects.item(x, name)
                self.journal.read(x, "item", name, value)
                self.loaded(value)
                if value is MISSING and isinstance(x, defaultdict):
                    self.journal.change(x, defaultdict.__missing__, (name,))
        elif isinstance(x, CONTAINERS) and isinstance(name, int):
            value = objects.item(x, name)
            self.journal.read(x, "item", name, value)
            self.loaded(value)
        else:
            self.touch(frame, x)
            self.handed(frame, (name,))

    def _store_item(self, frame: FrameType, _: Any) -> None:
        value, x, name = self.top(frame, 3)
        self.set_item(frame, x, name, value)

    def _delete_item(self, frame: FrameType, _: Any) -> None:
        x, name = self.top(frame, 2)
        self.set_item(frame, x, name, MISSING)

    def set_item(self, frame: FrameType, x: Any, name: Any, value: Any) -> None:
        """An item is about to be written; one that is MISSING is to be deleted."""
        method = "__delitem__" if value is MISSING else "__setitem__"
        if isinstance(x, np.ndarray):
            self.refuse_outer(frame, x, "writes to a NumPy array from outside")
        elif objects.is_hidden(type(x)):
            self.touch(frame, x)
        elif (owner := self._owner_of(x)) is not MISSING:
            given = [name] if value is MISSING else [name, value]
            self._fields_method(frame, owner, method, given, ())
        elif isinstance(x, CONTAINERS) and objects.is_plain_method(type(x), method):
            if isinstance(x, dict):
                function = objects.delete_item if value is MISSING else operator.setitem
                if value is MISSING:  # deleting what is not there fails
                    self.journal.read(x, "item", name, objects.item(x, name))
                self.journal.set_item(x, name, value, function)
                return
            self.journal.read(x, "length", None, len(x))
            if isinstance(name, slice) and not isinstance(value, (*_REPEATABLE, type(MISSING))):
                self._fill(frame, x, became=True)
                return
            args = (name,) if value is MISSING else (name, value)
            self.journal.change(x, operator.delitem if value is MISSING else operator.setitem, args)
        else:
            self.handed(frame, (name, value))

    def _store_slice(self, frame: FrameType, _: Any) -> None:
        value, x, start, stop = self.top(frame, 4)
        self.set_item(frame, x, slice(start, stop), value)

    # ---- everything else that looks into objects
    def touch(self, frame: FrameType, x: Any) -> None:
        """All of an object is read by code that is not seen."""
        kind = type(x)
        if objects.is_inert(kind) or id(x) in self.static:
            return
        if (owner := self._owner_of(x)) is not MISSING:
            self._fields(frame, owner)
        elif isinstance(x, CONTAINERS):
            held = objects.contents(x)
            self.journal.read(x, "content", None, held)
            self._members(frame, x, held.values() if isinstance(x, dict) else held)
        elif isinstance(x, np.ndarray):
            self.loaded(x)
        elif isinstance(x, tuple):
            self._members(frame, x, x)
        elif isinstance(x, objects.VIEWS):
            for shown in gc.get_referents(x):
                self.journal.found(shown, x)
                self.touch(frame, shown)
        elif objects.is_iterator(kind):
            self.refuse_outer(frame, x, f"goes on with a {kind.__name__} from outside")
        else:
            what = f"uses a {objects.name_of(kind)} from outside, whose contents may change"
            self.refuse_outer(frame, x, what)

    def handed(self, frame: FrameType, given: Iterable[Any]) -> None:
        """Objects are handed to code that is not seen: it looks into containers."""
        for x in given:
            if isinstance(x, _LOOKED_INTO):
                self.touch(frame, x)

    def _members(self, frame: FrameType, x: Any, members: Any) -> None:
        for member in members:
            if objects.is_inert(type(member)):
                continue
            if isinstance(member, _LOOKED_INTO):
                self.journal.found(member, x)
                self.touch(frame, member)
            else:
                self.loaded(member)

    def loaded(self, value: Any) -> None:
        """What was read from a place; contents that only others may change are read with it."""
        if isinstance(value, np.ndarray) and (id(value), "numbers", None) not in self.journal.reads:
            self.journal.read(value, "numbers", None, value.copy())
            if value.dtype.hasobject and self.journal.is_outer(value):
                self.journal.refuse(
                    CaptureError(
                        "genesis.jit: the function uses a NumPy array of Python objects from "
                        "outside; use a list"
                    )
                )

    def _formatted(self, frame: FrameType, count: int) -> None:
        _exactly(self, frame, self.top(frame, count))

    def exact(self, x: Any) -> None:
        """The number itself is needed, not that it is the same as another one."""
        if isinstance(x, Size):
            self.journal.refuse(UndecidableSize(f"the text or the hash of the size {x}"))

    def hashed(self, x: Any) -> None:
        """The hash of an object, or its identity, is needed."""
        if isinstance(x, tuple):  # the hash is that of what it holds
            for member in x:
                self.hashed(member)
            return
        self.exact(x)
        self.journal.identify(x)

    def _hashed_top(self, frame: FrameType, count: int) -> None:
        _hashed(self, frame, self.top(frame, count))

    def _hashed_keys(self, frame: FrameType, count: int) -> None:
        for x in self.top(frame, 2 * count)[::2]:
            self.hashed(x)

    def _touch_top(self, frame: FrameType, count: int) -> None:
        for x in self.top(frame, count):
            self.touch(frame, x)

    def _truth(self, frame: FrameType, _: Any) -> None:
        self.length(frame, self._stack.value(frame, self._end - 1))

    def length(self, frame: FrameType, x: Any) -> None:
        """How much an object holds is read."""
        if objects.is_inert(type(x)):
            return
        if (owner := self._owner_of(x)) is not MISSING:
            self._fields(frame, owner)
        elif isinstance(x, CONTAINERS):
            self.journal.read(x, "length", None, len(x))
        elif not isinstance(x, tuple):
            self.touch(frame, x)

    def _is(self, frame: FrameType, _: Any) -> None:
        self.journal.compare(*self.top(frame, 2))

    def _contains(self, frame: FrameType, _: Any) -> None:
        name, x = self.top(frame, 2)
        if self.journal.is_known(name) and isinstance(x, Collection):
            for y in x:
                self.journal.compare(name, y)
        if isinstance(x, dict | set | frozenset):
            self.hashed(name)
        if (owner := self._owner_of(x)) is not MISSING:
            self._field(owner, name)
        elif not isinstance(x, dict):
            self.touch(frame, x)
        elif objects.is_plain_method(type(x), "__contains__"):
            self.journal.read(x, "item", name, objects.item(x, name))

    def _match_class(self, frame: FrameType, count: int) -> None:
        x, kind, names = self.top(frame, 3)
        self.related(type(x), kind, x)
        if isinstance(x, kind):
            self.attribute(kind, "__match_args__")
            for name in (*getattr(kind, "__match_args__", ())[:count], *names):
                self.attribute(x, name)

    def _binary(self, frame: FrameType, symbol: str) -> None:
        if symbol == "[]":
            self._load_item(frame, None)
            return
        a, b = self.top(frame, 2)
        if symbol in _INPLACE and isinstance(a, CONTAINERS):
            self._change_in_place(frame, a, symbol, b)
            return
        if isinstance(a, np.ndarray) and symbol.endswith("="):
            self.refuse_outer(frame, a, "writes to a NumPy array from outside")
        if "decimal" in (type(a).__module__, type(b).__module__):
            self.refuse(frame, "computes with decimals, whose context cannot be seen")
        self.touch(frame, a)
        self.touch(frame, b)

    def _change_in_place(self, frame: FrameType, x: Any, symbol: str, other: Any) -> None:
        self.touch(frame, other)
        if (owner := self._owner_of(x)) is not MISSING:
            self._fields_method(frame, owner, "__ior__", [other], ())
            return
        if symbol != "+=":
            self.touch(frame, x)
        if isinstance(other, _REPEATABLE) or symbol == "*=":
            self.journal.change(x, _INPLACE[symbol], (other,))
        else:
            self._fill(frame, x)

    def _fill(self, frame: FrameType, x: Any, became: bool = False) -> None:
        """A container is filled by what can be asked only once, or by code that is seen."""
        begun, at = frame.f_lasti, self.journal.at

        def is_running() -> bool:
            now: FrameType | None = sys._getframe()
            while now is not None and now is not frame:
                now = now.f_back
            return now is not None and now.f_lasti == begun and self.journal.at != at

        became = became or not isinstance(x, list)
        count = len(x)
        if became:
            self.touch(frame, x)
            self.journal.change_somehow(x, objects.became, is_running)
        else:
            self.journal.change_somehow(
                x, lambda x: (list.extend, (list.__getitem__(x, slice(count, None)),)), is_running
            )

    # ---- calls
    def _call(self, frame: FrameType, given: tuple[int, tuple[str, ...]]) -> None:
        count, names = given
        below = self.top(frame, count + 2)
        first, second, args = below[0], below[1], below[2:]
        if sys.version_info >= (3, 13):
            called, args = first, args if second is stack.NOTHING else [second, *args]
        else:
            called = second if first is stack.NOTHING else first
            args = args if first is stack.NOTHING else [second, *args]
        self.called(frame, called, args, names)

    def _call_keywords(self, frame: FrameType, count: int) -> None:  # from 3.13 on
        *below, names = self.top(frame, count + 3)
        args = below[2:] if below[1] is stack.NOTHING else below[1:]
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
        given = args if isinstance(args, tuple | list) else ()
        named = named if isinstance(named, dict) else {}  # made for this call
        self._members(frame, named, named.values())
        self.called(frame, called, [*given, *named.values()], tuple(named))

    def called(
        self, frame: FrameType, f: Any, args: list[Any], names: tuple[str, ...] = ()
    ) -> None:
        """Something is about to be called; the last arguments have `names`."""
        kind = type(f)
        if kind is MethodType:
            static = id(f.__self__) in self.static
            self.journal.found(f.__self__, f)
            f, args = f.__func__, [f.__self__, *args]
            kind = type(f)
        else:
            static = bool(args) and id(args[0]) in self.static
        if static or id(f) in self.static:
            if isinstance(f, FunctionType):
                self.skipped.add(f.__code__)
            return
        if kind is FunctionType:
            self._python(frame, f, args, names)
            return
        seen = self.in_python.get(kind)
        if seen is not None:
            if not seen:
                self.handed(frame, args)
            return
        special = _BUILTINS.get(f) if kind is BuiltinFunctionType else None
        if special is not None:
            special(self, frame, args)
        elif isinstance(f, partial):
            self._partial(f)
            self.called(
                frame, f.func, [*f.args, *args, *f.keywords.values()], (*names, *f.keywords)
            )
        elif isinstance(f, type):
            maker = lookup(kind, "__call__")
            if isinstance(maker, FunctionType):
                self._python(frame, maker, [f, *args])
            else:
                self._made(frame, f, args)
        elif isinstance(f, _C_CALLABLES):
            self._c_call(frame, f, args, names)
        elif isinstance(f, _GETTERS):
            self._getter(frame, f, args[0])
        elif isinstance(f, operator.methodcaller):
            self._method_caller(frame, f, args[0])
        elif isinstance(f, _lru_cache_wrapper):
            what = f"calls {objects.name_of(f)}, whose results are cached"
            self.refuse(frame, f"{what}: the cache cannot be seen")
        elif isinstance(f, ReferenceType):
            self.journal.read(f, "target", None, f())
        elif isinstance(method := lookup(kind, "__call__"), FunctionType):
            self.in_python[kind] = hasattr(f, "__wrapped__") or self._python(frame, method, args)
        elif callable(f):
            self._c_call(frame, f, args, names)

    def _python(
        self, frame: FrameType, f: FunctionType, args: list[Any], names: tuple[str, ...] = ()
    ) -> bool:
        """Whether a function that is about to be called will be seen; else look for it."""
        code = f.__code__
        if self.plan(code, f.__globals__):
            return True
        if code in objects.atomics and args and isinstance(args[0], CONTAINERS):
            self._container_method(frame, args[0], f.__name__, args[1:], names)
            return False
        if f.__name__ == "_gcd_import" and args:  # what `importlib.import_module` calls
            self.imported(args[0])
        if code.co_filename.startswith(_ROOT):
            inner = f"{f.__module__.rpartition('.')[2]}.{f.__name__}"
            if not _OF_PROCESS.isdisjoint((f.__name__, f.__qualname__, inner)):
                self.refuse(frame, f"calls {f.__name__}, which is about the whole process")
        self.handed(frame, args)
        return False

    def begin(self, f: Any) -> None:
        """A function is about to be called by Genesis."""
        if isinstance(f, FunctionType | MethodType):
            return  # it is seen when it starts
        if isinstance(f, partial):
            self._partial(f)
            self.begin(f.func)
        elif hasattr(f, "__wrapped__"):  # by another `jit`
            self.begin(f.__wrapped__)
        else:
            self.attribute(f, "__call__")

    def _partial(self, f: partial[Any]) -> None:
        """What a function is called with besides its arguments is read."""
        self.journal.read(f, "attribute", "args", f.args)
        self.journal.read(f, "attribute", "keywords", f.keywords)
        self.journal.read(f.keywords, "content", None, f.keywords.copy())
        for x in (*f.args, *f.keywords.values()):
            self.journal.found(x, f)
            self.loaded(x)

    def _made(self, frame: FrameType, kind: type, args: list[Any]) -> None:
        """An object is made: by Python code, that is seen, or by C code of this kind."""
        if kind is type and len(args) == 1:
            self._refuse_class(args[0])
            self.journal.read(args[0], "class", None, type(args[0]))
            return
        if kind.__module__.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        unseeded = objects.is_random(kind) and not args
        if unseeded or kind.__module__.partition(".")[0] in ("_io", "io", "socket", "_socket"):
            self.refuse(frame, f"makes a {kind.__module__}.{kind.__name__}")
        if isinstance(lookup(kind, "__del__"), FunctionType):
            self.refuse(frame, f"makes a {kind.__name__}, which does something when it goes")
        if kind is memoryview and args:
            self.refuse_outer(frame, args[0], "makes a memoryview of what is from outside")
        if issubclass(kind, set | frozenset | dict):
            self._hashed_members(args)
        init = lookup(kind, "__init__")
        if isinstance(init, FunctionType):
            self._python(frame, init, args)
            return
        for x in args:
            self.touch(frame, x)
            self.callback(frame, x)
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

    def _method_caller(self, frame: FrameType, f: Any, x: Any) -> None:
        made, given = f.__reduce__()
        named = made.keywords if isinstance(made, partial) else {}
        name, *args = (*made.args, *given) if isinstance(made, partial) else given
        self.attribute(x, name)
        called = [*args, *named.values()]
        self.called(frame, objects.attribute_of(x, name), called, tuple(named))

    def _hashed_members(self, args: Iterable[Any]) -> None:
        """The hash is needed of all that some containers hold."""
        for x in args:
            if isinstance(x, list | tuple | set | frozenset | deque):
                for member in x:
                    self.hashed(member)

    def _c_call(self, frame: FrameType, f: Any, args: list[Any], names: tuple[str, ...]) -> None:
        name = getattr(f, "__name__", "")
        owner = getattr(f, "__self__", None)
        self.journal.found(owner, f)
        if owner is None or isinstance(owner, ModuleType):
            unbound = hasattr(f, "__objclass__") or (
                args and getattr(type(args[0]), name, None) is f
            )
            if unbound and args:
                owner, args = args[0], args[1:]
            else:
                self._function(frame, f, name, args, names)
                return
        self._method(frame, f, owner, name, args, names)

    def _method(
        self, frame: FrameType, f: Any, x: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        """A method written in C is about to be called."""
        if type(x).__module__.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        if name in ("__setattr__", "__delattr__") and args:
            self.write_attribute(x, args[0], args[1] if len(args) > 1 else MISSING, plainly=True)
        elif isinstance(x, type) and name == "__call__":  # of a class that has one of its own
            self._made(frame, x, args)
        elif isinstance(x, type):
            if name == "fromkeys":
                self._hashed_members(args[:1])
            known = x.__module__ in objects.STATELESS or objects.is_of_library(x)
            if not known and name != "__init_subclass__":  # that of `object` does nothing
                self._refuse_unknown(frame, f)
            for a in args:
                self.touch(frame, a)
        elif isinstance(x, CONTAINERS):
            self._container_method(frame, x, name, args, names)
        elif name == "__getattribute__" and args and not objects.is_opaque(type(x)):
            self._plain_attribute(x, args[0])  # its class may have another way of its own
        elif isinstance(x, np.ndarray) and name in _WRITES_ARRAYS:
            self.refuse_outer(frame, x, "writes to a NumPy array from outside")
        elif objects.is_random(type(x)):
            if getattr(np.random, name, None) is f or self.journal.is_outer(x):
                self.refuse(frame, f"draws random numbers by {objects.name_of(f)}")
        elif type(x).__module__.partition(".")[0] in ("_io", "_socket", "_queue", "_contextvars"):
            self._refuse_unknown(frame, f)
        else:
            for a in (x, *args):
                self.touch(frame, a)

    def _container_method(
        self, frame: FrameType, x: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        for a in args:
            self.touch(frame, a)
        if isinstance(x, dict | set) and name in _OF_KEYS and args:
            self.hashed(args[0])
        elif isinstance(x, set):
            self._hashed_members(args)
        if name in ("sort", "extend", "update"):
            for a in args:
                self.callback(frame, a)
        if (owner := self._owner_of(x)) is not MISSING:
            self._fields_method(frame, owner, name, args, names)
        elif name in ("get", "__contains__", "__getitem__") and isinstance(x, dict) and args:
            value = objects.item(x, args[0])
            self.journal.read(x, "item", args[0], value)
            self.loaded(value)
        elif name == "__len__":
            self.length(frame, x)
        elif name in ("__setitem__", "__delitem__") and isinstance(x, dict):
            self._set_plainly(x, name, *args)
        elif name in _ADDS or name in _CHANGES:
            if name in _CHANGES:
                self.touch(frame, x)
            inner = _ORDERED.get(name) if isinstance(x, OrderedDict) else None
            if inner is not None and not objects.is_plain_method(type(x), inner):
                return  # it calls what the class has instead, which is seen
            method = getattr(objects.builtin_base(x), name)
            if name == "pop" and isinstance(x, set) and len(x) > 1:
                self.refuse_outer(frame, x, "takes any item of a set from outside")
            if name in _FILLS and not all(isinstance(a, _REPEATABLE) for a in args):
                self._fill(frame, x)
                return
            self.journal.change(x, _with_names(method, names) if names else method, tuple(args))
        elif name != "__init__":
            self.touch(frame, x)

    def _set_plainly(self, x: Any, method: str, name: Any, value: Any = MISSING) -> None:
        """An item of a dictionary is about to be written, or deleted, by its builtin's method."""
        if value is MISSING:
            self.journal.read(x, "item", name, objects.item(x, name))
            self.journal.set_item(x, name, value, objects.delete_item)
        else:
            self.journal.set_item(x, name, value, getattr(objects.builtin_base(x), method))

    def _function(
        self, frame: FrameType, f: Any, name: str, args: list[Any], names: tuple[str, ...]
    ) -> None:
        """A C function of a module is about to be called."""
        if f in _WRITERS:
            self._writer(frame, f, args, names)
            return
        module = str(getattr(f, "__module__", None) or type(f).__module__)
        if name in ("is_", "is_not") and module == "_operator":
            self.journal.compare(*args)
        if module.startswith("numpy"):
            self.trusted = (frame, frame.f_lasti)
        if module == "sys" and name in ("_getframe", "exc_info", "exception"):
            return
        if module == "_warnings" and name == "warn" and args:
            self.journal.act(Warned(frame, *args[:2]), ())
            return
        if f is np.random.default_rng and args and args[0] is not None:
            return  # what it draws depends on the seed alone
        if name in _REFUSED or not self._is_stateless(f):
            self._refuse_unknown(frame, f)
        for x in args:
            self.touch(frame, x)
            if isinstance(x, BuiltinFunctionType) and x in _WRITERS:
                self._reduced(frame, f, x, args)
            else:
                self.callback(frame, x)

    def _writer(
        self, frame: FrameType, f: Any, args: list[Any], names: tuple[str, ...] = ()
    ) -> None:
        """A C function that changes one of its arguments is about to be called."""
        place = _WRITERS[f]
        x = args[place] if len(args) > place else None
        if f in _ITEMS and len(args) > 1:
            self.set_item(frame, x, args[1], args[2] if len(args) > 2 else MISSING)
            return
        for a in args:
            self.touch(frame, a)
            self.callback(frame, a)
        if isinstance(x, np.ndarray):
            self.refuse_outer(frame, x, "writes to a NumPy array from outside")
        if not isinstance(x, CONTAINERS) or not objects.is_plain_method(type(x), "__setitem__"):
            return  # it has methods of its own for that
        if f in _SYMBOLS:
            self._change_in_place(frame, x, _SYMBOLS[f], args[1])
            return
        if f is _count_elements:
            self._hashed_members(args[1:])
        self.journal.change_somehow(x, objects.became)

    def _reduced(self, frame: FrameType, f: Any, writer: Any, args: list[Any]) -> None:
        """A C function is given one that changes its argument."""
        if f is reduce and len(args) == 3:
            self.refuse_outer(frame, args[2], f"has {writer.__name__} of it called unseen")
        else:
            self.refuse(frame, f"has {writer.__name__} called unseen")

    def callback(self, frame: FrameType, f: Any) -> None:
        """A C function is given a function, which it may call unseen if that is of C, too."""
        if isinstance(f, partial):
            self._partial(f)
            for x in (f.func, *f.args):
                self.touch(frame, x)
                self.callback(frame, x)
        elif isinstance(f, _lru_cache_wrapper):
            self.called(frame, f, [])
        elif isinstance(f, _C_CALLABLES):
            owner, name = getattr(f, "__self__", None), f.__name__
            self.journal.found(owner, f)
            changes = name in _ADDS or name in _CHANGES
            if isinstance(owner, CONTAINERS) and changes:
                self.refuse_outer(frame, owner, f"has {name} of a container called unseen")
            elif changes and issubclass(getattr(f, "__objclass__", type), CONTAINERS):
                self.refuse(frame, f"has {name} of containers called unseen")
            elif objects.is_random(type(owner)) or not self._is_stateless(f):
                self._refuse_unknown(frame, f)
            self.touch(frame, owner)

    @staticmethod
    def _is_stateless(f: Any) -> bool:
        """Whether a C function computes from its arguments alone, or is a method."""
        module = str(getattr(f, "__module__", None) or type(f).__module__)
        known = module in objects.STATELESS or isinstance(f, np.ufunc)
        return known or (module.startswith("numpy") and "random" not in module)

    def _refuse_unknown(self, frame: FrameType, f: Any) -> None:
        self.refuse(
            frame,
            f"calls {objects.name_of(f)}, a C function that Genesis knows nothing about: it may "
            "depend on time, files or hidden state",
        )

    # ---- what cannot be replayed
    def refuse_outer(self, frame: FrameType, x: Any, what: str) -> None:
        """The function does something to an object, which no run could if it is from outside."""
        if self.journal.is_outer(x):
            self.refuse(frame, what)

    def refuse(self, frame: FrameType, what: str) -> None:
        """The function does something that no run could do again."""
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSTALLED):
            frame = frame.f_back  # a library does: say where it is called
        self.journal.refuse(
            CaptureError(
                f"genesis.jit: {frame.f_code.co_filename}:{frame.f_lineno}: the function {what}, "
                "and a recorded program could not do that again. Do it outside of the function, "
                "pass what it gives as an argument, or declare it with genesis.jit(static=[...]) "
                "if doing it once, while recording, is right"
            )
        )


def _look(kind: type) -> Callable[[Watch, Any, str], None]:
    """What reading an attribute of objects of a class is."""
    if kind is super:
        return Watch._super_attribute
    if issubclass(kind, ModuleType):
        return Watch._module_attribute
    if issubclass(kind, type):
        return Watch._class_attribute
    if objects.is_opaque(kind):
        return Watch._opaque_attribute
    if isinstance(lookup(kind, "__getattribute__"), FunctionType):
        return Watch._watched_attribute
    return Watch._plain_attribute


def _is_own(kind: type) -> bool:
    """Whether a class is Genesis's."""
    return kind.__module__.partition(".")[0] == "genesis"


def _find(kind: type, name: str) -> ClassAttribute:
    found = lookup(kind, name)
    if found is MISSING:
        getter = lookup(kind, "__getattr__")
        is_asked = isinstance(getter, FunctionType) and getter.__code__ not in objects.atomics
        return ClassAttribute(found, False, False, is_asked)
    is_data = type(found) is not FunctionType and objects.is_data(found)
    is_seen = is_data and (
        isinstance(found, property) or isinstance(lookup(type(found), "__get__"), FunctionType)
    )
    return ClassAttribute(found, is_data, is_seen, False)


def _with_names(method: Any, names: tuple[str, ...]) -> Any:
    """A method whose last arguments have names."""

    def named(x: Any, *args: Any) -> Any:
        count = len(args) - len(names)
        return method(x, *args[:count], **dict(zip(names, args[count:], strict=True)))

    return named


class Warned:
    """A warning, given by every run but the first: recording has given that."""

    def __init__(self, frame: FrameType, message: Any, category: Any = None) -> None:
        kind = category if isinstance(category, type) else UserWarning
        self._given = message, kind, frame.f_code.co_filename, frame.f_lineno
        self._is_due = False

    def __call__(self) -> None:
        """Warn, unless this is the first time."""
        if self._is_due:
            warnings.warn_explicit(*self._given)
        self._is_due = True


# ---- builtins that look at one thing


def _getattr(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if isinstance(args[1], str):
        watch.attribute(args[0], args[1])


def _setattr(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    watch.set_attribute(args[0], args[1], args[2] if len(args) > 2 else MISSING)


def _len(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if args:
        watch.length(frame, args[0])


def _vars(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if args and hasattr(args[0], "__dict__") and not isinstance(args[0], type | ModuleType):
        watch.journal.belongs(vars(args[0]), args[0])
        watch.journal.read(args[0], "attribute", "__dict__", vars(args[0]))
        watch.touch(frame, vars(args[0]))


def _dir(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    _vars(watch, frame, args)
    if args and not isinstance(args[0], ModuleType) and not objects.is_opaque(type(args[0])):
        for kind in args[0].__mro__ if isinstance(args[0], type) else type(args[0]).__mro__:
            if not objects.is_of_library(kind) and not _is_own(kind):
                watch.journal.read(kind, "names", None, tuple(vars(kind)))
    elif args and isinstance(args[0], ModuleType):
        watch.touch(frame, vars(args[0]))


def _exactly(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    for x in args:
        watch.exact(x)
        watch.touch(frame, x)


def _hashed(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    for x in args:
        watch.hashed(x)


def _identified(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    for x in args:
        watch.journal.identify(x)


def _isinstance(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if len(args) == 2:
        watch.related(type(args[0]), args[1], args[0])


def _issubclass(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if len(args) == 2:
        watch.related(*args)


def _callable(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if args and not objects.is_opaque(type(args[0])):
        watch._class_attribute(type(args[0]), "__call__")


def _import(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    if len(args) < 5:  # not relative
        watch.imported(args[0] if len(args) > 3 and args[3] else args[0].partition(".")[0])


def _nothing(watch: Watch, frame: FrameType, args: list[Any]) -> None:
    pass


_BUILTINS: dict[Any, Callable[[Watch, FrameType, list[Any]], None]] = {
    getattr: _getattr, hasattr: _getattr, setattr: _setattr, delattr: _setattr, len: _len,
    vars: _vars, dir: _dir, isinstance: _isinstance, issubclass: _issubclass, callable: _callable,
    id: _identified, locals: _nothing, globals: _nothing,
    repr: _exactly, format: _exactly, hash: _hashed, __import__: _import,
}  # fmt: skip

#: C functions that change an argument, which one.
_WRITERS: dict[Any, int] = {
    _count_elements: 0, struct.pack_into: 1,
    **dict.fromkeys((heapq.heappush, heapq.heappop, heapq.heapify, heapq.heapreplace), 0),
    **dict.fromkeys((heapq.heappushpop, bisect.insort, bisect.insort_left), 0),
    **dict.fromkeys((operator.setitem, operator.delitem, operator.iadd, operator.iconcat), 0),
    **dict.fromkeys((operator.ior, operator.iand, operator.isub, operator.ixor), 0),
    operator.imul: 0,
}  # fmt: skip
_ITEMS = (operator.setitem, operator.delitem)
_SYMBOLS: dict[Any, str] = {f: symbol for symbol, f in _INPLACE.items()}
_SYMBOLS[operator.iconcat] = "+="

_GETTERS = (operator.attrgetter, operator.itemgetter)
_C_CALLABLES = (
    BuiltinFunctionType, type(list.append), type(object.__init__), type([].__len__),
    type(dict.fromkeys), np.ufunc, type(np.concatenate),
)  # fmt: skip


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


# ---- instructions


def _plan(code: CodeType, module: str) -> Plan:
    """What to do before which instruction of a function; nothing for code that is not watched."""
    file = code.co_filename
    if code in objects.atomics or file.startswith(("<frozen importlib", "<frozen zipimport")):
        return {}
    if file.startswith("<") and module.startswith(("genesis.", "namedtuple_")):
        return {}  # made by `dataclass` and the like
    if file in _LIBRARY or (file.startswith(_ROOT) and not file.startswith(_OPEN)):
        return {}
    if file.startswith(tuple(backends.outside)):
        return {}
    return _plan_of(code) or _EMPTY_PLAN


def _plan_of(code: CodeType) -> Plan:
    plan: Plan = {}
    names: tuple[str, ...] = ()
    variables, depth = stack.places(code), stack.depths(code)
    begins: int | None = None  # where an instruction with a long argument begins
    for i in get_instructions(code):
        if i.opname == "EXTENDED_ARG":
            begins = i.offset if begins is None else begins
            continue
        if i.opname == "KW_NAMES":  # before 3.13, for the call that follows
            names = code.co_consts[i.arg or 0]
        found = _HANDLERS.get(i.opname)
        if found is not None and i.offset in depth:
            handler, argument = found
            given: Any = argument
            if argument == "value":
                given = i.argval
            elif argument == "number":
                given = i.arg
            elif argument == "symbol":
                given = i.argrepr
            elif argument == "call":
                given, names = (i.arg, names), ()
            elif argument == "cell":
                given = i.arg, str(i.argval)
            end, at = variables + depth[i.offset], (code, i.offset)
            entry = plan[i.offset] = InstructionEntry(handler, given, end, at, begins is not None)
            if begins is not None:
                plan[begins] = entry
        begins = None
    return plan


_plans: dict[CodeType, Plan] = {}
MOST_PLANS = 4096  #: of code, at a time
_EMPTY_PLAN: Plan = {-1: None}  # of code that is watched, with nothing to look at

#: By instruction: what is done before it, and what that is given besides the frame.
_HANDLERS: dict[str, tuple[Handler, Any]] = {
    name: (handler, given)
    for handler, given, names in (
        (Watch._load_global, "value", "LOAD_GLOBAL LOAD_NAME"),
        (Watch._import, "value", "IMPORT_NAME"),
        (Watch._store_global, "value", "STORE_GLOBAL"),
        (Watch._delete_global, "value", "DELETE_GLOBAL"),
        (Watch._load_cell, "cell", "LOAD_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF"),
        (Watch._store_cell, "cell", "STORE_DEREF"),
        (Watch._load_attribute, "value", "LOAD_ATTR LOAD_METHOD IMPORT_FROM"),
        (Watch._load_super, "value", "LOAD_SUPER_ATTR"),
        (Watch._store_attribute, "value", "STORE_ATTR"),
        (Watch._delete_attribute, "value", "DELETE_ATTR"),
        (Watch._load_item, None, "BINARY_SUBSCR"),
        (Watch._store_item, None, "STORE_SUBSCR"),
        (Watch._delete_item, None, "DELETE_SUBSCR"),
        (Watch._touch_top, 3, "BINARY_SLICE"),
        (Watch._store_slice, None, "STORE_SLICE"),
        (Watch._binary, "symbol", "BINARY_OP"),
        (Watch._is, None, "IS_OP"),
        (Watch._contains, None, "CONTAINS_OP"),
        (Watch._hashed_top, "number", "BUILD_SET"),
        (Watch._hashed_keys, "number", "BUILD_MAP"),
        (Watch._hashed_top, 1, "SET_ADD"),
        (Watch._hashed_keys, 1, "MAP_ADD"),
        (Watch._touch_top, 1, "GET_ITER GET_YIELD_FROM_ITER UNPACK_SEQUENCE UNPACK_EX GET_LEN"),
        (Watch._touch_top, 1, "LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE"),
        (Watch._touch_top, 2, "COMPARE_OP MATCH_KEYS"),
        (Watch._formatted, 1, "FORMAT_VALUE FORMAT_SIMPLE"),
        (Watch._formatted, 2, "FORMAT_WITH_SPEC"),
        (Watch._match_class, "number", "MATCH_CLASS"),
        (Watch._truth, None, "UNARY_NOT TO_BOOL POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE"),
        (Watch._truth, None, "POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE"),
        (Watch._truth, None, "POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE"),
        (Watch._truth, None, "JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP"),
        (Watch._call, "call", "CALL"),
        (Watch._call_keywords, "number", "CALL_KW"),
        (Watch._call_unpacked, "number", "CALL_FUNCTION_EX"),
    )
    for name in names.split()
}
