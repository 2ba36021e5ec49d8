"""Distributions of real numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from genesis import functional as fn
from genesis.autograd.mode import no_grad
from genesis.distributions.distribution import (
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SIMPLEX,
    Distribution,
    Domain,
    ProbsOrLogits,
    require_one,
)
from genesis.distributions.gamma_gradient import moving_with
from genesis.functional.function import one_operation
from genesis.functional.special import i0e, i1e
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor

LOG_2PI = math.log(2 * math.pi)
EULER = 0.5772156649015329


def _between(shape: tuple[Any, ...], like: Tensor) -> Tensor:
    """Random numbers between 0 and 1, neither included."""
    drawn = creation.rand(*shape, dtype=like.dtype, device=like.device)
    tiny = 2.0**-24
    found: Tensor = drawn * (1 - 2 * tiny) + tiny
    return found


def _first(good: Tensor, proposals: Tensor) -> Tensor:
    """Along the first dimension, the first proposal that is good."""
    at = fn.argmax(good.long(), 0, keepdim=True)
    found: Tensor = fn.squeeze(fn.gather(proposals, 0, at), 0)
    return found


class _Located(Distribution):
    """A draw of a standard form, scaled and moved."""

    loc: Tensor
    scale: Tensor
    has_rsample = True
    domains = MappingProxyType({"scale": POSITIVE})

    def __init__(self, loc: Any, scale: Any) -> None:
        self._set(loc=loc, scale=scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach loc and scale."""
        found: Tensor = self.loc + self.scale * self._standard(self._extended(sample_shape))
        return found

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        """Draws for loc 0 and scale 1."""
        raise NotImplementedError

    def _from_loc(self, value: Any) -> Any:
        return (value - self.loc) / self.scale


@one_operation
def _normal_log_prob(value: Any, loc: Any, scale: Any) -> Any:
    return -0.5 * fn.square((value - loc) / scale) - fn.log(scale) - LOG_2PI / 2


