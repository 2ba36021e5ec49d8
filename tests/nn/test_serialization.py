"""Files: what is saved comes back, other libraries agree, and no damaged file does harm."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import genesis
from genesis import ndarray as nd
from genesis.serialization import BadFile, load, save
from genesis.tensor.tensor import Tensor

DTYPES = (
    "bool_", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "bfloat16", "float32", "float64", "complex64",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def same(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor):
        bits = x.numpy().tobytes() == y.numpy().tobytes()
        return isinstance(y, Tensor) and x.dtype is y.dtype and x.shape == y.shape and bits
    if isinstance(x, dict):
        return list(x) == list(y) and all(same(x[k], y[k]) for k in x)
    if isinstance(x, list | tuple):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    return type(x) is type(y) and (x == y or (x != x and y != y))


# ---- there and back


def test_every_dtype(path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 5)) * 100
    state = {name: Tensor(nd.array(values).astype(getattr(genesis, name))) for name in DTYPES}
    save(state, path)
    assert same(state, load(path))


def test_special_values(path: Path) -> None:
    state = {
        kind: Tensor(nd.array([math.nan, math.inf, -math.inf, -0.0, 1e-45]).astype(dtype))
        for kind, dtype in (("float32", genesis.float32), ("bfloat16", genesis.bfloat16))
    }
    save(state, path)
    assert same(state, load(path))


def test_shapes_and_views(path: Path) -> None:
    """Scalars, nothing at all, transposes, slices and expanded tensors."""
    x = Tensor(nd.arange(12).reshape(3, 4))
    state = {
        "scalar": Tensor(nd.array(3.0)),
        "empty": Tensor(nd.zeros((2, 0, 3))),
        "transposed": x.T,
        "slice": x[1:, ::2],
        "expanded": Tensor(nd.broadcast_to(nd.arange(3), (2, 3))),
    }
    save(state, path)
    assert same(state, load(path))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
nested = st.recursive(
    plain | st.just("tensor"),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.integers(0, 9), x, max_size=3),
    max_leaves=8,
)


@given(nested)
def test_nested_states(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    """Whatever is nested how: numbers, texts and tensors come back as what they were."""
    path = tmp_path_factory.mktemp("nested") / "x"
    tensor = Tensor(nd.array([1, 2]))

    def filled(x: Any) -> Any:
        if isinstance(x, list):
            return tuple(map(filled, x)) if len(x) == 2 else list(map(filled, x))
        if isinstance(x, dict):
            return {k: filled(v) for k, v in x.items()}
        return tensor if x == "tensor" else x

    state = {"content": filled(content)}
    save(state, path)
    assert same(state, load(path))


def test_loaded_tensors_can_be_written(path: Path) -> None:
    """The file stays as it is."""
    save({"x": Tensor(nd.arange(4))}, path)
    before = path.read_bytes()
    x = load(path)["x"]
    x[0] = 7
    assert x.tolist() == [7, 1, 2, 3]
    assert path.read_bytes() == before
    assert load(path)["x"].tolist() == [0, 1, 2, 3]


def test_loading_reads_only_the_table(path: Path) -> None:
    """A tensor's bytes are mapped: no memory of the device is taken for them."""
    save({"x": Tensor(nd.zeros(1 << 20))}, path)
    before = genesis.memory.stats().live_bytes
    x = load(path)["x"]
    assert genesis.memory.stats().live_bytes == before
    assert x[-1].item() == 0.0


# ---- other libraries


def test_pytorch_reads_what_is_written(path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(size=(4, 3))
    save({name: Tensor(nd.array(values).astype(getattr(genesis, name))) for name in DTYPES}, path)
    found = safetensors.torch.load_file(path)
    for name in DTYPES:
        expected = nd.array(values).astype(getattr(genesis, name)).numpy()
        assert found[name].dtype is getattr(torch, name.rstrip("_"))
        wide = torch.complex128 if name == "complex64" else torch.float64
        np.testing.assert_array_equal(found[name].to(wide).numpy(), expected.astype(np.complex128))


def test_what_pytorch_writes_is_read(path: Path, rng: np.random.Generator) -> None:
    values = torch.tensor(rng.normal(size=(4, 3)))
    state = {name: values.to(getattr(torch, name.rstrip("_"))) for name in DTYPES}
    safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    found = load(path)
    assert set(found) == set(DTYPES)
    for name in DTYPES:
        assert found[name].dtype is getattr(genesis, name)
        theirs = state[name].to(torch.complex128).numpy()
        np.testing.assert_array_equal(found[name].numpy().astype(np.complex128), theirs)


def test_what_numpy_writes_is_read(path: Path) -> None:
    safetensors.numpy.save_file({"x": np.arange(5), "y": np.ones((2, 2), np.float16)}, path)
    found = load(path)
    assert found["x"].tolist() == [0, 1, 2, 3, 4]
    assert found["y"].dtype is genesis.float16


# ---- writing


def test_a_failed_save_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"x": Tensor(nd.arange(3))}, path)

    def full(*args: Any) -> None:
        Path(args[1]).write_bytes(b"half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(safetensors, "serialize_file", full)
    with pytest.raises(OSError, match="no space"):
        save({"x": Tensor(nd.arange(9))}, path)
    assert os.listdir(path.parent) == [path.name]
    assert load(path)["x"].tolist() == [0, 1, 2]


def test_the_file_obeys_the_umask(path: Path) -> None:
    before = os.umask(0o027)
    try:
        save({"x": Tensor(nd.arange(3))}, path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_saving_over_a_file_that_is_mapped(path: Path) -> None:
    """Tensors of the old file keep their contents, also when they are saved over it."""
    save({"x": Tensor(nd.arange(1000))}, path)
    old = load(path)
    save({"x": Tensor(nd.zeros(10))}, path)
    assert old["x"].sum().item() == 499500
    save(old, path)
    assert load(path)["x"].sum().item() == 499500


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], "a dictionary"),
        ({"f": print}, "f is a builtin_function_or_method"),
        ({"a": {"b": {1, 2}}}, "a.b is a set"),
        ({(1, 2): 3}, "keys are texts or integers"),
    ],
)
def test_what_cannot_be_saved(path: Path, state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        save(state, path)
    assert not path.exists()


def test_what_cannot_be_told_apart_is_not_saved(path: Path) -> None:
    x = Tensor(nd.zeros(1))
    with pytest.raises(ValueError, match=r"both be called 'a\.b'"):
        save({"a.b": x, "a": {"b": x}}, path)
    with pytest.raises(TypeError, match="complex128"):
        save({"x": Tensor(nd.zeros(1, dtype=genesis.complex128))}, path)


# ---- damaged and hostile files


def written(path: Path, table: Any, contents: bytes = b"", length: int | None = None) -> Path:
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    size = len(header) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + header + contents)
    return path


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("cut", [0, 5, 8, 20, -1])
def test_cut_off(path: Path, cut: int) -> None:
    save({"x": Tensor(nd.arange(100))}, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadFile, match=r"model\.safetensors"):
        load(path)


