"""L-BFGS: Newton's direction from the last gradients, along a line as far as it pays.

The method decides by numbers all the time (how far to go, whether to stop), so it runs on the
host and cannot be part of a function under `genesis.jit`; the closure that it calls can be one.

What it remembers, steps and changes of the gradient, are rows of one array. Their products with
each other are kept on the host, and so is the recursion: every vector in it is a combination of
those rows and of the gradient, of which the host needs the coefficients alone. An iteration reads
the rows twice, however many there are, instead of once for every product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from genesis import ndarray as nd
from genesis.autograd import enable_grad
from genesis.ir.dtype import float64
from genesis.ir.size import Dim
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import need_contents
from genesis.ndarray.tracing.jit import jit
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
        optimal = here.greatest <= group["tolerance_grad"]
        while not optimal and iterations < group["max_iter"]:
            iterations += 1
            state["n_iter"] += 1
            direction = self._direction(here, state, group)
            found = direction.vector
            length = group["lr"]
            if state["n_iter"] == 1:
                length *= min(1.0, 1.0 / nd.abs(here.gradient).sum().item())
            state.update(d=found, t=length, prev_flat_grad=here.gradient, prev_loss=here.loss)
            if direction.slope > -limit:
                break
            before, used = here, 0
            if group["line_search_fn"] is not None:
                origin = nd.concat([p.array.reshape(-1) for p in self._parameters()]).realize()
                search = LineSearch(
                    partial(self._evaluate_at, closure, origin, found),
                    Point(0.0, here, direction.slope),
                    direction,
                    limit,
                    group["max_eval"] - evaluations,
                )
                reached = search.run(length)
                length, here, used = reached.t, reached.evaluated, search.evaluations
                self._move(found, length, origin)
            else:
                self._move(found, length)
                if iterations != group["max_iter"]:
                    _, here = self._evaluate(closure)
                    used = 1
            state["t"] = length
            evaluations += used
            state["func_evals"] += used
            optimal = here.greatest <= group["tolerance_grad"]
            if (
                evaluations >= group["max_eval"]
                or direction.greatest * length <= limit
                or abs(here.loss - before.loss) < limit
            ):
                break
        return result

    def _direction(self, here: Evaluated, state: State, group: ParameterGroup) -> Direction:
        """Minus the inverse of the estimated Hessian times the gradient."""
        gradient = here.gradient
        if state["n_iter"] == 1 or "history" not in state:
            shape = (2, 0, gradient.size)
            state.update(history=nd.zeros(shape, gradient.dtype, gradient.device), order=[])
            state["products"] = nd.zeros((2, 0, 2, 0), float64, "cpu")
            slope = -float((gradient * gradient).sum().item())
            return Direction((-gradient).realize(), slope, here.greatest)
        products, slot = self._slot(state, group)
        history, order = state["history"], state["order"]
        length, at = nd.array(state["t"], float64), nd.array([slot], device=history.device)
        new = _remembered(history, at, state["d"], length, gradient, state["prev_flat_grad"])
        found = np.asarray(new.numpy(), np.float64).reshape(2, -1, 3)
        products[:, :, :, slot] = found[..., :2]
        products[:, slot] = np.moveaxis(found[..., :2], 2, 0)
        if products[0, slot, 1, slot] > 1e-10:
            order.append(slot)
            del order[: -group["history_size"]]
        state["products"] = nd.array(products, float64, "cpu")
        weights = _recursion(products, found[..., 2], order)
        mixed = _mixture(history, gradient, nd.array(weights, gradient.dtype, gradient.device))
        return Direction(mixed[0], float(mixed[1].item()), float(mixed[2].item()))

    def _slot(self, state: State, group: ParameterGroup) -> tuple[np.ndarray, int]:
        """The products, and where there is room for another pair: there is one row to spare."""
        history, products = state["history"], np.array(state["products"].numpy())
        count = int(history.shape[1])
        free = set(range(count)).difference(state["order"])
        if not free:
            more = min(max(2 * count, 8), group["history_size"] + 1) - count
            shape = (2, more, history.shape[2])
            fresh = nd.zeros(shape, history.dtype, history.device)
            state["history"] = nd.concat([history, fresh], 1).realize()
            products = np.pad(products, ((0, 0), (0, more)) * 2)
            free = {count}
        return products, min(free)

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[Any, Evaluated]:
        with enable_grad():
            result = closure()
        parts = [
            nd.zeros_like(p.array).reshape(-1) if p.grad is None else p.grad.array.reshape(-1)
            for p in self._parameters()
        ]
        gradient = nd.concat(parts)
        greatest = nd.abs(gradient).max()
        nd.realize(result.array, gradient, greatest)
        return result, Evaluated(float(result.item()), gradient, float(greatest.item()))

    def _evaluate_at(
        self, closure: Callable[[], Any], origin: NDArray, direction: NDArray, t: float
    ) -> Point:
        self._move(direction, t, origin)
        _, found = self._evaluate(closure)
        return Point(t, found, float((found.gradient * direction).sum().item()))

    def _move(self, direction: NDArray, t: float, origin: NDArray | None = None) -> None:
        """Parameters along a direction, from where they are or from somewhere else."""
        arrays = [p.array for p in self._parameters()]
        _moved(arrays, direction, nd.array(t, float64, direction.device), origin)
        nd.realize(*arrays)


@jit
def _moved(arrays: list[NDArray], direction: NDArray, t: NDArray, origin: NDArray | None) -> None:
    start: Dim = 0
    for x in arrays:
        part = slice(start, start + x.size)
        here = x if origin is None else origin[part].reshape(x.shape)
        x.assign(here + t.astype(x.dtype) * direction[part].reshape(x.shape))
        start += x.size


@jit
def _remembered(
    history: NDArray, at: NDArray, d: NDArray, t: NDArray, gradient: NDArray, before: NDArray
) -> NDArray:
    """Write down a step and a change; the products of all rows with them and the gradient."""
    pair = nd.stack([d * t.astype(d.dtype), gradient - before])
    history.assign(nd.index_copy(history, at, nd.unsqueeze(pair, 1), 1))
    return history.reshape(-1, gradient.size) @ nd.concat([pair, nd.unsqueeze(gradient, 0)]).T


@jit
def _mixture(
    history: NDArray, gradient: NDArray, factors: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
    found = factors[:-1] @ history.reshape(-1, gradient.size) + factors[-1] * gradient
    return found, (found * gradient).sum(), nd.abs(found).max()


def _recursion(products: np.ndarray, along: np.ndarray, order: list[int]) -> np.ndarray:
    """The direction, as weights of steps, of changes, and one of the gradient.

    `along` has the gradient's products with steps and changes, `order` the pairs from the oldest.
    """
    count = along.shape[1]
    rows = np.concatenate([products.reshape(2 * count, -1), along.reshape(-1, 1)], 1)
    weights, alphas = np.zeros(2 * count + 1), []
    weights[-1] = -1.0
    for k in reversed(order):
        alphas.append(rows[k].dot(weights) / rows[k, count + k])
        weights[count + k] -= alphas[-1]
    if order:
        newest = order[-1]
        weights *= rows[newest, count + newest] / rows[count + newest, count + newest]
    for k in order:
        weights[k] += alphas.pop() - rows[count + k].dot(weights) / rows[k, count + k]
    return weights


class Evaluated(NamedTuple):
    """The loss and the gradient at a place, and the gradient's greatest element."""

    loss: float
    gradient: NDArray
    greatest: float


class Direction(NamedTuple):
    """A direction, the gradient's part along it, and its greatest element."""

    vector: NDArray
    slope: float
    greatest: float


class Point(NamedTuple):
    """A place on a line: how far along, what is there, and the gradient's part along the line."""

    t: float
    evaluated: Evaluated
    slope: float

    @property
    def loss(self) -> float:
        """The loss there."""
        return self.evaluated.loss


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
        direction: Direction,
        tolerance: float,
        most: int,
    ) -> None:
        self._evaluate = evaluate
        self._start = start
        self._greatest = direction.greatest
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
