"""Distributions of normal vectors, and of the matrices that belong to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from genesis import functional as fn
from genesis.autograd.mode import no_grad
from genesis.distributions import constraints
from genesis.distributions.continuous import LOG_2PI, Beta, Chi2
from genesis.distributions.distribution import POSITIVE, Distribution, Domain
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor
from genesis.type_info import broadcast_shapes


def _diagonal(x: Any) -> Any:
    return fn.diagonal(x, 0, -2, -1)


def _log_diagonal(x: Any) -> Any:
    """Of a triangular matrix the logarithm of the determinant."""
    return fn.sum(fn.log(_diagonal(x)), -1)


def _transposed(x: Any) -> Any:
    return fn.transpose(x, -2, -1)


def _solved(root: Any, x: Any) -> Any:
    return fn.linalg.solve_triangular(root, x, upper=False)


def _root(name: str, covariance_matrix: Any, precision_matrix: Any, scale_tril: Any) -> Any:
    """The Cholesky factor of a covariance that is given in one of three ways."""
    if sum(x is not None for x in (covariance_matrix, precision_matrix, scale_tril)) != 1:
        raise ValueError(f"{name}: give one of covariance_matrix, precision_matrix and scale_tril")
    if precision_matrix is not None:
        covariance_matrix = fn.linalg.inv(precision_matrix)
    return fn.cholesky(covariance_matrix) if scale_tril is None else scale_tril


class NormalVector(Distribution):
    """A normal vector, whose covariance is known in one form or another."""

    has_rsample = True
    support = constraints.real_vector
    loc: Tensor

    def _factor(self) -> Tensor:
        """A matrix, not always square, which times its transpose is the covariance."""
        raise NotImplementedError

    def _squares(self, x: Tensor) -> Tensor:
        """The squared lengths of columns, measured in standard deviations, added up."""
        raise NotImplementedError

    def _log_volume(self) -> Tensor:
        """Half the logarithm of the covariance's determinant."""
        raise NotImplementedError

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        squares = self._squares(fn.unsqueeze(self._supported(value) - self.loc, -1))
        found: Tensor = -0.5 * (squares + self.event_shape[0] * LOG_2PI) - self._log_volume()
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        found: Tensor = self.event_shape[0] * (0.5 + LOG_2PI / 2) + self._log_volume()
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, element by element."""
        found: Tensor = fn.sum(fn.square(self._factor()), -1)
        return found

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        factor = self._factor()
        found: Tensor = fn.matmul(factor, _transposed(factor))
        return found

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        found: Tensor = fn.linalg.inv(self.covariance_matrix)
        return found


class MultivariateNormal(NormalVector):
    """Normal vectors: a mean and a covariance matrix, or its lower Cholesky factor."""

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
    ) -> None:
        root = _root("MultivariateNormal", covariance_matrix, precision_matrix, scale_tril)
        self.batch_shape = tuple(broadcast_shapes(loc.shape[:-1], root.shape[:-2]))
        self.event_shape = tuple(root.shape[-1:])
        self.loc = fn.expand(loc, (*self.batch_shape, *self.event_shape))
        self.scale_tril: Tensor = fn.expand(root, (*self.batch_shape, *root.shape[-2:]))

    def _factor(self) -> Tensor:
        return self.scale_tril

    def _squares(self, x: Tensor) -> Tensor:
        found: Tensor = fn.sum(fn.square(_solved(self.scale_tril, x)), (-2, -1))
        return found

    def _log_volume(self) -> Tensor:
        found: Tensor = _log_diagonal(self.scale_tril)
        return found

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach both."""
        shape = self._extended(sample_shape)
        drawn = creation.randn(*shape, 1, dtype=self.loc.dtype, device=self.loc.device)
        found: Tensor = self.loc + fn.squeeze(fn.matmul(self.scale_tril, drawn), -1)
        return found


