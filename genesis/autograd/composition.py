"""Compositions as one operation: their graphs are built once, and copied from then on.

A layer is a dozen operations, and each finds out its shapes, makes an array, a tensor and an entry
of the tape. So what is composed for arguments of certain forms is recorded when it is first called:
on stand-ins, with its gradients. From then on a call copies the values (`subgraph`) and is
one entry of the tape, whose rule copies those of the gradients. The values are the same as those
that the operations would have made, and so are programs and bits. Gradients that are part of the
graph are compositions, too.

Where somebody watches operations (`jit`, `scan`, anomaly mode, `eager`), or changes what they do
(mixed precision, classes of tensors of users), the operations are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from genesis.autograd import anomaly, mode
from genesis.autograd.tape import Creator, Edge, Saved, Walk, alias, edge_to, grad
from genesis.functional.function import Context, Function, install_compositions, precision
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.node import topological
from genesis.ndarray import NDArray
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.subgraph import NotASubgraph, Subgraph
from genesis.ndarray.core.value import Extended, Value, apart, thread
from genesis.tensor.tensor import Tensor

#: Compositions that are known for arguments of certain forms, at most.
MOST = 1 << 11

#: Classes of tensors that are no more than that.
KINDS: set[type] = {Tensor}

#: What else an argument may be.
_SETTINGS = {bool, int, float, str, type(None), DType}

#: False: not to be copied.
_known: dict[tuple[Any, ...], Recorded | Literal[False]] = {}


class Rule(NamedTuple):
    """Gradients for certain results: which saved values and results' gradients they are made of."""

    graph: Subgraph
    saved: list[int]  # among the values of the composition
    places: list[int | None]  # of every argument's gradient; None: it has none


