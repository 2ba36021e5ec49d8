"""`QuantizedTensor`: a matrix in fewer bits.

As float16 or bfloat16 a weight is made float32 where it is multiplied. As an integer it is
``scale * (code - zero)``, with unsigned codes of 8 or 4 bits, the zero in their middle, and a scale
for every group g of neighbours in a row. Activations are quantised on the fly, to signed bytes q
with a scale (`peak`) for every group of their own, so that within a group integers are summed::

    y[m, n] = Σ_g scale[n, g] peak[m, g] (Σ_k code[n, g, k] q[m, g, k] - zero Σ_k q[m, g, k])

Codes lie in the order in which they are multiplied: rows in blocks of 32, k in quadruples, the two
halves of a group in the low and the high bits of the same bytes. Behind the codes of a group lie
its scales, first the low and then the high byte of each. So a product reads the weights once, from
the first byte to the last, and memory sees a single stream.
"""

from __future__ import annotations

from typing import Any

import genesis
from genesis import functional
from genesis.autograd import no_grad
from genesis.tensor.tensor import Tensor

#: The formats of a weight, and their bits.
FORMATS = {"bfloat16": 16, "float16": 16, "int8": 8, "int4": 4}
#: Rows of a block, and neighbours along k that are multiplied together.
BLOCK, QUAD = 32, 4
#: Bytes of a scale.
SCALE = 2


