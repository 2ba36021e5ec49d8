"""GGUF files: what is written comes back, the format's own package agrees, damage does no harm."""

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from genesis.serialization import BadFile
from genesis.weights.gguf import GGUFFile, write_gguf
from genesis.weights.gguf_encode import encode
from tests.hostile import damaged

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "count": 3,
    "negative": -3,
    "large": 1 << 40,
    "float": 1.5,
    "true": True,
    "false": False,
    "texts": ["a", "", "é▁" * 40],
    "integers": np.int32([1, -2, 3]),
    "bytes": np.uint8([1, 2, 255]),
    "none": np.zeros(0, np.float32),
    "doubles": np.float64([0.1]),
}


def tensors(rng: np.random.Generator) -> dict[str, Any]:
    x = rng.normal(size=(3, 256)).astype(np.float32)
    return {
        "f32": x,
        "f16": x[:, :7].astype(np.float16),
        "bf16": x.astype(ml_dtypes.bfloat16),
        "i8": np.int8([1, -1]),
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 4), np.float32),
        "empty blocks": encode(np.zeros((2, 0, 64), np.float32), "Q8_0"),
        "empty rows": encode(np.zeros((3, 0), np.float32), "Q4_0"),
        "q8": encode(x, "Q8_0"),
        "q4": encode(x, "Q4_0"),
        "experts": encode(x.reshape(3, 2, 128), "Q8_0"),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_what_is_written_comes_back(path: Path, rng: np.random.Generator) -> None:
    written = tensors(rng)
    write_gguf(path, METADATA, written)
    file = GGUFFile(path)
    assert list(file.metadata) == list(METADATA)
    for key, value in METADATA.items():
        found = file.metadata[key]
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype and np.array_equal(found, value)
        else:
            assert type(found) is type(value) and found == value
    for name, value in written.items():
        found = file.read(name)
        if isinstance(value, np.ndarray | np.generic):
            assert found.dtype == value.dtype and found.shape == value.shape
            assert found.tobytes() == value.tobytes()
        else:
            assert found.dtype == np.float32 and found.shape == value.shape
            assert file.raw(name).tobytes() == value.raw.tobytes()
            codes = file.codes(name)
            assert np.array_equal(codes.decode(), found.reshape(codes.shape))
            some = slice(1, 3)
            assert np.array_equal(file.codes(name, some).decode(), codes.decode()[some])
    assert file.tensors["experts"].shape == (3, 2, 128)


def test_the_formats_own_package_agrees(path: Path, rng: np.random.Generator) -> None:
    gguf = pytest.importorskip("gguf")
    write_gguf(path, METADATA, tensors(rng))
    file, theirs = GGUFFile(path), gguf.GGUFReader(path)
    for key in METADATA:
        assert np.array_equal(theirs.fields[key].contents(), file.metadata[key])
    for tensor in theirs.tensors:
        if tensor.name == "i8" or not tensor.n_elements:
            continue  # it does not dequantise those
        ours = np.asarray(file.read(tensor.name), np.float32)
        wanted = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        assert np.array_equal(wanted.reshape(ours.shape), ours)


def test_nothing_is_copied(path: Path) -> None:
    write_gguf(path, {}, {"w": np.ones((64, 64), np.float32)})
    file = GGUFFile(path)
    assert not file.read("w").flags.owndata and not file.read("w").flags.writeable
    assert file.read("w").ctypes.data == file.raw("w").ctypes.data


def test_a_file_takes_its_own_place(path: Path) -> None:
    write_gguf(path, {}, {"w": np.arange(1000.0, dtype=np.float32)})
    old = GGUFFile(path).read("w")
    write_gguf(path, {}, {"w": old[::-1]})  # truncating it would end the process
    assert GGUFFile(path).read("w")[0] == 999 and old[0] == 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_large_vocabularies_are_read_quickly(path: Path) -> None:
    import time

    texts = [f"token {k}" for k in range(128_000)]
    write_gguf(path, {"tokens": texts, "types": np.ones(128_000, np.int32)}, {})
    start = time.process_time()
    found = GGUFFile(path).metadata["tokens"]
    assert time.process_time() - start < 1  # 0.05 s, where the package gguf takes 4 s
    assert found == texts


# ---- files that are not what they say


def head(*parts: bytes, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def text(contents: bytes) -> bytes:
    return struct.pack("<Q", len(contents)) + contents


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, place: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, place)


