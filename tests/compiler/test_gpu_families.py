"""What GPUs get of whole families of operations, whatever their sizes: without a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import genesis
from benchmarks.sweep_cases import with_gradients
from genesis.backends.gpu.binary import request
from genesis.backends.gpu.codegen.render import render
from genesis.backends.gpu.codegen.warp_specialised import by_roles
from genesis.backends.gpu.compile import compile, resources
from genesis.compiler.schedule.gpu.online_powers import online_powers
from genesis.compiler.schedule.steps.loop_transforms import split_reduction
from genesis.ir import ops
from genesis.ir.dtype import float32
from genesis.ir.interpret import interpret
from genesis.ir.kernel import Kernel, Loop, Phase, Role, Scan, as_index, walk
from genesis.ir.kernel_builder import Builder
from genesis.ir.node import elementwise
from tests.compiler.test_gpu_schedule import kernels_of

nn = genesis.nn.functional


def blocks(kernel: Kernel, phase: int = 0) -> int:
    """How many there are."""
    count = 1
    for axis in kernel.phases[phase].grid:
        assert isinstance(axis.extent, int)
        count *= axis.extent
    return count


def weight_gradient(groups: int, window: int) -> Any:
    def gradient(x: Any, w: Any, grad: Any) -> Any:
        def forward(lib: Any, x: Any, w: Any) -> Any:
            return lib.nn.functional.conv2d(x, w, None, 1, window // 2, 1, groups)

        return with_gradients(genesis, forward, [x, w, grad])[1]

    return gradient


@pytest.mark.parametrize("pixels", [112, 64, 35, 28])
def test_gradients_of_weights_sum_pixels_of_channels_that_lie_together(pixels: int) -> None:
    x, y = ("bfloat16", 4, 64, pixels, pixels), ("bfloat16", 4, 128, pixels, pixels)
    (kernel,) = kernels_of(weight_gradient(1, 3), x, ("bfloat16", 128, 64, 3, 3), y)
    packed = [b.shape for b in kernel.buffers if "packed" in b.name]
    assert sorted(packed) == [(4, pixels, pixels, 64), (4, pixels, pixels, 128)]
    assert "tl.dot" in render(kernel, target="sm_90").text


@pytest.mark.parametrize(("pixels", "window"), [(28, 5), (13, 7), (56, 3)])
def test_gradients_of_depthwise_weights_sum_planes(pixels: int, window: int) -> None:
    """A block has one weight, or a few, and goes through images; nothing is read by single rows."""
    x = ("bfloat16", 16, 72, pixels, pixels)
    (kernel,) = kernels_of(weight_gradient(72, window), x, ("bfloat16", 72, 1, window, window), x)
    assert blocks(kernel) >= 132
    lanes = [int(n) for n in re.findall(r"tl.arange\(0, (\d+)\)", render(kernel).text)]
    assert max(lanes) >= 128


def test_short_images_are_counted_through() -> None:
    """Of 5 by 5 pixels, which are stored one behind the other."""
    (kernel,) = kernels_of(lambda x: nn.avg_pool2d(x, 2, 2), ("bfloat16", 256, 512, 11, 11))
    (stored,) = [x for x in render(kernel).text.splitlines() if "tl.store" in x]
    assert "//" not in stored and "%" not in stored
    assert blocks(kernel) == 256 * 512 * 25 // 1024


@pytest.mark.parametrize("pixels", [28, 56, 112])
def test_windows_are_read_by_tiles_of_an_image(pixels: int) -> None:
    """Not by rows of several images, which share no pixel."""
    (kernel,) = kernels_of(
        lambda x: nn.max_pool2d(x, 3, 1, 1), ("bfloat16", 64, 64, pixels, pixels)
    )
    (phase,) = kernel.phases
    assert any(axis.extent in (64 * 64, 64) for axis in phase.grid)


def test_few_long_columns_are_cut_even_if_one_reduction_needs_another() -> None:
    found = kernels_of(lambda x: x.argmax(0), ("float32", 1 << 18, 512))
    assert len(found) == 2
    assert all(blocks(kernel) >= 132 for kernel in found)
    # Many columns keep the chip busy as they are, and are read once.
    assert len(kernels_of(lambda x: x.argmax(0), ("float32", 1 << 10, 1 << 14))) == 1


def test_each_thread_sums_columns_of_its_own_where_there_are_many() -> None:
    (kernel,) = kernels_of(lambda x: x.mean(1), ("float32", 64, 32, 257, 80))
    assert "tl.sum" not in render(kernel).text
    (few,) = kernels_of(lambda x: x.mean(1), ("float32", 1, 32, 257, 80))
    assert "tl.sum" in render(few).text


def gated(x: Any, w: Any, v: Any) -> Any:
    return nn.silu(nn.linear(x, w)) * nn.linear(x, v)


def test_a_gate_is_computed_by_the_kernel_of_its_product() -> None:
    shapes = ("bfloat16", 512, 1024), *[("bfloat16", 4096, 1024)] * 2
    gate, product = (render(kernel, target="sm_90").text for kernel in kernels_of(gated, *shapes))
    assert "exp(" in gate and "tl.dot" in gate
    assert "exp(" not in product and "tl.dot" in product


def test_a_product_that_others_need_is_stored_as_it_is() -> None:
    def both(x: Any, w: Any, v: Any) -> Any:
        gate = nn.linear(x, w)
        return nn.silu(gate) * nn.linear(x, v), gate

    shapes = ("bfloat16", 512, 1024), *[("bfloat16", 4096, 1024)] * 2
    found = kernels_of(both, *shapes)
    assert len(found) == 2
    assert sum(b.role is Role.OUTPUT for kernel in found for b in kernel.buffers) == 2


@pytest.mark.parametrize("size", [1021, 2049])
def test_uneven_rows_of_single_precision_are_made_even(size: int) -> None:
    shapes = ("float32", 2048, size), ("float32", 2048, size)
    kernel = kernels_of(lambda a, b: a @ b.mT, *shapes)[-1]
    text = render(kernel, target="sm_90").text
    loop = text[text.index("for ") : text.index("tl.dot")]
    assert "mask" not in loop


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_any_length_is_one_kernel(causal: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.scaled_dot_product_attention(q, k, v, is_causal=causal)

    (kernel,) = kernels_of(attend, *[("bfloat16", 2, 4, 2047, 64)] * 3)
    assert not any(b.role is Role.TEMPORARY for b in kernel.buffers)


def test_numbers_made_from_their_places_end_with_a_row() -> None:
    """Of a tile that is wider than rows, what is read is zero beyond; what is computed is not."""
    rows, keys, width, scale = 70, 37, 20, 1e-6

    def attend(v: Any) -> Any:
        q, k = (genesis.arange(n * width).reshape(n, width).float() for n in (rows, keys))
        return nn.scaled_dot_product_attention(q, k, v, scale=scale)

    (kernel,) = kernels_of(attend, ("float32", keys, width))
    q, k = (np.arange(n * width, dtype=np.float64).reshape(n, width) for n in (rows, keys))
    scores = q @ k.T * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    values = np.random.default_rng(0).standard_normal((keys, width), np.float32)
    result = np.zeros((rows, width), np.float32)
    interpret(kernel, {"a0": values, "y0": result, "p0": scale})
    np.testing.assert_allclose(
        result, weights / weights.sum(-1, keepdims=True) @ values, rtol=1e-4, atol=1e-4
    )


def test_two_heads_that_share_keys_are_no_pair_of_roles() -> None:
    """Heads of 256 features have tiles that no group could hold."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    q, kv = ("bfloat16", 1, 8, 384, 256), ("bfloat16", 1, 4, 384, 256)
    (kernel,) = kernels_of(attend, q, kv, kv)
    assert by_roles(kernel, "sm_90") is None


