"""`AdamW8bit`: AdamW whose running means are floats of 8 bits, with a scale for every 256 of them.

The root of the mean square is stored, not the mean square, so that its range is twice as wide; it
never becomes zero while its block has others, as a step divides by it.
"""

from __future__ import annotations

import math

from genesis import ndarray as nd
from genesis.ir.dtype import float8_e4m3fn, float32
from genesis.ndarray import NDArray
from genesis.optim import AdamW
from genesis.optim.adam import _corrections, decayed, moments
from genesis.optim.optimizer import ParameterGroup, State

#: Numbers of a block; parameters of fewer have means in float32.
BLOCK, LEAST = 256, 4096
_GREATEST, _SMALLEST = 448.0, 2.0**-9


class AdamW8bit(AdamW):
    """`AdamW` with a quarter of its state.

    >>> import genesis
    >>> p = genesis.ones(64, 64, requires_grad=True)
    >>> optimizer = AdamW8bit([p], lr=0.1)
    >>> (p * p).sum().backward()
    >>> optimizer.step()
    >>> sum(x.nbytes for x in optimizer.state[p].values() if x.ndim) / p.nbytes
    0.5078125
    """

    def initial(self, p: NDArray, group: ParameterGroup) -> State:
        """The means in blocks, and their scales."""
        if math.prod(p.shape) < LEAST or group["amsgrad"]:
            return super().initial(p, group)
        blocks = -(-math.prod(p.shape) // BLOCK)
        return {
            f"{name}{part}": nd.zeros((blocks, size), dtype, p.device)
            for name in ("mean", "root")
            for part, size, dtype in (("", BLOCK, float8_e4m3fn), ("_scale", 1, float32))
        }

    def update(self, p: NDArray, grad: NDArray, state: State, group: ParameterGroup) -> None:
        """One step of one parameter."""
        if "exp_avg" in state:
            super().update(p, grad, state, group)
            return
        p_now, grad = decayed(p, grad, group)
        root = _decoded(state, "root", p)
        # Arrays of their own, which the rule writes to.
        now: State = {
            "step": state["step"],
            "exp_avg": nd.zeros_like(p),
            "exp_avg_sq": nd.zeros_like(p),
        }
        now["exp_avg"].assign(_decoded(state, "mean", p))
        now["exp_avg_sq"].assign(root * root)
        mean, square = moments(grad, now, group)
        rate, correction = group.once(_corrections, state["step"], p.dtype)
        p.assign(p_now - rate * (mean / (nd.sqrt(square) / correction + group["eps"])))
        _encode(state, "mean", mean)
        _encode(state, "root", nd.sqrt(square), positive=True)


def _decoded(state: State, name: str, p: NDArray) -> NDArray:
    values = nd.astype(state[name], float32) * state[f"{name}_scale"]
    return nd.astype(values.reshape(-1)[: math.prod(p.shape)].reshape(*p.shape), p.dtype)


def _encode(state: State, name: str, x: NDArray, positive: bool = False) -> None:
    flat = nd.astype(x, float32).reshape(-1)
    more = -int(math.prod(x.shape)) % BLOCK
    blocks = nd.pad(flat, ((0, more),)).reshape(-1, BLOCK)
    scale = nd.abs(blocks).max(1, True) * (1 / _GREATEST)
    scaled = nd.where(scale > 0, blocks / scale, 0.0)
    if positive:
        scaled = nd.maximum(scaled, _SMALLEST)
    state[name].assign(nd.astype(scaled, float8_e4m3fn))
    state[f"{name}_scale"].assign(scale)


__all__ = ["AdamW8bit", "BLOCK", "LEAST"]
