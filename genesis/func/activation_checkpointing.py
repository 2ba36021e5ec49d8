"""`checkpoint`: what a function makes on the way is computed again for its gradient, not kept.

Forward, the function runs and its tape is dropped. Backward it runs again on the same arguments,
with the same random numbers. A policy names operations whose results are kept all the same, and
how: as they are, in the host's memory, or in few bits. What is kept is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from genesis import ndarray as nd
from genesis.autograd import mode
from genesis.func.pullback import Differentiated, Explored, Tree, began, pull
from genesis.functional import clone, function
from genesis.ir.size import product
from genesis.ndarray import NDArray, random
from genesis.ndarray.core.interop import realize
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.value import Value, thread
from genesis.tensor.tensor import Tensor

#: Operations that take long for the size of their results.
PRODUCTS = frozenset(("Attention", "Contract", "Convolution", "ConvolutionTranspose", "Matmul"))


class Kept(NamedTuple):
    """How a result is kept: what is stored of it, and how that is read."""

    store: Callable[[NDArray], list[NDArray]]
    load: Callable[[list[NDArray]], NDArray]


#: What is kept of an operation's result, by the operation's name and the result; None: nothing.
Policy = Callable[[str, NDArray], Kept | None]


def _loaded(parts: list[NDArray]) -> NDArray:
    return parts[0]


AS_IT_IS = Kept(lambda x: [x], _loaded)


def save_nothing(name: str, result: NDArray) -> Kept | None:
    """Compute everything again."""
    return None


def save_products(name: str, result: NDArray) -> Kept | None:
    """Keep products of matrices, convolutions and attention: they take long for their size."""
    return AS_IT_IS if name in PRODUCTS else None


def save_only(*names: str) -> Policy:
    """Keep the results of operations with these names, as `grad_fn` shows them."""
    wanted = {name.removesuffix("Backward") for name in names}
    return lambda name, result: AS_IT_IS if name in wanted else None


def offload(policy: Policy) -> Policy:
    """Keep what a policy keeps in the host's memory."""

    def kept(name: str, result: NDArray) -> Kept | None:
        if policy(name, result) is None:
            return None
        device = result.device
        return Kept(lambda x: [x.to("cpu")], lambda parts: parts[0].to(device))

    return kept


def in_few_bits(policy: Policy, bits: int = 8) -> Policy:
    """Keep what a policy keeps of floats in 8 or 4 bits, scaled row by row: gradients are inexact.

    The error of an element is at most half a step, the greatest of its row over 127 (or 7).
    """
    if bits not in (4, 8):
        raise ValueError(f"in_few_bits: {bits} bits; there are 8 and 4")

    def kept(name: str, result: NDArray) -> Kept | None:
        found = policy(name, result)
        if found is None or not result.dtype.is_float or not result.shape:
            return found
        form = result.shape, result.dtype  # not the result: it would be kept, too
        return Kept(partial(_rounded, bits=bits), partial(_scaled, bits=bits, form=form))

    return kept


def _rounded(x: NDArray, bits: int) -> list[NDArray]:
    most = (1 << (bits - 1)) - 1
    scale = nd.amax(nd.abs(x), -1, keepdims=True) / most
    steps = nd.round(x / nd.where(scale > 0, scale, 1)).astype("int8")
    if bits == 4:
        flat = nd.concat([steps.reshape(-1), nd.zeros(x.size % 2, "int8", x.device)]) & 15
        steps = (flat[::2] | (flat[1::2] << 4)).astype("int8")
    return [steps, scale]


def _scaled(parts: list[NDArray], bits: int, form: tuple[Any, Any]) -> NDArray:
    (steps, scale), (shape, dtype) = parts, form
    if bits == 4:
        halves = nd.stack([(steps << 4) >> 4, steps >> 4], 1).reshape(-1)
        steps = halves[: product(shape)].reshape(shape)
    return (steps.astype(scale.dtype) * scale).astype(dtype)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    policy: Policy = save_nothing,
    preserve_rng_state: bool = True,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """``function(*args, **kwargs)``, keeping of it for its gradient what `policy` says.

    With `preserve_rng_state` it draws the same random numbers again. `use_reentrant` is taken for
    the sake of programs that say it. In a recorded function (`jit`, `vmap`) nothing is kept between
    programs, and this is a call like any other: there `memory_budget` says what may be kept.

    >>> import genesis
    >>> x = genesis.tensor([0.5, 1.0], requires_grad=True)
    >>> genesis.func.checkpoint(lambda x: x.exp().sin(), x).sum().backward()
    >>> x.grad
    tensor([-0.1283, -2.4783])
    """
    if thread.recorder is not None:
        return function(*args, **kwargs)
    given = Tree.of((args, kwargs))
    run = _Run(function, given, policy, preserve_rng_state)
    tensors = [x for x in given.leaves if isinstance(x, Tensor)]
    outputs, results, kept, ends = run.first(tensors)
    if not mode.is_grad_enabled() or not (ends or any(x.requires_grad for x in tensors)):
        return outputs.filled(_put(outputs.leaves, map(Tensor, results)))
    made = CheckpointFunction.apply(run, results, kept, *tensors, *ends)
    return outputs.filled(_put(outputs.leaves, made))


