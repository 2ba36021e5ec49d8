"""Which layer gets which format: `choose` among what was measured, `plan` to measure a model.

A choice of a layer has bytes, a loss and perhaps a time; those of layers add up. Of all partial
sums only those are kept that no other beats in both what is limited and what is sought, so the
result is the best there is. Where there are too many to keep, near ones are taken for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad
from genesis.compress.algorithms import ALGORITHMS
from genesis.compress.format import Format, named
from genesis.compress.quantized_layers import chosen_formats, quantize_
from genesis.compress.quantized_tensor import quantize
from genesis.compress.statistics import gather

#: Partial sums that are kept; beyond, those whose limited sums are nearly equal are one.
_MOST = 4_000


@dataclass(frozen=True)
class Choice:
    """What a layer may become: its format's name, and what that costs."""

    format: str
    bytes: float
    loss: float
    time: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A choice for every layer, and what they cost together."""

    choices: Mapping[str, Choice]

    @property
    def formats(self) -> dict[str, str | None]:
        """Formats as `quantize_` takes them; layers that stay as they are have none."""
        return {n: None if c.format == "keep" else c.format for n, c in self.choices.items()}

    @property
    def bytes(self) -> float:
        """The bytes of all layers."""
        return sum(c.bytes for c in self.choices.values())

    @property
    def loss(self) -> float:
        """The sum of the losses."""
        return sum(c.loss for c in self.choices.values())

    @property
    def time(self) -> float:
        """The sum of the times."""
        return sum(c.time for c in self.choices.values())

    def __str__(self) -> str:
        lines = [f"{n}: {c.format}, {c.bytes:.0f} bytes" for n, c in self.choices.items()]
        return "\n".join([*lines, f"together {self.bytes:.0f} bytes, loss {self.loss:.3g}"])


def choose(
    choices: Mapping[str, Sequence[Choice]], *, bytes: float | None = None,
    latency: float | None = None, loss: float | None = None,
) -> Plan:  # fmt: skip
    """The choices of least loss within bytes or a time, or of fewest bytes within a loss.

    >>> a = [Choice("int8", 100, 0.1), Choice("int4", 50, 0.9)]
    >>> b = [Choice("int8", 100, 0.1), Choice("int4", 50, 0.5)]
    >>> choose({"a": a, "b": b}, bytes=150).formats
    {'a': 'int8', 'b': 'int4'}
    """
    limits = {"bytes": bytes, "time": latency, "loss": loss}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if len(given) != 1:
        raise ValueError("choose: takes one of bytes=, latency= and loss=")
    ((limited, limit),) = given.items()
    sought = "bytes" if limited == "loss" else "loss"
    cost, gain = np.zeros(1), np.zeros(1)
    trail: list[tuple[Any, Any]] = []
    for own in choices.values():
        costs = np.array([getattr(c, limited) for c in own], float)
        gains = np.array([getattr(c, sought) for c in own], float)
        sums, totals = np.add.outer(cost, costs).ravel(), np.add.outer(gain, gains).ravel()
        kept = _front(sums, totals, limit * (1 + 1e-12))
        if not len(kept):
            least = sum(min(getattr(c, limited) for c in x) for x in choices.values())
            raise ValueError(
                f"choose: no choice has {limited} of {limit:g}; the least is {least:g}"
            )
        cost, gain = sums[kept], totals[kept]
        trail.append((kept // len(own), kept % len(own)))
    place, found = int(np.lexsort((cost, gain))[0]), {}
    for (name, own), (before, which) in zip(
        reversed(list(choices.items())), reversed(trail), strict=True
    ):
        found[name] = own[int(which[place])]
        place = int(before[place])
    return Plan({name: found[name] for name in choices})


def _front(cost: Any, gain: Any, limit: float) -> Any:
    """The places of sums within a limit that no other beats; of too many, one for each interval."""
    order = np.lexsort((gain, cost))
    order = order[cost[order] <= limit]
    best = np.minimum.accumulate(gain[order])
    kept = order[np.r_[True, gain[order][1:] < best[:-1]]] if len(order) else order
    if len(kept) <= _MOST:
        return kept
    # The cheapest of an interval stays, and beside it the best: so nothing becomes infeasible.
    interval = np.minimum((cost[kept] / limit * (_MOST // 2)).astype(int), _MOST // 2)
    first = np.r_[True, np.diff(interval) > 0]
    last = np.r_[np.diff(interval) > 0, True]
    return kept[first | last]


# ---- what a format costs a layer


@no_grad()
def perturbation(
    model: nn.Module, data: Sequence[Any], loss: Callable[[nn.Module, Any], Any],
    formats: Mapping[str, Sequence[Format]], algorithm: str = "nearest",
) -> dict[str, dict[str, float]]:  # fmt: skip
    """How much a model's loss grows when one layer has a format, for every layer and format."""
    compute = genesis.jit(lambda x: loss(model, x))
    base = _mean(compute, data)
    seen = {} if algorithm == "nearest" else gather(model, [_input(x) for x in data], formats)
    grown: dict[str, dict[str, float]] = {}
    for name, own in formats.items():
        weight: Any = model.get_submodule(name).weight
        before = weight.detach().clone()
        for format in own:
            weight.copy_(_rounded(before, format, algorithm, seen.get(name)))
            grown.setdefault(name, {})[_key(format)] = _mean(compute, data) - base
        weight.copy_(before)
    return grown


