"""Errors in the words of whoever called: the operation's name, and dims where arrays have axes.

An operation is made of array functions, whose errors begin with their own names and speak of axes.
What leaves an operation is worded anew; so that costs nothing unless something is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from operator import index as as_int
from types import FrameType, FunctionType
from typing import Any, TypeVar, cast

from genesis.ndarray.ops import elementwise, sliding_windows

F = TypeVar("F", bound=Callable[..., Any])

#: Where functions of tensors are, but for those of this package.
_ELSEWHERE = ("genesis.tensor.creation", "genesis.nn.functional")

#: The errors of wrong arguments.
WRONG = (IndexError, TypeError, ValueError)

_WORDS = {
    "axis": "dim",
    "axes": "dimensions",
    "an array": "a tensor",
    "arrays": "tensors",
    "keepdims": "keepdim",
    ".astype": ".to",
}


def reword(error: Exception) -> None:
    """Have an error that leaves an operation speak of what was called."""
    text = error.args[0] if len(error.args) == 1 else None
    named = re.match(r"[a-z][\w.]*: ", text) if isinstance(text, str) else None
    name = _called(sys._getframe(1)) if named else None
    if isinstance(text, str) and named and name:
        error.args = (f"{name}: {_of_tensors(text[named.end() :])}",)


def reword_index(error: Exception) -> None:
    """Have an error about ``x[key]`` of a tensor speak of dims."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (_of_tensors(error.args[0]),)


def _of_tensors(text: str) -> str:
    said = r"\b(axis|axes|an array|arrays|keepdims)\b|\.astype\b"
    return re.sub(said, lambda word: _WORDS[word[0]], text)


def require_same_dtype(name: str, *tensors: Any) -> None:
    """Refuse tensors of several dtypes, which this operation does not promote."""
    dtypes = [x.dtype for x in tensors if hasattr(x, "dtype")]
    if any(d is not dtypes[0] for d in dtypes):
        kinds = " and ".join(map(str, dict.fromkeys(dtypes)))
        raise TypeError(f"{called(name)}: needs one dtype, not {kinds}; convert one with .to")


def require_float(name: str, *tensors: Any) -> None:
    """Refuse tensors of integers or bool for what is defined for floating point alone."""
    for x in tensors:
        if hasattr(x, "dtype") and not (x.dtype.is_float or x.dtype.is_complex):
            raise TypeError(f"{called(name)}: needs floating point, not {x.dtype}; use .to first")


def called(name: str) -> str:
    """The operation that was called, for an error; `name` where it is the one that looks."""
    return _called(sys._getframe(1)) or name


def worded(function: F) -> F:
    """A function of arrays' sizes, whose errors are reworded."""

    @wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except WRONG as error:
            reword(error)
            raise

    return cast(F, told)


def _called(frame: FrameType | None) -> str | None:
    """The outermost operation that is being computed: the one that was called."""
    found = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("genesis.functional."):
            found = _public(module.rpartition(".")[2], frame.f_code.co_name) or found
        elif module in _ELSEWHERE and not frame.f_code.co_name.startswith(("_", "<")):
            found = frame.f_code.co_name
        elif not module.startswith("genesis."):
            break
        frame = frame.f_back
    return found


def _public(module: str, name: str) -> str | None:
    from genesis import functional

    if name.startswith(("_", "<")):
        return None
    if callable(getattr(functional, name, None)):
        return name
    if module in ("fft", "linalg") and hasattr(getattr(functional, module), name):
        return f"{module}.{name}"
    return name if name in functional.special.__all__ else None


def named(function: F, name: str) -> F:
    """A function that is made inside of another, by the name it is called by."""
    made = cast(FunctionType, function)
    made.__name__ = made.__qualname__ = name
    made.__code__ = made.__code__.replace(co_name=name, co_qualname=name)
    return function


# ---- dims


def normal_dim(name: str, dim: int, rank: int) -> int:
    """A possibly negative dim as one from 0 to rank - 1."""
    number = as_int(dim)
    if not -rank <= number < rank:
        raise IndexError(
            f"{called(name)}: dim {number} does not exist in a tensor of {rank} dimensions"
        )
    return number % rank


def normal_dims(name: str, dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """One dim, several, or None for all, as distinct ascending numbers from 0."""
    if dims is None:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    found = [normal_dim(name, d, rank) for d in listed]
    if len(set(found)) != len(found):
        raise ValueError(f"{called(name)}: dims {tuple(listed)} name a dim twice")
    return tuple(sorted(found))


# ---- sizes

broadcast_shapes = worded(elementwise.broadcast_shapes)
per_axis = worded(sliding_windows.per_axis)

__all__ = [
    "WRONG", "broadcast_shapes", "called", "named", "normal_dim", "normal_dims", "per_axis",
    "reword", "reword_index", "worded",
]  # fmt: skip
