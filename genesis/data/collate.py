"""From samples to a batch.

A batch is begun with the first sample, which says what it is made of, and filled sample by sample:
one is still in the processor's cache when it is copied. A worker fills memory that the training
process sees, so that nothing is copied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from genesis.data.dataset import Rows
from genesis.ndarray import NDArray, from_numpy
from genesis.tensor.tensor import Tensor

Array = npt.NDArray[Any]
Collate = Callable[[list[Any]], Any]
#: Memory for arrays of these shapes and dtypes.
Allocate = Callable[[list[tuple[tuple[int, ...], Any]]], list[Array]]


class ToTensor:
    """An array that becomes a tensor in the training process."""

    def __init__(self, array: Array) -> None:
        self.array = array


class _Column:
    """Arrays of all samples at one place of them."""

    def __init__(self, first: Array) -> None:
        self.shape, self.dtype = first.shape, first.dtype
        self.out: Array = first

    def put(self, number: int, x: Any, where: str) -> None:
        part = _array(x)
        if part.shape != self.shape or part.dtype != self.dtype:
            _refuse(
                f"samples{where} differ: the first is {self.dtype} {self.shape}, number {number} "
                f"{part.dtype} {part.shape}. Pad or crop them, or give collate_fn "
                "(`genesis.data.pad_collate` pads)"
            )
        self.out[number] = part


class _Numbers(list[Any]):
    """Numbers of all samples at one place of them."""


class _Texts(list[Any]):
    """Texts of all samples at one place of them."""


def allocated(wanted: list[tuple[tuple[int, ...], Any]]) -> list[Array]:
    """Memory of this process."""
    return [np.empty(shape, dtype) for shape, dtype in wanted]


def collated(samples: Iterable[Any], count: int, allocate: Allocate = allocated) -> Any:
    """A batch of up to `count` samples, with `ToTensor` for each of its tensors."""
    if isinstance(samples, Rows):
        return mapped(_whole, samples.columns)
    iterator = iter(samples)
    first = next(iterator)
    columns: list[_Column] = []
    batch = _begun(first, "", columns)
    places = allocate([((count, *column.shape), column.dtype) for column in columns])
    for column, place in zip(columns, places, strict=True):
        column.out = place
    done = 0
    for sample in chain([first], iterator):
        _put(batch, sample, done, "")
        done += 1
    return _finished(batch, done)


def _whole(column: Array) -> Any:
    return ToTensor(column) if column.dtype.kind in "biufcV" else column.tolist()


def _begun(first: Any, where: str, columns: list[_Column]) -> Any:
    """The batch of a first sample, still empty; where it has arrays, `columns` are to be filled."""
    if isinstance(first, np.ndarray | np.generic | Tensor | NDArray):
        array = _array(first)
        if array.dtype.hasobject or array.dtype.kind in "USmM":
            _refuse(f"samples{where} are arrays of {array.dtype}; a batch has arrays of numbers")
        columns.append(_Column(array))
        return columns[-1]
    if isinstance(first, bool | int | float):
        return _Numbers()
    if isinstance(first, str | bytes):
        return _Texts()
    if isinstance(first, Mapping):
        return {key: _begun(x, f"{where}[{key!r}]", columns) for key, x in first.items()}
    if isinstance(first, Sequence):
        parts = [_begun(x, f"{where}[{k}]", columns) for k, x in enumerate(first)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    name = f"{type(first).__module__}.{type(first).__name__}"
    _refuse(
        f"samples{where} are {name}; a batch is made of arrays, tensors, numbers, texts, and "
        "tuples, lists and dictionaries of them. Convert them in the dataset, or give collate_fn"
    )


def _put(batch: Any, sample: Any, number: int, where: str) -> None:
    if isinstance(batch, _Column):
        batch.put(number, sample, where)
    elif isinstance(batch, _Numbers | _Texts):
        kind = bool | int | float | np.number if isinstance(batch, _Numbers) else str | bytes
        if not isinstance(sample, kind):
            _refuse(f"samples{where} differ: number {number} is a {type(sample).__name__}")
        batch.append(sample)
    elif isinstance(batch, dict):
        for key, part in batch.items():
            if key not in sample:
                _refuse(f"samples{where} differ: number {number} has no {key!r}")
            _put(part, sample[key], number, f"{where}[{key!r}]")
    else:
        if len(sample) != len(batch):
            _refuse(
                f"samples{where} differ: the first has {len(batch)} entries, number {number} "
                f"{len(sample)}"
            )
        for k, (part, x) in enumerate(zip(batch, sample, strict=True)):
            _put(part, x, number, f"{where}[{k}]")


def _finished(batch: Any, count: int) -> Any:
    if isinstance(batch, _Column):
        return ToTensor(batch.out[:count])
    if isinstance(batch, _Numbers):
        return ToTensor(np.array(batch))
    if isinstance(batch, _Texts):
        return list(batch)
    if isinstance(batch, dict):
        return {key: _finished(x, count) for key, x in batch.items()}
    parts = [_finished(x, count) for x in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else parts


def _array(x: Any) -> Array:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _refuse(problem: str) -> NoReturn:
    raise TypeError(f"default_collate: {problem}")


def mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with what a function makes of each thing in its dictionaries, lists and tuples."""
    if isinstance(batch, dict):
        return {key: mapped(function, x) for key, x in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [mapped(function, x) for x in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return function(batch)


def tensors(batch: Any) -> Any:
    """A batch with tensors for arrays that are to become some."""
    return mapped(
        lambda x: Tensor(from_numpy(x.array, "cpu")) if isinstance(x, ToTensor) else x, batch
    )


def default_collate(samples: list[Any]) -> Any:
    """Stack samples: arrays, tensors and numbers become tensors with one more axis, the first.

    Dictionaries, tuples and lists are gone into, texts stay lists, as in PyTorch.

    >>> default_collate([(1, "a"), (2, "b")])
    [tensor([1, 2]), ['a', 'b']]
    """
    if not len(samples):
        _refuse("there are no samples")
    return tensors(collated(samples, len(samples)))


def pad_collate(samples: list[Any], value: float = 0) -> Any:
    """As `default_collate`, with arrays padded at the end of each axis to the largest.

    >>> import numpy as np
    >>> pad_collate([np.array([1, 2, 3]), np.array([4])])
    tensor([[1, 2, 3],
            [4, 0, 0]])
    """
    return default_collate(_padded(samples, value))


def _padded(samples: list[Any], value: float) -> list[Any]:
    first = samples[0]
    if isinstance(first, np.ndarray | Tensor | NDArray):
        arrays = [_array(x) for x in samples]
        shape = np.max([a.shape for a in arrays], axis=0)
        return [_filled(a, shape, value) for a in arrays]
    if isinstance(first, Mapping):
        columns = {key: _padded([x[key] for x in samples], value) for key in first}
        return [{key: columns[key][k] for key in first} for k in range(len(samples))]
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        members = [_padded(list(m), value) for m in zip(*samples, strict=True)]
        return list(zip(*members, strict=True))
    return samples


def _filled(array: npt.NDArray[Any], shape: Any, value: float) -> npt.NDArray[Any]:
    out = np.full(shape, value, array.dtype)
    out[tuple(map(slice, array.shape))] = array
    return out
