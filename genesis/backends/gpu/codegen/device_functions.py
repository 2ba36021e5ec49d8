"""Small Triton functions that generated modules include when they need them.

They give Triton's operations the meaning they have in the kernel IR: division that rounds down,
shifts by any count, casts that saturate, and the random number function.
"""

from __future__ import annotations

from textwrap import dedent


class DeviceFunctions:
    """The helper functions one module uses, in the order they have to be defined."""

    def __init__(self) -> None:
        self.libdevice = False
        self._functions: dict[str, str] = {}

    def use(self, name: str) -> None:
        """Include a helper of this file."""
        self.libdevice |= "libdevice." in _HELPERS[name]
        if name == "threefry":
            self._functions.setdefault("mix", _MIX)
        self._functions.setdefault(name, _HELPERS[name])

    def add(self, name: str, text: str) -> None:
        """Include a function made for this module."""
        self._functions[name] = text

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    @property
    def functions(self) -> list[str]:
        """The texts of the functions."""
        return list(self._functions.values())


def _threefry() -> str:
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    lines = []
    for group in range(5):
        lines += [f"x0, x1 = mix(x0, x1, {r})" for r in rotations[group % 2]]
        lines.append(f"x0 += k{(group + 1) % 3}")
        lines.append(f"x1 += k{(group + 2) % 3} + {group + 1}")
    head = dedent('''
        @triton.jit
        def threefry(key, counter):
            """Threefry-2x32 with 20 rounds, on the words of two 64-bit integers."""
            k0 = tl.cast(key, tl.uint32)
            k1 = tl.cast(key >> 32, tl.uint32)
            k2 = k0 ^ k1 ^ 0x1BD11BDA
            x0 = tl.cast(counter, tl.uint32) + k0
            x1 = tl.cast(counter >> 32, tl.uint32) + k1
    ''').strip()
    tail = "    return tl.cast(x0, tl.uint64) | (tl.cast(x1, tl.uint64) << 32)"
    return "\n".join([head, *(f"    {line}" for line in lines), tail])


_MIX = dedent('''
    @triton.jit
    def mix(x0, x1, rotation: tl.constexpr):
        """One round of Threefry."""
        x0 = x0 + x1
        x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        return x0, x1
''').strip()

