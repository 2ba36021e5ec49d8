"""Gradients through functions that `jit` runs.

A recorded function returns tensors that its tape knows how to differentiate. The tape was made on
stand-ins, so it serves every run: from it comes a second program, which computes the gradients of
the inputs from those of the results, from inputs, and from values that the first program saves on
the way. To the tape outside a run is one operation whose rule is that program.

For derivatives of gradients the stand-ins of the gradients are results in turn: a `TapePiece` of
tape with more inputs, of the same kind. It computes from the inputs, and nothing else is saved for
it.
"""

from __future__ import annotations

from array import array as words
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from genesis.autograd import mode, tape
from genesis.autograd.min_cut import cut
from genesis.autograd.tape import Creator, Edge, Walk, _as_array, ancestors, edge_to
from genesis.functional.function import Context, Function
from genesis.functional.movement import View
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import topological
from genesis.ir.shape_guards import Assumptions
from genesis.ir.size import evaluate
from genesis.ndarray import NDArray, ones, pytree
from genesis.ndarray.core.layout import Shape, is_row_major, row_major
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.primitive import permute
from genesis.ndarray.core.realisation import backend_of, compiled, realize_values
from genesis.ndarray.core.source_lines import Places, describe
from genesis.ndarray.core.storage import Steps, Storage, sized
from genesis.ndarray.core.value import (
    CaptureError,
    Value,
    lock,
    recorded_by,
    thread,
    unwatched,
)
from genesis.ndarray.tracing.guards import Guards, Sources
from genesis.ndarray.tracing.journal import Read
from genesis.ndarray.tracing.storage_recorder import Recorder, interned
from genesis.tensor.tensor import Tensor

if TYPE_CHECKING:
    from genesis.ndarray.tracing.recording import ReplayRun
    from genesis.ndarray.tracing.template import Maker, Template


class Given(Function):
    """What made an argument; the recorded function cannot know."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Nothing that is known follows."""
        raise CaptureError(tape.BEFORE)


class Spent(Function):
    """What made a result whose gradients the function has computed itself."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The values saved for gradients are gone."""
        tuple(tape.FREED)


class TapeInput(NamedTuple):
    """Where gradients leave a piece: an edge of its tape, and what that stands for."""

    edge: Edge
    actual: Callable[[Any], Edge | None]  # for given arguments
    order: tuple[int, ...] | None = None  # in which it lies along its axes, if not as they come


