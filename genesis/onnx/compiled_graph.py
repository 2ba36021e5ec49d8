"""`CompiledGraph`: a model compiled for running, in as few pieces as the data allows.

All of a model is recorded as one program (`genesis.jit`), one for each kind of inputs. A node that
needs to know contents before the rest can be built, the count of a loop or the boxes that are left,
is found when recording stops there: it then runs by itself, between two programs, and the graphs
in it are programs, too. Inputs that decide sizes, such as a sample rate, are part of the kind of
inputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import no_grad
from genesis.autograd.mode import state
from genesis.ndarray.core.value import CaptureError
from genesis.onnx.dtypes import is_ours, numpy_dtype
from genesis.onnx.graph import Graph, NodeStep, reads
from genesis.onnx.model import Model, OperatorError, ValueScope
from genesis.onnx.values import as_host, as_tensor, is_symbolic, settled
from genesis.tensor.tensor import Tensor

_MOST_KINDS = 1024  # of values that decide sizes, for which programs are kept
_MOST_CAPTURES = 4  # of a program that was meant to be one for all numbers
_NOTHING = np.zeros(1 << 16, np.uint8)


class _NeedsContents(Exception):
    """A node that cannot be part of a program, by its place in its piece."""

    def __init__(self, place: int) -> None:
        self.place = place


class _NeedsNumbers(Exception):
    """A piece that is another program for every number that decides sizes."""


class GraphPiece:
    """Consecutive steps that are one program."""

    def __init__(
        self,
        model: Model,
        graphs: Sequence[Graph],
        steps: list[NodeStep],
        wanted: set[str],
        counts: bool = False,
        given: frozenset[str] = frozenset(),
    ) -> None:
        self.model, self.graphs, self.steps = model, graphs, steps
        made = {name for step in steps for name in step.outputs if name}
        read = {name for step in steps for name in reads(step) - {""}} - made
        read.difference_update(*(graph.constants.keys() - given for graph in graphs))
        self.reads, self.writes = sorted(read), sorted(made & wanted)
        self._compiled: OrderedDict[Any, Any] = OrderedDict()
        #: Whether numbers that decide sizes are symbols: then it is one program for all of them.
        self._counts = counts

    def run(self, scope: ValueScope) -> None:
        """Compute what the steps compute."""
        function, tensors = self._call(scope)
        results = self._computed(tensors) if function is None else function(*tensors.values())
        scope.update(zip(self.writes, results, strict=True))

    def direct(self, scope: ValueScope) -> tuple[tuple[str, ...], Any] | None:
        """What computes the same of NumPy arrays with these names, where there is such a thing."""
        function, tensors = self._call(scope)
        found = None if function is None else function.direct(*tensors.values())
        return None if found is None else (tuple(tensors), found)

    def _call(self, scope: ValueScope) -> tuple[Any, dict[str, Any]]:
        """The program for values, and its arguments; none where there are sequences or maps."""
        values = {name: scope[name] for name in self.reads}
        if any(isinstance(x, list | dict) for x in values.values()):
            return None, values
        # Parameters are tensors here: what is called with plain ones is called quickly.
        tensors = {
            n: x if type(x) is Tensor else Tensor(x.array)
            for n, x in values.items()
            if isinstance(x, Tensor)
        }
        known = {n: x for n, x in values.items() if n not in tensors}
        tensors |= {n: as_tensor(x) for n, x in known.items() if _is_real(x)}  # they are data
        known = {n: x for n, x in known.items() if n not in tensors}
        counts = {n: x for n, x in known.items() if self._counts and _is_count(x)}
        known = {n: x for n, x in known.items() if n not in counts}
        carriers = {n: _carrier(int(x.item())) for n, x in counts.items()}
        function = self._function(tensors, known, counts)
        if counts and function.captures > _MOST_CAPTURES:
            raise _NeedsNumbers
        return function, {**tensors, **carriers}

    def _function(
        self, tensors: Mapping[str, Any], known: Mapping[str, Any], counts: Mapping[str, Any]
    ) -> Any:
        names = tuple(tensors)
        shapes = {n: x.shape for n, x in counts.items()}
        # Where tensors have other axes, it is another program for all numbers.
        ranks = [x.ndim for x in tensors.values()] if counts else ()
        key = (names, *ranks, *shapes.items(), *((n, *_fingerprint(x)) for n, x in known.items()))
        if key not in self._compiled:
            if len(self._compiled) >= _MOST_KINDS:
                self._compiled.popitem(last=False)

            def function(*given: Any) -> tuple[Any, ...]:
                values = dict(zip((*names, *shapes), given, strict=True))
                numbers = {n: _counted(values[n], shape) for n, shape in shapes.items()}
                return self._computed({**known, **values, **numbers})

            self._compiled[key] = compiled = genesis.jit(function)
            if counts:  # the first program is for all numbers already
                others = (_carrier(int(x.item()) + 1) for x in counts.values())
                compiled.expect(*tensors.values(), *others)
        self._compiled.move_to_end(key)
        return self._compiled[key]

    def _computed(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        model = self.model
        scope: ValueScope | None = None
        for graph in self.graphs:
            scope = ValueScope({}, model.constants(graph), scope)
        assert scope is not None
        scope.update(values)
        for place, step in enumerate(self.steps):
            try:
                args = [scope[n] if n else None for n in step.inputs]
                # What comes in as texts is other texts the next time.
                if any(n in values and _is_text(x) for n, x in zip(step.inputs, args, strict=True)):
                    raise _NeedsContents(place)
                results = model.computed(step, args, scope, {})
            except CaptureError:
                raise _NeedsContents(place) from None
            if any(map(_stays_on_host, results)):
                raise _NeedsContents(place)
            scope.update(zip(step.outputs, results, strict=False))
        return tuple([_carried(scope[name]) for name in self.writes])


class Alone:
    """A step that runs by itself; the graphs in it are programs."""

    def __init__(self, model: Model, graphs: Sequence[Graph], step: NodeStep) -> None:
        self.model, self.steps = model, [step]
        # A `Scan` is a loop of a program as it is.
        self._bodies = {
            graph: CompiledGraph(model, graphs, graph)
            for graph in step.subgraphs()
            if step.kind != "Scan"
        }

    def run(self, scope: ValueScope) -> None:
        """Compute what the step computes."""
        (step,) = self.steps
        args = [scope[n] if n else None for n in step.inputs]
        try:
            found = self.model.computed(step, args, scope, self._bodies or None)
        except CaptureError as error:  # inside of a loop that is one program: nowhere else to go
            raise OperatorError(f"{self.model.path}: {step}: {error}".lstrip(": ")) from None
        if step.kind == "TextCodes":  # other numbers the next time
            found = [as_tensor(x) for x in found]
        scope.update(zip(step.outputs, found, strict=False))


def _stays_on_host(x: Any) -> bool:
    """Whether a value is of a kind that no program computes: texts, or numbers of a few bits."""
    if isinstance(x, list):
        return any(map(_stays_on_host, x))
    return isinstance(x, np.ndarray) and not is_ours(x.dtype) and not is_symbolic(x)


def _carried(x: Any) -> Any:
    """A value as it leaves a program: in memory of its own, be it a view of something else."""
    tensor = as_tensor(x)
    return tensor.clone() if isinstance(tensor, Tensor) and tensor.array.steps else tensor


def _is_text(x: Any) -> bool:
    """Whether a value is texts."""
    return isinstance(x, np.ndarray) and x.dtype == object and not is_symbolic(x)


def _is_real(x: Any) -> bool:
    """Whether a value is real numbers, several of them, which decide no sizes."""
    several = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size > 1
    return several and is_ours(x.dtype)


def _is_count(x: Any) -> bool:
    """Whether a value is a number that can be the size of something."""
    plain = isinstance(x, np.ndarray) and x.dtype == np.int64 and x.size == 1
    return plain and 0 <= x.item() < len(_NOTHING)


@lru_cache(maxsize=4096)
def _carrier(number: int) -> Any:
    """A tensor that says a number by its size: sizes are what programs have symbols for."""
    return genesis.from_numpy(_NOTHING[: number + 1])


def _counted(carrier: Any, shape: tuple[int, ...]) -> Any:
    """The number that a tensor carries, as an array."""
    return settled(np.array([carrier.shape[0] - 1, None], object)[:1]).reshape(shape)


def _fingerprint(x: Any) -> tuple[Any, ...]:
    if x is None:
        return (None,)
    contents = tuple(x.flat) if x.dtype == object else x.tobytes()
    return str(x.dtype), x.shape, contents


class Quick(NamedTuple):
    """A model that is one program, for NumPy arrays of forms that are known.

    Before and after it there may be steps that take NumPy arrays: texts looked up, results named.
    """

    inputs: tuple[str, ...]
    run: Any
    order: list[int]  # of outputs among the program's results
    before: list[HostCall]
    after: list[HostCall]
    writes: list[str]
    outputs: tuple[str, ...]

    def __call__(self, feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs in the model's order; None if that takes a look at more than pointers."""
        for call in self.before:
            feed = {**feed, call.output: call(feed)}
        before, state.enabled = state.enabled, False  # what `no_grad` does takes longer
        try:
            results = self.run([feed[n] for n in self.inputs])
        finally:
            state.enabled = before
        if results is None or not self.after:
            return None if results is None else [results[k] for k in self.order]
        values = dict(zip(self.writes, results, strict=True))
        for call in self.after:
            values[call.output] = call(values)
        return [values[n] for n in self.outputs]


