"""How the next token is chosen from scores.

A choice depends on a row of scores, on what its request asked for, and on a random word that the
request's seed and the token's number give: on nothing else that runs at the same time.

No vocabulary is sorted. A token is drawn from all of them, and kept if it belongs to those that
top-p and its relatives leave; if not, it and all that are less likely are out, and the next is
drawn from the rest. That gives exactly the probabilities that sorting first would give, and takes
hardly more than one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: Changes scores (float32, of all tokens) given the tokens so far.
Processor = Callable[[Sequence[int], Array], Array]

#: Neighbours whose probabilities are added first, so that a draw looks at few numbers.
BLOCK = 128


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks for. `temperature` 0 takes the likeliest token.

    >>> SamplingParams(top_p=1.5)
    Traceback (most recent call last):
    ValueError: SamplingParams: top_p is 1.5, which is not above 0 and at most 1
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0  #: the k likeliest tokens; 0: all
    top_p: float = 1.0  #: the fewest tokens with so much probability together
    min_p: float = 0.0  #: tokens with at least this share of the likeliest one's probability
    typical_p: float = 1.0  #: as `top_p`, those first whose surprise is nearest to the mean
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True  #: whether tokens that are not text are left out of it
    min_tokens: int = 0  #: before so many, no token that ends the answer
    seed: int | None = None
    n: int = 1
    beams: int = 0  #: search for the n likeliest answers with so many beams, without chance
    length_penalty: float = 1.0
    logprobs: int | None = None  #: how many likeliest tokens to tell, besides the chosen one
    prompt_logprobs: int | None = None
    processors: Sequence[Processor] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        limits: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < math.inf, "at least 0 and finite"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("seed", self.seed is None or 0 <= self.seed < 1 << 64, "between 0 and 2**64"),
            ("n", self.n >= 1, "at least 1"),
            ("beams", self.beams == 0 or self.beams >= self.n, "0 or at least n"),
            (
                "beams",
                not self.beams or not (self.stop or self.min_tokens or self.logprobs is not None),
                "to be had with stop, min_tokens or logprobs",
            ),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "at least 0"),
            (
                "prompt_logprobs",
                self.prompt_logprobs is None or self.prompt_logprobs >= 0,
                "at least 0",
            ),
            ("stop", all(isinstance(s, str) and s for s in self.stop), "strings, none empty"),
        )
        for name, fits, meaning in limits:
            if not fits:
                raise ValueError(
                    f"SamplingParams: {name} is {getattr(self, name)!r}, which is not {meaning}"
                )

    @property
    def greedy(self) -> bool:
        """Whether nothing is random."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether scores are used as the model gives them."""
        return not (
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
            or self.processors
        )


class ChoiceWords:
    """The random numbers of one choice of a request, the same in whatever company it runs.

    They are made when the first is wanted: choices of the likeliest token want none.
    """

    def __init__(self, seed: int, number: int, stream: int = 0) -> None:
        self._place = seed, [0, 0, stream, number]

    @cached_property
    def _generator(self) -> np.random.Generator:
        key, counter = self._place
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    def random(self) -> float:
        """A number from 0 to 1."""
        return float(self._generator.random())


# ---- scores before the choice


