"""Tuning: decisions, what is kept of them, and a search that never ends up slower."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import CHIP

import genesis
from genesis import ndarray as nd
from genesis.backends import get
from genesis.cli import main
from genesis.compiler import compile as compiler
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import lower
from genesis.compiler.program.program import results
from genesis.compiler.schedule import schedule
from genesis.compiler.schedule.decisions import Choice, Decisions, decide, deciding
from genesis.compiler.tuning_records import (
    BadRecords,
    Database,
    Tuned,
    database,
    decisions_for,
    kernel_key,
    parsed,
    target_of,
    written,
)
from genesis.compiler.verify.kernel import verify
from genesis.content_store import generation
from genesis.ir.check import check
from genesis.ir.dtype import float16, float32, int32
from genesis.ir.kernel import Kernel
from genesis.ndarray import NDArray
from genesis.ndarray.core.realisation import forget_programs, statistics
from genesis.profiling.machine import Machine
from genesis.tuning import history, tuner
from genesis.tuning.cost_model import CostModel
from genesis.tuning.jobs import TuningJob, jobs
from genesis.tuning.measure import Candidate, KernelBench, WrongResult, agree, wins
from genesis.tuning.schedule_search import ScheduleSearch
from tests.compiler.test_schedule import run
from tests.ndarray.test_pooling import graph

ROOT = Path(__file__).parents[2]
TARGET = target_of(get("cpu"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for every test, and no program from before."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GENESIS_CACHE", str(path))
    forget_programs()
    return path


# ---- decisions


def test_the_first_option_unless_it_was_decided_otherwise() -> None:
    assert decide("size", [4, 2, 8]) == 4
    with deciding({"size": 8, "order": "rows"}) as asked:
        assert decide("size", [4, 2, 8]) == 8
        assert decide("size", [4, 2]) == 4  # no longer offered
        assert decide("other", [(1, "a"), (2, "b"), (1, "a")]) == (1, "a")
    assert asked == {"size": (4, 2, 8), "other": ((1, "a"), (2, "b"))}
    assert decide("size", [4, 8]) == 4


def test_a_number_does_not_answer_for_a_truth_value() -> None:
    with deciding({"packs": 0, "count": True}):
        assert decide("packs", [True, False]) is True
        assert decide("count", [3, 1]) == 3


def test_decisions_are_those_of_a_thread() -> None:
    seen: list[int] = []
    with deciding({"size": 8}):
        other = threading.Thread(target=lambda: seen.append(decide("size", [4, 8])))
        other.start()
        other.join()
        with deciding({}):
            seen.append(decide("size", [4, 8]))
        seen.append(decide("size", [4, 8]))
    assert seen == [4, 4, 8]


def zeros(*shape: int) -> NDArray:
    return nd.array(np.zeros(shape, np.float32)).realize()


def plain(x: NDArray) -> Kernel:
    """The one kernel of a pending array."""
    root, _, _ = graph(x)
    fusion = fuse(results(simplify([root])))
    (group,) = fusion.groups
    return lower(group, fusion.stored).kernel


KINDS: dict[str, tuple[Callable[[], NDArray], set[str]]] = {
    "product": (
        lambda: zeros(26, 5) @ zeros(19, 5).T,
        {"column", "packs", "tile", "tiles", "pack"},
    ),
    "convolution": (
        lambda: nd.convolution(zeros(1, 2, 4, 5), zeros(9, 2, 3, 3), padding=1),
        {"column", "inner", "packs", "tile", "tiles"},
    ),
    "softmax": (lambda: nd.softmax(zeros(3, 70), -1), {"vectors", "block"}),
    "columns": (lambda: zeros(21, 40).sum(axis=0), {"vectors", "block"}),
    "pointwise": (lambda: nd.exp(zeros(9, 50)) + zeros(50), {"vectors", "block"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_decided_is_proven_and_right(kind: str) -> None:
    make, questions = KINDS[kind]
    kernel = plain(make())
    with deciding({}) as asked:
        schedule(kernel, CHIP)
    assert questions <= set(asked)
    expected = run(kernel)
    seen: set[str] = set()
    tried: list[Decisions] = [{q: x} for q, options in asked.items() for x in options[1:]]
    pick = random.Random(kind)
    tried += [{q: pick.choice(options) for q, options in asked.items()} for _ in range(8)]
    pick.shuffle(tried)
    for decisions in tried[:20]:
        with deciding(decisions):
            scheduled = schedule(kernel, CHIP)
        if str(scheduled) in seen:
            continue
        seen.add(str(scheduled))
        check(scheduled)
        assert verify(scheduled).proven, decisions
        for a, b in zip(run(scheduled), expected, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6, err_msg=str(decisions))
    assert len(seen) > 1


# ---- what is kept


def tuned(kernel: str = "k" * 32, **changes: Any) -> Tuned:
    some: dict[str, Choice] = {"tile": (6, 64, "", 1), "packs": False, "once": "left", "tiles": 4}
    record = Tuned(kernel, TARGET, generation(), "contract", some, 2e-3, 1e-3)
    return replace(record, **changes)


def test_records_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    first = Database(path)
    first.add([tuned(), tuned("other")])
    first.add([tuned("other", after=5e-4)])
    read = parsed(path.read_bytes())
    assert read == [tuned(), tuned("other", after=5e-4)]
    assert type(read[0].decisions["packs"]) is bool
    assert parsed(written(read)) == read
    assert first.clear() == 2 and parsed(path.read_bytes()) == []


def test_a_record_holds_for_its_kernel_its_chip_and_its_version() -> None:
    known = Database()
    known.add([tuned()])
    assert known.decisions("k" * 32, TARGET) == tuned().decisions
    assert known.decisions("l" * 32, TARGET) == {}
    assert known.decisions("k" * 32, "another chip") == {}
    known = Database()
    known.add([tuned(version="another")])
    assert known.decisions("k" * 32, TARGET) == {}


def test_several_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"

    def write(number: int) -> None:
        mine = Database(path)
        for k in range(5):
            mine.add([tuned(f"{number} {k}")])

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(parsed(path.read_bytes())) == 20
    assert {f.name for f in tmp_path.iterdir()} == {"tuning.json", "tuning.json.lock"}


def test_a_folder_that_cannot_be_written_keeps_it_in_memory(tmp_path: Path) -> None:
    known = Database(tmp_path / "nowhere" / "tuning.json")
    with pytest.warns(UserWarning, match="not written"):
        known.add([tuned()])
    assert known.decisions("k" * 32, TARGET) == tuned().decisions


GOOD = json.loads(written([tuned()]))["kernels"][0]


def with_record(**changes: Any) -> bytes:
    return json.dumps({"genesis tuning": 1, "kernels": [GOOD | changes]}).encode()


DEEP: Any = []
for _ in range(20):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04]\x94.",
        b"[]",
        b"{" * 100_000,
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"genesis tuning": 2, "kernels": []}',
        b'{"genesis tuning": 1, "kernels": [], "more": 1}',
        b'{"genesis tuning": 1, "kernels": [1]}',
        b'{"genesis tuning": 1, "kernels": [' + b"9" * 5000 + b"]}",
        with_record(before=float("nan")),
        with_record(before=float("inf")),
        with_record(after=-1.0),
        with_record(after=True),
        with_record(kernel=3),
        with_record(name="a\nb"),
        with_record(name="x" * 10_000),
        with_record(more=1),
        with_record(decisions=[]),
        with_record(decisions={"tile": None}),
        with_record(decisions={"tile": 1.5}),
        with_record(decisions={"tile": {}}),
        with_record(decisions={"tile": 1 << 70}),
        with_record(decisions={"tile": [0] * 100}),
        with_record(decisions={"tile": DEEP}),
        with_record(decisions={"x" * 10_000: 1}),
    ],
)
def test_what_is_no_file_of_ours_is_refused(content: bytes, folder: Path) -> None:
    with pytest.raises(BadRecords):
        parsed(content)
    folder.mkdir(mode=0o700)
    (folder / "tuning.json").write_bytes(content)
    with pytest.warns(UserWarning, match="no tuned kernels are used"):
        assert database().records == {}
        database().add([tuned()])  # takes its place
    assert parsed((folder / "tuning.json").read_bytes()) == [tuned()]


def test_decisions_that_mean_nothing_change_nothing() -> None:
    kernel = plain(zeros(26, 7) @ zeros(7, 35))
    expected = str(schedule(kernel, CHIP))
    strange: Mapping[str, Choice] = {"tile": (10**9, -5, "../x", 0), "packs": "yes", "?": ((),)}
    with deciding(strange):
        assert str(schedule(kernel, CHIP)) == expected


# ---- what is tuned is used

A, B = (np.random.default_rng(k).random((40, 40), np.float32) for k in range(2))


def product() -> NDArray:
    return (nd.array(A) @ nd.array(B)).realize()


def product_job() -> TuningJob:
    (job,) = jobs(lambda: nd.array(A) @ nd.array(B))
    return job


def other_tile(job: TuningJob) -> dict[str, Choice]:
    with deciding({}) as asked:
        schedule(job.kernel, job.backend.chip)
    return {"tile": asked["tile"][1]}


def scheduled_now() -> str:
    """The schedule of the product that runs now."""
    jitted = genesis.jit(lambda a, b: a @ b)
    (step,) = jitted.recording(nd.array(A), nd.array(B))[0].program.steps
    return str(step.built.kernel.phases[-1].body[0])


def test_a_tuned_kernel_is_used_at_once_and_by_jit() -> None:
    multiply = genesis.jit(lambda a, b: a @ b)
    a, b = nd.array(A), nd.array(B)
    before = multiply(a, b).numpy()
    multiply(a, b)
    assert multiply.captures == 1
    job, plain_text = product_job(), scheduled_now()
    database().add([tuned(job.key, decisions=other_tile(job))])
    assert decisions_for(job.kernel, job.backend) == other_tile(job)
    forget_programs()
    assert scheduled_now() != plain_text
    np.testing.assert_allclose(multiply(a, b).numpy(), before, 1e-5)
    assert multiply.captures == 2
    database().clear()
    forget_programs()
    assert scheduled_now() == plain_text


SCRIPT = """
import numpy as np
import genesis
from genesis import ndarray as nd
a, b = (nd.array(np.random.default_rng(k).random((40, 40), np.float32)) for k in range(2))
multiply = genesis.jit(lambda a, b: a @ b)
print(multiply(a, b).numpy().sum())
(step,) = multiply.recording(a, b)[0].program.steps
print(step.built.kernel.phases[-1].body[0])
"""


def in_another_process() -> tuple[float, str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, _, text = done.stdout.partition("\n")
    return float(total), text.strip()


def test_a_tuned_kernel_is_used_by_another_process() -> None:
    plain_text = scheduled_now()
    product()  # which is on disk now, untuned
    job = product_job()
    database().add([tuned(job.key, decisions=other_tile(job))])
    forget_programs()
    total, text = in_another_process()
    assert text == scheduled_now() != plain_text
    assert total == pytest.approx(float((A @ B).sum()), rel=1e-5)


def test_only_programs_with_a_tuned_kernel_are_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[int] = []
    stages = compiler._compile

    def counted(*args: Any) -> Any:
        compiled.append(1)
        return stages(*args)

    monkeypatch.setattr(compiler, "_compile", counted)
    job = product_job()
    (nd.array(A) + 1.0).realize()
    compiled.clear()
    database().add([tuned(job.key, decisions=other_tile(job)), tuned("of nobody")])
    forget_programs()
    runs = statistics().runs
    (nd.array(A) + 1.0).realize()
    assert not compiled and statistics().runs == runs + 1
    product()
    assert len(compiled) == 1
    forget_programs()
    product()
    assert len(compiled) == 1


def test_without_a_cache_it_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_CACHE", "off")
    job = product_job()
    try:
        database().add([tuned(job.key)])
        assert decisions_for(job.kernel, job.backend) == tuned().decisions
        history.add_samples(TARGET, [({"x": 1.0}, 0.5)])
        assert history.load_samples(TARGET) == []
    finally:
        database().clear()


# ---- jobs and measuring


def test_jobs_are_distinct_kernels_with_what_they_need() -> None:
    table = genesis.randn(50, 8)
    at = np.array([3, 49, 7, 7], np.int64)

    def function(x: genesis.Tensor) -> genesis.Tensor:
        for _ in range(3):
            x = ((x @ x) * 0.5).detach()
            x.tolist()
        return table[genesis.from_numpy(at)]

    table.tolist()
    ones = genesis.ones(16, 16)
    ones.tolist()
    found = jobs(function, ones)
    (matmul,) = [job for job in found if "contract" in job.kernel.name]
    assert matmul.runs == 3 and len(matmul.scalars) == 1
    contents = [x for job in found for x in job.contents.values()]
    assert at.tobytes() in [x.tobytes() for x in contents]
    assert len({job.key for job in found}) == len(found)
    assert kernel_key(replace(matmul.kernel, name="another")) == matmul.key


def test_a_schedule_that_computes_something_else_is_an_error() -> None:
    job = product_job()
    search = ScheduleSearch(job, KernelBench(job), {})
    other = plain((zeros(40, 40) @ zeros(40, 40)) * 3.0)
    (binary,) = get("cpu").compile([schedule(other, get("cpu").chip)])
    job.scalars.append(1 << 30)  # 2.0
    with pytest.raises(WrongResult, match="scheduled under"):
        search.bench.candidate({}, schedule(other, get("cpu").chip), binary)


def test_agreement_is_up_to_rounding() -> None:
    x = np.linspace(1, 2, 100, dtype=np.float32)
    assert agree(x * (1 + 1e-5), x, float32)
    assert not agree(x * 1.01, x, float32)
    assert agree((x * 1.003).astype(np.float16), x.astype(np.float16), float16)
    strange = np.array([math.nan, math.inf, 1.0], np.float32)
    assert agree(strange, strange, float32)
    assert not agree(strange[::-1], strange, float32)
    assert not agree(np.array([1, 2]), np.array([1, 3]), int32)


def test_winning_takes_a_margin_nearly_always() -> None:
    assert wins([(1.0, 0.9)] * 15, 0.97)
    assert not wins([], 0.97)
    assert not wins([(1.0, 0.98)] * 15, 0.97)
    assert not wins([(1.0, 0.9)] * 7 + [(1.0, 1.1)] * 8, 0.97)
    assert not wins([(2.0, 1.0)] * 14 + [(0.9, 1.0)], 0.97)  # whose best was better


# ---- searching


class Clock(KernelBench):
    """A bench without a clock: `truth` tells how long a schedule takes, `noise` what is seen."""

    def __init__(
        self, job: TuningJob, truth: Callable[[Decisions], float], noise: float = 0.0
    ) -> None:
        self.job, self.truth, self.noise = job, truth, noise
        self.random = random.Random(1)

    def candidate(self, decisions: Decisions, kernel: Kernel, binary: Any) -> Candidate:
        return Candidate(decisions, binary, binary, [])

    def seconds(self, candidate: Candidate) -> float:
        slower = 1 + self.noise * abs(self.random.gauss(0, 1))
        took = self.truth(candidate.decisions) * slower
        candidate.best = min(candidate.best, took)
        return took


class NoCode:
    """A backend that compiles nothing."""

    name, chip, target = "cpu", CHIP, "none"

    def compile(self, kernels: Any) -> list[Any]:
        return [None for _ in kernels]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of a search is a look at the clock: slow machines search as far as others."""
    looks = count()
    monkeypatch.setattr("genesis.tuning.schedule_search.monotonic", lambda: next(looks))


