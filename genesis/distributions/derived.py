"""Distributions made of others: relaxed choices, functions of draws, mixtures of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from genesis import functional as fn
from genesis.autograd.mode import no_grad
from genesis.distributions.continuous import Exponential, Gamma, Normal, Uniform
from genesis.distributions.discrete import Categorical, OneHotCategorical, Poisson
from genesis.distributions.distribution import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SIMPLEX,
    Distribution,
    ProbsOrLogits,
    require_one,
)
from genesis.distributions.transform import (
    AffineTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
)  # fmt: skip
from genesis.distributions.transformed_distribution import TransformedDistribution
from genesis.distributions.vector_transforms import StickBreakingTransform
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else creation.tensor(float(x))


class Pareto(TransformedDistribution):
    """Numbers above `scale` whose logarithms are exponential."""

    domains = MappingProxyType({"scale": POSITIVE, "alpha": POSITIVE})
    scale: Tensor
    alpha: Tensor

    def __init__(self, scale: Any, alpha: Any) -> None:
        self._set(scale=scale, alpha=alpha)
        base = self._part(Exponential, self.alpha)
        super().__init__(base, [ExpTransform(), AffineTransform(0, self.scale)])

    @property
    def mean(self) -> Tensor:
        """The expectation, infinite for an alpha of 1 or less."""
        a = fn.clamp(self.alpha, min=1.0)
        found: Tensor = a * self.scale / (a - 1)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, infinite for an alpha of 2 or less."""
        a = fn.clamp(self.alpha, min=2.0)
        found: Tensor = fn.square(self.scale) * a / (fn.square(a - 1) * (a - 2))
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = fn.log(self.scale / self.alpha) + (1 + 1 / self.alpha)
        return found


class InverseGamma(TransformedDistribution):
    """The reciprocals of what is Gamma distributed."""

    domains = MappingProxyType({"concentration": POSITIVE, "rate": POSITIVE})
    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: Any, rate: Any) -> None:
        self._set(concentration=concentration, rate=rate)
        base = self._part(Gamma, self.concentration, self.rate)
        super().__init__(base, PowerTransform(-creation.ones_like(self.rate)))

    @property
    def mean(self) -> Tensor:
        """The expectation, infinite for a concentration of 1 or less."""
        c = self.concentration
        found: Tensor = fn.where(c > 1, self.rate / (c - 1), math.inf)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        c = self.concentration
        finite = fn.square(self.rate) / (fn.square(c - 1) * (c - 2))
        found: Tensor = fn.where(c > 2, finite, math.inf)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        c = self.concentration
        found: Tensor = c + fn.log(self.rate) + fn.lgamma(c) - (1 + c) * fn.digamma(c)
        return found


class Kumaraswamy(TransformedDistribution):
    """Numbers between 0 and 1, much like those of `Beta`."""

    domains = MappingProxyType({"concentration1": POSITIVE, "concentration0": POSITIVE})
    concentration1: Tensor
    concentration0: Tensor

    def __init__(self, concentration1: Any, concentration0: Any) -> None:
        self._set(concentration1=concentration1, concentration0=concentration0)
        one = creation.ones_like(self.concentration1)
        steps = [
            PowerTransform(1 / self.concentration0),
            AffineTransform(1.0, -1.0),
            PowerTransform(1 / self.concentration1),
        ]
        super().__init__(self._part(Uniform, 0 * one, one), steps)
        self.support = PROBABILITY

    def _moment(self, n: int) -> Any:
        a, b = 1 + n / self.concentration1, self.concentration0
        return fn.exp(fn.log(b) + fn.lgamma(a) + fn.lgamma(b) - fn.lgamma(a + b))

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self._moment(1)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self._moment(2) - fn.square(self._moment(1))
        return found


