"""Dictionaries that count their changes: while the count stands still, nobody looks at them."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from genesis.ndarray.core.value import Changes
from genesis.ndarray.tracing.object_introspection import atomic

K = TypeVar("K")


class Counted(dict[K, Any]):
    """Parts of a layer or an optimizer by name. They count their changes.

    >>> before, parts = Changes.count, Counted(a=1)
    >>> parts["b"] = 2
    >>> Changes.count - before
    1
    """

    __slots__ = ("__weakref__",)
    __genesis_counted__ = True

    def _counted(method: Any) -> Any:  # noqa: N805 - it makes methods
        @atomic
        @wraps(method)
        def counted(self: Counted[K], *args: Any, **kwargs: Any) -> Any:
            Changes.count += 1
            return method(self, *args, **kwargs)

        return counted

    __setitem__ = _counted(dict.__setitem__)
    __delitem__ = _counted(dict.__delitem__)
    __ior__ = _counted(dict.__ior__)
    clear = _counted(dict.clear)
    pop = _counted(dict.pop)
    popitem = _counted(dict.popitem)
    setdefault = _counted(dict.setdefault)
    update = _counted(dict.update)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
