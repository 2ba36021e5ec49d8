"""Profiles: what ran, for how long, how fast, and where it was written."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import events, functional
from genesis import ndarray as nd
from genesis.backends.cpu.runtime import memory, runtime
from genesis.cli import main
from genesis.content_store import ContentStore
from genesis.ndarray import NDArray
from genesis.profiling import Machine, Profile, kernel_benchmarks, machine, profiler, roofline
from genesis.profiling.machine import this_machine

ROOF = Machine(
    "a chip", 2, {"float32": 100e9, "float64": 50e9}, ((1 << 20, 200e9), (1 << 27, 2e10))
)


@pytest.fixture(autouse=True)
def roof(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that is known: measuring this one takes a second."""
    monkeypatch.setitem(machine._found, machine._key(), ROOF)
    yield
    assert events.watcher is None


def array_of(rng: np.random.Generator, *shape: int) -> NDArray:
    return nd.array(rng.standard_normal(shape, np.float32))


def line_of(text: str) -> int:
    """The line of this file that contains a text, which no other does."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [k for k, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    return found


# ---- times


def test_times_add_up(rng: np.random.Generator) -> None:
    x, w = array_of(rng, 200, 300), array_of(rng, 300, 100)
    step = genesis.jit(lambda x, w: nd.softmax(nd.relu(x @ w), axis=-1))
    step(x, w)
    with genesis.profile() as p:
        for _ in range(7):
            step(x, w)
    assert [m.runs.count for m in p.moments] == [7] * 7  # one program, seven runs
    for moment in p.moments:
        assert p.start <= moment.start < moment.end <= p.end
        assert moment.thread == threading.get_ident()
        assert all(t.runs == 1 and 0 < t.total <= t.end - t.start for t in moment.timings)
        starts_and_ends = [time for t in moment.timings for time in (t.start, t.end)]
        assert [moment.start, *starts_and_ends, moment.end] == sorted(
            [moment.start, *starts_and_ends, moment.end]
        )
    kernels = p.kernels()
    assert all(k.calls == 7 for k in kernels)
    inside = sum(t.total for m in p.moments for t in m.timings)
    assert sum(k.seconds for k in kernels) == pytest.approx(inside / 1e9)
    assert sum(k.seconds for k in kernels) < p.seconds


def test_a_watched_program_is_still_one_native_call(rng: np.random.Generator) -> None:
    step = genesis.jit(lambda x: nd.softmax(x @ x, axis=-1))
    x = array_of(rng, 64, 64)
    step(x)
    before = runtime.get().calls
    with genesis.profile():
        step(x)
        step(x)
    assert runtime.get().calls == before + 2


def test_the_runner_notes_loops_in_loops() -> None:
    """On records written by hand: a loop of 3 around a launch and a loop of 5."""
    cpu = genesis.ndarray.core.realisation.backend_of("cpu")
    program = genesis.jit(lambda x: x + 1).recording(nd.ones(4).realize())[0].program
    (launch,) = program.launches
    from genesis.backends.base import Repeat

    count = max(launch.slots) + 1
    inner = Repeat(count + 1, (), (), (launch, launch))
    run = cpu.assemble([launch, Repeat(count, (), (), (launch, inner)), launch])
    x, y = cpu.allocate(16), cpu.allocate(16)
    frame = program.frame([1.0], {})
    frame[0], frame[program.first_output] = x.pointer, y.pointer
    found = run.timed(frame + array("Q", [3, 5]))
    assert [t.runs for t in found] == [1, 1, 3, 3, 15, 15, 1]
    first, outer, before, middle, a, b, last = found
    assert first.end <= outer.start <= before.start and middle.end <= outer.end <= last.start
    assert middle.start <= a.start <= a.end <= b.start <= b.end <= middle.end
    assert outer.total >= before.total + middle.total and middle.total >= a.total + b.total
    assert run.runs == 1


def test_off_again_afterwards(rng: np.random.Generator) -> None:
    x = array_of(rng, 8)
    with pytest.raises(ZeroDivisionError), genesis.profile() as p:
        (x + 1).realize()
        raise ZeroDivisionError
    (x + 2).realize()
    assert len(p.moments) == 1


def test_profiles_inside_each_other_see_the_same(rng: np.random.Generator) -> None:
    x = array_of(rng, 8)
    with genesis.profile() as outer:
        (x + 1).realize()
        with genesis.profile() as inner:
            (x * 3).realize()
    assert (len(outer.moments), len(inner.moments)) == (2, 1)
    assert outer.moments[1].timings == inner.moments[0].timings


def test_all_threads_are_seen(rng: np.random.Generator) -> None:
    step = genesis.jit(lambda x: nd.exp(x).sum())
    x = array_of(rng, 1000)
    step(x)

    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        for _ in range(20):
            step(x)
        together.wait()  # a thread that ends gives its number to the next

    with genesis.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(k.calls for k in p.kernels()) == 60 * len(p.moments[0].timings)
    assert len({m.thread for m in p.moments}) == 3


# ---- results and memory


def test_results_are_the_same(rng: np.random.Generator) -> None:
    x = array_of(rng, 40, 50)

    def everything() -> list[Any]:
        state = nd.zeros(50)
        state[10:20] = x[0, 10:20]
        total, states = nd.scan(lambda c, row: (c * 0.5 + row, c.sum()), nd.zeros(50), x)
        values, order = nd.sort(x, axis=1)
        inverse = nd.linalg.inv(x[:40, :40])  # on the host
        product = x @ x.T
        return [
            a.numpy().tobytes() for a in (state, total, states, values, order, inverse, product)
        ]

    plain = everything()
    with genesis.profile() as p:
        assert everything() == plain
    kinds = {k.kind for k in p.kernels()}
    assert kinds == {"kernel", "library", "host"}


def test_no_memory_is_kept(rng: np.random.Generator) -> None:
    weights = rng.standard_normal((256, 256), np.float32)
    outside = nd.array(weights)

    def work() -> None:
        step = genesis.jit(lambda x: x @ outside + nd.array(weights))
        x = nd.array(weights)
        step(x)
        nd.softmax(x @ outside, axis=0).realize()

    work()
    gc.collect()
    before = memory.stats()
    with genesis.profile() as p:
        work()
    p.table()
    gc.collect()
    after = memory.stats()
    assert (after.live_bytes, after.live_blocks) == (before.live_bytes, before.live_blocks)
    assert p.moments


def test_a_long_profile_stays_small(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "MAX_MOMENTS", 20)
    x = array_of(rng, 8)
    with genesis.profile() as p:
        for _ in range(100):
            (x + 1).realize()
    (kernel,) = p.kernels()
    assert kernel.calls == 100
    assert len(p.moments) + len(p.spans) <= 20 and p.missed >= 100
    assert len(p._runs) == 1 and len(next(iter(p._runs.values()))) == 1  # places are compared
    assert json.loads(trace_of(p))["otherData"]


# ---- arithmetic and bytes


def only(p: Profile) -> Any:
    (kernel,) = p.kernels()
    return kernel


def test_known_kernels(rng: np.random.Generator) -> None:
    m, k, n = 33, 70, 50
    x, w = array_of(rng, m, k), array_of(rng, k, n)
    with genesis.profile() as p:
        for _ in range(3):
            (x @ w).realize()
    kernel = only(p)
    assert (kernel.calls, kernel.flops) == (3, 3 * 2 * m * n * k)
    assert kernel.nbytes == 3 * 4 * (m * k + k * n + m * n)
    with genesis.profile() as p:
        nd.softmax(x, axis=-1).realize()
    assert only(p).nbytes == 2 * 4 * m * k
    assert only(p).flops == m * (k + 3 * k + k)  # maximum; difference, exp and sum; quotient
    table = array_of(rng, 1000, 64)
    rows = nd.array(np.array([3, 5, 999]))
    with genesis.profile() as p:
        nd.take(table, rows, axis=0).realize()
    moved = [k for k in p.kernels() if k.nbytes and k.nbytes >= 4 * 64]
    assert [k.nbytes for k in moved] == [3 * 8 + 2 * 3 * 64 * 4]  # not all of the table
    q = array_of(rng, 2, 128, 32)
    with genesis.profile() as p:
        functional.scaled_dot_product_attention(q, q, q).realize()
    flops = sum(k.flops or 0 for k in p.kernels())
    products = 2 * (2 * 2 * 128 * 128 * 32)
    assert products < flops < 1.2 * products


def test_rates_and_the_roof(rng: np.random.Generator) -> None:
    x = array_of(rng, 64, 64)
    with genesis.profile() as p:
        (x @ x).realize()
    kernel = only(p)
    assert kernel.flops_per_second == kernel.flops / kernel.seconds
    assert kernel.bytes_per_second == kernel.nbytes / kernel.seconds
    assert kernel.least == kernel.flops / 100e9  # which takes longer than 48 KiB at 200 GB/s
    assert kernel.efficiency == kernel.least / kernel.seconds
    wide = nd.array(rng.standard_normal((64, 64)))
    with genesis.profile() as p:
        (wide @ wide).realize()
    assert only(p).least == only(p).flops / 50e9
    large = array_of(rng, 1 << 20)
    with genesis.profile() as p:
        (large + 1).realize()
    between = 200e9 ** (4 / 7) * 2e10 ** (3 / 7)  # 8 MiB, of which 1 MiB and 128 MiB are known
    assert only(p).least == pytest.approx((1 << 23) / between)


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    f = genesis.jit(lambda x: (x * 2).sum())
    for n in (10, 20):
        f(array_of(rng, n))
    with genesis.profile() as p:
        for n in (30, 40, 30):
            f(array_of(rng, n))
    assert f.captures == 2
    kernel = only(p)
    assert (kernel.calls, kernel.flops) == (3, 2 * (30 + 40 + 30))
    assert kernel.nbytes == 4 * (30 + 40 + 30) + 3 * 4
    assert {m.runs.sizes["n0"] for m in p.moments} == {30, 40}


def test_a_scan(rng: np.random.Generator) -> None:
    x, w = array_of(rng, 25, 64), array_of(rng, 64, 64)

    def recur(c: NDArray, row: NDArray) -> tuple[NDArray, NDArray]:
        c = nd.tanh(c @ w + row)
        return c, c

    f = genesis.jit(lambda x: nd.scan(recur, nd.zeros(64), x)[1])  # the scan is here
    f(x)
    with genesis.profile() as p:
        f(x)
        f(x)
    inside = [k for k in p.kernels() if k.calls == 50]
    assert sum(k.flops or 0 for k in inside) == 50 * (2 * 64 * 64 + 64 + 64)
    here = f"{__file__}:{line_of('# the scan is here')}"
    assert all(here in k.lines for k in inside)


# ---- lines


def test_lines_are_the_users(rng: np.random.Generator) -> None:
    x, w = array_of(rng, 64, 64), array_of(rng, 64, 64)

    def f(x: NDArray, w: NDArray) -> NDArray:
        h = x @ w  # line: product
        h = nd.sort(h, axis=-1)[0]  # line: order
        return nd.exp(h).sum(axis=1)  # line: sums

    def lines(p: Profile) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for k in p.kernels():
            numbers = {int(line.removeprefix(f"{__file__}:")) for line in k.lines}
            found[k.operations[0]] = found.get(k.operations[0], set()) | numbers
        return found

    product, order, sums = (line_of(f"# line: {t}") for t in ("product", "order", "sums"))
    expected = {"contract": {product}, "sorting.sort": {order}, "sum": {sums}}
    with genesis.profile() as lazy:
        f(x, w).realize()
    with genesis.profile() as jitted:
        genesis.jit(f)(x, w)
    for p in (lazy, jitted):
        assert {k: v for k, v in lines(p).items() if k in expected} == expected
    for name in ("contract", "exp", "sort"):
        assert name in lazy.table()
    assert f":{sums}" in lazy.table()


def test_every_kernel_of_a_training_step_has_a_line() -> None:
    from genesis import nn, optim

    genesis.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = genesis.randn(32, 8), genesis.randint(0, 3, (32,))
    for _ in range(2):
        with genesis.profile() as p:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    assert len(p.kernels()) > 5
    assert all(k.lines and all(line.startswith(__file__) for line in k.lines) for k in p.kernels())


def test_a_program_for_many_sizes_has_lines() -> None:
    for n in (29, 18, 23, 10):
        x = nd.arange(n)
        before = nd.statistics().compiled
        with genesis.profile() as p:
            nd.exp(x * 0.01 + x.sum() / n).realize()  # line: chosen
    assert nd.statistics().compiled == before, "the last had a program of its own"
    assert p.kernels()
    assert all(k.lines == (f"{__file__}:{line_of('# line: chosen')}",) for k in p.kernels())


def test_a_program_from_disk_says_as_much(tmp_path: Path) -> None:
    """In another process: the second run compiles nothing, and the table is the same but times."""
    script = tmp_path / "twice.py"
    script.write_text(
        "import genesis\n"
        "x = genesis.arange(4096.0).reshape(64, 64)\n"
        "y = genesis.softmax(x @ x, -1)\n"
        "print(y.sum().item())\n"
    )
    done = [command("profile", str(script), folder=tmp_path) for _ in range(2)]
    first, second = ([line.split() for line in d.stdout.splitlines()] for d in done)
    # Rows are in the order of their times, which differ.
    kernels = [sorted((row[:2], row[-1:]) for row in rows[3:-3]) for rows in (first, second)]
    assert first[2] == second[2] and kernels[0] == kernels[1]
    assert "compiling" in done[0].stdout and "compiling" not in done[1].stdout


# ---- the trace


def trace_of(p: Profile, path: Path | None = None) -> str:
    from genesis.profiling.chrome_trace import trace

    if path is None:
        return trace(p)
    p.save_trace(path)
    return path.read_text()


def test_the_trace_is_one(rng: np.random.Generator, tmp_path: Path) -> None:
    salt = 1.0 + rng.random()  # so that the programs are new

    def recur(c: NDArray, row: NDArray) -> tuple[NDArray, NDArray]:
        return nd.tanh(c + row), c.sum()

    with genesis.profile() as p:
        x = array_of(rng, 17, 23)
        nd.scan(recur, nd.zeros(23), x)[1].numpy()
        genesis.jit(lambda x: nd.sin(x * salt) @ x.T)(x)
    content = json.loads(trace_of(p, tmp_path / "trace.json"))
    events = content["traceEvents"]
    named = [e for e in events if e["ph"] == "M"]
    assert {e["name"] for e in named} == {"process_name", "thread_name"}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(named) + len(complete) == len(events)
    assert {e["tid"] for e in complete} <= {e["tid"] for e in named}
    for e in complete:
        assert set(e) == {"ph", "cat", "name", "ts", "dur", "pid", "tid", "args"}
        assert e["ts"] >= 0 and e["dur"] >= 0 and e["name"] and e["cat"]
    kinds = {e["cat"] for e in complete}
    assert kinds >= {
        "realise", "compile", "simplify", "fuse", "lower", "schedule", "verify", "render", "LLVM",
        "link", "assemble", "copy", "program", "kernel", "loop",
    }  # fmt: skip
    assert len({e["tid"] for e in complete if e["cat"] == "LLVM"}) >= 1
    for thread in {e["tid"] for e in complete}:
        nested(
            sorted((e for e in complete if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"]))
        )
    (jit,) = [e for e in complete if e["name"].startswith("jit ")]
    assert "<lambda>" in jit["name"]
    (loop,) = [e for e in complete if e["cat"] == "loop"]
    repeated = [e for e in complete if e["cat"] == "kernel" and e["args"].get("runs") == 17]
    assert repeated and all(inside(e, loop) for e in repeated)


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    starts = outer["ts"] <= inner["ts"] + 1e-6
    return bool(starts and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6)


def nested(events: list[dict[str, Any]]) -> None:
    """Two events of a thread are one in the other, or one after the other."""
    stack: list[dict[str, Any]] = []
    for event in events:
        while stack and event["ts"] >= stack[-1]["ts"] + stack[-1]["dur"] - 1e-6:
            stack.pop()
        assert not stack or inside(event, stack[-1]), (event, stack[-1])
        stack.append(event)


# ---- the table and the roofline


def test_the_table(rng: np.random.Generator) -> None:
    x = array_of(rng, 64, 64)
    with genesis.profile() as p:
        for _ in range(3):
            nd.softmax(x @ x, axis=-1).realize()
        (x + 1).realize()
    head, *rows = p.table(limit=1).splitlines()
    assert head.split() == [
        "kernel",
        "calls",
        "time",
        "share",
        "GFLOP/s",
        "GB/s",
        "of",
        "roof",
        "from",
    ]
    first = p.kernels()[0]
    assert re.match(rf"{first.name} +3 ", rows[0]) and "test_profiling.py:" in rows[0]
    assert re.match(r"2 others +4 ", rows[1])
    assert "in kernels of" in rows[3] and "100 GFLOP/s in float32" in rows[4]
    shares = [float(m) for m in re.findall(r"([\d.]+) %  +[\d.]+  ", p.table())]
    assert sum(shares) == pytest.approx(100, abs=0.2)


def test_an_empty_profile() -> None:
    with genesis.profile() as p:
        pass
    assert p.kernels() == [] and "in kernels of" in p.table()
    assert json.loads(trace_of(p))["traceEvents"]


def test_the_roofline(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = array_of(rng, 64, 64)
    with genesis.profile() as p:
        nd.softmax(x @ x, axis=-1).realize()
    page, picture = tmp_path / "r.html", tmp_path / "r.png"
    p.save_roofline(page)
    text = page.read_text()
    assert text.count("<circle") == 2 and "contract" in text and "memory: 20 GB/s" in text
    above = [replace(k, seconds=k.seconds / 1e6) for k in p.kernels()]  # every roof
    for drawn in (text, roofline.svg(above, ROOF)):
        corners = [float(v) for v in re.findall(r'c[xy]="([-\d.]+)"', drawn)]
        assert len(corners) == 4 and all(0 < v < 860 for v in corners)
    p.save_roofline(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"must end in .html or .png"):
        p.save_roofline(tmp_path / "r.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install genesis-dl\[plot\]"):
        p.save_roofline(picture)


# ---- the machine


def test_the_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "PATIENCE", 0)
    monkeypatch.delitem(machine._found, machine._key())
    found = this_machine()
    assert found.threads == runtime.get_num_threads()
    assert set(found.peaks) == {"float32", "float64"} and min(found.peaks.values()) > 1e8
    rates = [rate for _, rate in found.bandwidths]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 1e8
    assert found.bandwidth(1) == rates[0] and found.bandwidth(1 << 40) == rates[-1]
    (entry,) = [e for e in ContentStore(tmp_path / "cache").entries() if e.kind == "roofline"]
    with monkeypatch.context() as changes:
        changes.setattr(machine, "_measured", lambda threads: pytest.fail("measured again"))
        changes.delitem(machine._found, machine._key())
        assert this_machine() == found
    better = Machine("faster", 2, {d: 2 * f for d, f in found.peaks.items()}, found.bandwidths)
    monkeypatch.setattr(machine, "_measured", lambda threads: better)
    assert machine.measure().peaks == better.peaks
    (tmp_path / "cache" / entry.name).write_bytes(b"damaged")
    monkeypatch.delitem(machine._found, machine._key())
    assert this_machine() is better


# ---- commands


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # The roof is found where this process keeps it.
    store = ContentStore(folder / "cache")
    content = [ROOF.name, ROOF.threads, ROOF.peaks, ROOF.bandwidths]
    store.put("roofline", machine._key(), json.dumps(content).encode())
    return subprocess.run(
        [sys.executable, "-m", "genesis", *arguments],
        env={**os.environ, "GENESIS_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["profile", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


SCRIPT = """
import sys
from beside import double
import genesis
assert __name__ == "__main__" and sys.modules["__main__"].double is double
print(sys.argv[1:], __file__)
x = genesis.arange(64.0).reshape(8, 8)
print((double(x) @ x).sum().item())
if "fail" in sys.argv:
    raise ValueError("as asked")