class Recorded:
    """A composition for arguments of certain forms."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], names: Sequence[str]):
        self.function, self.names = function, tuple(names)
        #: The arguments, without the tensors.
        self.args = [None if type(x) in KINDS else x for x in args]
        self.tensors = [k for k, x in enumerate(args) if type(x) in KINDS]
        before = thread.pending, thread.written
        with apart():
            thread.pending, thread.written, thread.stands_in = 0, [], True
            try:
                self._record(args)
            finally:
                thread.pending, thread.written = before
                thread.stands_in = False

    def _record(self, args: Sequence[Any]) -> None:
        given: list[Any] = [args[k] for k in self.tensors]
        needs = [mode.state.enabled and x.requires_grad for x in given]
        stand_ins = [Tensor(wrap(_stand_in(x.array)), n) for x, n in zip(given, needs, strict=True)]
        inputs = [x.array.storage.actual for x in stand_ins]
        results = self.call(stand_ins)
        self.several = isinstance(results, tuple)
        outputs: list[Any] = list(results) if self.several else [results]
        if not all(type(x) is Tensor for x in outputs):
            raise NotASubgraph("not all results are tensors")
        storages = {x.array.storage for x in (*outputs, *stand_ins)}
        if len(storages) < len(outputs) + len(stand_ins):
            raise NotASubgraph("results share memory")
        values = [x.array.value for x in outputs]
        #: Arguments that are written, such as running statistics.
        self.written = [k for k, x in enumerate(stand_ins) if x.array.version]
        known = {x.array.storage for x in stand_ins}
        if any(s() not in known for s in thread.written) or any(needs[k] for k in self.written):
            raise NotASubgraph("something else is written, or part of the graph")
        after = [stand_ins[k].array.storage.actual for k in self.written]
        self.graph = Subgraph(inputs, [*values, *after])
        self.forms = [(x.array.shape, x.array.dtype, x.array.device) for x in outputs]
        self.made = [x.requires_grad for x in outputs]  # on the tape
        self._places = self.graph.order
        self._results, self._needs = outputs, needs
        self._stand_ins = stand_ins
        self._rules: dict[tuple[bool, ...], Rule] = {}
        self._gradients: dict[tuple[bool, ...], Callable[..., tuple[Any, ...]]] = {}
        self.saved: list[int] = []
        if any(self.made):
            full = self.rule(tuple(self.made))
            self.saved = full.saved
        self.kept = self.graph.give(self.saved)  # where they are in a copy

    def call(self, tensors: Sequence[Any]) -> Any:
        """The composition itself."""
        args = list(self.args)
        for k, x in zip(self.tensors, tensors, strict=True):
            args[k] = x
        split = len(args) - len(self.names)
        return self.function(*args[:split], **dict(zip(self.names, args[split:], strict=True)))

    def rule(self, given: tuple[bool, ...]) -> Rule:
        """What makes the gradients of the arguments of those of results, which are given or not."""
        found = self._rules.get(given)
        if found is None:
            before = thread.pending
            with apart():
                thread.pending = 0
                found = self._rules[given] = self._derived(given)
            thread.pending = before
        return found

    def gradient(self, given: tuple[bool, ...]) -> Callable[..., tuple[Any, ...]]:
        """The gradients of the arguments, as a function of tensors and of results' gradients."""
        found = self._gradients.get(given)
        if found is None:

            def gradient(*args: Any) -> tuple[Any, ...]:
                # One may be computed from another: what is wanted ends at each of them.
                tensors = [_apart(x) for x in args[: len(self.tensors)]]
                grads = args[len(self.tensors) :]
                with mode.enable_grad():
                    results = self.call(tensors)
                outputs = results if self.several else (results,)
                chosen = [x for x, wanted in zip(outputs, given, strict=True) if wanted]
                wanted = [x for x, needed in zip(tensors, self._needs, strict=True) if needed]
                made = grad(chosen, wanted, grads, True, True, allow_unused=True)
                return tuple([g for g in made if g is not None])

            found = self._gradients[given] = gradient
        return found

    def _derived(self, given: tuple[bool, ...]) -> Rule:
        results = [x for x, wanted in zip(self._results, given, strict=True) if wanted]
        grads = [Tensor(wrap(_stand_in(x.array))) for x in results]
        wanted = [x for x, needed in zip(self._stand_ins, self._needs, strict=True) if needed]
        walk = Walk(graph=False, retain=True)
        walk.begin(results, grads)
        found = iter(walk.run(wanted))
        gradients = [next(found) if needed else None for needed in self._needs]
        roots = [g.value for g in gradients if g is not None]
        # What the composition has made is saved, unless it is a constant.
        known = {v for v in self._places if v.inputs or v.op is ops.PARAMETER}
        saved = _reached(roots, known)
        starts = [x.array.storage.actual for x in grads]
        graph = Subgraph([*saved, *starts], roots)
        places = iter(graph.places)
        where = [None if g is None else next(places) for g in gradients]
        return Rule(graph, [self._places[v] for v in saved], where)


class Composition(Function):
    """One call of a composition, on the tape."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the tensors."""
        entries = [*ctx._saved]
        recorded: Recorded = ctx.recorded
        if any(isinstance(g, Tensor) for g in grads):
            return _differentiated(ctx, entries, grads)
        rule = recorded.rule(tuple([g is not None for g in grads]))
        number = dict(zip(recorded.saved, entries[len(recorded.tensors) :], strict=True))
        saved = [number[k] for k in rule.saved]
        values = [*saved, *[g.value for g in grads if g is not None]]
        made = rule.graph.copy(values, ctx.device)
        return tuple([None if k is None else wrap(made[k]) for k in rule.places])


