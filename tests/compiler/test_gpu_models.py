"""What GPUs get of whole models: kernels for decoding with few rows, and for training in 16 bits.

Without a GPU: kernels are scheduled, proven, rendered, and some are compiled.
"""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis import functional
from genesis.backends.gpu.binary import made, request, unaligned
from genesis.backends.gpu.codegen.render import render
from genesis.backends.gpu.compile import compile
from genesis.compress import QuantizedTensor
from genesis.ir.kernel import Kernel, Let, Reduce, as_index
from tests.compiler.test_gpu_schedule import kernels_of


def linear(format: str, width: int) -> Any:
    """A product with quantised weights of which only the bytes are given."""

    def product(x: Any, values: Any) -> Any:
        return QuantizedTensor(values, (4096, width), format).linear(x)

    return product


def quantised(format: str, rows: int = 1, width: int = 1024) -> Kernel:
    """The kernel that reads the weights."""
    size = {"int8": 1024 + 64, "int4": 512 + 64}[format]
    shapes = ("float32", rows, width), ("uint8", 128, width // 32, size)
    found = kernels_of(linear(format, width), *shapes)
    return max(found, key=lambda k: sum(b.dtype is genesis.uint8 for b in k.buffers))


@pytest.mark.parametrize("format", ["int8", "int4"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quantised_weights_are_read_as_words(
    format: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genesis.Tensor, "device", device)
    kernel = quantised(format)
    monkeypatch.undo()
    wanted = request(kernel, "sm_90")
    name, code = {
        "cpu": ("four_products", "dp4a.s32.u32"), "cuda": ("four_signed_products", "dp4a.s32.s32")
    }[device]  # fmt: skip
    assert wanted.source.text.count(f"= {name}(") == 8
    (function,) = compile(wanted.source, wanted.signature(), "sm_90").functions
    assert code in function.assembly and "ld.global.v4" in function.assembly
    # Memory that begins anywhere has no words, and neither have other chips.
    assert name not in unaligned(made(wanted)).source.text
    assert name not in render(kernel, target="gfx942").text


@pytest.mark.parametrize(("rows", "width", "turns"), [(1, 1024, 1), (1, 4096, 2), (5, 1024, 4)])
def test_weights_are_on_their_way_before_a_kernel_waits(rows: int, width: int, turns: int) -> None:
    kernel = quantised("int4", rows, width)
    source = request(kernel, "sm_90").source
    ((weights,),) = source.ahead
    assert kernel.buffers[weights].dtype is genesis.uint8
    before, after = source.text.split("gdc_wait()")
    assert before.count("= tl.load(") == 4 + 2  # quadruples and scales
    # Those of a turn of the loop come before the last one's are used.
    *loaded, last = after.split("sum0 = ")
    assert len(loaded) == turns and f"a{weights}_ptr" not in last
    assert [t.count(f"a{weights}_ptr") for t in loaded] == [6] * (turns - 1) + [0]
    # A chip that knows nothing of it starts one kernel after the other.
    assert "gdc" not in render(kernel, target="sm_80").text


def test_norms_and_gates_are_computed_where_activations_are_quantised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def network(x: Any, scale: Any, up: Any, down: Any) -> Any:
        normal = functional.rms_norm(x, (1024,), scale)
        both = QuantizedTensor(up, (4096, 1024), "int8").linear(normal)
        gate, wide = functional.chunk(both, 2, -1)
        gated = functional.silu(gate) * wide
        return x + QuantizedTensor(down, (1024, 2048), "int8").linear(gated)

    monkeypatch.setattr(genesis.Tensor, "device", "cuda")
    shapes = ("uint8", 128, 32, 1088), ("uint8", 32, 64, 1088)
    kernels = kernels_of(network, ("float32", 1, 1024), ("float32", 1024), *shapes)
    # Each product, and before it what gives its bytes: each block sums the squares of the row.
    assert [any(b.dtype is genesis.uint8 for b in k.buffers) for k in kernels] == [0, 1, 0, 1]
    (phase,) = kernels[0].phases
    assert sum(isinstance(s, Reduce) for s in phase.body) == 2


@pytest.mark.parametrize(("rows", "tiles"), [(5, 1), (20, 3)])
def test_rows_share_the_words_of_quantised_weights(rows: int, tiles: int) -> None:
    (phase,) = quantised("int8", rows).phases
    blocks = 1
    for axis in phase.grid:
        blocks *= int(as_index(axis.extent).attr)
    assert blocks == tiles * 4096 // 32


def test_floats_are_made_of_codes_where_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genesis.Tensor, "device", "cuda")
    shapes = ("bfloat16", 512, 1024), ("uint8", 128, 32, 576)
    *_, floats, product = kernels_of(linear("int4", 1024), *shapes)
    assert [b.dtype.name for b in product.buffers] == ["bfloat16"] * 3
    # A block reads what lies together, a group of its rows, and writes rows.
    assert "tl.arange(0, 32)" in render(floats).text and "// 32" not in str(floats.phases[0].grid)


def test_what_is_added_to_a_sum_is_loaded_before_it() -> None:
    def residual(x: Any, w: Any, y: Any) -> Any:
        return y + functional.linear(x, w)

    shapes = ("bfloat16", 1, 4096), ("bfloat16", 4096, 4096), ("bfloat16", 1, 4096)
    (kernel,) = kernels_of(residual, *shapes)
    (phase,) = kernel.phases
    assert isinstance(phase.body[0], Let) and phase.body[0].local.name == "early0"
    assert any(isinstance(s, Reduce) for s in phase.body[1:])


def test_few_queries_share_their_keys_among_blocks() -> None:
    def decoded(q: Any, k: Any, v: Any, position: Any) -> Any:
        past = genesis.arange(k.shape[1]) <= position[:, None]
        return functional.scaled_dot_product_attention(q, k, v, past, enable_gqa=True)

    cache = ("bfloat16", 8, 4096, 128)
    *_, kernel = kernels_of(decoded, ("bfloat16", 32, 1, 128), cache, cache, ("int64", 1))
    first, second = kernel.phases
    assert [a.extent for a in first.grid] == [8, 64, 1]
    assert [a.extent for a in second.grid] == [8, 4]


def test_attention_under_autocast_multiplies_16_bit_numbers() -> None:
    def mixed(x: Any, w: Any, b: Any) -> Any:
        with genesis.amp.autocast("cuda", dtype=genesis.bfloat16):
            y = functional.linear(x, w, b).reshape(2, 256, 3, 4, 64)
            return functional.scaled_dot_product_attention(*y.permute(2, 0, 3, 1, 4))

    shapes = ("float32", 2, 256, 256), ("float32", 768, 256), ("float32", 768)
    text = render(kernels_of(mixed, *shapes)[-1]).text
    assert text.count("tl.dot(") == 2 and "bf16x6" not in text


def test_gradients_of_convolutions_keep_the_chip_busy() -> None:
    def gradient(x: Any, g: Any) -> Any:
        return functional.einsum("noyx,ncyx->oc", g, x)

    image = ("bfloat16", 32, 64, 56, 56)
    *_, kernel = kernels_of(gradient, image, image)
    blocks = 1
    for axis in kernel.phases[-2].grid:
        blocks *= int(as_index(axis.extent).attr)
    assert blocks >= 32
