"""Streamed attention and its gradients against float64, whatever the lengths, masks and heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis
from genesis import functional
from genesis import ndarray as nd
from genesis.backends.cpu.runtime.runtime import get_num_threads, set_num_threads
from genesis.functional.attention import attention_and_totals
from genesis.ndarray.tracing.explain import explain
from genesis.ndarray.tracing.jit import jit

RANDOM = np.random.default_rng(11)
#: A position that computing with must not wrap around.
FAR = 2**63 - 64
LENGTHS = (*range(2, 70, 7), 1, 16, 63, 64, 65, 256, 257, 600)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def reference(q: Any, k: Any, v: Any, seen: Any = True, bias: Any = 0.0, cap: float = 0.0) -> Any:
    """Attention in float64; a query that sees nothing gives zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    shared = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, shared, 1) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = np.where(seen, scores + bias, -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def check(ours: Any, expected: Any, tolerance: float = 2e-5) -> None:
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours.numpy(), expected, rtol=tolerance, atol=tolerance)


# ---- few queries


def positions(keys: Any, at: Any) -> Any:
    """Which keys are seen: those up to a position that is in memory."""
    return nd.arange(keys.shape[-2]) <= at


def additive(keys: Any, at: Any) -> Any:
    return nd.where(positions(keys, at), 0.0, -math.inf)


