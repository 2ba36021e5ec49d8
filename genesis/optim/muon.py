"""Muon: momentum whose steps are made orthogonal, for the matrices of a network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from genesis import ndarray as nd
from genesis.ir.dtype import bfloat16
from genesis.ndarray import NDArray
from genesis.optim.adam import norm
from genesis.optim.optimizer import Optimizer, ParameterGroup, Params, State, settings


class Muon(Optimizer):
    """``p = (1 - lr * weight_decay) * p - lr * f * O``, with an orthogonal matrix ``O``.

    It is nearly the one next to the momentum, found by `ns_steps` steps of Newton and Schulz in
    bfloat16. The factor ``f`` is ``sqrt(max(1, rows / columns))``, or with
    ``adjust_lr_fn="match_rms_adamw"`` ``0.2 * sqrt(max(rows, columns))``. Parameters are matrices;
    give vectors and embeddings to another optimizer.
    """

    buffers = ("momentum_buffer",)
    counted = False

    @settings
    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None: ...

    def check(self, settings: Mapping[str, Any]) -> None:
        """Only matrices can be made orthogonal."""
        super().check(settings)
        for p in settings["params"]:
            if p.ndim != 2 or p.array.dtype.is_complex:
                raise ValueError(
                    f"Muon: a parameter has shape {tuple(p.shape)} and dtype {p.dtype}; it takes "
                    "real matrices, give others to another optimizer"
                )
        if settings["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"Muon: adjust_lr_fn is {settings['adjust_lr_fn']!r}; it is 'original' or "
                "'match_rms_adamw'"
            )
        if not 0 <= settings["ns_steps"] < 100:
            raise ValueError(f"Muon: ns_steps is {settings['ns_steps']}; it is 0 to 99")

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        lr, momentum, buffer = (
            group.scalar("lr"),
            group.scalar("momentum"),
            state["momentum_buffer"],
        )
        buffer.assign(buffer + (grad - buffer) * (1 - momentum))
        direction = grad + (buffer - grad) * momentum if group["nesterov"] else buffer
        rows, columns = (d.__index__() for d in p.shape)
        if group["adjust_lr_fn"] == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(rows, columns))
        else:
            factor = math.sqrt(max(1, rows / columns))
        step = orthogonal(direction, group["ns_coefficients"], group["ns_steps"], group["eps"])
        p.assign(p * (1 - lr * group.scalar("weight_decay")) - lr * factor * step.astype(p.dtype))


def orthogonal(
    x: NDArray, coefficients: tuple[float, float, float], steps: int, eps: float
) -> NDArray:
    """A matrix with singular values near 1 and the singular vectors of `x`, in bfloat16.

    Each step applies an odd polynomial to the singular values, which the norm brings below 1.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    matrix = (x.T if tall else x).astype(bfloat16)
    matrix = matrix / nd.maximum(norm(matrix), eps)
    for _ in range(steps):
        gram = matrix @ matrix.T
        matrix = a * matrix + (b * gram + c * (gram @ gram)) @ matrix
    return matrix.T if tall else matrix
