"""Views as tensors of their own: ``NAME_copy`` is a copy of what the view NAME gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.functional import diagonals, movement, strided
from genesis.functional.error_messages import named


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    def copy(input: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(input, *args, **kwargs)
        if isinstance(found, tuple | list):
            return tuple(movement.clone(x) for x in found)
        return movement.clone(found)

    named(
        copy, f"{function.__name__}_copy"
    ).__doc__ = f"A copy of what `{function.__name__}` gives."
    return copy


def alias_copy(input: Any) -> Any:
    """A copy of the tensor."""
    return movement.clone(input)


as_strided_copy, diagonal_copy = _copied(strided.as_strided), _copied(diagonals.diagonal)
expand_copy, narrow_copy = _copied(movement.expand), _copied(movement.narrow)
permute_copy, select_copy = _copied(movement.permute), _copied(movement.select)
split_copy, squeeze_copy = _copied(movement.split), _copied(movement.squeeze)
split_with_sizes_copy = _copied(movement.split_with_sizes)
t_copy, transpose_copy = _copied(movement.t), _copied(movement.transpose)
unbind_copy, unfold_copy = _copied(movement.unbind), _copied(strided.unfold)
unsqueeze_copy, view_copy = _copied(movement.unsqueeze), _copied(movement.view)

__all__ = [
    "alias_copy", "as_strided_copy", "diagonal_copy", "expand_copy", "narrow_copy", "permute_copy",
    "select_copy", "split_copy", "split_with_sizes_copy", "squeeze_copy", "t_copy",
    "transpose_copy", "unbind_copy", "unfold_copy", "unsqueeze_copy", "view_copy",
]  # fmt: skip