class HostCall(NamedTuple):
    """A step that takes NumPy arrays and gives one thing."""

    function: Any
    inputs: tuple[str, ...]
    output: str
    options: Mapping[str, Any]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """What it gives for values by name."""
        return as_host(self.function(*[values[n] for n in self.inputs], **self.options))


def _host_call(piece: Alone, known: Collection[str]) -> HostCall | None:
    """A piece as a call, if it takes NumPy arrays with these names and gives one thing."""
    (step,) = piece.steps
    entry = step.operator
    if entry is None or len(step.outputs) != 1 or any(True for _ in step.subgraphs()):
        return None
    taken = all(entry.form(k) in ("Host", "Operand") for k in range(len(step.inputs)))
    known_options = entry.options is not None and entry.options.isdisjoint(("outputs", "version"))
    if not taken or not known_options or not {*step.inputs} <= {*known}:
        return None
    return HostCall(entry.function, step.inputs, step.outputs[0], step.options)


class CompiledGraph:
    """A graph as programs: outputs by name for inputs by name. Around it may lie other graphs."""

    def __init__(
        self,
        model: Model,
        around: Sequence[Graph] = (),
        graph: Graph | None = None,
        given: frozenset[str] = frozenset(),
    ) -> None:
        self.model, self.graph = model, graph or model.graph
        self._given = given  # inputs that have a value in the file, and get another
        self._with: dict[frozenset[str], CompiledGraph] = {}
        self._graphs = (*around, self.graph)
        #: Inputs whose contents decide sizes.
        found = _decisive(self.graph) & set(self.graph.inputs)
        self.decisive = frozenset(n for n in found if _may_decide(self.graph.types.get(n)))
        self._read = frozenset(n for step in self.graph.steps for n in reads(step))
        self._counts = bool(around)  # the number of a round may be one that decides sizes
        self.pieces: list[GraphPiece | Alone] = self._pieces([(self.graph.steps, True)])

    def _pieces(
        self, parts: list[tuple[list[NodeStep], bool]], after: Sequence[GraphPiece | Alone] = ()
    ) -> list[GraphPiece | Alone]:
        """Pieces of steps, which are one program or run alone; pieces that are there follow."""
        wanted, pieces = set(self.graph.outputs), list[GraphPiece | Alone]()
        wanted.update(n for piece in after for step in piece.steps for n in reads(step) - {""})
        for steps, together in reversed(parts):
            if together and steps:
                pieces.append(
                    GraphPiece(self.model, self._graphs, steps, wanted, self._counts, self._given)
                )
            elif steps:
                pieces.extend(Alone(self.model, self._graphs, step) for step in reversed(steps))
            wanted = wanted | {name for step in steps for name in reads(step) - {""}}
        return pieces[::-1]

    def quick(self, values: Mapping[str, Any]) -> Quick | None:
        """What computes the outputs of NumPy arrays like these, if that is one program."""
        if (other := self._other(values)) is not self:
            return other.quick(values)
        programs = [k for k, piece in enumerate(self.pieces) if isinstance(piece, GraphPiece)]
        if len(programs) != 1:
            return None
        (place,) = programs
        piece = self.pieces[place]
        assert isinstance(piece, GraphPiece)
        before = self._host_calls(self.pieces[:place], values)
        after = self._host_calls(self.pieces[place + 1 :], piece.writes)
        if before is None or after is None:
            return None
        made = {*piece.writes, *(call.output for call in after)}
        if not {*self.graph.outputs} <= made:  # some are constants
            return None
        with no_grad():
            scope = self._scope(values)
            for alone in self.pieces[:place]:
                alone.run(scope)
            found = piece.direct(scope)
        if found is None:
            return None
        inputs, run = found
        order = [] if after else [piece.writes.index(n) for n in self.graph.outputs]
        return Quick(inputs, run, order, before, after, piece.writes, self.graph.outputs)

    @staticmethod
    def _host_calls(
        pieces: Sequence[GraphPiece | Alone], given: Iterable[str]
    ) -> list[HostCall] | None:
        """Pieces as calls, if they take NumPy arrays with these names, or what others give."""
        known, calls = {*given}, list[HostCall]()
        for piece in pieces:
            call = _host_call(piece, known) if isinstance(piece, Alone) else None
            if call is None:
                return None
            calls.append(call)
            known.add(call.output)
        return calls

    def _other(self, values: Mapping[str, Any]) -> CompiledGraph:
        """The graph as programs that take what is given in place of a value in the file."""
        given = self._given.union(values.keys() & self.graph.constants.keys())
        if given == self._given:
            return self
        if given not in self._with:
            self._with[given] = CompiledGraph(self.model, self._graphs[:-1], self.graph, given)
        return self._with[given]

    def _scope(self, values: Mapping[str, Any], outer: ValueScope | None = None) -> ValueScope:
        given = {n: as_host(x) if n in self.decisive else x for n, x in values.items()}
        return ValueScope(given, self.model.constants(self.graph), outer)

    def __call__(self, values: Mapping[str, Any], outer: ValueScope | None = None) -> list[Any]:
        """The outputs in the graph's order; `outer` are the values of the graphs around."""
        if (other := self._other(values)) is not self:
            return other(values, outer)
        with no_grad():
            scope = self._scope(values, outer)
            place = 0
            while place < len(self.pieces):
                try:
                    self.pieces[place].run(scope)
                    place += 1
                except _NeedsContents as found:
                    self._divide(place, found.place)
                except _NeedsNumbers:
                    self._set_apart()
                    scope, place = self._scope(values, outer), 0
                except IndexError as error:  # an index that only the contents show to be wrong
                    raise OperatorError(f"{self.model.path}: {error}".lstrip(": ")) from None
            return [scope[name] if name else None for name in self.graph.outputs]

    def body(self, values: Mapping[str, Any], outer: ValueScope) -> list[Any]:
        """The outputs of a graph inside of a node: numbers that decide no sizes are data there."""
        data = self._read - self.decisive
        given = {n: _as_data(x) if n in data else x for n, x in values.items()}
        return self(given, outer)

    def _set_apart(self) -> None:
        """From now on have steps that are the same for all numbers be a program by themselves."""
        self._counts = False
        late, parts = {*self.decisive}, list[tuple[list[NodeStep], bool]]()
        for piece in self.pieces:
            if isinstance(piece, GraphPiece):
                parts += [(part, True) for part in _divided(piece.steps, late, piece.writes)]
            else:
                parts.append((piece.steps, False))
            for step in piece.steps:
                if not late.isdisjoint(reads(step)):
                    late.update(step.outputs)
        self.pieces = self._pieces(parts)

    def _divide(self, place: int, step: int) -> None:
        """From now on have one step of a piece run by itself."""
        before, steps = self.pieces[:place], self.pieces[place].steps
        after = self.pieces[place + 1 :]
        parts = [(steps[:step], True), (steps[step : step + 1], False), (steps[step + 1 :], True)]
        self.pieces = [*before, *self._pieces(parts, after), *after]


