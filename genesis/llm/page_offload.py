"""Tiers below the device: pages that left it wait in host memory, then on disk.

The host tier is a dictionary of limited size. What leaves it is packed and appended to a log on
disk by a thread; what a queued request will want comes back the same way. It is all cache: a page
that is lost, torn or damaged is a miss, and is computed again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple


class StorePage(NamedTuple):
    """Page `page` of a group leaves the device: its contents go down under `key`."""

    group: int
    page: int
    key: bytes


class Load(NamedTuple):
    """The contents `data` go up into page `page` of a group."""

    group: int
    page: int
    data: bytes


# ---- packing: the bytes of numbers, plane by plane

_PLANES = struct.Struct("<BI")  # bytes of a number, bytes in all
_PLANE = struct.Struct("<?I")  # whether deflated, bytes that follow


def pack(data: bytes, item_bytes: int) -> bytes:
    """Contents in fewer bytes, without loss: like bytes of all numbers together, deflated.

    High bytes of floats are alike (signs and exponents), low ones are noise: a plane that would
    not shrink is kept as it is.
    """
    parts = [_PLANES.pack(item_bytes, len(data))]
    for i in range(item_bytes):
        plane = data[i::item_bytes]
        small = zlib.compress(plane, 1)
        pays = len(small) < len(plane) * 15 // 16
        parts += [_PLANE.pack(pays, len(small if pays else plane)), small if pays else plane]
    return b"".join(parts)


def unpack(packed: bytes) -> bytes:
    """What was packed; ValueError if it is not that."""
    try:
        item_bytes, length = _PLANES.unpack_from(packed)
        at, planes = _PLANES.size, []
        if not item_bytes:
            raise ValueError("numbers of no bytes")
        for i in range(item_bytes):
            deflated, size = _PLANE.unpack_from(packed, at)
            at += _PLANE.size
            plane, wanted = packed[at : at + size], len(range(i, length, item_bytes))
            # One byte more than wanted shows that there is more, without inflating all of it.
            planes.append(zlib.decompressobj().decompress(plane, wanted + 1) if deflated else plane)
            if len(planes[-1]) != wanted:
                raise ValueError("a plane has the wrong length")
            at += size
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from None
    data = bytearray(length)
    for i, plane in enumerate(planes):
        data[i::item_bytes] = plane
    return bytes(data)


# ---- disk

_RECORD = struct.Struct("<4sHI16s")  # magic, bytes of key and payload, digest of both
_MAGIC = b"KVP1"
_LARGEST_KEY = 1 << 10


class _Place(NamedTuple):
    segment: int
    offset: int
    length: int


class Log:
    """Records on disk, found by key: an append-only log in segments, of bounded size.

    A record carries a checksum over its key and payload; where it does not hold, there is no
    record. A writer never goes on in a segment of an earlier one, whose end may be torn. When room
    is wanted the oldest segment goes; its records that were read since they were written are
    appended again, as far as they fill no more than half a segment.
    """

    def __init__(self, path: Path, capacity: int, segments: int = 16) -> None:
        self.path = path
        self.capacity = capacity
        self._segment_bytes = max(1, capacity // segments)
        self._places: dict[bytes, _Place] = {}
        self._read: set[bytes] = set()
        self._sizes: dict[int, int] = {}  # bytes of each segment, the oldest first
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        for file in sorted(path.glob("*.log")):
            if file.stem.isdecimal() and file == self._segment(int(file.stem)):
                self._scan(int(file.stem))
        self._number = max(self._sizes, default=0) + 1
        self._file = self._open(self._number)
        self._shrink(0)

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """The room taken on disk."""
        return sum(self._sizes.values())

    def length(self, key: bytes) -> int:
        """How many bytes the record of a key takes."""
        place = self._places.get(key)
        return place.length if place else 0

    def get(self, key: bytes) -> bytes | None:
        """The payload of a key; None if there is none, or anything is wrong with it."""
        record = self._read_record(key)
        if record is not None:
            self._read.add(key)
            return record[_RECORD.size + len(key) :]
        self._places.pop(key, None)
        return None

    def put(self, key: bytes, payload: bytes) -> bool:
        """Append a record; False if it is too large. OSError where the disk refuses."""
        if not 0 < len(key) <= _LARGEST_KEY:
            raise ValueError(f"a key has 1 to {_LARGEST_KEY} bytes, not {len(key)}")
        record = _record(key, payload)
        if len(record) > self._segment_bytes:
            return False
        self._shrink(len(record))
        self._append(key, record)
        return True

    def close(self) -> None:
        """Let another process open the log."""
        os.close(self._file)
        os.close(self._lock)

    def _append(self, key: bytes, record: bytes) -> None:
        if self._sizes[self._number] + len(record) > self._segment_bytes:
            os.close(self._file)
            self._number += 1
            self._file = self._open(self._number)
        offset = self._sizes[self._number]
        written = os.write(self._file, record)
        self._sizes[self._number] += written
        if written == len(record):
            self._places[key] = _Place(self._number, offset, len(record))
        else:  # the disk is full: what follows must not begin inside this record
            self._sizes[self._number] = self._segment_bytes

    def _open(self, number: int) -> int:
        self._sizes[number] = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._segment(number), flags, 0o600)

    def _shrink(self, room: int) -> None:
        """Drop the oldest segments until there is room; keep what was read of them."""
        while self.nbytes + room > self.capacity and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            lost = [key for key, place in self._places.items() if place.segment == oldest]
            again, budget = [], self._segment_bytes // 2
            for key in lost:
                if key in self._read and (budget := budget - self._places[key].length) >= 0:
                    again.append((key, self._read_record(key)))
                self._read.discard(key)
                del self._places[key]
            with suppress(FileNotFoundError):
                self._segment(oldest).unlink()
            del self._sizes[oldest]
            for key, record in again:
                if record is not None:
                    self._append(key, record)

    def _read_record(self, key: bytes) -> bytes | None:
        place = self._places.get(key)
        if place is None:
            return None
        with suppress(OSError), open(self._segment(place.segment), "rb") as file:
            file.seek(place.offset)
            record = file.read(place.length)
            if record == _record(key, record[_RECORD.size + len(key) :]):
                return record
        return None

    def _scan(self, number: int) -> None:
        """Find the records of a segment, up to one that is torn; payloads are not read yet."""
        size = self._segment(number).stat().st_size
        at = 0
        with open(self._segment(number), "rb") as file:
            while at + _RECORD.size <= size:
                file.seek(at)
                magic, key_bytes, payload_bytes, _ = _RECORD.unpack(file.read(_RECORD.size))
                length = _RECORD.size + key_bytes + payload_bytes
                if magic != _MAGIC or not 0 < key_bytes <= _LARGEST_KEY or at + length > size:
                    break
                self._places[file.read(key_bytes)] = _Place(number, at, length)
                at += length
        if at:
            self._sizes[number] = size
        else:
            self._segment(number).unlink()

    def _segment(self, number: int) -> Path:
        return self.path / f"{number:012}.log"


def _record(key: bytes, payload: bytes) -> bytes:
    digest = blake2b(key + payload, digest_size=16).digest()
    return _RECORD.pack(_MAGIC, len(key), len(payload), digest) + key + payload


def _lock(path: Path) -> int:
    """A lock that the system gives back when the process ends, in whatever way."""
    file = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise BlockingIOError(f"another process keeps its pages in {path}") from None
    return file


# ---- host, and the way between


class Tiers:
    """Host memory and, below it, a log: `put` moves down, `prefetch` up, neither waits.

    `executor` runs what the disk does, one thing at a time: a thread of its own unless given.
    """

    def __init__(
        self,
        host_bytes: int,
        log: Log | None = None,
        item_bytes: int = 2,
        executor: Executor | None = None,
    ) -> None:
        self.host_bytes = host_bytes
        self.log = log
        self.used = 0
        self._item_bytes = item_bytes
        self._host: OrderedDict[bytes, bytes] = OrderedDict()  # unused for longest first
        self._leaving: dict[bytes, bytes] = {}  # on their way to the disk
        self._leaving_bytes = 0
        self._coming: set[bytes] = set()
        self._mutex = threading.Lock()
        self._executor = executor or ThreadPoolExecutor(1, "tiers")

    def store(self, stores: Iterable[StorePage], read: Callable[[int, int], bytes]) -> None:
        """Move pages down, with the engine's way to read a page of a group."""
        for group, page, key in stores:
            self.put(key, read(group, page))

    def has(self, key: bytes) -> bool:
        """Whether a page is here, on whichever tier."""
        on_disk = self.log is not None and key in self.log
        return on_disk or key in self._host or key in self._leaving

    def put(self, key: bytes, data: bytes) -> None:
        """Keep the contents of a page; for those unused for longest there may be no room."""
        with self._mutex:
            leaving = self._insert(key, data)
        for old, contents in leaving:
            self._executor.submit(self._to_disk, old, contents)

    def get(self, key: bytes) -> bytes | None:
        """The contents of a page, if they are in host memory by now."""
        with self._mutex:
            if key in self._host:
                self._host.move_to_end(key)
                return self._host[key]
            return self._leaving.get(key)

    def prefetch(self, keys: Iterable[bytes]) -> list[bytes]:
        """Start to bring pages from the disk to the host; those that are on their way."""
        room = self.host_bytes // 2  # beyond that, they would push out each other
        coming = []
        for key in keys:
            if self.log is None or key in self._host or key not in self.log:
                continue
            room -= self.log.length(key)
            if room < 0:
                break
            coming.append(key)
            with self._mutex:
                known = key in self._coming
                self._coming.add(key)
            if not known:
                self._executor.submit(self._from_disk, key)
        return coming

    def coming(self, keys: Iterable[bytes]) -> bool:
        """Whether any of these pages is still on its way up."""
        return any(key in self._coming for key in keys)

    def close(self) -> None:
        """Write what is in host memory or on its way to the disk, and let go of it."""
        self._executor.shutdown()
        if self.log is not None:
            for key, data in self._host.items():
                if key not in self.log:
                    with suppress(OSError):
                        self.log.put(key, pack(data, self._item_bytes))
            self.log.close()

    def _insert(self, key: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
        """Put a page into host memory; the pages that go to the disk instead."""
        self.used += len(data) - len(self._host.pop(key, b""))
        self._host[key] = data
        leaving = []
        while self.used > self.host_bytes:
            old, contents = self._host.popitem(last=False)
            self.used -= len(contents)
            # A disk that is slower than pages come would fill the host's memory.
            room = self._leaving_bytes + len(contents) <= self.host_bytes // 2
            if self.log is not None and old not in self.log and old not in self._leaving and room:
                self._leaving[old] = contents
                self._leaving_bytes += len(contents)
                leaving.append((old, contents))
        return leaving

    def _to_disk(self, key: bytes, data: bytes) -> None:
        assert self.log is not None
        try:
            with suppress(OSError):  # a full disk keeps nothing more
                self.log.put(key, pack(data, self._item_bytes))
        finally:
            with self._mutex:
                self._leaving_bytes -= len(self._leaving.pop(key))

    def _from_disk(self, key: bytes) -> None:
        assert self.log is not None
        leaving = []
        try:
            with suppress(ValueError):
                if (packed := self.log.get(key)) is not None:
                    data = unpack(packed)
                    with self._mutex:
                        leaving = self._insert(key, data)
        finally:
            with self._mutex:
                self._coming.discard(key)  # whoever waits for it goes on without
        for old, contents in leaving:
            self._to_disk(old, contents)
