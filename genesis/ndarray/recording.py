"""Recordings: a function run once on stand-ins, turned into a program that can be replayed.

While the function runs, a recorder stands between it and the storages: it gives every storage
that the function reads a stand-in for its value, and keeps what the function writes to itself.
What results is a graph over those stand-ins; it becomes one program whose inputs are the storages'
memory and whose outputs are the results and the storages' new contents. Nothing outside changes
while recording: the replay (`genesis.ndarray.replay`) does it, the first time as every time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from genesis.ir import ops
from genesis.ir.dtype import Scalar
from genesis.ir.node import Leaf, Node, node
from genesis.ir.size import Dim, Size
from genesis.ndarray.call import Call, twin
from genesis.ndarray.checks import checks_in, codes
from genesis.ndarray.guards import Guard, Guards, bound
from genesis.ndarray.layout import Shape, is_row_major
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.provenance import Places
from genesis.ndarray.pytree import flatten
from genesis.ndarray.realisation import collect, compiled, options, realize_values
from genesis.ndarray.storage import Steps, Storage
from genesis.ndarray.value import CaptureError, Value, surroundings, thread, unrecorded

if TYPE_CHECKING:
    from genesis.compiler import Program

ALIASED = (
    "genesis.jit: an array is passed as an argument and also used by the function through a "
    "closure or a global, and the function writes to arrays; pass it one way only"
)


class Recorder:
    """What a function sees of storages while it is recorded; reached by ``thread.recorder``."""

    def __init__(self, stand_ins: Iterable[Storage]) -> None:
        #: Storages from outside, with the stand-ins for the values they came with.
        self.inputs = {storage: storage.actual for storage in stand_ins}
        #: What every storage holds by now.
        self.now = dict(self.inputs)
        self.token = object()
        #: What else of Python's state the function depends on.
        self.assumptions: list[tuple[Callable[[], Any], Callable[[Any], Any], Guard]] = []

    def assume(self, read: Callable[[], Any]) -> None:
        """The function depends on what `read` gives: record it anew when that has changed.

        A method does not keep its object alive. Once that has died nobody can read it again.
        """
        self.assumptions.append((*bound(read), Guard.on(read())))

    def create(self, storage: Storage) -> None:
        """A storage is made."""
        self.now[storage] = storage.actual

    def read(self, storage: Storage) -> Value:
        """A storage's value is asked for."""
        value = self.now.get(storage)
        if value is None:
            with unrecorded():
                value = storage.actual
                realize_values([value])
                value = twin(value, value.shape, value.strides, value.offset)
            self.inputs[storage] = self.now[storage] = value
        return value

    def write(self, storage: Storage, value: Value) -> None:
        """A storage gets another value."""
        self.read(storage)
        self.now[storage] = value

    @property
    def written(self) -> dict[Storage, Value]:
        """The storages from outside that hold another value by now, with that value."""
        return {s: self.now[s] for s, value in self.inputs.items() if self.now[s] is not value}


class WritesPart(Exception):
    """A function writes to an argument that is only part of a storage."""


class Result(NamedTuple):
    """What a leaf of the function's result is made of.

    "fresh": the array on new storage number `which`; "same": argument number `which` itself;
    "argument": a view of its storage; "outside": a view of the storage referred to; "plain":
    an object; "size": a symbolic size.
    """

    kind: str
    which: Any
    steps: Steps = ()


