"""Files by content: what one process compiled, the next one finds.

An entry is bytes under a *kind* and a *key*; the key is a digest of everything the bytes depend
on, so an entry never becomes wrong, only unused. Three rules make the directory safe to share:

- It must belong to the user, and nobody else may write to it; otherwise it is not used at all.
- A file carries a checksum over its name and contents. One that is truncated, damaged or in
  another's place counts as absent, and whoever finds it absent writes it anew.
- A file is written under another name and renamed when it is complete. So readers never see half
  of one, writers of the same entry do not disturb each other, and nobody waits for a lock.

``GENESIS_CACHE`` names the directory, or is ``off``. `genesis cache` shows and clears it.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

#: The most bytes the directory holds; beyond it, what was unused for longest goes.
LIMIT = 1 << 30

_hash = partial(blake2b, digest_size=32)  # three times as fast as SHA-256
_MAGIC = b"GENESIS2"  # changes with the format of the files
_HEADER = len(_MAGIC) + _hash().digest_size
_NAME = re.compile(r"[0-9a-f]{64}\.([a-z]+)")
_UNFINISHED = re.compile(r"[0-9a-f]{64}\.[a-z]+\.[0-9a-f]{12}")
_DAY = 24 * 60 * 60
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # no links; a pipe must not block


class CacheWarning(UserWarning):
    """Compiled code is not kept on disk, or no longer; everything else works."""


class UnsafeDirectory(OSError):
    """Somebody else could put code there."""


@dataclass(frozen=True)
class StoredFile:
    """A file of the store: the room it takes, and when it was last used (seconds since 1970).

    `used` lags behind by up to a day.
    """

    name: str
    kind: str
    nbytes: int
    used: float


def digest(*parts: str | bytes | memoryview) -> str:
    """A key: different for different lists of parts.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    state = _hash()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


class ContentStore:
    """A directory of entries. Opening it fails with an OSError where it would not be safe."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self._limit = limit
        self._generation = generation()
        # Everything goes through this descriptor: the directory that is checked is the one used.
        self._directory = _open_directory(path)
        self._writable = True
        self._untrimmed: int | None = None  # bytes written since `trim`

    def get(self, kind: str, key: str) -> bytes | None:
        """The bytes of an entry; None if it is absent, or anything is wrong with it."""
        name = self._name(kind, key)
        try:
            descriptor = os.open(name, os.O_RDONLY | _OPEN, dir_fd=self._directory)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                content = file.read() if status.st_size <= self._limit else b""
                if content[:_HEADER] != _header(name, content[_HEADER:]):
                    return None
                if status.st_mtime < time.time() - _DAY:
                    os.utime(descriptor)
        except OSError:
            return None
        return content[_HEADER:]

    def put(self, kind: str, key: str, payload: bytes) -> None:
        """Keep the bytes of an entry. Where that fails, say so once and keep nothing more."""
        if not self._writable:
            return
        try:
            self._write(self._name(kind, key), payload)
            # With the first entry of a process and then every now and then: to look through the
            # directory is cheap beside compiling something, but not beside writing a file.
            if self._untrimmed is None or self._untrimmed > self._limit // 16:
                self.trim()
                self._untrimmed = 0
            self._untrimmed += _HEADER + len(payload)
        except OSError as error:
            self._writable = False
            _warn(f"cannot write to {self.path}: {error.strerror}; nothing more is kept there")

    def entries(self) -> list[StoredFile]:
        """All entries, those unused for longest first. Files of anybody else are not looked at."""
        found = []
        for name, status in self._files():
            if match := _NAME.fullmatch(name):
                nbytes = max(status.st_size, 512 * status.st_blocks)
                found.append(StoredFile(name, match[1], nbytes, status.st_mtime))
        return sorted(found, key=lambda e: e.used)

    def clear(self) -> list[StoredFile]:
        """Delete all entries; what was deleted. Processes that use them are not disturbed."""
        removed = self.entries()
        for entry in removed:
            self._remove(entry.name)
        self._remove_unfinished(older_than=60)
        return removed

    def trim(self) -> None:
        """If the store is over its limit, delete what was unused for longest, to 9/10 of it."""
        self._remove_unfinished(older_than=_DAY)
        entries = self.entries()
        total = sum(e.nbytes for e in entries)
        if total <= self._limit:
            return
        for entry in entries:
            if total <= self._limit * 9 // 10:
                return
            self._remove(entry.name)
            total -= entry.nbytes

    def _name(self, kind: str, key: str) -> str:
        return f"{digest(self._generation, kind, key)}.{kind}"

    def _write(self, name: str, payload: bytes) -> None:
        directory = self._directory
        unfinished = f"{name}.{os.urandom(6).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        descriptor = os.open(unfinished, flags, 0o600, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(_header(name, payload) + payload)
            os.replace(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            self._remove(unfinished)
            raise

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        # A descriptor of its own: the position in a directory is shared with forked processes.
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._directory)
        try:
            with os.scandir(descriptor) as files:
                for file in files:
                    with suppress(FileNotFoundError):  # another process was faster
                        yield file.name, file.stat(follow_symlinks=False)
        finally:
            os.close(descriptor)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._directory)

    def _remove_unfinished(self, older_than: float) -> None:
        """Delete what writers left that were killed."""
        latest = time.time() - older_than
        for name, status in list(self._files()):
            if _UNFINISHED.fullmatch(name) and status.st_mtime <= latest:
                self._remove(name)


def default() -> ContentStore | None:
    """The user's store; None if it is switched off or there is no safe place for it."""
    path = directory()
    return None if path is None else _opened(path)


