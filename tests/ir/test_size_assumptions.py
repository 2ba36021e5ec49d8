"""What a recording assumes about sizes: answers of the call at hand, that later calls must meet."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import ramp
from size_cases import MODELS, OPERATIONS, Case, modes, run

import genesis
from genesis import ndarray as nd
from genesis.ir.shape_guards import Assumptions, solved
from genesis.ir.size import Dim, Size, UndecidableSize, bounds, same
from genesis.ndarray.core.ndarray import NDArray

N, M = Size.symbol("n", low=1), Size.symbol("m", low=1)


def refined(ask: Callable[[], Any], n: int, m: int = 1) -> tuple[Dim, Dim]:
    """The symbols after a question, as they are for these values."""
    with (assumed := Assumptions({"n": n, "m": m})):
        ask()
    forms = assumed.forms()
    return forms.refined(N), forms.refined(M)


# ---- symbols


@pytest.mark.parametrize(
    ("ask", "text", "low"),
    [
        (lambda: same(N // 2 * 2, N), "2*n", 2),
        (lambda: same(3 * N // 2 * 2, 3 * N), "2*n", 2),
        (lambda: same(4 * N // 6 * 6, 4 * N), "3*n", 3),
        (lambda: same(N % 3, 2), "2 + 3*n", 2),
        (lambda: same(N // 2 // 2 * 4, N), "4*n", 4),
        (lambda: N > 3, "n", 4),
        (lambda: N // 4 - 1 >= 1, "n", 8),
        (lambda: not same(N, 1), "n", 2),
        (lambda: same(N, 8), "8", 8),
        (lambda: range(N), "8", 8),
        (lambda: same(N * N, 64), "8", 8),
    ],
)
def test_what_a_symbol_says(ask: Callable[[], Any], text: str, low: int) -> None:
    n = 12 if "3*n" in text and "2 +" not in text else 8
    form, _ = refined(ask, n)
    assert repr(form) == text and bounds(form)[0] == low


def test_one_symbol_written_by_another() -> None:
    n, m = refined(lambda: same(N, M + 1), 5, 4)
    assert solved([(n, 5), (m, 4)]) == {"m": 4} and solved([(n, 5), (m, 5)]) is None
    n, m = refined(lambda: same(N, M // 2), 5, 11)
    assert solved([(n, 5), (m, 11)]) is not None and solved([(n, 5), (m, 12)]) is None


def test_nobody_decides_outside_of_a_recording() -> None:
    for ask in (lambda: N > 3, lambda: range(N), lambda: N == 3, lambda: bool(N - 3)):
        with pytest.raises(UndecidableSize):
            ask()
    assert not same(N, 3)


def test_bounds_of_sums_with_quotients(rng: np.random.Generator) -> None:
    small = Size.symbol("a", 1, 7), Size.symbol("b", 0, 5)
    for _ in range(300):
        total: Dim = int(rng.integers(-5, 6))
        for _ in range(3):
            term = small[rng.integers(2)] * int(rng.integers(1, 4)) + int(rng.integers(-3, 4))
            if rng.integers(2):
                term = term // int(rng.integers(1, 5))
            total = total + term * int(rng.integers(-3, 4))
        if isinstance(total, Size):
            low, high = bounds(total)
            values = [total.value({"a": a, "b": b}) for a in range(1, 8) for b in range(6)]
            assert low <= min(values) and max(values) <= high, total


# ---- functions that ask


def random_rule(rng: random.Random) -> Callable[[Any, Any], int]:
    """A number that follows from two sizes by comparisons and integer arithmetic."""

    def number(n: Any, m: Any, depth: int, tape: random.Random) -> Any:
        kind = tape.randrange(9) if depth else tape.randrange(2)
        if kind < 2:
            return (n, m)[kind]
        a = number(n, m, depth - 1, tape)
        match kind:
            case 2:
                return a + tape.randrange(4)
            case 3:
                return a * tape.randrange(1, 4)
            case 4:
                return a // tape.randrange(1, 5)
            case 5:
                return a % tape.randrange(1, 5)
            case 6:
                return max(a - tape.randrange(6), 0)
            case 7:
                return min(a, number(n, m, depth - 1, tape))
            case _:
                return a + number(n, m, depth - 1, tape)

    seed = rng.random()

    def rule(n: Any, m: Any) -> int:
        tape = random.Random(seed)
        result = 0
        for k in range(3):
            a, b = number(n, m, 2, tape), number(n, m, 2, tape)
            match tape.randrange(4):
                case 0:
                    answer = a < b
                case 1:
                    answer = a == b
                case 2:
                    answer = a != tape.randrange(5)
                case _:
                    answer = bool(a % 2)
            result += 2**k * answer
        return result

    return rule


@pytest.mark.parametrize("seed", range(12))
def test_random_questions(seed: int) -> None:
    rng = random.Random(seed)
    rule = random_rule(rng)

    @genesis.jit
    def f(x: NDArray, y: NDArray) -> tuple[NDArray, int]:
        return x.sum() + y.sum(), rule(x.shape[0], y.shape[0])

    for _ in range(40):
        n, m = rng.randint(1, 9), rng.randint(1, 9)
        total, found = f(nd.ones(n), nd.ones(m))
        assert found == rule(n, m), (n, m)
        assert total.item() == n + m


@pytest.mark.parametrize(
    ("function", "programs"),
    [
        (lambda x: x * 10 if x.shape[0] > 4 else x, 3),
        (lambda x: x * 10 if x.shape[0] == 5 else x, 3),
        (lambda x: x * 10 if x.shape[0] % 2 else x, 3),
        (lambda x: x.reshape(-1, 2).sum(1) if x.shape[0] % 2 == 0 else x, 3),
        (lambda x: x[:, None].squeeze(), 3),
        (lambda x: x[3:], 5),
        (lambda x: x[:3] * 2, 4),
        (lambda x: x[-3:] * 2, 4),
        (lambda x: x[: x.shape[0] // 2], 3),
        (lambda x: nd.concat([x[1:], x[:1]]), 3),
        (lambda x: x - x.mean() if x.shape[0] > 1 else x, 3),
        (lambda x: x[: min(x.shape[0], 3)].sum(), 4),
    ],
)
def test_a_question_costs_a_recording_not_one_for_each_size(
    function: Callable[[NDArray], NDArray], programs: int
) -> None:
    f = genesis.jit(function)
    for n in (6, 7, 8, 5, 4, 3, 2, 1, 11, 16, 1, 2, 3, 30):
        got, want = f(ramp(n)), function(ramp(n))
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    assert f.captures <= programs


@pytest.mark.parametrize(
    ("function", "fits", "fails"),
    [
        (lambda x: x.reshape(-1, 2), (4, 6, 8, 10), 7),
        (lambda x: nd.windows(x, 0, 4), (4, 6, 8, 5), 3),
        (lambda x: x[5], (6, 8, 7, 9), 5),
        (lambda x: x[-4], (6, 8, 7, 4), 3),
        (lambda x: x[3:].max(), (6, 8, 7, 4), 3),
        (lambda x: nd.pad(x, [(3, 3)], mode="reflect"), (6, 8, 7, 4), 3),
        (lambda x: nd.topk(x, 4).values, (6, 8, 7, 4), 3),
        (lambda x: x + nd.ones(6)[: x.shape[0]], (4, 5, 6, 3), 7),
        (lambda x: nd.pad(x, [(-2, -2)]) * 2, (5, 6, 7, 8), 3),
    ],
)
def test_what_fails_without_jit_fails_with_it(
    function: Callable[[NDArray], NDArray], fits: tuple[int, ...], fails: int
) -> None:
    f = genesis.jit(function)
    for n in fits:
        np.testing.assert_allclose(f(ramp(n)).numpy(), function(ramp(n)).numpy())
    with pytest.raises((ValueError, IndexError)) as expected:
        function(ramp(fails)).realize()
    with pytest.raises(type(expected.value)):
        f(ramp(fails)).realize()
    np.testing.assert_allclose(f(ramp(fits[0])).numpy(), function(ramp(fits[0])).numpy())


def test_an_extent_that_is_needed_as_a_number_leaves_the_others_symbolic() -> None:
    @genesis.jit
    def f(x: NDArray) -> NDArray:
        total = x[:, 0]
        for k in range(1, x.shape[1]):
            total = total * 0.5 + x[:, k]
        return total

    def plain(x: NDArray) -> NDArray:
        with genesis.eager():
            return f(x).realize()

    for length in (2, 3, 4):
        for batch in (5, 6, 7, 9):
            x = ramp(batch, length)
            np.testing.assert_allclose(f(x).numpy(), plain(x).numpy(), rtol=1e-6)
    assert f.captures <= 5


# ---- every operation


QUICK = [
    "reshape(-1, 2)/n", "both halves/n", "chunk(2)/n", "x[2:-2]/n", "roll/n", "pad reflect/n",
    "conv1d stride 2/n", "max_pool1d/n", "adaptive_avg_pool2d(4)/n", "interpolate 1d nearest x2/n",
    "batch_norm/n", "topk/n", "rfft/b", "past and new/n", "language model/n",
    "MLP with batch norm/b",
]  # fmt: skip


def check(case: Case) -> None:
    for mode in modes(case):
        captures, _, wrong = run(case, mode)
        assert not wrong, f"{case.name}, {mode}: {wrong}"
        assert captures <= case.programs, f"{case.name}, {mode}: recorded {captures} times"


@pytest.mark.parametrize("name", QUICK)
def test_one_program_for_all_sizes(name: str) -> None:
    (case,) = (c for c in (*OPERATIONS, *MODELS) if c.name == name)
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*OPERATIONS, *MODELS], ids=lambda c: c.name)
def test_every_operation(case: Case) -> None:
    check(case)
