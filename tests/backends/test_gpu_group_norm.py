"""Sums over groups of channels on GPUs: rows that lie in memory in pieces, or in one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import genesis
from benchmarks.sweep_cases import with_gradients
from genesis import ndarray as nd
from genesis.compiler.fuse import access_patterns
from genesis.compiler.graph.gpu import shifted_variance
from genesis.compiler.schedule.gpu import rows
from tests.interpreted_cuda import passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: What takes long by the interpreter.
SLOW = [pytest.mark.slow] if INTERPRETED else []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU whose rows are long, and cut into chunks, when they have hundreds of elements."""
    monkeypatch.setattr(rows, "ROW", 512)
    monkeypatch.setattr(rows, "CHUNK", 256)
    monkeypatch.setattr(access_patterns, "ROW", 512)
    monkeypatch.setattr(shifted_variance, "ROW", 512)
    with nd.on_device("cuda"):
        yield


def expected(x: Any, w: Any, b: Any, grad: Any, groups: int) -> tuple[Any, ...]:
    """The gradients of a group norm, and its result, in double precision."""
    x, w, b, grad = (a.astype(np.float64) for a in (x, w, b, grad))
    along = tuple(range(2, x.ndim))
    parted = x.shape[0], groups, -1, *x.shape[2:]
    axes = tuple(range(2, x.ndim + 1))
    grouped = x.reshape(parted)
    deviation = np.sqrt(grouped.var(axes, keepdims=True) + 1e-5)
    even = (grouped - grouped.mean(axes, keepdims=True)) / deviation
    wide = w.reshape(1, -1, *(1 for _ in along))
    inner = (grad * wide).reshape(parted)
    of_even = (inner * even).mean(axes, keepdims=True)
    dx = (inner - inner.mean(axes, keepdims=True) - even * of_even) / deviation
    even, dx = even.reshape(x.shape), dx.reshape(x.shape)
    shift = b.reshape(wide.shape)
    summed = (0, *along)
    return dx, (grad * even).sum(summed), grad.sum(summed), even * wide + shift


#: Images, channels, groups, pixels: groups of 3, 5, 8 channels, odd planes, rows of one tile, long
#: ones, of which there are few or many, and a group of all.
CASES = [
    (2, 6, 2, (7, 9)),
    (2, 24, 8, (31, 33)),
    (1, 24, 8, (23, 17)),
    (1, 15, 3, (27, 13)),
    (1, 16, 2, (11, 13)),
    (3, 64, 8, (5, 6)),
    (1, 40, 1, (9, 11)),
    (20, 8, 1, (3, 5)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("images", "channels", "groups", "pixels"), CASES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=SLOW)])
def test_group_norms_and_their_gradients(
    gpu: None, dtype: str, images: int, channels: int, groups: int, pixels: Any, last: bool
) -> None:
    random = np.random.default_rng(channels)
    shape = (images, channels, *pixels)
    x, grad = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    x += 3 * random.standard_normal((1, channels, 1, 1)).astype(np.float32)
    w, b = (random.standard_normal(channels).astype(np.float32) for _ in range(2))
    kind = getattr(genesis, dtype)
    exact = [genesis.tensor(a).to(kind).float().cpu().numpy() for a in (x, grad)]
    x, grad = exact

    def results(x: Any, w: Any, b: Any, grad: Any) -> Any:
        def forward(lib: Any, x: Any, w: Any, b: Any) -> Any:
            x = x.permute(0, 3, 1, 2) if last else x
            made.append(lib.nn.functional.group_norm(x, groups, w, b))
            return made[-1]

        made: list[Any] = []
        return (*with_gradients(genesis, forward, [x, w, b, grad]), made[0].detach())

    laid = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    inputs = genesis.tensor(laid).to(kind), genesis.tensor(w), genesis.tensor(b)
    found = genesis.jit(results)(*inputs, genesis.tensor(grad).to(kind))
    dx, *others = (a.float().cpu().numpy() for a in found)
    dx = dx.transpose(0, 3, 1, 2) if last else dx
    for got, want in zip((dx, *others), expected(x, w, b, grad, groups), strict=True):
        bound = (1e-5 if dtype == "float32" else 1e-2) * max(1.0, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.gpu
@pytest.mark.parametrize(("images", "channels", "groups", "pixels"), CASES)
def test_group_norms_between_convolutions(
    gpu: None, images: int, channels: int, groups: int, pixels: Any
) -> None:
    """Which leave their channels last in memory: as in double precision on the CPU."""
    random = np.random.default_rng(channels)
    shape = (images, channels, *pixels)
    shapes = shape, (channels, channels, 1, 1), (channels,), (channels,), (channels,) * 2 + (1, 1)
    arrays = [random.standard_normal(s).astype(np.float32) for s in (*shapes, shape)]

    def results(*arrays: Any) -> Any:
        def forward(lib: Any, x: Any, w: Any, scale: Any, shift: Any, v: Any) -> Any:
            f = lib.nn.functional
            y = f.group_norm(f.conv2d(x, w), groups, scale, shift)
            return f.conv2d(f.silu(y), v)

        return with_gradients(genesis, forward, list(arrays))

    found = genesis.jit(results)(*map(genesis.tensor, arrays))
    with nd.on_device("cpu"):
        wanted = results(*(genesis.tensor(a.astype(np.float64)) for a in arrays))
    for got, want in zip(found, wanted, strict=True):
        exact = want.numpy()
        assert exact.dtype == np.float64
        np.testing.assert_allclose(
            got.cpu().numpy(), exact, rtol=0, atol=1e-5 * np.abs(exact).max()
        )


@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__, "gpu and not slow")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="runs the others so")
@pytest.mark.timeout(1800)
def test_the_rest_by_the_interpreter() -> None:
    passes(__file__, "gpu and slow")
