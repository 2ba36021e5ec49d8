"""Transcendental functions as vector arithmetic: no library calls, one branch (large angles).

Every function is written once, over `Value` operators; float32 and float64 differ in their tables
of coefficients only. The arguments are reduced to a small interval with fused multiply-adds, a
polynomial is evaluated there, and the result is scaled back. Infinities, NaN, signed zeros and
denormals come out as IEEE 754 and NumPy have them.

The largest errors measured over millions of arguments from the whole domain, in units in the last
place, against float64 (for float32) and 80-bit arithmetic (for float64; erf of float64: eleven
thousand arguments against 30 digits):

========  =======  =======
function  float32  float64
========  =======  =======
exp       0.94     0.94
exp2      0.85     0.88
log       0.85     1.23
log2      1.49     1.58
sin, cos  1.56     1.82
tanh      1.44     1.47
erf       1.07     1.24
pow       0.56     0.97
atan2     1.44     1.45
========  =======  =======
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

from genesis.backends.cpu.coefficients import (
    DOUBLE,
    LOG_FOR_POW,
    LOG_TAIL,
    SINGLE,
    TWO_OVER_PI,
    TWO_THIRDS,
    Format,
)
from genesis.backends.cpu.emit import Function, Value, typed

_TRIG_SCALE = 256  # large arguments are scaled by 2**-256, 2/pi by 2**256: nothing underflows


def _format(x: Value) -> Format:
    return SINGLE if x.element == "float" else DOUBLE


# ---- building blocks


def _polynomial(t: Value, coefficients: Sequence[float]) -> Value:
    """``c0 + c1*t + c2*t**2 + ..`` by Horner's rule."""
    result = t.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.fma(t, c)
    return result


def _clamp(x: Value, low: float, high: float) -> Value:
    """`x` within bounds, NaN kept. Written so that each line is one min or max instruction."""
    x = (x.like(high) < x).select(high, x)
    return (x.like(low) > x).select(low, x)


def _bits(x: Value) -> Value:
    return x.convert("bitcast", _format(x).integer)


def _real(bits: Value) -> Value:
    return bits.convert("bitcast", "float" if bits.element == "i32" else "double")


def _with_sign_of(x: Value, sign: Value) -> Value:
    return x.intrinsic("copysign", sign)


def _round_to_integer(t: Value) -> tuple[Value, Value]:
    """`t` rounded, as a float and as an integer, for ``|t| < 2**(mantissa - 1)``."""
    f = _format(t)
    shifted = t + f.rounder
    # Bits, not a conversion: converting NaN would be undefined.
    bits = f.bias + f.mantissa << f.mantissa | 1 << (f.mantissa - 1)
    return shifted - f.rounder, _bits(shifted) - bits


def _times_power_of_two(x: Value, n: Value) -> Value:
    """``x * 2**n`` rounded once, for any result: zero, denormal, normal or infinite."""
    f = _format(x)
    if x.out.module.scalef and x.width:
        if n.element != "i32":
            n = n.convert("trunc", "i32")
        name = f"llvm.ldexp.v{x.width}f{32 if x.element == 'float' else 64}.v{x.width}i32"
        return x.out.call(name, x.element, x.width, x, n)
    # In two steps that cannot overflow on their own; the first is exact.
    half = n >> 1
    first = _real((half + f.bias) << f.mantissa)
    second = _real((n - half + f.bias) << f.mantissa)
    return x * first * second


def _near_power_of_two(n: Value) -> Value:
    """``2**n`` where that is a normal number."""
    f = SINGLE if n.element == "i32" else DOUBLE
    return _real((n + f.bias) << f.mantissa)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """``a + b`` and its rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """The same for ``|a| >= |b|``."""
    s = a + b
    return s, b - (s - a)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """``a * b`` and its rounding error."""
    p = a * b
    return p, a.fma(b, -p)


# ---- exponentials


def _exp_reduced(x: Value) -> tuple[Value, Value]:
    """(r, n) with ``x = r + n*log(2)``, ``|r| <= log(2)/2``."""
    f = _format(x)
    n, integer = _round_to_integer(x * f.log2e[0])
    r = n.fma(-f.ln2[0], x)
    return n.fma(-f.ln2[1], r), integer


def exp(x: Value) -> Value:
    """e to the power x."""
    f = _format(x)
    r, n = _exp_reduced(_clamp(x, *f.exp_range))
    return _times_power_of_two(_polynomial(r, (1.0, 1.0, *f.exp)), n)


def exp2(x: Value) -> Value:
    """2 to the power x."""
    f = _format(x)
    x = _clamp(x, *f.exp2_range)
    n, integer = _round_to_integer(x)
    return _times_power_of_two(_polynomial(x - n, (1.0, *f.exp2)), integer)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent: a series near 0, beyond it ``1 - 2e/(1 + e)``, ``e = exp(-2|x|)``."""
    f = _format(x)
    a = abs(x)
    z = a * a
    near = (a * z).fma(_polynomial(z, f.tanh), a)
    b = (a.like(f.tanh_limit) < a).select(f.tanh_limit, a)
    r, n = _exp_reduced(b * -2.0)
    e = _near_power_of_two(n) * _polynomial(r, (1.0, 1.0, *f.exp))
    far = 1.0 - (e * 2.0) / (e + 1.0)
    return _with_sign_of((a > 0.55).select(far, near), x)


