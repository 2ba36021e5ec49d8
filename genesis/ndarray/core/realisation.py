"""Realisation: from pending values to memory.

One pass collects the pending ancestors of the roots (`pending_graph`). Where a graph with the same
signature was realised before, there is an `ExecutionPlan`: the program, and which values it reads
and gives. Else it is decided what to compute: the roots, and whatever somebody outside still holds,
so that nothing is ever computed twice. A value that stays pending keeps what it reads: that is not
overwritten (docs/arrays.md has the rules). The graph is interned into `ir.Node`s whose leaves are
numbered slots; the root nodes are the key under which the compiled program is found. Strides and
sharing of memory are in the key; values of scalars, where in its memory an input starts and places
in the user's code are not.

One process-wide lock covers all of it; building graphs takes none. An interrupt (Ctrl-C) may come
at any moment: what a program has overwritten is always taken note of.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from ctypes import c_uint64
from dataclasses import replace
from functools import cache, lru_cache
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from genesis import events
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import Leaf, Node, node, topological
from genesis.ir.ops import Op
from genesis.ir.size import Dim, Size, evaluate, product
from genesis.ndarray.core import pending_graph
from genesis.ndarray.core.graph_matcher import Matcher, is_matchable, matcher
from genesis.ndarray.core.index_checks import checks_in, codes, require
from genesis.ndarray.core.layout import Shape, Strides, is_row_major, lowest, row_major, through
from genesis.ndarray.core.pending_graph import (
    PendingGraph,
    are_too_many_forms,
    forget_forms,
    form_of,
    numbered_leaf,
)
from genesis.ndarray.core.source_lines import Places
from genesis.ndarray.core.storage import State, pending_states
from genesis.ndarray.core.value import CaptureError, Checked, Several, Value, lock, thread

if TYPE_CHECKING:
    from genesis.backends.base import Backend, Memory
    from genesis.compiler import Options, Program
    from genesis.ndarray.core.symbolic_sizes import GeneralForm, Use


class Statistics(NamedTuple):
    """What realisation has done in this process so far."""

    compiled: int = 0  # programs compiled
    runs: int = 0  # programs run
    operations: int = 0  # operations on arrays run, movement not counted
    aliases: int = 0  # values realised without a kernel


class CompiledEntry(NamedTuple):
    """A compiled program, what one run of it performs, and the memory it wants for its outputs."""

    program: Program
    operations: int
    outputs: list[tuple[int | None, int | Size]]  # the slot to reuse or None, bytes
    used: list[int]  # how many programs had been asked for when this one was, the last time


class ExecutionPlan(NamedTuple):
    """How a graph is realised whose values are known by their positions in it."""

    options: Options  # that were in force
    empty: list[int]  # without elements: nothing to run
    aliases: list[Alias]  # in memory of others
    entry: CompiledEntry | None = None  # None: there is nothing to run, and nothing of what follows
    sizes: Mapping[str, int] = {}  # of the program's symbols
    scalars: Sequence[Attr] = ()  # run-time scalars, by slot
    inputs: Sequence[InputSource] = ()  # by slot
    anywhere: Sequence[int] = ()  # the slots of those that may begin anywhere
    fresh: Sequence[int] = ()  # bytes of outputs in memory of their own
    taken: Sequence[tuple[int, int]] = ()  # the other outputs: whose memory each takes over
    #: What is computed: a value, the number of its output, how it lies there, and its form then.
    results: Sequence[tuple[int, int, Strides, int]] = ()
    lines: Places | None = None  # where the user wrote it, if somebody watches
    use: Use | None = None  # None: there is nothing to learn from it
    general: bool = False  # whether the program is one for many sizes
    opened: Sequence[tuple[int, int]] = ()  # values of blocks after the others: which of which


class Attr(NamedTuple):
    """The attribute of a value: that of one of the graph, or a known one of what is in a block."""

    place: int | None
    known: Any

    def found(self, order: list[Value]) -> Any:
        """What it is in a graph."""
        return self.known if self.place is None else order[self.place].attr


class InputSource(NamedTuple):
    """Where an input of a program lies: how many bytes after the beginning of a value's memory.

    And where a value, or a slice of it, begins anywhere, so many elements of a size after those.
    """

    place: int  # of a value in memory
    after: int
    itemsize: int = 0  # 0: it begins where the memory does
    steps: Attr | None = None  # of the slice

    @staticmethod
    def of(place: int, base: Value, steps: Attr | None, first: int | None) -> InputSource:
        """Of a value, or of a slice of it: its first element is `first` after the value's own.

        None where nothing is read at all.
        """
        itemsize = base.dtype.itemsize
        anywhere = first is not None and (steps is not None or base.offset != 0)
        return InputSource(place, (first or 0) * itemsize, itemsize * anywhere, steps)

    def begin(self, order: list[Value]) -> int:
        """How many bytes after the beginning of its memory a value in a graph begins."""
        base = order[self.place]
        found: Any = base.offset
        if self.steps is not None:
            for (start, _), stride in zip(self.steps.found(order), base.strides, strict=True):
                found += start * stride
        return found * self.itemsize  # type: ignore[no-any-return]


class Alias(NamedTuple):
    """A value that lies in the memory of another: the movements from that one on."""

    place: int
    base: int
    movements: list[tuple[Op, Attr, Shape]]

    def lay(self, order: list[Value]) -> None:
        """Give the value its memory, once the other one has its own."""
        base = order[self.base]
        assert base.memory is not None
        shape, strides, offset = base.shape, base.strides, base.offset
        for op, attr, after in self.movements:
            layout = through(op, attr.found(order), shape, strides, offset, after)
            assert layout is not None
            (strides, offset), shape = layout, after
        order[self.place].fulfil(base.memory, strides, offset, foreign=base.attr)


class Programs(dict[tuple[tuple[Node, ...], frozenset[int], str, "Options"], CompiledEntry]):
    """Programs by the graphs that they compute, and plans by signatures of pending graphs."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int | None, str], ExecutionPlan] = {}
        self._met: dict[tuple[int | None, str], int] = {}  # how often plans were found
        self._matchers: dict[Hashable, list[tuple[Matcher, ExecutionPlan]]] = {}

    def remember(self, key: tuple[int | None, str], plan: ExecutionPlan) -> None:
        """Find a plan again."""
        if len(self.plans) >= MOST_PROGRAMS or are_too_many_forms():
            self.forget_plans()
        else:
            if key in self.plans:
                self._forget_matchers()
            self.plans[key] = plan

    def forget_plans(self) -> None:
        """Find no plan any more."""
        self.plans.clear()
        self._forget_matchers()
        forget_forms()

    def _forget_matchers(self) -> None:
        self._met.clear()
        self._matchers.clear()

    def matched(
        self, device: str, roots: Iterable[Value], states: Sequence[State]
    ) -> tuple[list[Any], ExecutionPlan] | None:
        """The values below roots, and the plan of their graph, if it is one that comes often."""
        listed, bases = [*roots], []
        for state in states:
            listed.append(state.actual)
            bases.append(state.base)
        forms = (device, *[value.form or form_of(value) for value in listed])
        for match, plan in self._matchers.get(forms, ()):
            order = match(listed, bases)
            if order is not None:
                return order, plan
        return None

    def watch(
        self,
        key: tuple[int | None, str],
        graph: PendingGraph,
        states: Sequence[State],
        plan: ExecutionPlan,
    ) -> None:
        """A plan was found: have its graph be `matched` if it comes often."""
        self._met[key] = met = self._met.get(key, 0) + 1
        listed = [*graph.roots]
        last = listed[len(listed) - len(states) :]
        if met < OFTEN or met & (met - 1) or not graph.known or not is_matchable(graph):
            return
        if [id(state.actual) for state in states] != [id(value) for value in last]:
            return  # some are of other graphs
        found = self._matchers.setdefault((key[1], *map(form_of, listed)), [])
        found.insert(0, (matcher(graph, states), plan))
        del found[MOST_ALIKE:]


