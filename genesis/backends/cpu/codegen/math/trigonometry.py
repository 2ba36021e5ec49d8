"""The trigonometric functions as vector arithmetic, with one branch: large angles need a loop.

An angle is reduced to a quadrant and a rest within pi/4, in three steps of fused multiply-adds for
angles that are not large, by the digits of 2/pi otherwise.
"""

from __future__ import annotations

from math import inf, nan

from genesis.backends.cpu.codegen.emit import LLVMFunction, LLVMValue, typed
from genesis.backends.cpu.codegen.math import building_blocks as blocks
from genesis.backends.cpu.codegen.math.coefficients import DOUBLE, TWO_OVER_PI

_TRIG_SCALE = 256  # large arguments are scaled by 2**-256, 2/pi by 2**256: nothing underflows


def sin(x: LLVMValue) -> LLVMValue:
    """The sine."""
    return _trig(x, 0)


def cos(x: LLVMValue) -> LLVMValue:
    """The cosine."""
    return _trig(x, 1)


def tan(x: LLVMValue) -> LLVMValue:
    """The tangent: sine over cosine, both with their rounding errors."""
    f = blocks.format_of(x)
    quadrant, r, error = _reduced(x)
    z = r * r
    sine, sine_low = blocks.fast_two_sum(r, (r * z).fma(blocks.polynomial(z, f.sin), error))
    parabola = z.fma(-0.5, 1.0)
    rest = z.fma(-0.5, 1.0 - parabola) + (z * z).fma(blocks.polynomial(z, f.cos), -(r * error))
    cosine, cosine_low = blocks.fast_two_sum(parabola, rest)
    odd = (quadrant & 1).differs(0)
    top, top_low = odd.select(-cosine, sine), odd.select(-cosine_low, sine_low)
    bottom, bottom_low = odd.select(sine, cosine), odd.select(sine_low, cosine_low)
    inverse = 1.0 / bottom
    quotient = top * inverse
    rest = (-quotient).fma(bottom, top) + (-quotient).fma(bottom_low, top_low)
    return x.equal(0.0).select(x, rest.fma(inverse, quotient))  # -0 stays -0


def _trig(x: LLVMValue, quarter_turns: int) -> LLVMValue:
    """sin(x + quarter_turns * pi/2) from the quadrant of x and the rest within pi/4."""
    f = blocks.format_of(x)
    quadrant, r, _ = _reduced(x)
    if quarter_turns:
        quadrant = quadrant + quarter_turns
    z = r * r
    sine = (r * z).fma(blocks.polynomial(z, f.sin), r)
    cosine = (z * z).fma(blocks.polynomial(z, f.cos), z.fma(-0.5, 1.0))
    value = (quadrant & 1).differs(0).select(cosine, sine)
    result = blocks.real_of(blocks.bits_of(value) ^ ((quadrant & 2) << f.sign_bit - 1))
    return result if quarter_turns else x.equal(0.0).select(x, result)  # -0 stays -0


