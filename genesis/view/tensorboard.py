"""Curves of other runs: the numbers in TensorBoard's event files.

A file is a sequence of records: their length, a checksum, a message in protocol buffers' format, a
checksum. What is needed of it is little: steps, names and numbers. A record that is damaged or not
finished, as that of a run which goes on, ends the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Curve = list[tuple[float, float]]

_EVENT_STEP, _EVENT_SUMMARY = 2, 5
_SUMMARY_VALUE, _VALUE_TAG, _VALUE_SIMPLE = 1, 1, 2


def read_runs(folder: str | Path) -> dict[str, Curve]:
    """Every curve in the event files below a folder, by the run and the name of its number."""
    top = Path(folder)
    if not top.is_dir():
        raise FileNotFoundError(2, "there is no such folder of runs", str(folder))
    curves: dict[str, Curve] = {}
    for path in sorted(top.rglob("*tfevents*")):
        run = str(path.parent.relative_to(top))
        for step, tag, value in _numbers(path.read_bytes()):
            name = tag if run == "." else f"{run}: {tag}"
            curves.setdefault(name, []).append((step, value))
    return curves


def _numbers(data: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, name and number of everything in an event file."""
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        message = data[place + 12 : place + 12 + length]
        if len(message) < length:
            return
        place += length + 16
        try:
            yield from _event(message)
        except (IndexError, struct.error, UnicodeDecodeError):
            return


def _event(message: bytes) -> Iterator[tuple[int, str, float]]:
    fields = list(_fields(message))
    step = next((x for n, x in fields if n == _EVENT_STEP and isinstance(x, int)), 0)
    for number, summary in fields:
        if number != _EVENT_SUMMARY or not isinstance(summary, bytes):
            continue
        for kind, value in _fields(summary):
            if kind == _SUMMARY_VALUE and isinstance(value, bytes):
                parts = dict(_fields(value))
                tag, simple = parts.get(_VALUE_TAG), parts.get(_VALUE_SIMPLE)
                if isinstance(tag, bytes) and isinstance(simple, bytes):
                    yield step, tag.decode(), struct.unpack("<f", simple)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers of variable length as such, others as their bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, place = _varint(message, place)
        if place + length > len(message):
            raise IndexError("a field beyond the end of its message")
        yield number, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
