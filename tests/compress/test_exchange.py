"""Quantised models as GPTQ's and AWQ's files: every code as it was, read back and by other code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import nn
from genesis.compress import quantize_
from genesis.compress.exchange import save_quantized
from genesis.ir.dtype import as_dtype
from genesis.serialization import load
from genesis.weights import open_weights


def model(format: str) -> nn.Sequential:
    genesis.manual_seed(0)
    layers = nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 96, bias=False)
    return quantize_(nn.Sequential(*layers), format)


@pytest.mark.parametrize(
    ("method", "format"),
    [
        ("gptq", "uint4/64"), ("gptq", "int4/32"), ("gptq", "uint3/64"), ("gptq", "uint2/32"),
        ("gptq", "int8/64"), ("awq", "uint4/64"), ("awq", "int4/32"),
        ("compressed-tensors", "uint4/64"), ("compressed-tensors", "int3/32"),
        ("compressed-tensors", "int8/row"),
    ],
)  # fmt: skip
def test_files_come_back_with_every_code(tmp_path: Path, method: str, format: str) -> None:
    quantised = model(format)
    save_quantized(quantised, tmp_path, method, {"model_type": "test"})
    weights = open_weights(tmp_path)
    assert sorted(weights) == ["0.bias", "0.weight", "1.bias", "1.weight", "2.weight"]
    for name, layer in (("0", quantised[0]), ("2", quantised[2])):
        codes, zero, scale = (x.numpy() for x in layer.weight.parts())
        found = weights.codes(f"{name}.weight")
        np.testing.assert_array_equal(found.codes, codes)
        if found.zero is not None:
            np.testing.assert_array_equal(found.zero, zero)
        np.testing.assert_array_equal(np.asarray(found.scale, np.float32), scale)
        wanted = layer.weight.dequantize().numpy()
        np.testing.assert_array_equal(weights.read_linear(f"{name}.weight"), wanted)


def unpacked(words: Any, bits: int) -> Any:
    """The integers of words along the last axis, one by one."""
    result = []
    for row in words.astype(np.uint32).tolist():
        whole = sum(word << (32 * place) for place, word in enumerate(row))
        count = 32 * len(row) // bits
        result.append([whole >> (bits * k) & ((1 << bits) - 1) for k in range(count)])
    return np.array(result)


@pytest.mark.parametrize("bits", [3, 4])
def test_words_of_gptq_lie_as_its_papers_code_packs_them(tmp_path: Path, bits: int) -> None:
    quantised = model(f"int{bits}/32")
    save_quantized(quantised, tmp_path)
    stored = {n: x.numpy() for n, x in load(tmp_path / "model.safetensors").items()}
    assert stored["0.qweight"].shape == (128 * bits // 32, 64)
    codes = unpacked(stored["0.qweight"].T, bits)
    zeros = unpacked(stored["0.qzeros"], bits).T + 1  # the first version
    scales = stored["0.scales"].astype(np.float32).T
    groups = stored["0.g_idx"]
    found = scales[:, groups] * (codes - zeros[:, groups])
    np.testing.assert_array_equal(found, quantised[0].weight.dequantize().numpy())


def test_what_the_files_cannot_hold_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="methods are gptq, awq and compressed-tensors"):
        save_quantized(model("int4"), tmp_path, "hqq")
    with pytest.raises(ValueError, match="no quantised linear layers"):
        save_quantized(nn.Sequential(nn.Linear(4, 4)), tmp_path)
    with pytest.raises(ValueError, match="awq has no integers of 3 bits"):
        save_quantized(model("int3"), tmp_path, "awq")
    with pytest.raises(ValueError, match="more than codes, zeros and scales"):
        save_quantized(model("nf4"), tmp_path)
    with pytest.raises(ValueError, match="several formats"):
        mixed = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 32))
        save_quantized(quantize_(mixed, {"0": "int4", "1": "int8"}), tmp_path)
    with pytest.raises(ValueError, match="no multiple of 32 rows"):
        save_quantized(quantize_(nn.Sequential(nn.Linear(64, 7)), "int4"), tmp_path)
    tiny = nn.Sequential(nn.Linear(64, 32))
    with genesis.no_grad():
        tiny[0].weight.mul_(1e-9)
    with pytest.raises(ValueError, match="no float16"):
        save_quantized(quantize_(tiny, "int4"), tmp_path)


def test_floats_of_compressed_tensors(tmp_path: Path) -> None:
    quantised = model("float8_e4m3fn/row")
    save_quantized(quantised, tmp_path, "compressed-tensors")
    weights = open_weights(tmp_path)
    for name, layer in (("0", quantised[0]), ("2", quantised[2])):
        wanted = layer.weight.dequantize().numpy()
        np.testing.assert_array_equal(weights.read(f"{name}.weight"), wanted)
    with pytest.raises(ValueError, match="scales of floats are those of rows"):
        save_quantized(model("float8_e4m3fn"), tmp_path, "compressed-tensors")
    with pytest.raises(ValueError, match="gptq has no floats of 8 bits"):
        save_quantized(quantised, tmp_path)


@pytest.mark.parametrize("format", ["NVFP4", "MXFP4"])
def test_floats_of_4_bits_of_compressed_tensors(tmp_path: Path, format: str) -> None:
    quantised = model(format)
    save_quantized(quantised, tmp_path, "compressed-tensors")
    weights = open_weights(tmp_path)
    assert weights.dtype("0.weight") == format.lower()
    for name, layer in (("0", quantised[0]), ("2", quantised[2])):
        codes, scale, unit = layer.weight.scaled_codes()
        found = weights.codes(f"{name}.weight")
        np.testing.assert_array_equal(found.codes, codes.numpy())
        if format == "MXFP4":
            np.testing.assert_array_equal(found.scale, scale.numpy())
        else:  # the file has the inverse of the unit
            scales = found.scale.codes.view(as_dtype("float8_e4m3fn").numpy).astype(np.float32)
            np.testing.assert_array_equal(scales, scale.numpy())
            np.testing.assert_allclose(found.scale.scale, unit, rtol=1e-6)
    with pytest.raises(ValueError, match=r"more than codes|no floats of 4 bits"):
        save_quantized(quantised, tmp_path)
    with pytest.raises(ValueError, match="no whole groups"):
        odd = quantize_(nn.Sequential(nn.Linear(40, 32)), format)
        save_quantized(odd, tmp_path, "compressed-tensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "format", ["uint4/64", "int4/32", "int8/64", "int3/32", "int4/row", "NVFP4", "MXFP4"]
)
def test_compressed_tensors_reads_its_files(tmp_path: Path, format: str) -> None:
    library = pytest.importorskip("compressed_tensors.compressors")
    from compressed_tensors.quantization import QuantizationScheme

    quantised = model(format)
    save_quantized(quantised, tmp_path, "compressed-tensors")
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme(**said["config_groups"]["group_0"])
    compressor = library.BaseCompressor.get_value_from_registry(said["format"])
    stored = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    own = {n[2:]: x for n, x in stored.items() if n.startswith("2.")}
    found = compressor.decompress(own, scheme)["weight"].float().numpy()
    wanted = quantised[2].weight.dequantize().numpy()
    np.testing.assert_allclose(found, wanted, rtol=0.01)  # products in bfloat16
