"""Graphs of operators: read from a checked model, sorted, and with what computes every node.

A model file is hostile until it has been read: names must be defined once and before their use,
subgraphs and functions may only nest so deep and become only so many nodes, and tensors hold what
their sizes say. Whatever is wrong is a `BadFile`. Operators that are not known are collected over
the whole model, and reported together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs

from genesis.onnx.operators.movement import constant
from genesis.onnx.registry import Implementation, Operator, find, find_on_host
from genesis.onnx.tensors import read_sparse, read_tensor
from genesis.serialization import BadFile

_MOST_STEPS = 1_000_000
_CONSTANTS = set(inspect.signature(constant).parameters)
_DEEPEST = 100  # subgraphs and functions in each other


class UnsupportedModel(NotImplementedError):
    """A model with operators that are not known here; the text names all of them."""


@dataclass(eq=False)
class NodeStep:
    """A node: what computes it, and the names of what goes in and comes out."""

    name: str
    kind: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: dict[str, Any]
    operator: Operator | None
    host: Implementation | None
    #: The node as it was in the file: what an operator's own definition is made from.
    proto: Any = None
    #: The body of a function of the model.
    body: Graph | None = None
    #: Names that no later step reads.
    last: tuple[str, ...] = ()
    #: What is given by name to a function that computes it, where that is the same every time.
    plain: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def subgraphs(self) -> Iterator[Graph]:
        """The graphs among the attributes, and the body of a function."""
        for value in self.options.values():
            if isinstance(value, Graph):
                yield value
        if self.body is not None:
            yield self.body


@dataclass(eq=False)
class Graph:
    """Steps in an order in which each finds what it reads."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: list[NodeStep]
    constants: dict[str, Any]
    #: What the file says of inputs and outputs: element type and sizes, where it says so.
    types: dict[str, Any] = field(default_factory=dict)

    def every_step(self) -> Iterator[NodeStep]:
        """All steps, those of subgraphs included."""
        for step in self.steps:
            yield step
            for inner in step.subgraphs():
                yield from inner.every_step()

    def free(self) -> set[str]:
        """Names that are read here and defined outside."""
        known = {*self.inputs, *self.constants, ""}
        wanted: set[str] = set()
        for step in self.steps:
            wanted |= {*step.inputs} - known
            for value in step.options.values():
                if isinstance(value, Graph):
                    wanted |= value.free() - known
            known |= {*step.outputs}
        return wanted | ({*self.outputs} - known)


