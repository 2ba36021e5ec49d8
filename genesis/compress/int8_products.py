"""Products and convolutions of bytes: unsigned activations, signed weights, exact sums.

Chips multiply four pairs of bytes and add them up in one instruction, an unsigned byte by a signed
one. So channels come last, in quadruples, and weights lie as they are multiplied, `[block of 32
rows][taps][quadruple][row][4]`. Numbers ``scale * (byte - zero)`` give::

    Σ (x - zero) w = Σ x w - zero Σ w

of which the second part is known beforehand. What follows a sum, to the bytes of the next layer, is
computed in the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis import functional
from genesis import ndarray as nd
from genesis.compress.bit_packing import BLOCK, QUAD
from genesis.ir import dtype as dtypes
from genesis.tensor.tensor import Tensor


def packed(weight: Any) -> Any:
    """Signed bytes (rows, channels, *taps) as they are multiplied.

    >>> import genesis
    >>> packed(genesis.ones(40, 6, 3, 3, dtype=genesis.int8)).shape
    genesis.Size([2, 3, 3, 2, 32, 4])
    """
    more = _missing(weight)
    whole = functional.pad(weight, [n for k in reversed(more) for n in (0, k)])
    blocks, order = _blocks(whole)
    return functional.permute(whole.reshape(*blocks), order)


def packed_by_numpy(weight: Any) -> Any:
    """The same of an array that no program need be compiled for."""
    whole = np.pad(weight, [(0, n) for n in _missing(weight)])
    blocks, order = _blocks(whole)
    return np.ascontiguousarray(whole.reshape(blocks).transpose(order))


def _missing(weight: Any) -> list[int]:
    """How much whole blocks are larger, for each axis."""
    return [-weight.shape[0] % BLOCK, -weight.shape[1] % QUAD, *(0,) * (weight.ndim - 2)]


def _blocks(whole: Any) -> tuple[list[int], list[int]]:
    """The shape of whole blocks, and the order of its axes as they are multiplied."""
    rows, channels, *taps = whole.shape
    shape = [rows // BLOCK, BLOCK, channels // QUAD, QUAD, *taps]
    return shape, [0, *range(4, len(shape)), 2, 1, 3]


def sums(
    x: Any, weight: Any, rows: int, stride: Sequence[int] = (), dilation: Sequence[int] = (),
    padding: Sequence[tuple[int, int]] = (), zero: Any = 0,
) -> Any:  # fmt: skip
    """The sums ``Σ x w`` of bytes (n, *places, channels) and packed rows, as int32 (.., rows).

    Around the places lie so many zeros, which are the byte `zero`.

    >>> import genesis
    >>> x = genesis.ones(1, 5, 5, 6, dtype=genesis.uint8)
    >>> y = sums(x, packed(genesis.ones(40, 6, 3, 3, dtype=genesis.int8)), 40, (1, 1), (1, 1))
    >>> y.shape, y[0, 0, 0, 0].item()
    (genesis.Size([1, 3, 3, 40]), 54)
    """
    rank = weight.ndim - 4
    padding = padding or [(0, 0)] * rank
    taps = weight.shape[1 : 1 + rank]
    more = weight.shape[-3] * QUAD - x.shape[-1]
    x = functional.pad(x, (0, more)) if more else x
    if any(map(any, padding)):
        fill: Any = zero.array if isinstance(zero, Tensor) else zero
        x = Tensor(nd.pad(x.array, [(0, 0), *padding, (0, 0)], fill))
    x = x.reshape(*x.shape[:-1], -1, QUAD)
    for k in range(rank):
        x = Tensor(nd.windows(x.array, 1 + k, taps[k], stride[k], dilation[k]))
    last = x.ndim - rank
    x = functional.permute(x, (*range(last - 2), *range(last, x.ndim), last - 2, last - 1))
    outer, inner = "nabc"[: 1 + rank], "uvw"[:rank]
    equation = f"{outer}{inner}qj,s{inner}qrj->{outer}sr"
    y = functional.einsum(equation, x.to(dtypes.int32), weight.to(dtypes.int32))
    return functional.narrow(y.reshape(*y.shape[:-2], -1), -1, 0, rows)


def as_bytes(x: Any, dtype: Any = dtypes.uint8) -> Any:
    """Floats rounded to the nearest bytes, those beyond them to the last ones."""
    return Tensor(nd.astype(functional.round(x).array, dtype))


__all__ = ["as_bytes", "packed", "sums"]