class _Selection(NamedTuple):
    """Which values of a graph one realisation computes, and which it only lays in memory."""

    computed: list[Value]  # by the program
    empty: list[Value]  # without elements: nothing to run
    aliases: list[list[Value]]  # value, .., base in whose memory it is: each an input of the last
    kept: set[Value]  # leaves that must keep their contents


#: So many values below roots are looked at for checks before the whole graph is.
NEAR = 256

#: When a graph was found as often as this, and twice as often, .., a matcher is worth its making.
OFTEN = 8
#: Matchers of graphs whose roots have the same forms, at most.
MOST_ALIKE = 4

#: Programs that are found again, at most. Each takes about 100 KB.
MOST_PROGRAMS = 1024

_NO_SIZES: Mapping[str, int] = {}
_programs = Programs()
_asked = count()
_counts = dict.fromkeys(Statistics._fields, 0)


def statistics() -> Statistics:
    """Counts of what realisation has done; take the difference of two to measure something."""
    return Statistics(**_counts)


def realize_values(values: Iterable[Value], sizes: Mapping[str, int] | None = None) -> None:
    """Give every value memory, computing all that is needed in one program per device.

    `sizes` gives the symbolic sizes their values by name.
    """
    with lock:  # even for values in memory: another thread may just be writing to it
        found = {v: None for v in values if v.memory is None}
        if not found:
            return
        # What was written on the way goes along: a loop that asks for one number in every
        # turn (the loss of a training step) then runs the same program in every turn.
        if written := thread.written:
            actual = [s.actual for w in written if (s := w()) is not None]
            found.update(dict.fromkeys([v for v in actual if v.memory is None]))
            del actual
        devices = {v.device: found for v in found}
        if len(devices) > 1:
            devices = {d: {v: None for v in found if v.device is d} for d in devices}
        for device, roots in devices.items():
            try:
                if events.watcher is None:
                    _realize(roots, device, sizes or _NO_SIZES)
                else:
                    with events.span("realise"):
                        _realize(roots, device, sizes or _NO_SIZES)
            finally:
                # A write that failed is not tried again with everything that follows.
                thread.pending = 0
                written.clear()


