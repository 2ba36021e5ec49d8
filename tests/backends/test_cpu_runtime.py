"""The native program runner, on small kernels written directly in LLVM IR."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from array import array
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from genesis.backends.base import OutOfMemory
from genesis.backends.cpu.compile import compile_object, load
from genesis.backends.cpu.runtime import memory, runtime
from genesis.backends.cpu.runtime.runtime import NativeLaunch, pack_program
from genesis.ir import dtype as dt
from genesis.ir.dtype import encode

THREADS = (1, 2, 4, 7)


def kernel(name: str, body: str) -> str:
    """A kernel whose `body` runs for every grid point %i, with arguments in %a0 .. %a3."""
    arguments = "\n".join(
        f"  %p{j} = getelementptr i64, ptr %args, i64 {j}\n  %a{j} = load i64, ptr %p{j}"
        for j in range(4)
    )
    return f"""
define void @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
{arguments}
  %out = inttoptr i64 %a0 to ptr
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %tail ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %point, label %exit
point:
  %at = getelementptr i64, ptr %out, i64 %i
{body}
  br label %tail
tail:
  %i.next = add i64 %i, 1
  br label %head
exit:
  ret void
}}
"""


# out[i] += a2 * i + a3: wrong if a point runs twice, not at all, or with other arguments.
AFFINE = kernel(
    "affine",
    """  %old = load i64, ptr %at
  %scaled = mul i64 %i, %a2
  %sum = add i64 %scaled, %a3
  %new = add i64 %old, %sum
  store i64 %new, ptr %at""",
)

# Waits until a2 points are being run at once (or gives up, which only a mistake comes to): out[0]
# counts arrivals, out[1 + i] becomes 1 when all came.
MEET = kernel(
    "meet",
    """  %arrived = atomicrmw add ptr %out, i64 1 seq_cst
  br label %spin
spin:
  %n = phi i64 [ 0, %point ], [ %n.next, %again ]
  %here = load atomic i64, ptr %out seq_cst, align 8
  %all = icmp sge i64 %here, %a2
  br i1 %all, label %met, label %again
again:
  %n.next = add i64 %n, 1
  %patient = icmp slt i64 %n, 300000
  %ignored = call i32 @usleep(i32 1000)
  br i1 %patient, label %spin, label %tail
met:
  %mine = getelementptr i64, ptr %at, i64 1
  store i64 1, ptr %mine""",
)

# Fills a2 words of scratch with i, then checks them; out[i] = mismatches + 1, and the low bits of
# the scratch address are added in the thousands.
SCRATCH = kernel(
    "scratch",
    """  br label %fill
fill:
  %f = phi i64 [ 0, %point ], [ %f.next, %fill ]
  %fp = getelementptr i64, ptr %scratch, i64 %f
  store volatile i64 %i, ptr %fp
  %f.next = add i64 %f, 1
  %fm = icmp slt i64 %f.next, %a2
  br i1 %fm, label %fill, label %check
check:
  %c = phi i64 [ 0, %fill ], [ %c.next, %check ]
  %bad = phi i64 [ 1, %fill ], [ %bad.next, %check ]
  %cp = getelementptr i64, ptr %scratch, i64 %c
  %v = load volatile i64, ptr %cp
  %differs = icmp ne i64 %v, %i
  %one = zext i1 %differs to i64
  %bad.next = add i64 %bad, %one
  %c.next = add i64 %c, 1
  %cm = icmp slt i64 %c.next, %a2
  br i1 %cm, label %check, label %record
record:
  %address = ptrtoint ptr %scratch to i64
  %low = and i64 %address, 63
  %thousands = mul i64 %low, 1000
  %result = add i64 %bad.next, %thousands
  store i64 %result, ptr %at""",
)

# Counts the points that are being run: out[0] now, out[1] at most at the same time. A point ends
# when another thread has had its chance.
CROWD = kernel(
    "crowd",
    """  %before = atomicrmw add ptr %out, i64 1 seq_cst
  %here = add i64 %before, 1
  %most = getelementptr i64, ptr %out, i64 1
  %ignored = atomicrmw max ptr %most, i64 %here seq_cst
  %us = trunc i64 %a2 to i32
  %slept = call i32 @usleep(i32 %us)
  %after = atomicrmw sub ptr %out, i64 1 seq_cst""",
)

# Says in out[0] that it runs, and waits until somebody has written to out[1]; then out[2] = 1.
HOLD = kernel(
    "hold",
    """  store atomic i64 1, ptr %out seq_cst, align 8
  %gate = getelementptr i64, ptr %out, i64 1
  br label %spin
