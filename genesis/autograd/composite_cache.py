"""Compositions as one operation: their graphs are built once, and copied from then on.

A layer is a dozen operations, and each finds out its shapes, makes an array, a tensor and an entry
of the tape. So what is composed for arguments of certain forms is recorded when it is first called:
on stand-ins, with its gradients. From then on a call copies the values (`subgraph_copies`) and is
one entry of the tape, whose rule copies those of the gradients. The values are the same as those
that the operations would have made, and so are programs and bits. Gradients that are part of the
graph are compositions, too. So is every operation of the tape itself, from the second call with
such arguments on: settings may be others every time.

Where somebody watches operations (`jit`, `scan`, anomaly mode, `eager`), or changes what they do
(mixed precision, classes of tensors of users), the operations are called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Literal, NamedTuple

from genesis import ndarray
from genesis.autograd import anomaly, mode
from genesis.autograd.tape import (
    Creator,
    Edge,
    Saved,
    Walk,
    alias,
    ancestors,
    edge_to,
    grad,
    record,
)  # fmt: skip
from genesis.functional.function import (
    Context,
    Function,
    install_compositions,
    plain,
    precision,
)
from genesis.functional.movement import View
from genesis.ir import ops
from genesis.ir.dtype import DType, default_float
from genesis.ir.node import topological
from genesis.ndarray import NDArray, zeros
from genesis.ndarray.core import primitive
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.storage import Steps, Storage
from genesis.ndarray.core.subgraph_copies import NotASubgraph, Subgraph
from genesis.ndarray.core.value import Extended, Several, Value, apart, thread
from genesis.tensor.memory_formats import Size
from genesis.tensor.tensor import Tensor

#: Compositions that are known for arguments of certain forms, at most.
MOST = 1 << 11

#: Classes of tensors that are no more than that.
KINDS: set[type] = {Tensor}

#: What else an argument may be.
_SETTINGS = {bool, int, float, str, type(None), DType}

_TUPLES = {tuple, Size}
_OF_ARRAYS = {f for f in vars(ndarray).values() if isinstance(f, FunctionType)}

#: False: not to be copied.
_known: dict[tuple[Any, ...], RecordedComposite | Literal[False]] = {}
#: Operations that were called once with arguments of certain forms.
_once: set[tuple[Any, ...]] = set()
_edge = partial(tuple.__new__, Edge)  # many are made
_new: Any = object.__new__
_NONE: Any = object()  # no result: the operations are to be called


class _Numbers(list[Any]):
    """What was saved where that is numbers alone: nothing to hold, but there until it is freed."""

    def __bool__(self) -> bool:
        return True


_NUMBERS = _Numbers()


class GradientRule(NamedTuple):
    """Gradients for certain results: which saved values and results' gradients they are made of."""

    graph: Subgraph
    saved: list[int]  # among the values of the composition
    places: list[int | None]  # of every argument's gradient; None: it has none
    through: list[int | None]  # which of the results' gradients it is, as it comes; None: none


