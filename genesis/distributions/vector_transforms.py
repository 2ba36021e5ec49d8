"""Transforms of vectors and matrices, and those that join, repeat or reshape others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.distributions import constraints
from genesis.distributions.distribution import NOT_NEGATIVE, PROBABILITY, SIMPLEX, Distribution
from genesis.distributions.transform import Transform, summed
from genesis.ir.size import product
from genesis.tensor import creation


class AbsTransform(Transform):
    """``abs(x)``: the inverse is the positive one."""

    codomain = NOT_NEGATIVE
    bijective = False

    def _call(self, x: Any) -> Any:
        return fn.abs(x)

    def _inverse(self, y: Any) -> Any:
        return y


class SoftmaxTransform(Transform):
    """``softmax(x)`` of vectors: not bijective, since a number may be added to all elements."""

    event_dim = 1
    codomain = SIMPLEX
    bijective = False

    def _call(self, x: Any) -> Any:
        return fn.softmax(x, -1)

    def _inverse(self, y: Any) -> Any:
        return fn.log(y)


class StickBreakingTransform(Transform):
    """Vectors onto probabilities, one more of them: each takes a share of what is left."""

    event_dim = 1
    codomain = SIMPLEX

    def _left(self, x: Any) -> Any:
        count = x.shape[-1]
        return count - creation.arange(count, dtype=x.dtype, device=x.device)

    def _call(self, x: Any) -> Any:
        shares = fn.sigmoid(x - fn.log(self._left(x)))
        left = fn.cumprod(1 - shares, -1)
        return fn.pad(shares, [0, 1], value=1.0) * fn.pad(left, [1, 0], value=1.0)

    def _inverse(self, y: Any) -> Any:
        x = y[..., :-1]
        left = fn.clamp(1 - fn.cumsum(x, -1), min=1e-38)
        return fn.log(x) - fn.log(left) + fn.log(self._left(x))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of the logarithms of what is taken, less the shares' own."""
        moved = x - fn.log(self._left(x))
        return fn.sum(-moved + fn.logsigmoid(moved) + fn.log(y[..., :-1]), -1)

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """One element more."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """One element less."""
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(Transform):
    """Square matrices onto lower triangular ones with a positive diagonal."""

    event_dim = 2
    codomain = constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return fn.tril(x, -1) + fn.diag_embed(fn.exp(fn.diagonal(x, 0, -2, -1)))

    def _inverse(self, y: Any) -> Any:
        return fn.tril(y, -1) + fn.diag_embed(fn.log(fn.diagonal(y, 0, -2, -1)))


class PositiveDefiniteTransform(Transform):
    """Square matrices onto positive definite ones."""

    event_dim = 2
    codomain = constraints.positive_definite

    def _call(self, x: Any) -> Any:
        root = LowerCholeskyTransform()(x)
        return fn.matmul(root, fn.transpose(root, -1, -2))

    def _inverse(self, y: Any) -> Any:
        return LowerCholeskyTransform().inv(fn.linalg.cholesky(y))


class CorrCholeskyTransform(Transform):
    """Vectors of n (n - 1) / 2 onto Cholesky factors of n by n correlation matrices."""

    event_dim, _result_dim = 1, 2
    codomain = constraints.corr_cholesky

    def _places(self, count: Any, device: str) -> tuple[Any, Any]:
        rows, columns = creation.tril_indices(count, count, -1, device=device)
        return rows, columns

    def _call(self, x: Any) -> Any:
        x = fn.tanh(x)
        eps = 1e-7
        x = fn.clamp(x, -1 + eps, 1 - eps)
        count = self._size(x.shape[-1])
        rows, columns = self._places(count, x.device)
        whole = fn.reshape(creation.zeros_like(x[..., :1]), (*x.shape[:-1], 1, 1))
        whole = fn.expand(whole, (*x.shape[:-1], count, count))
        flat = fn.reshape(whole, (*x.shape[:-1], count * count))
        at = fn.expand(rows * count + columns, x.shape)
        parts = fn.reshape(fn.scatter(flat, -1, at, x), whole.shape)
        left = fn.sqrt(fn.cumprod(1 - parts * parts, -1))
        ones = creation.eye(count, dtype=x.dtype, device=x.device)
        return (parts + ones) * fn.pad(left[..., :-1], [1, 0], value=1.0)

    def _inverse(self, y: Any) -> Any:
        left = fn.pad((1 - fn.cumsum(y * y, -1))[..., :-1], [1, 0], value=1.0)
        rows, columns = self._places(y.shape[-1], y.device)
        x = y[..., rows, columns] / fn.sqrt(left[..., rows, columns])
        return fn.atanh(x)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """What is left of rows to their lengths, and the slopes of tanh."""
        left = 1 - fn.cumsum(y * y, -1)
        rows, columns = self._places(y.shape[-1], y.device)
        inner = rows > columns + 1  # one place nearer to the diagonal there is something left
        rows, columns = rows[inner], columns[inner]
        grown = 0.5 * fn.sum(fn.log(left[..., rows, columns]), -1)
        return grown + fn.sum(-2 * (x + fn.softplus(-2 * x) - math.log(2)), -1)

    def _size(self, length: Any) -> int:
        count: int = round((0.25 + 2 * length) ** 0.5 + 0.5)
        if count * (count - 1) // 2 != length:
            raise ValueError(f"CorrCholeskyTransform: {length} is not n * (n - 1) / 2 for any n")
        return count

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """n by n."""
        count = self._size(shape[-1])
        return (*shape[:-1], count, count)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The elements below the diagonal."""
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)


