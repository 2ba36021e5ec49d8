"""One operator per case: what a graph of many operations cannot make up for by fusing.

Both contenders are given the same function, in terms of their own names for it. Sizes of results
that depend on data cannot be recorded by `genesis.jit`; those cases run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import Arrays, Case, Draw, Maker, Random, Work, normal

M = 1 << 20


def operator(
    name: str,
    genesis: Callable[..., Any],
    torch: Callable[..., Any],
    draw: Draw,
    goal: float | None = None,
    jit: bool = True,
) -> Case:
    """A case of two functions, which take the contender's module first and then arrays."""
    return Case(name, (), _genesis(genesis, jit), _torch(torch), goal=goal, draw=draw)


def _genesis(function: Callable[..., Any], jit: bool) -> Maker:
    def make(arrays: Arrays) -> Work:
        import genesis
        from genesis import ndarray as nd

        inputs = [nd.array(a) for a in arrays]
        if jit:
            compiled = genesis.jit(lambda *xs: function(nd, *xs))
            return lambda: compiled(*inputs)

        def work() -> Any:
            found = function(nd, *inputs)
            nd.realize(*(found if isinstance(found, tuple) else (found,)))
            return found

        return work

    return make


def _torch(function: Callable[..., Any]) -> Maker:
    def make(arrays: Arrays) -> Work:
        import torch

        inputs = [torch.from_numpy(a) for a in arrays]
        return lambda: function(torch, *inputs)

    return make


def _definite(rng: Random, n: int = 256) -> list[Any]:
    x = rng.standard_normal((n, n), np.float32)
    return [x @ x.T + n * np.eye(n, dtype=np.float32), rng.standard_normal((n, 16), np.float32)]


def _scattered(rng: Random) -> list[Any]:
    return [rng.integers(0, 100_000, 4 * M), rng.standard_normal(4 * M, np.float32)]


def _searched(rng: Random) -> list[Any]:
    return [np.sort(rng.standard_normal(100_000, np.float32)), rng.standard_normal(M, np.float32)]


def _sampled(rng: Random) -> list[Any]:
    grid = rng.uniform(-1.1, 1.1, (8, 64, 64, 2)).astype(np.float32)
    return [rng.standard_normal((8, 32, 64, 64), np.float32), grid]


def _complex(rng: Random) -> list[Any]:
    return [(rng.standard_normal(M) + 1j * rng.standard_normal(M)).astype(np.complex64)]


_IMAGES = normal((16, 64, 112, 112))
_SMALL = normal((8, 64, 56, 56))

