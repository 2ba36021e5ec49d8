"""Inductor's fused loops, printed as functions of arrays.

A node of Inductor's schedule is a loop: axes that it runs over, axes that it reduces over, and a
body of loads, operations and stores, whose addresses are expressions of the axes. It is printed
with arrays of the rank of all axes in place of elements:

    def kernel(ops, in_ptr0, out_ptr0):
        axes = ops.axes((64,), (128,))
        tmp0 = ops.load(in_ptr0, axes, (128, 1), 0)
        tmp1 = ops.exp(tmp0)
        tmp2 = ops.reduction('sum', tmp1, axes, torch.float32)
        ops.store(out_ptr0, tmp2, axes.after, (1, 0), 0, None)

Nodes need not agree about their axes to share a kernel: what they pass to each other is memory,
which the next one sees by its own addresses, and Genesis fuses the graph that results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import BackendFeature, Kernel, PythonPrinter, RemovedArg
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    BaseScheduling,
    FusedSchedulerNode,
    SchedulerNode,
)
from torch._inductor.utils import (
    IndentedBuffer,
    get_kernel_metadata,
    sympy_index_symbol,
    sympy_product,
)
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.symbol import SymT, symbol_is_type

_as_strided = torch.ops.aten.as_strided.default
_SIZES = (SymT.SIZE, SymT.UNBACKED_INT, SymT.PRECOMPUTED_SIZE)


class _Printer(PythonPrinter):
    """Expressions of axes, which are arrays."""

    def _print_Max(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"ops.greatest({', '.join(map(self._print, expr.args))})"

    def _print_Min(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"ops.least({', '.join(map(self._print, expr.args))})"

    def _print_Where(self, expr: sympy.Expr) -> str:  # noqa: N802 - sympy's name
        return f"ops.where({', '.join(map(self._print, expr.args))})"


_print = _Printer().doprint


class _BodyPrinter(DefaultHandler):
    """Prints the operations of a loop's body, a line each; names of variables stand for values."""

    def __init__(self, kernel: GenesisKernel) -> None:
        self._kernel = kernel
        self._numbers: dict[str, Any] = {}  # variables that are constants
        self._masks: list[str] = []  # outside of which nothing is taken

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        given = [*map(_shown, args), *(f"{key}={_shown(x)}" for key, x in kwargs.items())]
        return self._kernel.assign(f"ops.{name}({', '.join(given)})")

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        name = self._kernel.assign(f"ops.constant({_shown(value)}, {dtype})")
        self._numbers[name] = value
        return name

    def polygamma(self, x: str, y: str) -> str:
        # Which of the functions it is has to be known when the kernel is compiled.
        return self._default("polygamma", (int(self._numbers.get(x, 0)), y), {})

    def load(self, name: str, index: sympy.Expr) -> Any:
        return self._kernel.load(name, index)

    def load_seed(self, name: str, offset: Any) -> Any:
        return self._kernel.load(name, sympy.Integer(offset))

    def store(self, name: str, index: sympy.Expr, value: str, mode: str | None = None) -> None:
        self._kernel.store(name, index, value, mode)

    def store_reduction(self, name: str, index: sympy.Expr, value: str) -> None:
        self._kernel.store(name, index, value, axes="axes.after")

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        return self._kernel.reduction(dtype, src_dtype, kind, value)

    def masked(self, mask: str, body: Callable[[], str], other: Any) -> str:
        # An element that is not there is loaded from the nearest that is, and not taken.
        self._masks.append(mask)
        value = body()
        self._masks.pop()
        return self._kernel.assign(f"ops.masked({mask}, {value}, {_shown(other)})")

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        return self._kernel.assign(f"ops.index({self._kernel.shown(expr)}, {dtype})")

    value_expr = index_expr

    def indirect_indexing(
        self, var: str, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Symbol:
        extent = self._kernel.shown(sympy.sympify(size))
        found = self._kernel.assign(f"ops.position({var}, {extent}, {check}, {wrap_neg})")
        return sympy_index_symbol(found)

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        mask = " & ".join(self._masks) or None
        given = f"{self._kernel.shown(expr)}, {self._kernel.shown(size)}, {mask}"
        self._kernel.compute.writeline(f"ops.require({given})")

    def frexp(self, x: str) -> tuple[str, str]:
        pair = self._kernel.assign(f"ops.frexp({x})")
        return f"{pair}[0]", f"{pair}[1]"


def _shown(x: Any) -> str:
    """An argument of an operation as text."""
    if isinstance(x, float) and x != x:
        return "float('nan')"
    if isinstance(x, float) and x in (float("inf"), float("-inf")):
        return f"float('{x}')"
    if isinstance(x, sympy.Expr):
        return str(_print(x))
    return str(x)


class GenesisKernel(Kernel[Any]):
    """Loops that Inductor has fused, as the text of one function."""

    overrides = None

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._axes: list[sympy.Symbol] = []
        self._used: set[sympy.Symbol] = set()  # axes that addresses or values are computed of
        self._sizes: dict[sympy.Symbol, str] = {}
        self._written: dict[str, str] = {}  # arguments of buffers that are written, by real name

    def __enter__(self) -> GenesisKernel:
        self.exit_stack.__enter__()
        self.exit_stack.enter_context(V.set_ops_handler(_BodyPrinter(self)))
        self.exit_stack.enter_context(V.set_kernel_handler(self))
        return self

    # ---- lines
    def assign(self, expression: str) -> str:
        """A variable for the value of an expression."""
        name = f"tmp{self._count}"
        self._count += 1
        self.compute.writeline(f"{name} = {expression}")
        return name

    def shown(self, expr: sympy.Expr) -> str:
        """An expression of axes, sizes and variables as text."""
        expr = V.graph.sizevars.simplify(expr)
        self._used |= expr.free_symbols & set(self._axes)
        sizes = {s: sympy.Symbol(self._size(s)) for s in expr.free_symbols if _is_size(s)}
        return str(_print(expr.xreplace(sizes)))

    def _size(self, symbol: sympy.Symbol) -> str:
        return self._sizes.setdefault(symbol, str(self.args.size(symbol)))

    def _tuple(self, exprs: Sequence[sympy.Expr]) -> str:
        return "(" + "".join(f"{self.shown(e)}, " for e in exprs) + ")"

    # ---- nodes
    def codegen_body(self, node: SchedulerNode) -> None:
        """Print the loop of a node."""
        iterated, reduced = node.get_ranges()
        axes = [sympy_index_symbol(f"x{k}") for k in range(len(iterated) + len(reduced))]
        self._axes, self._used = axes, set()
        self.compute.writeline(f"axes = ops.axes({self._tuple(iterated)}, {self._tuple(reduced)})")
        start = len(self.compute._lines)
        with self.set_current_node(node):
            node._body(axes[: len(iterated)], axes[len(iterated) :])
        lines = [f"{x} = ops.axis(axes, {k})" for k, x in enumerate(axes) if x in self._used]
        self.compute._lines[start:start] = lines

    def load(self, name: str, index: sympy.Expr) -> Any:
        """What lies at an address."""
        argument = self._written.get(_real(name)) or self.args.input(name)
        return self.assign(f"ops.load({argument}, axes, {self._address(index)})")

    def store(
        self,
        name: str,
        index: sympy.Expr,
        value: Any,
        mode: str | None = None,
        axes: str = "axes",
    ) -> None:
        """Put a value at an address; "atomic_add" adds it to what is there."""
        self.store_buffer_names.add(name)
        argument = self._written.setdefault(_real(name), self.args.output(name))
        address = self._address(index)
        self.compute.writeline(f"ops.store({argument}, {value}, {axes}, {address}, {mode!r})")

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: Any, value: Any) -> Any:
        """The reduction of a value over the axes that the node reduces."""
        shown = f"({', '.join(value)})" if isinstance(value, tuple) else value
        found = self.assign(f"ops.reduction({kind!r}, {shown}, axes, {dtype})")
        count = {"welford_reduce": 3, "welford_combine": 3, "online_softmax_reduce": 2}.get(kind)
        return tuple(f"{found}[{k}]" for k in range(count)) if count else found

    def _address(self, index: sympy.Expr) -> str:
        """An address as strides of the axes and an offset, or else as an expression of them."""
        index = sympy.expand(V.graph.sizevars.simplify(index))
        strides = [index.coeff(x) for x in self._axes]
        offset = sympy.expand(index - sum(s * x for s, x in zip(strides, self._axes, strict=True)))
        if all(_is_size(s) for e in (offset, *strides) for s in e.free_symbols):
            return f"{self._tuple(strides)}, {self.shown(offset)}"
        return f"None, {self.shown(index)}"

    # ---- the function
    def arguments(self) -> tuple[dict[str, str], dict[str, str]]:
        """The arguments of the function by buffer: what it reads, and what it leaves behind."""
        read = {n: x for n, x in self.args.input_buffers.items() if not isinstance(x, RemovedArg)}
        gone = {_real(n) for n in self.removed_buffers | V.graph.removed_buffers}
        return read, {n: x for n, x in self._written.items() if n not in gone}

    def text(self) -> str:
        """The function."""
        read, left = self.arguments()
        code = IndentedBuffer()
        names = ["ops", *read.values(), *left.values(), *self._sizes.values()]
        code.writeline(f"def kernel({', '.join(names)}):")
        with code.indent():
            for name, argument in self._written.items():
                if name not in left:  # nobody else sees it
                    code.writeline(f"{argument} = ops.memory({self._layout(name)})")
            code.splice(self.compute)
        return str(code.getvalue())

    def _layout(self, name: str) -> str:
        layout = V.graph.get_buffer(name).get_layout()
        return f"{self._tuple(layout.size)}, {self._tuple(layout.stride)}, {layout.dtype}"

    @property
    def sizes(self) -> list[str]:
        """The sizes that the function is called with."""
        return [str(_print(s)) for s in self._sizes]


