"""`cond` and `while_loop`: control flow that depends on numbers, beside `scan`.

Outside of recorded functions the numbers are there, and Python decides. Where they are not known
yet (in `jit`, `vmap` and the body of a `scan`) both branches are computed and one is selected, and
a loop runs as often as it may at most, changing nothing once its condition has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis import functional
from genesis.autograd.scan import scan
from genesis.func.pullback import Tree
from genesis.ndarray.core.value import need_contents, thread
from genesis.tensor.tensor import Tensor


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    """``true_fn(*operands)`` if `pred` holds, a bool or a tensor of one, else the other.

    In a recorded function both are computed, so both give tensors of one structure, of the same
    shapes and dtypes, and neither may fail or write to what is outside.

    >>> import genesis
    >>> f = lambda x: genesis.func.cond(x.sum() > 0, genesis.sin, genesis.neg, (x,))
    >>> genesis.vmap(f)(genesis.tensor([-2.0, 0.0]))
    tensor([2., -0.])
    """
    if not _is_unknown(pred):
        return (true_fn if bool(pred) else false_fn)(*operands)
    then, other = Tree.of(true_fn(*operands)), Tree.of(false_fn(*operands))
    if then.structure != other.structure:
        raise ValueError("cond: the branches give different structures")
    chosen = functional.reshape(pred, ())
    return then.filled(
        _selected("cond", chosen, x, y) for x, y in zip(then.leaves, other.leaves, strict=True)
    )


def _is_unknown(pred: Any) -> bool:
    """Whether a condition is a tensor that is known only when the program runs."""
    if isinstance(pred, Tensor) and pred.numel() != 1:
        raise ValueError(f"a condition is one number, not a tensor of shape {tuple(pred.shape)}")
    return isinstance(pred, Tensor) and thread.recorder is not None


def _selected(name: str, chosen: Tensor, x: Any, y: Any) -> Tensor:
    forms = [(tuple(z.shape), z.dtype) if isinstance(z, Tensor) else type(z) for z in (x, y)]
    if forms[0] != forms[1] or not isinstance(x, Tensor):
        raise ValueError(f"{name}: {forms[0]} on one way and {forms[1]} on the other")
    found: Tensor = functional.where(chosen, x, y)
    return found


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    operands: Any,
    max_steps: int | None = None,
) -> Any:
    """Repeat ``operands = body_fn(*operands)`` while ``cond_fn(*operands)`` holds.

    At most `max_steps` times, which in a recorded function must be said: it is a `scan` of that
    length there. Operands are a tuple, and keep their structure, shapes and dtypes.

    >>> import genesis
    >>> halve = lambda x, n: (x / 2, n + 1)
    >>> start = genesis.tensor(20.0), genesis.tensor(0)
    >>> genesis.func.while_loop(lambda x, n: x > 1, halve, start)
    (tensor(0.6250), tensor(5))
    """
    carry = tuple(operands)
    if thread.recorder is None:
        steps = 0
        while (max_steps is None or steps < max_steps) and bool(cond_fn(*carry)):
            carry = _checked(body_fn(*carry), carry)
            steps += 1
        return carry
    if max_steps is None:
        need_contents("while_loop: how often the body runs", "give the most as max_steps=")

    def step(carry: Any, _: Any) -> tuple[Any, None]:
        before = Tree.of(carry)
        after = Tree.of(_checked(body_fn(*carry), carry))
        goes_on = functional.reshape(cond_fn(*carry), ())
        pairs = zip(after.leaves, before.leaves, strict=True)
        return before.filled(_selected("while_loop", goes_on, x, y) for x, y in pairs), None

    return scan(step, carry, length=max_steps)[0]


def _checked(after: Any, before: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a body gives, as a tuple of the structure it was given."""
    found: tuple[Any, ...] = tuple(after) if isinstance(after, tuple | list) else (after,)
    if Tree.of(found).structure != Tree.of(before).structure:
        raise ValueError("while_loop: the body gives another structure than it is given")
    return found
