"""Whether operations are recorded for gradients: a setting of each thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from genesis.ndarray.value import surroundings

F = TypeVar("F", bound=Callable[..., Any])


class _State(threading.local):
    enabled = True
    inference = False
    #: Sees each operation with its arrays and result, and gives the result; set by `scan`.
    observe: Callable[[Any, Any, Any], Any] | None = None


state = _State()


def is_grad_enabled() -> bool:
    """Whether this thread records operations."""
    return state.enabled


surroundings.append(is_grad_enabled)  # a recorded function is recorded anew for the other mode


def is_inference_mode_enabled() -> bool:
    """Whether this thread is in `inference_mode`."""
    return state.inference


class _Mode:
    """A setting for a ``with`` block, or for every call of a function it decorates."""

    def __init__(self, enabled: bool, inference: bool | None = None) -> None:
        self._wanted = enabled, inference
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((state.enabled, state.inference))
        state.enabled = self._wanted[0]
        if self._wanted[1] is not None:
            state.inference = self._wanted[1]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state.enabled, state.inference = self._before.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with type(self)(*self._arguments()):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    def _arguments(self) -> tuple[Any, ...]:
        return self._wanted


class no_grad(_Mode):  # noqa: N801 - a word of this field, used like a statement
    """Record nothing: results need no gradient.

    >>> import genesis
    >>> x = genesis.ones(2, requires_grad=True)
    >>> with genesis.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __init__(self) -> None:
        super().__init__(False)

    def _arguments(self) -> tuple[Any, ...]:
        return ()


class enable_grad(_Mode):  # noqa: N801
    """Record again inside `no_grad`."""

    def __init__(self) -> None:
        super().__init__(True)

    def _arguments(self) -> tuple[Any, ...]:
        return ()


class inference_mode(_Mode):  # noqa: N801
    """Record nothing, and refuse to use the results where gradients are recorded later."""

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode
        super().__init__(not mode, mode)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._mode,)


class set_grad_enabled(_Mode):  # noqa: N801
    """Record or not: from here on, or until a ``with`` block ends."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> None:
        if not self._before:  # it was not set when it was made, but used again
            super().__enter__()

    def __call__(self, function: F) -> F:
        self.__exit__(None, None, None)
        return super().__call__(function)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._wanted[0],)


__all__ = [
    "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad",
    "set_grad_enabled",
]  # fmt: skip
