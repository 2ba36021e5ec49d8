"""The small parts of a decoder: products with weights of any format, norms and networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import genesis
from genesis import functional, nn
from genesis.llm.config import DecoderConfig
from genesis.quantization import QuantizedTensor, quantize
from genesis.tensor.tensor import Tensor


class Linear(nn.Module):
    """``x @ weight.T + bias``, whatever the weight is stored as."""

    #: Adapters in their slots: (slots, rank, columns) and (slots, rows, rank).
    lora_a: Tensor
    lora_b: Tensor

    def __init__(
        self, weight: Any, bias: Any = None, parts: Sequence[tuple[str, int, int]] = ()
    ) -> None:
        super().__init__()
        self.parts = list(parts)  # modules of the files that this is made of, and their rows
        self.adaptable = False
        if isinstance(weight, QuantizedTensor):
            self.shape, self.format = weight.shape, weight.format
            self.register_buffer("values", weight.values)
        else:
            self.shape = tuple(weight.shape)
            self.format = weight.dtype.name
            self.register_buffer("values", weight)
        self.register_buffer("bias", None if bias is None else bias.to(genesis.float32))

    @property
    def weight(self) -> QuantizedTensor:
        """The weight."""
        return QuantizedTensor(self.values, self.shape, self.format)

    def make_slots(self, slots: int, rank: int) -> None:
        """Make room for adapters, which add nothing yet."""
        wide = rank * len(self.parts)
        self.register_buffer("lora_a", genesis.zeros(slots, wide, self.shape[1]), persistent=False)
        self.register_buffer("lora_b", genesis.zeros(slots, self.shape[0], wide), persistent=False)

    def forward(self, x: Any, adapters: Any = None) -> Any:
        """The product of the last dimension; `adapters` are the slots of the rows."""
        if self.format == "float32":
            y = functional.linear(x, self.values, self.bias)
        else:
            y = self.weight.linear(x, self.bias)
        if adapters is None:
            return y
        narrow = functional.einsum("ni,nri->nr", x, self.lora_a[adapters])
        return y + functional.einsum("nr,nor->no", narrow, self.lora_b[adapters])

    def rows(self, places: Any) -> Any:
        """The rows of the weight at some places, as float32."""
        if self.format == "float32":
            return functional.embedding(places, self.values)
        return self.weight.rows(places)


def linear(take: Any, rows: int, columns: int, bias: bool = False) -> Linear:
    """A product with a weight of a model's files."""
    weight = stored(take("weight", rows, columns), take.format)
    return Linear(weight, take("bias", rows) if bias else None, [(take.theirs, 0, rows)])


def projection(parts: Sequence[Any], sizes: Sequence[int], columns: int, bias: bool) -> Linear:
    """One product for several weights of the same input."""
    weights = [take("weight", size, columns) for take, size in zip(parts, sizes, strict=True)]
    biases = [take("bias", size) for take, size in zip(parts, sizes, strict=True)] if bias else []
    weight = stored(functional.cat(weights, 0), parts[0].format)
    named: dict[str, tuple[int, int]] = {}
    for take, size, last in zip(parts, sizes, accumulate(sizes), strict=True):
        named[take.theirs] = named.get(take.theirs, (last - size, 0))[0], last
    rows = [(theirs, *range_) for theirs, range_ in named.items()]
    return Linear(weight, functional.cat(biases, 0) if biases else None, rows)


def stored(weight: Any, format: str | None) -> Any:
    """A matrix in the format asked for, or as it is."""
    if format is None or format == weight.dtype.name:
        return weight
    return weight.to(genesis.float32) if format == "float32" else quantize(weight, format)


class Norm(nn.Module):
    """Layer norm of the last dimension, or root-mean-square norm if there is no bias."""

    weight: Tensor

    def __init__(self, weight: Any, epsilon: float, bias: Any = None) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", weight.to(genesis.float32))
        self.register_buffer("bias", None if bias is None else bias.to(genesis.float32))

    def forward(self, x: Any) -> Any:
        """The last dimension normalised."""
        if self.bias is not None:
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def norm(config: DecoderConfig, take: Any, size: int) -> Norm:
    """A norm of a model's files."""
    weight = take("weight", size).to(genesis.float32)
    if config.norm_offset:
        weight = weight + config.norm_offset
    return Norm(weight, config.epsilon, take("bias", size) if config.norm == "layer" else None)


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def activate(x: Any, name: str) -> Any:
    """The nonlinearity of a network."""
    return _ACTIVATIONS[name](x)


class Network(nn.Module):
    """The network of a layer: one hidden layer, gated in most families."""

    def __init__(self, config: DecoderConfig, hidden: int, take: Any) -> None:
        super().__init__()
        self.activation, self.gated = config.activation, config.gated
        parts = [take.part("gate"), take.part("up")] if config.gated else [take.part("up")]
        self.up = projection(parts, [hidden] * len(parts), config.width, config.mlp_bias)
        self.down = linear(take.part("down"), config.width, hidden, config.mlp_bias)
        self.up.adaptable = self.down.adaptable = True

    def forward(self, x: Any, adapters: Any = None) -> Any:
        """``(rows, width)`` to the same."""
        y = self.up(x, adapters)
        if not self.gated:
            return self.down(activate(y, self.activation), adapters)
        gate, wide = functional.chunk(y, 2, -1)
        return self.down(activate(gate, self.activation) * wide, adapters)


__all__ = ["Linear", "Network", "Norm", "activate", "linear", "norm", "projection"]