if "exit" in sys.argv:
    sys.exit(7)
if "text" in sys.argv:
    sys.exit("goodbye")
"""


def test_profile_runs_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("def double(x):\n    return x + x\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    trace, page = tmp_path / "t.json", tmp_path / "r.html"
    options = "--trace", str(trace), "--roofline", str(page)
    status, out, err = run(capsys, *options, str(script), "--lr", "0.1", "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"['--lr', '0.1', '--help'] {script}\n")
    assert "contract" in out and "script.py:8" in out and "of roof" in out
    assert json.loads(trace.read_text())["traceEvents"] and "<svg" in page.read_text()
    status, out, err = run(capsys, str(script), "fail")
    assert status == 1 and "contract" in out
    assert err.startswith("Traceback (most recent call last):\n  File ") and "runpy" not in err
    assert "ValueError: as asked" in err and f'"{script}", line 10' in err
    status, out, err = run(capsys, str(script), "exit")
    assert (status, err) == (7, "") and "contract" in out
    status, out, err = run(capsys, str(script), "text")
    assert (status, err) == (1, "goodbye\n") and "contract" in out
    assert (list(sys.argv), list(sys.path), sys.modules["__main__"]) == before
    script.write_text("def f(:\n")
    status, _, err = run(capsys, str(script))
    assert status == 1 and "SyntaxError" in err
    sys.modules.pop("beside")


def test_profile_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    for arguments, problem in (
        (["no.py"], "there is no file no.py"),
        (["--trace", "no/t.json", str(script)], "there is no folder no"),
        (["--roofline", "r.gif", str(script)], "must end in .html or .png"),
    ):
        status, out, err = run(capsys, *arguments)
        assert status == 1 and problem in err and not out
    for name in ("profile", "bench"):
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: genesis {name}")


def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_benchmarks, "PATIENCE", 0)
    monkeypatch.setattr(kernel_benchmarks, "RUNS", 1)
    monkeypatch.setattr(kernel_benchmarks, "measure", lambda: ROOF)
    product = next(c for c in kernel_benchmarks.CASES if c.name.startswith("matmul"))
    small = kernel_benchmarks.BenchCase(
        "product", ((64, 64), (64, 64)), product.ours, product.theirs
    )
    monkeypatch.setattr(kernel_benchmarks, "CASES", (kernel_benchmarks.CASES[0], small))
    lines = list(kernel_benchmarks.bench())
    launch, matmul = (line for line in lines if line.startswith(("launch", "product")))
    assert matmul.count(" ms") + matmul.count(" µs") == 2 and "%" in matmul
    assert "%" not in launch
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch is not installed" in list(kernel_benchmarks.bench())[-1]


# ---- PyTorch's profiler


def ranges(prof: Any, tmp_path: Path) -> set[str]:
    """The names of our ranges in a profile of PyTorch's, which must all be in its files, too."""
    names = {e.key for e in prof.key_averages() if e.key.startswith("genesis")}
    table = prof.key_averages().table(row_limit=200, max_name_column_width=100)
    prof.export_chrome_trace(str(tmp_path / "torch.json"))
    exported = {
        e.get("name") for e in json.loads((tmp_path / "torch.json").read_text())["traceEvents"]
    }
    assert all(name in table for name in names) and names <= exported
    return names