spin:
  %n = phi i64 [ 0, %point ], [ %n.next, %again ]
  %open = load atomic i64, ptr %gate seq_cst, align 8
  %go = icmp ne i64 %open, 0
  br i1 %go, label %through, label %again
again:
  %n.next = add i64 %n, 1
  %patient = icmp slt i64 %n, 300000
  %ignored = call i32 @usleep(i32 1000)
  br i1 %patient, label %spin, label %tail
through:
  %mine = getelementptr i64, ptr %out, i64 2
  store i64 1, ptr %mine""",
)

# The second argument of every kernel is its grid.
GRID = """
define i64 @grid(ptr %args) {
  %p = getelementptr i64, ptr %args, i64 1
  %n = load i64, ptr %p
  ret i64 %n
}
declare i32 @usleep(i32)
"""


@cache
def symbols() -> dict[str, int]:
    names = ("affine", "meet", "scratch", "crowd", "hold", "grid")
    return load(compile_object(AFFINE + MEET + SCRATCH + CROWD + HOLD + GRID), names)


def launch(name: str, *slots: int) -> NativeLaunch:
    return NativeLaunch(symbols()[name], symbols()["grid"], slots)


def run_one(
    name: str, words: int, grid: int, a2: int, a3: int, threads: int, scratch: int = 0
) -> np.ndarray:
    """One launch on a zeroed int64 array of `words`, which is returned."""
    out = np.zeros(words, np.int64)
    program = pack_program([launch(name, 0, 1, 2, 3)], scratch)
    frame = array("Q", [out.ctypes.data, encode(grid, dt.int64), a2, a3])
    runtime.get().run(program.pointer, frame.buffer_info()[0], threads)
    return out


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tasks() -> list[int]:
    """The threads of this process that are not Python's."""
    python_threads = {t.native_id for t in threading.enumerate()}
    return [k for k in map(int, os.listdir("/proc/self/task")) if k not in python_threads]


def until_asleep() -> None:
    """Return when no worker spins any more."""
    while any(" R " in Path(f"/proc/self/task/{k}/stat").read_text() for k in tasks()):
        os.sched_yield()


# ---- grids and threads


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("grid", (0, 1, 2, 3, 7, 64, 1000, 4097))
def test_every_grid_point_runs_once(grid: int, threads: int) -> None:
    for _ in range(20):
        out = run_one("affine", grid + 1, grid, 3, 5, threads)
        assert np.array_equal(out[:grid], np.arange(grid) * 3 + 5)
        assert out[grid] == 0


@pytest.mark.parametrize("threads", THREADS)
def test_launches_run_in_order_with_their_own_arguments(threads: int) -> None:
    """y += x's launch sees all of x: a barrier lies between launches."""
    n = 513
    x, y = np.zeros(n, np.int64), np.zeros(n, np.int64)
    launches = [launch("affine", k % 2, 2, 3 + k % 3, 6) for k in range(60)]
    frame = array("Q", [x.ctypes.data, y.ctypes.data, n, 10, 11, 12, 1])
    program = pack_program(launches, 0)
    runtime.get().run(program.pointer, frame.buffer_info()[0], threads)
    for parity, sums in enumerate((x, y)):
        expected = sum(np.arange(n) * (10 + k % 3) + 1 for k in range(parity, 60, 2))
        assert np.array_equal(sums, expected)


@pytest.mark.parametrize("threads", (2, 4, 7))
def test_all_threads_take_part(threads: int) -> None:
    """Also with the workers asleep, and with more workers in the pool than the launch may use."""
    until_asleep()
    out = run_one("meet", threads + 1, threads, threads, 0, threads)
    assert out[1:].tolist() == [1] * threads