class QuantizedTensor:
    """A matrix (rows, k) in a format of `FORMATS`.

    Of integers, `values` are bytes (blocks, groups, n): the codes of a group in a block of rows, as
    (quadruples, `BLOCK`, `QUAD`), and their scales, the bytes of bfloat16, as (2, `BLOCK`). Rows
    and groups that are not full are filled with zeros. Of floats, `values` are the matrix.
    """

    def __init__(self, values: Tensor, shape: tuple[int, int], format: str) -> None:
        self.values, self.shape, self.format = values, shape, format

    def __repr__(self) -> str:
        group = f", group={self.group}" if self.bits < 16 else ""
        return f"QuantizedTensor({self.shape}, {self.format!r}{group})"

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return FORMATS[self.format]

    @property
    def group(self) -> int:
        """How many neighbours of a row share a scale."""
        return (int(self.values.shape[2]) // BLOCK - SCALE) * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return int(self.values.nbytes)

    @no_grad()
    def dequantize(self) -> Any:
        """The matrix as float32.

        >>> from genesis.quantization import quantize
        >>> quantize(genesis.tensor([[1.0, -0.5, 0.25, 0.0]]), "int8", group=8).dequantize()
        tensor([[ 0.9999, -0.5039,  0.2520,  0.0000]])
        """
        if self.bits == 16:
            return self.values.to(genesis.float32)
        rows, width = self.shape
        return self._matrix(*self._parts())[:rows, :width]

    @no_grad()
    def linear(self, input: Any, bias: Any = None) -> Any:
        """``input @ self.T + bias``; there is no gradient.

        The input is used as float32, or quantised on the fly if the matrix is of integers. It is
        rounded to bfloat16 if the matrix is: some chips add two such products at once.
        """
        rows, width = self.shape
        if input.shape[-1] != width:
            raise ValueError(
                f"QuantizedTensor.linear: an input of {tuple(input.shape)} does not fit a matrix "
                f"of {self.shape}: its last dimension is not {width}"
            )
        x = input.to(genesis.float32)
        if self.bits == 16:
            if self.format == "bfloat16":
                x = x.to(genesis.bfloat16).to(genesis.float32)
            y = functional.linear(x, self.values.to(genesis.float32))
        else:
            y = self._summed(x.reshape(-1, width)).reshape(*input.shape[:-1], rows)
        y = y if bias is None else y + bias
        return y.to(input.dtype)

    def _summed(self, x: Tensor) -> Any:
        """``x @ self.T`` by sums of integers."""
        rows, width = self.shape
        bytes_, scales = self._parts()
        blocks, groups, quads = bytes_.shape[:3]
        x = functional.pad(x, (0, groups * self.group - width)).reshape(-1, groups, self.group)
        peak = functional.amax(functional.abs(x), 2, True)
        greatest = _power(7) - 1
        # Where the peak has no inverse there is nothing: not a number becomes the integer 0.
        q = functional.round(x * (greatest / peak)).to(genesis.int8)
        signed = self.values.device != "cpu"
        codes = self._signed(bytes_) if signed else self._codes(bytes_)
        halves = q.reshape(-1, groups, 8 // self.bits, quads, QUAD).to(genesis.int32)
        sums = functional.einsum("mghqj,bghqrj->mbrg", halves, codes.to(genesis.int32))
        sums = sums.to(genesis.float32)
        if signed:
            greatest = greatest * _power(8 - self.bits)
        else:
            zeros = (q.to(genesis.float32) * _power(self.bits - 1)).sum(2)
            sums = sums - zeros[:, None, None, :]
        scaled = sums * _float(scales).permute(0, 2, 1)
        total = (scaled * peak.reshape(-1, 1, 1, groups)).sum(3) / greatest
        return total.reshape(-1, blocks * BLOCK)[:, :rows]

    def rows(self, places: Any) -> Any:
        """The rows at some places, as float32."""
        if self.bits == 16:
            return self.values[places].to(genesis.float32)
        flat = places.reshape(-1)
        block, row = flat // BLOCK, flat % BLOCK
        bytes_, scales = self._parts()
        # Blocks of one row.
        few = self._matrix(bytes_[block, :, :, row, None], scales[block, :, :, row, None])
        return few[:, : self.shape[1]].reshape(*places.shape, self.shape[1])

    def _parts(self) -> tuple[Any, Any]:
        """The bytes of codes (.., quadruples, `BLOCK`, `QUAD`) and of scales (.., 2, `BLOCK`)."""
        size = self.values.shape[2] - SCALE * BLOCK
        codes, scales = self.values[:, :, :size], self.values[:, :, size:]
        shape = self.values.shape[:2]
        return codes.reshape(*shape, -1, BLOCK, QUAD), scales.reshape(*shape, SCALE, BLOCK)

    def _codes(self, bytes_: Any) -> Any:
        """The codes (blocks, groups, halves, quadruples, rows, `QUAD`)."""
        bytes_ = bytes_[:, :, None]
        if self.bits == 8:
            return bytes_
        shifts = (genesis.arange(2) << 2).to(genesis.uint8)
        return (bytes_ >> shifts[:, None, None, None]) & 15

    def _signed(self, bytes_: Any) -> Any:
        """The codes less their zero, in the same order, as the upper bits of signed bytes."""
        bytes_ = bytes_[:, :, None]
        if self.bits == 8:
            return (bytes_ ^ 0x80).view(genesis.int8)
        shifts = ((genesis.arange(2) ^ 1) << 2).to(genesis.uint8)
        return (((bytes_ ^ 0x88) << shifts[:, None, None, None]) & 0xF0).view(genesis.int8)

    def _matrix(self, bytes_: Any, scales: Any) -> Any:
        """The rows of all blocks as float32."""
        codes = self._codes(bytes_).to(genesis.float32) - _power(self.bits - 1)
        scaled = codes * _float(scales)[:, :, None, None, :, None]
        # (blocks, groups, halves, quadruples, rows, QUAD) to (blocks, rows, groups, ..)
        ordered = scaled.permute(0, 4, 1, 2, 3, 5)
        return ordered.reshape(-1, ordered.shape[2] * self.group)


def _float(scales: Any) -> Any:
    """Scales (blocks, groups, rows) of which there are the two bytes of bfloat16."""
    low, high = (scales[:, :, k].to(genesis.int32) for k in range(SCALE))
    return (low << 16 | high << 24).view(genesis.float32)


def _power(k: int) -> Any:
    """A power of two that is part of the program, so that equal computations with it are one."""
    return (genesis.ones((), dtype=genesis.int32) << k).to(genesis.float32)


@no_grad()
def quantize(tensor: Any, format: str = "int8", group: int = 32) -> QuantizedTensor:
    """A matrix in fewer bits.

    As an integer every weight is off by at most half the scale of its group of neighbours.

    >>> w = genesis.tensor([[1.0, -7.0, 3.0, 5.0]])
    >>> quantize(w, "int4", group=8).dequantize()
    tensor([[ 1., -7.,  3.,  5.]])
    """
    if format not in FORMATS:
        raise ValueError(f"quantize: the formats are {', '.join(FORMATS)}, not {format!r}")
    if tensor.ndim != 2:
        raise ValueError(f"quantize: takes a matrix, not a tensor of shape {tuple(tensor.shape)}")
    if group < 8 or group % 8:
        raise ValueError(f"quantize: a group is a multiple of 8 values, not {group}")
    bits = FORMATS[format]
    zero = 1 << bits - 1
    rows, width = map(int, tensor.shape)
    if bits == 16:
        return QuantizedTensor(tensor.to(getattr(genesis, format)), (rows, width), format)
    padded = functional.pad(tensor.to(genesis.float32), (0, -width % group, 0, -rows % BLOCK))
    grouped = padded.reshape(-1, padded.shape[1] // group, group)
    peak = functional.amax(functional.abs(grouped), 2, True)
    scales = peak / (zero - 1)
    steps = scales.to(genesis.bfloat16).to(genesis.float32)
    codes = functional.where(steps > 0, functional.round(grouped / steps), 0.0)
    codes = functional.clamp(codes, 1 - zero, zero - 1) + zero
    groups = padded.shape[1] // group
    codes = codes.reshape(-1, BLOCK, groups, 8 // bits, group * bits // 8 // QUAD, QUAD)
    # What is computed lies in order, what is only moved may not: types change last.
    first, *second = (x.to(genesis.uint8) for x in codes.permute(3, 0, 2, 4, 1, 5))
    values = first | (second[0] << 4) if second else first
    halves = steps.reshape(-1, BLOCK, groups).permute(0, 2, 1).view(genesis.int32)
    bytes_ = [values.reshape(*values.shape[:2], -1)]
    bytes_ += [((halves >> shift) & 255).to(genesis.uint8) for shift in (16, 24)]
    return QuantizedTensor(functional.cat(bytes_, 2), (rows, width), format)


__all__ = ["BLOCK", "FORMATS", "QUAD", "QuantizedTensor", "quantize"]
