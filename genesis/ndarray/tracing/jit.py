"""`jit`: record a function once, then run its program with no Python between the kernels.

The first call records (`genesis.ndarray.tracing.recording`); a later call that meets the same
assumptions fills in pointers and makes one native call (`genesis.ndarray.tracing.replay`).
Assumptions are checked, never baked in silently: array arguments by dtype, shape and strides, other
arguments by value, and every place that the function read while it was recorded
(`genesis.ndarray.tracing.guards`). A failed check records again. A size seen with a second value
becomes symbolic, so that one program serves all lengths.

A jitted call does what the function would do, or raises an error that names the line.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from genesis.ir.size import Dim, Size, UndecidableSize, evaluate, substitute
from genesis.ndarray.core.layout import Shape
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.realisation import options
from genesis.ndarray.core.value import CaptureError, inlined, lock, thread
from genesis.ndarray.pytree import Path, Structure, Wrapped, flatten, repeats, unwrapper
from genesis.ndarray.tracing.call import ArrayInput, CallArguments
from genesis.ndarray.tracing.guards import Guard
from genesis.ndarray.tracing.journal import Aliased
from genesis.ndarray.tracing.storage_recorder import Failed, NeedsStorage, Refined

if TYPE_CHECKING:
    from genesis.ndarray.numpy_call import Direct
    from genesis.ndarray.tracing.recording import Recording
    from genesis.ndarray.tracing.replay import Ready, Replay

P = ParamSpec("P")
R = TypeVar("R")
#: Bytes, a text such as "512 MiB", or a fraction of what is taken without a budget.
Budget = int | float | str

#: What code raises that cannot do with a symbol for a size.
_OF_SIZES = (ValueError, TypeError, IndexError)
#: Recordings kept per function; with ever new plain arguments the oldest goes.
MAX_RECORDINGS = 64
#: Layouts of arguments remembered per function, each pointing to a recording.
MAX_KEYS = 4096
#: After so many recordings in a row a function says that it never gets to run a program.
MAX_STREAK = 8
#: Shapes remembered per kind of call, to see which extents change.
MAX_HISTORY = 8
#: The greatest size that is expected where several are symbolic; a greater one is recorded anew.
MANY = 1 << 25
#: How often a function is recorded again with symbols that say more about its sizes.
MAX_REFINEMENTS = 8


@overload
def jit(
    function: Callable[P, R], *, memory_budget: Budget | None = None, static: Iterable[Any] = ()
) -> Jit[P, R]: ...
@overload
def jit(
    function: None = None, *, memory_budget: Budget | None = None, static: Iterable[Any] = ()
) -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(
    function: Any = None, *, memory_budget: Budget | None = None, static: Iterable[Any] = ()
) -> Any:
    """Run `function` as one compiled program per kind of arguments.

    `memory_budget` is the most memory that a call may take on top of its inputs, results included:
    bytes, a text such as "512 MiB", or as a float the fraction of what it takes without a budget.
    What does not fit is computed again when it is needed; results have the same bits.

    A call does what the function would do, or raises an error that names the line. Functions and
    objects in `static` are taken to stay as they are: what they give when the function is recorded
    is what they give.

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
    budget = None if memory_budget is None else as_budget(memory_budget)
    if function is None:
        return functools.partial(Jit, memory_budget=budget, static=static)
    if not callable(function):
        raise TypeError(f"genesis.jit: {function!r} is no function")
    return Jit(function, budget, static)


def as_budget(budget: Budget) -> int | float:
    """A memory budget as bytes, or as the fraction of what a program takes without one.

    >>> as_budget("1.5 KiB"), as_budget(0.5)
    (1536, 0.5)
    """
    if isinstance(budget, str):
        parts = re.fullmatch(r"\s*([0-9.]+)\s*([kKMGT]?)(i?)B\s*", budget)
        if parts and parts[1].count(".") < 2 and parts[1] != ".":
            step = 1024 if parts[3] else 1000
            return int(float(parts[1]) * step ** " KMGT".index(parts[2].upper() or " "))
    elif budget > 0 and (type(budget) is int or (type(budget) is float and budget <= 1)):
        return budget
    raise ValueError(
        f"genesis.jit: memory_budget is {budget!r}; it takes bytes as an int, a text such as "
        "'512 MiB', or a fraction from above 0 to 1"
    )


