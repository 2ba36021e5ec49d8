"""Adafactor: the mean squares of a matrix kept as one row and one column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ndarray import NDArray
from genesis.optim.optimizer import Group, Optimizer, Params, State, settings

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

    def initial(self, p: NDArray, group: Group) -> State:
        """The mean squares: of rows and columns, or of a vector's elements."""
        if p.ndim < 2:
            return {"variance": nd.zeros_like(p)}
        *batch, rows, columns = p.shape
        return {
            "row_var": nd.zeros((*batch, rows, 1), p.dtype, p.device),
            "col_var": nd.zeros((*batch, 1, columns), p.dtype, p.device),
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: Group) -> None:
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


__all__ = ["Adafactor"]
