"""The journal of a recording: what a function read and wrote of the Python objects around it.

A recording runs a function once and is then used in its place. So every *place* that the function
read (an attribute, an item, a global, a cell) and did not write before is an assumption: it becomes
a guard. Every write to an object from outside is undone when the recording ends, and is done again
by each run: an *effect*. Objects that the function made itself concern nobody; which those are is
known at the end, when they are the youngest that the garbage collector has.

Entries come from two sides: `genesis.ndarray.tracing.bytecode_tracer` sees what Python code does,
instruction by instruction; the objects of Genesis itself (a tensor's gradient, an optimizer's
settings) report it.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import setitem
from sys import getrefcount
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from genesis.ndarray import pytree
from genesis.ndarray.core.value import CaptureError, Changes, Listener
from genesis.ndarray.tracing import object_introspection as objects
from genesis.ndarray.tracing.object_introspection import MISSING, contents, item, lookup, restore

#: Objects that change, and that the garbage collector takes no note of, or not always.
_UNNOTED = (dict, bytearray, np.ndarray)
#: So many questions whether an object is old are answered by looking at all the young ones.
FEW = 16
_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None), range)

Key = tuple[int, str, Any]


class Read(NamedTuple):
    """A place that was read: `kind` of place, `name` in `owner`, and what was there."""

    owner: Any
    kind: str
    name: Any
    value: Any
    at: tuple[CodeType | None, int] = (None, 0)  # the instruction


_read: Callable[[tuple[Any, ...]], Read] = partial(tuple.__new__, Read)  # thousands are made


class Effect(NamedTuple):
    """A write: ``function(owner, *args)`` does it again. `place`: what it writes, if it is one."""

    function: Callable[..., Any]
    owner: Any
    args: tuple[Any, ...]
    place: Key | None
    at: tuple[CodeType | None, int] = (None, 0)  # the instruction


#: Gives the function and the arguments of an effect, from its owner afterwards.
Describe = Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]


class Unsettled(NamedTuple):
    """An effect of which only what it leaves behind says what it was."""

    effect: Effect
    number: int  # among all effects, unless some were taken back
    describe: Describe
    is_running: Callable[[], bool]


class Aliased(Exception):
    """Arguments, by their paths, for which nothing can stand but themselves.

    The function meets them elsewhere, too, and writes something, or asks which objects they are.
    """

    def __init__(self, paths: Iterable[pytree.Path]) -> None:
        super().__init__()
        self.paths = {_of_whole(path) for path in paths}


def _of_whole(path: pytree.Path) -> pytree.Path:
    """The path of the object that has an array."""
    while path and path[-1][0] == "wrapped":
        path = path[:-1]
    return path


class Journal(Listener):
    """Reads and writes, in the order in which they happened."""

    def __init__(self) -> None:
        self.began = 0
        self.reads: dict[Key, Read] = {}
        self.effects: list[Effect] = []
        self.assumptions: list[tuple[Callable[[], Any], Any]] = []
        self.at: tuple[CodeType | None, int] = (None, 0)  # the instruction that is looked at
        self._assumed: dict[Any, Any] = {}
        #: Objects that it matters whether arguments are.
        self.compared: dict[int, Any] = {}
        #: Arguments that were found to be different objects, by their paths.
        self.distinct: dict[tuple[pytree.Path, pytree.Path], None] = {}
        self.asked: set[int] = set()  #: Numbers of objects that it matters which they are.
        self.foreign: set[int] = set()  #: Numbers of what stands for arguments of another class.
        #: The first thing that cannot be replayed. User code may have caught the error.
        self.refusal: Exception | None = None
        self._undo: list[tuple[Any, Callable[[], None]]] = []
        self._undo_if_failed: list[Callable[[], None]] = []
        self._unsettled: dict[int, Unsettled] = {}  # the last one on a container
        self._written: set[Key] = set()
        self._contents: dict[int, Any] = {}  # of containers, before they were first written
        self._kept: dict[int, Any] = {}  # every owner, so that no `id` is used twice
        self._untracked: dict[int, list[Any]] = {}  # by the collector, and who they were got from
        self._young: set[int] | None = None
        self._old: set[int] | None = None
        self._questions = 0  # about objects, while the function runs
        #: What stands for arguments, which are from outside, and where in the arguments those are.
        self._known: dict[int, pytree.Path] = {}
        #: By the dictionary of its attributes, an object whose attributes were reached by that.
        self.owners: dict[int, Any] = {}
        self.written_in_classes: set[str] = set()  #: Names that were given to classes.

    # ---- reading
    def read(self, owner: Any, kind: str, name: Any, value: Any) -> None:
        """A place was read."""
        number = id(owner)
        if kind == "item" and isinstance(owner, deque) and number in self._contents:
            kind, name = "content", None  # what was added may have moved the others
        key = (number, kind, name)
        if key in self.reads or key in self._written:
            return
        if number not in self._kept:
            self._keep(owner)
        if kind == "content" or kind == "length":
            before = self._contents.get(id(owner))
            if before is not None and kind == "length" and isinstance(owner, set | dict):
                self.read(owner, "content", None, before)  # what was added may have been there
                return
            if before is not None:
                value = len(before) if kind == "length" else before
        elif kind == "item" and id(owner) in self._contents:
            value = item(self._contents[id(owner)], name)
        self.reads[key] = _read((owner, kind, name, value, self.at))
        if not gc.is_tracked(value):
            self.found(value, owner)

    def has_read(self, key: Key) -> bool:
        """Whether a place was read before, and not written."""
        return key in self.reads and key not in self._written

    def found(self, value: Any, owner: Any) -> None:
        """A value was got from an object: if that is from outside, so is the value."""
        if not gc.is_tracked(value) and not isinstance(value, _IMMUTABLE):
            self._keep(value)
            self._keep(owner)
            self._untracked.setdefault(id(value), []).append(owner)

    def belongs(self, value: Any, owner: Any) -> None:
        """A dictionary has the attributes of an object: it is from outside if that is.

        Python may have made it only now.
        """
        if value is owner:
            return
        if not objects.is_opaque(type(owner)):
            self.owners[id(value)] = owner
        self._keep(value)
        self._keep(owner)
        self._untracked.setdefault(id(value), []).append(owner)

    def assume(self, read: Callable[[], Any]) -> None:
        """What `read` gives was read."""
        key = id(getattr(read, "__self__", read)), getattr(read, "__func__", None)
        if key not in self._assumed:
            self._assumed[key] = read
            self.assumptions.append((read, read()))

    def compare(self, a: Any, b: Any) -> None:
        """Whether two objects are one was asked. What stands for an argument is none of them."""
        if a is not b and id(a) in self._known and id(b) in self._known:
            self.distinct[self._known[id(a)], self._known[id(b)]] = None
        for x, y in ((a, b), (b, a)):
            if isinstance(y, _IMMUTABLE):
                continue
            self.asked.add(id(x))
            if id(x) in self._known:
                self._keep(y)
                self.compared[id(y)] = y

    def identify(self, x: Any) -> None:
        """Which object it is matters, to a dictionary for instance: nothing can stand for it."""
        self.asked.add(id(x))
        if id(x) in self._known:
            self.refuse(Aliased([self._known[id(x)]]))

    def reading(self, owner: Any, name: str, value: Any) -> None:
        """An attribute is read."""
        self.read(owner, "attribute", name, value)

    def reading_all(self, owner: Any) -> None:
        """All that a container holds is read."""
        self.read(owner, "content", None, contents(owner))

    def reading_length(self, owner: Any) -> None:
        """How much a container holds is read."""
        self.read(owner, "length", None, len(owner))

    def calling(self, kind: type, name: str) -> None:
        """A method of a class is called."""
        self.read(kind, "class attribute", name, lookup(kind, name))

    def naming(self, names: dict[str, Any], name: str) -> None:
        """A name of a module is read."""
        self.read(names, "item", name, names.get(name, MISSING))

    # ---- writing
    def has_written(self, owner: Any, name: str, kind: str = "attribute") -> bool:
        """Whether the function has written an attribute already."""
        return (id(owner), kind, name) in self._written

    def names_before(self, owner: Any) -> tuple[str, ...]:
        """The names of the attributes that an object had."""
        number, now = id(owner), vars(owner)
        written = {
            undo.args[1]: undo.args[2]
            for x, undo in self._undo
            if x is owner and isinstance(undo, partial) and len(undo.args) == 3
        }
        if not any((number, "attribute", name) in self._written for name in written):
            return tuple(now)
        kept = [n for n in now if written.get(n) is not MISSING]
        return (*kept, *(n for n, x in written.items() if x is not MISSING and n not in now))

    def write(
        self,
        owner: Any,
        kind: str,
        name: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        undo: Callable[[], None],
    ) -> None:
        """A place is about to be written by ``function(owner, *args)``."""
        key = (id(owner), kind, name)
        self._keep(owner)
        if key not in self._written:
            self._written.add(key)
            self._undo.append((owner, undo))
        self.effects.append(Effect(function, owner, args, key, self.at))

    def change(self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A container is about to be changed by ``function(owner, *args)``."""
        self._settle(owner)
        self._keep(owner)
        if id(owner) not in self._contents:
            before = self._contents[id(owner)] = contents(owner)
            self._undo.append((owner, lambda: restore(owner, before)))
        self.effects.append(Effect(function, owner, args, None, self.at))

    def change_somehow(
        self, owner: Any, describe: Describe, is_running: Callable[[], bool] = bool
    ) -> None:
        """A container is about to be changed in a way that `describe` finds out afterwards.

        `is_running`: whether the change still goes on, in code that is seen.
        """
        self.change(owner, _unknown, ())
        number = len(self.effects) - 1
        last = Unsettled(self.effects[number], number, describe, is_running)
        self._unsettled[id(owner)] = last

    def _settle(self, owner: Any) -> None:
        """What was changed somehow is about to change again, or the recording ends."""
        last = self._unsettled.pop(id(owner), None)
        if last is None:
            return
        effect, number, describe, is_running = last
        if is_running():
            self.refuse(
                CaptureError(
                    "genesis.jit: the function fills a container from an iterator that changes "
                    "it; make a list of what that gives first"
                )
            )
        while number >= len(self.effects) or self.effects[number] is not effect:
            number -= 1
        function, args = describe(owner)
        self.effects[number] = effect._replace(function=function, args=args)

    def set_item(self, owner: Any, name: Any, value: Any, function: Callable[..., Any]) -> None:
        """An item of a container is about to be set, or with a value MISSING deleted."""
        args = (name,) if value is MISSING else (name, value)
        self.change(owner, function, args)
        key = (id(owner), "item", name)
        self._written.add(key)
        self.effects[-1] = self.effects[-1]._replace(place=key)

    def writing(self, owner: Any, name: str, value: Any) -> None:
        """An attribute is about to be written."""
        undo = partial(setattr, owner, name, getattr(owner, name))
        counts: Any = getattr(type(owner), "__genesis_counted__", ())
        function = _set_counted if counts is not True and name in counts else setattr
        self.write(owner, "attribute", name, function, (name, value), undo)

    def replaced(self, owner: Any, name: str, value: Any) -> Callable[[], None]:
        """An attribute is another for a while: what is read then is not what will be there."""
        key = (id(owner), "attribute", name)
        self.reading(owner, name, value)
        self._written.add(key)
        return partial(self._written.discard, key)

    def setting(self, owner: Any, name: Any, value: Any, function: Callable[..., Any]) -> None:
        """An item is about to be set by ``function(owner, name, value)``."""
        undo = partial(function, owner, name, owner.get(name))
        self.write(owner, "item", name, function, (name, value), undo)

    def if_it_fails(self, undo: Callable[[], None]) -> None:
        """Something was done that stays, unless the recording fails."""
        self._undo_if_failed.append(undo)

    def take_back(self, effect: Effect) -> None:
        """An effect was entered that did not come."""
        if effect.function is _unknown:
            self._unsettled.pop(id(effect.owner), None)
        self.effects = [e for e in self.effects if e is not effect]
        place = effect.place
        if place is not None and all(e.place != place for e in self.effects):
            self._written.discard(place)

    def act(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Something is to be done by every run."""
        self.effects.append(Effect(function, None, args, None, self.at))

    def refuse(self, error: Exception) -> None:
        """The function did something that no run could do again."""
        if self.refusal is None:
            self.refusal = error
        raise error

    def introduce(self, parts: Iterable[tuple[Any, pytree.Path]]) -> None:
        """Take objects for what stands for arguments."""
        for x, path in parts:
            self._keep(x)
            self._known[id(x)] = path

    def is_known(self, x: Any) -> bool:
        """Whether an object was introduced as one that stands for an argument."""
        return id(x) in self._known

    def _keep(self, owner: Any) -> None:
        if id(owner) not in self._kept:
            self._kept[id(owner)] = owner
            if not gc.is_tracked(owner):
                self._untracked.setdefault(id(owner), [])

    # ---- the end
    def undo(self) -> None:
        """Undo all writes to objects from outside, the last one first."""
        if self._undo and self._young is None:
            self._young = _youngest()
        while self._undo:
            owner, undo = self._undo.pop()
            if self.is_outer(owner):
                undo()

    def roll_back(self) -> None:
        """Undo what was written, and if the recording failed what was done for it."""
        self.undo()
        while self._undo_if_failed:
            self._undo_if_failed.pop()()

    def succeed(self) -> None:
        """The recording is made: what was done for it stays."""
        self._undo_if_failed.clear()

    def forget(self) -> None:
        """Let go of everything, whoever still has the journal."""
        self.__init__()  # type: ignore[misc]

    def close(self) -> None:
        """Find out which objects are the function's own, and forget about those."""
        for unsettled in list(self._unsettled.values()):
            self._settle(unsettled.effect.owner)
        self._young = _youngest()
        self._find_holders()
        # What a dictionary made for a missing key may have been filled since.
        self.effects = [
            e._replace(function=setitem, args=(e.args[0], item(e.owner, e.args[0])))
            if e.function is defaultdict.__missing__
            else e
            for e in self.effects
        ]
        owners = {key[0]: r.owner for key, r in self.reads.items()}
        outer = {number for number, x in owners.items() if self.is_outer(x)}
        self.reads = {k: r for k, r in self.reads.items() if k[0] in outer}
        for r in self.reads.values():
            if r.kind == "numbers" and r.owner.tobytes() != r.value.tobytes():
                r.owner[...] = r.value
                raise CaptureError(
                    "genesis.jit: the function writes to a NumPy array from outside, and a "
                    "recorded program could not do that again; do it outside of the function"
                )
        self.assumptions = [
            (read, value)
            for read, value in self.assumptions
            if (x := getattr(read, "__self__", None)) is None
            or (self.is_outer(x) and not self.is_known(x))  # what stands for an argument goes
        ]
        # Of several writes to one place the last one counts, unless the container changed as well.
        changed = {id(e.owner) for e in self.effects if e.place is None}
        # It comes where the first one was: new names are in the order in which they were given.
        last: dict[Key, Effect | None] = {}
        deleted: set[Key] = set()  # and may be given anew, then at the end
        for e in self.effects:
            if e.place is not None and e.place[0] not in changed:
                last[e.place] = e
                if len(e.args) == 1 and e.place[1] != "cell":
                    deleted.add(e.place)
        kept: list[Effect] = []
        for e in self.effects:
            if e.owner is not None and not self.is_outer(e.owner):
                continue
            if e.place is None or e.place not in last or e.place in deleted:
                kept.append(e)
            elif (newest := last[e.place]) is not None:
                kept.append(newest)
                last[e.place] = None
        self.effects = kept
        for e in self.effects:
            if e.place is not None and e.place[2] == "_creator":
                raise CaptureError(
                    "genesis.jit: the function writes in place to a tensor from outside, and "
                    "gradients are recorded: the tensor would become part of a graph. Write under "
                    "no_grad(), or return the result"
                )

    def is_outer(self, x: Any) -> bool:
        """Whether an object was there before the function ran."""
        if id(x) in self._known:
            return True
        sources = self._untracked.get(id(x))
        if sources is None:
            return gc.is_tracked(x) and self._is_old(x)
        # The collector takes no note of some objects, and not of dictionaries before they hold
        # others: those are from outside that were found there.
        if not sources and isinstance(x, _UNNOTED):
            self._find_holders()
        return any(s is not x and self.is_outer(s) for s in sources)

    def _is_old(self, x: Any) -> bool:
        """Whether an object that the collector takes note of was there before."""
        if self._young is not None:
            return id(x) not in self._young
        self._questions += 1
        # What is frozen is in no generation, and counting it takes a look at each.
        if self._questions == FEW + 1 and not gc.get_freeze_count():
            self._old = set(map(id, gc.get_objects(1) + gc.get_objects(2)))
        # What was there and is gone may have left its number.
        if self._old is not None and id(x) not in self._old:
            return False
        return id(x) not in _youngest()

    def _find_holders(self) -> None:
        """Look for who has the objects that were got from nowhere, by a C function for instance."""
        unknown = {
            number: self._kept[number]
            for number, sources in self._untracked.items()
            if not sources and isinstance(self._kept[number], _UNNOTED)
            if number not in self._known
        }
        for number in self._held_alone(unknown) if unknown else ():
            self._untracked[number].append(unknown.pop(number))
        if not unknown:
            return
        stored = {(id(x), id(e.owner)) for e in self.effects for x in e.args}
        stored |= {
            (id(x), id(vars(e.owner)))
            for e in self.effects
            for x in e.args
            if hasattr(e.owner, "__dict__") and not isinstance(e.owner, type)
        }
        own = {id(self._kept), id(unknown), id(self.compared)}
        for holder in gc.get_referrers(*unknown.values()):
            if id(holder) in own:
                continue
            for x in gc.get_referents(holder):
                # What the function has put there itself is no witness.
                if id(x) in unknown and (id(x), id(holder)) not in stored:
                    self._untracked[id(x)].append(holder)
        for number, x in unknown.items():
            self._untracked[number].append(x)  # looked for

    def _held_alone(self, unknown: dict[int, Any]) -> list[int]:
        """Which of the objects nobody has but this journal; asking who has one takes long."""
        holders = chain(
            self._kept.values(),
            chain.from_iterable((r.owner, r.value) for r in self.reads.values()),
            chain.from_iterable((e.owner, *e.args) for e in self.effects),
            (owner for owner, _ in self._undo),
            chain.from_iterable(self._untracked.values()),
        )
        held = Counter(filter(unknown.__contains__, map(id, holders)))
        sample: dict[int, Any] = {0: {}}
        here = getrefcount(sample[0])  # by `unknown` and the call
        return [n for n in unknown if getrefcount(unknown[n]) <= held[n] + here]


def _unknown(owner: Any) -> None:
    """What an effect does that was not settled."""
    raise AssertionError("an effect is not known")


def _set_counted(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of an object that counts its changes where they are made, not when."""
    if getattr(owner, name) is not value:
        Changes.count += 1
    setattr(owner, name, value)


def _youngest() -> set[int]:
    """Which objects were made since `aging` began."""
    return set(map(id, gc.get_objects(generation=0)))


@contextmanager
def aging() -> Iterator[None]:
    """Have the garbage collector tell objects that are made in the ``with`` block from others."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
