"""First values for parameters. Every function fills a tensor in place and gives it back.

The scale of most is chosen so that what goes through a layer keeps its variance, forwards
(`fan_in`, the number of inputs of each output) or backwards (`fan_out`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray, linalg
from genesis.ndarray.random import Generator, default_generator
from genesis.tensor.tensor import Tensor

_LINEAR = (
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
)  # fmt: skip
_GAINS = {
    **dict.fromkeys(_LINEAR, 1.0),
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much to scale weights before a nonlinearity; `param` is the slope of leaky_relu.

    >>> round(calculate_gain("relu"), 4), calculate_gain("linear")
    (1.4142, 1.0)
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"calculate_gain: {nonlinearity!r} is not known; it knows leaky_relu, "
            f"{', '.join(sorted(_GAINS))}"
        )
    return _GAINS[nonlinearity]


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Numbers equally likely anywhere from `a` to `b`."""
    if a > b:
        raise ValueError(f"uniform_: {a} is above {b}")
    return _fill(tensor, _drawn(nd.random.uniform, tensor, a, b, generator))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Numbers from the normal distribution."""
    if std < 0:
        raise ValueError(f"normal_: the standard deviation {std} is negative")
    return _fill(tensor, _drawn(nd.random.normal, tensor, mean, std, generator))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Numbers from the part of a normal distribution that is between `a` and `b`."""
    low, high = (math.erf((x - mean) / std / math.sqrt(2)) for x in (a, b))
    values = nd.erfinv(_drawn(nd.random.uniform, tensor, low, high, generator))
    return _fill(tensor, nd.clip(values * (std * math.sqrt(2)) + mean, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """One number everywhere."""
    return _fill(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return _fill(tensor, 1)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return _fill(tensor, 0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity, for a matrix: the layer gives its input, as far as there is room."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: the tensor has shape {tuple(tensor.shape)}; it takes matrices")
    return _fill(tensor, _diagonal(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The identity, for the weight of a convolution: channels pass as far as there is room."""
    if not 3 <= tensor.ndim <= 5:
        raise ValueError(
            f"dirac_: the tensor has shape {tuple(tensor.shape)}; it takes weights of convolutions "
            "of 3 to 5 dimensions"
        )
    outputs, inputs, *window = tensor.shape
    if outputs % groups:
        raise ValueError(f"dirac_: {outputs} output channels do not divide into {groups} groups")
    wanted = _diagonal(outputs, inputs, outputs // groups)
    for extent in window:
        wanted = wanted.unsqueeze(-1) & (nd.arange(extent) == extent // 2)
    return _fill(tensor, wanted)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform, with a variance that suits both directions of a layer (Glorot's)."""
    bound = math.sqrt(3.0) * _xavier(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal, with a variance that suits both directions of a layer (Glorot's)."""
    return normal_(tensor, 0.0, _xavier(tensor, gain), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform, with a variance that suits layers of rectifiers (He's); `a` is their slope."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal, with a variance that suits layers of rectifiers (He's); `a` is their slope."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """A random matrix with orthonormal rows or columns; further dimensions count as columns."""
    if tensor.ndim < 2:
        raise ValueError(
            f"orthogonal_: the tensor has shape {tuple(tensor.shape)}; it takes matrices"
        )
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    shape = (max(rows, columns), min(rows, columns))
    source = generator or default_generator(tensor.device)
    wide = tensor.dtype.accumulator
    q, r = linalg.qr(nd.random.normal(shape, dtype=wide, generator=source))
    q = q * nd.sign(nd.diagonal(r))  # so that every orthogonal matrix is equally likely
    return _fill(tensor, gain * (q.T if rows < columns else q).reshape(tensor.shape))


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Normal numbers, of which a part, `sparsity` of each column, is zero."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_: the tensor has shape {tuple(tensor.shape)}; it takes matrices")
    count = math.ceil(sparsity * tensor.shape[0])
    # Every column of these is a random order of the numbers of the rows.
    source = generator or default_generator(tensor.device)
    order = nd.argsort(nd.random.uniform(tensor.shape, generator=source), axis=0)
    values = _drawn(nd.random.normal, tensor, 0.0, std, generator)
    return _fill(tensor, nd.where(order < count, 0.0, values))


def _fill(tensor: Tensor, value: Any) -> Tensor:
    tensor.array.assign(value)
    return tensor


def _drawn(
    draw: Callable[..., NDArray],
    tensor: Tensor,
    first: float,
    second: float,
    generator: Generator | None,
) -> NDArray:
    source = generator or default_generator(tensor.device)
    return draw(tensor.shape, first, second, tensor.dtype, source)


def _diagonal(rows: Any, columns: Any, period: Any = None) -> NDArray:
    """Where the column is the number of the row, which begins anew after each period."""
    row = nd.arange(rows) if period is None else nd.arange(rows) % period
    return row.unsqueeze(1) == nd.arange(columns)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """The numbers of inputs of an output and of outputs of an input."""
    if tensor.ndim < 2:
        raise ValueError(
            f"init: a tensor of shape {tuple(tensor.shape)} has no fan_in and fan_out; it takes at "
            "least 2 dimensions"
        )
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _xavier(tensor: Tensor, gain: float) -> float:
    return gain * math.sqrt(2.0 / sum(_fans(tensor)))


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"kaiming: mode is {mode!r}; it is 'fan_in' or 'fan_out'")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan) if fan else 0.0


__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_",
    "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_",
    "xavier_uniform_", "zeros_",
]  # fmt: skip
