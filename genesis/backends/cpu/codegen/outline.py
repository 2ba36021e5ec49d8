"""Long formulas of many points as functions, which are called at every point.

What follows a product (an activation, say) is computed at each of the points that the product's
tile has in registers. Written out at each, it is most of a kernel's code, and of the time that
LLVM takes for it; a call takes little beside what such a formula takes.
"""

from __future__ import annotations

from math import prod

from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMValue, typed
from genesis.backends.cpu.codegen.expression import MANY, Expressions
from genesis.backends.cpu.codegen.lanes import Analysis, Point, as_piece
from genesis.ir import ops
from genesis.ir.node import Node, topological

#: The work at each of many points from which on there is a function.
LONG = 12
#: Vectors that are handed over in registers.
MOST_ARGUMENTS = 8


class Outlines:
    """The formulas of one function that are functions."""

    def __init__(self, x: Expressions, analysis: Analysis) -> None:
        self.x, self.analysis = x, analysis
        self._arguments: dict[tuple[Node, int], list[Node] | None] = {}
        self._names: dict[tuple[Node, tuple[str, ...]], tuple[str, str, int]] = {}

    def vector(self, root: Node, point: Point, lane: int) -> LLVMValue:
        """What `Expressions.vector` gives, by a call where the formula is long."""
        arguments = self._found(root, point, lane)
        if arguments is None:
            return self.x.vector(root, point, lane)
        return self.x.once(
            self.x.key(root, point), lambda: self._called(root, arguments, point, lane)
        )

    def _called(self, root: Node, arguments: list[Node], point: Point, lane: int) -> LLVMValue:
        values = [self.x.value(n, point, lane) for n in arguments]
        key = root, tuple(v.type for v in values)
        if key not in self._names:
            self._names[key] = self._function(root, arguments, values, point, lane)
        name, element, width = self._names[key]
        given = ", ".join(map(str, values))
        text = f'call {typed(element, width)} @"{name}"({given}) memory(none)'
        return self.x.out.op(text, element, width)

    def _found(self, root: Node, point: Point, lane: int) -> list[Node] | None:
        """What a formula is computed of, where it is to be a function."""
        if lane < 0 or isinstance(point[lane], int) or lane not in self.analysis.tiles(root):
            return None
        _, width = as_piece(point[lane])
        if (root, width) not in self._arguments:
            self._arguments[root, width] = self._judged(root, lane, width)
        return self._arguments[root, width]

    def _judged(self, root: Node, lane: int, width: int) -> list[Node] | None:
        axes = self.analysis.tiles(root)
        inside: list[Node] = []

        def needs(n: Node) -> tuple[Node, ...]:
            """What is the same at several points, or no arithmetic, is computed outside."""
            arithmetic = n.op.is_elementwise and len(self.analysis.tiles(n)) == len(axes)
            if arithmetic:
                inside.append(n)
            return n.inputs if arithmetic else ()

        order = topological([root], needs)
        points = prod(self.analysis.extents[a] for a in axes) // width
        work = sum(n.op.cost for n in inside)
        within = {*inside}
        arguments = [n for n in order if n not in within and n.op is not ops.CONST]
        plain = all(n.dtype.is_float for n in (root, *arguments))
        few = 0 < len(arguments) <= MOST_ARGUMENTS
        return arguments if points >= MANY and work >= LONG and plain and few else None

    def _function(
        self,
        root: Node,
        arguments: list[Node],
        values: list[LLVMValue],
        point: Point,
        lane: int,
    ) -> tuple[str, str, int]:
        """Write the function for arguments of such types; its name, element type and width."""
        module = self.x.out.module
        name = f"formula_{len(module.functions)}"
        heads = [f"{v.type} %a{k}" for k, v in enumerate(values)]
        out = LLVMFunction(module, "", name, heads, "internal ")
        inner = Expressions(out, self.analysis, self.x.slots, self.x.vector_bytes)
        for k, (n, v) in enumerate(zip(arguments, values, strict=True)):
            inner.bind(n, LLVMValue(out, f"%a{k}", v.element, v.width), point)
        result = inner.vector(root, point, lane)
        out.ret(result)
        out.head = f'define internal {result.type} @"{name}"({", ".join(heads)})'
        return name, result.element, result.width
