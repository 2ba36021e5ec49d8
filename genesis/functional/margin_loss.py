"""Losses that want a margin: what is right must exceed what is wrong by so much.

Arguments and conventions are PyTorch's, see `genesis.functional.loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import ndarray as nd
from genesis.functional.activation import logsigmoid, relu
from genesis.functional.arithmetic import cast, where
from genesis.functional.comparison import clamp_min, eq, minimum, ne
from genesis.functional.elementary import sqrt
from genesis.functional.function import chosen_precision, plain
from genesis.functional.loss import is_class, loss, of_class, reduced, require_alike
from genesis.functional.movement import squeeze, unsqueeze
from genesis.functional.norms_and_distances import pairwise_distance
from genesis.functional.reduction import mean, sum
from genesis.functional.registry import layer
from genesis.functional.scattering import gather
from genesis.ir.dtype import int64
from genesis.ndarray.core.value import rewatched

# ---- of scores


@loss("SoftMarginLoss")
def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """``log(1 + exp(-target * input))``, for targets of 1 and -1."""
    require_alike("soft_margin_loss", input, target)
    return reduced("soft_margin_loss", -logsigmoid(target * input), reduction)


@loss("HingeEmbeddingLoss")
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Any:
    """The input where the target is 1, what it lacks of a margin where it is -1."""
    lacks = where(ne(target, 1), clamp_min(margin - input, 0.0), 0.0)
    return reduced("hinge_embedding_loss", where(ne(target, -1), input, 0.0) + lacks, reduction)


@loss("MarginRankingLoss", 3)
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """What lacks for the first input to exceed the second, or the other way, by a margin."""
    ranks = [len(x.shape) for x in (input1, input2, target)]
    if len(set(ranks)) > 1:
        raise ValueError(f"margin_ranking_loss: inputs and target have {ranks} dimensions")
    losses = clamp_min(-target * (input1 - input2) + margin, 0.0)
    return reduced("margin_ranking_loss", losses, reduction)


@loss("MultiMarginLoss", buffers=("weight",))
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """How far other classes come within a margin of the right one."""
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: p is 1 or 2, not {p}")
    input = input if input.shape else unsqueeze(input, 0)
    if len(input.shape) == 1 and tuple(target.shape) == (1,):
        target = squeeze(target, 0)
    if tuple(input.shape[:-1]) != tuple(target.shape):
        raise ValueError(
            f"multi_margin_loss: an input of shape {tuple(input.shape)} needs a target of shape "
            f"{tuple(input.shape[:-1])}, not {tuple(target.shape)}"
        )
    target = cast(target, int64)
    right = unsqueeze(of_class(input, target, "multi_margin_loss"), -1)
    lacks = relu(margin - right + input)
    if p == 2:
        lacks = lacks * lacks
    if weight is not None:
        lacks = lacks * unsqueeze(plain(nd.take, weight, target, 0), -1)
    classes = input.shape[-1]
    losses = sum(where(is_class(target, classes), 0.0, lacks), -1) / classes
    return reduced("multi_margin_loss", losses, reduction)


@loss("MultiLabelMarginLoss")
def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Like `multi_margin_loss` for several right classes, listed up to the first -1."""
    require_alike("multilabel_margin_loss", input, target)
    if not input.shape:
        input, target = unsqueeze(input, 0), unsqueeze(target, 0)
    listed, right = plain(labels, target, input.shape[-1])
    scores = gather(input, -1, where(listed, cast(target, int64), 0))
    # Every pair of a right class and a wrong one.
    lacks = relu(1 - unsqueeze(scores, -1) + unsqueeze(input, -2))
    counts = plain(lambda a, b: nd.unsqueeze(a, -1) & ~nd.unsqueeze(b, -2), listed, right)
    losses = sum(where(counts, lacks, 0.0), (-2, -1)) / input.shape[-1]
    return reduced("multilabel_margin_loss", losses, reduction)


def labels(target: nd.NDArray, classes: Any) -> tuple[nd.NDArray, nd.NDArray]:
    """Which entries come before the first negative one, and which classes they name."""
    listed = nd.cumsum(target < 0, -1) == 0
    named = nd.unsqueeze(target, -1) == nd.arange(classes, device=target.device)
    return listed, nd.any(named & nd.unsqueeze(listed, -1), -2)


@loss("MultiLabelSoftMarginLoss", buffers=("weight",))
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """The mean over classes of the cross entropy of each as a question of its own."""
    require_alike("multilabel_soft_margin_loss", input, target)
    losses = (target - 1) * logsigmoid(-input) - target * logsigmoid(input)
    losses = mean(losses if weight is None else losses * weight, -1)
    return reduced("multilabel_soft_margin_loss", losses, reduction)


# ---- of vectors


@loss("CosineEmbeddingLoss", 3)
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """1 - cosine for pairs that belong together, what exceeds a margin for the others."""
    tiny = 1e-12
    lengths = (sum(input1 * input1, -1) + tiny) * (sum(input2 * input2, -1) + tiny)
    cosine = sum(input1 * input2, -1) / sqrt(lengths)
    apart = where(eq(target, -1), clamp_min(cosine - margin, 0.0), 0.0)
    losses = where(eq(target, 1), 1 - cosine, 0.0) + apart
    return reduced("cosine_embedding_loss", losses, reduction)


@loss("TripletMarginLoss", 3)
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """How much closer than a margin the wrong one is, compared with the right one.

    With `swap` the distance of the wrong one is the smaller of those to the other two.
    """
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


@layer("TripletMarginWithDistanceLoss", 3)
@chosen_precision
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`triplet_margin_loss` with another distance."""
    if not margin > 0:
        raise ValueError(f"triplet_margin_loss: the margin must be positive, not {margin}")
    distance = distance_function or pairwise_distance
    near, far = rewatched(distance, anchor, positive), rewatched(distance, anchor, negative)
    if swap:
        far = minimum(far, rewatched(distance, positive, negative))
    return reduced("triplet_margin_loss", clamp_min(margin + near - far, 0.0), reduction)


__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip
