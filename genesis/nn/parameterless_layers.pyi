"""Every layer without parameters that a function is registered to have.

Written by ``python -m tests.stubs``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from genesis.functional.spatial_ranks import Sizes, Wanted
from genesis.nn.module import Stateless

class AdaptiveAvgPool1d(Stateless):
    """The means of `output_size` nearly equal windows of the last dimension."""

    output_size: Wanted
    def __init__(self, output_size: Wanted) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveAvgPool2d(Stateless):
    """The means of `output_size` nearly equal windows of the last two dimensions."""

    output_size: Wanted
    def __init__(self, output_size: Wanted) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveAvgPool3d(Stateless):
    """The means of `output_size` nearly equal windows of the last three dimensions."""

    output_size: Wanted
    def __init__(self, output_size: Wanted) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool1d(Stateless):
    """The greatest elements of `output_size` nearly equal windows of the last dimension."""

    output_size: Wanted
    return_indices: bool
    def __init__(self, output_size: Wanted, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool2d(Stateless):
    """The greatest elements of `output_size` nearly equal windows of the last two dimensions."""

    output_size: Wanted
    return_indices: bool
    def __init__(self, output_size: Wanted, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool3d(Stateless):
    """The greatest elements of `output_size` nearly equal windows of the last three dimensions."""

    output_size: Wanted
    return_indices: bool
    def __init__(self, output_size: Wanted, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool1d(Stateless):
    """The mean of every window of the last dimension."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    ceil_mode: bool
    count_include_pad: bool
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool2d(Stateless):
    """The mean of every window of the last two dimensions."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool3d(Stateless):
    """The mean of every window of the last three dimensions."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class BCELoss(Stateless):
    """The cross entropy of probabilities; logarithms stop at -100."""

    weight: Any
    reduction: str
    def __init__(self, weight: Any = None, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class BCEWithLogitsLoss(Stateless):
    """The cross entropy of ``sigmoid(input)``, right for large scores, too."""

    weight: Any
    reduction: str
    pos_weight: Any
    def __init__(
        self,
        weight: Any = None,
        reduction: str = "mean",
        pos_weight: Any = None,
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class CELU(Stateless):
    """`input` where it is positive, ``alpha * (exp(input / alpha) - 1)`` elsewhere."""

    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class CTCLoss(Stateless):
    """The negative log-likelihood of label sequences, aligned with the input in every possible way."""

    blank: int
    reduction: str
    zero_infinity: bool
    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> None: ...
    def forward(
        self,
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
    ) -> Any: ...

class ChannelShuffle(Stateless):
    """The channels (dimension 1) of every group dealt out in turn."""

    groups: int
    def __init__(self, groups: int) -> None: ...
    def forward(self, input: Any) -> Any: ...

class CosineEmbeddingLoss(Stateless):
    """1 - cosine for pairs that belong together, what exceeds a margin for the others."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None: ...
    def forward(self, input1: Any, input2: Any, target: Any) -> Any: ...

class CosineSimilarity(Stateless):
    """The cosine of the angle between vectors along a dimension."""

    dim: int
    eps: float
    def __init__(self, dim: int = 1, eps: float = 1e-08) -> None: ...
    def forward(self, x1: Any, x2: Any) -> Any: ...

class CrossEntropyLoss(Stateless):
    """The cross entropy of unnormalised scores and classes, given by number or as probabilities."""

    weight: Any
    ignore_index: int
    reduction: str
    label_smoothing: float
    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class DiceLoss(Stateless):
    """1 - 2 |A ∩ B| / (|A| + |B|) of probabilities and a mask, for each element of the batch."""

    smooth: float
    reduction: str
    def __init__(self, smooth: float = 1.0, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class ELU(Stateless):
    """`input` where it is positive, ``alpha * (exp(input) - 1)`` elsewhere."""

    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class FocalLoss(Stateless):
    """Binary cross entropy of scores that counts what is already right for little."""

    alpha: float | None
    gamma: float
    reduction: str
    def __init__(
        self,
        alpha: float | None = 0.25,
        gamma: float = 2.0,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class Fold(Stateless):
    """Columns ``(n, channels*window, count)`` added up where `unfold` reads them."""

    output_size: Sizes
    kernel_size: Sizes
    dilation: Sizes
    padding: Sizes
    stride: Sizes
    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class FractionalMaxPool2d(Stateless):
    """The greatest elements of windows at pseudo-random distances in the last two dimensions."""

    kernel_size: Sizes
    output_size: Sizes | None
    output_ratio: float | Sequence[float] | None
    return_indices: bool
    _random_samples: Any
    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Sizes | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class FractionalMaxPool3d(Stateless):
    """The greatest elements of windows at pseudo-random distances in the last three dimensions."""

    kernel_size: Sizes
    output_size: Sizes | None
    output_ratio: float | Sequence[float] | None
    return_indices: bool
    _random_samples: Any
    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Sizes | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class GELU(Stateless):
    """`input` times the normal distribution's cumulative probability; "tanh" approximates it."""

    approximate: str
    def __init__(self, approximate: str = "none") -> None: ...
    def forward(self, input: Any) -> Any: ...

class GLU(Stateless):
    """The first half along a dimension, times the sigmoid of the second half."""

    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class GaussianNLLLoss(Stateless):
    """The negative log-likelihood of a normal distribution with mean and variance."""

    full: bool
    eps: float
    reduction: str
    def __init__(self, full: bool = False, eps: float = 1e-06, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any, var: Any) -> Any: ...

class Hardshrink(Stateless):
    """`input`, and 0 where it is within `lambd` of 0."""

    lambd: float
    def __init__(self, lambd: float = 0.5) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardsigmoid(Stateless):
    """``input / 6 + 1/2`` moved into the range from 0 to 1."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardswish(Stateless):
    """``input * hardsigmoid(input)``."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardtanh(Stateless):
    """`input` moved into a range."""

    min_val: float
    max_val: float
    inplace: bool
    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class HingeEmbeddingLoss(Stateless):
    """The input where the target is 1, what it lacks of a margin where it is -1."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class HuberLoss(Stateless):
    """Half the square of the difference below `delta`, linear above."""

    reduction: str
    delta: float
    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class KLDivLoss(Stateless):
    """The divergence of a distribution, the target, from one whose logarithms are the input."""

    reduction: str
    log_target: bool
    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class L1Loss(Stateless):
    """The absolute difference; with a `weight`, the mean is a weighted one."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class LPPool1d(Stateless):
    """The p-norm of every window of the last dimension."""

    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None
    ceil_mode: bool
    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LPPool2d(Stateless):
    """The p-norm of every window of the last two dimensions."""

    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None
    ceil_mode: bool
    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LPPool3d(Stateless):
    """The p-norm of every window of the last three dimensions."""

    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None
    ceil_mode: bool
    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LeakyReLU(Stateless):
    """`input` where it is positive, times the slope elsewhere."""

    negative_slope: float
    inplace: bool
    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LogSigmoid(Stateless):
    """The logarithm of `sigmoid`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LogSoftmax(Stateless):
    """The logarithm of `softmax`."""

    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MSELoss(Stateless):
    """The squared difference; with a `weight`, the mean is a weighted one."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MarginRankingLoss(Stateless):
    """What lacks for the first input to exceed the second, or the other way, by a margin."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None: ...
    def forward(self, input1: Any, input2: Any, target: Any) -> Any: ...

class MaxPool1d(Stateless):
    """The greatest element of every window of the last dimension, and where it stands if wanted."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    dilation: Sizes
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MaxPool2d(Stateless):
    """The greatest element of every window of the last two dimensions, and where it stands if wanted."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    dilation: Sizes
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MaxPool3d(Stateless):
    """The greatest element of every window of the last three dimensions, and where it stands if wanted."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    dilation: Sizes
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MaxUnpool1d(Stateless):
    """Zeros, with `input` at the positions in the last dimension that `max_pool` returned."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
    ) -> None: ...
    def forward(
        self,
        input: Any,
        indices: Any,
        output_size: Sequence[int] | None = None,
    ) -> Any: ...

class MaxUnpool2d(Stateless):
    """Zeros, with `input` at the positions in the last two dimensions that `max_pool` returned."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
    ) -> None: ...
    def forward(
        self,
        input: Any,
        indices: Any,
        output_size: Sequence[int] | None = None,
    ) -> Any: ...

class MaxUnpool3d(Stateless):
    """Zeros, with `input` at the positions in the last three dimensions that `max_pool` returned."""

    kernel_size: Sizes
    stride: Sizes | None
    padding: Sizes
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
    ) -> None: ...
    def forward(
        self,
        input: Any,
        indices: Any,
        output_size: Sequence[int] | None = None,
    ) -> Any: ...

