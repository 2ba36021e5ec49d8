"""Hooks of modules: functions that see a module's calls, and gradients on their way through it.

For gradients a call is put between two operations that compute nothing. The one after it sees the
gradients of the results first, the one before it those of the arguments at last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.functional.function import Function
from genesis.ndarray import NDArray
from genesis.tensor.tensor import Tensor


class Hooks(list[Any]):
    """The hooks of a module. What adds and removes them counts the changes."""

    __slots__ = ("__weakref__",)
    __genesis_counted__ = True


class HookedCall:
    """One call of a module, whose gradients hooks see."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.before = list(module._backward_pre_hooks)
        self.after = list(module._backward_hooks)
        self.entered = False  # whether an argument needs a gradient
        self.arriving: tuple[Any, ...] = ()

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, as the module gets them."""
        if not any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return args
        self.entered = True
        return tuple(_Pass.apply(self.arguments, *args))

    def leave(self, result: Any) -> Any:
        """The result, as the caller gets it."""
        several = isinstance(result, tuple)
        found = _Pass.apply(self.results, *(result if several else (result,)))
        return found if several else found[0]

    def results(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the results, as hooks would have them."""
        for hook in self.before:
            grads = _replaced(hook(self.module, _tensors(grads)), grads)
        self.arriving = grads
        if not self.entered:
            self.arguments((None,))
        return grads

    def arguments(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the arguments, as hooks would have them."""
        for hook in self.after:
            grads = _replaced(hook(self.module, _tensors(grads), _tensors(self.arriving)), grads)
        return grads


class _Pass(Function):
    """What comes, unchanged; `see` has gradients on their way back, and gives those that go on."""

    @staticmethod
    def forward(ctx: Any, see: Callable[..., tuple[Any, ...]], *xs: Any) -> Any:
        ctx.see = see
        ctx.set_materialize_grads(False)
        return tuple(x.copy() if isinstance(x, NDArray) else x for x in xs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.see(grads))


def _tensors(grads: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Tensor(g) if isinstance(g, NDArray) else g for g in grads)


def _replaced(given: Any, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a hook gave instead of gradients, of the kind they were; or they themselves."""
    if given is None:
        return grads
    new = given if isinstance(given, tuple) else (given,)
    if len(new) != len(grads):
        raise RuntimeError(f"a hook gave {len(new)} gradients instead of {len(grads)}")
    plain = any(isinstance(g, NDArray) for g in grads)
    return tuple(g.array if plain and isinstance(g, Tensor) else g for g in new)
