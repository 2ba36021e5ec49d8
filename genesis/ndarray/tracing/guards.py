"""Guards: what a recorded program assumed about the Python around the function.

Recording runs the function once, so every place it read (`genesis.ndarray.tracing.journal`) is an
assumption of the program. Numbers, strings and other plain values are compared by type and value,
everything else by identity. A container is compared where its items, its length or all of it were
read, not where it was found. Nothing is kept alive by being compared: objects are referred to
weakly, and containers, which cannot be, by the place they were found in.

Most places are in objects that count their changes (layers, parameters, optimizers). While that
count stands still, they are not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import repeat
from operator import attrgetter, call, is_, is_not
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from genesis.ndarray.core.source_lines import describe as located
from genesis.ndarray.core.value import Changes
from genesis.ndarray.pytree import Pinned
from genesis.ndarray.tracing import object_introspection as objects
from genesis.ndarray.tracing.journal import Read
from genesis.ndarray.tracing.object_introspection import CONTAINERS, MISSING, PLAIN

Source = Callable[[], Any]
_PLAIN = (bool, int, str, bytes, range, type(None))
#: Objects that are not worth a weak reference.
_LIGHT = (
    FunctionType, BuiltinFunctionType, ModuleType, type, type(MISSING), bool, int, str, type(None),
)  # fmt: skip
_VALUES = (bool, int, float, complex, str, bytes, type(None))
#: What classes have that gives itself when it is read from the class.
_METHODS = (FunctionType, property, type(list.append), type(object.__init__))
_UNSETTLED = (*CONTAINERS, tuple, frozenset, np.ndarray, Pinned)


class Guard(NamedTuple):
    """What one value should be."""

    same: Source  # the object it was; None where that proves nothing
    elements: list[Source] | None  # of a container where identity of each proves enough
    expected: Any

    @staticmethod
    def on(value: Any) -> Guard:
        """A guard that accepts what is as good as `value`."""
        same = weakly(value) if _is_settled(value) else nothing
        return Guard(same, _elements(value), fingerprint(value))

    def accepts(self, value: Any) -> bool:
        """Whether code that reads `value` does the same."""
        same, elements, expected = self
        if value is same() and value is not None:  # None: the object has died
            return True
        kind = type(value)
        if elements is not None and kind is expected[0] and len(value) == len(elements):
            named = isinstance(value, dict)
            members = value.values() if named else value
            if all(map(is_, members, map(call, elements))):
                return not named or tuple(value) == expected[1]
        return bool(fingerprint(value) == expected)


class PlainValue(NamedTuple):
    """What a place with a number, a text or a tuple of such should hold."""

    value: Any

    def accepts(self, value: Any) -> bool:
        """Whether it is as good."""
        return value is self.value or bool(fingerprint(value) == fingerprint(self.value))


class Container(NamedTuple):
    """What a place with a container should hold: one of the same kind. Its contents are apart."""

    kind: type

    def accepts(self, value: Any) -> bool:
        """Whether it is such a container."""
        return type(value) is self.kind


class Place(NamedTuple):
    """Where to look: it gives what is there now, MISSING if that is nothing."""

    owner: Source
    kind: str
    name: Any

    def __call__(self) -> Any:
        """What is there."""
        owner = self.owner()
        return (
            MISSING if owner is None or owner is MISSING else READERS[self.kind](owner, self.name)
        )


class Alike:
    """What one look gives for many objects, each with the object it should give.

    `single`: that is None, True or False for each; otherwise it is referred to weakly.
    """

    __slots__ = ("_look", "_single", "expected", "name", "owners")

    def __init__(self, look: Callable[[Any], Any], name: Any, single: bool) -> None:
        self._look, self.name, self._single = look, name, single
        self.owners: list[Source] = []
        self.expected: list[Any] = []

    def __call__(self) -> bool:
        """Whether every one does."""
        try:
            values = list(map(self._look, map(call, self.owners)))
        except (AttributeError, ValueError):  # deleted, or an empty cell
            return False
        if self._single:
            return all(map(is_, values, self.expected))
        same = all(map(is_, values, map(call, self.expected)))
        return same and all(map(is_not, values, repeat(None)))  # None: the object has died

    def accepts(self, holds: bool) -> bool:
        """What the call gave, said to somebody who asks for a guard."""
        return holds


class Groups(dict[tuple[Any, ...], Alike]):
    """Places that are looked at together, by whether they are counted and what is looked at."""

    def take(self, counted: bool, look: Any, name: Any, owner: Source, value: Any) -> bool:
        """Expect to find `value`; False if identity does not prove enough."""
        single = value is None or value is True or value is False
        same = value if single else _identified(value)
        if same is None and not single:
            return False
        key = (counted, look, name, single)
        found = self.get(key)
        if found is None:
            made = attrgetter(name) if look is getattr else look
            found = self[key] = Alike(made, name, single)
        found.owners.append(owner)
        found.expected.append(same)
        return True


class Guards:
    """The assumptions of one recording, and whether they still hold.

    Containers that were `changed`, or asked which ones they are, must be the ones that other places
    hold, and no others. What `special` says of a read, by its number, is looked at in its place.
    """

    __slots__ = (
        "_attributes", "_count", "_counted", "_guards", "_items", "_lines", "_names", "_values",
    )  # fmt: skip

    def __init__(
        self,
        reads: Sequence[Read],
        assumed: Sequence[tuple[Source, Any]],
        sources: Sources,
        special: Mapping[int, Any] = MappingProxyType({}),
        changed: Set[int] = frozenset(),
    ) -> None:
        alike = Groups()
        self._guards: list[tuple[Place | Source, Any]] = []
        self._counted: list[tuple[Place | Source, Any]] = []
        #: What most functions read, looked at without detours: names, with what is not worth a weak
        #: reference; names and attributes with what gives the object that they should be.
        self._names: list[tuple[Callable[..., Any], Any, Any]] = []
        self._items: list[tuple[Callable[..., Any], Any, Source]] = []
        self._attributes: list[tuple[Source, str, Source]] = []
        #: Attributes and variables that are plain values: those are as good as their equals.
        self._values: list[tuple[Source, str, Any, Place]] = []
        self._lines: dict[int, tuple[CodeType | None, int]] = {}  # where places were read
        for read in reads:
            counted = _is_counted(read)
            look = _LOOKS.get(read.kind)
            if look is getattr and (
                read.value is MISSING or objects.is_asked_in_python(type(read.owner))
            ):
                look = None  # for which `getattr` will not do
            elif (look is None or not counted) and self._is_direct(read, counted, sources):
                continue
            owner = sources(read.owner)
            if look is not None and alike.take(counted, look, read.name, owner, read.value):
                continue
            place = Place(owner, read.kind, read.name)
            self._lines[id(place)] = read.at
            guard = special.get(id(read)) or _guard(read)
            (self._counted if counted else self._guards).append((place, guard))
        for source, value in assumed:
            if isinstance(source, MethodType):
                look, owner = source.__func__, ref(source.__self__)
                if alike.take(True, look, None, owner, value):
                    continue
            self._counted.append((weak_method(source), Guard.on(value)))
        looked = changed | {id(read.owner) for read in reads}
        places = [found for found in sources.containers.values() if found[2] in looked]
        if len(places) > 1 and not changed.isdisjoint(number for *_, number in places):
            firsts = _firsts([number for *_, number in places])
            same: Any = SameOnes([sources.place(read, way) for read, way, _ in places], firsts)
            self._guards.append((same, same))
        self._guards += [(found, found) for key, found in alike.items() if not key[0]]
        self._counted += [(found, found) for key, found in alike.items() if key[0]]
        self._count = -1

    def _is_direct(self, read: Read, counted: bool, sources: Sources) -> bool:
        """Take a place that is looked at without detours."""
        owner, kind, name, value, _ = read
        if kind == "item":
            if type(owner) is not dict or "__name__" not in owner:
                return False
            if isinstance(value, _LIGHT):
                self._names.append((owner.get, name, value))
                return True
            same = _identified(value)
            if same is not None:
                self._items.append((owner.get, name, same))
            return same is not None
        if kind == "code":
            self._attributes.append((ref(owner), "__code__", _constant(value)))
            return True
        if kind == "class attribute" and isinstance(value, _METHODS):
            self._attributes.append((ref(owner), name, _constant(value)))
            return True
        if kind == "cell" or (kind == "attribute" and not counted):
            found = "cell_contents" if kind == "cell" else name
            if _is_plain(value):
                place = Place(sources(owner), kind, name)
                self._lines[id(place)] = read.at
                self._values.append((place.owner, found, value, place))
                return True
            same = _identified(value)
            if same is not None:
                self._attributes.append((sources(owner), found, same))
            return same is not None
        return False

    def hold(self) -> bool:
        """Whether every place still has the value it had."""
        for get, name, value in self._names:
            if get(name, MISSING) is not value:
                return False
        for get, name, same in self._items:
            found = get(name)
            if found is None or found is not same():  # None: the object has died
                return False
        try:
            for owner, name, same in self._attributes:
                found = getattr(owner(), name)
                if found is None or found is not same():
                    return False
            for owner, name, value, _ in self._values:
                found = getattr(owner(), name)
                if found is not value and fingerprint(found) != fingerprint(value):
                    return False
        except (AttributeError, ValueError):  # deleted, or an empty cell
            return False
        for place, guard in self._guards:
            if not guard.accepts(place()):
                return False
        if self._count != Changes.count:
            count = Changes.count
            for place, guard in self._counted:
                if not guard.accepts(place()):
                    return False
            self._count = count
        return True

    def failing(self) -> str | None:
        """What does not hold, in words."""
        for get, name, value in self._names:
            if value is MISSING and get(name, MISSING) is not MISSING:
                return f"the name {name!r} has been defined"
        values = [(place, Guard.on(value)) for _, _, value, place in self._values]
        for place, guard in (*values, *self._guards, *self._counted):
            if not guard.accepts(place()):
                code, instruction = self._lines.get(id(place), (None, 0))
                where = "" if code is None else f" (read at {located(code, instruction)})"
                return describe(place) + where
        for get, name, value in self._names:
            if get(name, MISSING) is not value:
                return f"a global of {get('__name__')} is another object"
        return None

    def __len__(self) -> int:
        direct = len(self._names) + len(self._items) + len(self._attributes) + len(self._values)
        return direct + len(self._guards) + len(self._counted)


def _is_counted(read: Read) -> bool:
    """Whether a place is in an object that counts its changes.

    Settings of users' own layers are looked at every time: what is written to ``vars(layer)`` or by
    ``object.__setattr__`` nobody counts.
    """
    kind = type(read.owner)
    counts: Any = getattr(kind, "__genesis_counted__", None)
    if counts is None:
        return False
    if counts is not True:
        return read.kind == "attribute" and read.name in counts
    if read.kind != "attribute" or kind.__module__.startswith("genesis."):
        return True
    return read.name not in getattr(read.owner, "__dict__", ())


def _identified(value: Any) -> Source | None:
    """What gives an object again whose identity is proof enough; None for others."""
    weak = type(value).__weakrefoffset__ and _is_settled(value)
    return ref(value) if weak else None


def _guard(read: Read) -> Any:
    value = read.value
    if read.kind == "content" and type(value) in (list, dict):
        return Guard.on(value)
    if read.kind in ("content", "numbers", "defaults"):
        return Content(fingerprint(value))
    if _is_by_place(value):
        return Container(type(value))
    if isinstance(value, CONTAINERS):
        return Guard(weakly(value), None, SameObject(value))
    return PlainValue(value) if _is_plain(value) else Guard.on(value)


def _is_by_place(value: Any) -> bool:
    """Whether any container of its class will do in its place, if it holds the same."""
    return isinstance(value, CONTAINERS) and (type(value) in PLAIN or _weakref(value) is None)


class SameOnes(NamedTuple):
    """Which of several places should hold one container, by the first place that holds it."""

    places: list[Source]
    expected: list[int]

    def __call__(self) -> bool:
        """Whether those do, and no others."""
        return _firsts([id(place()) for place in self.places]) == self.expected

    def accepts(self, holds: bool) -> bool:
        """What the call gave, said to somebody who asks for a guard."""
        return holds


def _firsts(numbers: Sequence[int]) -> list[int]:
    found: dict[int, int] = {}
    return [found.setdefault(n, k) for k, n in enumerate(numbers)]


class Content(NamedTuple):
    """What a container should hold, member by member."""

    expected: Any

    def accepts(self, value: Any) -> bool:
        """Whether it holds the same."""
        return bool(value is not MISSING and fingerprint(value) == self.expected)


#: The way from a value to a part of it: keys of members. There is none by None.
Way = tuple[Any, ...]
#: Reads whose values are copies, made to be compared.
COPIES = ("content", "defaults")


def parts(value: Any, is_copy: bool, way: Way = ()) -> Sequence[tuple[Way, Any]]:
    """What was read with a value: itself, or what tuples and copies of containers hold."""
    if not isinstance(value, _WITH_PARTS if is_copy else _INSEPARABLE):
        return ((way, value),)
    if isinstance(value, dict):
        members: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, set | frozenset):
        members = ((None, x) for x in value)
    else:
        members = enumerate(value)
    return [found for key, x in members for found in parts(x, False, (*way, key))]


#: What is what it holds; and containers that were copied, whose contents are what was read.
_INSEPARABLE = (tuple, frozenset)
_WITH_PARTS = (*_INSEPARABLE, *CONTAINERS)


class Sources:
    """How to find objects again without keeping them alive.

    What cannot be referred to weakly is found where it was read from.
    """

    def __init__(self, reads: Iterable[Read]) -> None:
        self._known: dict[int, Source] = {}
        #: Where objects were read, and containers, by their number, inside of others.
        self._found: dict[int, tuple[Read, Way]] = {}
        self.containers: dict[tuple[int, str, Any, Way], tuple[Read, Way, int]] = {}
        for r in reads:
            if r.kind not in _LEADING and r.kind != "content":
                continue
            if isinstance(r.value, tuple):
                self._found[id(r.value)] = r, ()
            for way, x in parts(r.value, r.kind == "content"):
                if isinstance(x, CONTAINERS) and None not in way:
                    self.containers[(id(r.owner), r.kind, r.name, way)] = r, way, id(x)
                    self._found[id(x)] = r, way
                elif not way:
                    self._found[id(x)] = r, way

    def __call__(self, x: Any) -> Source:
        """What gives an object again."""
        known = self._known.get(id(x))
        if known is not None:
            return known
        read, way = self._found.get(id(x), (None, ()))
        weak = None if read is not None and (way or _is_by_place(x)) else _weakref(x)
        if weak is not None:
            return weak
        self._found.pop(id(x), None)  # once: what contains itself is kept
        self._known[id(x)] = source = _constant(x) if read is None else self.place(read, way)
        return source

    def place(self, read: Read, way: Way) -> Source:
        """What gives what was read, or a part of it, again."""
        place: Any = self(read.owner)
        if read.kind != "content":
            place = Place(place, read.kind, read.name)
        for key in way:
            place = Place(place, "item", key)
        return place  # type: ignore[no-any-return]

    def has_found(self, x: Any) -> bool:
        """Whether an object was read somewhere."""
        return id(x) in self._found or id(x) in self._known

    def know(self, x: Any, source: Source) -> None:
        """Have an object found in a way of its own."""
        self._known[id(x)] = source


def _content(x: Any, _: Any) -> Any:
    if type(x) is list or type(x) is dict:
        return x
    return objects.contents(x) if isinstance(x, CONTAINERS) else MISSING


def defaults_of(f: Any, _: Any = None) -> Any:
    """The default arguments of a function; those that can change by identity."""
    named = f.__kwdefaults__ or {}
    return [
        (k, type(x) if isinstance(x, CONTAINERS) else x)
        for k, x in [*enumerate(f.__defaults__ or ()), *named.items()]
    ]


#: How to read each kind of place.
READERS: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": objects.attribute_of,
    "class attribute": objects.lookup,
    "item": objects.item,
    "cell": lambda x, _: objects.attribute_of(x, "cell_contents"),
    "class": lambda x, _: type(x),
    "names": lambda x, _: tuple(vars(x)),
    "instance": isinstance,
    "subclass": issubclass,
    "own": lambda x, name: getattr(x, "__dict__", {}).get(name, MISSING),
    "class own": lambda x, name: vars(x).get(name, MISSING),
    "fields": lambda x, _: tuple(getattr(x, "__dict__", ())),
    "content": _content,
    "length": lambda x, _: len(x) if isinstance(x, CONTAINERS) else MISSING,
    "numbers": lambda x, _: x,
    "defaults": defaults_of,
    "target": lambda x, _: x(),
    "code": lambda x, _: x.__code__,
}
#: What objects that are looked at together are looked at with.
_LOOKS: dict[str, Any] = {"attribute": getattr, "class": type}
_LEADING = ("attribute", "cell", "class attribute", "item", "target")


def describe(place: Any) -> str:
    """A place in words."""
    if isinstance(place, Alike):
        return "a setting" if place.name is None else f"the attribute {place.name!r} of an object"
    if isinstance(place, SameOnes):
        return "which places hold the same container"
    if not isinstance(place, Place):
        return "a setting"
    owner = place.owner()
    what = f"a {type(owner).__name__}"
    if isinstance(place.owner, Place):
        what = describe(place.owner)
    elif isinstance(owner, dict) and "__name__" in owner:
        return f"the global {place.name!r}"
    if place.kind == "cell":
        return f"the variable {place.name!r}"
    if place.kind in ("instance", "subclass"):
        return f"whether {what} is a {place.name.__name__}"
    if place.kind == "class attribute":
        return f"the attribute {place.name!r} of {getattr(owner, '__name__', what)}"
    if place.kind in ("attribute", "own"):
        return f"the attribute {place.name!r} of {what}"
    if place.kind == "item":
        return f"the item {place.name!r} of {what}"
    return f"the {place.kind} of {what}"


def fingerprint(value: Any) -> Any:
    """What is compared: equal fingerprints mean that code reading the value does the same."""
    kind = type(value)
    if isinstance(value, float | complex):
        return kind, repr(value)  # tells 0.0 from -0.0, and nan equals itself
    if isinstance(value, _PLAIN):
        return kind, value
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple | list | deque):
        return kind, tuple([fingerprint(x) for x in value])
    if isinstance(value, dict):
        return kind, tuple(value), tuple([fingerprint(x) for x in value.values()])
    if isinstance(value, set | frozenset):
        return kind, frozenset([fingerprint(x) for x in value])
    if isinstance(value, bytearray):
        return kind, bytes(value)
    if kind is slice:
        return kind, fingerprint((value.start, value.stop, value.step))
    if kind is Pinned:
        return kind, SameObject(value.object)
    if kind is MethodType:
        return kind, SameObject(value.__self__), SameObject(value.__func__)
    return SameObject(value)


class SameObject:
    """An object compared by identity. It may die: then it equals nothing."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        self._value = weakly(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameObject):
            return False
        mine = self._value()
        return self is other or (mine is not None and mine is other._value())

    def __hash__(self) -> int:
        return self._hash


