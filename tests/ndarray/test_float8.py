"""Floats of 8 bits: conversions against PyTorch's, storage, and products of what is stored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.functional import scaled_mm
from genesis.ir.dtype import STORED, DType, as_dtype, promote

KINDS = pytest.mark.parametrize("dtype", STORED, ids=str)


def theirs(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def every(dtype: DType) -> Any:
    """All bit patterns there are."""
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def numbers() -> Any:
    """float32 of all sizes: random bits, random numbers near the ends of the range, and ties."""
    rng = np.random.default_rng(8)
    scales = [1e-9, 1e-4, 1e-2, 1.0, 300.0, 460.0, 6e4, 1e30]
    drawn = [rng.standard_normal(2000) * s for s in scales]
    steps = np.concatenate([every(d)[:128].astype(np.float64) for d in STORED])
    steps = np.sort(steps[np.isfinite(steps)])
    middles = (steps[1:] + steps[:-1]) / 2
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 464.0, 464.1, 480.0, 61439.9, 61440.0, 65536.0]
    bits = np.frombuffer(rng.bytes(1 << 16), np.uint32).view(np.float32)
    exact = np.concatenate([*drawn, steps, middles, -middles, ends])
    near = [np.nextafter(middles.astype(np.float32), s) for s in (np.inf, -np.inf)]
    return np.concatenate([exact.astype(np.float32), *near, bits]).astype(np.float32)


def same(got: Any, want: torch.Tensor) -> None:
    """Equal bits, but of NaN only that it is one."""
    expected = want.float().numpy()
    np.testing.assert_array_equal(got.astype(np.float32), expected)
    known = ~np.isnan(expected)
    found = np.ascontiguousarray(got).view(np.uint8)
    np.testing.assert_array_equal(found[known], want.view(torch.uint8).numpy()[known])


@KINDS
def test_rounding_is_that_of_pytorch(dtype: DType) -> None:
    x = numbers()
    same(genesis.tensor(x).to(dtype).numpy(), torch.from_numpy(x).to(theirs(dtype)))


@KINDS
@pytest.mark.parametrize("source", ["float16", "bfloat16", "int32", "bool"])
def test_rounding_from_other_types(dtype: DType, source: str) -> None:
    kind = getattr(torch, source)
    x = torch.from_numpy(numbers())
    x = torch.arange(-70000, 70000, 7, dtype=kind) if source == "int32" else x.to(kind)
    mine = genesis.tensor(x.float().numpy()).to(getattr(genesis, source))
    same(mine.to(dtype).numpy(), x.to(theirs(dtype)))


@KINDS
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_every_value_in_other_types(dtype: DType, target: str) -> None:
    x = every(dtype)
    if target == "int32":  # NaN and infinity are nothing that PyTorch promises
        x = x[np.isfinite(x.astype(np.float32))]
    kind = getattr(torch, target)
    want = torch.from_numpy(x.view(np.uint8)).view(theirs(dtype)).to(kind)
    got = genesis.tensor(x).to(getattr(genesis, target))
    assert got.dtype.name == target
    np.testing.assert_array_equal(
        got.to(genesis.float64).numpy(), want.double().numpy(), strict=True
    )


@KINDS
def test_float64_is_rounded_once(dtype: DType) -> None:
    """A little above the middle of two values: in float32 it is the middle."""
    low, high = every(dtype)[[0x38, 0x39]].astype(np.float64)
    above = np.array([(low + high) / 2 * (1 + 1e-12)])
    assert genesis.tensor(above).to(dtype).numpy()[0] == high


@KINDS
def test_storage(dtype: DType, tmp_path: Path) -> None:
    x = genesis.tensor(every(dtype))
    assert x.dtype is dtype is as_dtype(dtype.numpy) is as_dtype(dtype.name)
    assert x.element_size() == 1
    rows = x.reshape(16, 16)
    moved = genesis.cat([rows.T[1:], genesis.where(rows.float() > 1, rows, rows.flip(0))])
    plain = every(dtype).reshape(16, 16)
    with np.errstate(invalid="ignore"):
        chosen = np.where(plain.astype(np.float32) > 1, plain, plain[::-1])
    want = np.concatenate([plain.T[1:], chosen]).view(np.uint8)
    np.testing.assert_array_equal(moved.numpy().view(np.uint8), want)
    filled = genesis.zeros(3, dtype=dtype)
    filled[1] = 2.0
    assert filled.to(genesis.float32).tolist() == [0.0, 2.0, 0.0]
    assert str(filled).startswith("tensor([0., 2., 0.]")
    path = tmp_path / "x.safetensors"
    genesis.save({"x": x}, path)
    again = genesis.load(path)["x"]
    assert again.dtype is dtype
    np.testing.assert_array_equal(again.numpy().view(np.uint8), np.arange(256))


@KINDS
@pytest.mark.parametrize(
    "operation",
    [lambda x: x + x, lambda x: x * 2.0, lambda x: -x, lambda x: x < x, lambda x: x.exp(),
     lambda x: x.sum(), lambda x: x.amax(), lambda x: x @ x],
)  # fmt: skip
def test_nothing_is_computed_in_them(dtype: DType, operation: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=f"of {dtype}: floats of 8 bits are only stored"):
        operation(genesis.zeros(4, 4, dtype=dtype))


def test_they_have_no_common_type_with_others() -> None:
    a, b = STORED
    assert promote(a, a) is a
    for other in (b, genesis.float32, genesis.int8):
        with pytest.raises(TypeError, match="no common type: convert floats of 8 bits"):
            promote(a, other)


@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (1, 1)])
def test_scaled_products(kinds: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    a = genesis.tensor(rng.standard_normal((37, 70)).astype(np.float32)).to(STORED[kinds[0]])
    b = genesis.tensor(rng.standard_normal((70, 45)).astype(np.float32)).to(STORED[kinds[1]])
    rows, columns = rng.random((37, 1)) + 0.5, rng.random((1, 45)) + 0.5
    bias = rng.standard_normal(45)
    wide = [x.numpy().astype(np.float64) for x in (a, b)]
    scale_a, scale_b, offset = (genesis.tensor(x.astype(np.float32)) for x in (rows, columns, bias))
    got = scaled_mm(a, b, scale_a, scale_b, bias=offset, output_dtype=genesis.float32)
    np.testing.assert_allclose(got.numpy(), wide[0] @ wide[1] * rows * columns + bias, 1e-5, 1e-5)
    assert scaled_mm(a, b, 0.5, 2.0).dtype is genesis.bfloat16
    with pytest.raises(TypeError, match="scaled_mm: float32 and float8"):
        scaled_mm(a.float(), b, 1.0, 1.0)