class JitTape:
    """What a recording has to do with gradients; see `genesis.ndarray.tracing.tape_interface`."""

    def __init__(self, recorder: Recorder, parts: Iterable[tuple[Any, pytree.Path]]) -> None:
        self.saved: list[Value] = []
        self.needed: set[Value] = set()
        self._recorder = recorder
        self._began = recorder.journal.began = next(tape.numbers)
        self._kept = list(parts)
        self._given: dict[int, tuple[pytree.Path, Tensor]] = {}
        for x, path in self._kept:
            if isinstance(x, Tensor):
                self._given[id(x)] = path, x
                if x._creator is not None:
                    self._given[id(x._creator)] = path, x
        self._outputs: dict[tuple[Creator, int], int] = {}
        self._results: list[Tensor] = []
        self._made: list[Tensor] = []  # all that a run makes
        self._own: dict[int, int] = {}  # leaves among them, and their numbers
        self._late: list[tuple[int, int]] = []  # edges to those
        self._piece: TapePiece | None = None

    # ---- results
    def maker(self, x: Tensor, template: Template) -> Maker:
        """How a run makes a tensor that the function has made."""
        array = template.add(x.array)
        own = template.add(x.__dict__) if x.__dict__ else None
        base = x.base
        seen = None if base is None else template.add(base)  # a later write to one is the other's
        with recorded_by(self._recorder):
            creator = x.creator
        is_there = base is not None and self._is_there(base)
        chain = self._chain(creator) if is_there else None
        if seen is not None and chain is not None:
            return self._view(x, chain, array, seen, own)
        self._made.append(x)
        gradient = None if x._gradient is None else template.add(x._gradient)
        hooks = template.add((x.hooks, x.accumulated)) if x.hooks or x.accumulated else None
        kind, wanted = type(x), x._wanted
        slot: int | None = None
        spent = False
        if creator is not None:
            spent = self._is_spent(creator)
            if not spent:
                slot = self._outputs.setdefault((creator, x.slot), len(self._outputs))
                if slot == len(self._results):
                    self._results.append(x)

        def make(run: ReplayRun, made: list[Any]) -> Tensor:
            new = Tensor(made[array])
            if kind is not Tensor:
                new = kind(new)
            new._wanted = wanted
            if spent:
                new._creator = _spent(new)
            elif slot is not None:
                new._creator, new.slot = run.creator, slot
            if seen is not None:
                _base_on(new, made[seen])
            if gradient is not None:
                new._gradient = made[gradient]
            if hooks is not None:
                new.hooks, new.accumulated = made[hooks]
            if own is not None:
                new.__dict__.update(made[own])
            return new

        return make

    def _chain(self, creator: Creator | None) -> list[Creator] | None:
        """The views that lead from what is there to a result; None if there is more to it."""
        chain: list[Creator] = []
        while creator is not None:
            if creator.function is not View:
                return None
            chain.insert(0, creator)
            source = next(e.source for e in creator.edges if e is not None)
            creator = source if isinstance(source, Creator) and self._is_inside(source) else None
        return chain

    def _view(
        self, x: Tensor, chain: list[Creator], array: int, base: int, own: int | None
    ) -> Maker:
        """How a run makes a view of a tensor that is there."""
        for creator in chain:
            _require_unheard(creator)
        contexts: list[Any] = [creator.ctx for creator in chain]
        steps = tuple(step for ctx in contexts for step in ctx.steps)
        shape = contexts[0].shape if contexts else ()
        wanted = x._wanted

        def make(run: ReplayRun, made: list[Any]) -> Tensor:
            new = Tensor(made[array])
            new._wanted = wanted
            _base_on(new, made[base])
            if contexts:
                there = tuple(evaluate(d, run.sizes) for d in shape)
                new._creator = _seen_through(made[base], there, sized(steps, run.sizes), new)
            if own is not None:
                new.__dict__.update(made[own])
            return new

        return make

    def _is_there(self, x: Tensor) -> bool:
        """Whether a tensor is there before the function runs: a view of it is one in every run."""
        return id(x) in self._given or self._recorder.journal.is_outer(x)

    def _is_spent(self, creator: Creator) -> bool:
        """Whether backward has been through what made a result."""
        found = ancestors([creator], self._is_inside)
        return any(c.ctx is not None and c.ctx._saved is tape.FREED for c in found)

    def _is_inside(self, creator: Creator) -> bool:
        return creator.number > self._began and id(creator) not in self._given

    # ---- the second program
    def close(self, template: Template, static: tuple[Any, ...]) -> list[Read] | None:
        """Prepare for gradients. What was read on the way; None: no result has gradients."""
        if not self._results:
            return None
        from genesis.ndarray.tracing.bytecode_tracer import (
            watched,  # importing Genesis watches nothing yet
        )

        self._own = {
            id(x): template.add(x)
            for x in self._made
            if x._wanted and x._creator is None and not self._is_there(x)
        }
        recorder = Recorder(())  # of its own: it keeps nothing of what is outside
        recorder.journal.began = self._began
        inputs = self._inputs([c for c, _ in self._outputs], recorder)
        for x in self._results:
            recorder.now[x.array.storage] = self._recorder.now[x.array.storage]
        self._piece = piece = TapePiece(self._results, inputs, recorder)
        journal = recorder.journal
        with watched(journal, static):
            following = piece.backward((True,) * len(self._results), graph=False)
        journal.close()
        if journal.effects or recorder.written:
            where = "".join(f"{describe(*e.at)}: " for e in journal.effects[:1] if e.at[0])
            raise CaptureError(
                f"genesis.jit: {where}computing the gradients of the function's results changes "
                "something outside (a hook or a Function with state); do that outside of the "
                "function"
            )
        reads = list(journal.reads.values())
        piece.guards = Guards(reads, (), Sources(reads)) if reads else None
        roots = [v for v in following.roots if v is not None]
        values = [self._recorder.now[x.array.storage] for x in self._results]
        forward = topological(values)
        self.saved = cut(roots, values)
        piece.saved = list(self.saved)
        self.needed = {v for v in (*forward, *topological(roots)) if v.memory is not None}
        return reads

    def _inputs(self, starts: Iterable[Creator], recorder: Recorder) -> list[TapeInput]:
        """Where gradients leave the recorded part of the tape.

        From there on it refers to stand-ins: it is kept, and must not keep parameters alive.
        """
        found: dict[tuple[int, int], TapeInput] = {}
        stack = list(starts)
        seen = set(stack)
        while stack:
            creator = stack.pop()
            _require_unheard(creator)
            edges = list(creator.edges)
            for n, e in enumerate(edges):
                if e is None:
                    continue
                source = e.source
                if isinstance(source, Creator) and self._is_inside(source):
                    if source not in seen:
                        seen.add(source)
                        stack.append(source)
                    continue
                key = (id(source), e.slot)
                if key not in found:
                    if id(source) in self._own:
                        self._late.append((len(found), self._own[id(source)]))
                    found[key] = self._input(e, recorder)
                edges[n] = found[key].edge
            creator.edges = edges
            self._redirect(creator, found)
        return list(found.values())

    def _input(self, e: Edge, recorder: Recorder) -> TapeInput:
        source = e.source
        given = self._given.get(id(source))
        if given is not None:
            path, x = given
            return TapeInput(e, lambda tree: edge_to(pytree.follow(tree, path)), _order(x.array))
        actual = ref(source)
        if isinstance(source, Tensor):
            value = self._recorder.read(source.array.storage)
            stand_in: Tensor | Creator = Tensor(NDArray(Storage(value), source.array.steps), True)
            recorder.now[stand_in.array.storage] = value  # type: ignore[union-attr]
        else:
            stand_in = Creator(Given, Context(), ())
            stand_in.forms = source.forms

        if id(source) in self._own:  # a leaf that every run makes
            return TapeInput(e._replace(source=stand_in), _nowhere)

        _, slot, shape, dtype = e

        def edge(tree: Any) -> Edge | None:
            found = actual()
            return None if found is None else Edge(found, slot, shape, dtype)

        edge_here = e._replace(source=stand_in)
        return TapeInput(edge_here, edge)

    def _redirect(self, creator: Creator, found: Mapping[tuple[int, int], TapeInput]) -> None:
        """Have what a creator saved come from stand-ins, too."""
        ctx = creator.ctx
        assert ctx is not None
        entries: list[Any] = []
        for entry in ctx._saved:
            origin = None if entry is None else entry.origin
            if isinstance(origin, Edge):
                known = found.get((id(origin.source), origin.slot))
                if known is not None:
                    entry = entry._replace(origin=known.edge)
            entries.append(entry)
        ctx._saved = entries

    def settle(self, inputs: Sequence[Value], offsets: Mapping[Value, int]) -> None:
        """The program is made: what runs give, in order. Stand-ins keep no memory alive."""
        assert self._piece is not None
        self._piece.leaves = list(inputs)
        self._piece.layouts = {v: (v.strides, offsets.get(v, v.offset)) for v in inputs}
        for v in self._recorder.inputs.values():
            v.memory = backend_of(v.device).foreign(0, 0, None)
        self._recorder = Recorder(())
        self._kept.clear()
        self._given.clear()
        self._outputs.clear()
        self._made.clear()

    def complete(self, creator: Creator, made: Sequence[Any]) -> None:
        """Lead gradients to leaves that a run has made."""
        for number, which in self._late:
            creator.edges[number] = edge_to(made[which])  # type: ignore[index]

    def attach(
        self,
        run: ReplayRun,
        held: list[Value],
        pointers: list[int],
        unread: list[Value],
        saved: list[Value],
    ) -> Creator:
        """The creator of a run's results, given what the program read, did not read and saved."""
        assert self._piece is not None
        edges = [i.actual(run.tree) for i in self._piece.inputs]
        inputs = [At(p, v) for p, v in zip(pointers, held, strict=True)]
        if unread:
            realize_values(unread)
            inputs += map(_at, unread)
        kept = [At(v.memory.pointer, v) for v in saved]  # type: ignore[union-attr]
        return self._piece.creator(edges, inputs, kept, run.sizes)


