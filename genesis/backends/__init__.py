"""Backends: one small package per kind of chip.

``get("cpu")`` gives a backend by name. Third parties register theirs by the entry-point group
``genesis.backends``: a callable without arguments that returns a `Backend`.
"""

from __future__ import annotations

from functools import cache

from genesis.backends.base import Backend


@cache
def get(name: str) -> Backend:
    """The backend called `name`, loaded on first use."""
    if name == "cpu":
        from genesis.backends.cpu.backend import CPUBackend

        return CPUBackend()
    from importlib.metadata import entry_points

    for point in entry_points(group="genesis.backends", name=name):
        backend: Backend = point.load()()
        return backend
    known = ", ".join(["cpu", *(p.name for p in entry_points(group="genesis.backends"))])
    raise ValueError(f"there is no backend {name!r}; available: {known}")
