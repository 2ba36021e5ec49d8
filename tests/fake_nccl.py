# ruff: noqa: N802 (the names are NCCL's)
"""NCCL as far as Genesis calls it, on a pretended GPU: every other rank sends what this one does.

Functions are called through C, with the arguments that nccl.h says in its order, so one that is
declared otherwise arrives as something else. What they do is put into the queue they are given,
and done there as late as the pretended driver likes.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_size_t, c_void_p
from functools import partial
from typing import Any

import numpy as np

KINDS = {
    0: "i1", 1: "u1", 2: "i4", 3: "u4", 4: "i8", 5: "u8", 6: "f2", 7: "f4", 8: "f8",
}  # fmt: skip
COMBINE = (np.add, np.multiply, np.maximum, np.minimum)
HANDLE, INVALID = 77, 4


class Id(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


def at(address: int, kind: str, count: int) -> Any:
    raw = (ctypes.c_uint8 * (count * np.dtype(kind).itemsize)).from_address(address)
    return np.frombuffer(raw, kind)


class FakeNCCL:
    def __init__(self, driver: Any) -> None:
        self.driver, self.rank, self.size = driver, 0, 0
        self.found = 0  # an error that is noticed while nobody calls
        self.called: Counter[str] = Counter()
        self.problems: list[str] = []
        self.messages: list[tuple[str, int]] = []
        self._group: list[tuple[int, Callable[[], None]]] | None = None
        self._sends: list[tuple[int, int, int]] = []
        self._received: Counter[int] = Counter()
        self._functions: dict[str, Any] = {}
        collective = c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p
        message = c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p
        for name, arguments in {
            "GetVersion": (ctypes.POINTER(c_int),),
            "GetUniqueId": (ctypes.POINTER(Id),),
            "CommInitRank": (ctypes.POINTER(c_void_p), c_int, Id, c_int),
            "CommAbort": (c_void_p,),
            "CommGetAsyncError": (c_void_p, ctypes.POINTER(c_int)),
            "GroupStart": (),
            "GroupEnd": (),
            "AllReduce": collective,
            "ReduceScatter": collective,
            "AllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
            "Send": message,
            "Recv": message,
        }.items():
            kind = ctypes.CFUNCTYPE(c_int, *arguments)
            self._functions[f"nccl{name}"] = kind(partial(self._checked, name))
        text = ctypes.CFUNCTYPE(c_char_p, c_int)(lambda status: b"invalid argument")
        self._functions["ncclGetErrorString"] = text

    def __getattr__(self, name: str) -> Any:
        try:
            return self._functions[name]
        except KeyError:
            raise AttributeError(name) from None

    def _checked(self, name: str, *given: Any) -> int:
        self.called[name] += 1
        try:
            getattr(self, f"_{name}")(*given)
        except Exception as error:  # C knows no exceptions
            self.problems.append(f"{name}: {error!r}")
            return INVALID
        return 0

    def _GetVersion(self, place: Any) -> None:
        place[0] = 22803

    def _GetUniqueId(self, place: Any) -> None:
        place[0].internal = b"this one"

    def _CommInitRank(self, place: Any, size: int, known: Id, rank: int) -> None:
        assert known.internal == b"this one" and 0 <= rank < size
        self.rank, self.size = rank, size
        place[0] = HANDLE

    def _CommAbort(self, handle: int) -> None:
        assert handle == HANDLE

    def _CommGetAsyncError(self, handle: int, place: Any) -> None:
        assert handle == HANDLE
        place[0] = self.found

    def _GroupStart(self) -> None:
        assert self._group is None
        self._group = []

    def _GroupEnd(self) -> None:
        assert self._group is not None
        work, self._group, self._sends = self._group, None, []
        self._received.clear()
        for stream, do in work:
            self.driver._enqueue(stream, do)

    def _later(self, handle: int, stream: int, do: Callable[[], None]) -> None:
        assert handle == HANDLE and self._group is not None and stream in self.driver.streams
        self._group.append((stream, do))

    def _AllReduce(
        self, x: int, y: int, count: int, kind: int, how: int, handle: int, stream: int
    ) -> None:
        def do() -> None:
            mine = at(x, KINDS[kind], count).copy()
            total = mine
            for _ in range(self.size - 1):
                total = COMBINE[how](total, mine)
            at(y, KINDS[kind], count)[:] = total

        self._later(handle, stream, do)

    def _ReduceScatter(
        self, x: int, y: int, count: int, kind: int, how: int, handle: int, stream: int
    ) -> None:
        assert how == 0

        def do() -> None:
            mine = at(x, KINDS[kind], count * self.size)
            block = mine[self.rank * count : (self.rank + 1) * count]
            at(y, KINDS[kind], count)[:] = block * np.array(self.size, KINDS[kind])

        self._later(handle, stream, do)

    def _AllGather(self, x: int, y: int, count: int, kind: int, handle: int, stream: int) -> None:
        size = np.dtype(KINDS[kind]).itemsize
        assert x == y + self.rank * count * size or x + count * size <= y or x >= y

        def do() -> None:
            mine = at(x, KINDS[kind], count).copy()
            at(y, KINDS[kind], count * self.size)[:] = np.tile(mine, self.size)

        self._later(handle, stream, do)

    def _Send(self, x: int, count: int, kind: int, peer: int, handle: int, stream: int) -> None:
        assert 0 <= peer < self.size
        self._sends.append((peer, x, count))
        self.messages.append(("send", peer))
        self._later(handle, stream, lambda: None)

    def _Recv(self, y: int, count: int, kind: int, peer: int, handle: int, stream: int) -> None:
        """What the other rank sends this one: what this one would send itself, or its only one."""
        assert 0 <= peer < self.size
        self.messages.append(("receive", peer))
        sends, number = self._sends, self._received[peer]
        self._received[peer] += 1

        def do() -> None:
            own = [x for to, x, _ in sends if to == self.rank] or [x for _, x, _ in sends]
            at(y, KINDS[kind], count)[:] = at(own[number], KINDS[kind], count).copy()

        self._later(handle, stream, do)
