"""Recordings: a function run once on stand-ins, turned into a program that can be replayed.

While the function runs, a recorder learns of every storage it reads or writes. What results is a
graph over those storages' values; it becomes one program whose inputs are the storages' memory and
whose outputs are the results and the storages' new contents. Writes made while recording are taken
back: the replay does them for real, the first time as every time.
"""

from __future__ import annotations

from array import array as words
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, uint8
from genesis.ir.node import Leaf, Node, node
from genesis.ir.size import Size, evaluate, product
from genesis.ndarray.guards import Guards
from genesis.ndarray.layout import Shape, Strides, is_row_major, row_major
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.pytree import Structure, flatten, unflatten
from genesis.ndarray.realisation import backend_of, collect, compiled, realize_values
from genesis.ndarray.storage import Step, Steps, Storage
from genesis.ndarray.value import CaptureError, Value, thread

if TYPE_CHECKING:
    from genesis.backends.base import Backend, Memory
    from genesis.compiler import Program


class Recorder:
    """What happens to storages while a function runs. Reached through ``thread.recorder``."""

    def __init__(self, stand_ins: Sequence[Storage], originals: Sequence[Storage]) -> None:
        self.arguments = {s: k for k, s in reversed(list(enumerate(stand_ins)))}
        self.originals = frozenset(originals)
        self.outside: dict[Storage, Value] = {}
        self.written: dict[Storage, Value] = {}  # with the value before the first write
        self.created: set[Storage] = set()

    def create(self, storage: Storage) -> None:
        """A storage is made."""
        self.created.add(storage)

    def read(self, storage: Storage, value: Value) -> None:
        """A storage's value is asked for."""
        if (
            storage in self.created
            or storage in self.arguments
            or storage in self.written
            or storage in self.outside
        ):
            return
        self._refuse_original(storage)
        if value.memory is None:
            thread.recorder = None
            try:
                realize_values([value])
            finally:
                thread.recorder = self
        self.outside[storage] = value

    def write(self, storage: Storage, old: Value) -> None:
        """A storage is about to get another value."""
        if storage not in self.created and storage not in self.written:
            self._refuse_original(storage)
            self.written[storage] = old

    def _refuse_original(self, storage: Storage) -> None:
        if storage in self.originals:
            raise CaptureError(
                "genesis.jit: an array is passed as an argument and also used by the function "
                "through a closure or a global; pass it one way only"
            )


class _Layout(NamedTuple):
    """The outputs of a replay: bytes of the new ones, input slots the others reuse, and for all of
    them (frame slot, dtype, shape, strides)."""

    sizes: list[int]
    reused: list[int]
    outputs: list[tuple[int, DType, Shape, Strides]]


