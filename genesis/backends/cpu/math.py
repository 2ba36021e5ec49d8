"""Transcendental functions as vector arithmetic: no library calls, no branches on data.

Every function is written once, over `Value` operators; float32 and float64 differ in the tables of
coefficients only. The arguments are reduced to a small interval with fused multiply-adds, a
polynomial is evaluated there, and the result is scaled back. Infinities, NaN, signed zeros and
denormals come out as IEEE 754 and NumPy have them.

Polynomials are Chebyshev fits computed with 50 digits; next to each table stands its own relative
error. Largest errors of whole functions, in units in the last place, against float64 (for float32)
and 80-bit arithmetic (for float64), as `tests/test_math.py` measures them:

========  =======  =======
function  float32  float64
========  =======  =======
exp       0.6      0.9
exp2      0.9      0.8
log       0.8      0.8
log2      1.3      1.8
sin, cos  0.9      0.9
tanh      1.6      1.8
erf       1.1      1.0
pow       0.6      0.9
atan2     1.3      1.4
========  =======  =======
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan

from genesis.backends.cpu.emit import Function, Value, typed

_hex = float.fromhex


@dataclass(frozen=True)
class _Format:
    """A floating-point format: its layout, and constants rounded to it."""

    integer: str  # the integer type of the same width
    mantissa: int  # stored bits
    bias: int
    sign_bit: int
    rounder: float  # 1.5 * 2**mantissa: adding it rounds to an integer, found in the low bits
    ln2: tuple[float, float]  # two values that sum to log(2) beyond the format's precision
    ln2_short: tuple[float, float]  # the same, the first with few bits: times an exponent is exact
    half_pi: tuple[float, float, float]  # rounded down, so that -0 stays -0 when reduced
    quarter_pi: tuple[float, float]  # the first with few bits
    log2e: tuple[float, float]
    trig_limit: float  # the reduction by `half_pi` is accurate up to here
    exp_range: tuple[float, float]  # below exp is 0, above it is infinite
    exp2_range: tuple[float, float]
    tanh_limit: float  # above, tanh is 1
    erf_limits: tuple[float, float]  # where the series ends, and where erf is 1
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    log: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    atan: tuple[float, ...]
    erf: tuple[float, ...]
    erfc: tuple[float, ...]
    erfc_center: float


_SINGLE = _Format(
    integer="i32",
    mantissa=23,
    bias=127,
    sign_bit=31,
    rounder=1.5 * 2**23,
    ln2=(_hex("0x1.62e43p-1"), _hex("-0x1.05c61p-29")),
    ln2_short=(_hex("0x1.62e4p-1"), _hex("0x1.7f7d1cp-20")),
    half_pi=(_hex("0x1.921fb6p+0"), _hex("-0x1.777a5cp-25"), _hex("-0x1.ee59dap-50")),
    quarter_pi=(_hex("0x1.921fap-1"), _hex("0x1.54442ep-21")),
    log2e=(_hex("0x1.715476p+0"), _hex("0x1.4ae0cp-26")),
    trig_limit=2.0**15,
    exp_range=(-104.0, 89.0),
    exp2_range=(-151.0, 129.0),
    tanh_limit=10.0,
    erf_limits=(0.9, 4.0),
    # (exp(r) - 1 - r) / r**2 for |r| <= log(2)/2: 8e-9 of exp(r)
    exp=(
        0.5, 0.16666576989698775, 0.041666554617204574, 0.008363179052722578,
        0.0013926183587713494,
    ),
    # (2**r - 1) / r for |r| <= 1/2: 2e-8 of 2**r
    exp2=(
        0.6931471880271255, 0.24022650760575892, 0.05550357109913586, 0.009618082553550122,
        0.0013390865661206542, 0.00015453164933424576,
    ),
    # log(m) = 2s + s*z*P(z) with s = (m-1)/(m+1), z = s*s <= 0.0295: 3e-9 of log(m)
    log=(0.6666668506375033, 0.3998877067351075, 0.29580398281488185),
    # (sin(r)/r - 1)/z and (cos(r) - 1 + z/2)/z**2 with z = r*r, |r| <= pi/4: 1e-8, 1e-9
    sin=(-0.16666664650292082, 0.008332745936380422, -0.00019587387068464415),
    cos=(0.04166666464745737, -0.0013888300696903583, 2.45474372101522e-05),
    # (atan(t)/t - 1)/z with z = t*t, |t| <= tan(pi/8): 3e-9
    atan=(
        -0.3333333175381697, 0.19999538794771918, -0.14263897112598609, 0.10743099667674064,
        -0.06449835224590189,
    ),
    # erf(x)/x in x*x up to 0.9: 1e-8; -log(erfc(x)) from there to 4: 2e-9 of erf
    erf=(
        1.128379154727231, -0.37612528804753687, 0.11282194093299176, -0.026780719128523336,
        0.005014484151150388, -0.0006102687036763787,
    ),
    erfc=(
        0.00016570668131326555, 1.127800555797304, 0.6369700412447543, 0.10411942349063648,
        -0.02231821349348541, 0.003066305740907801, -0.0001983096809242003,
    ),
    erfc_center=0.0,
)  # fmt: skip

_DOUBLE = _Format(
    integer="i64",
    mantissa=52,
    bias=1023,
    sign_bit=63,
    rounder=1.5 * 2**52,
    ln2=(_hex("0x1.62e42fefa39efp-1"), _hex("0x1.abc9e3b39803fp-56")),
    ln2_short=(_hex("0x1.62e42feep-1"), _hex("0x1.a39ef35793c76p-33")),
    half_pi=(
        _hex("0x1.921fb54442d18p+0"), _hex("0x1.1a62633145c07p-54"), _hex("-0x1.f1976b7ed8fbcp-110"),
    ),
    quarter_pi=(_hex("0x1.921fb54442dp-1"), _hex("0x1.8469898cc517p-49")),
    log2e=(_hex("0x1.71547652b82fep+0"), _hex("0x1.777d0ffda0d24p-56")),
    trig_limit=2.0**20,
    exp_range=(-746.0, 710.5),
    exp2_range=(-1076.0, 1025.0),
    tanh_limit=20.0,
    erf_limits=(1.0, 6.0),
    # The same functions as above: errors 1e-17, 6e-18, 5e-18, 1e-17, 1e-18, 5e-18, 7e-18, 7e-18.
    exp=(
        0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062,
        0.0013888888917213717, 0.00019841269863053618, 2.4801521295954376e-05,
        2.7557268459997064e-06, 2.7620088445409746e-07, 2.510038549551032e-08,
    ),
    exp2=(
        0.6931471805599453, 0.24022650695910097, 0.0555041086648216, 0.009618129107606885,
        0.0013333558146416933, 0.00015403530441741856, 1.5252733829839213e-05,
        1.3215442584382707e-06, 1.0178062443959398e-07, 7.072586657066206e-09,
        4.454960975460706e-10,
    ),
    log=(
        0.666666666666667, 0.3999999999989924, 0.2857142862609589, 0.2222221111514416,
        0.1818289055669562, 0.15331674030167428, 0.146170375487962,
    ),
    sin=(
        -0.16666666666666666, 0.008333333333330925, -0.00019841269836722418,
        2.755731608381636e-06, -2.5051127944014188e-08, 1.5917848524808238e-10,
    ),
    cos=(
        0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05,
        -2.7557317260008837e-07, 2.087614382799289e-09, -1.1382456778047061e-11,
    ),
    atan=(
        -0.3333333333333333, 0.1999999999999548, -0.14285714284657894, 0.11111111014561013,
        -0.09090904549884611, 0.07692182535116647, -0.06664502215671438, 0.0585806875686144,
        -0.05085030492810615, 0.0392195525325429, -0.019162068915893282,
    ),
    erf=(
        1.1283791670955126, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777,
        0.0052239776071164225, -0.0008548325975389692, 0.00012055294904839707,
        -1.4924736907419659e-05, 1.6447424703317356e-06, -1.6208483801871652e-07,
        1.3720064546777476e-08, -7.795898827001779e-10,
    ),
    # In powers of x - 2, from 1 to 6.
    erfc=(
        5.364941264616636, 4.418160805994414, 0.9237508418239485, 0.016465118137371976,
        -0.0035707563479368317, 0.0007323993780434327, -0.0001353093300031226,
        2.070647067955057e-05, -1.9521891034411336e-06, -2.037279093388897e-07,
        1.73174951578481e-07, -5.769515397993365e-08, 1.398732625945385e-08,
        -2.6101027714544454e-09, 2.5809798866504336e-10, 7.153843802796308e-11,
        -3.686864335711879e-11, 4.918725907596354e-12,
    ),
    erfc_center=2.0,
)  # fmt: skip

# For float32 powers, computed in float64: log to 2e-11.
_LOG_FOR_POW = (0.6666666655430018, 0.40000122000816885, 0.2855080255327651, 0.23330964051775888)
_TWO_THIRDS = (_hex("0x1.5555555555555p-1"), _hex("0x1.5555555555555p-55"))

# The first 1166 bits of 2/pi after the binary point, 53 at a time.
_TWO_OVER_PI = (
    5734161139222658, 5814151408469972, 7440259586542284, 5563773718881558, 2066796102992750,
    2563573915284664, 55291115753100, 5098427330010289, 1465545334474430, 5835026907506289,
    6776677510095004, 7069188010357663, 2595984518904818, 2831001892290551, 4552804911380620,
    3195225570766134, 4461702110328553, 8190251822055336, 6397593724909042, 8751785341853560,
    5811081437509311, 3456741467624832,
)  # fmt: skip
_TRIG_SCALE = 256  # large arguments are scaled by 2**-256 and the table by 2**256


def _format(x: Value) -> _Format:
    return _SINGLE if x.element == "float" else _DOUBLE


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
    f = _SINGLE if n.element == "i32" else _DOUBLE
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
    """The hyperbolic tangent: ``(1 - e) / (1 + e)`` with ``e = exp(-2|x|)``, signed like x."""
    f = _format(x)
    y = abs(x) * -2.0
    y = (y.like(-2.0 * f.tanh_limit) > y).select(-2.0 * f.tanh_limit, y)
    r, n = _exp_reduced(y)
    p = (r * r).fma(_polynomial(r, f.exp), r)
    scale = _near_power_of_two(n)
    e = scale.fma(p, scale)
    # Above tanh(x) = 1/2 the distance from 1 is what has a small error.
    large = y < -1.0986122886681098
    quotient = large.select(e * 2.0, -scale.fma(p, scale - 1.0)) / (e + 1.0)
    return _with_sign_of(large.select(1.0 - quotient, quotient), x)


def erf(x: Value) -> Value:
    """The error function: a series in x near 0, ``1 - exp(log(erfc(x)))`` beyond."""
    f = _format(x)
    a = abs(x)
    near = x * _polynomial(x * x, f.erf)
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


def _sqrt_half_bits(f: _Format) -> int:
    return 0x3F3504F3 if f is _SINGLE else 0x3FE6A09E667F3BCD


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
        high = y * _pow_limits(a, _log2_positive(a, _LOG_FOR_POW))
        low = high.like(0.0)
        coefficients = _SINGLE.exp2
    else:
        log_high, log_low = _log2_extended(a)
        log_high = _pow_limits(a, log_high)
        high, error = _two_product(y, log_high)
        low = error + y * log_low
        coefficients = _DOUBLE.exp2
    inside = abs(high) < 2000.0  # elsewhere the error terms may be NaN
    clamped = _clamp(high, *_DOUBLE.exp2_range)
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
    f = _DOUBLE
    m, e = _mantissa_and_exponent(a)
    x = m - 1.0
    d, d_low = _fast_two_sum(m.like(2.0), x)
    s = x / d
    s_low = ((-s).fma(d, x) - s * d_low) / d
    z, z_low = _two_product(s, s)
    z_low = s.fma(s_low * 2.0, z_low)
    # log(m) = s * (2 + z*(2/3 + q)): the first two terms in double precision twice over.
    q = z * _polynomial(z, f.log[1:])
    c, c_low = _fast_two_sum(q.like(_TWO_THIRDS[0]), q)
    c_low = c_low + _TWO_THIRDS[1]
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
    return _real(_bits(value) ^ ((quadrant & 2) << f.sign_bit - 1))


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
    numbers = [part * 2.0 ** (_TRIG_SCALE - 53 * (k + 1)) for k, part in enumerate(_TWO_OVER_PI)]
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
    r = fraction * _DOUBLE.half_pi[0]
    r = r + (fraction.fma(_DOUBLE.half_pi[0], -r) + error * _DOUBLE.half_pi[0])
    first = out.op(f"insertvalue {{ {vector}, {vector} }} poison, {n}, 0", f"{{ {vector}, {vector} }}")
    out.ret(out.op(f"insertvalue {first}, {r}, 1", f"{{ {vector}, {vector} }}"))


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y)."""
    f = _format(x)
    ax, ay = abs(x), abs(y)
    steep = ay > ax
    high, low = steep.select(ay, ax), steep.select(ax, ay)
    # Two infinities count as equal, two zeros as 0 / 1; large numbers must not overflow when added.
    both = low.equal(inf)
    high, low = both.select(1.0, high), both.select(1.0, low)
    high = high.equal(0.0).select(1.0, high)
    scale = (high > 2.0 ** (f.bias - 1)).select(x.like(0.25), 1.0)
    high, low = high * scale, low * scale
    wide = low > high * 0.41421356237309503  # tan(pi/8)
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
