"""The kernel IR as Triton source: a complete, readable Python module, one function per phase.

A kernel passes through two small steps and is then written down statement by statement:
contractions become matrix products (`contractions_to_dot`), and tile axes are padded to Triton's
powers of two (`power_of_two_tiles`). The text touches no memory that the verified kernel does not.
Triton keeps tiles in shared memory on its own account, so a kernel for it has no stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from math import prod

from genesis.backends.gpu.codegen.address import offset
from genesis.backends.gpu.codegen.contractions_to_dot import Dot, find_contractions
from genesis.backends.gpu.codegen.device_functions import DeviceFunctions
from genesis.backends.gpu.codegen.dp4a import quadruple
from genesis.backends.gpu.codegen.expression import (
    PRODUCT,
    Frame,
    FunctionScope,
    Text,
    address,
    block,
    evaluate,
    padded,
    type_name,
    typed,
)
from genesis.backends.gpu.codegen.launch_bounds import FunctionWork
from genesis.backends.gpu.codegen.power_of_two_tiles import pad
from genesis.backends.gpu.codegen.rendered_kernel import Argument, RenderedKernel
from genesis.backends.gpu.codegen.weight_prefetch import Ahead, ahead, pieces
from genesis.ir import kernel as kir
from genesis.ir import ops
from genesis.ir.dtype import STORED, DType, bfloat16, bool_, float32, int8, int32, uint32
from genesis.ir.index import bounds
from genesis.ir.node import TRUE, Node, elementwise, topological
from genesis.ir.ops import Op
from genesis.ir.size import Symbol

#: Blocks of a kernel that may start early. In one of more, each has to say so and to ask, which
#: takes longer than a launch does.
FEW = 1 << 13


def render(
    kernel: kir.Kernel, precision: str = "highest", target: str = "sm_80", aligned: bool = True
) -> RenderedKernel:
    """The kernel as Triton source, with products of float32 as exact as asked for.

    Where memory is `aligned`, bytes that are multiplied by fours are read as words. Matrix units
    take floats of 8 bits from sm_89 on; elsewhere they are multiplied as bfloat16.
    Raises NotImplementedError, naming what Triton cannot say.
    """
    plan = pad(find_contractions(kernel))
    library = DeviceFunctions()
    words = aligned and target.startswith("sm_")
    generation = int(target.removeprefix("sm_")) if target.startswith("sm_") else 0
    floats8, early = words and generation >= 89, generation >= 90
    phases = [
        TritonFunction(plan, p, f"{kernel.name}_{p}", library, precision, words, floats8, early)
        for p in range(len(plan.phases))
    ]
    imports = "import triton\nimport triton.language as tl\n"
    if library.libdevice:
        imports += "from triton.language.extra import libdevice\n"
    title = f'"""Kernel {kernel.name}."""\n\n'
    bodies = chain.from_iterable((phase.text, phase.grid_text) for phase in phases)
    return RenderedKernel(
        title + "\n\n".join([imports, *(f"{f}\n" for f in chain(library.functions, bodies))]),
        tuple(phase.name for phase in phases),
        phases[0].arguments if phases else (),
        tuple(phase.work.num_warps for phase in phases),
        tuple(phase.work.num_stages for phase in phases),
        tuple(phase.work.registers for phase in phases),
        any(phase.work.words for phase in phases),
        tuple(
            tuple(k for k, b in enumerate(plan.buffers) if b.name in phase.loaded)
            for phase in phases
        ),
    )


# ---- one phase


class TritonFunction:
    """Writes the function of one phase."""

    def __init__(
        self,
        kernel: kir.Kernel,
        number: int,
        name: str,
        library: DeviceFunctions,
        precision: str,
        words: bool,
        floats8: bool,
        early: bool,
    ) -> None:
        phase = kernel.phases[number]
        self.precision, self.words, self.floats8 = precision, words, floats8
        self.kernel, self.phase = kernel, phase
        self.scope = FunctionScope(library, _axis_order(phase))
        self.name = self.scope.fresh(name)
        self.hazards = _hazards(phase)
        self.lines: list[str] = []
        self.depth = 0
        extents = [a.extent for a in phase.grid]
        known = [n for n in extents if isinstance(n, int)]
        self.work = FunctionWork(blocks=prod(known) if len(known) == len(extents) else 0)
        self.early = early and self.work.blocks <= FEW
        self.loaded: set[str] = set()  # the buffers that are read before waiting
        self.arguments = tuple(chain(
            map(self._pointer, kernel.buffers),
            map(self._parameter, kernel.params),
            map(self._symbol, kernel.symbols),
        ))  # fmt: skip
        self._function()

    @property
    def text(self) -> str:
        """The function."""
        return "\n".join(self.lines)

    @property
    def grid_text(self) -> str:
        """A plain Python function giving the number of programs."""
        names = [self.scope.names[s] for s in self.kernel.symbols]
        lines: list[str] = []
        extents = [kir.as_index(a.extent) for a in self.phase.grid]
        texts = evaluate(
            FunctionScope(DeviceFunctions(), names=self.scope.names), (), extents, lines.append
        )
        codes = [t.at(PRODUCT + 1) for t in texts] if len(texts) > 1 else [t.code for t in texts]
        lines.append(f"return {' * '.join(codes) or '1'}")
        body = "\n".join(f"    {line}" for line in lines)
        return f"def {self.name}_grid({', '.join(names)}):\n{body}"

    # ---- arguments
    def _pointer(self, buffer: kir.Buffer) -> Argument:
        name = self.scope.names[buffer] = self.scope.fresh(f"{buffer.name}_ptr")
        return Argument(name, f"*{_signature_type(buffer.dtype)}")

    def _parameter(self, param: kir.Param) -> Argument:
        name = self.scope.names[param] = self.scope.fresh(param.name)
        half = param.dtype.is_float and param.dtype.bits == 16
        return Argument(name, "i16" if half else _signature_type(param.dtype))

    def _symbol(self, symbol: Symbol) -> Argument:
        name = self.scope.names[symbol] = self.scope.fresh(symbol.name)
        small = symbol.high <= int32.max
        if small:
            self.scope.narrow.add(symbol)
        return Argument(name, "i32" if small else "i64", symbol.multiple % 16 == 0)

    # ---- statements
    def _emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def _indented(self) -> Iterator[None]:
        """A block of the text: names given in it end with it."""
        self.depth += 1
        self.scope.known.append({})
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self._emit("pass")
        self.scope.known.pop()
        self.depth -= 1

    def _function(self) -> None:
        self._emit("@triton.jit")
        self._emit(f"def {self.name}({', '.join(a.name for a in self.arguments)}):")
        with self._indented():
            if self.early:  # the next kernel may come, and this one waits for that before it
                self._emit("tl.extra.cuda.gdc_launch_dependents()")
            self._grid()
            for axis in self.scope.order:
                self._emit(f"{self.scope.name(axis)} = tl.arange(0, {padded(axis)})")
            plain = self.hazards or not self.words
            parts = [self.phase.body] if plain else pieces(self.phase.body)
            loads = [[] if plain else ahead(self.kernel, part) for part in parts]
            self.loaded = {a.load.attr.name for a in loads[0]}
            self._load(loads[0])
            if self.early:
                self._emit("tl.extra.cuda.gdc_wait()")
            for part, following in zip_longest(parts, loads[1:], fillvalue=()):
                self._load(following)
                self._body(part)

    def _load(self, loads: Iterable[Ahead]) -> None:
        """Load what is used later."""
        for a in loads:
            if a.load.dtype is uint32:
                self.scope.names[a.load.attr] = self._word_pointer(a.load.attr)
            frame = self.scope.frame(a.tiles)
            (text,) = self._evaluate(frame, [a.load])
            name = self.scope.fresh("ahead")
            self._emit(f"{name} = {text.code}")
            self.scope.known[-1][frame, a.load] = Text(name, tiles=text.tiles)

    def _word_pointer(self, words: kir.Buffer) -> str:
        pointers = {b.name: self.scope.names[b] for b in self.kernel.buffers}
        return f"tl.cast({pointers[words.name]}, tl.pointer_type(tl.uint32))"

    def _grid(self) -> None:
        """Decode the program's number: the last axis runs fastest."""
        grid = self.phase.grid
        extents = self._evaluate((), [kir.as_index(axis.extent) for axis in grid[1:]])
        rest = "tl.program_id(0)"
        if all(bounds(kir.as_index(a.extent))[1] <= int32.max for a in grid) and all(
            isinstance(a.extent, int) or t.narrow for a, t in zip(grid[1:], extents, strict=True)
        ):
            self.scope.narrow.update(grid)
        else:
            rest = f"tl.cast({rest}, tl.int64)"
        if len(grid) > 1:
            name = self.scope.fresh("program")
            self._emit(f"{name} = {rest}")
            rest = name
        for axis, extent in zip(reversed(grid[1:]), reversed(extents), strict=True):
            divisor = Text(extent.code, extent.level).at(PRODUCT + 1)
            self._emit(f"{self.scope.name(axis)} = {rest} % {divisor}")
            rest = f"{rest} // {divisor}"
        if grid:
            self._emit(f"{self.scope.name(grid[0])} = {rest}")

    def _body(self, body: kir.Body) -> None:
        added = False
        for s, following in zip_longest(body, body[1:]):
            if added:  # with what came before it
                added = False
            elif isinstance(s, kir.Reduce) and self._adds_four(s, following):
                added = True
            elif isinstance(s, kir.Let):
                self._let(s)
            elif isinstance(s, kir.Store):
                self._store(s)
            elif isinstance(s, kir.Loop):
                self._loop(s)
            elif isinstance(s, kir.Reduce):
                self._reduce(s)
            elif isinstance(s, kir.Scan):
                self._scan(s)
            elif isinstance(s, kir.If):
                self._branch(s)
            elif isinstance(s, Dot):
                self._dot(s)
            elif isinstance(s, kir.Stage):
                raise NotImplementedError(
                    f"stage {s.buffer.name} has no Triton form: Triton manages shared memory itself"
                )
            else:
                raise NotImplementedError(f"{type(s).__name__} statements have no Triton form")

    def _evaluate(self, frame: Frame, roots: Sequence[Node]) -> list[Text]:
        elements = 1
        for axis in frame:
            elements *= padded(axis)
        self.work.elements = max(self.work.elements, elements)
        loads = [m for m in topological(roots) if m.op is ops.LOAD]
        self.work.read |= {m.attr: elements * m.dtype.itemsize for m in loads if kir.tile_axes(m)}
        whole = [m for m in loads if kir.tile_axes(m) == set(frame)]
        self.work.met |= {m.attr: elements * m.dtype.itemsize for m in whole}
        if any(m.attr in self.hazards for m in loads):
            self._emit("tl.debug_barrier()")
        return evaluate(self.scope, frame, roots, self._emit)

    def _named(self, code: str, hint: str) -> str:
        """A name for the value of `code`."""
        if code.isidentifier():
            return code
        name = self.scope.fresh(hint)
        self._emit(f"{name} = {code}")
        return name

    def _blocks(self, frame: Frame, values: Sequence[Node]) -> list[str]:
        """The values as blocks with every axis of the frame."""
        texts = self._evaluate(frame, values)
        return [block(v, t, frame) for v, t in zip(values, texts, strict=True)]

    def _carried(self, values: Sequence[Node], carried: Sequence[kir.Carry]) -> list[str]:
        """The inits or steps of a loop; those of one frame are evaluated together."""
        codes: dict[int, str] = {}
        frames = [self.scope.frame(frozenset(c.local.tiles)) for c in carried]
        for frame in dict.fromkeys(frames):
            members = [k for k, f in enumerate(frames) if f == frame]
            blocks = self._blocks(frame, [values[k] for k in members])
            codes.update(zip(members, blocks, strict=True))
        return [codes[k] for k in range(len(values))]

    def _let(self, s: kir.Let, narrow: bool = True) -> None:
        if s.value.op is ops.WHERE and s.local.tiles and not kir.tile_axes(s.value.inputs[0]):
            # What a whole tile decides alike is a branch, and both ways give one type.
            condition, then, orelse = s.value.inputs
            self._let(kir.Let(s.local, orelse), narrow=False)
            (text,) = self._evaluate((), [condition])
            self._emit(f"if {text.code}:")
            with self._indented():
                self._let(kir.Let(s.local, then), narrow=False)
            return
        frame = self.scope.frame(frozenset(s.local.tiles) | kir.tile_axes(s.value))
        (text,) = self._evaluate(frame, [s.value])
        if narrow and text.narrow and text.tiles.issuperset(frame):
            self.scope.narrow.add(s.local)
            code = text.code
        else:
            code = block(s.value, text, frame)
        self._emit(f"{self.scope.name(s.local)} = {code}")

    def _store(self, s: kir.Store) -> None:
        where = offset(s.buffer, s.index)
        frame = self.scope.frame(kir.tile_axes(where, s.value, s.mask))
        self.work.stores_tiles |= bool(frame)
        place, value, mask = self._evaluate(frame, [where, s.value, s.mask])
        if s.buffer in self.hazards:
            self._emit("tl.debug_barrier()")
        function = "store" if s.atomic is None else _ATOMIC.get(s.atomic)
        if function is None:
            raise NotImplementedError(f"atomic {s.atomic} into {s.buffer.name} has no Triton form")
        arguments = [address(self.scope.names[s.buffer], place)]
        code = typed(s.value, value) if s.buffer.dtype.bits == 64 else value.code
        arguments.append(self._named(code, s.buffer.name) if len(code) > 60 else code)
        if s.mask is not TRUE:
            arguments.append(f"mask={mask.code}")
        if s.atomic is not None:
            arguments.append('sem="relaxed"')
        self._emit(f"tl.{function}({', '.join(arguments)})")

    def _loop(self, s: kir.Loop) -> None:
        names = [self.scope.name(c.local) for c in s.carried]
        inits = self._carried([c.init for c in s.carried], s.carried)
        for name, init in zip(names, inits, strict=True):
            self._emit(f"{name} = {init}")
        (extent,) = self._evaluate((), [kir.as_index(s.axis.extent)])
        if extent.narrow or isinstance(s.axis.extent, int):
            self.scope.narrow.add(s.axis)
        self._emit(f"for {self.scope.name(s.axis)} in range({extent.code}):")
        before = len(self.work.products)
        self.work.loops = True
        with self._indented():
            self._body(s.body)
            self.work.held = max(self.work.held, sum(self.work.products[before:]))
            steps = self._carried([c.step for c in s.carried], s.carried)
            updates = [(n, v) for n, v in zip(names, steps, strict=True) if n != v]
            if updates:
                self._emit(" = ".join(", ".join(side) for side in zip(*updates, strict=True)))

    def _branch(self, s: kir.If) -> None:
        (condition,) = self._evaluate((), [s.condition])
        self._emit(f"if {condition.code}:")
        with self._indented():
            self._body(s.body)
        if s.orelse:
            self._emit("else:")
            with self._indented():
                self._body(s.orelse)

    def _dot(self, s: Dot) -> None:
        self.work.multiplied.append(s.left.dtype)
        self.work.products.append(padded(s.row) * padded(s.column))
        left, right, row, column = s.left, s.right, s.row, s.column
        if self.scope.order.index(row) > self.scope.order.index(column):
            left, right, row, column = right, left, column, row
        self.work.rows = max(self.work.rows, padded(row))
        if left.dtype in STORED:
            self.scope.floats8 = self.floats8 and left.op is right.op is ops.LOAD
            if not self.scope.floats8:  # bfloat16 has all their values
                left, right = (_cast(_cast(f, float32), bfloat16) for f in (left, right))
        (a,) = self._blocks((row, s.inner), [left])
        a = self._named(self._rounded(a, left), "left")
        (b,) = self._blocks((s.inner, column), [right])
        b = self._named(self._rounded(b, right), "right")
        self.scope.floats8 = False
        name = self.scope.name(s.local)
        arguments = [a, b, *([name] if s.accumulate else [])]
        if left.dtype is float32 and self.precision in _PRODUCTS:
            arguments.append(f'input_precision="{_PRODUCTS[self.precision]}"')
        arguments.append(f"out_dtype={type_name(s.local.dtype)}")
        self._emit(f"{name} = tl.dot({', '.join(arguments)})")

    def _rounded(self, code: str, operand: Node) -> str:
        """An operand of a product as it is multiplied."""
        plain = operand.dtype is not float32 or self.precision in _PRODUCTS
        return code if plain else f"tl.cast({code}, tl.bfloat16)"

    # ---- reductions
    def _reduce(self, s: kir.Reduce) -> None:
        frame = self.scope.frame(kir.tile_axes(*s.values) | {s.axis})
        dimension = frame.index(s.axis)
        values = self._blocks(frame, s.values)
        names = [self.scope.name(v) for v in s.locals]
        op = kir.simple_fold(s.merge)
        if op is not None:
            code = self._fold(op, s.values[0].dtype, values[0], dimension, s.merge)
            self._emit(f"{names[0]} = {code}")
        elif padded(s.axis) == s.axis.extent and _commutes(s.merge):
            self._emit(
                f"{', '.join(names)} = {self._combine('tl.reduce', s.merge, values, dimension)}"
            )
        else:
            # Triton reduces in any order; a scan keeps it, and its last lane is the result.
            parts = [self.scope.fresh(f"{name}_scan") for name in names]
            if s.merge.result == tuple(v.node for v in s.merge.right):
                scan = ", ".join(values)  # keeping the right changes nothing
            else:
                scan = self._combine("tl.associative_scan", s.merge, values, dimension)
            self._emit(f"{', '.join(parts)} = {scan}")
            assert isinstance(s.axis.extent, int)
            (last,) = self._evaluate(frame, [s.axis.node.equal(s.axis.extent - 1)])
            for name, part, value in zip(names, parts, s.values, strict=True):
                zero = f"tl.full([], 0, {type_name(value.dtype)})"
                picked = f"tl.where({last.code}, {part}, {zero})"
                code = self._fold(ops.ADD, value.dtype, picked, dimension, s.merge)
                self._emit(f"{name} = {code}")

    def _adds_four(self, s: kir.Reduce, following: kir.Statement | None) -> bool:
        """Write down four products of bytes, from words, and what they are added to."""
        four = quadruple(s) if self.words and not self.hazards else None
        if four is None or not isinstance(following, kir.Let):
            return False
        (local,) = s.locals
        others = [n for n in following.value.inputs if n is not local.node]
        if following.value.op is not ops.ADD or len(others) != 1:
            return False
        for n in topological(four):
            if n.op is ops.LOAD:
                self.scope.names[n.attr] = self._word_pointer(n.attr)
        signed = all(f.inputs[0].dtype is int8 for f in s.values[0].inputs)
        function = "four_signed_products" if signed else "four_products"
        self.scope.library.use(function)
        self.work.words = True
        frame = self.scope.frame(kir.tile_axes(*four) | frozenset(following.local.tiles))
        texts = self._evaluate(frame, [*four, *others])
        arguments = ", ".join(t.code for t in texts)
        self._emit(f"{self.scope.name(following.local)} = {function}({arguments})")
        return True

    def _scan(self, s: kir.Scan) -> None:
        frame = self.scope.frame(kir.tile_axes(*s.values) | {s.axis})
        values = self._blocks(frame, s.values)
        names = ", ".join(self.scope.name(v) for v in s.locals)
        scan = self._combine("tl.associative_scan", s.merge, values, frame.index(s.axis))
        self._emit(f"{names} = {scan}")

    def _fold(self, op: Op, dtype: DType, value: str, dimension: int, merge: kir.Merge) -> str:
        """Triton's own sum, maximum and minimum where they mean the same."""
        if dtype is bool_:
            value = f"tl.cast({value}, tl.int32)"
            if op is ops.XOR:
                return f"tl.sum({value}, axis={dimension}) % 2 != 0"
            function = "max" if op in (ops.ADD, ops.OR, ops.MAX) else "min"
            return f"tl.{function}({value}, axis={dimension}) != 0"
        half = dtype.is_float and dtype.bits == 16
        if op in (ops.ADD, ops.MAX, ops.MIN):
            if half:
                value = f"tl.cast({value}, tl.float32)"
            if op is ops.ADD:
                code = f"tl.sum({value}, axis={dimension})"
            elif dtype.is_float:
                helper = "nan_maximum" if op is ops.MAX else "nan_minimum"
                self.scope.library.use(helper)
                code = f"tl.reduce({value}, {dimension}, {helper})"
            else:
                code = f"tl.{'max' if op is ops.MAX else 'min'}({value}, axis={dimension})"
            return f"tl.cast({code}, {type_name(dtype)})" if dtype.bits < 32 else code
        return self._combine("tl.reduce", merge, [value], dimension)

    def _combine(
        self, function: str, merge: kir.Merge, values: Sequence[str], dimension: int
    ) -> str:
        """A call of tl.reduce or tl.associative_scan with the merge as a function."""
        name = self._merge(merge)
        operands = values[0] if len(values) == 1 else f"({', '.join(values)})"
        return f"{function}({operands}, {dimension}, {name})"

    def _merge(self, merge: kir.Merge) -> str:
        """The name of a function that combines two states."""
        scope = FunctionScope(self.scope.library)
        name = self.scope.fresh(f"{self.name}_merge")
        arguments = ", ".join(scope.name(v) for v in chain(merge.left, merge.right))
        lines = ["@triton.jit", f"def {name}({arguments}):"]
        texts = evaluate(scope, (), merge.result, lambda line: lines.append(f"    {line}"))
        results = [typed(n, t) for n, t in zip(merge.result, texts, strict=True)]
        lines.append(f"    return {', '.join(results)}")
        self.scope.library.add(name, "\n".join(lines))
        return name


