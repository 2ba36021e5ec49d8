"""An oracle for the kernel IR: runs a kernel statement by statement and watches every access.

GRID and LOOP axes are Python loops. The TILE axes of a kernel are the dimensions of NumPy arrays,
one dimension each, so an expression is an array that has extent 1 along the tile axes it does not
mention and broadcasting does the rest. Memory carries a shadow: which elements hold a value, and
which block wrote or read them in this phase. So a kernel that leaves its buffers, reads what
nobody wrote, races with another block or forgets part of its output raises `KernelFault`, even
where the numbers would have come out right.

>>> from genesis.ir.kernel_builder import Builder
>>> from genesis.ir.dtype import float32
>>> k = Builder("double")
>>> N = k.symbol("N")
>>> x, y = k.input("x", float32, N), k.output("y", float32, N)
>>> b, v = k.grid("b", (N + 3) // 4), k.tile("v", 4)
>>> i = b * 4 + v
>>> k.store(y, (i,), x.load(i, mask=i < N) * 2.0, mask=i < N)
>>> a, out = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
>>> interpret(k.kernel(), {"x": a, "y": out, "N": 5})
>>> out
array([0., 2., 4., 6., 8.], dtype=float32)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import Scalar
from genesis.ir.node import Node, topological
from genesis.ir.scalar_semantics import apply
from genesis.ir.size import Symbol

Array = NDArray[Any]
Order = Literal["forward", "reverse", "shuffle"]


class KernelFault(RuntimeError):
    """A kernel did what a kernel must not do. The message says where."""


def interpret(
    kernel: kir.Kernel,
    arguments: Mapping[str, Array | Scalar],
    order: Order = "forward",
    seed: int = 0,
) -> None:
    """Run `kernel` on arrays (written in place), scalars and sizes given by name.

    An array is the memory its buffer's layout applies to: for a buffer without strides an array of
    its shape, otherwise any contiguous memory. Temporaries are allocated here. Blocks run in the
    given `order`; a correct kernel gives the same bits in all of them.
    """
    _Interpreter(kernel, arguments).run(order, seed)


# Who touched an element in the current phase: a block's number or one of these.
_NOBODY, _SEVERAL, _ATOMIC = -1, -2, -3


@dataclass
class _Memory:
    """The elements of a buffer and their shadow."""

    data: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    written: NDArray[np.bool_]
    writer: NDArray[np.int64]
    reader: NDArray[np.int64]


class _Scope(dict[Any, Any]):
    """What names mean at a point of the program: axes, locals, stages, parameters."""


class _Interpreter:
    def __init__(self, kernel: kir.Kernel, arguments: Mapping[str, Array | Scalar]) -> None:
        self.kernel = kernel
        self.block = 0
        self.point: dict[kir.Axis, int] = {}
        self.statement: kir.Statement | None = None
        self.orders: dict[Node, list[Node]] = {}
        self.dimension = {axis: d for d, axis in enumerate(_tiles(kernel))}
        self.tiles = {axis: self._iota(axis) for axis in self.dimension}
        self.scope = _Scope()
        self._bind(arguments)

    # ---- arguments
    def _bind(self, arguments: Mapping[str, Array | Scalar]) -> None:
        k = self.kernel
        named: list[kir.Buffer | kir.Param | Symbol] = [*k.buffers, *k.params, *k.symbols]
        wanted = [x.name for x in named]
        optional = {b.name for b in k.buffers if b.role is kir.Role.TEMPORARY}
        missing = set(wanted) - optional - set(arguments)
        unknown = set(arguments) - set(wanted)
        if missing or unknown:
            raise TypeError(
                f"kernel {k.name} takes {', '.join(wanted)}; "
                f"missing {sorted(missing)}, unknown {sorted(unknown)}"
            )
        for symbol in k.symbols:
            self.scope[symbol] = self._scalar(self._size(symbol, arguments[symbol.name]), np.int64)
        for param in k.params:
            value = param.dtype.cast(np.asarray(arguments[param.name]).item())
            self.scope[param] = self._scalar(value, param.dtype.numpy)
        for buffer in k.buffers:
            self.scope[buffer] = self._attach(buffer, arguments.get(buffer.name))

    def _size(self, symbol: Symbol, value: Any) -> int:
        number = int(value)
        if not (symbol.low <= number <= symbol.high and number % symbol.multiple == 0):
            raise ValueError(
                f"kernel {self.kernel.name}: {symbol.name} = {number} is not a multiple of "
                f"{symbol.multiple} in {symbol.low}..{symbol.high}"
            )
        return number

    def _attach(self, buffer: kir.Buffer, argument: Any) -> _Memory:
        shape = tuple(self.integer(kir.as_index(e), self.scope) for e in buffer.shape)
        strides = tuple(self.integer(s, self.scope) for s in buffer.layout)
        offset = self.integer(kir.as_index(buffer.offset), self.scope)
        if argument is None:
            reach = zip(shape, strides, strict=True)
            extent = 1 + offset + sum((e - 1) * s for e, s in reach if s > 0)
            data = np.zeros(max(0, extent) if prod(shape) else 0, buffer.dtype.numpy)
        else:
            self._check_argument(buffer, shape, argument)
            data = argument.reshape(-1)
        full = buffer.role in (kir.Role.INPUT, kir.Role.INOUT)
        nobody = np.full(data.size, _NOBODY, np.int64)
        written = np.full(data.size, full)
        return _Memory(data, shape, strides, offset, written, nobody, nobody.copy())

    def _check_argument(self, buffer: kir.Buffer, shape: tuple[int, ...], argument: Any) -> None:
        name = f"kernel {self.kernel.name}, buffer {buffer.name}"
        if not isinstance(argument, np.ndarray) or argument.dtype != buffer.dtype.numpy:
            kind = getattr(argument, "dtype", type(argument).__name__)
            raise TypeError(f"{name}: wants an array of {buffer.dtype}, not {kind}")
        if not argument.flags.c_contiguous:
            raise ValueError(f"{name}: wants contiguous memory; give the buffer strides instead")
        if buffer.strides is None and argument.shape != shape:
            raise ValueError(f"{name}: wants shape {shape}, not {argument.shape}")

    # ---- running
    def run(self, order: Order, seed: int) -> None:
        for phase in self.kernel.phases:
            self._run_phase(phase, order, seed)
        for buffer in self.kernel.buffers:
            if buffer.role is kir.Role.OUTPUT:
                self._check_complete(buffer, self.scope[buffer])

    def _run_phase(self, phase: kir.Phase, order: Order, seed: int) -> None:
        for buffer in self.kernel.buffers:
            self.scope[buffer].writer[:] = _NOBODY
            self.scope[buffer].reader[:] = _NOBODY
        extents = [self.integer(kir.as_index(axis.extent), self.scope) for axis in phase.grid]
        points = list(enumerate(itertools.product(*map(range, extents))))
        if order == "reverse":
            points.reverse()
        elif order == "shuffle":
            points = [points[i] for i in np.random.default_rng(seed).permutation(len(points))]
        for number, values in points:
            self.block = number
            self.point = dict(zip(phase.grid, values, strict=True))
            scope = _Scope(self.scope)
            scope.update((axis, self._scalar(v, np.int64)) for axis, v in self.point.items())
            self._run_body(phase.body, scope)

    def _run_body(self, body: kir.Body, scope: _Scope) -> None:
        """Run statements in a scope of their own, which the caller gives."""
        for s in body:
            self.statement = s
            if isinstance(s, kir.Let):
                scope[s.local] = self.value(s.value, scope)
            elif isinstance(s, kir.Store):
                self._store(s, scope)
            elif isinstance(s, kir.Loop):
                self._loop(s, scope)
            elif isinstance(s, kir.Reduce):
                self._reduce(s, scope)
            elif isinstance(s, kir.Scan):
                self._scan(s, scope)
            elif isinstance(s, kir.If):
                taken = self.value(s.condition, scope)
                if taken.size != 1:
                    raise self.fault("the condition depends on a tile axis")
                self._run_body(s.body if taken.item() else s.orelse, _Scope(scope))
            elif isinstance(s, kir.Stage):
                scope[s.buffer] = self._attach(s.buffer, None)
            elif isinstance(s, kir.Prefetch):
                for i in s.index:  # which may be looked up
                    self.value(i, scope)
            else:
                raise TypeError(f"{type(s).__name__} is not a statement of the kernel IR")

    def _loop(self, s: kir.Loop, scope: _Scope) -> None:
        extent = self.integer(kir.as_index(s.axis.extent), scope)
        state = [self.value(c.init, scope) for c in s.carried]
        for i in range(extent):
            self.point[s.axis] = i
            inner = _Scope(scope)
            inner[s.axis] = self._scalar(i, np.int64)
            inner.update((c.local, v) for c, v in zip(s.carried, state, strict=True))
            self._run_body(s.body, inner)
            self.statement = s
            state = [self.value(c.step, inner) for c in s.carried]
        self.point.pop(s.axis, None)
        scope.update((c.local, v) for c, v in zip(s.carried, state, strict=True))

    # ---- reductions along a tile axis
    def _reduce(self, s: kir.Reduce, scope: _Scope) -> None:
        d = self.dimension[s.axis]
        state = [self._along(s.axis, self.value(v, scope)) for v in s.values]
        while state[0].shape[d] > 1:  # neighbours combine pairwise, so their order is kept
            count = state[0].shape[d]
            left = [_part(x, d, slice(0, count - 1, 2)) for x in state]
            right = [_part(x, d, slice(1, count, 2)) for x in state]
            last = [_part(x, d, slice(count - count % 2, count)) for x in state]
            merged = self._merge(s.merge, left, right, scope)
            state = [
                np.concatenate(
                    [_spread(m, m.shape, d, count // 2), _spread(x, m.shape, d, count % 2)], d
                )
                for m, x in zip(merged, last, strict=True)
            ]
        scope.update(zip(s.locals, state, strict=True))

    def _scan(self, s: kir.Scan, scope: _Scope) -> None:
        d = self.dimension[s.axis]
        values = [self._along(s.axis, self.value(v, scope)) for v in s.values]
        state = [_part(x, d, slice(0, 1)) for x in values]
        prefixes = [state]
        for i in range(1, values[0].shape[d]):
            state = self._merge(
                s.merge, state, [_part(x, d, slice(i, i + 1)) for x in values], scope
            )
            prefixes.append(state)
        for k, local in enumerate(s.locals):
            pieces = np.broadcast_arrays(*(p[k] for p in prefixes))
            scope[local] = np.concatenate(pieces, axis=d)

    def _merge(
        self, merge: kir.Merge, left: Sequence[Array], right: Sequence[Array], scope: _Scope
    ) -> list[Array]:
        inner = _Scope(scope)
        inner.update(zip(merge.left, left, strict=True))
        inner.update(zip(merge.right, right, strict=True))
        return [self.value(result, inner) for result in merge.result]

    def _along(self, axis: kir.Axis, value: Array) -> Array:
        """`value` with the axis' full extent, also where it does not depend on the axis."""
        return _spread(value, value.shape, self.dimension[axis], self.tiles[axis].size)

    # ---- expressions
    def value(self, root: Node, scope: _Scope) -> Array:
        """The tile an expression stands for, here and now."""
        order = self.orders.get(root)
        if order is None:
            order = self.orders[root] = topological([root])
        values: dict[Node, Array] = {}
        for n in order:
            inputs = [values[i] for i in n.inputs]
            if n.op.is_elementwise:
                values[n] = apply(n.op, n.dtype, *inputs)
            elif n.op is ops.CONST:
                values[n] = self._scalar(n.attr, n.dtype.numpy)
            elif n.op is ops.LOAD:
                values[n] = self._load(n.attr, inputs[:-2], inputs[-2], inputs[-1], scope)
            else:
                values[n] = self._look_up(n, scope)
        return values[root]

    def integer(self, n: Node, scope: _Scope) -> int:
        """The value of an index expression without tile axes."""
        value = self.value(n, scope)
        if value.size != 1:
            raise self.fault(f"the extent {n!r} depends on a tile axis")
        return int(value.item())

    def _look_up(self, n: Node, scope: _Scope) -> Array:
        if n.op not in (ops.AXIS, ops.LOCAL, ops.SYMBOL, ops.PARAM):
            raise TypeError(f"{n.op} is not an operation of kernel expressions")
        named: kir.Axis | kir.Local | Symbol | kir.Param = n.attr
        if isinstance(named, kir.Axis) and named in self.tiles:
            return self.tiles[named]
        if named not in scope:
            raise self.fault(f"{named.name} has no value here")
        value: Array = scope[named]
        return value

    def _scalar(self, value: Scalar, dtype: Any) -> Array:
        return np.full((1,) * len(self.dimension), value, dtype)

    def _iota(self, axis: kir.Axis) -> Array:
        if not isinstance(axis.extent, int):
            raise TypeError(f"kernel {self.kernel.name}: tile axis {axis.name} needs an int extent")
        shape = [1] * len(self.dimension)
        shape[self.dimension[axis]] = -1
        return np.arange(axis.extent).reshape(shape)

    # ---- memory
    def _load(
        self, buffer: kir.Buffer, where: list[Array], mask: Array, other: Array, scope: _Scope
    ) -> Array:
        memory = self._memory(buffer, scope)
        shape = np.broadcast_shapes(mask.shape, other.shape, *(i.shape for i in where))
        active = np.broadcast_to(mask, shape)
        positions = self._positions(buffer, memory, where, active)
        if not memory.written[positions].all():
            raise self.fault(f"{buffer.name} is read where nothing was written")
        if buffer.role not in (kir.Role.INPUT, kir.Role.STAGE):
            writer, reader = memory.writer[positions], memory.reader[positions]
            if ((writer != _NOBODY) & (writer != self.block)).any():
                raise self.fault(f"{buffer.name} is read where another block writes")
            alone = (reader == _NOBODY) | (reader == self.block)
            memory.reader[positions] = np.where(alone, self.block, _SEVERAL)
        result = np.broadcast_to(other, shape).copy()
        result[active] = memory.data[positions]
        return result

    def _store(self, s: kir.Store, scope: _Scope) -> None:
        memory = self._memory(s.buffer, scope)
        where = [self.value(i, scope) for i in s.index]
        value, mask = self.value(s.value, scope), self.value(s.mask, scope)
        shape = np.broadcast_shapes(value.shape, mask.shape, *(i.shape for i in where))
        active = np.broadcast_to(mask, shape)
        positions = self._positions(s.buffer, memory, where, active)
        values = np.broadcast_to(value, shape)[active]
        name = s.buffer.name
        if s.buffer.role is kir.Role.INPUT:
            raise self.fault(f"{name} is an input and is written")
        if s.atomic is None and np.unique(positions).size != positions.size:
            raise self.fault(f"one store writes an element of {name} twice")
        if s.buffer.role is not kir.Role.STAGE:
            writer, reader = memory.writer[positions], memory.reader[positions]
            mine = _ATOMIC if s.atomic else self.block
            if ((writer != _NOBODY) & (writer != mine)).any():
                raise self.fault(f"{name} is written where another block writes")
            if ((reader != _NOBODY) & (reader != mine)).any():
                raise self.fault(f"{name} is written where another block reads")
            memory.writer[positions] = mine
        if s.atomic is None:
            memory.data[positions] = values
            memory.written[positions] = True
            return
        if not memory.written[positions].all():
            raise self.fault(f"{name} is combined where nothing was written")
        for p, v in zip(positions, values, strict=True):
            memory.data[p] = apply(s.atomic, s.buffer.dtype, memory.data[p], v)

    def _memory(self, buffer: kir.Buffer, scope: _Scope) -> _Memory:
        if buffer not in scope:
            raise self.fault(f"{buffer.name} is not a buffer of the kernel nor a stage in scope")
        memory: _Memory = scope[buffer]
        return memory

    def _positions(
        self, buffer: kir.Buffer, memory: _Memory, where: list[Array], active: Array
    ) -> NDArray[np.int64]:
        """Where in memory the active elements of an access lie, after checking that they exist."""
        positions = np.full(int(active.sum()), memory.offset, np.int64)
        for d, (i, extent, stride) in enumerate(
            zip(where, memory.shape, memory.strides, strict=True)
        ):
            chosen = np.broadcast_to(i, active.shape)[active]
            outside = chosen[(chosen < 0) | (chosen >= extent)]
            if outside.size:
                raise self.fault(
                    f"{buffer.name} has {extent} elements in dimension {d}, index {outside[0]}"
                )
            positions += chosen * stride
        if positions.size and not (0 <= positions.min() and positions.max() < memory.data.size):
            raise self.fault(
                f"{buffer.name} lies in {memory.data.size} elements of memory, its layout reaches "
                f"{positions.min()}..{positions.max()}"
            )
        return positions

    def _check_complete(self, buffer: kir.Buffer, memory: _Memory) -> None:
        positions = np.full((), memory.offset)
        for extent, stride in zip(memory.shape, memory.strides, strict=True):
            positions = positions[..., None] + np.arange(extent) * stride
        missing = np.argwhere(~memory.written[positions])
        if len(missing):
            raise KernelFault(
                f"kernel {self.kernel.name}: {len(missing)} elements of {buffer.name} are never "
                f"written, the first at {tuple(missing[0].tolist())}"
            )

    def fault(self, what: str) -> KernelFault:
        """The exception for a fault in the current statement."""
        where = ", ".join(f"{axis.name}={value}" for axis, value in self.point.items())
        lines = str(self.statement).split("\n")
        # What a loop evaluates itself are its steps, printed last.
        line = lines[-1 if isinstance(self.statement, kir.Loop) else 0].strip()
        return KernelFault(
            f"kernel {self.kernel.name}: {what}\n  in: {line}\n  at: {where or 'the only block'}"
        )


def _tiles(kernel: kir.Kernel) -> list[kir.Axis]:
    """Every TILE axis of a kernel, in an order of its own."""
    found: dict[kir.Axis, None] = {}
    for phase in kernel.phases:
        for s in kir.walk(phase.body):
            axes = set(kir.tile_axes(*kir.expressions(s)))
            if isinstance(s, kir.Reduce | kir.Scan):
                axes.add(s.axis)
            found.update(dict.fromkeys(sorted(axes, key=lambda a: a.name)))
    return list(found)


def _part(x: Array, d: int, which: slice) -> Array:
    return x[(slice(None),) * d + (which,)]


def _spread(x: Array, shape: tuple[int, ...], d: int, extent: int) -> Array:
    """`x` broadcast to `shape`, except for `extent` along dimension d."""
    return np.broadcast_to(x, (*shape[:d], extent, *shape[d + 1 :]))