class At(NamedTuple):
    """Where an input of a program lies, what keeps it there, and how it lies if that may differ."""

    pointer: int
    owner: Any
    layout: tuple[Any, Any] | None = None


class TapePiece:
    """A piece of tape on stand-ins: results, and the inputs that their gradients go to."""

    def __init__(
        self, results: Sequence[Tensor], inputs: Sequence[TapeInput], recorder: Recorder
    ) -> None:
        self.results = results
        self.inputs = inputs
        self.leaves: list[Value] = []  # what runs say the places of
        self.layouts: dict[Value, tuple[Any, Any]] = {}
        self.saved: list[Value] = []
        self.guards: Guards | None = None  # of what code for gradients read
        self.recorder = recorder
        self._following: dict[Any, Following] = {}
        self._behind: list[set[Creator]] | None = None
        self.forms = [(x.array.shape, x.array.dtype, x.array.device) for x in results]

    def creator(
        self,
        edges: Sequence[Edge | None],
        inputs: Sequence[At],
        saved: Sequence[At],
        sizes: Mapping[str, int],
    ) -> Creator:
        """The creator of one run's results."""
        ctx = Context()
        ctx.materialize_grads = False
        passed = Passed(self)
        ctx._saved = state = [passed, inputs, saved, sizes, edges]

        def left(gradients: Sequence[Any]) -> list[Any] | None:
            if passed.spend(gradients):
                return state
            state.clear()  # what it keeps alive an optimizer would have to copy, not overwrite
            return None

        ctx._left = left
        creator = Creator(Jitted, ctx, edges)
        creator.forms = [
            (tuple(evaluate(d, sizes) for d in shape), dtype, device)
            for shape, dtype, device in self.forms
        ]
        return creator

    def behind(self) -> list[set[Creator]]:
        """For every result the operations behind it that saved something."""
        if self._behind is None:
            ends = {id(i.edge.source) for i in self.inputs}
            self._behind = [
                set() if x.creator is None else _saving(x.creator, ends) for x in self.results
            ]
        return self._behind

    def backward(
        self, mask: tuple[bool, ...], graph: bool, sizes: Mapping[str, int] | None = None
    ) -> Following:
        """What computes the gradients of the inputs from those of some results.

        Where sizes are symbols, what is made for a run is for its sizes: it may ask for them.
        """
        found = self._following.get((mask, graph, None))
        if found is None:
            key = (mask, graph, tuple(sizes.items()) if sizes else None)
            found = self._following.get(key)
            if found is None:
                with Assumptions(sizes) if sizes else nullcontext():
                    found = self._following[key] = self._differentiated(mask, graph)
        return found

    def _differentiated(self, mask: tuple[bool, ...], graph: bool) -> Following:
        chosen = [x for x, is_there in zip(self.results, mask, strict=True) if is_there]
        with recorded_by(self.recorder), mode.set_grad_enabled(graph):
            given = [_stand_in(x.array, graph) for x in chosen]
            walk = PieceWalk(graph, self.inputs)
            for x, g in zip(chosen, given, strict=True):
                edge = Edge(x.creator, x.slot, x.array.shape, x.array.dtype)  # type: ignore[arg-type]
                walk.add(edge, g if graph else g.array)
            gradients = unwatched(walk.through)
            values = [
                g if g is None else permute(_as_array(g).value, i.order or range(g.ndim))
                for g, i in zip(gradients, self.inputs, strict=True)
            ]
        return Following(self, given, gradients, values, graph)


