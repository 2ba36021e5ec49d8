"""Interpolation, sampling on grids and shuffled channels, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import genesis
from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.ndarray.ops.interpolation import _RANKS as RANKS


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def agree(got: NDArray, want: torch.Tensor) -> None:
    assert got.shape == tuple(want.shape)
    tolerance = 1e-9 if want.dtype == torch.float64 else 3e-5
    np.testing.assert_allclose(got.numpy(), want.numpy(), tolerance, tolerance)


def smooth(mode: str) -> bool:
    return mode.endswith(("linear", "cubic"))


@settings(max_examples=40)
@given(st.data())
def test_interpolate(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(sorted(RANKS)))
    rank = data.draw(st.sampled_from(RANKS[mode]))
    x = random(2, 2, *data.draw(st.tuples(*[st.integers(1, 7)] * rank)))
    x = x.astype(data.draw(st.sampled_from((np.float32, np.float64))))
    given: dict[str, Any] = {"mode": mode}
    if data.draw(st.booleans()):
        given["size"] = data.draw(st.tuples(*[st.integers(1, 11)] * rank))
    else:
        # No result may be empty; exact halves would be decided by the last bit of a product.
        given["scale_factor"] = data.draw(st.sampled_from((1.0, 1.3, 1.7, 2.0, 3.0)))
        if data.draw(st.booleans()):
            given["recompute_scale_factor"] = True
    if smooth(mode):
        given["align_corners"] = data.draw(st.booleans())
    if mode in ("bilinear", "bicubic"):
        given["antialias"] = data.draw(st.booleans())
    agree(nd.interpolate(nd.array(x), **given), functional.interpolate(torch.tensor(x), **given))


@pytest.mark.parametrize("mode", sorted(RANKS))
def test_shrinking(mode: str) -> None:
    rank = RANKS[mode][-1]
    x = random(1, 2, *(9, 13, 8)[:rank], dtype=np.float64)
    given: dict[str, Any] = {"mode": mode, "scale_factor": 0.45}
    agree(nd.interpolate(nd.array(x), **given), functional.interpolate(torch.tensor(x), **given))
    if mode in ("bilinear", "bicubic"):
        given["antialias"] = True
        agree(
            nd.interpolate(nd.array(x), **given), functional.interpolate(torch.tensor(x), **given)
        )


def test_coordinates_at_integers_are_read_where_they_are_weighed() -> None:
    """Positions and weights come from one coordinate, though kernels may compute it apart."""
    for n, scale, antialias in product((7, 49), (0.6, 5 / 3), (False, True)):
        x = random(1, 3, n, 2)
        given = {"scale_factor": (scale, 1.0), "mode": "bilinear", "antialias": antialias}
        single = nd.interpolate(nd.array(x), **given).numpy()
        double = nd.interpolate(nd.array(x.astype(np.float64)), **given).numpy()
        np.testing.assert_allclose(single, double, 1e-4, 1e-4)


def test_nearest_keeps_integers() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 3, 5, 4), np.uint8)
    got = nd.interpolate(nd.array(x), scale_factor=2)
    want = functional.interpolate(torch.tensor(x), scale_factor=2)
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert got.dtype is genesis.uint8


def test_half_precision() -> None:
    x = random(1, 2, 5, 6).astype(np.float16)
    want = functional.interpolate(torch.tensor(x).float(), scale_factor=2, mode="bilinear")
    got = nd.interpolate(nd.array(x), scale_factor=2, mode="bilinear")
    np.testing.assert_allclose(got.numpy(), want.numpy().astype(np.float16), 2e-3, 1e-3)


# ---- grids


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("rank", "mode"),
    [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")],
)
def test_grid_sample(rank: int, mode: str, padding_mode: str) -> None:
    shape = (5, 7, 4)[:rank]
    x = random(2, 3, *shape)
    grid = np.random.default_rng(1).uniform(-2.5, 2.5, (*(2, 4, 3, 6)[: rank + 1], rank))
    grid = grid.astype(np.float32)
    for align_corners in (False, True):
        given = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        want = functional.grid_sample(torch.tensor(x), torch.tensor(grid), **given)
        agree(nd.grid_sample(nd.array(x), nd.array(grid), **given), want)


def test_samples_outside_do_not_see_the_border() -> None:
    """Zeros beyond the edge, even next to an infinite element."""
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    grid = np.full((1, 1, 1, 2), -7.0, np.float32)
    assert nd.grid_sample(nd.array(x), nd.array(grid)).item() == 0


def test_identity_grid() -> None:
    x = random(2, 3, 4, 5)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    for align_corners in (False, True):
        grid = nd.affine_grid(nd.array(theta), x.shape, align_corners)
        got = nd.grid_sample(nd.array(x), grid, align_corners=align_corners)
        np.testing.assert_allclose(got.numpy(), x, 1e-5, 1e-5)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 1, 4), (2, 1, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...]) -> None:
    theta = random(2, len(size) - 2, len(size) - 1)
    for align_corners in (False, True):
        want = functional.affine_grid(torch.tensor(theta), list(size), align_corners)
        agree(nd.affine_grid(nd.array(theta), size, align_corners), want)


# ---- shuffles


def test_shuffles() -> None:
    x = random(2, 12, 4, 6)
    agree(nd.pixel_shuffle(nd.array(x), 2), functional.pixel_shuffle(torch.tensor(x), 2))
    agree(nd.pixel_unshuffle(nd.array(x), 2), functional.pixel_unshuffle(torch.tensor(x), 2))
    agree(nd.channel_shuffle(nd.array(x), 3), functional.channel_shuffle(torch.tensor(x), 3))
    agree(nd.pixel_shuffle(nd.array(x[0]), 2), functional.pixel_shuffle(torch.tensor(x[0]), 2))


x = nd.ones((2, 4, 6, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nd.interpolate(x), ValueError, "interpolate: give size or scale_factor"),
        (lambda: nd.interpolate(x, 3, mode="cubic"), ValueError, "interpolate: no mode 'cubic'"),
        (lambda: nd.interpolate(x, 3, mode="linear"), ValueError, r"needs 3 axes.*\(2, 4, 6, 6\)"),
        (lambda: nd.interpolate(x, 0), ValueError, r"interpolate: .*\(0, 0\)"),
        (lambda: nd.interpolate(x, (1, 2, 3)), ValueError, "interpolate: size .* for 3 axes"),
        (lambda: nd.interpolate(x, 3, align_corners=True), ValueError, "align_corners"),
        (lambda: nd.interpolate(x, 3, antialias=True), ValueError, "interpolate: antialias"),
        (lambda: nd.interpolate(x.astype(genesis.int32), 3, mode="area"), TypeError, "int32"),
        (lambda: nd.grid_sample(x, nd.ones((2, 3, 3, 3))), ValueError, r"grid \(2, 3, 3, 3\)"),
        (lambda: nd.grid_sample(x, x, mode="linear"), ValueError, "grid_sample: mode 'linear'"),
        (lambda: nd.affine_grid(nd.ones((2, 2, 2)), (2, 1, 3, 3)), ValueError, "affine_grid: "),
        (lambda: nd.pixel_shuffle(x, 3), ValueError, r"pixel_shuffle: .*\(2, 4, 6, 6\)"),
        (lambda: nd.pixel_unshuffle(x, 4), ValueError, r"pixel_unshuffle: .*\(2, 4, 6, 6\)"),
        (lambda: nd.channel_shuffle(x, 3), ValueError, r"channel_shuffle: .*\(2, 4, 6, 6\)"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
