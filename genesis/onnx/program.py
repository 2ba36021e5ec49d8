"""`Program`: a model compiled for running, in as few pieces as the data allows.

All of a model is recorded as one program (`genesis.jit`), one for each kind of inputs. A node that
needs to know contents before the rest can be built, the count of a loop or the boxes that are left,
is found when recording stops there: it then runs by itself, between two programs, and the graphs
in it are programs, too. Inputs that decide sizes, such as a sample rate, are part of the kind of
inputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import no_grad
from genesis.ndarray.core.value import CaptureError
from genesis.onnx.dtypes import is_ours, numpy_dtype
from genesis.onnx.graph import Graph, Step, reads
from genesis.onnx.model import Model, OperatorError, Scope
from genesis.onnx.values import as_host, as_tensor, is_symbolic
from genesis.tensor.tensor import Tensor

_MOST_KINDS = 1024  # of values that decide sizes, for which programs are kept


class _NeedsContents(Exception):
    """A node that cannot be part of a program, by its place in its piece."""

    def __init__(self, place: int) -> None:
        self.place = place


class Piece:
    """Consecutive steps that are one program."""

    def __init__(
        self, model: Model, graphs: Sequence[Graph], steps: list[Step], wanted: set[str]
    ) -> None:
        self.model, self.graphs, self.steps = model, graphs, steps
        made = {name for step in steps for name in step.outputs if name}
        read = {name for step in steps for name in reads(step) - {""}} - made
        read.difference_update(*(graph.constants for graph in graphs))
        self.reads, self.writes = sorted(read), sorted(made & wanted)
        self._compiled: OrderedDict[Any, Any] = OrderedDict()

    def run(self, scope: Scope) -> None:
        """Compute what the steps compute."""
        function, tensors = self._call(scope)
        results = self._computed(tensors) if function is None else function(*tensors.values())
        scope.update(zip(self.writes, results, strict=True))

    def direct(self, scope: Scope) -> tuple[tuple[str, ...], Any] | None:
        """What computes the same of NumPy arrays with these names, where there is such a thing."""
        function, tensors = self._call(scope)
        found = None if function is None else function.direct(*tensors.values())
        return None if found is None else (tuple(tensors), found)

    def _call(self, scope: Scope) -> tuple[Any, dict[str, Any]]:
        """The program for values, and its arguments; no program where there are sequences."""
        values = {name: scope[name] for name in self.reads}
        if any(isinstance(x, list) for x in values.values()):
            return None, values
        tensors = {n: x for n, x in values.items() if isinstance(x, Tensor)}
        known = {n: x for n, x in values.items() if n not in tensors}
        return self._function(tuple(tensors), known), tensors

    def _function(self, names: tuple[str, ...], known: Mapping[str, Any]) -> Any:
        key = (names, tuple((n, *_fingerprint(x)) for n, x in known.items()))
        if key not in self._compiled:
            if len(self._compiled) >= _MOST_KINDS:
                self._compiled.popitem(last=False)
            self._compiled[key] = genesis.jit(
                lambda *tensors: self._computed({**known, **dict(zip(names, tensors, strict=True))})
            )
        self._compiled.move_to_end(key)
        return self._compiled[key]

    def _computed(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        model = self.model
        scope: Scope | None = None
        for graph in self.graphs:
            scope = Scope({}, model.constants(graph), scope)
        assert scope is not None
        scope.update(values)
        for place, step in enumerate(self.steps):
            try:
                args = [scope[n] if n else None for n in step.inputs]
                results = model.computed(step, args, scope, {})
            except CaptureError:
                raise _NeedsContents(place) from None
            if any(map(_stays_on_host, results)):
                raise _NeedsContents(place)
            scope.update(zip(step.outputs, results, strict=False))
        return tuple([_carried(scope[name]) for name in self.writes])


class Alone:
    """A step that runs by itself; the graphs in it are programs."""

    def __init__(self, model: Model, graphs: Sequence[Graph], step: Step) -> None:
        self.model, self.steps = model, [step]
        # A `Scan` is a loop of a program as it is.
        self._bodies = {
            graph: Program(model, graphs, graph)
            for graph in step.subgraphs()
            if step.kind != "Scan"
        }

    def run(self, scope: Scope) -> None:
        """Compute what the step computes."""
        (step,) = self.steps
        args = [scope[n] if n else None for n in step.inputs]
        found = self.model.computed(step, args, scope, self._bodies or None)
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


def _fingerprint(x: Any) -> tuple[Any, ...]:
    if x is None:
        return (None,)
    contents = tuple(x.flat) if x.dtype == object else x.tobytes()
    return str(x.dtype), x.shape, contents


class Quick(NamedTuple):
    """A model that is one program, for NumPy arrays of forms that are known."""

    inputs: tuple[str, ...]
    run: Any
    order: list[int]  # of outputs among the program's results

    def __call__(self, feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs in the model's order; None if that takes a look at more than pointers."""
        with no_grad():
            results = self.run([feed[n] for n in self.inputs])
        return None if results is None else [results[k] for k in self.order]


