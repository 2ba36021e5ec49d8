"""The CTC loss: `genesis.functional.ctc` in the form of PyTorch's two operators.

PyTorch's gradient takes for granted that log-probabilities came from ``log_softmax``: it is that of
the scores before. The probabilities of paths are computed once more for it: what a forward pass of
PyTorch's own kept of them holds arbitrary numbers where no path goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from genesis import ndarray as nd
from genesis.functional.ctc import Alignments, layout
from genesis.functional.function import Context
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.aten.half_precision import wide
from genesis.torch.aten.registry import implements

Lengths = Sequence[int] | NDArray


class _Paths:
    """All paths of a batch: where they lead, how likely they are."""

    def __init__(
        self, log_probs: NDArray, targets: NDArray, times: Lengths, counts: Lengths, blank: int
    ) -> None:
        # How many places there are depends on the greatest length.
        lengths, labels = (x.tolist() if isinstance(x, NDArray) else x for x in (times, counts))
        if targets.ndim == 2:
            targets = targets[:, : max(labels, default=0)]
        places, skips, self.times, counts = layout(log_probs, targets, lengths, labels, blank)
        self.places = nd.broadcast_to(places, (log_probs.shape[0], *places.shape))
        self.context: Any = Context()
        logs = nd.gather(wide(log_probs), self.places, 2)
        self.losses = Alignments.forward(self.context, logs, skips, self.times, counts)

    def gradient(self, grad: NDArray, log_probs: NDArray) -> NDArray:
        """That of the scores the log-probabilities came from; NaN if there is no path."""
        to_places = Alignments.backward(self.context, grad)[0]
        result = nd.exp(log_probs) * nd.unsqueeze(grad, -1)
        result = nd.scatter_add(result, self.places, to_places, 2)
        steps = nd.unsqueeze(nd.arange(log_probs.shape[0], device=log_probs.device), -1)
        result = nd.where(nd.unsqueeze(nd.isinf(self.losses), -1), math.nan, result)
        return nd.where(nd.unsqueeze(steps < self.times, -1), result, 0.0)


@implements("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: NDArray, targets: NDArray, times: Lengths, counts: Lengths, blank: int = 0, *_: Any
) -> tuple[NDArray, NDArray]:
    paths = _Paths(log_probs, targets, times, counts, blank)
    before = paths.context.alphas
    alphas = nd.concat([before[1:], nd.unsqueeze(paths.context.last, 0)])
    dtype = log_probs.dtype
    return nd.astype(paths.losses, dtype), nd.astype(nd.moveaxis(alphas, 0, 1), dtype)


@implements("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(
    grad: NDArray,
    log_probs: NDArray,
    targets: NDArray,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: NDArray,
    log_alpha: NDArray,
    blank: int,
    zero_infinity: bool = False,
) -> NDArray:
    paths = _Paths(log_probs, targets, input_lengths, target_lengths, blank)
    result = paths.gradient(wide(grad), wide(log_probs))
    if zero_infinity:
        result = nd.where(nd.unsqueeze(nd.isinf(neg_log_likelihood), -1), 0.0, result)
    return nd.astype(result, log_probs.dtype)
