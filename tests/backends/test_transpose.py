"""Transposing in registers: the shuffles, carried out on lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from genesis.backends.cpu.codegen.emit import LLVMValue
from genesis.backends.cpu.codegen.transpose import transpose


class Register:
    """A vector whose lanes are known, and which counts shuffles."""

    shuffles = 0

    def __init__(self, lanes: Sequence[object], element: str) -> None:
        self.lanes, self.element, self.width = list(lanes), element, len(lanes)

    def shuffle(self, other: Register | None, lanes: Sequence[int]) -> Register:
        Register.shuffles += 1
        both = self.lanes + (other.lanes if other is not None else [])
        return Register([both[k] for k in lanes], self.element)

    def intrinsic(self, name: str) -> Register:
        assert name == "arithmetic.fence", "which gives what it is given"
        return self


def turned(rows: int, width: int, element: str) -> list[list[object]]:
    """The columns of a matrix of its indices."""
    matrix = [Register([(r, c) for c in range(width)], element) for r in range(rows)]
    return [cast(Register, x).lanes for x in transpose(cast(list[LLVMValue], matrix))]


@pytest.mark.parametrize("element", ["i1", "i8", "half", "float", "i64"])
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("width", [2, 4, 8, 16, 64])
def test_columns(rows: int, width: int, element: str) -> None:
    assert turned(rows, width, element) == [[(r, c) for r in range(rows)] for c in range(width)]


def test_a_square_takes_a_shuffle_for_each_vector_and_step() -> None:
    Register.shuffles = 0
    turned(16, 16, "float")
    assert Register.shuffles == 16 * 4
    Register.shuffles = 0
    turned(16, 4, "float")
    assert Register.shuffles == 12 + 4 * 2, "4 vectors are put together, then turned inside"