def _input(x: Any) -> Any:
    return x[0] if isinstance(x, tuple | list) else x


def _key(format: Format) -> str:
    """The name by which `quantize_` finds a format again."""
    standard = named(format.name, "plan")
    if standard == format:
        return format.name
    return f"{format.name}/{'row' if format.group < 0 else format.group}"


def _rounded(weight: Any, format: Format, algorithm: str, seen: Any = None) -> Any:
    matrix = weight.reshape(weight.shape[0], -1)
    if algorithm == "nearest":
        return quantize(matrix, format).dequantize().reshape(weight.shape)
    codes = ALGORITHMS[algorithm](matrix.numpy(), seen, format)
    return genesis.tensor(codes.decode()[:, : matrix.shape[1]]).reshape(weight.shape)


def _mean(compute: Callable[[Any], Any], data: Sequence[Any]) -> float:
    return sum(float(compute(x).item()) for x in data) / len(data)


def fisher(
    model: nn.Module, data: Sequence[Any], loss: Callable[[nn.Module, Any], Any],
    names: Iterable[str],
) -> dict[str, Any]:  # fmt: skip
    """The mean squares of the gradients of layers' weights: how curved the loss is there."""
    layers = {name: model.get_submodule(name) for name in names}
    found = {name: np.zeros(layer.weight.shape) for name, layer in layers.items()}
    for x in data:
        model.zero_grad()
        loss(model, x).backward()
        for name, layer in layers.items():
            found[name] += np.square(layer.weight.grad.numpy()) / len(data)
    model.zero_grad()
    return found


def hutchinson(
    model: nn.Module, x: Any, loss: Callable[[nn.Module, Any], Any], names: Iterable[str],
    draws: int = 8, seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """The mean curvature of the loss by each layer's weights: the trace of its Hessian by its size.

    It is the mean of ``v · H v`` over vectors v of random signs.
    """
    names, rng = list(names), np.random.default_rng(seed)
    weights: list[Any] = [model.get_submodule(name).weight for name in names]
    traces = np.zeros(len(names))
    for _ in range(draws):
        signs = [
            genesis.tensor(rng.choice(np.array([-1, 1], np.float32), w.shape)) for w in weights
        ]
        gradients = genesis.autograd.grad(loss(model, x), weights, create_graph=True)
        along = sum((g * v).sum() for g, v in zip(gradients, signs, strict=True))
        curved = genesis.autograd.grad(along, weights)
        traces += [float((h * v).sum().item()) for h, v in zip(curved, signs, strict=True)]
    return {n: t / draws / w.numel() for n, t, w in zip(names, traces, weights, strict=True)}


def squared_errors(
    model: nn.Module, formats: Mapping[str, Sequence[Format]], curvature: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """How much a loss grows by its curvature: half of it times the squared errors of weights."""
    found: dict[str, dict[str, float]] = {}
    for name, own in formats.items():
        weight: Any = model.get_submodule(name).weight
        for format in own:
            off = (_rounded(weight.detach(), format, "nearest") - weight.detach()).numpy()
            found.setdefault(name, {})[_key(format)] = float(
                0.5 * (np.square(off) * curvature[name]).sum()
            )
    return found


@no_grad()
def measured_time(layer: Any, format: Format | None, rows: int = 1) -> float:
    """The seconds of processor time that a layer takes for some rows of input, at best."""
    if format is not None:
        layer = quantize_(nn.Sequential(_copy(layer)), format)[0]
    x = genesis.randn(rows, layer.weight.shape[1])
    run, best = genesis.jit(lambda x: layer(x)), np.inf
    for number in range(12):
        begin = time.process_time()
        run(x).numpy()
        best = min(best, time.process_time() - begin) if number > 2 else best
    return float(best)


def _copy(layer: Any) -> nn.Linear:
    twin = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], bias=False)
    twin.weight.copy_(layer.weight)
    return twin