class ReshapeTransform(Transform):
    """The last dimensions in another shape."""

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if product(self.in_shape) != product(self.out_shape):
            raise ValueError(f"ReshapeTransform: {in_shape} and {out_shape} are of different sizes")
        self.event_dim, self._result_dim = len(self.in_shape), len(self.out_shape)

    def _call(self, x: Any) -> Any:
        return fn.reshape(x, self.forward_shape(x.shape))

    def _inverse(self, y: Any) -> Any:
        return fn.reshape(y, self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """0."""
        return creation.zeros(*x.shape[: len(x.shape) - self.event_dim], dtype=x.dtype)

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape with its last dimensions replaced."""
        return self._replaced(tuple(shape), self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape with its last dimensions as they were."""
        return self._replaced(tuple(shape), self.out_shape, self.in_shape)

    def _replaced(self, shape: Any, old: Any, new: Any) -> tuple[Any, ...]:
        at = len(shape) - len(old)
        if shape[at:] != old:
            raise ValueError(f"ReshapeTransform: shape {shape} does not end in {old}")
        return (*shape[:at], *new)


class IndependentTransform(Transform):
    """A transform of which several in the last dimensions are one."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        of, count = base_transform, reinterpreted_batch_ndims
        self.base_transform, self.reinterpreted_batch_ndims = of, count
        self.event_dim, self._result_dim = of.event_dim + count, of.result_dim + count
        self.sign, self.bijective = of.sign, of.bijective
        if of.codomain is not None:
            self.codomain = constraints.independent(of.codomain, count)

    def _call(self, x: Any) -> Any:
        return self.base_transform(x)

    def _inverse(self, y: Any) -> Any:
        return self.base_transform._inverted(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of those of the parts."""
        term = self.base_transform.log_abs_det_jacobian(x, y)
        return summed(term, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """That of the base."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """That of the base."""
        return self.base_transform.inverse_shape(shape)


class CumulativeDistributionTransform(Transform):
    """The probability, by a distribution, of at most a value."""

    codomain = PROBABILITY

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    def _call(self, x: Any) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: Any) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of the density."""
        return self.distribution.log_prob(x)


class _Parts(Transform):
    """Several transforms, each of a part of the elements."""

    def __init__(self, transforms: Sequence[Transform], dim: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(transforms), dim
        self.event_dim = max(t.event_dim for t in transforms)
        self.bijective = all(t.bijective for t in transforms)

    def _cut(self, x: Any) -> Sequence[Any]:
        raise NotImplementedError

    def _joined(self, parts: Sequence[Any]) -> Any:
        raise NotImplementedError

    def _call(self, x: Any) -> Any:
        return self._joined([t(p) for t, p in zip(self.transforms, self._cut(x), strict=True)])

    def _inverse(self, y: Any) -> Any:
        pairs = zip(self.transforms, self._cut(y), strict=True)
        return self._joined([t._inverted(p) for t, p in pairs])

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Those of the parts, together."""
        parts = zip(self.transforms, self._cut(x), self._cut(y), strict=True)
        found = []
        for t, before, after in parts:
            term = t.log_abs_det_jacobian(before, after)
            found.append(summed(term, self.event_dim - t.event_dim))
        return self._joined(found)


class CatTransform(_Parts):
    """Transforms of parts along a dimension, of lengths."""

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    def _cut(self, x: Any) -> Sequence[Any]:
        parts: Sequence[Any] = fn.split(x, self.lengths, self.dim)
        return parts

    def _joined(self, parts: Sequence[Any]) -> Any:
        return fn.cat(parts, self.dim)


class StackTransform(_Parts):
    """Transforms of the elements of a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _cut(self, x: Any) -> Sequence[Any]:
        parts: Sequence[Any] = fn.unbind(x, self.dim)
        return parts

    def _joined(self, parts: Sequence[Any]) -> Any:
        return fn.stack(parts, self.dim)


__all__ = [
    "AbsTransform", "CatTransform", "CorrCholeskyTransform", "CumulativeDistributionTransform",
    "IndependentTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform",
    "ReshapeTransform", "SoftmaxTransform", "StackTransform", "StickBreakingTransform",
]  # fmt: skip
