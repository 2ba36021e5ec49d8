"""The validity checker of the kernel IR: names, scopes and types.

Every pass from Kernel to Kernel must leave a valid one behind, and `check` says whether it did. It
is one walk over the statements with the names in scope at hand; each expression is looked at once.
What needs arithmetic (bounds, races, initialisation) is the verifier's task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import DType, bool_, float32, index, uint8, uint32, uint64
from genesis.ir.node import TRUE, Node, show, topological
from genesis.ir.size import Symbol

#: The operations an atomic store can combine with.
ATOMIC = (ops.ADD, ops.MUL, ops.MAX, ops.MIN, ops.AND, ops.OR, ops.XOR)


class InvalidKernel(ValueError):
    """A kernel that breaks a rule of the IR; the message names kernel, statement and rule."""


def check(kernel: kir.Kernel) -> None:
    """Raise `InvalidKernel` unless names, scopes and types of a kernel are right.

    >>> from genesis.ir.kernel_builder import Builder
    >>> from genesis.ir.dtype import float32, int32
    >>> k = Builder("mixed")
    >>> x, y = k.input("x", int32, 4), k.output("y", float32, 4)
    >>> i = k.grid("i", 4)
    >>> k.store(y, (i,), x[i])
    >>> check(k.kernel())
    Traceback (most recent call last):
    genesis.ir.check.InvalidKernel: kernel mixed: y[i] = x[i]: stores int32 in a float32 buffer
    """
    _Checker(kernel).run()


# ---- the types of scalar operations

_FLOAT_ONLY = frozenset(
    {ops.SQRT, ops.EXP, ops.EXP2, ops.LOG, ops.LOG2, ops.SIN, ops.COS, ops.TAN}
    | {ops.TANH, ops.ERF, ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC}
    | {ops.DIV, ops.FMOD, ops.ATAN2, ops.FMA}
)
_INTEGER_ONLY = frozenset({ops.FLOORDIV, ops.MOD, ops.SHL, ops.SHR})
_BITS_ONLY = frozenset({ops.NOT, ops.AND, ops.OR, ops.XOR})


def type_error(n: Node) -> str | None:
    """What is wrong with the types of one scalar operation, or None."""
    types = [i.dtype for i in n.inputs]
    if n.op in (ops.CAST, ops.BITCAST):
        if n.op is ops.BITCAST and types[0].bits != n.dtype.bits:
            return f"reinterprets {types[0]} as {n.dtype} of another width"
        return None
    if n.op is ops.RANDOM and {*types, n.dtype} != {uint64}:
        return "takes and gives uint64"
    if n.op is ops.PAIRS:
        right = {*types} == {uint32} and n.dtype is float32
        return None if right else "takes uint32 and gives float32"
    if n.op is ops.LOOKUP:
        right = types == [uint8, uint64, uint64] and n.dtype is uint8
        return None if right else "takes uint8 and two uint64, and gives uint8"
    if n.op.group == "compare":
        return _differ(types) or (None if n.dtype is bool_ else f"has type {n.dtype}, not bool")
    if n.op is ops.WHERE:
        if types[0] is not bool_:
            return f"has a condition of type {types[0]}"
        return _differ([*types[1:], n.dtype])
    kind = n.dtype.kind
    if n.op in _FLOAT_ONLY and kind != "float":
        return f"is for floats, not {n.dtype}"
    if n.op in _INTEGER_ONLY and kind not in ("int", "uint"):
        return f"is for integers, not {n.dtype}"
    if n.op in _BITS_ONLY and kind == "float":
        return f"is for integers and bool, not {n.dtype}"
    return _differ([*types, n.dtype])


def _differ(types: list[DType]) -> str | None:
    if all(t is types[0] for t in types):
        return None
    return f"mixes {' and '.join(sorted({t.name for t in types}))}"


_ARITY = {"unary": 1, "binary": 2, "compare": 2, "ternary": 3}


# ---- the walk


class _Checker:
    """Names in scope, by name; what a name stands for must be exactly that."""

    def __init__(self, kernel: kir.Kernel) -> None:
        self.kernel = kernel
        self.scope: dict[str, kir.Axis | kir.Buffer | kir.Local | kir.Param | Symbol] = {}
        self.tiles: dict[str, kir.Axis] = {}
        self.typed: set[Node] = set()
        self.statement: kir.Statement | str = "arguments"

    def run(self) -> None:
        k = self.kernel
        for symbol in k.symbols:
            self._declare(symbol)
        for param in k.params:
            self._declare(param)
        for buffer in k.buffers:
            if buffer.role is kir.Role.STAGE:
                self._fail(f"stage {buffer.name} is an argument: give it a Stage statement")
            self._buffer(buffer)
        for number, phase in enumerate(k.phases):
            self.statement = f"grid of phase {number}"
            with self._nested():
                for axis in phase.grid:
                    self._launch_constant(axis.extent, f"the extent of {axis.name}")
                for axis in phase.grid:
                    self._bind(axis, kir.AxisKind.GRID)
                self._body(phase.body)

    def _body(self, body: kir.Body) -> None:
        for s in body:
            self.statement = s
            if isinstance(s, kir.Let):
                self._uses([s.value])
                self._result(s.local, s.value.dtype, kir.tile_axes(s.value))
            elif isinstance(s, kir.Store):
                self._store(s)
            elif isinstance(s, kir.Loop):
                self._loop(s)
            elif isinstance(s, kir.Reduce | kir.Scan):
                self._reduce(s)
            elif isinstance(s, kir.If):
                self._uses([s.condition])
                self._typed(s.condition, bool_, "the condition")
                self._untiled(s.condition, "the condition")
                for branch in (s.body, s.orelse):
                    with self._nested():
                        self._body(branch)
            elif isinstance(s, kir.Stage):
                if s.buffer.role is not kir.Role.STAGE:
                    self._fail(f"{s.buffer.name} is not a stage but {s.buffer.role.value}")
                extents = (*s.buffer.shape, *(s.buffer.strides or ()), s.buffer.offset)
                if not all(kir.as_index(e).op is ops.CONST for e in extents):
                    self._fail("the layout of a stage is constant")
                self._buffer(s.buffer)
            elif isinstance(s, kir.Prefetch):
                self._uses(s.index)
                self._accessed(s.buffer, s.index, TRUE)
            else:
                self._fail("is not a statement of the kernel IR")

    def _store(self, s: kir.Store) -> None:
        self._uses([*s.index, s.value, s.mask])
        self._accessed(s.buffer, s.index, s.mask)
        if s.buffer.role is kir.Role.INPUT:
            self._fail(f"stores to the input {s.buffer.name}")
        if s.value.dtype is not s.buffer.dtype:
            self._fail(f"stores {s.value.dtype} in a {s.buffer.dtype} buffer")
        if s.atomic is not None and s.atomic not in ATOMIC:
            self._fail(f"{s.atomic.name} is not an atomic operation")

    def _loop(self, s: kir.Loop) -> None:
        extent = kir.as_index(s.axis.extent)
        self._uses([extent, *(c.init for c in s.carried)])
        self._typed(extent, index, "the extent")
        self._untiled(extent, "the extent")
        for c in s.carried:
            self._result(c.local, c.init.dtype, kir.tile_axes(c.init))
        with self._nested():
            self._bind(s.axis, kir.AxisKind.LOOP)
            self._body(s.body)
            self.statement = s
            self._uses([c.step for c in s.carried])
        for c in s.carried:
            self._fits(c.local, c.step.dtype, kir.tile_axes(c.step), "step")
        if s.merge is not None:
            self._merge(s.merge, [c.local.dtype for c in s.carried])

    def _reduce(self, s: kir.Reduce | kir.Scan) -> None:
        self._uses(s.values)
        self._tile(s.axis)
        if len(s.locals) != len(s.values):
            self._fail(f"names {len(s.locals)} results of {len(s.values)} values")
        self._merge(s.merge, [v.dtype for v in s.values])
        for local, value, tiles in zip(s.locals, s.values, _mixed_tiles(s), strict=True):
            if isinstance(s, kir.Reduce):
                tiles -= {s.axis}
                if s.axis in local.tiles:
                    self._fail(f"{local.name} still has the reduced axis {s.axis.name}")
            else:
                tiles |= {s.axis}
            self._result(local, value.dtype, tiles)

    def _merge(self, merge: kir.Merge, types: list[DType]) -> None:
        for side in (merge.left, merge.right):
            if [v.dtype for v in side] != types or any(v.tiles for v in side):
                self._fail("the operands of merge are not like the merged values")
        if [r.dtype for r in merge.result] != types:
            self._fail("the results of merge are not like the merged values")
        known = {*merge.left, *merge.right}
        for n in topological(merge.result):
            if n.op is ops.LOCAL:
                if n.attr not in known:
                    self._fail(f"merge mentions {n.attr.name}, which is neither left nor right")
            elif n.op is not ops.CONST and not n.op.is_elementwise:
                self._fail(f"merge mentions {show(n, 60)}, which is not left, right or constant")
            else:
                self._scalar(n)

    # ---- names
    def _declare(self, thing: kir.Axis | kir.Buffer | kir.Local | kir.Param | Symbol) -> None:
        if thing.name in self.scope or thing.name in self.tiles:
            self._fail(f"the name {thing.name} is taken")
        self.scope[thing.name] = thing

    def _bind(self, axis: kir.Axis, kind: kir.AxisKind) -> None:
        if axis.kind is not kind:
            self._fail(f"axis {axis.name} is a {axis.kind.name} axis, not {kind.name}")
        self._declare(axis)

    def _tile(self, axis: kir.Axis) -> None:
        if axis.kind is not kir.AxisKind.TILE:
            self._fail(f"{axis.name} is not a TILE axis")
        if not isinstance(axis.extent, int) or axis.extent < 1:
            self._fail(f"the extent of TILE axis {axis.name} is {axis.extent}, not a positive int")
        if axis.name in self.scope or self.tiles.setdefault(axis.name, axis) != axis:
            self._fail(f"the name {axis.name} is taken")

    def _buffer(self, b: kir.Buffer) -> None:
        for extent in (*b.shape, *(b.strides or ()), b.offset):
            self._launch_constant(extent, f"the layout of {b.name}")
        if b.strides is not None and len(b.strides) != len(b.shape):
            self._fail(f"{b.name} has {len(b.shape)} dimensions and {len(b.strides)} strides")
        self._declare(b)

    def _result(self, local: kir.Local, dtype: DType, tiles: Iterable[kir.Axis]) -> None:
        self._fits(local, dtype, tiles, "value")
        for axis in local.tiles:
            self._tile(axis)
        self._declare(local)

    def _fits(self, local: kir.Local, dtype: DType, tiles: Iterable[kir.Axis], what: str) -> None:
        if local.dtype is not dtype:
            self._fail(f"{local.name} is {local.dtype}, its {what} {dtype}")
        missing = sorted(a.name for a in set(tiles) - set(local.tiles))
        if missing:
            self._fail(f"{local.name} lacks tile axes of its {what}: {', '.join(missing)}")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Names declared inside do not escape."""
        outer = self.scope
        self.scope = dict(outer)
        yield
        self.scope = outer

    # ---- expressions
    def _uses(self, roots: Iterable[Node]) -> None:
        for n in topological(roots):
            if n.op is ops.AXIS and n.attr.kind is kir.AxisKind.TILE:
                self._tile(n.attr)
            elif n.op in (ops.AXIS, ops.LOCAL, ops.PARAM, ops.SYMBOL):
                found = self.scope.get(n.attr.name)
                # Classes first: a Local and a Param of one name must not pass for each other.
                if type(found) is not type(n.attr) or found != n.attr:
                    self._fail(f"uses {n.op.name} {n.attr.name} where there is none like it")
            if n.op is ops.LOAD:
                rank = len(n.attr.shape)
                if len(n.inputs) != rank + 2:
                    self._fail(f"{n.attr.name} has {rank} dimensions, loaded otherwise")
                self._accessed(n.attr, n.inputs[:rank], n.inputs[rank])
                self._typed(n.inputs[rank + 1], n.attr.dtype, "the value of masked-off loads")
            if n not in self.typed:
                self.typed.add(n)
                self._scalar(n)

    def _scalar(self, n: Node) -> None:
        """Types, which do not depend on where an expression is used."""
        if n.shape:
            self._fail(f"{show(n, 60)} has shape {n.shape}: kernels compute with scalars and tiles")
        if n.op in (ops.AXIS, ops.SYMBOL):
            self._typed(n, index, n.attr.name)
        elif n.op in (ops.LOCAL, ops.PARAM, ops.LOAD):
            self._typed(n, n.attr.dtype, n.attr.name)
        elif n.op.is_elementwise:
            if len(n.inputs) != _ARITY[n.op.group]:
                self._fail(f"{show(n, 60)} has {len(n.inputs)} operands")
            problem = type_error(n)
            if problem:
                self._fail(f"{show(n, 60)} {problem}")
        elif n.op is not ops.CONST:
            self._fail(f"{show(n, 60)} is not an operation of kernels")

    def _accessed(self, b: kir.Buffer, indices: tuple[Node, ...], mask: Node) -> None:
        if self.scope.get(b.name) != b:
            self._fail(f"accesses {b.name}, which is not a buffer here")
        if len(indices) != len(b.shape):
            self._fail(f"{b.name} has {len(b.shape)} dimensions, indexed with {len(indices)}")
        for i in indices:
            self._typed(i, index, f"an index of {b.name}")
        self._typed(mask, bool_, f"the mask of {b.name}")

    def _launch_constant(self, value: kir.Index, what: str) -> None:
        n = kir.as_index(value)
        for m in topological([n]):
            if m.op is not ops.CONST and m.op is not ops.SYMBOL and not m.op.is_elementwise:
                self._fail(f"{what} depends on {show(m, 60)}, not on symbols only")
        self._uses([n])
        self._typed(n, index, what)

    def _typed(self, n: Node, dtype: DType, what: str) -> None:
        if n.dtype is not dtype:
            self._fail(f"{what} is {n.dtype}, not {dtype}: {show(n, 60)}")

    def _untiled(self, n: Node, what: str) -> None:
        tiles = sorted(a.name for a in kir.tile_axes(n))
        if tiles:
            self._fail(f"{what} depends on tile axes: {', '.join(tiles)}")

    def _fail(self, problem: str) -> None:
        where = self.statement if isinstance(self.statement, str) else _summary(self.statement)
        raise InvalidKernel(f"kernel {self.kernel.name}: {where}: {problem}")


