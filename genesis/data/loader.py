"""`DataLoader`: batches of a dataset, made ahead by other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

from genesis.data.collate import Collate, default_collate, mapped, tensors
from genesis.data.dataset import IterableDataset
from genesis.data.sampler import BatchSampler, RandomSampler, SequentialSampler, in_order
from genesis.data.seeds import drawn_seed, mixed, seeded
from genesis.data.worker import Exhausted, Fetcher, Pool
from genesis.ndarray.random import Generator
from genesis.tensor.tensor import Tensor


class DataLoader:
    """Batches of a dataset: an epoch each time it is iterated over.

    The arguments are PyTorch's, but for `device`: with it, batches are moved there, one ahead.
    `pin_memory` and `in_order` are taken and change nothing: batches come in order, and are copied
    to a GPU through memory that is fit for it anyway.

    Batches are the same for every `num_workers`, random augmentations included. `state_dict` is a
    position: a loader that it is given to goes on with the next batch.

    >>> loader = DataLoader(range(5), batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        device: str | None = None,
    ) -> None:
        _check(batch_size, shuffle, sampler, batch_sampler, num_workers, drop_last, timeout)
        is_iterable = isinstance(dataset, IterableDataset)
        if is_iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader: an IterableDataset has an order of its own; no sampler")
        if not num_workers and (persistent_workers or prefetch_factor is not None or timeout):
            raise ValueError(
                "DataLoader: persistent_workers, prefetch_factor and timeout are for workers; "
                "num_workers is 0"
            )
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ValueError(f"DataLoader: prefetch_factor is at least 1, not {prefetch_factor}")
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last, self.generator, self.device = drop_last, generator, device
        self.prefetch_factor, self.persistent_workers = prefetch_factor or 2, persistent_workers
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.sampler, self.batch_sampler = sampler, batch_sampler
        if not is_iterable and batch_sampler is None:
            order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
            self.sampler = sampler if sampler is not None else order
            if batch_size is not None:
                self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        one_by_one = batch_size is None and batch_sampler is None
        self.collate_fn = collate_fn or (None if one_by_one else default_collate)
        self._pool: Pool | None = None
        self._epoch, self._position, self._is_resumed = 0, _Position(0), False

    def __iter__(self) -> Iterator[Any]:
        if not self._is_resumed:
            self._position = _Position(drawn_seed(self.generator))
        self._is_resumed = False
        return _Epoch(self, self._position)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            count = len(self.dataset)  # type: ignore[arg-type]
            size = self.batch_size or 1
            return count // size if self.drop_last else -(-count // size)
        return len(self._order())  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, int]:
        """The position: how many epochs have ended, and how many batches of the next were given."""
        now = self._position
        return {"epoch": self._epoch, "seed": now.seed, "batches": now.batches}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go to a position: the next iteration is over what is left of its epoch."""
        epoch, seed, batches = (int(state_dict[name]) for name in ("epoch", "seed", "batches"))
        self._epoch, self._position = epoch, _Position(seed, batches)
        self._is_resumed = batches > 0

    # ---- what an epoch needs
    def _requests(self, seed: int) -> Iterator[Any]:
        """What each batch is to be made of."""
        if isinstance(self.dataset, IterableDataset):
            return repeat(None if self.collate_fn is None else self.batch_size or 1)
        return in_order(self._order(), seed)

    def _order(self) -> Iterable[Any]:
        chosen = self.batch_sampler if self.batch_sampler is not None else self.sampler
        assert chosen is not None
        return chosen

    def _fetcher(self) -> Fetcher:
        return Fetcher(self.dataset, self.collate_fn, self.drop_last)

    def _workers(self, seed: int) -> Pool:
        """Processes that are ready for an epoch."""
        if self._pool is not None and self._pool.is_ready():
            return self._pool
        init, context = self.worker_init_fn, self.multiprocessing_context
        pool = Pool(self._fetcher(), self.num_workers, seed, init, context)
        self._pool = pool if self.persistent_workers else None
        return pool

    def _ended(self, position: _Position) -> None:
        if self._position is position:
            self._epoch, self._position = self._epoch + 1, _Position(0)


@dataclass
class _Position:
    """The seed of an epoch, and how many of its batches were given."""

    seed: int
    batches: int = 0


class _Epoch:
    """An iteration over a loader. Nothing refers to it, so its workers end when it is dropped."""

    def __init__(self, loader: DataLoader, position: _Position) -> None:
        self._loader, self._position, self._is_over = loader, position, False
        self._pool = loader._workers(position.seed) if loader.num_workers else None
        requests = enumerate(loader._requests(position.seed))
        if not isinstance(loader.dataset, IterableDataset):
            deque(islice(requests, position.batches), maxlen=0)  # what was given already
        if self._pool is not None:
            self._next = _from_workers(self._pool, requests, position.seed, loader)
        else:
            self._next = _made_here(loader._fetcher(), requests, position.seed)
        if isinstance(loader.dataset, IterableDataset):  # only who makes it all knows what is next
            deque(islice(self._next, position.batches), maxlen=0)
        if loader.device is not None:
            self._next = _moved(self._next, loader.device)

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            batch = next(self._next)
        except StopIteration:
            self._loader._ended(self._position)
            self._end(keep=self._loader.persistent_workers)
            raise
        except BaseException:
            self._end(keep=False)
            raise
        self._position.batches += 1
        return batch

    def _end(self, keep: bool) -> None:
        self._is_over = True
        if self._pool is not None and not keep:
            self._pool.close()


Requests = Iterator[tuple[int, Any]]


def _made_here(fetch: Fetcher, requests: Requests, seed: int) -> Iterator[Any]:
    for number, what in requests:
        with seeded(mixed(seed, number)):
            batch = fetch(what)
        if isinstance(batch, Exhausted):
            return
        yield tensors(batch)


def _from_workers(pool: Pool, requests: Requests, seed: int, loader: DataLoader) -> Iterator[Any]:
    """Batch n is made by worker n modulo their number, a few ahead, and comes when it is its turn.

    A worker whose iterable dataset has ended is left out from then on.
    """
    for depth in range(loader.prefetch_factor):
        for worker, (number, what) in zip(pool.workers, requests, strict=False):
            worker.submit(what, mixed(seed, number), restart=depth == 0)
    turns = deque(pool.workers)
    while turns:
        worker = turns.popleft()
        if not worker.outstanding:
            continue
        batch = worker.receive(loader.timeout)
        if isinstance(batch, Exhausted):
            worker.discard()
            continue
        for number, what in islice(requests, 1):
            worker.submit(what, mixed(seed, number))
        turns.append(worker)
        yield batch
        del batch  # its memory is free once who has it lets it go


def _moved(batches: Iterator[Any], device: str) -> Iterator[Any]:
    """Batches on a device; the next one is on its way while one is in use."""
    ahead: deque[Any] = deque()
    for batch in batches:
        ahead.append(mapped(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch))
        if len(ahead) > 1:
            yield ahead.popleft()
    yield from ahead


def _check(
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    num_workers: int,
    drop_last: bool,
    timeout: float,
) -> None:
    def refuse(problem: str) -> None:
        raise ValueError(f"DataLoader: {problem}")

    if num_workers < 0 or timeout < 0:
        refuse(f"num_workers and timeout are at least 0, not {num_workers} and {timeout}")
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        refuse(f"batch_size is at least 1, or None for single samples, not {batch_size}")
    if sampler is not None and shuffle:
        refuse("a sampler says the order; leave shuffle out")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
        refuse("batch_sampler stands for batch_size, shuffle, sampler and drop_last")
    if batch_size is None and drop_last:
        refuse("drop_last is for batches")
