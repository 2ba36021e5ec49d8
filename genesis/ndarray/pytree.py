"""Nested tuples, lists and dictionaries as a flat list of leaves and a structure.

>>> leaves, structure = flatten({"a": 1, "b": (2, [3])})
>>> leaves
[1, 2, 3]
>>> unflatten(structure, [10, 20, 30])
{'a': 10, 'b': (20, [30])}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

#: None for a leaf, else (type, keys or None, structures of the members). Hashable.
Structure = tuple[type, Any, tuple[Any, ...]] | None


Unwrap = Callable[[Any], tuple[Any, Any]]
Wrap = Callable[[Any, Any], Any]

#: A class, what an object of it says about the rest, and how to see through it.
Wrapped = tuple[type, Any, Unwrap]

_wrappers: dict[type, tuple[Unwrap, Wrap]] = {}


def register(kind: type, unwrap: Unwrap, wrap: Wrap) -> None:
    """See through objects of a class: to what they hold, and something hashable about the rest."""
    _wrappers[kind] = unwrap, wrap


def unwrapper(structure: Structure) -> Wrapped | None:
    """How to see through an object that holds one leaf and nothing else."""
    if structure is None or structure[0] not in _wrappers or structure[2] != (None,):
        return None
    return structure[0], structure[1], _wrappers[structure[0]][0]


def wrapper(structure: Structure) -> tuple[Wrap, Any] | None:
    """How to make an object that holds one leaf and nothing else: a function, and the rest."""
    if unwrapper(structure) is None:
        return None
    assert structure is not None
    return _wrappers[structure[0]][1], structure[1]


def flatten(tree: Any, whole: type | tuple[()] = ()) -> tuple[list[Any], Structure]:
    """The leaves of `tree`, in order, and its structure. Objects of class `whole` are leaves."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, whole)


def _flatten(tree: Any, leaves: list[Any], whole: type | tuple[()]) -> Structure:
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind, None, tuple([_flatten(x, leaves, whole) for x in tree])
    if kind is dict or kind is OrderedDict:
        return kind, tuple(tree), tuple([_flatten(x, leaves, whole) for x in tree.values()])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple
        return kind, None, tuple([_flatten(x, leaves, whole) for x in tree])
    if kind in _wrappers and not isinstance(tree, whole):
        inner, rest = _wrappers[kind][0](tree)
        return kind, rest, (_flatten(inner, leaves, whole),)
    leaves.append(tree)
    return None


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
    if keys is not None:
        return kind(zip(keys, parts, strict=True))
    if kind is tuple or kind is list:
        return kind(parts)
    return kind(*parts)
