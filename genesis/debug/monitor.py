"""`monitor`: what goes on inside a model, layer by layer, while it is trained.

Every so many steps a few numbers are computed of each layer's output, weights and gradients: in the
step's own program, into memory that is there already. In all other steps there is no trace of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import genesis.functional as F  # noqa: N812
from genesis import ndarray as nd
from genesis.autograd import detect_anomaly, no_grad
from genesis.autograd.anomaly import AnomalyError
from genesis.ir.dtype import float32
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.tensor.creation import zeros
from genesis.tensor.tensor import Tensor

_OUTPUT = ("not_finite", "mean", "std", "largest", "zeros", "dead", "saturated")
#: Layers whose outputs have bounds, and what counts as being at one.
_BOUNDS = {"Tanh": (-0.98, 0.98), "Sigmoid": (0.02, 0.98), "Softsign": (-0.98, 0.98)}
_RECTIFIERS = ("ReLU", "ReLU6")
_LARGE = 1e4  # an activation or gradient that is about to leave float16
_SMALL = 1e-8  # a gradient, relative to its weights, that is lost when it is added
_ADVICE = {
    "not finite": "Have debug.detect name the operation and the line",
    "exploding": "It explodes: normalise, start with smaller weights, or lower the rate",
    "exploding gradient": "It explodes: clip gradients, or lower the rate",
    "vanishing": "It vanishes: use residual connections, normalisation or another activation",
    "dead": "They are dead: lower the rate, or use LeakyReLU or GELU",
    "saturated": "They are saturated, gradients vanish there: normalise what comes in",
}


class MonitorWarning(UserWarning):
    """Something in a model looks wrong."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a layer, and what might help."""

    layer: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.problem}. {self.advice}"


@dataclass
class Report:
    """The numbers of a step, by layer, and what they mean."""

    step: int
    outputs: dict[str, dict[str, float]]
    weights: dict[str, dict[str, float]]  #: of each parameter: norm of it and of its gradient
    findings: list[Finding]

    def __str__(self) -> str:
        lines = [f"step {self.step}"]
        for name, x in self.outputs.items():
            lines.append(f"{name:24} mean {x['mean']:10.3g}  std {x['std']:9.3g}  "
                         f"largest {x['largest']:9.3g}  zeros {x['zeros']:6.1%}")  # fmt: skip
        for name, x in self.weights.items():
            lines.append(f"{name:24} norm {x['norm']:10.3g}  gradient {x['gradient']:9.3g}")
        return "\n".join([*lines, *map(str, self.findings)])


class monitor:  # noqa: N801 - used like a function
    """Watch a model: call `step` once per training step, after ``backward``.

    Every `every` steps it gives a `Report`, and warns once of each thing that looks wrong. `close`
    ends it, as does leaving a ``with`` block. Works with steps under `genesis.jit`.

    >>> import genesis
    >>> model = genesis.nn.Sequential(genesis.nn.Linear(2, 3), genesis.nn.Tanh())
    >>> watch = monitor(model, every=1)
    >>> model(genesis.ones(4, 2)).sum().backward()
    >>> report = watch.step()
    >>> list(report.outputs), list(report.weights)
    (['0', '1'], ['0.weight', '0.bias'])
    """

    def __init__(self, model: Module, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"monitor: every is at least 1, not {every}")
        self.model, self.every, self.steps = model, every, 0
        self.report: Report | None = None  #: the latest
        self._layers = {m: name for name, m in model.named_modules() if not list(m.children())}
        self._numbers = {name: zeros(len(_OUTPUT)) for name in self._layers.values()}
        self._hooks = {m: _watching(m, self._numbers[name]) for m, name in self._layers.items()}
        self._handles: list[Any] = []
        self._told: set[tuple[str, str]] = set()
        self._look()

    def _look(self) -> None:
        self._handles = [m.register_forward_hook(hook) for m, hook in self._hooks.items()]

    def close(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, loss: Tensor | None = None) -> Report | None:
        """Count a step; the report, if this one was looked at."""
        looked, self.steps = bool(self._handles), self.steps + 1
        if loss is not None and not math.isfinite(loss.item()):
            self._tell(Finding("loss", f"it is {loss.item()}", _ADVICE["not finite"]))
        if looked:
            self.report = self._reported()
            self.close()
        if self.steps % self.every == 0:
            self._look()
        return self.report if looked else None

    def _reported(self) -> Report:
        names = list(self._numbers)
        with no_grad():
            rows = F.stack([self._numbers[name] for name in names]).tolist() if names else []
            weights = self._weights()
        outputs = {n: dict(zip(_OUTPUT, r, strict=True)) for n, r in zip(names, rows, strict=True)}
        kinds = {name: type(m).__name__ for m, name in self._layers.items()}
        findings = [*_about_outputs(outputs, kinds), *_about_weights(weights)]
        for finding in findings:
            self._tell(finding)
        return Report(self.steps - 1, outputs, weights, findings)

    def _weights(self) -> dict[str, dict[str, float]]:
        named = {n: p for n, p in self.model.named_parameters() if p.grad is not None}
        if not named:
            return {}
        pairs: list[Any] = [(p.detach(), p.grad) for p in named.values()]
        norms = [F.stack([x.norm().to(float32) for x in pair]) for pair in pairs]
        rows = F.stack(norms).tolist()
        return {n: {"norm": w, "gradient": g} for n, (w, g) in zip(named, rows, strict=True)}

    def _tell(self, finding: Finding) -> None:
        key = finding.layer, finding.advice
        if key not in self._told:
            self._told.add(key)
            warnings.warn(str(finding), MonitorWarning, stacklevel=3)


