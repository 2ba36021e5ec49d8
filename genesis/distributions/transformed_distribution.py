"""What draws of a distribution become."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from genesis.autograd.mode import no_grad
from genesis.distributions.distribution import Distribution, Independent
from genesis.distributions.transform import ComposeTransform, Transform, summed
from genesis.tensor.tensor import Tensor


class TransformedDistribution(Distribution):
    """The distribution of what draws of a base become by one or several transforms.

    >>> import genesis
    >>> from genesis.distributions import ExpTransform, Normal, TransformedDistribution
    >>> TransformedDistribution(Normal(0.0, 1.0), ExpTransform()).log_prob(genesis.tensor(1.0))
    tensor(-0.9189)
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform]
    ) -> None:
        given = [transforms] if isinstance(transforms, Transform) else transforms
        if not (isinstance(given, list | tuple) and all(isinstance(t, Transform) for t in given)):
            raise ValueError(
                f"{type(self).__name__}: transforms are a Transform or a list of them, not "
                f"{transforms!r}"
            )
        self.transforms = list(given)
        whole = ComposeTransform(self.transforms)
        base = base_distribution
        dims = len(base.event_shape)
        shape = base.batch_shape + base.event_shape
        if len(shape) < whole.event_dim:
            raise ValueError(
                f"{type(self).__name__}: transforms of {whole.event_dim} dimensions, of a base "
                f"whose draws have the shape {shape}"
            )
        made = whole.forward_shape(shape)
        if (needed := whole.inverse_shape(made)) != shape:
            base = base.expand(needed[: len(needed) - dims])
        self.base_dist = (
            Independent(base, whole.event_dim - dims) if whole.event_dim > dims else base
        )
        at = len(made) - whole.result_dim - max(dims - whole.event_dim, 0)
        self.batch_shape, self.event_shape = made[:at], made[at:]
        self.has_rsample = base.has_rsample
        self.support = whole.codomain if self.transforms else base.support

    def expand(self, batch_shape: Sequence[int]) -> TransformedDistribution:
        """The same distribution for a batch of a greater shape."""
        whole = ComposeTransform(self.transforms)
        wanted = whole.inverse_shape((*batch_shape, *self.event_shape))
        base = self.base_dist.expand(wanted[: len(wanted) - len(self.base_dist.event_shape)])
        found = copy.copy(self)
        found.base_dist, found.batch_shape = base, tuple(batch_shape)
        return found

    def _made(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """What draws of the base become, without gradients."""
        with no_grad():
            found: Tensor = self._made(self.base_dist.sample(sample_shape))
            return found

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach the parameters of the base and the transforms."""
        found: Tensor = self._made(self.base_dist.rsample(sample_shape))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density: that of the base, less how much volumes grow."""
        y, grown = self._supported(value), 0.0
        dims = len(self.event_shape)
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            term = transform.log_abs_det_jacobian(x, y)
            dims += transform.event_dim - transform.result_dim
            grown, y = grown + summed(term, dims - transform.event_dim), x
        found: Tensor = self.base_dist.log_prob(y) - grown
        return found

    def _risen(self, probability: Any) -> Any:
        """The probability of at most a value, where transforms fall, is that of at least it."""
        sign = ComposeTransform(self.transforms).sign
        if isinstance(sign, int) and sign == 1:
            return probability
        return sign * (probability - 0.5) + 0.5

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        value = self._supported(value)
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        found: Tensor = self._risen(self.base_dist.cdf(value))
        return found

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        found: Tensor = self._made(self.base_dist.icdf(self._risen(value)))
        return found


__all__ = ["TransformedDistribution"]
