"""`Format`: what the numbers of a weight are, as data.

A weight of a format is ``scale * (value - zero) + minimum``. Its value is an element: an unsigned
integer of few bits less a constant, a float of few bits, or a number of a table. Neighbours in a
row are a group, which has the scale and perhaps a zero or a minimum of its own. A scale is a float,
or again a number of a format: so llama.cpp's superblocks are two formats, one in the other.

All else follows from the description: `genesis.compress.codes` encodes and decodes in NumPy,
`genesis.compress.layout` says where the bits lie, `genesis.compress.tensor` multiplies by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Bytes of the floats that scales are made of; an e8m0 is half of the power of two that its byte
#: means elsewhere, as in ggml, so that floats of 4 bits are doubled to integers.
FLOATS = {"bfloat16": 2, "float16": 2, "float32": 4, "e8m0": 1}


@dataclass(frozen=True)
class Integer:
    """Unsigned integers of a number of bits; their values are ``code - zero``."""

    bits: int
    zero: int = 0


@dataclass(frozen=True)
class Float:
    """Floats of 8 or 16 bits: a sign, an exponent and a mantissa."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return 1 + self.exponent + self.mantissa

    @property
    def dtype(self) -> str:
        """The element type that these numbers are."""
        return _DTYPES[self.exponent, self.mantissa]


@dataclass(frozen=True)
class Table:
    """Sixteen numbers: a code of 4 bits is the place of one."""

    values: tuple[float, ...]

    bits = 4

    @property
    def integers(self) -> bool:
        """Whether the numbers are integers of a signed byte."""
        return all(x == int(x) and -128 <= x < 128 for x in self.values)


_DTYPES = {
    (8, 7): "bfloat16", (5, 10): "float16", (4, 3): "float8_e4m3fn", (5, 2): "float8_e5m2",
}  # fmt: skip
Element = Integer | Float | Table


