"""Programs down columns: every pass over memory is a phase of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis.backends.base import Chip
from genesis.compiler.schedule import schedule
from genesis.ir.kernel import Kernel
from genesis.ndarray.tracing.explain import explain
from tests.compiler.test_schedule import CHIPS, check_step

#: More than the caches of a core, with rows and columns that end inside of tiles.
SHAPE = (2101, 1031)


def standardised(lib: Any, x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def softmax(lib: Any, x: Any) -> Any:
    return lib.softmax(x, 0)


def with_sums(lib: Any, x: Any) -> Any:
    total = x.sum(0)
    away = x - total / x.shape[0]
    return away * lib.exp(-away.abs().amax(0)), total, away.abs().sum(0)


def normalised(lib: Any, x: Any) -> Any:
    x = x.detach().requires_grad_()
    weight = (x[7] * 2).detach().requires_grad_()
    out = lib.nn.functional.batch_norm(x, None, None, weight, weight * 0, True)
    return (out.detach(), *lib.autograd.grad(out, [x, weight], (x * x).detach()))


@pytest.mark.parametrize("function", (standardised, softmax, with_sums, normalised))
def test_columns(function: Callable[[Any, Any], Any], rng: np.random.Generator) -> None:
    x = (rng.standard_normal(SHAPE) + 3).astype(np.float32)
    ours = genesis.jit(lambda x: function(genesis, x))(genesis.tensor(x))
    theirs = function(torch, torch.from_numpy(x.astype(np.float64)))
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for got, want in pairs:
        scale = float(want.abs().max())
        np.testing.assert_allclose(got.numpy(), want.numpy(), 2e-4, 1e-5 * scale)


def mean_of_runs(lib: Any, x: Any) -> Any:
    return x.reshape(11, -1, 10).mean((0, 2))


def norm_of_runs(lib: Any, x: Any) -> Any:
    x = x.reshape(11, -1, 5, 2)
    away = x - x.mean((0, 2, 3), keepdim=True)
    return away * (away * x).sum((0, 2, 3), keepdim=True), away.amax((0, 2, 3))


def running(lib: Any, x: Any) -> Any:
    return lib.cumsum(x, 0)


@pytest.mark.parametrize("shape", [(33, 20), (22, 35)])
@pytest.mark.parametrize(
    "function", (standardised, softmax, with_sums, normalised, mean_of_runs, norm_of_runs, running)
)
def test_small_caches(
    function: Callable[[Any, Any], Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules of large arrays, for small ones, on the interpreter."""
    plain: list[Kernel] = []

    def noted(kernel: Kernel, chip: Chip) -> Kernel:
        plain.append(kernel)
        return schedule(kernel, chip)

    monkeypatch.setattr("genesis.compiler.build.schedule", noted)
    monkeypatch.setattr("genesis.compiler.build._built", {})
    monkeypatch.setenv("GENESIS_CACHE", "off")
    genesis.jit(lambda x: function(genesis, x))(genesis.tensor(np.zeros(shape, np.float32)))
    rules = "genesis.compiler.schedule.cpu"
    for place in ("column_reductions", "merged_variance", "strided_rows"):
        monkeypatch.setattr(f"{rules}.{place}.LEAST", 3)
    if function is not norm_of_runs:
        monkeypatch.setattr(f"{rules}.strided_rows.SHORT_RUN", 3)
    for place in ("column_reductions", "merged_variance"):
        monkeypatch.setattr(f"{rules}.{place}.ROWS", 8)
    for chip in (replace(c, l1_bytes=128, l2_bytes=256) for c in CHIPS):
        for kernel in plain:
            check_step(kernel, schedule(kernel, chip))
    assert plain


def relu_of_norm(lib: Any, x: Any) -> Any:
    """A batch norm of images behind a ReLU, and its gradients."""
    x = x.detach().requires_grad_()
    weight = (x[0, :, 0, 0] * 2).detach().requires_grad_()
    out = lib.nn.functional.batch_norm(x.relu(), None, None, weight, weight * 0, True)
    return (out.detach(), *lib.autograd.grad(out, [x, weight], (x * x).detach()))


def of_channels(lib: Any, x: Any) -> Any:
    return x.sum((0, 2, 3)), x.amax((0, 2, 3)), x.var((0, 2, 3))


#: Few images and many, planes shorter than a vector and longer than a cache, some with a tail.
IMAGES = [
    (9, 5, 4, 4), (7, 3, 5, 5), (6, 2, 2, 2), (300, 7, 3, 3), (1030, 2, 9, 9), (4, 3, 80, 81),
    (12, 600, 1, 3), (40, 2, 65, 64),
]  # fmt: skip


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("function", (relu_of_norm, of_channels))
def test_channels(
    function: Callable[[Any, Any], Any], shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    x = (rng.standard_normal(shape) + 1).astype(np.float32)
    ours = genesis.jit(lambda x: function(genesis, x))(genesis.tensor(x))
    theirs = function(torch, torch.from_numpy(x.astype(np.float64)))
    for got, want in zip(ours, theirs, strict=True):
        scale = float(want.abs().max())
        np.testing.assert_allclose(got.numpy(), want.numpy(), 2e-4, 1e-5 * scale)


def test_channels_are_read_in_order() -> None:
    """Sums over channels of short runs keep a state for each place of a run, and end before y."""

    def gradient(g: Any, x: Any) -> Any:
        total = (g * x).sum((0, 2, 3), keepdim=True)
        return g - x * total

    x = genesis.tensor(np.zeros((64, 32, 8, 8), np.float32))
    (kernel,) = explain(genesis.jit(gradient), x, x).kernels
    summing, writing = kernel.scheduled.split("barrier")
    assert "stage state0: float32[8, 64]" in summing and "y0[" in writing
    x = genesis.tensor(np.zeros((4, 8, 64, 64), np.float32))
    (kernel,) = explain(genesis.jit(gradient), x, x).kernels
    assert "barrier" not in kernel.scheduled, "long runs are as good as a row in one piece"


def test_a_pass_is_a_phase() -> None:
    x = genesis.tensor(np.zeros(SHAPE, np.float32))
    (kernel,) = explain(genesis.jit(lambda x: softmax(genesis, x)), x).kernels
    *reducing, writing = kernel.scheduled.split("barrier")
    assert len(reducing) >= 2 and "exp(" in writing
    assert all("y0[" not in phase for phase in reducing)
    (kernel,) = explain(genesis.jit(lambda x: standardised(genesis, x)), x).kernels
    *_, writing = kernel.scheduled.split("barrier")
    assert "sqrt" not in writing, "what is the same for a column is computed once"
