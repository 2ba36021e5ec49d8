"""Normalisation layers. Those that follow statistics keep them in buffers, written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from genesis.functional import squeeze, unsqueeze
from genesis.ir.dtype import int64
from genesis.ndarray.core.value import unwatched
from genesis.nn import functional, init
from genesis.nn.module import Family, Module, Stateless
from genesis.nn.new_parameters import add_parameters, filled
from genesis.tensor import creation
from genesis.tensor.whole_calls import whole


class _Affine(Module):
    """The base of layers with weights, which begin as ones, and biases, which begin as zeros."""

    def reset_parameters(self) -> None:
        """Weights of 1 and biases of 0."""
        for name, x in self.named_parameters(recurse=False):
            init.ones_(x) if name == "weight" else init.zeros_(x)


# ---- over the last dimensions


def _sizes(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class _LastDimensions(_Affine):
    _shown = "{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_LastDimensions):
    """Mean 0 and variance 1 over the last dimensions, then times weight plus bias.

    >>> import genesis
    >>> LayerNorm(2)(genesis.tensor([[1.0, 3.0]])).tolist()
    [[-0.9999949932098389, 0.9999949932098389]]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape if elementwise_affine else None
        add_parameters(self, device, dtype, weight=shape, bias=shape if bias else None)
        self.reset_parameters()

    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_LastDimensions):
    """Mean square 1 over the last dimensions, then times the weight."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape if elementwise_affine else None
        add_parameters(self, device, dtype, weight=shape)
        self.reset_parameters()

    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GroupNorm(_Affine):
    """Mean 0 and variance 1 over the channels of every group and all positions."""

    _shown = "{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_groups} groups do not divide {num_channels} channels"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        shape = (num_channels,) if affine else None
        add_parameters(self, device, dtype, weight=shape, bias=shape if bias else None)
        self.reset_parameters()

    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


# ---- with running statistics


class _Running(Family, _Affine):
    """Weights for every channel, and statistics that follow those of the batches."""

    ranks: ClassVar[tuple[int, ...]]  # of the inputs it takes
    _shown = (
        "{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
        "track_running_stats={self.track_running_stats}"
    )

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape, tracked = (num_features,), track_running_stats
        weight = shape if affine else None
        add_parameters(self, device, dtype, weight=weight, bias=weight if bias else None)
        count = creation.zeros((), dtype=int64, device=device) if tracked else None
        self.register_buffer("running_mean", filled(shape, 0, dtype, device) if tracked else None)
        self.register_buffer("running_var", filled(shape, 1, dtype, device) if tracked else None)
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget all batches."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Weights of 1, biases of 0, and no batch seen."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check(self, input: Any) -> None:
        if len(input.shape) not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise ValueError(
                f"{type(self).__name__}: needs {wanted} dimensions, got shape {tuple(input.shape)}"
            )

    def _share(self) -> Any:
        """How far running statistics move; without a momentum they are means of all batches."""
        if not self.training or self.num_batches_tracked is None:
            return 0.0
        counted = self.num_batches_tracked.array
        unwatched(lambda: counted.assign(counted + 1))
        if self.momentum is not None:
            return self.momentum
        return 1 / counted.astype(self.running_mean.dtype.accumulator)


class _BatchNorm(_Running):
    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input: by the batch's own statistics in training, else by running ones."""
        self._check(input)
        own = self.training or self.running_mean is None
        # In evaluation running statistics are used; a layer without them uses the batch's.
        mean, var = self.running_mean, self.running_var
        share = self._share()
        return functional.batch_norm(input, mean, var, self.weight, self.bias, own, share, self.eps)


class BatchNorm1d(_BatchNorm, ranks=(2, 3)):
    """Mean 0 and variance 1 of every channel of ``(batch, channels)``, or with a length."""


class BatchNorm2d(_BatchNorm, ranks=(4,)):
    """Mean 0 and variance 1 of every channel of ``(batch, channels, h, w)``."""


class BatchNorm3d(_BatchNorm, ranks=(5,)):
    """Mean 0 and variance 1 of every channel of ``(batch, channels, d, h, w)``."""


class _InstanceNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        statistics = eps, momentum, affine, track_running_stats
        super().__init__(num_features, *statistics, device, dtype, bias=bias)

    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input: by its own statistics, or running ones in evaluation."""
        self._check(input)
        single = len(input.shape) == self.ranks[0]
        batch = unsqueeze(input, 0) if single else input
        own = self.training or not self.track_running_stats
        share = 0.0 if self.momentum is None else self.momentum
        result = functional.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias, own, share, self.eps
        )
        return squeeze(result, 0) if single else result


class InstanceNorm1d(_InstanceNorm, ranks=(2, 3)):
    """Mean 0 and variance 1 of every channel of every example of ``(batch, channels, length)``."""


class InstanceNorm2d(_InstanceNorm, ranks=(3, 4)):
    """Mean 0 and variance 1 of every channel of every example of ``(batch, channels, h, w)``."""


class InstanceNorm3d(_InstanceNorm, ranks=(4, 5)):
    """Mean 0 and variance 1 of every channel of every example of ``(batch, channels, d, h, w)``."""


# ---- over neighbouring channels


class LocalResponseNorm(Stateless):
    """Divided by a power of the mean square over neighbouring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    @whole
    def forward(self, input: Any) -> Any:
        """The normalised input."""
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)


class CrossMapLRN2d(LocalResponseNorm):
    """`LocalResponseNorm` by the name it has for images ``(batch, channels, h, w)``."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)


__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CrossMapLRN2d", "GroupNorm", "InstanceNorm1d",
    "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "LocalResponseNorm", "RMSNorm",
]  # fmt: skip
