"""The CPU allocator: classes, reuse, accounting, views, threads."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from genesis.backends.base import OutOfMemory
from genesis.backends.cpu.runtime import memory, numa
from genesis.ir import dtype as dt

ROOT = Path(__file__).parents[2]


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_size_classes() -> None:
    previous = 0
    for nbytes in itertools.chain(range(3000), (1 << k for k in range(12, 50))):
        for request in (nbytes, nbytes + 1):
            block = memory.size_class(request)
            assert block >= request and block % 64 == 0
            slack = 2 << 20 if request > 4 << 20 else 64
            assert block <= max(request * 1.25, request + slack)
        assert block >= previous
        previous = block


@pytest.mark.parametrize(
    "nbytes", (0, 1, 64, 65, 4096, 200_000, 262_144, 300_000, 3 << 20, 5 << 20)
)
def test_blocks_are_aligned_writable_and_reused(nbytes: int) -> None:
    memory.trim()
    first = memory.allocate(nbytes)
    assert first.pointer and first.nbytes == nbytes and first.owner is None
    assert first.pointer % ((2 << 20) if nbytes >= 4 << 20 else 64) == 0
    memory.as_numpy(first, "uint8", (nbytes,))[:] = 255
    second = memory.allocate(nbytes)
    assert abs(second.pointer - first.pointer) >= nbytes
    pointer = first.pointer
    del first
    assert memory.stats().cached_bytes == memory.size_class(nbytes)
    third = memory.allocate(nbytes)
    assert third.pointer == pointer
    assert memory.stats().cached_bytes == 0


def test_stats_return_to_where_they_were() -> None:
    gc.collect()
    memory.trim()
    before = memory.stats()
    blocks = [memory.allocate(n) for n in (10, 1000, 100_000, 1_000_000, 10_000_000)]
    during = memory.stats()
    assert during.live_blocks == before.live_blocks + 5
    assert during.live_bytes - before.live_bytes == sum(memory.size_class(b.nbytes) for b in blocks)
    assert during.peak_live_bytes >= during.live_bytes
    assert during.allocations == before.allocations + 5
    held = during.live_bytes - before.live_bytes
    blocks.clear()
    after = memory.stats()
    assert (after.live_bytes, after.live_blocks) == (before.live_bytes, before.live_blocks)
    assert after.cached_bytes == held
    assert after.peak_live_bytes == during.peak_live_bytes
    resident = resident_bytes()
    memory.trim()
    assert memory.stats().cached_bytes == 0
    assert resident_bytes() <= resident + (1 << 18)  # the process has other things, too


def test_peak_counts_blocks_taken_from_the_cache() -> None:
    code = """
