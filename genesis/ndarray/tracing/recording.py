"""Recordings: a function run once on stand-ins, turned into a program that can be replayed.

While the function runs, a recorder stands between it and the storages: it gives every storage that
the function reads a stand-in for its value, and keeps what the function writes to itself. What
results is a graph over those stand-ins; it becomes one program whose inputs are the storages'
memory and whose outputs are the results and the storages' new contents. Nothing outside changes
while recording: the replay (`genesis.ndarray.tracing.replay`) does it, the first time as every
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from operator import attrgetter, call
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from genesis.ir.node import Node, topological
from genesis.ir.shape_guards import Assumptions, SizeCondition, solved
from genesis.ir.size import Dim, Size, UndecidableSize
from genesis.ndarray import pytree
from genesis.ndarray.core.index_checks import checks_in, reports
from genesis.ndarray.core.interop import is_steady
from genesis.ndarray.core.layout import Shape, is_row_major
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.realisation import compiled, options, realize_values
from genesis.ndarray.core.source_lines import Places
from genesis.ndarray.core.storage import Storage, given_sizes
from genesis.ndarray.core.value import (
    CaptureError,
    Value,
    counted_surroundings,
    recorded_by,
    surroundings,
)
from genesis.ndarray.partitioned_recording import Wishes, agree, divide
from genesis.ndarray.tracing.call import CallArguments
from genesis.ndarray.tracing.guards import Guards, Sources, nothing, weakly
from genesis.ndarray.tracing.journal import Aliased, Effect, Journal, Key, aging
from genesis.ndarray.tracing.moving_arrays import Located, Masked, moving
from genesis.ndarray.tracing.object_introspection import CONTAINERS
from genesis.ndarray.tracing.storage_recorder import (
    Failed,
    NeedsStorage,
    Recorder,
    Refined,
    interned,
)
from genesis.ndarray.tracing.tape_interface import Tape, Tapes
from genesis.ndarray.tracing.template import Maker, Template

if TYPE_CHECKING:
    from genesis.compiler import Program
    from genesis.compiler.program.prepacked import KeptValues
    from genesis.ir.placement import Placement

#: Arguments that are compared by what they hold, though nobody looks into them.
_LEAVES = (NDArray, list, set, deque, bytearray)


class ReplayRun(NamedTuple):
    """What a run has got to make results of."""

    tree: Any  # the arguments
    arrays: Sequence[NDArray]  # among them
    storages: list[Storage]  # new ones
    sizes: Mapping[str, int]
    creator: Any  # of results that have gradients


class ReplayedEffect(NamedTuple):
    """An effect on Python's objects: ``function(owner, *args)``; `args` are numbers of values."""

    function: Callable[..., Any]
    owner: Callable[[Any], Any] | None  # given the arguments
    args: tuple[int, ...]


class Slot:
    """The gradient of a parameter, which every run makes; `last` gives that of the run before."""

    __slots__ = ("again", "last", "owner", "which", "wrap")

    def __init__(self, owner: Any, which: int, wrap: Any) -> None:
        self.owner, self.which, self.wrap = owner, which, wrap
        self.last: Callable[[], Any] = nothing
        self.again: Storage | None = None  # the storage of that one, if it is used again


_version = attrgetter("version")

#: Where an input comes from: the number of an argument, or what gives its storage.
Origin = int | Callable[[], Storage | None]