class Normal(_Located):
    """The normal distribution.

    >>> import genesis
    >>> genesis.distributions.Normal(0.0, 1.0).log_prob(genesis.tensor(0.0))
    tensor(-0.9189)
    """

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        return creation.randn(*shape, dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        found: Tensor = _normal_log_prob(value, self.loc, self.scale)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = 0.5 + LOG_2PI / 2 + fn.log(self.scale)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        found: Tensor = 0.5 * fn.erfc(-self._from_loc(value) / math.sqrt(2))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self.loc + self.scale * fn.erfinv(2 * value - 1) * math.sqrt(2)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = fn.square(self.scale)
        return found


class LogNormal(Normal):
    """Numbers whose logarithms are normal."""

    support = POSITIVE

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach loc and scale."""
        found: Tensor = fn.exp(super().rsample(sample_shape))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        found: Tensor = super().log_prob(fn.log(value)) - fn.log(value)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = super().entropy() + self.loc
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        return super().cdf(fn.log(value))

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = fn.exp(super().icdf(value))
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = fn.exp(self.loc + fn.square(self.scale) / 2)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        spread = fn.square(self.scale)
        found: Tensor = fn.expm1(spread) * fn.exp(2 * self.loc + spread)
        return found


class Laplace(_Located):
    """Exponential to both sides."""

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        u = _between(shape, self.loc) * 2 - 1
        found: Tensor = -fn.sign(u) * fn.log1p(-fn.abs(u))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        found: Tensor = -fn.abs(self._from_loc(value)) - fn.log(2 * self.scale)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        z = self._from_loc(value)
        found: Tensor = 0.5 - 0.5 * fn.sign(z) * fn.expm1(-fn.abs(z))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        term = value - 0.5
        found: Tensor = self.loc - self.scale * fn.sign(term) * fn.log1p(-2 * fn.abs(term))
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = 1 + fn.log(2 * self.scale)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = 2 * fn.square(self.scale)
        return found


class Gumbel(_Located):
    """The greatest of many draws."""

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        found: Tensor = -fn.log(-fn.log(_between(shape, self.loc)))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        z = self._from_loc(value)
        found: Tensor = -(z + fn.exp(-z)) - fn.log(self.scale)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        found: Tensor = fn.exp(-fn.exp(-self._from_loc(value)))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self.loc - self.scale * fn.log(-fn.log(value))
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = fn.log(self.scale) + 1 + EULER
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.loc + EULER * self.scale
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = math.pi**2 / 6 * fn.square(self.scale)
        return found


class Cauchy(_Located):
    """The ratio of two normal numbers; it has no mean."""

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        found: Tensor = fn.tan(math.pi * (_between(shape, self.loc) - 0.5))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        spread = fn.log1p(fn.square(self._from_loc(value)))
        found: Tensor = -math.log(math.pi) - fn.log(self.scale) - spread
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        found: Tensor = fn.atan(self._from_loc(value)) / math.pi + 0.5
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self.loc + self.scale * fn.tan(math.pi * (value - 0.5))
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = math.log(4 * math.pi) + fn.log(self.scale)
        return found


class _Folded(_Located):
    """The size of what is spread evenly around 0: before the distribution of that among bases."""

    domains = MappingProxyType({"scale": POSITIVE})
    support = NOT_NEGATIVE

    def __init__(self, scale: Any) -> None:
        super().__init__(0.0 * scale, scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the scale."""
        found: Tensor = fn.abs(super().rsample(sample_shape))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        found: Tensor = fn.where(value >= 0, super().log_prob(value) + math.log(2), -math.inf)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        found: Tensor = 2 * super().cdf(self._supported(value)) - 1
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        return super().icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = super().entropy() - math.log(2)
        return found


class HalfNormal(_Folded, Normal):
    """The size of a normal number."""

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value, exact near 0 as well."""
        found: Tensor = fn.erf(self._from_loc(self._supported(value)) / math.sqrt(2))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability, exact near 0 as well."""
        found: Tensor = self.scale * fn.erfinv(value) * math.sqrt(2)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.scale * math.sqrt(2 / math.pi)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = fn.square(self.scale) * (1 - 2 / math.pi)
        return found


class HalfCauchy(_Folded, Cauchy):
    """The size of a Cauchy distributed number; its expectation is infinite."""

    @property
    def mean(self) -> Tensor:
        """The expectation: infinite."""
        return creation.full_like(self.scale, math.inf)

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean: infinite."""
        return creation.full_like(self.scale, math.inf)


class Uniform(Distribution):
    """All numbers from low to below high alike."""

    low: Tensor
    high: Tensor
    has_rsample = True

    def __init__(self, low: Any, high: Any) -> None:
        self._set(low=low, high=high)
        least = self.low.array
        above = Domain("above low", lambda x: x > least)
        self.high: Tensor = self._within("high", self.high, above)
        most = self.high.array
        self.support = Domain(
            "between low and high",
            lambda x: (x >= least) & (x <= most),
            kind="between",
            limits=(self.low, self.high),
        )

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach both ends."""
        shape = self._extended(sample_shape)
        drawn = creation.rand(*shape, dtype=self.low.dtype, device=self.low.device)
        found: Tensor = self.low + drawn * (self.high - self.low)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        inside = fn.logical_and(value >= self.low, value < self.high)
        found: Tensor = fn.where(inside, -fn.log(self.high - self.low), -math.inf)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        found: Tensor = fn.clamp((value - self.low) / (self.high - self.low), 0, 1)
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self.low + value * (self.high - self.low)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = fn.log(self.high - self.low)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = (self.low + self.high) / 2
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = fn.square(self.high - self.low) / 12
        return found


class Exponential(Distribution):
    """The time until something happens that happens at a rate."""

    rate: Tensor
    has_rsample = True
    domains = MappingProxyType({"rate": POSITIVE})
    support = NOT_NEGATIVE

    def __init__(self, rate: Any) -> None:
        self._set(rate=rate)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the rate."""
        shape = self._extended(sample_shape)
        drawn = creation.rand(*shape, dtype=self.rate.dtype, device=self.rate.device)
        found: Tensor = -fn.log1p(-drawn) / self.rate
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        found: Tensor = fn.log(self.rate) - self.rate * value
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        found: Tensor = -fn.expm1(-self.rate * value)
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = -fn.log1p(-value) / self.rate
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = 1 - fn.log(self.rate)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = 1 / self.rate
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = 1 / fn.square(self.rate)
        return found


class Gamma(Distribution):
    """Sums of exponential times; drawn by Marsaglia and Tsang's method.

    Of so many proposals that all are refused about once in 10**20 draws the first good one is
    taken, so that it is one program.
    """

    has_rsample = True
    domains = MappingProxyType({"concentration": POSITIVE, "rate": POSITIVE})
    support = NOT_NEGATIVE

    concentration: Tensor
    rate: Tensor
    PROPOSALS = 16

    def __init__(self, concentration: Any, rate: Any) -> None:
        self._set(concentration=concentration, rate=rate)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach concentration and rate."""
        found: Tensor = self._standard(self._extended(sample_shape)) / self.rate
        return found

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        """Draws for rate 1. For a concentration below 1 one more is taken, and made smaller."""
        a = self.concentration
        kind = {"dtype": a.dtype, "device": a.device}
        small = a < 1
        raised = fn.expand(fn.where(small, a + 1, a), shape)
        d = raised.detach() - 1 / 3
        x = creation.randn(self.PROPOSALS, *shape, **kind)
        v = (1 + x / fn.sqrt(9 * d)) ** 3
        u = creation.rand(self.PROPOSALS, *shape, **kind)
        limit = 0.5 * x * x + d * (1 - v + fn.log(fn.clamp(v, min=1e-30)))
        good = fn.logical_and(v > 0, fn.log(u) < limit)
        made = moving_with(raised, _first(good, fn.expand(d, v.shape) * v))
        shrunk = _between(shape, a) ** (1 / fn.where(small, a, 1.0))
        found: Tensor = fn.clamp(fn.where(small, made * shrunk, made), min=1e-30)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        a, b = self.concentration, self.rate
        found: Tensor = fn.xlogy(a, b) + fn.xlogy(a - 1, value) - b * value - fn.lgamma(a)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        found: Tensor = fn.igamma(self.concentration, self.rate * value)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        a = self.concentration
        found: Tensor = a - fn.log(self.rate) + fn.lgamma(a) + (1 - a) * fn.digamma(a)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.concentration / self.rate
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self.concentration / fn.square(self.rate)
        return found


class Chi2(Gamma):
    """The sum of the squares of `df` normal numbers.

    >>> import genesis
    >>> genesis.distributions.Chi2(genesis.tensor(3.0)).variance
    tensor(6.)
    """

    domains = MappingProxyType({"df": POSITIVE})

    df: Tensor

    def __init__(self, df: Any) -> None:
        self._set(df=df)
        super().__init__(0.5 * self.df, 0.5)


class StudentT(_Located):
    """A normal number over the size of `df` others; for few of them, tails are heavy."""

    domains = MappingProxyType({"df": POSITIVE, "scale": POSITIVE})

    df: Tensor

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        self._set(df=df, loc=loc, scale=scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach df, loc and scale."""
        return super().rsample(sample_shape)

    def _standard(self, shape: tuple[Any, ...]) -> Tensor:
        squares = self._part(Gamma, 0.5 * self.df, 0.5)._standard(shape)
        normal = creation.randn(*shape, dtype=self.df.dtype, device=self.df.device)
        found: Tensor = normal * fn.rsqrt(2 * squares / self.df)
        return found

    def _log_beta(self) -> Tensor:
        """The logarithm of the beta function of df / 2 and 1 / 2."""
        halves = fn.lgamma(0.5 * self.df) - fn.lgamma(0.5 * (self.df + 1))
        found: Tensor = halves + 0.5 * math.log(math.pi)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        squares = fn.log1p(fn.square(self._from_loc(value)) / self.df)
        volume = fn.log(self.scale) + 0.5 * fn.log(self.df) + self._log_beta()
        found: Tensor = -0.5 * (self.df + 1) * squares - volume
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        half = 0.5 * (self.df + 1)
        spread = half * (fn.digamma(half) - fn.digamma(0.5 * self.df))
        found: Tensor = fn.log(self.scale) + spread + 0.5 * fn.log(self.df) + self._log_beta()
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation, where there is one."""
        found: Tensor = fn.where(self.df > 1, self.loc, math.nan)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, where there is a mean."""
        finite = self.df > 2
        df = fn.where(finite, self.df, 3.0)
        known = fn.square(self.scale) * df / (df - 2)
        found: Tensor = fn.where(finite, known, fn.where(self.df > 1, math.inf, math.nan))
        return found


class Weibull(Distribution):
    """The time until something fails that wears out, or, for a concentration below 1, runs in."""

    scale: Tensor
    concentration: Tensor
    has_rsample = True
    domains = MappingProxyType({"scale": POSITIVE, "concentration": POSITIVE})
    support = POSITIVE

    def __init__(self, scale: Any, concentration: Any) -> None:
        self._set(scale=scale, concentration=concentration)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach scale and concentration."""
        return self.icdf(_between(self._extended(sample_shape), self.scale))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        k, far = self.concentration, fn.log(value / self.scale)
        found: Tensor = fn.log(k / self.scale) + (k - 1) * far - fn.exp(k * far)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        found: Tensor = -fn.expm1(-((value / self.scale) ** self.concentration))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self.scale * (-fn.log1p(-value)) ** (1 / self.concentration)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        k = self.concentration
        found: Tensor = EULER * (1 - 1 / k) + fn.log(self.scale / k) + 1
        return found

    def _moment(self, order: int) -> Tensor:
        """The expected power of a draw, for scale 1."""
        found: Tensor = fn.exp(fn.lgamma(1 + order / self.concentration))
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.scale * self._moment(1)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = fn.square(self.scale) * (self._moment(2) - fn.square(self._moment(1)))
        return found


class VonMises(Distribution):
    """An angle, near `loc`; drawn by Best and Fisher's method, as many proposals at once.

    All of them are refused about once in 10**14 draws. Mean and variance are those on the circle.
    """

    loc: Tensor
    concentration: Tensor
    domains = MappingProxyType({"concentration": POSITIVE})
    PROPOSALS = 32

    def __init__(self, loc: Any, concentration: Any) -> None:
        self._set(loc=loc, concentration=concentration)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws from -pi to pi: angles of a wrapped Cauchy distribution, some of them refused."""
        with no_grad():
            shape = (self.PROPOSALS, *self._extended(sample_shape))
            k = self.concentration
            tau = 1 + fn.sqrt(1 + 4 * fn.square(k))
            rho = 2 * k / (fn.sqrt(tau) * (fn.sqrt(tau) + math.sqrt(2)))
            spread = fn.square(1 - rho) / (2 * rho)
            turn = fn.tan(math.pi * (_between(shape, k) - 0.5))
            half = fn.atan((1 - rho) / (1 + rho) * turn)
            excess = k * (spread + 2 * fn.square(fn.sin(half)))
            good = fn.log(_between(shape, k)) < fn.log(excess) + 1 - excess
            angle = 2 * _first(good, half) + self.loc
            found: Tensor = fn.remainder(angle + math.pi, 2 * math.pi) - math.pi
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        k = self.concentration
        found: Tensor = k * (fn.cos(value - self.loc) - 1) - LOG_2PI - fn.log(i0e(k))
        return found

    @property
    def mean(self) -> Tensor:
        """The direction of the expected point on the circle."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """How far the expected point is inside of the circle."""
        found: Tensor = 1 - i1e(self.concentration) / i0e(self.concentration)
        return found


class Dirichlet(Distribution):
    """Shares that add up to 1."""

    has_rsample = True
    support = SIMPLEX

    def __init__(self, concentration: Tensor) -> None:
        self.concentration = self._within("concentration", concentration, POSITIVE)
        self.batch_shape = tuple(concentration.shape[:-1])
        self.event_shape = tuple(concentration.shape[-1:])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the concentration."""
        drawn = self._part(Gamma, self.concentration, 1.0)._standard(self._extended(sample_shape))
        found: Tensor = drawn / fn.sum(drawn, -1, keepdim=True)
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        a = self.concentration
        weights = fn.sum(fn.xlogy(a - 1, value), -1)
        found: Tensor = weights + fn.lgamma(fn.sum(a, -1)) - fn.sum(fn.lgamma(a), -1)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        a = self.concentration
        total = fn.sum(a, -1)
        found: Tensor = (
            fn.sum(fn.lgamma(a), -1)
            - fn.lgamma(total)
            - (a.shape[-1] - total) * fn.digamma(total)
            - fn.sum((a - 1) * fn.digamma(a), -1)
        )
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.concentration / fn.sum(self.concentration, -1, keepdim=True)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        total = fn.sum(self.concentration, -1, keepdim=True)
        found: Tensor = self.mean * (1 - self.mean) / (total + 1)
        return found


class Beta(Distribution):
    """A share between 0 and 1."""

    has_rsample = True
    domains = MappingProxyType({"concentration1": POSITIVE, "concentration0": POSITIVE})
    support = PROBABILITY

    concentration1: Tensor
    concentration0: Tensor

    def __init__(self, concentration1: Any, concentration0: Any) -> None:
        self._set(concentration1=concentration1, concentration0=concentration0)
        both = fn.stack([self.concentration1, self.concentration0], -1)
        self._pair = self._part(Dirichlet, both)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach both."""
        return self._pair.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        value = self._supported(value)
        return self._pair.log_prob(fn.stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        """The expected surprise."""
        return self._pair.entropy()

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self._pair.mean[..., 0]

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        return self._pair.variance[..., 0]


class ContinuousBernoulli(ProbsOrLogits):
    """Numbers between 0 and 1 with an exponential density: what a likelihood of pixels should be.

    Near logits of 0 moments are differences of great numbers: there they are power series.
    """

    has_rsample = True
    domains = MappingProxyType({"probs": PROBABILITY})
    support = PROBABILITY

    def __init__(self, probs: Any = None, logits: Any = None) -> None:
        require_one(type(self).__name__, probs, logits)
        self._set_odds(probs, logits, finite=True)

    def _by(self, series: Any, closed: Any) -> Any:
        """A function of the logits: a series near 0, and elsewhere one that is safe there."""
        x = self.logits
        near = fn.abs(x) < 0.3
        return fn.where(near, series(fn.where(near, x, 0.0)), closed(fn.where(near, 1.0, x)))

    def _log_scale(self) -> Any:
        """The logarithm of the density at 0."""
        return self._by(
            lambda x: x * (-1 / 2 + x * (-1 / 24 + x * x / 2880)),
            lambda x: fn.log(fn.abs(x) / -fn.expm1(-fn.abs(x))) - fn.relu(x),
        )

    def _falling(self, value: Any) -> tuple[Any, Any]:
        """The slope of the falling density that this one or its mirror image is; a value there."""
        slope = fn.clamp(fn.abs(self.logits), min=1e-6)
        return slope, fn.where(self.logits > 0, 1 - value, value)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the parameter."""
        shape = self._extended(sample_shape)
        return self.icdf(creation.rand(*shape, dtype=self.probs.dtype, device=self.probs.device))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        found: Tensor = self.logits * self._supported(value) + self._log_scale()
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        slope, at = self._falling(self._supported(value))
        share = fn.expm1(-slope * at) / fn.expm1(-slope)
        found: Tensor = fn.where(self.logits > 0, 1 - share, share)
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        slope, share = self._falling(value)
        at = -fn.log1p(share * fn.expm1(-slope)) / slope
        found: Tensor = fn.where(self.logits > 0, 1 - at, at)
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = -self.logits * self.mean - self._log_scale()
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = 0.5 + self._by(
            lambda x: x * (1 / 12 + x * x * (-1 / 720 + x * x / 30240)),
            lambda x: 0.5 / fn.tanh(0.5 * x) - 1 / x,
        )
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        found: Tensor = self._by(
            lambda x: 1 / 12 + x * x * (-1 / 240 + x * x / 6048),
            lambda x: 1 / (x * x) - fn.exp(-fn.abs(x)) / fn.square(fn.expm1(-fn.abs(x))),
        )
        return found


class GeneralizedPareto(Distribution):
    """By how much something exceeds a limit: exponential, or with a heavier or a shorter tail."""

    has_rsample = True
    domains = MappingProxyType({"scale": POSITIVE})
    loc: Tensor
    scale: Tensor
    concentration: Tensor

    def __init__(self, loc: Any, scale: Any, concentration: Any) -> None:
        self._set(loc=loc, scale=scale, concentration=concentration)
        shape = self.concentration
        end = self.loc - self.scale / fn.where(shape < 0, shape, -1.0)
        most = fn.where(shape < 0, end, math.inf)
        least, limit = self.loc.array, most.array
        self.support = Domain(
            "loc or more, and within the tail",
            lambda x: (x >= least) & (x <= limit),
            kind="between",
            limits=(self.loc, most),
        )

    def _bent(self, z: Any, bend: Any, second: float, third: float, fourth: float) -> Any:
        """``bend(c * z) / c`` by the concentration c, and near 0 by its series."""
        bent = self.concentration * z
        near = fn.abs(bent) < 1e-3
        far, u = fn.where(near, 1.0, bent), fn.where(near, bent, 0.0)
        return z * fn.where(near, 1 + u * (second + u * (third + u * fourth)), bend(far) / far)

    def _exponential(self, value: Any) -> Any:
        """What of values is exponentially distributed."""
        return self._bent((value - self.loc) / self.scale, fn.log1p, -1 / 2, 1 / 3, -1 / 4)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach all three."""
        return self.icdf(1 - _between(self._extended(sample_shape), self.loc))

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        passed = self._exponential(self._supported(value))
        found: Tensor = -fn.log(self.scale) - (1 + self.concentration) * passed
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        found: Tensor = -fn.expm1(-self._exponential(self._supported(value)))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        z = self._bent(-fn.log1p(-value), fn.expm1, 1 / 2, 1 / 6, 1 / 24)
        found: Tensor = self.loc + self.scale * z
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = fn.log(self.scale) + self.concentration + 1
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation, where there is one."""
        finite = self.concentration < 1
        left = 1 - fn.where(finite, self.concentration, 0.0)
        found: Tensor = fn.where(finite, self.loc + self.scale / left, math.nan)
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, where there is one."""
        finite = self.concentration < 0.5
        shape = fn.where(finite, self.concentration, 0.0)
        spread = fn.square(self.scale / (1 - shape)) / (1 - 2 * shape)
        found: Tensor = fn.where(finite, spread, math.nan)
        return found
