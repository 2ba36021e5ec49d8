"""What a distribution is: something to draw from, whose draws have probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd.mode import no_grad
from genesis.functional.value_checks import demanded
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor
from genesis.type_info import finfo

D = TypeVar("D", bound="Distribution")


class Domain(NamedTuple):
    """Where parameters and draws lie."""

    words: str
    contains: Callable[[Any], Any]  #: of an array, which elements do
    event_dim: int = 0  #: how many last dimensions are one value
    is_discrete: bool = False
    kind: str = ""  #: by which a transform onto it is found
    limits: tuple[Any, ...] = ()

    def check(self, value: Any) -> Tensor:
        """Which values lie there."""
        found = self.contains(value.array)
        axes = tuple(range(-self.event_dim, 0))
        return Tensor(nd.all(found, axes) if axes else found)


POSITIVE = Domain("above 0", lambda x: x > 0, kind="above", limits=(0.0,))
NOT_NEGATIVE = Domain("0 or more", lambda x: x >= 0, kind="above", limits=(0.0,))
PROBABILITY = Domain(
    "between 0 and 1", lambda x: (x >= 0) & (x <= 1), kind="between", limits=(0.0, 1.0)
)
BIT = Domain("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
COUNT = Domain("an integer, 0 or more", lambda x: (x >= 0) & (x == nd.floor(x)), is_discrete=True)
SIMPLEX = Domain(
    "probabilities that add up to 1",
    lambda x: nd.all(x >= 0, -1, True) & (nd.abs(nd.sum(x, -1, True) - 1) < 1e-6),
    event_dim=1,
    kind="simplex",
)


class Validating(type):
    """What makes distributions: each may be told with `validate_args` whether to look at values."""

    def __call__(cls, *args: Any, validate_args: bool | None = None, **kwargs: Any) -> Any:
        """A distribution of these parameters."""
        found: Any = object.__new__(cls)  # type: ignore[arg-type]
        if validate_args is not None:
            found.validates = validate_args
        found.__init__(*args, **kwargs)
        return found


class Distribution(metaclass=Validating):
    """The base of all distributions.

    Parameters broadcast against each other to `batch_shape`; a draw of one has `event_shape`.
    `rsample` draws so that gradients reach the parameters; `sample` draws without. Parameters and
    values outside of where they can lie are a ValueError, unless `validate_args` is False.
    """

    has_rsample: bool = False
    domains: ClassVar[Mapping[str, Domain]] = {}
    support: Domain | None = None
    validates: bool = True
    batch_shape: tuple[Any, ...] = ()
    event_shape: tuple[Any, ...] = ()

    def _set(self, **parameters: Any) -> None:
        """Parameters as tensors of one shape, which is the batch's."""
        tensors = [x for x in parameters.values() if isinstance(x, Tensor)]
        like = tensors[0] if tensors else creation.zeros(())
        given = [
            x if isinstance(x, Tensor) else creation.tensor(float(x), device=like.device)
            for x in parameters.values()
        ]
        for name, x in zip(parameters, functional.broadcast_tensors(*given), strict=True):
            setattr(self, name, self._within(name, x, self.domains.get(name)))
            self.batch_shape = tuple(x.shape)

    def _within(self, name: str, x: Any, domain: Domain | None) -> Any:
        """Parameters or values, all of which must lie in a domain."""
        if domain is None or not self.validates or not isinstance(x, Tensor):
            return x
        complaint = f"{type(self).__name__}: {name} is not {domain.words}"
        return demanded(x, lambda y: nd.logical_not(domain.contains(y)), complaint)

    def _part(self, kind: Callable[..., D], *parameters: Any) -> D:
        """A distribution that this one is made of, which looks at values if this one does."""
        return kind(*parameters, validate_args=self.validates)

    def _supported(self, value: Any) -> Any:
        """Values that can be drawn."""
        value = creation.tensor(value) if isinstance(value, int | float) else value
        return self._within("value", value, self.support)

    @property
    def arg_constraints(self) -> dict[str, Domain]:
        """Where parameters must lie that cannot be anything."""
        return dict(self.domains)

    @classmethod
    def set_default_validate_args(cls, value: bool) -> None:
        """Whether distributions look at their parameters and values, if nothing else is said."""
        Distribution.validates = value

    def _extended(self, sample_shape: Sequence[int]) -> tuple[Any, ...]:
        """The shape of so many draws."""
        return (*tuple(sample_shape), *self.batch_shape, *self.event_shape)

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """The same distribution for a batch of a greater shape; its parameters are views."""
        found, dims = copy.copy(self), len(self.batch_shape)
        for name, x in vars(self).items():
            if isinstance(x, Tensor):
                setattr(found, name, functional.expand(x, (*batch_shape, *x.shape[dims:])))
            elif isinstance(x, Distribution):
                setattr(found, name, x.expand((*batch_shape, *x.batch_shape[dims:])))
        found.batch_shape = tuple(batch_shape)
        return found

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of some shape, without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of some shape, through which gradients reach the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample")

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the probability (density) of values."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Tensor:
        """The expected surprise, in nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def cdf(self, value: Any) -> Tensor:
        """The probability of at most a value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Any) -> Tensor:
        """The value that is not exceeded with a probability."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        found: Tensor = functional.sqrt(self.variance)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self.batch_shape})"


def require_one(name: str, probs: Any, logits: Any) -> None:
    """A ValueError unless either probabilities or logits are given."""
    if (probs is None) == (logits is None):
        raise ValueError(f"{name}: give probs or logits")


class ProbsOrLogits(Distribution):
    """Distributions with one probability, which is given as such or as its logit."""

    probs: Tensor
    logits: Tensor

    def _set_odds(self, probs: Any, logits: Any, finite: bool = False, **others: Any) -> None:
        """The probability and its logit, `finite` even of what is certain, and other parameters."""
        if logits is None:
            self._set(**others, probs=probs)
            eps = finfo(self.probs.dtype).eps if finite else None
            self.logits = functional.logit(self.probs, eps)
        else:
            self._set(**others, logits=logits)
            self.probs = functional.sigmoid(self.logits)


class Independent(Distribution):
    """A distribution whose last dimensions of a batch are one draw."""

    def __init__(self, base: Distribution, reinterpreted_batch_ndims: int) -> None:
        count = reinterpreted_batch_ndims
        if not 0 <= count <= len(base.batch_shape):
            raise ValueError(f"Independent: {count} dimensions of a batch {base.batch_shape}")
        at = len(base.batch_shape) - count
        self.base, self.count = base, count
        self.has_rsample = base.has_rsample
        self.batch_shape = base.batch_shape[:at]
        self.event_shape = base.batch_shape[at:] + base.event_shape

    def _summed(self, x: Tensor) -> Tensor:
        found: Tensor = functional.sum(x, tuple(range(-self.count, 0))) if self.count else x
        return found

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of the base."""
        return self.base.rsample(sample_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of the base, without gradients."""
        return self.base.sample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        """Of all elements of a draw together."""
        return self._summed(self.base.log_prob(value))

    def entropy(self) -> Tensor:
        """Of all elements of a draw together."""
        return self._summed(self.base.entropy())

    @property
    def mean(self) -> Tensor:
        """That of the base."""
        return self.base.mean

    @property
    def variance(self) -> Tensor:
        """That of the base."""
        return self.base.variance