class RecordingWarning(UserWarning):
    """A jitted function is recorded at every call."""


class CallKind:
    """What is known about one kind of call."""

    __slots__ = ("fixed", "history", "pinned", "recordings", "sized", "whole")

    def __init__(self) -> None:
        self.recordings: list[Recording] = []
        self.history: list[tuple[Shape, ...]] = []  # the shapes that were recorded
        self.fixed: set[tuple[int, int]] = set()  # extents (input, axis) needed as numbers
        self.sized = True  # whether it can be recorded with symbolic sizes
        self.pinned: set[Path] = set()  # arguments that are the objects they are
        self.whole = False  # whether it writes to views, so that inputs must be whole storages


class Jit(Generic[P, R]):
    """A function that is recorded once per kind of arguments. Made by `jit`."""

    def __init__(
        self,
        function: Callable[P, R],
        memory_budget: int | float | None = None,
        static: Iterable[Any] = (),
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._budget = memory_budget
        self._static = tuple(static)
        self._kinds: dict[Any, CallKind] = {}  # the oldest first
        self._found: dict[Any, Replay] = {}
        self._recent: Recent | None = None
        self._of_sizes: dict[Any, Recent] = {}  # calls like the last one, by the sizes of arrays
        self._streak = 0  # recordings since a call found one that served
        self._warned = False
        self.captures = 0  #: how often the function was recorded

    def __reduce__(self) -> Any:
        """Copies, and what pickle makes, are of the function alone: recordings refer to objects."""
        return type(self), (self._function, self._budget, self._static)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, recording it first if this kind of call is new."""
        if thread.recorder is not None or thread.eager or thread.inlines:
            return self._function(*args, **kwargs)
        recorded: Recording | None = None
        while True:
            with lock:
                try:
                    ready = self._ready(args, kwargs, recorded)
                except Aliased as found:
                    self._pin(args, kwargs, found)
                    continue
                except RecursionError:
                    raise CaptureError(
                        "genesis.jit: an argument contains itself, or is nested too deeply; pass "
                        "what it holds"
                    ).located(self._function) from None
                if type(ready) is tuple and ready[0].writes:
                    return cast(R, ready[0].finish(ready))
            if type(ready) is tuple:
                return cast(R, ready[0].finish(ready))
            try:
                recorded = self._record(
                    cast(CallArguments, ready)
                )  # runs user code, so without the lock
            except Aliased as found:
                self._pin(args, kwargs, found)
            except Failed as failed:
                if not failed.changes:
                    raise failed.error from None
                # What the function does before it fails is done as if there were no `jit`.
                with inlined():
                    return self._function(*args, **kwargs)

    def _ready(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: Recording | None
    ) -> Ready | CallArguments:
        """A run for these arguments, or the call that has to be recorded first."""
        recent = self._recent
        if recent is not None:
            arrays = recent.arrays(args, kwargs)
            if arrays is None:
                recent = self._of_sizes.get(recent.sizes(args, kwargs))
                arrays = None if recent is None else recent.arrays(args, kwargs)
            if recent is not None and arrays is not None and recent.replay.recording.valid():
                self._recent, self._streak = recent, 0
                return recent.replay.start(arrays, (args, kwargs))
        call = self._call(args, kwargs)
        replay = self._known(call, recorded)
        if replay is None:
            return call
        self._recent = recent = Recent.of(call, replay)
        sizes = None if recent is None else recent.sizes(args, kwargs)
        if recent is not None and sizes is not None:
            if len(self._of_sizes) >= MAX_KEYS:
                self._of_sizes.clear()
            self._of_sizes[sizes] = recent
        if recorded is None:
            self._streak = 0
        return replay.start(call.arrays, (args, kwargs), call.starts)

    def recording(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Recording, Mapping[str, int]]:
        """The recording such a call would run, and its symbolic sizes; nothing is computed."""
        call = self._call(args, kwargs)
        replay = self._known(call, None)
        while replay is None:
            try:
                recorded = self._record(call)
            except Failed as failed:
                raise failed.error from None
            call = self._call(args, kwargs)
            replay = self._known(call, recorded)
        return replay.recording, replay.sizes

    def direct(self, *args: P.args, **kwargs: P.kwargs) -> Direct | None:
        """What runs such calls on NumPy arrays alone; None if they do more than compute arrays."""
        from genesis.ndarray.numpy_call import Direct

        call = self._call(args, kwargs)
        with lock:
            replay = self._known(call, None)
            plain = not any(
                x.steps or i.offset for x, i in zip(call.arrays, call.inputs, strict=True)
            )
            outside = (
                replay.outside() if replay is not None and replay.is_direct and plain else None
            )
            return None if replay is None or outside is None else Direct(self, replay, outside)

    def expect(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Take note that such a call will come; nothing is recorded.

        Sizes in which the next call differs from it are symbolic at once, where they would be so
        only from the second recording on.

        >>> from genesis import ndarray as nd
        >>> double = jit(lambda x: x * 2)
        >>> double.expect(nd.zeros(3))
        >>> [double(nd.ones(n)).tolist() for n in (1, 2)], double.captures
        ([[2.0], [2.0, 2.0]], 1)
        """
        call = self._call(args, kwargs)
        kind = self._kinds.get(call.kind) or CallKind()
        kind.history = [*kind.history[1 - MAX_HISTORY :], tuple(i.shape for i in call.inputs)]
        self._keep(call.kind, kind)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArguments:
        call = CallArguments(args, kwargs)
        kind = self._kinds.get(call.kind)
        if kind is None or not (kind.whole or kind.pinned):
            return call
        found = CallArguments(args, kwargs, kind.whole, kind.pinned)
        inner = self._kinds.get(found.kind)
        if inner is not None and inner.whole and not kind.whole:
            return CallArguments(args, kwargs, True, kind.pinned)
        return found

    def _pin(self, args: tuple[Any, ...], kwargs: dict[str, Any], found: Aliased) -> None:
        """Take arguments that the function meets elsewhere, too, for the objects they are."""
        call = CallArguments(args, kwargs)
        kind = self._kinds.get(call.kind) or CallKind()
        if found.paths <= kind.pinned:
            raise CaptureError(
                "genesis.jit: an array is passed as an argument and part of it also used by the "
                "function through a closure or a global, and the function writes to arrays; pass "
                f"it one way only ({getattr(self._function, '__qualname__', self._function)})"
            )
        kind.pinned |= found.paths
        kind.recordings = []
        self._recent = None
        self._of_sizes.clear()
        self._keep(call.kind, kind)

    def _known(self, call: CallArguments, recorded: Recording | None) -> Replay | None:
        """What to run for a call; None if it has to be recorded. `recorded` just was, for it."""
        replay = self._found.get(call.key)
        if replay is not None and (replay.recording is recorded or replay.recording.valid()):
            return replay
        from genesis.ndarray.tracing.replay import Replay  # importing Genesis records nothing yet

        for recording in self._kinds[call.kind].recordings if call.kind in self._kinds else ():
            if recording is recorded or recording.valid():
                sizes = recording.sizes(call)
                if sizes is not None:
                    if len(self._found) >= MAX_KEYS:
                        self._found.clear()
                    replay = self._found[call.key] = Replay(recording, sizes)
                    return replay
        return None

    def _record(self, call: CallArguments) -> Recording | None:
        """A new recording for a call; None if a call like this has to be looked at differently."""
        kind = self._kinds.get(call.kind) or CallKind()
        recording = None
        self._streak += 1
        if self._streak > MAX_STREAK and not self._warned:
            self._warned = True
            warnings.warn(self._often(kind), RecordingWarning, stacklevel=3)
        try:
            recording = self._recorded(kind, call)
            # What does not hold now, such as a module's mode, may hold again.
            kind.recordings = [*(r for r in kind.recordings if r.possible()), recording]
            self.captures += 1
        except NeedsStorage:
            kind.whole = True
        self._keep(call.kind, kind)
        return recording

    def _recorded(self, kind: CallKind, call: CallArguments) -> Recording:
        shapes = tuple(i.shape for i in call.inputs)
        if any(0 in shape for shape in shapes) or self._budget is not None or call.is_divided:
            return self._recording(call, shapes)
        history = [*kind.history[1 - MAX_HISTORY :], shapes]
        sized = kind.sized and options()().symbolic_sizes
        symbolic = _symbolic(history, call.inputs, kind.fixed) if sized else shapes
        recording = self._sized(kind, call, symbolic) if symbolic != shapes else None
        if recording is None:
            recording = self._recording(call, shapes)
            kind.sized = symbolic == shapes and kind.sized
        kind.history = history
        return recording

    def _sized(
        self, kind: CallKind, call: CallArguments, shapes: tuple[Shape, ...]
    ) -> Recording | None:
        """A recording for symbolic shapes; None if the code is wrong for them, or for any."""
        for _ in range(MAX_REFINEMENTS):
            try:
                return self._recording(call, shapes)
            except Refined as found:
                shapes = found.shapes
                kind.fixed |= found.fixed
            except (UndecidableSize, *_OF_SIZES):
                return None
            except Failed as failed:
                if not isinstance(failed.error, _OF_SIZES):
                    raise
                return None
        return None

    def _often(self, kind: CallKind) -> str:
        """What to say about a function that is recorded at every call."""
        name = getattr(self._function, "__qualname__", repr(self._function))
        if kind.recordings:
            reason = f"{kind.recordings[-1].reason()} has changed since it was recorded last"
        else:
            reason = "an argument that is no array has another value each time"
        return (
            f"genesis.jit: the last {self._streak} calls of {name} were all recorded anew: "
            f"{reason}. Recording takes as long as the plain function; pass what changes as an "
            "array, or keep it outside"
        )

    def _recording(self, call: CallArguments, shapes: Sequence[Shape]) -> Recording:
        from genesis.ndarray.tracing.recording import Recording

        return Recording(self._function, call, shapes, self._budget, self._static)

    def _keep(self, key: Any, kind: CallKind) -> None:
        """Remember a kind of call as the newest; forget the oldest where there are too many."""
        kinds = {k: v for k, v in list(self._kinds.items()) if k != key} | {key: kind}
        while sum(max(len(k.recordings), 1) for k in kinds.values()) > MAX_RECORDINGS:
            oldest = next(iter(kinds))
            if len(kinds[oldest].recordings) > 1:
                kinds[oldest].recordings.pop(0)
            else:
                del kinds[oldest]
        alive = {r for k in kinds.values() for r in k.recordings}
        self._kinds = kinds
        self._found = {k: r for k, r in list(self._found.items()) if r.recording in alive}
        self._of_sizes.clear()


class Recent:
    """The last call, if its arrays were whole storages: the next one is often of the same kind.

    This is the path a training loop takes, so it compares fields and builds next to nothing.
    """

    __slots__ = ("replay", "structure", "wanted", "wrapped")

    def __init__(self, replay: Replay, structure: Structure, wanted: list[Any]) -> None:
        self.replay = replay
        self.structure = structure  # of all arguments
        self.wanted = wanted
        #: None for every argument that is an array, and how to unwrap every one that holds one;
        #: None if there are others.
        self.wrapped: list[Wrapped | None] | None = None
        assert structure is not None
        (_, _, places), (_, names, _) = structure[2]
        found = [unwrapper(s) for s in places]
        alone = all(s is None or w is not None for s, w in zip(places, found, strict=True))
        if alone and not names and not any(type(want) is Guard for want in wanted):
            self.wrapped = found

    @staticmethod
    def of(call: CallArguments, replay: Replay) -> Recent | None:
        """What to compare the next call with, or None when this one is not plain enough."""
        inputs = iter(call.inputs)
        wanted: list[Any] = []
        for x in call.leaves:
            if type(x) is not NDArray:
                wanted.append(Guard.on(x))
                continue
            i = next(inputs)
            if x.steps or i.start or i.offset:
                return None
            placement = x.storage.actual.placement
            wanted.append((x.dtype, i.shape, i.strides, x.device, placement))
        if len({i.array.storage for i in call.inputs}) != len(call.inputs):
            return None
        return Recent(replay, call.structure, wanted)

    def sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Shape, ...] | None:
        """The shapes of arguments that are arrays like those of this call; None if some are not."""
        if self.wrapped is None or kwargs or len(args) != len(self.wrapped):
            return None
        shapes = []
        for x, wrapped in zip(args, self.wrapped):  # noqa: B905
            if wrapped is not None:
                if type(x) is not wrapped[0]:
                    return None
                x, _ = wrapped[2](x)
            if type(x) is not NDArray:
                return None
            shapes.append(x.storage.actual.shape)
        return tuple(shapes)

    def arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[NDArray] | None:
        """The array arguments, if the call is of this kind."""
        wanted = self.wanted
        arrays: Sequence[NDArray]
        leaves: list[Any]
        if self.wrapped is not None:
            if kwargs or len(args) != len(wanted):
                return None
            leaves = arrays = []
            for x, wrapped in zip(args, self.wrapped):  # noqa: B905
                if wrapped is not None:
                    kind, known, unwrap = wrapped
                    if type(x) is not kind:
                        return None
                    x, rest = unwrap(x)
                    if rest != known:
                        return None
                leaves.append(x)
        else:
            leaves, structure = flatten((args, kwargs))
            if structure != self.structure:
                return None
            if self.replay.recording.actions and repeats((args, kwargs)):
                return None
            arrays = [x for x in leaves if type(x) is NDArray]
        for x, want in zip(leaves, wanted):  # noqa: B905
            if type(want) is Guard:
                if not want.accepts(x):
                    return None
                continue
            if type(x) is not NDArray or x.steps:
                return None
            dtype, shape, strides, device, placement = want
            v = x.storage.actual
            if (
                v.memory is None
                or v.dtype is not dtype
                or v.shape != shape
                or v.strides != strides
                or v.offset
                or v.device is not device
                or v.placement is not placement
            ):
                return None
        if len(arrays) > 1 and len({x.storage for x in arrays}) != len(arrays):
            return None
        return arrays


