"""Draws of one of several distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.autograd.mode import no_grad
from genesis.distributions.discrete import Categorical
from genesis.distributions.distribution import Distribution
from genesis.tensor.tensor import Tensor


class MixtureSameFamily(Distribution):
    """Draws of one of several distributions, which are the last dimension of a batch.

    >>> import genesis
    >>> from genesis.distributions import Categorical, MixtureSameFamily, Normal
    >>> parts = Normal(genesis.tensor([-1.0, 3.0]), 1.0)
    >>> MixtureSameFamily(Categorical(genesis.tensor([0.5, 0.5])), parts).mean
    tensor(1.)
    """

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution
    ) -> None:
        choice, parts = mixture_distribution, component_distribution
        if not isinstance(choice, Categorical):
            raise ValueError(f"MixtureSameFamily: a mixture is Categorical, not {choice!r}")
        if not isinstance(parts, Distribution):
            raise ValueError(f"MixtureSameFamily: components are a Distribution, not {parts!r}")
        count = choice.logits.shape[-1]
        if parts.batch_shape[-1:] != (count,):
            raise ValueError(
                f"MixtureSameFamily: {count} choices among components of the batch shape "
                f"{parts.batch_shape}, whose last size is how many there are"
            )
        self.batch_shape, self.event_shape = parts.batch_shape[:-1], parts.event_shape
        self.mixture_distribution = choice.expand(self.batch_shape)
        self.component_distribution = parts
        self.support = parts.support

    def _each(self, value: Any) -> Any:
        """Values, to be compared with each component."""
        return fn.unsqueeze(value, -1 - len(self.event_shape))

    def _weighted(self, x: Any) -> Tensor:
        """The sum over the components of something of the shape of draws, by their weights."""
        weights = self.mixture_distribution.probs
        for _ in self.event_shape:
            weights = fn.unsqueeze(weights, -1)
        found: Tensor = fn.sum(weights * x, -1 - len(self.event_shape))
        return found

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of all components, of which one is taken."""
        with no_grad():
            drawn = self.component_distribution.sample(sample_shape)
            choice = self.mixture_distribution.sample(sample_shape)
            dim = len(choice.shape)
            at = fn.reshape(choice, (*choice.shape, 1, *(1 for _ in self.event_shape)))
            at = fn.expand(at, (*choice.shape, 1, *self.event_shape))
            found: Tensor = fn.squeeze(fn.gather(drawn, dim, at), dim)
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability (density)."""
        each = self.component_distribution.log_prob(self._each(value))
        found: Tensor = fn.logsumexp(each + self.mixture_distribution.logits, -1)
        return found

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        each = self.component_distribution.cdf(self._each(value))
        found: Tensor = fn.sum(each * self.mixture_distribution.probs, -1)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self._weighted(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        """The expected variance of the components, and how far their means are apart."""
        parts = self.component_distribution
        return self._weighted(parts.variance + fn.square(parts.mean - self._each(self.mean)))


__all__ = ["MixtureSameFamily"]