class Recording:
    """One function recorded for one kind of call: its program, and where its memory comes from.

    `shapes` are the shapes of the inputs; they may be symbolic. The program's inputs are the
    `arguments`, by number, then storages from `outside`, then `constants` that were made while
    recording. Results and writes name values by number: first the program's outputs in `order`,
    then the inputs that are `passed` on as they are, then the constants. `versions` are those of
    the outside storages whose layout is known to fit. `checks` are the indices to check after a
    run: which value holds the code of the worst one, and what to say about it. `places` is where
    the user wrote what the program computes.
    """

    program: Program
    device: str

    def __init__(
        self,
        function: Callable[..., Any],
        call: Call,
        shapes: Sequence[Shape],
        memory_budget: int | float | None = None,
    ) -> None:
        self.guards = Guards(function)
        self.options = options()()
        self._settings = [read() for read in surroundings]
        self.budget = memory_budget
        self._title = f"jit {getattr(function, '__qualname__', repr(function))}"
        self.shapes = tuple(shapes)
        self.whole = [bool(i.steps) for i in call.inputs]  # inputs the function gets a view of
        self._strides = [(i.strides, i.offset) for i in call.inputs]
        stand_ins = call.stand_ins(shapes)
        recorder = Recorder(x.storage for x in stand_ins)
        thread.recorder = recorder
        try:
            args, kwargs = call.arguments(stand_ins)
            results, self.structure = flatten(function(*args, **kwargs))
            for x in results:
                if isinstance(x, NDArray):
                    recorder.read(x.storage)
        finally:
            thread.recorder = None
        self.assumptions = recorder.assumptions
        arguments = {x.storage: k for k, x in reversed(list(enumerate(stand_ins)))}
        written = recorder.written
        self._changed = {arguments[s] for s in written if s in arguments}
        if any(call.inputs[k].is_part for k in self._changed):
            raise WritesPart
        places: dict[Storage, int | ref[Storage]] = {
            s: arguments[s] if s in arguments else ref(s) for s in recorder.inputs
        }
        self.neighbours = [p for p in places.values() if isinstance(p, ref)] if written else []
        if not {i.array.storage for i in call.inputs}.isdisjoint(p() for p in self.neighbours):
            raise CaptureError(ALIASED)
        fresh = dict.fromkeys(
            x.storage for x in results if isinstance(x, NDArray) and x.storage not in places
        )
        wanted = [recorder.now[s] for s in (*fresh, *written)]
        checks = checks_in(collect([v for v in wanted if v.memory is None])[0])
        thread.recorder = recorder
        try:
            worst = codes(checks)
        finally:
            thread.recorder = None
        overwritten = {recorder.inputs[s] for s in written}
        place = {v: places[s] for s, v in recorder.inputs.items()}
        numbers = self._compile(call, place, [*wanted, *worst], overwritten)
        self.checks = [
            (number, c.name, c.extent, c.axis, c.where)
            for number, c in zip(numbers[len(wanted) :], checks, strict=True)
        ]
        numbers = numbers[: len(wanted)]
        self.fresh = numbers[: len(fresh)]
        self.written = [
            (places[s], number, self._settled(places[s], recorder.inputs[s], number))
            for s, number in zip(written, numbers[len(fresh) :], strict=True)
        ]
        new = {s: k for k, s in enumerate(fresh)}
        self.results = [_result(x, stand_ins, places, new, recorder) for x in results]
        self._others = [  # storages that must be there, though the program does not read them
            p
            for p in (*self.passed, *(w[0] for w in self.written), *(r.which for r in self.results))
            if isinstance(p, ref) and p not in self.outside
        ]

    def _compile(
        self,
        call: Call,
        place: Mapping[Value, int | ref[Storage]],
        wanted: Sequence[Value],
        overwritten: set[Value],
    ) -> list[int]:
        """Make the program; the numbers of the values `wanted`. `place`: where inputs come from."""
        pending = dict.fromkeys(v for v in wanted if v.memory is None)
        order, _ = collect(pending)
        leaves = [v for v in order if v.memory is not None]
        arguments = {v: p for v in leaves if isinstance(p := place.get(v), int)}
        outside = {v: p for v in leaves if isinstance(p := place.get(v), ref)}
        self.arguments = list(arguments.values())
        self.outside = list(outside.values())
        self._layouts = [(v.shape, v.strides, v.offset) for v in outside]
        self.versions = [-1] * len(outside)
        ready = list(dict.fromkeys(v for v in wanted if v.memory is not None))
        passed = [v for v in ready if v in place]
        self.passed = [place[v] for v in passed]
        constants = [v for v in leaves if v not in place]
        self.inputs = len(arguments) + len(outside)
        slots = {v: k for k, v in enumerate((*arguments, *outside, *constants))}
        self.constants = list(dict.fromkeys([*constants, *(v for v in ready if v not in place)]))
        offsets = {v: call.inputs[k].offset for v, k in arguments.items()}
        nodes, self.scalars = interned(order, slots, offsets)
        roots = tuple(dict.fromkeys(nodes[v] for v in pending))
        free = overwritten - set(passed)
        donated = frozenset(slots[v] for v in free if v in slots and _is_dense(v, offsets))
        devices = sorted({v.device for v in (*wanted, *leaves)}) or ["cpu"]
        if len(devices) > 1:
            raise CaptureError(f"genesis.jit: the function uses several devices: {devices}")
        self.device = devices[0]
        self.program = compiled(roots, donated, self.device, self.budget).program
        self.places = Places(self._title, {nodes[v]: (v.code, v.instruction) for v in order})
        # Outputs in memory of their own come first, then those that take over an input's.
        reuses = [output.reuses is not None for output in self.program.outputs]
        self.order = sorted(range(len(roots)), key=reuses.__getitem__)
        numbers: dict[Value | Node, int] = {roots[k]: n for n, k in enumerate(self.order)}
        numbers |= {v: n for n, v in enumerate((*passed, *self.constants), len(roots))}
        return [numbers[nodes[v] if v in pending else v] for v in wanted]

    def _settled(self, place: int | ref[Storage], value: Value, number: int) -> int | None:
        """Which outside input lies as it did when the program's output `number` is written to it.

        None if this is no such input, or if it may lie differently.
        """
        computed = number < len(self.order)
        if isinstance(place, ref) and place in self.outside and computed and _is_dense(value, {}):
            return self.outside.index(place)
        return None

    def possible(self) -> bool:
        """Whether every storage it needs is there: what is assumed may hold, now or again."""
        return all(source() is not None for source in (*self.outside, *self._others))

    def valid(self) -> bool:
        """Whether everything assumed about the surroundings still holds."""
        if self.options is not options()() or not self.guards.hold():
            return False
        if self._settings != [read() for read in surroundings]:
            return False
        for alive, read, guard in self.assumptions:
            owner = alive()
            if owner is not None and not guard.accepts(read(owner)):
                return False
        changed: list[tuple[int, Storage]] = []
        for k, (source, version) in enumerate(zip(self.outside, self.versions)):  # noqa: B905
            storage = source()
            if storage is None:
                return False
            if storage.version != version:
                changed.append((k, storage))
        if changed:
            realize_values([storage.actual for _, storage in changed])
            for k, storage in changed:
                value = storage.actual
                if (value.shape, value.strides, value.offset) != self._layouts[k]:
                    return False
                self.versions[k] = storage.version
        return not self._others or all(source() is not None for source in self._others)

    def sizes(self, call: Call) -> dict[str, int] | None:
        """The values of the symbolic sizes in a call of this kind; None: it does not fit."""
        found: dict[str, int] = {}
        for k, i in enumerate(call.inputs):
            shape = self.shapes[k]
            if len(shape) != len(i.shape) or (i.is_part and k in self._changed):
                return None
            symbolic = False
            for extent, known in zip(i.shape, shape, strict=True):
                if isinstance(known, Size):
                    (symbol,) = known.symbols
                    symbolic = True
                    assert isinstance(extent, int)
                    inside = symbol.low <= extent <= symbol.high
                    if not inside or found.setdefault(symbol.name, extent) != extent:
                        return None
                elif known != extent:
                    return None
            if not (i.is_plain if symbolic else self._strides[k] == (i.strides, i.offset)):
                return None
        return found


