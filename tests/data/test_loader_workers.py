"""Worker processes: the same batches, errors that say where, and nothing left behind.

What is left is counted: processes of the session that a script was the leader of, and files in
/dev/shm. Scripts wait for each other by pipes, never by the clock.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import data as ours
from genesis.ndarray.tracing.jit import Jit
from tests.data.test_data import Squares, plain


class Numbers(ours.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return ours.shard(range(22))


class Failing(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise FileNotFoundError(2, "no such sample", "sample-9")
        return super().__getitem__(index)


class Ending(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def whole(loader: ours.DataLoader) -> list[Any]:
    genesis.manual_seed(3)
    return [plain(batch) for batch in loader]


def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    expected = whole(ours.DataLoader(Squares(), 4, shuffle=True))
    for workers in (1, 3):
        loader = ours.DataLoader(Squares(), 4, shuffle=True, num_workers=workers)
        assert whole(loader) == expected
    persistent = ours.DataLoader(Squares(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    assert whole(persistent) == expected
    pids = {w.process.pid for w in persistent._pool.workers}  # type: ignore[union-attr]
    next(iter(persistent))  # left early: what was made ahead is forgotten
    assert whole(persistent) == expected
    assert pids == {w.process.pid for w in persistent._pool.workers}  # type: ignore[union-attr]
    del persistent
    assert not multiprocessing.active_children()


def test_batches_that_are_kept_keep_their_contents() -> None:
    """Memory is used again only when nothing refers to it, pending computations included."""
    data = [np.full((64, 64), k, np.float32) for k in range(40)]
    kept, sums = [], []
    for k, batch in enumerate(ours.DataLoader(data, 2, num_workers=2)):
        sums.append(batch.sum(dim=(1, 2)))  # not computed yet
        if k % 3 == 0:
            kept.append((k, batch[1]))
    for k, row in kept:
        assert (row.numpy() == 2 * k + 1).all()
    assert [s.tolist() for s in sums] == [[4096.0 * 2 * k, 4096.0 * (2 * k + 1)] for k in range(20)]


def test_who_keeps_all_batches_does_not_run_out_of_descriptors() -> None:
    data = [np.full(16, k, np.float32) for k in range(300)]
    before = len(os.listdir("/proc/self/fd"))
    kept = list(ours.DataLoader(data, 2, num_workers=1))
    assert len(os.listdir("/proc/self/fd")) - before < 50
    assert [x[1, 0].item() for x in kept] == list(range(1, 300, 2))


def test_a_batch_can_be_written_to() -> None:
    loader = ours.DataLoader([np.zeros(3, np.float32)] * 4, 2, num_workers=1)
    for batch in loader:
        batch += 1
        assert batch.tolist() == [[1.0] * 3] * 2


def test_sizes_that_vary_and_things_that_are_no_arrays() -> None:
    texts = ["x" * (5000 * (k % 7)) for k in range(20)]
    data = [(np.arange(1000 * (k % 5 + 1)), text) for k, text in enumerate(texts)]
    loader = ours.DataLoader(data, 3, num_workers=2, collate_fn=ours.pad_collate)
    expected = ours.DataLoader(data, 3, collate_fn=ours.pad_collate)
    assert [plain(b) for b in loader] == [plain(b) for b in expected]


def test_iterables_are_shared_out_and_resumed() -> None:
    loader = ours.DataLoader(Numbers(), 3, num_workers=3)
    batches = [b.tolist() for b in loader]
    assert sorted(x for b in batches for x in b) == list(range(22))
    begun = iter(loader)
    assert [next(begun).tolist() for _ in range(4)] == batches[:4]
    again = ours.DataLoader(Numbers(), 3, num_workers=3)
    again.load_state_dict(loader.state_dict())
    assert [b.tolist() for b in again] == batches[4:]


def test_an_exception_comes_with_its_traceback() -> None:
    with pytest.raises(FileNotFoundError, match="no such sample") as caught:
        whole(ours.DataLoader(Failing(), 4, num_workers=2))
    assert caught.value.filename == "sample-9"
    assert "in __getitem__" in str(caught.value.__cause__)
    assert "worker 0, for samples [8, 9, 10, 11]" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_named() -> None:
    with pytest.raises(ours.WorkerFailed, match=r"worker 0 \(pid \d+\) was killed by SIGKILL"):
        whole(ours.DataLoader(Ending(), 4, num_workers=2))
    assert not multiprocessing.active_children()


def test_workers_know_who_they_are() -> None:
    def report(samples: list[Any]) -> Any:
        info = ours.get_worker_info()
        return info and (info.id, info.num_workers)

    loader = ours.DataLoader(range(4), 2, num_workers=2, collate_fn=report)
    assert list(loader) == [(0, 2), (1, 2)]
    assert ours.get_worker_info() is None


@pytest.mark.slow
def test_workers_that_import_everything_anew() -> None:
    loader = ours.DataLoader(range(6), 2, num_workers=1, multiprocessing_context="spawn")
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4, 5]]


def test_one_recording_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches lie in memory of several slots: a jitted step must not be recorded for each."""
    recordings, record = [], Jit._recorded
    monkeypatch.setattr(Jit, "_recorded", lambda *a: recordings.append(1) or record(*a))
    step = genesis.jit(lambda x: (x * 2).sum())
    data = [np.full(8, k, np.float32) for k in range(12)]
    sums = [step(b).item() for b in ours.DataLoader(data, 2, num_workers=2)]
    assert sums == [16.0 * (4 * k + 1) for k in range(6)]
    assert len(recordings) == 1


