"""Losses as modules: a function of `genesis.functional` with its settings.

Weights of classes are buffers: they move with the module and are saved with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.functional import ctc, loss, margin_loss
from genesis.nn.module import Module
from genesis.tensor.tensor import Tensor


class Loss(Module):
    """What all losses share: `reduction` is "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The settings."""
        settings = {k: v for k, v in self.__dict__.items() if k[0] != "_" and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items())


class WeightedLoss(Loss):
    """A loss with weights, such as one for each class."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


# ---- distances


class L1Loss(Loss):
    """The absolute difference."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the input."""
        return loss.l1_loss(input, target, self.reduction)


class MSELoss(Loss):
    """The squared difference.

    >>> import genesis
    >>> from genesis import nn
    >>> nn.MSELoss()(genesis.tensor([1.0, 2.0]), genesis.tensor([1.0, 4.0])).item()
    2.0
    """

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the input."""
        return loss.mse_loss(input, target, self.reduction)


class HuberLoss(Loss):
    """Half the squared difference below `delta`, linear above."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the input."""
        return loss.huber_loss(input, target, self.reduction, self.delta)


class SmoothL1Loss(Loss):
    """The absolute difference, squared below `beta`."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the input."""
        return loss.smooth_l1_loss(input, target, self.reduction, self.beta)


# ---- classes


class CrossEntropyLoss(WeightedLoss):
    """The cross entropy of unnormalised scores and classes, by number or as probabilities.

    >>> import genesis
    >>> from genesis import nn
    >>> scores = genesis.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> round(nn.CrossEntropyLoss()(scores, genesis.tensor([0, 1])).item(), 4)
    0.6931
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return loss.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(WeightedLoss):
    """The negative of the log-probability of the class, given log-probabilities."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the log-probabilities."""
        return loss.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


# ---- probabilities


class BCELoss(WeightedLoss):
    """The cross entropy of probabilities."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the probabilities."""
        return loss.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(WeightedLoss):
    """The cross entropy of ``sigmoid(input)``; `pos_weight` is how much positives count more."""

    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return loss.binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight
        )


class KLDivLoss(Loss):
    """The divergence of a distribution, the target, from one whose logarithms are the input."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the log-probabilities."""
        return loss.kl_div(input, target, self.reduction, self.log_target)


class PoissonNLLLoss(Loss):
    """The negative log-likelihood of counts."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of rates, or of their logarithms."""
        return loss.poisson_nll_loss(
            input, target, self.log_input, self.full, self.eps, self.reduction
        )


class GaussianNLLLoss(Loss):
    """The negative log-likelihood of a normal distribution with mean and variance."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Any:
        """The loss of means and variances."""
        return loss.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class CTCLoss(Loss):
    """The negative log-likelihood of label sequences, aligned in every possible way."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
    ) -> Any:
        """The loss of log-probabilities over time."""
        return ctc.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )


# ---- margins


class SoftMarginLoss(Loss):
    """``log(1 + exp(-target * input))``, for targets of 1 and -1."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return margin_loss.soft_margin_loss(input, target, self.reduction)


class HingeEmbeddingLoss(Loss):
    """The input where the target is 1, what it lacks of a margin where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of distances."""
        return margin_loss.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MarginRankingLoss(Loss):
    """What lacks for the first input to exceed the second, or the other way, by a margin."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Any:
        """The loss of two ranks."""
        return margin_loss.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class MultiMarginLoss(WeightedLoss):
    """How far other classes come within a margin of the right one."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return margin_loss.multi_margin_loss(
            input, target, self.p, self.margin, self.weight, self.reduction
        )


class MultiLabelMarginLoss(Loss):
    """Like `MultiMarginLoss` for several right classes, listed up to the first -1."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return margin_loss.multilabel_margin_loss(input, target, self.reduction)


class MultiLabelSoftMarginLoss(WeightedLoss):
    """The mean over classes of the cross entropy of each as a question of its own."""

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return margin_loss.multilabel_soft_margin_loss(input, target, self.weight, self.reduction)


class CosineEmbeddingLoss(Loss):
    """1 - cosine for pairs that belong together, what exceeds a margin for the others."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Any:
        """The loss of pairs of vectors."""
        return margin_loss.cosine_embedding_loss(
            input1, input2, target, self.margin, self.reduction
        )


class TripletMarginLoss(Loss):
    """How much closer than a margin the wrong one is, compared with the right one."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Any:
        """The loss of triplets of vectors."""
        return margin_loss.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )


class TripletMarginWithDistanceLoss(Loss):
    """`TripletMarginLoss` with another distance."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.distance_function = distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Any:
        """The loss of triplets of vectors."""
        return margin_loss.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


# ---- segmentation and imbalance


class FocalLoss(Loss):
    """Binary cross entropy of scores that counts what is already right for little."""

    def __init__(
        self, alpha: float | None = 0.25, gamma: float = 2.0, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the scores."""
        return loss.focal_loss(input, target, self.alpha, self.gamma, self.reduction)


class DiceLoss(Loss):
    """1 - 2 |A ∩ B| / (|A| + |B|) of probabilities and a mask, for each element of the batch."""

    def __init__(self, smooth: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.smooth = smooth

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """The loss of the probabilities."""
        return loss.dice_loss(input, target, self.smooth, self.reduction)


__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "DiceLoss", "FocalLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss",
    "L1Loss", "Loss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss",
    "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss", "WeightedLoss",
]  # fmt: skip
