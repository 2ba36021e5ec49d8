"""`Function`, as users define one: `forward` and `backward` see tensors.

The rules of Genesis itself (`genesis.functional.function`) are written for arrays. This class puts
tensors around the arrays on the way in, and takes them off on the way out, so that a rule has all
methods of a tensor. Nothing else differs: the tape does not know one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from genesis.autograd import mode
from genesis.functional import function
from genesis.ndarray import NDArray


class Function(function.Function):
    """An operation and its gradient rule.

    Instead of taking `ctx`, `forward` may leave it to ``setup_context(ctx, inputs, output)``.

    >>> import genesis
    >>> class Cube(genesis.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x.pow(3)
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return grad * 3 * x.square()
    >>> x = genesis.tensor(2.0, requires_grad=True)
    >>> (first,) = genesis.autograd.grad(Cube.apply(x), x, create_graph=True)
    >>> (second,) = genesis.autograd.grad(first, x)
    >>> first.item(), second.item()
    (12.0, 12.0)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            setup = getattr(cls, "setup_context", None)
            cls.forward = staticmethod(_forward(cls.forward, setup))
        if "backward" in vars(cls):
            cls.backward = staticmethod(_backward(cls.backward))


def once_differentiable(rule: Callable[..., Any]) -> Callable[..., Any]:
    """For a `backward` that has no gradient of its own: asking for one is an error."""

    @wraps(rule)
    def backward(ctx: function.Context, *grads: Any) -> Any:
        with mode.no_grad():
            results = rule(ctx, *grads)
        if not (mode.is_grad_enabled() and any(getattr(g, "requires_grad", False) for g in grads)):
            return results
        given = results if isinstance(results, tuple) else (results,)
        found = tuple(x if x is None else _Once.apply(x, grads[0]) for x in given)
        return found if isinstance(results, tuple) else found[0]

    return backward


class _Once(function.Function):
    """Gradients that have none themselves, though they are computed from others."""

    @staticmethod
    def forward(ctx: function.Context, x: Any, grad: Any) -> Any:
        return x.copy()

    @staticmethod
    def backward(ctx: function.Context, *grads: Any) -> Any:
        raise RuntimeError(
            "a gradient of a gradient is wanted of a function that is marked with "
            "@once_differentiable"
        )


#: What `forward` and `backward` are given.
FunctionCtx = function.Context


def _forward(rule: Callable[..., Any], setup: Callable[..., Any] | None) -> Callable[..., Any]:
    """A user's `forward` as one on arrays."""

    @wraps(rule)
    def forward(ctx: function.Context, *args: Any) -> Any:
        given = _tensors(args)
        with mode.no_grad():
            if setup is None:
                results = rule(ctx, *given)
            else:
                results = rule(*given)
                setup(ctx, given, results)
        ctx._saved = _arrays(ctx._saved)
        ctx.non_differentiable = _arrays(ctx.non_differentiable)
        return _arrays(results) if isinstance(results, tuple) else _arrays([results])[0]

    return forward


def _backward(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A user's `backward` as one on arrays, or on tensors of a graph."""

    @wraps(rule)
    def backward(ctx: function.Context, *grads: Any) -> Any:
        restore = ctx._restore
        assert restore is not None
        ctx._restore = lambda entry: _tensors([restore(entry)])[0]
        results = rule(ctx, *_tensors(grads))
        results = results if isinstance(results, tuple) else (results,)
        return results if mode.is_grad_enabled() else _arrays(results)

    return backward


def _tensors(xs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(function.wrapped(x) if isinstance(x, NDArray) else x for x in xs)


def _arrays(xs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x.array if function.is_tensor(x) else x for x in xs)
