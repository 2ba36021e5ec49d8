"""Losses that have an output layer of their own, for many classes.

`LinearCrossEntropyLoss` is a layer and the cross entropy of its result, to be computed together.

`AdaptiveLogSoftmaxWithLoss` (Grave et al. 2017) is for classes of which few are frequent. Those are
in the head. Rare ones are in clusters: the head has one entry for each, and within it a smaller
layer tells them apart. Which cluster a target is in depends on the data, and sizes that depend on
data cannot be part of a recorded program. So a cluster is evaluated for all rows, and rows that
belong elsewhere are left out of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from genesis import functional
from genesis import ndarray as nd
from genesis.functional.activation import log_softmax
from genesis.functional.function import plain
from genesis.functional.loss import linear_cross_entropy, of_class
from genesis.nn.container import ModuleList, Sequential
from genesis.nn.linear import Linear
from genesis.nn.module import Module, Stateless
from genesis.tensor.tensor import Tensor


class LinearCrossEntropyLoss(Stateless):
    """The cross entropy of what a linear layer makes of the input.

    With `out_features` every input makes several choices between the classes, arranged like that.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.register_buffer("weight", weight)
        self.num_classes, self.out_features = num_classes, out_features
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        outputs = num_classes * math.prod(out_features)
        self.linear = Linear(in_features, outputs, bias, device, dtype)

    def forward(self, input: Any, target: Any) -> Any:
        """The loss of the input."""
        form = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return linear_cross_entropy(
            input,
            functional.reshape(self.linear.weight, (*form, -1)),
            target,
            linear_bias=None if bias is None else functional.reshape(bias, form),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )


class Scored(NamedTuple):
    """The log-probability of each target, and the mean loss."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Classes numbered from the most frequent to the rarest, in clusters that end at `cutoffs`.

    Cluster number k, counted from 1, works in ``in_features / div_value ** k`` dimensions.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        bounds = [0, *cutoffs, n_classes]
        if not cutoffs or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs are increasing class numbers between 1 and "
                f"{n_classes - 1}, not {list(cutoffs)}"
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = tuple(bounds[1:])
        self.div_value, self.head_bias = div_value, head_bias
        self.head = Linear(in_features, cutoffs[0] + len(cutoffs), head_bias, device, dtype)
        self.tail = ModuleList()
        for k, (first, last) in enumerate(pairwise(self.cutoffs), start=1):
            inner = int(in_features // div_value**k)
            self.tail.append(
                Sequential(
                    Linear(in_features, inner, False, device, dtype),
                    Linear(inner, last - first, False, device, dtype),
                )
            )

    def forward(self, input: Any, target: Any) -> Scored:
        """The log-probability of each row's target, and the mean of their negatives."""
        if tuple(input.shape[:-1]) != tuple(target.shape):
            raise ValueError(
                f"AdaptiveLogSoftmaxWithLoss: an input of shape {tuple(input.shape)} needs targets "
                f"of shape {tuple(input.shape[:-1])}, not {tuple(target.shape)}"
            )
        name = type(self).__name__
        head = log_softmax(self.head(input), -1)
        shortlist = self.cutoffs[0]
        # The class, or the cluster's entry: the number of cutoffs that the class has reached.
        clusters = sum(plain(nd.greater_equal, target, cutoff) * 1 for cutoff in self.cutoffs[:-1])
        listed = plain(nd.equal, clusters, 0)
        place = functional.where(listed, target, clusters + (shortlist - 1))
        output = of_class(head, place, name)
        for k, first in enumerate(self.cutoffs[:-1]):
            inside = plain(nd.equal, clusters, k + 1)
            local = functional.where(inside, target - first, 0)
            logs = log_softmax(self.tail[k](input), -1)
            output = output + functional.where(inside, of_class(logs, local, name), 0.0)
        return Scored(output, -functional.mean(output))

    def log_prob(self, input: Any) -> Any:
        """The log-probabilities of all classes."""
        head = log_softmax(self.head(input), -1)
        parts = [head[..., : self.cutoffs[0]]]
        for k, cluster in enumerate(self.tail):
            entry = self.cutoffs[0] + k
            parts.append(log_softmax(cluster(input), -1) + head[..., entry : entry + 1])
        return functional.cat(parts, -1)

    def predict(self, input: Any) -> Any:
        """The likeliest class of each row."""
        return plain(nd.argmax, self.log_prob(input), -1)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{self.in_features}, {self.n_classes}, cutoffs={list(self.cutoffs[:-1])}, "
            f"div_value={self.div_value}, head_bias={self.head_bias}"
        )


__all__ = ["AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"]
