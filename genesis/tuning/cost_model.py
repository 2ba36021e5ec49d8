"""The cost model: how long a schedule will take, from what was measured on this machine before.

A scheduled kernel is described by a few numbers that do not depend on its rule: how many blocks
there are, how much each does and reads, how large tiles are, what is wasted. The model is a sum of
steps, each of one number (boosted stumps). It tells from how two schedules of a kernel differ in
these how the logarithms of their times do, and so learns from one kernel for others. It need not be
right, only better than chance: it orders what is measured next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log2, prod

import numpy as np
import numpy.typing as npt

from genesis.compiler.schedule.decisions import Choice, Decisions
from genesis.compiler.schedule.steps.queries import elements, extent, points
from genesis.ir import ops
from genesis.ir.kernel import Axis, AxisKind, Body, Kernel, Loop, Phase, Role, Stage, expressions
from genesis.ir.kernel import walk as statements
from genesis.ir.node import mentions, topological

Floats = npt.NDArray[np.float64]
#: A schedule in numbers, by their names.
Features = Mapping[str, float]

#: Steps of the model, what each takes of the error that is left, and places tried for a step.
STEPS = 80
RATE = 0.25
PLACES = 12


def features(kernel: Kernel, asked: Mapping[str, tuple[Choice, ...]], taken: Decisions) -> Features:
    """A scheduled kernel in numbers; `asked` is what there was to decide, `taken` what was."""
    phase = max(kernel.phases, key=_work)
    loads = {n for s in statements(phase.body) for n in topological(expressions(s))}
    loads = {n for n in loads if n.op is ops.LOAD}
    axes = [[x.attr for x in mentions(n) if x.op is ops.AXIS] for n in loads]
    tiles = _tiles(phase.body)
    staged = (s.buffer for s in statements(phase.body) if isinstance(s, Stage))
    kept = (b for b in kernel.buffers if b.role is Role.TEMPORARY)
    loops = [extent(s.axis) for s in statements(phase.body) if isinstance(s, Loop)]
    found = {
        "blocks": points(phase.grid),
        "work": sum(map(_work, kernel.phases)),
        "work of a block": _work(phase) // max(1, points(phase.grid)),
        "read by a block": sum(
            points(a for a in x if a.kind is not AxisKind.GRID) * n.dtype.itemsize
            for n, x in zip(loads, axes, strict=True)
        ),
        "read at once": sum(prod(extent(a) for a in x if a.kind is AxisKind.TILE) for x in axes),
        "tile": prod(tiles),
        "longest side": max(tiles, default=1),
        "staged": sum(elements(b) * b.dtype.itemsize for b in staged),
        "temporary": sum(elements(b) * b.dtype.itemsize for b in kept),
        "innermost": loops[-1] if loops else 1,
        "statements": sum(1 for p in kernel.phases for _ in statements(p.body)),
    }
    numbers = {name: log2(1 + number) for name, number in found.items()}
    ranks = {
        f"rank of {question}": float(options.index(taken[question]))
        for question, options in asked.items()
        if taken.get(question) in options
    }
    return numbers | ranks


def _work(phase: Phase) -> int:
    """Points that a phase visits, those of partial tiles included."""
    return points(phase.grid) * _visits(phase.body)


def _visits(body: Body) -> int:
    inner = sum(extent(s.axis) * _visits(s.body) for s in body if isinstance(s, Loop))
    return inner + prod(_tiles([s for s in body if not isinstance(s, Loop) or not s.body]))


def _tiles(body: Iterable[object]) -> list[int]:
    """The extents of the tile axes in a body."""
    return [a.extent for a in set(_tile_axes(body)) if isinstance(a.extent, int)]


def _tile_axes(body: Iterable[object]) -> Iterator[Axis]:
    for s in statements(tuple(body)):  # type: ignore[arg-type]
        for e in expressions(s):
            for x in mentions(e):
                if x.op is ops.AXIS and x.attr.kind is AxisKind.TILE:
                    yield x.attr
                elif x.op is ops.LOCAL:
                    yield from x.attr.tiles


class CostModel:
    """Predicts the logarithm of a time relative to that of the schedule in use."""

    def __init__(self, samples: Sequence[tuple[Features, float]] = ()) -> None:
        self._names = sorted({name for x, _ in samples for name in x})
        self._steps: list[tuple[int, float, float, float]] = []  # feature, place, below, above
        if len(samples) < 2 * PLACES:
            return
        x = self._columns([x for x, _ in samples])
        left = np.array([y for _, y in samples])
        places = np.quantile(x, np.linspace(0.05, 0.95, PLACES), axis=0)
        # One row for every place of every feature: which samples lie above it.
        above = (x.T[None] > places[:, :, None]).reshape(-1, len(x)).astype(np.float64)
        count = above.sum(axis=1)
        valid = (count > 0) & (count < len(x))
        for _ in range(STEPS):
            total = above @ left
            rest = left.sum() - total
            gain = np.where(valid, total**2 / (count + 1) + rest**2 / (len(x) - count + 1), -1.0)
            best = int(gain.argmax())
            place, feature = divmod(best, len(self._names))
            high = float(RATE * total[best] / (count[best] + 1))
            low = float(RATE * rest[best] / (len(x) - count[best] + 1))
            self._steps.append((feature, float(places[place, feature]), low, high))
            left = left - np.where(above[best] > 0, high, low)

    @property
    def knows(self) -> bool:
        """Whether there was enough to learn from."""
        return bool(self._steps)

    def predict(self, described: Sequence[Features]) -> Floats:
        """What is expected of schedules; zeros as long as nothing is known."""
        x = self._columns(described)
        result = np.zeros(len(described))
        for feature, place, low, high in self._steps:
            result += np.where(x[:, feature] > place, high, low)
        return result

    def _columns(self, described: Sequence[Features]) -> Floats:
        rows = [[x.get(name, 0.0) for name in self._names] for x in described]
        return np.array(rows, np.float64).reshape(len(described), len(self._names))
