"""L-BFGS: Newton's direction from the last gradients, along a line as far as it pays.

The method decides by numbers all the time (how far to go, whether to stop), so it runs on the
host: every product of vectors is computed when it is met. It cannot be part of a function under
`genesis.jit`; the closure that it calls can be one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.autograd import enable_grad
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import need_contents
from genesis.optim.optimizer import Optimizer, ParameterGroup, State


class LBFGS(Optimizer):
    """Limited-memory BFGS. `step` needs a closure that computes the loss and its gradients.

    A step makes up to `max_iter` iterations and calls the closure up to `max_eval` times. The
    length of each is `lr`, or found by a search (``line_search_fn="strong_wolfe"``).
    """

    counted = False  # it counts iterations, not steps

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """There is one group: the direction is that of all parameters as one vector."""
        if self.param_groups:
            raise ValueError("LBFGS: all parameters are one group; it takes no second one")
        super().add_param_group(param_group)

    def check(self, settings: Mapping[str, Any]) -> None:
        """There is one line search."""
        super().check(settings)
        if settings["line_search_fn"] not in (None, "strong_wolfe"):
            raise ValueError(
                f"LBFGS: line_search_fn is {settings['line_search_fn']!r}; it is None or "
                "'strong_wolfe'"
            )
        if any(p.array.dtype.is_complex for p in settings["params"]):
            raise TypeError("LBFGS: parameters are real; train both parts of complex ones")

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            raise TypeError("LBFGS: step needs a closure that computes the loss and its gradients")
        need_contents("LBFGS: how far a step goes", "use jit for the closure")
        group = self.param_groups[0]
        state = self.state.setdefault(group["params"][0], {})
        for count in ("func_evals", "n_iter"):  # `prepare` makes a state without them
            state.setdefault(count, 0)
        result, here = self._evaluate(closure)
        evaluations = 1
        state["func_evals"] += 1
        limit = group["tolerance_change"]
        iterations = 0
        optimal = _greatest(here.gradient) <= group["tolerance_grad"]
        while not optimal and iterations < group["max_iter"]:
            iterations += 1
            state["n_iter"] += 1
            direction = self._direction(here.gradient, state, group)
            length = group["lr"]
            if state["n_iter"] == 1:
                length *= min(1.0, 1.0 / nd.abs(here.gradient).sum().item())
            state.update(d=direction, t=length, prev_flat_grad=here.gradient, prev_loss=here.loss)
            slope = _dot(here.gradient, direction)
            if slope > -limit:
                break
            before, used = here, 0
            origin = nd.concat([p.array.reshape(-1) for p in self._parameters()]).realize()
            if group["line_search_fn"] is not None:
                search = LineSearch(
                    partial(self._evaluate_at, closure, origin, direction),
                    Point(0.0, here.loss, here.gradient, slope),
                    direction,
                    limit,
                    group["max_eval"] - evaluations,
                )
                found = search.run(length)
                length, used = found.t, search.evaluations
                here = Evaluated(found.loss, found.gradient)
                self._move(origin, direction, length)
            else:
                self._move(origin, direction, length)
                if iterations != group["max_iter"]:
                    _, here = self._evaluate(closure)
                    used = 1
            state["t"] = length
            evaluations += used
            state["func_evals"] += used
            optimal = _greatest(here.gradient) <= group["tolerance_grad"]
            if (
                evaluations >= group["max_eval"]
                or _greatest(direction) * length <= limit
                or abs(here.loss - before.loss) < limit
            ):
                break
        return result

    def _direction(self, gradient: NDArray, state: State, group: ParameterGroup) -> NDArray:
        """Minus the inverse of the estimated Hessian times the gradient."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return (-gradient).realize()
        changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        change = (gradient - state["prev_flat_grad"]).realize()
        step = (state["d"] * state["t"]).realize()
        curvature = _dot(change, step)
        if curvature > 1e-10:
            full = len(changes) == group["history_size"]
            for history in (changes, steps, inverses):
                del history[: int(full)]
            changes.append(change)
            steps.append(step)
            inverses.append(1.0 / curvature)
            state["H_diag"] = curvature / _dot(change, change)
        direction: NDArray = (-gradient).realize()
        weights = []
        for y, s, ro in zip(reversed(changes), reversed(steps), reversed(inverses), strict=True):
            weights.append(_dot(s, direction) * ro)
            direction = (direction - weights[-1] * y).realize()
        direction = (direction * state["H_diag"]).realize()
        for y, s, ro in zip(changes, steps, inverses, strict=True):
            direction = (direction + (weights.pop() - _dot(y, direction) * ro) * s).realize()
        return direction

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[Any, Evaluated]:
        with enable_grad():
            result = closure()
        parts = [
            nd.zeros_like(p.array).reshape(-1) if p.grad is None else p.grad.array.reshape(-1)
            for p in self._parameters()
        ]
        return result, Evaluated(float(result.item()), nd.concat(parts).realize())

    def _evaluate_at(
        self, closure: Callable[[], Any], origin: NDArray, direction: NDArray, t: float
    ) -> Point:
        self._move(origin, direction, t)
        _, found = self._evaluate(closure)
        return Point(t, found.loss, found.gradient, _dot(found.gradient, direction))

    def _move(self, origin: NDArray, direction: NDArray, t: float) -> None:
        position = (origin + t * direction).realize()
        start = 0
        for p in self._parameters():
            p.array.assign(position[start : start + p.numel()].reshape(p.shape))
            start += p.numel()
        nd.realize(*(p.array for p in self._parameters()))


