"""Convolutions and transposed convolutions over one to three spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from genesis.functional.spatial_ranks import Sizes
from genesis.ndarray.ops.sliding_windows import per_axis
from genesis.nn import functional, init
from genesis.nn.module import Family
from genesis.nn.new_parameters import add_parameters
from genesis.tensor.whole_calls import whole

_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Family):
    """The settings and parameters that all convolutions have; `function` computes them."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: {groups} groups must divide {in_channels} input and {out_channels} "
                "output channels"
            )
        if padding_mode not in _MODES:
            raise ValueError(f"{name}: padding_mode {padding_mode!r} is none of {_MODES}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank)
        self.stride = per_axis(name, "stride", stride, self.rank)
        self.dilation = per_axis(name, "dilation", dilation, self.rank)
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            self.padding: Any = padding
            if padding not in ("same", "valid"):
                raise ValueError(f"{name}: padding is numbers, 'same' or 'valid', not {padding!r}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"{name}: padding 'same' needs stride 1, not {self.stride}")
        else:
            self.padding = per_axis(name, "padding", padding, self.rank)
        pair = in_channels, out_channels // groups
        if not self.transposed:
            pair = out_channels, in_channels // groups
        weight = (*pair, *self.kernel_size)
        add_parameters(self, device, dtype, weight=weight, bias=(out_channels,) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform numbers within one over the root of the number of inputs of an output."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            count = self.weight.shape[1] * math.prod(self.kernel_size)
            bound = 1 / math.sqrt(count) if count else 0.0
            init.uniform_(self.bias, -bound, bound)

    def _padded(self, input: Any) -> tuple[Any, Any]:
        """The input, padded if that is not with zeros, and how many zeros to add to it."""
        if self.padding_mode == "zeros":
            return input, self.padding
        edges = [(p, p) for p in self.padding]
        if isinstance(self.padding, str):
            spare = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            spare = [0] * self.rank if self.padding == "valid" else spare
            edges = [(n // 2, n - n // 2) for n in spare]
        widths = [width for edge in reversed(edges) for width in edge]
        return functional.pad(input, widths, mode=self.padding_mode), 0

    @whole
    def forward(self, input: Any) -> Any:
        """The convolution of the input."""
        input, zeros = self._padded(input)
        return type(self).function(
            input, self.weight, self.bias, self.stride, zeros, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        """Channels, and whatever else is not the default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        zeros, ones = (0,) * self.rank, (1,) * self.rank
        text += f", stride={self.stride}" + self._unusual(
            padding=zeros, output_padding=zeros, dilation=ones, groups=1, padding_mode="zeros"
        )
        return text if self.bias is not None else f"{text}, bias=False"


class _Transposed(_Convolution, transposed=True):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros" or isinstance(padding, str):
            raise ValueError(
                f"{type(self).__name__}: padding is numbers, with padding_mode 'zeros'; got "
                f"{padding!r} and {padding_mode!r}"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        name = type(self).__name__
        self.output_padding = per_axis(name, "output_padding", output_padding, self.rank)

    @whole
    def forward(self, input: Any, output_size: Sequence[int] | None = None) -> Any:
        """The transposed convolution, of one of the sizes that the stride leaves open."""
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return type(self).function(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )  # fmt: skip

    def _extra(self, input: Any, output_size: Sequence[int]) -> list[int]:
        """The output padding that gives a size."""
        wanted = list(output_size)[-self.rank :]
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(
                input.shape[-self.rank :], self.stride, self.padding, self.dilation,
                self.kernel_size, strict=True,
            )
        ]  # fmt: skip
        extra = [w - n for w, n in zip(wanted, least, strict=True)]
        if any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
            raise ValueError(
                f"{type(self).__name__}: output_size {wanted} is not between {least} and {most}"
            )
        return extra


class Conv1d(_Convolution, rank=1, function=functional.conv1d):
    """A convolution over one dimension: ``(batch, channels, length)``."""


class Conv2d(_Convolution, rank=2, function=functional.conv2d):
    """A convolution over two dimensions: ``(batch, channels, height, width)``.

    >>> import genesis
    >>> Conv2d(3, 8, 3, stride=2, padding=1)(genesis.ones(1, 3, 32, 32)).shape
    genesis.Size([1, 8, 16, 16])
    """


class Conv3d(_Convolution, rank=3, function=functional.conv3d):
    """A convolution over three dimensions: ``(batch, channels, depth, height, width)``."""


class ConvTranspose1d(_Transposed, rank=1, function=functional.conv_transpose1d):
    """The transpose of a convolution over one dimension."""


class ConvTranspose2d(_Transposed, rank=2, function=functional.conv_transpose2d):
    """The transpose of a convolution over two dimensions."""


class ConvTranspose3d(_Transposed, rank=3, function=functional.conv_transpose3d):
    """The transpose of a convolution over three dimensions."""


__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
]  # fmt: skip
