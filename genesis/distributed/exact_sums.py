"""Sums that do not depend on their order, so that any number of processes gives the same bits.

Numbers become 64-bit integers in a unit that all share: so small that nothing is lost of the
greatest one, nor of any that is not 2**22 times smaller, and so large that the sum of 65,536 fits.
Integers add up to the same in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: Sums or greatest values over processes: of arrays, by "sum" or "max".
Combine = Callable[[list[Array], str], list[Array]]


def exact_sums(terms: Sequence[Sequence[Array]], combine: Combine | None = None) -> list[Array]:
    """The sums of several arrays each, over all processes if there are others.

    Every array of the result has one unit: that of its greatest term anywhere. A term that is not
    finite makes its whole sum so.

    >>> one = [np.array([1e8, 1.0], "f4"), np.array([-1e8, 2.0], "f4"), np.array([0.5, 3.0], "f4")]
    >>> exact_sums([one])[0].tolist(), exact_sums([one[::-1]])[0].tolist()
    ([0.5, 6.0], [0.5, 6.0])
    """
    most = np.array([max(map(_greatest, xs)) for xs in terms])
    if combine is not None:
        (most,) = combine([most], "max")
    units = [_unit(float(m)) for m in most]
    sums = [_integers(xs, unit) for xs, unit in zip(terms, units, strict=True)]
    if combine is not None:
        sums = combine(sums, "sum")
    triples = zip(sums, units, terms, strict=True)
    return [_floats(total, unit, xs[0].dtype) for total, unit, xs in triples]


def _greatest(x: Array) -> float:
    found = float(np.abs(x).max(initial=0))
    return found if math.isfinite(found) else math.inf


def _unit(most: float) -> int | None:
    """The power of two that a unit is one over; None if a term is not finite."""
    return 46 - math.frexp(most)[1] if math.isfinite(most) else None


def _integers(terms: Sequence[Array], unit: int | None) -> Array:
    total = np.zeros(terms[0].shape, np.int64)
    if unit is None:
        return total
    for x in terms:
        total += np.rint(np.ldexp(x.astype(np.float64), unit)).astype(np.int64)
    return total


def _floats(total: Array, unit: int | None, dtype: Any) -> Array:
    if unit is None:
        return np.full(total.shape, np.nan, dtype)
    return np.ldexp(total.astype(np.float64), -unit).astype(dtype)


__all__ = ["exact_sums"]