def test_no_more_threads_than_asked_for() -> None:
    run_one("meet", 8, 7, 7, 0, 7)
    for threads in (1, 2, 3):
        now, most = run_one("crowd", 2, 60, 200, 0, threads)
        assert now == 0 and 1 <= most <= threads


def test_empty_program_and_negative_grid() -> None:
    program, frame = pack_program([], 0), array("Q", [0])
    runtime.get().run(program.pointer, frame.buffer_info()[0], 4)
    assert run_one("affine", 4, -3, 1, 1, 4).tolist() == [0] * 4


def test_calls_are_counted() -> None:
    before = runtime.get().calls
    program, frame = pack_program([], 0), array("Q", [])
    for _ in range(5):
        runtime.get().run(program.pointer, frame.buffer_info()[0], 1)
    assert runtime.get().calls == before + 5


# ---- scratch


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("words", (1, 1000, 300_000))
def test_scratch_is_private_aligned_and_large_enough(words: int, threads: int) -> None:
    out = run_one("scratch", 50, 50, words, 0, threads, scratch=words * 8)
    assert out.tolist() == [1] * 50


def test_scratch_that_cannot_be_had_runs_nothing() -> None:
    out = np.zeros(4, np.int64)
    program = pack_program([launch("affine", 0, 1, 1, 1)], 1 << 60)
    frame = array("Q", [out.ctypes.data, 4])
    with pytest.raises(OutOfMemory, match=str(1 << 60)):
        runtime.get().run(program.pointer, frame.buffer_info()[0], 2)
    assert not out.any()
    assert run_one("scratch", 9, 9, 100, 0, 2, scratch=800).tolist() == [1] * 9


# ---- concurrent callers, forks, signals, leaks


def test_programs_from_several_python_threads() -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            grid, threads = rng.randrange(1, 300), rng.choice(THREADS)
            if rng.random() < 0.3:
                out = run_one("scratch", grid, grid, 50, 0, threads, scratch=400)
                right = (out == 1).all()
            else:
                out = run_one("affine", grid, grid, seed, 7, threads)
                right = np.array_equal(out, np.arange(grid) * seed + 7)
            if not right:
                failures.append(f"seed {seed}, grid {grid}, threads {threads}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


def in_child(check) -> int:
    """Exit status of a forked child that runs `check`."""
    child = os.fork()
    if child == 0:
        signal.alarm(600)  # rather than for ever
        try:
            check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def use_runtime() -> None:
    assert run_one("meet", 5, 4, 4, 0, 4)[1:].tolist() == [1] * 4
    assert run_one("scratch", 50, 50, 100, 0, 4, scratch=800).tolist() == [1] * 50
    block = memory.allocate(5 << 20)
    memory.as_numpy(block, "int8", (5 << 20,))[:] = 1
    del block
    memory.trim()
    assert in_child(lambda: run_one("meet", 3, 2, 2, 0, 2)) == 0


def test_child_of_a_fork_has_its_own_workers() -> None:
    use_runtime()
    assert in_child(use_runtime) == 0
    use_runtime()


def test_fork_while_another_thread_runs_a_program() -> None:
    stop = threading.Event()

    def keep_running() -> None:
        while not stop.is_set():
            assert run_one("crowd", 2, 8, 500, 0, 4, scratch=4096)[0] == 0
            memory.allocate(100)

    other = threading.Thread(target=keep_running)
    other.start()
    try:
        for _ in range(10):
            assert in_child(use_runtime) == 0
    finally:
        stop.set()
        other.join()


def test_workers_block_signals() -> None:
    run_one("meet", 5, 4, 4, 0, 4)
    blocked = []
    for task in tasks():
        with open(f"/proc/self/task/{task}/status") as file:
            mask = next(line for line in file if line.startswith("SigBlk"))
        blocked.append(bool(int(mask.split()[1], 16) >> (signal.SIGINT - 1) & 1))
    assert blocked.count(True) >= 3


def test_interrupt_arrives_after_the_program_and_leaves_the_process_usable() -> None:
    """It comes while a kernel runs, which goes on until it is let go."""
    run_one("meet", 3, 2, 2, 0, 2)
    out = np.zeros(4, np.int64)
    program = pack_program([launch("hold", 0, 1, 1, 1), launch("affine", 2, 1, 1, 1)], 0)
    frame = array("Q", [out.ctypes.data, 1, out.ctypes.data + 24])

    def interrupt() -> None:
        while not out[0]:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)
        out[1] = 1

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runtime.get().run(program.pointer, frame.buffer_info()[0], 2)
        thread.join()
    thread.join()
    assert out.tolist() == [1, 1, 1, 1]
    assert run_one("affine", 9, 9, 2, 1, 2).tolist() == list(range(1, 19, 2))


