"""Hooks: functions that an object calls when something happens, registered and taken off again."""

from __future__ import annotations

from typing import Any

from genesis.ndarray.core.value import Changes, thread


class RemovableHook:
    """A hook that was registered; `remove` takes it off again."""

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks = hooks
        self._hook = hook

    def remove(self) -> None:
        """Take the hook off; more than once does nothing."""
        thread.listener.reading_all(self._hooks)
        if self._hook in self._hooks:
            thread.listener.change(self._hooks, _remove, (self._hook,))
            _remove(self._hooks, self._hook)


def add_hook(hooks: list[Any], hook: Any, first: bool = False) -> RemovableHook:
    """Add to the hooks that an object has."""
    thread.listener.change(hooks, _insert, (hook, first))
    _insert(hooks, hook, first)
    return RemovableHook(hooks, hook)


def _insert(hooks: list[Any], hook: Any, first: bool) -> None:
    hooks.insert(0 if first else len(hooks), hook)
    Changes.count += 1


def _remove(hooks: list[Any], hook: Any) -> None:
    hooks.remove(hook)
    Changes.count += 1


__all__ = ["RemovableHook", "add_hook"]
