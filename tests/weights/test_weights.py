"""Checkpoints: parameters by name from every kind of file, quantised ones against slow versions."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from genesis.compress import FORMATS
from genesis.serialization import BadFile
from genesis.weights.checkpoint_reader import Weights, open_weights
from genesis.weights.gguf import write_gguf
from genesis.weights.gguf_encode import encode
from tests.hostile import damaged

INDEX = "model.safetensors.index.json"


def folder(path: Path, tensors: dict[str, Any], **config: Any) -> Path:
    torches = {k: v if isinstance(v, torch.Tensor) else torch.tensor(v) for k, v in tensors.items()}
    torches = {k: v.contiguous() for k, v in torches.items()}
    safetensors.torch.save_file(torches, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def quantised(path: Path, tensors: dict[str, Any], **said: Any) -> Weights:
    return open_weights(folder(path, tensors, quantization_config=said))


# ---- files


def test_one_file_and_a_folder(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    folder(tmp_path, {"a": x, "b": x.bfloat16(), "c": x.to(torch.float8_e5m2)}, layers=2)
    for weights in (open_weights(tmp_path), open_weights(tmp_path / "model.safetensors")):
        assert sorted(weights) == sorted(weights.names()) == ["a", "b", "c"] and "d" not in weights
        assert [weights.dtype(name) for name in "abc"] == ["float32", "bfloat16", "float8_e5m2"]
        assert weights.shape("a") == (3, 4) and weights.format("a") is None
        with pytest.raises(ValueError, match="'a' is float32, and not quantised"):
            weights.codes("a")
        assert np.array_equal(weights.read("a"), x.numpy())
        assert weights.read("b").dtype == ml_dtypes.bfloat16
        assert np.array_equal(weights.read_linear("b"), x.bfloat16().float().numpy())
        assert np.array_equal(weights.read_linear("c"), x.to(torch.float8_e5m2).float().numpy())
        assert not weights.read("a").flags.owndata
    assert open_weights(tmp_path).config == {"layers": 2}
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert np.array_equal(open_weights(tmp_path).read("a"), x.numpy())


def test_gguf_files_and_their_parts(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 64)).astype(np.float32)
    first = {"general.architecture": "llama", "split.count": 2, "split.no": 0}
    write_gguf(tmp_path / "m-00001-of-00002.gguf", first, {"a": x})
    write_gguf(tmp_path / "m-00002-of-00002.gguf", {"split.no": 1}, {"b": encode(x, "Q8_0")})
    weights = open_weights(tmp_path)
    assert weights.names() == ["a", "b"] and weights.metadata is not None
    assert weights.metadata["general.architecture"] == "llama"
    assert (weights.dtype("a"), weights.dtype("b")) == ("float32", "Q8_0")
    assert np.array_equal(weights.read("a"), x)
    assert weights.format("b") is FORMATS["Q8_0"] and weights.format("a") is None
    assert np.array_equal(weights.codes("b").decode(), weights.read_linear("b"))
    assert np.abs(weights.read("b") - x).max() < 0.02
    (tmp_path / "m-00002-of-00002.gguf").rename(tmp_path / "n.gguf")
    with pytest.raises(FileNotFoundError):
        open_weights(tmp_path / "m-00001-of-00002.gguf")


def sharded(path: Path, places: dict[str, str], contents: dict[str, list[str]]) -> Path:
    for shard, names in contents.items():
        tensors = {name: np.full(3, k, np.float32) for k, name in enumerate(names)}
        safetensors.numpy.save_file(tensors, path / shard)
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_several_files(tmp_path: Path) -> None:
    sharded(tmp_path, {"x": A, "z": B, "y": A}, {A: ["x", "y", "unlisted"], B: ["z"]})
    weights = open_weights(tmp_path)
    assert weights.names() == ["x", "z", "y"]
    assert weights.read("y")[0] == 1


@pytest.mark.parametrize(
    ("places", "contents", "why"),
    [
        ({"x": "../a.safetensors"}, {}, "no file of the folder"),
        ({"x": "/etc/passwd"}, {}, "no file of the folder"),
        ({"x": "..safetensors/a.safetensors"}, {}, "no file of the folder"),
        ({"x": "a\0.safetensors"}, {}, "no file of the folder"),
        ({"x": "pytorch_model.bin"}, {}, "no file of the folder"),
        ({"x": A}, {}, "no file of the folder"),
        ({"x": A, "y": B}, {A: ["x"], B: ["z"]}, "'y' is not in"),
        ({"x": A, "y": B}, {A: ["y"], B: ["x"]}, "'y' is in"),
        ({"x": A, "y": B}, {A: ["x", "y"], B: ["y"]}, "'y' is in"),
        ({"x": 3}, {}, "which tensor is in which file"),
        (["x"], {}, "which tensor is in which file"),
        (None, {}, "which tensor is in which file"),
    ],
)
def test_bad_indices_are_refused(tmp_path: Path, places: Any, contents: Any, why: str) -> None:
    with pytest.raises(BadFile, match=why):
        open_weights(sharded(tmp_path, places, contents))


@pytest.mark.parametrize(
    "contents",
    [b'{"weight_map": {"x": "a", "x": "b"}}', b"[" * 100_000, b"\xff", b"[]", b"1" * 5000],
)
def test_damaged_indices_are_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / INDEX).write_bytes(contents)
    with pytest.raises(BadFile, match="index"):
        open_weights(tmp_path)


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no safetensors"):
        open_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4")
    for place in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(BadFile, match=r"no checkpoint of torch\.save"):
            open_weights(place)


# ---- quantised matrices


def packed(values: Any, bits: int) -> Any:
    """Integers (rows, k) in words of 32 bits along k: one number, written to its end bit by bit."""
    words = []
    for row in values:
        number = sum(int(v) << (bits * k) for k, v in enumerate(row))
        count = len(row) * bits // 32
        words.append([number >> (32 * w) & 0xFFFFFFFF for w in range(count)])
    return np.array(words, np.uint32).view(np.int32)


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(
    tmp_path: Path, rng: np.random.Generator, bits: int, order: bool, version: str
) -> None:
    n, k, group = 32, 96, 32
    codes = rng.integers(0, 1 << bits, (n, k))
    zeros = rng.integers(0, 1 << bits, (n, k // group))
    scales = rng.random((n, k // group)).astype(np.float16)
    groups = np.arange(k) // group
    groups = rng.permutation(groups) if order else groups
    stored = zeros if version == "gptq_v2" else (zeros - 1) % (1 << bits)
    tensors = {
        "l.qweight": packed(codes, bits).T, "l.qzeros": packed(stored.T, bits),
        "l.scales": scales.T, "l.g_idx": groups.astype(np.int32), "l.bias": np.zeros(n),
    }  # fmt: skip
    said = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version}
    weights = quantised(tmp_path, tensors, **said)
    assert sorted(weights) == ["l.bias", "l.weight"] and weights.shape("l.weight") == (n, k)
    wanted = np.empty((n, k), np.float32)
    for i in range(n):
        for j in range(k):
            g = groups[j]
            wanted[i, j] = np.float32(scales[i, g]) * np.float32(codes[i, j] - zeros[i, g])
    assert np.array_equal(weights.read_linear("l.weight"), wanted)
    parts = weights.codes("l.weight")
    assert parts.format.group == group and (parts.order is not None) == order
    columns = np.arange(k) if parts.order is None else parts.order
    assert np.array_equal(parts.codes, codes[:, columns]) and np.array_equal(parts.zero, zeros)
    assert np.array_equal(groups[columns], np.arange(k) // group)


def test_gptq_of_one_group_without_order(tmp_path: Path, rng: np.random.Generator) -> None:
    codes, scales = rng.integers(0, 16, (8, 64)), np.ones((1, 8), np.float16)
    stored = {"l.qweight": packed(codes, 4).T, "l.qzeros": packed(np.full((1, 8), 7), 4)}
    folder(tmp_path, {**stored, "l.scales": scales})
    said = {"bits": 4, "group_size": -1, "desc_act": False}
    (tmp_path / "quantize_config.json").write_text(json.dumps(said))  # as old checkpoints have it
    assert np.array_equal(open_weights(tmp_path).read("l.weight"), codes - 8.0)


def test_awq(tmp_path: Path, rng: np.random.Generator) -> None:
    n, k, group = 24, 64, 32
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))
    scales = rng.random((k // group, n)).astype(np.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # as AWQ packs columns

    def interleaved(x: Any) -> Any:
        columns = [8 * (c // 8) + order[c % 8] for c in range(n)]
        return packed(x[:, columns], 4)

    stored = {"l.qweight": interleaved(codes), "l.qzeros": interleaved(zeros), "l.scales": scales}
    weights = quantised(tmp_path, stored, quant_method="awq", bits=4, group_size=group)
    spread = np.arange(k) // group
    wanted = scales.astype(np.float32)[spread] * (codes - zeros[spread]).astype(np.float32)
    assert np.array_equal(weights.read_linear("l.weight"), wanted.T)
    parts = weights.codes("l.weight")
    assert np.array_equal(parts.codes, codes.T)
    assert np.array_equal(parts.zero, zeros.T)


@pytest.mark.parametrize("shape", [(), (1,), (150,), (150, 1), (2, 3)])
def test_floats_of_8_bits(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = torch.randn(150, 260).to(torch.float8_e4m3fn)
    scale = torch.rand(shape) + 0.5
    name = "weight_scale_inv" if len(shape) == 2 and shape[1] > 1 else "weight_scale"
    stored = {"l.weight": x, f"l.{name}": scale, "norm.weight": torch.ones(4)}
    weights = quantised(tmp_path, stored, quant_method="fp8", weight_block_size=[128, 128])
    assert sorted(weights) == ["l.weight", "norm.weight"]
    assert weights.dtype("l.weight") == "float8_e4m3fn"
    spread = scale.reshape(scale.shape or (1,))
    if shape == (2, 3):
        spread = spread.repeat_interleave(128, 0).repeat_interleave(128, 1)[:150, :260]
    wanted = x.float() * (spread if spread.ndim == 2 else spread[:, None])
    assert np.array_equal(weights.read_linear("l.weight"), wanted.numpy())


def test_integers_of_8_bits(tmp_path: Path) -> None:
    x, scale = torch.randint(-128, 128, (5, 6), dtype=torch.int8), torch.rand(5, 1).bfloat16()
    stored = {"l.weight": x, "l.weight_scale": scale}
    weights = quantised(tmp_path, stored, quant_method="compressed-tensors", format="int-quantized")
    assert np.array_equal(weights.read("l.weight"), (x.float() * scale.float()).numpy())


def test_floats_of_4_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    blocks = rng.integers(0, 256, (2, 5, 3, 16), np.uint8)
    scales = rng.integers(0, 250, (2, 5, 3), np.uint8)
    stored = {"e.up_proj_blocks": blocks, "e.up_proj_scales": scales, "e.up_proj_bias": blocks[0]}
    weights = quantised(tmp_path, stored, quant_method="mxfp4")
    assert sorted(weights) == ["e.up_proj", "e.up_proj_bias"]
    found = weights.read("e.up_proj")
    assert found.shape == (2, 5, 96)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for e, row, k in np.ndindex(found.shape):
        code = blocks[e, row, k // 32, k % 32 // 2] >> (4 * (k % 2)) & 15
        value = values[code & 7] * (-1 if code & 8 else 1)
        assert found[e, row, k] == np.float32(value * 2.0 ** (int(scales[e, row, k // 32]) - 127))


def grouped(bits: int, **more: Any) -> Any:
    return {"quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": bits, **more}}}}  # fmt: skip


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_compressed_tensors(
    tmp_path: Path, rng: np.random.Generator, bits: int, zeros: bool
) -> None:
    n, k, group = 32, 96, 32
    codes = rng.integers(0, 1 << bits, (n, k))
    zero = rng.integers(0, 1 << bits, (n, k // group))
    scale = torch.tensor(rng.random((n, k // group))).bfloat16()
    stored = {
        "l.weight_packed": packed(codes, bits), "l.weight_scale": scale,
        "l.weight_shape": np.array([n, k]), "l.bias": np.ones(n, np.float32),
    }  # fmt: skip
    if zeros:
        stored["l.weight_zero_point"] = np.ascontiguousarray(packed(zero.T, bits).T)
    weights = quantised(
        tmp_path, stored, **grouped(bits, group_size=group), format="pack-quantized"
    )
    assert sorted(weights) == ["l.bias", "l.weight"]
    off = np.repeat(zero, group, 1) if zeros else 1 << bits - 1
    wanted = (codes - off) * np.repeat(scale.float().numpy(), group, 1)
    np.testing.assert_array_equal(weights.read("l.weight"), wanted.astype(np.float32))
    np.testing.assert_array_equal(weights.codes("l.weight", slice(3, 5)).codes, codes[3:5])
    for name, x in (("l.weight_scale", scale[:, :2]), ("l.weight_shape", np.array([n, 7 * k]))):
        with pytest.raises(BadFile):
            quantised(tmp_path, {**stored, name: x}, **grouped(bits, group_size=group))


@pytest.mark.parametrize("bits", [4, 8])
def test_files_of_compressed_tensors_itself(tmp_path: Path, bits: int) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = torch.randint(-(1 << bits - 1), 1 << bits - 1, (16, 64), dtype=torch.int8)
    stored = {
        "l.weight_packed": helpers.pack_to_int32(codes, bits), "l.weight_scale": torch.ones(16, 2),
        "l.weight_shape": np.array([16, 64]),
    }  # fmt: skip
    weights = quantised(tmp_path, stored, **grouped(bits))
    np.testing.assert_array_equal(weights.read("l.weight"), codes.float().numpy())


def test_floats_of_4_bits_with_scales_of_8(tmp_path: Path, rng: np.random.Generator) -> None:
    blocks = rng.integers(0, 256, (6, 32), np.uint8)
    scale = torch.tensor(rng.random((6, 4)) * 400).to(torch.float8_e4m3fn)
    stored = {"l.weight_packed": blocks, "l.weight_scale": scale,
              "l.weight_global_scale": np.float32([250.0])}  # fmt: skip
    weights = quantised(tmp_path, stored, **grouped(4))
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(6, 64)
    wanted = values[codes] * np.repeat(scale.float().numpy(), 16, 1) / 250
    np.testing.assert_allclose(weights.read("l.weight"), wanted, rtol=3e-7)
    powers = rng.integers(100, 140, (6, 2), np.uint8)
    stored = {"l.weight_packed": blocks, "l.weight_scale": powers}
    weights = quantised(tmp_path, stored, **grouped(4))
    wanted = values[codes] * np.repeat(2.0 ** (powers.astype(int) - 127), 32, 1)
    np.testing.assert_array_equal(weights.read("l.weight"), wanted.astype(np.float32))


def states(packed_: Any, absmax: Any, table: Any, kind: str, **facts: Any) -> dict[str, Any]:
    text = json.dumps({"quant_type": kind, "dtype": "bfloat16", **facts}).encode()
    return {
        "l.weight": packed_, "l.weight.absmax": absmax, "l.weight.quant_map": table,
        f"l.weight.quant_state.bitsandbytes__{kind}": np.frombuffer(text, np.uint8).copy(),
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(8, 64), (6, 96), (3, 7)])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes(
    tmp_path: Path, rng: np.random.Generator, shape: tuple[int, int], nested: bool
) -> None:
    n, k = shape
    table = np.sort(rng.standard_normal(16)).astype(np.float32)
    codes = rng.integers(0, 16, n * k + n * k % 2).astype(np.uint8)
    blocks = -(-n * k // 64)
    absmax: Any = rng.random(blocks).astype(np.float32)
    facts: dict[str, Any] = {"shape": [n, k], "blocksize": 64}
    more = {}
    if nested:
        steps, inner = rng.integers(0, 256, blocks, np.uint8), rng.random(256).astype(np.float32)
        outer = rng.random(-(-blocks // 256)).astype(np.float32)
        more = {"l.weight.nested_absmax": outer, "l.weight.nested_quant_map": inner}
        facts |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
        absmax, stored = inner[steps] * outer[0] + np.float32(0.25), steps
    else:
        stored = absmax
    both = (codes[::2] << 4 | codes[1::2])[:, None]
    files = {**states(both, stored, table, "nf4", **facts), **more}
    weights = quantised(tmp_path, files, quant_method="bitsandbytes", load_in_4bit=True)
    assert list(weights) == ["l.weight"]
    wanted = (table[codes] * np.repeat(absmax, 64)[: len(codes)])[: n * k].reshape(n, k)
    np.testing.assert_array_equal(weights.read("l.weight"), wanted)
    np.testing.assert_array_equal(weights.codes("l.weight", slice(1, 3)).decode(), wanted[1:3])
    for name, x in (("l.weight", both[1:]), ("l.weight.quant_map", table[:8])):
        with pytest.raises(BadFile, match="do not fit"):
            quantised(tmp_path, {**files, name: x}, quant_method="bitsandbytes")


def test_bitsandbytes_of_8_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    x, peaks = rng.integers(-127, 128, (5, 6)).astype(np.int8), rng.random(5).astype(np.float32)
    stored = {"l.weight": x, "l.SCB": peaks}
    weights = quantised(tmp_path, stored, quant_method="bitsandbytes", load_in_8bit=True)
    np.testing.assert_allclose(weights.read("l.weight"), x * peaks[:, None] / 127, rtol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_files_of_bitsandbytes_itself(tmp_path: Path, kind: str, nested: bool) -> None:
    bnb = pytest.importorskip("bitsandbytes.functional")
    w = torch.randn(48, 320)
    data, state = bnb.quantize_4bit(w, quant_type=kind, compress_statistics=nested)
    stored = {
        "l.weight": data,
        **{f"l.weight.{n}": x for n, x in state.as_dict(packed=True).items()},
    }
    weights = quantised(tmp_path, stored, quant_method="bitsandbytes", load_in_4bit=True)
    wanted = bnb.dequantize_4bit(data, state).numpy()
    np.testing.assert_allclose(weights.read("l.weight"), wanted, rtol=3e-7)


WORDS = np.zeros((8, 32), np.int32)
GOOD = {"l.qweight": WORDS, "l.qzeros": WORDS[:2, :4], "l.scales": np.ones((2, 32), np.float16)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"l.qzeros": WORDS[:1, :4]}, {}),
        ({"l.scales": np.ones((2, 31), np.float16)}, {}),
        ({"l.scales": np.ones((), np.float16)}, {}),
        ({"l.qweight": WORDS.astype(np.int64)}, {}),
        ({"l.qweight": WORDS[0]}, {}),
        ({}, {"bits": 5}),
        ({}, {"bits": "4"}),
        ({}, {"bits": [4]}),
        ({}, {"group_size": 0}),
        ({}, {"group_size": "32"}),
        ({}, {"group_size": 1 << 70}),
        ({}, {"quant_method": "bitsandbytes"}),
        ({}, {"quant_method": ["gptq"]}),
        ({}, {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, said: Any) -> None:
    good = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    assert quantised(tmp_path, GOOD, **good).shape("l.weight") == (32, 64)
    with pytest.raises(BadFile, match="open_weights"):
        quantised(tmp_path, {**GOOD, **change}, **{**good, **said})


def test_endless_groups_and_blocks_are_the_whole(tmp_path: Path) -> None:
    good = {**GOOD, "l.qzeros": WORDS[:1, :4], "l.scales": np.ones((1, 32), np.float16)}
    weights = quantised(tmp_path, good, quant_method="gptq", group_size=1 << 70)
    assert (weights.read("l.weight") == -1).all()
    x, scale = torch.ones(5, 6).to(torch.float8_e4m3fn), torch.full((1, 1, 1), 2.0)[0]
    for block in ([1 << 70, 1 << 70], [1 << 40, 5]):
        scales = scale.repeat(1, -(-6 // block[1]))
        stored = {"l.weight": x, "l.weight_scale_inv": scales}
        weights = quantised(tmp_path, stored, quant_method="fp8", weight_block_size=block)
        assert (weights.read("l.weight") == 2).all()
    empty = {"l.weight": x[:, :0], "l.weight_scale": scale}
    assert quantised(tmp_path, empty, quant_method="fp8").read("l.weight").shape == (5, 0)


def test_parts_of_gguf_files_that_are_not_called_so(tmp_path: Path) -> None:
    for count in (2, "2", 70_000):
        write_gguf(tmp_path / "m.gguf", {"split.count": count}, {})
        with pytest.raises(BadFile, match="not called so"):
            open_weights(tmp_path / "m.gguf")


def test_missing_parts_and_strange_groups(tmp_path: Path) -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    with pytest.raises(BadFile, match="qzeros"):
        quantised(tmp_path, {"l.qweight": WORDS}, **said)
    for groups in (np.full(64, 9), np.full(64, -1), np.r_[np.zeros(40), np.ones(24)]):
        weights = quantised(tmp_path, {**GOOD, "l.g_idx": groups.astype(np.int32)}, **said)
        with pytest.raises(BadFile, match="'l', quantised by gptq: columns are in groups"):
            weights.read("l.weight")
    with pytest.raises(BadFile, match="do not fit"):
        quantised(tmp_path, {**GOOD, "l.g_idx": np.zeros(63, np.int32)}, **said)
    (tmp_path / "config.json").write_text('{"quantization_config": "gptq"}')
    with pytest.raises(BadFile, match="not read"):
        open_weights(tmp_path)


@pytest.mark.parametrize("count", [200, pytest.param(6000, marks=pytest.mark.slow)])
def test_no_damage_does_harm(tmp_path: Path, count: int) -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
    quantised(tmp_path, {**GOOD, "l.g_idx": np.arange(64, dtype=np.int32) // 32}, **said)
    refused = 0
    for name in ("config.json", "model.safetensors"):
        file = tmp_path / name
        good = file.read_bytes()
        for bad in damaged(good[:600], count // 2):
            file.write_bytes(bad + good[600:])
            try:
                weights = open_weights(tmp_path)
                for parameter in weights:
                    weights.read(parameter)
            except BadFile:
                refused += 1
        file.write_bytes(good)
    assert refused > count // 2
