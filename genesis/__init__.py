"""Genesis: a deep-learning stack that turns array code into a few fused, proven kernels.

>>> import genesis
>>> from genesis import ndarray as nd
>>> (nd.arange(3, dtype=genesis.float32) + 0.5).tolist()
[0.5, 1.5, 2.5]
"""

from genesis import memory, ndarray
from genesis.ir.dtype import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from genesis.ndarray import eager
from genesis.ndarray.explain import explain
from genesis.ndarray.jit import jit
from genesis.ndarray.random import manual_seed

__version__ = "0.1.0"

__all__ = [
    "bfloat16", "bool_", "eager", "explain", "float16", "float32", "float64", "int8", "int16",
    "int32", "int64", "jit", "manual_seed", "memory", "ndarray", "uint8", "uint16", "uint32",
    "uint64",
]  # fmt: skip