class Passed:
    """How far backward has gone through one run: what it saved is freed by operation.

    Two results of a function may have nothing in common; then backward from one leaves the other
    its graph, as it does where every operation has a node of its own.
    """

    def __init__(self, piece: TapePiece) -> None:
        self.piece = piece
        self.spent: set[Creator] = set()

    def check(self, mask: Iterable[bool]) -> None:
        """Raise if what some results need is gone."""
        if self.spent and any(
            there and not self.spent.isdisjoint(behind)
            for there, behind in zip(mask, self.piece.behind(), strict=True)
        ):
            tuple(tape.FREED)

    def spend(self, gradients: Sequence[Any]) -> bool:
        """Free what belongs to results that have gradients; whether some still have theirs."""
        behind = self.piece.behind()
        for gradient, those in zip(gradients, behind, strict=True):
            if gradient is not None:
                self.spent |= those
        return any(self.spent.isdisjoint(those) for those in behind)


class PieceWalk(Walk):
    """A pass backward through a piece of tape, which ends at its inputs."""

    def __init__(self, graph: bool, inputs: Sequence[TapeInput]) -> None:
        super().__init__(graph, retain=True)
        self._ends = {(id(i.edge.source), i.edge.slot): n for n, i in enumerate(inputs)}
        self._found: list[Any] = [None] * len(inputs)

    def add(self, edge: Edge, gradient: Any) -> None:
        """Another contribution to the gradient of a value."""
        number = self._ends.get((id(edge.source), edge.slot))
        if number is None:
            super().add(edge, gradient)
            return
        from genesis import functional

        gradient = functional.fit(gradient, edge.shape, edge.dtype)
        before = self._found[number]
        self._found[number] = gradient if before is None else before + gradient

    def through(self) -> list[Any]:
        """The gradients of the inputs, None for those without."""
        self.run(None)
        return self._found


