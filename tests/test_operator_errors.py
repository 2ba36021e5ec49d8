"""Wrong operands: a function either builds something or raises one clear error at the call.

A valid call of every function is taken from the sweep's table, and one argument at a time is
spoiled: its number of axes, its sizes, its dtype, the axis, an option, an index. Indices are looked
at when a result is computed; nothing else may fail only there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from genesis import ndarray as nd
from genesis.ndarray.core.ndarray import NDArray
from tests.operator_draw import Draw
from tests.operator_table import CASES, ELEMENTWISE

NAMES = sorted([*CASES, *ELEMENTWISE])
Call = tuple[tuple[Any, ...], dict[str, Any]]
#: An error begins with the operation: the function, or one that it is composed of.
NAMED = re.compile(r"[a-z_0-9.]+: .|.* is not a Genesis dtype")
FAR = 1000  # beyond every axis


class Recorded(Exception):
    """Ends a case at its first call."""


def home(name: str) -> Any:
    """The namespace of a function."""
    space, _, _ = name.rpartition(".")
    return getattr(nd, space) if space else nd


def valid_call(name: str, monkeypatch: pytest.MonkeyPatch, seed: int = 3) -> Call:
    """The arguments of the first call that the table makes."""
    d = Draw(seed)
    if name in ELEMENTWISE:
        entry = ELEMENTWISE[name]
        dtype = "float32" if "float32" in entry.types else "int32"
        return tuple(d.array((3, 4), dtype).a for _ in range(entry.arity)), {}
    calls: list[Call] = []

    def record(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))
        raise Recorded

    with monkeypatch.context() as patched:
        patched.setattr(home(name), name.rpartition(".")[2], record)
        with pytest.raises(Recorded):
            CASES[name](d)
    return calls[0]


def spoiled(value: Any) -> Iterator[Any]:
    """What could be given by mistake instead of an argument."""
    if isinstance(value, NDArray):
        yield nd.zeros((), value.dtype)
        yield nd.zeros((0,) * max(value.ndim, 1), value.dtype)
        yield nd.zeros((2,) * 7, value.dtype)
        yield nd.zeros([int(n) + 1 for n in value.shape], value.dtype)
        for dtype in ("bool", "int8", "float32", "complex64"):
            yield value.astype("bool").astype(dtype)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (99, -99, 0)
    elif isinstance(value, str):
        yield "no such thing"
    elif isinstance(value, tuple | list) and value and all(isinstance(n, int) for n in value):
        yield from ((), (*value, value[-1]), (99,) * len(value), (-1,) * len(value))


def outside(value: Any) -> Iterator[Any]:
    """An index, if this may be one, beyond either end of every axis."""
    if isinstance(value, NDArray) and value.dtype.is_integer and value.dtype.bits >= 32:
        yield from (value + FAR, value - FAR)


def with_one_changed(call: Call, change: Any) -> Iterator[Call]:
    args, kwargs = call
    for k, value in enumerate(args):
        for wrong in change(value):
            yield (*args[:k], wrong, *args[k + 1 :]), kwargs
    for key, value in kwargs.items():
        for wrong in change(value):
            yield args, {**kwargs, key: wrong}


def results(found: Any) -> list[NDArray]:
    if isinstance(found, NDArray):
        return [found]
    return [x for part in found for x in results(part)] if isinstance(found, tuple | list) else []


def described(name: str, call: Call) -> str:
    def one(x: Any) -> str:
        return f"{x.dtype}{x.shape}" if isinstance(x, NDArray) else repr(x)

    args, kwargs = call
    listed = [*map(one, args), *(f"{k}={one(v)}" for k, v in kwargs.items())]
    return f"{name}({', '.join(listed)})"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = valid_call(name, monkeypatch)
    function = getattr(home(name), name.rpartition(".")[2])
    for change in (spoiled, outside):
        for args, kwargs in with_one_changed(call, change):
            try:
                found = function(*args, **kwargs)
                if change is outside:
                    nd.realize(*results(found))
            except (TypeError, ValueError, IndexError) as error:
                text = f"{described(name, (args, kwargs))}: {type(error).__name__}: {error}"
                assert NAMED.match(str(error)), text
            except Exception as error:
                text = f"{described(name, (args, kwargs))}: {type(error).__name__}: {error}"
                raise AssertionError(text) from error


#: Functions and an argument that is a position on an axis, by its place.
INDEXED = {
    "gather": 1, "take": 1, "take_along_axis": 1, "index_select": 1, "embedding": 1,
    "embedding_gradient": 1, "scatter": 1, "scatter_add": 1, "scatter_reduce": 1, "index_add": 1,
    "index_copy": 1, "index_fill": 1, "index_reduce": 1, "put": 1, "one_hot": 0, "segment_sum": 1,
    "segment_mean": 1, "segment_max": 1, "segment_min": 1, "unravel_index": 0,
    "ravel_multi_index": 0, "max_unpool2d": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_index_out_of_range(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an IndexError, on both sides, whatever else the operation does."""
    k = INDEXED[name]
    drawn = (valid_call(name, monkeypatch, seed) for seed in range(99))
    args, kwargs = next(call for call in drawn if all(x.size for x in results(call[0][k])))
    for side in (FAR, -FAR):
        index = args[k]
        wrong = [x + side for x in index] if isinstance(index, list) else index + side
        with pytest.raises(IndexError, match=r": index -?\d+ is out of range for axis \d of size"):
            nd.realize(*results(getattr(nd, name)(*args[:k], wrong, *args[k + 1 :], **kwargs)))