@pytest.mark.parametrize(
    "table",
    [
        b"no json",
        b"[1, 2]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"x": ' * 50_000,
        b'{"x": 1, "x": 2}',
        {"x": None},
        {"x": entry(dtype="F4")},
        {"x": entry(dtype=["U8"])},
        {"x": entry(shape=[-4])},
        {"x": entry(shape=[2.0, 2])},
        {"x": entry(shape=[True, 4])},
        {"x": entry(shape="4")},
        {"x": entry(shape=[5])},
        {"x": entry(shape=[0, 1 << 80], offsets=[0, 0])},
        {"x": entry(shape=[0, 1 << 62, 1 << 62], offsets=[0, 0])},
        {"x": entry(dtype="F64", shape=[0, 1 << 61], offsets=[0, 0])},
        {"x": entry(shape=[1] * 65, offsets=[0, 1])},
        {"x": entry(shape=[1 << 40, 1 << 40])},
        {"x": entry(offsets=[-4, 0])},
        {"x": entry(offsets=[4, 0])},
        {"x": entry(offsets=[0, 8])},
        {"x": entry(shape=[8], offsets=[0, 8])},
        {"x": entry(offsets=[1 << 70, (1 << 70) + 4])},
        {"x": entry(offsets=[0])},
        {"x": entry(), "y": entry()},
        {"x": entry(shape=[3], offsets=[0, 3])},
        {"x": entry(shape=[3], offsets=[1, 4])},
        {"x": {"dtype": "U8", "shape": [4]}},
    ],
    ids=lambda table: str(table)[:60],
)
def test_tables_that_make_no_sense(path: Path, table: Any) -> None:
    with pytest.raises(BadFile):
        load(written(path, table, b"1234"))


@pytest.mark.parametrize("length", [2, 1 << 20, 1 << 62, (1 << 64) - 1])
def test_lengths_that_make_no_sense(path: Path, length: int) -> None:
    with pytest.raises(BadFile):
        load(written(path, {"x": entry()}, b"1234", length))


@pytest.mark.parametrize(
    "description",
    [
        "no json",
        "3",
        '{"tensor": "y"}',
        '{"dict": [[["a"], {"plain": 1}]]}',
        '{"dict": [["a"]]}',
        '{"plain": [1]}',
        '{"call": "os.system"}',
        '{"list": 3}',
        '{"a": 1, "b": 2}',
        '{"list": [' * 5000,
    ],
    ids=lambda text: text[:40],
)
def test_descriptions_that_make_no_sense(path: Path, description: str) -> None:
    table = {"x": entry(), "__metadata__": {"genesis": description}}
    with pytest.raises(BadFile):
        load(written(path, table, b"1234"))


def test_other_metadata_is_left_alone(path: Path) -> None:
    for metadata in ({}, {"format": "pt"}, None, [1]):
        found = load(written(path, {"x": entry(), "__metadata__": metadata}, b"\0\1\2\3"))
        assert found["x"].tolist() == [0, 1, 2, 3]


def test_bytes_that_are_no_bools(path: Path) -> None:
    found = load(written(path, {"x": entry("BOOL")}, b"\0\1\2\xff"))["x"]
    assert found.tolist() == [False, True, True, True]
    assert found.sum().item() == 3


def test_elements_that_are_not_aligned(path: Path) -> None:
    table = {"a": entry("U8", [1], [0, 1]), "b": entry("F32", [2], [1, 9])}
    contents = b"\7" + np.array([1.5, -2.5], np.float32).tobytes()
    assert load(written(path, table, contents))["b"].tolist() == [1.5, -2.5]


@given(st.binary(max_size=40))
def test_arbitrary_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "x"
    path.write_bytes(content)
    with pytest.raises(BadFile):
        load(path)


def test_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError):
        load("/nowhere/x.safetensors")
