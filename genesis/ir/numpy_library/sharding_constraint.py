"""Wishes for where an array lies: for what it contains they change nothing."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt


def constrain(options: tuple[Any, ...], x: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """`x` itself; the options are a mesh's axes and epoch, and the dimension by axis.

    The partitioner grants the wish and takes the call away. What it does not divide, the body of a
    loop say, has no use for it.
    """
    return (x,)


__all__ = ["constrain"]
