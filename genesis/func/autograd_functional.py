"""Jacobians and products with them as PyTorch's `autograd.functional` has them.

The transforms are functions of functions; these are the same for functions and their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.autograd.mode import is_grad_enabled
from genesis.func import gradients as transforms
from genesis.func import jacobians
from genesis.tensor import creation


def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = True,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of `func` at inputs, a tensor or a tuple of tensors.

    >>> import genesis
    >>> genesis.autograd.functional.jacobian(genesis.square, genesis.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    given, argnums = _listed(inputs)
    make = jacobians.jacfwd if strategy == "forward-mode" else jacobians.jacrev
    return _kept(make(func, argnums)(*given), create_graph)


def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = True,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a function that returns one number."""
    given, argnums = _listed(inputs)
    return _kept(jacobians.hessian(func, argnums)(*given), create_graph)


def vjp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """The value of `func`, and the gradients of the inputs for those of the outputs, `v`."""
    given, argnums = _listed(inputs)
    value, pull = transforms.vjp(func, *given)
    weights = _along("vjp", v, _listed(value)[0])
    found = pull(weights if isinstance(value, tuple) else weights[0])
    return _kept((value, found[0] if isinstance(argnums, int) else found), create_graph)


def jvp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """The value of `func`, and its derivative along `v`."""
    given, _ = _listed(inputs)
    return _kept(transforms.jvp(func, given, _along("jvp", v, given)), create_graph)


def vhp(
    func: Callable[..., Any],
    inputs: Any,
    v: Any = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """The value of a function that returns one number, and the product of `v` and its Hessian."""
    given, argnums = _listed(inputs)
    numbers = tuple(range(len(given)))
    _, pull = transforms.vjp(transforms.grad(func, numbers), *given)
    found = pull(_along("vhp", v, given))
    return _kept((func(*given), found[0] if isinstance(argnums, int) else found), create_graph)


#: The Hessian is symmetric.
hvp = vhp


def _listed(inputs: Any) -> tuple[tuple[Any, ...], Any]:
    """Inputs as a tuple, and which arguments they are, as they were given."""
    if isinstance(inputs, tuple | list):
        return tuple(inputs), tuple(range(len(inputs)))
    return (inputs,), 0


def _along(name: str, v: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is multiplied by: `v`, or 1 where there is one number only."""
    if v is not None:
        return _listed(v)[0]
    if len(given) != 1 or given[0].numel() != 1:
        raise RuntimeError(f"{name}: v may be left out only where there is one number")
    return (creation.ones_like(given[0]),)


def _kept(results: Any, create_graph: bool) -> Any:
    """Results on the tape only if that is asked for."""
    return results if create_graph and is_grad_enabled() else transforms.stop_gradient(results)


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
