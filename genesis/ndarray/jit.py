"""`jit`: record a function once, then run its program with no Python between the kernels.

The first call runs the function on stand-ins for its array arguments and records every storage it
reads or writes: arguments, and whatever the function reaches through closures and globals
(parameters, optimizer state, random generators). The graph that results becomes one program whose
inputs are the storages' memory and whose outputs are the results and the storages' new contents.
A later call that meets the same assumptions fills in pointers and makes one native call.

Assumptions are checked, never baked in silently: arguments by dtype, shape and layout (arrays) or
value (everything else), names by `genesis.ndarray.guards`. A size seen with a second value becomes
symbolic. Asking for a value while recording is an error that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from weakref import ref

import numpy as np

from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar
from genesis.ir.node import Leaf, Node, node
from genesis.ir.size import Dim, Size, UndecidableSize, evaluate
from genesis.ndarray.device import backend_name
from genesis.ndarray.guards import Guards, fingerprint
from genesis.ndarray.interop import from_numpy
from genesis.ndarray.layout import Shape, Strides, is_row_major, row_major
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.pytree import Structure, flatten, unflatten
from genesis.ndarray.realisation import collect, compiled, realize_values
from genesis.ndarray.storage import State, Step, Steps, Storage
from genesis.ndarray.value import CaptureError, Value, thread

if TYPE_CHECKING:
    from genesis.backends.base import Memory
    from genesis.compiler import Program

P = ParamSpec("P")
R = TypeVar("R")

#: Recordings kept per function; a function called with ever new plain arguments drops the oldest.
MAX_RECORDINGS = 64


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Run `function` as one compiled program per kind of arguments.

    >>> from genesis import ndarray as nd
    >>> import genesis
    >>> counter = nd.zeros(2)
    >>> @genesis.jit
    ... def step(x):
    ...     global counter
    ...     counter += x
    ...     return counter * 2
    >>> step(nd.array([1.0, 2.0])).tolist(), step(nd.array([1.0, 2.0])).tolist()
    ([2.0, 4.0], [4.0, 8.0])
    """
    return Jit(function)


class Jit(Generic[P, R]):
    """A function that is recorded once per kind of arguments. Made by `jit`."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._recordings: dict[Any, tuple[Recording, dict[str, int]]] = {}
        self._shapes: dict[Any, list[tuple[Shape, ...]]] = {}
        self._fixed: set[Any] = set()  # kinds of calls that cannot have symbolic sizes
        self.captures = 0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, recording it first if this kind of call is new."""
        if thread.recorder is not None:  # inside another recording: just a function
            return self._function(*args, **kwargs)
        call = _Call(args, kwargs)
        found = self._recordings.get(call.key)
        if found is None or not found[0].valid():
            found = self._record(call)
        recording, sizes = found
        result: R = recording.replay(call.arrays, sizes)
        return result

    def recording(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Recording, dict[str, int]]:
        """The recording such a call would run, and its symbolic sizes; nothing is computed."""
        call = _Call(args, kwargs)
        found = self._recordings.get(call.key)
        return found if found is not None and found[0].valid() else self._record(call)

    def _record(self, call: _Call) -> tuple[Recording, dict[str, int]]:
        for recording, _ in list(self._recordings.values()):
            sizes = recording.accepts(call)
            if sizes is not None and recording.valid():
                return self._remember(call, recording, sizes)
        shapes = tuple(a.shape for a in call.arrays)
        earlier = self._shapes.setdefault(call.kind, [])
        symbolic = None
        if earlier and shapes not in earlier and call.kind not in self._fixed:
            symbolic = _symbolic(earlier[-1], shapes, call.arrays)
        if shapes not in earlier:
            earlier.append(shapes)
            del earlier[:-8]
        self.captures += 1
        if symbolic is not None:
            try:
                recording = Recording(self._function, call, symbolic)
                sizes = recording.accepts(call)
                assert sizes is not None
                return self._remember(call, recording, sizes)
            except (UndecidableSize, ValueError, TypeError, IndexError):
                self._fixed.add(call.kind)  # the code depends on the number: record each size
        return self._remember(call, Recording(self._function, call, shapes), {})

    def _remember(
        self, call: _Call, recording: Recording, sizes: dict[str, int]
    ) -> tuple[Recording, dict[str, int]]:
        dead = [k for k, (r, _) in self._recordings.items() if not r.valid()]
        for key in dead:
            del self._recordings[key]
        while len({id(r) for r, _ in self._recordings.values()}) >= MAX_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        if len(self._recordings) >= 64 * MAX_RECORDINGS:
            self._recordings.clear()
        self._recordings[call.key] = (recording, sizes)
        return recording, sizes


