"""`explain` tells the truth: kernels, the user's lines, arithmetic, bytes, proofs, code."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import genesis
from genesis import ndarray as nd
from genesis.compiler import using
from genesis.compiler.report import Report
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.value import CaptureError

explain = genesis.explain


def ones(*shape: int) -> NDArray:
    return nd.ones(shape).realize()


# ---- kernels


@pytest.mark.parametrize(
    ("function", "arguments", "kernels"),
    [
        (lambda x: nd.tanh(x * 2 + 1) - x, [(64,)], 1),
        (lambda x: (x * x).sum(), [(64,)], 1),
        (lambda x: nd.softmax(x, axis=-1), [(8, 100)], 1),
        (lambda x, w: nd.tanh(x @ w + 1), [(8, 16), (16, 4)], 1),
        (lambda x, w: (x @ w) @ w.T, [(8, 16), (16, 4)], 2),
        (lambda x: x, [(8,)], 0),
        (lambda x: x.T[1:], [(8, 4)], 0),
        (lambda x: (x + 1, x * 2), [(64,)], 1),
    ],
    ids=["pointwise", "sum", "softmax", "linear", "two", "nothing", "view", "two results"],
)
def test_the_number_of_kernels(
    function: Callable[..., Any], arguments: list[tuple[int, ...]], kernels: int
) -> None:
    report = explain(function, *(ones(*shape) for shape in arguments))
    assert len(report.kernels) == kernels and report.proven


def test_it_describes_the_program_that_jit_runs() -> None:
    x, w = ones(8, 16), ones(16, 4)
    f = genesis.jit(lambda x, w: nd.softmax(nd.tanh(x @ w)) + 1)
    report = explain(f, x, w)
    assert f.captures == 1
    f(x, w)
    assert f.captures == 1
    assert len(f.recording(x, w)[0].program.launches) == len(report.kernels)
    with using(fuse=False):
        assert len(explain(f, x, w).kernels) > len(report.kernels)


def test_nothing_is_computed() -> None:
    state = ones(4)
    ran = []

    def f(x: NDArray) -> NDArray:
        ran.append(1)
        state[:] = state + x
        x += 1
        return state * nd.random.uniform((4,))

    genesis.manual_seed(1)
    x = ones(4)
    before = nd.statistics().runs
    explain(f, x)
    assert not ran and nd.statistics().runs == before
    assert state.tolist() == x.tolist() == [1] * 4
    first = nd.random.uniform((4,)).tolist()
    genesis.manual_seed(1)
    assert nd.random.uniform((4,)).tolist() == first


# ---- lines


def test_lines_are_the_users() -> None:
    def f(x: NDArray, w: NDArray) -> NDArray:
        h = x @ w
        h = nd.tanh(
            h
            * 2.5
        )  # fmt: skip
        return helper(h)

    def helper(h: NDArray) -> NDArray:
        return nd.softmax(h, axis=-1)

    first, last = (g.__code__.co_firstlineno for g in (f, helper))
    report = explain(f, ones(8, 16), ones(16, 4))
    places = [p for k in report.kernels for p in k.lines]
    assert all(p.startswith(__file__ + ":") for p in places)
    numbers = {int(p.rpartition(":")[2]) for p in places}
    assert numbers == {first + 1, first + 2, first + 3, last + 1}
    matmul = [k for k in report.kernels if "contract" in k.operations]
    assert f"{__file__}:{first + 1}" in matmul[0].lines


def test_operations_are_named() -> None:
    report = explain(lambda x: nd.exp(x).sum(), ones(64))
    (kernel,) = report.kernels
    assert set(kernel.operations) == {"exp", "sum"}


# ---- arithmetic and bytes


def only(report: Report) -> tuple[int, int]:
    (kernel,) = report.kernels
    return kernel.flops, kernel.nbytes


@pytest.mark.parametrize("sizes", [(8, 16, 4), (1, 7, 3), (64, 33, 65), (128, 128, 128)])
def test_a_matmul_is_2mnk(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    flops, nbytes = only(explain(lambda x, w: x @ w, ones(m, k), ones(k, n)))
    assert flops == 2 * m * n * k
    assert nbytes == 4 * (m * k + k * n + m * n)


def test_known_counts() -> None:
    n = 1000
    x, y = ones(n), ones(n)
    assert only(explain(lambda x, y: x + y, x, y)) == (n, 12 * n)
    assert only(explain(lambda x: x * 2 + 1, x)) == (2 * n, 8 * n)
    assert only(explain(lambda x: x.sum(), x)) == (n, 4 * n + 4)
    assert only(explain(lambda x: nd.exp(x), x)) == (n, 8 * n)
    assert only(explain(lambda x: x.astype("float64"), x)) == (0, 12 * n)
    assert only(explain(lambda x: x[::2] * 2, x))[0] == n // 2
    integers = nd.arange(n).realize()
    assert only(explain(lambda x: x * x, integers)) == (0, 16 * n)  # floating point only
    half = x.astype("float16").realize()
    assert only(explain(lambda x: x + x, half)) == (n, 4 * n)
    batched = explain(lambda x, w: x @ w, ones(5, 8, 16), ones(5, 16, 4))
    assert only(batched) == (2 * 5 * 8 * 16 * 4, 4 * 5 * (8 * 16 + 16 * 4 + 8 * 4))
    fused = explain(lambda x, w, b: nd.tanh(x @ w + b), ones(8, 16), ones(16, 4), ones(4))
    assert fused.flops == 2 * 8 * 16 * 4 + 2 * 8 * 4
    assert explain(lambda x: x.T, ones(3, 4)).flops == 0


def test_an_update_in_place_moves_its_region_only() -> None:
    big = ones(1000, 10)

    def f(x: NDArray) -> None:
        big[7] = x * 2

    assert only(explain(f, ones(10))) == (10, 4 * 20)


def test_symbolic_sizes_count_for_the_call() -> None:
    f = genesis.jit(lambda x: (x * 2).sum())
    for n in (10, 20, 30):
        f(ones(n))
    for n in (7, 100):
        assert only(explain(f, ones(n))) == (2 * n, 4 * n + 4)
    assert f.captures == 2


def test_temporaries() -> None:
    report = explain(lambda x, w: (x @ w) @ w.T, ones(8, 16), ones(16, 4))
    assert report.temporary_bytes >= 4 * 8 * 4
    assert explain(lambda x: x + 1, ones(8)).temporary_bytes == 0


# ---- proofs and code


def test_verdicts_and_code() -> None:
    report = explain(lambda x: nd.softmax(x @ x), ones(20, 20))
    assert report.proven
    for kernel in report.kernels:
        assert kernel.proven and re.fullmatch(r"proven \(\d+ claims\)", kernel.verdict)
        assert re.search(r"^define void @", kernel.code, re.MULTILINE)
        assert "float" in kernel.code
        assert kernel.plain.startswith("kernel ") and kernel.scheduled.startswith("kernel ")


def test_the_schedule_can_be_switched_off() -> None:
    def f(x: NDArray) -> NDArray:
        return nd.exp(x) + 1

    x = ones(1000)
    (kernel,) = explain(f, x).kernels
    assert "tile" in kernel.scheduled and "tile" not in kernel.plain
    with using(schedule=False):
        (plain,) = explain(f, x).kernels
    assert "tile" not in plain.scheduled


def test_it_prints_readably() -> None:
    def f(x: NDArray, w: NDArray) -> NDArray:
        return nd.softmax(x @ w)

    text = str(explain(f, ones(64, 32), ones(32, 16)))
    head, *rest = text.split("\n\n")
    assert re.fullmatch(
        r"\d kernels?, [\d.]+ kFLOP, [\d.e+]+ k?B of memory on top of its inputs, all proven\n"
        r"\d+ reads and writes of launches meet the right values",
        head,
    ), head
    assert all(part.startswith("kernel ") for part in rest)
    assert "proven (" in text and f"from {__file__}:" in text and "grid" in text
    assert max(map(len, text.splitlines())) < 300
    assert "define" not in text  # the code is there for who asks


def test_bad_calls() -> None:
    with pytest.raises(ValueError, match="matmul"):
        explain(lambda x: x @ x, ones(2, 3))
    with pytest.raises(CaptureError):
        explain(lambda x: x.sum().item(), ones(3))
    assert len(explain(lambda: nd.arange(3) + 1).kernels) == 1
