"""`jit`: record a function once, then run its program with no Python between the kernels.

The first call records (`genesis.ndarray.recording`); a later call that meets the same assumptions
fills in pointers and makes one native call. Assumptions are checked, never baked in silently:
array arguments by dtype, shape and layout, other arguments by value, names the code uses by
`genesis.ndarray.guards`. A failed check records again. A size seen with a second value becomes
symbolic, so that one program serves all lengths.

What a recording takes for granted, and nobody checks: attributes of plain objects, names reached
through attributes of modules, and what the function reads from files, clocks or the network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from genesis.ir.size import Dim, Size, UndecidableSize
from genesis.ndarray.guards import fingerprint
from genesis.ndarray.interop import from_numpy
from genesis.ndarray.layout import Shape, row_major
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.pytree import Structure, flatten
from genesis.ndarray.realisation import realize_values
from genesis.ndarray.recording import Recording
from genesis.ndarray.storage import Storage
from genesis.ndarray.value import CaptureError, Value, thread

P = ParamSpec("P")
R = TypeVar("R")

#: Recordings kept per function; with ever new plain arguments the oldest goes.
MAX_RECORDINGS = 64
#: Kinds of calls remembered per function, each pointing to a recording.
MAX_KEYS = 4096


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Run `function` as one compiled program per kind of arguments.

    >>> import genesis
    >>> from genesis import ndarray as nd
    >>> total = nd.zeros(2)
    >>> @genesis.jit
    ... def accumulate(x):
    ...     total[:] = total + x
    ...     return total * 2
    >>> accumulate(nd.array([1.0, 2.0])).tolist(), accumulate(nd.array([1.0, 2.0])).tolist()
    ([2.0, 4.0], [4.0, 8.0])
    """
    return Jit(function)


class Jit(Generic[P, R]):
    """A function that is recorded once per kind of arguments. Made by `jit`."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._found: dict[Any, tuple[Recording, dict[str, int]]] = {}
        self._recordings: dict[Any, list[Recording]] = {}  # by kind of call
        self._shapes: dict[Any, tuple[Shape, ...]] = {}  # the last ones of each kind
        self._unsized: set[Any] = set()  # kinds that cannot be recorded with symbolic sizes
        self._recent: Recent | None = None
        self.captures = 0  #: how often the function was recorded

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, recording it first if this kind of call is new."""
        if thread.recorder is not None or thread.eager:
            return self._function(*args, **kwargs)
        recent = self._recent
        if recent is not None and not kwargs and recent.matches(args):
            result: R = recent.recording.replay(args, recent.sizes)  # type: ignore[arg-type]
            return result
        call = Call(args, kwargs)
        found = self._found.get(call.key)
        if found is None or not found[0].valid():
            found = self._record(call)
        self._recent = None if kwargs else Recent.of(call, *found)
        result = found[0].replay(call.arrays, found[1])
        return result

    def recording(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Recording, dict[str, int]]:
        """The recording such a call would run, and its symbolic sizes; nothing is computed."""
        call = Call(args, kwargs)
        found = self._found.get(call.key)
        return found if found is not None and found[0].valid() else self._record(call)

    def _record(self, call: Call) -> tuple[Recording, dict[str, int]]:
        """A valid recording for a call: one that accepts it, or a new one."""
        values = [a.storage.value for a in call.arrays]
        known = [r for r in self._recordings.get(call.kind, ()) if r.valid()]
        for recording in known:
            sizes = recording.sizes(values)
            if sizes is not None:
                break
        else:
            recording, sizes = self._new(call, values)
            known.append(recording)
        self._recordings[call.kind] = known
        while sum(map(len, self._recordings.values())) > MAX_RECORDINGS:
            oldest = next(iter(self._recordings))
            self._recordings[oldest].pop(0)
            if not self._recordings[oldest]:
                del self._recordings[oldest]
        # Keys are only shortcuts: forget all that lead to recordings that are gone.
        alive = {r for group in self._recordings.values() for r in group}
        if len(self._found) >= MAX_KEYS:
            self._found.clear()
        self._found = {k: f for k, f in self._found.items() if f[0] in alive}
        self._found[call.key] = (recording, sizes)
        return recording, sizes

    def _new(self, call: Call, values: Sequence[Value]) -> tuple[Recording, dict[str, int]]:
        shapes = tuple(v.shape for v in values)
        before = self._shapes.get(call.kind)
        self._shapes[call.kind] = shapes
        symbolic = None
        if before is not None and before != shapes and call.kind not in self._unsized:
            symbolic = _symbolic(before, shapes, call.arrays)
        self.captures += 1
        if symbolic is not None:
            try:
                recording = Recording(self._function, call.structure, call.leaves, symbolic)
                sizes = recording.sizes(values)
                if sizes is not None:
                    return recording, sizes
            except (UndecidableSize, ValueError, TypeError, IndexError):
                self._unsized.add(call.kind)  # the code depends on the number itself
        return Recording(self._function, call.structure, call.leaves, shapes), {}


