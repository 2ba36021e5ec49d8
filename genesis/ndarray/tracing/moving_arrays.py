"""Moving arrays: those that are another one in every call, and are known by their place.

A function that gives a place another array (``state.h = f(state.h)``, items of lists, dictionaries
and tuples, a deque of the last frames) reads there, when it runs again, what the run before has put
there. Comparing identities would record it anew at every call. So the place is the input: what lies
there only has to be an array of the same kind. That holds where nothing else leads to the array,
and nobody asks which object it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from genesis.ndarray import pytree
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.tracing.guards import COPIES, Source, Way, fingerprint, parts
from genesis.ndarray.tracing.journal import Journal, Key, Read
from genesis.ndarray.tracing.object_introspection import MISSING

_GRADIENT = "attribute", "_gradient"
#: What most places hold, and never an array.
_WITHOUT_ARRAYS = frozenset((
    bool, int, float, str, type(None), type, type(MISSING), FunctionType, ModuleType, CodeType,
))  # fmt: skip


class MovingArray(NamedTuple):
    """An array, or what wraps one, by where it was read: in `read`, and from there on `way`."""

    value: Any
    read: Read
    way: Way

    @property
    def key(self) -> tuple[Key, Way]:
        """Its place: members of a container that was read as a whole are items."""
        owner, kind, name, *_ = self.read
        if kind == "content":
            return (id(owner), "item", self.way[0]), self.way[1:]
        return (id(owner), kind, name), self.way


class Located:
    """The storage of the array in a place; None if another kind of array is there by now."""

    __slots__ = ("_kind", "_like", "_place")

    def __init__(self, place: Source, x: Any) -> None:
        self._place, self._kind = place, type(x)
        self._like = _form(x)

    def __call__(self) -> Storage | None:
        """The storage."""
        x = self._place()
        if type(x) is not self._kind or getattr(x, "__dict__", None) or _form(x) != self._like:
            return None
        storage: Storage = pytree.unwrapped(x).storage
        return storage


def _form(x: Any) -> tuple[Any, ...]:
    """What two arrays must have in common for one to be in the place of the other."""
    array, rest = pytree.unwrap(x)
    value = array.storage.actual
    return rest, array.steps, value.shape, value.dtype, value.device


class Masked(NamedTuple):
    """What a container should hold besides moving arrays; `mask`: where those are."""

    mask: Mapping[Any, Any]
    expected: Any

    @staticmethod
    def on(read: Read, arrays: Set[int]) -> Masked | None:
        """What accepts what was read with others in place of the `arrays`; None if it has none."""
        mask: dict[Any, Any] = {}
        for way, x in parts(read.value, read.kind in COPIES):
            if id(x) in arrays:
                inner = mask
                for key in way:
                    inner = inner.setdefault(key, {})
        return Masked(mask, fingerprint(_masked(read.value, mask))) if mask else None

    def accepts(self, value: Any) -> bool:
        """Whether it holds the same, apart from those."""
        return bool(fingerprint(_masked(value, self.mask)) == self.expected)


def _masked(value: Any, mask: Mapping[Any, Any]) -> Any:
    if isinstance(value, dict):
        items = [(k, _masked(x, mask[k]) if k in mask else x) for k, x in value.items()]
    elif isinstance(value, tuple | list | deque):
        items = [(k, _masked(x, mask[k]) if k in mask else x) for k, x in enumerate(value)]
    else:
        return MISSING
    return type(value), items


def moving(journal: Journal, reads: Sequence[Read]) -> dict[Storage, MovingArray]:
    """The arrays that move, by their storages."""
    rebound = {e.place for e in journal.effects}
    changed = {id(e.owner) for e in journal.effects if e.place is None}
    found: dict[Storage, MovingArray] = {}
    fixed: set[Storage] = set()
    seen: set[int] = set()
    for r in reads:
        if type(r.value) in _WITHOUT_ARRAYS:
            continue
        if r.kind == "attribute" and r.name == "array" and id(r.owner) in seen:
            continue  # what an array has that was found elsewhere
        moves = (id(r.owner), r.kind, r.name) in rebound or id(r.owner) in changed
        if moves and type(r.value) in (list, dict) and r.kind not in COPIES:
            changed.add(id(r.value))  # it moves with all that it holds
        for way, x in parts(r.value, r.kind in COPIES):
            array = pytree.unwrapped(x)
            if not isinstance(array, NDArray) or (id(x), "attribute", "array") in rebound:
                continue  # its array is a place by itself
            seen.update((id(x), id(array)))
            this = MovingArray(x, r, way)
            other = found.setdefault(array.storage, this)
            may = moves or this.key[0] in rebound or this.key[0][1:] == _GRADIENT
            alone = other.value is x and other.key == this.key and None not in way
            if not (may and alone and _is_exchangeable(x, journal)):
                fixed.add(array.storage)
    return {s: x for s, x in found.items() if s not in fixed}


def _is_exchangeable(x: Any, journal: Journal) -> bool:
    """Whether any array of its kind will do in its place.

    It has neither gradients nor attributes, is of no class with more to it, such as a parameter,
    and nobody asks which object it is.
    """
    array, rest = pytree.unwrap(x)
    is_bare = isinstance(array, NDArray) and rest is not None and not rest
    plain = is_bare and not getattr(x, "__dict__", None)
    return plain and journal.asked.isdisjoint((id(x), id(array)))
