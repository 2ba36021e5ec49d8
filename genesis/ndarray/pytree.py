"""Nested tuples, lists, dictionaries and dataclasses as a flat list of leaves and a structure.

>>> leaves, structure = flatten({"a": 1, "b": (2, [3])})
>>> leaves
[1, 2, 3]
>>> unflatten(structure, [10, 20, 30])
{'a': 10, 'b': (20, [30])}
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import is_dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

from genesis.ir.dtype import DType
from genesis.ndarray.core.ndarray import NDArray

#: None for a leaf, else (type, keys or None, structures of the members). Hashable.
Structure = tuple[type, Any, tuple[Any, ...]] | None


class Fields(NamedTuple):
    """The keys of an object that is a dictionary, or None, and the names of its attributes."""

    keys: tuple[Any, ...] | None
    names: tuple[str, ...]


Unwrap = Callable[[Any], tuple[Any, Any]]
Wrap = Callable[[Any, Any], Any]

#: A class, what an object of it says about the rest, and how to see through it.
Wrapped = tuple[type, Any, Unwrap]

_wrappers: dict[type, tuple[Unwrap, Wrap]] = {}
#: Classes of most leaves: others are asked whether they have parts.
_LEAVES = frozenset((NDArray, bool, int, float, complex, str, bytes, type(None)))


def register(kind: type, unwrap: Unwrap, wrap: Wrap) -> None:
    """See through objects of a class: to what they hold, and something hashable about the rest.

    What cannot be seen through, because there is more to it, gives None for the rest: it is a leaf.
    """
    _wrappers[kind] = unwrap, wrap


def unwrap(x: Any) -> tuple[Any, Any]:
    """What an object of a registered class holds, and the rest; any other object and None."""
    found = _wrappers.get(type(x))
    return (x, ()) if found is None else found[0](x)


def is_plain(x: Any) -> bool:
    """Whether there is no more to an object than what it holds, and something hashable."""
    return unwrap(x)[1] is not None


def is_wrapped(x: Any) -> bool:
    """Whether an object is of a registered class, or of one below."""
    return any(kind in _wrappers for kind in type(x).__mro__)


def rewrapper(x: Any) -> tuple[Any, Wrap, Any] | None:
    """What an object of a registered class holds, and how to make another one like it."""
    found = _wrappers.get(type(x))
    if found is None:
        return None
    inner, rest = found[0](x)
    return None if rest is None else (inner, found[1], rest)


def unwrapped(x: Any) -> Any:
    """What an object of a registered class, or of one below, holds; other objects as they are."""
    for kind in type(x).__mro__:
        if kind in _wrappers:
            return _wrappers[kind][0](x)[0]
    return x


def unwrapper(structure: Structure) -> Wrapped | None:
    """How to see through an object that holds one leaf and nothing else."""
    if structure is None or structure[0] not in _wrappers or structure[2] != (None,):
        return None
    return structure[0], structure[1], _wrappers[structure[0]][0]


class Pinned:
    """A part of a tree that is not looked into: it is the object itself that counts."""

    __slots__ = ("object",)

    def __init__(self, x: Any) -> None:
        self.object = x


def flatten(
    tree: Any, whole: type | tuple[()] = (), pinned: Collection[Path] = ()
) -> tuple[list[Any], Structure]:
    """The leaves of `tree`, in order, and its structure.

    Objects of class `whole` are leaves, and so is, as `Pinned`, what is at the paths `pinned`.
    """
    leaves: list[Any] = []
    objects = {id(x) for path in pinned if (x := _try_to_follow(tree, path)) is not None}
    return leaves, _flatten(tree, leaves, whole, objects)


#: The steps that lead from a tree to one of its members, each a key of a kind.
Path = tuple[tuple[str, Any], ...]


def paths(
    tree: Any, leaves: type | tuple[type, ...], path: Path = ()
) -> Iterator[tuple[Any, Path]]:
    """Every part of a tree that `flatten` looks into, with the way that leads there.

    And the leaves of a class.
    """
    kind = type(tree)
    if kind in _wrappers:
        inner, rest = _wrappers[kind][0](tree)
        if rest is not None:
            yield tree, path
            yield inner, (*path, ("wrapped", kind))
        return
    fields = has_fields(tree)
    items = kind in (tuple, list, dict, OrderedDict) or hasattr(kind, "_fields")
    if not fields and not items:
        if isinstance(tree, leaves):
            yield tree, path
        return
    yield tree, path
    if isinstance(tree, dict):
        for key in tree:
            yield from paths(dict.__getitem__(tree, key), leaves, (*path, ("item", key)))
    elif items:
        for k, x in enumerate(tree):
            yield from paths(x, leaves, (*path, ("item", k)))
    if fields:
        if hasattr(tree, "__dict__"):
            yield tree.__dict__, (*path, ("attribute", "__dict__"))
        for name in fields_of(tree).names:
            yield from paths(getattr(tree, name), leaves, (*path, ("attribute", name)))


def follow(tree: Any, path: Path) -> Any:
    """What a path leads to."""
    for kind, key in path:
        if kind == "wrapped":
            tree = _wrappers[key][0](tree)[0]
        else:
            tree = tree[key] if kind == "item" else getattr(tree, key)
    return tree


def repeats(tree: Any) -> tuple[tuple[Path, ...], ...]:
    """The paths of containers that are in a tree several times, those of one together."""
    found: dict[int, list[Path]] = {}
    for x, path in paths(tree, ()):
        if isinstance(x, list | dict):
            found.setdefault(id(x), []).append(path)
    return tuple(tuple(places) for places in found.values() if len(places) > 1)


def _try_to_follow(tree: Any, path: Path) -> Any:
    try:
        return follow(tree, path)
    except (AttributeError, LookupError, TypeError):
        return None


def _flatten(
    tree: Any, leaves: list[Any], whole: type | tuple[()], pinned: Collection[int]
) -> Structure:
    kind = type(tree)
    if pinned and id(tree) in pinned:
        leaves.append(Pinned(tree))
        return None
    if kind in _LEAVES:
        leaves.append(tree)
        return None
    if kind is tuple or kind is list:
        return kind, None, tuple([_flatten(x, leaves, whole, pinned) for x in tree])
    if kind is dict or kind is OrderedDict:
        return kind, tuple(tree), tuple([_flatten(x, leaves, whole, pinned) for x in tree.values()])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple
        return kind, None, tuple([_flatten(x, leaves, whole, pinned) for x in tree])
    if kind in _wrappers and not isinstance(tree, whole):
        inner, rest = _wrappers[kind][0](tree)
        if rest is not None:
            return kind, rest, (_flatten(inner, leaves, whole, pinned),)
    if has_fields(tree):
        fields = fields_of(tree)
        return (
            kind,
            fields,
            tuple([_flatten(x, leaves, whole, pinned) for x in members(tree, fields)]),
        )
    leaves.append(tree)
    return None


def has_fields(x: Any) -> bool:
    """Whether an object is nothing but its fields: a dataclass, a dictionary of another class."""
    kind = type(x)
    if isinstance(x, dict) or kind is SimpleNamespace or is_dataclass(kind):
        return not isinstance(x, type | Enum | DType) and not hasattr(kind, "__genesis_counted__")
    return False


def fields_of(x: Any) -> Fields:
    """The names of all that an object is made of."""
    keys = tuple(x) if isinstance(x, dict) else None
    slots = [n for base in type(x).__mro__ for n in _slots(base) if hasattr(x, n)]
    if isinstance(x, defaultdict):
        slots.append("default_factory")
    return Fields(keys, (*getattr(x, "__dict__", ()), *slots))


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def members(x: Any, fields: Fields) -> list[Any]:
    """What an object is made of, items before attributes."""
    items = [dict.__getitem__(x, k) for k in fields.keys or ()]
    return items + [getattr(x, name) for name in fields.names]


def fill(x: Any, fields: Fields, parts: list[Any]) -> Any:
    """Give an empty object its fields, without running code of its class."""
    count = len(fields.keys or ())
    put = OrderedDict.__setitem__ if isinstance(x, OrderedDict) else dict.__setitem__
    for key, part in zip(fields.keys or (), parts, strict=False):
        put(x, key, part)
    for name, part in zip(fields.names, parts[count:], strict=True):
        object.__setattr__(x, name, part)
    return x


def empty(kind: type) -> Any:
    """An object of a class, without running code of the class."""
    for base in (OrderedDict, dict, list, set, SimpleNamespace):
        if issubclass(kind, base):
            make: Any = base.__new__
            return make(kind)
    return object.__new__(kind)


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """The tree with this structure and these leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, members = structure
    parts = [_unflatten(m, leaves) for m in members]
    if kind in _wrappers:
        return _wrappers[kind][1](parts[0], keys)
    if type(keys) is Fields:
        return fill(empty(kind), keys, parts)
    if keys is not None:
        return kind(zip(keys, parts, strict=True))
    if kind is tuple or kind is list:
        return kind(parts)
    return kind(*parts)
