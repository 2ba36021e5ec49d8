"""Whether operations are recorded for gradients: a setting of each thread."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, ClassVar, TypeVar

from genesis.ndarray.core.value import surroundings

F = TypeVar("F", bound=Callable[..., Any])


class _State(threading.local):
    def __init__(self) -> None:
        self.enabled = True
        self.inference = False
        #: Sees each operation with its arrays and result, and gives the result; set by `scan`.
        self.observe: Callable[[Any, Any, Any], Any] | None = None


state = _State()


def is_grad_enabled() -> bool:
    """Whether this thread records operations."""
    return state.enabled


surroundings.append((partial(getattr, state, "enabled"), partial(setattr, state, "enabled")))


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

    def __exit__(self, *error: object) -> None:
        state.enabled, state.inference = self._before.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(function):
                return self._resumed(function(*args, **kwargs))
            with _Mode(*self._wanted):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    def _resumed(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """A generator that has the setting while it runs; who asks it for values keeps theirs."""
        go_on: Callable[[Any], Any] = generator.send
        given: Any = None
        while True:
            try:
                with _Mode(*self._wanted):
                    value = go_on(given)
            except StopIteration as end:
                return end.value
            try:
                given = yield value
                go_on = generator.send
            except BaseException as error:  # GeneratorExit among them: it decides what to do
                go_on, given = generator.throw, error


class _Switch(_Mode):
    """A mode without arguments: it decorates with or without parentheses."""

    _enabled: ClassVar[bool]

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if orig_func is None else _Mode(cls._enabled)(orig_func)

    def __init__(self, orig_func: Callable[..., Any] | None = None) -> None:
        super().__init__(self._enabled)


class no_grad(_Switch):  # noqa: N801 - a word of this field, used like a statement
    """Record nothing: results need no gradient.

    >>> import genesis
    >>> x = genesis.ones(2, requires_grad=True)
    >>> with genesis.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    _enabled = False


class enable_grad(_Switch):  # noqa: N801
    """Record again inside `no_grad`."""

    _enabled = True


class inference_mode(_Mode):  # noqa: N801
    """Record nothing, and refuse to use the results where gradients are recorded later."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode, mode)


class set_grad_enabled(_Mode):  # noqa: N801
    """Record or not: from here on, or until a ``with`` block ends."""

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> None:
        if not self._before:  # it was not set when it was made, but used again
            super().__enter__()

    def __call__(self, function: F) -> F:
        """Have a function record, or not, whenever it is called."""
        self.__exit__(None, None, None)
        return super().__call__(function)