class GradientPlan:
    """A program for gradients, ready but for what a run says: sizes, and where inputs lie."""

    def __init__(self, known: Mapping[Value, At], roots: Sequence[Value | None], piece: TapePiece):
        asked = [v for v in roots if v is not None]
        order = topological(asked, lambda v: () if v in known else v.inputs)
        leaves = [v for v in order if v.memory is not None or v in known]
        if any(v.memory and not v.memory.pointer for v in leaves if v not in known):
            raise CaptureError(
                "genesis.jit: a gradient needs what an array held that the function has "
                "overwritten; compute it inside of the function, or do not overwrite"
            )
        slots = {v: k for k, v in enumerate(leaves)}
        layouts = {v: at.layout for v, at in known.items() if at.layout is not None}
        nodes, self._scalars = interned(order, slots, {**piece.layouts, **layouts}, set(known))
        unique = tuple(dict.fromkeys(nodes[v] for v in asked))
        self._entry = compiled(unique, frozenset(), asked[0].device)
        self.program = self._entry.program
        self.places = Places("jit backward", {nodes[v]: (v.code, v.instruction) for v in order})
        numbers = {v: n for n, v in enumerate(known)}
        #: Slots of the frame, and the numbers of the inputs that go there.
        self.slots = [(slots[v], numbers[v]) for v in leaves if v in known]
        self._constants = [(slots[v], v.memory) for v in leaves if v not in known]
        self._roots = [
            (v, 0 if v is None else unique.index(nodes[v]), i.order)
            for v, i in zip(roots, piece.inputs, strict=True)
        ]
        self._sized: dict[tuple[int, ...], Sized] = {}

    def sized(self, sizes: Mapping[str, int]) -> Sized:
        """What there is to know for these sizes."""
        key = tuple(sizes.values())
        found = self._sized.get(key)
        if found is None:
            if len(self._sized) > MOST_SIZES:
                self._sized.clear()
            found = self._sized[key] = self._made(sizes)
        return found

    def _made(self, sizes: Mapping[str, int]) -> Sized:
        frame = self.program.frame(self._scalars, sizes)
        for slot, memory in self._constants:
            frame[slot] = memory.pointer  # type: ignore[union-attr]
        forms: list[Form | None] = []
        for v, number, order in self._roots:
            if v is None:
                forms.append(None)
                continue
            shape: Shape = tuple(evaluate(d, sizes) for d in v.shape)
            strides = row_major(shape)
            if order is not None:
                back = sorted(range(len(order)), key=order.__getitem__)
                shape, strides = (tuple(x[d] for d in back) for x in (shape, strides))
            forms.append((number, v.dtype, shape, strides, v.device))
        nbytes = [evaluate(nbytes, sizes) for _, nbytes in self._entry.outputs]
        return Sized(frame, nbytes, forms)


