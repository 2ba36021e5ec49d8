"""Activations with parameters, or with demands on their input.

The others are in `parameterless_layers`.
"""

from __future__ import annotations

from typing import Any

from genesis.nn import functional, init
from genesis.nn.module import Module, Stateless
from genesis.nn.new_parameters import parameter


class Softmax2d(Stateless):
    """The softmax over the channels of ``(batch, channels, h, w)``, or without the batch."""

    def forward(self, input: Any) -> Any:
        """The softmax at every position."""
        if len(input.shape) not in (3, 4):
            raise ValueError(
                f"Softmax2d: needs 4 dimensions, or 3 without a batch, not {tuple(input.shape)}"
            )
        return functional.softmax(input, -3)


class PReLU(Module):
    """LeakyReLU with slopes that are learnt: one, or one for each channel."""

    _shown = "num_parameters={self.num_parameters}"

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = parameter((num_parameters,), dtype, device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The slope that was given."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.prelu(input, self.weight)


__all__ = ["PReLU", "Softmax2d"]
