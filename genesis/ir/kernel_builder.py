"""Writing kernels by hand: a small builder for the kernel IR.

The compiler makes kernels by lowering graphs; people write them when they try an idea, test a
backend or read the documentation. A row sum over any number of rows and columns:

>>> from genesis.ir.dtype import float32
>>> k = Builder("row_sum")
>>> M, N = k.symbol("M"), k.symbol("N")
>>> x, y = k.input("x", float32, M, N), k.output("y", float32, M)
>>> r = k.grid("r", M)
>>> with k.loop("c", N, acc=k.const(0.0, float32)) as (c, acc):
...     k.step(acc=acc + x[r, c])
>>> k.store(y, (r,), acc)
>>> print(k.kernel())
kernel row_sum(x: in float32[M, N], y: out float32[M], M: 0..2147483648, N: 0..2147483648)
  grid r < M
    acc = 0.0
    loop c < N:
      acc = (acc + x[r, c])
    y[r] = acc
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, Scalar, index
from genesis.ir.node import TRUE, Node, const, elementwise, node
from genesis.ir.size import UNBOUNDED, Symbol

Combine = ops.Op | Callable[[Sequence[Node], Sequence[Node]], Sequence[Node]]


class Builder:
    """Collects buffers and statements; `kernel` gives the result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._buffers: list[kir.Buffer] = []
        self._params: list[kir.Param] = []
        self._symbols: list[Symbol] = []
        self._phases: list[kir.Phase] = []
        self._grid: list[kir.Axis] = []
        self._bodies: list[list[kir.Statement]] = [[]]
        self._steps: list[dict[str, Node]] = []
        self._count = 0

    # ---- arguments
    def symbol(self, name: str, low: int = 0, high: int = UNBOUNDED, multiple: int = 1) -> Node:
        """A size known at launch."""
        self._symbols.append(Symbol(name, low, high, multiple))
        return node(ops.SYMBOL, (), self._symbols[-1], index)

    def param(self, name: str, dtype: DType) -> Node:
        """A scalar argument."""
        self._params.append(kir.Param(name, dtype))
        return self._params[-1].node

    def buffer(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[kir.Index],
        role: kir.Role,
        strides: Sequence[kir.Index] | None = None,
        offset: kir.Index = 0,
    ) -> kir.Buffer:
        """A buffer argument of any role and layout."""
        layout = None if strides is None else tuple(strides)
        self._buffers.append(kir.Buffer(name, dtype, tuple(shape), role, layout, offset))
        return self._buffers[-1]

    def input(self, name: str, dtype: DType, *shape: kir.Index) -> kir.Buffer:
        """A buffer that is read."""
        return self.buffer(name, dtype, shape, kir.Role.INPUT)

    def output(self, name: str, dtype: DType, *shape: kir.Index) -> kir.Buffer:
        """A buffer that is written completely."""
        return self.buffer(name, dtype, shape, kir.Role.OUTPUT)

    def temporary(self, name: str, dtype: DType, *shape: kir.Index) -> kir.Buffer:
        """A buffer that lives from one phase to the next."""
        return self.buffer(name, dtype, shape, kir.Role.TEMPORARY)

    # ---- axes
    def grid(self, name: str, extent: kir.Index) -> Node:
        """A GRID axis of the current phase."""
        self._grid.append(kir.Axis.grid(name, extent))
        return self._grid[-1].node

    def tile(self, name: str, extent: int) -> Node:
        """A TILE axis."""
        return kir.Axis.tile(name, extent).node

    def barrier(self) -> None:
        """End the phase; what follows runs after every block of it."""
        self._phases.append(kir.Phase(tuple(self._grid), tuple(self._bodies.pop())))
        self._grid, self._bodies = [], [[]]

    # ---- statements
    def const(self, value: Scalar, dtype: DType) -> Node:
        """A constant."""
        return const(value, dtype)

    def let(self, name: str, value: Node) -> Node:
        """Name a value."""
        local = kir.Local(name, value.dtype, _sorted(value))
        self._add(kir.Let(local, value))
        return local.node

    def store(
        self,
        buffer: kir.Buffer,
        indices: Sequence[kir.Index],
        value: Node,
        mask: Node = TRUE,
        atomic: ops.Op | None = None,
    ) -> None:
        """Write an element or a tile."""
        self._add(kir.Store(buffer, tuple(map(kir.as_index, indices)), value, mask, atomic))

    def stage(
        self, name: str, dtype: DType, *shape: int, strides: Sequence[int] | None = None
    ) -> kir.Buffer:
        """A buffer in fast memory for the rest of this body."""
        layout = None if strides is None else tuple(strides)
        buffer = kir.Buffer(name, dtype, shape, kir.Role.STAGE, layout)
        self._add(kir.Stage(buffer))
        return buffer

    @contextmanager
    def loop(
        self,
        name: str,
        extent: kir.Index,
        merge: Combine | None = None,
        tiles: Sequence[Node] | Mapping[str, Sequence[Node]] = (),
        **carried: Node,
    ) -> Iterator[tuple[Node, ...]]:
        """A LOOP: gives the axis and the carried values; set their next values with `step`.

        `tiles` are the tile axes the carried values have beyond those of their inits: one list
        for all of them, or one for each by name.
        """
        axis = kir.Axis.loop(name, extent)
        locals_ = []
        for n, v in carried.items():
            extra = tiles.get(n, ()) if isinstance(tiles, Mapping) else tiles
            axes = {*_sorted(v), *(t.attr for t in extra)}
            locals_.append(kir.Local(n, v.dtype, tuple(sorted(axes, key=_name))))
        self._bodies.append([])
        self._steps.append({})
        yield (axis.node, *(v.node for v in locals_))
        body, steps = tuple(self._bodies.pop()), self._steps.pop()
        carries = tuple(
            kir.Carry(v, init, steps[v.name])
            for v, init in zip(locals_, carried.values(), strict=True)
        )
        combined = None if merge is None else _merge(merge, [v.dtype for v in locals_])
        self._add(kir.Loop(axis, body, carries, combined))

    def step(self, **values: Node) -> None:
        """The carried values' next values, at the end of the loop body."""
        self._steps[-1].update(values)

    @contextmanager
    def when(self, condition: Node) -> Iterator[None]:
        """Statements that run only where `condition` (the same for the whole block) holds."""
        self._bodies.append([])
        yield
        self._add(kir.If(condition, tuple(self._bodies.pop())))

    def reduce(self, axis: Node, combine: Combine, **values: Node) -> tuple[Node, ...]:
        """Combine values along a TILE axis; gives the results."""
        locals_ = self._results(values, axis, keep=False)
        merge = _merge(combine, [v.dtype for v in locals_])
        self._add(kir.Reduce(locals_, tuple(values.values()), axis.attr, merge))
        return tuple(v.node for v in locals_)

    def scan(self, axis: Node, combine: Combine, **values: Node) -> tuple[Node, ...]:
        """Inclusive prefix combination along a TILE axis; gives the results."""
        locals_ = self._results(values, axis, keep=True)
        merge = _merge(combine, [v.dtype for v in locals_])
        self._add(kir.Scan(locals_, tuple(values.values()), axis.attr, merge))
        return tuple(v.node for v in locals_)

    def kernel(self) -> kir.Kernel:
        """The finished kernel."""
        if self._bodies[0]:
            self.barrier()
        return kir.Kernel(
            self.name,
            tuple(self._buffers),
            tuple(self._params),
            tuple(self._symbols),
            tuple(self._phases),
        )

    def _add(self, statement: kir.Statement) -> None:
        self._bodies[-1].append(statement)

    def _results(self, values: dict[str, Node], axis: Node, keep: bool) -> tuple[kir.Local, ...]:
        results = []
        for name, value in values.items():
            tiles = (
                kir.tile_axes(value) | {axis.attr} if keep else kir.tile_axes(value) - {axis.attr}
            )
            results.append(kir.Local(name, value.dtype, tuple(sorted(tiles, key=_name))))
        return tuple(results)


def _name(axis: kir.Axis) -> str:
    return axis.name


def _sorted(value: Node) -> tuple[kir.Axis, ...]:
    return tuple(sorted(kir.tile_axes(value), key=_name))


def _merge(combine: Combine, dtypes: list[DType]) -> kir.Merge:
    if isinstance(combine, ops.Op):
        return kir.fold(combine, dtypes[0])
    left = tuple(kir.Local(f"left{i}", d) for i, d in enumerate(dtypes))
    right = tuple(kir.Local(f"right{i}", d) for i, d in enumerate(dtypes))
    result = combine([v.node for v in left], [v.node for v in right])
    return kir.Merge(left, right, tuple(result))


def maximum(a: Node, b: Node) -> Node:
    """The greater of two values; NaN wins."""
    return elementwise(ops.MAX, a, b)


def where(condition: Node, then: Node, orelse: Node) -> Node:
    """`then` where the condition holds, `orelse` elsewhere."""
    return elementwise(ops.WHERE, condition, then, orelse)


def exp(a: Node) -> Node:
    """e to the power of a."""
    return elementwise(ops.EXP, a)


def cast(a: Node, dtype: DType) -> Node:
    """`a` converted to another type."""
    return elementwise(ops.CAST, a, dtype=dtype)
