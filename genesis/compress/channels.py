"""`remove_channels_`: channels taken out of shapes, through everything that depends on them.

What depends on what is found by running the model. Layers give what they gave before, whatever
they get, so that nothing passes through them; one of them gives more in some channels, and where
inputs of others change, there its channels go. A channel is found by the bits of its number: one
run for every bit, and one for its opposite, so that an input with two sources is told from one.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


class ChannelGroup(NamedTuple):
    """Layers whose channels go together: of each, channel ``[j]`` of the first is which of its own.

    `inputs` are of layers that read them, several for a channel after a flatten.
    """

    outputs: dict[str, list[int]]
    inputs: dict[str, list[list[int]]]
    norms: dict[str, list[int]]


def _depthwise(layer: Any) -> bool:
    return isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups > 1


@no_grad()
def dependencies(model: nn.Module, x: Any) -> list[ChannelGroup]:
    """The groups of channels of a model that can go together, seen with an input x."""
    modules = dict(model.named_modules())
    layers = {n: m for n, m in modules.items() if isinstance(m, _LAYERS) and not _depthwise(m)}
    beside = {n: m for n, m in modules.items() if isinstance(m, _NORMS) or _depthwise(m)}
    training = model.training
    model.eval()
    try:
        run = _Runs(model, x, layers, beside)
        sources = {n: run.sources(n) for n in layers}
    finally:
        model.train(training)
    return _groups(layers, beside, sources)


class _Runs:
    """Runs of a model whose layers give what they gave in the first."""

    def __init__(self, model: Any, x: Any, layers: Any, beside: Any) -> None:
        self.model, self.x, self.layers, self.beside = model, x, layers, beside
        self.given: dict[str, Any] = {}
        self.base = self._run(None, lambda y: y)

    def _run(self, name: str | None, change: Callable[[Any], Any]) -> dict[str, Any]:
        """The inputs of all modules, and the result as ``""``, where one layer gives more."""
        got: dict[str, Any] = {}

        def watch(own: str) -> Any:
            def before(module: Any, inputs: Any) -> None:
                got[own] = inputs[0].detach().numpy().copy()

            return before

        def replace(own: str) -> Any:
            def after(module: Any, inputs: Any, y: Any) -> Any:
                if name is None:
                    self.given[own] = y
                    return y
                return change(self.given[own]) if own == name else self.given[own]

            return after

        with ExitStack() as stack:
            for own, module in {**self.layers, **self.beside}.items():
                stack.enter_context(_hooked(module.register_forward_pre_hook(watch(own))))
                # Norms mix channels; while looking, they pass on what they get.
                after = replace(own) if own in self.layers else _passed
                stack.enter_context(_hooked(module.register_forward_hook(after)))
            got[""] = self.model(self.x).detach().numpy().copy()
        return got

    def sources(self, name: str) -> dict[str, Any]:
        """For every input channel of other modules, which channel of a layer it is.

        -1: none of them; -2: several, or they cannot be told.
        """
        count = self.layers[name].weight.shape[0]
        axis = -1 if isinstance(self.layers[name], nn.Linear) else 1
        bits = max(1, int(count).bit_length())
        numbers = np.arange(1, count + 1)
        seen: dict[str, list[Any]] = defaultdict(list)
        for bit in range(bits):
            for wanted in (1, 0):
                chosen = (numbers >> bit & 1) == wanted
                got = self._run(name, partial(_raised, chosen=chosen, axis=axis))
                for own, y in got.items():
                    seen[own].append(_changed(self.base[own], y, self._axis(own)))
        found = {}
        for own, rows in seen.items():
            ones, opposites = np.array(rows[::2]), np.array(rows[1::2])
            code = (ones << np.arange(bits)[:, None]).sum(0)
            untouched, single = ~(ones | opposites).any(0), (ones ^ opposites).all(0)
            found[own] = np.where(untouched, -1, np.where(single, code - 1, -2))
        return found

    def _axis(self, own: str) -> int:
        module = {**self.layers, **self.beside}.get(own)
        return -1 if isinstance(module, nn.Linear | nn.LayerNorm) or own == "" else 1


@contextmanager
def _hooked(handle: Any) -> Any:
    try:
        yield
    finally:
        handle.remove()


def _passed(module: Any, inputs: Any, y: Any) -> Any:
    return inputs[0]


def _raised(y: Any, chosen: Any, axis: int) -> Any:
    """Chosen channels with something large on top: it passes rectifiers and greatest values."""
    shape = [1] * y.ndim
    shape[axis] = len(chosen)
    more = genesis.tensor(chosen.astype(np.float32)).reshape(*shape)
    return y + more * (10 + 10 * float(np.abs(y.detach().numpy()).max()))


def _changed(a: Any, b: Any, axis: int) -> Any:
    others = tuple(i for i in range(a.ndim) if i != axis % a.ndim)
    return (a != b).any(others).astype(np.int64)


def _groups(layers: Any, beside: Any, sources: Any) -> list[ChannelGroup]:
    """Layers are together if some input channel has its source in both."""
    parent = {n: n for n in layers}

    def root(n: str) -> str:
        return n if parent[n] == n else root(parent[n])

    fixed = set()
    for own in {k for found in sources.values() for k in found}:
        feeding = [n for n in layers if own in sources[n] and (sources[n][own] != -1).any()]
        for a in feeding:
            if own == "" or (sources[a][own] == -2).any() or _grouped(layers.get(own)):
                fixed.add(a)
        for a, b in pairwise(feeding):
            overlap = (sources[a][own] >= 0) & (sources[b][own] >= 0)
            if overlap.any():
                if not (sources[a][own] == sources[b][own])[overlap].all():
                    fixed |= {a, b}
                parent[root(a)] = root(b)
    together: dict[str, list[str]] = defaultdict(list)
    for n in layers:
        together[root(n)].append(n)
    found = []
    for names in together.values():
        sizes = {int(layers[n].weight.shape[0]) for n in names}
        if len(sizes) != 1 or any(n in fixed for n in names):
            continue
        found.append(_group(names, sizes.pop(), layers, beside, sources))
    return [g for g in found if g.inputs]


def _grouped(layer: Any) -> bool:
    return getattr(layer, "groups", 1) != 1


def _group(names: list[str], count: int, layers: Any, beside: Any, sources: Any) -> ChannelGroup:
    inputs: dict[str, list[list[int]]] = {}
    norms: dict[str, list[int]] = {}
    for own in {k for n in names for k in sources[n] if k}:
        merged = np.full(len(sources[names[0]][own]), -1)
        for n in names:
            merged = np.maximum(merged, sources[n][own])
        places = [np.flatnonzero(merged == j).tolist() for j in range(count)]
        if not any(places):
            continue
        if own in layers:
            inputs[own] = places
        else:
            norms[own] = [p[0] for p in places if p]
    return ChannelGroup({n: list(range(count)) for n in names}, inputs, norms)


# ---- taking them out


@no_grad()
def remove_channels_(
    model: nn.Module, x: Any, keep: float, score: Callable[[Any], Any] | None = None
) -> nn.Module:
    """Keep a share of the channels inside a model, those of greatest weights: its shapes shrink.

    x is an input that the model takes. What comes out of the model keeps its channels.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"remove_channels_: keeps a share of the channels, not {keep}")
    modules: dict[str, Any] = dict(model.named_modules())
    plans = []
    for group in dependencies(model, x):
        count = len(next(iter(group.outputs.values())))
        scores = _scores(modules, group, count) if score is None else score(group)
        best = np.argsort(-np.asarray(scores), kind="stable")[: max(1, round(keep * count))]
        plan = group, np.sort(best).tolist()
        plans += [plan] if _holds(model, x, *plan) else []
    if not plans:
        raise ValueError("remove_channels_: no channels of the model can be taken out")
    _take_out(modules, plans)
    return model