#: Sizes for which a plan is remembered.
MOST_SIZES = 256
#: Which output of a program a gradient is, and what `Value.realised` is to know of it.
Form = tuple[int, Any, Any, Any, str]


class Sized(NamedTuple):
    """A plan for certain sizes: a frame, the bytes of the outputs, and gradients in order."""

    frame: words[int]
    nbytes: list[int]
    forms: list[Form | None]


class Following:
    """The gradients of a piece, as a program."""

    def __init__(
        self,
        piece: TapePiece,
        given: Sequence[Tensor],
        gradients: Sequence[Any],
        roots: Sequence[Value | None],
        graph: bool,
    ) -> None:
        self.piece = piece
        self.roots = roots
        self.next: TapePiece | None = None
        self.slots: dict[int, int] = {}  # which of the next piece's results a root is
        self._given = [g.array.storage.actual for g in given]
        self._plans: dict[Any, GradientPlan] = {}
        if graph:
            made = [n for n, g in enumerate(gradients) if g is not None and g.creator is not None]
            more = [TapeInput(Edge(g, 0, g.array.shape, g.array.dtype), _nowhere) for g in given]
            inputs = [*piece.inputs, *more]
            self.next = TapePiece([gradients[n] for n in made], inputs, piece.recorder)
            self.next.leaves = [*piece.leaves, *self._given]
            self.next.layouts = piece.layouts
            self.slots = {n: slot for slot, n in enumerate(made)}

    def run(
        self,
        inputs: Sequence[At],
        saved: Sequence[At],
        given: Sequence[At],
        sizes: Mapping[str, int],
    ) -> list[NDArray | None]:
        """The gradients of the inputs of one run."""
        if all(v is None for v in self.roots):
            return [None] * len(self.roots)
        places = [*inputs, *given] if self.next is not None else [*inputs, *given, *saved]
        key = tuple([at.layout for at in places if at.layout is not None])
        with lock:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plans[key] = self._planned(places)
            words, nbytes, forms = plan.sized(sizes)
            frame = words[:]
            for slot, n in plan.slots:
                frame[slot] = places[n].pointer
            memories = plan.program.backend.allocate_many(nbytes)
            for slot, memory in enumerate(memories, plan.program.first_output):
                frame[slot] = memory.pointer
            plan.program.launch(frame, sizes, plan.places)
        return [
            form if form is None else wrap(Value.realised(memories[form[0]], *form[1:]))
            for form in forms
        ]

    def _planned(self, places: Sequence[At]) -> GradientPlan:
        piece = self.piece
        leaves = [*piece.leaves, *self._given, *(piece.saved if self.next is None else ())]
        return GradientPlan(dict(zip(leaves, places, strict=True)), self.roots, piece)


class Jitted(Function):
    """A run of a recorded function, as one operation on the tape."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the inputs, by the second program."""
        if thread.recorder is not None:
            raise CaptureError(
                "genesis.jit: backward goes through the result of an earlier call of a jitted "
                "function; call it outside, or call that function inside this one"
            )
        passed, inputs, saved, sizes, edges = ctx._saved
        piece = passed.piece
        if piece.guards is not None and not piece.guards.hold():
            raise CaptureError(
                "genesis.jit: what a Function reads for gradients has changed between the call and "
                f"backward: {piece.guards.failing()}. Save it in forward, by the context"
            )
        there = tuple(g is not None for g in grads)
        passed.check(there)
        given = [g for g in grads if g is not None]
        graph = mode.is_grad_enabled()
        following = piece.backward(there, graph, sizes)
        values = [_as_array(g).value for g in given]
        values = [v if v.memory is not None else _ones(v) or v for v in values]
        realize_values(values)
        places = list(map(_at, values))
        results = following.run(inputs, saved, places, sizes)
        if not graph:
            return tuple(results)
        assert following.next is not None
        further = [*edges, *map(edge_to, given)]
        creator = following.next.creator(further, [*inputs, *places], (), sizes)
        made = following.slots
        return tuple(
            x if x is None else Tensor.made(x, creator, made[n]) if n in made else Tensor(x)
            for n, x in enumerate(results)
        )