def _realize(
    roots: dict[Value, None],
    device: str,
    sizes: Mapping[str, int],
    *within: PendingGraph,
) -> None:
    """Give the roots memory; `within` is a graph that nobody but this realisation refers to."""
    if not sizes and _filled(roots, device):
        return
    if Checked.waiting:  # most are found near the roots, and then the graph is visited only once
        Checked.waiting = False
        _check(_checks_near(roots), device, sizes)
    known = not sizes and events.watcher is None  # else more is wanted than a plan has
    states = [state for state in pending_states() if state.actual not in roots]
    matched = False
    try:
        if known and not within:
            found = _programs.matched(device, roots, states)
            matched = found is not None
            if found is not None and _serves(found[1]):
                return _run(*found, device)
            del found
        graph = PendingGraph(roots, *within)
        while not graph.plain and _adds(graph, device, sizes):
            graph.leave()
            graph = PendingGraph(roots, *within)
        key = graph.signature() if known else None, device
        # Whether a plan serves is asked once: that counts how often it is used.
        plan = None if matched else _programs.plans.get(key)
        if plan is None or not _serves(plan):
            order, plan, again = _found(graph, device, sizes, within)
            if key[0] is not None:
                _programs.remember(key, again)
        else:
            order = graph.order
            if not within:
                _programs.watch(key, graph, states, plan)
        _run(order, plan, device)
    except Exception as error:
        first = next(iter(roots))
        error.add_note(f"while realising the result of {first.op.name} at {first.where}")
        raise


def _filled(roots: Collection[Value], device: str) -> bool:
    """Whether all roots are one number repeated, in memory of the host: that takes no program."""
    numbers: list[Any] = []
    shapes: list[tuple[int, ...]] = []
    for v in roots:
        if v.op is not ops.EXPAND:
            return False
        x = v.inputs[0].inputs[0] if v.inputs[0].op is ops.RESHAPE else v.inputs[0]
        shape = tuple([n for n in v.shape if isinstance(n, int)])
        if x.op not in (ops.CONST, ops.SCALAR) or len(shape) != len(v.shape):
            return False
        numbers.append(x.attr)
        shapes.append(shape)
    backend = backend_of(device)
    if not backend.has_host_memory:
        return False
    sizes = [prod(shape) * v.dtype.itemsize for v, shape in zip(roots, shapes, strict=True)]
    made = zip(roots, numbers, shapes, backend.allocate_many(sizes), strict=True)
    for v, number, shape, memory in made:
        backend.upload(memory, np.broadcast_to(np.asarray(number, v.dtype.numpy), shape))
        v.fulfil(memory, row_major(shape))
    return True


def _serves(plan: ExecutionPlan) -> bool:
    """Whether a graph is still realised as a plan says."""
    if plan.use is not None and plan.use.again(plan.general):
        return False
    return plan.options is options()()


