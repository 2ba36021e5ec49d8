"""Training with rounded numbers: what is rounded forwards, gradients pass as if it were not.

`prepare_` puts layers into a model that round their weights, and perhaps their inputs, and learn by
which steps; `convert_` makes quantised layers of them, which give what the prepared ones gave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from genesis import functional, nn
from genesis.autograd import no_grad
from genesis.compress.codes import Codes, values_of
from genesis.compress.format import E2M1, ROW, Format, Integer, Table
from genesis.compress.quantized_layers import QuantizedConv2d, QuantizedLinear
from genesis.compress.quantized_tensor import from_codes
from genesis.nn.functional import conv2d, linear

M = TypeVar("M", bound=nn.Module)


def straight_through(x: Any, rounded: Any) -> Any:
    """`rounded`, with the gradient of x.

    >>> import genesis
    >>> x = genesis.tensor([0.4, 1.6], requires_grad=True)
    >>> y = straight_through(x, functional.round(x))
    >>> y.sum().backward()
    >>> y.detach(), x.grad
    (tensor([0., 2.]), tensor([1., 1.]))
    """
    return x + (rounded - x).detach()


def element_of(bits: int) -> Integer:
    """Integers about zero for training: of 1 and 2 bits, halves, as many above zero as below."""
    return Integer(bits, (1 << bits - 1) - 0.5 if bits <= 2 else 1 << bits - 1)


def fake_quantize(x: Any, step: Any, element: Integer) -> Any:
    """x rounded to multiples of a step, which learns, too.

    The gradient of the step is that of rounding and of clipping (learned step size, LSQ): within
    reach ``round(x / step) - x / step``, beyond the last value.
    """
    most, half = (1 << element.bits) - 1 - element.zero, element.zero % 1
    low = -element.zero if half else 1 - element.zero
    scaled = functional.clamp(x / step, low, most)
    return straight_through(scaled, functional.round(scaled - half) + half) * step


def fake_table(x: Any, scale: Any, element: Table) -> Any:
    """x rounded to numbers of a table times a scale; gradients pass between the last of them."""
    values = np.unique(values_of(element))
    scaled = functional.clamp(x / scale, float(values[0]), float(values[-1]))
    rounded = scaled.detach() * 0 + float(values[0])
    for low, high in pairwise(values):
        middle = float((low + high) / 2)
        rounded = rounded + (scaled.detach() > middle).to(rounded.dtype) * float(high - low)
    return straight_through(scaled, rounded) * scale


class _Fake(nn.Module):
    """A layer that rounds its weight, a row at a time, and perhaps its input."""

    def __init__(self, layer: Any, bits: int, activation: str | None) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.element, self.activation = element_of(bits), activation
        rows = layer.weight.detach().reshape(layer.weight.shape[0], -1)
        size = functional.abs(rows).mean(1, True)
        most = (1 << bits) - 1 - self.element.zero
        self.step = nn.Parameter(2 * size / math.sqrt(most) + 1e-8)
        if activation is not None and activation not in ACTIVATIONS:
            raise ValueError(
                f"prepare_: activations are {', '.join(ACTIVATIONS)}, not {activation!r}"
            )

    def rounded(self) -> Any:
        """The weight as it is used."""
        shape = self.weight.shape
        # A step has as many gradients as its row has weights: they are scaled down by their root.
        count = math.prod(shape[1:]) * ((1 << self.element.bits - 1) or 1)
        share = 1 / math.sqrt(count)
        step = self.step * share + (self.step * (1 - share)).detach()
        step = functional.abs(step) + 1e-12
        return fake_quantize(self.weight.reshape(shape[0], -1), step, self.element).reshape(*shape)

    def input(self, x: Any) -> Any:
        """The input as it is used."""
        return x if self.activation is None else ACTIVATIONS[self.activation](x)

    def codes(self) -> Codes:
        """The weight as codes."""
        flat = self.weight.detach().reshape(self.weight.shape[0], -1).numpy()
        step = np.abs(self.step.detach().numpy()) + np.float32(1e-12)
        format = Format(f"int{self.element.bits}", self.element, ROW, "float32")
        format = format.fitted(flat.shape[1])
        half = np.float32(self.element.zero % 1)
        low = 0 if half else 1
        codes = np.rint(flat / step - half) + half + np.float32(self.element.zero)
        codes = np.clip(codes, low, (1 << self.element.bits) - 1).astype(np.uint8)
        return Codes(format, codes, step)


def _fp4(x: Any) -> Any:
    """Rows in floats of 4 bits, by the greatest of each."""
    peak = functional.amax(functional.abs(x.detach()), -1, True) + 1e-12
    return fake_table(x, peak / max(E2M1), Table(E2M1))


def _integers(bits: int) -> Any:
    def rounded(x: Any) -> Any:
        peak = functional.amax(functional.abs(x.detach()), -1, True) + 1e-12
        return fake_quantize(x, peak / ((1 << bits - 1) - 1), Integer(bits, 1 << bits - 1))

    return rounded


#: How inputs may be rounded: by the greatest of each row.
ACTIVATIONS: dict[str, Any] = {"int8": _integers(8), "int4": _integers(4), "fp4": _fp4}


class FakeLinear(_Fake):
    """`nn.Linear` with a rounded weight."""

    def forward(self, x: Any) -> Any:
        """The product with the rounded weight."""
        return linear(self.input(x), self.rounded(), self.bias)


class FakeConv2d(_Fake):
    """`nn.Conv2d` with a rounded weight."""

    def __init__(self, layer: Any, bits: int, activation: str | None) -> None:
        super().__init__(layer, bits, activation)
        self.kernel_size, self.padding_mode = layer.kernel_size, layer.padding_mode
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def forward(self, x: Any) -> Any:
        """The convolution with the rounded weight."""
        return conv2d(
            self.input(x), self.rounded(), self.bias, self.stride, self.padding, self.dilation,
            self.groups,
        )  # fmt: skip


_FAKES = {nn.Linear: FakeLinear, nn.Conv2d: FakeConv2d}


def prepare_(
    module: M, bits: int | Mapping[str, int] = 4, activation: str | None = None,
    skip: Iterable[str] = (),
) -> M:  # fmt: skip
    """Replace linear layers and convolutions by such that round, in place, to be trained on.

    Called again with fewer bits, it lowers those of the layers that are there: bits in stages.
    """
    left, found = set(skip), 0
    for name, layer in list(module.named_modules()):
        own = bits if isinstance(bits, int) else bits.get(name)
        if name in left or own is None or not (type(layer) in _FAKES or isinstance(layer, _Fake)):
            continue
        found += 1
        kind: Any = type(layer) if isinstance(layer, _Fake) else _FAKES[type(layer)]
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, kind(layer, own, activation))
    if not found:
        raise ValueError(f"prepare_: {type(module).__name__} has no layers to round")
    return module


@no_grad()
def convert_(module: M) -> M:
    """Replace the layers that `prepare_` made by quantised ones, in place.

    With rounded weights and float activations, they give the same up to the order of sums.
    """
    found = [(n, x) for n, x in module.named_modules() if isinstance(x, _Fake)]
    if not found:
        raise ValueError(f"convert_: {type(module).__name__} was not prepared")
    for name, layer in found:
        codes = layer.codes()
        weight = from_codes(codes, codes.shape[1])
        bias = None if layer.bias is None else layer.bias.detach()
        made: nn.Module = (
            QuantizedConv2d(layer, weight)
            if isinstance(layer, FakeConv2d)
            else QuantizedLinear(weight, bias)
        )
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, made)
    return module


# ---- a loss that a teacher gives


def distillation(student: Any, teacher: Any, temperature: float = 2.0, chunk: int = 0) -> Any:
    """The KL divergence from a teacher's scores to a student's, times the temperature squared.

    With `chunk` the rows are taken so many at a time, which needs less memory.

    >>> import genesis
    >>> distillation(genesis.zeros(2, 3), genesis.zeros(2, 3)).item()
    0.0
    """
    student = student.reshape(-1, student.shape[-1])
    teacher = teacher.detach().reshape(-1, teacher.shape[-1])
    rows, total = student.shape[0], 0.0
    step = chunk or rows
    for begin in range(0, rows, step):
        theirs = functional.log_softmax(teacher[begin : begin + step] / temperature, -1)
        own = functional.log_softmax(student[begin : begin + step] / temperature, -1)
        total = total + (functional.exp(theirs) * (theirs - own)).sum()
    return total * (temperature**2 / rows)


__all__ = [
    "ACTIVATIONS", "FakeConv2d", "FakeLinear", "convert_", "distillation", "element_of",
    "fake_quantize", "fake_table", "prepare_", "straight_through",
]  # fmt: skip