def _is_size(symbol: Any) -> bool:
    return symbol_is_type(symbol, _SIZES)


def _real(name: str) -> str:
    """The buffer whose memory a buffer is."""
    found: str = V.graph.scheduler.mutation_real_name.get(name, name)
    return found


def _inputs_of_as_strided() -> set[str]:
    """The graph's inputs of whose storages more can be seen than they see themselves."""
    found = set()
    for node in V.graph.graph.find_nodes(op="call_function", target=_as_strided):
        while node.op == "call_function" and node.all_input_nodes:
            node = node.all_input_nodes[0]
        if node.op == "placeholder":
            found.add(node.name)
    return found


class GenesisScheduling(BaseScheduling):
    """Which loops share a kernel, and the code for it."""

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        """What kernels can have in them."""
        return OrderedSet([BackendFeature.TUPLE_REDUCTION, BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        """Whether a loop can be in the kernel of one whose result it reads."""
        return all(type(n) in (SchedulerNode, FusedSchedulerNode) for n in (node1, node2))

    can_fuse_horizontal = can_fuse_vertical

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[Any, ...]:
        """What Inductor compares loops by."""
        return tuple(V.graph.sizevars.simplify(sympy_product(s)) for s in sizes)

    def codegen_node(self, node: FusedSchedulerNode | SchedulerNode) -> None:
        """A kernel of the loops of a node, and its call."""
        nodes: list[SchedulerNode] = list(node.get_nodes())  # type: ignore[arg-type]
        with GenesisKernel() as kernel:
            for member in nodes:
                kernel.codegen_body(member)
        with V.set_kernel_handler(kernel):
            for member in nodes:
                member.mark_run()
        if kernel.arguments()[1]:
            self._call(kernel, nodes)
        V.graph.removed_buffers |= kernel.removed_buffers
        self.free_buffers_in_scheduler()

    def _call(self, kernel: GenesisKernel, nodes: Sequence[SchedulerNode]) -> None:
        wrapper: Any = V.graph.wrapper_code
        text = kernel.text()
        read, left = kernel.arguments()
        inputs = _inputs_of_as_strided()
        strided = tuple(k for k, buffer in enumerate(read) if buffer in inputs)
        name = wrapper.src_to_kernel.get((text, strided))
        if name is None:
            name = f"genesis_kernel_{wrapper.next_kernel_suffix()}"
            wrapper.src_to_kernel[text, strided] = name
            wrapper.add_import_once("from genesis.torch.inductor.kernel import FusedKernel")
            origins, details = get_kernel_metadata(nodes, wrapper)
            code = IndentedBuffer()
            code.writeline(f"FusedKernel({len(read)}, {len(left)}, '''")
            code.splice(text)
            code.writeline(f"''', {strided})")
            wrapper.define_kernel(name, code.getvalue(), f"{origins}\n{details}", gpu=False)
        given = [*read, *left, *kernel.sizes]
        wrapper.writeline(f"{name}({', '.join(given)})")

    def codegen_sync(self) -> None:
        """Nothing has to wait: the device's queue is in order."""

    def flush(self) -> None:
        """Every kernel is written at once."""