OPERATORS: list[Case] = [
    operator("sort 64x32000", lambda nd, x: tuple(nd.sort(x, -1)),
             lambda torch, x: torch.sort(x, -1), normal((64, 32_000)), 0.9),
    operator("topk(50) 64x32000", lambda nd, x: tuple(nd.topk(x, 50)),
             lambda torch, x: torch.topk(x, 50), normal((64, 32_000)), 0.9),
    operator("unique, 4M of 1M integers", lambda nd, x: nd.unique(x),
             lambda torch, x: torch.unique(x), lambda rng: [rng.integers(0, M, 4 * M)], 0.9,
             jit=False),
    operator("cumsum, 4M", lambda nd, x: nd.cumsum(x, 0), lambda torch, x: torch.cumsum(x, 0),
             normal((4 * M,)), 0.9),
    operator("cummax, 4M", lambda nd, x: tuple(nd.cummax(x, 0)),
             lambda torch, x: torch.cummax(x, 0), normal((4 * M,))),
    operator("scatter-add, 4M into 100k",
             lambda nd, i, x: nd.scatter_add(nd.zeros(100_000), i, x),
             lambda torch, i, x: torch.zeros(100_000).scatter_add_(0, i, x), _scattered, 0.9),
    operator("gather, 4M of 4M", lambda nd, i, x: nd.take(x, i),
             lambda torch, i, x: torch.take(x, i), _scattered),
    operator("searchsorted, 1M in 100k", lambda nd, e, x: nd.searchsorted(e, x),
             lambda torch, e, x: torch.searchsorted(e, x), _searched),
    operator("nonzero, 4M", lambda nd, x: nd.nonzero(x > 1), lambda torch, x: torch.nonzero(x > 1),
             normal((4 * M,)), jit=False),
    operator("max pooling 3x3, stride 2, 16x64x112x112",
             lambda nd, x: nd.max_pool2d(x, 3, 2, 1),
             lambda torch, x: torch.max_pool2d(x, 3, 2, 1), _IMAGES),
    operator("average pooling 2x2, 16x64x112x112", lambda nd, x: nd.avg_pool2d(x, 2),
             lambda torch, x: torch.nn.functional.avg_pool2d(x, 2), _IMAGES),
    operator("adaptive average pooling 50 to 7, 16x64x50x50",
             lambda nd, x: nd.adaptive_avg_pool2d(x, 7),
             lambda torch, x: torch.nn.functional.adaptive_avg_pool2d(x, 7),
             normal((16, 64, 50, 50))),
    operator("bilinear interpolation 56 to 112, 8x64x56x56",
             lambda nd, x: nd.interpolate(x, 112, mode="bilinear"),
             lambda torch, x: torch.nn.functional.interpolate(x, 112, mode="bilinear"), _SMALL),
    operator("transposed convolution 4x4, stride 2, 8x64x32x32",
             lambda nd, x, w: nd.conv_transpose2d(x, w, stride=2, padding=1),
             lambda torch, x, w: torch.conv_transpose2d(x, w, stride=2, padding=1),
             normal((8, 64, 32, 32), (64, 64, 4, 4))),
    operator("depthwise convolution 3x3, 16x128x56x56",
             lambda nd, x, w: nd.conv2d(x, w, padding=1, groups=128),
             lambda torch, x, w: torch.conv2d(x, w, padding=1, groups=128),
             normal((16, 128, 56, 56), (128, 1, 3, 3))),
    operator("grid_sample bilinear, 8x32x64x64", lambda nd, x, g: nd.grid_sample(x, g),
             lambda torch, x, g: torch.nn.functional.grid_sample(x, g, align_corners=False),
             _sampled),
    operator("FFT, 1M", lambda nd, x: nd.fft.fft(x), lambda torch, x: torch.fft.fft(x), _complex),
    operator("sum, 1M complex", lambda nd, x: nd.sum(x), lambda torch, x: torch.sum(x), _complex),
    operator("QR 256", lambda nd, x, b: tuple(nd.linalg.qr(x))[::-1],
             lambda torch, x, b: tuple(torch.linalg.qr(x))[::-1], _definite),
    operator("SVD 256", lambda nd, x, b: tuple(nd.linalg.svd(x))[1:],
             lambda torch, x, b: tuple(torch.linalg.svd(x))[1:], _definite),
    operator("solve 256", lambda nd, x, b: nd.linalg.solve(x, b),
             lambda torch, x, b: torch.linalg.solve(x, b), _definite),
]  # fmt: skip


def _same_name(name: str, special: bool = False) -> Case:
    """A function that both have under one name, of a million numbers from its domain."""

    def theirs(torch: Any, x: Any) -> Any:
        return getattr(torch.special if special else torch, name)(x)

    def draw(rng: Random) -> list[Any]:
        low, high = {"acosh": (1.0, 9.0)}.get(name, (0.01, 0.99))
        return [rng.uniform(low, high, M).astype(np.float32)]

    return operator(f"{name}, 1M", lambda nd, x: getattr(nd, name)(x), theirs, draw)


OPERATORS += [
    _same_name(name)
    for name in (
        "exp", "exp2", "expm1", "log", "log1p", "log10", "sin", "cos", "tan", "tanh", "sinh",
        "asin", "atan", "asinh", "acosh", "erf", "erfc", "erfinv", "lgamma", "digamma",
    )
] + [_same_name("i0e", special=True), _same_name("ndtri", special=True)]  # fmt: skip
