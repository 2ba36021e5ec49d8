"""The memory a program takes is known before it runs."""

from __future__ import annotations

import pytest

import genesis
from genesis import memory
from genesis import ndarray as nd
from genesis.backends.cpu.runtime.memory import size_class


def mlp(x, a, b):
    return nd.relu(x @ a) @ b


def norm_and_product(x, a, b):
    shifted = x - x.mean(axis=1, keepdims=True)
    return (shifted @ a).sum(axis=0), nd.softmax(shifted, -1)


@pytest.mark.parametrize("function", [mlp, norm_and_product])
def test_a_run_takes_what_was_predicted(function) -> None:
    arguments = [nd.ones((256, 512)), nd.ones((512, 1024)), nd.ones((1024, 512))]
    nd.realize(*arguments)
    report = genesis.explain(function, *arguments)
    step = genesis.jit(function)
    step(*arguments)
    memory.trim()
    before = memory.stats()
    results = step(*arguments)
    after = memory.stats()
    kept = sum(
        size_class(int(r.nbytes)) for r in (results if isinstance(results, tuple) else [results])
    )
    assert after.live_bytes - before.live_bytes == kept
    # Blocks are rounded to their size class; the temporaries are one block.
    peak = report.peak_bytes - report.temporary_bytes
    assert peak <= kept < peak * 1.3
    freed = after.cached_bytes - before.cached_bytes
    assert freed == (size_class(report.temporary_bytes) if report.temporary_bytes else 0)


def test_temporaries_share_a_block() -> None:
    def chain(x):
        for _ in range(6):
            x = nd.softmax(x @ x, -1)
        return x

    report = genesis.explain(chain, nd.ones((128, 128)))
    one = 128 * 128 * 4
    assert len(report.kernels) >= 6
    assert report.temporary_bytes <= 4 * one  # two values alive at a time, and the packed operand