class Recording:
    """One function recorded for one kind of call: its program, and how to fill it in.

    `shapes` are the shapes of the stand-ins for the array arguments; they may be symbolic.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        structure: Structure,
        leaves: Sequence[Any],
        shapes: Sequence[Shape],
    ) -> None:
        self.guards = Guards(function)
        arrays = [x for x in leaves if type(x) is NDArray]
        stand_ins = _stand_ins(arrays, shapes)
        self.shapes = tuple(a.storage.value.shape for a in stand_ins)
        self.argument_steps = tuple(a.steps for a in arrays)
        recorder = Recorder([a.storage for a in stand_ins], [a.storage for a in arrays])
        replaced = iter(stand_ins)
        given = [next(replaced) if type(x) is NDArray else x for x in leaves]
        args, kwargs = unflatten(structure, given)
        thread.recorder = recorder
        try:
            results, self._structure = flatten(function(*args, **kwargs))
            for x in results:
                if isinstance(x, NDArray):
                    _ = x.value  # a result is read, too
        finally:
            thread.recorder = None
            finals = {s: s.value for s in recorder.written}
            for storage, old in recorder.written.items():
                storage.value = old
        self._compile(recorder, results, finals)

    def _compile(
        self, recorder: Recorder, results: list[Any], finals: dict[Storage, Value]
    ) -> None:
        sources: dict[Value, int | ref[Storage]] = {}
        for storage, argument in recorder.arguments.items():
            sources[storage.value] = argument
        for storage, value in recorder.outside.items():
            sources[value] = ref(storage)
        fresh = dict.fromkeys(
            x.storage for x in results if isinstance(x, NDArray) and x.storage in recorder.created
        )
        wanted = [s.value for s in fresh] + list(finals.values())
        pending = list(dict.fromkeys(v for v in wanted if v.memory is None))
        order, _ = collect(pending)
        inputs = [v for v in order if v.memory is not None]
        nodes, scalars = _intern(order, {v: slot for slot, v in enumerate(inputs)})
        roots = tuple(dict.fromkeys(nodes[v] for v in pending))
        overwritten = set(recorder.written.values())
        donated = frozenset(
            slot for slot, v in enumerate(inputs) if v in overwritten and v in sources and _owned(v)
        )
        devices = sorted({v.device for v in (*wanted, *inputs)}) or ["cpu"]
        if len(devices) > 1:
            raise CaptureError(f"genesis.jit: the function uses several devices: {devices}")
        self.device = devices[0]
        self.program: Program = compiled(roots, donated, self.device).program
        self.values = {nodes[v]: v for v in order}  # where each node came from, for `explain`
        self._scalars = scalars
        # Inputs, by where their memory comes from; constants were made while recording.
        self._arguments = [(slot, k) for slot, v in enumerate(inputs) if isinstance(k := sources.get(v), int)]
        self._outside = [(slot, s) for slot, v in enumerate(inputs) if isinstance(s := sources.get(v), ref)]
        self._constants = [(slot, v.memory) for slot, v in enumerate(inputs) if v not in sources]
        self._layouts = {slot: (v.shape, v.strides, v.offset) for slot, v in enumerate(inputs)}
        self._last: dict[int, Value] = {}  # outside values met at the last replay: known to fit
        # Outputs in memory of their own come first, then those that take over an input's.
        outputs = self.program.outputs
        self._order = sorted(range(len(roots)), key=lambda k: outputs[k].reuses is not None)
        index = {roots[k]: position for position, k in enumerate(self._order)}

        def found(value: Value) -> int | Value:
            return value if value.memory is not None else index[nodes[value]]

        self._fresh = [found(s.value) for s in fresh]
        self._written: list[tuple[int | ref[Storage], int | Value]] = [
            (recorder.arguments.get(s, ref(s)), found(v)) for s, v in finals.items()
        ]
        place = {s: ("fresh", k) for k, s in enumerate(fresh)}
        place |= {s: ("argument", k) for s, k in recorder.arguments.items()}
        self._results: list[tuple[str, Any, Steps]] = []
        for x in results:
            if not isinstance(x, NDArray):
                self._results.append(("plain", x, ()))
            else:
                kind, which = place.get(x.storage, ("outside", x.storage))
                self._results.append((kind, which, x.steps))
        symbolic = any(isinstance(d, Size) for n in roots for d in n.shape) or bool(
            self.program.symbols
        )
        self._template = None if symbolic else self._filled({})
        self._layout = None if symbolic else self._laid_out({})

    # ---- what differs with the sizes
    def _filled(self, sizes: Mapping[str, int]) -> words[int]:
        """A frame with everything in place but what changes from call to call."""
        frame = self.program.frame(self._scalars, sizes)
        for slot, memory in self._constants:
            assert memory is not None
            frame[slot] = memory.pointer
        return frame

    def _laid_out(self, sizes: Mapping[str, int]) -> _Layout:
        """The outputs' memory, given the symbolic sizes."""
        program = self.program
        described = []
        for slot, output in enumerate(program.outputs, program.first_output):
            shape = tuple(evaluate(d, sizes) for d in output.shape)
            described.append((slot, output.dtype, shape, row_major(shape)))
        new = [described[k] for k in self._order if program.outputs[k].reuses is None]
        kept = [k for k in self._order if program.outputs[k].reuses is not None]
        return _Layout(
            [evaluate(product(shape), {}) * dtype.itemsize for _, dtype, shape, _ in new],
            [reused for k in kept if (reused := program.outputs[k].reuses) is not None],
            [*new, *(described[k] for k in kept)],
        )

    # ---- validity
    def valid(self) -> bool:
        """Whether everything assumed about the surroundings still holds."""
        if not self.guards.hold():
            return False
        for slot, source in self._outside:
            storage = source()
            if storage is None:
                return False
            value = storage.value
            if value is self._last.get(slot):
                continue
            if value.memory is None:
                realize_values([value])
            if (value.shape, value.strides, value.offset) != self._layouts[slot]:
                return False
        for target, _ in self._written:
            if isinstance(target, ref) and target() is None:
                return False
        return True

    def sizes(self, values: Sequence[Value]) -> dict[str, int] | None:
        """The symbolic sizes of a call whose array arguments have these values; None: no match."""
        found: dict[str, int] = {}
        for value, shape in zip(values, self.shapes, strict=True):
            if len(shape) != len(value.shape):
                return None
            for extent, known in zip(value.shape, shape, strict=True):
                if isinstance(known, int):
                    if known != extent:
                        return None
                    continue
                (symbol,) = known.symbols
                assert isinstance(extent, int)
                inside = symbol.low <= extent <= symbol.high
                if not inside or found.setdefault(symbol.name, extent) != extent:
                    return None
                if value.offset or value.strides != row_major(value.shape):
                    return None
        for slot, argument in self._arguments:
            _, strides, offset = self._layouts[slot]
            symbolic = any(isinstance(s, Size) for s in self.shapes[argument])
            if not symbolic and (values[argument].strides, values[argument].offset) != (strides, offset):
                return None
        return found

    # ---- running
    def replay(self, arrays: Sequence[NDArray], sizes: Mapping[str, int]) -> Any:
        """Run the program on these arguments: fill in pointers, make one native call."""
        program = self.program
        frame = self._filled(sizes) if self._template is None else self._template[:]
        layout = self._laid_out(sizes) if self._layout is None else self._layout
        for slot, argument in self._arguments:
            frame[slot] = arrays[argument].storage.value.memory.pointer  # type: ignore[union-attr]
        for slot, source in self._outside:
            frame[slot] = source().value.memory.pointer  # type: ignore[union-attr]
        memories = program.backend.allocate_many(layout.sizes)
        for slot in layout.reused:
            memory = self._taken_over(slot, arrays, program.backend)
            frame[slot] = memory.pointer
            memories.append(memory)
        device = self.device
        made: list[Value] = []
        for memory, (slot, dtype, shape, strides) in zip(memories, layout.outputs):  # noqa: B905
            frame[slot] = memory.pointer
            made.append(Value.realised(memory, dtype, shape, strides, device))
        program.launch(frame, sizes)
        return self._finish(arrays, made, sizes)

    def _taken_over(self, slot: int, arrays: Sequence[NDArray], backend: Backend) -> Memory:
        """The memory of an input that an output overwrites; a copy if anybody else holds it.

        An array returned earlier, or memory seen by another library, keeps what it has.
        """
        values = []
        for k, argument in self._arguments:
            if k == slot:
                values.append(arrays[argument].storage.value)
        for k, source in self._outside:
            if k == slot:
                values.append(source().value)  # type: ignore[union-attr]
        self._last.pop(slot, None)
        memories = [v.memory for v in values]
        alone = getrefcount(values[0]) <= _VALUE_HOLDERS and getrefcount(memories[0]) <= _MEMORY_HOLDERS
        memory = memories[0]
        assert memory is not None
        if alone:
            return memory
        copy = backend.allocate(memory.nbytes)
        backend.view(copy, uint8, (copy.nbytes,))[...] = backend.view(memory, uint8, (copy.nbytes,))
        return copy

    def _finish(
        self, arrays: Sequence[NDArray], made: Sequence[Value], sizes: Mapping[str, int]
    ) -> Any:
        """Write what was written, and put the results together."""
        for target, new in self._written:
            storage = arrays[target].storage if isinstance(target, int) else target()
            assert storage is not None
            storage.write(made[new] if isinstance(new, int) else new)
        for slot, source in self._outside:
            storage = source()
            if storage is not None:
                self._last[slot] = storage.value
        fresh = [Storage(made[k] if isinstance(k, int) else k) for k in self._fresh]
        results: list[Any] = []
        for kind, which, steps in self._results:
            if kind == "fresh":
                storage = fresh[which]
            elif kind == "plain":
                results.append(which)
                continue
            elif kind == "argument":
                storage = arrays[which].storage
            else:
                storage = which
            if sizes and steps:
                steps = tuple(_concrete(s, sizes) for s in steps)
            results.append(NDArray(storage, steps))
        return results[0] if self._structure is None else unflatten(self._structure, results)


