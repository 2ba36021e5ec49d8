"""Index arithmetic: bounds of integer expressions, and their simplification.

Movement operations become index arithmetic, so a reshape of a slice of a reshape arrives here as
nested divisions and remainders. Two tools undo them: `bounds` (interval arithmetic over the
extents of the axes) and a canonical *linear form*, a sum of integer multiples of atoms. With them
``(16*c + v) // 16`` with ``v < 16`` is ``c``, and ``n//c*c + n%c`` is ``n``.

Division rounds down; divisors are positive, as everywhere in Genesis.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import product
from math import gcd

from genesis.ir import ops
from genesis.ir.dtype import index
from genesis.ir.kernel import Index, as_index
from genesis.ir.node import (
    FALSE,
    TRUE,
    Node,
    both,
    const,
    elementwise,
    is_const,
    node,
    show,
    topological,
)
from genesis.ir.rewrite import Rules, rewrite

Interval = tuple[int, int]


def bounds(n: Node, memo: dict[Node, Interval] | None = None) -> Interval:
    """The least and greatest value an integer or bool expression can take (maybe not attained)."""
    memo = {} if memo is None else memo
    for m in topological([n], lambda x: () if x in memo else _bound_inputs(x)):
        if m not in memo:
            memo[m] = _bound(m, memo)
    return memo[n]


def _bound_inputs(n: Node) -> tuple[Node, ...]:
    if n.op is ops.LOAD:
        return ()
    if n.op is ops.AXIS:
        return (n.attr.extent,) if isinstance(n.attr.extent, Node) else ()
    return n.inputs


def _bound(n: Node, memo: dict[Node, Interval]) -> Interval:
    if n.op is ops.CONST and not n.dtype.is_float:
        return int(n.attr), int(n.attr)
    if n.op is ops.AXIS:
        extent = n.attr.extent
        high = memo[extent][1] if isinstance(extent, Node) else extent
        return 0, max(0, high - 1)
    if n.op is ops.SYMBOL:
        return n.attr.low, n.attr.high
    everything = (int(n.dtype.min), int(n.dtype.max)) if not n.dtype.is_float else (0, 0)
    if n.op in (ops.LOAD, ops.LOCAL, ops.PARAM) or n.dtype.is_float:
        return everything
    if any(i.dtype.is_float for i in n.inputs):
        return everything
    got = [memo[i] for i in n.inputs]
    if n.op is ops.CAST:
        low, high = got[0]
        return (low, high) if everything[0] <= low and high <= everything[1] else everything
    if n.op is ops.ADD:
        result = got[0][0] + got[1][0], got[0][1] + got[1][1]
    elif n.op is ops.SUB:
        result = got[0][0] - got[1][1], got[0][1] - got[1][0]
    elif n.op is ops.NEG:
        result = -got[0][1], -got[0][0]
    elif n.op is ops.MUL:
        corners = [a * b for a in got[0] for b in got[1]]
        result = min(corners), max(corners)
    elif n.op is ops.FLOORDIV and got[1][0] > 0:
        corners = [a // b for a in got[0] for b in got[1]]
        result = min(corners), max(corners)
    elif n.op is ops.MOD and got[1][0] > 0:
        inside = 0 <= got[0][0] and got[0][1] < got[1][0]
        result = got[0] if inside else (0, got[1][1] - 1)
    elif n.op is ops.MIN:
        result = min(got[0][0], got[1][0]), min(got[0][1], got[1][1])
    elif n.op is ops.MAX:
        result = max(got[0][0], got[1][0]), max(got[0][1], got[1][1])
    elif n.op is ops.WHERE:
        result = min(got[1][0], got[2][0]), max(got[1][1], got[2][1])
    else:
        return everything
    # Outside the type's range the value wraps, and nothing is known.
    return result if everything[0] <= result[0] and result[1] <= everything[1] else everything


# ---- linear forms


class LinearIndex:
    """``constant + sum(coefficient * atom)``; atoms are canonical non-linear nodes."""

    __slots__ = ("terms", "constant")

    def __init__(self, terms: dict[Node, int], constant: int) -> None:
        self.terms = terms
        self.constant = constant

    @staticmethod
    def of(n: Node) -> LinearIndex:
        """The linear form of a canonical expression (a sum as `emit` writes it)."""
        terms: dict[Node, int] = {}
        constant = 0
        stack = [n]
        while stack:
            m = stack.pop()
            if m.op is ops.ADD:
                stack += m.inputs
            elif m.op is ops.CONST:
                constant += m.attr
            elif m.op is ops.MUL and m.inputs[1].op is ops.CONST:
                terms[m.inputs[0]] = terms.get(m.inputs[0], 0) + m.inputs[1].attr
            else:
                terms[m] = terms.get(m, 0) + 1
        return LinearIndex(terms, constant)

    def plus(self, other: LinearIndex, scale: int = 1) -> LinearIndex:
        """``self + scale * other``"""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + scale * coefficient
        return LinearIndex(
            {a: c for a, c in terms.items() if c}, self.constant + scale * other.constant
        )

    def times(self, scale: int) -> LinearIndex:
        """``scale * self``"""
        return LinearIndex({}, 0).plus(self, scale)

    def multiplied(self, other: LinearIndex) -> LinearIndex:
        """``self * other``, expanded: a product of atoms is an atom."""
        result = LinearIndex({}, self.constant * other.constant)
        result = result.plus(LinearIndex(self.terms, 0), other.constant)
        result = result.plus(LinearIndex(other.terms, 0), self.constant)
        for (a, j), (b, k) in product(self.terms.items(), other.terms.items()):
            result = result.plus(LinearIndex({_monomial(a, b): 1}, 0), j * k)
        return result

    def emit(self) -> Node:
        """The canonical node: terms in a fixed order, the constant last."""
        self._join_quotients()
        result: Node | None = None
        for atom in sorted(self.terms, key=_order):
            c = self.terms[atom]
            term = atom if c == 1 else node(ops.MUL, (atom, const(c, index)), None, index)
            result = term if result is None else node(ops.ADD, (result, term), None, index)
        if result is None:
            return const(self.constant, index)
        if self.constant:
            result = node(ops.ADD, (result, const(self.constant, index)), None, index)
        return result

    def _join_quotients(self) -> None:
        """``k*c*(x // c) + k*(x % c)`` is ``k*x``."""
        changed = True
        while changed:
            changed = False
            for atom in list(self.terms):
                if atom.op is not ops.MOD or atom not in self.terms:
                    continue
                x, c = atom.inputs
                if is_const(c, 0):
                    continue
                if c.op is ops.CONST:
                    quotient = floordiv(x, c.attr)
                else:
                    quotient = node(ops.FLOORDIV, (x, c), None, index)
                k = self.terms[atom]
                whole = LinearIndex.of(quotient).times(k).multiplied(LinearIndex.of(c))
                if all(self.terms.get(a) == j for a, j in whole.terms.items()):
                    rest = self.plus(whole, -1).plus(LinearIndex({atom: k}, 0), -1)
                    joined = rest.plus(LinearIndex.of(x), k)
                    self.terms, self.constant = joined.terms, joined.constant
                    changed = True


@lru_cache(maxsize=1 << 16)
def _order(atom: Node) -> tuple[int, str, bytes]:
    text = show(atom, 200)
    whole = len(text) < 200  # else atoms that only begin alike are told apart by their contents
    return (0 if atom.op is ops.AXIS else 1, text, b"" if whole else _fingerprint(atom))


@lru_cache(maxsize=1 << 16)
def _fingerprint(n: Node) -> bytes:
    """A digest of an expression: the same in every process."""
    digest = blake2b(f"{n.op} {n.attr!r}".encode(), digest_size=16)
    for i in n.inputs:
        digest.update(_fingerprint(i))
    return digest.digest()


def _monomial(*atoms: Node) -> Node:
    """A product of atoms, its factors in a fixed order."""
    factors: list[Node] = []
    stack = list(atoms)
    while stack:
        n = stack.pop()
        if n.op is ops.MUL:
            stack += n.inputs
        else:
            factors.append(n)
    first, *rest = sorted(factors, key=_order)
    for factor in rest:
        first = node(ops.MUL, (first, factor), None, index)
    return first


def _by_constant(n: Node, op: ops.Op) -> bool:
    """Whether `n` is a division (or remainder, as `op` says) by a known positive number."""
    return n.op is op and n.inputs[1].op is ops.CONST and n.inputs[1].attr > 0


def _split(x: LinearIndex, c: int) -> tuple[LinearIndex, LinearIndex]:
    """x as ``c*whole + rest`` with the rest's coefficients and constant in [0, c) or atoms'."""
    whole = LinearIndex({a: k // c for a, k in x.terms.items() if k % c == 0}, x.constant // c)
    rest = LinearIndex({a: k for a, k in x.terms.items() if k % c}, x.constant % c)
    return whole, rest


def _digits(x: LinearIndex, c: int) -> tuple[int, Node, LinearIndex] | None:
    """x as ``g*upper + lower`` with the lower part in [0, g), for a divisor g of c."""
    for g in sorted({k for k in x.terms.values() if 1 < k < c and c % k == 0}, reverse=True):
        lower = LinearIndex({a: k for a, k in x.terms.items() if k % g}, x.constant % g)
        low, high = bounds(lower.emit())
        if 0 <= low and high < g:
            upper = LinearIndex(
                {a: k // g for a, k in x.terms.items() if k % g == 0}, x.constant // g
            )
            return g, upper.emit(), lower
    return None


def floordiv(n: Node, c: int) -> Node:
    """``n // c`` for canonical n and constant c > 0."""
    if c == 1:
        return n
    whole, rest = _split(LinearIndex.of(n), c)
    if not rest.terms:
        return whole.emit()
    body = rest.emit()
    low, high = bounds(body)
    if low // c == high // c:
        return LinearIndex(whole.terms, whole.constant + low // c).emit()
    common = gcd(c, *rest.terms.values())
    if common > 1:  # (g*a + b) // (g*c') == (a + b // g) // c'
        rest = LinearIndex({a: k // common for a, k in rest.terms.items()}, rest.constant // common)
        return whole.plus(LinearIndex.of(floordiv(rest.emit(), c // common))).emit()
    digits = _digits(rest, c)
    if digits is not None:  # (g*a + b) // (g*c') == a // c' for b in [0, g)
        g, upper, _ = digits
        atom = floordiv(upper, c // g)
    elif _by_constant(body, ops.FLOORDIV):  # (x // a) // c == x // (a*c)
        atom = floordiv(body.inputs[0], body.inputs[1].attr * c)
    elif (
        _by_constant(body, ops.MOD) and body.inputs[1].attr % c == 0
    ):  # (x % (c*d)) // c == (x // c) % d
        atom = mod(floordiv(body.inputs[0], c), body.inputs[1].attr // c)
    else:
        atom = node(ops.FLOORDIV, (body, const(c, index)), None, index)
    return whole.plus(LinearIndex.of(atom)).emit()


def mod(n: Node, c: int) -> Node:
    """``n % c`` for canonical n and constant c > 0."""
    if c == 1:
        return const(0, index)
    _, rest = _split(LinearIndex.of(n), c)
    rest = LinearIndex({a: k % c for a, k in rest.terms.items()}, rest.constant)
    inner = LinearIndex({}, rest.constant)
    for atom, k in rest.terms.items():
        drop = _by_constant(atom, ops.MOD) and atom.inputs[1].attr * k % c == 0
        inner = inner.plus(LinearIndex.of(atom.inputs[0]) if drop else LinearIndex({atom: 1}, 0), k)
    body = inner.emit()
    _, again = _split(LinearIndex.of(body), c)
    body = again.emit()
    low, high = bounds(body)
    if low // c == high // c:
        return LinearIndex(again.terms, again.constant - low // c * c).emit()
    common = gcd(c, *again.terms.values())
    if common > 1 and again.constant < common:  # (g*a + b) % (g*c') == g*(a % c') + b
        scaled = LinearIndex({a: k // common for a, k in again.terms.items()}, 0).emit()
        left = LinearIndex.of(mod(scaled, c // common)).times(common)
        return LinearIndex(left.terms, left.constant + again.constant).emit()
    digits = _digits(again, c)
    if digits is not None:  # (g*a + b) % (g*c') == g*(a % c') + b for b in [0, g)
        g, upper, lower = digits
        return lower.plus(LinearIndex.of(mod(upper, c // g)), g).emit()
    return node(ops.MOD, (body, const(c, index)), None, index)


# ---- the pass

RULES = Rules("index arithmetic")


@RULES.on(ops.AXIS)
def _single_point(n: Node) -> Node | None:
    return const(0, index) if n.attr.extent == 1 else None


@RULES.on(ops.ADD)
@RULES.on(ops.SUB)
def _sum(n: Node) -> Node | None:
    if n.dtype is not index:
        return None
    sign = 1 if n.op is ops.ADD else -1
    return LinearIndex.of(n.inputs[0]).plus(LinearIndex.of(n.inputs[1]), sign).emit()


@RULES.on(ops.NEG)
def _negative(n: Node) -> Node | None:
    return LinearIndex.of(n.inputs[0]).times(-1).emit() if n.dtype is index else None


@RULES.on(ops.MUL)
def _product(n: Node) -> Node | None:
    if n.dtype is not index:
        return None
    a, b = map(LinearIndex.of, n.inputs)
    return a.multiplied(b).emit()


@RULES.on(ops.FLOORDIV, None, ops.CONST)
def _quotient(n: Node) -> Node | None:
    return floordiv(n.inputs[0], n.inputs[1].attr) if _by_positive(n) else None


@RULES.on(ops.MOD, None, ops.CONST)
def _remainder(n: Node) -> Node | None:
    return mod(n.inputs[0], n.inputs[1].attr) if _by_positive(n) else None


def _by_positive(n: Node) -> bool:
    return n.dtype is index and n.inputs[1].attr > 0


@RULES.on((ops.LT, ops.LE, ops.EQ, ops.NE))
def _comparison(n: Node) -> Node | None:
    a, b = n.inputs
    if a.dtype is not index:
        return None
    difference = LinearIndex.of(a).plus(LinearIndex.of(b), -1)
    low, high = bounds(difference.emit())
    if n.op is ops.LT:
        return TRUE if high < 0 else FALSE if low >= 0 else _of_upper_parts(difference)
    if n.op is ops.LE:
        return TRUE if high <= 0 else FALSE if low > 0 else None
    if low > 0 or high < 0:
        return FALSE if n.op is ops.EQ else TRUE
    if low == high == 0:
        return TRUE if n.op is ops.EQ else FALSE
    return None


def _of_upper_parts(x: LinearIndex) -> Node | None:
    """``g*a + b < g*c``, for b in [0, g), is ``a < c``: a mask of pages, rather than of places."""
    for g in sorted({abs(k) for k in x.terms.values()} - {1}, reverse=True):
        upper = {a: k // g for a, k in x.terms.items() if k % g == 0}
        lower = LinearIndex({a: k for a, k in x.terms.items() if k % g}, x.constant % g)
        low, high = bounds(lower.emit())
        if lower.terms and 0 <= low and high < g:
            left = LinearIndex({a: k for a, k in upper.items() if k > 0}, 0)
            right = LinearIndex({a: -k for a, k in upper.items() if k < 0}, -(x.constant // g))
            return left.emit() < right.emit()
    return None


@RULES.on(ops.AND)
def _and(n: Node) -> Node | None:
    a, b = n.inputs
    if n.dtype.kind == "bool" and (a.op is ops.CONST or b.op is ops.CONST or a is b):
        return both(a, b)
    return None


@RULES.on(ops.OR)
def _or(n: Node) -> Node | None:
    for a, b in (n.inputs, n.inputs[::-1]):
        if a is TRUE or b is FALSE or a is b:
            return a
    return None


@RULES.on(ops.NOT, ops.CONST)
def _not(n: Node) -> Node | None:
    return const(not n.inputs[0].attr, n.dtype) if n.dtype.kind == "bool" else None


@RULES.on(ops.WHERE)
def _where(n: Node) -> Node | None:
    condition, then, orelse = n.inputs
    if condition.op is ops.CONST:
        return then if condition.attr else orelse
    if then is orelse:
        return then
    if then.op is ops.LOAD and then.inputs[-2] is condition and orelse.op is ops.CONST:
        # Where the load is masked off, it can give the other value itself.
        return node(ops.LOAD, (*then.inputs[:-1], orelse), then.attr, then.dtype)
    if then.op is ops.LOAD and then.inputs[-1] is orelse:
        return then if _all_of(condition) <= _all_of(then.inputs[-2]) else None
    return None


def _all_of(condition: Node) -> set[Node]:
    """The conditions that one is the conjunction of."""
    if condition.op is not ops.AND:
        return {condition}
    return _all_of(condition.inputs[0]) | _all_of(condition.inputs[1])


@RULES.on((ops.MIN, ops.MAX))
def _extreme(n: Node) -> Node | None:
    a, b = n.inputs
    if n.dtype is not index:
        return None
    low, high = bounds(LinearIndex.of(a).plus(LinearIndex.of(b), -1).emit())
    if high <= 0:
        return a if n.op is ops.MIN else b
    if low >= 0:
        return b if n.op is ops.MIN else a
    return None


@RULES.on(ops.LOAD)
def _masked_off(n: Node) -> Node | None:
    return n.inputs[-1] if n.inputs[-2] is FALSE else None


def simplify(n: Node, memo: dict[Node, Node] | None = None) -> Node:
    """`n` with all index arithmetic inside it in canonical form.

    Without a `memo` it is the one for everybody: the steps of a schedule meet the same expressions
    again and again, and so do kernels.
    """
    global _simple
    if memo is None:
        if len(_simple) > _KEPT:  # replaced, not cleared: another thread may be reading it
            _simple = {}
        memo = _simple
    found = memo.get(n)
    return rewrite([n], RULES, memo)[0] if found is None else found


_KEPT = 1 << 14
_simple: dict[Node, Node] = {}


# ---- extents, which are ints where they are known


def fixed(n: Node) -> Index:
    """A constant index expression as an int."""
    return n.attr if n.op is ops.CONST else n


def static(extent: Index) -> int | None:
    """The extent as an int, or None when it is known only at launch."""
    return extent if isinstance(extent, int) else None


def ceil_div(a: Index, b: int) -> Index:
    """``a / b`` rounded up."""
    return fixed(simplify((as_index(a) + (b - 1)) // b))


def floor_div(a: Index, b: int) -> Index:
    """``a / b`` rounded down."""
    return fixed(simplify(as_index(a) // b))


def least(a: Index, b: Index) -> Index:
    """The smaller of two extents."""
    return fixed(simplify(elementwise(ops.MIN, as_index(a), as_index(b))))


def below(at: Node, size: Index) -> Node:
    """Whether an index is below a size; TRUE where it always is."""
    return simplify(at < as_index(size))
