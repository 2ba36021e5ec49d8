"""`QuantizedTensor`: a matrix in fewer bits, and products with it.

Activations are quantised on the fly, to signed bytes q with a scale (`peak`) for every group of
their own, so that within a group g integers are summed::

    y[m, n] = Σ_g peak[m, g] (scale[n, g] (Σ_k code[n, g, k] q[m, g, k] - zero[n, g] Σ_k q[m, g, k])
                              + minimum[n, g] Σ_k q[m, g, k])

Sums of integers are exact, and the sum over groups has one order, so what a row gives does not
depend on how many others there are. `genesis.compress.bit_packing` says where the bits lie.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import genesis
from genesis import functional
from genesis import ndarray as nd
from genesis.autograd import no_grad
from genesis.compress.bit_packing import BLOCK, QUAD, PackedLayout, pack, packed
from genesis.compress.codes import Codes, bytes_of, chunks, encode, values_of
from genesis.compress.format import FLOATS, Float, Format, Integer, Table, named
from genesis.tensor.tensor import Tensor

#: With more rows than this, floats are made of their codes once for all.
FEW_ROWS = 8
#: Rows from which on bfloat16 is made of the codes on a GPU, whose matrix units multiply it.
MANY_ROWS = 64


class QuantizedTensor:
    """A matrix (rows, k) in a `Format`, or several (count, rows, k).

    `values` are its bytes (.., blocks, spans, n) as in `genesis.compress.bit_packing`, with rows
    and spans that are not full filled up by zeros. Of floats without scales, `values` are the
    matrix.
    """

    def __init__(self, values: Tensor, shape: tuple[int, ...], format: str | Format) -> None:
        self.values, self.shape = values, shape
        self.format = named(format, "QuantizedTensor")

    def __repr__(self) -> str:
        group = f", group={self.group}" if self.group else ""
        return f"QuantizedTensor({self.shape}, {self.format.name!r}{group})"

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.format.bits

    @property
    def group(self) -> int:
        """How many neighbours of a row share a scale; 0 where there are none."""
        return self.format.group

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return int(self.values.nbytes)

    @no_grad()
    def dequantize(self) -> Any:
        """The matrix as float32.

        >>> from genesis.compress import quantize
        >>> quantize(genesis.tensor([[1.0, -0.5, 0.25, 0.0]]), "int8", group=8).dequantize()
        tensor([[ 0.9999, -0.5039,  0.2520,  0.0000]])
        """
        if not self.group:
            return self.values.to(genesis.float32)
        *count, rows, width = self.shape
        fields = _Fields(self.format, _matrices(self.values))
        flat = self._matrix(fields, fields.values())
        return flat.reshape(*count, -1, flat.shape[-1])[..., :rows, :width]

    @no_grad()
    def linear(self, input: Any, bias: Any = None) -> Any:
        """``input @ self.T + bias``; there is no gradient.

        The input is used as float32, or quantised on the fly if the values are integers. It is
        rounded to bfloat16 if the matrix is: some chips add two such products at once.
        """
        rows, width = self._fitting("linear", input, 2)
        x = input.to(genesis.float32)
        if self._many(input):
            # Rounded to 16 bits; sums of what was of 32 bits are of 32 bits.
            wide = genesis.bfloat16 if input.dtype is genesis.bfloat16 else genesis.float32
            halves = (a.to(genesis.bfloat16).to(wide) for a in (input, self._multiplied()))
            y = functional.linear(*halves).to(genesis.float32)
        elif multiply := self._multiply():
            y = multiply(x.reshape(-1, width), self.values).reshape(*input.shape[:-1], rows)
        else:
            if self.format.name == "bfloat16":
                x = x.to(genesis.bfloat16).to(genesis.float32)
            y = functional.linear(x, self.dequantize())
        y = y if bias is None else y + bias
        return y.to(input.dtype)

    @no_grad()
    def picked(self, input: Any, chosen: Any) -> Any:
        """Products of inputs (.., k), each with the one of several matrices whose number it has.

        The matrices are read where they lie, and only those that are chosen.
        """
        rows, width = self._fitting("picked", input, 3)
        x, places = input.to(genesis.float32), chosen.reshape(-1)
        if multiply := self._multiply():
            y = multiply(x.reshape(-1, width), self.values[places])
        else:
            few = self.values if self.group == 0 else self.dequantize()
            few = few[places].to(genesis.float32)
            y = functional.einsum("ri,roi->ro", x.reshape(-1, width), few)
        return y.reshape(*input.shape[:-1], rows).to(input.dtype)

    def _fitting(self, name: str, input: Any, ndim: int) -> tuple[int, int]:
        """The rows and columns of a matrix that an input fits."""
        if len(self.shape) != ndim:
            raise ValueError(f"QuantizedTensor.{name}: is not for a tensor of {self.shape}")
        rows, width = self.shape[-2:]
        if input.shape[-1] != width:
            raise ValueError(
                f"QuantizedTensor.{name}: an input of {tuple(input.shape)} does not fit a matrix "
                f"of {self.shape}: its last dimension is not {width}"
            )
        return rows, width

    def _multiply(self) -> Callable[[Tensor, Any], Any] | None:
        """What multiplies by codes where they lie; None: they are made floats before."""
        if self.format.integers:
            return self._summed
        return self._added if self.format.small_floats else None

    def _many(self, input: Any) -> bool:
        """Whether rows are so many that floats are made of the codes, once for all of them."""
        rows = input.shape[:-1]
        known = all(isinstance(n, int) for n in rows)
        return bool(self.group and known and input.device != "cpu" and prod(rows) >= MANY_ROWS)

    def _multiplied(self) -> Any:
        """The matrix with the values that codes have in products: those of a table are bytes."""
        fields = _Fields(self.format, self.values)
        table = self.format.integers and not isinstance(self.format.element, Integer)
        matrix = self._matrix(fields, fields.bytes_multiplied() if table else fields.values())
        return matrix[: self.shape[0], : self.shape[1]]

    def _summed(self, x: Tensor, values: Any) -> Any:
        """Products of rows with a matrix, or of each with a matrix of its own, by integer sums."""
        rows, width = self.shape[-2:]
        fields, format = _Fields(self.format, values), self.format
        *alone, blocks, spans, _ = values.shape
        x = functional.pad(x, (0, spans * format.span - width))
        x = x.reshape(-1, spans, format.groups, format.group)
        peak = functional.amax(functional.abs(x), 3, True)
        greatest = _power(7) - 1
        # Where the peak has no inverse there is nothing: not a number becomes the integer 0.
        q = functional.round(x * (greatest / peak)).to(genesis.int8)
        totals = q.to(genesis.float32).sum(3)  # (.., spans, groups)
        codes, zero, unit = fields.operand(values.device != "cpu")
        digits = fields.digits
        parts = q.reshape(*q.shape[:3], fields.layout.chunks, *[2] * len(digits), QUAD)
        equation = f"msgc{digits}j,{'m' if alone else ''}bsgc{digits}rj->mbrsg"
        sums = functional.einsum(equation, parts.to(genesis.int32), codes.to(genesis.int32))
        sums = sums.to(genesis.float32)
        if zero:
            sums = sums - (totals * zero)[:, None, None]
        if format.zero:
            sums = sums - totals[:, None, None] * fields.zero()
        scaled = sums * fields.scale()
        if format.minimum is not None:
            scaled = scaled + totals[:, None, None] * fields.minimum()
        total = (scaled * peak.reshape(-1, 1, 1, spans, format.groups)).sum((3, 4))
        return (total / (greatest * unit)).reshape(-1, blocks * BLOCK)[:, :rows]

    def _added(self, x: Tensor, values: Any) -> Any:
        """The same with floats, which are made of their codes where they are multiplied.

        For many rows they are made once, in the order in which they are multiplied.
        """
        rows, width = self.shape[-2:]
        fields, format = _Fields(self.format, values), self.format
        *alone, blocks, spans, _ = values.shape
        x = functional.pad(x, (0, spans * format.span - width))
        x = x.reshape(-1, spans, format.groups, format.group)
        tiny, half = fields.tiny()  # (.., blocks, spans, groups, neighbours, rows)
        # Half of what they are too small by comes with the sum, so that no scale is too large.
        weights = tiny * functional.movedim(fields.scale() * 2.0**half, -3, -1)[..., None, :]
        if x.shape[0] > FEW_ROWS and not alone:
            y = functional.einsum("msgk,bsgkr->mbr", x, weights)
        else:
            # Parts of a byte follow each other, so that it is read once.
            parts = 8 // min(format.planes)
            each = fields.layout.chunks, parts, fields.layout.chunk // parts
            x = x.reshape(-1, 1, spans, format.groups, *each, 1)
            weights = weights.reshape(*weights.shape[:-2], *each, BLOCK)
            terms = [x[..., k, :, :] * weights[..., k, :, :] for k in range(parts)]
            y = sum(terms[1:], terms[0]).sum((2, 3, 4, 5))
        return (y * 2.0**half).reshape(-1, blocks * BLOCK)[:, :rows]

    @no_grad()
    def parts(self) -> tuple[Any, Any, Any]:
        """The codes (rows, k), and for every group a zero that is subtracted and a scale.

        Of numbers with a scale for each group; k is filled up to whole groups.

        >>> from genesis.compress import quantize
        >>> codes, zero, scale = quantize(genesis.ones(2, 16), "int4", group=8).parts()
        >>> codes.shape, zero.shape, round(float((codes[0, 0] - zero[0, 0]) * scale[0, 0]), 2)
        (genesis.Size([2, 16]), genesis.Size([2, 2]), 1.0)
        """
        element, format = self.format.element, self.format
        nested = isinstance(format.scale, Format) or format.minimum is not None
        if len(self.shape) != 2 or isinstance(element, Table) or nested:
            raise ValueError(f"QuantizedTensor.parts: {self} has more than codes, zeros and scales")
        codes, scale, _ = self.scaled_codes()
        fields = _Fields(format, self.values)
        zero = (
            fields.zero().reshape(-1, scale.shape[1]) if format.zero else functional.mul(scale, 0)
        )
        middle = element.zero if isinstance(element, Integer) else 0
        return codes, zero[: len(codes)] + middle, scale

    @no_grad()
    def scaled_codes(self) -> tuple[Any, Any, float]:
        """The codes (rows, k) of a matrix, their scales (rows, groups), and those scales' unit.

        It is the first row's where scales are numbers of a format, and else 1.
        """
        fields, rows = _Fields(self.format, self.values), self.shape[0]
        codes = functional.movedim(fields.codes().to(genesis.float32), -2, 1)
        codes = codes.reshape(-1, self.values.shape[1] * self.format.span)[:rows]
        inner = self.format.scale
        if isinstance(inner, str):
            return codes, fields.scale().reshape(-1, codes.shape[1] // self.group)[:rows], 1.0
        unit = fields.together(str(inner.scale), 0).reshape(-1)[0]
        scale = fields.steps(0).reshape(-1, codes.shape[1] // self.group)
        return codes, scale[:rows], float(unit.item())

    def rows(self, places: Any) -> Any:
        """The rows at some places, as float32."""
        if not self.group:
            return self.values[places].to(genesis.float32)
        fields = _Fields(self.format, self.values, places.reshape(-1))
        few = self._matrix(fields, fields.values())
        return few[:, : self.shape[1]].reshape(*places.shape, self.shape[1])

    def _matrix(self, fields: _Fields, values: Any) -> Any:
        """The rows of all blocks as float32, of (blocks, spans, groups, neighbours, rows)."""
        if self.format.zero:
            values = values - _spread(fields.zero())
        values = values * _spread(fields.scale())
        if self.format.minimum is not None:
            values = values + _spread(fields.minimum())
        ordered = values.permute(0, 4, 1, 2, 3)
        return ordered.reshape(-1, ordered.shape[2] * self.format.span)


def _matrices(values: Any) -> Any:
    """The blocks of several matrices one after the other."""
    return values.reshape(-1, *values.shape[-2:]) if values.ndim > 3 else values


def _spread(x: Any) -> Any:
    """Numbers (blocks, rows, spans, groups) beside those of neighbours."""
    return x.permute(0, 2, 3, 1)[:, :, :, None]


class _Fields:
    """The numbers in the bytes (blocks, spans, n) of a matrix, or of several (.., spans, n).

    With places given, every row at one of them is a block of its own.
    """

    def __init__(self, format: Format, values: Tensor, places: Any = None) -> None:
        self.format, self.layout = format, PackedLayout(format)
        self.bytes = values
        self.places = None if places is None else (places // BLOCK, places % BLOCK)
        #: The axes of a chunk, each of two: a plane's leading ones count the parts of a byte.
        self.digits = "uvwxyz"[: (self.layout.chunk // self.layout.word).bit_length() - 1]

    # ---- codes

    def planes(self) -> list[Any]:
        """The bytes of each plane: (blocks, spans, groups, chunks, words, rows, neighbours)."""
        layout, shape = self.layout, self.bytes.shape[:-1]
        groups = self.format.groups
        body = self.bytes[..., : layout.each * groups * BLOCK]
        body = body.reshape(*shape, groups, -1)[..., : layout.codes * BLOCK]
        words = body.reshape(*shape, groups, layout.chunks, -1, BLOCK, layout.word)
        if self.places is not None:
            block, row = self.places
            words = words[block, :, :, :, :, row, None]
        return list(functional.split(words, layout.words, -3)) if layout.words[1:] else [words]

    def codes(self, dtype: Any = genesis.uint8) -> Any:
        """The codes (blocks, spans, groups, chunks, *digits, rows, neighbours)."""
        result, below = None, 0
        for plane, words in zip(self.format.planes, self.planes(), strict=True):
            words = words.to(dtype)
            bits = words.reshape(*words.shape[:-3], *self._split(plane), *words.shape[-2:])
            if plane < 8:
                bits = (bits >> self._shifts(plane).to(dtype)) & ((1 << plane) - 1)
            bits = bits << below if below else bits
            result = bits if result is None else result | bits
            below += plane
        return result

    def operand(self, signed: bool) -> tuple[Any, float, Any]:
        """Codes to multiply, the constant that is still to be subtracted, and their unit.

        Those of a table are looked up. Chips multiply unsigned by signed bytes, or `signed` by
        signed ones. For those, codes are moved to the upper bits of a byte, where flipping the
        highest takes their zero away.
        """
        format, bits = self.format, self.format.bits
        if not isinstance(format.element, Integer):
            table, unit = bytes_of(format.element)
            found = _looked_up(self.codes(), table, 0 if signed else 128)
            return (found.view(genesis.int8), 0, unit) if signed else (found, 128, unit)
        zero = format.element.zero
        if not signed:
            return self.codes(), zero, 1
        if len(format.planes) == 1 and bits in (4, 8) and zero == 1 << bits - 1:
            (words,) = self.planes()
            words = words.reshape(*words.shape[:-3], *self._split(bits), *words.shape[-2:])
            if bits == 8:
                return (words ^ 0x80).view(genesis.int8), 0, 1
            shifts = ((genesis.arange(2) ^ 1) << 2).to(genesis.uint8)
            shifts = shifts.reshape(2, *[1] * (len(self.digits) + 1))
            return (((words ^ 0x88) << shifts) & 0xF0).view(genesis.int8), 0, _power(4)
        if bits == 8:
            return (self.codes() ^ 0x80).view(genesis.int8), zero - 128, 1
        return self.codes().view(genesis.int8), zero, 1

    def _split(self, plane: int) -> list[int]:
        """The digits of a plane: one of those that its bytes do not depend on, two of the rest."""
        parts = (8 // plane).bit_length() - 1
        return [1] * parts + [2] * (len(self.digits) - parts)

    def _shifts(self, plane: int) -> Any:
        parts = 8 // plane
        shifts = (genesis.arange(parts) << (plane.bit_length() - 1)).to(genesis.uint8)
        twos = parts.bit_length() - 1
        return shifts.reshape(*[2] * twos, *[1] * (len(self.digits) - twos), 1, 1)

    def values(self) -> Any:
        """The values of the codes: (blocks, spans, groups, neighbours, rows)."""
        moved, element = self._in_order(self.codes()), self.format.element
        if isinstance(element, Integer):
            return moved.to(genesis.float32) - element.zero
        return _numbers(moved, element)

    def bytes_multiplied(self) -> Any:
        """The same as products of bytes have them."""
        codes, zero, unit = self.operand(True)
        return (self._in_order(codes).to(genesis.float32) - zero) / unit

    def _in_order(self, codes: Any) -> Any:
        """Codes (.., chunks, *digits, rows, word) as (.., neighbours, rows)."""
        last = codes.ndim - 1
        moved = codes.permute(*range(last - 1), last, last - 1)
        return moved.reshape(*codes.shape[:3], self.format.group, codes.shape[-2])

    def tiny(self) -> tuple[Any, int]:
        """Floats (.., spans, groups, neighbours, rows), and how tiny: ``2**(2 * half)`` times.

        The bits of a small float are those of a float32 whose exponent counts from another number.
        """
        element, codes = self.format.element, self.codes(genesis.int32)
        assert isinstance(element, Float)
        codes = codes.reshape(*self.bytes.shape[:-1], self.format.groups, self.format.group, BLOCK)
        mask = (1 << element.bits - 1) - 1 << 23 - element.mantissa
        # The sign is spread over bits that are none of this float's.
        bits = codes << 32 - element.bits >> 8 - element.exponent & (mask - (1 << 31))
        unit = 128 - (1 << element.exponent - 1)
        return bits.view(genesis.float32) * 2.0 ** (unit % 2), unit // 2

    # ---- what belongs to groups and spans: (blocks, rows, spans, groups or 1)

    def scale(self) -> Any:
        """The scales."""
        if isinstance(self.format.scale, str):
            return self._float(self.format.scale, self._group_bytes(0, FLOATS[self.format.scale]))
        return self._nested(self.format.scale, 0)

    def minimum(self) -> Any:
        """The minima."""
        format = self.format.minimum
        if isinstance(format, str):
            begin = self.format.shared[0] - FLOATS[format] - (self.format.zero > 0)
            return self._float(format, self._group_bytes(begin, FLOATS[format]))
        assert format is not None
        return self._nested(format, 1)

    def _nested(self, format: Format, k: int) -> Any:
        """Scales (0) or minima (1) that are numbers of a format."""
        begin = 0
        if k:
            assert isinstance(self.format.scale, Format)
            begin = sum(FLOATS[str(f)] for f in self.format.scale.fields)
        numbers = self.steps(k)
        for place, kind in enumerate(map(str, format.fields)):
            other = self.together(kind, begin)
            numbers = numbers + other if place else numbers * other
            begin += FLOATS[kind]
        return numbers

    def together(self, kind: str, begin: int) -> Any:
        """A float that belongs to spans, from the byte where it begins."""
        return self._float(kind, self._span_bytes(begin, FLOATS[kind]))

    def zero(self) -> Any:
        """The zeros, the last of the numbers of a group."""
        (zero,) = self._group_bytes(self.format.shared[0] - 1, 1)
        return zero.to(genesis.float32)

    def steps(self, k: int) -> Any:
        """The codes of scales (0) or minima (1), as numbers."""
        if self.format.joint:
            (both,) = self._group_bytes(0, 1)
            return ((both >> 4) if k else (both & 15)).to(genesis.float32)
        (steps,) = self._group_bytes(k, 1)
        format = self.format.minimum if k else self.format.scale
        assert isinstance(format, Format)
        if not isinstance(format.element, Integer):
            return _numbers(steps, format.element)
        wide = format.bits - bool(format.element.zero) > 7
        return (steps if wide else steps.view(genesis.int8)).to(genesis.float32)

    def _group_bytes(self, begin: int, count: int) -> list[Any]:
        layout, groups = self.layout, self.format.groups
        body = self.bytes[..., : layout.each * groups * BLOCK]
        body = body.reshape(*self.bytes.shape[:-1], groups, layout.each, BLOCK)
        own = body[..., layout.codes + begin : layout.codes + begin + count, :]
        if self.places is not None:
            block, row = self.places
            own = own[block, :, :, :, row, None]
        return [functional.movedim(own[..., k, :], -1, -3) for k in range(count)]

    def _span_bytes(self, begin: int, count: int) -> list[Any]:
        layout, groups = self.layout, self.format.groups
        body = self.bytes[..., layout.each * groups * BLOCK :]
        body = body.reshape(*self.bytes.shape[:-1], -1, BLOCK)[..., begin : begin + count, :]
        if self.places is not None:
            block, row = self.places
            body = body[block, :, :, row, None]
        return [functional.movedim(body[..., i, :], -1, -2)[..., None] for i in range(count)]

    def _float(self, kind: str, bytes_: list[Any]) -> Any:
        """Numbers of which there are the bytes, the lowest first."""
        if kind == "float16":
            low, high = (x.to(genesis.int16) for x in bytes_)
            return (low | high << 8).view(genesis.float16).to(genesis.float32)
        if kind in ("e8m0", "e8m0_half"):
            exponent = bytes_[0].to(genesis.int32)
            if kind == "e8m0":
                bits = functional.where(exponent > 0, exponent << 23, 0x400000)
            else:
                bits = functional.where(exponent > 1, (exponent - 1) << 23, 0x200000 << exponent)
            return bits.view(genesis.float32)
        first = 32 - 8 * len(bytes_)
        word = bytes_[0].to(genesis.int32) << first
        for k, x in enumerate(bytes_[1:], 1):
            word = word | x.to(genesis.int32) << (first + 8 * k)
        return word.view(genesis.float32)


def _numbers(codes: Any, element: Float | Table) -> Any:
    """The values of codes that are no integers."""
    if isinstance(element, Float) and element.dtype:
        return codes.view(getattr(genesis, element.dtype)).to(genesis.float32)
    if isinstance(element, Table) and element.integers and element.bits <= 4:
        integers = tuple(map(int, element.values))
        return _looked_up(codes, integers, 0).view(genesis.int8).to(genesis.float32)
    table = genesis.tensor(values_of(element)).to(codes.device)
    return functional.embedding(codes.to(genesis.int64), table[:, None])[..., 0]


def _looked_up(codes: Any, table: tuple[int, ...], moved: int) -> Any:
    """The integers of a table, moved so far, as unsigned bytes."""
    return Tensor(nd.lookup(codes.array, [x + moved & 255 for x in (table * 16)[:16]]))


def _power(k: int) -> Any:
    """A power of two that is part of the program, so that equal computations with it are one."""
    return (genesis.ones((), dtype=genesis.int32) << k).to(genesis.float32)


@no_grad()
def quantize(
    tensor: Any, format: str | Format = "int8", group: int | None = None
) -> QuantizedTensor:
    """A matrix, or several (count, rows, k), in fewer bits.

    As an integer every weight is off by at most half the scale of its group of neighbours.

    >>> w = genesis.tensor([[1.0, -7.0, 3.0, 5.0]])
    >>> quantize(w, "int4", group=8).dequantize()
    tensor([[ 1., -7.,  3.,  5.]])
    """
    format = named(format, "quantize")
    shape = tuple(map(int, tensor.shape))
    if tensor.ndim not in (2, 3) or not tensor.numel():
        raise ValueError(f"quantize: takes a matrix with weights, not a tensor of shape {shape}")
    if not format.group:
        return QuantizedTensor(tensor.to(getattr(genesis, format.name)), shape, format)
    if group is not None and group != format.group:
        try:
            format = format.in_groups(group)
        except ValueError as error:
            raise ValueError(f"quantize: {error}") from None
    format = format.fitted(shape[-1])
    if len(shape) == 3:
        each = [quantize(x, format) for x in tensor]
        return QuantizedTensor(functional.stack([x.values for x in each]), shape, format)
    symmetric = isinstance(format.element, Integer) and format.fields == ("bfloat16",)
    if not symmetric or format.zero or format.rows != 1 or format.bits < 2:
        made = from_codes(encode(tensor.detach().to(genesis.float32).numpy(), format), shape[1])
        made.values = made.values.to(tensor.device)
        return made
    if not functional.isfinite(tensor).all():
        raise ValueError(f"quantize: of the weights {shape} some are NaN or infinite")
    return QuantizedTensor(_quantized(tensor, format), shape, format)


def _quantized(tensor: Any, format: Format) -> Any:
    """The bytes of a matrix of integers about zero, which are made where the matrix lies."""
    zero, group = 1 << format.bits - 1, format.group
    rows, width = map(int, tensor.shape)
    padded = functional.pad(tensor.to(genesis.float32), (0, -width % group, 0, -rows % BLOCK))
    grouped = padded.reshape(padded.shape[0], -1, group)
    scales = functional.amax(functional.abs(grouped), 2, True) / (zero - 1)
    scales = scales.to(genesis.bfloat16).to(genesis.float32)
    codes = functional.where(scales > 0, functional.round(grouped / scales), 0.0)
    codes = (functional.clamp(codes, 1 - zero, zero - 1) + zero).to(genesis.uint8)
    words = scales.view(genesis.int32)
    bytes_ = functional.cat([(words >> s & 255).to(genesis.uint8) for s in (16, 24)], 2)
    codes = codes.reshape(*padded.shape)
    if tensor.device == "cpu":  # NumPy moves bytes faster
        return genesis.from_numpy(pack(format, codes.numpy(), [bytes_.numpy()], []))
    return pack(format, codes, [bytes_], [])


def from_codes(codes: Codes, width: int | None = None) -> QuantizedTensor:
    """The matrix of codes, every bit of which is kept; of `width` columns where some are filling.

    >>> from genesis.compress import FORMATS
    >>> from_codes(encode(np.ones((2, 256), np.float32), FORMATS["Q4_K"]))
    QuantizedTensor((2, 256), 'Q4_K', group=32)
    """
    if len(codes.shape) != 2 or codes.order is not None:
        raise ValueError(f"from_codes: takes a matrix in order, not codes of shape {codes.shape}")
    rows, k = codes.shape
    values = np.empty(PackedLayout(codes.format).shape(rows, k), np.uint8)
    for some in chunks(len(values), k * BLOCK):
        values[some] = packed(codes[some.start * BLOCK : some.stop * BLOCK])
    return QuantizedTensor(genesis.from_numpy(values), (rows, width or k), codes.format)


__all__ = ["QuantizedTensor", "from_codes", "quantize"]