def erf(x: Value) -> Value:
    """The error function: a series in x near 0, ``1 - exp(log(erfc(x)))`` beyond."""
    f = _format(x)
    a = abs(x)
    near = x.fma(_polynomial(x * x, f.erf), x)
    b = (a.like(f.erf_limits[1]) < a).select(f.erf_limits[1], a)
    r, n = _exp_reduced(-_polynomial(b - f.erfc_center if f.erfc_center else b, f.erfc))
    complement = _near_power_of_two(n) * _polynomial(r, (1.0, 1.0, *f.exp))
    far = _with_sign_of(1.0 - complement, x)
    # Ordered, so that NaN takes the branch that propagates it.
    return (a > f.erf_limits[0]).select(far, near)


# ---- logarithms


def _mantissa_and_exponent(x: Value) -> tuple[Value, Value]:
    """(m, e) with ``x = m * 2**e``, ``sqrt(1/2) <= m < sqrt(2)``, for positive finite x."""
    f = _format(x)
    tiny = x < 2.0 ** (1 - f.bias)
    bits = _bits(tiny.select(x * 2.0 ** (f.mantissa + 1), x))
    start = _sqrt_half_bits(f)
    exponent = (bits - start) >> f.mantissa
    m = _real(bits - (exponent << f.mantissa))
    e = exponent.convert("sitofp", x.element)
    return m, tiny.select(e - float(f.mantissa + 1), e)


def _sqrt_half_bits(f: Format) -> int:
    return 0x3F3504F3 if f is SINGLE else 0x3FE6A09E667F3BCD


def _log_mantissa(m: Value, coefficients: Sequence[float]) -> Value:
    """log(m) near 1, from ``log(m) = 2*atanh(s)`` with ``s = (m-1)/(m+1)``.

    Written with f = m - 1 as ``f - (f*f/2 - s*(f*f/2 + R))`` because f is exact and s is not.
    """
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    r = z * _polynomial(z, coefficients)
    half = f * f * 0.5
    return f - (half - s * (half + r))


def _log_limits(x: Value, result: Value) -> Value:
    """The result for positive finite x; the limits at 0 and infinity; NaN elsewhere."""
    result = x.equal(inf).select(inf, result)
    return (x > 0.0).select(result, x.equal(0.0).select(-inf, x.like(nan)))


def log(x: Value) -> Value:
    """The natural logarithm."""
    f = _format(x)
    m, e = _mantissa_and_exponent(x)
    part = _log_mantissa(m, f.log)
    result = e.fma(f.ln2_short[0], e.fma(f.ln2_short[1], part))
    return _log_limits(x, result)


def log2(x: Value) -> Value:
    """The logarithm to base 2."""
    f = _format(x)
    return _log_limits(x, _log2_positive(x, f.log))


def _log2_positive(x: Value, coefficients: Sequence[float]) -> Value:
    f = _format(x)
    m, e = _mantissa_and_exponent(x)
    part = _log_mantissa(m, coefficients)
    return part.fma(f.log2e[0], part.fma(f.log2e[1], e))


# ---- powers


def pow(x: Value, y: Value) -> Value:
    """x to the power y: ``2**(y * log2|x|)``, the logarithm with extra precision."""
    if x.element == "float":
        # float64 has the precision to spare.
        return _pow(x.convert("fpext", "double"), y.convert("fpext", "double"), True).convert(
            "fptrunc", "float"
        )
    return _pow(x, y, False)


