"""Adding rows to a table at positions that come from data: ``table[index[n]] += updates[n]``.

Two updates may hit one row, so blocks that divide the *updates* would race, and atomic additions
would add in a different order every time. Here blocks divide the *table*: each owns a range of
rows, looks at every index and adds only what falls into its range (owner-computes). An element
has one owner, who adds in the order of the updates: no race, the same bits every time, and an index
outside of the table has no owner and is dropped. That the write is safe follows from the condition
around it, whatever the indices are.

Indices are read by every block; they are small beside the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis.ir.dtype import float32, int64
from genesis.ir.kernel import Kernel, Role
from genesis.ir.kernel_builder import Builder


def build(rows: int = 8, width: int = 16) -> Kernel:
    """Add U rows of D floats to a table of R rows; a block owns `rows` rows."""
    k = Builder("scatter_add")
    R, D, U = k.symbol("R"), k.symbol("D"), k.symbol("U")
    index = k.input("index", int64, U)
    updates = k.input("updates", float32, U, D)
    table = k.buffer("table", float32, (R, D), Role.INOUT)
    b, v = k.grid("b", (R + (rows - 1)) // rows), k.tile("v", width)
    with k.loop("n", U) as (n,):
        row = k.let("row", index[n])
        owned = (row >= b * rows) & (row < b * rows + rows) & (row < R)
        with k.when(owned), k.loop("c", (D + (width - 1)) // width) as (c,):
            column = c * width + v
            inside = column < D
            value = table.load(row, column, mask=inside) + updates.load(n, column, mask=inside)
            k.store(table, (row, column), value, mask=inside)
    return k.kernel()


def arguments(rng: np.random.Generator, R: int, D: int, U: int) -> dict[str, Any]:
    """Random updates with repeated indices, some of them outside of the table."""
    return {
        "index": rng.integers(-2, R + 2, U),
        "updates": rng.standard_normal((U, D), np.float32),
        "table": rng.standard_normal((R, D), np.float32),
        "R": R,
        "D": D,
        "U": U,
    }


def reference(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The additions one after the other, in float64."""
    table, index = arguments["table"].astype(np.float64), arguments["index"]
    inside = (index >= 0) & (index < len(table))
    np.add.at(table, index[inside], arguments["updates"][inside])
    return {"table": table}