class GraphBuilder:
    """Makes a `Graph` of a model's protobuf messages, and counts while it does."""

    def __init__(self, model: Any, path: str, external: Callable[[Any], Any]) -> None:
        self.path, self.external = path, external
        self.versions = {_domain(o.domain): o.version for o in model.opset_import}
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.unknown: list[str] = []
        self._sizes: dict[Any, int] = {}  # of functions: the nodes that a call becomes
        self._require_bounded(model.graph.node)

    def fail(self, text: str) -> BadFile:
        """The exception for a model that is not one."""
        return BadFile(f"onnx.load: {self.path}: {text}")

    def _require_bounded(self, nodes: Any) -> None:
        """Refuse functions that call themselves, or each other more often than there is room."""
        if self._count(nodes, 0) > _MOST_STEPS:
            raise self.fail(f"it becomes more than {_MOST_STEPS} nodes")

    def _count(self, nodes: Any, depth: int) -> int:
        if depth > _DEEPEST:
            raise self.fail(f"functions or subgraphs are nested more than {_DEEPEST} deep")
        total = len(nodes)
        for node in nodes:
            key = (_domain(node.domain), node.op_type, node.overload)
            if key in self.functions:
                if key not in self._sizes:
                    self._sizes[key] = self._count(self.functions[key].node, depth + 1)
                total += self._sizes[key]
            for a in node.attribute:
                graphs = [a.g] if a.type == AttributeProto.GRAPH else a.graphs
                total += sum(self._count(g.node, depth + 1) for g in graphs)
        return total

    def graph(self, proto: Any, outer: frozenset[str] = frozenset(), depth: int = 0) -> Graph:
        """The graph of a GraphProto that may read names of the graphs around it."""
        if depth > _DEEPEST:
            raise self.fail(f"subgraphs are nested more than {_DEEPEST} deep")
        constants = {t.name: self.tensor(t) for t in proto.initializer}
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = self.read(read_sparse, sparse)
        inputs = tuple(i.name for i in proto.input)
        outputs = tuple(o.name for o in proto.output)
        nodes = self._without_constants(proto.node, constants, {*inputs})
        steps = self.steps(nodes, {*inputs, *constants}, outer, self.versions, {}, depth)
        types = {v.name: v.type for v in (*proto.input, *proto.output)}
        graph = Graph(proto.name, inputs, outputs, steps, constants, types)
        self._check_outputs(graph, outer)
        return graph

    def _without_constants(self, nodes: Any, constants: dict[str, Any], known: set[str]) -> Any:
        """The nodes that compute something; what others hold goes to `constants`."""
        rest = []
        for node in nodes:
            plain = node.op_type == "Constant" and not node.domain and len(node.output) == 1
            if plain and not any(a.ref_attr_name for a in node.attribute):
                if node.output[0] in constants or node.output[0] in known:
                    raise self.fail(f"{node.output[0]!r} is defined twice (node {node.name!r})")
                options = self.options(node, frozenset(), {}, 0)
                value = constant(**options) if options.keys() <= _CONSTANTS else None
                if not isinstance(value, np.ndarray):
                    raise self.fail(f"the constant {node.output[0]!r} has no value")
                constants[node.output[0]] = value
            else:
                rest.append(node)
        return rest

    def function(
        self, proto: Any, given: Mapping[str, Any], depth: int, outputs_left: Sequence[str] = ()
    ) -> Graph:
        """The graph of a FunctionProto, called with these attributes.

        `outputs_left` need not be computed.
        """
        versions = {_domain(o.domain): o.version for o in proto.opset_import}
        attributes = {a.name: a for a in proto.attribute_proto} | dict(given)
        inputs = tuple(proto.input)
        constants: dict[str, Any] = {}
        nodes = self._without_constants(proto.node, constants, {*inputs})
        known = {*inputs, *constants}
        steps = self.steps(nodes, known, frozenset(), versions, attributes, depth + 1)
        graph = Graph(proto.name, inputs, tuple(proto.output), steps, constants)
        self._check_outputs(graph, frozenset(outputs_left))
        return graph

    def _check_outputs(self, graph: Graph, outer: frozenset[str]) -> None:
        made = {*graph.inputs, *graph.constants, *outer}
        made.update(o for step in graph.steps for o in step.outputs)
        for name in graph.outputs:
            if name not in made:
                raise self.fail(f"the output {name!r} of graph {graph.name!r} is never computed")
        note_last_uses(graph)

    def tensor(self, proto: Any) -> Any:
        """A TensorProto's contents."""
        return self.read(read_tensor, proto, self.external)

    def read(self, reader: Callable[..., Any], proto: Any, *more: Any) -> Any:
        """What a reader makes of a message; what it cannot read is said with the file's name."""
        try:
            return reader(proto, *more)
        except OSError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, IndexError) as error:
            name = getattr(proto, "name", "")
            raise self.fail(f"the tensor {name!r} cannot be read: {error}") from None

    def steps(
        self,
        nodes: Any,
        known: set[str],
        outer: frozenset[str],
        versions: Mapping[str, int],
        given: Mapping[str, Any],
        depth: int,
    ) -> list[NodeStep]:
        """The nodes in an order in which they can be executed."""
        made = self._defined(nodes, known)
        seen = outer | known | made
        steps = [self.step(n, k, seen, versions, given, depth) for k, n in enumerate(nodes)]
        return self._sorted(steps, outer | known, seen)

    def _defined(self, nodes: Any, known: set[str]) -> set[str]:
        made: set[str] = set()
        for node in nodes:
            for name in (*node.input, *node.output):
                if not isinstance(name, str):  # bytes that are no text
                    raise self.fail(f"node {node.name!r} has an input or output named {name!r}")
            for name in node.output:
                if name and (name in made or name in known):
                    raise self.fail(f"{name!r} is defined twice (node {node.name!r})")
                made.add(name)
        return made

    def _sorted(
        self, steps: list[NodeStep], known: frozenset[str], seen: frozenset[str]
    ) -> list[NodeStep]:
        """Steps so that each comes after what it reads; those that are in order stay so."""
        readers: dict[str, list[int]] = {}
        missing = []
        for position, step in enumerate(steps):
            wanted = reads(step) - known - {""}
            for name in wanted - seen:
                raise self.fail(
                    f"node {step.name!r} ({step.kind}) reads {name!r}, which is nowhere"
                )
            for name in wanted:
                readers.setdefault(name, []).append(position)
            missing.append(len(wanted))
        ready = [position for position, count in enumerate(missing) if not count]
        done: list[NodeStep] = []
        while ready:
            step = steps[heappop(ready)]
            done.append(step)
            for position in (r for name in step.outputs for r in readers.get(name, ())):
                missing[position] -= 1
                if not missing[position]:
                    heappush(ready, position)
        if len(done) < len(steps):
            step = steps[next(position for position, count in enumerate(missing) if count)]
            raise self.fail(f"node {step.name!r} ({step.kind}) is part of a cycle")
        return done

    def step(
        self,
        node: Any,
        position: int,
        seen: frozenset[str],
        versions: Mapping[str, int],
        given: Mapping[str, Any],
        depth: int,
    ) -> NodeStep:
        """A node with what computes it."""
        domain = _domain(node.domain)
        name = node.name or (node.output[0] if node.output else f"{node.op_type}_{position}")
        version = versions.get(domain, 1)
        options = self.options(node, seen, given, depth)
        inputs = tuple(node.input)
        step = NodeStep(
            name, node.op_type, domain, version, _without_trailing(inputs), tuple(node.output),
            options, find(domain, node.op_type, version), find_on_host(domain, node.op_type), node,
        )  # fmt: skip
        self._check_step(step, depth)
        return step

    def _check_step(self, step: NodeStep, depth: int) -> None:
        key = (step.domain, step.kind, step.proto.overload)
        if key in self.functions:
            step.operator = step.host = None
            step.body = self.call(self.functions[key], step.proto, depth)
        elif step.operator is None and step.host is None:
            if not has_definition(step):
                where = f"{step.domain}." if step.domain else ""
                self.unknown.append(f"{where}{step.kind} version {step.version} ({step.name})")
        elif step.operator is not None:
            self._check_arguments(step, step.operator)

    def _check_arguments(self, step: NodeStep, operator: Operator) -> None:
        if operator.more is None and len(step.inputs) > len(operator.inputs):
            raise self.fail(
                f"node {step.name!r}: {step.kind} has {len(step.inputs)} inputs, but takes "
                f"{len(operator.inputs)}"
            )
        for k, (name, _) in enumerate(operator.inputs[: operator.required]):
            if not "".join(step.inputs[k : k + 1]) and name not in step.options:
                raise self.fail(f"node {step.name!r}: {step.kind} needs its input {k}, {name!r}")
        for name in step.options:
            if operator.options is not None and name not in operator.options:
                self.unknown.append(f"{step.kind} with attribute {name} ({step.name})")

    def call(self, proto: Any, node: Any, depth: int) -> Graph:
        """The body of a function of the model, for one node that calls it."""
        return self.function(proto, {a.name: a for a in node.attribute}, depth)

    def options(
        self, node: Any, seen: frozenset[str], given: Mapping[str, Any], depth: int
    ) -> dict[str, Any]:
        """The attributes of a node by name; those of a function's caller where it says so."""
        options: dict[str, Any] = {}
        for a in node.attribute:
            if a.ref_attr_name:
                if a.ref_attr_name in given:
                    options[a.name] = self.attribute(given[a.ref_attr_name], seen, depth)
            else:
                options[a.name] = self.attribute(a, seen, depth)
        return options

    def attribute(self, a: Any, seen: frozenset[str], depth: int) -> Any:
        """An attribute's value."""
        kinds = AttributeProto
        if a.type == kinds.TENSOR:
            return self.tensor(a.t)
        if a.type == kinds.GRAPH:
            return self.graph(a.g, seen, depth + 1)
        if a.type == kinds.SPARSE_TENSOR:
            return self.read(read_sparse, a.sparse_tensor)
        if a.type == kinds.TENSORS:
            return [self.tensor(t) for t in a.tensors]
        if a.type in (kinds.STRING, kinds.STRINGS):
            texts = [_text(s) for s in ([a.s] if a.type == kinds.STRING else a.strings)]
            return texts[0] if a.type == kinds.STRING else texts
        plain = {kinds.FLOAT: "f", kinds.INT: "i", kinds.TYPE_PROTO: "tp"}
        if a.type in plain:
            return getattr(a, plain[a.type])
        lists = {kinds.FLOATS: "floats", kinds.INTS: "ints", kinds.TYPE_PROTOS: "type_protos"}
        if a.type in lists:
            return list(getattr(a, lists[a.type]))
        raise self.fail(f"the attribute {a.name!r} has no kind that is known ({a.type})")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _without_trailing(names: tuple[str, ...]) -> tuple[str, ...]:
    """The inputs up to the last that is given."""
    while names and not names[-1]:
        names = names[:-1]
    return names


