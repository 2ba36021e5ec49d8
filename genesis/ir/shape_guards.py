"""What a program takes for granted about sizes, found out while it is recorded.

Code asks about sizes: does a window fit, are two lengths equal, is one even. While a function is
recorded for sizes in general, the sizes of the call at hand answer, and the answer is noted as a
`SizeCondition` that a later call must meet. As far as possible conditions then become part of the
symbols: a length that was seen to be even is written as ``2*n``, one that was compared with 3 has
that bound. So code that asks again finds it decided, and proofs can use it.

>>> from genesis.ir.size import bounds, same
>>> n = Size.symbol("n", low=1)
>>> assumed = Assumptions({"n": 8})
>>> with assumed:
...     same(n // 2 * 2, n), n > 5
(True, True)
>>> assumed.forms().refined(n)
2*n
>>> bounds(_)
(6, 2147483648)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from genesis.ir.size import Dim, Quotient, Size, Symbol, deciding, evaluate, substitute

#: Steps towards an equation's solution; those of usual code take one or two.
_STEPS = 16


@dataclass(frozen=True)
class SizeCondition:
    """What must hold of a size: it is, or is not, 0, or it is at least that."""

    size: Size
    relation: str  # "==", "!=" or ">="

    def holds(self, known: Mapping[str, int]) -> bool:
        """Whether it does for these values of the symbols."""
        value = self.size.value(known)
        if self.relation == ">=":
            return value >= 0
        return (value == 0) == (self.relation == "==")

    def __repr__(self) -> str:
        return f"{self.size} {self.relation} 0"


class Assumptions:
    """Answers questions about sizes as they are in one call, and notes each answer.

    Used as a context; `values` are those of the symbols.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = dict(values)
        self.conditions: dict[SizeCondition, None] = {}
        #: Symbols that were asked for their number.
        self.pinned: set[str] = set()
        self._outer: list[Any] = []

    def __enter__(self) -> Assumptions:
        self._outer.append(deciding.judge)
        deciding.judge = self
        return self

    def __exit__(self, *_: object) -> None:
        deciding.judge = self._outer.pop()

    # ---- answers
    def is_negative(self, size: Size) -> bool:
        """Whether a size is below 0."""
        negative = size.value(self.values) < 0
        self._note(-size - 1 if negative else size, ">=")
        return negative

    def is_zero(self, size: Size) -> bool:
        """Whether a size is 0."""
        zero = size.value(self.values) == 0
        self._note(size, "==" if zero else "!=")
        return zero

    def number(self, size: Size) -> int:
        """The number that a size is; its symbols can have no other value."""
        self.pinned |= {s.name for s in size.symbols}
        return size.value(self.values)

    def _note(self, size: Dim, relation: str) -> None:
        if isinstance(size, Size):
            self.conditions[SizeCondition(size, relation)] = None

    def forms(self) -> Forms:
        """How to write the symbols so that they say what was assumed."""
        return Forms.of(self)


