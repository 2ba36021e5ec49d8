"""Where numbers, vectors and matrices can lie, by the names PyTorch has for it.

>>> import genesis
>>> from genesis.distributions import constraints
>>> constraints.interval(0.0, 2.0).check(genesis.tensor([1.0, 3.0]))
tensor([ True, False])
"""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis import ndarray as nd
from genesis.distributions.distribution import (
    BIT,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SIMPLEX,
    Domain,
)
from genesis.tensor.tensor import Tensor

Constraint = Domain

real = Domain("a number", lambda x: x == x, kind="real")
positive, nonnegative, unit_interval, simplex = POSITIVE, NOT_NEGATIVE, PROBABILITY, SIMPLEX
boolean, nonnegative_integer = BIT, COUNT


def _array(limit: Any) -> Any:
    return limit.array if isinstance(limit, Tensor) else limit


def greater_than(lower_bound: Any) -> Domain:
    """Above a bound."""
    low = _array(lower_bound)
    return Domain(f"above {low}", lambda x: x > low, kind="above", limits=(lower_bound,))


def greater_than_eq(lower_bound: Any) -> Domain:
    """A bound, or above it."""
    low = _array(lower_bound)
    return Domain(f"{low} or more", lambda x: x >= low, kind="above", limits=(lower_bound,))


def less_than(upper_bound: Any) -> Domain:
    """Below a bound."""
    high = _array(upper_bound)
    return Domain(f"below {high}", lambda x: x < high, kind="below", limits=(upper_bound,))


def interval(lower_bound: Any, upper_bound: Any) -> Domain:
    """Between two bounds, or one of them."""
    low, high, limits = _array(lower_bound), _array(upper_bound), (lower_bound, upper_bound)
    words = f"between {low} and {high}"
    return Domain(words, lambda x: (x >= low) & (x <= high), kind="between", limits=limits)


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Domain:
    """Between two bounds, or the lower one."""
    low, high, limits = _array(lower_bound), _array(upper_bound), (lower_bound, upper_bound)
    words = f"at least {low} and below {high}"
    return Domain(words, lambda x: (x >= low) & (x < high), kind="between", limits=limits)


def integer_interval(lower_bound: Any, upper_bound: Any) -> Domain:
    """An integer between two bounds, or one of them."""
    low, high = _array(lower_bound), _array(upper_bound)

    def contains(x: Any) -> Any:
        return (x == nd.floor(x)) & (x >= low) & (x <= high)

    return Domain(f"an integer from {low} to {high}", contains, is_discrete=True)


positive_integer = Domain(
    "an integer above 0", lambda x: (x == nd.floor(x)) & (x >= 1), is_discrete=True
)
one_hot = Domain(
    "1 at one place and 0 elsewhere",
    lambda x: nd.all((x == 0) | (x == 1), -1, True) & (nd.sum(x, -1, True) == 1),
    event_dim=1,
    is_discrete=True,
)


def independent(base_constraint: Domain, reinterpreted_batch_ndims: int) -> Domain:
    """Values that are several of another domain together."""
    base, count = base_constraint, reinterpreted_batch_ndims
    return base._replace(event_dim=base.event_dim + count, kind="several", limits=(base, count))


real_vector = independent(real, 1)


def _lower(x: Any) -> Any:
    return fn.tril(x) == x


def _diagonal(x: Any) -> Any:
    return nd.unsqueeze(nd.diagonal(x, -2, -1), -1)


def _transposed(x: Any) -> Any:
    return nd.swapaxes(x, -1, -2)


def _unit_rows(x: Any) -> Any:
    return nd.abs(nd.sum(x * x, -1, True) - 1) <= 1e-5


def _symmetric(x: Any) -> Any:
    return nd.all(nd.abs(x - _transposed(x)) <= 1e-6 + 1e-5 * nd.abs(x), (-2, -1), True)


def _definite(x: Any) -> Any:
    least = nd.amin(nd.linalg.eigvalsh(x), -1, True)
    return nd.unsqueeze(least > 0, -1) & _symmetric(x)


square = Domain(
    "a square matrix",
    lambda x: nd.full(x.shape, x.shape[-1] == x.shape[-2], bool, x.device),
    event_dim=2,
)
lower_triangular = Domain("0 above the diagonal", _lower, event_dim=2)
lower_cholesky = Domain(
    "0 above the diagonal, which is positive",
    lambda x: _lower(x) & (_diagonal(x) > 0),
    event_dim=2,
    kind="lower_cholesky",
)
corr_cholesky = Domain(
    "0 above the diagonal, which is positive, with rows of length 1",
    lambda x: _lower(x) & (_diagonal(x) > 0) & _unit_rows(x),
    event_dim=2,
    kind="corr_cholesky",
)
symmetric = Domain("symmetric", _symmetric, event_dim=2)
positive_definite = Domain(
    "symmetric and positive definite", _definite, event_dim=2, kind="positive_definite"
)
positive_semidefinite = Domain(
    "symmetric with eigenvalues of 0 or more",
    lambda x: nd.unsqueeze(nd.amin(nd.linalg.eigvalsh(x), -1, True) >= 0, -1) & _symmetric(x),
    event_dim=2,
    kind="positive_definite",
)

__all__ = [
    "Constraint", "boolean", "corr_cholesky", "greater_than", "greater_than_eq",
    "half_open_interval", "independent", "integer_interval", "interval", "less_than",
    "lower_cholesky", "lower_triangular", "nonnegative", "nonnegative_integer", "one_hot",
    "positive", "positive_definite", "positive_integer", "positive_semidefinite", "real",
    "real_vector", "simplex", "square", "symmetric", "unit_interval",
]  # fmt: skip