class Evaluated(NamedTuple):
    """The loss and the gradient at a place."""

    loss: float
    gradient: NDArray


class Point(NamedTuple):
    """A place on a line: how far along, the loss, the gradient, and its part along the line."""

    t: float
    loss: float
    gradient: NDArray
    slope: float


class LineSearch:
    """A line search for a point that satisfies the strong Wolfe conditions.

    It goes on until two points enclose such a point, then closes in on it. The loss must fall as
    the slope at the start promises (a part of it, `C1`), and the slope get flatter (by `C2`).
    """

    C1 = 1e-4
    C2 = 0.9

    def __init__(
        self,
        evaluate: Callable[[float], Point],
        start: Point,
        direction: NDArray,
        tolerance: float,
        most: int,
    ) -> None:
        self._evaluate = evaluate
        self._start = start
        self._greatest = _greatest(direction)
        self._tolerance = tolerance
        self._most = most
        self.evaluations = 0

    def run(self, t: float) -> Point:
        """The best point found, beginning with a guess."""
        before, point = self._start, self._at(t)
        rounds = 0
        while rounds < self._most:
            if self._too_high(point) or (rounds > 1 and point.loss >= before.loss):
                return self._zoom(before, point, rounds)
            if self._flat(point):
                return point
            if point.slope >= 0:
                return self._zoom(before, point, rounds)
            step = point.t - before.t
            t = _interpolated(before, point, (point.t + 0.01 * step, point.t * 10))
            before, point = point, self._at(t)
            rounds += 1
        return self._zoom(self._start, point, rounds)

    def _zoom(self, a: Point, b: Point, rounds: int) -> Point:
        """Close in on a good point between two, the better of which is number `low`."""
        points = [a, b]
        low = int(b.loss < a.loss)
        stuck = False
        while rounds < self._most:
            left, right = sorted(point.t for point in points)
            if (right - left) * self._greatest < self._tolerance:
                break
            t = _interpolated(points[0], points[1], (left, right))
            margin = 0.1 * (right - left)
            near = min(right - t, t - left) < margin
            if near and (stuck or not left < t < right):
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                near = False
            stuck = near
            point = self._at(t)
            rounds += 1
            if self._too_high(point) or point.loss >= points[low].loss:
                points[1 - low] = point
                low = int(points[1].loss < points[0].loss)
                continue
            if self._flat(point):
                return point
            if point.slope * (points[1 - low].t - points[low].t) >= 0:
                points[1 - low] = points[low]
            points[low] = point
        return points[low]

    def _at(self, t: float) -> Point:
        self.evaluations += 1
        return self._evaluate(t)

    def _too_high(self, point: Point) -> bool:
        return point.loss > self._start.loss + self.C1 * point.t * self._start.slope

    def _flat(self, point: Point) -> bool:
        return abs(point.slope) <= -self.C2 * self._start.slope


def _interpolated(a: Point, b: Point, bounds: tuple[float, float]) -> float:
    """Where the cubic through two points, with their slopes, is least; kept within bounds."""
    low, high = bounds
    if a.t == b.t:
        return a.t
    mean = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = mean**2 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    root = math.sqrt(square)
    left, right = (a, b) if a.t <= b.t else (b, a)
    span = right.slope - left.slope + 2 * root
    if span == 0:
        return (low + high) / 2
    t = right.t - (right.t - left.t) * ((right.slope + root - mean) / span)
    return min(max(t, low), high)


def _dot(a: NDArray, b: NDArray) -> float:
    return float((a * b).sum().item())


def _greatest(x: NDArray) -> float:
    return float(nd.abs(x).max().item())