class Forms:
    """How symbols are written: as numbers, or by symbols of which more is known.

    `pinned` are those for which nothing but their number would do.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self.known: dict[str, Dim] = {}
        self.values = dict(values)
        self.pinned: set[str] = set()

    @staticmethod
    def of(assumed: Assumptions) -> Forms:
        """The forms in which the conditions hold."""
        forms = Forms(assumed.values)
        for name in assumed.pinned:
            forms.pinned.add(name)
            forms.known[name] = forms.values.pop(name)
        conditions = list(assumed.conditions)
        for c in conditions:
            if c.relation == "==":
                forms.equate(c.size)
        for c in conditions:
            if c.relation != "==":
                forms.limit(c)
        return forms

    def refined(self, size: Dim) -> Dim:
        """A size in the symbols that say more."""
        return substitute(size, self.known)

    def write(self, name: str, form: Dim) -> None:
        """Write a symbol in another form from now on."""
        step = {name: form}
        self.known = {k: substitute(f, step) for k, f in self.known.items()}
        self.known.setdefault(name, form)

    # ---- equations
    def equate(self, size: Size) -> None:
        """Make a size 0 for all values of the symbols; it is for those at hand."""
        for _ in range(_STEPS):
            left = substitute(size, self.known)
            if isinstance(left, int):
                return
            if not self._solve(left) and not self._divide(left):
                break
        left = substitute(size, self.known)
        for symbol in left.symbols if isinstance(left, Size) else ():
            self.pinned.add(symbol.name)
            self.write(symbol.name, self.values.pop(symbol.name))

    def _solve(self, left: Size) -> bool:
        """Write a symbol by the others, where it occurs once and with the factor 1 or -1."""
        for symbol in sorted(left.symbols, key=lambda s: (len(s.name), s.name), reverse=True):
            alone = Size((((symbol,), 1),))
            for factor in (1, -1):
                rest = left - factor * alone
                if isinstance(rest, Size) and symbol in rest.symbols:
                    continue
                self.values.pop(symbol.name)
                self.write(symbol.name, rest * -factor)
                return True
        return False

    def _divide(self, left: Size) -> bool:
        """Write a symbol as a multiple and a remainder, so that a division has none left."""
        for quotient in _quotients(left):
            for symbol in sorted(quotient.size.symbols, key=lambda s: s.name):
                divisor = quotient.divisor // gcd(quotient.divisor, _factor(quotient.size, symbol))
                if divisor > 1:
                    value = self.values[symbol.name]
                    rest = value % divisor
                    low, high = -((rest - symbol.low) // divisor), (symbol.high - rest) // divisor
                    self.values[symbol.name] = value // divisor
                    smaller = Size.symbol(symbol.name, max(low, 0), high)
                    self.write(symbol.name, smaller * divisor + rest)
                    return True
        return False

    # ---- bounds
    def limit(self, condition: SizeCondition) -> None:
        """Bound a symbol so that a condition holds, where it has only that one."""
        left = substitute(condition.size, self.known)
        if isinstance(left, int) or len(left.symbols) != 1:
            return
        (symbol,) = left.symbols
        value, low, high = self.values[symbol.name], symbol.low, symbol.high

        def holds(n: int) -> bool:
            return SizeCondition(left, condition.relation).holds({symbol.name: n})

        if condition.relation == "!=":
            low += not holds(low)
        elif _grows(left):
            low = _first(holds, low, value)
        elif _grows(-left):
            high = -_first(lambda n: holds(-n), -high, -value)
        if (low, high) != (symbol.low, symbol.high):
            if low == high:
                self.values.pop(symbol.name)
            limited = Size.symbol(symbol.name, low, high, symbol.multiple)
            self.write(symbol.name, low if low == high else limited)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number from which on a condition holds; it holds at `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _grows(size: Dim) -> bool:
    """Whether a size never becomes smaller when its symbols, which are not negative, grow."""
    if isinstance(size, int):
        return True
    for monomial, coefficient in size.terms:
        if monomial and coefficient < 0:
            return False
        for atom in monomial:
            if atom.low < 0 if isinstance(atom, Symbol) else not _grows(atom.size):
                return False
    return True


def _quotients(size: Size) -> Iterator[Quotient]:
    """The divisions in a size, those inside of others first."""
    for monomial, _ in size.terms:
        for atom in monomial:
            if isinstance(atom, Quotient):
                yield from _quotients(atom.size)
                yield atom


def _factor(size: Size, symbol: Symbol) -> int:
    """What divides every coefficient of terms with a symbol."""
    return gcd(*(c for monomial, c in size.terms if symbol in monomial))


def solved(extents: Iterable[tuple[Dim, int]]) -> dict[str, int] | None:
    """The values of the symbols with which sizes are these numbers; None if there are none.

    Every symbol is, times a number and plus a number, one of the sizes.

    >>> n = Size.symbol("n", low=1)
    >>> solved([(2 * n, 6), (n + 1, 4)]), solved([(2 * n, 5)])
    ({'n': 3}, None)
    """
    pairs = list(extents)
    found: dict[str, int] = {}
    for size, number in pairs:
        if isinstance(size, Size) and len(size.symbols) == 1:
            (symbol,) = size.symbols
            terms = dict(size.terms)
            factor, constant = terms.pop((symbol,), 0), terms.pop((), 0)
            if factor and not terms:
                value, rest = divmod(number - constant, factor)
                if rest or not symbol.low <= value <= symbol.high:
                    return None
                if found.setdefault(symbol.name, value) != value:
                    return None
    if any(evaluate(size, found) != number for size, number in pairs):
        return None
    return found
