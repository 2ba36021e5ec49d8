"""Exponentials, logarithms, powers and remainders as vector arithmetic: no library calls.

Every function is written once, over `LLVMValue` operators; float32 and float64 differ in their
tables of coefficients only. The arguments are reduced to a small interval with fused multiply-adds,
a polynomial is evaluated there, and the result is scaled back. Infinities, NaN, signed zeros and
denormals come out as IEEE 754 and NumPy have them. `docs/numerics.md` has the largest errors found;
those of exp2, log2, pow and atan2 are 0.85, 1.49, 0.56 and 1.44 ulp in float32, 0.88, 1.58, 0.97
and 1.45 in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.math import building_blocks as blocks
from genesis.backends.cpu.codegen.math.coefficients import (
    DOUBLE,
    ERF_TABLE,
    LOG_FOR_POW,
    LOG_TAIL,
    SINGLE,
    TANH_TABLE,
    TWO_THIRDS,
    FloatFormat,
    PiecewiseTable,
)

# ---- exponentials


def _exp_reduced(x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """(r, n, n as an integer) with ``x = r + n*log(2)``, ``|r| <= log(2)/2``."""
    f = blocks.format_of(x)
    n, integer = blocks.round_to_integer(x, f.log2e[0])
    r = n.fma(-f.ln2[0], x)
    return n.fma(-f.ln2[1], r), n, integer


def exp(x: LLVMValue) -> LLVMValue:
    """e to the power x."""
    f = blocks.format_of(x)
    r, n, integer = _exp_reduced(blocks.clamp(x, *f.exp_range))
    return blocks.times_power_of_two(blocks.polynomial(r, (1.0, 1.0, *f.exp)), n, integer)


def exp2(x: LLVMValue) -> LLVMValue:
    """2 to the power x."""
    f = blocks.format_of(x)
    x = blocks.clamp(x, *f.exp2_range)
    n, integer = blocks.round_to_integer(x)
    return blocks.times_power_of_two(blocks.polynomial(x - n, (1.0, *f.exp2)), n, integer)


def tanh(x: LLVMValue) -> LLVMValue:
    """The hyperbolic tangent: a series near 0, beyond it ``1 - 2e/(1 + e)``, ``e = exp(-2|x|)``."""
    if blocks.can_look_up(x):
        return _by_table(x, TANH_TABLE)
    f = blocks.format_of(x)
    a = abs(x)
    z = a * a
    near = (a * z).fma(blocks.polynomial(z, f.tanh), a)
    b = (a.like(f.tanh_limit) < a).select(f.tanh_limit, a)
    r, _, n = _exp_reduced(b * -2.0)
    e = blocks.near_power_of_two(n) * blocks.polynomial(r, (1.0, 1.0, *f.exp))
    far = 1.0 - (e * 2.0) / (e + 1.0)
    return blocks.with_sign_of((a > 0.55).select(far, near), x)


def erf(x: LLVMValue) -> LLVMValue:
    """The error function: a series in x near 0, ``1 - exp(log(erfc(x)))`` beyond."""
    if blocks.can_look_up(x):
        return _by_table(x, ERF_TABLE)
    f = blocks.format_of(x)
    a = abs(x)
    near = x.fma(blocks.polynomial(x * x, f.erf), x)
    b = (a.like(f.erf_limits[1]) < a).select(f.erf_limits[1], a)
    r, _, n = _exp_reduced(-blocks.polynomial(b - f.erfc_center if f.erfc_center else b, f.erfc))
    complement = blocks.near_power_of_two(n) * blocks.polynomial(r, (1.0, 1.0, *f.exp))
    far = blocks.with_sign_of(1.0 - complement, x)
    # Ordered, so that NaN takes the branch that propagates it.
    return (a > f.erf_limits[0]).select(far, near)


def _by_table(x: LLVMValue, table: PiecewiseTable) -> LLVMValue:
    """An odd function by one of 16 polynomials: half of the arithmetic that there is without."""
    a = abs(x)
    b = (a.like(table.limit) < a).select(table.limit, a)
    scale, first = table.place
    place = b.fma(scale, first)
    index = blocks.bits_of(place) >> SINGLE.mantissa - table.bits
    t = b - blocks.look_up(table.centers, index)
    total = blocks.look_up(table.coefficients[-1], index)
    for c in reversed(table.coefficients[:-1]):
        total = total.fma(t, blocks.look_up(c, index))
    start = (place < first * (1 + 2.0**-table.bits)).select(b, blocks.look_up(table.values, index))
    return blocks.with_sign_of(total.fma(t, start), x)


# ---- logarithms


def _mantissa_and_exponent(x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """(m, e) with ``x = m * 2**e``, ``sqrt(1/2) <= m < sqrt(2)``, for positive finite x."""
    f = blocks.format_of(x)
    tiny = x < 2.0 ** (1 - f.bias)
    bits = blocks.bits_of(tiny.select(x * 2.0 ** (f.mantissa + 1), x))
    start = _sqrt_half_bits(f)
    exponent = (bits - start) >> f.mantissa
    m = blocks.real_of(bits - (exponent << f.mantissa))
    e = exponent.convert("sitofp", x.element)
    return m, tiny.select(e - float(f.mantissa + 1), e)


def _sqrt_half_bits(f: FloatFormat) -> int:
    return 0x3F3504F3 if f is SINGLE else 0x3FE6A09E667F3BCD


def _log_mantissa(m: LLVMValue, coefficients: Sequence[float]) -> LLVMValue:
    """log(m) near 1, from ``log(m) = 2*atanh(s)`` with ``s = (m-1)/(m+1)``.

    Written with f = m - 1 as ``f - (f*f/2 - s*(f*f/2 + R))`` because f is exact and s is not.
    """
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    r = z * blocks.polynomial(z, coefficients)
    half = f * f * 0.5
    return f - (half - s * (half + r))


def _log_limits(x: LLVMValue, result: LLVMValue) -> LLVMValue:
    """The result for positive finite x; the limits at 0 and infinity; NaN elsewhere."""
    result = x.equal(inf).select(inf, result)
    return (x > 0.0).select(result, x.equal(0.0).select(-inf, x.like(nan)))


def log(x: LLVMValue) -> LLVMValue:
    """The natural logarithm."""
    f = blocks.format_of(x)
    m, e = _mantissa_and_exponent(x)
    part = _log_mantissa(m, f.log)
    result = e.fma(f.ln2_short[0], e.fma(f.ln2_short[1], part))
    return _log_limits(x, result)


def log2(x: LLVMValue) -> LLVMValue:
    """The logarithm to base 2."""
    f = blocks.format_of(x)
    return _log_limits(x, _log2_positive(x, f.log))


def _log2_positive(x: LLVMValue, coefficients: Sequence[float]) -> LLVMValue:
    f = blocks.format_of(x)
    m, e = _mantissa_and_exponent(x)
    part = _log_mantissa(m, coefficients)
    return part.fma(f.log2e[0], part.fma(f.log2e[1], e))


# ---- powers


def pow(x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """x to the power y: ``2**(y * log2|x|)``, the logarithm with extra precision."""
    if x.element == "float":
        # float64 has the precision to spare.
        return _pow(x.convert("fpext", "double"), y.convert("fpext", "double"), True).convert(
            "fptrunc", "float"
        )
    return _pow(x, y, False)


def _pow(x: LLVMValue, y: LLVMValue, single: bool) -> LLVMValue:
    a = abs(x)
    if single:
        high = y * _pow_limits(a, _log2_positive(a, LOG_FOR_POW))
        low = high.like(0.0)
        coefficients = SINGLE.exp2
    else:
        log_high, log_low = _log2_extended(a)
        log_high = _pow_limits(a, log_high)
        high, error = blocks.two_product(y, log_high)
        low = error + y * log_low
        coefficients = DOUBLE.exp2
    inside = abs(high) < 2000.0  # elsewhere the error terms may be NaN
    clamped = blocks.clamp(high, *DOUBLE.exp2_range)
    n, integer = blocks.round_to_integer(clamped)
    r = clamped - n
    if not single:
        r = r + inside.select(low, 0.0)
    result = blocks.times_power_of_two(blocks.polynomial(r, (1.0, *coefficients)), n, integer)
    # Signs, and the cases the formula does not cover.
    whole = y.intrinsic("trunc").equal(y)
    half = y * 0.5
    odd = whole & half.intrinsic("trunc").differs(half)
    negative = blocks.bits_of(x) < 0
    result = (negative & odd).select(-result, result)
    finite = x > -inf
    bad = negative & ~whole & finite & x.differs(0.0)
    result = bad.select(nan, result)
    one = x.equal(1.0) | y.equal(0.0) | (a.equal(1.0) & abs(y).equal(inf))
    return one.select(1.0, result)


def _pow_limits(a: LLVMValue, logarithm: LLVMValue) -> LLVMValue:
    """log2(a) with its limits, for a >= 0; NaN stays."""
    limited = a.equal(inf).select(inf, a.equal(0.0).select(-inf, logarithm))
    return a.is_nan().select(a, limited)


def _log2_extended(a: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """log2(a) as an unevaluated sum with about 65 correct bits (float64)."""
    f = DOUBLE
    m, e = _mantissa_and_exponent(a)
    x = m - 1.0
    d, d_low = blocks.fast_two_sum(m.like(2.0), x)
    s = x / d
    s_low = ((-s).fma(d, x) - s * d_low) / d
    z, z_low = blocks.two_product(s, s)
    z_low = s.fma(s_low * 2.0, z_low)
    # log(m) = s * (2 + z*(2/3 + q)): the first two terms in double precision twice over.
    q = z * blocks.polynomial(z, LOG_TAIL)
    c, c_low = blocks.fast_two_sum(q.like(TWO_THIRDS[0]), q)
    c_low = c_low + TWO_THIRDS[1]
    t, t_low = blocks.two_product(z, c)
    t_low = z.fma(c_low, z_low.fma(c, t_low))
    u, u_low = blocks.fast_two_sum(t.like(2.0), t)
    u_low = u_low + t_low
    v, v_low = blocks.two_product(s, u)
    v_low = s.fma(u_low, s_low.fma(u, v_low))
    # times log2(e), plus the exponent
    w, w_low = blocks.two_product(v, v.like(f.log2e[0]))
    w_low = v.fma(f.log2e[1], v_low.fma(f.log2e[0], w_low))
    high, low = blocks.two_sum(e, w)
    return blocks.fast_two_sum(high, low + w_low)


# ---- remainders


def fmod(x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """What is left of x after taking y away as often as it fits; exact, with the sign of x.

    ``x - n*y`` with n the rounded quotient is exact however large n is, and no larger than
    ``|y| / 2`` or the quotient's rounding error, so a second round is rare and a third rarer.
    """
    if x.element == "float":  # quotients of float32 do not overflow in float64
        wide = _fmod(x.convert("fpext", "double"), y.convert("fpext", "double"), False)
        return wide.convert("fptrunc", "float")
    return _fmod(x, y, True)


def _fmod(x: LLVMValue, y: LLVMValue, overflows: bool) -> LLVMValue:
    out, size = x.out, abs(y)
    before, loop, done = out.block, out.label(), out.label()
    out.jump(loop)
    out.place(loop)
    rest = out.phi(x.element, x.width)
    r, divisor = rest.value, size
    for step in (1020, 70) if overflows else ():  # a multiple of y leaves the same remainder
        far = abs(r) * 2.0**-1020 >= divisor
        divisor = far.select(divisor * 2.0**step, divisor)
    r = (r / divisor).intrinsic("roundeven").fma(-divisor, r)
    rest.set((x, before), (r, loop))
    # Ordered, so that NaN ends the loop.
    out.branch(blocks.any_lane((abs(r) >= size) & (size > 0.0)), loop, done)
    out.place(done)
    opposite = r.differs(0.0) & ((blocks.bits_of(r) ^ blocks.bits_of(x)) < 0)
    r = opposite.select(r + blocks.with_sign_of(size, x), r)
    return (abs(x) < size).select(x, blocks.with_sign_of(r, x))
