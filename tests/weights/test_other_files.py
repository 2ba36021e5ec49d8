"""Checkpoints of PyTorch, NumPy and Keras; what a hostile one cannot do; `genesis convert`."""

import os
import pickle
import zipfile
from contextlib import suppress

import numpy as np
import pytest

import genesis
from genesis.cli import main
from genesis.serialization import BadFile
from genesis.weights import convert, open_weights


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def same(weights, expected):
    assert set(weights) == set(expected)
    for name, x in expected.items():
        found = weights.read(name)
        assert found.dtype == x.dtype and found.shape == x.shape, name
        np.testing.assert_array_equal(found, x)


def test_state_dicts(torch, tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "a.weight": base.t(), "a.part": base[1:, 2:], "n": torch.tensor(3), "b": torch.ones(2) > 0,
        "h": torch.ones(2, dtype=torch.float16), "e": torch.zeros(0, 3), "shared": base,
    }  # fmt: skip
    torch.save(state, tmp_path / "x.pt")
    same(open_weights(tmp_path / "x.pt"), {k: v.numpy() for k, v in state.items()})
    torch.save({"epoch": 3, "state_dict": state, "lr": [0.1]}, tmp_path / "y.pth")
    same(open_weights(tmp_path / "y.pth"), {k: v.numpy() for k, v in state.items()})


def test_half_precision_and_parameters(torch, tmp_path):
    module = torch.nn.Linear(2, 3).bfloat16()
    torch.save({"module": dict(module.named_parameters())}, tmp_path / "x.pt")
    weights = open_weights(tmp_path / "x.pt")
    assert weights.dtype("module.weight") == "bfloat16"
    found = weights.read("module.weight").astype(np.float32)
    np.testing.assert_array_equal(found, module.weight.detach().float().numpy())


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_malicious_pickles_execute_nothing(tmp_path, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("x.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"w": Evil()}, protocol))
    with pytest.raises(BadFile, match=r"system|instruction"):
        open_weights("x.pt")
    assert not (tmp_path / "hacked").exists()


def _file(path, *instructions):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"".join(instructions))
        archive.writestr("x/data/0", bytes(64))


STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQ"
)


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [(b"K\x00", b"K\x20", b"K\x01"), (b"K\x0f", b"K\x02", b"K\x01"),
     (b"K\x00", b"J\xff\xff\xff\x7f", b"K\x00"), (b"K\x00", b"J\xff\xff\xff\xff", b"K\x01")],
)  # fmt: skip
def test_tensors_beyond_their_storage(tmp_path, offset, shape, stride):
    call = b"ctorch._utils\n_rebuild_tensor_v2\n("
    _file(tmp_path / "x.pt", b"\x80\x02", call, STORAGE, offset, shape, b"\x85", stride, b"\x85",
          b"tR.")  # fmt: skip
    with pytest.raises(BadFile):
        open_weights(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "program", [b"", b".", b"\x80\x02", b"\x80\x02}R.", b"\x80\x02(((.", b"h\x07.", b"]" * 100]
)
def test_damaged_pickles(tmp_path, program):
    _file(tmp_path / "x.pt", program)
    with pytest.raises(BadFile):
        open_weights(tmp_path / "x.pt")


def test_flipped_bytes_are_one_clear_exception(torch, tmp_path):
    torch.save({"w": torch.ones(3, 4), "v": [torch.zeros(2)]}, tmp_path / "x.pt")
    good = (tmp_path / "x.pt").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        bad = bytearray(good)
        for place in rng.integers(0, len(bad), rng.integers(1, 6)):
            bad[place] = rng.integers(256)
        (tmp_path / "y.pt").write_bytes(bad)
        with suppress(BadFile):
            open_weights(tmp_path / "y.pt")


def test_archives(tmp_path):
    arrays = {"a": np.arange(3.0), "b": np.ones((2, 2), np.int8)}
    np.savez(tmp_path / "x.npz", **arrays)
    same(open_weights(tmp_path / "x.npz"), arrays)
    np.savez(tmp_path / "y.npz", a=np.array([Evil()], object))
    with pytest.raises(BadFile):
        open_weights(tmp_path / "y.npz")


def test_keras(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 3), np.float32)
    expected = {"layers.dense.vars.0": np.ones((2, 3), np.float32)}
    same(open_weights(tmp_path / "model.weights.h5"), expected)
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.write(tmp_path / "model.weights.h5", "model.weights.h5")
    same(open_weights(tmp_path / "m.keras"), expected)


def test_convert(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", a=np.arange(3.0))
    convert(tmp_path / "x.npz", tmp_path / "x.safetensors")
    assert genesis.load(tmp_path / "x.safetensors")["a"].tolist() == [0, 1, 2]
    assert main(["convert", str(tmp_path / "x.safetensors"), str(tmp_path / "y.npz")]) == 0
    assert np.load(tmp_path / "y.npz")["a"].tolist() == [0, 1, 2]
    assert "1 tensors" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "x.npz"), str(tmp_path / "x.zip")]) == 1
    assert main(["convert", str(tmp_path / "none.pt"), str(tmp_path / "x.npz")]) == 1