def search(truth: Callable[[Decisions], float], noise: float = 0.0, seconds: float = 60) -> Any:
    kernel = plain(zeros(64, 64) @ zeros(64, 64))
    backend: Any = NoCode()
    job = TuningJob("a key", kernel, (), {}, [], {}, backend)
    return ScheduleSearch(job, Clock(job, truth, noise), {}).run([], seconds)


@pytest.mark.usefixtures("counted")
def test_the_best_decision_is_found() -> None:
    def truth(decisions: Decisions) -> float:
        return (0.8 if decisions.get("tiles") == 2 else 1.0) * (
            0.9 if decisions.get("packs") is False else 1.0
        )

    found = search(truth, noise=0.1, seconds=150)
    assert found.decisions["tiles"] == 2 and found.decisions["packs"] is False
    assert found.after < 0.75 * found.before and found.samples


@pytest.mark.usefixtures("counted")
def test_what_is_slower_never_wins() -> None:
    found = search(lambda decisions: 1.05 if decisions else 1.0, noise=0.5)
    assert found.decisions == {} and found.after == found.before and found.tried > 5


@pytest.mark.usefixtures("counted")
def test_noise_does_not_win() -> None:
    for noise in (0.1, 0.3, 1.0):
        found = search(lambda decisions: 1.0, noise, seconds=30)
        assert found.decisions == {}


