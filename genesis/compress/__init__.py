"""Weights in fewer bits: formats, quantised tensors, layers that hold them, and models of such.

A matrix-vector product takes as long as reading the matrix. A `Format` says what the numbers of a
matrix are in fewer bits; `quantize` stores a matrix so, and the product with it is one kernel that
takes the numbers apart where it multiplies.
"""

from genesis.compress.codes import ROUNDINGS, Codes, encode
from genesis.compress.format import FORMATS, Float, Format, Integer, Table
from genesis.compress.quantized_layers import (
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    quantize_,
)
from genesis.compress.quantized_tensor import QuantizedTensor, from_codes, quantize

__all__ = [
    "Codes", "FORMATS", "Float", "Format", "Integer", "QuantizedConv1d", "QuantizedConv2d",
    "QuantizedEmbedding", "QuantizedLinear", "QuantizedTensor", "ROUNDINGS", "Table", "encode",
    "from_codes", "quantize", "quantize_",
]  # fmt: skip
