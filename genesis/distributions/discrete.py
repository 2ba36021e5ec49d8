"""Distributions of counts and choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from genesis import functional as fn
from genesis import ndarray as nd
from genesis.autograd.mode import no_grad
from genesis.distributions.distribution import (
    BIT,
    COUNT,
    NOT_NEGATIVE,
    PROBABILITY,
    Distribution,
    Domain,
    ProbsOrLogits,
    require_one,
)
from genesis.functional.function import one_operation
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor


class Bernoulli(ProbsOrLogits):
    """1 with a probability, else 0."""

    domains = MappingProxyType({"probs": PROBABILITY})
    support = BIT

    def __init__(self, probs: Any = None, logits: Any = None) -> None:
        require_one(type(self).__name__, probs, logits)
        # Of what is certain the logit is finite: 0 times infinity would be no number.
        self._set_odds(probs, logits, finite=True)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws."""
        with no_grad():
            shape = self._extended(sample_shape)
            drawn = creation.rand(*shape, dtype=self.probs.dtype, device=self.probs.device)
            found: Tensor = (drawn < self.probs).to(self.probs.dtype)
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value = self._supported(value)
        found: Tensor = value * self.logits - fn.softplus(self.logits)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = fn.softplus(self.logits) - self.probs * self.logits
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self.probs * (1 - self.probs)
        return found


class Categorical(Distribution):
    """One of several choices, by its number.

    >>> import genesis
    >>> genesis.distributions.Categorical(probs=genesis.tensor([1.0, 3.0])).probs
    tensor([0.2500, 0.7500])
    """

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        require_one(type(self).__name__, probs, logits)
        given = fn.log(self._weights(probs)) if logits is None else logits
        self.logits: Tensor = fn.log_softmax(given, -1)
        self.batch_shape = tuple(given.shape[:-1])

    def _weights(self, probs: Any) -> Any:
        weights = Domain(
            "weights, not negative and not all 0",
            lambda x: nd.all(x >= 0, -1, True) & nd.any(x > 0, -1, True),
        )
        return self._within("probs", probs, weights)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All choices, along a new first dimension."""
        count = self.logits.shape[-1]
        numbers = creation.arange(count, device=self.logits.device)
        found: Tensor = fn.reshape(numbers, (count, *(1 for _ in self.batch_shape)))
        return fn.expand(found, (count, *self.batch_shape)) if expand else found

    @property
    def probs(self) -> Tensor:
        """The probabilities of the choices."""
        found: Tensor = fn.exp(self.logits)
        return found

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws: the choice whose logit plus a Gumbel number is greatest."""
        with no_grad():
            shape = (*sample_shape, *self.logits.shape)
            drawn = creation.rand(*shape, dtype=self.logits.dtype, device=self.logits.device)
            found: Tensor = _greatest(self.logits, drawn)
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        found: Tensor = _picked(self.logits, value)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = _surprise(self.logits)
        return found


@one_operation
def _greatest(logits: Any, drawn: Any) -> Any:
    """The choices whose logits plus Gumbel numbers are greatest."""
    noise = -fn.log(-fn.log(drawn * (1 - 2.0**-23) + 2.0**-24))
    return fn.argmax(logits + noise, -1)


@one_operation
def _picked(logits: Any, value: Any) -> Any:
    """The logits of choices, which broadcast against them."""
    index = fn.unsqueeze(value.long(), -1)
    shape = fn.broadcast_tensors(index, logits[..., :1])[0].shape
    logits = fn.expand(logits, (*shape[:-1], logits.shape[-1]))
    return fn.squeeze(fn.gather(logits, -1, fn.expand(index, shape)), -1)


@one_operation
def _surprise(logits: Any) -> Any:
    """What a choice tells on average."""
    probs = fn.exp(logits)
    return -fn.sum(fn.where(probs > 0, probs * logits, 0.0), -1)