def test_the_model_learns_what_matters() -> None:
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(200):
        a, b, c = rng.random(3) * 8
        samples.append(({"a": a, "b": b, "c": c}, 0.3 * a - 0.1 * (b > 4)))
    model = CostModel(samples)
    low, high, other = model.predict([{"a": 1.0, "b": 1.0}, {"a": 7.0}, {"a": 1.0, "b": 7.0}])
    assert other < low < high
    assert not CostModel(samples[:3]).knows
    assert CostModel().predict([{"a": 1.0}]).tolist() == [0.0]


def test_measurements_are_kept_and_damage_is_left_out(folder: Path) -> None:
    history.add_samples(TARGET, [({"x": 1.0}, 0.5)])
    history.add_samples(TARGET, [({"x": 2.0}, -0.5)])
    history.add_samples("another", [({"x": 2.0}, 1.0)])
    assert history.load_samples(TARGET) == [({"x": 1.0}, 0.5), ({"x": 2.0}, -0.5)]
    path = folder / "measurements.json"
    bad = [["x", 1.0], [{"x": "y"}, 1.0], [{"x": 1.0}, None], [{"x": 3.0}, 1.0], 7]
    path.write_text(json.dumps({TARGET: bad}))
    assert history.load_samples(TARGET) == [({"x": 3.0}, 1.0)]
    path.write_bytes(b"\x00")
    assert history.load_samples(TARGET) == []


