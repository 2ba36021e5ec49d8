"""The affine map of the last dimension, which most layers are made of."""

from __future__ import annotations

from typing import Any

from genesis.functional.contraction import matmul
from genesis.functional.function import chosen_precision
from genesis.functional.movement import transpose


@chosen_precision
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``, with a weight ``(out, in)``.

    >>> import genesis
    >>> linear(genesis.tensor([1.0, 2.0]), genesis.tensor([[3.0, 4.0]]), genesis.tensor([5.0]))
    tensor([16.])
    """
    if len(weight.shape) not in (1, 2) or not input.shape or input.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"linear: an input of shape {tuple(input.shape)} needs a weight (out, "
            f"{input.shape[-1] if input.shape else 'in'}), got {tuple(weight.shape)}"
        )
    total = matmul(input, transpose(weight, 0, -1))
    return total if bias is None else total + bias


__all__ = ["linear"]
