"""Lazy layers: they find out the size of their input from the first one they see.

Until then such a layer has no parameters. Then it becomes the layer it stands for, class and all:
call a model once before its parameters are given to an optimizer or loaded.
"""

from __future__ import annotations

from typing import Any, ClassVar

from genesis.ndarray.core.value import unrecorded
from genesis.ndarray.tracing.object_introspection import atomic
from genesis.nn import conv, linear
from genesis.nn import normalization as norm
from genesis.nn.module import Family


class _Lazy(Family):
    kind: ClassVar[Any]  # what it becomes
    dim: ClassVar[int]  # the dimension of the input that says the size

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._given = args, kwargs

    @atomic
    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Become the layer for inputs of this size, and call it."""
        kept = {k: x for k, x in self.__dict__.items() if "hooks" in k or k == "training"}
        args, settings = self._given
        size = inputs[0].shape[self.dim]
        with unrecorded():  # parameters are there before and after what `jit` records
            made = self.kind(size, *args, **settings)
        self.__class__ = self.kind
        self.__dict__.clear()
        self.__dict__.update(made.__dict__ | kept)
        return self(*inputs, **kwargs)


class LazyLinear(_Lazy, kind=linear.Linear, dim=-1):
    """`Linear` for as many inputs as it first sees."""


class LazyConv1d(_Lazy, kind=conv.Conv1d, dim=-2):
    """`Conv1d` for as many inputs as it first sees."""


class LazyConv2d(_Lazy, kind=conv.Conv2d, dim=-3):
    """`Conv2d` for as many inputs as it first sees."""


class LazyConv3d(_Lazy, kind=conv.Conv3d, dim=-4):
    """`Conv3d` for as many inputs as it first sees."""


class LazyConvTranspose1d(_Lazy, kind=conv.ConvTranspose1d, dim=-2):
    """`ConvTranspose1d` for as many inputs as it first sees."""


class LazyConvTranspose2d(_Lazy, kind=conv.ConvTranspose2d, dim=-3):
    """`ConvTranspose2d` for as many inputs as it first sees."""


class LazyConvTranspose3d(_Lazy, kind=conv.ConvTranspose3d, dim=-4):
    """`ConvTranspose3d` for as many inputs as it first sees."""


class LazyBatchNorm1d(_Lazy, kind=norm.BatchNorm1d, dim=1):
    """`BatchNorm1d` for as many inputs as it first sees."""


class LazyBatchNorm2d(_Lazy, kind=norm.BatchNorm2d, dim=1):
    """`BatchNorm2d` for as many inputs as it first sees."""


class LazyBatchNorm3d(_Lazy, kind=norm.BatchNorm3d, dim=1):
    """`BatchNorm3d` for as many inputs as it first sees."""


class _LazyInstanceNorm(_Lazy):
    """By default with weights and statistics, unlike the layer it stands for, as in PyTorch."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype, bias=bias)


class LazyInstanceNorm1d(_LazyInstanceNorm, kind=norm.InstanceNorm1d, dim=-2):
    """`InstanceNorm1d` for as many inputs as it first sees."""


class LazyInstanceNorm2d(_LazyInstanceNorm, kind=norm.InstanceNorm2d, dim=-3):
    """`InstanceNorm2d` for as many inputs as it first sees."""


class LazyInstanceNorm3d(_LazyInstanceNorm, kind=norm.InstanceNorm3d, dim=-4):
    """`InstanceNorm3d` for as many inputs as it first sees."""


__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d",
    "LazyConv3d", "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip
