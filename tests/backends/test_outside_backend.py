"""A backend outside of the tree: a package with passes of its own, of which nothing here knows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from genesis import backends
from genesis import ndarray as nd
from genesis.backends.base import Chip
from genesis.compiler.chip_passes import passes_of

PACKAGE = '''
"""An abacus: a CPU that does small kernels without vectors."""

from dataclasses import replace

from genesis.backends.cpu.backend import CPUBackend
from genesis.backends.cpu.chip import CPU, host
from genesis.compiler.cpu import PASSES as OF_CPU
from genesis.compiler.chip_passes import GraphPass, Rule
from genesis.compiler.schedule.steps.queries import points
from genesis.compiler.schedule.steps.loop_transforms import sink

passed, scheduled = [], []


def seen(roots, origins):
    passed.append(len(roots))
    return roots


def small(kernel, chip):
    (phase,) = kernel.phases
    return phase.grid if kernel.pattern is None and points(phase.grid) <= chip.beads else None


def one_block(kernel, axes, chip):
    scheduled.append(kernel.name)
    for axis in reversed(axes):
        kernel = sink(kernel, axis)
    return kernel


PASSES = replace(
    OF_CPU,
    before_simplify=(GraphPass("seen", seen), *OF_CPU.before_simplify),
    rules=(Rule("small", small, one_block), *OF_CPU.rules),
)


class Abacus(CPU):
    passes = "abacus:PASSES"
    beads = 64


class AbacusBackend(CPUBackend):
    name = "abacus"

    @property
    def chip(self):
        return Abacus(**vars(host()))
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package, installed."""
    folder: Path = tmp_path_factory.mktemp("site-packages")
    (folder / "abacus.py").write_text(PACKAGE)
    described = folder / "abacus-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: abacus\nVersion: 1.0\n")
    entry = "[genesis.backends]\nabacus = abacus:AbacusBackend\n"
    (described / "entry_points.txt").write_text(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("GENESIS_CACHE", "off")
        yield importlib.import_module("abacus")


@pytest.fixture
def abacus(package: ModuleType) -> ModuleType:
    """The package, of which nothing was used so far."""
    package.passed.clear()
    package.scheduled.clear()
    return package


def test_its_rules_and_passes_are_used(abacus: ModuleType) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    a = nd.array(x, device="abacus")
    np.testing.assert_array_equal((a * 2 + 1).numpy(), x * 2 + 1)
    assert abacus.scheduled == ["add_mul"] and abacus.passed == [1]
    assert isinstance(backends.get("abacus"), abacus.AbacusBackend)


def test_other_kernels_are_scheduled_as_on_a_cpu(abacus: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((96, 96), dtype=np.float32) for _ in range(2))
    result = nd.array(x, device="abacus") @ nd.array(y, device="abacus")
    np.testing.assert_allclose(result.numpy(), x @ y, rtol=1e-4, atol=1e-4)
    assert abacus.passed and not abacus.scheduled


def test_our_chips_are_left_as_they_are(abacus: ModuleType) -> None:
    x = nd.array(np.arange(12, dtype=np.float32))
    np.testing.assert_array_equal((x - 5).numpy(), np.arange(12) - 5)
    assert not abacus.scheduled and not abacus.passed


def test_a_name_that_is_not_that_of_passes() -> None:
    class Wrong(Chip):
        passes = "genesis.compiler.cpu:RULES"

    with pytest.raises(TypeError, match=r"cpu:RULES is not the passes of a chip"):
        passes_of(Wrong("wrong", 64, 32, 1, 1))
