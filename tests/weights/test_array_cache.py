"""Shelves: arrays come back as they were, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis.cli import main
from genesis.weights import array_cache
from genesis.weights.array_cache import ArrayCache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


def filled(*key: str, finish: bool = True) -> ArrayCache:
    made = ArrayCache(*key)
    made.make("a", (3, 5))[:] = np.arange(15).reshape(3, 5)
    made.make("b", (4,), np.int64)[:] = -7
    made.make("none", (0, 5))
    if finish:
        made.finish()
    return made


def test_what_was_finished_is_found() -> None:
    filled("model")
    found = ArrayCache("model")
    np.testing.assert_array_equal(found.find("a", (3, 5)), np.arange(15).reshape(3, 5))
    np.testing.assert_array_equal(found.find("b", (4,), np.int64), -7)
    assert (
        found.find("a", (5, 3)) is found.find("a", (3, 5), np.int64) is found.find("c", ()) is None
    )
    assert ArrayCache("other").find("a", (3, 5)) is ArrayCache().find("a", (3, 5)) is None


def test_what_was_not_finished_is_not() -> None:
    filled("model", finish=False)
    assert ArrayCache("model").find("a", (3, 5)) is None


STRANGE = [
    b"", b"[]", b'{"a": 1}', b'{"a": [-9, [3, 5], "uint8", 0]}', b'{"a": [0, [99], "object", 0]}',
    b'{"a": [0, ["x"], "uint8", 0]}', b'{"a": [0, [3, 5], "uint8", 0]}', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("table", STRANGE, ids=range(len(STRANGE)))
def test_a_strange_table_is_as_none(table: bytes, folder: Path) -> None:
    filled("model")
    (path,) = folder.glob("*.json")
    path.write_bytes(table)
    assert ArrayCache("model").find("a", (3, 5)) is None
    filled("model")
    assert ArrayCache("model").find("a", (3, 5)) is not None


def test_without_room_or_a_folder_arrays_are_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        filled("model")
        assert not list(folder.iterdir())
    with monkeypatch.context() as patch:
        patch.setenv("GENESIS_CACHE", "off")
        filled("model")
    folder.chmod(0o777)  # anybody could put weights there
    filled("model")
    assert not list(folder.iterdir())


def test_old_shelves_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled("first")
    os.utime(next(folder.glob("*.json")), (1, 1))
    monkeypatch.setattr(array_cache, "LIMIT", 10)
    filled("second")
    filled("third")
    assert ArrayCache("first").find("a", (3, 5)) is None
    assert ArrayCache("third").find("a", (3, 5)) is not None


def test_the_command_shows_and_deletes_them(capsys: pytest.CaptureFixture[str]) -> None:
    filled("model")
    assert main(["cache"]) == 0 and "weights    1" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0 and "packed weights" in capsys.readouterr().out
    assert ArrayCache("model").find("a", (3, 5)) is None