def adjusted(
    scores: Array, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> Array:
    """Scores after penalties, biases and processors; the given ones are left as they are."""
    if params.plain:
        return scores
    scores = scores.astype(np.float32, copy=True)
    if params.repetition_penalty != 1 and (prompt or answer):
        seen = np.unique(np.asarray([*prompt, *answer], np.int64))
        found = scores[seen]
        factor = np.float32(params.repetition_penalty)
        scores[seen] = np.where(found > 0, found / factor, found * factor)
    if (params.presence_penalty or params.frequency_penalty) and answer:
        tokens, counts = np.unique(np.asarray(answer, np.int64), return_counts=True)
        penalty = params.presence_penalty + params.frequency_penalty * counts
        scores[tokens] -= penalty.astype(np.float32)
    for token, bias in params.logit_bias.items():
        if not 0 <= token < len(scores):
            raise ValueError(
                f"logit_bias: there is no token {token} in a vocabulary of {len(scores)}"
            )
        scores[token] += np.float32(bias)
    for processor in params.processors:
        scores = np.asarray(processor([*prompt, *answer], scores), np.float32)
    return scores


def log_probabilities(scores: Array) -> Array:
    """The logarithms of the softmax of a row, in double precision."""
    wide = scores.astype(np.float64)
    wide -= wide.max()
    return wide - math.log(np.exp(wide).sum())


# ---- the choice


def choose(scores: Array, params: SamplingParams, words: ChoiceWords) -> int:
    """A token, by a row of scores. Scores of -infinity are never chosen."""
    best = int(scores.argmax())
    top = scores[best]
    if not np.isfinite(top):
        raise ValueError("the model's scores are not finite: nothing can be chosen")
    if params.greedy:
        return best
    if params.top_k:
        tokens = _largest(scores, params.top_k)
        kept = probabilities(scores[tokens], params, top_k=False)
        return int(tokens[_draw(kept, words.random())])
    if params.typical_p < 1 and (params.top_p < 1 or params.min_p):  # one after the other
        return _draw(probabilities(scores, params), words.random())
    return _drawn(scores, float(top), params, words)


def probabilities(scores: Array, params: SamplingParams, top_k: bool = True) -> Array:
    """The probability of every token, by sorting: what `choose` draws from.

    Among tokens of the same score the first are the likelier ones.

    >>> scores = np.array([0.0, 1.0, 1.0, -1.0], np.float32)
    >>> probabilities(scores, SamplingParams(top_k=2)).round(3).tolist()
    [0.0, 0.5, 0.5, 0.0]
    """
    if params.greedy:
        sure: Array = (np.arange(len(scores)) == scores.argmax()).astype(np.float64)
        return sure
    p = _softmax(scores, params)
    if top_k and 0 < params.top_k < len(p):
        p = _only(p, _largest(scores, params.top_k))
    if params.top_p < 1:
        p = _only(p, _first(np.argsort(-p, kind="stable"), p, params.top_p))
    if params.min_p:
        p = _only(p, np.flatnonzero(p >= params.min_p * p.max()))
    if params.typical_p < 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(p)
            mean = np.nansum(np.where(p > 0, p * surprise, 0))
            far = np.where(p > 0, np.abs(surprise - mean), np.inf)
        p = _only(p, _first(np.argsort(far, kind="stable"), p, params.typical_p))
    return p


def _softmax(scores: Array, params: SamplingParams) -> Array:
    wide = scores.astype(np.float64)
    p: Array = np.exp((wide - wide.max()) / params.temperature)
    p /= p.sum()
    return p


def _only(p: Array, tokens: Array) -> Array:
    """The probabilities of some tokens alone."""
    kept: Array = np.zeros_like(p)
    kept[tokens] = p[tokens]
    kept /= kept.sum()
    return kept


def _first(order: Array, p: Array, mass: float) -> Array:
    """The fewest tokens, in an order, that have a probability together."""
    before = np.cumsum(p[order]) - p[order]
    chosen: Array = order[before < mass]
    return chosen


def _largest(scores: Array, k: int) -> Array:
    """The k tokens with the highest scores, in the order of the vocabulary.

    They lie in the k columns with the highest peaks, or in columns that tie with them, if scores
    are written as a matrix: the peaks of columns are found many at once.
    """
    k = min(k, len(scores))
    columns = len(scores) // BLOCK
    whole = columns * BLOCK
    if k < columns // 4:
        peaks = scores[:whole].reshape(BLOCK, columns).max(0)
        least = np.partition(peaks, -k)[-k]
        chosen = np.flatnonzero(peaks >= least)
        inside = (chosen + np.arange(BLOCK)[:, None] * columns).reshape(-1)
        candidates = np.concatenate([inside, np.arange(whole, len(scores))])
    else:
        candidates = np.arange(len(scores))
    values = scores[candidates]
    edge = np.partition(values, -k)[-k]
    above, same = candidates[values > edge], candidates[values == edge]
    return np.sort(np.concatenate([above, same[: k - len(above)]]))


def _draw(p: Array, word: float) -> int:
    """A token by its probability: where a number between 0 and 1 falls."""
    sums = np.cumsum(p)
    at = int(np.searchsorted(sums, word * sums[-1], side="right"))
    # The number may be rounded up to the whole sum, behind the last token with a probability.
    return min(at, int(np.flatnonzero(p)[-1]))


def _drawn(scores: Array, top: float, params: SamplingParams, words: ChoiceWords) -> int:
    """A token among those that top-p and min-p, or typical-p, leave, without sorting."""
    logits = np.empty(-(-len(scores) // BLOCK) * BLOCK, np.float32)
    np.subtract(scores, np.float32(top), out=logits[: len(scores)])
    logits[len(scores) :] = -np.inf
    if params.temperature != 1:
        logits *= np.float32(1 / params.temperature)
    typical = params.typical_p < 1
    weights = np.exp(logits, out=None if typical else logits)
    total = float(_summed(weights).sum()) if typical or params.top_p < 1 else 0.0
    mass, rank = params.top_p, weights  # what is ranked higher is kept first
    if typical:
        logits[len(scores) :] = 0.0
        mean = float(_summed(weights * logits).sum()) / total
        mass, rank = params.typical_p, -np.abs(logits - np.float32(mean))
    if params.min_p:
        weights *= weights >= np.float32(params.min_p)
    while True:
        token = _in_blocks(weights, words)
        if mass == 1:
            return token
        ahead = rank > rank[token]
        ahead[:token] |= rank[:token] == rank[token]
        if _summed(weights, ahead).sum() < mass * total:
            return token
        weights *= ahead  # the token is out, and with it all that come after it


def _in_blocks(weights: Array, words: ChoiceWords) -> int:
    """A token by its weight: a block by the blocks' sums, then one inside of it."""
    block = _draw(_summed(weights), words.random())
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    return block * BLOCK + _draw(inside.astype(np.float64), words.random())


def _summed(weights: Array, mask: Array | None = None) -> Array:
    """The sums of blocks, of all weights or those in a mask; einsum takes a fifth of `sum`."""
    blocks = weights.reshape(-1, BLOCK)
    sums: Array = (
        np.einsum("ij->i", blocks)
        if mask is None
        else np.einsum("ij,ij->i", blocks, mask.reshape(-1, BLOCK))
    )
    return sums.astype(np.float64)


__all__ = [
    "Processor", "SamplingParams", "adjusted", "choose", "log_probabilities", "probabilities",
    "ChoiceWords",
]  # fmt: skip
