"""PyTorch's backward operators, from the rules of `genesis.functional`.

A rule there is written once, for tensors of the framework; here it is run on arrays. Of a single
`Function` that is its backward, with a context made of what PyTorch hands over; of a composition,
the tape goes through it: what forward computes on the way is lazy, and not computed unless the
gradient needs it. Half precisions are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis.autograd import enable_grad, grad
from genesis.functional.function import Context, Function
from genesis.ndarray.core.ndarray import NDArray
from genesis.tensor.tensor import Tensor
from genesis.torch.aten.half_precision import wide, widened
from genesis.torch.aten.registry import implements

_ALL = (True,) * 8


def gradient_of(
    rule: type[Function], saved: Sequence[Any], /, *grads: Any, **attributes: Any
) -> tuple[Any, ...]:
    """What a function's backward gives for what its forward `saved`, and other `attributes`."""
    context = Context()
    context.needs_input_grad = _ALL
    context.save_for_backward(*saved)
    vars(context).update(attributes)
    found = rule.backward(context, *grads)
    return found if isinstance(found, tuple) else (found,)


def backward(name: str, rule: type[Function]) -> None:
    """Register the operator ``(grad, saved, *numbers)`` that is a function's backward."""

    @implements(name)
    def run(gradient: Any, saved: Any, *numbers: Any, **named: Any) -> NDArray:
        (g, x), dtype = widened(gradient, saved)
        given = (*numbers, *named.values())
        found: NDArray = gradient_of(rule, (x,), g, rule=rule, numbers=given)[0]
        return found.astype(dtype)


def gradients(
    function: Callable[..., Any], gradient: NDArray, inputs: Sequence[NDArray], *rest: Any
) -> tuple[Any, ...]:
    """The gradients of `inputs`, the first arguments of a composition, from that of its result."""
    given = [Tensor(wide(x), requires_grad=True) for x in inputs]
    fixed = (Tensor(x) if isinstance(x, NDArray) else x for x in rest)
    with enable_grad():
        result = function(*given, *fixed)
    start = Tensor(gradient.astype(result.dtype))
    found = grad(result, given, start, materialize_grads=True)
    pairs = zip(found, inputs, strict=True)
    return tuple(None if f is None else f.array.astype(x.dtype) for f, x in pairs)