def _put(leaves: Sequence[Any], tensors: Iterable[Tensor]) -> list[Any]:
    rest = iter(tensors)
    return [next(rest) if isinstance(x, Tensor) else x for x in leaves]


class _Run:
    """A function that is called once forward, and again for its gradient."""

    def __init__(
        self, function: Callable[..., Any], given: Tree, policy: Policy, preserve: bool
    ) -> None:
        self.function, self.given, self.policy = function, given, policy
        self.states = _states() if preserve else {}
        self.kinds: list[Kept | None] = []  # of all operations, in their order
        self.ends = 0  # how many tensors from outside it uses

    def call(self, tensors: Sequence[Tensor], observe: Any) -> Tree:
        """Call the function, with a look at every operation."""
        args, kwargs = self.given.filled(_put(self.given.leaves, map(clone, tensors)))
        before, mode.state.observe = mode.state.observe, observe
        try:
            return Tree.of(self.function(*args, **kwargs))
        finally:
            mode.state.observe = before

    def first(self, tensors: Sequence[Tensor]) -> Any:
        """The outputs, also as arrays, what is kept, and where the tape leads outside."""
        kept: list[NDArray] = []

        def keep(kind: type[Any], arrays: list[Any], result: Any) -> Any:
            how = self.policy(kind.__name__, result) if isinstance(result, NDArray) else None
            self.kinds.append(how)
            if how is not None:
                kept.extend(how.store(result.copy()))
            return result

        began_at = began()
        places = [_place(x) for x in tensors]
        outputs = self.call(places, keep)
        there = [x for x in outputs.leaves if isinstance(x, Tensor)]
        explored = Explored.of(there, places, began_at)
        arrays = [wrap(x.array.value) for x in there]
        ends = explored.tensors
        self.ends = len(ends)
        del explored, there
        outputs = Tree([_released(x) for x in outputs.leaves], outputs.structure)
        realize(*arrays, *kept)  # what is not kept goes now, before it is needed again
        return outputs, arrays, kept, ends

    def backward(self, saved: list[Tensor], kept: list[NDArray], grads: list[Any]) -> list[Any]:
        """The gradients of the tensors that were given, and then of those from outside."""
        in_graph = mode.is_grad_enabled()
        kinds, rest = iter(self.kinds), iter(kept)

        def restore(kind: type[Any], arrays: list[Any], result: Any) -> Any:
            how = next(kinds, None)
            if how is None:
                return result
            return how.load([next(rest) for _ in how.store(result)])

        after = _states()
        _set(self.states)
        try:
            with mode.enable_grad():
                places = [clone(x) if in_graph and x.requires_grad else _place(x) for x in saved]
                began_at = began()
                outputs = self.call(places, restore)
        finally:
            _set({g: after[g] for g in self.states})
        there = [x for x in outputs.leaves if isinstance(x, Tensor)]
        explored = Explored.of(there, places, began_at)
        wanted = [x for x in places if x.requires_grad]
        ends = explored.tensors
        if len(ends) != self.ends:
            raise RuntimeError("checkpoint: the function does something else when called again")
        found = pull(there, grads, [*wanted, *ends], in_graph, explored.inside)
        gradients = iter(found)
        return [*(next(gradients) if x.requires_grad else None for x in places), *gradients]


def _place(x: Tensor) -> Tensor:
    """A leaf for an argument; whether its gradient is wanted the tape around knows."""
    return Differentiated(x.array, bool(x.dtype.is_float or x.dtype.is_complex))


def _released(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _states() -> dict[random.Generator, Value]:
    """What the generators that are used by default have come to."""
    return {g: g._state.value for g in random.default_generators()}


def _set(states: dict[random.Generator, Value]) -> None:
    for generator, value in states.items():
        with generator._state.lock:
            generator._state.write(value)


class CheckpointFunction(function.Function):
    """The results of a function that runs again for its gradient."""

    @staticmethod
    def forward(
        ctx: Any, run: _Run, results: list[NDArray], kept: list[NDArray], *given: NDArray
    ) -> Any:
        """What the function has given."""
        count = sum(isinstance(x, Tensor) for x in run.given.leaves)
        ctx.run, ctx.kept, ctx.count = run, kept, count
        ctx.save_for_backward(*given[:count])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients, by another call."""
        saved, weights = (
            [Tensor(x) if isinstance(x, NDArray) else x for x in group]
            for group in (ctx.saved_tensors, grads)
        )
        found = ctx.run.backward(saved, ctx.kept, weights)
        if mode.is_grad_enabled():
            return None, None, None, *found
        arrays = [x if x is None else x.array for x in found]
        del found
        realize(*(x for x in arrays if x is not None))  # before others are computed again
        return None, None, None, *arrays


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]], segments: int, input: Any, **options: Any
) -> Any:
    """Functions one after another, each of so many segments a `checkpoint`."""
    listed = list(functions)
    size = max(1, len(listed) // segments)
    starts = [k * size for k in range(min(segments, len(listed)))]
    for start, end in zip(starts, [*starts[1:], len(listed)], strict=True):
        input = checkpoint(partial(_in_order, listed[start:end]), input, **options)
    return input


def _in_order(functions: Sequence[Callable[..., Any]], x: Any) -> Any:
    for each in functions:
        x = each(x)
    return x