class _Call:
    """A call's arguments: the arrays among them, and the key that says what kind of call it is."""

    __slots__ = ("arrays", "key", "kind", "leaves", "structure")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves, self.structure = flatten((args, kwargs))
        self.arrays: list[NDArray] = []
        layouts: list[Any] = []
        kinds: list[Any] = []
        seen: dict[Storage, int] = {}
        pending = [
            v
            for x in self.leaves
            if type(x) is NDArray and (v := x.storage.value).memory is None
        ]
        if pending:
            realize_values(pending)
        for position, x in enumerate(self.leaves):
            if isinstance(x, np.ndarray):
                x = self.leaves[position] = from_numpy(x)
            if type(x) is NDArray:
                storage = x.storage
                value = storage.value
                first = seen.setdefault(storage, len(self.arrays))
                self.arrays.append(x)
                layouts.append((value.shape, value.strides, value.offset, x.steps))
                kinds.append((value.dtype, value.device, first, len(value.shape)))
            else:
                kinds.append(fingerprint(x))
        self.kind = (self.structure, tuple(kinds))
        self.key = (self.kind, tuple(layouts))


# ---- recording


@dataclass(frozen=True)
class _Input:
    """A storage the program reads: argument number `argument`, or one found outside."""

    argument: int | None
    storage: ref[Storage] | None
    shape: Shape
    strides: Strides
    offset: Dim


class _Recorder:
    """What happens to storages while a function runs. Reached through ``thread.recorder``."""

    def __init__(self, stand_ins: Mapping[Storage, int], originals: Sequence[Storage]) -> None:
        self.arguments = dict(stand_ins)
        self.originals = set(originals)
        self.outside: dict[Storage, Value] = {}
        self.written: dict[Storage, Value | None] = {}
        self.created: set[Storage] = set()

    def create(self, storage: Storage) -> None:
        """A storage is made."""
        self.created.add(storage)

    def read(self, storage: Storage, value: Value) -> None:
        """A storage's value is asked for."""
        if storage in self.arguments or storage in self.created or storage in self.written:
            return
        if storage in self.outside:
            return
        if storage in self.originals:
            raise CaptureError(
                "genesis.jit: an array is passed as an argument and also used by the function "
                "through a closure or a global; pass it one way only"
            )
        if value.memory is None:
            with _not_recording():
                realize_values([value])
        self.outside[storage] = value

    def write(self, storage: Storage, old: Value) -> None:
        """A storage is about to get another value."""
        if storage not in self.created and storage not in self.written:
            if storage in self.originals:
                self.read(storage, old)
            self.written[storage] = old


class _not_recording:
    def __enter__(self) -> None:
        self.before, thread.recorder = thread.recorder, None

    def __exit__(self, *error: object) -> None:
        thread.recorder = self.before