def _symbolic(
    history: Sequence[tuple[Shape, ...]], inputs: Sequence[ArrayInput], fixed: set[tuple[int, int]]
) -> tuple[Shape, ...]:
    """The last shapes, with a symbol for every extent that has not always been the same.

    Extents that have always been equal to each other share a symbol; those that are `fixed` stay
    numbers. Where there can be no symbols, the last shapes as they are.
    """
    symbols: dict[tuple[Dim, ...], Size] = {}
    result: list[Shape] = []
    ranks = [len(shape) for shape in history[-1]]
    history = [shapes for shapes in history if [len(shape) for shape in shapes] == ranks]
    for number, i in enumerate(inputs):
        past = [shapes[number] for shapes in history]
        shape: list[Dim] = []
        for axis, extents in enumerate(zip(*past, strict=True)):
            if len(set(extents)) == 1 or (number, axis) in fixed:
                shape.append(extents[-1])
            elif 0 in extents or not i.is_plain:
                return history[-1]
            else:
                symbols.setdefault(extents, Size.symbol(f"n{len(symbols)}", low=1))
                shape.append(symbols[extents])
        result.append(tuple(shape))
    if len(symbols) > 1:  # so that the product of two and a width is a number of 64 bits
        limits = {
            f"n{k}": Size.symbol(f"n{k}", 1, max(MANY, 2 * evaluate(extents[-1], {})))
            for k, extents in enumerate(symbols)
        }
        return tuple(tuple(substitute(e, limits) for e in shape) for shape in result)
    return tuple(result)
