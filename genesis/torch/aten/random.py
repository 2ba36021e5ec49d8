"""Random numbers, drawn from the generator that the front ends choose.

They are not the numbers PyTorch draws from the same seed, only as likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import DType, bool_, float32, float64, int64
from genesis.ir.size import Dim
from genesis.ndarray import NDArray
from genesis.ndarray import random as draw
from genesis.ndarray.ops.elementwise import broadcast_shapes
from genesis.torch.aten.creation import default_dtype
from genesis.torch.aten.registry import generator as current
from genesis.torch.aten.registry import implements, operators

Sizes = Sequence[Dim]


def _uniform(shape: Sizes, dtype: DType, low: float = 0.0, high: float = 1.0) -> NDArray:
    return draw.uniform(tuple(shape), low, high, dtype, current())


def _normal(shape: Sizes, dtype: DType, mean: Any = 0.0, std: float = 1.0) -> NDArray:
    return draw.normal(tuple(shape), mean, std, dtype, current())


# ---- tensors of them


def _drawn(name: str, numbers: Callable[[Sizes, DType], NDArray]) -> None:
    @implements(name, f"{name}.generator")
    def of_size(size: Sizes, dtype: DType | None = None) -> NDArray:
        return numbers(size, dtype or default_dtype())

    @implements(f"{name}_like", f"{name}_like.generator")
    def like(x: NDArray, dtype: DType | None = None) -> NDArray:
        return numbers(x.shape, dtype or x.dtype)


_drawn("rand", _uniform)
_drawn("randn", _normal)


@implements("randint.low", "randint.low_generator")
def _randint(low: int, high: int, size: Sizes, dtype: DType | None = None) -> NDArray:
    return draw.integers(low, high, tuple(size), dtype or int64, current())


@implements("randint_like.Tensor", "randint_like.Tensor_generator")
def _randint_like_data(x: NDArray, high: NDArray, dtype: DType | None = None) -> NDArray:
    words = draw.integers(0, 1 << 62, x.shape, int64, current())
    return nd.astype(words % nd.astype(high, int64), dtype or x.dtype)


# ---- in the shape of a tensor


@implements("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _normal_about(mean: Any, std: Any = 1.0) -> NDArray:
    given = [x for x in (mean, std) if isinstance(x, NDArray)]
    shape = broadcast_shapes("normal", *(x.shape for x in given))
    drawn: NDArray = _normal(shape, given[0].dtype) * std + mean
    return drawn


def _limit(dtype: DType) -> int:
    """One more than the greatest integer that a type holds exactly, as all before it."""
    if dtype is bool_:
        return 2
    digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
    return int(dtype.max) + 1 if dtype.is_integer else (1 << digits[dtype.name]) + 1


# ---- other distributions


def _fraction(x: NDArray) -> NDArray:
    """Numbers strictly between 0 and 1, in a type that computes."""
    wide = x.dtype.accumulator if x.dtype.is_float else default_dtype()
    digits = 53 if wide.itemsize == 8 else 24
    # Next to 1 this is rounded away, next to 0 it is not.
    return _uniform(x.shape, wide) + 2.0 ** -(digits + 2)


@implements("cauchy")
def _cauchy(x: NDArray, median: float = 0.0, sigma: float = 1.0) -> NDArray:
    angle = (_fraction(x) - 0.5) * math.pi
    return nd.astype(nd.tan(angle) * sigma + median, x.dtype)


@implements("geometric")
def _geometric(x: NDArray, p: float) -> NDArray:
    tries = nd.log1p(-_fraction(x)) / math.log1p(-p) if p < 1 else _fraction(x)
    return nd.astype(nd.ceil(tries), x.dtype)


@implements("bernoulli.p", "bernoulli.Tensor")
def _bernoulli_of(x: NDArray, p: Any = 0.5) -> NDArray:
    exact = isinstance(p, NDArray) and p.dtype.itemsize == 8
    drawn = _uniform(x.shape, float64 if exact else float32) < p
    return nd.astype(drawn, x.dtype)


@implements("multinomial")
def _multinomial(x: NDArray, num_samples: int, replacement: bool = False) -> NDArray:
    wide = nd.astype(x, x.dtype.accumulator)
    if not replacement:
        # The first of several exponential clocks to ring is each with its rate's share.
        return nd.topk(wide / -nd.log1p(-_fraction(wide)), num_samples, -1)[1]
    ends = nd.cumsum(wide, -1)
    # From above 0 to the total: the first end not below is that of a class with a weight.
    at = (1 - _uniform((*x.shape[:-1], num_samples), wide.dtype)) * ends[..., -1:]
    return nd.searchsorted(ends, at)


# ---- dropout


@implements("native_dropout")
def _native_dropout(x: NDArray, p: float, train: bool | None = True) -> tuple[NDArray, NDArray]:
    if train is False:
        return x, nd.ones(x.shape, bool_, x.device)
    kept = draw.bernoulli(1 - p, x.shape, current())
    scale = 1 / (1 - p) if p < 1 else 0.0
    return nd.where(kept, x * scale, 0), kept


operators(
    {
        "randint randint.generator": lambda high, size, dtype=None: _randint(
            0, high, size, dtype=dtype
        ),
        "randint_like.low_dtype randint_like.low_generator_dtype": (
            lambda x, low, high, dtype=None: _randint(low, high, x.shape, dtype=dtype or x.dtype)
        ),
        "randint_like randint_like.generator": lambda x, high, dtype=None: _randint(
            0, high, x.shape, dtype=dtype or x.dtype
        ),
        "randperm randperm.generator": lambda n, dtype=None: draw.permutation(
            n, dtype or int64, current()
        ),
        "uniform": lambda x, low=0.0, high=1.0: _uniform(x.shape, x.dtype, low, high),
        "normal_functional": lambda x, mean=0.0, std=1.0: _normal(x.shape, x.dtype, mean, std),
        "normal.float_float": lambda mean, std, size, dtype=None: _normal(
            size, dtype or default_dtype(), mean, std
        ),
        "random": lambda x: _randint(0, _limit(x.dtype), x.shape, dtype=x.dtype),
        "random.to": lambda x, high: _randint(0, high, x.shape, dtype=x.dtype),
        "random.from": lambda x, low, high: _randint(
            low, _limit(x.dtype) if high is None else high, x.shape, dtype=x.dtype
        ),
        "exponential": lambda x, lambd=1.0: nd.astype(
            nd.log1p(-_fraction(x)) * (-1 / lambd), x.dtype
        ),
        "log_normal": lambda x, mean=1.0, std=2.0: nd.astype(
            nd.exp(_normal(x.shape, x.dtype.accumulator, mean, std)), x.dtype
        ),
        "bernoulli": lambda x: _bernoulli_of(x, x),
        "native_dropout_backward": lambda grad, mask, scale: nd.where(mask, grad * scale, 0),
    }
)