class Recording:
    """One function recorded for one kind of call: its program and how to fill it in."""

    def __init__(
        self, function: Callable[..., Any], call: _Call, shapes: tuple[Shape, ...]
    ) -> None:
        self._guards = Guards(function)
        self._kind = call.kind
        self._steps = tuple(a.steps for a in call.arrays)
        stand_ins, leaves = _stand_in(call, shapes)
        recorder = _Recorder(
            {a.storage: i for i, a in reversed(list(enumerate(stand_ins)))},
            [a.storage for a in call.arrays],
        )
        args, kwargs = unflatten(call.structure, leaves)
        thread.recorder = recorder
        try:
            result = function(*args, **kwargs)
            results, self._structure = flatten(result)
            values = [x.value if isinstance(x, NDArray) else None for x in results]
        finally:
            thread.recorder = None
            finals = {s: s.value for s in recorder.written}
            for storage, old in recorder.written.items():  # replaying will write for real
                assert old is not None
                storage.value = old
        del values
        self._build(recorder, results, finals, stand_ins)

    def _build(
        self,
        recorder: _Recorder,
        results: list[Any],
        finals: dict[Storage, Value],
        stand_ins: list[NDArray],
    ) -> None:
        sources: dict[Value, _Input] = {}
        for storage, argument in recorder.arguments.items():
            value = recorder.written.get(storage) or storage.value
            sources[value] = _Input(argument, None, value.shape, value.strides, value.offset)
        for storage, value in recorder.outside.items():
            sources[value] = _Input(None, ref(storage), value.shape, value.strides, value.offset)
        # Storages made inside that come out as results, each once; and storages written.
        fresh = dict.fromkeys(
            x.storage for x in results if isinstance(x, NDArray) and x.storage in recorder.created
        )
        targets = list(finals)
        wanted = [s.value for s in fresh] + [finals[s] for s in targets]
        pending = list(dict.fromkeys(v for v in wanted if v.memory is None))
        order, _ = collect(pending)
        inputs = [v for v in order if v.memory is not None]
        kept_inputs = {v: k for k, v in enumerate(inputs)}
        nodes, self._scalars = _intern(order, kept_inputs)
        roots = tuple(dict.fromkeys(nodes[v] for v in pending))
        overwritten = {recorder.written[s] for s in targets}
        donated = frozenset(
            k
            for v, k in kept_inputs.items()
            if v in overwritten and v in sources and not v.attr and v.offset == 0
            and is_row_major(v.shape, v.strides)
        )  # fmt: skip
        devices = {v.device for v in (*wanted, *inputs)} or {"cpu"}
        if len(devices) > 1:
            raise CaptureError(f"genesis.jit: the function uses several devices: {sorted(devices)}")
        self._device = devices.pop()
        self.program: Program = compiled(roots, donated, self._device).program
        self.values = {nodes[v]: v for v in order}  # where each node came from, for `explain`
        # Memory that is not a storage's (arrays made while recording) belongs to the recording.
        self._inputs = [sources.get(v) for v in inputs]
        self._constants = [None if v in sources else v.memory for v in inputs]
        index = {n: k for k, n in enumerate(roots)}
        self._outputs = tuple((n.dtype, n.shape) for n in roots)
        self._symbolic = any(isinstance(d, Size) for n in roots for d in n.shape)

        def output_of(value: Value) -> int | Value:
            return index[nodes[value]] if value.memory is None else value

        self._fresh = [output_of(s.value) for s in fresh]
        self._written = [
            (recorder.arguments.get(s), None if s in recorder.arguments else ref(s), output_of(finals[s]))
            for s in targets
        ]
        places = {s: ("fresh", k) for k, s in enumerate(fresh)}
        places |= {s: ("argument", k) for s, k in recorder.arguments.items()}
        self._results: list[tuple[str, Any, Steps]] = []
        for x in results:
            if not isinstance(x, NDArray):
                self._results.append(("plain", x, ()))
            elif x.storage in places:
                self._results.append((*places[x.storage], x.steps))
            else:
                self._results.append(("outside", x.storage, x.steps))
        self._seen: list[Any] = [None] * len(self._inputs)
        self._stand_in_shapes = [a.storage.value.shape if a.storage not in recorder.written else recorder.written[a.storage].shape for a in stand_ins]  # type: ignore[union-attr]

    # ---- validity
    def valid(self) -> bool:
        """Whether everything assumed about the surroundings still holds."""
        if not self._guards.hold():
            return False
        for k, source in enumerate(self._inputs):
            if source is None or source.storage is None:
                continue
            storage = source.storage()
            if storage is None:
                return False
            value = storage.value
            if value is self._seen[k]:
                continue
            if value.memory is None:
                realize_values([value])
            fits = (
                value.shape == source.shape
                and value.strides == source.strides
                and value.offset == source.offset
            )
            if not fits:
                return False
        return all(s is None or s() is not None for _, s, _ in self._written)

    def accepts(self, call: _Call) -> dict[str, int] | None:
        """The values of the symbolic sizes in this call, or None when it is another kind."""
        if call.kind != self._kind or tuple(a.steps for a in call.arrays) != self._steps:
            return None
        sizes: dict[str, int] = {}
        for array, shape in zip(call.arrays, self._stand_in_shapes, strict=True):
            value = array.storage.value
            if not any(isinstance(d, Size) for d in shape):
                if shape != value.shape:
                    return None
            elif value.offset or value.strides != row_major(value.shape):
                return None
            for extent, known in zip(value.shape, shape, strict=True):
                if isinstance(known, Size):
                    (symbol,) = known.symbols
                    low, high = symbol.low, symbol.high
                    if not low <= extent <= high or sizes.setdefault(symbol.name, extent) != extent:
                        return None
                elif known != extent:
                    return None
        fixed = [s for s in self._inputs if s is not None and s.argument is not None]
        for source in fixed:
            assert source.argument is not None
            value = call.arrays[source.argument].storage.value
            if not any(isinstance(d, Size) for d in source.shape) and (
                value.strides != source.strides or value.offset != source.offset
            ):
                return None
        return sizes

    # ---- running
    def replay(self, arrays: Sequence[NDArray], sizes: dict[str, int]) -> Any:
        """Run the program on these arguments."""
        from genesis.backends import get

        program = self.program
        buffers: list[Memory] = []
        values: list[Value | None] = []
        for source, constant in zip(self._inputs, self._constants, strict=True):
            if source is None:
                assert constant is not None
                buffers.append(constant)
                values.append(None)
                continue
            if source.argument is not None:
                value = arrays[source.argument].storage.value
            else:
                storage = source.storage()  # type: ignore[misc]
                assert storage is not None
                value = storage.value
            assert value.memory is not None
            buffers.append(value.memory)
            values.append(value)
        value = None
        backend = get(backend_name(self._device))
        outputs: list[Memory] = []
        for output in program.outputs:
            if output.reuses is None:
                count = output.dtype.itemsize
                for d in output.shape:
                    count *= d if isinstance(d, int) else d.value(sizes)
                outputs.append(backend.allocate(count))
            else:
                slot = output.reuses
                # Only the storage's own value may hold the memory: an array returned earlier, or
                # one exported to another library, keeps what it has.
                if getrefcount(values[slot]) > _VALUE_REFS or getrefcount(buffers[slot]) > _MEMORY_REFS:
                    copy = backend.allocate(buffers[slot].nbytes)
                    _copy(backend, buffers[slot], copy)
                    buffers[slot] = copy
                outputs.append(buffers[slot])
        program.run(buffers, self._scalars, outputs, sizes)
        made = [
            Value.realised(memory, dtype, shape, row_major(shape), self._device)
            for memory, (dtype, shape) in zip(outputs, self._shapes(sizes), strict=True)
        ]
        return self._finish(arrays, made, sizes)

    def _shapes(self, sizes: dict[str, int]) -> Sequence[tuple[DType, Shape]]:
        if not self._symbolic:
            return self._outputs
        return [(d, tuple(evaluate(e, sizes) for e in shape)) for d, shape in self._outputs]

    def _finish(
        self, arrays: Sequence[NDArray], made: list[Value], sizes: dict[str, int]
    ) -> Any:
        """Write what was written, and put the results together."""
        for argument, outside, output in self._written:
            storage = arrays[argument].storage if argument is not None else outside()  # type: ignore[misc]
            assert storage is not None
            storage.write(made[output] if isinstance(output, int) else output)
        for k, source in enumerate(self._inputs):
            if source is not None and source.storage is not None:
                storage = source.storage()
                self._seen[k] = storage.value if storage is not None else None
        fresh = [Storage(made[f] if isinstance(f, int) else f) for f in self._fresh]
        results: list[Any] = []
        for kind, what, steps in self._results:
            if kind == "plain":
                results.append(what)
                continue
            if kind == "fresh":
                storage = fresh[what]
            elif kind == "argument":
                storage = arrays[what].storage
                steps = arrays[what].steps if steps == self._steps[what] else steps
            else:
                storage = what
            if sizes and steps:
                steps = tuple(_concrete(s, sizes) for s in steps)
            results.append(NDArray(storage, steps))
        return unflatten(self._structure, results)


