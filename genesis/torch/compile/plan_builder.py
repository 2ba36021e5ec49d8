"""From a traced graph to a plan: the programs are compiled, and everything gets its number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from genesis.ir.dtype import uint8
from genesis.ir.node import Node as GraphNode
from genesis.ir.node import topological
from genesis.ir.size import Size, evaluate
from genesis.ndarray.core.index_checks import checks_in, reports
from genesis.ndarray.core.layout import is_row_major, row_major
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.realisation import backend_of, compiled
from genesis.ndarray.core.value import Value
from genesis.ndarray.tracing.storage_recorder import interned
from genesis.torch.compile import executable_plan as plans
from genesis.torch.compile.sizes import Sizes, number, symbol_name
from genesis.torch.compile.trace import NumberNeeded, Trace, TracedPart, viewed
from genesis.torch.convert import TORCH_DTYPES

Origins = dict[GraphNode, Node]


class PlanBuilder:
    """The plan of a graph, and of each program where the nodes of its graph came from."""

    def __init__(
        self,
        module: GraphModule,
        sizes: Sizes,
        device: str,
        keep: bool = False,
        apart: bool = False,
    ) -> None:
        try:
            trace = Trace(module, sizes, device, keep, apart)
        except NumberNeeded:
            trace = Trace(module, sizes, device, keep, apart, numbers=True)
        self._trace = trace
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.numbers: dict[Node, int] = {n: k for k, n in enumerate(placeholders)}
        self.origins: list[Origins] = []
        parts = [self._part(part) for part in trace.parts]
        results = [self._result(x) for x in trace.results]
        self.plan = plans.ExecutablePlan(device, len(self.numbers), parts, results, trace.reasons)

    def _number(self, node: Node) -> int:
        return self.numbers.setdefault(node, len(self.numbers))

    def _part(self, part: TracedPart) -> plans.PartPlan:
        trace = self._trace
        with trace.recording():
            arranged = [self._arranged(node, x) for node, x in part.outputs.items()]
            new = [x.value for x in part.written.values()]
            found = [x for _, x in arranged] + new
            checks = checks_in(topological(found))
            worst, words = reports(checks)
            values = [*found, *(dict.fromkeys(worst) if words else worst)]
        plan = plans.PartPlan(None)
        order = topological(values)
        views = [node for node in part.inputs if node in trace.views]
        plan.seen = [self._view(node) for node in views]
        places = {v: self._number(node) for node, v in part.inputs.items()}
        marked = {v for node, v in part.inputs.items() if _may_be_marked(node)}
        elsewhere = {v for node, v in part.inputs.items() if trace.is_elsewhere(node)}
        slots = {v: k for k, v in enumerate(v for v in order if v.memory is not None)}
        for v, slot in slots.items():
            if v is trace.state:
                plan.random = slot
            elif v in words:
                pass
            elif v in places:
                how = tuple(v.strides), v in marked, v in elsewhere
                plan.reads.append(plans.InputRead(slot, places[v], *how))
            else:
                held = trace.constants.get(v)
                plan.constants.append(plans.Constant(slot, _bytes(v) if held is None else held))
        nodes, plan.scalars = interned(order, slots, {})
        self.origins.append({nodes[v]: n for v, n in trace.origins.items() if v in nodes})
        targets = {node: part.inputs[node] for node in part.written}
        # What is also read through a view, or marked, is not written where it lies.
        copied = marked | {part.inputs.get(base) for node in views if (base := viewed(node))}
        donated = frozenset(
            slots[v]
            for v in targets.values()
            if v in slots and v not in copied and is_row_major(v.shape, v.strides)
        ) | frozenset(slots[v] for v in words)
        # Without elements there is nothing to compute, and nothing to pass to a kernel.
        plan.computed = [k for k, v in enumerate(values) if 0 not in v.shape]
        roots = tuple(nodes[values[k]] for k in plan.computed)
        if roots:
            program = compiled(roots, donated, trace.device).program
            plan.named = plans.Named.of(program, trace.device)
        plan.made = [made for made, _ in arranged]
        plan.written = [plans.Written(self._number(n), slots.get(v)) for n, v in targets.items()]
        told = [plans.Check(c.name, c.extent, c.axis) for c in checks]
        if words:
            reported: dict[Value, list[plans.Check]] = {}
            for v, check in zip(worst, told, strict=True):
                reported.setdefault(v, []).append(check)
            plan.words = [
                plans.Reported(slots[word], tuple(found))
                for word, found in zip(words, reported.values(), strict=True)
            ]
        else:
            plan.checks = told
        plan.foreign = [self._foreign(node) for node in part.foreign]
        return plan

    def _arranged(self, node: Node, array: NDArray) -> tuple[plans.Made, Value]:
        """A result in the order of axes in which its tensor's elements lie in memory."""
        sizes = self._trace.sizes
        fake = node.meta["val"]
        shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
        register, dtype = self._number(node), TORCH_DTYPES[array.dtype]
        if 0 in shape:
            return plans.Made(register, dtype, shape, strides), array.value
        if self._trace.is_elsewhere(node):
            plain = (register, dtype, shape, row_major(shape))
            return plans.Made(*plain, "moved", shape, strides), array.value
        axes = range(len(shape))
        order = sorted(axes, key=lambda d: _hint(fake.stride(d)), reverse=True)
        repeated = {d for d in axes if strides[d] == 0 and shape[d] != 1}
        expected: Any = 1
        for d in reversed(order):
            if d not in repeated and shape[d] != 1:
                if strides[d] != expected:
                    plain = (register, dtype, shape, row_major(shape))
                    return plans.Made(*plain, "copied", shape, strides), array.value
                expected = expected * shape[d]
        if repeated:  # one of the elements that are the same is computed
            array = array[tuple(slice(0, 1) if d in repeated else slice(None) for d in axes)]
        if order != list(axes):
            array = array.permute(*order)
        size = tuple(1 if d in repeated else s for d, s in enumerate(shape))
        stride = tuple(1 if d in repeated else s for d, s in enumerate(strides))
        becomes = "seen" if repeated else "same"
        return plans.Made(register, dtype, size, stride, becomes, shape, strides), array.value

    # ---- results
    def _result(self, x: Any) -> plans.Result:
        """How a result of the graph is found once all parts have run."""
        if not isinstance(x, Node):
            return plans.KnownResult(x)
        value = x.meta.get("val")
        if isinstance(value, torch.SymInt):
            return plans.KnownResult(self._trace.sizes.dim(value))
        root = self._trace.roots.get(x, x)
        return self._seen(self._trace.same.get(x, x)) if root is x else self._shared(root, x)

    def _seen(self, node: Node) -> plans.Result:
        base = viewed(node)
        if base is None or base is node:
            return plans.Register(self.numbers[node])
        sizes = self._trace.sizes
        fake, original = node.meta["val"], base.meta["val"]
        offset = sizes.dim(fake.storage_offset()) - sizes.dim(original.storage_offset())
        strides = sizes.shape(fake.stride())
        return plans.ArgumentView(self.numbers[base], sizes.shape(fake.shape), strides, offset)

    def _shared(self, root: Node, node: Node) -> plans.SharedResult:
        sizes, fake, made = self._trace.sizes, node.meta["val"], root.meta["val"]
        shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
        ahead = sizes.dim(made.storage_offset()) * made.itemsize // fake.itemsize
        offset = sizes.dim(fake.storage_offset()) - ahead  # what is made begins its memory
        kind = fake.dtype, fake.is_conj(), fake.is_neg()
        return plans.SharedResult(self.numbers[root], shape, strides, offset, *kind)

    def _view(self, node: Node) -> tuple[int, plans.ArgumentView]:
        """A view of an argument that a program reads."""
        view = self._seen(node)
        assert isinstance(view, plans.ArgumentView)
        return self._number(node), view

    # ---- what PyTorch computes
    def _foreign(self, node: Node) -> plans.Foreign:
        module, numbers = self._trace.module, self.numbers
        register = self._number(node)
        given: dict[Node, Any] = {}  # what is not in a register
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                given[source] = plans.KnownResult(getattr(module, str(source.target)))
            elif isinstance(source.meta.get("val"), torch.SymInt) and source not in numbers:
                given[source] = source.meta["val"]
            elif source not in numbers:
                given[source] = self._seen(source)
        target: Any = node.target
        value = node.meta.get("val")

        def run(registers: list[Any], sizes: dict[str, int]) -> Any:
            def argument(n: Node) -> Any:
                known = given.get(n)
                if known is None:
                    return registers[numbers[n]]
                if isinstance(known, torch.SymInt):
                    return number(known, sizes)
                return found(known, registers, sizes)

            args, kwargs = map_arg((node.args, node.kwargs), argument)
            result = target(*args, **kwargs)
            for name, axis in _told(value):
                sizes[name] = int(result if axis is None else result.shape[axis])
            return result

        return plans.Foreign(register, run)


def found(result: plans.Result, registers: list[Any], sizes: Mapping[str, int]) -> Any:
    """A result, once everything has been computed."""
    if isinstance(result, plans.Register):
        return registers[result.register]
    if isinstance(result, plans.KnownResult):
        value = result.value
        return value.value(sizes) if isinstance(value, Size) else value
    tensor = registers[result.register]
    shape = [evaluate(d, sizes) for d in result.shape]
    strides = [evaluate(d, sizes) for d in result.strides]
    offset = evaluate(result.offset, sizes)
    if isinstance(result, plans.ArgumentView):
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)
    with torch.enable_grad():  # else the view could not be written where gradients are recorded
        return _kind_of(result, tensor).as_strided(shape, strides, offset)


def _kind_of(result: plans.SharedResult, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory has the kind of elements that a result has."""
    if tensor.dtype != result.dtype:
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        tensor = tensor.as_strided((count,), (1,), 0)
        if tensor.is_complex() and not result.dtype.is_complex:
            tensor = torch.view_as_real(tensor).view(-1)
        tensor = tensor.view(result.dtype)
    if result.conjugate:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if result.negative else tensor


def sources(module: GraphModule) -> list[plans.SizeSource]:
    """Where the value of every symbol in a graph's arguments can be read."""
    found: dict[str, plans.SizeSource] = {}
    placeholders = (n for n in module.graph.nodes if n.op == "placeholder")
    for register, node in enumerate(placeholders):
        for name, axis in _told(node.meta.get("val")):
            found.setdefault(name, plans.SizeSource(name, register, axis))
    return list(found.values())


def alike(module: GraphModule) -> dict[str, str]:
    """Symbols in a graph's arguments that have the value of another as the graph is traced."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        extents: Iterable[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
        for extent in extents:
            name = symbol_name(extent)
            if name is not None and extent.node.hint is not None:
                known = first.setdefault(int(extent.node.hint), name)
                if known != name:
                    found[name] = known
    return found


def _told(value: Any) -> Iterable[tuple[str, int | None]]:
    """The symbols whose values an integer or the axes of a tensor tell."""
    if (name := symbol_name(value)) is not None:
        yield name, None
    elif isinstance(value, torch.Tensor):
        for axis, extent in enumerate(value.shape):
            if (name := symbol_name(extent)) is not None:
                yield name, axis


def _may_be_marked(node: Node) -> bool:
    """Whether a tensor may come marked as conjugate or negative, which real arguments are not.

    Gradients are: nothing guards them.
    """
    fake = node.meta["val"]
    given = node.op == "placeholder" and "tangents" not in str(node.target)
    return not given or fake.is_complex() or fake.is_neg()


def _hint(stride: Any) -> int:
    """A stride as a number, for ordering axes; one that only data decides is a great one."""
    if isinstance(stride, int):
        return stride
    hint = stride.node.hint
    return 1 << 62 if hint is None else int(hint)


def _bytes(value: Value) -> torch.Tensor:
    """The memory of a realised value, on the CPU."""
    memory = value.memory
    assert memory is not None
    held = backend_of(value.device).download(memory, uint8, (memory.nbytes,)).tobytes()
    with unset_fake_temporarily():  # PyTorch may be tracing, but a constant has contents
        return torch.frombuffer(bytearray(held), dtype=torch.uint8) if held else torch.empty(0)
