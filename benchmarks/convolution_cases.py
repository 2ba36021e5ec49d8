"""The contractions of ResNet-50, forward and both gradients, and matrix products of all kinds.

Every distinct convolution of the network is a case, three times: forward, the gradient for its
input and the gradient for its weight. Matrix products are square, skinny and in batches, with
either factor as it is or transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.cases import Case, eager, jitted

BATCH = 8


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution on square images with windows of odd size, padded by half."""

    channels: int
    out: int
    pixels: int
    window: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        of = f"{self.channels}→{self.out}" + (f" in {self.groups} groups" * (self.groups > 1))
        return f"{of} {self.window}x{self.window}/{self.stride} on {self.pixels}²"

    @property
    def flops(self) -> int:
        """Operations in one pass."""
        after = -(-self.pixels // self.stride)
        taps = self.channels // self.groups * self.window**2
        return 2 * BATCH * self.out * taps * after**2

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Those of the input, the weight and the output."""
        after = -(-self.pixels // self.stride)
        return (
            (BATCH, self.channels, self.pixels, self.pixels),
            (self.out, self.channels // self.groups, self.window, self.window),
            (BATCH, self.out, after, after),
        )

    def cases(self) -> list[Case]:
        """Forward, input gradient, weight gradient."""
        x, weight, y = self.shapes
        edge, stride, groups = self.window // 2, self.stride, self.groups

        def genesis_forward(x: Any, w: Any) -> Any:
            from genesis import ndarray as nd

            return nd.convolution(x, w, None, stride, edge, 1, groups)

        def genesis_to_input(grad: Any, w: Any) -> Any:
            from genesis import ndarray as nd

            return nd.convolution_input_gradient(grad, w, x, stride, edge, 1, groups)

        def genesis_to_weight(grad: Any, seen: Any) -> Any:
            from genesis import ndarray as nd

            return nd.convolution_weight_gradient(grad, seen, weight, stride, edge, 1, groups)

        def torch_forward(x: Any, w: Any) -> Any:
            import torch

            return torch.conv2d(x, w, None, stride, edge, 1, groups)

        def torch_backward(wanted: int) -> Callable[[Any, Any, Any], Any]:
            def backward(grad: Any, seen: Any, w: Any) -> Any:
                import torch

                mask = [wanted == k for k in range(3)]
                return torch.ops.aten.convolution_backward(
                    grad, seen, w, None, [stride] * 2, [edge] * 2, [1, 1], False, [0, 0], groups,
                    mask,
                )[wanted]  # fmt: skip

            return backward

        def to_input(grad: Any, w: Any, empty: Any) -> Any:
            return torch_backward(0)(grad, empty, w)

        def to_weight(grad: Any, seen: Any, empty: Any) -> Any:
            return torch_backward(1)(grad, seen, empty)

        # What PyTorch is given as `out` has the shape of the gradient, all it reads of it.
        return [
            Case(f"forward {self}", (x, weight), jitted(genesis_forward), eager(torch_forward),
                 self.flops),
            Case(f"input gradient {self}", (y, weight), jitted(genesis_to_input),
                 eager(to_input, x), self.flops),
            Case(f"weight gradient {self}", (y, x), jitted(genesis_to_weight),
                 eager(to_weight, weight), self.flops),
        ]  # fmt: skip


def resnet50() -> list[Convolution]:
    """The distinct convolutions of ResNet-50, in order; strides are in the 3x3 windows."""
    found = [Convolution(3, 64, 224, 7, 2)]
    channels, pixels = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            found.append(Convolution(channels, width, pixels, 1))
            found.append(Convolution(width, width, pixels, 3, stride))
            if not block:
                found.append(Convolution(channels, 4 * width, pixels, 1, stride))
            pixels //= stride
            found.append(Convolution(width, 4 * width, pixels, 1))
            channels = 4 * width
    return list(dict.fromkeys(found))


def matrices(m: int, k: int, n: int, batch: int = 0) -> list[Case]:
    """A product of matrices with every combination of transposed factors."""
    leading = (batch,) if batch else ()
    size = f"{f'{batch} x ' if batch else ''}{m}x{k}x{n}"

    def case(first: bool, second: bool) -> Case:
        def multiplied(a: Any, b: Any) -> Any:
            return (a.swapaxes(-1, -2) if first else a) @ (b.swapaxes(-1, -2) if second else b)

        name = f"matmul {size} {'Aᵀ' if first else 'A'}{'Bᵀ' if second else 'B'}"
        shapes = (
            (*leading, *((k, m) if first else (m, k))),
            (*leading, *((n, k) if second else (k, n))),
        )
        flops = 2 * max(1, batch) * m * k * n
        return Case(name, shapes, jitted(multiplied), eager(multiplied), flops)

    return [case(*turned) for turned in product((False, True), (False, True))]


_CONVOLUTIONS = [
    *resnet50(),
    Convolution(128, 128, 56, 3, 1, groups=128),
    Convolution(128, 128, 56, 3, 1, groups=32),
]
_PRODUCTS = [
    *((n, n, n) for n in (256, 512, 1024, 2048, 4096)),
    (32, 4096, 4096), (4096, 4096, 32), (4096, 64, 4096), (128, 64, 128, 64),
]  # fmt: skip

CONTRACTIONS: list[Case] = [
    *(case for three in zip(*(c.cases() for c in _CONVOLUTIONS), strict=True) for case in three),
    *(case for sizes in _PRODUCTS for case in matrices(*sizes)),
]
