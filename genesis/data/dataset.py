"""Datasets: what samples there are, by number or one after the other.

A dataset is any object with ``__getitem__`` and ``__len__``, or an `IterableDataset`. One that can
give several samples at once for less has ``__getitems__``, which takes a list of numbers.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from genesis.data.seeds import drawn_seed
from genesis.ndarray.random import Generator
from genesis.tensor.tensor import Tensor

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Samples by number. A subclass has ``__getitem__`` and, for most samplers, ``__len__``."""

    def __getitem__(self, index: int) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Samples one after the other, from ``__iter__``.

    In a `DataLoader` with workers each of them iterates over a copy of it: `shard` in ``__iter__``
    gives every worker a part.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])  # type: ignore[list-item]


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Rows of tensors of the same length.

    >>> import genesis
    >>> pairs = TensorDataset(genesis.arange(4), genesis.arange(4) ** 2)
    >>> len(pairs), pairs[3]
    (4, (tensor(3), tensor(9)))
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors or any(x.ndim == 0 for x in tensors):
            raise ValueError("TensorDataset: give one tensor or more, each with a first axis")
        sizes = [x.shape[0] for x in tensors]
        if len(set(sizes)) > 1:
            raise ValueError(f"TensorDataset: tensors have {sizes} rows; give each as many")
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(x[index] for x in self.tensors)

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        return Rows([x.detach().cpu().numpy()[np.asarray(indices)] for x in self.tensors])

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])


class Rows:
    """Samples that are a batch already, as columns: a list or a dictionary of arrays."""

    def __init__(self, columns: list[Any] | dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        each = self.columns.values() if isinstance(self.columns, dict) else self.columns
        return len(next(iter(each)))

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.columns, dict):
            rows = zip(*self.columns.values(), strict=True)
            return (dict(zip(self.columns, row, strict=True)) for row in rows)
        return zip(*self.columns, strict=True)


class StackDataset(Dataset[Any]):
    """Samples of several datasets side by side: tuples, or dictionaries if they have names."""

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            raise ValueError("StackDataset: give datasets, or datasets with names")
        self.datasets: Any = named or datasets
        sizes = {len(d) for d in (named.values() if named else datasets)}
        if len(sizes) > 1:
            raise ValueError(f"StackDataset: the datasets have {sorted(sizes)} samples")

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, Mapping):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        each = self.datasets.values() if isinstance(self.datasets, Mapping) else self.datasets
        return len(next(iter(each)))


class ConcatDataset(Dataset[Any]):
    """The samples of several datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: give one dataset or more")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ConcatDataset: an IterableDataset has no numbers; see ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        which = bisect.bisect_right(self.cumulative_sizes, position)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][position - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """The samples of several iterable datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Iterable[Any]]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


class Subset(Dataset[Any]):
    """Some samples of a dataset, by their numbers."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        chosen = [self.indices[k] for k in indices]
        several = getattr(self.dataset, "__getitems__", None)
        return several(chosen) if several else [self.dataset[k] for k in chosen]

    def __len__(self) -> int:
        return len(self.indices)


class MapDataset(Dataset[Any]):
    """The samples of a dataset after a function, an augmentation for example.

    >>> MapDataset(range(5), lambda k: k * k)[3]
    9
    """

    def __init__(self, dataset: Any, function: Any) -> None:
        self.dataset, self.function = dataset, function

    def __getitem__(self, index: int) -> Any:
        return self.function(self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Parts of a dataset drawn at random: of so many samples, or of such shares that add up to 1.

    >>> [len(part) for part in random_split(range(10), [0.7, 0.3])]
    [7, 3]
    """
    sizes = _sizes(lengths, len(dataset))
    seed = drawn_seed(generator)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(dataset)).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - n : end]) for n, end in zip(sizes, ends, strict=True)]


def _sizes(lengths: Sequence[float], count: int) -> list[int]:
    if all(isinstance(n, int) for n in lengths) and sum(lengths) == count:
        return [int(n) for n in lengths]
    if abs(sum(lengths) - 1) > 1e-6 or min(lengths) < 0:
        raise ValueError(
            f"random_split: {list(lengths)} add up neither to {count} samples nor to 1"
        )
    sizes = [int(count * share) for share in lengths]
    for k in range(count - sum(sizes)):  # what rounding left over goes around
        sizes[k % len(sizes)] += 1
    return sizes
