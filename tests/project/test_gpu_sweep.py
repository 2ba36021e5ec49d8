"""The sweep of GPU benchmarks: its cases mean the same to both libraries, its page adds up."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import genesis
from benchmarks import gpu_sweep
from benchmarks.gpu_sweep import Outcome, Roof
from benchmarks.sweep_cases import FAMILIES, Layer, Models, Transformer, drawn
from tests.interpreted_cuda import passes

torch = pytest.importorskip("torch")

SMALL = Models(
    transformers=(Transformer("small", 8, 4, 2, 4, 12, 19), Transformer("odd", 6, 2, 2, 6, 9, 11)),
    layers=(Layer("stem", 3, 8, 14, 7, 2), Layer("grouped", 8, 8, 9, 3, 1, 2)),
    depthwise=(Layer("deep", 6, 6, 10, 5, 1, 6),),
    batches=(1, 3),
    lengths=(1, 5, 8),
    signals=(10, 16),
    matrices=((4, 3), (7, 1)),
)


def test_a_seed_is_a_list_of_cases() -> None:
    assert list(map(str, drawn(3, 300))) == list(map(str, drawn(3, 300)))
    assert list(map(str, drawn(3, 300))) != list(map(str, drawn(4, 300)))
    assert {case.family for case in drawn(5, 60)} == {case.family for case in drawn(6, 400)}


def compared(number: int, device: str) -> None:
    """A case gives what it gives in PyTorch."""
    case = drawn(7, 2 * len(FAMILIES), SMALL)[number]
    # NumPy, through which arrays of the CPU go, knows no bfloat16.
    inputs = tuple(x if x.below else replace(x, dtype="float32") for x in case.inputs)
    case = replace(case, inputs=inputs)
    theirs = gpu_sweep.arrays(torch, case, "cpu")
    ours = [genesis.tensor(x.numpy(), device=device) for x in theirs]
    results = gpu_sweep.call(genesis, case)(*ours)
    results = results if isinstance(results, tuple) else (results,)
    found = tuple(torch.from_numpy(x.cpu().numpy()) for x in results)
    error, nbytes = gpu_sweep.difference(torch, case, found, theirs)
    assert error <= gpu_sweep.tolerance(case)
    assert nbytes > 0


@pytest.mark.parametrize(
    "number",
    [pytest.param(k, marks=[pytest.mark.slow] * (k % 2)) for k in range(2 * len(FAMILIES))],
)
def test_cases_mean_the_same_to_both(number: int) -> None:
    compared(number, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(2 * len(FAMILIES)))
def test_cases_give_the_same_on_a_gpu(number: int) -> None:
    compared(number, "cuda")


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="runs the others so")
@pytest.mark.timeout(1800)  # a whole file: on a loaded machine that takes long
def test_by_the_interpreter() -> None:
    passes(__file__)


def test_the_page_says_what_was_found() -> None:
    cases = drawn(0, 4)
    found = [
        Outcome(k, nbytes=4_000_000, wall={"eager": 2e-5 * (k + 1), "genesis": 4e-5},
                device={"eager": 1e-5, "inductor": 5e-6, "genesis": 1e-5}, kernels=["sum 9"])
        for k in range(3)
    ]  # fmt: skip
    found[2].error = 1.0
    found.append(Outcome(3, fault="ValueError: no"))
    roof = Roof(4e12, {"float32": 5e13, "float16": 7e14, "bfloat16": 7e14})
    slowest = sorted(found[:3], key=lambda o: o.ratio("wall"))
    text = gpu_sweep.page(cases, found, slowest, roof, "command", "device")
    assert "| all | 3 | 0.91 | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 |" in text
    assert "starting it: the device needs 10 of 40 us" in text
    assert "## Wrong: 1" in text and f"- {cases[2]}: 1.0e+00" in text
    assert f"- {cases[3]}: ValueError: no" in text


def test_inductor_has_an_even_share() -> None:
    assert sum(gpu_sweep.compiled_by_inductor(k, 0.25) for k in range(400)) == 100
    assert not any(gpu_sweep.compiled_by_inductor(k, 0.0) for k in range(400))
    assert all(gpu_sweep.compiled_by_inductor(k, 1.0) for k in range(400))