def _result(
    x: Any,
    stand_ins: Sequence[NDArray],
    places: Mapping[Storage, int | ref[Storage]],
    fresh: Mapping[Storage, int],
    recorder: Recorder,
) -> Result:
    if isinstance(x, Size):
        return Result("size", x)
    if not isinstance(x, NDArray):
        held = [y.storage for y in _contents(x) if isinstance(y, NDArray)]
        if any(s in recorder.now and not isinstance(places.get(s), ref) for s in held):
            raise CaptureError(
                f"genesis.jit: the function returns a {type(x).__name__} that holds arrays; return "
                "them in tuples, lists, dictionaries or named tuples"
            )
        return Result("plain", x)
    for k, stand_in in enumerate(stand_ins):
        if x is stand_in:
            return Result("same", k)
    if x.storage in fresh:
        return Result("fresh", fresh[x.storage], x.steps)
    place = places[x.storage]
    return Result("argument" if isinstance(place, int) else "outside", place, x.steps)


def _contents(x: Any) -> Iterable[Any]:
    """What an object of no known structure directly holds."""
    yield from gc.get_referents(x)
    yield from getattr(x, "__dict__", {}).values()


def _is_dense(v: Value, offsets: Mapping[Value, int]) -> bool:
    """Whether the memory from where `v` starts is all of the value, in order."""
    return not offsets.get(v, v.offset) and is_row_major(v.shape, v.strides)


def interned(
    order: list[Value], slots: Mapping[Value, int], offsets: Mapping[Value, int]
) -> tuple[dict[Value, Node], list[Scalar]]:
    """The recorded graph as the compiler sees it: every input has a slot of its own."""
    nodes: dict[Value, Node] = {}
    scalars: list[Scalar] = []
    for v in order:
        if v.memory is not None:
            offset: Dim = offsets.get(v, v.offset)
            nodes[v] = node(ops.BUFFER, (), Leaf(slots[v], v.strides, offset), v.dtype, v.shape)
        elif v.op is ops.SCALAR:
            nodes[v] = node(ops.SCALAR, (), len(scalars), v.dtype)
            scalars.append(v.attr)
        else:
            nodes[v] = node(v.op, tuple([nodes[i] for i in v.inputs]), v.attr, v.dtype, v.shape)
    return nodes, scalars
