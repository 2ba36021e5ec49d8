"""Activations: the functions of `genesis.nn.functional` as modules."""

from __future__ import annotations

from typing import Any

from genesis.nn import functional, init
from genesis.nn.module import Module, Stateless
from genesis.nn.new_parameters import parameter


class ReLU(Stateless):
    """``max(input, 0)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.relu(input, self.inplace)


class ReLU6(Stateless):
    """The input moved into the range from 0 to 6."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.relu6(input, self.inplace)


class ELU(Stateless):
    """The input where it is positive, ``alpha * (exp(input) - 1)`` elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.elu(input, self.alpha, self.inplace)


class CELU(Stateless):
    """The input where it is positive, ``alpha * (exp(input/alpha) - 1)`` elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.celu(input, self.alpha, self.inplace)


class SELU(Stateless):
    """A scaled ELU that keeps mean 0 and variance 1."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.selu(input, self.inplace)


class GELU(Stateless):
    """The input times the probability that a normal number is below it."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.gelu(input, self.approximate)


class SiLU(Stateless):
    """``input * sigmoid(input)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.silu(input, self.inplace)


class Mish(Stateless):
    """``input * tanh(softplus(input))``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.mish(input, self.inplace)


class LeakyReLU(Stateless):
    """The input where it is positive, times the slope elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.leaky_relu(input, self.negative_slope, self.inplace)


class Hardtanh(Stateless):
    """The input moved into a range."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)


class Hardsigmoid(Stateless):
    """``input / 6 + 1/2`` moved into the range from 0 to 1."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.hardsigmoid(input, self.inplace)


class Hardswish(Stateless):
    """``input * hardsigmoid(input)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.hardswish(input, self.inplace)


class Hardshrink(Stateless):
    """The input, and 0 where it is within `lambd` of 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.hardshrink(input, self.lambd)


class Softshrink(Stateless):
    """The input moved toward 0 by `lambd`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.softshrink(input, self.lambd)


class Softplus(Stateless):
    """``log(1 + exp(beta*input)) / beta``, and the input itself above the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.softplus(input, self.beta, self.threshold)


class Threshold(Stateless):
    """The input where it is above the threshold, `value` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.threshold(input, self.threshold, self.value, self.inplace)


class Sigmoid(Stateless):
    """``1 / (1 + exp(-input))``."""

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.sigmoid(input)


class LogSigmoid(Stateless):
    """The logarithm of the sigmoid."""

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.logsigmoid(input)


class Tanh(Stateless):
    """The hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.tanh(input)


class Tanhshrink(Stateless):
    """``input - tanh(input)``."""

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.tanhshrink(input)


class Softsign(Stateless):
    """``input / (1 + abs(input))``."""

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.softsign(input)


class GLU(Stateless):
    """One half of a dimension times the sigmoid of the other."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.glu(input, self.dim)


class Softmax(Stateless):
    """Exponentials along a dimension, divided by their sum."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.softmax(input, self.dim)


class LogSoftmax(Stateless):
    """The logarithm of the softmax."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.log_softmax(input, self.dim)


class Softmin(Stateless):
    """The softmax of the negated input."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.softmin(input, self.dim)


class Softmax2d(Stateless):
    """The softmax over the channels of ``(batch, channels, h, w)``, or without the batch."""

    def forward(self, input: Any) -> Any:
        """The softmax at every position."""
        if len(input.shape) not in (3, 4):
            raise ValueError(
                f"Softmax2d: needs 4 dimensions, or 3 without a batch, not {tuple(input.shape)}"
            )
        return functional.softmax(input, -3)


class RReLU(Stateless):
    """LeakyReLU with random slopes in a range while training, the middle of it otherwise."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Any) -> Any:
        """The activation of every element."""
        return functional.rrelu(input, self.lower, self.upper, self.training, self.inplace)


class PReLU(Module):
    """LeakyReLU with slopes that are learnt: one, or one for each channel."""

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

    def extra_repr(self) -> str:
        """The number of slopes."""
        return f"num_parameters={self.num_parameters}"


__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU",
    "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink", "Threshold",
]  # fmt: skip