def _stand_in(call: _Call, shapes: tuple[Shape, ...]) -> tuple[list[NDArray], list[Any]]:
    """Arrays to record with: the arguments' memory, with the given (maybe symbolic) shapes."""
    storages: dict[Storage, Storage] = {}
    stand_ins: list[NDArray] = []
    leaves = list(call.leaves)
    for array, shape in zip(call.arrays, shapes, strict=True):
        value = array.storage.value
        assert value.memory is not None
        if array.storage not in storages:
            symbolic = any(isinstance(d, Size) for d in shape)
            twin = Value.realised(
                value.memory,
                value.dtype,
                shape if symbolic else value.shape,
                row_major(shape) if symbolic else value.strides,
                value.device,
                value.offset,
                foreign=bool(value.attr),
            )
            storages[array.storage] = Storage(twin)
        stand_ins.append(NDArray(storages[array.storage], array.steps))
    replaced = iter(stand_ins)
    for position, x in enumerate(leaves):
        if type(x) is NDArray:
            leaves[position] = next(replaced)
    return stand_ins, leaves


def _symbolic(
    before: tuple[Shape, ...], now: tuple[Shape, ...], arrays: Sequence[NDArray]
) -> tuple[Shape, ...] | None:
    """Shapes in which every extent that differs from before is a symbol.

    Extents that were equal before and are equal now share a symbol.
    """
    names: dict[tuple[int, int], Size] = {}
    result: list[Shape] = []
    for old, new, array in zip(before, now, arrays, strict=True):
        value = array.storage.value
        if len(old) != len(new):
            return None
        shape: list[Dim] = []
        for a, b in zip(old, new, strict=True):
            assert isinstance(a, int) and isinstance(b, int)
            if a == b:
                shape.append(b)
                continue
            if min(a, b) < 1 or array.steps or value.offset or value.strides != row_major(value.shape):
                return None
            shape.append(names.setdefault((a, b), Size.symbol(f"n{len(names)}", low=1)))
        result.append(tuple(shape))
    return tuple(result) if names else None


