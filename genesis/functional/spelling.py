"""Other spellings of arguments: NumPy's `axis` and `keepdims`, and `out`, which is written into.

Functions are written once, with PyTorch's first names for their arguments. The ones that users call
by `genesis.NAME`, and the methods that have a `dim`, take these as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

from genesis.functional.function import is_tensor

F = TypeVar("F", bound=Callable[..., Any])

ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def spelled(function: F) -> F:
    """A function that takes `axis`, `keepdims` and `out`, too."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return function(*args)
        kwargs.pop("memory_format", None)  # see `genesis.tensor.formats`
        out = kwargs.pop("out", None)
        for alias, name in ALIASES.items():
            if alias in kwargs:
                if name in kwargs:
                    raise TypeError(f"{function.__name__}: {alias} and {name} are one argument")
                kwargs[name] = kwargs.pop(alias)
        result = function(*args, **kwargs)
        return result if out is None else written_out(function.__name__, result, out)

    return called  # type: ignore[return-value]


def has_dim(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument `dim`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        code is not None and "dim" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    )


def written_out(name: str, result: Any, out: Any) -> Any:
    """Results in the tensors that were given for them, which take their shapes."""
    if not is_tensor(out):
        if not isinstance(out, Sequence) or len(out) != len(result):
            raise TypeError(f"{name}: out is a tensor for each of the results")
        for x, target in zip(result, out, strict=True):
            written_out(name, x, target)
        return type(result)(*out) if hasattr(result, "_fields") else out
    if not is_tensor(result):
        raise TypeError(f"{name}: there is more than one result; out is a tuple of tensors")
    if result.requires_grad:
        raise RuntimeError(f"{name}: what is written to out has no gradient; use no_grad()")
    if tuple(out.shape) != tuple(result.shape):
        out.resized(name, result.shape)
    out._replace(name, result)
    return out


def respell(module: ModuleType, names: Sequence[str]) -> None:
    """Have the functions of a module take the other spellings."""
    for name in names:
        function = getattr(module, name)
        if inspect.isfunction(function):
            setattr(module, name, spelled(function))


__all__ = ["has_dim", "respell", "spelled", "written_out"]
