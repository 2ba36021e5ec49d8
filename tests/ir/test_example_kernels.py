"""The hand-written kernels: well formed, proven, and right on the interpreter in every order."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.kernels import ALL, Example, mean, packed_gemm, scatter_add, softmax
from genesis.backends import get
from genesis.backends.base import Launch
from genesis.compiler.program.program import as_size
from genesis.compiler.verify.kernel import verify
from genesis.ir.check import check
from genesis.ir.dtype import encode
from genesis.ir.index import simplify
from genesis.ir.interpret import Order, interpret
from genesis.ir.kernel import Kernel, as_index
from genesis.ir.size import evaluate

CASES = [
    pytest.param(example, sizes, id="-".join([name, *(f"{k}{v}" for k, v in sizes.items())]))
    for name, example in ALL.items()
    for sizes in example.cases
]


@pytest.mark.parametrize("name", ALL)
def test_is_well_formed_and_proven(name: str) -> None:
    kernel = ALL[name].build()
    check(kernel)
    verdict = verify(kernel)
    assert verdict.proven, str(verdict)


@pytest.mark.parametrize(("example", "sizes"), CASES)
def test_computes_its_reference_in_every_order(example: Example, sizes: dict[str, int]) -> None:
    kernel = example.build()
    orders: list[Order] = ["forward", "reverse", "shuffle"]
    runs: list[dict[str, Any]] = []
    for order in orders:
        arguments = example.arguments(np.random.default_rng(7), **sizes)
        expected = example.reference(arguments)
        interpret(kernel, arguments, order=order, seed=1)
        for name, value in expected.items():
            np.testing.assert_allclose(arguments[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
        runs.append({name: arguments[name] for name in expected})
    for other in runs[1:]:
        for name, value in runs[0].items():
            assert value.tobytes() == other[name].tobytes(), (
                f"{name} depends on the order of blocks"
            )


@pytest.mark.parametrize(("example", "sizes"), CASES)
def test_computes_its_reference_as_machine_code(example: Example, sizes: dict[str, int]) -> None:
    kernel = example.build()
    arguments = example.arguments(np.random.default_rng(7), **sizes)
    expected = example.reference(arguments)
    run_on_cpu(kernel, arguments)
    for name, value in expected.items():
        np.testing.assert_allclose(arguments[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def run_on_cpu(kernel: Kernel, arguments: dict[str, Any]) -> None:
    """Compile a kernel and run it on NumPy arrays, sizes and scalars given by name."""
    backend = get("cpu")
    (binary,) = backend.compile([kernel])
    count = len(kernel.buffers) + len(kernel.params) + len(kernel.symbols)
    executable = backend.assemble([Launch(binary, tuple(range(count)))])
    frame = array("Q")
    alive = []
    for b in kernel.buffers:
        if b.name not in arguments:  # a temporary
            names = {s.name: arguments[s.name] for s in kernel.symbols}
            sizes = [as_size(simplify(as_index(e))) for e in b.shape]
            shape = [evaluate(e, names) for e in sizes]
            alive.append(np.empty(shape, b.dtype.numpy))
            frame.append(alive[-1].ctypes.data)
        else:
            frame.append(arguments[b.name].ctypes.data)
    frame.extend(encode(arguments[p.name], p.dtype) for p in kernel.params)
    frame.extend(int(arguments[s.name]) for s in kernel.symbols)
    executable.run(frame)


def test_gemm_with_the_blocks_it_is_meant_for() -> None:
    arguments = packed_gemm.arguments(np.random.default_rng(0), M=8, N=70, K=260)
    interpret(packed_gemm.build(), arguments)
    np.testing.assert_allclose(arguments["C"], packed_gemm.reference(arguments)["C"], atol=1e-4)


def test_softmax_of_infinite_and_missing_values() -> None:
    x = np.zeros((4, 20), np.float32)
    x[0, 3], x[1, 3], x[2, 3] = -np.inf, np.inf, np.nan
    x[3] = -np.inf
    y = np.empty_like(x)
    interpret(softmax.build(), {"x": x, "y": y, "M": 4, "N": 20})
    np.testing.assert_allclose(y[0], np.where(np.arange(20) == 3, 0, 1 / 19), rtol=1e-6)
    assert np.isnan(y[1:]).all()  # as inf - inf says


def test_mean_of_nothing_is_nan() -> None:
    y = np.empty((), np.float32)
    interpret(mean.build(), {"x": np.empty(0, np.float32), "y": y, "N": 0})
    assert np.isnan(y)


def test_scatter_add_survives_any_index() -> None:
    arguments = scatter_add.arguments(np.random.default_rng(0), R=5, D=3, U=4)
    arguments["index"][:] = [-(2**63), 2**63 - 1, 5, -1]
    before = arguments["table"].copy()
    interpret(scatter_add.build(), arguments)
    np.testing.assert_array_equal(arguments["table"], before)


@pytest.mark.parametrize("module", [softmax, mean], ids=["softmax", "mean"])
def test_the_documentation_prints_what_the_kernels_print(module: Any) -> None:
    page = Path(__file__).parents[2] / "docs" / "kernels.md"
    assert str(module.build()) in page.read_text()