def directory() -> Path | None:
    """Where the user's store is, or would be; None if it is switched off."""
    setting = os.environ.get("GENESIS_CACHE")
    if setting is not None:
        return None if setting in ("", "0", "off") else Path(os.path.abspath(setting))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "genesis"
    try:
        return Path.home() / ".cache" / "genesis"
    except RuntimeError:  # a user without a home
        return None


def remember(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """The entry of the user's store, made and kept if it is not there."""
    store = default()
    if store is None:
        return make()
    found = store.get(kind, key)
    if found is None:
        found = make()
        store.put(kind, key, found)
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else changes a file inside the ``with`` block."""
    import fcntl

    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, durable: bool = False) -> None:
    """Write a file; see `replacing`."""
    with replacing(path, durable) as unfinished:
        unfinished.write_bytes(content)


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """A name beside a file, under which its new contents are written inside the ``with`` block.

    Whoever reads the file sees all of the old or all of the new contents. With `durable` the new
    ones are on the disk before they replace the old.
    """
    unfinished = beside(path)
    try:
        yield unfinished
        if durable:
            with open(unfinished, "rb") as written:
                os.fsync(written.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def beside(path: Path) -> Path:
    """A name in the same folder that nobody has: a dot, the file's name, and 16 hexadecimals."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}")


@cache
def generation(*packages: str) -> str:
    """A digest of the sources that decide what is compiled: it is part of every key.

    Those are of the compiler, and of whatever other `packages` have a part in it.

    Safer than a version number, which stays the same while somebody edits the compiler, and no
    slower: 2 ms, once per process.
    """
    package = Path(__file__).parent
    contents: list[str | bytes] = []
    for name in ("ir", "compiler", "backends", *packages):
        for parent, directories, files in os.walk(package / name):
            directories[:] = sorted(d for d in directories if d != "__pycache__")
            for file in sorted(files):
                path = os.path.join(parent, file)
                with open(path, "rb") as source:
                    contents += [os.path.relpath(path, package), source.read()]
    return digest(*contents)


@cache
def _opened(path: Path) -> ContentStore | None:
    try:
        return ContentStore(path)
    except OSError as error:
        _warn(f"{path}: {error.strerror or error}; nothing is kept there")
        return None


def _open_directory(path: Path) -> int:
    """A descriptor of a directory only this user can write to, made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        problem = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        problem = f"others may write to it (mode {status.st_mode & 0o777:o}); make it 700"
    else:
        return descriptor
    os.close(descriptor)
    raise UnsafeDirectory(problem)


def _header(name: str, payload: bytes) -> bytes:
    return _MAGIC + _hash(_MAGIC + name.encode() + payload).digest()


def _warn(problem: str) -> None:
    message = f"the cache of compiled code: {problem} (GENESIS_CACHE names another place, or 'off')"
    warnings.warn(message, CacheWarning, stacklevel=3)
