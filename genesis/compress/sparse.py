"""`SparseTensor`: a matrix without its zeros, and products with it.

What lies where follows the pattern of the zeros. Rows lie in strips of up to 32, next to each
other, so that a product reads the weights once, from the first byte to the last, and vectors are
rows. Rows that have fewer weights than others are filled up by zeros. With a `Format` the weights
that are kept are a `QuantizedTensor`.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import numpy as np

import genesis
from genesis import functional
from genesis.autograd import no_grad
from genesis.compress.format import Format, named
from genesis.compress.quantized_tensor import FEW_ROWS, QuantizedTensor, quantize

#: Rows of a strip.
STRIP = 32
#: The bits of a word of places.
_WORD = 32


class SparseTensor:
    """A matrix (rows, k) of which only some weights are stored; `of` makes one.

    >>> w = np.array([[0, 1, 2, 0], [3, 0, 0, 4]], np.float32)
    >>> SparseTensor.of(w, "2:4").linear(genesis.ones(1, 4))
    tensor([[3., 7.]])
    """

    #: How a pattern of this kind is written, with its two numbers.
    written: ClassVar[str] = "free"
    kinds: ClassVar[list[type[SparseTensor]]] = []
    #: The weights that are stored, and where they belong.
    values: Any
    places: Any

    def __init__(self, weight: Any, pattern: str, sizes: tuple[int, ...]) -> None:
        self.shape, self.pattern, self.sizes = weight.shape, pattern, sizes

    def __init_subclass__(cls) -> None:
        SparseTensor.kinds.append(cls)

    def __repr__(self) -> str:
        coded = isinstance(self.values, QuantizedTensor)
        format = f", {self.values.format.name!r}" if coded else ""
        return f"SparseTensor({self.shape}, {self.pattern!r}{format}, density={self.density:.3g})"

    @staticmethod
    @no_grad()
    def of(weight: Any, pattern: str = "free", format: str | Format | None = None) -> SparseTensor:
        """The weights of a matrix that are not zero.

        Patterns are ``free``, ``2:4`` (of any two such numbers up to 16: of four neighbours two are
        not zero) and ``64x64`` (blocks of rows and columns).
        """
        w = np.asarray(weight.detach().numpy() if hasattr(weight, "detach") else weight, np.float32)
        if w.ndim != 2 or not w.size:
            raise ValueError(f"SparseTensor.of: takes a matrix with weights, not {w.shape}")
        if not np.isfinite(w).all():
            raise ValueError(f"SparseTensor.of: of the weights {w.shape} some are NaN or infinite")
        for kind in SparseTensor.kinds:
            if found := re.fullmatch(kind.written, pattern):
                made = kind(w, pattern, tuple(map(int, found.groups())))
                made.values = genesis.tensor(made._filled(w))
                if format is not None:
                    made.values = quantize(made._matrix(), named(format, "SparseTensor.of"))
                return made
        raise ValueError(f"SparseTensor.of: patterns are free, 2:4 and 64x64, not {pattern!r}")

    @property
    def nbytes(self) -> int:
        """The bytes of values and of places."""
        return int(self.values.nbytes + self.places.nbytes)

    @property
    def density(self) -> float:
        """The share of the matrix that is stored."""
        stored = math.prod(self.values.shape)
        return float(stored / (self.shape[0] * self.shape[1]))

    def dense(self) -> Any:
        """The matrix."""
        return self._product(genesis.eye(self.shape[1])).T.contiguous()

    @no_grad()
    def linear(self, input: Any, bias: Any = None) -> Any:
        """``input @ self.T + bias``, of which only what is stored is multiplied."""
        rows, k = self.shape
        if input.shape[-1] != k:
            raise ValueError(
                f"SparseTensor.linear: an input of {tuple(input.shape)} does not fit {self.shape}"
            )
        y = self._product(input.to(genesis.float32).reshape(-1, k))
        y = y.reshape(*input.shape[:-1], rows)
        return (y if bias is None else y + bias).to(input.dtype)

    # ---- what a pattern has of its own

    def _filled(self, weight: Any) -> Any:
        """The weights that are stored, in order; sets `places`."""
        raise NotImplementedError

    def _matrix(self) -> Any:
        """What is stored as a matrix, or several, whose rows are those of the whole."""
        raise NotImplementedError

    def _product(self, x: Any) -> Any:
        raise NotImplementedError

    def _misfit(self) -> ValueError:
        return ValueError(
            f"SparseTensor.of: a matrix of {self.shape} has no pattern {self.pattern}"
        )


class _Free(SparseTensor):
    """Weights anywhere: `[strip][kept][row]`, with a column for every one."""

    written = "free"

    def _filled(self, weight: Any) -> Any:
        w = _in_strips(weight)
        there = w != 0
        most = max(1, int(there.sum(1).max()))
        columns = np.argsort(~there, 1, kind="stable")[:, :most]  # those that are there first
        dtype = np.uint8 if w.shape[1] <= 256 else np.int16 if w.shape[1] <= 1 << 15 else np.int32
        turned = columns.reshape(-1, STRIP, most).swapaxes(1, 2)
        self.places = genesis.tensor(np.ascontiguousarray(turned.astype(dtype)))
        values = np.take_along_axis(w, columns, 1).reshape(-1, STRIP, most)
        return np.ascontiguousarray(values.swapaxes(1, 2))

    def _matrix(self) -> Any:
        strips, most, _ = self.places.shape
        return self.values.permute(0, 2, 1).reshape(strips * STRIP, most)[: self.shape[0]]

    def _product(self, x: Any) -> Any:
        strips, most, _ = self.places.shape
        values, places = self.values, self.places.to(genesis.int64)
        if isinstance(values, QuantizedTensor):
            values = _rows_last(values.dequantize(), (strips, STRIP, most))
        if x.shape[0] <= FEW_ROWS:
            y = (x[:, places] * values).sum(2).reshape(x.shape[0], -1)
        else:  # vectors are rows of the input
            turned = functional.permute(x, (1, 0)).contiguous()
            y = (turned[places] * values[..., None]).sum(1).reshape(strips * STRIP, -1).T
        return y[:, : self.shape[0]]


class _Groups(SparseTensor):
    """Of every m neighbours n: `[strip][word][group][kept][row]`.

    A word of 32 bits has the place in its group for every weight that is kept of some groups.
    """

    written = r"(\d{1,2}):(\d{1,2})"

    def _filled(self, weight: Any) -> Any:
        n, m = self.sizes
        if not 0 < n <= m or not 2 <= m <= 16 or weight.shape[1] % m:
            raise self._misfit()
        w = _in_strips(weight)
        groups = w.reshape(len(w), -1, m)
        if ((groups != 0).sum(2) > n).any():
            raise self._misfit()
        order = np.sort(np.argsort(groups == 0, 2, kind="stable")[:, :, :n], 2)
        bits, count = self._word()
        fill = ((0, 0), (0, -groups.shape[1] % count), (0, 0))
        order, kept = (np.pad(a, fill) for a in (order, np.take_along_axis(groups, order, 2)))
        shape = (-1, STRIP, order.shape[1] // count, count * n)
        words = order.reshape(shape).astype(np.uint32) << (bits * np.arange(count * n, dtype="u4"))
        words = np.bitwise_or.reduce(words, 3).view(np.int32)
        self.places = genesis.tensor(np.ascontiguousarray(words.swapaxes(1, 2)))
        kept = kept.reshape(-1, STRIP, order.shape[1] // count, count, n)
        return np.ascontiguousarray(np.moveaxis(kept, 1, -1))

    def _word(self) -> tuple[int, int]:
        """The bits of a place, and how many groups have theirs in a word."""
        n, m = self.sizes
        bits = 2 if m <= 4 else 4
        return bits, 1 << (_WORD // bits // n).bit_length() - 1

    def _matrix(self) -> Any:
        strips = self.values.shape[0]
        turned = functional.permute(self.values, (0, 4, 1, 2, 3))
        return turned.reshape(strips * STRIP, -1)[: self.shape[0]]

    def _product(self, x: Any) -> Any:
        (n, m), (bits, count) = self.sizes, self._word()
        strips, words, _ = self.places.shape
        values = self.values
        if isinstance(values, QuantizedTensor):
            shape = (strips, STRIP, words, count, n)
            values = _rows_last(values.dequantize(), shape)
        x = functional.pad(x, (0, words * count * m - x.shape[1]))
        shifts = (genesis.arange(count * n) * bits).to(genesis.int32).reshape(count, n, 1)
        at = self.places[:, :, None, None] >> shifts
        if x.shape[0] > FEW_ROWS:  # made dense, once for all rows
            there = (at & (1 << bits) - 1)[..., None] == genesis.arange(m).to(genesis.int32)
            dense = functional.where(there, values[..., None], 0.0).sum(3)  # (.., row, m)
            x = x.reshape(-1, words, count, m)
            y = functional.einsum("twgm,swgrm->tsr", x, dense)
        else:
            x = x.reshape(-1, 1, words, count, 1, 1, m)
            chosen = _chosen([x[..., j] for j in range(m)], at)
            y = (chosen * values).sum((2, 3, 4))
        return y.reshape(-1, strips * STRIP)[:, : self.shape[0]]


class _Blocks(SparseTensor):
    """Blocks: `[row of blocks][strip][block][column][row]`, with the places of blocks."""

    written = r"(\d{1,5})x(\d{1,5})"

    def _filled(self, weight: Any) -> Any:
        down, across = self.sizes
        rows, k = self.shape
        if not down or not across or rows % down or k % across:
            raise self._misfit()
        blocks = weight.reshape(rows // down, down, -1, across).swapaxes(1, 2)
        there = blocks.any((2, 3))
        most = max(1, int(there.sum(1).max()))
        places = np.argsort(~there, 1, kind="stable")[:, :most]  # those that are there first
        dtype = np.uint8 if k // across <= 256 else np.int32
        self.places = genesis.tensor(places.astype(dtype))
        values = np.take_along_axis(blocks, places[:, :, None, None], 1)  # (row, n, down, across)
        lanes = math.gcd(down, STRIP)
        values = values.reshape(*places.shape, -1, lanes, across)
        return np.ascontiguousarray(values.transpose(0, 2, 1, 4, 3))

    def _matrix(self) -> Any:
        rows, _, most, across, _ = self.values.shape
        turned = functional.permute(self.values, (0, 1, 4, 2, 3))
        down = self.sizes[0]
        # Rows of blocks are matrices of their own, unless those were filled up to whole strips.
        return turned.reshape(*((-1,) if down % STRIP else (rows, down)), most * across)

    def _product(self, x: Any) -> Any:
        down, across = self.sizes
        picked = x.reshape(-1, self.shape[1] // across, across)[:, self.places.to(genesis.int64)]
        many, rows, most, _ = picked.shape  # (rows of input, rows of blocks, blocks, columns)
        if not isinstance(self.values, QuantizedTensor):
            # The rows of one block lie together, so what follows may go through them in one axis.
            y = functional.einsum("mrjk,rsjkl->rsml", picked, self.values)
            y = functional.permute(y, (2, 0, 1, 3))
        elif many <= FEW_ROWS and down % STRIP == 0:
            number = genesis.arange(many * rows) % rows
            y = self.values.picked(picked.reshape(-1, most * across), number)
        else:
            matrix = self.values.dequantize().reshape(rows, down, most, across)
            y = functional.einsum("mrjk,rdjk->mrd", picked, matrix)
        return y.reshape(-1, self.shape[0])


def _in_strips(weight: Any) -> Any:
    """Rows that are filled up to whole strips."""
    return np.pad(weight, ((0, -len(weight) % STRIP), (0, 0)))


def _rows_last(matrix: Any, shape: tuple[int, ...]) -> Any:
    """A matrix cut as strips of rows are, (strip, row, ..), with rows at the end."""
    full = functional.pad(matrix, (0, 0, 0, shape[0] * shape[1] - matrix.shape[0]))
    return functional.movedim(full.reshape(*shape), 1, -1)


def _chosen(values: list[Any], at: Any, bit: int = 0) -> Any:
    """One of some values, by the bits of a number."""
    if len(values) == 1:
        return values[0]
    pairs = [
        functional.where((at & 1 << bit) != 0, *values[k : k + 2][::-1])
        if k + 1 < len(values)
        else values[k]
        for k in range(0, len(values), 2)
    ]
    return _chosen(pairs, at, bit + 1)


_EQUATION = re.compile(r"mk,nk\[([^\] ]+)(?: ([^\] ]+))?\]->mn(?:; *(\w+))?")


def sparse_linear(text: str, weight: Any, bias: Any = None) -> Any:
    """A product as a short text says: its pattern, perhaps a format, and what follows it.

    >>> half = sparse_linear("mk,nk[2:4]->mn; relu", np.array([[0, -1, 2, 0]], np.float32))
    >>> half(genesis.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 1.0, 1.0]]))
    tensor([[4.],
            [0.]])
    """
    found = _EQUATION.fullmatch(text)
    if found is None or (found[3] and not hasattr(functional, found[3])):
        raise ValueError(
            f"sparse_linear: a product is written as 'mk,nk[64x64 int8]->mn; gelu', not {text!r}"
        )
    matrix = SparseTensor.of(weight, found[1], found[2])
    after = getattr(functional, found[3]) if found[3] else lambda y: y
    return lambda input: after(matrix.linear(input, bias))


__all__ = ["STRIP", "SparseTensor", "sparse_linear"]
