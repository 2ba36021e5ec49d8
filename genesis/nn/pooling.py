"""Pooling layers: one number for every window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from genesis.nn import functional
from genesis.nn.module import Stateless

Sizes = int | Sequence[int]
Wanted = int | Sequence[int | None] | None

_MAX = functional.max_pool1d, functional.max_pool2d, functional.max_pool3d
_UNPOOL = functional.max_unpool1d, functional.max_unpool2d, functional.max_unpool3d
_AVG = functional.avg_pool2d, functional.avg_pool3d
_LP = functional.lp_pool1d, functional.lp_pool2d, functional.lp_pool3d
_ADAPTIVE_AVG = (
    functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d,
)  # fmt: skip
_ADAPTIVE_MAX = (
    functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d,
)  # fmt: skip
_FRACTIONAL = functional.fractional_max_pool2d, functional.fractional_max_pool3d


class _Pooling(Stateless):
    rank: ClassVar[int]


class _MaxPool(_Pooling):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        self.return_indices = return_indices

    def forward(self, input: Any) -> Any:
        """The greatest element of every window, and where it stands if wanted."""
        function = _MAX[self.rank - 1]
        return function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip


class _MaxUnpool(_Pooling):
    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, input: Any, indices: Any, output_size: Sequence[int] | None = None) -> Any:
        """Zeros, with the input at positions that a pooling returned."""
        function = _UNPOOL[self.rank - 1]
        return function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class _AvgPool(_Pooling):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Any) -> Any:
        """The mean of every window."""
        function = _AVG[self.rank - 2]
        return function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip


class _LPPool(_Pooling):
    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Any) -> Any:
        """The norm of every window."""
        function = _LP[self.rank - 1]
        return function(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class _AdaptiveAvgPool(_Pooling):
    def __init__(self, output_size: Wanted) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Any) -> Any:
        """The means of nearly equal windows."""
        return _ADAPTIVE_AVG[self.rank - 1](input, self.output_size)


class _AdaptiveMaxPool(_Pooling):
    def __init__(self, output_size: Wanted, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Any) -> Any:
        """The greatest elements of nearly equal windows, and where they stand if wanted."""
        return _ADAPTIVE_MAX[self.rank - 1](input, self.output_size, self.return_indices)


class _FractionalMaxPool(_Pooling):
    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Sizes | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.output_size = kernel_size, output_size
        self.output_ratio, self.return_indices = output_ratio, return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Any) -> Any:
        """The greatest elements of windows at pseudo-random distances."""
        function = _FRACTIONAL[self.rank - 2]
        return function(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            self._random_samples,
        )  # fmt: skip


class AvgPool1d(_Pooling):
    """The mean of every window of the last dimension."""

    rank = 1

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Any:
        """The mean of every window."""
        return functional.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip


class AvgPool2d(_AvgPool):
    """The mean of every window of the last two dimensions."""

    rank = 2


class AvgPool3d(_AvgPool):
    """The mean of every window of the last three dimensions."""

    rank = 3


class MaxPool1d(_MaxPool):
    """The greatest element of every window of the last dimension."""

    rank = 1


class MaxPool2d(_MaxPool):
    """The greatest element of every window of the last two dimensions."""

    rank = 2


class MaxPool3d(_MaxPool):
    """The greatest element of every window of the last three dimensions."""

    rank = 3


class MaxUnpool1d(_MaxUnpool):
    """What `MaxPool` makes smaller made larger again, over the last dimension."""

    rank = 1


class MaxUnpool2d(_MaxUnpool):
    """What `MaxPool` makes smaller made larger again, over the last two dimensions."""

    rank = 2


class MaxUnpool3d(_MaxUnpool):
    """What `MaxPool` makes smaller made larger again, over the last three dimensions."""

    rank = 3


class LPPool1d(_LPPool):
    """The norm of every window of the last dimension."""

    rank = 1


class LPPool2d(_LPPool):
    """The norm of every window of the last two dimensions."""

    rank = 2


class LPPool3d(_LPPool):
    """The norm of every window of the last three dimensions."""

    rank = 3


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of a number of nearly equal windows of the last dimension."""

    rank = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of a number of nearly equal windows of the last two dimensions."""

    rank = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of a number of nearly equal windows of the last three dimensions."""

    rank = 3


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The greatest elements of a number of nearly equal windows of the last dimension."""

    rank = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The greatest elements of a number of nearly equal windows of the last two dimensions."""

    rank = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The greatest elements of a number of nearly equal windows of the last three dimensions."""

    rank = 3


class FractionalMaxPool2d(_FractionalMaxPool):
    """The greatest elements of windows at pseudo-random distances in the last two dimensions."""

    rank = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The greatest elements of windows at pseudo-random distances in the last three dimensions."""

    rank = 3


__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "FractionalMaxPool2d", "FractionalMaxPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
]  # fmt: skip