class Program:
    """A graph as programs: outputs by name for inputs by name. Around it may lie other graphs."""

    def __init__(
        self, model: Model, around: Sequence[Graph] = (), graph: Graph | None = None
    ) -> None:
        self.model, self.graph = model, graph or model.graph
        self._graphs = (*around, self.graph)
        #: Inputs whose contents decide sizes.
        found = _decisive(self.graph) & set(self.graph.inputs)
        self.decisive = frozenset(n for n in found if _may_decide(self.graph.types.get(n)))
        # The number of a round may be one: what is the same in every round is a program by itself.
        parts = _divided(self.graph, self.decisive) if around else [self.graph.steps]
        self.pieces: list[Piece | Alone] = self._pieces([(part, True) for part in parts])

    def _pieces(self, parts: list[tuple[list[Step], bool]]) -> list[Piece | Alone]:
        wanted, pieces = set(self.graph.outputs), list[Piece | Alone]()
        for steps, together in reversed(parts):
            if together and steps:
                pieces.append(Piece(self.model, self._graphs, steps, wanted))
            elif steps:
                pieces.extend(Alone(self.model, self._graphs, step) for step in reversed(steps))
            wanted = wanted | {name for step in steps for name in reads(step) - {""}}
        return pieces[::-1]

    def quick(self, values: Mapping[str, Any]) -> Quick | None:
        """What computes the outputs of NumPy arrays like these, if that is one program."""
        if len(self.pieces) != 1 or not isinstance(self.pieces[0], Piece):
            return None
        with no_grad():
            found = self.pieces[0].direct(self._scope(values))
        if found is None:
            return None
        inputs, run = found
        order = [self.pieces[0].writes.index(n) for n in self.graph.outputs]
        return Quick(inputs, run, order)

    def _scope(self, values: Mapping[str, Any], outer: Scope | None = None) -> Scope:
        given = {n: as_host(x) if n in self.decisive else x for n, x in values.items()}
        return Scope(given, self.model.constants(self.graph), outer)

    def __call__(self, values: Mapping[str, Any], outer: Scope | None = None) -> list[Any]:
        """The outputs in the graph's order; `outer` are the values of the graphs around."""
        with no_grad():
            scope = self._scope(values, outer)
            place = 0
            while place < len(self.pieces):
                try:
                    self.pieces[place].run(scope)
                    place += 1
                except _NeedsContents as found:
                    self._divide(place, found.place)
                except IndexError as error:  # an index that only the contents show to be wrong
                    raise OperatorError(f"{self.model.path}: {error}".lstrip(": ")) from None
            return [scope[name] if name else None for name in self.graph.outputs]

    def body(self, values: Mapping[str, Any], outer: Scope) -> list[Any]:
        """The outputs of a graph inside of a node: numbers that decide no sizes are data there."""
        given = {n: x if n in self.decisive else _as_data(x) for n, x in values.items()}
        return self(given, outer)

    def _divide(self, place: int, step: int) -> None:
        """From now on have one step of a piece run by itself."""
        parts = [(list(p.steps), isinstance(p, Piece)) for p in self.pieces]
        steps = parts[place][0]
        parts[place : place + 1] = [
            (steps[:step], True), (steps[step : step + 1], False), (steps[step + 1 :], True)
        ]  # fmt: skip
        self.pieces = self._pieces([part for part in parts if part[0]])


def _may_decide(kind: Any) -> bool:
    """Whether an input is kept for programs by its contents: not one of many real numbers."""
    if kind is None or not kind.tensor_type.elem_type:
        return True
    floating = numpy_dtype(kind.tensor_type.elem_type).kind == "f"
    return not floating or len(kind.tensor_type.shape.dim) < 2


def _divided(graph: Graph, decisive: frozenset[str]) -> list[list[Step]]:
    """The steps that do not depend on inputs that decide sizes, and those that do.

    With the latter come those that compute sizes for them: what leaves a program is data.
    """
    late, depends = set[int](), {*decisive}
    for place, step in enumerate(graph.steps):
        if not depends.isdisjoint(reads(step)):
            late.add(place)
            depends.update(step.outputs)
    early = {*graph.outputs}  # names that are read before, or outside
    for place in reversed(range(len(graph.steps))):
        step = graph.steps[place]
        if place not in late and step.host is not None and early.isdisjoint(step.outputs):
            late.add(place)
        if place not in late:
            early |= reads(step)
    parts = ([s for k, s in enumerate(graph.steps) if (k in late) == which] for which in (0, 1))
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
