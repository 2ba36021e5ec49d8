"""An oracle for tensor graphs: every primitive is one obvious NumPy call.

It shares nothing with the compiler, so it says whether simplification, fusion and lowering kept
the meaning of a graph. Nodes are visited in topological order without recursion, and a value is
dropped after its last use, so a graph may be very long.

>>> from genesis.ir.dtype import float32
>>> from genesis.ir.node import Leaf, elementwise, node
>>> x = node(ops.BUFFER, (), Leaf(0, (3, 1)), float32, (2, 3))
>>> total = node(ops.SUM, (elementwise(ops.MUL, x, x),), (1,), float32, (2,))
>>> evaluate([total], [np.arange(6, dtype=np.float32)], [])
[array([ 5., 50.], dtype=float32)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genesis.ir import ops, size
from genesis.ir.dtype import Scalar
from genesis.ir.node import Leaf, LibraryCall, Node, Prefix, Recurrence, topological
from genesis.ir.numpy_library import reference
from genesis.ir.ops import Op
from genesis.ir.scalar_semantics import apply
from genesis.ir.size import Dim

Array = NDArray[Any]
Steps = tuple[tuple[Dim, Dim], ...]  # (start, step) per dimension


def evaluate(
    roots: Sequence[Node],
    buffers: Sequence[Array],
    scalars: Sequence[Scalar],
    sizes: Mapping[str, int] | None = None,
    parameters: Sequence[Array] = (),
) -> list[Array]:
    """The values of `roots`, as new arrays.

    `buffers` and `scalars` are indexed by slot; a buffer is flat memory that the leaf's strides
    and offset apply to. `sizes` gives the symbolic sizes by name, `parameters` the inputs of the
    body of a scan.
    """
    evaluator = _Evaluator(buffers, scalars, sizes or {}, parameters)
    order = topological(roots)
    uses = Counter(i for n in order for i in n.inputs)
    uses.update(roots)
    values: dict[Node, Any] = {}  # an array, or the list of a scan's results
    for n in order:
        inputs = [values[i] for i in n.inputs]
        if n.op is ops.SCAN:
            values[n] = evaluator.scan(n, inputs)
        elif n.op is ops.CALL:
            values[n] = evaluator.call(n, inputs)
        else:
            values[n] = value = np.asarray(evaluator.compute(n, *inputs))
            if value.shape != evaluator.shape(n):
                shapes = ", ".join(str(x.shape) for x in inputs)
                raise ValueError(f"{n.op} of {shapes} gives {value.shape}, the node says {n.shape}")
        for i in n.inputs:
            uses[i] -= 1
            if not uses[i]:
                del values[i]
    return [values[r].copy() for r in roots]


class _Evaluator:
    """Computes single nodes from the values of their inputs."""

    def __init__(
        self,
        buffers: Sequence[Array],
        scalars: Sequence[Scalar],
        sizes: Mapping[str, int],
        parameters: Sequence[Array],
    ) -> None:
        self.buffers = buffers
        self.scalars = scalars
        self.sizes = sizes
        self.parameters = parameters

    def compute(self, n: Node, *inputs: Array) -> Array:
        if n.op.is_elementwise:
            return apply(n.op, n.dtype, *inputs)
        method = _METHODS.get(n.op)
        if method is None:
            raise ValueError(f"{n.op} is no operation of tensor graphs")
        return method(self, n, *inputs)

    def integer(self, extent: Dim) -> int:
        return size.evaluate(extent, self.sizes)

    def shape(self, n: Node) -> tuple[int, ...]:
        return tuple(map(self.integer, n.shape))

    def positions(self, attr: Steps, counts: Sequence[int]) -> list[Array]:
        """``start + step*i`` for i below the count, per dimension."""
        return [
            self.integer(start) + self.integer(step) * np.arange(count)
            for (start, step), count in zip(attr, counts, strict=True)
        ]

    # ---- leaves
    def buffer(self, n: Node) -> Array:
        leaf: Leaf = n.attr
        memory = self.buffers[leaf.slot]
        if memory.ndim != 1 or memory.dtype != n.dtype.numpy:
            raise ValueError(
                f"slot {leaf.slot} wants flat memory of {n.dtype}, "
                f"not an array {memory.shape} of {memory.dtype}"
            )
        where: Array = np.full((), self.integer(leaf.offset))
        for extent, stride in zip(self.shape(n), leaf.strides, strict=True):
            where = where[..., None] + np.arange(extent) * self.integer(stride)
        _require(where, memory.size, f"slot {leaf.slot}")
        return memory[where]

    def scalar(self, n: Node) -> Array:
        return np.array(n.dtype.cast(self.scalars[n.attr]), n.dtype.numpy)

    def parameter(self, n: Node) -> Array:
        value: Array = self.parameters[n.attr]
        if value.dtype != n.dtype.numpy:
            raise ValueError(f"parameter {n.attr} is {value.dtype}, the node says {n.dtype}")
        return value

    def constant(self, n: Node) -> Array:
        return np.array(n.attr, n.dtype.numpy)

    def iota(self, n: Node) -> Array:
        return np.arange(*self.shape(n)).astype(n.dtype.numpy)

    def size(self, n: Node) -> Array:
        return np.array(self.integer(n.attr), n.dtype.numpy)

    # ---- movement
    def reshape(self, n: Node, x: Array) -> Array:
        return x.reshape(self.shape(n))

    def permute(self, n: Node, x: Array) -> Array:
        return x.transpose(n.attr)

    def expand(self, n: Node, x: Array) -> Array:
        return np.broadcast_to(x, self.shape(n))

    def slice(self, n: Node, x: Array) -> Array:
        where = self.positions(n.attr, self.shape(n))
        for axis, extent in enumerate(x.shape):
            _require(where[axis], extent, f"slice of axis {axis}")
        return x[np.ix_(*where)]

    def pad(self, n: Node, x: Array, fill: Array) -> Array:
        result = np.full(self.shape(n), fill, n.dtype.numpy)
        # What is placed outside is cut off: a negative low edge crops.
        where = self.positions(n.attr, x.shape)
        kept = [(p >= 0) & (p < extent) for p, extent in zip(where, result.shape, strict=True)]
        target = np.ix_(*(p[k] for p, k in zip(where, kept, strict=True)))
        result[target] = x[np.ix_(*kept)]
        return result

    def window(self, n: Node, x: Array) -> Array:
        axis, stride, dilation = n.attr
        shape = self.shape(n)
        start = self.integer(stride) * np.arange(shape[axis])
        where = start[:, None] + self.integer(dilation) * np.arange(shape[-1])
        _require(where, x.shape[axis], f"window over axis {axis}")
        return np.moveaxis(np.take(x, where, axis), axis + 1, -1)

    # ---- reductions and contraction
    def reduce(self, n: Node, x: Array) -> Array:
        x = x.astype(n.dtype.accumulator.numpy, copy=False)
        if n.op is ops.SUM:
            result = np.sum(x, axis=n.attr, dtype=x.dtype)
        elif n.op is ops.PROD:
            result = np.prod(x, axis=n.attr, dtype=x.dtype)
        elif n.op is ops.AMAX:
            result = np.max(x, axis=n.attr, initial=n.dtype.min)
        else:
            result = np.min(x, axis=n.attr, initial=n.dtype.max)
        return np.asarray(result).astype(n.dtype.numpy)

    def contract(self, n: Node, x: Array, y: Array) -> Array:
        wide = n.dtype.accumulator.numpy
        # NumPy takes labels below 52 only.
        names = {label: i for i, label in enumerate(dict.fromkeys(n.attr[0] + n.attr[1]))}
        lhs, rhs, out = ([names[label] for label in labels] for labels in n.attr)
        result = np.einsum(x.astype(wide), lhs, y.astype(wide), rhs, out, optimize=True)
        return np.asarray(result).astype(n.dtype.numpy)

    # ---- indexing
    def gather(self, n: Node, x: Array, *where: Array) -> Array:
        axes = n.attr
        inside = [
            np.clip(w, 0, x.shape[a] - 1).astype(np.intp) for w, a in zip(where, axes, strict=True)
        ]
        found = np.moveaxis(x, axes, range(len(axes)))[tuple(inside)]
        rank = where[0].ndim
        return np.moveaxis(found, range(rank), range(axes[0], axes[0] + rank))

    def scatter(self, n: Node, x: Array, *others: Array) -> Array:
        axes, mode = n.attr
        *where, updates = others
        result = np.moveaxis(x.astype(n.dtype.accumulator.numpy), axes, range(len(axes)))
        rank = where[0].ndim
        updates = np.moveaxis(updates, range(axes[0], axes[0] + rank), range(rank))
        inside = np.ones(where[0].shape, bool)
        for w, a in zip(where, axes, strict=True):
            inside &= (w >= 0) & (w < x.shape[a])
        at = tuple(w[inside].astype(np.intp) for w in where)
        new = updates[inside].astype(result.dtype)
        if mode == "set":
            result[at] = new
        else:
            _COMBINE[mode].at(result, at, new)
        return np.moveaxis(result, range(len(axes)), axes).astype(n.dtype.numpy)

    def update(self, n: Node, x: Array, value: Array) -> Array:
        where = self.positions(n.attr, value.shape)
        for axis, extent in enumerate(x.shape):
            _require(where[axis], extent, f"update of axis {axis}")
        result = x.copy()
        result[np.ix_(*where)] = value
        return result

    # ---- prefixes
    def prefix(self, n: Node, *xs: Array) -> Array:
        how: Prefix = n.attr
        elements = [np.moveaxis(x, how.axis, 0) for x in xs]
        result = np.empty(elements[how.item].shape, n.dtype.numpy)
        state: list[Array] = []
        for t in reversed(range(len(result))) if how.reverse else range(len(result)):
            element = [x[t] for x in elements]
            state = _merged(how.merge, [*state, *element]) if state else element
            result[t] = state[how.item]
        return np.moveaxis(result, 0, how.axis)

    # ---- complex numbers
    def complex(self, n: Node, real: Array, imaginary: Array) -> Array:
        result = np.empty(self.shape(n), n.dtype.numpy)
        result.real, result.imag = real, imaginary
        return result

    def real(self, n: Node, x: Array) -> Array:
        return x.real

    def imag(self, n: Node, x: Array) -> Array:
        return x.imag

    def as_real(self, n: Node, x: Array) -> Array:
        return np.stack((x.real, x.imag), -1)

    def as_complex(self, n: Node, x: Array) -> Array:
        return np.asarray(np.ascontiguousarray(x).view(n.dtype.numpy)).reshape(self.shape(n))

    # ---- loops
    def scan(self, n: Node, inputs: list[Array]) -> list[Array]:
        loop: Recurrence = n.attr
        first = loop.carries + loop.xs
        carries, xs, constants = (
            inputs[: loop.carries],
            inputs[loop.carries : first],
            inputs[first:],
        )
        length = self.integer(loop.length)
        ys = []
        for k in range(loop.carries, len(loop.body)):
            dtype, shape = loop.result(k)
            ys.append(np.empty(tuple(map(self.integer, shape)), dtype.numpy))
        for t in reversed(range(length)) if loop.reverse else range(length):
            parameters = [*carries, *(x[t] for x in xs), *constants]
            results = evaluate(loop.body, (), (), self.sizes, parameters)
            carries = results[: loop.carries]
            for y, element in zip(ys, results[loop.carries :], strict=True):
                y[t] = element
        return [*carries, *ys]

    def call(self, n: Node, inputs: list[Array]) -> list[Array]:
        call: LibraryCall = n.attr
        results = reference(call.name)(call.options, *inputs)
        return [r.astype(dtype.numpy) for r, (dtype, _) in zip(results, call.results, strict=True)]

    def item(self, n: Node, results: list[Array]) -> Array:
        result: Array = results[n.attr]
        return result


def _merged(merge: Sequence[Node], parameters: Sequence[Array]) -> list[Array]:
    """Expressions of PARAMETERs, element by element."""
    values: dict[Node, Array] = {}
    for n in topological(merge):
        if n.op is ops.PARAMETER:
            values[n] = parameters[n.attr]
        elif n.op is ops.CONST:
            values[n] = np.array(n.attr, n.dtype.numpy)
        else:
            values[n] = apply(n.op, n.dtype, *(values[i] for i in n.inputs))
    return [values[n] for n in merge]


def _require(where: Array, extent: int, what: str) -> None:
    """NumPy would read negative positions from the end: positions must lie in the extent."""
    if where.size and not (0 <= where.min() and where.max() < extent):
        raise IndexError(f"{what}: positions {where.min()}..{where.max()} of {extent}")


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}

_METHODS: dict[Op, Callable[..., Array]] = {
    ops.BUFFER: _Evaluator.buffer,
    ops.SCALAR: _Evaluator.scalar,
    ops.CONST: _Evaluator.constant,
    ops.IOTA: _Evaluator.iota,
    ops.SIZE: _Evaluator.size,
    ops.PARAMETER: _Evaluator.parameter,
    ops.RESHAPE: _Evaluator.reshape,
    ops.PERMUTE: _Evaluator.permute,
    ops.EXPAND: _Evaluator.expand,
    ops.SLICE: _Evaluator.slice,
    ops.PAD: _Evaluator.pad,
    ops.WINDOW: _Evaluator.window,
    ops.SUM: _Evaluator.reduce,
    ops.PROD: _Evaluator.reduce,
    ops.AMAX: _Evaluator.reduce,
    ops.AMIN: _Evaluator.reduce,
    ops.CONTRACT: _Evaluator.contract,
    ops.GATHER: _Evaluator.gather,
    ops.SCATTER: _Evaluator.scatter,
    ops.UPDATE: _Evaluator.update,
    ops.PREFIX: _Evaluator.prefix,
    ops.COMPLEX: _Evaluator.complex,
    ops.REAL: _Evaluator.real,
    ops.IMAG: _Evaluator.imag,
    ops.AS_REAL: _Evaluator.as_real,
    ops.AS_COMPLEX: _Evaluator.as_complex,
    ops.ITEM: _Evaluator.item,
}