def weakly(value: Any) -> Source:
    """What gives `value` without keeping it alive, where its type allows that."""
    return _weakref(value) or (lambda: value)


def _weakref(value: Any) -> Source | None:
    # Asked before it is tried: most values are numbers, and an exception takes ten times as long.
    return ref(value) if type(value).__weakrefoffset__ else None


def weak_method(read: Source) -> Source:
    """What gives what a method gives, without keeping the object it is of alive."""
    if not isinstance(read, MethodType):
        return read
    owner, function = ref(read.__self__), read.__func__

    def weak() -> Any:
        x = owner()
        return MISSING if x is None else function(x)

    return weak


def nothing() -> None:
    """What gives no object."""


def _constant(value: Any) -> Source:
    return lambda: value


def _is_settled(value: Any) -> bool:
    """Whether the same object is proof enough: it cannot have changed in a guarded way."""
    return not isinstance(value, _UNSETTLED) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text or a tuple of such: it never changes, and keeps nothing."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in _VALUES


def _elements(value: Any) -> list[Source] | None:
    """What identifies the elements of a plain container, if each of them is settled."""
    named = isinstance(value, dict)  # those of modules are of a class of their own
    if not named and type(value) not in (tuple, list):
        return None
    members = list(value.values() if named else value)
    return [weakly(x) for x in members] if all(map(_is_settled, members)) else None