def _holds(model: nn.Module, x: Any, group: ChannelGroup, chosen: list[int]) -> bool:
    """Whether a model without channels gives what it gives where nobody reads them.

    It does not where they are also counted otherwise: as those of heads, for instance. Norms over
    all channels change with their number.
    """
    silent, cut = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    modules: dict[str, Any] = dict(silent.named_modules())
    for name, channels in _gone([(group, chosen)]).items():
        weight = modules[name].weight.detach().numpy().copy()
        weight[:, sorted(channels)] = 0
        modules[name].weight = nn.Parameter(genesis.tensor(weight))
    _take_out(dict(cut.named_modules()), [(group, chosen)])
    wanted = silent(x).detach().numpy()
    try:
        y = cut(x).detach().numpy()
    except (ValueError, RuntimeError, IndexError):
        return False
    if any(isinstance(modules[n], nn.LayerNorm) for n in group.norms):
        return bool(y.shape == wanted.shape)
    off = 1e-4 * float(np.abs(wanted).max(initial=0))
    return bool(y.shape == wanted.shape and np.abs(y - wanted).max(initial=0) <= off)


def _gone(plans: list[tuple[ChannelGroup, list[int]]]) -> dict[str, set[int]]:
    """The input channels of layers that are no more."""
    gone: dict[str, set[int]] = defaultdict(set)
    for group, chosen in plans:
        for name, places in group.inputs.items():
            gone[name] |= {i for j in {*range(len(places))} - {*chosen} for i in places[j]}
    return gone