class RecordedComposite:
    """A composition for arguments of certain forms."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        names: Sequence[str],
        title: str,
        operation: bool,
    ) -> None:
        self.function, self.names = function, tuple(names)
        self.operation = operation  #: whether it is one operation of the tape
        #: What the tape has as its function.
        self.function_on_tape: type[Function] = type(title, (Composition,), {})
        #: The arguments, without the tensors.
        self.args = [None if type(x) in KINDS else x for x in args]
        self.tensors = [k for k, x in enumerate(args) if type(x) in KINDS]
        with apart():
            self._record(args)

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
        if any(v in inputs for v in values):  # such as a copy: of what others may write to
            raise NotASubgraph("a result is what an argument is")
        #: Arguments that are written, such as running statistics.
        self.written = [k for k, x in enumerate(stand_ins) if x.array.version]
        known = {x.array.storage for x in stand_ins}
        if any(s() not in known for s in thread.written) or any(needs[k] for k in self.written):
            raise NotASubgraph("something else is written, or part of the graph")
        after = [stand_ins[k].array.storage.actual for k in self.written]
        self.graph = Subgraph(inputs, [*values, *after])
        self.forms = [(x.array.shape, x.array.dtype, x.array.device) for x in outputs]
        self.made = [x.requires_grad for x in outputs]  # on the tape
        self.on_tape = any(self.made)
        self.arguments = [(x.array.shape, x.array.dtype, x.array.device) for x in given]
        self.device = given[0].array.device
        self._places = self.graph.order
        self._results, self._needs = outputs, needs
        self._stand_ins = stand_ins
        self._rules: dict[tuple[bool, ...], GradientRule] = {}
        self._gradients: dict[tuple[bool, ...], Callable[..., tuple[Any, ...]]] = {}
        self.saved: list[int] = []
        self.frees = _frees(outputs)  #: whether going backward through it frees something
        if self.on_tape:
            full = self.rule(tuple(self.made))
            self.saved = full.saved
        # For gradients of gradients it is computed again. The rules of one operation read no more
        # than what it saves, so that it needs only the arguments that this is made of.
        inner = [v for v, k in self._places.items() if k in self.saved]
        below = topological(inner, lambda v: () if v in inputs else v.inputs)
        more = [k for k, v in enumerate(inputs) if k not in self.saved]
        if self.operation:
            more = [k for k in more if inputs[k] in below]
        #: What is saved, and where that is in a copy.
        self.entries = [*self.saved, *more]
        self.kept = self.graph.give(self.entries)
        #: The arguments that gradients of gradients are made of, or go to. They go to no others if
        #: an operation saves nothing but arguments.
        self.needed: Sequence[int] = range(len(inputs))
        if self.operation and all(k < len(inputs) for k in self.saved):
            self.needed = sorted(self.saved)
        #: What equal creators have: none do where several results in one are saved.
        self.rule_on_tape = None if any(type(v) is Several for v in inner) else self

    def call(self, tensors: Sequence[Any]) -> Any:
        """The composition itself."""
        args = list(self.args)
        for k, x in zip(self.tensors, tensors, strict=True):
            args[k] = x
        split = len(args) - len(self.names)
        return self.function(*args[:split], **dict(zip(self.names, args[split:], strict=True)))

    def rule(self, given: tuple[bool, ...]) -> GradientRule:
        """What makes the gradients of the arguments of those of results, which are given or not."""
        found = self._rules.get(given)
        if found is None:
            with apart():
                found = self._rules[given] = self._derived(given)
        return found

    def gradient(self, given: tuple[bool, ...]) -> Callable[..., tuple[Any, ...]]:
        """The gradients of the arguments, as a function of tensors and of results' gradients."""
        found = self._gradients.get(given)
        if found is None:
            through = self.rule(given).through

            def gradient(*args: Any) -> tuple[Any, ...]:
                # One may be computed from another: what is wanted ends at each of them.
                known = iter([_apart(x) for x in args[: len(self.needed)]])
                tensors = [
                    next(known) if k in self.needed else Tensor(zeros(*form), wanted)
                    for k, (form, wanted) in enumerate(
                        zip(self.arguments, self._needs, strict=True)
                    )
                ]
                grads = args[len(self.needed) :]
                with mode.enable_grad():
                    results = self.call(tensors)
                outputs = results if self.several else (results,)
                chosen = [x for x, wanted in zip(outputs, given, strict=True) if wanted]
                wanted = [
                    x
                    for x, needed, k in zip(tensors, self._needs, through, strict=True)
                    if needed and k is None
                ]
                made = grad(chosen, wanted, grads, True, True, allow_unused=True)
                return tuple([g for g in made if g is not None])

            found = self._gradients[given] = gradient
        return found

    def _derived(self, given: tuple[bool, ...]) -> GradientRule:
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
        first, last = len(saved), len(saved) + len(starts)
        through = [None if k is None or not first <= k < last else k - first for k in where]
        return GradientRule(graph, [self._places[v] for v in saved], where, through)


class _Call(Context):
    """What one call of a composition remembers."""

    materialize_grads = False
    recorded: RecordedComposite
    edges: Sequence[Edge | None]


