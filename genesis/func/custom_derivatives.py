"""Functions with derivatives of their own: `custom_vjp` and `custom_jvp`."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from genesis.autograd import mode
from genesis.autograd.function import Function
from genesis.func.pullback import Differentiated, Tree, pull, zeros_like
from genesis.tensor.tensor import Tensor

Rule = Callable[..., Any]


class custom_vjp:  # noqa: N801 - a decorator
    """A function whose gradient is given by `defvjp`.

    ``forward(*args)`` gives the result and what the gradient needs; ``backward(residuals, *grads)``
    the gradients of the arguments, a tuple with None for those that have none.

    >>> import genesis
    >>> @genesis.func.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, grad: (grad.clamp(-1, 1),))
    >>> genesis.func.grad(lambda x: (5 * clipped(x)).sum())(genesis.tensor(2.0))
    tensor(1.)
    """

    def __init__(self, function: Rule) -> None:
        update_wrapper(self, function)
        self._function = function
        self._rules: tuple[Rule, Rule] | None = None

    def defvjp(self, forward: Rule, backward: Rule) -> None:
        """Say what the gradient is."""
        self._rules = forward, backward

    def __call__(self, *args: Any) -> Any:
        """The function, with that gradient."""
        if self._rules is None:
            raise RuntimeError(f"custom_vjp: {self.__name__} has no gradient; call defvjp")  # type: ignore[attr-defined]
        forward, backward = self._rules
        given = Tree.of(args)
        made: list[Tree] = []

        class CustomVjp(Function):
            @staticmethod
            def forward(ctx: Any, *leaves: Any) -> Any:
                result, residuals = forward(*given.filled(leaves))
                kept, ctx.form = _tensors_of(residuals)
                ctx.save_for_backward(*kept)
                made.append(Tree.of(result))
                return tuple(made[0].leaves)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                found = backward(ctx.form(ctx.saved_tensors), *grads)
                return _spread("custom_vjp", found, args)

        results = CustomVjp.apply(*given.leaves)
        return made[0].filled(results)


class custom_jvp:  # noqa: N801 - a decorator
    """A function whose derivative along tangents is given by `defjvp`.

    ``rule(primals, tangents)`` gives the result and its tangent, which is linear in the tangents.
    The gradient is that linear function's transpose, so it needs no rule.

    >>> import genesis
    >>> @genesis.func.custom_jvp
    ... def twice(x):
    ...     return 2 * x
    >>> twice.defjvp(lambda primals, tangents: (2 * primals[0], 3 * tangents[0]))
    >>> genesis.func.grad(twice)(genesis.tensor(1.0))
    tensor(3.)
    """

    def __init__(self, function: Rule) -> None:
        update_wrapper(self, function)
        self._function = function
        self._rule: Rule | None = None

    def defjvp(self, rule: Rule) -> None:
        """Say what the derivative is."""
        self._rule = rule

    def __call__(self, *args: Any) -> Any:
        """The function, with that derivative."""
        if self._rule is None:
            raise RuntimeError(f"custom_jvp: {self.__name__} has no derivative; call defjvp")  # type: ignore[attr-defined]
        function, rule = self._function, self._rule
        given = Tree.of(args)
        made: list[Tree] = []

        class CustomJvp(Function):
            @staticmethod
            def forward(ctx: Any, *leaves: Any) -> Any:
                tensors = [x for x in leaves if isinstance(x, Tensor)]
                ctx.save_for_backward(*tensors)
                made.append(Tree.of(function(*given.filled(leaves))))
                return tuple(made[0].leaves)

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                saved = iter(ctx.saved_tensors)
                leaves = [next(saved) if isinstance(x, Tensor) else x for x in given.leaves]
                return _transposed(rule, given.filled(leaves), grads)

        results = CustomJvp.apply(*given.leaves)
        return made[0].filled(results)


def _transposed(rule: Rule, primals: Any, grads: tuple[Any, ...]) -> Any:
    """The gradients of primals, by the transpose of a rule that is linear in tangents."""
    in_graph = mode.is_grad_enabled()
    given = Tree.of(primals)
    tangents = [
        Differentiated(zeros_like(x).array, True) if _is_real(x) else None for x in given.leaves
    ]
    with mode.enable_grad():
        _, result = rule(primals, given.filled(tangents))
    outputs = Tree.of(result).leaves
    places = [t for t in tangents if t is not None]
    found = iter(pull(outputs, list(grads), places, in_graph))
    for t in places:
        t.active = False
    return tuple(None if t is None else next(found) for t in tangents)


def _is_real(x: Any) -> bool:
    return isinstance(x, Tensor) and bool(x.dtype.is_float or x.dtype.is_complex)


def _tensors_of(tree: Any) -> tuple[list[Tensor], Callable[[Any], Any]]:
    """The tensors in a tree, and how to make it again of others."""
    leaves = Tree.of(tree)

    def made_of(tensors: Any) -> Any:
        rest = iter(tensors)
        return leaves.filled(next(rest) if isinstance(x, Tensor) else x for x in leaves.leaves)

    return [x for x in leaves.leaves if isinstance(x, Tensor)], made_of


def _spread(name: str, gradients: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gradients of arguments as those of all their leaves."""
    if not isinstance(gradients, tuple) or len(gradients) != len(args):
        raise TypeError(f"{name}: backward gives a tuple, a gradient or None for every argument")
    found: list[Any] = []
    for gradient, x in zip(gradients, args, strict=True):
        count = len(Tree.of(x).leaves)
        leaves = [None] * count if gradient is None else Tree.of(gradient).leaves
        if len(leaves) != count:
            raise TypeError(f"{name}: a gradient has another structure than its argument")
        found += leaves
    return tuple(found)
