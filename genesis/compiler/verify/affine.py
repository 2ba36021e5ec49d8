"""Integer expressions in cases: the algebra between index arithmetic and integer sets.

A `AffineValue` is a few *cases*, each a linear form that holds under a conjunction of linear
constraints (`min`, `max` and `where` make cases). A `Condition` is two lists of conjunctions: where
it is true and where it is false. Both are over `Variable`s, integers with a range. Ranges settle
what they can on the way, so that few constraints are left for isl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import product
from typing import NamedTuple

from genesis.ir import ops

#: An expression or access with more cases than this is not analysed.
MAX_CASES = 128

#: The same for what data decides: of a search in a table its range is what is worth knowing.
DATA_CASES = 8


class Undecided(Exception):
    """A question that cannot be asked or was not answered in time; the message says why."""


class VariableKind(Enum):
    """Where a variable comes from."""

    SYMBOL = "symbol"
    AXIS = "axis"
    QUOTIENT = "quotient"  # the floor of a linear form divided by a constant
    NONLINEAR = "nonlinear"  # a function of sizes and axes of which only the range is known
    DATA = "data"  # a loaded or computed value, likewise
    ELEMENT = "element"  # one dimension of a buffer


class Vary(IntEnum):
    """How often a value changes: once a launch, with the point of a block, inside a tile."""

    LAUNCH = 0
    BLOCK = 1
    TILE = 2


@dataclass(eq=False, slots=True)
class Variable:
    """An integer unknown between `low` and `high`; `scale` times it is what `label` names."""

    label: str
    kind: VariableKind
    vary: Vary
    low: int
    high: int
    scale: int = 1
    #: For a quotient: the two inequalities that determine it. For what else only a range would be
    #: known of: inequalities that hold, this range among them.
    definition: tuple[Constraint, ...] = ()
    #: For a value that may leave its integer type: what it would be without wrapping.
    unwrapped: AffineValue | None = None

    @property
    def opaque(self) -> bool:
        """Whether only the range is known."""
        return self.kind is VariableKind.NONLINEAR or self.kind is VariableKind.DATA

    @property
    def facts(self) -> tuple[Constraint, ...]:
        """What holds for this variable wherever it is used."""
        if self.definition or self.kind is VariableKind.ELEMENT:
            return self.definition
        above, below = LinearForm({self: 1}, -self.low), LinearForm({self: -1}, self.high)
        return Constraint(above), Constraint(below)


class LinearForm:
    """``constant + sum(coefficient * variable)``"""

    __slots__ = ("terms", "constant")

    def __init__(self, terms: dict[Variable, int], constant: int = 0) -> None:
        self.terms = terms
        self.constant = constant

    def __repr__(self) -> str:
        parts = [v.label if k == 1 else f"{k}*{v.label}" for v, k in self.terms.items()]
        return " + ".join(parts + [str(self.constant)] * (self.constant != 0 or not parts))

    def plus(self, other: LinearForm, scale: int = 1) -> LinearForm:
        """``self + scale * other``"""
        terms = dict(self.terms)
        for variable, coefficient in other.terms.items():
            total = terms.get(variable, 0) + scale * coefficient
            if total:
                terms[variable] = total
            else:
                terms.pop(variable, None)
        return LinearForm(terms, self.constant + scale * other.constant)

    def times(self, scale: int) -> LinearForm:
        """``scale * self``"""
        return LinearForm({}).plus(self, scale)

    def range(self) -> tuple[int, int]:
        """The least and greatest value by the ranges of the variables."""
        low = high = self.constant
        for variable, k in self.terms.items():
            low += k * (variable.low if k > 0 else variable.high)
            high += k * (variable.high if k > 0 else variable.low)
        return low, high


class Constraint(NamedTuple):
    """``linear >= 0``, or ``linear == 0``."""

    linear: LinearForm
    equality: bool = False


Conjunction = tuple[Constraint, ...]


class LinearCase(NamedTuple):
    """A linear form, and when it is the value."""

    when: Conjunction
    linear: LinearForm


class AffineValue(NamedTuple):
    """An integer expression: cases that cover everything, and the range it lies in."""

    cases: tuple[LinearCase, ...]
    low: int
    high: int

    @staticmethod
    def of(linear: LinearForm) -> AffineValue:
        """The value of one linear form."""
        return AffineValue((LinearCase((), linear),), *linear.range())


class Condition(NamedTuple):
    """A boolean expression: the alternatives where it holds, and those where it does not."""

    true: tuple[Conjunction, ...]
    false: tuple[Conjunction, ...]


ALWAYS = Condition(((),), ())
NEVER = Condition((), ((),))
ZERO, ONE = AffineValue.of(LinearForm({})), AffineValue.of(LinearForm({}, 1))


# ---- constraints


def at_least(linear: LinearForm, bound: int = 0) -> Constraint:
    """``linear >= bound``"""
    return Constraint(LinearForm(linear.terms, linear.constant - bound))


def conjoin(a: Conjunction, *more: Constraint) -> Conjunction | None:
    """`a` and more constraints; None where two of them exclude each other, or ranges exclude one.

    Constraints that ranges or stronger ones imply are left out: nested conditions repeat
    themselves, and without this their cases would multiply.
    """
    kept = list(a)
    for c in more:
        low, high = c.linear.range()
        if high < 0 or (c.equality and low > 0):
            return None
        if low >= 0 and not (c.equality and high > 0):
            continue
        # Only what has as many terms can say something about this one.
        alike = [d for d in kept if len(d.linear.terms) == len(c.linear.terms)]
        if any(_exclude(c, d) for d in alike):
            return None
        if not any(_implies(d, c) for d in alike):
            kept.append(c)
    return tuple(kept)


def _exclude(a: Constraint, b: Constraint) -> bool:
    """Whether ``x + a >= 0`` and ``-x + b >= 0`` with ``a + b < 0``."""
    p, q = a.linear, b.linear
    if p.constant + q.constant >= 0:
        return False
    return all(q.terms.get(v) == -k for v, k in p.terms.items())


def _implies(a: Constraint, b: Constraint) -> bool:
    p, q = a.linear, b.linear
    if a.equality != b.equality:
        return False
    enough = p.constant == q.constant if a.equality else p.constant <= q.constant
    return enough and p.terms == q.terms


def alternatives(
    first: Iterable[Conjunction], *parts: Iterable[Conjunction]
) -> tuple[Conjunction, ...]:
    """The conjunctions of one alternative of every part, as far as they are possible."""
    result = list(first)
    for part in parts:
        options = list(part)
        both = (conjoin(a, *b) for a in result for b in options)
        result = [c for c in both if c is not None]
        if len(result) > MAX_CASES:
            raise Undecided(f"it has more than {MAX_CASES} cases")
    return tuple(result)


def told_apart(
    p: LinearForm, q: LinearForm, points: Sequence[Variable], fixed: Vary
) -> set[Variable]:
    """Those of `points` that are equal wherever `p` here and `q` there have one value.

    What varies no more than `fixed` is the same here and there. The `points` are digits of the
    number that `p` and `q` are: a digit whose weight exceeds what everything below it can differ
    by is equal if the digits above it are.

    >>> row = Variable("row", VariableKind.AXIS, Vary.BLOCK, 0, 9)
    >>> column = Variable("column", VariableKind.AXIS, Vary.TILE, 0, 15)
    >>> index = LinearForm({row: 16, column: 1})
    >>> told_apart(index, index, [row], Vary.LAUNCH) == {row}
    True
    """
    if any(p.terms.get(v) != q.terms.get(v) for v in points):
        return set()
    same = _range(p.plus(q, -1), lambda v: v.vary <= fixed)
    here, there = (_range(x, lambda v: v.vary > fixed and v not in points) for x in (p, q))
    offset = p.constant - q.constant
    reach = max(offset + same[1] + here[1] - there[0], there[1] - here[0] - same[0] - offset)
    told: set[Variable] = set()
    for v in sorted((v for v in points if v in p.terms), key=lambda v: abs(p.terms[v])):
        weight = abs(p.terms[v])
        if weight > reach:
            told.add(v)
        else:  # it can make up for the digits below
            told.clear()
        reach += weight * (v.high - v.low)
    return told


def _range(linear: LinearForm, wanted: Callable[[Variable], bool]) -> tuple[int, int]:
    return LinearForm({v: k for v, k in linear.terms.items() if wanted(v)}).range()


def _cases(pairs: Iterable[tuple[Conjunction, Conjunction, LinearForm]]) -> tuple[LinearCase, ...]:
    """Cases under two conditions each, as far as those are possible together."""
    made = ((conjoin(a, *b), linear) for a, b, linear in pairs)
    return tuple(LinearCase(when, linear) for when, linear in made if when is not None)


# ---- conditions


def negation(a: Condition) -> Condition:
    """Not `a`."""
    return Condition(a.false, a.true)


def conjunction(a: Condition, b: Condition) -> Condition:
    """`a` and `b`."""
    both = (conjoin(x, *y) for x in a.true for y in b.true)
    return Condition(tuple(c for c in both if c is not None), a.false + b.false)


def disjunction(a: Condition, b: Condition) -> Condition:
    """`a` or `b`."""
    return negation(conjunction(negation(a), negation(b)))


def compare(op: ops.Op, a: AffineValue, b: AffineValue) -> Condition:
    """`a` LT, LE, EQ or NE `b`."""
    true: list[Conjunction] = []
    false: list[Conjunction] = []

    def add(to: list[Conjunction], when: Conjunction, constraint: Constraint) -> None:
        possible = conjoin(when, constraint)
        if possible is not None:
            to.append(possible)

    for x, y in product(a.cases, b.cases):
        when = conjoin(x.when, *y.when)
        if when is None:
            continue
        difference = y.linear.plus(x.linear, -1)
        opposite = difference.times(-1)
        if op is ops.LT:
            add(true, when, at_least(difference, 1))
            add(false, when, at_least(opposite))
        elif op is ops.LE:
            add(true, when, at_least(difference))
            add(false, when, at_least(opposite, 1))
        else:
            same, other = (true, false) if op is ops.EQ else (false, true)
            add(same, when, Constraint(difference, True))
            add(other, when, at_least(difference, 1))
            add(other, when, at_least(opposite, 1))
    return Condition(tuple(true), tuple(false))


# ---- values


def select(condition: Condition, then: AffineValue, orelse: AffineValue) -> AffineValue:
    """`then` where the condition holds, `orelse` elsewhere."""
    cases = [(w, c.when, c.linear) for w in condition.true for c in then.cases]
    cases += [(w, c.when, c.linear) for w in condition.false for c in orelse.cases]
    return AffineValue(_cases(cases), min(then.low, orelse.low), max(then.high, orelse.high))


def scaled(a: AffineValue, scale: int) -> AffineValue:
    """``scale * a``"""
    ends = (a.low * scale, a.high * scale)
    return AffineValue(
        tuple(LinearCase(c.when, c.linear.times(scale)) for c in a.cases), min(ends), max(ends)
    )


def total(a: AffineValue, b: AffineValue, sign: int = 1) -> AffineValue:
    """``a + sign * b``"""
    cases = _cases(
        (x.when, y.when, x.linear.plus(y.linear, sign)) for x, y in product(a.cases, b.cases)
    )
    ends = (sign * b.low, sign * b.high)
    return AffineValue(cases, a.low + min(ends), a.high + max(ends))


def extreme(a: AffineValue, b: AffineValue, greatest: bool) -> AffineValue:
    """The maximum of two values, or the minimum."""
    first = compare(ops.LE, b, a) if greatest else compare(ops.LE, a, b)
    pick = max if greatest else min
    return select(first, a, b)._replace(low=pick(a.low, b.low), high=pick(a.high, b.high))
