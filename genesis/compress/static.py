"""Layers that multiply bytes by bytes, and `quantize_static_`, which puts them into a model.

A weight is a signed byte times the scale of its row, an input ``scale * (byte - zero)``. Scales of
inputs come from data beforehand (static), or for linear layers from every row itself (dynamic). A
value that several layers read is rounded where it is made, so residuals are bytes, too: between
layers nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

import genesis
from genesis import functional, nn
from genesis.autograd import no_grad
from genesis.compress.fold_norms import Flow, fold_, replace_
from genesis.compress.int8_products import as_bytes, packed, sums
from genesis.compress.statistics import CALIBRATORS, Statistics
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=nn.Module)
#: The greatest weight, and the greatest byte of an input.
MOST, LAST = 127, 255


class RoundedTensor(Tensor):
    """A tensor of numbers that are bytes times a scale; layers with that scale take the bytes."""

    __slots__ = ("bytes", "rounding")
    bytes: Any
    rounding: Rounding


class Rounding(nn.Module):
    """A scale and a zero, by which numbers are rounded to unsigned bytes.

    The bytes of images have their channels last, as convolutions of bytes read them.

    >>> rounding = Rounding(-1.0, 1.0)
    >>> rounding(genesis.tensor([-2.0, 0.0, 0.501]))
    tensor([-0.9961,  0.0000,  0.5020])
    """

    scale: Tensor
    zero: Tensor

    def __init__(self, low: float, high: float, images: bool = False) -> None:
        super().__init__()
        self.images = images
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32((high - low) / LAST or 1.0)
        self.register_buffer("scale", genesis.tensor(scale))
        self.register_buffer("zero", genesis.tensor(np.uint8(round(-low / float(scale)))))

    def bytes(self, x: Any) -> Any:
        """Numbers as bytes."""
        if isinstance(x, RoundedTensor) and x.rounding is self:
            return x.bytes
        x = functional.permute(x, (0, 2, 3, 1)) if self.images else x
        return as_bytes(x * (1 / self.scale) + self.zero.to(genesis.float32))

    def forward(self, input: Any) -> RoundedTensor:
        """The numbers that the bytes stand for."""
        q = self.bytes(input)
        plain = (q.to(genesis.float32) - self.zero.to(genesis.float32)) * self.scale
        plain = functional.permute(plain, (0, 3, 1, 2)) if self.images else plain
        found = RoundedTensor(plain.array)
        found.bytes, found.rounding = q, self
        return found


class _Bytes(nn.Module):
    """A layer of bytes; its input's scale is that of `rounding`, or, without one, of every row."""

    weight: Tensor
    scale: Tensor
    totals: Tensor

    def __init__(self, layer: Any, rounding: Rounding | None) -> None:
        super().__init__()
        weight = layer.weight.detach().to(genesis.float32)
        if not functional.isfinite(weight).all():
            raise ValueError(f"quantize_static_: {layer} has weights that are NaN or infinite")
        flat = weight.reshape(weight.shape[0], -1)
        scale = functional.amax(functional.abs(flat), 1) / MOST
        scale = functional.where(scale > 0, scale, 1.0)
        codes = functional.round(flat / scale[:, None]).to(genesis.int8)
        self.shape, self.rounding = tuple(weight.shape), rounding
        laid = np.ascontiguousarray(packed(codes.reshape(*weight.shape)).numpy())  # and not a view
        self.register_buffer("weight", genesis.from_numpy(laid).to(weight.device))
        self.register_buffer("scale", scale)
        self.register_buffer("totals", codes.to(genesis.int32).sum(1).to(genesis.float32))
        bias = layer.bias
        self.register_buffer("bias", None if bias is None else bias.detach().to(genesis.float32))

    def _numbers(self, total: Any, scale: Any, zero: Any) -> Any:
        """Sums of bytes as numbers; the zero of inputs is known to be in every sum."""
        scale = scale * self.scale
        shift = -(zero * self.totals * scale)
        if self.bias is not None:
            shift = shift + self.bias
        return total.to(genesis.float32) * scale + shift

    def dequantize(self) -> Any:
        """The weight as float32, in the shape of the layer that this was made of."""
        rank = self.weight.ndim - 4
        whole = self.weight.permute(0, rank + 2, rank + 1, rank + 3, *range(1, rank + 1))
        rows, channels = self.shape[:2]
        whole = whole.reshape(-1, whole.shape[2] * 4, *self.shape[2:])[:rows, :channels]
        return whole.to(genesis.float32) * self.scale.reshape(-1, *[1] * (rank + 1))

    def extra_repr(self) -> str:
        """The sizes, and how inputs are rounded."""
        how = "dynamic" if self.rounding is None else "static"
        return f"{', '.join(map(str, self.shape))}, {how}"


