"""`Model`: a graph as a module, whose constants are parameters under their names in the file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from genesis import from_numpy, nn
from genesis.ir.dtype import as_dtype
from genesis.ndarray.core.value import CaptureError
from genesis.onnx.dtypes import code_of, is_ours, numpy_dtype
from genesis.onnx.graph import Graph, GraphBuilder, NodeStep, defaults, definition
from genesis.onnx.operators.control_flow import either
from genesis.onnx.values import as_host, as_tensor, on_host
from genesis.tensor.tensor import Tensor

_MOST_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # of a result
_SMALL_STEPS, _SMALL_WEIGHTS = 64, 1 << 18  # of a branch that is computed in any case
_LARGEST_ON_HOST = 64  # elements of integer constants that count as sizes and indices


class ValueScope(dict[str, Any]):
    """Values by name; behind them the constants of a graph, and the values of graphs around it."""

    def __init__(
        self,
        values: Mapping[str, Any],
        constants: Callable[[str], Any],
        outer: ValueScope | None = None,
    ) -> None:
        super().__init__(values)
        self.constants, self.outer = constants, outer

    def __missing__(self, name: str) -> Any:
        found = self.constants(name)
        if found is None and self.outer is not None:
            return self.outer[name]
        if found is None:
            raise KeyError(name)
        return found


#: Programs for the graphs in a step; none of them: what is computed becomes part of a program.
Bodies = Mapping[Graph, Any]


class OperatorError(ValueError):
    """A node that cannot be computed; the text names it."""


class Model(nn.Module):
    """A model from a file: call it with arrays by name or by position, and get a list.

    Constants of floating point that are more than a number are its parameters, other large ones
    its buffers, under their names in the file.
    """

    def __init__(self, graph: Graph, builder: GraphBuilder, path: str = "") -> None:
        super().__init__()
        self.graph, self.path = graph, path
        self._builder = builder
        #: What the file says of itself, where it came from one.
        self.metadata: Any = None
        self.needed = needed_on_host(graph)
        #: The inputs a caller must give, and all that may be given.
        self.inputs = [name for name in graph.inputs if name not in graph.constants]
        self.outputs = list(graph.outputs)
        self._constants: dict[str, Any] = {}
        self._names: dict[Graph, dict[str, str]] = {}  # of constants, by graph
        self._copies: dict[str, int] = {}  # of constants, by name
        for inner in (graph, *(g for step in graph.every_step() for g in step.subgraphs())):
            self._names[inner] = {name: self._entered(name, inner) for name in inner.constants}
        self.eval()

    def _entered(self, local: str, graph: Graph) -> str:
        """Keep a constant of a graph, under its name or one like it that is not taken."""
        name, value = local, graph.constants[local]
        while name in self._constants or name in self._parameters or name in self._buffers:
            self._copies[local] = number = self._copies.get(local, 0) + 1
            name = f"{local}_{number}"
        self._enter(name, value, local in self.needed)
        return name

    def _enter(self, name: str, value: Any, as_it_is: bool) -> None:
        ours = is_ours(value.dtype)
        floating = ours and as_dtype(value.dtype).is_float
        if not ours or as_it_is or value.size <= (1 if floating else _LARGEST_ON_HOST):
            self._constants[name] = value
        elif floating:
            self._parameters[name] = nn.Parameter(as_tensor(value))
        else:
            self._buffers[name] = as_tensor(value)

    def constants(self, graph: Graph) -> Callable[[str], Any]:
        """What gives the constants of a graph by name, and None for other names."""
        if graph not in self._names:  # the definition of an operator
            return graph.constants.get
        names = self._names[graph]
        homes = (self._parameters, self._constants, self._buffers)

        def found(local: str) -> Any:
            name = names.get(local, "")
            return next((home[name] for home in homes if name in home), None)

        return found

    def forward(self, *args: Any, **named: Any) -> list[Any]:
        """The outputs in the file's order, as tensors; texts are arrays of NumPy.

        Inputs are given by position, by name, or as one dictionary.
        """
        whole = len(args) == 1 and isinstance(args[0], Mapping)
        values = self.bound((), {**args[0], **named}) if whole else self.bound(args, named)
        results = self.execute(values)
        return [_given(x) for x in results]

    def bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs by name, checked."""
        values = dict(zip(self.graph.inputs if named else self.inputs, args, strict=False))
        twice = [name for name in values if name in named]
        values.update(named)
        unknown = [name for name in values if name not in self.graph.inputs]
        missing = [name for name in self.inputs if name not in values]
        over = len(args) > len(self.graph.inputs)
        if unknown or missing or twice or over:
            raise ValueError(
                f"{self.path or 'the model'} takes {self.inputs}"
                + (f"; there is no {unknown}" if unknown else "")
                + (f"; {missing} is missing" if missing else "")
                + (f"; {twice} is given twice" if twice else "")
                + (f"; {len(args)} were given" if over else "")
            )
        return {name: self._taken(name, value) for name, value in values.items()}

    def _taken(self, name: str, value: Any) -> Any:
        """An input as a graph uses it; lists are arrays, where it is no sequence."""
        kind = self.graph.types.get(name)
        if isinstance(value, Mapping):
            return _taken_map(value, kind)
        listed = isinstance(value, list | tuple | int | float | str)
        if listed and kind is not None and kind.tensor_type.elem_type:
            value = np.asarray(value, numpy_dtype(kind.tensor_type.elem_type))
        return _taken(value)

    def execute(self, values: Mapping[str, Any]) -> list[Any]:
        """The outputs for values by name."""
        return self.run(self.graph, ValueScope(values, self.constants(self.graph)))

    def run(self, graph: Graph, scope: ValueScope) -> list[Any]:
        """Execute the steps of a graph."""
        for step in graph.steps:
            results = self.computed(step, [scope[n] if n else None for n in step.inputs], scope)
            for name, value in zip(step.outputs, results, strict=False):
                scope[name] = value
            for name in step.last:
                scope.pop(name, None)
        return [scope[name] if name else None for name in graph.outputs]

    def computed(
        self, step: NodeStep, args: list[Any], scope: ValueScope, bodies: Bodies | None = None
    ) -> Any:
        """The results of a step; `bodies` are programs for the graphs in it, where there are."""
        try:
            results = self._computed(step, args, scope, bodies)
        except (OperatorError, MemoryError, RecursionError, CaptureError):
            raise
        except Exception as error:
            raise OperatorError(f"{self.path}: {step}: {error}".lstrip(": ")) from error
        listed = results if isinstance(results, tuple) else (results,)
        if any(step.outputs[len(listed) :]):
            raise OperatorError(
                f"{self.path}: {step} has {len(step.outputs)} outputs; {step.kind} gives "
                f"{len(listed)}".lstrip(": ")
            )
        for x in listed:
            if isinstance(x, Tensor) and _is_too_large(x):
                raise OperatorError(f"{self.path}: {step}: a result of {tuple(x.shape)} elements")
        return listed

    def _computed(
        self, step: NodeStep, args: list[Any], scope: ValueScope, bodies: Bodies | None
    ) -> Any:
        if step.body is not None:
            return tuple(self.run(step.body, self._scope(step.body, args)))
        if step.host is not None and (step.operator is None or all(on_host(a) for a in args)):
            return step.host(*map(as_host, args), **self._options(step, step.host, scope, bodies))
        if step.operator is None:
            return self._defined(step, args)
        given = []
        options = self._options(step, step.operator, scope, bodies)
        for position, value in enumerate(args):
            form = step.operator.form(position)
            try:
                given.append(_FORMS[form or "Tensor"](value))
            except CaptureError:
                if step.kind == "If" and all(map(self._is_small, step.subgraphs())):
                    return either(value, **options)
                raise
        return step.operator.function(*given, **options)

    def _is_small(self, graph: Graph) -> bool:
        """Whether a branch is computed in less time than it takes to know if it is wanted."""
        plain = not any(True for step in graph.steps for _ in step.subgraphs())
        known = graph.constants, self.graph.constants
        weights = (c[n].size for n in graph.free() | {*graph.constants} for c in known if n in c)
        return plain and len(graph.steps) <= _SMALL_STEPS and sum(weights) <= _SMALL_WEIGHTS

    def _options(
        self, step: NodeStep, wanted: Any, scope: ValueScope, bodies: Bodies | None
    ) -> dict[str, Any]:
        plain = step.plain.get(id(wanted))  # one of the table of operators, which stay
        if plain is not None:
            return plain
        options = {
            name: self._body(value, scope, bodies) if isinstance(value, Graph) else value
            for name, value in step.options.items()
        }
        extra = {"outputs": len(step.outputs), "version": step.version}
        known = getattr(wanted, "options", None) or _keywords(wanted)
        options |= {name: value for name, value in extra.items() if name in known}
        if not any(isinstance(value, Graph) for value in step.options.values()):
            step.plain[id(wanted)] = options
        return options

    def _scope(
        self, graph: Graph, args: Iterable[Any], outer: ValueScope | None = None
    ) -> ValueScope:
        return ValueScope(_padded(graph.inputs, args), self.constants(graph), outer)

    def _body(
        self, graph: Graph, scope: ValueScope, bodies: Bodies | None
    ) -> Callable[..., list[Any]]:
        """A subgraph as a function of its inputs."""

        def body(*args: Any) -> list[Any]:
            if bodies:
                found: list[Any] = bodies[graph].body(_padded(graph.inputs, args), scope)
                return found
            return self.run(graph, self._scope(graph, args, scope))

        def known(*args: Any) -> list[Any]:
            return self._known(graph, self._scope(graph, args, scope))

        body.known = known  # type: ignore[attr-defined]
        body.inputs, body.outputs = graph.inputs, graph.outputs  # type: ignore[attr-defined]
        body.steps = len(graph.steps)  # type: ignore[attr-defined]
        body.recorded = bodies is not None and not bodies  # type: ignore[attr-defined]
        return body

    def _known(self, graph: Graph, scope: ValueScope) -> list[Any]:
        """The outputs as far as no contents of tensors are needed, and ``...`` for the others."""
        for step in graph.steps:
            args = [scope[n] if n else None for n in step.inputs]
            of_shape = step.kind in ("Shape", "Size")
            ready = step.host is not None and not any(True for _ in step.subgraphs())
            if not ready or any(x is ... or not (of_shape or on_host(x)) for x in args):
                scope.update(dict.fromkeys(step.outputs, ...))
            else:
                found = self.computed(step, args, scope)
                scope.update(zip(step.outputs, found, strict=False))
        found = [scope[name] if name else None for name in graph.outputs]
        return [x if on_host(x) else ... for x in found]

    def _defined(self, step: NodeStep, args: list[Any]) -> tuple[Any, ...]:
        """The results of an operator that the standard defines by others."""
        types = [_type_proto(a) for a in args]
        function = definition(step, types)
        # Where a node does not name an output, its definition may not have it.
        names = dict(zip(function.output, step.outputs, strict=False))
        body = self._builder.function(
            function, defaults(step), 0, [n for n in function.output if not names.get(n)]
        )
        body.outputs = tuple(n if names.get(n) else "" for n in body.outputs)
        return tuple(self.run(body, self._scope(body, args)))