def _watching(module: Module, numbers: Tensor) -> Callable[..., None]:
    """A hook that puts the numbers of a module's output where they belong."""
    kind = type(module).__name__

    def see(_: Module, __: Any, result: Any) -> None:
        x = result[0] if isinstance(result, tuple) and result else result
        if isinstance(x, Tensor) and x.dtype.is_float and x.numel():
            numbers.array.assign(_described(x.array.astype(float32), kind))

    return see


def _described(x: NDArray, kind: str) -> NDArray:
    """The numbers of an output. On arrays: there is nothing here for the tape."""
    finite, zero = nd.isfinite(x), x == 0
    clean = nd.where(finite, x, 0.0)
    unit = 1 if x.ndim > 2 else x.ndim - 1  # channels of images, else the last axis
    others = tuple(k for k in range(x.ndim) if k != unit)
    none = nd.zeros(())
    mean = nd.mean(clean)
    edge = none
    if kind in _BOUNDS:
        low, high = _BOUNDS[kind]
        edge = nd.mean(nd.logical_or(x <= low, x >= high).astype(float32))
    return nd.stack([
        nd.sum(nd.logical_not(finite).astype(float32)), mean,
        nd.sqrt(nd.mean(nd.square(clean - mean))), nd.max(nd.abs(clean)),
        nd.mean(zero.astype(float32)),
        nd.mean(nd.all(zero, others).astype(float32)) if others else none, edge,
    ])  # fmt: skip


def _about_outputs(outputs: dict[str, dict[str, float]], kinds: dict[str, str]) -> list[Finding]:
    found = []
    for name, x in outputs.items():
        if x["not_finite"]:  # layers in order: it began here, whatever became of it later
            problem = f"{x['not_finite']:.0f} of its outputs are NaN or infinite"
            return [Finding(name, problem, _ADVICE["not finite"])]
        if x["largest"] > _LARGE:
            problem = f"its largest output is {x['largest']:.3g}"
            found.append(Finding(name, problem, _ADVICE["exploding"]))
        if kinds[name] in _RECTIFIERS and x["dead"] > 0.5:
            problem = f"{x['dead']:.0%} of its units are 0 for the whole batch"
            found.append(Finding(name, problem, _ADVICE["dead"]))
        if x["saturated"] > 0.5:
            problem = f"{x['saturated']:.0%} of its outputs are at a bound"
            found.append(Finding(name, problem, _ADVICE["saturated"]))
    return found


def _about_weights(weights: dict[str, dict[str, float]]) -> list[Finding]:
    found = []
    for name, x in weights.items():
        size = x["gradient"] / max(x["norm"], 1e-12)
        if not math.isfinite(x["gradient"]):
            problem = f"its gradient is {x['gradient']}"
            found.append(Finding(name, problem, _ADVICE["not finite"]))
        elif x["gradient"] > _LARGE:
            problem = f"its gradient has norm {x['gradient']:.3g}"
            found.append(Finding(name, problem, _ADVICE["exploding gradient"]))
        elif size < _SMALL and x["norm"] > 0:
            problem = f"its gradient is {size:.1g} of its size"
            found.append(Finding(name, problem, _ADVICE["vanishing"]))
    return found


class NotFinite(RuntimeError):
    """The layer, the operation and the line that made the first NaN or infinity."""


def detect(function: Callable[..., Any], *args: Any, model: Module, **kwargs: Any) -> Any:
    """Run a step once more, operation by operation; its result if all of it is finite.

    Raises `NotFinite` with the layer, the operation, the line, and whether it was in the gradient.
    Give it what computes the loss and its gradients, not what changes the weights.

    >>> import genesis
    >>> model = genesis.nn.Linear(2, 1)
    >>> try:
    ...     detect(lambda: (model(genesis.ones(1, 2)) * 0).log().sum(), model=model)
    ... except NotFinite as error:
    ...     print("Log" in str(error))
    True
    """
    inside: list[str] = []
    handles: list[Any] = []
    for name, module in model.named_modules():
        path = name or type(model).__name__
        enter = _entering(inside, path)
        handles.append(module.register_forward_pre_hook(enter, prepend=True))
        handles.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        with detect_anomaly():
            return function(*args, **kwargs)
    except AnomalyError as error:
        layer = f"in layer {inside[-1]}" if inside else "outside of all layers"
        gradient = str(error).startswith("the gradient")
        raise NotFinite(f"{'' if gradient else layer + ': '}{error}") from None
    finally:
        for handle in handles:
            handle.remove()


def _entering(inside: list[str], path: str) -> Callable[..., None]:
    def enter(*_: Any) -> None:
        inside.append(path)

    return enter
