"""`Format`: what the numbers of a weight are, as data.

A weight of a format is ``scale * (value - zero) + minimum``. Its value is an element: an unsigned
integer of few bits less a constant, a float of few bits, or a number of a table. Neighbours in a
row are a group, which has the scale and perhaps a zero or a minimum of its own. A scale is a float,
or again a number of a format: so llama.cpp's superblocks are two formats, one in the other.

All else follows from the description: `genesis.compress.codes` encodes and decodes in NumPy,
`genesis.compress.bit_packing` says where the bits lie, `genesis.compress.quantized_tensor`
multiplies by them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

#: Bytes of the floats that scales are made of. An e8m0 is a power of two; an e8m0_half is half of
#: what its byte means there, as in ggml, so that floats of 4 bits are doubled to integers.
FLOATS = {"bfloat16": 2, "float16": 2, "float32": 4, "e8m0": 1, "e8m0_half": 1}
#: A group that is the whole row; of `Format.rows`, all rows.
ROW, ALL = -1, 0
#: The greatest chunk of a group: as many neighbours as have a bit in a word of a plane of one bit.
CHUNK = 32


@dataclass(frozen=True)
class Integer:
    """Unsigned integers of 1 to 8 bits; their values are ``code - zero``."""

    bits: int
    zero: float = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ValueError(f"Integer: has 1 to 8 bits, not {self.bits}")


@dataclass(frozen=True)
class Float:
    """Floats of up to 8 bits, or of 16: a sign, an exponent and a mantissa.

    Those of 8 bits have a NaN; `Float(4, 3)` has no infinity, and all others of 8 bits do. Fewer
    bits are finite numbers only.
    """

    exponent: int
    mantissa: int

    def __post_init__(self) -> None:
        known = (self.exponent, self.mantissa) in _DTYPES
        if not known and not (self.exponent >= 1 <= self.mantissa and 3 <= self.bits <= 8):
            raise ValueError(
                f"Float: has an exponent and a mantissa of a bit or more and at most 8 bits, or is "
                f"float16 or bfloat16, not {self.exponent} and {self.mantissa}"
            )

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return 1 + self.exponent + self.mantissa

    @property
    def dtype(self) -> str | None:
        """The element type that these numbers are, where there is one."""
        return _DTYPES.get((self.exponent, self.mantissa))


@dataclass(frozen=True)
class Table:
    """A power of two of numbers, at most 256: a code is the place of one."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) not in (2, 4, 8, 16, 32, 64, 128, 256):
            raise ValueError(f"Table: has a power of two of numbers, not {len(self.values)}")

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return len(self.values).bit_length() - 1

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
    #: How many neighbours of a row share a scale; `ROW`: all of them; 0: there are no scales.
    group: int = 0
    #: What a scale is stored as.
    scale: str | Format = "bfloat16"
    #: Bits of an integer that is subtracted from the codes of a group; 0: there is none.
    zero: int = 0
    #: What a number is stored as that is added to the weights of a group.
    minimum: str | Format | None = None
    #: How many rows have the same scales; `ALL` of them. They are stored with every row.
    rows: int = 1

    def __post_init__(self) -> None:
        if self.group != ROW and (self.group < 0 or self.rows < 0):
            raise ValueError(f"Format: {self.name!r} has groups of {self.group}, {self.rows} rows")
        for field in self.fields:
            if isinstance(field, str) and field not in FLOATS:
                raise ValueError(f"Format: a scale is {', '.join(FLOATS)} or a Format, not {field}")
            if isinstance(field, Format) and isinstance(field.scale, Format):
                raise ValueError(f"Format: the scales of {self.name!r}'s scales are floats")

    def __repr__(self) -> str:
        if self.group == ROW or (isinstance(self.scale, Format) and self.scale.group == ROW):
            return f"Format({self.name!r}: {self.bits} bits, scales of rows)"
        group = f", groups of {self.group}, {self.rate} bits a weight" if self.group else ""
        return f"Format({self.name!r}: {self.bits} bits{group})"

    @property
    def bits(self) -> int:
        """The bits of an element."""
        return self.element.bits

    @property
    def integers(self) -> bool:
        """Whether products are sums of integers: of codes, or of bytes that codes stand for."""
        return isinstance(self.element, Integer) or self.bits <= 4

    @property
    def small_floats(self) -> bool:
        """Whether products take floats of few bits apart, with nothing but a scale."""
        plain = not self.zero and self.minimum is None and self.group != 0
        return plain and isinstance(self.element, Float) and not self.integers

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
        together = sum(FLOATS[str(x)] for f in nested for x in f.fields)
        return floats + codes + (self.zero > 0), together

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
        format = self.fitted(shape[-1])
        rows, spans = math.prod(shape[:-1]), -(-shape[-1] // format.span)
        return round(rows * spans * format.span * format.rate / 8)

    def in_groups(self, group: int, rows: int = 1) -> Format:
        """The same with groups of another size, whose scales some rows have in common."""
        if not self.group or isinstance(self.scale, Format):
            raise ValueError(f"the format {self.name} has no groups of another size than its own")
        if group != ROW and (group < 8 or group % 8):
            raise ValueError(f"a group is a multiple of 8 values, not {group}")
        return replace(self, group=group, rows=rows)

    def fitted(self, k: int) -> Format:
        """The same for rows of k values: groups that are rows, and no span longer than one.

        >>> named("int8/row", "").fitted(100).group
        128
        """
        if self.group == ROW:
            return replace(self, group=max(CHUNK, -(-k // CHUNK) * CHUNK))
        # Superblocks of files, whose scales are of 16 bits, keep their size.
        if not isinstance(self.scale, Format) or self.scale.scale != "float32":
            return self
        groups = max(1, -(-k // self.group))
        if self.groups != ROW and self.groups <= groups:
            return self
        return replace(self, scale=replace(self.scale, group=groups))


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
#: What bitsandbytes calls FP4, which is no float of e2m1.
FP4 = (
    0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5,
    0.1666666716337204, 0.25, -0.0, -0.0052083334885537624, -0.6666666865348816, -1.0,
    -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
)  # fmt: skip


def _dynamic() -> tuple[float, ...]:
    """Numbers of 8 bits that are dense near zero, as bitsandbytes has them.

    From 0.1 to 1 there are 64 on each side, from 0.01 to 0.1 there are 32, and so on.
    """
    found, first = [np.float32(0), np.float32(1)], np.float32(0.1)
    for place in range(7):
        i, n = np.arange((1 << place) + 1), 1 << place
        step = float((1 - first) / np.float32(n))  # from both ends, as PyTorch counts
        bounds = np.where(2 * i < n, float(first) + step * i, 1 - step * (n - i))
        means = (bounds[:-1].astype(np.float32) + bounds[1:].astype(np.float32)) / np.float32(2)
        sized = np.float32(10.0 ** (place - 6)) * means
        found += [*sized, *-sized]
    return tuple(float(x) for x in np.sort(np.array(found, np.float32)))


DYNAMIC = _dynamic()


def _scaled_floats(name: str, element: Element, scale: str = "e8m0") -> Format:
    """A format of the Open Compute Project's: groups of 32 with a power of two."""
    return Format(name, element, 32, scale)


#: The formats by name. Integers have groups of 32 unless another size is asked for; `uint` ones
#: have a zero in every group, which suits weights that are not about zero.
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bfloat16", Float(8, 7)),
        Format("float16", Float(5, 10)),
        Format("float8_e4m3fn", Float(4, 3), 32),
        Format("float8_e5m2", Float(5, 2), 32),
        *(Format(f"int{b}", Integer(b, 1 << b - 1), 32) for b in range(8, 1, -1)),
        Format("int1", Integer(1, 0.5), 32),
        *(Format(f"uint{b}", Integer(b), 32, zero=b) for b in range(8, 0, -1)),
        Format("nf4", Table(NF4), 64),
        Format("nf4_nested", Table(NF4), 64, Format(
            "nf4_nested.scale", Table(DYNAMIC), 256, "float32", minimum="float32")),
        Format("fp4", Table(FP4), 64),
        Format("NVFP4", Float(2, 1), 16, Format(
            "NVFP4.scale", Float(4, 3), ROW, "float32", rows=ALL)),
        _scaled_floats("MXFP4", Table(E2M1), "e8m0_half"),
        _scaled_floats("MXFP6_E2M3", Float(2, 3)),
        _scaled_floats("MXFP6_E3M2", Float(3, 2)),
        _scaled_floats("MXFP8_E4M3", Float(4, 3)),
        _scaled_floats("MXFP8_E5M2", Float(5, 2)),
        _scaled_floats("MXINT8", Integer(8, 128)),
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
        Format("TQ1_0", Integer(2, 1), 256, "float16"),
        Format("TQ2_0", Integer(2, 1), 256, "float16"),
        Format("IQ4_NL", Table(IQ4), 32, "float16"),
        _superblocks("IQ4_XS", Table(IQ4), 32, Integer(6, 32)),
    )
}  # fmt: skip


def named(format: str | Format, caller: str) -> Format:
    """The format of a name, for a function that was called with it.

    Behind a slash stands another size of groups: ``"int4/64"``, ``"int8/row"``, ``"int8/tensor"``,
    ``"float8_e4m3fn/128x128"`` (rows and columns that share a scale).
    """
    if isinstance(format, Format):
        return format
    name, _, groups = format.partition("/")
    if name not in FORMATS:
        raise ValueError(f"{caller}: the formats are {', '.join(FORMATS)}, not {format!r}")
    found = re.fullmatch(r"|row|tensor|(?:(\d{1,6})x)?(\d{1,6})", groups)
    if found is None:
        raise ValueError(f"{caller}: groups are /64, /row, /tensor or /128x128, not {format!r}")
    if not groups:
        return FORMATS[name]
    rows = ALL if groups == "tensor" else int(found[1] or 1)
    try:
        return FORMATS[name].in_groups(int(found[2] or ROW), rows)
    except ValueError as error:
        raise ValueError(f"{caller}: {error}") from None


__all__ = [
    "ALL", "CHUNK", "DYNAMIC", "E2M1", "Element", "FLOATS", "FORMATS", "FP4", "Float", "Format",
    "IQ4", "Integer", "NF4", "ROW", "Table", "named",
]  # fmt: skip
