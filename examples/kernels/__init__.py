"""Kernels written by hand in the kernel IR: examples to read, and a test for every backend.

Each module explains one idea and has three functions: ``build(**options)`` gives the kernel,
``arguments(rng, **sizes)`` makes arguments for it by name, and ``reference(arguments)`` computes
what its outputs must be, in float64 with plain NumPy. `ALL` lists them in one form, with sizes to
try that include the awkward ones: empty, one element, one less and one more than a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from examples.kernels import (
    argmax,
    attention,
    block_scan,
    convolution,
    layer_norm_backward,
    mean,
    packed_gemm,
    scatter_add,
    softmax,
    split_k_matmul,
)
from genesis.ir.kernel import Kernel

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A kernel, how to make arguments for it, what it must compute, and sizes to try.

    Run ``build()`` on ``arguments(rng, **sizes)`` for every `sizes` in `cases`. Call `reference`
    before: it reads buffers that the kernel may overwrite, and gives the outputs by name.
    """

    build: Callable[[], Kernel]
    arguments: Callable[..., Arguments]
    reference: Callable[[Mapping[str, Any]], Arguments]
    cases: tuple[dict[str, int], ...]


_LAYER = {"channels": 3, "height": 9, "width": 8, "filters": 5}
_STRIDED = {"kernel": 3, "stride": 2, "padding": 1}
_LENGTHS = tuple({"N": n} for n in (1, 15, 16, 17, 63, 64, 65, 200))

# Blocks are small here, so that small arguments have several of them, and edges.
ALL: dict[str, Example] = {
    "packed_gemm": Example(
        partial(packed_gemm.build, row_block=12, column_block=128, depth_block=8),
        packed_gemm.arguments,
        packed_gemm.reference,
        (
            {"M": 12, "N": 128, "K": 16},
            {"M": 13, "N": 129, "K": 17},
            {"M": 5, "N": 63, "K": 7},
            {"M": 1, "N": 1, "K": 1},
            {"M": 7, "N": 65, "K": 0},
            {"M": 0, "N": 3, "K": 2},
        ),
    ),
    "softmax": Example(
        softmax.build,
        softmax.arguments,
        softmax.reference,
        (
            {"M": 3, "N": 16},
            {"M": 4, "N": 1},
            {"M": 2, "N": 15},
            {"M": 3, "N": 17},
            {"M": 2, "N": 100},
            {"M": 0, "N": 5},
            {"M": 2, "N": 0},
        ),
    ),
    "layer_norm_backward": Example(
        partial(layer_norm_backward.build, rows=3),
        layer_norm_backward.arguments,
        layer_norm_backward.reference,
        (
            {"M": 6, "N": 32},
            {"M": 7, "N": 33},
            {"M": 1, "N": 15},
            {"M": 4, "N": 2},
            {"M": 0, "N": 5},
        ),
    ),
    "attention": Example(
        attention.build,
        attention.arguments,
        attention.reference,
        ({"H": 2, "S": 32}, {"H": 1, "S": 17}, {"H": 3, "S": 1}, {"H": 1, "S": 15}),
    ),
    "causal_attention": Example(
        partial(attention.build, causal=True),
        attention.arguments,
        partial(attention.reference, causal=True),
        ({"H": 2, "S": 32}, {"H": 1, "S": 17}, {"H": 3, "S": 1}, {"H": 1, "S": 15}),
    ),
    "split_k_matmul": Example(
        partial(split_k_matmul.build, stretch=16),
        split_k_matmul.arguments,
        split_k_matmul.reference,
        (
            {"M": 4, "N": 16, "K": 64},
            {"M": 5, "N": 17, "K": 65},
            {"M": 1, "N": 1, "K": 15},
            {"M": 3, "N": 2, "K": 0},
        ),
    ),
    "block_scan": Example(
        partial(block_scan.build, tiles=2),
        block_scan.arguments,
        block_scan.reference,
        (*_LENGTHS, {"N": 600}, {"N": 0}),
    ),
    "scatter_add": Example(
        partial(scatter_add.build, rows=4),
        scatter_add.arguments,
        scatter_add.reference,
        (
            {"R": 8, "D": 16, "U": 20},
            {"R": 9, "D": 17, "U": 50},
            {"R": 1, "D": 3, "U": 6},
            {"R": 5, "D": 4, "U": 0},
        ),
    ),
    "convolution": Example(
        partial(convolution.build, **_LAYER),
        partial(convolution.arguments, **_LAYER),
        convolution.reference,
        ({"B": 1}, {"B": 2}, {"B": 0}),
    ),
    "strided_padded_convolution": Example(
        partial(convolution.build, **_LAYER, **_STRIDED),
        partial(convolution.arguments, **_LAYER, **_STRIDED),
        partial(convolution.reference, stride=2, padding=1),
        ({"B": 1}, {"B": 3}),
    ),
    "argmax": Example(argmax.build, argmax.arguments, argmax.reference, _LENGTHS),
    "mean": Example(partial(mean.build, tiles=2), mean.arguments, mean.reference, _LENGTHS),
}

__all__ = ["ALL", "Arguments", "Example"]
