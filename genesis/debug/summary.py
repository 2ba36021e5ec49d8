"""`summary`: the layers of a model with shapes, parameters, arithmetic and bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from genesis.autograd import no_grad
from genesis.ir import ops
from genesis.ir.size import product
from genesis.ndarray.core.value import Value
from genesis.nn.module import Module
from genesis.tensor.tensor import Tensor


@dataclass
class Layer:
    """A module of a model, as it was called."""

    name: str
    kind: str
    depth: int
    output: tuple[tuple[int, ...], ...] = ()
    parameters: int = 0  #: its own, without those of modules in it
    flops: int = 0  #: with those of modules in it
    output_bytes: int = 0
    parameter_bytes: int = 0
    trainable: int = 0
    calls: int = 0


@dataclass
class Summary:
    """What `summary` found; printed, it is a table."""

    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0
    trainable: int = 0
    parameter_bytes: int = 0
    output_bytes: int = 0  #: of all modules that have none in them
    flops: int = 0

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "parameters", "MFLOP")]
        for layer in self.layers:
            shapes = ", ".join(str(tuple(s)) for s in layer.output) or "not called"
            name = "  " * layer.depth + (layer.name.rpartition(".")[2] or "model")
            own = f"{layer.parameters:,}" if layer.parameters else ""
            work = f"{layer.flops / 1e6:,.3f}" if layer.calls else ""
            rows.append((name, layer.kind, shapes, own, work))
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = [
            "  ".join(
                cell.ljust(w) if k < 3 else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        total = (
            f"{self.parameters:,} parameters, {self.trainable:,} of them trained; "
            f"{self.parameter_bytes / 2**20:,.2f} MiB of weights, "
            f"{self.output_bytes / 2**20:,.2f} MiB of activations, {self.flops / 1e6:,.3f} MFLOP"
        )
        return "\n".join([*lines, total])


def summary(model: Module, *args: Any, **kwargs: Any) -> Summary:
    """What a call of a model does: nothing is computed, only built.

    >>> from genesis import nn, ones
    >>> print(summary(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), ones(2, 3)))
    layer  kind        output  parameters  MFLOP
    model  Sequential  (2, 4)              0.000
      0    Linear      (2, 4)          16  0.000
      1    ReLU        (2, 4)              0.000
    16 parameters, 16 of them trained; 0.00 MiB of weights, 0.00 MiB of activations, 0.000 MFLOP
    """
    counter = _Counter(model)
    counter.leave_out(args, kwargs)
    handles = [m.register_forward_hook(counter.called) for m in counter.layers]
    try:
        with no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return counter.summary()


class _Counter:
    def __init__(self, model: Module) -> None:
        self._model = model
        self.layers: dict[Module, Layer] = {}
        for name, module in model.named_modules():
            depth = name.count(".") + 1 if name else 0
            own = list(module.parameters(recurse=False))
            layer = self.layers[module] = Layer(name, type(module).__name__, depth)
            layer.parameters = sum(p.numel() for p in own)
            layer.trainable = sum(p.numel() for p in own if p.requires_grad)
            layer.parameter_bytes = sum(p.numel() * p.dtype.itemsize for p in own)
        self._seen: dict[int, Value] = {}  # kept, so that no other gets their numbers

    def leave_out(self, *given: Any) -> None:
        """What these still have to be computed from is no work of the model's."""
        for x in (*self._model.parameters(), *self._model.buffers(), *_flat(given)):
            if isinstance(x, Tensor):
                self._work(x.array.value)

    def called(self, module: Module, args: Any, result: Any) -> None:
        layer = self.layers[module]
        results = [x for x in _flat(result) if isinstance(x, Tensor)]
        layer.output = tuple(tuple(x.shape) for x in results)
        layer.output_bytes += sum(x.numel() * x.dtype.itemsize for x in results)
        layer.calls += 1
        # What modules inside have counted is counted: the rest is this module's own.
        own = sum(self._work(x.array.value) for x in results)
        for other, found in self.layers.items():
            if other is module or any(module is inner for inner in other.modules()):
                found.flops += own

    def _work(self, root: Value) -> int:
        total, pending = 0, [root]
        while pending:
            value = pending.pop()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if not value.is_realised:
                total += _flops(value)
                pending += value.inputs
        return total

    def summary(self) -> Summary:
        layers = list(self.layers.values())
        leaves = [x for m, x in self.layers.items() if not list(m.children())]
        return Summary(
            layers=layers,
            parameters=sum(x.parameters for x in layers),
            trainable=sum(x.trainable for x in layers),
            parameter_bytes=sum(x.parameter_bytes for x in layers),
            output_bytes=sum(x.output_bytes for x in leaves),
            flops=self.layers[self._model].flops,
        )


def _flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [y for v in x.values() for y in _flat(v)]
    return [y for v in x for y in _flat(v)] if isinstance(x, list | tuple) else [x]


def _flops(value: Value) -> int:
    """Additions and multiplications, and one for any other function of an element."""
    if value.op is ops.CONTRACT:
        lhs, rhs, _ = value.attr
        extents = dict(zip(lhs, value.inputs[0].shape, strict=True))
        extents |= dict(zip(rhs, value.inputs[1].shape, strict=True))
        return 2 * int(product(tuple(extents.values())))
    if value.op.group == "reduce":
        return int(product(value.inputs[0].shape))
    if value.op.is_elementwise and value.op not in (ops.CAST, ops.BITCAST):
        return int(product(value.shape))
    return 0
