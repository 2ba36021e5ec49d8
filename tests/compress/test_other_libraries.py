"""Codes and scales as other libraries make them, where those are installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from genesis.compress import FORMATS, Format, encode
from genesis.compress.codes import values_of
from genesis.compress.format import DYNAMIC, FP4

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def weights(rows: int, k: int, seed: int = 0) -> Any:
    """Weights of very different sizes, some groups of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k)) * np.exp2(rng.integers(-12, 6, (rows, k // 32, 1))).repeat(
        32, 2
    ).reshape(rows, k)
    x[0, :32] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("name", ["MXFP4", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2"])
def test_microscaling_is_that_of_torchao(name: str) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    constants = pytest.importorskip("torchao.prototype.mx_formats.constants")
    kinds = {
        "MXFP4": torch.float4_e2m1fn_x2, "MXFP6_E2M3": constants.DTYPE_FP6_E2M3,
        "MXFP6_E3M2": constants.DTYPE_FP6_E3M2, "MXFP8_E4M3": torch.float8_e4m3fn,
        "MXFP8_E5M2": torch.float8_e5m2,
    }  # fmt: skip
    x = weights(64, 512)
    scale, data = mx.to_mx(torch.tensor(x), kinds[name], 32)
    codes = encode(x, FORMATS[name])
    data = data.view(torch.uint8).numpy()
    if name == "MXFP4":
        data = np.stack([data & 15, data >> 4], -1).reshape(64, 512)
    exponents = scale.view(torch.uint8).numpy()
    assert exponents.std() > 1
    halved = 1 if name == "MXFP4" else 0
    np.testing.assert_array_equal(
        codes.scale, np.ldexp(np.float32(1), exponents.astype(int) - 127 - halved)
    )
    if name == "MXFP4":  # a table has one zero, torchao's floats have two
        data = np.where(data == 8, 0, data)
    np.testing.assert_array_equal(codes.codes, data)


def test_nvfp4_is_that_of_torchao() -> None:
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = weights(64, 512, 1)
    x[1, :16] = np.abs(x).max() / 2  # a group beside which others nearly vanish
    whole = nv.per_tensor_amax_to_scale(torch.tensor(np.abs(x).max()))
    scale, data = nv.nvfp4_quantize(torch.tensor(x), per_tensor_scale=whole)
    codes = encode(x, FORMATS["NVFP4"])
    assert len(np.unique(codes.scale.scale)) == 1
    np.testing.assert_allclose(codes.scale.scale.flat[0], whole.item(), rtol=2e-7)
    np.testing.assert_array_equal(codes.scale.codes, scale.view(torch.uint8).numpy())
    data = data.view(torch.uint8).numpy()
    np.testing.assert_array_equal(codes.codes, np.stack([data & 15, data >> 4], -1).reshape(64, -1))


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_tables_are_those_of_bitsandbytes(name: str) -> None:
    bnb = pytest.importorskip("bitsandbytes.functional")
    x = weights(32, 1024, 2)
    packed, state = bnb.quantize_4bit(torch.tensor(x), blocksize=64, quant_type=name)
    np.testing.assert_array_equal(values_of(FORMATS[name].element), state.code.numpy())
    exact = Format(name, FORMATS[name].element, 64, "float32")
    codes = encode(x, exact)
    np.testing.assert_array_equal(codes.scale.reshape(-1), state.absmax.numpy())
    packed = packed.numpy().reshape(-1)
    both = np.stack([packed >> 4, packed & 15], -1).reshape(32, -1)
    np.testing.assert_array_equal(
        codes.codes % 16, np.where((name == "fp4") & (both == 8), 0, both)
    )
    wanted = bnb.dequantize_4bit(torch.tensor(packed)[:, None], state).numpy()
    np.testing.assert_array_equal(codes.decode(), wanted)


def test_nested_scales_are_those_of_bitsandbytes() -> None:
    bnb = pytest.importorskip("bitsandbytes.functional")
    np.testing.assert_array_equal(np.float32(DYNAMIC), bnb.create_dynamic_map().numpy())
    assert len(set(FP4)) == 15 and 6 not in FP4  # it is no e2m1
    x = np.random.default_rng(3).standard_normal((1, 256 * 64)).astype(np.float32)
    _, state = bnb.quantize_4bit(
        torch.tensor(x), blocksize=64, quant_type="nf4", compress_statistics=True
    )
    nested = encode(x, FORMATS["nf4_nested"]).scale
    np.testing.assert_allclose(nested.minimum.item(), state.offset.item(), rtol=1e-6)
    np.testing.assert_allclose(nested.scale.item(), state.state2.absmax.item(), rtol=1e-5)
    assert (nested.codes.reshape(-1) == state.absmax.numpy()).mean() > 0.99  # by how means round
