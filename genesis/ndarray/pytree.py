"""Nested tuples, lists and dictionaries as a flat list of leaves and a structure.

>>> leaves, structure = flatten({"a": 1, "b": (2, [3])})
>>> leaves
[1, 2, 3]
>>> unflatten(structure, [10, 20, 30])
{'a': 10, 'b': (20, [30])}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

#: None for a leaf, else (type, keys or None, structures of the members). Hashable.
Structure = tuple[type, Any, tuple[Any, ...]] | None


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of `tree`, in order, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind, None, tuple([_flatten(x, leaves) for x in tree])
    if kind is dict or kind is OrderedDict:
        return kind, tuple(tree), tuple([_flatten(x, leaves) for x in tree.values()])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple
        return kind, None, tuple([_flatten(x, leaves) for x in tree])
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
    if keys is not None:
        return kind(zip(keys, parts, strict=True))
    if kind is tuple or kind is list:
        return kind(parts)
    return kind(*parts)