def _axis_order(phase: kir.Phase) -> tuple[kir.Axis, ...]:
    """The tile axes of a phase: first as stores index with them, then as they appear."""
    order: dict[kir.Axis, None] = {}
    statements = list(kir.walk(phase.body))
    for roots in chain(
        (s.index for s in statements if isinstance(s, kir.Store)), map(_expressions, statements)
    ):
        for n in topological(roots):
            axes = n.attr.tiles if n.op is ops.LOCAL else (n.attr,) if n.op is ops.AXIS else ()
            order.update((a, None) for a in axes if a.kind is kir.AxisKind.TILE)
    # What is reduced may be the same along the axis, and mention it nowhere.
    order.update((s.axis, None) for s in statements if isinstance(s, kir.Reduce | kir.Scan))
    return tuple(order)


def _expressions(s: kir.Statement) -> tuple[Node, ...]:
    return (s.left, s.right, s.local.node) if isinstance(s, Dot) else kir.expressions(s)


def _cast(n: Node, dtype: DType) -> Node:
    return elementwise(ops.CAST, n, dtype=dtype)


def _hazards(phase: kir.Phase) -> set[kir.Buffer]:
    """Buffers that a phase both writes and reads: their accesses need barriers between them.

    One statement outside of loops needs none: what it stores depends on what it loaded.
    """
    once = {id(s) for s in phase.body}
    readers: dict[kir.Buffer, set[int]] = {}
    writers: dict[kir.Buffer, set[int]] = {}
    for s in kir.walk(phase.body):
        for n in topological(_expressions(s)):
            if n.op is ops.LOAD:
                readers.setdefault(n.attr, set()).add(id(s))
        if isinstance(s, kir.Store):
            writers.setdefault(s.buffer, set()).add(id(s))
    both = readers.keys() & writers.keys()
    return {b for b in both if len(readers[b] | writers[b]) > 1 or not writers[b] <= once}


