"""`Function`: an operation with its gradient rule, the one way to define either.

A subclass gives `forward`, arrays to arrays, and `backward`, gradients of the results to gradients
of the arguments. `apply` runs it. On arrays (`NDArray`) that is just `forward`. Where a tensor is
among the arguments, the recorder that the layer above installs does the same and remembers what
backward needs.

A rule is written once, with functions of this package and operators. The tape hands it plain
arrays, or tensors when derivatives of the gradient are wanted too: so every order of derivative
comes from the one rule. A gradient may be given in the shape that broadcasting made: it is summed
to the shape of its argument, and cast to its dtype, on the way there.

`with_gradient` makes a `Function` of a function and its rule, where both are no more than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial, wraps
from operator import attrgetter
from types import FunctionType
from typing import Any, ClassVar, TypeVar, cast

from genesis.functional.error_messages import WRONG, named, reword
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import rewatched, surroundings, thread, unwatched

F = TypeVar("F", bound=Callable[..., Any])

OWN = "genesis.functional."  #: where functions are that call no code of users but by `rewatched`


class Context:
    """What an operation remembers from `forward` for `backward`.

    Anything may be kept as an attribute. Arrays that gradients flow through are kept with
    `save_for_backward`, and are as they were in `saved_tensors` whatever is written since.
    """

    #: For every argument, whether its gradient is wanted.
    needs_input_grad: Sequence[bool] = ()
    #: Results that have no gradient.
    non_differentiable: Sequence[Any] = ()
    #: Whether `backward` gets zeros, rather than None, for a result nothing was computed from.
    materialize_grads = True

    _saved: Sequence[Any] = ()
    _restore: Callable[[Any], Any] | None = None
    #: What is left of `_saved` once backward went through with some gradients; None: nothing.
    _left: Callable[[Sequence[Any]], Sequence[Any] | None] | None = None

    def save_for_backward(self, *arrays: Any) -> None:
        """Keep arguments or results of `forward`, or None, for `backward`."""
        self._saved = arrays

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved: arrays, or tensors where derivatives of the gradient are wanted."""
        restore = self._restore
        return tuple(self._saved if restore is None else map(restore, self._saved))

    def mark_non_differentiable(self, *results: Any) -> None:
        """Say which results have no gradient: positions, counts, masks."""
        self.non_differentiable = results

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing gradients come as zeros (the default) or as None."""
        self.materialize_grads = value


class Function:
    """An operation and its gradient rule; `genesis.autograd.Function` is the one for users."""

    #: ``forward(ctx, *args)``: the result, or a tuple of results.
    forward: ClassVar[Callable[..., Any]]
    #: ``backward(ctx, *grads)``: the gradients of the arguments, None for what has none.
    backward: ClassVar[Callable[..., Any]]
    #: Whether results depend on nothing but arguments, so that what is built for some is copied.
    copied: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.copied = cls.__module__.startswith(OWN)

    @staticmethod
    def rule_of(ctx: Any) -> Hashable:
        """All that `backward` depends on but what was saved; None: it is not known."""
        return None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """The operation on tensors, or on arrays."""
        try:
            for x in args:
                if isinstance(x, _tape.kind):
                    if precision.choose is not None:
                        args = precision.choose(cls.__name__, args)
                    if thread.recorder is None:
                        return _tape.record(cls, args)
                    own = cls.__module__.startswith(OWN)
                    return (unwatched if own else rewatched)(_tape.record, cls, args)
            return cls.forward(Context(), *args)
        except WRONG as error:
            reword(error)
            raise


class TapeHooks:
    """What the tape, a layer above, does with tensors; see `install`."""

    kind: type | tuple[()] = ()
    record: Callable[[type[Function], tuple[Any, ...]], Any]
    wrap: Callable[[NDArray], Any]
    unwrap: Callable[[Any], NDArray]

    copies: Any  #: what copies graphs that were built before: `genesis.autograd.composite_cache`


_tape = TapeHooks()


def install(
    kind: type,
    record: Callable[[type[Function], tuple[Any, ...]], Any],
    wrap: Callable[[NDArray], Any],
    unwrap: Callable[[Any], NDArray],
) -> None:
    """Have `record` run functions on arguments of a `kind` that wraps arrays."""
    _tape.kind, _tape.record = kind, record
    _tape.wrap, _tape.unwrap = wrap, unwrap


def install_compositions(copies: Any) -> None:
    """Have functions that are `one_operation`, and all others on tensors, called by `copies`."""
    _tape.copies, _tape.record = copies, copies.operation


def one_operation(function: F) -> F:
    """Have a composition be one operation to the tape, whose graph is built once and then copied.

    It is a function of tensors and settings alone, draws no random numbers and writes to nothing
    but its arguments.
    """

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if thread.recorder is not None:
            return unwatched(_tape.copies.call, function, args, kwargs)
        return _tape.copies.call(function, args, kwargs)

    return called  # type: ignore[return-value]


class Precision(threading.local):
    """In which dtype operations on tensors compute, where somebody chooses: see `genesis.amp`."""

    name = "as given"
    choose: Callable[[str, tuple[Any, ...]], tuple[Any, ...]] | None = None


precision = Precision()


def _choose(chosen: tuple[str, Any]) -> None:
    precision.name, precision.choose = chosen


surroundings.append((partial(attrgetter("name", "choose"), precision), _choose))


def chosen_precision(function: F) -> F:
    """Have the precision chosen for a composition, by its name, as it is for every `Function`."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if precision.choose is not None:
            given = precision.choose(function.__name__, (*args, *kwargs.values()))
            args, named = given[: len(args)], given[len(args) :]
            kwargs = dict(zip(kwargs, named, strict=True))
        if thread.recorder is None:
            return function(*args, **kwargs)
        return unwatched(function, *args, **kwargs)

    return called  # type: ignore[return-value]