# ---- nothing is left behind

PROGRAM = """
import os, signal, sys, time
import numpy as np
import genesis
from genesis import data

class Images(data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if {slow}:
            time.sleep(3600)
        return np.ones((64, 64), np.float32)

loader = data.DataLoader(Images(), 4, num_workers=2)
batches = iter(loader)
if not {slow}:
    next(batches)
print(*[w.process.pid for w in batches._pool.workers], flush=True)
{rest}
"""


def left_behind(rest: str, act: Any = None, slow: bool = False) -> tuple[str, list[int]]:
    """Run a program; what it says on its error stream, and what processes of it there are then."""
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(rest=rest, slow=slow)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    if act is not None:
        act(process, workers)
    # The pipes end when the last process that has them does: workers have them, too.
    _, errors = process.communicate()
    # Processes are seen for a moment after that, and other tests have shared memory of theirs.
    for _ in range(600):
        left = list(_processes(process.pid))
        if not left and not set(os.listdir("/dev/shm")) - before:
            break
        time.sleep(0.1)
    return errors, left


def _processes(session: int) -> Iterator[int]:
    """The processes of a session that have not ended."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                if os.getsid(int(name)) == session and state not in "ZX":
                    yield int(name)
            except OSError:
                continue


def test_nothing_is_left_after_an_error() -> None:
    errors, left = left_behind("raise ZeroDivisionError('mine')")
    assert "mine" in errors and not left


def test_nothing_is_left_after_ctrl_c() -> None:
    def interrupt(process: Any, _: Any) -> None:
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them

    # The program is waiting for a batch that never comes, and its workers are at work on it.
    errors, left = left_behind("next(batches)", interrupt, slow=True)
    assert "KeyboardInterrupt" in errors and not left
    assert errors.count("Traceback") == 1  # workers say nothing


def test_nothing_is_left_after_a_worker_is_killed() -> None:
    kill = "os.kill(batches._pool.workers[1].process.pid, signal.SIGKILL)"
    errors, left = left_behind(f"{kill}\nfor batch in batches: pass")
    assert "WorkerFailed: DataLoader worker 1" in errors and not left


def test_nothing_is_left_after_the_training_process_is_killed() -> None:
    def kill(process: Any, _: Any) -> None:
        process.kill()

    _, left = left_behind("while True: time.sleep(1)", kill)
    assert not left
