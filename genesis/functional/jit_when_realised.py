"""Losses of results that a program has computed: they run under `jit`, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from genesis.functional.function import is_tensor
from genesis.ndarray import pytree
from genesis.ndarray.core.value import thread
from genesis.ndarray.tracing.jit import jit

F = TypeVar("F", bound=Callable[..., Any])

#: What a setting of a composition may be for a program to be made for its value.
_SETTINGS = (bool, int, float, str, type(None))
_MOST_SETTINGS = 64


def one_program(function: F) -> F:
    """Have a composition run under `jit` where it goes on from what a program has computed.

    That is what a loss does with the results of a jitted model. Elsewhere its operations stay
    pending: what they are computed from, and what follows, then is one program with them. So do
    they the first time that settings have certain values: others may come every time.
    """
    jitted = jit(function)
    seen: set[tuple[Any, ...]] = {()}

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if thread.recorder is not None or not _goes_on(given):
            return function(*args, **kwargs)
        settings = tuple([x for x in given if not is_tensor(x)])
        if any(type(x) not in _SETTINGS for x in settings):
            return function(*args, **kwargs)
        if settings in seen:
            return jitted(*args, **kwargs)
        if len(seen) > _MOST_SETTINGS:
            seen.clear()
        seen.add(settings)
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def _goes_on(args: tuple[Any, ...]) -> bool:
    """Whether the tensors lie in memory, and one of them was computed from what needs gradients.

    There is nothing more to them: a hook, say, is for the one that it was registered with.
    """
    tensors: list[Any] = [x for x in args if is_tensor(x)]
    if all(x.is_leaf for x in tensors):
        return False
    unwrapped = [pytree.unwrap(x) for x in tensors]
    return all(rest is not None and array.storage.actual.is_realised for array, rest in unwrapped)


__all__ = ["one_program"]
