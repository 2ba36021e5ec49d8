"""`genesis view`: what it writes down of a script, as text and as a page."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from genesis import memory
from genesis.cli import main
from genesis.profiling import Machine, machine
from genesis.view import ScriptRun, record
from genesis.view.page import page
from genesis.view.tensorboard import read_runs
from genesis.view.text import text

SCRIPT = """
import sys
import genesis
from genesis import nn, optim

genesis.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
x = genesis.ones(8, 3)
for k in range(4):
    loss = ((model(x) - 1).reshape(16).reshape(8, 2) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())  # the curve
big = genesis.ones(1000, 1000).array.realize()
genesis.linalg.inv(genesis.eye(3)).numpy()
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module", autouse=True)
def roof() -> None:
    """A machine that is known: measuring this one takes a second."""
    machine._found[machine._key()] = Machine(
        "a chip", 2, {"float32": 100e9, "float64": 50e9}, ((1 << 20, 200e9), (1 << 27, 2e10))
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ScriptRun:
    path = tmp_path_factory.mktemp("view") / "script.py"
    path.write_text(SCRIPT)
    return record(str(path), ["3"])


def line(content: str) -> int:
    return SCRIPT.splitlines().index(content) + 1


def test_what_ran_is_written_down(found: ScriptRun) -> None:
    assert found.status == 3
    step = max(found.programs, key=lambda p: p["calls"])
    assert step["calls"] >= 3 and step["proven"] and step["kernels"]
    for program in found.programs:
        for number, node in enumerate(program["nodes"]):
            assert all(i < number for i in node["in"])
        for stage in program["stages"]:
            seen, waiting = set[int](), list(stage["roots"])
            while waiting:
                n = waiting.pop()
                if n not in seen:
                    seen.add(n)
                    waiting += program["nodes"][n]["in"]
            assert len(seen) == stage["count"]
        # Every kernel computes nodes of the last graph.
        for kernel in program["kernels"]:
            assert kernel["calls"] == program["calls"] and kernel["nodes"]
            assert kernel["rule"] and len(kernel["claims"]) > 0
            assert kernel["name"] in kernel["scheduled"]
            assert "define" in found.codes[kernel["code"]]
    assert any(call["name"] for p in found.programs for call in p["library"])


def test_rules_say_what_they_did(found: ScriptRun) -> None:
    rules = [r for p in found.programs for s in p["stages"] for r in s["rules"]]
    twice = [r for r in rules if r["name"] == "reshape twice"]
    assert twice and twice[0]["count"] >= 1
    old, new = twice[0]["examples"][0]
    assert old.count("reshape(") >= 2 and new.count("reshape(") < old.count("reshape(")
    file, _, number = twice[0]["where"].rpartition(":")
    assert "def _reshape_twice" in "".join(
        Path(file).read_text().splitlines()[int(number) - 1 :][:3]
    )


def test_numbers_that_were_read_are_curves(found: ScriptRun) -> None:
    (name,) = found.curves
    assert name.endswith(f"script.py:{line('    print(loss.item())  # the curve')}")
    values = [y for _, y in found.curves[name]]
    assert len(values) == 4 and values == sorted(values, reverse=True)


def test_memory_and_timeline(found: ScriptRun) -> None:
    assert max(y for _, y in found.memory) >= 4_000_000
    assert all(0 <= start and start + took <= found.seconds for *_, start, took in found.timeline)
    assert {"program", "kernel", "realise", "compile"} <= {kind for kind, *_ in found.timeline}


def test_no_memory_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    code = "import genesis\nx = genesis.randn(1000, 1000).array.realize()\ny = x.numpy()\n"
    path.write_text(code)
    gc.collect()
    before = memory.stats().live_bytes
    found = record(str(path))
    gc.collect()
    assert found.programs and memory.stats().live_bytes - before < 1_000_000


def test_the_cache_is_used_again_afterwards(found: ScriptRun) -> None:
    assert os.environ.get("GENESIS_CACHE") != "off"


def test_text(found: ScriptRun) -> None:
    lines = text(found).splitlines()
    assert "exit status 3" in lines[0]
    assert any("by reshape twice" in x or ", reshape twice" in x for x in lines)
    assert any("of the roof" in x for x in lines) and any("proven (" in x for x in lines)


def test_the_page_is_one_file_for_itself(found: ScriptRun) -> None:
    content = page(found)
    for word in ("http://", "https://", "//cdn", "innerHTML", "outerHTML", "document.write"):
        assert word not in content
    assert len(content) < 1_000_000


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "s.py"
    script.write_text("raise SystemExit('it ran')")
    for arguments, said in (
        ([str(tmp_path / "none.py")], "there is no file"),
        (["--output", str(tmp_path / "no" / "x.html"), str(script)], "no such folder"),
        (["--output", str(tmp_path), str(script)], "Is a directory"),
        (["--text", "--runs", str(tmp_path / "no"), str(script)], "no such folder of runs"),
    ):
        assert main(["view", *arguments]) == 1
        error = capsys.readouterr().err
        assert said in error and "it ran" not in error and error.count("\n") == 1


def test_a_script_that_fails_has_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("import genesis\ngenesis.ones(3).sum().item()\n1 / 0\n")
    assert main(["view", "bad.py"]) == 1
    said = capsys.readouterr()
    assert "ZeroDivisionError" in said.err and said.out.strip().endswith("bad.view.html")
    assert Path("bad.view.html").stat().st_size > 10_000


def test_curves_of_event_files(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summaries = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    writer = writers.EventFileWriter(str(tmp_path / "one"))
    for step in (0, 1, 300):
        values = [summaries.Summary.Value(tag="loss", simple_value=2.0**-step)]
        values.append(summaries.Summary.Value(tag="rate", simple_value=-0.5))
        summary = summaries.Summary(value=values)
        writer.add_event(events.Event(wall_time=1e9, step=step, summary=summary))
    writer.close()
    expected = {
        "one: loss": [(0, 1.0), (1, 0.5), (300, 0.0)],
        "one: rate": [(0, -0.5), (1, -0.5), (300, -0.5)],
    }
    assert read_runs(tmp_path) == expected
    # What is cut off anywhere is read as far as it goes, and nothing else happens.
    (file,) = (tmp_path / "one").iterdir()
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        for name, curve in read_runs(tmp_path).items():
            assert curve == expected[name][: len(curve)]
