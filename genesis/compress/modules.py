"""Layers with quantised weights, and `quantize_`, which puts them into a model."""

from __future__ import annotations

from typing import Any, TypeVar

from genesis import nn
from genesis.autograd import no_grad
from genesis.compress.format import Format, named
from genesis.compress.tensor import QuantizedTensor, quantize
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=nn.Module)


class _Quantized(nn.Module):
    """A layer whose weight is a `QuantizedTensor`, with its `values` in the state."""

    values: Tensor

    def __init__(self, weight: QuantizedTensor) -> None:
        super().__init__()
        self.shape, self.format = weight.shape, weight.format
        self.register_buffer("values", weight.values)

    @property
    def weight(self) -> QuantizedTensor:
        """The weight."""
        return QuantizedTensor(self.values, self.shape, self.format)

    def extra_repr(self) -> str:
        """The sizes and the format."""
        return f"{self.shape[1]}, {self.shape[0]}, format={self.format.name!r}"


class QuantizedLinear(_Quantized):
    """``input @ weight.T + bias`` with a quantised weight.

    >>> import genesis
    >>> layer = QuantizedLinear(quantize(genesis.ones(3, 8), "int4", group=8))
    >>> layer(genesis.ones(8)).round()
    tensor([8., 8., 8.])
    """

    def __init__(self, weight: QuantizedTensor, bias: Any = None) -> None:
        super().__init__(weight)
        self.register_buffer("bias", bias)

    def forward(self, input: Any) -> Any:
        """The affine map of the last dimension."""
        return self.weight.linear(input, self.bias)


class QuantizedEmbedding(_Quantized):
    """The rows of a quantised table at given positions."""

    def forward(self, input: Any) -> Any:
        """The rows as float32, in the shape of the positions."""
        return self.weight.rows(input)


@no_grad()
def quantize_(module: M, format: str | Format = "int8", group: int | None = None) -> M:
    """Replace the weights of all linear layers and embeddings below a module, in place.

    A head that shares its weight with an embedding still does.
    """
    format = named(format, "quantize_")
    shared: dict[int, QuantizedTensor] = {}
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) not in (nn.Linear, nn.Embedding):
                continue
            weight = shared.get(id(layer.weight))
            if weight is None:
                weight = shared[id(layer.weight)] = quantize(layer.weight, format, group)
            if type(layer) is nn.Linear:
                setattr(parent, name, QuantizedLinear(weight, layer.bias))
            else:
                setattr(parent, name, QuantizedEmbedding(weight))
    return module


__all__ = ["QuantizedEmbedding", "QuantizedLinear", "quantize_"]
