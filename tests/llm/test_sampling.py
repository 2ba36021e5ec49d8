"""Choices follow the probabilities that sorting gives, and depend on their own row alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from genesis.llm.sampling import (
    ChoiceWords,
    SamplingParams,
    adjusted,
    choose,
    log_probabilities,
    probabilities,
)

WAYS = {
    "plain": {},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "tiny top-p": {"top_p": 0.01},
    "min-p": {"min_p": 0.2},
    "top-p and min-p": {"top_p": 0.9, "min_p": 0.1},
    "typical": {"typical_p": 0.6},
    "all": {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
}
DRAWS = 3_000


def fits(counts: np.ndarray[Any, Any], p: np.ndarray[Any, Any]) -> float:
    """The probability of counts as far from a distribution as these; 0 where it has nothing."""
    assert p.sum() == pytest.approx(1)
    if counts[p == 0].any():
        return 0.0
    if np.count_nonzero(p) == 1:
        return 1.0
    expected = p * counts.sum()
    order = np.argsort(expected)
    few = order[np.cumsum(expected[order]) < 8]  # too rare to count: one class together
    rest = np.setdiff1d(np.flatnonzero(p), few)
    seen = [counts[rest], [counts[few].sum()]] if len(few) else [counts[rest]]
    wanted = [expected[rest], [expected[few].sum()]] if len(few) else [expected[rest]]
    a, b = np.concatenate(seen), np.concatenate(wanted)
    kept = b > 0
    return float(chisquare(a[kept], b[kept] * a[kept].sum() / b[kept].sum()).pvalue)


def drawn(
    scores: np.ndarray[Any, Any], params: SamplingParams, draws: int = DRAWS
) -> np.ndarray[Any, Any]:
    chosen = [choose(scores, params, ChoiceWords(7, k)) for k in range(draws)]
    return np.bincount(chosen, minlength=len(scores))


@pytest.mark.parametrize("draws", [DRAWS, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_draws_follow_the_distribution(way: str, draws: int) -> None:
    scores = (np.random.default_rng(1).standard_normal(40) * 2).astype(np.float32)
    scores[7] = scores[3]  # a tie
    params = SamplingParams(**WAYS[way])
    assert fits(drawn(scores, params, draws), probabilities(scores, params)) > 0.001


def test_the_test_can_fail() -> None:
    """ "Keep what is likelier than 0.01" is no top-p."""
    scores = (np.random.default_rng(1).standard_normal(40) * 2).astype(np.float32)
    counts = drawn(scores, SamplingParams(min_p=0.01))
    assert fits(counts, probabilities(scores, SamplingParams(top_p=0.9))) < 0.001


@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_is_what_transformers_leaves(way: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    params = SamplingParams(**WAYS[way])
    for seed in range(5):
        scores = (np.random.default_rng(seed).standard_normal(300) * 2).astype(np.float32)
        x = torch.tensor(scores, dtype=torch.float64)[None] / params.temperature
        if params.top_k:
            x = theirs.TopKLogitsWarper(params.top_k)(None, x)
        if params.top_p < 1:
            x = theirs.TopPLogitsWarper(params.top_p)(None, x)
        if params.min_p:
            x = theirs.MinPLogitsWarper(params.min_p)(None, x)
        if params.typical_p < 1:
            x = theirs.TypicalLogitsWarper(params.typical_p)(None, x)
        want = torch.softmax(x, -1)[0].numpy()
        np.testing.assert_allclose(probabilities(scores, params), want, atol=1e-6)


@pytest.mark.parametrize("size", [1, 5, 127, 128, 1000, 5000])
@pytest.mark.parametrize("k", [1, 3, 40, 900])
def test_the_largest_are_found_in_blocks(size: int, k: int) -> None:
    rng = np.random.default_rng(size + k)
    scores = rng.integers(0, 50, size).astype(np.float32)  # many ties
    kept = np.flatnonzero(probabilities(scores, SamplingParams(top_k=k)))
    want = np.sort(np.argsort(-scores, kind="stable")[:k])
    np.testing.assert_array_equal(kept, want)


def test_masked_tokens_are_never_chosen() -> None:
    scores = np.full(300, -np.inf, np.float32)
    scores[[5, 260]] = 0.0
    for way in WAYS.values():
        params = SamplingParams(**way)
        found = {choose(scores, params, ChoiceWords(3, k)) for k in range(50)}
        assert found <= {5, 260}
    with pytest.raises(ValueError, match="not finite"):
        choose(np.full(4, np.nan, np.float32), SamplingParams(), ChoiceWords(0, 0))


def test_penalties_are_those_of_the_interface() -> None:
    scores = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, logit_bias={3: 4.0}
    )
    got = adjusted(scores, params, prompt=[1], answer=[2, 2])
    assert got.tolist() == [1.0, -2.0, 1.0 - 0.5 - 0.5, 4.5]
    assert scores.tolist() == [1.0, -1.0, 2.0, 0.5]
    with pytest.raises(ValueError, match="no token 9"):
        adjusted(scores, SamplingParams(logit_bias={9: 1.0}), [], [])


def test_log_probabilities() -> None:
    scores = np.array([0.0, math.log(3)], np.float32)
    np.testing.assert_allclose(log_probabilities(scores), np.log([0.25, 0.75]), atol=1e-7)


def test_a_seed_gives_the_same_words_and_others_do_not() -> None:
    first = [ChoiceWords(5, k).random() for k in range(4)]
    assert first == [ChoiceWords(5, k).random() for k in range(4)]
    assert len({*first, *(ChoiceWords(6, k).random() for k in range(4))}) == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("top_p", 0.0), ("n", 0), ("max_tokens", 0), ("stop", [""]),
     ("seed", -1), ("temperature", math.nan), ("min_p", 2.0), ("min_tokens", 999)],
)  # fmt: skip
def test_bad_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"SamplingParams: {name} is"):
        SamplingParams(**{name: value})
