"""Jacobians and Hessians: the gradients along every axis at once, by `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from genesis import functional
from genesis import ndarray as nd
from genesis.func.gradients import Argnums, Function, chosen, linearize, vjp
from genesis.func.pullback import Tree, zeros_like
from genesis.func.vmap_transform import vmap
from genesis.tensor.tensor import Tensor


def jacrev(
    func: Function, argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Function:
    """The function that gives the Jacobian of `func`, row by row: best for few outputs.

    For every output and every argument in `argnums` its shape is that of the output followed by
    that of the argument. `chunk_size` is how many rows are computed together at most.

    >>> import genesis
    >>> genesis.func.jacrev(genesis.square)(genesis.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    @wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        picked, rest = chosen("jacrev", func, argnums, args, kwargs)
        value, pull, *aux = vjp(rest, *picked, has_aux=has_aux)
        outputs = Tree.of(value)

        def rows(number: int, y: Tensor) -> Any:
            found = _by_basis(lambda w: pull(_alone(outputs, number, w)), y, chunk_size)
            blocks = Tree.of(found if isinstance(argnums, tuple) else found[0])
            return blocks.filled(_shaped(x, y.shape + x.shape[1:]) for x in blocks.leaves)

        found = outputs.filled(rows(k, y) for k, y in enumerate(outputs.leaves))
        return (found, *aux) if has_aux else found

    return jacobian


def jacfwd(
    func: Function, argnums: Argnums = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Function:
    """The function that gives the Jacobian of `func`, column by column: best for few inputs.

    The result is that of `jacrev`.
    """

    @wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        picked, rest = chosen("jacfwd", func, argnums, args, kwargs)
        kept: list[Any] = []

        def without_aux(*given: Any) -> Any:
            result = rest(*given)
            if has_aux:
                result, aux = result
                kept.append(aux)
            return result

        value, push = linearize(without_aux, *picked)
        inputs, outputs = Tree.of(picked), Tree.of(value)

        def columns(number: int, x: Tensor) -> list[Tensor]:
            def along(t: Tensor) -> Any:
                return push(*_alone(inputs, number, t))

            found = Tree.of(_by_basis(along, x, None, randomness)).leaves
            pairs = zip(found, outputs.leaves, strict=True)
            return [_shaped(functional.movedim(d, 0, -1), y.shape + x.shape) for d, y in pairs]

        by_input = [columns(k, x) for k, x in enumerate(inputs.leaves)]
        single = not isinstance(argnums, tuple)
        rows = [inputs.filled(row) for row in zip(*by_input, strict=True)]
        found = outputs.filled(row[0] if single else row for row in rows)
        return (found, *kept) if has_aux else found

    return jacobian


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """The function that gives the second derivatives of `func`.

    >>> import genesis
    >>> genesis.func.hessian(lambda x: (x**3).sum())(genesis.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacrev(jacrev(func, argnums), argnums)


def _by_basis(
    function: Callable[[Tensor], Any], like: Tensor, chunk: int | None, randomness: str = "error"
) -> Any:
    """What a function gives for every tensor that is 1 at one place and 0 elsewhere."""
    count = like.numel()
    basis = Tensor(nd.eye(count, dtype=like.dtype, device=like.device))
    basis = functional.reshape(basis, (count, *like.shape))
    return vmap(function, randomness=randomness, chunk_size=chunk)(basis)


def _alone(tree: Tree, number: int, x: Tensor) -> Any:
    """A tree of zeros, but for one leaf."""
    return tree.filled(x if k == number else zeros_like(y) for k, y in enumerate(tree.leaves))


def _shaped(x: Tensor, shape: Any) -> Tensor:
    found: Tensor = functional.reshape(x, tuple(shape))
    return found