# ---- a function and its rule


def keep(ctx: Any, operands: Sequence[Any]) -> None:
    """Save operands of which some are Python numbers, or None for what is not needed."""
    ctx.numbers = [None if isinstance(x, NDArray) else x for x in operands]
    ctx._saved = [x if isinstance(x, NDArray) else None for x in operands]


def kept(ctx: Any) -> list[Any]:
    """The operands that `keep` saved."""
    return [n if x is None else x for x, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)]


class Derived(Function):
    """A function of arrays and its gradient: see `with_gradient`."""

    function: ClassVar[Callable[..., Any]]
    gradient: ClassVar[Callable[..., Any]]
    #: Where among the arguments, the result and the needs is what the gradient takes.
    takes: ClassVar[tuple[int, ...]]

    @classmethod
    def forward(cls, ctx: Any, *args: Any) -> Any:
        """The function."""
        result = cls.function(*args)
        ctx.rule, ctx.count = cls, len(args)
        if cls.takes and any(ctx.needs_input_grad):
            given = (*args, result, ctx.needs_input_grad)
            keep(ctx, [given[k] for k in cls.takes])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """The gradients of the first arguments; the others have none."""
        found = ctx.rule.gradient(grad, *(kept(ctx) if ctx.rule.takes else ()))
        listed = found if isinstance(found, tuple) else (found,)
        return (*listed, *[None] * (ctx.count - len(listed)))


def _arguments(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def with_gradient(gradient: Callable[..., Any]) -> Callable[[F], F]:
    """A function of arrays as one of tensors, too, with the gradient that is given.

    The gradient is a function of that of the result and, by their names, of those of the arguments
    that it takes, of the `result`, and of `needs`, which says for every argument whether its
    gradient is wanted; nothing else is saved. It gives the gradients of the arguments from the
    first on, up to the last that has one::

        @with_gradient(lambda grad, input, other: (grad * other, grad * input))
        def product(input, other):
            return nd.multiply(input, other)
    """

    def made(function: F) -> F:
        plain_function = cast(FunctionType, function)
        names, wanted = _arguments(plain_function), _arguments(cast(FunctionType, gradient))[1:]
        members = {
            "__doc__": function.__doc__,
            "function": staticmethod(function),
            "gradient": staticmethod(gradient),
            "takes": tuple([(*names, "result", "needs").index(name) for name in wanted]),
        }
        title = "".join([word.capitalize() for word in function.__name__.split("_")])
        operation: type[Derived] = type(title, (Derived,), members)
        apply = operation.apply
        values = plain_function.__defaults__ or ()
        most, least = len(names), len(names) - len(values)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                rest = names[len(args) :]
                given = {**dict(zip(names[least:], values, strict=True)), **kwargs}
                if not kwargs.keys() <= {*rest} <= given.keys():
                    function(*args, **kwargs)  # it says itself what is wrong
                args = (*args, *[given[name] for name in rest])
            elif least <= len(args) < most:
                args += values[len(args) - most :]
            return apply(*args)

        return named(called, function.__name__)  # type: ignore[return-value]

    return made


def written(x: Any, result: Any, inplace: bool) -> Any:
    """The result of an operation on a tensor or an array, written into it if wanted."""
    if not inplace or result is x:
        return result
    return x.overwrite(result, made_for_it=True) if is_tensor(x) else x.assign(result)


def view_of(x: Any, steps: Any) -> Any:
    """A tensor seen through steps, if that is quickly made; else it is None."""
    return _tape.copies.view(x, steps)


def is_tensor(x: Any) -> bool:
    """Whether `x` is of the layer above."""
    return isinstance(x, _tape.kind)


def wrapped(array: NDArray) -> Any:
    """An array as the layer above has it, where that is there."""
    return _tape.wrap(array) if _tape.kind else array


def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of arrays that has no gradient on tensors, or on arrays."""
    tensors = False
    given = []
    for x in args:
        if isinstance(x, _tape.kind):
            tensors = True
            x = _tape.unwrap(x)
        given.append(x)
    for name, x in kwargs.items():
        if isinstance(x, _tape.kind):
            tensors = True
            kwargs[name] = _tape.unwrap(x)
    if tensors and not kwargs:
        copied = _tape.copies.without_gradient(function, args)
        if copied is not None:
            return copied
    try:
        result = function(*given, **kwargs)
    except WRONG as error:
        reword(error)
        raise
    if not tensors:
        return result
    if isinstance(result, tuple):
        return tuple(_tape.wrap(x) if isinstance(x, NDArray) else x for x in result)
    return _tape.wrap(result) if isinstance(result, NDArray) else result


__all__ = [
    "Context", "Function", "TapeHooks", "chosen_precision", "install", "install_compositions",
    "is_tensor", "keep", "kept", "one_operation", "plain", "precision",
    "with_gradient", "written",
]  # fmt: skip