@dataclass(frozen=True)
class Format:
    """What the numbers of a weight are.

    >>> FORMATS["int4"]
    Format('int4': 4 bits, groups of 32, 4.5 bits a weight)
    >>> FORMATS["Q4_K"].scale
    Format('Q4_K.scale': 6 bits, groups of 8, 10.0 bits a weight)
    """

    name: str
    element: Element
    #: How many neighbours of a row share a scale; 0: there are no scales.
    group: int = 0
    #: What a scale is stored as.
    scale: str | Format = "bfloat16"
    #: Bits of an integer that is subtracted from the codes of a group; 0: there is none.
    zero: int = 0
    #: What a number is stored as that is added to the weights of a group.
    minimum: str | Format | None = None

    def __repr__(self) -> str:
        group = f", groups of {self.group}, {self.rate} bits a weight" if self.group else ""
        return f"Format({self.name!r}: {self.bits} bits{group})"

    @property
    def bits(self) -> int:
        """The bits of an element."""
        return self.element.bits

    @property
    def integers(self) -> bool:
        """Whether values are integers of a byte, whose products are summed without rounding."""
        element = self.element
        return element.integers if isinstance(element, Table) else isinstance(element, Integer)

    @property
    def planes(self) -> tuple[int, ...]:
        """The powers of two that the bits of a code are cut into, the lowest bits first.

        Four bytes of a plane have codes of one group, so in small groups planes are not narrow.

        >>> Format("", Integer(7), 32).planes, Format("", Integer(3), 16).planes
        ((4, 2, 1), (4,))
        """
        least = 32 // min(32, self.group & -self.group) if self.group else 1
        bits = -(-self.bits // least) * least
        return tuple(p for p in (8, 4, 2, 1) if bits & p)

    @property
    def groups(self) -> int:
        """How many groups share the scale of their scales."""
        return self.scale.group if isinstance(self.scale, Format) else 1

    @property
    def span(self) -> int:
        """How many neighbours have all that they share to themselves."""
        return max(1, self.group) * self.groups

    @property
    def fields(self) -> tuple[str | Format, ...]:
        """What a scale and a minimum are stored as."""
        return (self.scale,) if self.minimum is None else (self.scale, self.minimum)

    @property
    def joint(self) -> bool:
        """Whether the codes of a scale and of a minimum are two halves of a byte."""
        narrow = [f for f in self.fields if isinstance(f, Format) and f.bits <= 4]
        return len(narrow) == 2

    @property
    def shared(self) -> tuple[int, int]:
        """Bytes that belong to a group, and to all groups of a span together."""
        if not self.group:
            return 0, 0
        floats = sum(FLOATS[f] for f in self.fields if isinstance(f, str))
        nested = [f for f in self.fields if isinstance(f, Format)]
        codes = 1 if self.joint else len(nested)
        return floats + codes + (self.zero > 0), sum(FLOATS[str(f.scale)] for f in nested)

    @property
    def rate(self) -> float:
        """Bits a weight takes, with its share of what belongs to groups."""
        each, all_ = self.shared
        return sum(self.planes) + 8 * (each * self.groups + all_) / self.span

    def nbytes(self, *shape: int) -> int:
        """The bytes of weights of a shape, whose rows are filled up to whole spans.

        >>> FORMATS["Q4_0"].nbytes(32, 64)
        1152
        """
        rows, spans = math.prod(shape[:-1]), -(-shape[-1] // self.span)
        return int(rows * spans * self.span * self.rate / 8)

    def in_groups(self, group: int) -> Format:
        """The same with groups of another size."""
        if not self.group or isinstance(self.scale, Format):
            raise ValueError(f"the format {self.name} has no groups of another size than its own")
        if group < 8 or group % 8:
            raise ValueError(f"a group is a multiple of 8 values, not {group}")
        return replace(self, group=group)


def _blocks(name: str, bits: int, zero: int = 0, minimum: bool = False) -> Format:
    """A format of llama.cpp with groups of 32."""
    return Format(name, Integer(bits, zero), 32, "float16", minimum="float16" if minimum else None)


def _superblocks(
    name: str, element: Element, group: int, scale: Integer, minimum: bool = False
) -> Format:
    """A format of llama.cpp with superblocks of 256."""
    inner = [
        Format(f"{name}.{field}", scale, 256 // group, "float16") for field in ("scale", "minimum")
    ]
    return Format(name, element, group, inner[0], minimum=inner[1] if minimum else None)


#: Quantiles of a normal distribution, as QLoRA has them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
#: The curve of llama.cpp's IQ4 formats.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
#: Floats of 4 bits (e2m1), doubled.
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

#: The formats by name. Integers have groups of 32 unless another size is asked for; `uint` ones
#: have a zero in every group, which suits weights that are not about zero.
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bfloat16", Float(8, 7)),
        Format("float16", Float(5, 10)),
        Format("float8_e4m3fn", Float(4, 3), 32),
        Format("float8_e5m2", Float(5, 2), 32),
        *(Format(f"int{b}", Integer(b, 1 << b - 1), 32) for b in (8, 6, 5, 4, 3, 2)),
        *(Format(f"uint{b}", Integer(b), 32, zero=b) for b in (8, 4, 3, 2)),
        Format("nf4", Table(NF4), 64),
        _blocks("Q8_0", 8, 128),
        _blocks("Q4_0", 4, 8),
        _blocks("Q4_1", 4, minimum=True),
        _blocks("Q5_0", 5, 16),
        _blocks("Q5_1", 5, minimum=True),
        _superblocks("Q2_K", Integer(2), 16, Integer(4), minimum=True),
        _superblocks("Q3_K", Integer(3, 4), 16, Integer(6, 32)),
        _superblocks("Q4_K", Integer(4), 32, Integer(6), minimum=True),
        _superblocks("Q5_K", Integer(5), 32, Integer(6), minimum=True),
        _superblocks("Q6_K", Integer(6, 32), 16, Integer(8, 128)),
        Format("IQ4_NL", Table(IQ4), 32, "float16"),
        _superblocks("IQ4_XS", Table(IQ4), 32, Integer(6, 32)),
        Format("MXFP4", Table(E2M1), 32, "e8m0"),
    )
}


def named(format: str | Format, caller: str) -> Format:
    """The format of a name, for a function that was called with it."""
    if isinstance(format, Format):
        return format
    if format not in FORMATS:
        raise ValueError(f"{caller}: the formats are {', '.join(FORMATS)}, not {format!r}")
    return FORMATS[format]


__all__ = ["E2M1", "FLOATS", "FORMATS", "Float", "Format", "IQ4", "Integer", "Table", "named"]