class FisherSnedecor(Distribution):
    """The ratio of two mean squares, of `df1` and of `df2` normal numbers."""

    has_rsample = True
    domains = MappingProxyType({"df1": POSITIVE, "df2": POSITIVE})
    support = POSITIVE
    df1: Tensor
    df2: Tensor

    def __init__(self, df1: Any, df2: Any) -> None:
        self._set(df1=df1, df2=df2)
        self._above = self._part(Gamma, 0.5 * self.df1, 0.5 * self.df1)
        self._below = self._part(Gamma, 0.5 * self.df2, 0.5 * self.df2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach both."""
        found: Tensor = self._above.rsample(sample_shape) / self._below.rsample(sample_shape)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value, a, b = self._supported(value), 0.5 * self.df1, 0.5 * self.df2
        scaled = a / b * value
        shape = fn.lgamma(a + b) - fn.lgamma(a) - fn.lgamma(b)
        found: Tensor = shape + a * fn.log(scaled) - fn.log(value) - (a + b) * fn.log1p(scaled)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation, where there is one."""
        known = self.df2 > 2
        n = fn.where(known, self.df2, 3.0)
        found: Tensor = fn.where(known, n / (n - 2), math.nan)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, where there is one."""
        known = self.df2 > 4
        m, n = self.df1, fn.where(known, self.df2, 5.0)
        spread = 2 * fn.square(n / (n - 2)) * (m + n - 2) / (m * (n - 4))
        found: Tensor = fn.where(known, spread, math.nan)
        return found


class LogisticNormal(TransformedDistribution):
    """Probabilities, of which there is one more than normal numbers they are made of."""

    def __init__(self, loc: Any, scale: Any) -> None:
        super().__init__(self._part(Normal, loc, scale), StickBreakingTransform())


class NegativeBinomial(ProbsOrLogits):
    """How often something works before it fails `total_count` times."""

    domains = MappingProxyType({"total_count": NOT_NEGATIVE, "probs": PROBABILITY})
    support = COUNT
    total_count: Tensor

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None) -> None:
        require_one(type(self).__name__, probs, logits)
        self._set_odds(probs, logits, total_count=total_count)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws: of a Poisson distribution whose rate is Gamma distributed."""
        with no_grad():
            rates = self._part(Gamma, self.total_count, fn.exp(-self.logits)).sample(sample_shape)
            return self._part(Poisson, rates).sample()

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability."""
        value, n = self._supported(value), self.total_count
        plain = n * fn.logsigmoid(-self.logits) + value * fn.logsigmoid(self.logits)
        ways = fn.lgamma(n + value) - fn.lgamma(1.0 + value) - fn.lgamma(n)
        found: Tensor = plain + fn.where(n + value == 0, 0.0, ways)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.total_count * fn.exp(self.logits)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self.mean / fn.sigmoid(-self.logits)
        return found


class _ExpRelaxedCategorical(Distribution):
    """The logarithms of a relaxed choice: Gumbel numbers and logits, over the temperature."""

    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None) -> None:
        self.choice = self._part(Categorical, probs, logits)
        self.temperature, self.logits = temperature, self.choice.logits
        self.batch_shape = self.choice.batch_shape
        self.event_shape = tuple(self.logits.shape[-1:])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach logits and temperature."""
        shape = self._extended(sample_shape)
        drawn = creation.rand(*shape, dtype=self.logits.dtype, device=self.logits.device)
        noise = -fn.log(-fn.log(drawn * (1 - 2.0**-23) + 2.0**-24))
        scores = (self.logits + noise) / self.temperature
        found: Tensor = scores - fn.logsumexp(scores, -1, True)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        count = self.event_shape[0]
        scores = self.logits - value * self.temperature
        scores = fn.sum(scores - fn.logsumexp(scores, -1, True), -1)
        power = fn.log(_tensor(self.temperature).to(self.logits.dtype)) * (count - 1)
        found: Tensor = scores + math.lgamma(count) + power
        return found


class RelaxedOneHotCategorical(TransformedDistribution):
    """A choice as probabilities, the nearer to one the lower the temperature (Gumbel-Softmax)."""

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None) -> None:
        base = self._part(_ExpRelaxedCategorical, temperature, probs, logits)
        super().__init__(base, ExpTransform())
        self.temperature, self.logits, self.probs = temperature, base.logits, base.choice.probs
        self.support = SIMPLEX


class _LogitRelaxedBernoulli(ProbsOrLogits):
    """The logits of a relaxed coin: logistic numbers and logits, over the temperature."""

    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None) -> None:
        require_one("RelaxedBernoulli", probs, logits)
        self._set_odds(probs, logits)
        self.temperature = temperature

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach logits and temperature."""
        shape = self._extended(sample_shape)
        drawn = creation.rand(*shape, dtype=self.logits.dtype, device=self.logits.device)
        found: Tensor = (fn.logit(drawn, 2.0**-24) + self.logits) / self.temperature
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        apart = self.logits - value * self.temperature
        power = fn.log(_tensor(self.temperature).to(self.logits.dtype))
        found: Tensor = power + apart - 2 * fn.softplus(apart)
        return found


class RelaxedBernoulli(TransformedDistribution):
    """A coin as a number between 0 and 1, the nearer to one of them the lower the temperature."""

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None) -> None:
        base = self._part(_LogitRelaxedBernoulli, temperature, probs, logits)
        super().__init__(base, SigmoidTransform())
        self.temperature, self.logits, self.probs = temperature, base.logits, base.probs


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """A choice as a vector that is 1 there, whose gradient is that of the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the probabilities as if they were drawn."""
        with no_grad():
            drawn = super().sample(sample_shape)
        found: Tensor = drawn + (self.probs - self.probs.detach())
        return found


__all__ = [
    "FisherSnedecor", "InverseGamma", "Kumaraswamy", "LogisticNormal", "NegativeBinomial",
    "OneHotCategoricalStraightThrough", "Pareto", "RelaxedBernoulli", "RelaxedOneHotCategorical",
]  # fmt: skip
