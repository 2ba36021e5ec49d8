"""The stateless API: what layers compute, as functions of their input and their parameters.

Names and arguments are PyTorch's. Each function is one of `genesis.functional`, where its meaning
and its gradient are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genesis import ndarray
from genesis.functional.activation import *
from genesis.functional.attention import *
from genesis.functional.contraction import bilinear as bilinear
from genesis.functional.convolution import *
from genesis.functional.convolution import unfold as unfold
from genesis.functional.ctc import *
from genesis.functional.dropout import *
from genesis.functional.elementary import tanh as tanh
from genesis.functional.embedding import *
from genesis.functional.function import plain as _plain
from genesis.functional.indexing import one_hot as one_hot
from genesis.functional.interpolation import *
from genesis.functional.linear import *
from genesis.functional.loss import *
from genesis.functional.margin_loss import *
from genesis.functional.normalization import *
from genesis.functional.norms_and_distances import (
    cosine_similarity as cosine_similarity, pairwise_distance as pairwise_distance, pdist as pdist,
)  # fmt: skip
from genesis.functional.padding import *
from genesis.functional.pooling import *
from genesis.functional.registry import public as _public
from genesis.nn.attention import multi_head_attention_forward as multi_head_attention_forward


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """An activation that writes into its argument, by the name PyTorch has for it."""

    def write(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, inplace=True, **kwargs)

    write.__name__ = write.__qualname__ = f"{function.__name__}_"
    write.__doc__ = f"`{function.__name__}`, written into its argument."
    return write


relu_, elu_, selu_, celu_ = _in_place(relu), _in_place(elu), _in_place(selu), _in_place(celu)
leaky_relu_, rrelu_ = _in_place(leaky_relu), _in_place(rrelu)
hardtanh_, threshold_ = _in_place(hardtanh), _in_place(threshold)


def gumbel_softmax(
    logits: Any, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Any:
    """A random choice with probabilities softmax(logits), softened by the temperature `tau`.

    With `hard` the result is one of the choices, and the gradient that of the soft one.
    """
    source = ndarray.random.default_generator(logits.device)
    drawn = ndarray.random.uniform(logits.shape, dtype=logits.dtype, generator=source)
    noise = -ndarray.log(-ndarray.log(ndarray.maximum(drawn, eps)))
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft

    def rest(y: ndarray.NDArray) -> ndarray.NDArray:
        """What is missing to the hard choice; it is no part of the gradient."""
        places = ndarray.argmax(y, dim, keepdims=True)
        chosen = ndarray.scatter(ndarray.zeros_like(y), places, 1, dim)
        return chosen - y

    return soft + _plain(rest, soft)


# ---- resampling by its old names


def upsample(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Any:
    """`interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    """`interpolate` by copying the nearest element."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Any:
    """`interpolate` of two dimensions between elements, whose corners stay."""
    return interpolate(input, size, scale_factor, "bilinear", True)


if not TYPE_CHECKING:  # checkers follow the wildcards themselves
    __all__ = _public(globals())
