"""The structure of kernels: when two of them, or two parts of them, say the same.

Statements are told apart by identity, since one may occur twice. What they are made of (nodes,
axes, buffers, locals) is compared by value, so taking a statement apart gives a key that is equal
for statements of equal structure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any


def structure(x: Any) -> Hashable:
    """A key that is equal for kernels, statements or bodies of equal structure.

    What a kernel is called makes no difference.

    >>> from genesis.ir.kernel_builder import Builder
    >>> from genesis.ir.dtype import float32
    >>> def double(name):
    ...     k = Builder(name)
    ...     x, y = k.input("x", float32, 8), k.output("y", float32, 8)
    ...     i = k.grid("i", 8)
    ...     k.store(y, (i,), x[i] + x[i])
    ...     return k.kernel()
    >>> structure(double("twice")) == structure(double("double"))
    True
    """
    if isinstance(x, tuple):
        return tuple(map(structure, x))
    kind = type(x)
    parts = _parts.get(kind)
    if parts is None:
        parts = _parts[kind] = _identified(kind)
    return (kind, *[structure(getattr(x, part)) for part in parts]) if parts else x


_parts: dict[type, tuple[str, ...]] = {}


def _identified(kind: type) -> tuple[str, ...]:
    """The fields of what is compared by identity; none for what is compared by value."""
    if not is_dataclass(kind) or kind.__hash__ is not object.__hash__:
        return ()
    return tuple(f.name for f in fields(kind) if f.name != "name")
