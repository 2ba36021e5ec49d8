"""What tuning found: decisions for kernels that were measured, in a file that outlives the process.

A record says how a plain kernel is best scheduled (`genesis.compiler.schedule.decisions`). It holds
for one kernel, one chip and one state of the compiler's sources, those it was measured with. The
file is JSON beside the compiled programs; a process reads it once, and replaces it as a whole under
a lock, so that several processes can tune at once. Whatever it says, a kernel is proven as any
other: the worst that a wrong record can do is to make one slow.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genesis.content_store import default, digest, generation, locked, replace_file

if TYPE_CHECKING:
    from genesis.backends.base import Backend
    from genesis.compiler.schedule.decisions import Choice, Decisions
    from genesis.ir.kernel import Kernel

#: The most bytes and records that are read from a file, and the most characters of a text in it.
MOST_BYTES = 1 << 24
MOST_RECORDS = 1 << 16
MOST_CHARACTERS = 512


class BadRecords(ValueError):
    """Not a file of tuned kernels."""


@dataclass(frozen=True)
class Tuned:
    """How a kernel is best scheduled, and the seconds it took `before` and takes `after`."""

    kernel: str  # its `kernel_key`
    target: str  # the chip, and who makes code for it
    version: str  # of the compiler
    name: str
    decisions: Decisions
    before: float
    after: float

    @property
    def place(self) -> tuple[str, str, str]:
        """What it holds for."""
        return self.kernel, self.target, self.version


@dataclass
class Database:
    """Records by what they hold for. Without a `path` they are kept in memory only."""

    path: Path | None = None
    records: dict[tuple[str, str, str], Tuned] = field(default_factory=dict)

    def decisions(self, kernel: str, target: str) -> Decisions:
        """The decisions for a kernel; empty: those that the rules take by themselves."""
        found = self.records.get((kernel, target, generation()))
        return {} if found is None else found.decisions

    def add(self, records: Iterable[Tuned]) -> None:
        """Keep records, in the place of older ones for the same."""
        new = {record.place: record for record in records}
        self._change(lambda kept: kept | new)

    def clear(self) -> int:
        """Forget all records; how many there were."""
        count = len(self.records)
        self._change(lambda kept: {})
        return count

    def _change(self, change: Callable[[Records], Records]) -> None:
        if self.path is None:
            self.records = change(self.records)
            return
        try:
            with locked(self.path):
                # Another process may have added to it.
                self.records = change(_read(self.path))
                replace_file(self.path, written(self.records.values()))
        except OSError as error:
            self.records = change(self.records)
            warnings.warn(f"{self.path}: {error}; it is not written", stacklevel=3)


Records = dict[tuple[str, str, str], Tuned]


def database() -> Database:
    """The user's records, as the file had them when this process first asked."""
    store = default()
    return _opened(None if store is None else store.path / "tuning.json")


@cache
def _opened(path: Path | None) -> Database:
    return Database(path, {} if path is None else _read(path))


def target_of(backend: Backend) -> str:
    """The chip, and who makes code for it, as records name them."""
    return f"{backend.chip.name} {digest(backend.name, backend.target)[:16]}"


def decisions_for(kernel: Kernel, backend: Backend) -> Decisions:
    """The decisions under which to schedule a plain kernel."""
    known = database()
    if not known.records:
        return {}
    return known.decisions(kernel_key(kernel), target_of(backend))


def kernel_key(kernel: Kernel) -> str:
    """A digest of what a plain kernel says, its name apart."""
    layouts = [(str(b.strides), str(b.offset)) for b in kernel.buffers if b.strides is not None]
    return digest(str(replace(kernel, name="")), str(layouts))[:32]


def told(decisions: Decisions) -> str:
    """Decisions as a short text, empty for those by rule; equal text means equal decisions."""
    return digest(repr(sorted(decisions.items())))[:16] if decisions else ""


# ---- files


def _read(path: Path) -> Records:
    """The records in a file; none if it is not there, or damaged."""
    try:
        return {record.place: record for record in parsed(read_bounded(path))}
    except FileNotFoundError:
        return {}
    except (OSError, BadRecords) as error:
        warnings.warn(f"{path}: {error}; no tuned kernels are used", stacklevel=2)
        return {}


def read_bounded(path: Path) -> bytes:
    """The bytes of a file that is not too large."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BadRecords(f"it is larger than {MOST_BYTES >> 20} MiB")
    return content


def written(records: Iterable[Tuned]) -> bytes:
    """Records as the bytes of a file."""
    lines = ",\n".join(json.dumps(asdict(record)) for record in records)
    return f'{{"genesis tuning": 1, "kernels": [\n{lines}\n]}}\n'.encode()


def parsed(content: bytes) -> list[Tuned]:
    """The records in a file, which may come from anybody; raises `BadRecords`.

    >>> parsed(b"[]")
    Traceback (most recent call last):
    ...
    genesis.compiler.tuning_records.BadRecords: it is not a file of tuned kernels
    """
    try:
        match json.loads(content):
            case {"genesis tuning": 1, "kernels": [*found], **rest} if not rest:
                if len(found) > MOST_RECORDS:
                    raise BadRecords(f"it has more than {MOST_RECORDS} records")
                return [_record(x) for x in found]
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRecords):
            raise
        raise BadRecords(f"it is not JSON: {error}") from None
    raise BadRecords("it is not a file of tuned kernels")


def _record(x: Any) -> Tuned:
    names = ("kernel", "target", "version", "name")
    if not isinstance(x, Mapping) or set(x) != {*names, "decisions", "before", "after"}:
        raise BadRecords("a record has not the fields of a tuned kernel")
    if not isinstance(x["decisions"], Mapping) or len(x["decisions"]) > MOST_CHARACTERS:
        raise BadRecords("the decisions of a record are not named")
    kernel, target, version, name = (_text(x[field]) for field in names)
    decisions = {_text(asked): _choice(choice) for asked, choice in x["decisions"].items()}
    before, after = _seconds(x["before"]), _seconds(x["after"])
    return Tuned(kernel, target, version, name, decisions, before, after)


def _text(x: Any) -> str:
    if not isinstance(x, str) or len(x) > MOST_CHARACTERS or not x.isprintable():
        raise BadRecords(f"{_shown(x)} is not a text of at most {MOST_CHARACTERS} characters")
    return x


def _seconds(x: Any) -> float:
    if type(x) is not float or not math.isfinite(x) or x <= 0:
        raise BadRecords(f"{_shown(x)} is not a time")
    return x


def _choice(x: Any, depth: int = 0) -> Choice:
    if isinstance(x, str):
        return _text(x)
    if isinstance(x, bool) or (isinstance(x, int) and abs(x) < 1 << 62):
        return x
    if isinstance(x, list) and depth < 4 and len(x) <= 16:
        return tuple(_choice(item, depth + 1) for item in x)
    raise BadRecords(f"{_shown(x)} is not a choice")


def _shown(x: Any) -> str:
    text = ascii(x)
    return text if len(text) < 60 else f"{text[:57]}..."
