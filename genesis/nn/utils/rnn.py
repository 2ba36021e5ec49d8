"""Sequences of different lengths in one batch.

A batch is padded to its longest sequence, and a `PackedSequence` is that batch with the lengths:
recurrent layers hold the state of a sequence where it ends. So nothing is sorted or moved, and
gradients of the padding are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.elementwise_function import as_number
from genesis.functional.function import plain
from genesis.ir.dtype import int64
from genesis.tensor.tensor import Tensor


@dataclass(init=False)
class PackedSequence:
    """A padded batch ``(time, batch, ...)`` and the lengths of its sequences.

    To whoever asks it is the four things that it is in PyTorch, by name and in this order: `data`
    without the padding, step by step from the longest sequence to the shortest; how many sequences
    there are at every step; and the orders from and to that of the batch, None if they are one.

    >>> import genesis
    >>> packed = pack_sequence([genesis.tensor([1, 2, 3]), genesis.tensor([4])])
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1, 4, 2, 3], [2, 1, 1])
    >>> PackedSequence(packed.data * 10, packed.batch_sizes).padded.tolist()
    [[10, 40], [20, 0], [30, 0]]
    """

    padded: Tensor
    lengths: Tensor
    in_order: bool  #: whether the sequences come from the longest to the shortest

    def __init__(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> None:
        sizes = batch_sizes.tolist()
        if sorted_indices is not None and unsorted_indices is None:
            unsorted_indices = functional.argsort(sorted_indices)
        order = range(sizes[0]) if unsorted_indices is None else unsorted_indices.tolist()
        counts = [sum(n > k for n in sizes) for k in order]
        begins = [sum(sizes[:t]) for t in range(len(sizes))]
        places = [[first + k if k < n else len(data) for k in order]
                  for first, n in zip(begins, sizes, strict=True)]  # fmt: skip
        widths = (0, 0) * (data.ndim - 1) + (0, 1)
        self.padded = functional.pad(data, widths)[Tensor(nd.array(places, int64))]
        self.lengths = Tensor(nd.array(counts, int64, data.device))
        self.in_order = unsorted_indices is None

    @classmethod
    def of_padded(cls, padded: Tensor, lengths: Tensor, in_order: bool) -> PackedSequence:
        """A batch as it is."""
        found = cls.__new__(cls)
        found.padded, found.lengths, found.in_order = padded, lengths, in_order
        return found

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The batch on another device or in another dtype."""
        padded = self.padded.to(*args, **kwargs)
        return self.of_padded(padded, self.lengths.to(padded.device), self.in_order)

    def with_padded(self, padded: Tensor) -> PackedSequence:
        """Something else for the same steps of the same sequences."""
        return self.of_padded(padded, self.lengths, self.in_order)

    def _ordered(self) -> tuple[list[int], list[int]]:
        """The sequences from the longest to the shortest, and how many there are at every step."""
        counts = self.lengths.tolist()
        order = sorted(range(len(counts)), key=lambda k: -counts[k])
        return order, [sum(n > t for n in counts) for t in range(max(counts))]

    @property
    def data(self) -> Tensor:
        """The elements of sequences, step by step."""
        order, sizes = self._ordered()
        batch = len(order)
        places = [t * batch + k for t, n in enumerate(sizes) for k in order[:n]]
        rows = functional.flatten(self.padded, 0, 1)
        found: Tensor = functional.index_select(rows, 0, Tensor(nd.array(places, int64)))
        return found

    @property
    def batch_sizes(self) -> Tensor:
        """How many sequences there are at every step."""
        return Tensor(nd.array(self._ordered()[1], int64))

    @property
    def sorted_indices(self) -> Tensor | None:
        """The sequences from the longest to the shortest; None where they come so."""
        order = None if self.in_order else self._ordered()[0]
        return None if order is None else Tensor(nd.array(order, int64, self.lengths.device))

    @property
    def unsorted_indices(self) -> Tensor | None:
        """Where each sequence is among them; None where they come so."""
        order = self.sorted_indices
        return None if order is None else functional.argsort(order)

    def __iter__(self) -> Iterator[Any]:
        yield from (self.data, self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def __getitem__(self, key: Any) -> Any:
        return tuple(self)[key]

    def __len__(self) -> int:
        return 4

    @property
    def alive(self) -> Tensor:
        """Which elements ``(time, batch)`` are of a sequence, and not padding."""
        found: Tensor = plain(_alive, self.lengths, self.padded.shape[0])
        return found


def _alive(lengths: Any, steps: Any) -> Any:
    return nd.unsqueeze(nd.arange(steps, device=lengths.device), 1) < lengths


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """A padded batch ``(time, batch, ...)`` with the lengths of its sequences.

    >>> import genesis
    >>> packed = pack_padded_sequence(genesis.ones(4, 2), [3, 1])
    >>> pad_packed_sequence(packed)[0].tolist()
    [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    """
    counts = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if batch_first:
        input = functional.transpose(input, 0, 1)
    steps, batch = input.shape[:2]
    if len(counts) != batch or not counts or min(counts) < 1 or max(counts) > steps:
        raise ValueError(
            f"pack_padded_sequence: a batch of {batch} sequences of at most {steps} steps needs as "
            f"many lengths between 1 and {steps}, got {counts}"
        )
    if enforce_sorted and counts != sorted(counts, reverse=True):
        raise RuntimeError(
            f"pack_padded_sequence: lengths {counts} are not in decreasing order; give "
            "enforce_sorted=False if that is not needed"
        )
    data = functional.narrow(input, 0, 0, max(counts))
    places = Tensor(nd.array(counts, int64, input.device))
    return PackedSequence.of_padded(data, places, enforce_sorted)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The padded batch and the lengths; padded to `total_length` steps where that is given."""
    data = sequence.padded
    steps, extra = data.shape[0], data.ndim - 2
    alive = functional.reshape(sequence.alive, (steps, data.shape[1], *(1,) * extra))
    padded = functional.where(alive, data, as_number(padding_value, data.dtype))
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                f"pad_packed_sequence: total_length {total_length} is less than the longest "
                f"sequence, {steps}"
            )
        padded = _extended(padded, total_length, padding_value)
    return functional.transpose(padded, 0, 1) if batch_first else padded, sequence.lengths


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences ``(time, ...)`` of different lengths as one batch."""
    if padding_side not in ("left", "right"):
        raise ValueError(f"pad_sequence: padding_side is 'left' or 'right', not {padding_side!r}")
    if not sequences:
        raise ValueError("pad_sequence: no sequences")
    longest = max(x.shape[0] for x in sequences)
    left = padding_side == "left"
    padded = [_extended(x, longest, padding_value, left) for x in sequences]
    found: Tensor = functional.stack(padded, 0 if batch_first else 1)
    return found


def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded batch."""
    padded = padded_sequences if batch_first else functional.transpose(padded_sequences, 0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [padded[k, : int(n)] for k, n in enumerate(counts)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences ``(time, ...)`` of different lengths, packed."""
    lengths = [x.shape[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


def _extended(x: Tensor, length: Any, value: float, left: bool = False) -> Tensor:
    """A sequence continued by a value, or preceded by it."""
    missing = length - x.shape[0]
    widths = (0, 0) * (x.ndim - 1) + ((missing, 0) if left else (0, missing))
    found: Tensor = functional.pad(x, widths, value=value)
    return found


__all__ = [
    "PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip
