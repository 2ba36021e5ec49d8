"""From an FX graph to array graphs: every operator replaced by its kernel.

The graph is run once on stand-ins for its inputs. What PyTorch has to compute itself, because there
is no kernel or the kernel does not cover the arguments, divides it into *parts*: a part is all that
can be computed before the next such operator, and becomes one program. Without them, which is the
rule, there is one part.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from genesis.ir.dtype import DType, float64, uint64
from genesis.ir.size import Size, UndecidableSize
from genesis.ndarray.core.device import canonical, on_device
from genesis.ndarray.core.layout import Shape, Strides
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import backend_of
from genesis.ndarray.core.value import Value, recorded_by
from genesis.ndarray.random import Generator
from genesis.ndarray.tracing.storage_recorder import Recorder
from genesis.torch.aten import Unsupported, implementations, name_of
from genesis.torch.aten.creation import with_default_dtype
from genesis.torch.aten.registry import drawing_from
from genesis.torch.compile.sizes import Sizes
from genesis.torch.convert import arguments, as_dtype, from_torch

#: Operators that only tell PyTorch's tracer what to expect.
_REMARKS = frozenset(
    ("aten::sym_constrain_range", "aten::sym_constrain_range_for_size", "aten::_assert_scalar")
)
#: Operators that give a size of their argument, which PyTorch's trace knows.
_SIZES = frozenset(
    ("aten::sym_size.int", "aten::sym_stride.int", "aten::sym_numel", "aten::sym_storage_offset")
)
#: Functions of numbers that arrays without axes have as well.
_ARITHMETIC = frozenset(
    (
        operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
        operator.neg, operator.pow,
    )
)  # fmt: skip
#: Operators that see memory, and so depend on how their argument lies in it.
_BY_MEMORY = frozenset(
    (
        torch.ops.aten.as_strided.default,
        torch.ops.aten.as_strided_copy.default,
        torch.ops.aten.as_strided_scatter.default,
    )
)


class NumberNeeded(Exception):
    """A number that a program computes must be known before what follows can be."""


@dataclass
class TracedPart:
    """What is computed in one go: arrays over stand-ins, then operators left to PyTorch."""

    inputs: dict[Node, Value] = field(default_factory=dict)  #: stand-ins for what it reads
    outputs: dict[Node, NDArray] = field(default_factory=dict)  #: what others need of it
    written: dict[Node, NDArray] = field(default_factory=dict)  #: inputs with their new contents
    foreign: list[Node] = field(default_factory=list)  #: to be run by PyTorch afterwards


class Trace:
    """The parts of a graph. `reasons` says of operators without a kernel why that is so.

    Where `keep` is set, the value of every operator becomes a result of its part. Results that
    share memory in PyTorch's trace share it here, unless they are to be kept `apart`.

    The number that ``item`` gives is an array for what is computed with it. Where something else is
    done with it, `NumberNeeded` is raised unless `numbers` are PyTorch's, which divides the graph.
    """

    def __init__(
        self,
        module: GraphModule,
        sizes: Sizes,
        device: str,
        keep: bool = False,
        apart: bool = False,
        numbers: bool = False,
    ) -> None:
        self.module, self.sizes, self.device = module, sizes, device
        self._divides = numbers
        self._numbers: set[Node] = set()  # what ``item`` gave, and numbers computed of it
        self.parts: list[TracedPart] = []
        self.reasons: dict[str, str] = {}
        self.results: Sequence[Any] = ()
        self.origins: dict[Value, Node] = {}  #: the operator that each value was built for
        self.same: dict[Node, Node] = {}  #: nodes that are an input once it is written
        self.views: set[Node] = set()  #: nodes that are views of the arguments a graph is given
        self.roots: dict[Node, Node] = {}  #: results by the node whose memory they share
        self._apart = apart
        self._place = place_of(device)
        self._brought = brought(module, self._place)
        self.constants: dict[Value, torch.Tensor] = {}  #: what stands for tensors that are known
        self._constants: set[Node] = set()
        self._known: dict[Node, Any] = {}  # what kernels gave: arrays, lists of them, sizes
        self._level: dict[Node, int] = {}  # the part from which on a node is there
        self._recorder = Recorder(())
        with self.recording():
            self.state = stand_in(uint64, (2,), (1,), device)  # of the random generator
            generator = Generator(0, device)
            generator.state = wrap(self.state)
            with drawing_from(generator), on_device(device):
                for node in module.graph.nodes:
                    self._visit(node)
                    if keep and isinstance(self._known.get(node), NDArray):
                        self._keep(node)

    def recording(self) -> AbstractContextManager[None]:
        """Go on building the graph, inside the ``with`` block."""
        return recorded_by(self._recorder)

    # ---- nodes
    def _visit(self, node: Node) -> None:
        if node.op == "placeholder":
            self._level[node] = 0
            value = node.meta.get("val")
            if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
                self._known[node] = self.sizes.dim(value)
        elif node.op == "get_attr":
            self._level[node] = 0
            self._constants.add(node)
            value = getattr(self.module, str(node.target), None)
            if isinstance(value, torch.Tensor):
                with unset_fake_temporarily():  # a constant has contents
                    self._known[node] = self._constant(value)
        elif node.op == "call_function":
            self._call(node)
        elif node.op == "output":
            self.results = node.args[0]  # type: ignore[assignment]
            if not self._numbers.isdisjoint(x for x in self.results if isinstance(x, Node)):
                raise NumberNeeded
            computed = [x for x in self.results if isinstance(x, Node) and viewed(x) is None]
            if not self._apart:
                self.roots = shared(self.module, computed)
            for result in computed:
                self._keep(self.roots.get(result, result))

    def _constant(self, tensor: torch.Tensor) -> NDArray:
        if self.device == "cpu" and tensor.device.type == "cpu":
            return from_torch(tensor)
        held = tensor.detach().cpu().contiguous()
        strides = tuple(held.stride())
        there = stand_in(as_dtype(held.dtype), tuple(held.shape), strides, self.device)
        self.constants[there] = held
        return wrap(there)

    def _call(self, node: Node) -> None:
        level = max((self._level[i] for i in node.all_input_nodes), default=0)
        self._level[node] = level
        value = node.meta.get("val")
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            name = name_of(target)
            if name in _REMARKS:
                return
            if name in _SIZES and isinstance(value, int | torch.SymInt):
                self._known[node] = self.sizes.dim(value)
                return
            if name == "aten::_local_scalar_dense" and not self._divides:
                self._numbers.add(node)
                self._known[node] = self._given(node.args[0], level).reshape(())
                return
            if name == "aten::copy_" and self._writes_input(node):
                return
            if name == "aten::as_strided" and viewed(node) is not None:
                self.views.add(node)  # made when the graph runs: it may show more than its argument
                return
            if self._is_foreign(node):
                end = len(self.parts) if target._schema.is_mutable else 0  # reads come first
                self._leave(node, max(level, end), "it is on another device")
                return
            if name not in implementations or target._schema.is_mutable:
                self._leave(node, level, "there is no kernel for it")
                return
            try:
                self._known[node] = self._computed(node, implementations[name], level)
            except (UndecidableSize, NumberNeeded):
                raise
            except Exception as error:
                # Whatever a kernel trips over, PyTorch computes the operator.
                self._leave(node, level, f"{type(error).__name__}: {error}")
        elif isinstance(value, torch.SymBool):
            pass  # for remarks only
        elif not self._numbers.isdisjoint(node.all_input_nodes):
            self._known[node] = self._number(node, level)
            self._numbers.add(node)
        elif isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            self._known[node] = self.sizes.dim(value)
        elif target is operator.getitem and node.args[0] in self._known:
            self._known[node] = self._known[node.args[0]][node.args[1]]  # type: ignore[index]
        elif isinstance(value, torch.SymFloat):
            self._known[node] = self.sizes.real(value)
        elif isinstance(value, float | bool):
            self._known[node] = value
        else:
            self._leave(node, level, "it is no operator of PyTorch's library")

    def _number(self, node: Node, level: int) -> NDArray:
        """A number that is computed of numbers, as an array."""
        args, _ = arguments(node.args, node.kwargs, lambda x: self._given(x, level))
        if node.target is torch.sym_float:
            return cast(NDArray, args[0]).astype(float64)
        if node.target not in _ARITHMETIC or any(isinstance(x, Size) for x in args):
            raise NumberNeeded
        return cast(NDArray, node.target(*args))

    def _computed(self, node: Node, kernel: Any, level: int) -> Any:
        args, kwargs = arguments(node.args, node.kwargs, lambda x: self._given(x, level))
        if node.target in _BY_MEMORY:
            args[0], named = self._storage(node, level)
            kwargs |= named
        result = with_default_dtype(kernel)(*args, **kwargs)
        expected = node.meta.get("val")
        if isinstance(expected, torch.Tensor):
            return self._checked(node, result, expected)
        return [
            self._checked(node, x, want) if isinstance(want, torch.Tensor) else x
            for x, want in zip(result, expected, strict=True)  # type: ignore[arg-type]
        ]

    def _storage(self, node: Node, level: int) -> tuple[NDArray, dict[str, Any]]:
        """What the strides of an operator are over, and how that lies in memory."""
        source = node.args[0]
        assert isinstance(source, Node)
        base, named = source, dict[str, Any]()
        if node.target is not torch.ops.aten.as_strided_scatter.default:
            base = based(source)  # a view shows the whole memory
            if len(node.args) < 4:
                named["storage_offset"] = self.sizes.dim(source.meta["val"].storage_offset())
        fake = base.meta["val"]
        named["memory"] = self.sizes.shape(fake.stride()), self.sizes.dim(fake.storage_offset())
        return self._given(base, level), named

    def _checked(self, node: Node, array: NDArray | None, expected: torch.Tensor) -> NDArray | None:
        """A kernel's result, which must be what PyTorch foresees."""
        if array is None:
            return None
        shape = self.sizes.shape(expected.shape)
        if array.shape != shape:
            raise Unsupported(f"its kernel gives shape {array.shape}, not {shape}")
        dtype = as_dtype(expected.dtype)
        result = array if array.dtype is dtype else array.astype(dtype)
        self._claim(result.value, node)
        return result

    def _claim(self, value: Value, node: Node) -> None:
        """Note that what a kernel built, down to what was there before, came from `node`."""
        stack = [value]
        while stack:
            v = stack.pop()
            if v.memory is None and v not in self.origins:
                self.origins[v] = node
                stack.extend(v.inputs)

    # ---- devices
    def is_elsewhere(self, node: Node) -> bool:
        """Whether a node's tensor is on another device than programs run on."""
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.device != self._place

    def _is_foreign(self, node: Node) -> bool:
        """Whether an operator works on another device: PyTorch computes it there.

        Numbers on the CPU may be mixed with tensors on a device, and what is copied from there is
        read there. Numbers that are computed of nothing but constants can be computed anywhere.
        """
        tensors = _tensors(node)
        there = [x for x in tensors if x.device != self._place]
        others = [n for n in node.all_input_nodes if self.is_elsewhere(n)]
        if node in self._brought:
            return False
        if not there:
            copied = _is_copy(node)
            return not all(
                copied or n in self._brought or _is_number(n.meta["val"]) for n in others
            )
        constants = all(n in self._constants for n in node.all_input_nodes)
        mutable = node.target._schema.is_mutable  # type: ignore[union-attr]
        if constants and not mutable and len(tensors) == 1 and _is_number(tensors[0]):
            self._constants.add(node)
            return False
        return True

    # ---- parts
    def _part(self, level: int) -> TracedPart:
        while len(self.parts) <= level:
            self.parts.append(TracedPart())
        return self.parts[level]

    def _leave(self, node: Node, level: int, why: str) -> None:
        """Leave a node to PyTorch: what it reads is computed before, what reads it afterwards."""
        if node.target is operator.getitem:  # comes with its source, which PyTorch computes
            self._part(level - 1).foreign.append(node)
            return
        there = _is_copy(node) and any(x.device != self._place for x in _tensors(node))
        # What nobody else may do is nothing to tell.
        if node.target is not torch.ops.higher_order.with_effects and not there:
            self.reasons.setdefault(str(node.target), why)
        if not self._numbers.isdisjoint(node.all_input_nodes):
            raise NumberNeeded
        for source in node.all_input_nodes:
            self._keep(source)
        self._part(level).foreign.append(node)
        self._level[node] = level + 1

    def _keep(self, node: Node) -> None:
        """Make a node's value a result of its part, so that it can be had as a tensor."""
        known = self._known.get(node)
        if isinstance(known, NDArray) and node.op == "call_function":
            self._part(self._level[node]).outputs.setdefault(node, known)
        elif isinstance(known, list):
            raise Unsupported("several results are used as one")

    def _given(self, x: Any, level: int) -> Any:
        """What stands for a node in the part `level`."""
        if not isinstance(x, Node):
            if isinstance(x, torch.SymInt):
                return self.sizes.dim(x)
            if isinstance(x, torch.Generator | torch.device | torch.layout | torch.memory_format):
                return None
            raise Unsupported(f"an argument is a {type(x).__name__}")
        known = self._known.get(x)
        if x in self._known and (not isinstance(known, NDArray) or self._level[x] == level):
            return known
        if isinstance(known, NDArray) and x.op == "get_attr":
            return known
        if x in self._numbers:
            raise NumberNeeded
        self._keep(x)
        inputs = self._part(level).inputs
        if x not in inputs:
            fake = x.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                raise Unsupported(f"an argument is a {type(fake).__name__}")
            inputs[x] = self._stand_in(fake)
        return wrap(inputs[x])

    def _stand_in(self, fake: torch.Tensor) -> Value:
        if fake.layout is not torch.strided:
            raise Unsupported("an argument is no dense tensor")
        shape, strides = self.sizes.shape(fake.shape), self.sizes.shape(fake.stride())
        return stand_in(as_dtype(fake.dtype), shape, strides, self.device)

    def _writes_input(self, node: Node) -> bool:
        """Whether a node copies to an input of the graph; then that is noted.

        These nodes are a graph's last. What reads the input must have done so before.
        """
        target, source = node.args[0], node.args[1]
        if not isinstance(target, Node) or target.op != "placeholder" or self._is_foreign(node):
            return False
        level = max(len(self.parts) - 1, 0)
        if self._part(level).foreign:
            level += 1
        self._level[node] = level
        fake = target.meta["val"]
        new = self._given(source, level).astype(as_dtype(fake.dtype))
        shape = self.sizes.shape(fake.shape)
        part = self._part(level)
        self.same[node] = target
        part.written[target] = new if new.shape == shape else new.broadcast_to(shape)
        if target not in part.inputs:
            part.inputs[target] = self._stand_in(fake)
        return True


def place_of(device: str) -> torch.device:
    """What PyTorch calls a device."""
    kind, _, number = device.partition(":")
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", int(number or 0))


def device_of(module: GraphModule) -> str:
    """The device that the programs of a graph run on: a GPU, if it has tensors on one."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for x in value if isinstance(value, list | tuple) else (value,):
            if isinstance(x, torch.Tensor) and x.device.type == "cuda":
                return gpu_of(x.device)
    return "cpu"


def gpu_of(place: torch.device) -> str:
    """What a GPU is called that PyTorch calls "cuda", whoever made it."""
    return canonical(f"{'hip' if torch.version.hip else 'cuda'}:{place.index or 0}")


def brought(module: GraphModule, place: torch.device) -> set[Node]:
    """Nodes on other devices that programs compute instead: all they are for is to be brought here.

    Such as a table of positions that is made on the CPU and copied. They are computed of constants,
    of numbers and of each other, so nothing large has to come with them.
    """

    def is_suitable(node: Node) -> bool:
        if node.target is operator.getitem:
            return node.args[0] in found
        target = node.target
        return (
            isinstance(target, torch._ops.OpOverload)
            and name_of(target) in implementations
            and not target._schema.is_mutable
            and torch.Tag.nondeterministic_seeded not in target.tags
            and all(x in found or x.op == "get_attr" or is_small(x) for x in node.all_input_nodes)
        )

    def is_small(node: Node) -> bool:
        tensors = _tensors(node)
        return all(_is_number(x) for x in tensors)

    def is_computed(node: Node) -> bool:
        """Whether the program has what a node gives."""
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return node in found
        here = all(x.device == place for x in _tensors(node)) and name_of(target) in implementations
        return node in found or (here and not target._schema.is_mutable)

    found: set[Node] = set()
    for node in module.graph.nodes:
        tensors = _tensors(node)
        apart = bool(tensors) and all(x.device != place for x in tensors)
        if node.op == "call_function" and apart and is_suitable(node):
            found.add(node)
    while lost := {
        n for n in found if not (is_suitable(n) and n.users and all(map(is_computed, n.users)))
    }:
        found -= lost
    return found


def _tensors(node: Node) -> list[torch.Tensor]:
    """What a node gives, as PyTorch's trace has it."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return [x for x in values if isinstance(x, torch.Tensor)]


