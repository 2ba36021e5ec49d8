"""Equalisers: the same function with weights and activations that are easier to round.

What is divided, shifted or rotated before a layer, its neighbour makes good: nothing is left to do
when the model runs, but for a rotation, which is a product with a matrix of signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import genesis
from genesis import nn
from genesis.autograd import no_grad
from genesis.compress.codes import encode
from genesis.compress.format import Format
from genesis.compress.statistics import Statistics


@no_grad()
def smooth_(norm: Any, layers: Sequence[Any], seen: Statistics, share: float = 0.5) -> Any:
    """Move a share of the activations' peaks into the weights of the layers after a norm.

    Channel j is divided by ``peak[j]**share / greatest_weight[j]**(1 - share)`` (SmoothQuant).
    """
    greatest = np.max([np.abs(layer.weight.detach().numpy()).max(0) for layer in layers], 0)
    factor = np.maximum(seen.peak, 1e-5) ** share / np.maximum(greatest, 1e-5) ** (1 - share)
    return _scale_(norm, layers, factor)


@no_grad()
def activation_aware_(
    norm: Any, layers: Sequence[Any], seen: Statistics, format: Format, tries: int = 11
) -> Any:
    """Grow the weights of large activations before they are rounded, as far as that helps (AWQ).

    The share of the activations' mean sizes by which channels are scaled is the one with which the
    outputs of the layers are least off.
    """
    size, second = np.sqrt(np.maximum(seen.energy, 1e-10)), seen.second
    weights = [layer.weight.detach().numpy().astype(np.float64) for layer in layers]
    best, chosen = np.inf, np.ones_like(size)
    for share in np.linspace(0, 1, tries):
        factor = size**share
        factor /= math.sqrt(factor.max() * factor.min())
        off = 0.0
        for w in weights:
            back = encode(w * factor, format).decode()[:, : w.shape[1]] / factor - w
            off += float(np.einsum("ij,jk,ik->", back, second, back, optimize=True))
        if off < best:
            best, chosen = off, factor
    return _scale_(norm, layers, chosen)


def _scale_(norm: Any, layers: Sequence[Any], factor: Any) -> Any:
    """Divide what a norm gives by factors of channels, and multiply the weights after it."""
    by = genesis.tensor(factor.astype(np.float32))
    norm.weight.copy_(norm.weight / by)
    if getattr(norm, "bias", None) is not None:
        norm.bias.copy_(norm.bias / by)
    for layer in layers:
        layer.weight.copy_(layer.weight * by)
    return factor


@no_grad()
def recenter_(norm: Any, layers: Sequence[Any], seen: Statistics) -> None:
    """Take the means of channels away after a norm; the biases of the layers make them good.

    ``W x + b = W (x - mean) + (b + W mean)``
    """
    if norm.bias is None or any(layer.bias is None for layer in layers):
        raise ValueError("recenter_: the norm and the layers need biases")
    mean = genesis.tensor(seen.mean.astype(np.float32))
    norm.bias.copy_(norm.bias - mean)
    for layer in layers:
        layer.bias.copy_(layer.bias + layer.weight @ mean)


@no_grad()
def correct_bias_(layer: Any, before: Any, seen: Statistics) -> None:
    """Make good what a quantised layer is off by on average: ``b -= (Q - W) mean``."""
    if layer.bias is None:
        raise ValueError("correct_bias_: the layer needs a bias")
    off = layer.weight.dequantize() - before
    layer.bias.copy_(layer.bias - off @ genesis.tensor(seen.mean.astype(np.float32)))


def hadamard(n: int) -> Any:
    """A rotation of n channels by signs over the root of n, a power of two, perhaps times 12 or 20.

    >>> np.allclose(hadamard(24) @ hadamard(24).T, np.eye(24))
    True
    """
    base = n
    while base % 2 == 0 and base not in (12, 20):
        base //= 2
    start = {1: np.ones((1, 1)), 12: _paley(11), 20: _paley(19)}.get(base)
    if start is None:
        raise ValueError(f"hadamard: {n} channels have no such rotation here")
    while len(start) < n:
        start = np.block([[start, start], [start, -start]])
    return start / math.sqrt(n)


def _paley(q: int) -> Any:
    """A Hadamard matrix of q + 1 rows, for a prime q that is 3 more than a multiple of 4."""
    squares = {x * x % q for x in range(1, q)}
    residue = np.array([0] + [1 if x in squares else -1 for x in range(1, q)])
    jacobsthal = residue[(np.arange(q)[:, None] - np.arange(q)) % q]
    skew = np.block([[np.zeros((1, 1)), np.ones((1, q))], [-np.ones((q, 1)), jacobsthal]])
    return skew + np.eye(q + 1)


class Rotated(nn.Module):
    """A linear layer whose input is rotated, and its weight with it: the same function.

    Rotated activations have no outliers: each is a sum of all, with signs.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        turn = genesis.tensor(hadamard(layer.weight.shape[1]).astype(np.float32))
        self.register_buffer("turn", turn)
        with no_grad():
            layer.weight.copy_(layer.weight @ turn)
        self.layer = layer

    def forward(self, input: Any) -> Any:
        """The layer of the rotated input."""
        return self.layer(input @ self.turn)


__all__ = [
    "Rotated", "activation_aware_", "correct_bias_", "hadamard", "recenter_", "smooth_",
]  # fmt: skip