def test_torch_profiler_sees_compiled_programs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import genesis.torch

    def f(x: Any, w: Any) -> Any:
        y = torch.relu(x @ w)  # in the traced function
        return torch.softmax(y, -1)

    compiled = torch.compile(f, backend="genesis")
    x, w = torch.randn(16, 32), torch.randn(32, 24)
    expected = compiled(x, w)
    with torch.profiler.profile() as prof:
        assert torch.equal(compiled(x, w), expected)
    names = ranges(prof, tmp_path)
    assert "genesis: torch.compile" in names
    assert any(name.startswith("genesis::") and "contract" in name for name in names)
    events = [e for e in prof.events() if e.name.startswith("genesis::")]
    assert events and all(e.cpu_parent.name == "genesis: torch.compile" for e in events)
    with genesis.profile() as p:  # which has the lines, even so
        assert torch.equal(compiled(x, w), expected)
    here = f"{__file__}:{line_of('# in the traced function')}"
    assert here in {line for k in p.kernels() for line in k.lines}


def test_torch_profiler_sees_the_device(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import genesis.torch

    model = torch.nn.Linear(8, 4).to("genesis")
    x = torch.randn(5, 8)
    expected = model(x.to("genesis")).cpu()
    with torch.profiler.profile() as prof:
        assert torch.equal(model(x.to("genesis")).cpu(), expected)
    names = ranges(prof, tmp_path)
    assert any(name.startswith("genesis: realise") for name in names)
    assert any(name.startswith("genesis::") and "contract" in name for name in names)
    with genesis.profile() as p:
        model(x.to("genesis")).cpu()  # on the device
    here = f"{__file__}:{line_of('# on the device')}"
    assert {line for k in p.kernels() for line in k.lines} == {here}