class Mish(Stateless):
    """``input * tanh(softplus(input))``."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MultiLabelMarginLoss(Stateless):
    """Like `multi_margin_loss` for several right classes, listed up to the first -1."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MultiLabelSoftMarginLoss(Stateless):
    """The mean over classes of the cross entropy of each as a question of its own."""

    weight: Any
    reduction: str
    def __init__(self, weight: Any = None, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MultiMarginLoss(Stateless):
    """How far other classes come within a margin of the right one."""

    p: int
    margin: float
    weight: Any
    reduction: str
    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Any = None,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class NLLLoss(Stateless):
    """The negative of the log-probability of the class, given log-probabilities."""

    weight: Any
    ignore_index: int
    reduction: str
    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class PairwiseDistance(Stateless):
    """The norm of the difference of vectors in the last dimension, moved by `eps`."""

    p: float
    eps: float
    keepdim: bool
    def __init__(self, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> None: ...
    def forward(self, x1: Any, x2: Any) -> Any: ...

class PixelShuffle(Stateless):
    """Channels laid out as squares of pixels: ``(.., c*r*r, h, w) -> (.., c, h*r, w*r)``."""

    upscale_factor: int
    def __init__(self, upscale_factor: int) -> None: ...
    def forward(self, input: Any) -> Any: ...

class PixelUnshuffle(Stateless):
    """Squares of pixels as channels: ``(.., c, h*r, w*r) -> (.., c*r*r, h, w)``."""

    downscale_factor: int
    def __init__(self, downscale_factor: int) -> None: ...
    def forward(self, input: Any) -> Any: ...

class PoissonNLLLoss(Stateless):
    """The negative log-likelihood of counts, with Stirling's term for those above 1 if `full`."""

    log_input: bool
    full: bool
    eps: float
    reduction: str
    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-08,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class RReLU(Stateless):
    """`leaky_relu` with random slopes in a range while training, the middle of it otherwise."""

    lower: float
    upper: float
    inplace: bool
    def __init__(
        self,
        lower: float = 0.125,
        upper: float = 0.3333333333333333,
        inplace: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class ReLU(Stateless):
    """``max(input, 0)``."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class ReLU6(Stateless):
    """`input` moved into the range from 0 to 6."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SELU(Stateless):
    """Scaled `elu` that keeps the mean and variance of its inputs."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SiLU(Stateless):
    """``input * sigmoid(input)``."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Sigmoid(Stateless):
    """``1 / (1 + exp(-input))``."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SmoothL1Loss(Stateless):
    """Like `l1_loss`, but squared below `beta`."""

    reduction: str
    beta: float
    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class SoftMarginLoss(Stateless):
    """``log(1 + exp(-target * input))``, for targets of 1 and -1."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class Softmax(Stateless):
    """``exp(input)`` over its sum along a dimension."""

    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softmin(Stateless):
    """`softmax` of the negative."""

    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softplus(Stateless):
    """``log(1 + exp(beta * input)) / beta``; `input` itself where that is beyond the threshold."""

    beta: float
    threshold: float
    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softshrink(Stateless):
    """`input` moved toward 0 by `lambd`, and 0 where it is nearer."""

    lambd: float
    def __init__(self, lambd: float = 0.5) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softsign(Stateless):
    """``input / (1 + abs(input))``."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Tanh(Stateless):
    """The hyperbolic tangent."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Tanhshrink(Stateless):
    """``input - tanh(input)``."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Threshold(Stateless):
    """`input` where it is above the threshold, `value` elsewhere."""

    threshold: float
    value: float
    inplace: bool
    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class TripletMarginLoss(Stateless):
    """How much closer than a margin the wrong one is, compared with the right one."""

    margin: float
    p: float
    eps: float
    swap: bool
    reduction: str
    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-06,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any: ...

class TripletMarginWithDistanceLoss(Stateless):
    """`triplet_margin_loss` with another distance."""

    distance_function: Callable[[Any, Any], Any] | None
    margin: float
    swap: bool
    reduction: str
    def __init__(
        self,
        *,
        distance_function: Callable[[Any, Any], Any] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any: ...

class Unfold(Stateless):
    """The windows of images ``(n, channels, h, w)`` as columns ``(n, channels*window, count)``."""

    kernel_size: Sizes
    dilation: Sizes
    padding: Sizes
    stride: Sizes
    def __init__(
        self,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Upsample(Stateless):
    """``(batch, channels, *spatial)`` resampled to a spatial `size`, or by a `scale_factor`."""

    size: Sizes | None
    scale_factor: float | Sequence[float] | None
    mode: str
    align_corners: bool | None
    recompute_scale_factor: bool | None
    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...