def _reduced(x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """The number of quarter turns (an integer), what is left of x, and what that rounded away."""
    f, out = blocks.format_of(x), x.out
    n, quadrant = blocks.round_to_integer(x, 2.0 / 3.141592653589793)
    first = n.fma(-f.half_pi[0], x)
    second = n.fma(-f.half_pi[1], first)
    r = n.fma(-f.half_pi[2], second)
    # The same once more with every rounding error, of which only the tangent has need.
    product, product_low = blocks.two_product(n, n.like(f.half_pi[1]))
    exact, lost = blocks.two_sum(first, -product)
    error = n.fma(-f.half_pi[2], exact - r) + (lost - product_low)
    large = abs(x) > f.trig_limit
    before, slow, after = out.block, out.label(), out.label()
    out.branch(blocks.any_lane(large), slow, after)
    out.place(slow)
    slow_values = _call_large(x)
    fast_values = (quadrant, r, error)
    chosen = [large.select(a, b) for a, b in zip(slow_values, fast_values, strict=True)]
    end = out.block
    out.jump(after)
    out.place(after)
    joined = [out.phi(v.element, x.width) for v in fast_values]
    for phi, fast, one in zip(joined, fast_values, chosen, strict=True):
        phi.set((fast, before), (one, end))
    return joined[0].value, joined[1].value, joined[2].value


def _call_large(x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    out, width = x.out, x.width
    name = f"trig_reduce_{width}"
    if name not in out.module.libraries:
        out.module.libraries.add(name)
        _large_function(out, name, width)
    wide = x if x.element == "double" else x.convert("fpext", "double")
    vector = typed("double", width)
    triple = f"{{ {vector}, {vector}, {vector} }}"
    parts = out.op(f"call {triple} @{name}({wide})", triple)
    n, r, error = (out.op(f"extractvalue {parts}, {k}", "double", width) for k in range(3))
    _, quadrant = blocks.round_to_integer(n)
    if x.element == "float":
        near = r.convert("fptrunc", "float")
        error = (r - near.convert("fpext", "double")).convert("fptrunc", "float")
        return quadrant.convert("trunc", "i32"), near, error
    return quadrant, r, error


def _large_function(caller: LLVMFunction, name: str, width: int) -> None:
    """Reduce any float64 by pi/2: the product with 2/pi, 53 bits at a time, modulo 4.

    Each partial product is exact as a pair of floats; what is left of them modulo 4 is summed in
    three floats, enough for the float64 that comes closest to a multiple of pi/2.
    """
    module = caller.module
    vector = typed("double", width)
    numbers = [part * 2.0 ** (_TRIG_SCALE - 53 * (k + 1)) for k, part in enumerate(TWO_OVER_PI)]
    literals = ", ".join(f"double {caller.const(v, 'double').text}" for v in numbers)
    table = module.constant("two_over_pi", f"[{len(numbers)} x double] [{literals}], align 8")
    triple = f"{{ {vector}, {vector}, {vector} }}"
    out = LLVMFunction(module, triple, name, [f"{vector} %x"], "internal ")
    x = LLVMValue(out, "%x", "double", width) * 2.0**-_TRIG_SCALE
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
    for part in blocks.two_product(x, chunk.splat(width) if width else chunk):
        rest = (part * 0.25).intrinsic("roundeven").fma(-4.0, part)
        s0, error = blocks.two_sum(s0, rest)
        s1, error = blocks.two_sum(s1, error)
        s2 = s2 + error
    s0 = (s0 * 0.25).intrinsic("roundeven").fma(-4.0, s0)
    following = k.value + 1
    k.set((out.const(0, "i64"), before), (following, loop))
    for phi, new in zip(sums, (s0, s1, s2), strict=True):
        phi.set((zero, before), (new, loop))
    out.branch(following < len(numbers), loop, done)
    out.place(done)
    n = s0.intrinsic("roundeven")
    fraction, error = blocks.two_sum(s0 - n, s1)
    fraction, error = blocks.two_sum(fraction, error + s2)
    product, low = blocks.two_product(fraction, fraction.like(DOUBLE.half_pi[0]))
    low = fraction.fma(DOUBLE.half_pi[1], error.fma(DOUBLE.half_pi[0], low))
    r, error = blocks.fast_two_sum(product, low)
    result: LLVMValue | None = None
    for position, part in enumerate((n, r, error)):
        whole = f"{triple} poison" if result is None else str(result)
        result = out.op(f"insertvalue {whole}, {part}, {position}", triple)
    out.ret(result)


def atan2(y: LLVMValue, x: LLVMValue) -> LLVMValue:
    """The angle of the point (x, y)."""
    f = blocks.format_of(x)
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
    p = (t * z).fma(blocks.polynomial(z, f.atan), t)
    # The angle is a multiple of pi/4 plus or minus p.
    turns = wide.select(x.like(1.0), 0.0)
    turns, p = steep.select(2.0 - turns, turns), steep.select(-p, p)
    left = blocks.bits_of(x) < 0
    turns, p = left.select(4.0 - turns, turns), left.select(-p, p)
    angle = turns.fma(f.quarter_pi[0], turns.fma(f.quarter_pi[1], p))
    unordered = x.compare("uno", y)
    return unordered.select(nan, blocks.with_sign_of(angle, y))
