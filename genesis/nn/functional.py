"""The stateless API: what layers compute, as functions of their input and their parameters.

Names and arguments are PyTorch's. Each function is one of `genesis.functional`, where its meaning
and its gradient are; the activations here can also write into their argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional, ndarray
from genesis.functional import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    affine_grid,
    alpha_dropout,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    batch_norm,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    channel_shuffle,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    ctc_loss,
    dice_loss,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    embedding,
    embedding_bag,
    feature_alpha_dropout,
    focal_loss,
    fold,
    fractional_max_pool2d,
    fractional_max_pool3d,
    gaussian_nll_loss,
    gelu,
    glu,
    grid_sample,
    group_norm,
    hardshrink,
    hinge_embedding_loss,
    huber_loss,
    instance_norm,
    interpolate,
    kl_div,
    l1_loss,
    layer_norm,
    linear,
    linear_cross_entropy,
    local_response_norm,
    log_softmax,
    logsigmoid,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    margin_ranking_loss,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    normalize,
    one_hot,
    pad,
    pairwise_distance,
    pdist,
    pixel_shuffle,
    pixel_unshuffle,
    poisson_nll_loss,
    prelu,
    rms_norm,
    scaled_dot_product_attention,
    sigmoid,
    smooth_l1_loss,
    soft_margin_loss,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from genesis.functional.contraction import bilinear
from genesis.functional.convolution import unfold
from genesis.functional.function import plain

# ---- activations that can write into their argument


def _given(input: Any, result: Any, inplace: bool) -> Any:
    return input.overwrite(result) if inplace else result


def relu(input: Any, inplace: bool = False) -> Any:
    """``max(input, 0)``."""
    return _given(input, functional.relu(input), inplace)


def relu6(input: Any, inplace: bool = False) -> Any:
    """`input` moved into the range from 0 to 6."""
    return _given(input, functional.relu6(input), inplace)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """`input` where it is positive, ``alpha * (exp(input) - 1)`` elsewhere."""
    return _given(input, functional.elu(input, alpha), inplace)


def selu(input: Any, inplace: bool = False) -> Any:
    """A scaled `elu` that keeps mean 0 and variance 1."""
    return _given(input, functional.selu(input), inplace)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """`input` where it is positive, ``alpha * (exp(input/alpha) - 1)`` elsewhere."""
    return _given(input, functional.celu(input, alpha), inplace)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """`input` where it is positive, times the slope elsewhere."""
    return _given(input, functional.leaky_relu(input, negative_slope), inplace)


def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """`leaky_relu` with random slopes in a range while training, the middle of it otherwise."""
    return _given(input, functional.rrelu(input, lower, upper, training), inplace)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """`input` moved into a range."""
    return _given(input, functional.hardtanh(input, min_val, max_val), inplace)


def hardswish(input: Any, inplace: bool = False) -> Any:
    """``input * hardsigmoid(input)``."""
    return _given(input, functional.hardswish(input), inplace)


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """``input / 6 + 1/2`` moved into the range from 0 to 1."""
    return _given(input, functional.hardsigmoid(input), inplace)


def silu(input: Any, inplace: bool = False) -> Any:
    """``input * sigmoid(input)``."""
    return _given(input, functional.silu(input), inplace)


def mish(input: Any, inplace: bool = False) -> Any:
    """``input * tanh(softplus(input))``."""
    return _given(input, functional.mish(input), inplace)


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """`input` where it is above the threshold, `value` elsewhere."""
    return _given(input, functional.threshold(input, threshold, value), inplace)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes into its argument, by the name PyTorch has for it."""

    def write(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, inplace=True, **kwargs)

    write.__name__ = write.__qualname__ = f"{function.__name__}_"
    write.__doc__ = f"`{function.__name__}`, written into its argument."
    return write


relu_ = _in_place(relu)
elu_ = _in_place(elu)
selu_ = _in_place(selu)
celu_ = _in_place(celu)
leaky_relu_ = _in_place(leaky_relu)
rrelu_ = _in_place(rrelu)
hardtanh_ = _in_place(hardtanh)
threshold_ = _in_place(threshold)


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

    return soft + plain(rest, soft)


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


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "alpha_dropout", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "ctc_loss", "dice_loss", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "elu", "elu_", "embedding", "embedding_bag", "feature_alpha_dropout",
    "focal_loss", "fold", "fractional_max_pool2d", "fractional_max_pool3d", "gaussian_nll_loss",
    "gelu", "glu", "grid_sample", "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid",
    "hardswish", "hardtanh", "hardtanh_", "hinge_embedding_loss", "huber_loss", "instance_norm",
    "interpolate", "kl_div", "l1_loss", "layer_norm", "leaky_relu", "leaky_relu_", "linear",
    "linear_cross_entropy", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d",
    "lp_pool2d", "lp_pool3d", "margin_ranking_loss", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "normalize", "one_hot",
    "pad", "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss",
    "prelu", "relu", "relu6", "relu_", "rms_norm", "rrelu", "rrelu_",
    "scaled_dot_product_attention", "selu", "selu_", "sigmoid", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh",
    "tanhshrink", "threshold", "threshold_", "triplet_margin_loss",
    "triplet_margin_with_distance_loss", "unfold", "upsample", "upsample_bilinear",
    "upsample_nearest",
]  # fmt: skip