class Composition(Function):
    """One call of a composition, on the tape."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the tensors."""
        entries = [*ctx._saved]
        recorded: RecordedComposite = ctx.recorded
        if any(isinstance(g, Tensor) for g in grads):
            return _differentiated(ctx, entries, grads)
        rule = recorded.rule(tuple([g is not None for g in grads]))
        number = dict(zip(recorded.entries, entries, strict=True))
        values = [*[number[k] for k in rule.saved], *[g.value for g in grads if g is not None]]
        made = rule.graph.copy(values, recorded.device)
        return tuple([None if k is None else wrap(made[k]) for k in rule.places])


def _differentiated(ctx: Any, entries: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients that are part of the graph: a composition of arguments and gradients."""
    recorded: RecordedComposite = ctx.recorded
    given = tuple([g is not None for g in grads])
    rule = recorded.rule(given)
    known = [g for g in grads if g is not None]
    found: Iterator[Any] = iter(())
    if any(k is not None and j is None for k, j in zip(rule.places, rule.through, strict=True)):
        number = dict(zip(recorded.entries, entries, strict=True))
        tensors = []
        for k in recorded.needed:
            value = number.get(k)
            if value is None:  # it makes no difference what it was
                value = zeros(*recorded.arguments[k]).value
            tensors.append(ctx._restore(Saved(value, ctx.edges[k])))
        found = iter(call(recorded.gradient(given), (*tensors, *known), {}))
    return tuple(
        [
            None if k is None else next(found) if j is None else known[j]
            for k, j in zip(rule.places, rule.through, strict=True)
        ]
    )


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A composition of arguments among which are tensors."""
    given = (*args, *kwargs.values()) if kwargs else args
    found = _copy(function, given, tuple(kwargs), function)
    return function(*args, **kwargs) if found is _NONE else found


def copied(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A composition of arguments among which may be tensors; None if it is to be called."""
    found = _copy(function, tuple(args), (), function)
    return None if found is _NONE else found


def operation(function: type[Function], args: tuple[Any, ...]) -> Any:
    """An operation of the tape on arguments among which are tensors."""
    if not function.copied or thread.stands_in:
        return record(function, args)
    found = _copy(function, args, (), None)
    return record(function, args) if found is _NONE else found


def without_gradient(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A function of arrays on arguments among which are tensors; None if it is to be called."""
    if function not in _OF_ARRAYS or thread.stands_in:
        return None
    found = _copy(function, args, (), plain)
    return None if found is _NONE else found


def view(x: Any, steps: Steps) -> Any:
    """A tensor seen through steps; None if somebody watches."""
    state = mode.state
    if (
        type(x) not in KINDS
        or thread.recorder is not None
        or thread.eager
        or precision.choose is not None
        or state.observe is not None
        or state.inference
        or anomaly.enabled
        or Extended.by_users
        or x._inference
    ):
        return None
    base, array = x.base, x.array
    edge = edge_to(x) if state.enabled else None
    seen = NDArray(array.storage, array.steps + steps)
    if edge is None:
        result = Tensor(seen)
    else:
        ctx = Context()
        ctx.steps, ctx.shape = steps, array.shape  # type: ignore[attr-defined]
        creator = Creator(View, ctx, (edge, None))
        creator.forms = [(seen.shape, seen.dtype, seen.device)]
        creator.rule = View.rule_of(ctx), *creator.forms
        result = Tensor.made(seen, creator, 0)
    result._base = base = x if base is None else base
    result._seen = base._generation
    return result


def _copy(
    name: Callable[..., Any],
    given: tuple[Any, ...],
    names: tuple[str, ...],
    function: Callable[..., Any] | None,
) -> Any:
    """The results of a composition; `_NONE` if it is not copied.

    Without a `function`, that of the operation `name`; with `plain`, of a function of arrays.
    """
    here, state = thread.__dict__, mode.state.__dict__  # one look at what each thread has its own
    if (
        here["recorder"] is not None
        or here["eager"]
        or precision.choose is not None
        or state["observe"] is not None
        or state["inference"]
        or anomaly.enabled
        or Extended.by_users
    ):
        return _NONE
    recording = function is not plain and state["enabled"]
    key: list[Any] = [name, recording, default_float(), *names]
    arrays: list[NDArray] = []
    values: list[Value] = []
    edges: list[Edge | None] = []
    for x in given:
        kind = type(x)
        if kind in KINDS:
            if x._inference:
                return _NONE
            array = x.array
            edge = None
            if recording:
                creator = x._creator if x._base is None else x.creator
                if creator is not None:
                    edge = _edge((creator, x.slot, array.shape, array.dtype))
                elif x._wanted:
                    edge = _edge((x, 0, array.shape, array.dtype))
            key += array.dtype, array.shape, array.device, edge is None
            arrays.append(array)
            values.append(array.value if array.steps else array.storage.actual)
            edges.append(edge)
        elif kind in _SETTINGS:
            key += kind, x if kind is not float or x > 0 or x < 0 else repr(x)  # -0.0, nan
        elif kind in _TUPLES and all(type(n) is int for n in x):
            key += kind, x
        else:
            return _NONE
    form = tuple(key)
    recorded = _known.get(form)
    if recorded is None:
        recorded = _recorded(form, given, names, function, arrays)
    if not recorded or (recorded.written and _are_views(arrays)):
        return _NONE
    graph = recorded.graph
    passed = graph.checks is None or graph.passes(values)
    if not passed and recorded.operation:
        return _NONE  # the operation knows better: it may refuse them at once
    # Called by `call`, say, and that by what was called.
    graph.extend(values, recorded.device, passed, inside=4)
    places = graph.places
    if recorded.written:
        for argument, k in zip(recorded.written, places[len(recorded.made) :], strict=True):
            arrays[argument].storage.write(values[k])
    creator = None
    if recorded.on_tape:
        ctx = _Call()
        ctx.recorded, ctx.edges = recorded, edges
        ctx._saved = saved = [values[k] for k in recorded.kept]
        if not recorded.frees:
            ctx._left = lambda _: saved
        elif not saved:
            ctx._saved = _NUMBERS
        creator = Creator(recorded.function_on_tape, ctx, edges)
        creator.forms, creator.rule = recorded.forms, recorded.rule_on_tape
    if not recorded.several:
        return _result(values[places[0]], creator, 0)
    return tuple(
        [
            _result(values[places[slot]], creator if made else None, slot)
            for slot, made in enumerate(recorded.made)
        ]
    )


def _result(value: Value, creator: Creator | None, slot: int) -> Tensor:
    """A tensor on a value that nobody has seen: what its parts' constructors do, at once."""
    storage = _new(Storage)
    storage.actual = value
    storage.version = 0
    array = _new(NDArray)
    array.storage = storage
    array.steps = ()
    array.dtype = value.dtype
    array.shape = value.shape
    array.device = value.device
    array._cached = None
    return Tensor.made(array, creator, slot, False)


def _recorded(
    form: tuple[Any, ...],
    given: tuple[Any, ...],
    names: tuple[str, ...],
    function: Callable[..., Any] | None,
    arrays: Sequence[NDArray],
) -> RecordedComposite | Literal[False]:
    """A composition that was not known; False if it is not copied, or not yet."""
    if len({x.device for x in arrays}) != 1:
        return False
    if function is None or function is plain:
        if form not in _once:
            if len(_once) >= MOST:
                _once.clear()
            _once.add(form)
            return False
        _once.discard(form)
    if len(_known) >= MOST:
        _known.clear()
    found: RecordedComposite | Literal[False] = False
    try:
        single = function is None or function is plain
        operations = function if function else lambda *args: record(form[0], args)
        if function is plain:
            operations = partial(plain, form[0])
        found = RecordedComposite(operations, given, names, _title(form[0].__name__), single)
        if single and not found.graph.plain:
            found = False
    except Exception:  # whatever it is, the operations have it as well
        pass
    _known[form] = found
    return found


def _frees(results: Sequence[Tensor]) -> bool:
    """Whether an operation of those that made some results saved anything for its gradient."""
    creators = ancestors([x.creator for x in results if x.creator is not None])
    contexts: list[Any] = [creator.ctx for creator in creators]
    return any(c.recorded.frees if isinstance(c, _Call) else c._saved for c in contexts)


def _title(name: str) -> str:
    """A function's name as a class would have it."""
    return "".join([word[:1].upper() + word[1:] for word in name.split("_")])


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


install_compositions(sys.modules[__name__])

__all__ = ["KINDS", "call"]
