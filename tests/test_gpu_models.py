"""What GPUs get of whole models: kernels for decoding with few rows, and for training in 16 bits.

Without a GPU: kernels are scheduled, proven, rendered, and some are compiled.
"""

from __future__ import annotations

from typing import Any

import pytest

import genesis
from genesis import functional
from genesis.backends.cuda.binary import made, request, unaligned
from genesis.backends.cuda.compile import compile
from genesis.backends.cuda.render import render
from genesis.ir.kernel import Kernel, Let, Reduce, as_index
from genesis.quantization import QuantizedTensor
from tests.test_gpu_schedule import kernels_of


def linear(format: str) -> Any:
    """A product with quantised weights of which only the bytes are given."""

    def product(x: Any, values: Any) -> Any:
        return QuantizedTensor(values, (4096, 1024), format).linear(x)

    return product


def quantised(format: str, rows: int = 1) -> Kernel:
    """The kernel that reads the weights."""
    size = {"int8": 1024 + 64, "int4": 512 + 64}[format]
    found = kernels_of(linear(format), ("float32", rows, 1024), ("uint8", 128, 32, size))
    return max(found, key=lambda k: sum(b.dtype is genesis.uint8 for b in k.buffers))


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_quantised_weights_are_read_as_words(format: str) -> None:
    kernel = quantised(format)
    wanted = request(kernel, "sm_90")
    assert wanted.source.text.count("= four_products(") == 8
    (function,) = compile(wanted.source, wanted.signature(), "sm_90").functions
    assert "dp4a.s32.u32" in function.assembly and "ld.global.v4" in function.assembly
    # Memory that begins anywhere has no words, and neither have other chips.
    assert "four_products" not in unaligned(made(wanted)).source.text
    assert "four_products" not in render(kernel, target="gfx942").text


def test_rows_share_the_words_of_quantised_weights() -> None:
    (phase,) = quantised("int8", rows=20).phases
    blocks = 1
    for axis in phase.grid:
        blocks *= int(as_index(axis.extent).attr)
    assert blocks == 3 * 4096 // 32


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
    assert [a.extent for a in first.grid] == [8, 32, 1]
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
