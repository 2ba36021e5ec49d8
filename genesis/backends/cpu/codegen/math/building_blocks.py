"""What the vector mathematics is built of: polynomials, scaling by powers of two, exact sums.

All of it is arithmetic on `LLVMValue`s of float32 or float64; nothing here branches or calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.math.coefficients import DOUBLE, SINGLE, FloatFormat

_LOOK_UP = "llvm.x86.avx512.permvar.sf.512"


def format_of(x: LLVMValue) -> FloatFormat:
    """The constants of a value's type."""
    return SINGLE if x.element == "float" else DOUBLE


def polynomial(t: LLVMValue, coefficients: Sequence[float]) -> LLVMValue:
    """``c0 + c1*t + c2*t**2 + ..`` by Horner's rule."""
    result = t.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.fma(t, c)
    return result


def clamp(x: LLVMValue, low: float, high: float) -> LLVMValue:
    """`x` within bounds, NaN kept. Written so that each line is one min or max instruction."""
    x = (x.like(high) < x).select(high, x)
    return (x.like(low) > x).select(low, x)


def bits_of(x: LLVMValue) -> LLVMValue:
    """A float's bits as an integer."""
    return x.convert("bitcast", format_of(x).integer)


def real_of(bits: LLVMValue) -> LLVMValue:
    """The float that has these bits."""
    return bits.convert("bitcast", "float" if bits.element == "i32" else "double")


def with_sign_of(x: LLVMValue, sign: LLVMValue) -> LLVMValue:
    """The size of one number and the sign of another."""
    return x.intrinsic("copysign", sign)


def round_to_integer(x: LLVMValue, scale: float = 1.0) -> tuple[LLVMValue, LLVMValue]:
    """``t = scale*x`` rounded, as a float and as an integer, for ``|t| < 2**(mantissa - 1)``."""
    f = format_of(x)
    shifted = x + f.rounder if scale == 1.0 else x.fma(scale, f.rounder)
    # Bits, not a conversion: converting NaN would be undefined.
    bits = f.bias + f.mantissa << f.mantissa | 1 << (f.mantissa - 1)
    return shifted - f.rounder, bits_of(shifted) - bits


def times_power_of_two(x: LLVMValue, n: LLVMValue, integer: LLVMValue) -> LLVMValue:
    """``x * 2**n`` rounded once, for any result: zero, denormal, normal or infinite.

    The exponent is given as `round_to_integer` gives it.
    """
    f = format_of(x)
    bits = x.width * (f.sign_bit + 1)
    if x.out.module.avx512 and bits in (128, 256, 512):
        kind = "ps" if x.element == "float" else "pd"
        name = f"llvm.x86.avx512.mask.scalef.{kind}.{bits}"
        lanes = x.out.const(-1, f"i{max(x.width, 8)}")
        rounding = [x.out.const(4, "i32")] if bits == 512 else []  # 4: as is set
        return x.out.call(name, x.element, x.width, x, n, x, lanes, *rounding)
    # In two steps that cannot overflow on their own; the first is exact.
    half = integer >> 1
    first = real_of((half + f.bias) << f.mantissa)
    second = real_of((integer - half + f.bias) << f.mantissa)
    return x * first * second


def near_power_of_two(n: LLVMValue) -> LLVMValue:
    """``2**n`` where that is a normal number."""
    f = SINGLE if n.element == "i32" else DOUBLE
    return real_of((n + f.bias) << f.mantissa)


def quotient(x: LLVMValue, divisor: LLVMValue, inverse: LLVMValue) -> LLVMValue:
    """``x / divisor``, given ``1 / divisor``: a third of the time, if many have the same divisor.

    A product with the inverse is corrected by what it leaves of `x`. That is exact, and so the
    result that of a division, unless `x` is tiny and what is left denormal: then the result may be
    the number beside. Where something is infinite, or the divisor's inverse would be, NaN comes
    out, and the division is carried out.
    """
    out = x.out
    near = x * inverse
    rest = (-near).fma(divisor, x)
    result = with_sign_of(rest.fma(inverse, near), near)
    before, special, done = out.block, out.label(), out.label()
    out.branch(any_lane(result.is_nan()), special, done)
    out.place(special)
    divided = x / divisor
    out.jump(done)
    out.place(done)
    either = out.phi(x.element, x.width)
    either.set((result, before), (divided, special))
    return either.value


def can_look_up(x: LLVMValue) -> bool:
    """Whether `look_up` gives values of this type: with AVX-512, float32."""
    return x.out.module.avx512 and x.element == "float"


def look_up(table: Sequence[float], index: LLVMValue) -> LLVMValue:
    """Elements of a table of 16, which is in a register; of an index, the low four bits count."""
    out, lanes = index.out, len(table)
    held = LLVMValue(
        out, f"<{', '.join(str(out.const(x, 'float')) for x in table)}>", "float", lanes
    )
    if not index.width:
        return out.call(_LOOK_UP, "float", lanes, held, index.splat(lanes)).lane(0)
    wide = index.shuffle(None, [k % index.width for k in range(lanes)])
    return out.call(_LOOK_UP, "float", lanes, held, wide).shuffle(None, range(index.width))


def two_sum(a: LLVMValue, b: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """``a + b`` and its rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: LLVMValue, b: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """The same for ``|a| >= |b|``."""
    s = a + b
    return s, b - (s - a)


def two_product(a: LLVMValue, b: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """``a * b`` and its rounding error."""
    p = a * b
    return p, a.fma(b, -p)


def any_lane(condition: LLVMValue) -> LLVMValue:
    """Whether a condition holds in some lane, as a scalar to branch on."""
    if not condition.width:
        return condition
    mask = f"i{condition.width}"
    return condition.out.op(f"bitcast {condition} to {mask}", mask).differs(0)
