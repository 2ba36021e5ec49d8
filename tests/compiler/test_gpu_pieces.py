"""What GPU kernels read of rows that lie in pieces: whole sectors, by enough blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import genesis
from benchmarks.sweep_cases import with_gradients
from genesis.compiler.schedule.steps.join_axes import offset
from genesis.compiler.schedule.steps.queries import elements, extent
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.kernel import AxisKind, Kernel, Loop, expressions, walk
from genesis.ir.node import Node, mentions, topological
from tests.compiler.test_gpu_families import blocks
from tests.compiler.test_gpu_schedule import kernels_of

nn = genesis.nn.functional
#: Bytes that memory moves at least.
SECTOR = 32
ARITHMETIC = {
    ops.ADD: np.add,
    ops.MUL: np.multiply,
    ops.FLOORDIV: np.floor_divide,
    ops.MOD: np.mod,
    ops.MIN: np.minimum,
    ops.MAX: np.maximum,
}


def places(n: Node, axes: dict[Any, Any]) -> Any:
    """The value of an index where axes have these values."""
    if n in axes:
        return axes[n]
    if n.op is ops.CONST:
        return int(n.attr)
    return ARITHMETIC[n.op](*(places(i, axes) for i in n.inputs))


def sectors(load: Node) -> float:
    """How many sectors a tile of a load touches for one that it needs."""
    buffer, at, _, _ = kir.load_parts(load)
    where = offset(buffer, at)
    axes = sorted(mentions(where), key=lambda a: a.attr.name)
    tiles = [a for a in axes if a.attr.kind is AxisKind.TILE]
    each = np.ix_(*(np.arange(t.attr.extent) for t in tiles))
    values: dict[Any, Any] = dict.fromkeys(axes, 0) | dict(zip(tiles, each, strict=True))
    # Not what neighbours in memory have in common: a row may be broadcast over a tile.
    found = np.unique(np.asarray(places(where, values)) * buffer.dtype.itemsize)
    return len(np.unique(found // SECTOR)) * SECTOR / (len(found) * buffer.dtype.itemsize)


def long_reads(kernel: Kernel, least: int) -> Iterator[Node]:
    """What the loops, or tiles, of a kernel's first phase read of large arrays."""
    body = kernel.phases[0].body
    for n in topological(e for s in walk(body) for e in expressions(s)):
        if n.op is ops.LOAD and elements(n.attr) >= least and len(kir.tile_axes(n)) > 0:
            yield n


def step(groups: int) -> Any:
    """Gradients of convolutions around a group norm, which leave channels last."""

    def gradients(x: Any, w: Any, scale: Any, shift: Any, v: Any, grad: Any) -> Any:
        def forward(lib: Any, x: Any, w: Any, scale: Any, shift: Any, v: Any) -> Any:
            y = nn.silu(nn.group_norm(nn.conv2d(x, w, None, 1, 1), groups, scale, shift))
            return nn.conv2d(y, v, None, 1, 1)

        return with_gradients(genesis, forward, [x, w, scale, shift, v, grad])

    return gradients


def sums_of(dtype: str, images: int, channels: int, groups: int, pixels: int) -> list[Kernel]:
    """The kernels of that step that sum over pixels, but no products of matrices."""
    x = (dtype, images, channels, pixels, pixels)
    w, scale = (dtype, channels, channels, 3, 3), (dtype, channels)
    found = kernels_of(step(groups), x, w, scale, scale, w, x)
    return [k for k in found if "reduce" in str(k) and "contract" not in k.name]


#: Long rows: U-Nets, odd images, groups of 3 and 5 channels, few images.
LONG = [
    (32, 64, 8, 128),
    (32, 128, 8, 64),
    (8, 128, 32, 117),
    (1, 24, 8, 112),
    (2, 40, 8, 96),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("images", "channels", "groups", "pixels"), LONG)
def test_long_rows_in_pieces_are_read_by_whole_sectors(
    dtype: str, images: int, channels: int, groups: int, pixels: int
) -> None:
    found = sums_of(dtype, images, channels, groups, pixels)
    assert len(found) >= 3  # of the norm, of its gradients, of those of its scale
    whole = images * channels * pixels**2
    for kernel in found:
        read = [sectors(n) for n in long_reads(kernel, whole) if goes_on(n)]
        assert read and max(read) <= 1.5
        assert blocks(kernel) >= min(250, whole // (1 << 14))


def goes_on(load: Node) -> bool:
    """Whether a load is of as many places as a tile of rows and columns has."""
    return math.prod(a.extent for a in kir.tile_axes(load)) >= 1024


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("images", "channels", "groups", "pixels"), [(32, 512, 8, 16), (32, 128, 8, 16), (4, 48, 16, 9)]
)
def test_rows_in_pieces_that_fit_a_tile_are_one(
    dtype: str, images: int, channels: int, groups: int, pixels: int
) -> None:
    found = sums_of(dtype, images, channels, groups, pixels)
    assert len(found) >= 3
    size = channels // groups * (2 if dtype == "bfloat16" else 4)
    for kernel in found:
        loops = [s for p in kernel.phases for s in walk(p.body) if isinstance(s, Loop)]
        assert all(extent(s.axis) <= 16 for s in loops)  # of tiles or chunks, not of pixels
        read = [sectors(n) for n in long_reads(kernel, images * channels * pixels**2)]
        assert max(read, default=1) <= max(1.5, math.ceil(SECTOR / size) + 1)
        assert blocks(kernel) >= min(132, images * groups // 16)


def test_windows_of_a_pooling_stay_with_a_thread() -> None:
    """They lie in pieces, too, but are short."""
    (kernel,) = kernels_of(lambda x: nn.avg_pool2d(x, 2, 2), ("bfloat16", 64, 64, 56, 56))
    assert "reduce" not in str(kernel)
