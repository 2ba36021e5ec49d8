"""Lazy arrays: the public namespace for building, writing and realising them.

>>> from genesis import ndarray as nd
>>> x = nd.arange(6).reshape(2, 3)
>>> (x * 2).sum(axis=1).tolist()
[6, 24]

Operations only build a graph; asking for a value (`item`, `numpy`, printing, `realize`) turns it
into few fused kernels and runs them.
"""

from genesis.ndarray import random
from genesis.ndarray.contraction import dot, einsum, matmul, outer, tensordot
from genesis.ndarray.creation import (
    arange,
    array,
    asarray,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from genesis.ndarray.device import default_device, on_device, set_default_device
from genesis.ndarray.elementwise import (
    abs,
    add,
    astype,
    atan,
    atan2,
    bitcast,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    ceil,
    clip,
    cos,
    divide,
    equal,
    erf,
    exp,
    exp2,
    floor,
    floor_divide,
    fma,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    left_shift,
    lerp,
    less,
    less_equal,
    log,
    log2,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    neg,
    not_equal,
    pow,
    reciprocal,
    remainder,
    right_shift,
    round,
    rsqrt,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
    trunc,
    where,
)
from genesis.ndarray.indexing import scatter_add, take, take_along_axis
from genesis.ndarray.interop import from_dlpack, from_numpy, realize
from genesis.ndarray.movement import (
    broadcast_to,
    concat,
    diagonal,
    expand,
    flip,
    moveaxis,
    pad,
    permute,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    unsqueeze,
    windows,
)
from genesis.ndarray.ndarray import NDArray
from genesis.ndarray.realisation import Statistics, statistics
from genesis.ndarray.reduction import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    std,
    sum,
    var,
)
from genesis.ndarray.scan import scan
from genesis.ndarray.special import (
    cosh,
    expm1,
    gelu,
    log1p,
    relu,
    sigmoid,
    silu,
    sinh,
    softplus,
    tan,
)
from genesis.ndarray.value import eager

__all__ = [
    "NDArray", "Statistics", "abs", "add", "all", "amax", "amin", "any", "arange", "argmax",
    "argmin", "array", "asarray", "astype", "atan", "atan2", "bitcast", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "ceil", "clip", "concat", "cos",
    "cosh", "default_device", "diagonal", "divide", "dot", "eager", "einsum", "equal", "erf",
    "exp", "exp2", "expand", "expm1", "eye", "flip", "floor", "floor_divide", "fma", "from_dlpack",
    "from_numpy", "full", "full_like", "gelu", "greater", "greater_equal", "isfinite", "isinf",
    "isnan", "left_shift", "lerp", "less", "less_equal", "linspace", "log", "log1p", "log2",
    "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp",
    "matmul", "max", "maximum", "mean", "min", "minimum", "moveaxis", "multiply", "neg",
    "not_equal", "on_device", "ones", "ones_like", "outer", "pad", "permute", "pow", "prod",
    "random", "realize", "reciprocal", "relu", "remainder", "repeat", "reshape", "right_shift",
    "roll", "round", "rsqrt", "scan", "scatter_add", "set_default_device", "sigmoid", "sign",
    "silu", "sin", "sinh", "softmax", "softplus", "split", "sqrt", "square", "squeeze", "stack",
    "statistics", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "tile", "transpose", "tril", "triu", "trunc", "unsqueeze", "var", "where",
    "windows", "zeros", "zeros_like",
]  # fmt: skip
