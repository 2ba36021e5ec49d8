"""Transforms from all real numbers onto a domain.

>>> import genesis
>>> from genesis.distributions import biject_to, constraints
>>> biject_to(constraints.interval(1.0, 3.0))(genesis.tensor(0.0))
tensor(2.)
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.distributions.distribution import Domain
from genesis.distributions.transform import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    Transform,
    identity_transform,
)  # fmt: skip
from genesis.distributions.vector_transforms import (
    CorrCholeskyTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StickBreakingTransform,
)  # fmt: skip

Maker = Callable[[Domain], Transform]


class ConstraintRegistry:
    """What transforms onto which domain, by the domain's kind."""

    def __init__(self) -> None:
        self._makers: dict[str, Maker] = {}

    def register(self, constraint: Domain, factory: Maker | None = None) -> Maker:
        """Say what transforms onto domains of a kind."""
        if factory is None:

            def registered(factory: Maker) -> Maker:
                return self.register(constraint, factory)

            return registered  # type: ignore[return-value]
        self._makers[constraint.kind or constraint.words] = factory
        return factory

    def __call__(self, constraint: Domain) -> Transform:
        """A transform onto a domain."""
        make = self._makers.get(constraint.kind or constraint.words)
        if make is None:
            raise NotImplementedError(f"no transform onto what is {constraint.words} is known")
        return make(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _above(domain: Domain) -> Transform:
    (low,) = domain.limits
    if isinstance(low, float) and low == 0:
        return ExpTransform()
    return ComposeTransform([ExpTransform(), AffineTransform(low, 1)])


def _below(domain: Domain) -> Transform:
    return ComposeTransform([ExpTransform(), AffineTransform(domain.limits[0], -1)])


def _between(domain: Domain) -> Transform:
    low, high = domain.limits
    if isinstance(low, float) and isinstance(high, float) and (low, high) == (0, 1):
        return SigmoidTransform()
    return ComposeTransform([SigmoidTransform(), AffineTransform(low, high - low)])


def _enter(registry: ConstraintRegistry, simplex: Maker) -> None:
    registry._makers |= {
        "real": lambda _: identity_transform,
        "above": _above,
        "below": _below,
        "between": _between,
        "simplex": simplex,
        "lower_cholesky": lambda _: LowerCholeskyTransform(),
        "positive_definite": lambda _: PositiveDefiniteTransform(),
        "corr_cholesky": lambda _: CorrCholeskyTransform(),
        "several": lambda d: IndependentTransform(registry(d.limits[0]), d.limits[1]),
    }


_enter(biject_to, lambda _: StickBreakingTransform())
_enter(transform_to, lambda _: SoftmaxTransform())

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]
