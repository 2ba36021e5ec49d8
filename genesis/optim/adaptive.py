"""Steps scaled by the gradients so far: by all of them, by recent ones, or by rows and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Optimizer, ParameterGroup, Params, State, followed, settings


class Adagrad(Optimizer):
    """``s += grad**2; p -= lr / (1 + (step - 1) * lr_decay) * grad / (sqrt(s) + eps)``."""

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The sum of squares."""
        return {"sum": nd.full_like(p, group["initial_accumulator_value"])}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        total = state["sum"]
        total.assign(total + grad * grad)
        rate = group.scalar("lr") / (1 + (state["step"] - 1) * group["lr_decay"])
        p.assign(p - rate * (grad / (nd.sqrt(total) + group["eps"])))


class Adadelta(Optimizer):
    """``d = sqrt(u + eps) / sqrt(v + eps) * grad; p -= lr * d``.

    Both are running means of squares: ``v`` of the gradients, ``u`` of the steps ``d``.
    """

    buffers = ("square_avg", "acc_delta")

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        rho, eps = group["rho"], group["eps"]
        gradients, steps = state["square_avg"], state["acc_delta"]
        gradients.assign(gradients * rho + grad * grad * (1 - rho))
        delta = nd.sqrt(steps + eps) / nd.sqrt(gradients + eps) * grad
        steps.assign(steps * rho + delta * delta * (1 - rho))
        p.assign(p - group.scalar("lr") * delta)


class RMSprop(Optimizer):
    """``v = alpha * v + (1 - alpha) * grad**2; p -= lr * grad / (sqrt(v) + eps)``.

    If `centered`, the variance of the gradient counts instead of its mean square.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None: ...

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The mean square, and what the settings ask for."""
        names = ["square_avg"]
        names += ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * group["centered"]
        return {name: nd.zeros_like(p) for name in names}

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        grad = followed(p, grad, group)
        alpha, square = group["alpha"], state["square_avg"]
        square.assign(square * alpha + grad * grad * (1 - alpha))
        spread: NDArray = square
        if group["centered"]:
            mean = state["grad_avg"]
            mean.assign(mean + (grad - mean) * (1 - alpha))
            spread = square - mean * mean
        direction = grad / (nd.sqrt(spread) + group["eps"])
        if group["momentum"]:
            buffer = state["momentum_buffer"]
            buffer.assign(buffer * group.scalar("momentum") + direction)
            direction = buffer
        p.assign(p - group.scalar("lr") * direction)


_PRECISION = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Adafactor(Optimizer):
    """Adaptive steps with little state, scaled to the size of the parameter.

    Of the last two dimensions only the row's and the column's mean squares are kept. The step is
    clipped to a root mean square of `d`, times that of the parameter. `eps` bounds the mean squares
    (None: the dtype's precision) and the parameter's size from below.
    """

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None: ...

    def check(self, settings: Mapping[str, Any]) -> None:
        """The mean squares get slower, and clipping is no amplification."""
        super().check(settings)
        if any(p.array.dtype.is_complex for p in settings["params"]):
            raise TypeError("Adafactor: parameters are real; train both parts of complex ones")
        if settings["beta2_decay"] > 0:
            raise ValueError(
                f"Adafactor: beta2_decay is {settings['beta2_decay']}; it must not be positive"
            )
        if settings["d"] < 1:
            raise ValueError(f"Adafactor: d is {settings['d']}; it must be at least 1")

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The mean squares: of rows and columns, or of a vector's elements."""
        if p.ndim < 2:
            return {"variance": nd.zeros_like(p)}
        *batch, rows, columns = p.shape
        return {
            "row_var": nd.zeros((*batch, rows, 1), p.dtype, p.device),
            "col_var": nd.zeros((*batch, 1, columns), p.dtype, p.device),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        if group["maximize"]:
            grad = -grad
        lr, step = group.scalar("lr"), state["step"]
        least_square, least_size = group["eps"]
        if least_square is None:
            least_square = _PRECISION[p.dtype.name]
        weight = step ** group["beta2_decay"]
        size = nd.maximum(_root_mean_square(p), least_size)
        rate = nd.minimum(lr, 1 / nd.sqrt(step)) * size
        p_now = p * (1 - lr * group.scalar("weight_decay")) if group["weight_decay"] else p
        square = grad * grad
        if p.ndim < 2:
            variance = state["variance"]
            variance.assign(variance + (square - variance) * weight)
        else:
            row, column = state["row_var"], state["col_var"]
            row.assign(row + (square.mean(axis=-1, keepdims=True) - row) * weight)
            column.assign(column + (square.mean(axis=-2, keepdims=True) - column) * weight)
            whole = nd.maximum(row.mean(axis=-2, keepdims=True), least_square)
            variance = row * column / whole
        direction = nd.rsqrt(nd.maximum(variance, least_square**2)) * grad
        excess = nd.maximum(_root_mean_square(direction) / group["d"], 1.0)
        p.assign(p_now - rate / excess * direction)


def _root_mean_square(x: NDArray) -> NDArray:
    count: Any = x.size
    return nd.sqrt((x * x).sum()) / math.sqrt(count)
