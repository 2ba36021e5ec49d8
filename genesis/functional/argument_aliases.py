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


_RANKS = {"channels_last": 4, "channels_last_3d": 5}


def require_format(name: str, wanted: Any, x: Any) -> None:
    """Refuse what is no memory format, or none for a tensor; PyTorch's own words are known, too."""
    if wanted is None:
        return
    word = str(wanted).rpartition(".")[2]
    if word not in ("contiguous_format", "preserve_format", *_RANKS):
        raise TypeError(f"{name}: memory_format is one of genesis.memory_format, not {wanted!r}")
    rank = _RANKS.get(word)
    if rank is not None and rank != len(getattr(x, "shape", ())):
        raise RuntimeError(
            f"{name}: {word} is for {rank} dimensions, not shape {tuple(getattr(x, 'shape', ()))}"
        )


def spelled(function: F) -> F:
    """A function that takes `axis`, `keepdims` and `out`, too."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return function(*args)
        if "memory_format" in kwargs:  # see `genesis.tensor.memory_formats`
            given = args[0] if args else None
            require_format(function.__name__, kwargs.pop("memory_format"), given)
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


__all__ = ["has_dim", "require_format", "respell", "spelled", "written_out"]
