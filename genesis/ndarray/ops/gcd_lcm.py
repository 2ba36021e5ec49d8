"""Functions of integers: common divisors and multiples."""

from __future__ import annotations

from genesis.ir.dtype import DType, as_dtype
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import broadcast
from genesis.ndarray.ops.elementwise import Operand, values
from genesis.ndarray.ops.scan import scan
from genesis.ndarray.ops.special.formula import Term

_STEPS = 4  # of Euclid's algorithm in one repetition of the loop


def gcd(a: Operand, b: Operand) -> NDArray:
    """The greatest common divisor; 0 of two zeros."""
    x, y, dtype = _sizes("gcd", a, b)
    return wrap(_gcd(x, y).cast(dtype).value)


def lcm(a: Operand, b: Operand) -> NDArray:
    """The least common multiple; 0 if one of them is 0."""
    x, y, dtype = _sizes("lcm", a, b)
    # x // 0 is 0, which is right where both are 0.
    quotient = x.divide(_gcd(x, y))
    return wrap((quotient * y).cast(dtype).value)


def _sizes(name: str, a: Operand, b: Operand) -> tuple[Term, Term, DType]:
    """Absolute values, as unsigned integers so that the least one has one."""
    x, y = (Term(v) for v in values(name, (a, b)))
    dtype = x.dtype
    if not dtype.is_integer:
        raise TypeError(f"{name}: needs integers, not {dtype}")
    if dtype.kind == "int":
        unsigned = as_dtype(f"u{dtype.name}")
        x, y = (abs(t).cast(unsigned) for t in (x, y))
    shape = x.value.shape or y.value.shape
    x, y = (Term(broadcast(t.value, shape)) for t in (x, y))
    return x, y, dtype


def _gcd(x: Term, y: Term) -> Term:
    """By Euclid's algorithm.

    Two steps at least halve the greater number, so that the number of steps has a bound: the
    golden ratio to its power is the greatest integer.
    """

    def body(state: tuple[NDArray, NDArray], _: None) -> tuple[tuple[NDArray, NDArray], None]:
        a, b = (Term(s.value) for s in state)
        for _step in range(_STEPS):
            done = b.equals(0)
            a, b = done.where(a, b), a % b  # a % 0 is 0
        return (wrap(a.value), wrap(b.value)), None

    steps = int(x.dtype.bits / 0.694) + 2
    (divisor, _), _ = scan(body, (wrap(x.value), wrap(y.value)), length=-(-steps // _STEPS))
    return Term(divisor.value)


__all__ = ["gcd", "lcm"]
