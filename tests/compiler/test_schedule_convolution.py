"""How convolutions are scheduled: rows of two axes, packing in lines, sums without their ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from genesis import explain
from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import lower
from genesis.compiler.program.program import results
from genesis.compiler.schedule import schedule
from genesis.compiler.schedule.contraction_operands import Operands, operands
from genesis.compiler.schedule.cpu.contraction.contraction import contract
from genesis.compiler.schedule.cpu.contraction.loop_order import innermost_last, unmasked
from genesis.compiler.schedule.cpu.contraction.packing import contiguous_run, pack
from genesis.compiler.schedule.steps.join_axes import flatten, merge_axes
from genesis.compiler.schedule.steps.queries import elements
from genesis.compiler.verify.kernel import verify
from genesis.ir import ops
from genesis.ir.check import check
from genesis.ir.index import bounds
from genesis.ir.kernel import AxisKind, Buffer, Kernel, Loop, Role, Stage, tile_axes, walk
from genesis.ir.node import Node, topological
from genesis.ndarray import NDArray
from tests.compiler.test_schedule import CHIPS, run
from tests.ndarray.test_pooling import graph


def zeros(*shape: int) -> NDArray:
    return nd.array(np.zeros(shape, np.float32)).realize()


def forward() -> NDArray:
    return nd.convolution(zeros(1, 3, 4, 4), zeros(9, 3, 3, 3), padding=1)


def forward_strided() -> NDArray:
    return nd.convolution(zeros(1, 2, 7, 9), zeros(11, 2, 3, 3), stride=2, padding=1)


def input_gradient() -> NDArray:
    return nd.convolution_input_gradient(zeros(1, 3, 4, 4), zeros(3, 9, 3, 3), (1, 9, 4, 4), 1, 1)


def input_gradient_strided() -> NDArray:
    return nd.convolution_input_gradient(zeros(1, 3, 2, 4), zeros(3, 9, 3, 3), (1, 9, 4, 8), 2, 1)


def far_outside() -> NDArray:
    return nd.convolution(zeros(1, 2, 3, 4), zeros(9, 2, 3, 3), stride=2, padding=5, dilation=2)


def beyond_the_gradient() -> NDArray:
    """The last rows of the image are in no window, so there is nothing to sum."""
    return nd.convolution_input_gradient(
        zeros(1, 1, 3, 17), zeros(1, 5, 5, 4), (1, 5, 13, 16), (3, 1), (0, 2)
    )


def weight_gradient() -> NDArray:
    return nd.convolution_weight_gradient(
        zeros(1, 9, 2, 20), zeros(1, 2, 2, 20), (9, 2, 3, 3), 1, 1
    )


def weight_gradient_strided() -> NDArray:
    return nd.convolution_weight_gradient(
        zeros(1, 9, 2, 20), zeros(1, 1, 4, 40), (9, 1, 3, 3), 2, 1
    )


def forward_in_parts() -> NDArray:
    return nd.convolution(zeros(1, 8, 3, 3), zeros(9, 8, 2, 2), padding=1)


def of_transposed() -> NDArray:
    return nd.matmul(zeros(9, 21), zeros(10, 21).T)


CASES = (
    forward, forward_strided, forward_in_parts, far_outside, input_gradient,
    input_gradient_strided, beyond_the_gradient, weight_gradient, weight_gradient_strided,
    of_transposed,
)  # fmt: skip


@cache
def plain(case: Callable[[], NDArray]) -> tuple[Kernel, Operands]:
    root, _, _ = graph(case())
    fusion = fuse(results(simplify([root])))
    kernel = merge_axes(flatten(lower(fusion.groups[0], fusion.stored).kernel))
    found = operands(kernel)
    assert found is not None
    return kernel, found


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_computes_the_same(case: Callable[[], NDArray], chip: Chip) -> None:
    kernel, found = plain(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genesis.compiler.schedule.cpu.contraction.contraction.PACK_ROWS", 2)
        after = contract(kernel, found, chip)
    assert len(after.phases) == 2
    check(after)
    assert verify(after).proven, str(after)
    for want, got in zip(run(kernel), run(after, "shuffle"), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5, err_msg=str(after))


def test_several_axes_are_packed_through_a_stage_if_it_is_small() -> None:
    kernel, found = plain(forward_in_parts)
    grid = kernel.phases[0].grid
    packed, packing = pack(found, grid, 16)
    stages = [s.buffer.shape for s in walk(packing.body) if isinstance(s, Stage)]
    assert stages == [(16, 16)], "two parts of 4 channels, of 4 taps each"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genesis.compiler.schedule.cpu.contraction.packing.STAGED", 8)
        decoded, decoding = pack(found, grid, 16)
    assert not any(isinstance(s, Stage) for s in walk(decoding.body))
    assert decoded == packed
    after = contract(kernel, found, CHIPS[0])
    check(after)
    assert verify(after).proven


#: A CPU with 32 registers of 16 floats, and next to no caches.
WIDE = replace(CHIPS[0], vector_bytes=64, vector_registers=32)


def tile(product: Callable[[], NDArray], chip: Chip = WIDE) -> tuple[int, ...]:
    """The register tile: rows and columns."""
    kernel, found = plain(product)
    *_, computing = contract(kernel, found, chip).phases
    loop = next(s for s in walk(computing.body) if isinstance(s, Loop) and s.carried)
    rows, columns = loop.carried[0].local.tiles
    assert isinstance(rows.extent, int) and isinstance(columns.extent, int)
    return rows.extent, columns.extent


def test_tiles_divide_rows_and_rows_of_a_tile_fit_the_cache() -> None:
    assert tile(lambda: nd.matmul(zeros(256, 100), zeros(100, 128))) == (4, 64)
    assert tile(lambda: nd.matmul(zeros(252, 100), zeros(100, 128))) == (6, 64)
    assert tile(lambda: nd.matmul(zeros(140, 100), zeros(100, 32))) == (14, 32)
    assert tile(lambda: nd.matmul(zeros(140, 1024), zeros(1024, 32))) == (7, 32)


def test_few_rows_are_joined_by_those_of_a_second_axis() -> None:
    kernel, found = plain(input_gradient)
    *_, computing = contract(kernel, found, CHIPS[1]).phases
    loop = next(s for s in walk(computing.body) if isinstance(s, Loop) and s.carried)
    tiles = tile_axes(loop.carried[0].local.node)
    assert len(tiles) == 3 and all(a.kind is AxisKind.TILE for a in tiles)


def test_runs_of_the_packed_operand() -> None:
    runs = {case: contiguous_run(plain(case)[1]) for case in CASES}
    names = {case.__name__: [a.name for a in run] for case, run in runs.items()}
    assert names["forward"] == ["k0_2", "k0_1", "k0_0"]
    assert names["input_gradient"] == ["k0_2", "k0_1"]
    assert names["of_transposed"] == ["k0_0"]
    assert not any(runs[forward].values()), "taps are read in order"
    assert all(runs[input_gradient].values()), "taps are read backwards"


def test_pixels_are_summed_innermost_and_their_ends_apart() -> None:
    kernel, found = plain(weight_gradient)
    _, found = innermost_last(kernel, found)
    assert found.sums[-1].name == "k0_2"
    assert unmasked(found, found.sums[-1]) == range(1, 19)
    _, strided = plain(weight_gradient_strided)
    assert unmasked(strided, strided.sums[-1]) == range(1, 20)
    _, windows = plain(forward)
    assert unmasked(windows, windows.sums[-1]) == range(1, 2), "the tap in the middle is inside"


def summed(case: Callable[[], NDArray]) -> tuple[Kernel, list[Loop]]:
    """A kernel on the wide chip, and the loops in which it sums."""
    kernel, found = plain(case)
    after = contract(kernel, found, CHIPS[1])
    *_, computing = after.phases
    return after, [s for s in walk(computing.body) if isinstance(s, Loop) and s.carried]


def long_rows() -> NDArray:
    return nd.convolution(zeros(1, 8, 5, 14), zeros(32, 8, 3, 3), padding=1)


def test_rows_outside_of_an_image_are_not_summed() -> None:
    after, (outer, *_) = summed(long_rows)
    assert outer.axis.name == "k0_1" and not isinstance(outer.axis.extent, int)
    assert bounds(outer.axis.extent) == (1, 3)
    assert "i3 +" not in str(after).rpartition(" if ")[2], "no mask is left for them"


def test_taps_are_written_out_where_a_tile_is_a_row() -> None:
    _, (_, *taps) = summed(long_rows)
    assert [s.axis.name for s in taps] == ["k0_2s0", "k0_0", "k0_2s1", "k0_0", "k0_2s2", "k0_0"]


def test_a_strided_gradient_sums_the_taps_of_its_phase_only() -> None:
    after, (outer, *_) = summed(input_gradient_strided)
    assert not isinstance(outer.axis.extent, int)
    assert bounds(outer.axis.extent) == (1, 2)
    (made,) = (b for b in after.buffers if b.role is Role.OUTPUT)
    assert elements(made) == 9 * 4 * 8, "phases begin with the image, and nothing is cut off"


def test_columns_that_are_no_whole_vector_cost_what_they_waste() -> None:
    def strided() -> NDArray:
        return nd.convolution(zeros(8, 64, 14, 14), zeros(128, 64, 1, 1), stride=2)

    _, found = plain(strided)
    assert found.column.extent == 128, "channels, not the 8 images"

    def small_images() -> NDArray:
        return nd.convolution(zeros(8, 256, 14, 14), zeros(1024, 256, 1, 1))

    _, found = plain(small_images)
    assert found.column.extent == 1024, "channels, not 196 pixels, of which tiles waste 28"


def test_tiles_are_stored_by_lines() -> None:
    def many_images() -> NDArray:
        return nd.convolution(zeros(16, 256, 14, 14), zeros(1024, 256, 1, 1))

    _, found = plain(many_images)
    assert found.column.extent == 1024, "of 16 images, every pixel would be in a line of its own"

    def phases() -> NDArray:
        y, w = zeros(8, 128, 28, 28), zeros(128, 128, 3, 3)
        return nd.convolution_input_gradient(y, w, (8, 128, 56, 56), 2, 1)

    _, found = plain(phases)
    assert found.column.extent == 128, "channels of every other pixel, which share lines"


@pytest.mark.parametrize("stride", [1, 2])
def test_a_strided_image_goes_by_once(stride: int) -> None:
    """Panels, which lie in order, pass by once for every row of it, although they are larger."""

    def small_images() -> NDArray:
        images = zeros(8, 512, 7 * stride, 7 * stride)
        return nd.convolution(images, zeros(2048, 512, 1, 1), stride=stride)

    kernel, found = plain(small_images)
    assert elements(source_of(found.left)) < elements(source_of(found.right))
    *_, innermost = contract(kernel, found, CHIPS[1]).phases[-1].grid
    assert (innermost.name == found.column.name + "b") == (stride == 2)


def source_of(factor: Node) -> Buffer:
    (found,) = (n.attr for n in topological([factor]) if n.op is ops.LOAD)
    assert isinstance(found, Buffer)
    return found


def test_panels_of_a_strided_gradient_have_every_tap_once() -> None:
    kernel, found = plain(input_gradient_strided)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genesis.compiler.schedule.cpu.contraction.contraction.PACK_ROWS", 2)
        after = contract(kernel, found, CHIPS[1])
    (packed,) = (b for b in after.buffers if b.role is Role.TEMPORARY)
    assert packed.shape[:-1] == (1, 3, 3, 3), "taps and channels of one panel"


def test_columns_that_nobody_else_needs_are_read_in_strips_of_a_line() -> None:
    def pixels() -> NDArray:
        return nd.convolution(zeros(8, 64, 56, 56), zeros(64, 64, 1, 1))

    def far_pixels() -> NDArray:  # of which rows share a set of the cache
        return nd.convolution(zeros(8, 64, 64, 64), zeros(64, 64, 1, 1))

    assert tile(pixels, CHIPS[1]) == (8, 16)
    assert tile(far_pixels, CHIPS[1]) == tile(pixels, WIDE) == (4, 64)
    kernel, found = plain(pixels)
    after = contract(kernel, found, CHIPS[1])
    assert len(after.phases) == 1 and not any(
        isinstance(s, Stage) for s in walk(after.phases[0].body)
    )


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_loads_stay_in_loops_that_may_have_no_iterations(chip: Chip) -> None:
    kernel, _ = plain(beyond_the_gradient)
    after = schedule(kernel, chip)
    assert verify(after).proven, str(after)


@pytest.mark.parametrize(("taps", "apart", "copied"), [(5, 1, True), (5, 3, True), (3, 2, False)])
def test_wide_windows_read_a_copy_with_its_border(taps: int, apart: int, copied: bool) -> None:
    around = apart * (taps // 2)
    image, filters = zeros(1, 8, 40, 40), zeros(8, 8, taps, taps)
    report = explain(
        lambda x, w: nd.convolution(x, w, padding=around, dilation=apart), image, filters
    )
    assert len(report.kernels) == 1 + copied
    assert ("else 0.0" in report.kernels[-1].plain) != copied, "a mask in the sum, or a copy"