def array(kind: int, count: int, contents: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + contents


DATA = bytes(4096)
DEEP = b"".join(array(9, 1) for _ in range(100_000))
BAD = {
    "nothing": (b"", "does not begin"),
    "magic": (b"GGUX" + bytes(20), "does not begin"),
    "short": (head()[:-1], "does not begin"),
    "version 1": (head(version=1), "version 1"),
    "big-endian": (head(version=3 << 24), "version"),
    "many keys": (head(keys=1 << 60), "more than it can hold"),
    "many tensors": (head(tensors=(1 << 64) - 1), "more than it can hold"),
    "keys that are not there": (head(bytes(13), keys=1 << 10), "more than it can hold"),
    "key": (head(text(b"\xff") + bytes(8), keys=1), "not UTF-8"),
    "value": (head(entry(b"k", 8, text(b"\xc3")), keys=1), "not UTF-8"),
    "long text": (head(entry(b"k", 8, struct.pack("<Q", 1 << 63)), keys=1), "no end"),
    "type": (head(entry(b"k", 13, bytes(8)), keys=1), "type 13"),
    "two keys": (head(entry(b"k", 0, b"\1") * 2, keys=2), "'k' appears twice"),
    "truth": (head(entry(b"k", 7, b"\2"), keys=1), "neither true nor false"),
    "truths": (head(entry(b"k", 9, array(7, 2, b"\0\2")), keys=1), "neither true nor false"),
    "long array": (head(entry(b"k", 9, array(4, 1 << 62)), keys=1), "cut off"),
    "many texts": (head(entry(b"k", 9, array(8, 1 << 61)), keys=1), "more than it can hold"),
    "texts cut off": (head(entry(b"k", 9, array(8, 2, text(b"abcdefgh"))), keys=1), "no length"),
    "nested": (head(entry(b"k", 9, array(9, 1, array(4, 1, bytes(4)))), keys=1), "arrays of"),
    "nested deeply": (head(entry(b"k", 9, DEEP), keys=1), "arrays of"),
    "alignment": (head(entry(b"general.alignment", 4, bytes(4)), keys=1), "alignment of 0"),
    "alignment 48": (
        head(entry(b"general.alignment", 4, struct.pack("<I", 48)), keys=1), "alignment of 48"
    ),
    "alignment a": (head(entry(b"general.alignment", 8, text(b"a")), keys=1), "alignment of 'a'"),
    "two tensors": (head(tensor(b"t", (4,)) * 2 + DATA, tensors=2), "'t' appears twice"),
    "dimensions": (head(tensor(b"t", (1,) * 5) + DATA, tensors=1), "5 dimensions"),
    "size": (head(tensor(b"t", (1 << 40, 1 << 40)) + DATA, tensors=1), "too large"),
    "type of tensor": (head(tensor(b"t", (32,), 99) + DATA, tensors=1), "type 99"),
    "format": (head(tensor(b"t", (256,), 15) + DATA, tensors=1), "Q8_K"),
    "rows": (head(tensor(b"t", (33,), 8) + DATA, tensors=1), "no blocks of Q8_0"),
    "outside": (head(tensor(b"t", (4,), 0, 1 << 20) + DATA, tensors=1), "not all there"),
    "too large": (head(tensor(b"t", (1 << 20,)) + DATA, tensors=1), "not all there"),
    "overflow": (head(tensor(b"t", (4,), 0, (1 << 64) - 32) + DATA, tensors=1), "not all there"),
    "unaligned": (head(tensor(b"t", (4,), 0, 8) + DATA, tensors=1), "not aligned"),
    "overlap": (head(tensor(b"t", (64,)) + tensor(b"u", (4,), 0, 32) + DATA, tensors=2), "overlap"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(path: Path, case: str) -> None:
    contents, why = BAD[case]
    path.write_bytes(contents)
    with pytest.raises(BadFile, match=why) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("count", [300, pytest.param(6000, marks=pytest.mark.slow)])
def test_no_damage_does_harm(path: Path, rng: np.random.Generator, count: int) -> None:
    few = {key: value for key, value in tensors(rng).items() if key != "f32"}
    write_gguf(path, METADATA, few)
    good = path.read_bytes()
    header = good[: GGUFFile(path).tensors["f16"].begin]
    refused = 0
    for bad in damaged(header, count):
        path.write_bytes(bad + good[len(header) :])
        try:
            file = GGUFFile(path)
        except BadFile:
            refused += 1
        else:
            for name in file.tensors:
                file.read(name)
                if file.tensors[name].format.unpack is not None:
                    file.codes(name)
    assert count // 2 < refused < count


def test_what_cannot_be_written_says_so(path: Path) -> None:
    with pytest.raises(TypeError, match="'w' is complex64"):
        write_gguf(path, {}, {"w": np.complex64(1)})
    with pytest.raises(TypeError, match="'k' is"):
        write_gguf(path, {"k": {"a": 1}}, {})
    assert not path.exists()