class Int8Linear(_Bytes):
    """`nn.Linear` of bytes.

    >>> layer = nn.Linear(4, 2, bias=False)
    >>> layer.weight.data.fill_(0.5)
    tensor([[0.5000, 0.5000, 0.5000, 0.5000],
            [0.5000, 0.5000, 0.5000, 0.5000]])
    >>> Int8Linear(layer)(genesis.tensor([1.0, 2.0, -3.0, 4.0])).round(decimals=1)
    tensor([2., 2.])
    """

    def __init__(self, layer: nn.Linear, rounding: Rounding | None = None) -> None:
        super().__init__(layer, rounding)

    @no_grad()
    def forward(self, input: Any) -> Any:
        """The affine map of the last dimension."""
        rows, k = self.shape
        if input.shape[-1] != k:
            raise ValueError(
                f"Int8Linear: an input of {tuple(input.shape)} does not fit a weight of "
                f"{self.shape}: its last dimension is not {k}"
            )
        zero: Any = MOST + 1
        if self.rounding is not None:
            q, scale = self.rounding.bytes(input), self.rounding.scale
            zero = self.rounding.zero.to(genesis.float32)
        else:
            x = input.to(genesis.float32).reshape(-1, k)
            scale = functional.amax(functional.abs(x), 1, True) / MOST
            # A row of zeros has no scale to divide by.
            q = as_bytes(functional.where(scale > 0, x / scale, 0.0) + zero)
        y = self._numbers(sums(q.reshape(-1, k), self.weight, rows), scale, zero)
        return y.reshape(*input.shape[:-1], rows).to(input.dtype)


class Int8Conv2d(_Bytes):
    """`nn.Conv2d` of bytes, with channels last inside: images come and go as they always do."""

    rounding: Rounding

    def __init__(self, layer: Any, rounding: Rounding) -> None:
        super().__init__(layer, rounding)
        self.stride, self.dilation, self.padding = layer.stride, layer.dilation, layer.padding

    @no_grad()
    def forward(self, input: Any) -> Any:
        """The convolution."""
        q, zero = self.rounding.bytes(input), self.rounding.zero
        ends = [(n, n) for n in self.padding]
        total = sums(q, self.weight, self.shape[0], self.stride, self.dilation, ends, zero)
        y = self._numbers(total, self.rounding.scale, zero.to(genesis.float32))
        return functional.permute(y, (0, 3, 1, 2)).to(input.dtype)


def _convolves(layer: Any) -> bool:
    """Whether a convolution can be one of bytes: of all channels, padded by numbers of zeros."""
    plain = layer.groups == 1 and layer.padding_mode == "zeros"
    return plain and not isinstance(layer.padding, str)


#: The layers that multiply bytes.
MADE: dict[type, Callable[[Any, Any], nn.Module]] = {nn.Linear: Int8Linear, nn.Conv2d: Int8Conv2d}


def _layers(model: nn.Module, skip: Sequence[str], caller: str) -> dict[str, Any]:
    """The layers below a model that can multiply bytes, but for those to skip."""
    names = dict(model.named_modules())
    if unused := [p for p in skip if not any(fnmatchcase(n, p) for n in names)]:
        raise ValueError(f"{caller}: {unused[0]!r} fits no layer")
    found = {
        n: x
        for n, x in names.items()
        if n and type(x) in MADE and not any(fnmatchcase(n, p) for p in skip)
    }
    found = {n: x for n, x in found.items() if type(x) is nn.Linear or _convolves(x)}
    if not found:
        raise ValueError(f"{caller}: there is nothing to quantise in {type(model).__name__}")
    return found


