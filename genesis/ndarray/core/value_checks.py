"""Demands: numbers that an operation does not take are an error, as positions out of range are.

Whether an element of an array is wrong is known when it is computed. So a demand is checked where
an index would be (`genesis.ndarray.core.index_checks`): at the call if the array lies in memory,
else by the realisation that needs it, or by the recorded function, before anything is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable

from genesis.ndarray.core.index_checks import code, require
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import read_code, realize_values
from genesis.ndarray.core.value import NO_AXIS, Checked
from genesis.ndarray.ops.elementwise import where
from genesis.ndarray.ops.normalize_index import is_readable


def demand(x: NDArray, wrong: Callable[[NDArray], NDArray], complaint: str) -> NDArray:
    """`x`, after a look at ``wrong(x)``: a ValueError of this complaint if that is True anywhere.

    What is wrong has a shape that broadcasts to that of `x`.

    >>> from genesis import ndarray as nd
    >>> demand(nd.array([1.0, -1.0]), lambda x: x < 0, "roots: of negative numbers")
    Traceback (most recent call last):
    ...
    ValueError: roots: of negative numbers
    """
    if x.size == 0:
        return x
    mask = wrong(x).value
    if is_readable(x.value):
        worst = code(mask)
        realize_values([worst])
        require(complaint, read_code(worst), 1, NO_AXIS)
        return x
    checked = wrap(Checked(mask, complaint, 1, NO_AXIS))
    # Whoever needs x needs the check: 0 stands where no number will be.
    return where(checked, 0, x)


__all__ = ["demand"]
