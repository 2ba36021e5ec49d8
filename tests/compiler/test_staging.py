"""Operands that a block copies for itself: rows of a transposed matrix, columns of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.compiler.schedule.cpu.contraction.contraction import contract
from genesis.compiler.verify.kernel import verify
from genesis.ir.check import check
from genesis.ir.kernel import Kernel, Stage, walk
from genesis.ndarray import NDArray
from tests.compiler.test_schedule import CHIPS, run
from tests.compiler.test_schedule_convolution import plain, zeros

#: Small caches, so that small operands do not fit.
NARROW = replace(CHIPS[0], l2_bytes=1 << 7)
WIDE = replace(CHIPS[1], l2_bytes=1 << 7)


def transposed(m: int, k: int, n: int) -> Callable[[], NDArray]:
    return lambda: nd.matmul(zeros(k, m).T, zeros(k, n))


def images(channels: int, out: int, pixels: int) -> Callable[[], NDArray]:
    return lambda: nd.convolution(zeros(2, channels, 1, pixels), zeros(out, channels, 1, 1))


def copied(
    product: Callable[[], NDArray], alone: int, chip: Chip = NARROW
) -> tuple[Kernel, Kernel]:
    """A product as it is, and scheduled as if it were large and so many blocks were enough."""
    kernel, found = plain(product)
    with pytest.MonkeyPatch.context() as patch:
        contraction = "genesis.compiler.schedule.cpu.contraction.contraction"
        patch.setattr(f"{contraction}.PACK_ROWS", 2)
        patch.setattr(f"{contraction}.BLOCKS", 1)
        patch.setattr(f"{contraction}.ALONE", alone)
        patch.setattr("genesis.compiler.schedule.cpu.contraction.staging.APART", 4)
        after = contract(kernel, found, chip)
    return kernel, after


def stages(kernel: Kernel) -> dict[str, tuple[object, ...]]:
    *_, computing = kernel.phases
    return {s.buffer.name: s.buffer.shape for s in walk(computing.body) if isinstance(s, Stage)}


def same(kernel: Kernel, after: Kernel) -> None:
    check(after)
    assert verify(after).proven, str(after)
    for want, got in zip(run(kernel), run(after, "shuffle"), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5, err_msg=str(after))


@pytest.mark.parametrize("chip", (NARROW, WIDE), ids=("narrow", "wide"))
@pytest.mark.parametrize("m, k, n", [(16, 12, 16), (13, 20, 9), (37, 3, 20)])
def test_rows_are_copied(m: int, k: int, n: int, chip: Chip) -> None:
    kernel, after = copied(transposed(m, k, n), 1 << 10, chip)
    assert "copy" in stages(after)
    same(kernel, after)


@pytest.mark.parametrize("chip", (NARROW, WIDE), ids=("narrow", "wide"))
@pytest.mark.parametrize("channels, out, pixels", [(4, 8, 40), (6, 5, 67), (20, 3, 48)])
def test_columns_are_copied(channels: int, out: int, pixels: int, chip: Chip) -> None:
    kernel, after = copied(images(channels, out, pixels), 1, replace(chip, l1_bytes=1))
    assert "copy" in stages(after)
    same(kernel, after)
    kernel, after = copied(images(channels, out, pixels), 1, replace(chip, l1_bytes=32 << 10))
    assert "copy" not in stages(after), "what stays in the first cache is read where it lies"
    same(kernel, after)


def test_what_is_copied() -> None:
    _, after = copied(transposed(23, 40, 33), 1 << 10)
    assert len(after.phases) == 2, "the other factor is packed for everybody"
    assert set(stages(after)) == {"sums", "copy"}, "a long sum, in chunks"
    _, after = copied(images(4, 8, 67), 1)
    assert len(after.phases) == 1, "a block has all rows, so nobody else needs its columns"


def test_what_is_read_in_order_or_fits_the_cache_is_not_copied() -> None:
    _, after = copied(lambda: nd.matmul(zeros(23, 40), zeros(40, 33)), 1 << 10)
    assert "copy" not in stages(after)
    _, after = copied(transposed(23, 40, 33), 1 << 10, CHIPS[1])
    assert "copy" not in stages(after)


@pytest.mark.parametrize("first", (False, True))
@pytest.mark.parametrize("second", (False, True))
def test_large_products_with_transposed_factors(first: bool, second: bool) -> None:
    rng = np.random.default_rng(0)
    m, k, n = 1031, 1101, 77
    a = rng.standard_normal((k, m) if first else (m, k), np.float32)
    b = rng.standard_normal((n, k) if second else (k, n), np.float32)
    x, y = nd.array(a), nd.array(b)
    got = np.asarray(nd.matmul(x.T if first else x, y.T if second else y))
    left, right = (a.T if first else a), (b.T if second else b)
    np.testing.assert_allclose(got, left.astype(np.float64) @ right, 0, 2e-3)


def test_a_large_image_times_a_small_matrix() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 40, 61, 60), np.float32)
    w = rng.standard_normal((23, 40, 1, 1), np.float32)
    got = np.asarray(nd.convolution(nd.array(x), nd.array(w)))
    want = np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0])
    np.testing.assert_allclose(got, want, 0, 1e-4)
