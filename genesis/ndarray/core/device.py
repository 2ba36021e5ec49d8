"""Devices: the names arrays carry, and each thread's default.

A device is a backend's name with an optional number, ``"cpu"`` or ``"cuda:1"``; number 0 is left
out. Names are interned, so two values are on one device when their names are one object.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from sys import intern

from genesis.ndarray.core.value import surroundings

_NAME = re.compile(r"([a-z][a-z0-9_]*)(?::([0-9]+))?")


class _Default(threading.local):
    device: str = intern("cpu")


_default = _Default()


def canonical(name: str) -> str:
    """The one spelling of a device name.

    >>> canonical("cpu:0"), canonical("cuda:1")
    ('cpu', 'cuda:1')
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a device name; write 'cpu' or 'cuda:1'")
    number = int(match[2] or 0)
    return intern(f"{match[1]}:{number}" if number else match[1])


class Device(str):
    """A device's name with its parts, for code that asks for them; as good as the name itself.

    >>> Device("cuda", 1), Device("cuda:1").type, Device("cpu") == "cpu"
    ('cuda:1', 'cuda', True)
    """

    __slots__ = ()

    def __new__(cls, type: str, index: int | None = None) -> Device:
        """The device of this name, or of this kind and number."""
        return super().__new__(cls, canonical(type if index is None else f"{type}:{index}"))

    @property
    def type(self) -> str:
        """The kind of device, which is its backend."""
        return backend_name(self)

    @property
    def index(self) -> int:  # type: ignore[override]
        """Its number."""
        return int(self.partition(":")[2] or 0)


@lru_cache
def known_device(name: str) -> Device:
    """The device of a canonical name."""
    return Device(name)


def default_device() -> str:
    """The device this thread's new arrays are on."""
    return _default.device


def set_default_device(name: str) -> None:
    """Put this thread's new arrays on the device called `name`."""
    _default.device = canonical(name)


surroundings.append((partial(getattr, _default, "device"), set_default_device))


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """Put this thread's new arrays on the device called `name` inside the ``with`` block."""
    before = _default.device
    set_default_device(name)
    try:
        yield
    finally:
        _default.device = before


def chosen(name: str | None) -> str:
    """The canonical `name`, or this thread's default for None."""
    return _default.device if name is None else canonical(name)


def backend_name(device: str) -> str:
    """The backend that serves a device."""
    return device.partition(":")[0]


__all__ = ["default_device", "on_device", "set_default_device"]