def _take_out(modules: dict[str, Any], plans: list[tuple[ChannelGroup, list[int]]]) -> None:
    # A layer may read channels of several groups, so all are cut when all are known.
    for name, channels in _gone(plans).items():
        left = [i for i in range(modules[name].weight.shape[1]) if i not in channels]
        _cut(modules[name], 1, left)
    for group, chosen in plans:
        for name in (*group.outputs, *group.norms):
            own = modules[name]
            beside = isinstance(own, _NORMS) or _depthwise(own)
            (_cut_norm if beside else _cut_rows)(own, chosen)


def _cut_rows(layer: Any, chosen: list[int]) -> None:
    _cut(layer, 0, chosen)


def _scores(modules: Any, group: ChannelGroup, count: int) -> Any:
    """The norms of channels' weights, times those of what a norm scales them by."""
    scores = np.zeros(count)
    for name in group.outputs:
        weight = modules[name].weight.detach().numpy()
        scores += np.square(weight.reshape(count, -1)).sum(1)
    for name in group.norms:
        weight = getattr(modules[name], "weight", None)
        if weight is not None and len(weight.shape) == 1:
            scores *= np.square(weight.detach().numpy())
    return scores


def _cut(layer: Any, axis: int, chosen: list[int]) -> None:
    weight = np.take(layer.weight.detach().numpy(), chosen, axis)
    layer.weight = nn.Parameter(genesis.tensor(weight), layer.weight.requires_grad)
    if axis == 0 and layer.bias is not None:
        layer.bias = nn.Parameter(genesis.tensor(layer.bias.detach().numpy()[chosen]))
    names = ("out_features", "out_channels") if axis == 0 else ("in_features", "in_channels")
    for name in names:
        if hasattr(layer, name):
            setattr(layer, name, len(chosen))


def _cut_norm(norm: Any, chosen: list[int]) -> None:
    if isinstance(norm, nn.GroupNorm):
        raise ValueError("remove_channels_: channels of a GroupNorm are not taken out")
    if _depthwise(norm):
        _cut(norm, 0, chosen)
        norm.groups = norm.in_channels = len(chosen)
        return
    for name in ("weight", "bias"):
        if getattr(norm, name, None) is not None:
            setattr(
                norm,
                name,
                nn.Parameter(genesis.tensor(getattr(norm, name).detach().numpy()[chosen])),
            )
    for name in ("running_mean", "running_var"):
        if getattr(norm, name, None) is not None:
            norm.register_buffer(name, genesis.tensor(getattr(norm, name).detach().numpy()[chosen]))
    if hasattr(norm, "num_features"):
        norm.num_features = len(chosen)
    if hasattr(norm, "normalized_shape"):
        norm.normalized_shape = (len(chosen),)


__all__ = ["ChannelGroup", "dependencies", "remove_channels_"]