def subprocess_output(code: str, **environment: str) -> str:
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root} | environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("then", ["", "; until_asleep()"])
def test_process_exits_with_spinning_and_sleeping_workers(then: str) -> None:
    code = (
        "from tests.backends.test_cpu_runtime import run_one, until_asleep; "
        "run_one('meet', 8, 7, 7, 0, 7)"
    )
    assert subprocess_output(code + then) == ""


def test_many_runs_leak_nothing() -> None:
    out = np.zeros(64, np.int64)
    program = pack_program([launch("scratch", 0, 1, 2, 1)], 1 << 16)
    frame = array("Q", [out.ctypes.data, 64, 10])
    run = runtime.get().run
    for _ in range(200):
        run(program.pointer, frame.buffer_info()[0], 4)
    before, tasks = resident_bytes(), len(os.listdir("/proc/self/task"))
    for _ in range(10_000):
        run(program.pointer, frame.buffer_info()[0], 4)
        array("Q", [1, 2, 3])
        memory.allocate(1000)
    assert resident_bytes() - before < 2 << 20
    assert len(os.listdir("/proc/self/task")) == tasks


# ---- words, thread counts, targets


@pytest.mark.parametrize("dtype", dt.ALL, ids=repr)
def test_encode_gives_the_bytes_numpy_has(dtype: dt.DType) -> None:
    values = [True, False] if dtype.kind == "bool" else [0, 1, 5, 100]
    if dtype.kind in ("int", "float"):
        values += [-1, -100]
    if dtype.is_float:
        values += [0.1, 1e30, -1e300, float("inf"), float("-inf")]
    for value in values:
        with np.errstate(over="ignore"):
            array = np.array([value]).astype(dtype.numpy)
        word = encode(value, dtype)
        assert word.to_bytes(8, "little") == array.tobytes().ljust(8, b"\0"), value
    if dtype.is_float:
        bits = np.array([encode(float("nan"), dtype)], np.uint64)
        assert np.isnan(bits.view(dtype.numpy)[0])


def test_frame_slots_can_be_rewritten() -> None:
    frame = array("Q", [1, 2])
    frame[1] = (1 << 64) - 1
    assert (len(frame), frame[0], frame[1]) == (2, 1, (1 << 64) - 1)


def test_num_threads() -> None:
    before = runtime.get_num_threads()
    try:
        runtime.set_num_threads(3)
        assert runtime.get_num_threads() == 3
        for wrong in (0, -1, 1 << 20):
            with pytest.raises(ValueError, match="set_num_threads"):
                runtime.set_num_threads(wrong)
    finally:
        runtime.set_num_threads(before)
    show = "from genesis.backends.cpu.runtime import runtime; print(runtime.get_num_threads())"
    affinity = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
    assert subprocess_output(affinity + show) == "1"
    assert subprocess_output(show, GENESIS_NUM_THREADS="5") == "5"
    with pytest.raises(AssertionError, match="GENESIS_NUM_THREADS='many'"):
        subprocess_output(show, GENESIS_NUM_THREADS="many")


@pytest.mark.parametrize("machine", ("x86_64", "aarch64"))
def test_runtime_compiles_for_every_chip(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    monkeypatch.setattr("platform.machine", lambda: machine)
    module = llvm.parse_assembly(runtime.source())
    module.verify()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu").create_target_machine()
    assert target.emit_object(module)[:4] == b"\x7fELF"


def test_unknown_chip_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(RuntimeError, match="vax"):
        runtime.source()