class Recording:
    """One function recorded for one kind of call: its program, and where its memory comes from.

    `shapes` are the shapes of the inputs; they may be symbolic. The program's inputs are the
    `arguments`, by number, then storages from `outside`, then `constants` that were made while
    recording. New storages and writes name values by number: first the program's outputs in
    `order`, then the inputs that are `passed` on as they are, then the constants. `unread` are the
    inputs that only gradients may need. `versions` are
    those of the outside storages whose layout is known to fit. `checks` are the indices to check
    after a run: which value holds the code of the worst one, and what to say about it. `places` is
    where the user wrote what the program computes. `template` makes the `result`, and what the
    `actions` store in objects around the function.
    """

    program: Program
    device: str
    kept: KeptValues | None = None  # what runs of all sizes share (see `Replay`)
    #: Where this process has blocks of arrays: its number along every axis of the mesh, and the
    #: whole shapes and the placements of the program's outputs.
    ranks: Mapping[str, int] = MappingProxyType({})
    forms: Sequence[tuple[Shape, Placement | None]] | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        call: CallArguments,
        shapes: Sequence[Shape],
        memory_budget: int | float | None = None,
        static: tuple[Any, ...] = (),
    ) -> None:
        self.options = options()()
        self._readers = [read for read, _ in surroundings]
        self._settings = [read() for read in self._readers]
        self._counted = [read() for read, _ in counted_surroundings]
        self.budget = memory_budget
        self._title = f"jit {getattr(function, '__qualname__', repr(function))}"
        self.shapes = tuple(shapes)
        self._pinned = call.pinned
        self.whole = [bool(i.steps) for i in call.inputs]  # inputs the function gets a view of
        #: Whether no argument is or holds a container.
        self.flat = call.is_flat
        self._strides = [(i.strides, i.offset) for i in call.inputs]
        stand_ins = call.stand_ins(shapes)
        views = [x.storage for x, i in zip(stand_ins, call.inputs, strict=True) if i.is_part]
        recorder = Recorder((x.storage for x in stand_ins), views)
        values = self._values(call)
        if values is None:
            raise UndecidableSize(f"sizes beyond what {self.shapes} allow")
        self._assumed = Assumptions(values)
        tree = call.arguments(stand_ins)
        journal = recorder.journal
        parts = [  # as they are before the function changes any
            (x, path)
            for x, path in pytree.paths(tree, _LEAVES)
            if not any(path[: len(p)] == p for p in call.pinned)
        ]
        journal.introduce(parts)
        journal.foreign.update(id(stand_ins[k]) for k in call.numpy)
        for x in pytree.flatten(tree)[0]:
            journal.found(x, function)
        for path in call.pinned:  # those are themselves, wherever else they are found
            whole = pytree.paths(pytree.follow(call.tree, path), _LEAVES)
            journal.asked.update(id(x) for x, _ in whole)
        self._given = {id(x): path for x, path in parts}
        with aging():
            try:
                tape = None if Tapes.open is None else Tapes.open(recorder, parts)
                result = self._called(function, tree, recorder, static)
                journal.close()
                self._take(call, stand_ins, recorder, tape, result, static)
                journal.succeed()
            except CaptureError as error:
                raise error.located(function) from None
            finally:
                journal.roll_back()
                journal.forget()

    def _note_settings(self, journal: Journal) -> None:
        """Have runs change the settings that the function has changed."""
        for before, read, write in self._all_settings():
            if read() != before:
                journal.act(write, (read(),))
        for read, _ in counted_surroundings:
            journal.assume(read)

    def _put_back(self) -> None:
        for before, read, write in self._all_settings():
            if read() != before:
                write(before)

    def _all_settings(self) -> Iterable[tuple[Any, Callable[[], Any], Callable[[Any], None]]]:
        settings = zip(
            self._settings + self._counted, surroundings + counted_surroundings, strict=True
        )
        return [(before, read, write) for before, (read, write) in settings]

    def _called(
        self,
        function: Callable[..., Any],
        tree: Any,
        recorder: Recorder,
        static: tuple[Any, ...],
    ) -> Any:
        """What the function returns for stand-ins."""
        from genesis.ndarray.tracing.bytecode_tracer import (
            watched,  # importing Genesis watches nothing yet
        )

        args, kwargs = tree
        try:
            with recorded_by(recorder):
                with self._assumed, watched(recorder.journal, static, function):
                    result = function(*args, **kwargs)
                self._note_settings(recorder.journal)
                return result
        except (Aliased, CaptureError, UndecidableSize):
            raise
        except Exception as error:
            if recorder.journal.refusal is not None:
                raise recorder.journal.refusal from None
            if isinstance(error, ValueError | TypeError | IndexError):
                self._refine()  # sizes that were found to be equal may have looked different
            raise Failed(error, bool(recorder.journal.effects or recorder.written)) from None
        finally:
            self._put_back()

    def _take(
        self,
        call: CallArguments,
        stand_ins: Sequence[NDArray],
        recorder: Recorder,
        tape: Tape | None,
        result: Any,
        static: tuple[Any, ...],
    ) -> None:
        """Make of what was recorded what a run needs."""
        journal = recorder.journal
        given = self._given
        arguments = {x.storage: k for k, x in reversed(list(enumerate(stand_ins)))}
        reads = [r for r in journal.reads.values() if id(r.owner) not in given]
        places: dict[Storage, Origin] = {}
        fresh: dict[Storage, int] = {}
        passed_on: set[int] = set()  # moving arrays that results and actions have

        def leaf(x: Any, template: Template) -> Maker | None:
            path = given.get(id(x))
            if path is not None:
                return lambda run, made: pytree.follow(run.tree, path)
            if id(x) in there:
                place = there[id(x)]
                passed_on.add(id(x))
                return lambda run, made: place()
            if isinstance(x, Size):
                return lambda run, made: x.value(run.sizes)
            if isinstance(x, NDArray):
                return self._array(x, recorder, places, fresh)
            if tape is not None and pytree.is_wrapped(x) and not journal.is_outer(x):
                return tape.maker(x, template)
            return None

        sources = Sources(reads)
        located = moving(journal, reads)
        there = {id(x.value): sources.place(x.read, x.way) for x in located.values()}
        for s, (x, *_) in located.items():
            places[s] = Located(there[id(x)], x)
            sources.know(x, there[id(x)])
        for s in recorder.inputs:
            places.setdefault(s, arguments.get(s, ref(s)))

        own = lambda x: _is_array(x) and (id(x) in given or not journal.is_outer(x))  # noqa: E731

        def is_outer(x: Any) -> bool:
            # Tuples that are older than the recording may hold sizes of what stands for arguments.
            parts = type(x) is tuple or type(x) is frozenset or hasattr(type(x), "_fields")
            return journal.is_outer(x) and (not parts or sources.has_found(x))

        self.template = Template(leaf, own, is_outer, sources)
        self.result = self.template.add(result)
        self.actions = [self._action(effect, given, sources) for effect in journal.effects]
        with self._assumed:
            more = None if tape is None else tape.close(self.template, static)
        self.tape = None if more is None else tape
        reads += more or ()
        seen = {id(x) for m in located.values() for x in (m.value, pytree.unwrapped(m.value))}
        masked: dict[int, Masked] = {}
        if seen:
            reads = [r for r in reads if id(r.owner) not in seen and id(r.value) not in seen]
            masked = {id(r): m for r in reads if (m := Masked.on(r, seen)) is not None}
        #: Objects that no argument must be: those that arguments are compared with, and where
        #: anything is written the containers from outside that are read or written.
        self.apart_from: list[Callable[[], Any]] = [
            sources(x)
            for x in journal.compared.values()
            if id(x) not in given and journal.is_outer(x)
        ]
        #: Pairs of arguments that the function took for different objects.
        self.distinct = tuple(journal.distinct)
        self.flat = self.flat and not self.apart_from
        changed = [e.owner for e in journal.effects if e.owner is not None]
        if journal.effects:
            owners = {id(x): x for x in (*(r.owner for r in reads), *changed)}
            changing = [x for x in owners.values() if isinstance(x, CONTAINERS)]
            self.apart_from += [sources(x) for x in changing if id(x) not in given]
        assumed = [(f, x) for f, x in journal.assumptions if id(_owner(f)) not in seen]
        met = journal.asked.union(map(id, changed))
        self.guards = Guards(reads, assumed, sources, masked, met)
        self._compile_all(call, recorder, places, arguments, fresh)
        self.simple = self._simple_result(result, fresh)
        held = {m.key[0] for m in located.values() if id(m.value) in passed_on}
        self._find_slots(journal, fresh, held)
        self.template.finish()
        self._given = {}

    def _array(
        self,
        x: NDArray,
        recorder: Recorder,
        places: dict[Storage, Origin],
        fresh: dict[Storage, int],
    ) -> Maker:
        """How a run makes an array: on a new storage, or as a view of one that is there."""
        storage, steps = x.storage, given_sizes(x.steps)
        if storage not in recorder.now:
            recorder.read(storage)
            places.setdefault(storage, ref(storage))
        if storage not in places:
            number = fresh.setdefault(storage, len(fresh))
            return lambda run, made: NDArray(run.storages[number], steps(run.sizes))
        place = places[storage]
        if recorder.journal.is_outer(x) and not isinstance(place, Located):
            array = weakly(x)
            return lambda run, made: array()
        if not isinstance(place, int):
            source: Any = place
            return lambda run, made: NDArray(source(), steps(run.sizes))
        whole = self.whole[place]

        def view(run: ReplayRun, made: list[Any]) -> NDArray:
            array = run.arrays[place]
            return NDArray(array.storage, (() if whole else array.steps) + steps(run.sizes))

        return view

    def _action(self, effect: Effect, given: Mapping[int, Any], sources: Sources) -> ReplayedEffect:
        numbers = tuple([self.template.add(x) for x in effect.args])
        if effect.owner is None:
            return ReplayedEffect(effect.function, None, numbers)
        path = given.get(id(effect.owner))
        if path is not None:
            return ReplayedEffect(effect.function, lambda tree: pytree.follow(tree, path), numbers)
        source = sources(effect.owner)
        return ReplayedEffect(effect.function, lambda _: source(), numbers)

    def _compile_all(
        self,
        call: CallArguments,
        recorder: Recorder,
        places: Mapping[Storage, Origin],
        arguments: Mapping[Storage, int],
        fresh: Mapping[Storage, int],
    ) -> None:
        """Make the program, for new storages, for what is written and for what the tape wants."""
        written = recorder.written
        self._changed = {arguments[s] for s in written if s in arguments}
        if self._changed & call.numpy:
            raise CaptureError(
                "genesis.jit: the function writes to an argument that is a NumPy array, which a "
                "program cannot; pass genesis.from_numpy(x), or return what it becomes"
            )
        if recorder.located or any(call.inputs[k].is_part for k in self._changed):
            raise NeedsStorage
        outer = [p for p in places.values() if not isinstance(p, int)]
        self.neighbours = outer if written or self.actions else []
        recorder.journal.undo()  # arguments are looked at as a run will find them
        self.require_apart(call.tree)
        saved = [] if self.tape is None else self.tape.saved
        wanted = [*(recorder.now[s] for s in (*fresh, *written)), *saved]
        checks = checks_in(topological(v for v in wanted if v.memory is None))
        overwritten = {recorder.inputs[s] for s in written}
        leaves = [v for v in topological(checks) if v.memory is not None]
        with recorded_by(recorder):
            worst, words = reports(checks, any(v.placement is not None for v in leaves))
        overwritten |= set(words)
        place = {v: places[s] for s, v in recorder.inputs.items()}
        wishes = Wishes(
            {recorder.now[s]: recorder.inputs[s] for s in written},
            frozenset(recorder.now[s] for s in fresh),
        )
        numbers = self._compile(call, place, [*wanted, *worst], overwritten, wishes)
        self.checks = [
            (number, c.name, c.extent, c.axis, c.where)
            for number, c in zip(numbers[len(wanted) :], checks, strict=True)
        ]
        split = len(fresh) + len(written)
        self.saved = numbers[split : len(wanted)]
        self.fresh = numbers[: len(fresh)]
        self.written = [
            (places[s], number, self._settled(places[s], recorder.inputs[s], number))
            for s, number in zip(written, numbers[len(fresh) : split], strict=True)
        ]
        self._others = [  # storages that must be there, though the program does not read them
            p
            for p in (*self.passed, *(w[0] for w in self.written), *outer)
            if not isinstance(p, int) and p not in self.outside
        ]
        self._sources = list(dict.fromkeys((*self.outside, *self._others)))
        self._moves = any(type(source) is Located for source in self._sources)

    def _find_slots(self, journal: Journal, fresh: Mapping[Storage, int], held: Set[Key]) -> None:
        """Take the gradients that every run gives parameters out of the other actions.

        There are many, and where nobody else has the one of the run before it is used again. In
        the places `held` are those that a run gives somebody.
        """
        self.slots: list[Slot] = []
        actions = []
        for effect, action in zip(journal.effects, self.actions, strict=True):
            described = None
            is_gradient = effect.function is setattr and effect.args[0] == "_gradient"
            if is_gradient and effect.place not in held:
                described = pytree.rewrapper(effect.args[1])
            if described is not None and described[2] == 0:
                tensor, (array, wrap, _) = effect.args[1], described
                alone = not array.steps and array.storage in fresh
                if alone and all(map(self.template.is_used_once, (tensor, array))):
                    self.slots.append(Slot(action.owner, fresh[array.storage], wrap))
                    self.template.drop(tensor)
                    self.template.drop(array)
                    continue
            actions.append(action)
        self.actions = actions
        taken = {slot.which for slot in self.slots}
        self.shown = [k for k in range(len(fresh)) if k not in taken]

    def require_apart(self, tree: Any) -> None:
        """Raise `Aliased` if arguments are met elsewhere, too, where that makes a difference."""
        outer: set[int] = {id(p()) for p in self.neighbours}
        outer |= {id(other()) for other in self.apart_from}
        repeated = list(pytree.repeats(tree) if self.actions else ())
        for pair in self.distinct:
            one, other = (pytree.follow(tree, path) for path in pair)
            if one is other:
                repeated.append(pair)
        if not outer and not repeated:
            return
        found: list[pytree.Path] = [path for places in repeated for path in places]
        found = [p for p in found if not any(p[: len(q)] == q for q in self._pinned)]
        for x, path in pytree.paths(tree, _LEAVES):
            if any(path[: len(p)] == p for p in (*self._pinned, *found)):
                continue
            array = pytree.unwrapped(x)
            if id(x) in outer or (isinstance(array, NDArray) and id(array.storage) in outer):
                found.append(path)
        if found:
            raise Aliased(found)

    def _simple_result(self, result: Any, fresh: Mapping[Storage, int]) -> Any:
        """How to make a result that is one new array, wrapped or not, or a tuple of different ones.

        None for others. That is what most functions return, and to be made without detours.
        """
        if self.actions or self.tape is not None:
            return None
        several = type(result) is tuple
        makers: list[Any] = []
        for x in result if several else (result,):
            wrap, rest, array = None, None, x
            if not isinstance(x, NDArray):
                described = pytree.rewrapper(x)
                if described is None or getattr(x, "__dict__", None):
                    return None
                array, wrap, rest = described
            if array.steps or array.storage not in fresh:
                return None
            makers.append((fresh[array.storage], wrap, rest))
        if len({number for number, *_ in makers}) < len(makers):
            return None  # each would have a storage of its own
        return several, makers

    def _compile(
        self,
        call: CallArguments,
        place: Mapping[Value, Origin],
        wanted: Sequence[Value],
        overwritten: set[Value],
        wishes: Wishes,
    ) -> list[int]:
        """Make the program; the numbers of the values `wanted`. `place`: where inputs come from."""
        pending = dict.fromkeys(v for v in wanted if v.memory is None)
        order = topological(pending)
        self.conditions = self._settled_sizes(order)
        leaves = [v for v in order if v.memory is not None]
        arguments = {v: p for v in leaves if isinstance(p := place.get(v), int)}
        outside = {
            v: p for v in leaves if (p := place.get(v)) is not None and not isinstance(p, int)
        }
        self.arguments = list(arguments.values())
        self.outside = list(outside.values())
        self._layouts = [(v.shape, v.strides, v.offset, v.placement) for v in outside]
        self.versions = [-1] * len(outside)
        ready = list(dict.fromkeys(v for v in wanted if v.memory is not None))
        needed = set() if self.tape is None else self.tape.needed
        # What gradients alone may need, such as what a value was made of that is overwritten.
        unread = [
            v
            for v in (() if self.tape is None else place)
            if v not in arguments and v not in outside and (v in needed or v not in overwritten)
        ]
        passed = list(dict.fromkeys([*(v for v in ready if v in place), *unread]))
        self.passed = [place[v] for v in passed]
        constants = [v for v in leaves if v not in place]
        self.inputs = len(arguments) + len(outside)
        slots = {v: k for k, v in enumerate((*arguments, *outside, *constants))}
        self.constants = list(dict.fromkeys([*constants, *(v for v in ready if v not in place)]))
        offsets = {v: call.inputs[k].offset for v, k in arguments.items()}
        layouts = {v: (v.strides, offset) for v, offset in offsets.items()}
        weights = self._weights(outside) - overwritten
        nodes, self.scalars = interned(order, slots, layouts, constant=weights)
        roots = whole = tuple(dict.fromkeys(nodes[v] for v in pending))
        free = overwritten - set(passed) - needed
        donated = frozenset(slots[v] for v in free if v in slots and _is_dense(v, offsets))
        devices = sorted({v.device for v in (*wanted, *leaves)}) or ["cpu"]
        if len(devices) > 1:
            raise CaptureError(f"genesis.jit: the function uses several devices: {devices}")
        self.device = devices[0]
        lines = {nodes[v]: (v.code, v.instruction) for v in order}
        divided = divide(roots, nodes, slots, wishes)
        if divided is not None:
            if self.tape is not None:
                raise CaptureError(
                    "genesis.jit: gradients of a function on divided arrays are computed inside of "
                    "it: call backward() there, or record it under genesis.no_grad()"
                )
            graph, self.ranks, carrier = divided
            lines = {n: lines[source] for n, source in graph.origins.items() if source in lines}
            actual = {v: call.inputs[k].array.storage.actual for v, k in arguments.items()}
            given = [actual.get(v, v) for v in slots]
            agree(divided, Places(self._title, lines), given, self.scalars)
            self.forms = [(n.shape, p) for n, p in zip(roots, graph.placements, strict=True)]
            roots = graph.roots
        compile_ = partial(compiled, roots, donated, self.device, self.budget)
        self.program = (compile_() if divided is None else carrier.in_turn(compile_)).program
        if self.tape is not None:
            self.tape.settle([*list(slots)[: self.inputs], *unread], offsets)
        self.places = Places(self._title, lines)
        # Outputs in memory of their own come first, then those that take over an input's.
        reuses = [output.reuses is not None for output in self.program.outputs]
        self.order = sorted(range(len(roots)), key=reuses.__getitem__)
        numbers: dict[Value | Node, int] = {whole[k]: n for n, k in enumerate(self.order)}
        numbers |= {v: n for n, v in enumerate((*passed, *self.constants), len(roots))}
        self.unread = [numbers[v] for v in unread]
        return [numbers[nodes[v] if v in pending else v] for v in wanted]

    def _weights(self, outside: Mapping[Value, Origin]) -> set[Value]:
        """What of the arrays from outside hardly ever changes, so that copies of it can be kept.

        What has gradients is about to be trained, and what others can write to is never kept.
        """
        if self.tape is not None or self.budget is not None:
            return set()
        return {v for v, p in outside.items() if isinstance(p, ref) and is_steady(v)}

    def _settled(self, place: Origin, value: Value, number: int) -> int | None:
        """Which outside input lies as it did when the program's output `number` is written to it.

        None if this is no such input, or if it may lie differently.
        """
        computed = number < len(self.order)
        if isinstance(place, ref) and place in self.outside and computed and _is_dense(value, {}):
            return self.outside.index(place)
        return None

    def _settled_sizes(self, order: Sequence[Value]) -> tuple[SizeCondition, ...]:
        """What calls with other sizes must meet; `Refined` if symbols could say more of it."""
        assumed = self._assumed
        with assumed:
            for extent in {e for v in order for e in v.shape if isinstance(e, Size)}:
                extent < 1  # noqa: B015 (the answer is noted: what has elements always has some)
        self._refine()
        return tuple(assumed.conditions)

    def _refine(self) -> None:
        """Raise `Refined` if symbols could say more of what is assumed."""
        forms = self._assumed.forms()
        shapes = tuple(tuple(forms.refined(e) for e in shape) for shape in self.shapes)
        if shapes != self.shapes:
            raise Refined(
                shapes,
                {
                    (number, axis)
                    for number, shape in enumerate(self.shapes)
                    for axis, e in enumerate(shape)
                    if isinstance(e, Size) and {s.name for s in e.symbols} & forms.pinned
                },
            )

    def possible(self) -> bool:
        """Whether every storage it needs is there: what is assumed may hold, now or again."""
        every = (*self.outside, *self._others)
        return all(source() is not None for source in every if isinstance(source, ref))

    def valid(self) -> bool:
        """Whether everything assumed about the surroundings still holds."""
        if self.options is not options()() or not self.guards.hold():
            return False
        if self._settings != list(map(call, self._readers)):
            return False
        if self.outside:
            storages = list(map(call, self.outside))
            if None in storages:
                return False
            versions = list(map(_version, storages))
            if (versions != self.versions or self._moves) and not self._fit(storages, versions):
                return False
        if self._moves and len({source() for source in self._sources}) < len(self._sources):
            return False  # two places hold one array
        return not self._others or all(source() is not None for source in self._others)

    def _fit(self, storages: Sequence[Any], versions: Sequence[int]) -> bool:
        """Whether the storages that have changed lie as they did."""
        changed = [
            k
            for k, source in enumerate(self.outside)
            if versions[k] != self.versions[k] or type(source) is Located
        ]
        pending = [s.actual for s in map(storages.__getitem__, changed) if s.actual.memory is None]
        if pending:
            realize_values(pending)
        for k in changed:
            value = storages[k].actual
            layout = value.shape, value.strides, value.offset, value.placement
            if layout != self._layouts[k]:
                return False
            self.versions[k] = storages[k].version
        return True

    def reason(self) -> str:
        """Why the recording does not serve, in words."""
        return self.guards.failing() or "an array, a setting or its layout is another one"

    def sizes(self, call: CallArguments) -> dict[str, int] | None:
        """The values of the symbolic sizes in a call of this kind; None: it does not fit."""
        for k, i in enumerate(call.inputs):
            shape = self.shapes[k]
            if len(shape) != len(i.shape) or (i.is_part and k in self._changed):
                return None
            symbolic = any(isinstance(extent, Size) for extent in shape)
            if not (i.is_plain if symbolic else self._strides[k] == (i.strides, i.offset)):
                return None
        found = self._values(call)
        if found is None or not all(c.holds(found) for c in self.conditions):
            return None
        return {**found, **self.ranks}

    def _values(self, call: CallArguments) -> dict[str, int] | None:
        """What the symbols are in a call whose inputs have as many axes; None: no shapes fit."""
        extents: list[tuple[Dim, Any]] = []
        for shape, i in zip(self.shapes, call.inputs, strict=True):
            extents += zip(shape, i.shape, strict=True)
        return solved(extents)


def _owner(read: Any) -> Any:
    """What a method is of."""
    return getattr(read, "__self__", None)


def _is_array(x: Any) -> bool:
    return isinstance(pytree.unwrapped(x), NDArray)


def _is_dense(v: Value, offsets: Mapping[Value, int]) -> bool:
    """Whether the memory from where `v` starts is all of the value, in order."""
    return not offsets.get(v, v.offset) and is_row_major(v.shape, v.strides)