def _found(
    graph: PendingGraph, device: str, sizes: Mapping[str, int], within: Sequence[PendingGraph]
) -> tuple[list[Value], ExecutionPlan, ExecutionPlan]:
    """The values of a graph without blocks, how to realise them, and how all equal graphs."""
    if not graph.blocks:
        plan = _execution_plan(graph, device, sizes)
        return graph.order, plan, plan
    graph.forget_memories()
    parts, inner = graph.expand()
    flat = PendingGraph(graph.roots, graph, *within)
    plan = _execution_plan(flat, device, sizes)
    return flat.order, plan, _in_blocks(plan, flat.order, graph.places, parts, inner)


def _in_blocks(
    plan: ExecutionPlan,
    order: list[Value],
    places: dict[Value, int],
    parts: set[int],
    inner: Mapping[int, tuple[int, int]],
) -> ExecutionPlan:
    """The plan of a graph for the one with blocks that it was before."""
    opened: dict[tuple[int, int], int] = {}

    def attr(x: Attr) -> Attr:
        value = order[cast(int, x.place)]
        found = places.get(value)
        return Attr(None, value.attr) if found is None or found in parts else Attr(found, None)

    def place(old: int) -> int:
        value = order[old]
        found = places.get(value)
        if found is None:  # somebody holds another part of its block, which refers to it
            found = opened.setdefault(inner[id(value)], len(places) + len(opened))
        return found

    return plan._replace(
        scalars=[attr(x) for x in plan.scalars],
        inputs=[
            x._replace(place=place(x.place), steps=x.steps and attr(x.steps)) for x in plan.inputs
        ],
        taken=[(number, place(old)) for number, old in plan.taken],
        results=[(place(old), n, strides, form) for old, n, strides, form in plan.results],
        empty=[place(old) for old in plan.empty],
        aliases=[
            Alias(place(x.place), place(x.base), [(op, attr(a), s) for op, a, s in x.movements])
            for x in plan.aliases
        ],
    )._replace(opened=list(opened))


def _adds(graph: PendingGraph, device: str, sizes: Mapping[str, int]) -> bool:
    """Whether the graph below the roots is another now: what goes along with it is added to them.

    Checks are decided before anything that is computed with what they are about.
    """
    checks = checks_in(graph.order)
    if checks:
        _check(checks, device, sizes, graph)
        if sum([v.memory is not None for v in graph.order]) > len(graph.memories):
            return True  # an index that somebody holds was computed on the way
    roots = graph.roots
    before = len(roots)
    for loop in pending_graph.of_kind(Several, graph.order):
        # Once it runs it gives all results that anybody still holds.
        held = [item() for item in loop.items]
        roots.update(dict.fromkeys(v for v in held if v is not None and v.memory is None))
    return len(roots) > before


def _checks_near(roots: Iterable[Value]) -> list[Checked]:
    """Checks that have to be made for roots, among the values nearest to them."""
    near = list(roots)
    seen = set(near)
    for value in near:  # it grows
        if len(near) < NEAR:
            new = [i for i in value.sources if i not in seen]
            seen.update(new)
            near += new
    return checks_in(near)


def _check(
    checks: Sequence[Checked], device: str, sizes: Mapping[str, int], *within: PendingGraph
) -> None:
    """Decide checks, in a program of their own: nothing is overwritten if one of them fails."""
    if not checks:
        return
    worst = codes(checks)
    _realize(dict.fromkeys(v for v in worst if v.memory is None), device, sizes, *within)
    for check, value in zip(checks, worst, strict=True):
        extent = evaluate(check.extent, sizes)
        require(check.name, read_code(value), extent, check.axis, check.where)
        check.passed = True


def read_code(value: Value) -> int:
    """The number in a realised value of `checks.codes`."""
    assert value.memory is not None
    backend = backend_of(value.device)
    if backend.has_host_memory:  # a view would cost more than everything else about a check
        return c_uint64.from_address(value.memory.pointer).value
    return int(backend.download(value.memory, value.dtype, ()).item())