def _differentiated(ctx: Any, entries: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients that are part of the graph: a composition of arguments and gradients."""
    recorded: Recorded = ctx.recorded
    given = tuple([g is not None for g in grads])
    tensors = [ctx._restore(entry) for entry in entries[: len(recorded.tensors)]]
    known = [g for g in grads if g is not None]
    found = iter(call(recorded.gradient(given), (*tensors, *known), {}))
    return tuple([None if k is None else next(found) for k in recorded.rule(given).places])


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A composition of arguments among which are tensors."""
    state = mode.state
    if (
        thread.recorder is not None
        or thread.eager
        or precision.choose is not None
        or state.observe is not None
        or state.inference
        or anomaly.enabled
        or Extended.by_users
    ):
        return function(*args, **kwargs)
    given = (*args, *kwargs.values()) if kwargs else args
    recording = state.enabled
    key: list[Any] = [function, recording, *kwargs]
    arrays: list[NDArray] = []
    edges: list[Edge | None] = []
    plain = False
    for x in given:
        kind = type(x)
        if kind in KINDS:
            array = x.array
            edge = edge_to(x) if recording else None
            key += array.dtype, array.shape, array.device, edge is None
            arrays.append(array)
            edges.append(edge)
            plain = plain or x._inference
        elif kind in _SETTINGS:
            key += kind, repr(x) if kind is float else x
        elif kind is tuple and all(type(n) is int for n in x):
            key.append(x)
        else:
            plain = True
    if plain or not arrays:
        return function(*args, **kwargs)
    form = tuple(key)
    recorded = _known.get(form)
    if recorded is None and len({x.device for x in arrays}) == 1:
        if len(_known) >= MOST:
            _known.clear()
        try:
            recorded = _known[form] = Recorded(function, given, tuple(kwargs))
        except Exception:  # whatever it is, the operations have it as well
            recorded = _known[form] = False
    if recorded and not (recorded.written and _are_views(arrays)):
        return _copied(recorded, arrays, edges)
    return function(*args, **kwargs)


def _copied(recorded: Recorded, arrays: list[NDArray], edges: list[Edge | None]) -> Any:
    """One more call."""
    device = arrays[0].device
    inputs = [x.value for x in arrays]
    values = recorded.graph.copy(inputs, device)
    places = recorded.graph.places
    results = [wrap(values[k]) for k in places[: len(recorded.made)]]
    for argument, k in zip(recorded.written, places[len(recorded.made) :], strict=True):
        arrays[argument].storage.write(values[k])
    creator = None
    if any(recorded.made):
        ctx = Context()
        ctx.materialize_grads = False
        ctx.needs_input_grad = [e is not None for e in edges]
        entries: list[Any] = [Saved(v, e) for v, e in zip(inputs, edges, strict=True)]
        entries += [values[k] for k in recorded.kept]
        ctx._saved = entries
        if not recorded.saved:  # nothing is freed by going through it
            ctx._left = lambda _: entries
        ctx.recorded, ctx.device = recorded, device  # type: ignore[attr-defined]
        creator = Creator(Composition, ctx, edges)
        creator.forms = recorded.forms
    tensors = []
    for slot, x in enumerate(results):
        made = creator is not None and recorded.made[slot]
        tensors.append(Tensor.made(x, creator, slot) if made else Tensor(x))  # type: ignore[arg-type]
    return tuple(tensors) if recorded.several else tensors[0]


def _apart(x: Tensor) -> Tensor:
    """The same tensor, but not that others were computed from."""
    edge = edge_to(x)
    return x if edge is None else alias(edge, x.array.value)


def _are_views(arrays: list[NDArray]) -> bool:
    """Whether a write to one array might be seen in another, or be one to a part of it."""
    return any(x.steps for x in arrays) or len({x.storage for x in arrays}) < len(arrays)


def _stand_in(array: NDArray) -> Value:
    return primitive.parameter(array.dtype, array.shape, array.device)


def _reached(roots: Sequence[Value], known: set[Value]) -> list[Value]:
    """The first known values on the ways down from roots."""
    return [v for v in topological(roots, lambda v: () if v in known else v.inputs) if v in known]


install_compositions(call)

__all__ = ["KINDS", "call"]