def _pow(x: Value, y: Value, single: bool) -> Value:
    a = abs(x)
    if single:
        high = y * _pow_limits(a, _log2_positive(a, LOG_FOR_POW))
        low = high.like(0.0)
        coefficients = SINGLE.exp2
    else:
        log_high, log_low = _log2_extended(a)
        log_high = _pow_limits(a, log_high)
        high, error = _two_product(y, log_high)
        low = error + y * log_low
        coefficients = DOUBLE.exp2
    inside = abs(high) < 2000.0  # elsewhere the error terms may be NaN
    clamped = _clamp(high, *DOUBLE.exp2_range)
    n, integer = _round_to_integer(clamped)
    r = clamped - n
    if not single:
        r = r + inside.select(low, 0.0)
    result = _times_power_of_two(_polynomial(r, (1.0, *coefficients)), integer)
    # Signs, and the cases the formula does not cover.
    whole = y.intrinsic("trunc").equal(y)
    half = y * 0.5
    odd = whole & half.intrinsic("trunc").differs(half)
    negative = _bits(x) < 0
    result = (negative & odd).select(-result, result)
    finite = x > -inf
    bad = negative & ~whole & finite & x.differs(0.0)
    result = bad.select(nan, result)
    one = x.equal(1.0) | y.equal(0.0) | (a.equal(1.0) & abs(y).equal(inf))
    return one.select(1.0, result)


def _pow_limits(a: Value, logarithm: Value) -> Value:
    """log2(a) with its limits, for a >= 0; NaN stays."""
    limited = a.equal(inf).select(inf, a.equal(0.0).select(-inf, logarithm))
    return a.is_nan().select(a, limited)


def _log2_extended(a: Value) -> tuple[Value, Value]:
    """log2(a) as an unevaluated sum with about 65 correct bits (float64)."""
    f = DOUBLE
    m, e = _mantissa_and_exponent(a)
    x = m - 1.0
    d, d_low = _fast_two_sum(m.like(2.0), x)
    s = x / d
    s_low = ((-s).fma(d, x) - s * d_low) / d
    z, z_low = _two_product(s, s)
    z_low = s.fma(s_low * 2.0, z_low)
    # log(m) = s * (2 + z*(2/3 + q)): the first two terms in double precision twice over.
    q = z * _polynomial(z, LOG_TAIL)
    c, c_low = _fast_two_sum(q.like(TWO_THIRDS[0]), q)
    c_low = c_low + TWO_THIRDS[1]
    t, t_low = _two_product(z, c)
    t_low = z.fma(c_low, z_low.fma(c, t_low))
    u, u_low = _fast_two_sum(t.like(2.0), t)
    u_low = u_low + t_low
    v, v_low = _two_product(s, u)
    v_low = s.fma(u_low, s_low.fma(u, v_low))
    # times log2(e), plus the exponent
    w, w_low = _two_product(v, v.like(f.log2e[0]))
    w_low = v.fma(f.log2e[1], v_low.fma(f.log2e[0], w_low))
    high, low = _two_sum(e, w)
    return _fast_two_sum(high, low + w_low)


# ---- trigonometry


def sin(x: Value) -> Value:
    """The sine."""
    return _trig(x, 0)


def cos(x: Value) -> Value:
    """The cosine."""
    return _trig(x, 1)


def _trig(x: Value, quarter_turns: int) -> Value:
    """sin(x + quarter_turns * pi/2) from the quadrant of x and the rest within pi/4."""
    f = _format(x)
    quadrant, r = _trig_reduced(x)
    if quarter_turns:
        quadrant = quadrant + quarter_turns
    z = r * r
    sine = (r * z).fma(_polynomial(z, f.sin), r)
    cosine = (z * z).fma(_polynomial(z, f.cos), z.fma(-0.5, 1.0))
    value = (quadrant & 1).differs(0).select(cosine, sine)
    result = _real(_bits(value) ^ ((quadrant & 2) << f.sign_bit - 1))
    return result if quarter_turns else x.equal(0.0).select(x, result)  # -0 stays -0


def _trig_reduced(x: Value) -> tuple[Value, Value]:
    """The number of quarter turns (an integer) and what is left of x."""
    f, out = _format(x), x.out
    n, quadrant = _round_to_integer(x * (2.0 / 3.141592653589793))
    r = n.fma(-f.half_pi[0], x)
    r = n.fma(-f.half_pi[1], r)
    r = n.fma(-f.half_pi[2], r)
    # The one branch of this file: large arguments are rare, and need a loop.
    large = abs(x) > f.trig_limit
    some = large
    if x.width:
        some = out.op(f"bitcast {large} to i{x.width}", f"i{x.width}").differs(0)
    before, slow, after = out.block, out.label(), out.label()
    out.branch(some, slow, after)
    out.place(slow)
    q_slow, r_slow = _call_large(x)
    q_slow, r_slow = large.select(q_slow, quadrant), large.select(r_slow, r)
    end = out.block
    out.jump(after)
    out.place(after)
    quadrants, rests = out.phi(quadrant.element, x.width), out.phi(x.element, x.width)
    quadrants.set((quadrant, before), (q_slow, end))
    rests.set((r, before), (r_slow, end))
    return quadrants.value, rests.value


