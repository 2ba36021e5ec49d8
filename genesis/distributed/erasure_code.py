"""Parity: of `k` shards and `r` more, any `k` give all of them back.

A Cauchy code over the field of 256 elements. A shard is eight planes of words, one for each bit of
an element: multiplying by a constant is then a matrix of zeros and ones, and a shard of parity is a
list of exclusive ors of whole planes, which the compiler makes one kernel of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import genesis
from genesis import ndarray as nd

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[int, ...], ...]

_POLYNOMIAL = 0x11D
#: Bytes of a shard that are worked on at once.
_CHUNK = 1 << 20


@cache
def _logarithms() -> tuple[list[int], list[int]]:
    """Powers of the generator of the field, and logarithms to it."""
    powers, logarithms, x = [0] * 510, [0] * 256, 1
    for k in range(255):
        powers[k] = powers[k + 255] = x
        logarithms[x] = k
        x = x << 1 ^ (_POLYNOMIAL if x & 128 else 0)
    return powers, logarithms


def _times(a: int, b: int) -> int:
    powers, logarithms = _logarithms()
    return powers[logarithms[a] + logarithms[b]] if a and b else 0


def _inverse(a: int) -> int:
    powers, logarithms = _logarithms()
    return powers[255 - logarithms[a]]


def _code(shards: int, parity: int) -> Matrix:
    """What shards of parity are of the others: every square part of it can be inverted."""
    if shards < 1 or parity < 1 or shards + parity > 256:
        raise ValueError(f"parity: {shards} shards and {parity} of parity are not 2 to 256")
    return tuple(tuple(_inverse(shards + i ^ j) for j in range(shards)) for i in range(parity))


def _inverted(matrix: Matrix) -> Matrix:
    """By elimination in the field; the matrix can be inverted."""
    n = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for column in range(n):
        pivot = next(k for k in range(column, n) if rows[k][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = _inverse(rows[column][column])
        rows[column] = [_times(scale, x) for x in rows[column]]
        for k in range(n):
            if k != column and (factor := rows[k][column]):
                pairs = zip(rows[k], rows[column], strict=True)
                rows[k] = [a ^ _times(factor, b) for a, b in pairs]
    return tuple(tuple(row[n:]) for row in rows)


@cache
def _kernel(matrix: Matrix) -> Any:
    """What multiplies shards, each of eight planes of words, by a matrix."""

    def plane(shards: Sequence[Any], row: Sequence[int], bit: int) -> Any:
        total = None
        for shard, factor in zip(shards, row, strict=True):
            for k in range(8):
                if _times(factor, 1 << k) >> bit & 1:
                    total = shard[k] if total is None else nd.bitwise_xor(total, shard[k])
        return nd.zeros_like(shards[0][0]) if total is None else total

    def product(*shards: Any) -> Any:
        return tuple(nd.stack([plane(shards, row, bit) for bit in range(8)]) for row in matrix)

    return genesis.jit(product)


def _multiplied(matrix: Matrix, shards: Sequence[Array]) -> list[Array]:
    """The product of a matrix and shards of the same length, which eight words divide."""
    found = [np.empty_like(shards[0]) for _ in matrix]
    for part in _parts(len(shards[0])):
        planes = [nd.asarray(s[part].view(np.uint64).reshape(8, -1)) for s in shards]
        for out, made in zip(found, _kernel(matrix)(*planes), strict=True):
            out[part] = made.numpy().reshape(-1).view(np.uint8)
    return found


def _parts(length: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, length)) for start in range(0, length, _CHUNK))


def _padded(shard: Array, length: int) -> Array:
    size = -(-max(length, 1) // 64) * 64
    if len(shard) == size:
        return shard
    found = np.zeros(size, np.uint8)
    found[: len(shard)] = shard
    return found


def encode(shards: Sequence[Array], parity: int, number: int) -> Array:
    """One of so many shards of parity for shards of bytes, as long as the longest, or padded.

    >>> shards = [np.arange(100, dtype=np.uint8), np.ones(70, np.uint8)]
    >>> more = encode(shards, 1, 0)
    >>> int(rebuild({0: shards[0], 2: more}, [100, 70], 1)[1].sum())
    70
    """
    longest = max(len(s) for s in shards)
    row = _code(len(shards), parity)[number]
    return _multiplied((row,), [_padded(s, longest) for s in shards])[0]


def rebuild(known: Mapping[int, Array], lengths: Sequence[int], parity: int) -> list[Array]:
    """All shards, of which some are known: by number, those of parity after the others."""
    count, longest = len(lengths), max(lengths)
    missing = [k for k in range(count) if k not in known]
    if len(known) < count:
        raise ValueError(f"parity: {len(known)} shards do not give {count} back")
    found: dict[int, Array] = {k: known[k] for k in range(count) if k in known}
    if missing:
        chosen = sorted(known)[:count]
        rows = [*(tuple(int(i == j) for j in range(count)) for i in range(count))]
        whole = [*rows, *_code(count, parity)]
        inverse = _inverted(tuple(whole[k] for k in chosen))
        wanted = tuple(inverse[k] for k in missing)
        made = _multiplied(wanted, [_padded(known[k], longest) for k in chosen])
        found |= {k: shard[: lengths[k]] for k, shard in zip(missing, made, strict=True)}
    return [found[k] for k in range(count)]


__all__ = ["encode", "rebuild"]
