"""Symbolic sizes: integers that are known only when a program runs.

A `Size` is a polynomial with integer coefficients over *atoms*: symbols with bounds and a known
divisor, and floor divisions of a Size by an integer. The canonical form decides equality: two
sizes are equal when their polynomials are. A comparison that bounds cannot decide raises
`UndecidableSize` and names both sides, so no program is ever built on a guess. Whoever knows an
example of the sizes may let it decide (`genesis.ir.shape_guards`): the answer is then noted as a
condition, for it to be checked before the program runs for other sizes.

>>> n = Size.symbol("n", low=1, high=512)
>>> 2 * n + n == 3 * n, (4 * n) // 2 == 2 * n
(True, True)
>>> n < 1000
True
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm
from operator import index as as_int
from typing import Any, Protocol, Union

#: Sizes without a stated upper bound are below this; products of two stay inside 64 bits.
UNBOUNDED = 1 << 31

_PACKAGE = __name__.partition(".")[0]


class UndecidableSize(ValueError):
    """A decision depends on a symbolic size whose bounds do not settle it."""


class Judge(Protocol):
    """Answers what bounds do not decide, and keeps to it."""

    def is_negative(self, size: Size) -> bool:
        """Whether a size is below 0."""

    def is_zero(self, size: Size) -> bool:
        """Whether a size is 0."""

    def number(self, size: Size) -> int:
        """The number that a size is."""


class _Thread(threading.local):
    judge: Judge | None = None


#: Who decides what bounds do not, in this thread.
deciding = _Thread()


@dataclass(frozen=True)
class Symbol:
    """An integer known at launch, with ``low <= value <= high`` and ``value % multiple == 0``."""

    name: str
    low: int = 0
    high: int = UNBOUNDED
    multiple: int = 1

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """The floor of `size` divided by a positive integer, when it does not divide evenly."""

    size: Size
    divisor: int

    def __repr__(self) -> str:
        return f"({self.size} // {self.divisor})"


Atom = Symbol | Quotient
Monomial = tuple[Atom, ...]  # a product of atoms, ordered by name
Dim = Union[int, "Size"]  # what a shape holds


class Size:
    """A symbolic integer. Built by `Size.symbol` and arithmetic; immutable and hashable."""

    __slots__ = ("terms", "_hash")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __reduce__(self) -> tuple[type[Size], tuple[object, ...]]:
        return Size, (self.terms,)

    @staticmethod
    def symbol(name: str, low: int = 0, high: int = UNBOUNDED, multiple: int = 1) -> Size:
        """A new symbolic size."""
        return Size((((Symbol(name, low, high, multiple),), 1),))

    @staticmethod
    def _make(terms: Mapping[Monomial, int]) -> Dim:
        kept = {m: c for m, c in terms.items() if c}
        if not kept:
            return 0
        if len(kept) == 1 and () in kept:
            return kept[()]
        return Size(tuple(sorted(kept.items(), key=lambda item: repr(item[0]))))

    # ---- arithmetic
    def _combine(self, other: Dim, sign: int) -> Dim:
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + sign * coefficient
        return Size._make(terms)

    def __add__(self, other: Dim) -> Dim:
        return self._combine(other, 1) if isinstance(other, int | Size) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return self._combine(other, -1) if isinstance(other, int | Size) else NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __neg__(self) -> Dim:
        return self * -1

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, int | Size):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in _terms(other):
                product = tuple(sorted(m1 + m2, key=repr))
                terms[product] = terms.get(product, 0) + c1 * c2
        return Size._make(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if isinstance(other, Size):
            exact = divide_exactly(self, other)
            return int(self) // int(other) if exact is None else exact
        if other <= 0:
            raise ValueError(f"{self} // {other}: sizes divide by positive integers only")
        whole: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms:
            if coefficient * _multiple(monomial) % other == 0 and coefficient % other == 0:
                whole[monomial] = coefficient // other
            elif monomial == ():
                whole[()], remainder = divmod(coefficient, other)
                rest[()] = remainder
            else:
                rest[monomial] = coefficient
        remainder_size = Size._make(rest)
        low, high = bounds(remainder_size)
        if low // other == high // other:
            return Size._make(whole) + low // other
        return Size._make(whole) + Size((((Quotient(_size(remainder_size), other),), 1),))

    def __rfloordiv__(self, other: int) -> int:
        return other // int(self)

    def __mod__(self, other: Dim) -> Dim:
        return self - (self // other) * other

    def __rmod__(self, other: int) -> int:
        return other % int(self)

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        return self // other, self % other

    # ---- decisions
    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size) and self.terms == other.terms:
            return True
        if isinstance(other, int | Size) and _asked_by_user():
            return _same(self, other)
        return False

    def __hash__(self) -> int:
        return hash(int(self)) if _asked_by_user() else self._hash

    def __bool__(self) -> bool:
        return not _asked_by_user() or not _same(self, 0)

    def __lt__(self, other: Dim) -> bool:
        return _less(self, other)

    def __ge__(self, other: Dim) -> bool:
        return not _less(self, other)

    def __gt__(self, other: Dim) -> bool:
        return _less(other, self)

    def __le__(self, other: Dim) -> bool:
        return not _less(other, self)

    def __index__(self) -> int:
        if deciding.judge is None:
            raise UndecidableSize(f"the size {self} is known only when the program runs")
        return deciding.judge.number(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __truediv__(self, other: float) -> float:
        return int(self) / other if isinstance(other, int | float | Size) else NotImplemented

    def __rtruediv__(self, other: float) -> float:
        return other / int(self) if isinstance(other, int | float) else NotImplemented

    def __pow__(self, other: float) -> Any:
        if isinstance(other, int) and other >= 0:
            return product([self] * other)
        return int(self) ** other if isinstance(other, int | float | Size) else NotImplemented

    def __rpow__(self, other: float) -> Any:
        return other ** int(self) if isinstance(other, int | float) else NotImplemented

    def __repr__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [repr(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)

    # ---- uses
    @property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols this size depends on."""
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found |= atom.size.symbols
        return frozenset(found)

    def value(self, known: Mapping[str, int]) -> int:
        """The integer this size is when its symbols have the given values."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom in monomial:
                if isinstance(atom, Symbol):
                    product *= known[atom.name]
                else:
                    product *= atom.size.value(known) // atom.divisor
            total += product
        return total


def bounds(size: Dim) -> tuple[int, int]:
    """The least and greatest value a size can have (not always attained)."""
    if isinstance(size, int):
        return size, size
    low = high = 0
    divided = 0
    for monomial, coefficient in size.terms:
        a, b = 1, 1
        for atom in monomial:
            c, d = _atom_bounds(atom)
            corners = (a * c, a * d, b * c, b * d)
            a, b = min(corners), max(corners)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
        divided |= len(monomial) == 1 and isinstance(monomial[0], Quotient)
    if divided and len(size.terms) > 1:  # such as n - n // 2: by terms alone that seems negative
        least, most = _bounds_by_division(size)
        return max(low, least), min(high, most)
    return low, high


def _bounds_by_division(size: Size) -> tuple[int, int]:
    """Bounds by way of ``(x - d + 1) / d <= x // d <= x / d``."""
    quotients = [m[0] for m, _ in size.terms if len(m) == 1 and isinstance(m[0], Quotient)]
    scale = lcm(*(q.divisor for q in quotients))
    exact: Dim = 0
    below = above = 0  # how far the size may be from what it is without rounding
    for monomial, coefficient in size.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Quotient):
            exact = exact + atom.size * (coefficient * scale // atom.divisor)
            lost = abs(coefficient) * scale // atom.divisor * (atom.divisor - 1)
            below, above = below + lost * (coefficient > 0), above + lost * (coefficient < 0)
        else:
            exact = exact + Size(((monomial, coefficient * scale),))
    low, high = bounds(exact)
    return -((below - low) // scale), (high + above) // scale


def evaluate(size: Dim, known: Mapping[str, int]) -> int:
    """`size` as an int, given the values of its symbols."""
    return size if isinstance(size, int) else size.value(known)


def product(sizes: Iterable[Dim]) -> Dim:
    """The product of sizes: an element count."""
    total: Dim = 1
    for size in sizes:
        total = total * size
    return total


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    low, high = bounds(atom.size)
    return low // atom.divisor, high // atom.divisor


def _multiple(monomial: Monomial) -> int:
    total = 1
    for atom in monomial:
        total *= atom.multiple if isinstance(atom, Symbol) else 1
    return total


def _terms(size: Dim) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Size) else (((), size),)


def _size(size: Dim) -> Size:
    return size if isinstance(size, Size) else Size((((), size),))


def divide_exactly(size: Size, divisor: Size) -> Dim | None:
    """size / divisor when divisor is one monomial dividing every term, else None."""
    if size == divisor:
        return 1
    if len(divisor.terms) != 1:
        return None
    ((factor, scale),) = divisor.terms
    result: dict[Monomial, int] = {}
    for monomial, coefficient in size.terms:
        left = list(monomial)
        for atom in factor:
            if atom not in left:
                return None
            left.remove(atom)
        if coefficient % scale:
            return None
        result[tuple(left)] = coefficient // scale
    return Size._make(result)


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are the same number, also where only whoever decides can tell.

    (Inside this package ``==`` asks whether they are known to be.) Where nobody can, they are not.
    """
    try:
        return _same(a, b)
    except UndecidableSize:
        return False


def below(a: Dim, b: Dim) -> bool:
    """Whether a size is less than another; where nobody can tell, it is not."""
    try:
        return _less(a, b)
    except UndecidableSize:
        return False


def as_size(x: Any) -> Dim:
    """A size, or an integer, as what a shape holds."""
    return x if isinstance(x, Size) else as_int(x)


def _same(a: Dim, b: Dim) -> bool:
    apart = a - b
    if isinstance(apart, int):
        return apart == 0
    low, high = bounds(apart)
    if low > 0 or high < 0:
        return False
    if deciding.judge is None:
        raise UndecidableSize(f"cannot decide whether {a} == {b}")
    return deciding.judge.is_zero(apart)


def _asked_by_user() -> bool:
    """Whether a question comes from outside this package.

    Inside, "not known to be equal" is what inequality means. A user's code would take one branch
    for all values of the size.
    """
    asker = str(sys._getframe(2).f_globals.get("__name__"))
    return asker.partition(".")[0] not in (_PACKAGE, "weakref")


def _less(a: Dim, b: Dim) -> bool:
    apart = a - b
    low, high = bounds(apart)
    if high < 0:
        return True
    if low >= 0:
        return False
    if deciding.judge is None:
        raise UndecidableSize(f"cannot decide whether {a} < {b} from the bounds of the sizes")
    return deciding.judge.is_negative(_size(apart))


def substitute(size: Dim, known: Mapping[str, Dim]) -> Dim:
    """`size` with other sizes in the place of symbols, by name."""
    if isinstance(size, int):
        return size
    total: Dim = 0
    for monomial, coefficient in size.terms:
        term: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, Symbol):
                term = term * known.get(atom.name, Size((((atom,), 1),)))
            else:
                term = term * (substitute(atom.size, known) // atom.divisor)
        total = total + term
    return total