class Call:
    """The arguments of a call: the arrays among them, and keys that say what kind of call it is.

    `kind` leaves out shapes and layouts, `key` has them.
    """

    __slots__ = ("arrays", "key", "kind", "leaves", "structure")

    structure: Structure

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves, self.structure = flatten((args, kwargs))
        self.arrays: list[NDArray] = []
        layouts: list[Any] = []
        kinds: list[Any] = []
        first: dict[Storage, int] = {}
        for position, x in enumerate(self.leaves):
            if type(x) is not NDArray:
                if not isinstance(x, np.ndarray):
                    kinds.append(fingerprint(x))
                    continue
                x = self.leaves[position] = from_numpy(x)
            storage = x.storage
            value = storage.value
            if value.memory is None:
                realize_values([value])
            kinds.append((value.dtype, value.device, first.setdefault(storage, len(first)), x.steps))
            layouts.append((value.shape, value.strides, value.offset))
            self.arrays.append(x)
        self.kind = (self.structure, tuple(kinds))
        self.key = (self.kind, tuple(layouts))


class Recent:
    """The last call, if it had only arrays: the next one is often of the same kind.

    This is the path a training loop takes, so it compares fields and builds nothing.
    """

    __slots__ = ("recording", "sizes", "wanted")

    def __init__(self, recording: Recording, sizes: dict[str, int], wanted: list[Any]) -> None:
        self.recording = recording
        self.sizes = sizes
        self.wanted = wanted

    @staticmethod
    def of(call: Call, recording: Recording, sizes: dict[str, int]) -> Recent | None:
        """What to compare the next call with, or None when this one is not plain enough."""
        arrays = call.arrays
        positional = (tuple, None, (None,) * len(arrays))
        flat = call.structure == (tuple, None, (positional, (dict, (), ())))
        distinct = len({x.storage for x in arrays}) == len(arrays)
        if flat and distinct and len(arrays) == len(call.leaves) and not any(x.steps for x in arrays):
            values = [x.storage.value for x in arrays]
            wanted = [(v.dtype, v.shape, v.strides, v.offset, v.device) for v in values]
            return Recent(recording, sizes, wanted)
        return None

    def matches(self, args: tuple[Any, ...]) -> bool:
        """Whether a call without keywords is of this kind, and the recording still valid."""
        wanted = self.wanted
        if len(args) != len(wanted):
            return False
        for x, (dtype, shape, strides, offset, device) in zip(args, wanted, strict=True):
            if type(x) is not NDArray or x.steps:
                return False
            v = x.storage.value
            if (
                v.memory is None
                or v.dtype is not dtype
                or v.shape != shape
                or v.strides != strides
                or v.offset != offset
                or v.device != device
            ):
                return False
        if len(args) > 1 and len({x.storage for x in args}) != len(args):
            return False
        return self.recording.valid()


def _symbolic(
    before: tuple[Shape, ...], now: tuple[Shape, ...], arrays: Sequence[NDArray]
) -> tuple[Shape, ...] | None:
    """Shapes in which every extent that differs from before is a symbol, where that is possible.

    Extents that were equal before and are equal now share a symbol.
    """
    symbols: dict[tuple[Dim, Dim], Size] = {}
    result: list[Shape] = []
    for old, new, array in zip(before, now, arrays, strict=True):
        value = array.storage.value
        if len(old) != len(new):
            return None
        shape: list[Dim] = []
        for a, b in zip(old, new, strict=True):
            if a == b:
                shape.append(b)
                continue
            plain = not array.steps and not value.offset and value.strides == row_major(value.shape)
            if a == 0 or b == 0 or not plain:
                return None
            symbols.setdefault((a, b), Size.symbol(f"n{len(symbols)}", low=1))
            shape.append(symbols[a, b])
        result.append(tuple(shape))
    return tuple(result)


__all__ = ["CaptureError", "Jit", "jit"]