def _stand_ins(arrays: Sequence[NDArray], shapes: Sequence[Shape]) -> list[NDArray]:
    """Arrays to record with: the arguments' memory, seen with the given (maybe symbolic) shapes."""
    storages: dict[Storage, Storage] = {}
    result: list[NDArray] = []
    for array, shape in zip(arrays, shapes, strict=True):
        if array.storage not in storages:
            value = array.storage.value
            assert value.memory is not None
            symbolic = any(isinstance(d, Size) for d in shape)
            twin = Value.realised(
                value.memory,
                value.dtype,
                shape,
                row_major(shape) if symbolic else value.strides,
                value.device,
                value.offset,
                foreign=bool(value.attr),
            )
            storages[array.storage] = Storage(twin)
        result.append(NDArray(storages[array.storage], array.steps))
    return result


def _owned(v: Value) -> bool:
    """Whether the memory is all of the value, in order, and ours."""
    return not v.attr and v.offset == 0 and is_row_major(v.shape, v.strides)


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


def _calibrate() -> tuple[int, int]:
    """The references `_taken_over` counts when only a storage holds a value, and it its memory."""

    class Holder:
        memory: Any = None

    storage = Holder()
    storage.memory = Holder()
    storage.memory.memory = Holder()
    values = []
    for k in (0,):
        if k == 0:
            values.append(storage.memory)
    memories = [v.memory for v in values]
    return getrefcount(values[0]), getrefcount(memories[0])


_VALUE_HOLDERS, _MEMORY_HOLDERS = _calibrate()

__all__ = ["Recorder", "Recording", "backend_of"]
