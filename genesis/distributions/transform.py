"""Invertible functions that make one distribution out of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis import functional as fn
from genesis.distributions.distribution import POSITIVE, PROBABILITY, Domain
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor
from genesis.type_info import broadcast_shapes

BETWEEN_ONES = Domain(
    "between -1 and 1", lambda x: (x >= -1) & (x <= 1), kind="between", limits=(-1.0, 1.0)
)


def summed(x: Any, count: int) -> Any:
    """The sums over the last `count` dimensions."""
    return fn.sum(x, tuple(range(-count, 0))) if count else x


class Transform:
    """An invertible function: `_call`, `_inverse`, and the logarithm of how much it stretches.

    It acts on elements or, where `event_dim` is not 0, on so many last dimensions together, and
    gives `result_dim` of them. `sign` says whether it rises, 1, or falls, -1; `domain` and
    `codomain`, where they are not None, from where it goes to where. With `cache_size` 1 the
    inverse of the last result is what it was made of, exactly, also where rounding has left no
    inverse.
    """

    event_dim: int = 0
    _result_dim: int | None = None
    sign: Any = 1
    domain: Domain | None = None
    codomain: Domain | None = None
    bijective = True

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"{type(self).__name__}: cache_size is 0 or 1, not {cache_size}")
        self._keeps = cache_size == 1
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, x: Any) -> Any:
        """What x becomes."""
        if x is not None and x is self._last[0]:
            return self._last[1]
        y = self._call(x)
        if self._keeps:
            self._last = (x, y)
        return y

    def _call(self, x: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def _inverted(self, y: Any) -> Any:
        """What becomes y."""
        return self._last[0] if y is not None and y is self._last[1] else self._inverse(y)

    @property
    def inv(self) -> Transform:
        """The function back."""
        return _Inverse(self)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of the factor by which volumes grow, at x, which becomes y."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    @property
    def result_dim(self) -> int:
        """How many last dimensions of a result are made together."""
        return self.event_dim if self._result_dim is None else self._result_dim

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of what something of a shape becomes."""
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of what becomes something of a shape."""
        return self.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    """A transform the other way round."""

    def __init__(self, of: Transform) -> None:
        super().__init__()
        self._of, self.event_dim, self.sign = of, of.result_dim, of.sign
        self._result_dim = of.event_dim
        self.domain, self.codomain, self.bijective = of.codomain, of.domain, of.bijective

    def _call(self, x: Any) -> Any:
        return self._of._inverted(x)

    def _inverse(self, y: Any) -> Any:
        return self._of(y)

    @property
    def inv(self) -> Transform:
        """The transform that this is the inverse of."""
        return self._of

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """Minus that of the transform."""
        return -self._of.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """What the transform makes this shape of."""
        return self._of.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """What the transform makes of this shape."""
        return self._of.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{self._of!r}.inv"


class ComposeTransform(Transform):
    """Several transforms, one after another."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        dims = 0
        for t in reversed(parts):  # what the first needs, so that each gets what it needs
            dims = max(dims - t.result_dim, 0) + t.event_dim
        self.event_dim = dims
        for t in parts:
            dims += t.result_dim - t.event_dim
        self._result_dim = dims
        self.sign = math.prod(t.sign for t in parts)
        self.bijective = all(t.bijective for t in parts)
        if self.parts:
            self.domain, self.codomain = self.parts[0].domain, self.parts[-1].codomain

    def _call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Any) -> Any:
        for part in reversed(self.parts):
            y = part._inverted(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The sum of those of the parts."""
        total: Any = summed(creation.zeros_like(x), self.event_dim)
        dims = self.event_dim
        for part in self.parts:
            made = part(x)
            term = part.log_abs_det_jacobian(x, made)
            total, x = total + summed(term, dims - part.event_dim), made
            dims += part.result_dim - part.event_dim
        return total

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape after all parts."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape before all parts."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts})"


class ExpTransform(Transform):
    """``exp(x)``."""

    codomain = POSITIVE

    def _call(self, x: Any) -> Any:
        return fn.exp(x)

    def _inverse(self, y: Any) -> Any:
        return fn.log(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """x."""
        return x


class PowerTransform(Transform):
    """``x ** exponent``, for positive numbers."""

    domain = codomain = POSITIVE

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = creation.as_tensor(exponent)
        self.sign = fn.sign(self.exponent)

    def _call(self, x: Any) -> Any:
        return x**self.exponent

    def _inverse(self, y: Any) -> Any:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log(exponent * y / x)."""
        return fn.log(fn.abs(self.exponent * y / x))

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of x and the exponents together."""
        return tuple(broadcast_shapes(tuple(shape), tuple(self.exponent.shape)))


class SigmoidTransform(Transform):
    """``sigmoid(x)``."""

    codomain = PROBABILITY

    def _call(self, x: Any) -> Any:
        return fn.sigmoid(x)

    def _inverse(self, y: Any) -> Any:
        return fn.log(y) - fn.log1p(-y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of y * (1 - y)."""
        return -fn.softplus(-x) - fn.softplus(x)


class TanhTransform(Transform):
    """``tanh(x)``; with a cache, results that are rounded to 1 have inverses, too."""

    codomain = BETWEEN_ONES

    def _call(self, x: Any) -> Any:
        return fn.tanh(x)

    def _inverse(self, y: Any) -> Any:
        return fn.atanh(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of 1 - y * y, accurate where that is small."""
        return 2 * (math.log(2) - x - fn.softplus(-2 * x))


class SoftplusTransform(Transform):
    """``log(1 + exp(x))``."""

    codomain = POSITIVE

    def _call(self, x: Any) -> Any:
        return fn.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return fn.log(-fn.expm1(-y)) + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of sigmoid(x)."""
        return -fn.softplus(-x)


class AffineTransform(Transform):
    """``loc + scale * x``.

    >>> import genesis
    >>> genesis.distributions.AffineTransform(1.0, -2.0)(genesis.tensor([1.0, 2.0]))
    tensor([-1., -3.])
    """

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale = loc, scale
        self.event_dim = event_dim
        is_tensor = isinstance(scale, Tensor)
        self.sign = fn.sign(scale) if is_tensor else (scale > 0) - (scale < 0)

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """The logarithm of the size of the scale."""
        size = (
            self.scale
            if isinstance(self.scale, Tensor)
            else creation.full_like(x, float(self.scale))
        )
        return summed(fn.expand(fn.log(fn.abs(size)), y.shape), self.event_dim)

    def forward_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of x, loc and scale together."""
        shapes = [tuple(getattr(x, "shape", ())) for x in (self.loc, self.scale)]
        return tuple(broadcast_shapes(tuple(shape), *shapes))


#: What changes nothing.
identity_transform = ComposeTransform([])

__all__ = [
    "AffineTransform", "ComposeTransform", "ExpTransform", "PowerTransform", "SigmoidTransform",
    "SoftplusTransform", "TanhTransform", "Transform", "identity_transform",
]  # fmt: skip
