"""Checkpoints of PyTorch, NumPy and Keras; what a hostile one cannot do; `genesis convert`."""

import argparse
import collections
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

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


def test_files_from_before_pytorch_1_6(torch, tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"a": base.t(), "part": base[1:, 2:], "n": torch.tensor(3), "b": torch.ones(2) > 0}
    torch.save({"state_dict": state}, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    same(open_weights(tmp_path / "x.pth"), {k: v.numpy() for k, v in state.items()})
    good = (tmp_path / "x.pth").read_bytes()
    for length in range(0, len(good), 7):
        (tmp_path / "y.pth").write_bytes(good[:length])
        with pytest.raises(BadFile):
            open_weights(tmp_path / "y.pth")


def test_what_trainings_keep_beside_weights(torch, tmp_path):
    more = {
        "best": np.float64(0.3), "args": argparse.Namespace(lr=0.1), "dtype": torch.float32,
        "device": torch.device("cpu"), "losses": collections.defaultdict(list, a=[1]),
    }  # fmt: skip
    torch.save({"state_dict": {"w": torch.ones(2)}, **more}, tmp_path / "x.pt")
    same(open_weights(tmp_path / "x.pt"), {"w": np.ones(2, np.float32)})
    torch.save(torch.nn.Linear(2, 2), tmp_path / "y.pt")
    with pytest.raises(BadFile, match=r"makes a torch\.nn\.modules\.linear\.Linear.*state_dict"):
        open_weights(tmp_path / "y.pt")


def test_types_without_a_storage_of_their_own(torch, tmp_path):
    numbers = torch.arange(6).reshape(2, 3)
    state = {"f8": numbers.to(torch.float8_e4m3fn).t(), "u16": numbers.to(torch.uint16)}
    torch.save(state, tmp_path / "x.pt")
    weights = open_weights(tmp_path / "x.pt")
    assert (weights.dtype("f8"), weights.dtype("u16")) == ("float8_e4m3fn", "uint16")
    np.testing.assert_array_equal(weights.read("f8").astype("f4"), numbers.t().numpy())
    np.testing.assert_array_equal(weights.read("u16"), numbers.numpy())


def test_folders_of_pytorch_files(torch, tmp_path):
    for k in (1, 2):
        torch.save({f"w{k}": torch.ones(k)}, tmp_path / f"pytorch_model-0000{k}-of-00002.bin")
    same(open_weights(tmp_path), {f"w{k}": np.ones(k, np.float32) for k in (1, 2)})
    torch.save({"w1": torch.ones(1)}, tmp_path / "pytorch_model-00003-of-00003.bin")
    with pytest.raises(BadFile, match=r"'w1' is in .* and another file"):
        open_weights(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_malicious_pickles_execute_nothing(tmp_path, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    Path("old.pt").write_bytes(magic + pickle.dumps({"w": Evil()}, protocol) * 4)
    with pytest.raises(BadFile, match=r"system|instruction"):
        open_weights("old.pt")
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
