"""The PyTorch examples run, in their quick form, compiled and in eager mode."""

from __future__ import annotations

import gzip
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "torch"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))

#: What the last line of each says that tells how well it went.
SAYS = {
    "bert": "passages that it has not seen are placed right",
    "cifar": "images that it has not seen are told right",
    "llama": "8 of 8 tokens are the same",
    "mnist": "digits that it has not seen are read right",
    "resnet50": "same class for 100%",
}


def run(name: str, *arguments: str) -> None:
    """Run a script as if from the command line."""
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_every_script_is_described() -> None:
    assert sorted([*SAYS, "gpt2"]) == SCRIPTS


@pytest.mark.parametrize("name", SAYS)
def test_compiled(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, "--quick")
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SAYS)
def test_eager(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, "--quick", "--on", "eager")
    printed = capsys.readouterr().out
    compares = name in ("llama", "resnet50")  # with Genesis, which does not run here
    assert ("PyTorch" if compares else SAYS[name]) in printed


def test_compiled_and_eager_learn_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Without random numbers in the model, the losses are equal to all digits that are shown."""
    losses = []
    for on in ("compile", "eager"):
        run("gpt2", "--quick", "--on", on)
        lines = capsys.readouterr().out.splitlines()
        losses.append([line.split()[3] for line in lines if line.startswith("step")])
        assert any(line.startswith("The ") for line in lines)  # what it writes
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in SCRIPTS:
        with pytest.raises(SystemExit):
            run(name, "--help")
        assert "--on {compile,device,eager}" in capsys.readouterr().out


# ---- files


def idx(shape: tuple[int, ...], data: bytes) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in shape)
    return bytes((0, 0, 8, len(shape))) + sizes + data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MNIST with 64 random images to learn from and 10 to try."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images.shape, images.tobytes()))
        labels = rng.integers(0, 10, count, np.uint8)
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(idx(labels.shape, labels.tobytes()))
    return tmp_path


def test_mnist_from_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("mnist", "--quick", "--on", "eager", "--data", str(folder))
    assert "of 10 digits" in capsys.readouterr().out


def test_a_file_that_is_cut_short(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="cut short"):
        run("mnist", "--quick", "--on", "eager", "--data", str(folder))


def test_cifar_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in ("data_batch_1", "test_batch"):
        rows = rng.integers(0, 256, (40, 3073), np.uint8)
        rows[:, 0] %= 10
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    run("cifar", "--quick", "--on", "eager", "--channels-last", "--data", str(tmp_path))
    assert "of 40 images" in capsys.readouterr().out
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(SystemExit, match="rows of 3073 bytes"):
        run("cifar", "--quick", "--on", "eager", "--data", str(tmp_path))
