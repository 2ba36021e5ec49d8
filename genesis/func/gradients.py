"""`grad`, `vjp`, `jvp` and what is made of them: gradients of functions, as functions.

Forward derivatives need no rules of their own. The gradient of a function is linear in the weights
of its outputs, and the gradient of *that*, with respect to those weights, is the derivative in a
direction. It is exact, exists wherever a gradient has a gradient, and what is not needed of the
way back is never computed, because arrays are lazy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from genesis import ndarray as nd
from genesis.autograd import mode
from genesis.func.pullback import (
    Differentiated,
    Traced,
    Tree,
    needs_gradient,
    pull,
    released,
    trace,
    zeros_like,
)
from genesis.tensor.tensor import Tensor

Argnums = int | tuple[int, ...]
Function = Callable[..., Any]


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The function that gives the gradient of `func`, which returns one number.

    With respect to the arguments `argnums`, each a tensor or nested tuples, lists and dictionaries
    of tensors. With `has_aux` the function returns (output, aux), and its gradient (gradient, aux).

    >>> import genesis
    >>> second = genesis.func.grad(genesis.func.grad(genesis.sin))
    >>> round(second(genesis.tensor(1.0)).item(), 4)
    -0.8415
    """

    @wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        traced, found = _value_and_grad("grad", func, argnums, has_aux, args, kwargs)
        return (found, traced.rest) if has_aux else found

    return gradient


def value_and_grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The function that gives (gradient's function's value, gradient); see `grad`.

    With `has_aux` it gives ((value, aux), gradient).
    """

    @wraps(func)
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        traced, found = _value_and_grad("value_and_grad", func, argnums, has_aux, args, kwargs)
        return ((traced.value, traced.rest) if has_aux else traced.value), found

    return value_and_gradient


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """`value_and_grad` with the gradient first, as PyTorch has it: (gradient, value).

    With `has_aux` it gives (gradient, (value, aux)).

    >>> import genesis
    >>> genesis.func.grad_and_value(genesis.square)(genesis.tensor(3.0))
    (tensor(6.), tensor(9.))
    """

    @wraps(func)
    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        traced, found = _value_and_grad("grad_and_value", func, argnums, has_aux, args, kwargs)
        return found, ((traced.value, traced.rest) if has_aux else traced.value)

    return gradient_and_value


def _value_and_grad(
    name: str, func: Function, argnums: Argnums, has_aux: bool, args: Any, kwargs: Any
) -> tuple[Traced, Any]:
    picked, rest = chosen(name, func, argnums, args, kwargs)
    traced = trace(name, rest, picked, has_aux)
    if traced.outputs.structure is not None or traced.outputs.leaves[0].shape != ():
        raise RuntimeError(
            f"{name}: the function returns one number, a tensor of shape (); this one returns "
            f"{_described(traced.outputs)}. Sum it, or use vjp or jacrev"
        )
    one = [_ones_like(x) for x in traced.outputs.leaves]
    found = _filled(traced.inputs, traced.pull(one))
    return traced, found[0] if isinstance(argnums, int) else found


def _described(tree: Tree) -> str:
    shapes = [tuple(x.shape) for x in tree.leaves]
    return f"shape {shapes[0]}" if tree.structure is None else f"{len(shapes)} tensors"


def _ones_like(x: Tensor) -> Tensor:
    return Tensor(nd.ones_like(x.array))


def chosen(
    name: str, func: Function, argnums: Argnums, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], Function]:
    """The arguments `argnums`, and the function of these."""
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in wanted:
        if not -len(args) <= n < len(args):
            raise IndexError(f"{name}: argnums has {n}, but there are {len(args)} arguments")
    places = [n % len(args) for n in wanted]
    if len(set(places)) < len(places) or not places:
        raise ValueError(f"{name}: argnums {argnums} names no argument, or one twice")

    def rest(*picked: Any) -> Any:
        given = list(args)
        for n, x in zip(places, picked, strict=True):
            given[n] = x
        return func(*given, **kwargs)

    return tuple(args[n] for n in places), rest


def _filled(tree: Tree, gradients: Sequence[Any]) -> Any:
    """Gradients in the structure of what they are of; what was not used has zeros."""
    pairs = zip(tree.leaves, gradients, strict=True)
    return tree.filled(zeros_like(x) if g is None else g for x, g in pairs)


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value of `func`, and the function from gradients of its outputs to those of `primals`.

    That gives a tuple, an element for every primal. With `has_aux`, (value, function, aux).

    >>> import genesis
    >>> value, pull = genesis.func.vjp(genesis.exp, genesis.tensor([0.0, 1.0]))
    >>> pull(genesis.tensor([2.0, 0.0]))
    (tensor([2., 0.]),)
    """
    traced = trace("vjp", func, primals, has_aux)

    def pullback(*cotangents: Any) -> Any:
        tree = cotangents[0] if len(cotangents) == 1 else cotangents
        weights = _matching("vjp", "cotangents", Tree.of(tree), traced.outputs)
        return _filled(traced.inputs, traced.pull(weights))

    return (traced.value, pullback, traced.rest) if has_aux else (traced.value, pullback)