def reads(step: NodeStep) -> set[str]:
    """The names that a step and its subgraphs read."""
    wanted = {*step.inputs}
    for value in step.options.values():
        if isinstance(value, Graph):
            wanted |= value.free()
    return wanted


def note_last_uses(graph: Graph) -> None:
    """Say for every step which values can be let go after it."""
    needed = {*graph.outputs}
    for step in reversed(graph.steps):
        named = reads(step) | {*step.outputs}
        step.last = tuple(sorted(named - needed - {""}))
        needed |= named


# ---- operators that are defined by others


def has_definition(step: NodeStep) -> bool:
    """Whether the standard defines an operator by others."""
    schema = _schema(step)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _schema(step: NodeStep) -> Any:
    try:
        return defs.get_schema(step.kind, step.version, step.domain)
    except (defs.SchemaError, TypeError):  # a version that is no number of 32 bits, say
        return None


def definition(step: NodeStep, types: list[Any]) -> Any:
    """The function that the standard defines an operator by, for inputs of these types."""
    schema = _schema(step)
    if schema.has_function:
        return schema.function_body
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= step.version]
    chosen = max(versions, default=schema.context_dependent_function_opset_versions[0])
    encoded = [t.SerializeToString() for t in types]
    made = schema.get_context_dependent_function_with_opset_version(
        chosen, step.proto.SerializeToString(), encoded
    )
    function = onnx.FunctionProto()
    function.ParseFromString(made)
    return function


def defaults(step: NodeStep) -> dict[str, Any]:
    """The attributes that a definition may refer to: the node's, and the standard's defaults."""
    schema = _schema(step)
    given = {a.name: a for a in step.proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            given[name] = attribute.default_value
    return given


__all__ = [
    "GraphBuilder",
    "Graph",
    "NodeStep",
    "UnsupportedModel",
    "defaults",
    "definition",
    "reads",
]