def plan(
    model: nn.Module, data: Sequence[Any], loss: Callable[[nn.Module, Any], Any], *,
    formats: Sequence[str | Format] = ("int8", "int4/64", "int3/64", "int2"),
    keep: bool = True, algorithm: str = "nearest", sensitivity: str = "perturbation",
    bytes: float | None = None, latency: float | None = None, growth: float | None = None,
) -> Plan:  # fmt: skip
    """The formats of a model's linear layers of least loss within bytes or time, or within a loss.

    `loss` of the model and an element of `data` is a number; `growth` limits how much it grows.
    How much each layer makes it grow is measured ("perturbation") or follows from the curvature
    of the loss ("fisher", "hutchinson"). Where time is limited, it is measured for every choice.
    """
    own = [named(f, "plan") for f in formats]
    layers = {n: own for n in chosen_formats(model, "int8", "plan")
              if type(model.get_submodule(n)) is nn.Linear}  # fmt: skip
    if sensitivity == "perturbation":
        grown = perturbation(model, data, loss, layers, algorithm)
    elif sensitivity == "fisher":
        grown = squared_errors(model, layers, fisher(model, data, loss, layers))
    elif sensitivity == "hutchinson":
        traces = hutchinson(model, data[0], loss, layers)
        grown = squared_errors(model, layers, {n: max(t, 1e-12) for n, t in traces.items()})
    else:
        raise ValueError(
            f"plan: sensitivity is perturbation, fisher or hutchinson, not {sensitivity!r}"
        )
    timed = latency is not None
    choices: dict[str, list[Choice]] = {}
    for name, some in layers.items():
        layer: Any = model.get_submodule(name)
        shape = tuple(map(int, layer.weight.shape))
        rows = [
            Choice(_key(f), f.nbytes(-(-shape[0] // 32) * 32, shape[1]), grown[name][_key(f)],
                   measured_time(layer, f) if timed else 0.0)
            for f in some
        ]  # fmt: skip
        if keep:
            whole = Choice("keep", float(layer.weight.nbytes), 0.0)
            rows.append(replace(whole, time=measured_time(layer, None) if timed else 0.0))
        choices[name] = rows
    return choose(choices, bytes=bytes, latency=latency, loss=growth)


# ---- several objectives


class Front:
    """Points of which none is beaten by another in all objectives; each is to be small.

    >>> front = Front()
    >>> [front.add(p) for p in ((1, 5), (5, 1), (3, 3), (4, 4), (1, 5))]
    [True, True, True, False, False]
    >>> front.add((2, 2)), sorted(front.points)
    (True, [(1, 5), (2, 2), (5, 1)])
    """

    def __init__(self) -> None:
        self._points: dict[tuple[float, ...], Any] = {}

    @property
    def points(self) -> list[tuple[float, ...]]:
        """The points."""
        return list(self._points)

    def items(self) -> list[tuple[tuple[float, ...], Any]]:
        """The points, and what was added with each."""
        return list(self._points.items())

    def add(self, point: Iterable[float], what: Any = None) -> bool:
        """Add a point unless another is as good in everything; whether it was added."""
        new = tuple(float(x) if x % 1 else int(x) for x in point)
        if any(x != x for x in new):
            raise ValueError(f"Front: {new} has an objective that is no number")
        others = list(self._points)
        if others and len(others[0]) != len(new):
            raise ValueError(f"Front: {new} has not {len(others[0])} objectives")
        if any(all(a <= b for a, b in zip(old, new, strict=True)) for old in others):
            return False
        for old in others:
            if all(a <= b for a, b in zip(new, old, strict=True)):
                del self._points[old]
        self._points[new] = what
        return True


def evolve(
    options: Sequence[Sequence[Any]], measure: Callable[[tuple[Any, ...]], Sequence[float]], *,
    rounds: int = 20, population: int = 24, seed: int = 0,
) -> Front:  # fmt: skip
    """The best points that mutation and crossing find, of choices of one option for every place.

    `measure` gives the objectives of a tuple of options: bits of layers, widths, depths.
    """
    rng, front = np.random.default_rng(seed), Front()
    known: set[tuple[Any, ...]] = set()

    def tried(one: tuple[Any, ...]) -> None:
        if one not in known:
            known.add(one)
            front.add(measure(one), one)

    for one in range(max(len(o) for o in options)):  # the uniform ones
        tried(tuple(o[min(one, len(o) - 1)] for o in options))
    for _ in range(rounds):
        parents = [what for _, what in front.items()]
        for _ in range(population):
            a, b = (parents[int(rng.integers(len(parents)))] for _ in range(2))
            child = [x if rng.random() < 0.5 else y for x, y in zip(a, b, strict=True)]
            for place in map(int, np.flatnonzero(rng.random(len(child)) < 1.5 / len(child))):
                child[place] = options[place][int(rng.integers(len(options[place])))]
            tried(tuple(child))
    return front


def halving(
    candidates: Sequence[Any],
    score: Callable[[Any, int], float],
    budget: int = 1,
    keep: float = 0.5,
) -> Any:
    """The candidate of least score, where half of them get twice the budget, and so on."""
    left = list(candidates)
    if not left:
        raise ValueError("halving: there are no candidates")
    while len(left) > 1:
        scored = sorted(enumerate(left), key=lambda e: (score(e[1], budget), e[0]))
        left = [x for _, x in scored[: max(1, int(len(left) * keep))]]
        budget = int(budget / keep)
    return left[0]


__all__ = [
    "Choice", "Front", "Plan", "choose", "evolve", "fisher", "halving", "hutchinson",
    "measured_time", "perturbation", "plan", "squared_errors",
]  # fmt: skip