# ---- all of it


@pytest.mark.usefixtures("counted")
def test_tune_keeps_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock on which one tile is fast: it is kept, used, and gives the same results."""
    monkeypatch.setattr(
        tuner, "this_machine", lambda: Machine("?", 1, {"float32": 1e9}, ((1, 1e9),))
    )
    favourite = other_tile(product_job())
    monkeypatch.setattr(KernelBench, "seconds", Clock.seconds)
    monkeypatch.setattr(KernelBench, "noise", 0.0, raising=False)
    monkeypatch.setattr(KernelBench, "random", random.Random(0), raising=False)

    def truth(bench: KernelBench, decisions: Decisions) -> float:
        return 0.5 if decisions.get("tile") == favourite["tile"] else 1.0

    monkeypatch.setattr(KernelBench, "truth", truth, raising=False)
    before = scheduled_now()
    found = genesis.tune(product, seconds=20, progress=False)
    (record,) = found.kernels
    assert record.decisions["tile"] == favourite["tile"] and found.before == 2 * found.after
    assert "2.00 times as fast" in str(found)
    assert scheduled_now() != before
    np.testing.assert_allclose(product().numpy(), A @ B, 1e-5)
    assert history.load_samples(TARGET)
    again = genesis.tune(product, seconds=0.2, progress=False)  # starts from there
    assert not again.kernels and database().records[record.place] == record


def test_tune_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("?", 1, {"float32": 1e15}, ((1, 1e15),))
    monkeypatch.setattr(tuner, "this_machine", lambda: machine)
    found = genesis.tune(product, seconds=0.3, progress=False)
    assert found.after <= found.before and found.tried
    monkeypatch.setattr(tuner, "ROOFLINE", 0.0)
    assert genesis.tune(product, seconds=0.3, progress=False).looked_at == 0


def test_bad_budgets_and_profiles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"genesis\.tune: seconds is 0"):
        genesis.tune(product, seconds=0)
    with genesis.profile(), pytest.raises(RuntimeError, match="a profile is being taken"):
        genesis.tune(product, seconds=1)


def test_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def printed(*arguments: str, status: int = 0) -> str:
        assert main(["tune", *arguments]) == status
        out = capsys.readouterr()
        return out.err if status else out.out

    assert printed("--show") == f"0 kernels in {folder / 'tuning.json'}\n"
    assert "takes a script" in printed(status=1)
    assert "no file" in printed("nowhere.py", status=1)
    script = tmp_path / "script.py"
    script.write_text("import sys, genesis\nprint(sys.argv[1:], genesis.ones(3).sum().item())\n")
    assert "['--flag', '2'] 3.0" in printed("--seconds", "1", str(script), "--flag", "2")
    script.write_text("raise SystemExit(3)")
    assert main(["tune", str(script)]) == 3
    capsys.readouterr()

    database().add([tuned(), tuned(target="another chip")])
    shown = printed("--show").splitlines()
    assert "contract" in shown[0] and "tile (6, 64, '', 1)" in shown[0]
    assert "another chip or version" in shown[1] and shown[2].startswith("2 kernels")
    file = tmp_path / "kept.json"
    assert "wrote 2 kernels" in printed("--export", str(file))
    assert "forgot 2 kernels" in printed("--clear")
    assert "added 2 kernels, 1 of them" in printed("--import", str(file))
    assert len(database().records) == 2
    file.write_text("{}")
    assert "not a file of tuned kernels" in printed("--import", str(file), status=1)
    assert "No such file" in printed("--import", str(tmp_path / "none"), status=1)
    assert len(database().records) == 2


def test_max_autotune(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    budgets: list[float] = []

    def tune_jobs(found: list[TuningJob], seconds: float) -> None:
        budgets.append(seconds)
        database().add(tuned(job.key, decisions=other_tile(job)) for job in found)
        forget_programs()

    monkeypatch.setattr(tuner, "tune_jobs", tune_jobs)
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    multiply = torch.compile(torch.mm, backend="genesis", mode="max-autotune")
    for _ in range(2):
        torch.testing.assert_close(multiply(a, b), a @ b)
    assert budgets == [30.0] and len(database().records) == 1
    torch.compiler.reset()
    with pytest.raises(Exception, match="has no option 'minutes', only 'freeze' and 'seconds'"):
        torch.compile(torch.mm, backend="genesis", options={"minutes": 1})(a, b)