def _selection(graph: PendingGraph) -> _Selection:
    """Select by what becomes of every value found."""
    selected = _Selection([], [], [], set())
    order, roots = graph.inputs_first, graph.roots
    places, holders = graph.places, graph.held
    # Values whose elements can be had without arithmetic, once the program has run.
    available: set[Value] = set()
    lingering: set[Value] = set()  # pending before and after
    targets: set[Value] = set()
    for value in order:
        held = holders[places[value]]
        if value.memory is not None:
            available.add(value)
            if held:
                selected.kept.add(value)
            continue
        leaf = value.op.group == "leaf"
        cheap = leaf or (value.op.is_movement and all(i in available for i in value.inputs))
        if value in roots:
            chain = _alias(value, targets) if cheap and not leaf else None
            if chain is not None:
                selected.aliases.append(chain)
                selected.kept.add(chain[-1])
            else:
                targets.add(value)
        elif cheap:
            if held:
                lingering.add(value)
        elif held and value.op is not ops.SCAN:
            targets.add(value)
        else:
            continue
        available.add(value)
    for value in order:
        if value in targets:
            (selected.empty if 0 in value.shape else selected.computed).append(value)
    if lingering:
        for value in reversed(order):
            if value in lingering:
                for i in value.inputs:
                    (selected.kept if i.memory is not None else lingering).add(i)
    return selected


def _alias(value: Value, targets: set[Value]) -> list[Value] | None:
    """The way down to the value whose memory `value` can share; None if it needs a kernel."""
    chain = [value]
    while chain[-1].memory is None and chain[-1] not in targets:
        if chain[-1].op.group == "leaf" or chain[-1].op in (ops.PAD, ops.WINDOW):
            return None
        chain.append(chain[-1].inputs[0])
    base = chain[-1]
    zero: Dim = 0
    if base.memory is None:
        strides, offset = row_major(base.shape), zero
    else:
        base.require_whole(value.op.name)
        strides, offset = base.strides, base.offset
    shape = base.shape
    for step in reversed(chain[:-1]):
        layout = through(step.op, step.attr, shape, strides, offset, step.shape)
        if layout is None:
            return None
        (strides, offset), shape = layout, step.shape
    return chain


def _execution_plan(graph: PendingGraph, device: str, sizes: Mapping[str, int]) -> ExecutionPlan:
    """Find or compile what realises a graph, and say how the graph's values are used by it."""
    selected = _selection(graph)
    places = graph.places
    plan = ExecutionPlan(
        options()(), [places[v] for v in selected.empty], _aliases(selected, places)
    )
    if not selected.computed:
        return plan
    free = _free(graph, selected)
    # Aliases and empty results may be the only reason why a value was visited.
    partly = selected.aliases or selected.empty
    needed = topological(selected.computed) if partly else graph.inputs_first
    nodes, scalars, inputs = _intern(needed, free)
    donated = frozenset(slot for slot, (v, _) in enumerate(inputs) if v.memory in free)
    unique = tuple(dict.fromkeys([nodes[v] for v in selected.computed]))
    # By identity: code that PyTorch's compiler writes has constants that cannot be hashed.
    where = tuple([(id(v.code), v.instruction) for v in selected.computed])
    entry, form, use = _entry(unique, donated, device, where)
    if form is not None:
        sizes = {**sizes, **form.sizes}
    if unknown := [name for name in entry.program.symbols if name not in sizes]:
        raise CaptureError(
            f"an array that depends on the size {unknown[0]} is used outside of the function that "
            "genesis.jit recorded with it; return it from the function instead"
        )
    lines = None
    if events.watcher is not None:
        written = {n: (v.code, v.instruction) for v, n in nodes.items()}
        if form is not None:
            written = {n: written[meant] for n, meant in form.meaning.items()}
        lines = Places(f"realise {selected.computed[-1].op.name}", written)
    number = {n: k for k, n in enumerate(unique)}
    results = [
        (places[v], number[nodes[v]], strides, numbered_leaf(v.dtype, v.shape, strides))
        for v in selected.computed
        for strides in [row_major(v.shape)]
    ]
    used = [Attr(places[v], None) for v in scalars]
    sources = [
        InputSource.of(places[v], v, None, first)
        if v.memory is not None
        else InputSource.of(places[v.inputs[0]], v.inputs[0], Attr(places[v], None), first)
        for v, first in inputs
    ]
    return plan._replace(
        entry=entry,
        sizes=sizes,
        scalars=used,
        inputs=sources,
        anywhere=[slot for slot, source in enumerate(sources) if source.itemsize],
        fresh=[evaluate(nbytes, sizes) for slot, nbytes in entry.outputs if slot is None],
        taken=[
            (number, sources[slot].place)
            for number, (slot, _) in enumerate(entry.outputs)
            if slot is not None
        ],
        results=results,
        lines=lines,
        use=use,
        general=form is not None,
    )