def _is_copy(node: Node) -> bool:
    """Whether a node does nothing but give a tensor another type or another place."""
    return node.target is torch.ops.aten._to_copy.default


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and not tensor.dim()


def viewed(node: Node) -> Node | None:
    """The argument that a node is a view of, by view operators alone; None if it is computed."""
    base = based(node)
    return base if base.op == "placeholder" else None


def based(node: Node) -> Node:
    """The node whose memory another one has, by view operators alone; maybe itself."""
    while (source := _source(node)) is not None and _elements(node) == _elements(source):
        node = source
    return node


def _source(node: Node) -> Node | None:
    """What a node is a view of, or one of several views of."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
        return None
    source = node.args[0]
    return source if isinstance(source, Node) else None


def shared(module: GraphModule, results: Sequence[Node]) -> dict[Node, Node]:
    """Of computed results that share memory with others, the node that this memory was made by."""
    storages = {node: storage for node in results if (storage := storage_of(node)) is not None}
    counts = Counter(storages.values())
    first: dict[int, Node] = {}
    for node in module.graph.nodes:
        if (storage := storage_of(node)) is not None and storage not in first:
            # Where PyTorch takes two equal nodes for one, the views of either are of that one.
            source = _source(node)
            of_source = None if source is None else storage_of(source)
            first[storage] = node if of_source is None else first.get(of_source, node)
    return {
        node: first[storage]
        for node, storage in storages.items()
        if counts[storage] > 1 and first[storage].op == "call_function"
    }


def storage_of(node: Node) -> int | None:
    """What tells the memory of a node's tensor from others; None if it has none of its own kind."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _elements(node: Node) -> tuple[Any, ...]:
    """How a tensor's memory is to be understood, which views may change, too."""
    fake = node.meta["val"]
    return fake.dtype, fake.is_conj(), fake.is_neg()


def stand_in(dtype: DType, shape: Shape, strides: Strides, device: str) -> Value:
    """A value for memory that is known only when a program runs."""
    nowhere = backend_of(device).foreign(0, 0, None)
    return Value.realised(nowhere, dtype, shape, strides, device, foreign=True)