def _may_decide(kind: Any) -> bool:
    """Whether an input is kept for programs by its contents: not one of many real numbers."""
    if kind is None or not kind.tensor_type.elem_type:
        return True
    floating = numpy_dtype(kind.tensor_type.elem_type).kind == "f"
    return not floating or len(kind.tensor_type.shape.dim) < 2


def _divided(
    steps: Sequence[NodeStep], decisive: Iterable[str], outputs: Iterable[str]
) -> list[list[NodeStep]]:
    """The steps that do not depend on inputs that decide sizes, and those that do.

    With the latter come those that compute sizes for them: what leaves a program is data.
    """
    late, depends = set[int](), {*decisive}
    for place, step in enumerate(steps):
        if not depends.isdisjoint(reads(step)):
            late.add(place)
            depends.update(step.outputs)
    early = {*outputs}  # names that are read before, or outside
    for place in reversed(range(len(steps))):
        step = steps[place]
        if place not in late and step.host is not None and early.isdisjoint(step.outputs):
            late.add(place)
        if place not in late:
            early |= reads(step)
    parts = ([s for k, s in enumerate(steps) if (k in late) == which] for which in (0, 1))
    return [part for part in parts if part]


def _as_data(x: Any) -> Any:
    """A number as a tensor, where tensors can be of its type."""
    return as_tensor(x) if isinstance(x, np.ndarray) and is_ours(x.dtype) else x


def _decisive(graph: Graph) -> set[str]:
    """Names whose contents decide sizes or which operators run, as far as NumPy can follow."""
    needed: set[str] = set()
    _follow(graph, needed)
    return needed


def _follow(graph: Graph, needed: set[str]) -> None:
    for step in reversed(graph.steps):
        for inner in step.subgraphs():
            _follow(inner, needed)
        if step.operator is not None:
            forms = [step.operator.form(k) for k in range(len(step.inputs))]
            needed.update(n for n, form in zip(step.inputs, forms, strict=True) if form == "Host")
        of_sizes = step.kind in ("Shape", "Size")
        if step.host is not None and not of_sizes and needed.intersection(step.outputs):
            needed.update(step.inputs)