def _matching(name: str, what: str, given: Tree, like: Tree) -> list[Any]:
    """The leaves of a tree that has the structure and the shapes of another one."""
    if given.structure != like.structure:
        raise ValueError(f"{name}: {what} have another structure than what they belong to")
    for x, y in zip(given.leaves, like.leaves, strict=True):
        if not isinstance(x, Tensor) or tuple(x.shape) != tuple(y.shape):
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name}: {what} of {found} for a tensor of shape {tuple(y.shape)}")
    return given.leaves


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    """The value of `func` at a tuple of primals, and its derivative along a tuple of tangents.

    With `strict`, outputs that do not depend on the primals are an error.

    >>> import genesis
    >>> x = genesis.tensor(3.0)
    >>> genesis.func.jvp(lambda x: x * x, (x,), (genesis.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise TypeError("jvp: primals and tangents are tuples, an element for every argument")
    traced = trace("jvp", func, primals, has_aux)
    if strict and not all(x.requires_grad for x in traced.outputs.leaves):
        raise RuntimeError("jvp: an output does not depend on the primals, and strict is set")
    push = _pushforward("jvp", traced)
    tangent = push(*tangents)
    return (traced.value, tangent, traced.rest) if has_aux else (traced.value, tangent)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """The value of `func`, and its derivative as a function of tangents.

    `func` is called once, however often the derivative is.

    >>> import genesis
    >>> value, push = genesis.func.linearize(genesis.square, genesis.tensor(3.0))
    >>> push(genesis.tensor(1.0)), push(genesis.tensor(2.0))
    (tensor(6.), tensor(12.))
    """
    traced = trace("linearize", func, primals)
    return traced.value, _pushforward("linearize", traced)


def _pushforward(name: str, traced: Traced) -> Function:
    """The derivative along tangents: the gradient, by its weights, of the gradient."""
    outputs = traced.outputs.leaves
    weights = [Differentiated(zeros_like(x).array, True) if _is_real(x) else None for x in outputs]
    with mode.enable_grad():
        gradients = pull(outputs, weights, traced.places, True)
    pairs = list(zip(outputs, weights, strict=True))
    for weight in weights:
        if weight is not None:
            weight.active = False

    def push(*tangents: Any) -> Any:
        given = _matching(name, "tangents", Tree.of(tangents), traced.inputs)
        recorded = mode.is_grad_enabled() and (traced.in_graph or needs_gradient(given))
        ends = [(g, t) for g, t in zip(gradients, given, strict=True) if g is not None]
        wanted = [w for w in weights if w is not None]
        results = iter(pull([g for g, _ in ends], [t for _, t in ends], wanted, recorded))
        found = [None if w is None else next(results) for _, w in pairs]
        filled = [zeros_like(x) if t is None else t for x, t in zip(outputs, found, strict=True)]
        return traced.outputs.filled(released(filled, recorded))

    return push


def _is_real(x: Tensor) -> bool:
    return bool(x.dtype.is_float or x.dtype.is_complex)


def stop_gradient(tree: Any) -> Any:
    """Tensors as they are, but constant to whoever differentiates; alone or in nested containers.

    >>> import genesis
    >>> f = lambda x: x * genesis.func.stop_gradient(x)
    >>> genesis.func.grad(f)(genesis.tensor(3.0))
    tensor(3.)
    """
    leaves = Tree.of(tree)
    return leaves.filled(released(leaves.leaves, False))