class LowRankMultivariateNormal(NormalVector):
    """Normal vectors whose covariance is ``cov_factor @ cov_factor.T`` and a diagonal.

    What is factored is as large as `cov_factor` is wide (Woodbury's identity).
    """

    domains = MappingProxyType({"cov_diag": POSITIVE})

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> None:
        count = loc.shape[-1]
        if cov_factor.ndim < 2 or cov_factor.shape[-2] != count or cov_diag.shape[-1] != count:
            raise ValueError(
                f"LowRankMultivariateNormal: loc {tuple(loc.shape)}, cov_factor "
                f"{tuple(cov_factor.shape)} and cov_diag {tuple(cov_diag.shape)} are not of n, "
                "n by rank and n"
            )
        diagonal = self._within("cov_diag", cov_diag, POSITIVE)
        batch = broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.batch_shape, self.event_shape = tuple(batch), (count,)
        self.loc = fn.expand(loc, (*batch, count))
        self.cov_diag: Tensor = fn.expand(diagonal, (*batch, count))
        self.cov_factor: Tensor = fn.expand(cov_factor, (*batch, *cov_factor.shape[-2:]))
        scaled = cov_factor * fn.unsqueeze(fn.rsqrt(diagonal), -1)
        inner = fn.matmul(_transposed(scaled), scaled)
        one = creation.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        root = fn.cholesky(inner + one)
        self._inner_root: Tensor = fn.expand(root, (*batch, *root.shape[-2:]))

    def _factor(self) -> Tensor:
        found: Tensor = fn.cat([self.cov_factor, fn.diag_embed(fn.sqrt(self.cov_diag))], -1)
        return found

    def _squares(self, x: Tensor) -> Tensor:
        weighted = x / fn.unsqueeze(self.cov_diag, -1)
        explained = _solved(self._inner_root, fn.matmul(_transposed(self.cov_factor), weighted))
        found: Tensor = fn.sum(x * weighted, (-2, -1)) - fn.sum(fn.square(explained), (-2, -1))
        return found

    def _log_volume(self) -> Tensor:
        found: Tensor = _log_diagonal(self._inner_root) + 0.5 * fn.sum(fn.log(self.cov_diag), -1)
        return found

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        found: Tensor = fn.cholesky(self.covariance_matrix)
        return found

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach all three: few numbers are shared by elements."""
        shape, kind = self._extended(sample_shape), {"dtype": self.loc.dtype}
        kind["device"] = self.loc.device
        shared = creation.randn(*shape[:-1], self.cov_factor.shape[-1], 1, **kind)
        own = fn.sqrt(self.cov_diag) * creation.randn(*shape, **kind)
        found: Tensor = self.loc + fn.squeeze(fn.matmul(self.cov_factor, shared), -1) + own
        return found


class Wishart(Distribution):
    """The sum of the outer products of `df` normal vectors of mean 0 with themselves.

    Drawn by Bartlett's decomposition, for any df above the number of dimensions less 1.
    """

    has_rsample = True
    support = constraints.positive_definite

    def __init__(
        self,
        df: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
    ) -> None:
        root = _root("Wishart", covariance_matrix, precision_matrix, scale_tril)
        count = root.shape[-1]
        given = df if isinstance(df, Tensor) else creation.full_like(root[..., 0, 0], float(df))
        batch = tuple(broadcast_shapes(given.shape, root.shape[:-2]))
        self.batch_shape, self.event_shape = batch, (count, count)
        found = self._within("df", given, constraints.greater_than(count - 1))
        self.df: Tensor = fn.expand(found, batch)
        self.scale_tril: Tensor = fn.expand(root, (*batch, count, count))
        less = creation.arange(count, dtype=root.dtype, device=root.device)
        self._diagonal = self._part(Chi2, fn.unsqueeze(self.df, -1) - less)

    @property
    def arg_constraints(self) -> dict[str, Domain]:
        """Degrees of freedom are more than the dimensions less 1."""
        return {"df": constraints.greater_than(self.event_shape[0] - 1)}

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws through which gradients reach df and the covariance."""
        shape = self._extended(sample_shape)
        below = creation.randn(*shape, dtype=self.df.dtype, device=self.df.device)
        squares = self._diagonal.rsample(sample_shape)
        standard = fn.tril(below, -1) + fn.diag_embed(fn.sqrt(squares))
        root = fn.matmul(self.scale_tril, standard)
        found: Tensor = fn.matmul(root, _transposed(root))
        return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density."""
        root, df, count = fn.cholesky(self._supported(value)), self.df, self.event_shape[0]
        volume = count * math.log(2) / 2 + _log_diagonal(self.scale_tril)
        squares = fn.sum(fn.square(_solved(self.scale_tril, root)), (-2, -1))
        power = (df - count - 1) * _log_diagonal(root)
        found: Tensor = power - df * volume - fn.mvlgamma(df / 2, count) - squares / 2
        return found

    def entropy(self) -> Tensor:
        """The expected surprise."""
        df, count = self.df, self.event_shape[0]
        volume = count * math.log(2) / 2 + _log_diagonal(self.scale_tril)
        halves = 0.5 * creation.arange(count, dtype=df.dtype, device=df.device)
        slopes = fn.sum(fn.digamma(fn.unsqueeze(df / 2, -1) - halves), -1)
        spread = fn.mvlgamma(df / 2, count) - (df - count - 1) / 2 * slopes
        found: Tensor = (count + 1) * volume + spread + df * count / 2
        return found

    @property
    def covariance_matrix(self) -> Tensor:
        """That of the vectors."""
        found: Tensor = fn.matmul(self.scale_tril, _transposed(self.scale_tril))
        return found

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the vectors' covariance."""
        found: Tensor = fn.linalg.inv(self.covariance_matrix)
        return found

    @property
    def mean(self) -> Tensor:
        """The expectation."""
        found: Tensor = self.df[..., None, None] * self.covariance_matrix
        return found

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean, element by element."""
        covariance = self.covariance_matrix
        sizes = _diagonal(covariance)
        both = fn.unsqueeze(sizes, -1) * fn.unsqueeze(sizes, -2)
        found: Tensor = self.df[..., None, None] * (fn.square(covariance) + both)
        return found


class LKJCholesky(Distribution):
    """Lower Cholesky factors of correlation matrices, drawn by the onion method.

    The density of a correlation matrix is in proportion to its determinant, to the power of
    `concentration` less 1: for 1 all are alike.
    """

    domains = MappingProxyType({"concentration": POSITIVE})
    support = constraints.corr_cholesky
    concentration: Tensor

    def __init__(self, dim: int, concentration: Any = 1.0) -> None:
        if dim < 2:
            raise ValueError(f"LKJCholesky: dim is 2 or more, not {dim}")
        self._set(concentration=concentration)
        self.dim, self.event_shape = dim, (dim, dim)
        row = creation.arange(dim, dtype=self.concentration.dtype, device=self.concentration.device)
        before = fn.clamp(row - 1, min=0)
        left = fn.unsqueeze(self.concentration, -1) + 0.5 * (dim - 2) - 0.5 * before
        self._lengths = self._part(Beta, before + 0.5, left)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws: rows are directions, and how much of their length lies before the diagonal."""
        with no_grad():
            kind = {"dtype": self.concentration.dtype, "device": self.concentration.device}
            below = fn.tril(creation.randn(*self._extended(sample_shape), **kind), -1)
            norm = fn.norm(below, 2.0, -1, True)
            share = fn.unsqueeze(fn.sqrt(self._lengths.sample(sample_shape)), -1)
            rows = share * fn.where(norm > 0, below / norm, 0.0)
            rest = fn.clamp(1 - fn.sum(fn.square(rows), -1), min=1e-30)
            found: Tensor = rows + fn.diag_embed(fn.sqrt(rest))
            return found

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density of the factor, not of the correlation matrix."""
        diagonal = _diagonal(self._supported(value))[..., 1:]
        eta, count = self.concentration, self.dim - 1
        row = creation.arange(2, self.dim + 1, dtype=eta.dtype, device=eta.device)
        power = 2 * fn.unsqueeze(eta - 1, -1) + self.dim - row
        alpha = eta + 0.5 * count
        volume = fn.mvlgamma(alpha - 0.5, count) - count * fn.lgamma(alpha)
        total = fn.sum(power * fn.log(diagonal), -1) - volume
        found: Tensor = total - 0.5 * count * math.log(math.pi)
        return found


__all__ = ["LKJCholesky", "LowRankMultivariateNormal", "MultivariateNormal", "Wishart"]
