"""Symbolic sizes: integers that are known only when a program runs.

A `Size` is a polynomial with integer coefficients over *atoms*: symbols with bounds and a known
divisor, and floor divisions of a Size by an integer. The canonical form decides equality: two
sizes are equal when their polynomials are. A comparison that bounds cannot decide raises
`UndecidableSize` and names both sides, so no program is ever built on a guess.

>>> n = Size.symbol("n", low=1, high=512)
>>> 2 * n + n == 3 * n, (4 * n) // 2 == 2 * n
(True, True)
>>> n < 1000
True
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Union

#: Sizes without a stated upper bound are below this; products of two stay inside 64 bits.
UNBOUNDED = 1 << 31

_PACKAGE = __name__.partition(".")[0]


class UndecidableSize(ValueError):
    """A decision depends on a symbolic size whose bounds do not settle it."""


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
            exact = _divide_exactly(self, other)
            if exact is None:
                raise UndecidableSize(f"{self} // {other}: a size divides only by a factor of it")
            return exact
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

    def __mod__(self, other: Dim) -> Dim:
        return self - (self // other) * other

    # ---- decisions
    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size) and self.terms == other.terms:
            return True
        if isinstance(other, int | Size) and _asked_by_user():
            low, high = bounds(self - other)
            if low <= 0 <= high:
                raise UndecidableSize(f"cannot decide whether {self} == {other}")
        return False

    def __hash__(self) -> int:
        if _asked_by_user():
            raise UndecidableSize(f"the size {self} has no value yet that could be looked up")
        return self._hash

    def __bool__(self) -> bool:
        if _asked_by_user() and not _decided(self):
            raise UndecidableSize(f"cannot decide whether {self} == 0")
        return True

    def __lt__(self, other: Dim) -> bool:
        return _less(self, other)

    def __ge__(self, other: Dim) -> bool:
        return not _less(self, other)

    def __gt__(self, other: Dim) -> bool:
        return _less(other, self)

    def __le__(self, other: Dim) -> bool:
        return not _less(other, self)

    def __index__(self) -> int:
        raise UndecidableSize(f"the size {self} is known only when the program runs")

    __int__ = __index__

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
    for monomial, coefficient in size.terms:
        a, b = 1, 1
        for atom in monomial:
            c, d = _atom_bounds(atom)
            corners = (a * c, a * d, b * c, b * d)
            a, b = min(corners), max(corners)
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return low, high


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


def _divide_exactly(size: Size, divisor: Size) -> Dim | None:
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


def _decided(size: Size) -> bool:
    low, high = bounds(size)
    return low > 0 or high < 0


def _asked_by_user() -> bool:
    """Whether a question comes from outside this package.

    Inside, "not known to be equal" is what inequality means. A user's code would take one branch
    for all values of the size.
    """
    asker = str(sys._getframe(2).f_globals.get("__name__"))
    return asker.partition(".")[0] not in (_PACKAGE, "weakref")


def _less(a: Dim, b: Dim) -> bool:
    low, high = bounds(a - b)
    if high < 0:
        return True
    if low >= 0:
        return False
    raise UndecidableSize(f"cannot decide whether {a} < {b} from the bounds of the sizes")


def common_divisor(size: Dim) -> int:
    """The greatest integer known to divide a size."""
    if isinstance(size, int):
        return abs(size)
    total = 0
    for monomial, coefficient in size.terms:
        total = gcd(total, coefficient * _multiple(monomial))
    return total
