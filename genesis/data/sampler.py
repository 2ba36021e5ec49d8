"""Samplers: in what order the samples of a dataset come.

A sampler is anything that gives numbers when iterated over. Those here that are random have a
method `seeded` besides: the order that belongs to a seed. A `DataLoader` uses it, and so can take
up an epoch again where it was left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from genesis.data.seeds import drawn_seed
from genesis.ndarray.random import Generator


class Sampler:
    """The numbers of samples in some order. A subclass has ``__iter__`` and ``__len__``."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SeededSampler(Sampler):
    """The base of samplers whose order follows from a seed: a subclass has `seeded`.

    Without a `DataLoader` the seed is drawn from `generator`, or from Genesis's own.
    """

    generator: Generator | None = None

    def seeded(self, seed: int) -> Iterator[Any]:
        """The order that belongs to a seed."""
        raise NotImplementedError(f"{type(self).__name__} has no seeded(seed)")

    def __iter__(self) -> Iterator[Any]:
        return self.seeded(drawn_seed(self.generator))


class SequentialSampler(Sampler):
    """All samples in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(SeededSampler):
    """All samples in random order, or `num_samples` draws, with `replacement` independent ones.

    >>> sorted(RandomSampler(range(4)))
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        _require_positive("RandomSampler", "num_samples", num_samples)
        self.data_source, self.replacement = data_source, replacement
        self._num_samples, self.generator = num_samples, generator

    def seeded(self, seed: int) -> Iterator[int]:
        """The order that belongs to a seed."""
        rng, count = _numpy(seed), len(self.data_source)
        if count == 0:
            return
        if self.replacement:
            yield from rng.integers(0, count, len(self)).tolist()
            return
        rounds = (rng.permutation(count).tolist() for _ in itertools.count())
        yield from itertools.islice(itertools.chain.from_iterable(rounds), len(self))

    def __len__(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples


class SubsetRandomSampler(SeededSampler):
    """Some samples, by their numbers, in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def seeded(self, seed: int) -> Iterator[int]:
        """The order that belongs to a seed."""
        for k in _numpy(seed).permutation(len(self.indices)):
            yield self.indices[k]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(SeededSampler):
    """Draws of samples, each as often as its weight says; weights need not add up to 1.

    >>> set(WeightedRandomSampler([0.0, 3.0, 0.0], 5))
    {1}
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _require_positive("WeightedRandomSampler", "num_samples", num_samples)
        self.weights = np.asarray(weights, np.float64)
        if (
            self.weights.ndim != 1
            or not np.isfinite(self.weights).all()
            or (self.weights < 0).any()
        ):
            raise ValueError("WeightedRandomSampler: weights are finite numbers >= 0 in one row")
        possible = int((self.weights > 0).sum())
        if possible == 0 or (not replacement and num_samples > possible):
            raise ValueError(
                f"WeightedRandomSampler: {num_samples} draws from {possible} samples with a weight "
                "above 0; draw fewer, or with replacement"
            )
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def seeded(self, seed: int) -> Iterator[int]:
        """The draws that belong to a seed."""
        share = self.weights / self.weights.sum()
        drawn = _numpy(seed).choice(len(share), self.num_samples, self.replacement, share)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Sampler):
    """The part of the samples that one of `num_replicas` processes has, the same number for each.

    All processes shuffle alike, by `seed` and the epoch that `set_epoch` names.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"DistributedSampler: rank {rank} is not in 0..{num_replicas - 1}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle differently from now on; the same in all processes."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        order = list(range(count))
        if self.shuffle:
            order = _numpy(self.seed + self.epoch).permutation(count).tolist()
        total = len(self) * self.num_replicas
        order = [order[k % count] for k in range(total)] if count else []
        return iter(order[self.rank : total : self.num_replicas])

    def __len__(self) -> int:
        count = len(self.dataset)
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)


class BatchSampler(SeededSampler):
    """Lists of `batch_size` numbers that another sampler gives."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool = False) -> None:
        _require_positive("BatchSampler", "batch_size", batch_size)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return batched(iter(self.sampler), self.batch_size, self.drop_last)

    def seeded(self, seed: int) -> Iterator[list[Any]]:
        """The batches that belong to a seed."""
        return batched(in_order(self.sampler, seed), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class BucketBatchSampler(SeededSampler):
    """Batches of samples of similar lengths, so that little of a batch is padding.

    Samples are shuffled, then sorted by length within pools of `pool` batches, and the batches
    are shuffled: what comes together differs from epoch to epoch. With `max_tokens` a batch has
    as many samples as fit into so many tokens when padded, instead of `batch_size`.

    >>> batches = BucketBatchSampler([1, 9, 2, 8, 1, 9], batch_size=2)
    >>> sorted(sorted(b) for b in batches.seeded(0))
    [[0, 4], [1, 5], [2, 3]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        pool: int = 100,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: Generator | None = None,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            raise ValueError("BucketBatchSampler: give batch_size or max_tokens")
        _require_positive("BucketBatchSampler", "batch_size", batch_size)
        _require_positive("BucketBatchSampler", "pool", pool)
        self.lengths = np.asarray(lengths, np.int64)
        longest = int(self.lengths.max(initial=0))
        if max_tokens is not None and longest > max_tokens:
            raise ValueError(
                f"BucketBatchSampler: a sample has {longest} tokens, max_tokens is {max_tokens}"
            )
        self.batch_size, self.max_tokens, self.pool = batch_size, max_tokens, pool
        self.shuffle, self.drop_last, self.generator = shuffle, drop_last, generator

    def seeded(self, seed: int) -> Iterator[list[int]]:
        """The batches that belong to a seed."""
        rng, count = _numpy(seed), len(self.lengths)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        batches: list[list[int]] = []
        for pool in self._pools(order):
            batches += self._cut(pool[np.argsort(self.lengths[pool], kind="stable")].tolist())
        if self.shuffle:
            batches = [batches[k] for k in rng.permutation(len(batches))]
        return iter(batches)

    def _pools(self, order: Any) -> Iterator[Any]:
        mean = max(1, int(self.lengths.mean())) if len(self.lengths) else 1
        samples = self.pool * (self.batch_size or max(1, (self.max_tokens or 1) // mean))
        for first in range(0, len(order), samples):
            yield order[first : first + samples]

    def _cut(self, ordered: list[int]) -> list[list[int]]:
        if self.batch_size is not None:
            return list(batched(iter(ordered), self.batch_size, self.drop_last))
        assert self.max_tokens is not None
        batches: list[list[int]] = [[]]
        for k in ordered:  # lengths grow, so the last one's is what all are padded to
            if batches[-1] and (len(batches[-1]) + 1) * self.lengths[k] > self.max_tokens:
                batches.append([])
            batches[-1].append(k)
        return [b for b in batches if b]

    def __len__(self) -> int:
        if self.batch_size is None:
            raise TypeError("BucketBatchSampler: how many batches max_tokens makes is not known")
        total, each = len(self.lengths), self.pool * self.batch_size
        sizes = [min(each, total - first) for first in range(0, total, each)]
        up = 0 if self.drop_last else self.batch_size - 1
        return sum((n + up) // self.batch_size for n in sizes)


def in_order(sampler: Iterable[Any], seed: int) -> Iterator[Any]:
    """What a sampler gives, for this seed if it can be seeded."""
    seeded: Callable[[int], Iterator[Any]] | None = getattr(sampler, "seeded", None)
    return iter(sampler) if seeded is None else seeded(seed)


def batched(numbers: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Lists of `size`; the last may be shorter, unless it is to be dropped."""
    while batch := list(itertools.islice(numbers, size)):
        if len(batch) < size and drop_last:
            return
        yield batch


def _numpy(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def _require_positive(who: str, what: str, number: int | None) -> None:
    if number is not None and (isinstance(number, bool) or number < 1):
        raise ValueError(f"{who}: {what} is at least 1, not {number}")