#: Queries, heads, heads of keys, and a mask made from the keys, a position and the queries.
DECODING: dict[str, tuple[int, int, int, Callable[..., Any] | None]] = {
    "plain": (1, 3, 3, None),
    "position": (1, 3, 3, lambda k, at, q: nd.unsqueeze(positions(k, at), 0)),
    "added": (1, 4, 2, lambda k, at, q: nd.unsqueeze(additive(k, at), 0)),
    "two queries": (2, 4, 2, None),
    "offset": (
        5, 2, 1,
        lambda k, at, q: nd.arange(k.shape[-2]) <= nd.unsqueeze(nd.arange(q.shape[-2]), 1) + at,
    ),
    "many queries": (
        40, 2, 1,
        lambda k, at, q: nd.arange(k.shape[-2]) <= nd.unsqueeze(nd.arange(q.shape[-2]), 1) + at,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DECODING)
def test_few_queries_at_every_length(case: str) -> None:
    """One program for all lengths of the cache, which are sizes of it."""
    queries, heads, shared, mask = DECODING[case]

    @jit
    def attend(q: Any, k: Any, v: Any, at: Any) -> Any:
        given = None if mask is None else mask(k, at, q)
        return functional.scaled_dot_product_attention(q, k, v, given, enable_gqa=heads != shared)

    for length in LENGTHS:
        q, k = normal(2, heads, queries, 24), normal(2, shared, length, 24)
        v = normal(2, shared, length, 40)
        for at in (length // 2, -1, length + 3, FAR) if mask is not None else (0,):
            seen = np.arange(length) <= (at + np.arange(queries)[:, None] * (queries > 2))
            found = attend(*map(nd.asarray, (q, k, v, np.array([at]))))
            check(found, reference(q, k, v, True if mask is None else seen))


def test_masks_from_memory_and_other_layouts() -> None:
    q, k, v = normal(2, 4, 1, 64), normal(2, 2, 300, 64), normal(2, 2, 300, 64)
    seen = RANDOM.random((2, 1, 1, 300)) > 0.5
    seen[1] = False
    bias = normal(2, 4, 1, 300)
    arrays = [nd.asarray(x) for x in (q, k, v)]
    attention = functional.scaled_dot_product_attention
    check(attention(*arrays, nd.asarray(seen), enable_gqa=True), reference(q, k, v, seen))
    check(attention(*arrays, nd.asarray(bias), enable_gqa=True), reference(q, k, v, True, bias))
    turned = nd.swapaxes(nd.asarray(np.ascontiguousarray(np.swapaxes(k, -1, -2))), -1, -2)
    check(attention(arrays[0], turned, arrays[2], enable_gqa=True), reference(q, k, v))
    # Heads inside of positions, as projections leave them.
    inside = [nd.asarray(np.ascontiguousarray(np.swapaxes(x, 1, 2))) for x in (q, k, v)]
    heads = [nd.swapaxes(x, 1, 2) for x in inside]
    check(attention(*heads, enable_gqa=True), reference(q, k, v))
    half = attention(*(x.astype("bfloat16") for x in arrays), enable_gqa=True)
    check(half.astype("float32"), reference(q, k, v), 3e-2)
    # Heads too wide for the sums of two queries to be in registers.
    wide = [nd.asarray(normal(1, n, m, 256)) for n, m in ((8, 1), (2, 600), (2, 600))]
    expected = reference(*(x.numpy() for x in wide))
    check(attention(*wide, enable_gqa=True), expected)
    # Heads repeated by hand, and a soft cap.
    each = [
        nd.reshape(nd.expand(nd.unsqueeze(x, 2), (2, 2, 2, 300, 64)), (2, 4, 300, 64))
        for x in arrays[1:]
    ]
    scores = 3.0 * nd.tanh(arrays[0] @ nd.swapaxes(each[0], -1, -2) / (8.0 * 3.0))
    check(nd.softmax(scores) @ each[1], reference(q, k, v, cap=3.0))


def test_a_causal_mask_at_every_length() -> None:
    """The panel that the diagonal cuts is looked at by vectors, and only up to it."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    run = jit(attend)
    for length in (1, 5, 17, 64, 65, 100, 256, 300):
        q, k, v = (normal(1, 2, length, 32) for _ in range(3))
        seen = np.arange(length) <= np.arange(length)[:, None]
        check(run(*map(nd.asarray, (q, k, v))), reference(q, k, v, seen))
    arrays = [nd.asarray(normal(1, 2, 300, 32)) for _ in range(3)]
    assert "loop jv <" in explain(attend, *arrays).kernels[0].scheduled


@pytest.mark.parametrize("width", [24, 64, 96])
def test_many_queries_against_several_spans_of_keys(width: int) -> None:
    """Rows and keys that fill no tile, panel or span; greatest scores in the first and the last."""
    q, k, v = normal(1, 2, 211, width), normal(1, 2, 547, width), normal(1, 2, 547, width)
    k[:, 0, 3] *= 9
    k[:, 1, -1] *= 9
    bias = normal(211, 547)
    bias[5] = -np.inf
    seen = np.arange(547) <= np.arange(211)[:, None]
    arrays = [nd.asarray(x) for x in (q, k, v)]
    attention = functional.scaled_dot_product_attention
    check(attention(*arrays), reference(q, k, v))
    check(attention(*arrays, is_causal=True), reference(q, k, v, seen))
    check(attention(*arrays, nd.asarray(bias)), reference(q, k, v, True, bias))
    k[0, 0, 400] = np.nan
    found = attention(nd.asarray(q), nd.asarray(k), arrays[2], is_causal=True).numpy()
    assert np.isfinite(found).all()  # beyond the diagonal
    found = attention(nd.asarray(q), nd.asarray(k), arrays[2]).numpy()
    assert np.isnan(found[:, 0]).all()
    assert np.isfinite(found[:, 1]).all()


def test_one_kernel_that_reads_shared_keys_once() -> None:
    q, k, v = normal(1, 8, 1, 32), normal(1, 2, 512, 32), normal(1, 2, 512, 32)

    def attend(q: Any, k: Any, v: Any, at: Any) -> Any:
        each = [
            nd.reshape(nd.expand(nd.unsqueeze(x, 2), (1, 2, 4, 512, 32)), (1, 8, 512, 32))
            for x in (k, v)
        ]
        return functional.scaled_dot_product_attention(q, *each, additive(k, at))

    report = explain(attend, *map(nd.asarray, (q, k, v, np.array([7]))))
    (kernel,) = report.kernels
    assert kernel.proven and report.temporary_bytes < 8 * 512
    # A block for every chunk of the keys and head of them, heads side by side as in pages.
    assert "grid kc < 2, i1g < 2" in kernel.scheduled


def test_what_is_not_looked_at_is_not_read() -> None:
    q, k, v = normal(1, 2, 1, 16), normal(1, 2, 600, 16), normal(1, 2, 600, 16)
    expected = reference(q, k, v, np.arange(600) <= 301)
    k[:, :, 302:] = v[:, :, 302:] = np.nan

    @jit
    def attend(q: Any, k: Any, v: Any, at: Any) -> Any:
        mask = nd.unsqueeze(positions(k, at), 0)
        return functional.scaled_dot_product_attention(q, k, v, mask)

    check(attend(*map(nd.asarray, (q, k, v, np.array([301])))), expected)


# ---- what softmax computes on the way


def test_totals_come_from_the_kernel() -> None:
    q, k, v = normal(2, 3, 70, 16), normal(2, 3, 50, 16), normal(2, 3, 50, 16)
    seen = RANDOM.random((70, 50)) > 0.5
    seen[3] = False

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attention_and_totals(q, k, v, mask)

    given = [nd.asarray(x) for x in (q, k, v, seen)]
    result, totals = attend(*given)
    check(result, reference(q, k, v, seen))
    scores = np.where(seen, q @ np.swapaxes(k, -1, -2) / 4, -np.inf).astype(np.float64)
    with np.errstate(divide="ignore"):
        expected = np.log(np.exp(scores).sum(-1, keepdims=True))
    check(totals, np.where(np.isinf(expected), 0, expected))
    report = explain(attend, *given)
    contractions = [x for x in report.kernels if "contract" in x.operations]
    assert report.proven and len(contractions) == 1 and len(report.kernels) == 2


@pytest.mark.parametrize("kind", ["beside", "around"])
def test_peaks_are_used_elsewhere(kind: str) -> None:
    """Also where the result depends on them in a way that one kernel cannot compute."""
    q, k, v = normal(2, 30, 16), normal(2, 40, 16), normal(2, 40, 16)

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ nd.swapaxes(k, -1, -2)
        peak = nd.amax(scores, -1, True)
        result = nd.softmax(scores) @ v
        if kind == "beside":
            return result * peak, nd.sum(nd.exp(peak))
        return result + nd.sum(peak), nd.exp(peak)

    found = attend(*map(nd.asarray, (q, k, v)))
    scores = (q.astype(np.float64) @ np.swapaxes(k, -1, -2)).astype(np.float64)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - peak)
    result = weights / weights.sum(-1, keepdims=True) @ v
    if kind == "beside":
        expected = result * peak, np.exp(peak).sum()
    else:
        expected = result + peak.sum(), np.exp(peak)
    for ours, theirs in zip(found, expected, strict=True):
        check(ours, theirs, 2e-4)


# ---- gradients


def gradients(q: Any, k: Any, v: Any, g: Any, seen: Any) -> list[Any]:
    """The gradients in float64, by the formula, with weights in memory."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    shared = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, shared, 1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = np.where(seen, q @ np.swapaxes(keys, -1, -2) * scale, -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(peak), 0, peak))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    to_weights = g @ np.swapaxes(values, -1, -2)
    along = (weights * to_weights).sum(-1, keepdims=True)
    to_scores = weights * (to_weights - along) * scale
    found = [np.swapaxes(to_scores, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ g]
    grouped = (x.reshape(*k.shape[:2], shared, *x.shape[2:]).sum(2) for x in found)
    return [to_scores @ keys, *grouped]


@pytest.mark.parametrize("heads", [4, 2])
def test_gradients_at_every_length(heads: int) -> None:
    """Causal attention, queries and keys as long as each other, in one program for all lengths."""

    @genesis.jit
    def train(q: Any, k: Any, v: Any, g: Any) -> Any:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        result = functional.scaled_dot_product_attention(
            *given, is_causal=True, enable_gqa=heads != 4
        )
        return genesis.autograd.grad(result, given, g)

    for length in (*range(2, 70, 11), 48, 64, 130):
        q, k = normal(2, 4, length, 24), normal(2, heads, length, 24)
        v, g = normal(2, heads, length, 20), normal(2, 4, length, 20)
        seen = np.tri(length, dtype=bool)
        found = train(*map(genesis.tensor, (q, k, v, g)))
        for ours, theirs in zip(found, gradients(q, k, v, g, seen), strict=True):
            check(ours, theirs, 1e-4)


@pytest.mark.parametrize("rows, columns", [(1, 9), (9, 1), (70, 33), (33, 70), (97, 130)])
def test_gradients_under_a_mask(rows: int, columns: int) -> None:
    q, k, v = normal(1, 4, rows, 16), normal(1, 4, columns, 16), normal(1, 4, columns, 16)
    g, seen = normal(1, 4, rows, 16), RANDOM.random((rows, columns)) > 0.3
    seen[0] = False
    given = [genesis.tensor(x, requires_grad=True) for x in (q, k, v)]
    result = functional.scaled_dot_product_attention(*given, genesis.tensor(seen))
    found = genesis.autograd.grad(result, given, genesis.tensor(g))
    for ours, theirs in zip(found, gradients(q, k, v, g, seen), strict=True):
        check(ours, theirs, 1e-4)


def test_gradients_of_some() -> None:
    """Values that need no gradient."""
    q, k, v, g = (normal(1, 4, 50, 16) for _ in range(4))

    def train(q: Any, k: Any, v: Any, g: Any) -> Any:
        given = [x.detach().requires_grad_() for x in (q, k)]
        result = functional.scaled_dot_product_attention(*given, v)
        return genesis.autograd.grad(result, given, g)

    tensors = [genesis.tensor(x) for x in (q, k, v, g)]
    report = genesis.explain(train, *tensors)
    assert report.proven and sum("contract" in x.operations for x in report.kernels) == 2
    expected = gradients(q, k, v, g, True)[:2]
    for ours, theirs in zip(genesis.jit(train)(*tensors), expected, strict=True):
        check(ours, theirs, 1e-4)


def test_forward_streams_beside_gradients_in_memory() -> None:
    """Rows too long for one kernel of all gradients: scores are computed twice, in two ways."""
    q, k, v, g = (normal(1, 2, 40, 300) for _ in range(4))

    def train(q: Any, k: Any, v: Any, g: Any) -> Any:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        result = functional.scaled_dot_product_attention(*given, is_causal=True)
        return result.detach(), *genesis.autograd.grad(result, given, g)

    tensors = [genesis.tensor(x) for x in (q, k, v, g)]
    report = genesis.explain(train, *tensors)
    assert report.proven
    assert sum({"amax", "contract"} <= set(x.operations) for x in report.kernels) == 1
    result, *found = genesis.jit(train)(*tensors)
    seen = np.tri(40, dtype=bool)
    check(result, reference(q, k, v, seen))
    for ours, theirs in zip(found, gradients(q, k, v, g, seen), strict=True):
        check(ours, theirs, 2e-4)


def test_the_same_bits_whatever_the_number_of_threads() -> None:
    q, k, v = normal(1, 4, 1, 32), normal(1, 4, 600, 32), normal(1, 4, 600, 32)
    long = [normal(1, 4, 100, 32) for _ in range(4)]

    def run() -> list[Any]:
        arrays = [nd.asarray(x) for x in (q, k, v)]
        given = [genesis.tensor(x, requires_grad=True) for x in long[:3]]
        result = functional.scaled_dot_product_attention(*given, is_causal=True)
        found = genesis.autograd.grad(result, given, genesis.tensor(long[3]))
        decoded = functional.scaled_dot_product_attention(*arrays)
        return [decoded.numpy(), *(x.numpy() for x in found)]

    threads = get_num_threads()
    try:
        set_num_threads(1)
        alone = run()
        set_num_threads(5)
        for a, b in zip(alone, run(), strict=True):
            np.testing.assert_array_equal(a, b)
    finally:
        set_num_threads(threads)


def test_a_product_of_scores_is_no_score_itself() -> None:
    """Two results that look like gradients of attention, but for what their weights are made of."""
    a, b, c, left, right = (normal(*shape) for shape in ((9, 9), (9, 9), (9, 9), (2, 9), (3, 9)))

    def results(a: Any, b: Any, c: Any, left: Any, right: Any) -> Any:
        product = a @ b
        weights = product - c @ product
        return left @ weights, right @ weights.T

    ours = results(*map(nd.array, (a, b, c, left, right)))
    nd.realize(*ours)
    for got, want in zip(ours, results(a, b, c, left, right), strict=True):
        check(got, want, 1e-4)


#: What is made from places instead of read: queries, keys and values; with it gradients, a 1.
MADE = ((True, True, False), (True, False, False), (False, True, True), (True, True, True))


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(("rows", "keys", "width"), [(2, 2, 3), (5, 40, 20), (70, 33, 7)])
def test_numbers_made_from_their_places(
    made: tuple[bool, ...], rows: int, keys: int, width: int
) -> None:
    """Beyond the end of a row they go on, where what is read is zero."""

    def numbers(lib: Any, count: int, size: float) -> Any:
        places = lib.reshape(lib.arange(count * width), (1, 1, count, width))
        places = places.astype("float32")
        return places if size == 1 else places * np.float32(size)

    counts, sizes = (rows, keys, keys), (1.0, 4 / (rows * keys * width**2), 1.0)
    expected = [numbers(np, *x) for x in zip(counts, sizes, strict=True)]

    def given(k: int) -> Any:  # what somebody holds would be stored, and then read
        return numbers(nd, counts[k], sizes[k]) if made[k] else nd.array(expected[k])

    attend = functional.scaled_dot_product_attention
    check(attend(given(0), given(1), given(2)), reference(*expected))

    @genesis.jit
    def train() -> Any:
        leaves = [genesis.Tensor(given(k), True) for k in range(3)]
        return genesis.autograd.grad(attend(*leaves).sum(), leaves)

    wanted = gradients(*expected, np.ones((1, 1, rows, width), np.float32), True)
    for ours, theirs in zip(train(), wanted, strict=True):
        check(ours, theirs, 1e-3)