from genesis.backends.cpu.runtime import memory
a = memory.allocate(1024); del a
b = memory.allocate(2048); a = memory.allocate(1024); del a, b
print(memory.stats())
"""
    expected = memory.MemoryStats(0, 0, 3072, 3072, 3)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == repr(expected), done.stderr


def test_cache_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.trim()
    monkeypatch.setattr(memory, "_cache_limit", 1 << 20)
    blocks = [memory.allocate(100_000) for _ in range(20)]
    blocks.clear()
    assert memory.stats().cached_bytes <= 1 << 20


@pytest.mark.parametrize("nbytes", (1 << 60, 1 << 56, 1 << 70))
def test_out_of_memory_names_the_sizes(nbytes: int) -> None:
    keep = memory.allocate(3 << 20)
    with pytest.raises(OutOfMemory) as caught:
        memory.allocate(nbytes)
    live = memory.stats().live_bytes
    assert str(nbytes) in str(caught.value) and str(live) in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert memory.stats().cached_bytes == 0
    assert keep.nbytes == 3 << 20


def test_negative_size() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        memory.allocate(-1)


def test_numpy_view_keeps_memory_alive() -> None:
    block = memory.allocate(100)
    dead = weakref.ref(block)
    view = memory.as_numpy(block, "float32", (3, 4), offset=2)
    assert view.ctypes.data == block.pointer + 8
    view[:] = np.arange(12).reshape(3, 4)
    del block
    assert dead() is not None
    part = view[1:, ::2]
    del view
    assert part.tolist() == [[4, 6], [8, 10]]
    del part
    assert dead() is None


def test_numpy_view_layouts() -> None:
    block = memory.allocate(12 * 4)
    memory.as_numpy(block, "int32", (12,))[:] = np.arange(12)
    grid = np.arange(12).reshape(3, 4)
    assert np.array_equal(memory.as_numpy(block, "int32", (4, 3), (1, 4)), grid.T)
    backwards = memory.as_numpy(block, "int32", (12,), (-1,), offset=11)
    assert np.array_equal(backwards, np.arange(12)[::-1])
    assert memory.as_numpy(block, "int32", (0, 5)).shape == (0, 5)
    assert memory.as_numpy(block, dt.bfloat16, (24,)).dtype == dt.bfloat16.numpy
    scalar = memory.as_numpy(block, "int32", (), offset=5)
    assert scalar.shape == () and scalar == 5
    for shape, strides, offset in (((13,), None, 0), ((12,), None, 1), ((2, 4), (12, 1), 0)):
        with pytest.raises(ValueError, match="48 bytes"):
            memory.as_numpy(block, "int32", shape, strides, offset)


def test_foreign_memory() -> None:
    class Owner:
        def __init__(self) -> None:
            self.array = np.arange(6, dtype=np.float64)

    owner = Owner()
    dead = weakref.ref(owner)
    before = memory.stats()
    block = memory.from_foreign(owner.array.ctypes.data, owner.array.nbytes, owner)
    assert "Owner" in repr(block)
    del owner
    view = memory.as_numpy(block, "float64", (2, 3))
    del block
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]] and dead() is not None
    del view
    assert dead() is None
    assert memory.stats() == before


def test_allocator_under_threads() -> None:
    """Blocks that are live at once never overlap: each is filled with its thread's own pattern."""
    gc.collect()
    before = memory.stats()
    failures: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[np.ndarray, int]] = []
        for step in range(1500):
            view = memory.as_numpy(
                memory.allocate(size := rng.randrange(1, 5000)), "uint8", (size,)
            )
            mark = (seed * 31 + step) % 251
            view[:] = mark
            held.append((view, mark))
            if len(held) > 20:
                old, mark = held.pop(rng.randrange(20))
                if not (old == mark).all():
                    failures.append(seed)
            if step % 500 == 0:
                memory.trim()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    after = memory.stats()
    assert (after.live_bytes, after.live_blocks) == (before.live_bytes, before.live_blocks)
    assert after.allocations == before.allocations + 4 * 1500


def test_a_finaliser_may_allocate() -> None:
    """The collector can run one while the allocator's lock is held by the same thread."""
    sizes: list[int] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            sizes.append(memory.allocate(10).nbytes)

    with memory._lock:
        Cycle()
        gc.collect()
    assert sizes == [10]


# ---- memory nodes


def machine(folder: Path, memory_on: str, processors: dict[int, str]) -> Path:
    """What the system says of a machine whose nodes have these processors."""
    (folder / "has_memory").write_text(memory_on + "\n")
    for number, listed in processors.items():
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(listed + "\n")
    return folder


def test_nodes_are_those_with_memory_and_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = machine(tmp_path, "0-2,4", {0: "0-3,8-11", 1: "4-7", 2: "", 3: "12", 4: "13"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 12, 14})
    assert numa.nodes(described) == (0, 1)
    assert numa.nodes(tmp_path / "absent") == ()


def test_large_blocks_are_laid_over_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    laid: list[tuple[int, int]] = []

    def interleave(pointer: int, nbytes: int, over: tuple[int, ...]) -> bool:
        assert over == (0, 1)
        laid.append((pointer, nbytes))
        return True

    monkeypatch.setattr(memory, "interleave", interleave)
    for over, expected in (((0,), 0), ((0, 1), 1)):
        monkeypatch.setattr(memory, "nodes", lambda over=over: over)
        memory.trim()
        small, large = memory.allocate(1 << 20), memory.allocate(40 << 20)
        assert small.pointer not in dict(laid) and len(laid) == expected
        del small, large
    assert laid[0][1] >= 40 << 20


def test_interleaved_memory_can_be_used() -> None:
    nbytes = 8 << 20
    pointer = memory._system_allocate(nbytes)
    if not numa.interleave(pointer, nbytes, numa.nodes()):
        pytest.skip("the system does not let this process say where its memory is")
    view = memory.as_numpy(memory.from_foreign(pointer, nbytes, None), "int64", (nbytes // 8,))
    view[:] = np.arange(nbytes // 8)
    assert view[-1] == nbytes // 8 - 1
    with open("/proc/self/numa_maps") as maps:
        assert any(line.startswith(f"{pointer:x} interleave:0") for line in maps)
    assert not numa.interleave(pointer + 1, nbytes, numa.nodes())  # not the beginning of a page
    memory._system_free(pointer, nbytes)