def _call_large(x: Value) -> tuple[Value, Value]:
    out, width = x.out, x.width
    name = f"trig_reduce_{width}"
    if name not in out.module.libraries:
        out.module.libraries.add(name)
        _large_function(out, name, width)
    wide = x if x.element == "double" else x.convert("fpext", "double")
    vector = typed("double", width)
    pair = out.op(f"call {{ {vector}, {vector} }} @{name}({wide})", f"{{ {vector}, {vector} }}")
    n, r = (out.op(f"extractvalue {pair}, {k}", "double", width) for k in (0, 1))
    _, quadrant = _round_to_integer(n)
    if x.element == "float":
        return quadrant.convert("trunc", "i32"), r.convert("fptrunc", "float")
    return quadrant, r


def _large_function(caller: Function, name: str, width: int) -> None:
    """Reduce any float64 by pi/2: the product with 2/pi, 53 bits at a time, modulo 4.

    Each partial product is exact as a pair of floats; what is left of them modulo 4 is summed in
    three floats, enough for the float64 that comes closest to a multiple of pi/2.
    """
    module = caller.module
    vector = typed("double", width)
    numbers = [part * 2.0 ** (_TRIG_SCALE - 53 * (k + 1)) for k, part in enumerate(TWO_OVER_PI)]
    literals = ", ".join(f"double {caller.const(v, 'double').text}" for v in numbers)
    table = module.constant("two_over_pi", f"[{len(numbers)} x double] [{literals}], align 8")
    out = Function(module, f"{{ {vector}, {vector} }}", name, [f"{vector} %x"], "internal ")
    x = Value(out, "%x", "double", width) * 2.0**-_TRIG_SCALE
    zero = out.const(0.0, "double", width)
    loop, done = out.label(), out.label()
    before = out.block
    out.jump(loop)
    out.place(loop)
    k = out.phi("i64")
    sums = [out.phi("double", width) for _ in range(3)]
    s0, s1, s2 = (s.value for s in sums)
    where = out.op(f"getelementptr double, ptr {table}, {k.value}", "ptr")
    chunk = out.op(f"load double, {where}, align 8", "double")
    for part in _two_product(x, chunk.splat(width) if width else chunk):
        rest = (part * 0.25).intrinsic("roundeven").fma(-4.0, part)
        s0, error = _two_sum(s0, rest)
        s1, error = _two_sum(s1, error)
        s2 = s2 + error
    s0 = (s0 * 0.25).intrinsic("roundeven").fma(-4.0, s0)
    following = k.value + 1
    k.set((out.const(0, "i64"), before), (following, loop))
    for phi, new in zip(sums, (s0, s1, s2), strict=True):
        phi.set((zero, before), (new, loop))
    out.branch(following < len(numbers), loop, done)
    out.place(done)
    n = s0.intrinsic("roundeven")
    fraction, error = _two_sum(s0 - n, s1)
    fraction, error = _two_sum(fraction, error + s2)
    r = fraction * DOUBLE.half_pi[0]
    r = r + (fraction.fma(DOUBLE.half_pi[0], -r) + error * DOUBLE.half_pi[0])
    first = out.op(
        f"insertvalue {{ {vector}, {vector} }} poison, {n}, 0", f"{{ {vector}, {vector} }}"
    )
    out.ret(out.op(f"insertvalue {first}, {r}, 1", f"{{ {vector}, {vector} }}"))


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    f = _format(x)
    ax, ay = abs(x), abs(y)
    steep = ay > ax
    high, low = steep.select(ay, ax), steep.select(ax, ay)
    # Two infinities count as equal, two zeros as 0 / 1. Scaling keeps sums from overflowing and
    # products from losing bits.
    both = low.equal(inf)
    high, low = both.select(1.0, high), both.select(1.0, low)
    high = high.equal(0.0).select(1.0, high)
    scale = (high > 2.0 ** (f.bias - 1)).select(x.like(0.25), 1.0)
    scale = (high < 2.0 ** (2 - f.bias + f.mantissa)).select(2.0 ** (2 * f.mantissa), scale)
    high, low = high * scale, low * scale
    wide = low > high * 0.55
    t = wide.select(low - high, low) / wide.select(low + high, high)
    z = t * t
    p = (t * z).fma(_polynomial(z, f.atan), t)
    # The angle is a multiple of pi/4 plus or minus p.
    turns = wide.select(x.like(1.0), 0.0)
    turns, p = steep.select(2.0 - turns, turns), steep.select(-p, p)
    left = _bits(x) < 0
    turns, p = left.select(4.0 - turns, turns), left.select(-p, p)
    angle = turns.fma(f.quarter_pi[0], turns.fma(f.quarter_pi[1], p))
    unordered = x.compare("uno", y)
    return unordered.select(nan, _with_sign_of(angle, y))


__all__ = ["atan2", "cos", "erf", "exp", "exp2", "log", "log2", "pow", "sin", "tanh"]