def _is_too_large(x: Any) -> bool:
    """Whether a result would not fit into the memory of the machine."""
    known = math.prod(n for n in x.shape if isinstance(n, int))
    return bool(known * x.dtype.itemsize > _MOST_BYTES)


def _keywords(function: Any) -> Any:
    return getattr(function, "__kwdefaults__", None) or ()


def _padded(names: Iterable[str], args: Iterable[Any]) -> dict[str, Any]:
    values = list(args)
    return {name: values[k] if k < len(values) else None for k, name in enumerate(names)}


_FORMS: dict[str, Callable[[Any], Any]] = {
    "Host": as_host, "Operand": lambda x: x, "Tensor": as_tensor,
}  # fmt: skip


def _type_proto(x: Any) -> Any:
    from onnx import TypeProto

    if x is None:
        return TypeProto()
    if isinstance(x, list):
        return helper.make_sequence_type_proto(_type_proto(x[0])) if x else TypeProto()
    return helper.make_tensor_type_proto(code_of(x.dtype), [int(n) for n in x.shape])


def _taken(x: Any) -> Any:
    """An input as a graph uses it: a tensor where Genesis has the type."""
    if x is None or isinstance(x, Tensor):
        return x
    if isinstance(x, list):
        return [_taken(item) for item in x]
    array = np.asarray(x)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not is_ours(array.dtype):
        return array
    return from_numpy(array if array.flags.c_contiguous else np.array(array))


def _taken_map(value: Mapping[Any, Any], kind: Any) -> Any:
    """A map with numbers of the type that the model says."""
    held = kind.map_type.value_type.tensor_type.elem_type if kind is not None else 0
    dtype = numpy_dtype(held) if held else np.dtype(object)
    return dict(value) if dtype.kind == "O" else {k: dtype.type(v) for k, v in value.items()}


def _given(x: Any) -> Any:
    """An output as callers get it."""
    if isinstance(x, np.ndarray) and is_ours(x.dtype):
        return as_tensor(x)
    return x


def needed_on_host(graph: Graph) -> set[str]:
    """Names whose values decide sizes, or which operators run: they are not parameters."""
    needed: set[str] = set()
    _collect(graph, needed)
    return needed


def _collect(graph: Graph, needed: set[str]) -> None:
    for step in reversed(graph.steps):
        for inner in step.subgraphs():
            _collect(inner, needed)
        if step.operator is not None:
            for position, name in enumerate(step.inputs):
                if step.operator.form(position) == "Host":
                    needed.add(name)
        if step.host is not None and needed.intersection(step.outputs):
            needed.update(step.inputs)
    needed.discard("")
