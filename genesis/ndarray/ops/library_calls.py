"""Calls of the library and composites: operations that stay one node.

Most of what a user calls is composed of primitives, and the compiler sees through it. Two kinds of
operations do not dissolve. Those of `genesis.ir.numpy_library` (factorisations, transforms,
sorting) are called. And a *composite*, a function of arrays that is composed of primitives, stays
whole where the backend at hand claims it: the definition goes along, for the oracle and for arrays
that the backend refuses after all. Everywhere else a composite is its definition, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import ref

from genesis.ir import ops
from genesis.ir.node import Call, Form, const, node
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.primitive import parameter
from genesis.ndarray.core.realisation import backend_of, collect
from genesis.ndarray.core.value import Several, Value, apart

P = ParamSpec("P")
R = TypeVar("R")


def call(
    name: str, options: tuple[Any, ...], operands: Sequence[Value], results: Sequence[Form]
) -> list[Value]:
    """The results of an operation of the library."""
    forms = tuple((x.dtype, x.shape) for x in operands)
    return _items(Call(name, options, forms, tuple(results)), operands)


def composite(function: Callable[P, R]) -> Callable[P, R]:
    """A function of an array, and of more arrays, numbers and texts, that a backend may claim.

    The backend is the one of the first argument, and knows the function by its name.

    >>> from genesis import ndarray as nd
    >>> @composite
    ... def hypotenuse(x, y):
    ...     return nd.sqrt(x * x + y * y)
    >>> hypotenuse(nd.array(3.0), nd.array(4.0)).item()  # no backend claims it: two primitives
    5.0
    """
    name = function.__name__

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0] if args else None
        if not isinstance(first, NDArray) or name not in backend_of(first.device).composites:
            return function(*args, **kwargs)
        return _whole(name, function, first.device, args, kwargs)  # type: ignore[no-any-return]

    return called


def _whole(
    name: str,
    function: Callable[..., Any],
    device: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One CALL node for a function, with the graph the function makes of stand-ins."""
    names = [*map(str, range(len(args))), *kwargs]
    given = [*args, *kwargs.values()]
    operands = [x.value for x in given if isinstance(x, NDArray)]
    stand_ins = [parameter(x.dtype, x.shape, device) for x in operands]
    rest = iter(stand_ins)
    with apart():
        placed = [wrap(next(rest)) if isinstance(x, NDArray) else x for x in given]
        named = dict(zip(kwargs, placed[len(args) :], strict=True))
        result = function(*placed[: len(args)], **named)
        roots = [x.value for x in (result if isinstance(result, tuple) else (result,))]
    nodes = {v: node(ops.PARAMETER, (), k, v.dtype, v.shape) for k, v in enumerate(stand_ins)}
    for v in collect(roots)[0]:
        if v.memory is not None:
            raise TypeError(f"{name}: a composite depends on its arguments only, not on {v!r}")
        if v.op is ops.SCALAR:
            nodes[v] = const(v.attr, v.dtype)
        elif v not in nodes:
            nodes[v] = node(v.op, tuple(nodes[i] for i in v.inputs), v.attr, v.dtype, v.shape)
    options = tuple((n, x) for n, x in zip(names, given, strict=True) if not isinstance(x, NDArray))
    forms = tuple((x.dtype, x.shape) for x in operands)
    results = tuple((v.dtype, v.shape) for v in roots)
    items = _items(Call(name, options, forms, results, tuple(nodes[v] for v in roots)), operands)
    return tuple(map(wrap, items)) if isinstance(result, tuple) else wrap(items[0])


def _items(attr: Call, operands: Sequence[Value]) -> list[Value]:
    device = operands[0].device
    whole = Several(ops.CALL, tuple(operands), attr, attr.results[0][0], (), device)
    items = [Value(ops.ITEM, (whole,), k, *form, device) for k, form in enumerate(attr.results)]
    whole.items.extend(map(ref, items))
    return items
