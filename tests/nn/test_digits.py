"""The digits that come with the package, the network that learns to read them, and the command."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import genesis
from genesis import datasets
from genesis.cli import main
from genesis.recipes import digits as recipe

# ---- the data


def test_the_data_is_complete() -> None:
    """Sums over all images, taken from the original file."""
    images, labels = datasets.digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype is genesis.uint8
    assert labels.dtype is genesis.int64
    counts = np.bincount(labels.numpy()).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.numpy().max() == 16
    assert images.numpy().sum(dtype=np.int64) == 561718


def test_the_split_leaves_nothing_out() -> None:
    parts = [datasets.digits(split) for split in ("train", "test")]
    assert [len(p.labels) for p in parts] == [1437, 360]
    whole = datasets.digits()
    joined = np.concatenate([p.images.numpy() for p in parts])
    np.testing.assert_array_equal(joined, whole.images.numpy())
    with pytest.raises(ValueError, match="'train', 'test' or 'all'"):
        datasets.digits("validation")


def test_shifted_images() -> None:
    """Nine copies: the fifth is the image itself, the others have lost a row, a column or both."""
    images = datasets.digits("test").images[:3]
    plain = recipe.prepared(images)
    found = recipe.shifted(plain).numpy().reshape(9, 3, 8, 8)
    np.testing.assert_array_equal(found[4], plain.numpy()[:, 0])
    np.testing.assert_array_equal(found[1][:, 1:], plain.numpy()[:, 0, :-1])
    assert (found[1][:, 0] == -1).all()


# ---- training


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, Path]:
    path = tmp_path_factory.mktemp("digits") / "digits.safetensors"
    return recipe.train(output=str(path)), path


def test_it_learns_to_read(trained: tuple[float, Path]) -> None:
    assert trained[0] >= 0.985


def test_pytorch_reads_the_same_with_the_weights(trained: tuple[float, Path]) -> None:
    """The same layers with the same file."""
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(512, 10),
    )
    theirs.load_state_dict(safetensors.torch.load_file(trained[1]))
    theirs.eval()
    images = datasets.digits("test").images
    scores = theirs(torch.tensor(recipe.prepared(images).numpy())).detach().numpy()
    ours = recipe.load(str(trained[1])).eval()
    with genesis.no_grad():
        found = ours(recipe.prepared(images)).numpy()
    np.testing.assert_allclose(found, scores, 1e-4, 1e-4)


def test_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for path, seed in zip(files, (3, 3, 4), strict=True):
        recipe.train(steps=5, seed=seed, output=str(path))
    contents = [path.read_bytes() for path in files]
    assert contents[0] == contents[1] != contents[2]


# ---- the command


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--steps", "5"]) == 0
    printed = capsys.readouterr().out
    assert "all kernels proven safe                yes" in printed
    assert "genesis predict digits.safetensors" in printed
    assert main(["predict", "digits.safetensors"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20


def test_predicting_a_drawing(
    trained: tuple[float, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    images, labels = datasets.digits("train")
    drawing = "\n".join(" ".join(map(str, row)) for row in images[0].tolist())
    (tmp_path / "drawing.txt").write_text(drawing)
    monkeypatch.setattr("sys.stdin", io.StringIO(drawing))
    assert main(["predict", str(trained[1]), str(tmp_path / "drawing.txt"), "-"]) == 0
    assert capsys.readouterr().out.split()[:2] == [str(labels[0].item())] * 2


@pytest.mark.parametrize("text", ["", "1 2 3", "x", "17 " * 8, ("9 " * 8 + "\n") * 9, "-1 " * 8])
def test_drawings_that_are_none(
    trained: tuple[float, Path], tmp_path: Path, capsys: Any, text: str
) -> None:
    path = tmp_path / "drawing.txt"
    path.write_text(text if "\n" in text else (text + "\n") * 8)
    assert main(["predict", str(trained[1]), str(path)]) == 1
    message = capsys.readouterr().err
    assert message == f"genesis: {path}: expected 8 lines of 8 whole numbers from 0 to 16\n"


def test_files_that_hold_no_such_network(tmp_path: Path, capsys: Any) -> None:
    other, noise = tmp_path / "other", tmp_path / "noise"
    genesis.save({"w": genesis.ones(3)}, other)
    noise.write_bytes(b"noise")
    for path, message in (
        (other, "the weights of another network"),
        (noise, "no safetensors file"),
        (tmp_path / "missing", "No such file"),
    ):
        assert main(["predict", str(path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("genesis: ")
        assert message in error


def test_where_nothing_can_be_saved(tmp_path: Path, capsys: Any) -> None:
    """That is said before training."""
    assert main(["train", "digits", "--output", str(tmp_path / "no" / "x")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    for output in (str(tmp_path), f"{tmp_path}/", "", str(tmp_path / ("x" * 250))):
        assert main(["train", "digits", "--steps=1", "--output", output]) == 1
        assert f"cannot save to {output}: " in capsys.readouterr().err
        with pytest.raises(OSError):
            recipe.train(1, 0, output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_steps_that_are_none(steps: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["train", "digits", f"--steps={steps}"])
    assert "not a positive number" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["train"], ["train", "digits"], ["predict"], ["env"]])
def test_help(command: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    assert "usage: genesis " + command[0] in capsys.readouterr().out
