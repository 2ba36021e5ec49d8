"""Layers with quantised weights, and `quantize_`, which puts them into a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypeVar

import numpy as np

import genesis
from genesis import functional, nn
from genesis.autograd import no_grad
from genesis.compress.algorithms import ALGORITHMS, Algorithm
from genesis.compress.format import FORMATS, Format, named
from genesis.compress.quantized_tensor import QuantizedTensor, from_codes, quantize
from genesis.compress.statistics import gather
from genesis.serialization import BadFile
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=nn.Module)


class _Quantized(nn.Module):
    """A layer whose weight is a `QuantizedTensor`, with its `values` in the state.

    Beside them the state says what they are, `layout`: values of another format, or whose bits lie
    elsewhere, are refused and not multiplied by.
    """

    values: Tensor

    def __init__(self, weight: QuantizedTensor) -> None:
        super().__init__()
        self.shape, self.format = weight.shape, weight.format
        self.register_buffer("values", weight.values)
        self.register_buffer("layout", genesis.from_numpy(_described(weight)))

    @property
    def weight(self) -> QuantizedTensor:
        """The weight."""
        return QuantizedTensor(self.values, self.shape, self.format)

    def check_state(self, state: Mapping[str, Any], prefix: str) -> str | None:
        """Why a state cannot be loaded, besides names and shapes."""
        if f"{prefix}values" not in state:
            return None
        found = state.get(f"{prefix}layout")
        mine = _described(self.weight).tobytes().decode()
        if found is None:
            return (
                f"{prefix}values: were saved before states said how their bits lie; quantise the "
                "model anew"
            )
        theirs = np.asarray(found.numpy() if isinstance(found, Tensor) else found, np.uint8)
        if theirs.tobytes() == mine.encode():
            return None
        said = theirs.tobytes().decode("ascii", "replace")
        return f"{prefix}values: are {said!r}, the module's are {mine!r}"

    def extra_repr(self) -> str:
        """The sizes and the format."""
        return f"{self.shape[1]}, {self.shape[0]}, format={self.format.name!r}"


#: Changes when the bits of integers, or of floats, lie elsewhere.
_LAYOUT = {True: 2, False: 3}


def _described(weight: QuantizedTensor) -> Any:
    """The layout, format and sizes of a weight, as the bytes of a text of a fixed length."""
    format = weight.format
    scale = format.scale if isinstance(format.scale, str) else format.scale.name
    sizes = "x".join(map(str, weight.shape))
    text = f"{_LAYOUT[format.integers]} {format.name}/{format.group} {scale} {format.zero} {sizes}"
    return np.frombuffer(text.encode("ascii", "replace")[:64].ljust(64), np.uint8).copy()


def described_format(text: Any) -> tuple[tuple[int, ...], Format]:
    """The shape and the format that the bytes of a `layout` name."""
    words = np.asarray(text, np.uint8).tobytes().decode("ascii", "replace").split()
    try:
        layout, name, scale, zero, sizes = words
        base, group = name.rsplit("/", 1)
        format, shape = FORMATS[base], tuple(map(int, sizes.split("x")))
        if int(layout) != _LAYOUT[format.integers] or format.zero != int(zero):
            raise ValueError
        if format.group != int(group) or format.scale != scale:
            flat = isinstance(format.scale, str)
            format = replace(format, group=int(group), scale=scale) if flat else format
            format = format.fitted(shape[-1])
    except (ValueError, LookupError):
        raise BadFile(f"a layer's layout is {' '.join(words)!r}, which is not known") from None
    return shape, format


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


class _QuantizedConv(_Quantized):
    """A convolution with a quantised weight, a row for every channel that comes out."""

    rank: ClassVar[int]

    def __init__(self, layer: Any, weight: QuantizedTensor) -> None:
        super().__init__(weight)
        if layer.padding_mode != "zeros":
            raise ValueError(f"quantize_: pads by zeros only, which {layer} does not")
        self.kernel_size, self.stride, self.padding = layer.kernel_size, layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, input: Any) -> Any:
        """The convolution, with the weight as floats."""
        rows, k = self.shape
        inner = k // math.prod(self.kernel_size)
        weight = self.weight.dequantize().reshape(rows, inner, *self.kernel_size)
        convolve = getattr(functional, f"conv{self.rank}d")
        return convolve(
            input, weight.to(input.dtype), self.bias, self.stride, self.padding, self.dilation,
            self.groups,
        )  # fmt: skip


class QuantizedConv1d(_QuantizedConv):
    """`nn.Conv1d` with a quantised weight."""

    rank = 1


class QuantizedConv2d(_QuantizedConv):
    """`nn.Conv2d` with a quantised weight."""

    rank = 2


#: What is made of a layer and its weight as a matrix, by the layer's type.
MADE: dict[type, Callable[[Any, QuantizedTensor], nn.Module]] = {
    nn.Linear: lambda layer, weight: QuantizedLinear(weight, layer.bias),
    nn.Embedding: lambda layer, weight: QuantizedEmbedding(weight),
    nn.Conv1d: QuantizedConv1d,
    nn.Conv2d: QuantizedConv2d,
}


@no_grad()
def quantize_(
    module: M,
    format: str | Format | Mapping[str, str | Format | None] = "int8",
    group: int | None = None,
    algorithm: str | Algorithm = "nearest",
    data: Iterable[Any] | None = None,
) -> M:
    """Replace the weights of linear layers, convolutions and embeddings below a module, in place.

    `format` is one for all, or formats by the names of layers, in which ``*`` stands for anything:
    the first that fits a layer is its own, and None leaves it as it is. Convolutions are quantised
    only where a name asks for it. A head that shares its weight with an embedding still does.

    `algorithm` is one of `genesis.compress.algorithms`, or such a function. Those that look at the
    inputs of layers are shown `data`, calls of the module layer by layer, so that a layer's inputs
    are those that the quantised ones before it give.

    >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    >>> quantize_(model, {"2": "int8", "*": "int4/64"})
    Sequential(
      (0): QuantizedLinear(64, 64, format='int4')
      (1): ReLU()
      (2): QuantizedLinear(64, 8, format='int8')
    )
    """
    chosen = chosen_formats(module, format, "quantize_")
    if group is not None:
        chosen = {name: _regrouped(own, group) for name, own in chosen.items()}
    function = algorithm if callable(algorithm) else _algorithm(algorithm)
    batches = None if data is None else list(data)
    shared: dict[int, QuantizedTensor] = {}
    for name in chosen if batches is None else _in_order(module, chosen, batches):
        layer: Any = module.get_submodule(name)
        weight = shared.get(id(layer.weight))
        if weight is None:
            matrix = layer.weight.reshape(layer.weight.shape[0], -1)
            weight = shared[id(layer.weight)] = (
                quantize(matrix, chosen[name])
                if function is ALGORITHMS["nearest"] or not chosen[name].group
                else _coded(module, name, matrix, chosen[name], function, batches)
            )
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, MADE[type(layer)](layer, weight))
    return module


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise ValueError(f"quantize_: the algorithms are {', '.join(ALGORITHMS)}, not {name!r}")
    return ALGORITHMS[name]


def _coded(
    module: nn.Module, name: str, matrix: Any, format: Format, function: Algorithm, batches: Any
) -> QuantizedTensor:
    """The weight of a layer by an algorithm, with statistics of the inputs it gets by now."""
    seen = None
    if batches is not None and type(module.get_submodule(name)) is not nn.Embedding:
        seen = gather(module, batches, [name])[name]
    elif type(module.get_submodule(name)) is nn.Embedding:
        function = ALGORITHMS["nearest"]
    codes = function(matrix.detach().to(genesis.float32).numpy(), seen, format)
    made = from_codes(codes, int(matrix.shape[1]))
    made.values = made.values.to(matrix.device)
    return made


def _in_order(module: nn.Module, names: Iterable[str], batches: list[Any]) -> list[str]:
    """Layers in the order in which they are called, and then those that are not."""
    names, called = list(names), []
    hooks = [
        module.get_submodule(name).register_forward_pre_hook(
            lambda layer, inputs, name=name: called.append(name)
        )
        for name in names
    ]
    for x in batches[:1]:
        module(x)
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys([*called, *names]))


def _regrouped(format: Format, group: int) -> Format:
    try:
        return format if group == format.group else format.in_groups(group)
    except ValueError as error:
        raise ValueError(f"quantize_: {error}") from None


def chosen_formats(
    module: nn.Module, format: str | Format | Mapping[str, str | Format | None], caller: str
) -> dict[str, Format]:
    """The format of every layer below a module that has one, by the layer's name."""
    layers = {name: layer for name, layer in module.named_modules() if type(layer) in MADE}
    if not isinstance(format, Mapping):
        own = named(format, caller)
        chosen = {n: own for n, x in layers.items() if type(x) in (nn.Linear, nn.Embedding)}
    else:
        chosen = {}
        formats = {p: None if f is None else named(f, caller) for p, f in format.items()}
        used = set()
        for name in layers:
            fitting = [p for p in formats if fnmatchcase(name, p)]
            used |= {*fitting[:1]}
            own_format = formats[fitting[0]] if fitting else None
            if own_format is not None:
                chosen[name] = own_format
        if unused := [p for p in formats if p not in used and p != "*"]:
            raise ValueError(
                f"{caller}: {unused[0]!r} fits no layer that is left; there are "
                f"{', '.join(layers) or 'none with weights to quantise'}"
            )
    if not chosen:
        there = any(isinstance(x, _Quantized) for x in module.modules())
        why = "it is quantised already" if there else "it has no layers for that"
        raise ValueError(
            f"{caller}: there is nothing to quantise in {type(module).__name__}: {why}"
        )
    if "" in chosen:
        raise ValueError(f"{caller}: replaces layers below a module, and not the module itself")
    return chosen


__all__ = [
    "MADE", "QuantizedConv1d", "QuantizedConv2d", "QuantizedEmbedding", "QuantizedLinear",
    "chosen_formats", "described_format", "quantize_",
]  # fmt: skip
