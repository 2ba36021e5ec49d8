"""Rows that go where data says, put in order before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from genesis.ir.dtype import as_dtype

Array = npt.NDArray[Any]


def summed_rows(
    options: tuple[int, str], positions: Array, places: Array, updates: Array
) -> tuple[Array]:
    """Sums of the rows of `updates` that go to each row of the result; options (rows, dtype).

    `positions` are ascending, and `places` say which update each is of. What goes elsewhere than to
    a row of the result is left out. Numbers of less than 32 bits are summed up in float32.
    """
    rows, kind = options
    wide = np.result_type(as_dtype(kind).numpy, np.float32) if kind != "bfloat16" else np.float32
    inside = (positions >= 0) & (positions < rows)
    result = np.zeros((rows, updates.shape[1]), wide)
    np.add.at(result, positions[inside], updates[places[inside]].astype(wide))
    return (result.astype(as_dtype(kind).numpy),)


__all__ = ["summed_rows"]
