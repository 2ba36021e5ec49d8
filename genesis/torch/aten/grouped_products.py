"""Products of groups of rows, each with a matrix of its own, as mixtures of experts have them.

Groups lie one behind the other and `offs` says where each ends, which only data decides. So rows
are dealt out to tiles of one group each: there are never more than a full one for all rows and a
last one for every group, so everything has a size that is known. A tile is multiplied with the
matrix of its group where that lies.
"""

from __future__ import annotations

from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, int64
from genesis.ir.size import Size
from genesis.ndarray import NDArray
from genesis.torch.aten.registry import Unsupported, implements

#: Rows of a tile at most and at least.
ROWS = 128, 16
#: On a GPU, PyTorch's own kernel is faster for groups of fewer rows than this, if all matrices
#: together have so many elements: 58 against 831 us for 64 groups of 8 rows, 1024 by 1024 each.
FEW_ROWS = 64
LARGE = 1 << 22
#: Operations of a product that may as well be done for every group.
FEW = 1 << 33


@implements("_grouped_mm")
def _grouped_mm(
    x: NDArray,
    y: NDArray,
    offs: NDArray | None = None,
    bias: NDArray | None = None,
    out_dtype: DType | None = None,
) -> NDArray:
    if bias is not None:
        raise Unsupported("_grouped_mm with a bias")
    dtype = out_dtype or x.dtype
    if offs is None:
        return nd.matmul(x, y).astype(dtype)
    ends = offs.astype(int64)
    if x.ndim == 2 and y.ndim == 3:
        return _of_rows(x, y, ends).astype(dtype)
    if y.ndim == 2 and x.ndim == 3:  # of columns
        turned = _of_rows(nd.swapaxes(y, 0, 1), nd.swapaxes(x, 1, 2), ends)
        return nd.swapaxes(turned, 0, 1).astype(dtype)
    return _summed(x, y, ends).astype(dtype)


def _of_rows(x: NDArray, matrices: NDArray, ends: NDArray) -> NDArray:
    """Every row of x times the matrix of its group; rows behind the last group are 0."""
    rows, (groups, _, columns) = x.shape[0], matrices.shape
    if rows == 0:
        return nd.zeros((0, columns), x.dtype)
    height = _height(rows, groups)
    if x.device != "cpu" and height < FEW_ROWS and matrices.size > LARGE:
        raise Unsupported("_grouped_mm of few rows for each of large matrices")
    tiles = rows // height + groups
    starts = nd.concat([nd.zeros((1,), int64), ends[:-1]])
    counts = (ends - starts + (height - 1)) // height
    first = nd.cumsum(counts, 0) - counts  # tile of each group
    # Each row of a tile finds its group for itself, so that all are copied at once.
    place = nd.arange(tiles * height)
    group = _before(first + counts, place // height, groups)
    row = starts[group] + place - first[group] * height
    inside = (row < ends[group]) & (place // height < counts.sum())
    given = nd.where(inside[:, None], x[nd.clip(row, 0, rows - 1)], 0)
    group = _before(first + counts, nd.arange(tiles), groups)
    found = nd.matmul(given.reshape(tiles, height, -1), matrices[group])
    found = found.reshape(tiles * height, columns)
    # Back to where each row was.
    place = nd.arange(rows)
    own = _before(ends, place, groups)
    where = nd.clip(first[own] * height + place - starts[own], 0, tiles * height - 1)
    return nd.where((place < ends[-1])[:, None], found[where], 0)


def _height(rows: Any, groups: Any) -> int:
    """Rows of a tile: about as many as a group has, where that is known."""
    if isinstance(rows, Size) or isinstance(groups, Size):
        return 64
    height = ROWS[1]
    while height < min(ROWS[0], rows // groups):
        height *= 2
    return height


def _summed(x: NDArray, y: NDArray, ends: NDArray) -> NDArray:
    """For every group, the product of its columns of x and its rows of y."""
    groups, work = ends.shape[0], 2 * x.shape[0] * x.shape[1] * y.shape[1] * ends.shape[0]
    if isinstance(work, Size) or work > FEW:
        raise Unsupported("_grouped_mm that sums within groups, which takes all work for each")
    own = _before(ends, nd.arange(x.shape[1]), groups + 1)
    mine = own == nd.arange(groups)[:, None]
    return nd.matmul(nd.where(mine[:, None], x, 0), y)


def _before(ends: NDArray, position: NDArray, most: Any) -> NDArray:
    """How many groups end before each position, or there: which group it is in."""
    return nd.clip((ends <= position[:, None]).sum(1), 0, most - 1)
