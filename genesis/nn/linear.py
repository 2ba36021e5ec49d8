"""Affine maps: linear and bilinear layers."""

from __future__ import annotations

import math
from typing import Any

from genesis.nn import functional, init
from genesis.nn.module import Module
from genesis.nn.new_parameters import add_parameters
from genesis.tensor.whole_calls import whole


class Identity(Module):
    """The input as it is; arguments of the constructor are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """The input."""
        return input


class Linear(Module):
    """``input @ weight.T + bias``.

    >>> import genesis
    >>> layer = Linear(20, 30)
    >>> layer(genesis.ones(128, 20)).shape
    genesis.Size([128, 30])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape = (out_features, in_features)
        add_parameters(self, device, dtype, weight=shape, bias=shape[:1] if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform numbers within one over the root of the number of inputs."""
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    @whole
    def forward(self, input: Any) -> Any:
        """The affine map of the last dimension."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Bilinear(Module):
    """``input1 @ weight[o] @ input2 + bias[o]`` for every output feature o."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        shape = (out_features, in1_features, in2_features)
        add_parameters(self, device, dtype, weight=shape, bias=shape[:1] if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform numbers within one over the root of the number of first inputs."""
        bound = 1 / math.sqrt(self.in1_features)
        for x in self.parameters():
            init.uniform_(x, -bound, bound)

    @whole
    def forward(self, input1: Any, input2: Any) -> Any:
        """The bilinear map of the last dimensions."""
        return functional.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


__all__ = ["Bilinear", "Identity", "Linear"]
