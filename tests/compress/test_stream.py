"""Files made smaller: what is in them, within the bytes asked for, and after every kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis.cli import main
from genesis.compress.stream import compress_file, parse_bytes
from genesis.serialization import BadFile
from genesis.weights import GGUFFile, encode, open_weights, write_gguf
from tests.hostile import damaged


def checkpoint(path: Path, layers: int = 4, width: int = 256) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    state: dict[str, Any] = {}
    for k in range(layers):
        heavy = rng.standard_t(4, (width, width)).astype(np.float32) * (k + 1)
        state[f"layers.{k}.weight"] = genesis.tensor(heavy).to(genesis.bfloat16)
        state[f"layers.{k}.norm"] = genesis.tensor(rng.standard_normal(width).astype(np.float32))
    state["narrow"] = genesis.tensor(rng.standard_normal((64, 96)).astype(np.float32))
    state["odd"] = genesis.tensor(rng.standard_normal((64, 33)).astype(np.float32))
    state["count"] = genesis.tensor([3])
    genesis.save(state, path)
    return {n: x.to(genesis.float32).numpy() for n, x in state.items() if n != "count"}


def test_a_file_holds_the_weights_it_was_made_of(tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "in.safetensors")
    report = compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", format="Q4_K")
    found = open_weights(tmp_path / "out.gguf")
    assert found.dtype("layers.0.weight") == "Q4_K" and found.dtype("narrow") == "Q5_0"
    assert found.dtype("odd") == "float32" and found.read("count").tolist() == [3]
    total = off = 0.0
    for name, x in floats.items():
        back = found.read(name)
        if found.format(name) is None:
            np.testing.assert_array_equal(back, x)
        else:
            np.testing.assert_array_equal(back.reshape(-1), GGUFFile(
                tmp_path / "out.gguf").read(name).reshape(-1))  # fmt: skip
            off, total = off + ((back - x) ** 2).sum(), total + (x**2).sum()
    off, total = off, total + (floats["odd"] ** 2).sum()
    assert report.error == pytest.approx(off / total, rel=1e-4) and 0 < report.error < 0.02
    assert report.bytes_after == (tmp_path / "out.gguf").stat().st_size
    assert (
        report.bytes_before
        == sum(x.nbytes // (2 if n.endswith("weight") else 1) for n, x in floats.items()) + 8
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.safetensors", "out.gguf"]


@pytest.mark.slow
def test_bytes_are_kept_to_and_used(tmp_path: Path) -> None:
    checkpoint(tmp_path / "in.safetensors", layers=2)
    errors = []
    for limit in (80_000, 130_000):
        report = compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", bytes=limit)
        assert 0.85 * limit < report.bytes_after <= limit
        errors.append(report.error)
    assert errors == sorted(errors, reverse=True)
    # Never worse than the same format for all, at as many bytes.
    uniform = compress_file(tmp_path / "in.safetensors", tmp_path / "u.gguf", format="Q5_K")
    mixed = compress_file(
        tmp_path / "in.safetensors", tmp_path / "out.gguf", bytes=uniform.bytes_after
    )
    assert mixed.error <= uniform.error * 1.001
    with pytest.raises(ValueError, match=r"1000 bytes are too few: with Q2_K it has \d+"):
        compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", bytes=1000)


def test_codes_of_the_same_format_stay_what_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    tensors = {"a": encode(x, "Q4_K"), "b": encode(x, "Q6_K"), "c": x[0]}
    write_gguf(tmp_path / "in.gguf", {"general.architecture": "llama", "x": [1, 2]}, tensors)
    compress_file(tmp_path / "in.gguf", tmp_path / "out.gguf", format={"a": "Q4_K", "b": "Q4_0"})
    old, new = GGUFFile(tmp_path / "in.gguf"), GGUFFile(tmp_path / "out.gguf")
    np.testing.assert_array_equal(old.raw("a"), new.raw("a"))
    assert (
        new.tensors["b"].format.name == "Q4_0" and new.metadata["general.architecture"] == "llama"
    )
    assert new.metadata["x"].tolist() == [1, 2]


def test_another_library_reads_the_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    checkpoint(tmp_path / "in.safetensors", layers=1)
    compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", format="Q6_K")
    own = open_weights(tmp_path / "out.gguf")
    for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors:
        if tensor.name == "count":
            continue
        theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(theirs.reshape(-1), own.read(tensor.name).reshape(-1))


def test_a_run_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    source, target = tmp_path / "in.safetensors", tmp_path / "out.gguf"
    checkpoint(source)
    compress_file(source, tmp_path / "whole.gguf", format="Q3_K")

    class Stop(Exception):
        pass

    seen: list[str] = []

    def stop(line: str) -> None:
        seen.append(line)
        if len(seen) == 4:
            raise Stop

    with pytest.raises(Stop):
        compress_file(source, target, format="Q3_K", progress=stop)
    journal = tmp_path / ".out.gguf.journal"
    journal.write_bytes(journal.read_bytes() + b'{"name": "cut o')  # a line that was being written
    with open(tmp_path / ".out.gguf.unfinished", "r+b") as file:  # a tensor that is not as written
        file.seek(-40, os.SEEK_END)
        file.write(b"damaged")
    report = compress_file(source, target, format="Q3_K")
    assert report.resumed == 4
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    # Another format is another run.
    with pytest.raises(Stop):
        seen.clear()
        compress_file(source, target, format="Q3_K", progress=stop)
    assert compress_file(source, target, format="Q8_0").resumed == 0


@pytest.mark.slow
def test_kills_change_no_byte(tmp_path: Path) -> None:
    source, target = tmp_path / "in.safetensors", tmp_path / "out.gguf"
    checkpoint(source, layers=24, width=512)
    compress_file(source, tmp_path / "whole.gguf", format="Q4_K")
    command = [sys.executable, "-m", "genesis", "compress", str(source), str(target),
               "--format", "Q4_K"]  # fmt: skip
    rng, kills = np.random.default_rng(0), 0
    while kills < 20:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        journal = tmp_path / ".out.gguf.journal"
        lines = len(journal.read_bytes().splitlines()) if journal.exists() else 0
        while process.poll() is None:  # until it wrote something, and then a moment
            now = len(journal.read_bytes().splitlines()) if journal.exists() else 0
            if now > lines:
                time.sleep(rng.random() / 50)
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.001)
        if target.exists():
            break
        kills += 1
    report = compress_file(source, target, format="Q4_K") if not target.exists() else None
    assert kills >= 5 and (report is None or report.resumed >= kills)
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    code = (
        "import sys, resource, genesis\n"
        "from genesis.compress.stream import compress_file\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "compress_file(sys.argv[1], sys.argv[2], format='Q8_0')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    del resource
    state = {"w": genesis.zeros(4096, 8192, dtype=genesis.bfloat16)}  # 64 MB, 128 MB as float32
    genesis.save(state, tmp_path / "in.safetensors")
    command = [sys.executable, "-c", code, str(tmp_path / "in.safetensors"),
               str(tmp_path / "out.gguf")]  # fmt: skip
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # The mapped file itself counts as resident, and so does what is written; floats do not.
    assert grown < (64 + 100) * 1024


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    checkpoint(tmp_path / "in.safetensors", layers=1)
    source, target = str(tmp_path / "in.safetensors"), str(tmp_path / "out.gguf")
    assert main(["compress", source, target, "--bytes", "100KB"]) == 0
    assert "relative squared error" in capsys.readouterr().out
    assert Path(target).stat().st_size <= 100_000
    for wrong, message in (
        ([source, target, "--bytes", "much"], "'much' is no number of bytes like"),
        ([source, target, "--format", "Q9"], "the formats are F32"),
        ([source, source[:-3]], "should end in .gguf"),
        ([source + "x", target], "there is no file or folder"),
    ):
        assert main(["compress", *wrong]) != 0
        assert message in capsys.readouterr().err
    assert parse_bytes("0.5 MiB") == 2**19


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    w = np.ones((64, 64), np.float32)
    w[3, 3] = np.nan
    genesis.save({"bad": genesis.tensor(w)}, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"'bad': .* are NaN or infinite"):
        compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", format="Q4_0")
    with pytest.raises(ValueError, match=r"'x\*' fits no tensor"):
        compress_file(tmp_path / "in.safetensors", tmp_path / "out.gguf", format={"x*": "Q4_0"})


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_damaged_sources_are_one_error_and_leave_no_target(
    tmp_path: Path, kind: str, count: int
) -> None:
    checkpoint(tmp_path / "in.safetensors", layers=1, width=64)
    source, target = tmp_path / f"in.{kind}", tmp_path / "out.gguf"
    if kind == "gguf":
        compress_file(tmp_path / "in.safetensors", source, format="Q8_0")
    good, refused = source.read_bytes(), 0
    for bad in damaged(good[:700], count):
        source.write_bytes(bad + good[700:])
        target.unlink(missing_ok=True)
        try:
            compress_file(source, target, format="Q4_0")
        except (BadFile, ValueError) as error:  # nothing else
            refused += 1
            assert str(error) and not target.exists()
        else:
            assert all(len(open_weights(target).read(n).shape) <= 4 for n in open_weights(target))
    assert count // 4 < refused