# ---- values


def _saving(creator: Creator, ends: set[int]) -> set[Creator]:
    """The creators that saved something among those that lead to one, up to some ends."""
    found = ancestors([creator], lambda c: id(c) not in ends)
    return {c for c in found if c.ctx is not None and c.ctx._saved}


def _base_on(view: Tensor, base: Tensor) -> None:
    view._base = base if base.base is None else base.base
    view._seen = view._base._generation


def _seen_through(base: Tensor, shape: Any, steps: Steps, view: Tensor) -> Creator:
    """What makes a view of a tensor of a shape; it may get contents of another one yet."""
    ctx: Any = Context()
    ctx.needs_input_grad = [True, False]
    ctx.steps, ctx.shape = steps, shape
    edge = edge_to(base)
    creator = Creator(View, ctx, [None if edge is None else edge._replace(shape=shape), None])
    creator.forms = [(view.array.shape, view.array.dtype, view.array.device)]
    return creator


def _require_unheard(creator: Creator) -> None:
    """Refuse an operation whose gradient somebody inside of the function wants to hear of."""
    if creator.hooks or creator.retained:
        raise CaptureError(
            "genesis.jit: a result depends on a tensor with a hook, or with retain_grad, "
            "that was made inside the function; register it on a result, outside"
        )


def _spent(x: Tensor) -> Creator:
    creator = Creator(Spent, Context(), ())
    creator.forms = [(x.array.shape, x.array.dtype, x.array.device)]
    return creator


def _stand_in(like: NDArray, graph: bool) -> Tensor:
    """A gradient to be given, for a result."""
    nowhere = backend_of(like.device).foreign(0, 0, None)
    value = Value.realised(
        nowhere, like.dtype, like.shape, row_major(like.shape), like.device, foreign=True
    )
    return Tensor(wrap(value), requires_grad=graph)


def _at(value: Value) -> At:
    """Where a value lies."""
    assert value.memory is not None
    return At(value.memory.pointer, value, (value.strides, value.offset))


def _ones(value: Value) -> Value | None:
    """The same as a pending value if that is 1 everywhere: what every gradient begins with."""
    base = value
    while base.op in (ops.RESHAPE, ops.EXPAND):
        base = base.inputs[0]
    if base.op is not ops.CONST or base.attr != 1:
        return None
    one = _one(value.dtype, value.device)
    strides = (0,) * len(value.shape)
    assert one.memory is not None
    return Value.realised(one.memory, one.dtype, value.shape, strides, one.device)


@cache
def _one(dtype: DType, device: str) -> Value:
    return ones((), dtype, device).realize().value


def _order(x: NDArray) -> tuple[int, ...] | None:
    """The axes of an array from the outermost in memory on; None where that is how they come.

    The gradient of what lies so is best written so: a loss of ``scores.transpose(1, 2)`` reads and
    writes along the classes.
    """
    shape, strides = x.storage.actual.shape, x.storage.actual.strides
    if x.steps or is_row_major(shape, strides) or not all(isinstance(n, int) for n in strides):
        return None
    order = tuple(sorted(range(len(shape)), key=lambda d: -evaluate(strides[d], {})))
    dense = is_row_major(tuple(shape[d] for d in order), tuple(strides[d] for d in order))
    return order if dense else None


def _nowhere(tree: Any) -> None:
    return None


def given(array: NDArray) -> Tensor:
    """A tensor that stands for an argument with a history."""
    creator = Creator(Given, Context(), ())
    creator.forms = [(array.shape, array.dtype, array.device)]
    return Tensor.made(array, creator, 0)
