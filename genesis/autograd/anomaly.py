"""Anomaly mode: stop at the first operation that makes a NaN or an infinity, and say where.

Every operation is then computed at its line, and looked at: slow, and only for finding a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genesis.ndarray import NDArray, isfinite
from genesis.ndarray.core.source_lines import caller, describe

if TYPE_CHECKING:
    from genesis.autograd.tape import Creator

enabled = False


class AnomalyError(RuntimeError):
    """An operation made a NaN or an infinity out of finite numbers."""


class detect_anomaly:  # noqa: N801 - used like a statement
    """Find the operation, in forward or backward, that first makes a NaN or an infinity.

    >>> import genesis
    >>> x = genesis.tensor(0.0, requires_grad=True)
    >>> with genesis.autograd.detect_anomaly():
    ...     try:
    ...         genesis.sqrt(x).backward()
    ...     except genesis.autograd.AnomalyError as error:
    ...         print(str(error).split(" called at ")[0], "..")
    the gradient of Sqrt ..
    """

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        global enabled
        self._before = enabled
        enabled = self._mode

    def __exit__(self, *error: object) -> None:
        global enabled
        enabled = self._before


def note(creator: Creator) -> None:
    """Remember where the user called an operation."""
    creator.where = f"called at {describe(*caller())}"


def check_forward(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> None:
    """Refuse results that are not finite though the arguments are."""
    bad = _bad(results)
    if bad and not _bad(arguments):
        raise AnomalyError(f"{name} at {describe(*caller())} makes {bad} out of finite numbers")


def check_backward(creator: Creator, gradients: Sequence[Any]) -> None:
    """Refuse gradients that are not finite."""
    bad = _bad([g if isinstance(g, NDArray) or g is None else g.array for g in gradients])
    if bad:
        raise AnomalyError(f"the gradient of {creator.function.__name__} {creator.where} has {bad}")


def _bad(arrays: Sequence[Any]) -> str | None:
    for x in arrays:
        if isinstance(x, NDArray) and x.dtype.is_float and not isfinite(x).all().item():
            return "a NaN" if (x != x).any().item() else "an infinity"
    return None
