"""The small parts of a decoder: products with weights of any format, norms and networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any

import genesis
from genesis import functional, nn
from genesis.compress import QuantizedTensor, quantize
from genesis.llm.config import DecoderConfig
from genesis.llm.weight_names import plain
from genesis.tensor.tensor import Tensor
from genesis.weights.repack_quantized import QuantizedParameter, repack


class Linear(nn.Module):
    """``x @ weight.T + bias``, whatever the weight is stored as.

    Its rows may be in pieces of several formats, as in files that keep some matrices in more bits.
    """

    #: Adapters in their slots: (slots, rank, columns) and (slots, rows, rank).
    lora_a: Tensor
    lora_b: Tensor

    def __init__(
        self, weight: Any, bias: Any = None, parts: Sequence[tuple[str, int, int]] = ()
    ) -> None:
        super().__init__()
        self.parts = list(parts)  # modules of the files that this is made of, and their rows
        self.adaptable = False
        self.pieces = nn.ModuleList(weight if isinstance(weight, list) else [WeightPiece(weight)])
        self.shape = sum(p.shape[0] for p in self.pieces), self.pieces[0].shape[1]
        self.register_buffer("bias", None if bias is None else bias.to(genesis.float32))

    def make_slots(self, slots: int, rank: int) -> None:
        """Make room for adapters, which add nothing yet."""
        wide = rank * len(self.parts)
        self.register_buffer("lora_a", genesis.zeros(slots, wide, self.shape[1]), persistent=False)
        self.register_buffer("lora_b", genesis.zeros(slots, self.shape[0], wide), persistent=False)

    def forward(self, x: Any, adapters: Any = None) -> Any:
        """The product of the last dimension; `adapters` are the slots of the rows."""
        if len(self.pieces) == 1:
            y = self.pieces[0](x, self.bias)
        else:
            y = functional.cat([piece(x) for piece in self.pieces], -1)
            y = y if self.bias is None else y + self.bias
        if adapters is None:
            return y
        narrow = functional.einsum("ni,nri->nr", x, self.lora_a[adapters])
        return y + functional.einsum("nr,nor->no", narrow, self.lora_b[adapters])

    def rows(self, places: Any) -> Any:
        """The rows of the weight at some places, as float32; it has one piece."""
        return self.pieces[0].rows(places)


class WeightPiece(nn.Module):
    """Rows of a weight in one format; `order` says which columns they have, if not in order."""

    values: Tensor

    def __init__(self, weight: Any, order: Any = None) -> None:
        super().__init__()
        plain = not isinstance(weight, QuantizedTensor)
        if plain and weight.dtype not in (genesis.float16, genesis.bfloat16):
            weight = weight.to(genesis.float32)
        self.shape = tuple(weight.shape)
        self.format = weight.dtype.name if plain else weight.format
        self.register_buffer("values", weight if plain else weight.values)
        self.register_buffer("order", order)

    @property
    def weight(self) -> QuantizedTensor:
        """The weight."""
        return QuantizedTensor(self.values, self.shape, self.format)

    def forward(self, x: Any, bias: Any = None) -> Any:
        """The product of the last dimension."""
        if self.format == "float32":
            return functional.linear(x, self.values, bias)
        return self.weight.linear(x if self.order is None else x[..., self.order], bias)

    def picked(self, x: Any, chosen: Any) -> Any:
        """``(rows, columns)``, each times the chosen one of several matrices."""
        if self.format == "float32":
            return functional.einsum("ri,roi->ro", x, self.values[chosen])
        return self.weight.picked(x, chosen)

    def rows(self, places: Any) -> Any:
        """The rows at some places, as float32."""
        if self.format == "float32":
            return functional.embedding(places, self.values)
        return self.weight.rows(places)


def linear(take: Any, rows: int, columns: int, bias: bool = False) -> Linear:
    """A product with a weight of a model's files."""
    weight = stored([take("weight", rows, columns)], take)
    return Linear(weight, take("bias", rows) if bias else None, [(take.theirs, 0, rows)])


def projection(parts: Sequence[Any], sizes: Sequence[int], columns: int, bias: bool) -> Linear:
    """One product for several weights of the same input."""
    weights = [take("weight", size, columns) for take, size in zip(parts, sizes, strict=True)]
    biases = [take("bias", size) for take, size in zip(parts, sizes, strict=True)] if bias else []
    weight = stored(weights, parts[0])
    named: dict[str, tuple[int, int]] = {}
    for take, size, last in zip(parts, sizes, accumulate(sizes), strict=True):
        named[take.theirs] = named.get(take.theirs, (last - size, 0))[0], last
    rows = [(theirs, *range_) for theirs, range_ in named.items()]
    return Linear(weight, functional.cat(biases, 0) if biases else None, rows)


def stored(weights: Sequence[Any], take: Any) -> list[WeightPiece]:
    """Matrices, one below the other, in the format asked for, or as they are."""
    if take.format is not None:
        weights = [plain(x) for x in weights]
    pieces = []
    for alike, some in groupby(weights, _alike):
        found = list(some)
        if alike is not None:
            pieces.append(WeightPiece(*repack(found, take.array_cache)))
            continue
        whole = found[0] if len(found) == 1 else functional.cat(found, 0)
        pieces.append(WeightPiece(_changed(whole, take.format)))
    return pieces


def matrices(weight: Any, shape: tuple[int, int, int], take: Any) -> WeightPiece:
    """Several matrices, in the format asked for, or as they are."""
    if isinstance(weight, list):  # what is quantised, matrix after matrix
        if take.format is None:
            found, _ = repack(weight, take.array_cache)
            values = found.values.reshape(shape[0], -1, *found.values.shape[1:])
            return WeightPiece(QuantizedTensor(values, shape, found.format))
        weight = functional.cat([x.dequantize().reshape(-1, shape[2]) for x in weight], 0)
        weight = weight.reshape(*shape)
    return WeightPiece(_changed(weight, take.format))


def _alike(weight: Any) -> Any:
    """What matrices have in common that can be packed together; None for those of floats."""
    if not isinstance(weight, QuantizedParameter):
        return None
    order = weight.weights.order(weight.name)
    return weight.format, None if order is None else order.tobytes()


def _changed(weight: Any, format: str | None) -> Any:
    """A matrix of floats in the format asked for, or as it is."""
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


class FeedForward(nn.Module):
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


__all__ = [
    "Linear", "FeedForward", "Norm", "WeightPiece", "activate", "linear", "matrices", "norm",
    "projection",
]  # fmt: skip
