"""How exactly float32 is multiplied, where a chip has faster ways than float32 itself.

Matrix units of GPUs multiply numbers of 8 significant bits (bfloat16). A float32 is the sum of
three of those, and of the nine products of two such sums, six are all that float32 can tell.
"""

from __future__ import annotations

from typing import Any

from genesis import backends

PRECISIONS = ("highest", "high", "medium")


def get_float32_matmul_precision() -> str:
    """How exactly float32 is multiplied: ``"highest"``, ``"high"`` or ``"medium"``.

    >>> import genesis
    >>> genesis.get_float32_matmul_precision()
    'highest'
    """
    from genesis.compiler.options import current  # importing Genesis does not load the compiler

    return current().float32_matmul


def set_float32_matmul_precision(precision: Any) -> None:
    """Say how exactly float32 is multiplied in matrix products, convolutions and attention.

    ``"highest"`` is as exact as float32, ``"high"`` keeps 16 bits of the numbers and ``"medium"``
    8, as in PyTorch. On GPUs these are six products of bfloat16, three and one; CPUs always
    multiply float32.
    """
    from genesis.compiler.options import change

    if precision not in PRECISIONS:
        names = ", ".join(map(repr, PRECISIONS))
        raise ValueError(f"set_float32_matmul_precision: {precision!r} is none of {names}")
    change(float32_matmul=precision)


class _Products:
    """How products of float32 matrices are computed, by the name PyTorch has for it."""

    @property
    def allow_tf32(self) -> bool:
        """Whether they may be rounded to fewer bits: see `set_float32_matmul_precision`."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_float32_matmul_precision("high" if value else "highest")


backends.cuda.matmul = _Products()
