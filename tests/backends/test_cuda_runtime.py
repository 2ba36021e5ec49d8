"""The CUDA runtime on a pretended driver: memory, copies, launches, graphs, and what goes wrong."""

import ctypes
import gc
import itertools
import signal
import sys
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import genesis.cuda
from genesis.backends.base import (
    SHARED,
    BadBinary,
    Binary,
    Cursor,
    Host,
    Launch,
    Operand,
    OutOfMemory,
    Repeat,
    Turn,
)
from genesis.backends.gpu import backend as cuda_backend
from genesis.backends.gpu.backend import CUDABackend
from genesis.backends.gpu.launch_metadata import evaluated, parsed
from genesis.backends.gpu.runtime import free_ranges as arena_module
from genesis.backends.gpu.runtime import nvidia, program
from genesis.backends.gpu.runtime.driver import DriverError, GPUDevice, uninterrupted
from genesis.backends.gpu.runtime.free_ranges import Arena
from genesis.backends.gpu.runtime.memory import MemoryPool, rounded
from genesis.backends.gpu.runtime.transfer import CHUNK, CHUNKS, WORDS
from genesis.ir.dtype import float32, int64, uint8
from genesis.ir.kernel_builder import Builder
from tests.fake_cuda import ATTRIBUTES, CUresult, FakeDriver
from tests.interrupts import interrupted_at

N = 8