def _commutes(merge: kir.Merge) -> bool:
    """Whether swapping the operands plainly gives the same result."""
    swap = dict(zip(merge.left + merge.right, merge.right + merge.left, strict=True))
    return all(_canonical(r, {}) == _canonical(r, swap) for r in merge.result)


def _canonical(n: Node, swap: dict[kir.Local, kir.Local]) -> object:
    done: dict[Node, object] = {}
    for m in topological([n]):
        inputs = [done[i] for i in m.inputs]
        if m.op in ops.COMMUTATIVE:
            inputs.sort(key=repr)
        attr = swap.get(m.attr, m.attr) if m.op is ops.LOCAL else m.attr
        done[m] = (m.op, repr(attr), m.dtype, tuple(inputs))
    return done[n]


def _signature_type(dtype: DType) -> str:
    """A type in the notation of Triton's signatures."""
    if dtype.kind == "bool":
        return "i1"
    if dtype in STORED:
        return "u8"
    if dtype.is_float:
        return f"{'bf' if dtype.name == 'bfloat16' else 'fp'}{dtype.bits}"
    return f"{'i' if dtype.kind == 'int' else 'u'}{dtype.bits}"


# float32 is the sum of three numbers of 8 significant bits, as matrix units take them. Of the nine
# products of two such sums, six are all that float32 can tell, and three are 16 bits of it.
_PRODUCTS = {"highest": "bf16x6", "high": "bf16x3"}

_ATOMIC = {
    ops.ADD: "atomic_add", ops.MAX: "atomic_max", ops.MIN: "atomic_min",
    ops.AND: "atomic_and", ops.OR: "atomic_or", ops.XOR: "atomic_xor",
}  # fmt: skip
