"""Kernel expressions as integer sets, and the questions put to isl about them.

The `Translator` gives index expressions and masks their meaning in linear forms (`affine`). A
division by a constant introduces a *quotient*, an integer variable defined by two inequalities.
What is not affine (a loaded value, a product of two sizes) becomes an *opaque* variable that is
only known to lie in a range: every set built here contains the true one, and is the true one when
nothing opaque is in it.

Constraints reach isl as matrices in PolyLib notation, which it reads more than ten times faster
than formulas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import islpy as isl

from genesis.compiler.verify.affine import (
    ALWAYS,
    DATA_CASES,
    MAX_CASES,
    NEVER,
    ONE,
    ZERO,
    AffineValue,
    Condition,
    Conjunction,
    Constraint,
    LinearCase,
    LinearForm,
    Variable,
    VariableKind,
    Vary,
    at_least,
    compare,
    conjoin,
    conjunction,
    disjunction,
    extreme,
    negation,
    scaled,
    select,
    total,
)
from genesis.ir import ops
from genesis.ir.dtype import DType, bool_
from genesis.ir.kernel import Axis, AxisKind, Buffer, Index, Local, Role, as_index
from genesis.ir.node import Node, show, topological
from genesis.ir.size import Symbol

#: isl stops after this many elementary steps (about a second) and the claim is undecided.
MAX_OPERATIONS = 2_000_000


@dataclass(slots=True)
class _Meaning:
    """What is known of a node: an integer's value or a bool's condition (neither for floats)."""

    vary: Vary
    data: bool = False  # depends on loaded values or parameters
    volatile: bool = False  # reads memory that the kernel writes: means this in one statement only
    value: AffineValue | None = None
    condition: Condition | None = None


@dataclass
class Translator:
    """Gives index expressions and masks of one kernel their meaning. Each node is visited once."""

    #: Inputs that share memory with an output: what is read from them may change.
    overwritten: frozenset[str] = frozenset()
    #: The variables that are fixed during a launch, in order of appearance: isl's parameters.
    parameters: list[Variable] = field(default_factory=list)
    #: The variables that stand for integers which may leave their type.
    wrapped: list[Variable] = field(default_factory=list)
    _symbols: dict[Symbol, LinearForm] = field(default_factory=dict)
    _tiles: dict[Axis, Variable] = field(default_factory=dict)
    _products: dict[frozenset[Variable], Variable] = field(default_factory=dict)
    _quotients: dict[tuple[object, ...], LinearForm] = field(default_factory=dict)
    #: Forms that are remainders, whatever else holds: the greatest they can be, and a name.
    _remainders: dict[tuple[object, ...], tuple[int, Variable | None]] = field(default_factory=dict)
    _bindings: dict[Node, _Meaning] = field(default_factory=dict)
    _meanings: dict[Node, _Meaning] = field(default_factory=dict)
    _volatile: list[Node] = field(default_factory=list)

    def value(self, n: Index) -> AffineValue:
        """An integer expression's value."""
        found = self._meaning(as_index(n)).value
        assert found is not None, f"{n} is not an integer"
        return found

    def condition(self, n: Node) -> Condition:
        """Where a boolean expression holds."""
        found = self._meaning(n).condition
        assert found is not None, f"{n} is not a condition"
        return found

    def variable(self, label: str, kind: VariableKind, vary: Vary, low: int, high: int) -> Variable:
        """A new variable."""
        made = Variable(label, kind, vary, low, high)
        if vary is Vary.LAUNCH and kind is not VariableKind.ELEMENT:
            self.parameters.append(made)
        return made

    def enter(self, axis: Axis) -> tuple[Variable, tuple[Conjunction, ...]]:
        """A fresh variable for a GRID or LOOP axis, and the condition that it is in its extent."""
        extent = self.value(axis.extent)
        label, high = axis.name, max(0, extent.high - 1)
        made = self.variable(label, VariableKind.AXIS, Vary.BLOCK, 0, high)
        self._bind(axis.node, _Meaning(Vary.BLOCK, value=AffineValue.of(LinearForm({made: 1}))))
        inside = LinearForm({made: -1}, -1)
        cases = (conjoin(c.when, at_least(c.linear.plus(inside))) for c in extent.cases)
        return made, tuple(c for c in cases if c is not None)

    def tile(self, axis: Axis) -> Variable:
        """The variable of a TILE axis."""
        if axis not in self._tiles:
            assert axis.kind is AxisKind.TILE and isinstance(axis.extent, int)
            last = axis.extent - 1
            self._tiles[axis] = self.variable(axis.name, VariableKind.AXIS, Vary.TILE, 0, last)
        return self._tiles[axis]

    def define(self, local: Local, value: Node | None) -> None:
        """Bind a local: to a value that stays what it is now, or to a value that is not known."""
        vary = Vary.TILE if local.tiles else Vary.BLOCK
        if value is None or local.dtype.is_float:
            meaning = self._opaque(local.node, _Meaning(vary, data=True))
        else:
            meaning = replace(self._meaning(value), volatile=False)
        self._bind(local.node, meaning)

    def next_statement(self) -> None:
        """Forget values read from memory that the kernel may have written since."""
        for n in self._volatile:
            self._meanings.pop(n, None)
        self._volatile.clear()

    # ---- one node
    def _bind(self, n: Node, meaning: _Meaning) -> None:
        if n in self._bindings:  # a name used again in a sibling scope: old meanings mention it
            self._meanings = dict(self._bindings)
        self._bindings[n] = self._meanings[n] = meaning

    def _meaning(self, root: Node) -> _Meaning:
        known = self._meanings
        if root not in known:
            for n in topological([root], lambda m: () if m in known else m.inputs):
                if n not in known:
                    known[n] = made = self._make(n, [known[i] for i in n.inputs])
                    if made.volatile:
                        self._volatile.append(n)
        return known[root]

    def _make(self, n: Node, inputs: list[_Meaning]) -> _Meaning:
        if n.op is ops.CONST:
            if n.dtype.is_float:
                return _Meaning(Vary.LAUNCH)
            if n.dtype is bool_:
                return _Meaning(Vary.LAUNCH, condition=ALWAYS if n.attr else NEVER)
            return _Meaning(Vary.LAUNCH, value=AffineValue.of(LinearForm({}, n.attr)))
        if n.op is ops.SYMBOL:
            return _Meaning(Vary.LAUNCH, value=AffineValue.of(self._symbol(n.attr)))
        if n.op is ops.AXIS:
            return _Meaning(Vary.TILE, value=AffineValue.of(LinearForm({self.tile(n.attr): 1})))

        assert n.op is not ops.LOCAL, f"{n.attr.name} is used outside its scope"
        meaning = _Meaning(
            max((i.vary for i in inputs), default=Vary.LAUNCH),
            any(i.data for i in inputs) or n.op in (ops.LOAD, ops.PARAM),
            any(i.volatile for i in inputs),
        )
        if n.op is ops.LOAD and not self._is_constant(n.attr):
            meaning.vary, meaning.volatile = max(meaning.vary, Vary.BLOCK), True
        if n.dtype is bool_:
            condition = self._boolean(n, inputs)
            if condition is not None and len(condition.true + condition.false) <= MAX_CASES:
                return replace(meaning, condition=condition)
        elif n.dtype.is_integer:
            value = self._integer(n, inputs, meaning)
            most = DATA_CASES if meaning.data else MAX_CASES
            if value is not None and len(value.cases) > most:
                value = self._coarse(n, inputs, meaning, value)
            if value is not None:
                return replace(meaning, value=value)
        return self._opaque(n, meaning)

    def _is_constant(self, buffer: Buffer) -> bool:
        return buffer.role is Role.INPUT and buffer.name not in self.overwritten

    def _symbol(self, symbol: Symbol) -> LinearForm:
        """A symbol as a multiple of a variable, so that divisibility needs no constraint."""
        if symbol not in self._symbols:
            m = symbol.multiple
            low, high = -(-symbol.low // m), symbol.high // m
            if low == high:
                self._symbols[symbol] = LinearForm({}, low * m)
            else:
                made = self.variable(symbol.name, VariableKind.SYMBOL, Vary.LAUNCH, low, high)
                made.scale = m
                self._symbols[symbol] = LinearForm({made: m})
        return self._symbols[symbol]

    def _unknown(self, n: Node, meaning: _Meaning, low: int, high: int) -> Variable:
        kind = VariableKind.DATA if meaning.data else VariableKind.NONLINEAR
        return self.variable(show(n, 60), kind, meaning.vary, low, high)

    def _opaque(self, n: Node, meaning: _Meaning) -> _Meaning:
        if n.dtype.is_float:
            return meaning
        made = self._unknown(n, meaning, *_limits(n.dtype))
        if n.dtype is not bool_:
            return replace(meaning, value=AffineValue.of(LinearForm({made: 1})))
        holds = Constraint(LinearForm({made: 1}, -1), True)
        fails = Constraint(LinearForm({made: 1}), True)
        return replace(meaning, condition=Condition(((holds,),), ((fails,),)))

    # ---- conditions
    def _boolean(self, n: Node, inputs: list[_Meaning]) -> Condition | None:
        if n.op.group == "compare":
            a, b = inputs[0].value, inputs[1].value
            if a is not None and b is not None:
                return compare(n.op, a, b)
        if n.op is ops.CAST and inputs[0].value is not None:
            return compare(ops.NE, inputs[0].value, AffineValue.of(LinearForm({})))
        conditions = [i.condition for i in inputs]
        if n.op is ops.LOAD or any(c is None for c in conditions):
            return None
        args = [c for c in conditions if c is not None]
        if n.op is ops.CAST:
            return args[0]
        if n.op is ops.NOT:
            return negation(args[0])
        if n.op in (ops.AND, ops.MIN, ops.MUL):
            return conjunction(*args)
        if n.op in (ops.OR, ops.MAX):
            return disjunction(*args)
        if n.op in (ops.XOR, ops.NE, ops.EQ):
            p, q = args
            same = disjunction(conjunction(p, q), conjunction(negation(p), negation(q)))
            return same if n.op is ops.EQ else negation(same)
        if n.op is ops.WHERE:
            where, then, orelse = args
            return disjunction(conjunction(where, then), conjunction(negation(where), orelse))
        return None

    # ---- integers
    def _integer(self, n: Node, inputs: list[_Meaning], meaning: _Meaning) -> AffineValue | None:
        if n.op is ops.CAST and inputs[0].condition is not None:
            made: AffineValue | None = select(inputs[0].condition, ONE, ZERO)
        elif n.op is ops.WHERE and inputs[0].condition is not None:
            then, orelse = inputs[1].value, inputs[2].value
            made = then and orelse and select(inputs[0].condition, then, orelse)
        else:
            values = [i.value for i in inputs]
            if n.op is ops.LOAD or not values or any(v is None for v in values):
                return None
            made = self._arithmetic(n, [v for v in values if v is not None], meaning)
        if made is None:
            return None
        low, high = _limits(n.dtype)
        if low <= made.low and made.high <= high:
            return made
        # The value may wrap. That is how data behaves; for an index it is worth a claim.
        wrapped = self._unknown(n, meaning, low, high)
        wrapped.unwrapped = made
        self.wrapped.append(wrapped)
        return AffineValue.of(LinearForm({wrapped: 1}))

    def _coarse(
        self, n: Node, inputs: list[_Meaning], meaning: _Meaning, value: AffineValue
    ) -> AffineValue:
        """A value of too many cases: of data in a sum only the range is kept, else of all."""
        if n.op is ops.ADD:
            a, b = (
                AffineValue.of(LinearForm({self._unknown(x, i, i.value.low, i.value.high): 1}))
                if i.data
                else i.value
                for x, i in zip(n.inputs, inputs, strict=True)
                if i.value is not None
            )
            made = total(a, b)
            low, high = _limits(n.dtype)
            if len(made.cases) <= DATA_CASES and low <= made.low and made.high <= high:
                return made
        return AffineValue.of(LinearForm({self._unknown(n, meaning, value.low, value.high): 1}))

    def _arithmetic(
        self, n: Node, args: list[AffineValue], meaning: _Meaning
    ) -> AffineValue | None:
        a, b = args[0], args[-1]
        if n.op is ops.CAST:
            return a
        if n.op is ops.NEG:
            return scaled(a, -1)
        if n.op is ops.ABS:
            return extreme(a, scaled(a, -1), greatest=True)
        if n.op is ops.ADD:
            return total(a, b)
        if n.op is ops.SUB:
            return total(a, b, -1)
        if n.op is ops.MUL:
            return self._product(a, b)
        if n.op in (ops.MIN, ops.MAX):
            made = extreme(a, b, greatest=n.op is ops.MAX)
            return self._bounded(n, a, b, meaning, made) if meaning.data else made
        if n.op in (ops.FLOORDIV, ops.MOD):
            if b.low == b.high:
                return self._divide(n.op, a, b.low)
            if b.low > 0:
                return self._divide_by_size(n, a, b, meaning)
        return None

    def _bounded(
        self, n: Node, a: AffineValue, b: AffineValue, meaning: _Meaning, made: AffineValue
    ) -> AffineValue:
        """Data that is cut down to a range: a variable, rather than a case for either end.

        Which of both it is, is seldom asked; that it exceeds neither often is. Nor does it fall
        short of what neither falls short of, so that both ends of a range are known; where that
        is not sure of one, there are cases.
        """
        if len(made.cases) < 2 or a.cases[1:] or b.cases[1:]:
            return made
        sign = -1 if n.op is ops.MIN else 1
        p, q = a.cases[0].linear, b.cases[0].linear
        v = self._unknown(n, meaning, made.low, made.high)
        own = LinearForm({v: sign})
        within = [*v.facts, *(Constraint(own.plus(x, -sign)) for x in (p, q))]
        for x, y in ((p, q), (q, p)):
            for end in _ends(x, sign):
                if end.plus(y, -1).times(sign).range()[0] < 0:
                    return made
                within.append(Constraint(end.times(sign).plus(own, -1)))
        v.definition = tuple(within)
        return AffineValue.of(LinearForm({v: 1}))

    def _divide_by_size(
        self, n: Node, a: AffineValue, b: AffineValue, meaning: _Meaning
    ) -> AffineValue:
        """A quotient or remainder of which little more is known than its range."""
        known = b.cases[0].linear if len(b.cases) == 1 and _is_size(b.cases[0].linear) else None
        if n.op is ops.MOD:
            made = self._unknown(n, meaning, 0, b.high - 1)
            if known is not None:
                below = known.plus(LinearForm({made: -1}, -1))
                made.definition = (at_least(LinearForm({made: 1})), at_least(below))
            return AffineValue.of(LinearForm({made: 1}))
        corners = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
        low, high = min(corners), max(corners)
        if known is None:
            return AffineValue.of(LinearForm({self._unknown(n, meaning, low, high): 1}))
        # The quotient is at least c exactly where the dividend is at least c * b. Any c would do: 0
        # is a bound of every index, and the other one that of an axis of c rows of b elements.
        cuts = [c for c in (0, (a.high + 1) // b.high) if low < c <= high]
        cases = []
        for first, end in zip([low, *cuts], [*cuts, high + 1], strict=True):
            part = LinearForm({self._unknown(n, meaning, first, end - 1): 1})
            for x in a.cases:
                within = []
                if first > low:
                    within.append(at_least(x.linear.plus(known, -first)))
                if end <= high:
                    within.append(at_least(x.linear.plus(known, -end).times(-1), 1))
                when = conjoin(x.when, *within)
                if when is not None:
                    cases.append(LinearCase(when, part))
        return AffineValue(tuple(cases), low, high)

    def _product(self, a: AffineValue, b: AffineValue) -> AffineValue:
        cases = []
        for x, y in product(a.cases, b.cases):
            when = conjoin(x.when, *y.when)
            if when is None:
                continue
            left, right = self._factor(x.linear, y.linear), self._factor(y.linear, x.linear)
            form = LinearForm({}, left.constant * right.constant)
            form = form.plus(LinearForm(left.terms), right.constant)
            form = form.plus(LinearForm(right.terms), left.constant)
            for (v, j), (w, k) in product(left.terms.items(), right.terms.items()):
                form = form.plus(LinearForm({self._times(v, w): 1}), j * k)
            cases.append(LinearCase(when, form))
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return AffineValue(tuple(cases), min(corners), max(corners))

    def _factor(self, x: LinearForm, other: LinearForm) -> LinearForm:
        """A remainder that is multiplied, as one variable: by its terms too little is known."""
        key = x.constant, frozenset(x.terms.items())
        if len(x.terms) < 2 or not other.terms or key not in self._remainders:
            return x
        most, known = self._remainders[key]
        if known is None:
            known = self.variable(
                f"({x})", VariableKind.QUOTIENT, max(v.vary for v in x.terms), 0, most
            )
            rest = x.plus(LinearForm({known: 1}), -1)
            known.definition = (Constraint(rest), Constraint(rest.times(-1)))
            self._remainders[key] = most, known
        return LinearForm({known: 1})

    def _times(self, v: Variable, w: Variable) -> Variable:
        key = frozenset((v, w))
        if key not in self._products:
            corners = [x * y for x in (v.low, v.high) for y in (w.low, w.high)]
            label = "*".join(sorted((v.label, w.label)))
            vary = max(v.vary, w.vary)
            low, high = min(corners), max(corners)
            data = VariableKind.DATA in (v.kind, w.kind)
            kind = VariableKind.DATA if data else VariableKind.NONLINEAR
            self._products[key] = made = self.variable(label, kind, vary, low, high)
            made.definition = tuple(_envelope(v, w, made))
        return self._products[key]

    def _divide(self, op: ops.Op, a: AffineValue, c: int) -> AffineValue:
        if c == 0:
            return ZERO
        if c < 0:  # a // c == -a // -c, and a % c == -(-a % -c)
            positive = self._divide(op, scaled(a, -1), -c)
            return positive if op is ops.FLOORDIV else scaled(positive, -1)
        quotients = [LinearCase(x.when, self._quotient(x.linear, a, c)) for x in a.cases]
        if op is ops.FLOORDIV:
            return AffineValue(tuple(quotients), a.low // c, a.high // c)
        cases = tuple(
            LinearCase(x.when, x.linear.plus(q.linear, -c))
            for x, q in zip(a.cases, quotients, strict=True)
        )
        for case, q in zip(cases, quotients, strict=True):
            if q.linear.terms:  # else it holds only within the range of `a`
                form = case.linear.constant, frozenset(case.linear.terms.items())
                self._remainders.setdefault(form, (c - 1, None))
        low, high = (a.low % c, a.high % c) if a.low // c == a.high // c else (0, c - 1)
        return AffineValue(cases, low, high)

    def _quotient(self, x: LinearForm, of: AffineValue, c: int) -> LinearForm:
        low, high = x.range()
        low, high = max(low, of.low) // c, min(high, of.high) // c
        if low == high:
            return LinearForm({}, low)
        key = (c, x.constant, frozenset(x.terms.items()))
        if key not in self._quotients:
            whole = LinearForm(
                {v: k // c for v, k in x.terms.items() if k % c == 0}, x.constant // c
            )
            rest = x.plus(whole, -c)
            if rest.terms:
                low, high = (bound // c for bound in rest.range())
                label, vary = f"({rest}) // {c}", max(v.vary for v in rest.terms)
                made = self.variable(label, VariableKind.QUOTIENT, vary, low, high)
                remainder = rest.plus(LinearForm({made: 1}), -c)
                above = remainder.times(-1).plus(LinearForm({}, c - 1))
                made.definition = (Constraint(remainder), Constraint(above))
                whole = whole.plus(LinearForm({made: 1}))
            self._quotients[key] = whole
        return self._quotients[key]


def _ends(x: LinearForm, sign: int) -> Iterator[LinearForm]:
    """What a value is at most (or at least, by the sign) for all that is known of its variable."""
    if [*x.terms.values()] != [1]:
        return
    (v,) = x.terms
    for fact in v.definition:
        if v.kind is VariableKind.DATA and fact.linear.terms.get(v) == -sign:
            yield x.plus(fact.linear, sign)


def _is_size(x: LinearForm) -> bool:
    """Whether a value is made of sizes only: the same for all of a launch."""
    return all(
        v.kind in (VariableKind.SYMBOL, VariableKind.QUOTIENT) and v.vary is Vary.LAUNCH
        for v in x.terms
    )


def _envelope(v: Variable, w: Variable, product: Variable) -> Iterator[Constraint]:
    """What is linear about a product of two ranges: McCormick's four planes around it.

    ``(v - a) * (w - b)`` has the same sign wherever a and b are ends of the ranges.
    """
    for a, up in ((v.low, 1), (v.high, -1)):
        for b, right in ((w.low, 1), (w.high, -1)):
            corner = (
                LinearForm({product: 1}, a * b)
                .plus(LinearForm({w: 1}), -a)
                .plus(LinearForm({v: 1}), -b)
            )
            yield Constraint(corner.times(up * right))


def _limits(dtype: DType) -> tuple[int, int]:
    return int(dtype.min), int(dtype.max)


# ---- isl

_thread = threading.local()


def context() -> isl.Context:
    """This thread's isl context (isl objects must not be shared between threads)."""
    if not hasattr(_thread, "context"):
        _thread.context = isl.Context()
        _thread.context.set_max_operations(MAX_OPERATIONS)
    made: isl.Context = _thread.context
    return made


def closure(constraints: Iterable[Constraint]) -> tuple[dict[Variable, None], list[Constraint]]:
    """The variables that constraints involve, and the constraints with the facts about those."""
    variables: dict[Variable, None] = {}
    rows = list(constraints)
    for row in rows:  # which grows meanwhile
        for v in row.linear.terms:
            if v not in variables:
                variables[v] = None
                rows += v.facts
    return variables, rows


def find_point(constraints: Conjunction) -> dict[Variable, int] | None:
    """The least values of the variables for which the constraints hold, None if there are none."""
    involved, rows = closure(constraints)
    variables = sorted(involved, key=lambda v: _SHOWN.get(v.kind, len(_SHOWN)))
    columns = {v: k for k, v in enumerate(variables, 1)}
    text = _matrix(rows, columns, f"{len(rows)} {len(columns) + 2}")
    found = isl.BasicSet.read_from_str(context(), text)
    if found.is_empty():
        return None
    return dict(zip(variables, _least(found.to_set()), strict=True))


def relation(
    parameters: Sequence[Variable],
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    cases: Iterable[Conjunction],
) -> isl.Map:
    """The isl map from `inputs` to `outputs`: some case holds, for some value of all the others."""
    shared = [fact for p in parameters for fact in p.facts]
    kept = [*outputs, *inputs]
    visible = {*kept, *parameters}
    union: isl.Map | None = None
    for case in cases:
        variables, rows = closure([*case, *shared, *(f for v in kept for f in v.facts)])
        hidden = [v for v in variables if v not in visible]
        columns = {v: k for k, v in enumerate([*kept, *hidden, *parameters], 1)}
        counts = f"{len(outputs)} {len(inputs)} {len(hidden)} {len(parameters)}"
        header = f"{len(rows)} {len(columns) + 2} {counts}"
        made = isl.BasicMap.read_from_str(context(), _matrix(rows, columns, header)).to_map()
        union = made if union is None else union.union(made)
    if union is None:
        never = Constraint(LinearForm({}, -1))
        return relation(parameters, inputs, outputs, [(never,)])
    return union


def sample(relation: isl.Map, variables: Sequence[Variable]) -> dict[Variable, int]:
    """The least point of a map that has one; `variables`: its parameters, inputs and outputs."""
    points = relation.wrap().flatten()
    count = points.dim(isl.dim_type.param)
    flat = points.move_dims(isl.dim_type.set, 0, isl.dim_type.param, 0, count)
    return dict(zip(variables, _least(flat), strict=True))


def show_point(point: dict[Variable, int]) -> str:
    """A point as ``N=17, r=0, c=3``: sizes, then axes; helper variables are left out."""
    shown = sorted((v for v in point if v.kind in _SHOWN), key=lambda v: _SHOWN[v.kind])
    return ", ".join(f"{v.label}={point[v] * v.scale}" for v in shown) or "every launch"


_SHOWN = {VariableKind.SYMBOL: 0, VariableKind.AXIS: 1}


def _least(points: isl.Set) -> list[int]:
    try:
        point = points.lexmin().sample_point()
    except isl.Error:  # lexmin fails on some unions; any point will do then
        point = points.sample_point()
    coordinates = range(points.dim(isl.dim_type.set))
    return [point.get_coordinate_val(isl.dim_type.set, k).to_python() for k in coordinates]


def _matrix(rows: Sequence[Constraint], columns: dict[Variable, int], header: str) -> str:
    lines = [header]
    for linear, equality in rows:
        row = ["0"] * (len(columns) + 2)
        row[0] = "0" if equality else "1"
        row[-1] = str(linear.constant)
        for v, k in linear.terms.items():
            row[columns[v]] = str(k)
        lines.append(" ".join(row))
    return "\n".join(lines)