@no_grad()
def quantize_dynamic_(model: M, skip: Sequence[str] = ()) -> M:
    """Let linear layers below a module multiply bytes, in place; each row of inputs has a scale.

    >>> quantize_dynamic_(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    Sequential(
      (0): Int8Linear(8, 8, dynamic)
      (1): ReLU()
    )
    """
    layers = _layers(model, skip, "quantize_dynamic_")
    for name, layer in layers.items():
        if type(layer) is nn.Linear:
            replace_(model, name, Int8Linear(layer))
    return model


@no_grad()
def quantize_static_(
    model: M, data: Iterable[Any], calibrator: str | Callable[[Statistics], float] = "minmax",
    skip: Sequence[str] = (),
) -> M:  # fmt: skip
    """Let linear layers and convolutions below a module multiply bytes, in place.

    How far inputs reach is seen in `data`, calls of the module, and decided by a calibrator
    (`genesis.compress.statistics`). Batch norms that follow a layer become part of it. Layers whose
    names fit one of `skip` stay as they are, and so do convolutions of groups of channels.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    >>> quantize_static_(net.eval(), [genesis.randn(1, 3, 8, 8)])
    Sequential(
      (0): Int8Conv2d(
        8, 3, 3, 3, static
        (rounding): Rounding()
      )
      (1): Identity()
      (2): ReLU(
        (rounding): Rounding()
      )
      (3): Int8Conv2d(
        4, 8, 1, 1, static
        (rounding): Rounding()
      )
    )
    """
    batches = list(data)
    if not batches:
        raise ValueError("quantize_static_: needs some data to see how far inputs reach")
    if isinstance(calibrator, str) and calibrator not in CALIBRATORS:
        known = ", ".join(CALIBRATORS)
        raise ValueError(f"quantize_static_: the calibrators are {known}, not {calibrator!r}")
    reach = CALIBRATORS[calibrator] if isinstance(calibrator, str) else calibrator
    fold_(model, batches[0])
    layers = _layers(model, skip, "quantize_static_")
    flow = Flow(model, batches[0])
    read = {name: flow.inputs[name] for name in layers if name in flow.inputs}
    if missing := [name for name in layers if name not in read]:
        raise ValueError(f"quantize_static_: {missing[0]!r} was not called with this data")
    seen = _reached(model, layers, batches)
    roundings: dict[int, Rounding] = {}  # by the values that are rounded
    for name, layer in layers.items():
        images = type(layer) is nn.Conv2d
        rounding = roundings.get(read[name])
        if rounding is None or rounding.images != images:
            far, own = reach(seen[name]), seen[name]
            rounding = Rounding(max(own.low, -far), min(own.high, far), images)
            maker = None if read[name] in roundings else flow.maker(read[name])
            roundings[read[name]] = rounding
            if maker is not None and maker not in layers:
                round_results_(model.get_submodule(maker), rounding)
        replace_(model, name, MADE[type(layer)](layer, rounding))
    return model


def round_results_(module: nn.Module, rounding: Rounding) -> None:
    """Let a module give rounded numbers, so that all who read them read bytes.

    The greatest of rounded numbers is one of them, so what is pooled is rounded before.
    """
    module.rounding = rounding
    if isinstance(module, nn.MaxPool2d):
        module.register_forward_pre_hook(lambda module, inputs: (module.rounding(*inputs),))
    module.register_forward_hook(lambda module, inputs, y: module.rounding(y))


def _reached(
    model: nn.Module, layers: Mapping[str, nn.Module], batches: Sequence[Any]
) -> dict[str, Statistics]:
    """How far the inputs of layers reach."""
    seen = {name: Statistics(1, products=False) for name in layers}

    def watch(name: str) -> Any:
        return lambda layer, inputs: seen[name].add(inputs[0].detach().numpy().reshape(-1, 1))

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        for x in batches:
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


__all__ = [
    "Int8Conv2d", "Int8Linear", "RoundedTensor", "Rounding", "quantize_dynamic_",
    "quantize_static_", "round_results_",
]  # fmt: skip