@pytest.fixture(params=["late", "paced"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    pretended = FakeDriver(devices=2, memory=64 << 20).install(monkeypatch)
    pretended.pace = Random(0) if request.param == "paced" else None
    yield pretended
    gc.collect()  # programs die while their driver is there
    nvidia.driver.cache_clear()


@pytest.fixture
def cuda(fake: FakeDriver) -> CUDABackend:
    return CUDABackend()


def floats(address: int, count: int = N) -> Any:
    return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)


def word(place: int) -> int:
    return int(ctypes.c_uint64.from_address(place).value)


PHASE = {
    "name": "x", "size": 1, "grid": 1, "threads": 32, "shared": 0, "waits": False, "ahead": [],
}  # fmt: skip


def kernel(fake: FakeDriver, name: str, function: Any, **entry: Any) -> Binary:
    """A kernel that is a Python function of addresses."""
    image = name.encode()
    fake.kernels[image] = lambda _, blocks, places: function(*(word(p) for p in places))
    phase = PHASE | {"name": name, "size": len(image), "threads": 128}
    plain = {"phases": [phase], "buffers": 2, "symbols": 0, "hidden": 2, "written": [1]}
    return Binary(name, image, plain | entry)


def add_one(x: int, y: int, *hidden: int) -> None:
    assert hidden == (0, 0)
    floats(y)[:] = floats(x) + 1


def filled(cuda: CUDABackend, *values: float) -> Any:
    memory = cuda.allocate(4 * N)
    cuda.upload(memory, np.full(N, values[0], np.float32))
    return memory


def read(cuda: CUDABackend, memory: Any) -> list[float]:
    found: list[float] = cuda.download(memory, float32, (N,)).tolist()
    return found


# ---- memory


def test_blocks_are_reused_and_counted(cuda: CUDABackend, fake: FakeDriver) -> None:
    x = cuda.allocate(1000)
    assert x.pointer % 512 == 0 and x.nbytes == 1000
    pointer = x.pointer
    assert cuda.memory_stats().live_bytes == rounded(1000) == 1024
    del x
    stats = cuda.memory_stats()
    assert (stats.live_bytes, stats.cached_bytes, stats.peak_live_bytes) == (0, 2 << 20, 1024)
    assert cuda.allocate(1024).pointer == pointer
    cuda.trim()
    assert cuda.memory_stats().cached_bytes == 0 and not fake.sizes


def test_running_out_of_memory_says_who_has_it(cuda: CUDABackend) -> None:
    from genesis.ndarray.core.value import Value

    big = Value.realised(cuda.allocate(40 << 20), float32, (10 << 20,), (1,), "cuda")
    cached = cuda.allocate(10 << 20)
    del cached
    with pytest.raises(OutOfMemory) as caught:
        cuda.allocate(30 << 20)
    message = str(caught.value)
    assert "cannot allocate 30.00 MiB" in message
    assert "40.00 MiB are live in 1 blocks" in message
    assert "10.00 MiB were cached and have been given back" in message
    assert f"40.00 MiB: {big!r}" in message
    assert cuda.allocate(20 << 20).nbytes == 20 << 20  # what was cached is free again


def mixture(rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Requests and how many later ones each outlives: sizes and lives of all orders."""
    for _ in range(8000):
        yield int(2 ** rng.uniform(12, 24)), int(2 ** rng.uniform(0, 12))


def steps_of_all_lengths(rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Parameters that stay, and training steps whose activations differ in length."""
    for size in rng.uniform(18, 23, 300):
        yield int(2**size), 1 << 30
    for length in rng.integers(64, 1024, 60):
        for layer in range(40):
            yield int(length) * 1024 * int(rng.choice((1, 2, 4))), 80 - 2 * layer
            yield int(length) * 2048, 1


@pytest.mark.parametrize(
    ("requests", "maps", "lost"),
    [(mixture, True, 0.1), (steps_of_all_lengths, True, 0.05), (mixture, False, 0.2)],
)
def test_little_memory_is_lost_between_blocks(
    requests: Any,
    maps: bool,
    lost: float,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """What is taken from the device is little more than what is in use at the same time."""
    attribute = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
    monkeypatch.setitem(ATTRIBUTES, attribute, int(maps))
    fake = FakeDriver(memory=1 << 50, hollow=True).install(monkeypatch)
    pool = MemoryPool(GPUDevice(nvidia.driver(), 0))
    live: dict[int, Any] = {}
    ends: defaultdict[int, list[int]] = defaultdict(list)
    in_use = most = 0
    for now, (nbytes, life) in enumerate(requests(rng)):
        (live[now],) = pool.allocate_many([nbytes])
        in_use += nbytes
        most = max(most, in_use)
        ends[now + life].append(now)
        for gone in ends.pop(now, ()):
            in_use -= live.pop(gone).nbytes
    assert bool(fake.mapped) is maps
    assert most > (1 - lost) * sum(fake.sizes.values())
    regions = sorted((m.pointer, m.pointer + m.nbytes) for m in live.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(regions))
    live.clear()
    pool.trim()
    assert not fake.sizes


def test_free_memory_is_one_piece(cuda: CUDABackend, fake: FakeDriver) -> None:
    """What is free between blocks serves a request that is larger than any piece of it."""
    one = cuda.assemble([Launch(kernel(fake, "one", add_one), (0, 1))])
    blocks = [cuda.allocate(4 << 20) for _ in range(14)]
    x, y = filled(cuda, 1.0), blocks[1]
    one.run(array("Q", [x.pointer, y.pointer]))
    before = sum(fake.sizes.values())
    del blocks[::2]
    large = cuda.allocate(28 << 20)
    assert sum(fake.sizes.values()) == before
    assert all(b.pointer + b.nbytes <= large.pointer for b in blocks)
    assert read(cuda, y) == [2.0] * N
    del blocks, large, y
    cuda.trim()
    assert sum(fake.sizes.values()) == 2 << 20  # where the small ones are


def test_arrays_come_and_go_in_pieces(cuda: CUDABackend) -> None:
    source = np.random.default_rng(0).integers(0, 255, (3, CHUNK // 2 + 77), np.uint8)
    memory = cuda.allocate(source.nbytes)
    cuda.upload(memory, source.T)
    np.testing.assert_array_equal(cuda.download(memory, uint8, source.T.shape), source.T)
    strided = cuda.download(memory, uint8, (5, 2), (-3, 1), 12)
    np.testing.assert_array_equal(strided, source.T[4::-1, :2])
    assert cuda.download(memory, uint8, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("existing", range(CHUNKS + 1))
def test_the_first_large_array_that_comes_back(cuda: CUDABackend, existing: int) -> None:
    """However many pinned buffers there are already, none is filled again before it is read."""
    source = np.arange((2 * CHUNKS + 1) * CHUNK // 4 + 5, dtype=np.float32)
    memory = cuda.allocate(source.nbytes)
    ctypes.memmove(memory.pointer, source.ctypes.data, source.nbytes)  # a kernel wrote it, say
    if existing:
        cuda.upload(cuda.allocate(existing * CHUNK), np.zeros(existing * CHUNK, np.uint8))
    for _ in range(2):
        np.testing.assert_array_equal(cuda.download(memory, float32, source.shape), source)


def test_words_that_are_waited_for_are_nobody_elses(cuda: CUDABackend) -> None:
    """However many there are, and in whatever order they are looked at or forgotten."""
    memories = [cuda.allocate(8) for _ in range(3 * WORDS)]
    later = []
    for k, memory in enumerate(memories):
        cuda.upload(memory, np.array(k, np.uint64))
        later.append(cuda.word_later(memory))
    for k in range(0, len(memories), 3):
        del later[2 * k // 3]
        cuda.upload(memories[k], np.array(1 << 40, np.uint64))
        cuda.word_later(memories[k])
    assert [word(True) for word in later] == [k for k in range(len(memories)) if k % 3]


def test_memory_that_another_library_had_is_given_out_when_nothing_runs(
    cuda: CUDABackend, fake: FakeDriver
) -> None:
    """Another library may be done with memory while a queue of its own still uses it."""
    memory, _beside = cuda.allocate_many((4096, 4096))
    pointer, memory.owner = memory.pointer, SHARED
    _, theirs = fake.cuStreamCreate(0)
    fake._enqueue(theirs, lambda: ctypes.memset(pointer, 7, 4096))
    del memory
    again = cuda.allocate(4096)
    assert again.pointer == pointer and not fake.streams[theirs].pending
    cuda.upload(again, np.ones(4096, np.uint8))
    fake.cuCtxSynchronize()
    assert cuda.download(again, uint8, (4096,)).tolist() == [1] * 4096


def test_an_upload_waits_for_who_used_its_memory(cuda: CUDABackend, fake: FakeDriver) -> None:
    """Memory that a program still reads is freed, and given to an array that comes in."""
    one = cuda.assemble([Launch(kernel(fake, "one", add_one), (0, 1))])
    x, y = filled(cuda, 1.0), cuda.allocate(4 * N)
    one.run(array("Q", [x.pointer, y.pointer]))
    pointer = x.pointer
    del x
    z = filled(cuda, 50.0)
    assert z.pointer == pointer
    cuda.device.synchronize()
    assert read(cuda, y) == [2.0] * N
    assert read(cuda, z) == [50.0] * N


def test_a_program_waits_for_its_uploads(cuda: CUDABackend, fake: FakeDriver) -> None:
    one = cuda.assemble([Launch(kernel(fake, "one", add_one), (0, 1))])
    x, y = filled(cuda, 7.0), cuda.allocate(4 * N)
    one.run(array("Q", [x.pointer, y.pointer]))
    assert read(cuda, y) == [8.0] * N


def test_a_word_is_known_when_the_device_has_come_so_far(
    cuda: CUDABackend, fake: FakeDriver
) -> None:
    memory = cuda.allocate(8)
    cuda.upload(memory, np.array(7, np.uint64))
    later = cuda.word_later(memory)
    assert later(False) is None or fake.pace is not None
    assert later(True) == 7 == later(False)


def test_copies_between_devices(cuda: CUDABackend) -> None:
    other = CUDABackend(1)
    x, y = filled(cuda, 3.0), other.allocate(4 * N)
    cuda.synchronize()
    other.copy(y, x, 4 * N)
    assert read(other, y) == [3.0] * N
    with pytest.raises(ValueError, match=r"no device cuda:2: this machine has 2"):
        CUDABackend(2)


def test_contexts_are_left_as_they_were(cuda: CUDABackend, fake: FakeDriver) -> None:
    fake.contexts.append(77)
    x = filled(cuda, 1.0)
    cuda.synchronize()
    assert read(cuda, x) == [1.0] * N
    assert fake.contexts == [77]


# ---- programs


def chain(cuda: CUDABackend, fake: FakeDriver, length: int = 3) -> Any:
    """y = x + length, through temporaries."""
    code = kernel(fake, "one", add_one)
    return cuda.assemble([Launch(code, (k, k + 1)) for k in range(length)])


def test_a_program_is_captured_when_it_runs_again(cuda: CUDABackend, fake: FakeDriver) -> None:
    run = chain(cuda, fake)
    memories = [filled(cuda, 1.0), *(cuda.allocate(4 * N) for _ in range(3))]
    frame = array("Q", [m.pointer for m in memories])
    for k in range(4):
        run.run(frame)
        assert run.runs == k + 1
    assert read(cuda, memories[3]) == [4.0] * N
    assert fake.launched == {"kernel": 3, "instantiate": 1, "graph": 3}


def test_graphs_are_found_by_their_frame_and_updated(cuda: CUDABackend, fake: FakeDriver) -> None:
    run = chain(cuda, fake)
    first = [filled(cuda, 1.0), cuda.allocate(4 * N), cuda.allocate(4 * N)]
    ends = [cuda.allocate(4 * N) for _ in range(program.GRAPHS + 2)]
    for turn in range(3):
        for end in ends:
            run.run(array("Q", [*(m.pointer for m in first), end.pointer]))
            assert read(cuda, end) == [4.0] * N
            cuda.upload(end, np.zeros(N, np.float32))
        if turn == 0:
            assert fake.launched["instantiate"] == program.GRAPHS
            assert fake.launched["update"] == 1  # one argument of one launch
    assert fake.launched["kernel"] == 3
    assert fake.launched["instantiate"] == program.GRAPHS


@pytest.mark.parametrize(
    ("phase", "early"),
    [
        ({"waits": True}, 2),
        ({"waits": False}, 0),
        ({"waits": True, "grid": 1 << 20}, 0),  # many blocks run
        ({"waits": True, "ahead": [0]}, 0),  # what the launch before it writes
    ],
)
def test_launches_start_early_where_nothing_is_lost(
    cuda: CUDABackend, fake: FakeDriver, phase: dict[str, Any], early: int
) -> None:
    code = kernel(fake, "one", add_one)
    code.entry["phases"][0].update(phase)
    run = cuda.assemble([Launch(code, (k, k + 1)) for k in range(3)])
    memories = [filled(cuda, 1.0), *(cuda.allocate(4 * N) for _ in range(3))]
    for _ in range(2):
        run.run(array("Q", [m.pointer for m in memories]))
    assert read(cuda, memories[3]) == [4.0] * N
    assert fake.launched["early"] == early


def test_blocks_follow_from_sizes(cuda: CUDABackend, fake: FakeDriver) -> None:
    seen: list[int] = []
    code = kernel(fake, "sized", lambda *a: None, buffers=0, symbols=1, hidden=0, written=[])
    code.entry["phases"][0]["grid"] = ["//", ["+", ["symbol", 0], 15], 16]
    fake.kernels[b"sized"] = lambda _, blocks, places: seen.append(blocks)
    run = cuda.assemble([Launch(code, (0,))])
    for n in (1, 33, 0, 160, 0):
        run.run(array("Q", [n]))
    cuda.synchronize()
    assert seen == [1, 3, 10]  # none at all where there is nothing to do


def test_unaligned_arguments_get_code_of_their_own(
    cuda: CUDABackend, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def made(name: str) -> Binary:
        def note(x: int, y: int, *hidden: int) -> None:
            used.append(name)
            add_one(x, y, *hidden)

        return kernel(fake, name, note)

    monkeypatch.setattr(cuda_backend, "_without_alignment", lambda binary: made("any"))
    run = cuda.assemble([Launch(made("whole"), (0, 1))])
    x, y = cuda.allocate(8 * N), cuda.allocate(4 * N)
    cuda.upload(x, np.arange(2 * N, dtype=np.float32))
    for start in (0, 4, 16, 8):
        run.run(array("Q", [x.pointer + start, y.pointer]))
        assert read(cuda, y)[0] == start / 4 + 1
    assert used == ["whole", "any", "whole", "any"]


def test_loops_move_pointers(cuda: CUDABackend, fake: FakeDriver) -> None:
    """carry = carry + x for every row x, the states kept."""

    def add(carry: int, x: int, new: int, kept: int, *hidden: int) -> None:
        floats(new)[:] = floats(carry) + floats(x)
        floats(kept)[:] = floats(new)

    code = kernel(fake, "add", add, buffers=4)
    # frame: x, start, out, rows, 0, stride, [x cursor, out cursor, carry], next, spare
    loop = Repeat(
        3,
        (Cursor(6, 0, 4, 5), Cursor(7, 2, 4, 5)),
        (Turn(8, 1, 9, 10),),
        (Launch(code, (8, 6, 9, 7)),),
    )
    run = cuda.assemble([loop])
    rows = np.arange(5 * N, dtype=np.float32).reshape(5, N)
    x, out = cuda.allocate(rows.nbytes), cuda.allocate(rows.nbytes)
    start, *turns = (filled(cuda, 0.0) for _ in range(3))
    cuda.upload(x, rows)
    pointers = [m.pointer for m in (x, start, out)]
    for _ in range(3):
        words = [*pointers, 5, 0, 4 * N, 0, 0, 0, *(m.pointer for m in turns)]
        run.run(array("Q", words))
        np.testing.assert_array_equal(cuda.download(out, float32, (5, N)), rows.cumsum(0))
    assert fake.launched["graph"] == 2


def test_every_record_is_timed(cuda: CUDABackend, fake: FakeDriver) -> None:
    """A launch, and a loop of three repetitions in which the host has a part."""
    code = kernel(fake, "one", add_one)
    operands = (Operand(1, float32, (4,)), Operand(2, float32, (4,)), Operand(3, int64, (4,)))
    host = Host("sorting.sort", (False,), operands[:1], operands[1:])
    run = cuda.assemble([Launch(code, (0, 1)), Repeat(5, (), (), (Launch(code, (2, 1)), host))])
    x, y, z = filled(cuda, 1.0), filled(cuda, 0.0), filled(cuda, 5.0)
    order = cuda.allocate(8 * N)
    found = run.timed(array("Q", [x.pointer, y.pointer, z.pointer, order.pointer, N, 3]))
    assert [t.runs for t in found] == [1, 1, 3, 3]
    assert run.runs == 1 and read(cuda, y) == [8.0] * N
    # The pretended driver says 1.5 ms between any two events.
    assert {(t.total, t.end - t.start) for t in found} == {(0, 0)}


def test_the_host_takes_its_turn(cuda: CUDABackend, fake: FakeDriver) -> None:
    code = kernel(fake, "one", add_one)
    given, values, places = (
        Operand(k, d, (4,)) for k, d in ((1, float32), (2, float32), (3, int64))
    )
    host = Host("sorting.sort", (False,), (given,), (values, places))
    run = cuda.assemble([Launch(code, (0, 1)), host, Launch(code, (2, 1))])
    x, y, z, at = (cuda.allocate(8 * N) for _ in range(4))
    numbers = np.array([3, -1, 2, 9, 0, 5, 5, -7], np.float32)
    cuda.upload(x, numbers)
    for _ in range(2):
        run.run(array("Q", [x.pointer, y.pointer, z.pointer, at.pointer, N]))
    assert read(cuda, z) == sorted(numbers + 1)
    assert read(cuda, y) == sorted(numbers + 2)
    np.testing.assert_array_equal(cuda.download(at, int64, (N,)), np.argsort(numbers, stable=True))
    assert run.runs == 2


def test_code_is_unloaded_when_no_program_has_it(cuda: CUDABackend, fake: FakeDriver) -> None:
    """Not before what was started has run, and not while another program has it."""
    memories = [filled(cuda, 1.0), *(cuda.allocate(4 * N) for _ in range(3))]
    frame = array("Q", [m.pointer for m in memories])
    first, second = chain(cuda, fake), chain(cuda, fake)
    for _ in range(3):
        first.run(frame)
    del first
    other = kernel(fake, "other", add_one)
    cuda.assemble([Launch(other, (0, 1))])
    assert fake.modules == {b"one": 1, b"other": 1}
    second.run(frame)
    del second
    cuda.assemble([Launch(kernel(fake, "third", add_one), (0, 1))])
    assert fake.modules == {b"one": 0, b"other": 0, b"third": 1}
    assert read(cuda, memories[3]) == [4.0] * N
    chain(cuda, fake).run(frame)
    assert read(cuda, memories[3]) == [4.0] * N and fake.modules[b"one"] == 1


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("timed", [False, True])
def test_an_interrupt_does_not_leave_half_a_program(
    cuda: CUDABackend, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, turn: int, timed: bool
) -> None:
    """A program may overwrite what it reads: started by halves, it could not be run again."""
    run = chain(cuda, fake)
    memory = filled(cuda, 1.0)
    launch, count = fake.cuLaunchKernel, itertools.count()

    def interrupted(*arguments: Any) -> Any:
        if next(count) == turn:
            signal.raise_signal(signal.SIGINT)
        return launch(*arguments)

    monkeypatch.setattr(fake, "cuLaunchKernel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        (run.timed if timed else run.run)(array("Q", [memory.pointer] * 4))
    assert run.runs == 1 and read(cuda, memory) == [4.0] * N


def test_what_is_done_as_a_whole() -> None:
    assert uninterrupted(lambda: threading.current_thread().name) == "genesis-whole"
    with pytest.raises(LookupError, match="so"):
        uninterrupted(lambda: (_ for _ in ()).throw(LookupError("so")))
    inside: list[Any] = []
    thread = threading.Thread(target=lambda: inside.append(uninterrupted(threading.get_ident)))
    thread.start()
    thread.join()
    assert inside == [thread.ident]  # no signal comes there


def test_without_threads_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert uninterrupted(lambda: threading.current_thread()) is threading.main_thread()


def test_an_interrupted_arena_gives_nothing_out_twice() -> None:
    """Whatever line is interrupted: blocks do not overlap, and those that come back are used."""
    for at in itertools.count(1):
        arena, live = Arena(), dict[int, int]()
        arena.give(0, 1 << 16)
        rng = np.random.default_rng(at)
        with interrupted_at(at, arena_module.__file__) as interrupt:
            for _ in range(30):
                try:
                    if live and rng.random() < 0.45:
                        address, size = live.popitem()
                        arena.give(address, size)
                    else:
                        size = 512 * int(rng.integers(1, 9))
                        if found := arena.take(size):
                            live[found[0]] = size
                except KeyboardInterrupt:
                    arena.repair()
        free = [(a, a + size) for size, a in arena.pieces()]
        blocks = sorted([*free, *((a, a + size) for a, size in live.items())])
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(blocks))
        if not interrupt.happened:
            break
        assert at < 5000
    assert at > 200


def test_a_launch_that_fails_is_no_run(cuda: CUDABackend, fake: FakeDriver) -> None:
    run = chain(cuda, fake)
    memories = [filled(cuda, 1.0), *(cuda.allocate(4 * N) for _ in range(3))]
    fake.failing = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match=r"cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS .*any more"):
        run.run(array("Q", [m.pointer for m in memories]))
    assert run.runs == 0


# ---- what is read from disk


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"phases": [], "buffers": -1, "symbols": 0, "hidden": 0},
        {"phases": [{"name": "x"}], "buffers": 1, "symbols": 0, "hidden": 0},
        *(
            {"phases": [PHASE | wrong], "buffers": 1, "symbols": 1, "hidden": 0, "written": [0]}
            for wrong in (
                {"size": 99}, {"grid": ["exec", 1, 2]}, {"grid": ["symbol", 3]}, {"ahead": [1]},
                {"ahead": 1},
            )
        ),
        {"phases": [PHASE], "buffers": 1, "symbols": 0, "hidden": 0, "written": [1]},
    ],
)  # fmt: skip
def test_hostile_entries_are_refused(entry: Any) -> None:
    with pytest.raises(BadBinary):
        parsed(Binary("key", b"ab", entry))


def test_counts_of_blocks() -> None:
    count = ["*", ["max", ["-", ["symbol", 0], 4], 1], ["min", ["%", ["symbol", 1], 7], 5]]
    assert evaluated(count, [10, 20]) == 6 * 5


def test_workers_compile_what_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("genesis.backends.compile_workers.FEW", 1)
    from genesis.backends import compile_workers
    from genesis.backends.gpu import binary

    def kernel(width: int) -> Any:
        k = Builder(f"twice{width}")
        n = k.symbol("N")
        x, y = k.input("x", float32, n), k.output("y", float32, n)
        at = k.grid("b", (n + (width - 1)) // width) * width + k.tile("v", width)
        k.store(y, (at,), x.load(at, mask=at < n) * 2.0, mask=at < n)
        return k.kernel()

    requests = [binary.request(kernel(width), "sm_90") for width in (64, 128, 256)]
    made = compile_workers.each(binary.made, requests, "Triton")
    assert [b.key for b in made] == [r.key for r in requests]
    assert [b.image for b in made] == [binary.made(r).image for r in requests]
    (phase,) = parsed(made[1]).phases
    assert evaluated(phase.grid, [1000]) == 8 and phase.threads == 32
    assert made[1].image[phase.code].startswith(b"\x7fELF")
    # What is kept of the text is enough to compile it for arguments that begin anywhere.
    again = binary.unaligned(made[1])
    assert again.source.text == requests[1].source.text and again.key != requests[1].key
    assert "*fp32:16" not in again.signature().values()
    packed = binary.packed(made[1])
    assert binary.unpacked(made[1].key, packed).entry == made[1].entry


# ---- the rest of the surface


def test_devices(fake: FakeDriver) -> None:
    assert genesis.cuda.is_available() and genesis.cuda.device_count() == 2
    with pytest.raises(ValueError, match="'cpu' is not a CUDA device"):
        genesis.cuda.synchronize("cpu")


def test_without_bindings_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia.driver.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ImportError, match=r"pip install genesis-dl\[cuda\]"):
        nvidia.driver()
    assert not genesis.cuda.is_available() and genesis.cuda.device_count() == 0
    nvidia.driver.cache_clear()


def test_the_chip_is_described(cuda: CUDABackend) -> None:
    chip = cuda.chip
    assert (chip.architecture, chip.multiprocessors, chip.l1_bytes) == ("sm_90", 132, 232448)
    assert cuda.target.startswith("sm_90 132 232448")
