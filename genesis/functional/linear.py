"""The affine map of the last dimension, which most layers are made of, and one of 8-bit floats."""

from __future__ import annotations

from typing import Any

from genesis.functional.arithmetic import cast
from genesis.functional.contraction import matmul
from genesis.functional.function import chosen_precision, one_operation
from genesis.functional.movement import transpose
from genesis.ir.dtype import STORED, DType, bfloat16, float32


@chosen_precision
@one_operation
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


def scaled_mm(
    mat_a: Any,
    mat_b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    output_dtype: DType = bfloat16,
) -> Any:
    """``(mat_a * scale_a) @ (mat_b * scale_b) + bias`` of matrices of 8-bit floats.

    A scale is one number, or one for each row of `mat_a` and each column of `mat_b`: shapes (), (M,
    1), (1, N). Products are summed up as they are and scaled afterwards, in float32; matrix units
    that take 8-bit floats need half the time they need for 16 bits.

    >>> import genesis
    >>> a, b = genesis.ones(2, 3).to(genesis.float8_e4m3fn), genesis.eye(3).to(genesis.float8_e5m2)
    >>> scaled_mm(a, b, 0.5, genesis.tensor([[1.0, 2.0, 4.0]]))
    tensor([[0.5000, 1.0000, 2.0000],
            [0.5000, 1.0000, 2.0000]], dtype=bfloat16)
    """
    if mat_a.dtype not in STORED or mat_b.dtype not in STORED:
        names = " or ".join(dtype.name for dtype in STORED)
        raise TypeError(f"scaled_mm: {mat_a.dtype} and {mat_b.dtype} are not both {names}")
    total = matmul(cast(mat_a, float32), cast(mat_b, float32)) * scale_a * scale_b
    return cast(total if bias is None else total + cast(bias, float32), output_dtype)


__all__ = ["linear"]
