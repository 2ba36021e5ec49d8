"""Tiers: nothing that comes back is wrong, whatever happened to the process or the disk."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genesis.llm.page_offload import Log, Tiers, pack, unpack

#: Appends records that can be told from their key, and says which are complete.
WRITER = """
import itertools, sys
from pathlib import Path
from tests.llm.test_tiers import payload
from genesis.llm.page_offload import Log
log = Log(Path(sys.argv[1]), int(sys.argv[2]))
for i in itertools.count(int(sys.argv[3])):
    log.put(b"%d" % i, payload(i))
    print(i, flush=True)
"""


def payload(i: int) -> bytes:
    rng = random.Random(i)
    return rng.randbytes(rng.randint(0, 20_000))


class ByHand(Executor):
    """Runs what was submitted when told to."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self.tasks.append((fn, args))
        return Future()

    def run(self) -> None:
        while self.tasks:
            fn, args = self.tasks.pop(0)
            fn(*args)


# ---- packing


@pytest.mark.parametrize("item_bytes", [1, 2, 3, 4, 8])
def test_packing_loses_nothing(item_bytes: int) -> None:
    rng = random.Random(item_bytes)
    for length in (0, 1, 2, 7, 64, 1001):
        for data in (rng.randbytes(length), bytes(length), b"ab" * length):
            assert unpack(pack(data, item_bytes)) == data


def test_packing_pays_for_floats() -> None:
    values = np.random.default_rng(0).standard_normal(32768).astype(np.float32)
    half = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    assert len(pack(half, 2)) < 0.82 * len(half)
    noise = random.Random(0).randbytes(65536)
    assert len(pack(noise, 2)) < len(noise) + 64


def test_damaged_packages_are_one_error() -> None:
    rng, packed = random.Random(0), pack(b"abcd" * 300, 2)
    for _ in range(2000):
        broken = bytearray(packed)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        with suppress(ValueError):
            unpack(bytes(broken[: rng.randint(0, len(broken))]))


# ---- the log


def test_log_finds_what_was_put(tmp_path: Path) -> None:
    log = Log(tmp_path, 1 << 24)
    for i in range(50):
        assert log.put(b"%d" % i, payload(i))
    log.close()
    log = Log(tmp_path, 1 << 24)
    assert all(log.get(b"%d" % i) == payload(i) for i in range(50))
    assert log.get(b"50") is None
    log.close()


def test_log_has_one_owner(tmp_path: Path) -> None:
    log = Log(tmp_path, 1000)
    with pytest.raises(BlockingIOError, match="another process"):
        Log(tmp_path, 1000)
    log.close()
    Log(tmp_path, 1000).close()


def test_log_stays_within_its_capacity(tmp_path: Path) -> None:
    """And what is read from time to time outlives what is not."""
    log = Log(tmp_path, 400_000)
    for i in range(400):
        log.put(b"%d" % i, payload(i))
        log.get(b"3")
        assert log.nbytes <= 400_000
        assert sum(file.stat().st_size for file in tmp_path.glob("*.log")) <= 400_000
    assert log.get(b"3") == payload(3)
    assert log.get(b"4") is None
    assert not log.put(b"large", bytes(100_000))
    found = [log.get(b"%d" % i) for i in range(400)]
    assert all(data in (None, payload(i)) for i, data in enumerate(found))
    assert 20 < sum(data is not None for data in found)
    log.close()


def test_reopening_makes_no_litter(tmp_path: Path) -> None:
    for _ in range(10):
        Log(tmp_path, 1000).close()
    assert len(list(tmp_path.glob("*.log"))) == 1


def flip_and_read(folder: Path, flips: int) -> int:
    """How many of 30 records are missing after each flip of a bit; none may be wrong."""
    rng, missing = random.Random(5), 0
    for _ in range(flips):
        log = Log(folder, 1 << 22)
        for i in range(30):
            log.put(b"%d" % i, payload(i)[:300])
        log.close()
        file = max(folder.glob("*.log"))
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        log = Log(folder, 1 << 22)
        found = [log.get(b"%d" % i) for i in range(30)]
        assert all(data in (None, payload(i)[:300]) for i, data in enumerate(found))
        assert len(log) <= 31
        missing += found.count(None)
        log.close()
        for file in folder.glob("*.log"):
            file.unlink()
    return missing


def test_flipped_bits_are_misses(tmp_path: Path) -> None:
    assert flip_and_read(tmp_path, 20) >= 20