def test_quotients_are_exact_unless_they_are_rounded_to_16_bits() -> None:
    def text(function: Any, dtype: str) -> str:
        (kernel,) = kernels_of(function, (dtype, 64, 64))
        return render(kernel).text

    assert "div_rn" in text(nn.silu, "float32")
    assert "div_rn" not in text(nn.silu, "bfloat16")
    # What is compared, or added to something, shows all its digits.
    assert "div_rn" in text(lambda x: (x.float() / 3.1 < 0.5).to(x.dtype), "bfloat16")
    assert "div_rn" in text(lambda x: (x.float() / 3.1 - x).to(x.dtype), "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("act", ["silu", "gelu", "sigmoid", "tanh"])
def test_the_end_of_a_product_has_registers_enough(act: str) -> None:
    shapes = ("bfloat16", 12288, 1024), ("bfloat16", 1024, 1024), ("bfloat16", 1024)
    function = getattr(nn, act)
    (kernel,) = kernels_of(lambda x, w, b: function(nn.linear(x, w, b)), *shapes)
    source = request(kernel, "sm_90").source
    (compiled,) = compile(source, source.signature(), "sm_90").functions
    assert resources(compiled).spilled == 0


@pytest.mark.parametrize(("channels", "groups"), [(192, 8), (96, 2), (128, 16)])
def test_products_of_groups_are_for_matrix_units_whatever_an_axis_counts(
    channels: int, groups: int
) -> None:
    """The channels of a gradient count groups and the columns of one."""

    def gradients(x: Any, w: Any, grad: Any) -> Any:
        def forward(lib: Any, x: Any, w: Any) -> Any:
            return lib.nn.functional.conv2d(x, w, None, 1, 1, 1, groups)

        return with_gradients(genesis, forward, [x, w, grad])

    x = ("float16", 8, channels, 28, 28)
    found = kernels_of(gradients, x, ("float16", channels, channels // groups, 3, 3), x)
    products = [k for k in found if k.name == "contract"]
    assert len(products) == 2
    assert all("tl.dot" in render(k, target="sm_90").text for k in products)


def test_few_channels_are_normalised_by_many_blocks() -> None:
    def normalised(x: Any) -> Any:
        return genesis.functional.batch_norm(x, None, None, training=True)

    for channels in (72, 2000):
        found = kernels_of(normalised, ("bfloat16", 128, channels, 27, 27))
        assert blocks(found[0], 0) >= 264
        (sums,) = (s for s in found[0].phases[0].body if isinstance(s, Loop))
        assert len(sums.carried) == 2  # both sums of one pass
        # What is stored for every element, many blocks store, too.
        assert blocks(found[-1], len(found[-1].phases) - 1) >= 264


@pytest.mark.parametrize(("rows", "phases"), [(4000, 1), (64, 2)])
def test_rows_that_no_tile_holds_are_read_once_for_their_softmax(rows: int, phases: int) -> None:
    (kernel,) = kernels_of(lambda x: x.logsumexp(-1), ("bfloat16", rows, 50000))
    assert len(kernel.phases) == phases
    loops = [s for s in kernel.phases[0].body if isinstance(s, Loop)]
    assert len(loops) == 1 and len(loops[0].carried) == 2
    assert "associative_scan" not in render(kernel, target="sm_90").text


def test_windows_of_a_pool_are_loaded_at_once() -> None:
    for window, loops in ((2, 0), (3, 0), (7, 2)):
        (kernel,) = kernels_of(
            lambda x, n=window: nn.max_pool2d(x, n, n), ("float16", 8, 64, 63, 63)
        )
        assert sum(isinstance(s, Loop) for s in walk(kernel.phases[0].body)) == loops


@pytest.mark.parametrize(("head", "tiles"), [(80, {64, 16}), (96, {64, 32}), (112, {128})])
def test_heads_are_two_tiles_or_one(head: int, tiles: set[int]) -> None:
    """Forward and backward: what is past the end of a head is not multiplied."""
    attend: Any = genesis.functional.scaled_dot_product_attention
    shape = ("float16", 2, 4, 300, head)
    (kernel,) = kernels_of(lambda q, k, v: attend(q, k, v), shape, shape, shape)
    text = render(kernel, target="sm_90").text
    assert {int(n) for n in re.findall(r"[de]\w* = tl.arange\(0, (\d+)\)", text)} == tiles
    assert text.count("tl.dot") == 2 * len(tiles)


@pytest.mark.parametrize("shape", [(512, 1536), (48000, 1536), (64, 50304), (300, 70)])
def test_running_sums_of_columns_are_tiles(shape: tuple[int, int]) -> None:
    (kernel,) = kernels_of(lambda x: x.cumsum(0), ("float32", *shape))
    scans = [s for s in walk(kernel.phases[-1].body) if isinstance(s, Scan)]
    assert scans and all(s.axis.extent > 1 for s in scans)


@pytest.mark.parametrize(
    "special", [[0.0], [np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [-np.inf] * 40]
)
def test_powers_relative_to_the_greatest_so_far(special: list[float]) -> None:
    """One pass gives what two give, infinities and NaN too."""
    k = Builder("powers")
    x, top, sums = k.input("x", float32, 40), k.output("m", float32, 1), k.output("s", float32, 1)
    with k.loop("i", 40, ops.MAX, m=k.const(float("-inf"), float32)) as (i, m):
        k.step(m=elementwise(ops.MAX, m, x[i]))
    with k.loop("j", 40, ops.ADD, s=k.const(0.0, float32)) as (j, s):
        k.step(s=s + elementwise(ops.EXP, x[j] - m))
    k.store(top, (as_index(0),), m)
    k.store(sums, (as_index(0),), s)
    plain = k.kernel()
    (phase,) = plain.phases
    online = plain.with_phase(0, Phase(phase.grid, online_powers(phase.body)))
    assert sum(isinstance(s, Loop) for s in online.phases[0].body) == 1
    given = np.random.default_rng(1).standard_normal(40).astype(np.float32) * 30
    given[: len(special)] = special
    found = []
    for kernel in (plain, online, split_reduction(online, 7)):
        m, s = np.empty(1, np.float32), np.empty(1, np.float32)
        with np.errstate(all="ignore"):
            interpret(kernel, {"x": given, "m": m, "s": s})
        found.append([m[0], s[0]])
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], 1e-6)