def _aliases(selected: _Selection, places: Mapping[Value, int]) -> list[Alias]:
    """The values that need no kernel, each from the next one below that lies in memory then."""
    laid: set[Value] = set()
    found = []
    for value, *below in selected.aliases:
        base = next(v for v in below if v in laid or v is below[-1])
        moved = [value, *below[: below.index(base)]]
        movements = [(v.op, Attr(places[v], None), v.shape) for v in reversed(moved)]
        found.append(Alias(places[value], places[base], movements))
        laid.add(value)
    return found


def _run(order: list[Any], plan: ExecutionPlan, device: str) -> None:
    """Run the program for a graph's values, and give them its outputs."""
    entry = plan.entry
    if plan.opened:
        blocks = {place for place, _ in plan.opened}
        made = {place: cast(Any, order[place]).expand() for place in blocks}
        order = order + [made[place][number] for place, number in plan.opened]
    if entry is not None:
        entry.used[0] = next(_asked)
        program = entry.program
        inputs = [order[place].memory.pointer + after for place, after, _, _ in plan.inputs]
        for slot in plan.anywhere:
            inputs[slot] += plan.inputs[slot].begin(order)
        scalars = [attr.found(order) for attr in plan.scalars] if plan.scalars else ()
        outputs = backend_of(device).allocate_many(plan.fresh)
        for number, place in plan.taken:
            outputs.insert(number, cast("Memory", order[place].memory))
        before = program.runs
        try:
            program.run(inputs, scalars, outputs, plan.sizes, plan.lines)
        finally:
            if program.runs > before:
                for place, number, strides, form in plan.results:
                    order[place].fulfil(outputs[number], strides, 0, False, form)
        _counts["runs"] += 1
        _counts["operations"] += entry.operations
    for place in plan.empty:
        order[place].fulfil(backend_of(device).allocate(0), row_major(order[place].shape))
    if plan.aliases:
        for alias in plan.aliases:
            alias.lay(order)
        _counts["aliases"] += len(plan.aliases)


def _entry(
    roots: tuple[Node, ...], donated: frozenset[int], device: str, where: Hashable
) -> tuple[CompiledEntry, GeneralForm | None, Use | None]:
    """The program for a graph, and the graph it was compiled from if that is one for many sizes.

    `where` is the place in the user's code.
    """
    use, now = None, options()()
    if now.symbolic_sizes and (roots, donated, device, now) not in _programs:
        from genesis.ndarray.core import symbolic_sizes  # importing Genesis compiles nothing yet

        use, form = symbolic_sizes.general_form(roots, donated, device, where)
        if form is not None:
            try:
                entry = compiled(form.roots, donated, device)
                if not entry.program.unproven:  # else it would look at bounds when it runs
                    return entry, form, use
            except (ValueError, TypeError, IndexError, NotImplementedError):
                pass  # what must be decided for every size, or is not proven for all
            symbolic_sizes.refuse(form.roots)
    return compiled(roots, donated, device), None, use


def _free(graph: PendingGraph, selected: _Selection) -> set[Memory]:
    """The memories that the program may overwrite: nobody can see the old contents again.

    Only memory that fits an output is offered, so that who else holds an unrelated leaf does not
    make another program of the same graph.
    """
    alone = graph.alone
    if not alone:
        return alone
    wanted = {(v.dtype.itemsize, v.shape) for v in selected.computed}
    offered: set[Memory] = set()
    refused: set[Memory] = set()
    for value in graph.order:
        memory = value.memory
        if memory is None:
            continue
        fits = (value.dtype.itemsize, value.shape) in wanted
        dense = value.offset == 0 and is_row_major(value.shape, value.strides)
        free = value not in selected.kept and not value.attr  # attr: foreign memory
        (offered if fits and dense and free else refused).add(memory)
    return alone & (offered - refused)


