"""Weights in fewer bits: quantised tensors, layers that hold them, and models made of such layers.

A matrix-vector product takes as long as reading the matrix. `quantize` stores the weights as
integers of 8 or 4 bits with a scale for every group, and the product with them is one kernel that
takes the integers apart where it multiplies.
"""

from genesis.quantization.modules import QuantizedEmbedding, QuantizedLinear, quantize_
from genesis.quantization.weights import FORMATS, QuantizedTensor, quantize

__all__ = [
    "FORMATS", "QuantizedEmbedding", "QuantizedLinear", "QuantizedTensor", "quantize", "quantize_",
]  # fmt: skip