_TEXTS = '''
@triton.jit
def floor_divide(a, b):
    """a / b rounded down; 0 where b is 0."""
    d = tl.where(b == 0, tl.full([], 1, b.dtype), b)
    q = a // d
    q = tl.where((a % d != 0) & ((a < 0) ^ (d < 0)), q - 1, q)
    return tl.where(b == 0, tl.full([], 0, q.dtype), q)

@triton.jit
def floor_mod(a, b):
    """The remainder of a / b with the sign of b; 0 where b is 0."""
    d = tl.where(b == 0, tl.full([], 1, b.dtype), b)
    r = a % d
    r = tl.where((r != 0) & ((r < 0) ^ (d < 0)), r + d, r)
    return tl.where(b == 0, tl.full([], 0, r.dtype), r)

@triton.jit
def shift_left(a, count, bits: tl.constexpr):
    """a << count; 0 where the count is not below the width."""
    small = (count >= 0) & (count < bits)
    return tl.where(small, a << count, tl.full([], 0, a.dtype))

@triton.jit
def shift_right(a, count, bits: tl.constexpr):
    """a >> count; only the sign is left where the count is not below the width."""
    small = (count >= 0) & (count < bits)
    return tl.where(small, a >> count, a >> (bits - 1) >> 1)

@triton.jit
def int_power(a, b, bits: tl.constexpr):
    """a to the power of b, by squaring; negative powers truncate to 0 unless a is 1 or -1."""
    square = a + b * 0
    result = square * 0 + 1
    rest = tl.where(b < 0, b * 0, b) + a * 0
    for _ in range(bits):
        result = tl.where((rest & 1) != 0, result * square, result)
        square = square * square
        rest = rest >> 1
    inverse = tl.where(a + 1 == 0, tl.where((b & 1) == 0, -a, a), a * 0)
    inverse = tl.where(a == 1, a, inverse)
    return tl.where(b < 0, inverse, result)

@triton.jit
def look_up(code, low, high):
    """One of the 16 bytes of two words."""
    word = tl.where((code & 8) != 0, high, low)
    return tl.cast(word >> (tl.cast(code & 7, tl.uint64) * 8), tl.uint8)

@triton.jit
def saturate(x, low: tl.constexpr, high: tl.constexpr, dtype: tl.constexpr):
    """x truncated to an integer type with values low .. high; NaN gives 0."""
    below = x <= low - 1.0
    above = x >= high + 1.0
    inside = (x > low - 1.0) & (x < high + 1.0)
    y = tl.cast(tl.where(inside, x, 0.0), dtype)
    y = tl.where(below, tl.full([], low, dtype), y)
    return tl.where(above, tl.full([], high, dtype), y)

@triton.jit
def float_mod(x, y):
    """What is left of x / y, with the sign of x; the library takes the smallest numbers for 0."""
    tiny = tl.abs(y) < 2.0**-102  # where what is left may be one of them
    larger = tl.where(tiny, 2.0**64, 1.0)
    z = y * larger
    r = tl.where(tl.abs(x) < tl.abs(z), x, libdevice.fmod(x, z)) * larger
    r = tl.where(tl.abs(r) < tl.abs(z), r, libdevice.fmod(r, z))
    return tl.where(tiny, r * 2.0**-64, r)

@triton.jit
def keep_tiny(x, y):
    """y, but x where that is so small that the library would take it for 0."""
    return tl.where(tl.abs(x) < 1e-37, x, y)

@triton.jit
def round_up(x):
    """The least integer that is not below x; Triton's own takes the smallest numbers for 0."""
    y = tl.ceil(x)
    return tl.where((y == 0) & (x > 0), y + 1, y)

@triton.jit
def round_down(x):
    """The greatest integer that is not above x."""
    y = tl.floor(x)
    return tl.where((y == 0) & (x < 0), y - 1, y)

@triton.jit
def one_plus_erf(x):
    """1 + erf(x) to 1.3e-7, and to 3e-5 of itself where it is small: it is erfc(-x)."""
    a = tl.abs(x)
    p = -5.204071271691646e-07 * a + 1.2504469850682653e-05
    p = p * a - 0.00012643505760934204
    p = p * a + 0.0006802498828619719
    p = p * a - 0.0018350199097767472
    p = p * a - 0.0005163626628927886
    p = p * a + 0.02817053347826004
    p = p * a - 0.14848028123378754
    p = p * a - 0.918412446975708
    p = p * a - 1.6279090642929077
    y = tl.exp2(tl.where(a > 5.0, -200.0, p * a))
    return tl.where(x > 0, 2.0 - y, y)

@triton.jit
def from_float8_e5m2(byte):
    """A float of 8 bits as float32: it is the first byte of a float16."""
    return tl.cast(tl.cast(tl.cast(byte, tl.uint16) << 8, tl.float16, bitcast=True), tl.float32)

@triton.jit
def from_float8_e4m3fn(byte):
    """A float of 8 bits as float32: a float16 of which exponents count from 2**-8."""
    bits = tl.cast(byte, tl.uint16)
    half = tl.cast((bits & 0x80) << 8 | (bits & 0x7F) << 7, tl.float16, bitcast=True)
    x = tl.cast(half, tl.float32) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), x)

@triton.jit
def to_float8(x, digits: tl.constexpr, bias: tl.constexpr, unit: tl.constexpr, most: tl.constexpr):
    """A float32 as 8 bits, rounded to nearest; what is below normal is, by adding `unit` to it."""
    bits = tl.cast(x, tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    odd = (size >> (23 - digits)) & 1
    y = (size + odd + ((1 << (22 - digits)) - 1)) >> (23 - digits)
    tiny = tl.cast(tl.abs(x) + unit, tl.int32, bitcast=True)
    tiny -= tl.cast(tl.full([], unit, tl.float32), tl.int32, bitcast=True)
    y = tl.where(size < ((128 - bias) << 23), tiny, y - ((127 - bias) << digits))
    y = tl.where(size > 0x7F800000, 0x7F, tl.minimum(y, most))
    return tl.cast(y | ((bits >> 24) & 0x80), tl.uint8)

@triton.jit
def nan_maximum(a, b):
    """The greater of two values; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)

@triton.jit
def nan_minimum(a, b):
    """The lesser of two values; NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)

@triton.jit
def four_products(a, b, c):
    """c and the sum of four products of signed bytes in words a and unsigned ones in b."""
    code: tl.constexpr = "dp4a.s32.u32 $0, $1, $2, $3;"
    return tl.inline_asm_elementwise(code, "=r,r,r,r", [a, b, c], tl.int32, is_pure=True, pack=1)

@triton.jit
def four_signed_products(a, b, c):
    """c and the sum of four products of signed bytes in words."""
    code: tl.constexpr = "dp4a.s32.s32 $0, $1, $2, $3;"
    return tl.inline_asm_elementwise(code, "=r,r,r,r", [a, b, c], tl.int32, is_pure=True, pack=1)

@triton.jit
def look_up_four(codes, a, b, c, d):
    """The bytes at four places of a table of 16, which words have: the places, and the table."""
    code: tl.constexpr = """{
        .reg .b32 places, low, high, upper;
        shr.b32 places, $1, 4;
        or.b32 places, places, $1;
        prmt.b32 places, places, 0, 0x4420;
        and.b32 places, places, 0x7777;
        prmt.b32 low, $2, $3, places;
        prmt.b32 high, $4, $5, places;
        shl.b32 upper, $1, 4;
        prmt.b32 upper, upper, 0, 0xba98;
        lop3.b32 $0, low, high, upper, 0xd8;
    }"""
    tables = [codes, a, b, c, d]
    return tl.inline_asm_elementwise(code, "=r,r,r,r,r,r", tables, tl.uint32, is_pure=True, pack=1)
'''

_HELPERS: dict[str, str] = {
    text.split("def ")[1].split("(")[0]: text.strip() for text in _TEXTS.strip().split("\n\n")
} | {"threefry": _threefry()}

#: Names that generated code must not give to anything else.
RESERVED = frozenset({"triton", "tl", "libdevice", "range", "float", "mix", *_HELPERS})