def _intern(
    order: list[Value], slots: Mapping[Value, int]
) -> tuple[dict[Value, Node], list[Scalar]]:
    """The recorded graph as the compiler sees it: every input has a slot of its own."""
    nodes: dict[Value, Node] = {}
    scalars: list[Scalar] = []
    for v in order:
        if v.memory is not None:
            leaf = Leaf(slots[v], v.strides, v.offset)
            nodes[v] = node(ops.BUFFER, (), leaf, v.dtype, v.shape)
        elif v.op is ops.SCALAR:
            nodes[v] = node(ops.SCALAR, (), len(scalars), v.dtype)
            scalars.append(v.attr)
        else:
            nodes[v] = node(v.op, tuple([nodes[i] for i in v.inputs]), v.attr, v.dtype, v.shape)
    return nodes, scalars


def _concrete(step: Step, sizes: Mapping[str, int]) -> Step:
    def value(x: Any) -> Any:
        if isinstance(x, Size):
            return x.value(sizes)
        return tuple(map(value, x)) if isinstance(x, tuple) else x

    return Step(step.op, value(step.attr), value(step.shape))


def _copy(backend: Any, source: Memory, target: Memory) -> None:
    from genesis.ir.dtype import uint8

    backend.view(target, uint8, (target.nbytes,))[...] = backend.view(source, uint8, (source.nbytes,))


def _calibrate() -> tuple[int, int]:
    """References to a value and its memory when nobody but its storage holds it."""

    class Thing:
        memory: Any = None

    holder = Thing()
    holder.memory = Thing()  # the storage holds a value
    holder.memory.memory = Thing()  # which holds memory
    values = [holder.memory]
    buffers = [holder.memory.memory]
    return getrefcount(values[0]), getrefcount(buffers[0])


_VALUE_REFS, _MEMORY_REFS = _calibrate()

__all__ = ["CaptureError", "Jit", "Recording", "State", "Structure", "jit"]
