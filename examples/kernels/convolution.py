"""A strided, padded convolution as a matrix multiplication that is never written out.

Number the output pixels of all images m = 0, 1, .. and the taps of a filter (channel, row, column)
t = 0, 1, ..; then the output is a matrix product ``y[o, m] = sum over t of w[o, t] * x[t, m]``.
The matrix ``x[t, m]`` would hold every input pixel many times. Instead of making it, the kernel
computes *where* its elements are: m and t are taken apart by division and remainder, and the
input position follows. A position in the padding is outside of the image, so the load's mask is
false there and gives 0: padding is a mask, not memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir.dtype import float32
from genesis.ir.kernel import Kernel
from genesis.ir.kernel_builder import Builder


def build(
    channels: int,
    height: int,
    width: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 0,
    filter_tile: int = 4,
    pixel_tile: int = 16,
) -> Kernel:
    """Convolve ``x[B, channels, height, width]`` with ``w[filters, channels, kernel, kernel]``."""
    k = Builder("convolution")
    B = k.symbol("B")
    oh, ow = (
        output_extent(height, kernel, stride, padding),
        output_extent(width, kernel, stride, padding),
    )
    x = k.input("x", float32, B, channels, height, width)
    w = k.input("w", float32, filters, channels, kernel, kernel)
    y = k.output("y", float32, B, filters, oh, ow)
    pixels = B * (oh * ow)
    i, j = k.tile("i", filter_tile), k.tile("j", pixel_tile)
    o = k.grid("fb", -(-filters // filter_tile)) * filter_tile + i
    m = k.grid("pb", (pixels + (pixel_tile - 1)) // pixel_tile) * pixel_tile + j
    image, oy, ox = m // (oh * ow), m // ow % oh, m % ow
    with k.loop("t", channels * kernel * kernel, acc=k.const(0.0, float32), tiles=[i, j]) as (
        t,
        acc,
    ):
        channel, ky, kx = t // (kernel * kernel), t // kernel % kernel, t % kernel
        iy, ix = oy * stride + ky - padding, ox * stride + kx - padding
        inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width) & (m < pixels)
        pixel = x.load(image, channel, iy, ix, mask=inside)
        k.step(acc=acc + w.load(o, channel, ky, kx, mask=o < filters) * pixel)
    k.store(y, (image, o, oy, ox), acc, mask=(o < filters) & (m < pixels))
    return k.kernel()


def output_extent(extent: int, kernel: int, stride: int, padding: int) -> int:
    """How many positions a filter has along one dimension."""
    return (extent + 2 * padding - kernel) // stride + 1


def arguments(
    rng: np.random.Generator,
    /,
    B: int,
    channels: int,
    height: int,
    width: int,
    filters: int,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 0,
) -> dict[str, Any]:
    """Random images and filters."""
    oh, ow = (
        output_extent(height, kernel, stride, padding),
        output_extent(width, kernel, stride, padding),
    )
    return {
        "x": rng.standard_normal((B, channels, height, width), np.float32),
        "w": rng.standard_normal((filters, channels, kernel, kernel), np.float32),
        "y": np.empty((B, filters, oh, ow), np.float32),
        "B": B,
    }


def reference(arguments: Mapping[str, Any], stride: int = 1, padding: int = 0) -> dict[str, Any]:
    """Every window of the padded image times the filters, in float64."""
    x, w = arguments["x"].astype(np.float64), arguments["w"].astype(np.float64)
    edge = (padding, padding)
    padded = np.pad(x, ((0, 0), (0, 0), edge, edge))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    return {"y": np.einsum("bchwyx,ocyx->bohw", windows, w)}