class OneHotCategorical(Categorical):
    """One of several choices, as a vector that is 1 there."""

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None) -> None:
        super().__init__(probs, logits)
        self.event_shape = tuple(self.logits.shape[-1:])

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws."""
        found: Tensor = fn.one_hot(super().sample(sample_shape), self.logits.shape[-1]).to(
            self.logits.dtype
        )
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        return super().log_prob(fn.argmax(value, -1))

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self.probs * (1 - self.probs)
        return found


class Geometric(Bernoulli):
    """How often something fails before it works."""

    support = COUNT

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws."""
        with no_grad():
            shape = self._extended(sample_shape)
            drawn = creation.rand(*shape, dtype=self.probs.dtype, device=self.probs.device)
            found: Tensor = fn.floor(fn.log1p(-drawn) / fn.log1p(-self.probs))
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value = self._supported(value)
        found: Tensor = fn.xlogy(value, 1 - self.probs) + fn.log(self.probs)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = super().entropy() / self.probs
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = 1 / self.probs - 1
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = (1 / self.probs - 1) / self.probs
        return found


class Poisson(Distribution):
    """How often something happens that happens at a rate."""

    domains = MappingProxyType({"rate": NOT_NEGATIVE})
    support = COUNT

    rate: Tensor

    def __init__(self, rate: Any) -> None:
        self._set(rate=rate)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws."""
        with no_grad():
            return creation.poisson(fn.expand(self.rate, self._extended(sample_shape)))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value = self._supported(value)
        found: Tensor = fn.xlogy(value, self.rate) - self.rate - fn.lgamma(value + 1)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.rate

    variance = mean


class _Trials(Distribution):
    """What comes out of `total_count` independent trials, added up."""

    total_count: int
    probs: Any
    _trial: Any

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws."""
        found: Tensor = fn.sum(self._trial.sample((self.total_count, *sample_shape)), 0)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.total_count * self.probs
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self.total_count * self._trial.variance
        return found


class Binomial(_Trials):
    """How many of so many trials work."""

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None) -> None:
        self.total_count = total_count
        self._trial = self._part(Bernoulli, probs, logits)
        self.probs, self.logits = self._trial.probs, self._trial.logits
        self.batch_shape = self._trial.batch_shape
        self.support = Domain(f"an integer from 0 to {total_count}", self._is_possible)

    def _is_possible(self, x: Any) -> Any:
        return COUNT.contains(x) & (x <= self.total_count)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value = self._supported(value)
        n = self.total_count
        ways = math.lgamma(n + 1) - fn.lgamma(value + 1) - fn.lgamma(n - value + 1)
        found: Tensor = ways + value * self.logits - n * fn.softplus(self.logits)
        return found


class Multinomial(_Trials):
    """How often each of several choices is taken in so many trials.

    >>> import genesis
    >>> genesis.distributions.Multinomial(4, genesis.tensor([1.0, 1.0])).mean
    tensor([2., 2.])
    """

    def __init__(
        self, total_count: int = 1, probs: Tensor | None = None, logits: Tensor | None = None
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("Multinomial: total_count is one int for the whole batch")
        require_one(type(self).__name__, probs, logits)
        self.total_count = total_count
        self._trial: OneHotCategorical = self._part(OneHotCategorical, probs, logits)
        self.batch_shape, self.event_shape = self._trial.batch_shape, self._trial.event_shape
        self.support = Domain(f"counts that add up to {total_count}", self._is_possible)

    def _is_possible(self, x: Any) -> Any:
        return COUNT.contains(x) & (nd.sum(x, -1, True) == self.total_count)

    @property
    def probs(self) -> Tensor:
        """The probabilities of the choices."""
        return self._trial.probs

    @property
    def logits(self) -> Tensor:
        """Their logarithms."""
        return self._trial.logits

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value = self._supported(value)
        ways = fn.lgamma(fn.sum(value, -1) + 1) - fn.sum(fn.lgamma(value + 1), -1)
        never = fn.logical_and(value == 0, self.logits == -math.inf)
        found: Tensor = ways + fn.sum(fn.where(never, 0.0, self.logits) * value, -1)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        n, like = self.total_count, self.logits
        counts = creation.arange(1, n + 1, dtype=like.dtype, device=like.device)
        counts = fn.reshape(counts, (n, *(1 for _ in like.shape)))
        chances = fn.exp(self._part(Binomial, n, self.probs).log_prob(counts))
        orders = fn.sum(fn.sum(chances * fn.lgamma(counts + 1), 0), -1)
        found: Tensor = n * self._trial.entropy() - math.lgamma(n + 1) + orders
        return found