def _mixed_tiles(s: kir.Reduce | kir.Scan) -> list[set[kir.Axis]]:
    """The tile axes of each result: those of every value that the merge lets flow into it."""
    sources = {v: k for side in (s.merge.left, s.merge.right) for k, v in enumerate(side)}
    flows = [
        {sources[n.attr] for n in topological([result]) if n.op is ops.LOCAL} | {k}
        for k, result in enumerate(s.merge.result)
    ]
    for _ in flows:  # paths are no longer than the number of values
        flows = [set().union(*(flows[j] for j in flow)) for flow in flows]
    own = [kir.tile_axes(v) for v in s.values]
    return [set().union(*(own[j] for j in flow)) for flow in flows]


def _summary(s: kir.Statement) -> str:
    """A statement in one line."""
    if isinstance(s, kir.Let):
        return f"{s.local.name} = {show(s.value, 60)}"
    if isinstance(s, kir.Store):
        return f"{s.buffer.name}[{', '.join(show(i, 60) for i in s.index)}] = {show(s.value, 60)}"
    if isinstance(s, kir.Loop):
        return f"loop {s.axis.name}"
    if isinstance(s, kir.Reduce | kir.Scan):
        names = ", ".join(v.name for v in s.locals)
        return f"{names} = {type(s).__name__.lower()} over {s.axis.name}"
    if isinstance(s, kir.If):
        return f"if {show(s.condition, 60)}"
    return f"stage {s.buffer.name}" if isinstance(s, kir.Stage) else repr(s)
