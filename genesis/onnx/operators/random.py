"""Operators that draw random numbers."""

from __future__ import annotations

from typing import Any

from genesis import functional as fn
from genesis.ir.dtype import as_dtype
from genesis.onnx.dtypes import numpy_dtype
from genesis.onnx.registry import operator


def _shape(shape: Any) -> tuple[Any, ...]:
    return tuple(shape)


@operator("RandomNormal")
def random_normal(
    *, shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Any:
    """Numbers of a normal distribution."""
    from genesis import randn

    return (randn(*_shape(shape)) * scale + mean).to(as_dtype(numpy_dtype(dtype)))


@operator("RandomUniform")
def random_uniform(
    *, shape: Any, dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Any:
    """Numbers between two bounds."""
    from genesis import rand

    return (rand(*_shape(shape)) * (high - low) + low).to(as_dtype(numpy_dtype(dtype)))


@operator("RandomNormalLike")
def random_normal_like(
    x: Any, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Any:  # fmt: skip
    """Numbers of a normal distribution, in the shape of a tensor."""
    drawn = random_normal(shape=x.shape, mean=mean, scale=scale)
    return drawn.to(x.dtype if dtype is None else as_dtype(numpy_dtype(dtype)))


@operator("RandomUniformLike")
def random_uniform_like(
    x: Any, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
    seed: float | None = None,
) -> Any:  # fmt: skip
    """Numbers between two bounds, in the shape of a tensor."""
    drawn = random_uniform(shape=x.shape, low=low, high=high)
    return drawn.to(x.dtype if dtype is None else as_dtype(numpy_dtype(dtype)))


@operator("Bernoulli")
def bernoulli(x: Any, *, dtype: int | None = None, seed: float | None = None) -> Any:
    """One with a given probability, and else zero."""
    from genesis import rand

    drawn = rand(*x.shape) < x
    return drawn.to(x.dtype if dtype is None else as_dtype(numpy_dtype(dtype)))


@operator("Multinomial")
def multinomial(x: Any, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Any:
    """Classes drawn by the logarithms of their probabilities."""
    from genesis import rand

    noise = -fn.log(-fn.log(rand(x.shape[0], sample_size, x.shape[1])))
    return fn.argmax(fn.unsqueeze(x, 1) + noise, -1).to(as_dtype(numpy_dtype(dtype)))