def _intern(
    order: list[Value], overwritten: set[Memory]
) -> tuple[dict[Value, Node], list[Value], list[tuple[Value, int | None]]]:
    """The graph as the compiler sees it, the run-time scalars by slot, and the inputs by slot.

    An input comes with the distance of its lowest element from its first, None if it has none.

    A slice is an input of its own, even if there is another like it: ``x[i] + x[j]`` is the same
    program for every i and j. Not where memory is overwritten, there its slices must be known.
    """
    nodes: dict[Value, Node] = {}
    scalars: list[Value] = []
    inputs: list[tuple[Value, int | None]] = []
    slots: dict[tuple[Memory, int, Value | None], int] = {}

    def leaf(
        v: Value, memory: Memory, strides: Strides, offset: Dim, part: Value | None = None
    ) -> Node:
        if v.memory is memory:
            v.require_whole("computing")
        first = lowest(v.shape, strides, offset)
        slot = slots.setdefault((memory, first * v.dtype.itemsize, part), len(inputs))
        if slot == len(inputs):
            away = first - offset
            inputs.append((v, None if 0 in v.shape or isinstance(away, Size) else away))
        found = nodes[v] = _leaf(slot, v.dtype, v.shape, strides, offset - first)
        return found

    def known(v: Value) -> Node:
        if v.memory is not None:
            return nodes.get(v) or leaf(v, v.memory, v.strides, v.offset)
        return nodes[v]

    for value in order:
        if value.memory is not None:
            continue  # not before it is used: slices may be all that is
        if value.op is ops.SCALAR:
            nodes[value] = node(ops.SCALAR, (), len(scalars), value.dtype)
            scalars.append(value)
            continue
        if value.op is ops.SLICE:
            x = value.inputs[0]
            if x.memory is not None and x.memory not in overwritten:
                x.require_whole("slice")
                layout = through(ops.SLICE, value.attr, x.shape, x.strides, x.offset, value.shape)
                assert layout is not None
                leaf(value, x.memory, *layout, part=value)
                continue
        below = tuple([known(i) for i in value.inputs])
        nodes[value] = node(value.op, below, value.attr, value.dtype, value.shape)
    return nodes, scalars, inputs


@lru_cache(maxsize=1 << 12)
def _leaf(slot: int, dtype: DType, shape: Shape, strides: Strides, offset: Dim) -> Node:
    return node(ops.BUFFER, (), Leaf(slot, strides, offset), dtype, shape)


def compiled(
    roots: tuple[Node, ...],
    donated: frozenset[int],
    device: str,
    memory_budget: int | float | None = None,
) -> CompiledEntry:
    """The program that computes `roots` and may overwrite the slots `donated`, within a budget."""
    chosen = options()()
    if memory_budget is not None:
        chosen = replace(chosen, memory_budget=memory_budget)
    key = roots, donated, device, chosen
    entry = _programs.get(key)
    if entry is None:
        order = topological(roots)
        if any(n.op is ops.PARAMETER for n in order):
            raise CaptureError("an array from inside the body of a scan is used outside of it")
        from genesis import compiler  # importing Genesis must not load a code generator

        with lock:
            program = compiler.compile_graph(roots, donated, backend_of(device), chosen)
        arithmetic = [n for n in order if n.op.group not in ("leaf", "movement")]
        outputs = [(o.reuses, product(o.shape) * o.dtype.itemsize) for o in program.outputs]
        entry = _programs[key] = CompiledEntry(program, len(arithmetic), outputs, [next(_asked)])
        _counts["compiled"] += 1
        if len(_programs) > MOST_PROGRAMS:
            _forget_some()
    entry.used[0] = next(_asked)
    return entry


def _forget_some() -> None:
    """Forget a quarter of the programs, those that were used longest ago.

    Who holds one, such as a recording, goes on with it; its code is unloaded when nobody does.
    """
    by_use = sorted(_programs.items(), key=lambda item: item[1].used[0])
    for key, _ in by_use[: len(by_use) // 4]:
        _programs.pop(key, None)
    _programs.forget_plans()


def forget_programs() -> None:
    """Compile every graph again, or find it on disk: what is made of it has changed."""
    from genesis.compiler.options import renew

    with lock:
        _programs.clear()
        _programs.forget_plans()
        renew()  # recordings compare options


@cache
def options() -> Callable[[], Options]:
    """What gives the compiler's options now; loaded on first use, like the compiler."""
    from genesis.compiler.options import current

    return current


@cache
def backend_of(device: str) -> Backend:
    """The backend that serves a device."""
    from genesis.backends import get

    backend = get(device)
    # A fork waits for realisations under way, so that the child never finds the lock taken. What
    # is registered last is called first: this lock must come before those of the backend.
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return backend


__all__ = ["Statistics", "statistics"]
