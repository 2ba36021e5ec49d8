"""Orthogonal polynomials of a given degree, each by the recurrence between three neighbours.

What is written under a family's name is its member of degree 1, and how degree ``k + 1`` follows
from `p` and `q`, those of degree ``k`` and ``k - 1``. Gradients come with the composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional.arithmetic import where
from genesis.functional.error_messages import named
from genesis.functional.function import plain

#: The greatest degree that a tensor may ask for.
MOST = 256
Polynomial = Callable[[Any, int], Any]
Recurrence = Callable[[int, Any, Any], Any]


def family(rule: Callable[[Any], tuple[Any, Recurrence]]) -> Polynomial:
    """The function of the argument and the degree."""
    name = rule.__name__

    def polynomial(input: Any, n: int) -> Any:
        if not isinstance(n, int):
            return _of_degrees(polynomial, name, input, n)
        now, following = rule(input if input.dtype.is_float else input / 1)
        if n <= 0:
            return plain(nd.full_like, now, float(n == 0))
        before: Any = 1.0
        for k in range(1, n):
            before, now = now, following(k, now, before)
        return now

    named(polynomial, name).__doc__ = rule.__doc__
    return polynomial


def _of_degrees(polynomial: Polynomial, name: str, x: Any, degrees: Any) -> Any:
    """The polynomials of the degrees that a tensor holds, each where it is asked for."""
    if not hasattr(degrees, "dtype") or degrees.dtype.is_complex:
        raise TypeError(f"{name}: the degree is an integer, not {type(degrees).__name__}")
    if not hasattr(x, "dtype"):
        x = degrees * 0 + x
    whole = degrees.long() if hasattr(degrees, "long") else degrees.astype("int64")
    most = int(whole.max().item()) if whole.numel() else 0
    if most > MOST:
        raise ValueError(f"{name}: degrees up to {MOST}, not {most}")
    found = polynomial(x, -1) + 0 * whole
    for k in range(most + 1):
        found = where(whole == k, polynomial(x, k), found)
    return found


@family
def chebyshev_polynomial_t(x: Any) -> tuple[Any, Recurrence]:
    """The Chebyshev polynomial of the first kind: ``cos(n * t)`` at ``cos(t)``."""
    return x, lambda k, p, q: 2 * x * p - q


@family
def chebyshev_polynomial_u(x: Any) -> tuple[Any, Recurrence]:
    """The Chebyshev polynomial of the second kind: ``sin((n + 1) * t) / sin(t)`` at ``cos(t)``."""
    return 2 * x, lambda k, p, q: 2 * x * p - q


@family
def chebyshev_polynomial_v(x: Any) -> tuple[Any, Recurrence]:
    """The Chebyshev polynomial of the third kind."""
    return 2 * x - 1, lambda k, p, q: 2 * x * p - q


@family
def chebyshev_polynomial_w(x: Any) -> tuple[Any, Recurrence]:
    """The Chebyshev polynomial of the fourth kind."""
    return 2 * x + 1, lambda k, p, q: 2 * x * p - q


@family
def hermite_polynomial_h(x: Any) -> tuple[Any, Recurrence]:
    """The Hermite polynomial of physics, orthogonal for the weight ``exp(-x**2)``."""
    return 2 * x, lambda k, p, q: 2 * (x * p - k * q)


@family
def hermite_polynomial_he(x: Any) -> tuple[Any, Recurrence]:
    """The Hermite polynomial of probability, orthogonal for the weight ``exp(-x**2 / 2)``."""
    return x, lambda k, p, q: x * p - k * q


@family
def laguerre_polynomial_l(x: Any) -> tuple[Any, Recurrence]:
    """The Laguerre polynomial, orthogonal on positive numbers for the weight ``exp(-x)``."""
    return 1 - x, lambda k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)


@family
def legendre_polynomial_p(x: Any) -> tuple[Any, Recurrence]:
    """The Legendre polynomial, orthogonal from -1 to 1."""
    return x, lambda k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)


def _shifted(polynomial: Polynomial) -> Polynomial:
    """With 0 to 1 in the place of -1 to 1."""

    def called(input: Any, n: int) -> Any:
        return polynomial(2 * input - 1, n)

    named(called, f"shifted_{polynomial.__name__}")
    called.__doc__ = f"`{polynomial.__name__}` with 0 to 1 in the place of -1 to 1."
    return called


shifted_chebyshev_polynomial_t = _shifted(chebyshev_polynomial_t)
shifted_chebyshev_polynomial_u = _shifted(chebyshev_polynomial_u)
shifted_chebyshev_polynomial_v = _shifted(chebyshev_polynomial_v)
shifted_chebyshev_polynomial_w = _shifted(chebyshev_polynomial_w)

__all__ = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he",
    "laguerre_polynomial_l", "legendre_polynomial_p", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
]  # fmt: skip