@pytest.mark.slow
def test_many_flipped_bits_are_misses(tmp_path: Path) -> None:
    assert flip_and_read(tmp_path, 1000) >= 1000


def test_torn_segments_are_read_up_to_the_tear(tmp_path: Path) -> None:
    log = Log(tmp_path, 1 << 22)
    for i in range(10):
        log.put(b"%d" % i, payload(i))
    log.close()
    file = max(tmp_path.glob("*.log"))
    whole = file.read_bytes()
    for cut in range(0, len(whole), 2999):
        file.write_bytes(whole[:cut])
        log = Log(tmp_path, 1 << 22)
        found = [log.get(b"%d" % i) == payload(i) for i in range(10)]
        assert found == sorted(found, reverse=True)
        log.close()


def kill_writers(folder: Path, times: int, capacity: int) -> None:
    rng, begin = random.Random(1), 0
    for _ in range(times):
        writer = [sys.executable, "-c", WRITER, str(folder), str(capacity), str(begin)]
        process = subprocess.Popen(writer, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        complete = [int(line) for line in (first + process.stdout.read()).split()]
        process.wait()
        log = Log(folder, capacity)
        for i in range(complete[-1] + 2):
            found = log.get(b"%d" % i)
            assert found in (None, payload(i))
            if capacity > 1 << 26:
                assert found is not None or i > complete[-1], "a complete record is lost"
        assert log.nbytes <= capacity
        log.close()
        begin = complete[-1] + 1


def test_killed_writers(tmp_path: Path) -> None:
    kill_writers(tmp_path, 2, 1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1 << 30, 1 << 20])
def test_writers_killed_thirty_times(tmp_path: Path, capacity: int) -> None:
    kill_writers(tmp_path, 30, capacity)


# ---- host and disk


def test_pages_go_down_and_come_up(tmp_path: Path) -> None:
    hand = ByHand()
    tiers = Tiers(10_000, Log(tmp_path, 1 << 20), executor=hand)
    pages = {b"%d" % i: bytes([i]) * 1000 for i in range(14)}
    for key, data in pages.items():
        tiers.put(key, data)
    assert tiers.used <= 10_000
    assert all(tiers.get(key) == data for key, data in pages.items()), "some are on their way"
    hand.run()
    gone = [key for key in pages if tiers.get(key) is None]
    assert len(gone) == 4 and all(tiers.has(key) for key in gone)
    coming = tiers.prefetch(pages)
    assert coming == gone and tiers.coming(coming)
    hand.run()
    assert not tiers.coming(coming)
    assert all(tiers.get(key) == pages[key] for key in gone)
    assert tiers.used <= 10_000
    tiers.close()


def test_a_slow_disk_does_not_fill_the_host(tmp_path: Path) -> None:
    hand = ByHand()
    tiers = Tiers(10_000, Log(tmp_path, 1 << 20), executor=hand)
    for i in range(100):
        tiers.put(b"%d" % i, bytes(1000))
    assert len(hand.tasks) == 5
    hand.run()
    tiers.close()


def test_damaged_pages_are_misses(tmp_path: Path) -> None:
    hand = ByHand()
    tiers = Tiers(4000, Log(tmp_path, 1 << 20), executor=hand)
    for i in range(5):
        tiers.put(b"%d" % i, random.Random(i).randbytes(1000))
    hand.run()
    for file in tmp_path.glob("*.log"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 8
        file.write_bytes(data)
    assert tiers.prefetch([b"0"]) == [b"0"]
    hand.run()
    assert not tiers.coming([b"0"]) and tiers.get(b"0") is None and not tiers.has(b"0")
    tiers.close()


def test_threads_agree(tmp_path: Path) -> None:
    """With the thread it has in earnest: all that comes back is right."""
    tiers, rng = Tiers(20_000, Log(tmp_path, 1 << 20)), random.Random(2)
    for _ in range(2000):
        i = rng.randrange(60)
        if rng.random() < 0.3:
            tiers.put(b"%d" % i, bytes([i]) * 1000)
        elif rng.random() < 0.5:
            tiers.prefetch([b"%d" % i])
        else:
            assert tiers.get(b"%d" % i) in (None, bytes([i]) * 1000)
    tiers.close()
    assert tiers.used <= 20_000 and tiers._leaving_bytes == 0 and not tiers._coming
