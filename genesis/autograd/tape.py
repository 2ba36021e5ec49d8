"""The tape: who made a tensor, and gradients back along that way.

An operation on tensors that need gradients makes a `Creator`: the operation's `Function`, its
context, and edges to where its arguments came from. `backward` visits creators from the last to
the first (they are numbered as they are made) and hands each the sum of the gradients of its
results. Rules see plain arrays; with `create_graph` they see tensors, and what they compute is
recorded like everything else.

Contexts save *values*, not arrays: what is written to an array after it was saved changes nothing.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from genesis import functional
from genesis.autograd import anomaly, mode
from genesis.functional.function import OWN, Context, Function
from genesis.ndarray import NDArray, ones, zeros
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.value import CaptureError, rewatched, thread, unwatched

if TYPE_CHECKING:
    from genesis.ndarray.core.value import Value
    from genesis.tensor.tensor import Tensor

Hook = Callable[["Tensor"], "Tensor | None"]

numbers = count(1)
BEFORE = (
    "genesis.jit: backward, inside the function, goes into what was computed before the call: what "
    "is saved there is known to no program. Call it outside, or compute that inside, too"
)
_NONE: Any = MappingProxyType({})
_accumulating = threading.RLock()  # threads may share leaves


class Edge(NamedTuple):
    """Where an argument came from: result `slot` of a creator, or a leaf; and what it was."""

    source: Creator | Tensor
    slot: int
    shape: tuple[Any, ...]
    dtype: Any


class Saved(NamedTuple):
    """A saved value, and where it came from: an argument's edge, a result's number, or neither."""

    value: Value
    origin: Edge | int | None


class Creator:
    """One operation on the tape."""

    __slots__ = (
        "ctx", "edges", "forms", "function", "hooks", "number", "retained", "rule", "where",
        "__weakref__",
    )  # fmt: skip

    ctx: Context | None
    edges: Sequence[Edge | None]  # None: no gradient goes there
    forms: list[tuple[Any, Any, str]]  # shape, dtype and device of every result
    hooks: dict[int, list[Hook]]  # by slot
    retained: dict[int, weakref.ref[Tensor]]  # results that want to keep their gradient
    rule: Hashable  # equal ones make the same of gradients and saved values; None: not known

    def __init__(self, function: type[Function], ctx: Context, edges: Sequence[Edge | None]):
        self.function = function
        self.ctx = ctx
        self.edges = edges
        self.forms = []
        self.hooks = self.retained = _NONE  # most never have any
        self.rule = None
        self.number = next(numbers)
        self.where = ""

    def hooks_of(self, slot: int) -> list[Hook]:
        """The hooks of a result, to add to."""
        if not self.hooks:
            self.hooks = {}
        return self.hooks.setdefault(slot, [])

    def retain(self, slot: int, x: Tensor) -> None:
        """Have a result keep its gradient."""
        self.retained = {**self.retained, slot: weakref.ref(x)}

    @property
    def name(self) -> str:
        """What PyTorch calls such an object: the operation, and that it goes backward."""
        return f"{self.function.__name__}Backward"

    @property
    def next_functions(self) -> tuple[tuple[Creator | None, int], ...]:
        """The creators of the arguments, with the number of the result each is."""
        return tuple(
            (e.source if isinstance(e.source, Creator) else None, e.slot)
            for e in self.edges
            if e is not None
        )

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def saved(self, entry: Saved | None, graph: bool) -> Any:
        """A saved value as a rule sees it: an array, or a tensor that is part of the graph."""
        if entry is None:
            return None
        if not graph:
            return wrap(entry.value)
        from genesis.tensor.tensor import Tensor

        origin = entry.origin
        if isinstance(origin, int):
            return Tensor.made(wrap(entry.value), self, origin)
        if origin is None:
            return Tensor(wrap(entry.value))
        if isinstance(origin.source, Creator):
            return Tensor.made(wrap(entry.value), origin.source, origin.slot)
        leaf = origin.source
        if leaf.array.value is entry.value:
            return leaf
        return alias(origin, entry.value)


def alias(edge: Edge, value: Value) -> Tensor:
    """A tensor whose gradient goes along an edge, with a value that was there."""
    from genesis.tensor.tensor import Tensor

    creator = Creator(_Alias, Context(), [edge])
    creator.forms = [(edge.shape, edge.dtype, value.device)]
    return Tensor.made(wrap(value), creator, 0)


class _Alias(Function):
    """A tensor as it was before it was overwritten, or apart from what it was computed from."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class _Freed:
    """What a context holds after backward went through it."""

    def __iter__(self) -> Any:
        raise RuntimeError(
            "backward: the values saved for gradients have been freed by an earlier backward; "
            "call it with retain_graph=True to go through the same graph again"
        )


FREED: Any = _Freed()  #: the saved values that there were


def edge_to(x: Tensor) -> Edge | None:
    """The edge to where a tensor came from; None if it needs no gradient."""
    if not x.requires_grad:
        return None
    creator = x.creator
    if creator is None:
        return Edge(x, 0, x.array.shape, x.array.dtype)
    return Edge(creator, x.slot, x.array.shape, x.array.dtype)


def record(function: type[Function], args: tuple[Any, ...]) -> Any:
    """Run a function on arguments among which are tensors."""
    from genesis.tensor.tensor import Tensor

    arrays = [x.array if isinstance(x, Tensor) else x for x in args]
    recorder = thread.recorder
    if recorder is not None:
        for x in args:
            if isinstance(x, Tensor) and not x._is_made_in(recorder):
                recorder.journal.reading(x, "array", x.array)
    ctx = Context()
    edges: list[Edge | None] = []
    recording = mode.state.enabled
    if recording:
        edges = [edge_to(x) if isinstance(x, Tensor) else None for x in args]
        recording = any(edges)
        ctx.needs_input_grad = [e is not None for e in edges]
        if recording and any(isinstance(x, Tensor) and x.is_inference() for x in args):
            raise RuntimeError(
                f"{function.__name__}: a tensor made in inference_mode is used where gradients are "
                "recorded; use no_grad for what takes part in training, or a clone"
            )
    try:
        results = function.forward(ctx, *arrays)
    except AttributeError:
        _require_own(function.__name__, arrays)
        raise
    if mode.state.observe is not None:
        results = mode.state.observe(function, arrays, results)
    several = isinstance(results, tuple)
    outputs = results if several else (results,)
    if anomaly.enabled:
        anomaly.check_forward(function.__name__, arrays, outputs)
    if not recording:
        ctx._saved = ()
        made = [_based(Tensor(x), args) if isinstance(x, NDArray) else x for x in outputs]
        return tuple(made) if several else made[0]
    creator = Creator(function, ctx, edges)
    ctx._saved = [_saved(x, arrays, edges, outputs) for x in ctx._saved]
    constant = ctx.non_differentiable
    tensors: list[Any] = []
    for slot, x in enumerate(outputs):
        if not isinstance(x, NDArray):
            creator.forms.append(((), None, ""))
            tensors.append(x)
            continue
        creator.forms.append((x.shape, x.dtype, x.device))
        differentiable = x.dtype.is_float or x.dtype.is_complex
        if not differentiable or any(x is c for c in constant):
            tensors.append(Tensor(x))
        else:
            tensors.append(_based(Tensor.made(x, creator, slot), args))
    rule = function.rule_of(ctx)
    if rule is not None:
        creator.rule = rule, *creator.forms
    if anomaly.enabled:
        anomaly.note(creator)
    return tuple(tensors) if several else tensors[0]


def _require_own(name: str, args: Sequence[Any]) -> None:
    """Say so where the reason for an error is an array of another library."""
    for x in args:
        if hasattr(x, "__array__") and not isinstance(x, NDArray):
            kind = f"{type(x).__module__}.{type(x).__name__}"
            raise TypeError(
                f"{name}: an argument is a {kind}; make a tensor of it with genesis.as_tensor"
            ) from None


def _based(result: Tensor, args: tuple[Any, ...]) -> Tensor:
    """A result that shares an argument's storage is a view of it."""
    storage = result.array.storage
    for x in args:
        array = getattr(x, "array", None)
        if array is not None and array.storage is storage:
            result._base = base = x if x.base is None else x.base
            result._seen = base._generation
            break
    return result


def _saved(
    x: Any, arrays: Sequence[Any], edges: Sequence[Edge | None], outputs: Sequence[Any]
) -> Saved | None:
    if x is None:
        return None
    for array, edge in zip(arrays, edges, strict=True):
        if x is array:
            return Saved(x.value, edge)
    for slot, output in enumerate(outputs):
        if x is output:
            return Saved(x.value, slot)
    return Saved(x.value, None)


# ---- backward


def backward(
    tensors: Sequence[Tensor],
    grad_tensors: Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Add the gradients of the sum of `tensors`, weighted by `grad_tensors`, to the leaves' `grad`.

    Only to those in `inputs` where that is given.
    """
    unwatched(_backward, tensors, grad_tensors, retain_graph, create_graph, inputs)


def _backward(
    tensors: Sequence[Tensor],
    grad_tensors: Sequence[Tensor | None] | None,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Sequence[Tensor] | None,
) -> None:
    walk = Walk(create_graph, bool(create_graph if retain_graph is None else retain_graph))
    walk.begin(tensors, grad_tensors)
    if thread.recorder is None:  # a loss is asked for sooner or later: compute it on the way
        thread.written += [weakref.ref(x.array.storage) for x in tensors]
    if inputs is None:
        walk.run(None)
        for leaf, gradient in walk.leaves.values():
            accumulate(leaf, gradient, create_graph)
        return
    _check_inputs("backward", inputs)
    for x, gradient in zip(inputs, walk.run(inputs), strict=True):
        if gradient is not None:
            accumulate(x, gradient, create_graph)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`; nothing is accumulated.

    `only_inputs` must be true: `backward` is what accumulates gradients in leaves.

    >>> import genesis
    >>> x = genesis.tensor([1.0, 2.0], requires_grad=True)
    >>> genesis.autograd.grad((x * x).sum(), x)
    (tensor([2., 4.]),)
    """
    from genesis.tensor.tensor import Tensor

    if not only_inputs:
        raise ValueError("grad: only_inputs=False is not supported; use backward")
    tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs
    _check_inputs("grad", wanted)
    walk = Walk(create_graph, bool(create_graph if retain_graph is None else retain_graph))
    walk.begin(tensors, weights)
    gradients = unwatched(walk.run, wanted)
    found: list[Tensor | None] = []
    for number, (x, gradient) in enumerate(zip(wanted, gradients, strict=True)):
        if gradient is not None:
            found.append(_as_tensor(gradient))
        elif materialize_grads:
            found.append(Tensor(zeros(x.shape, x.dtype, x.device)))
        elif allow_unused:
            found.append(None)
        else:
            raise RuntimeError(
                f"grad: input {number} was not used to compute the outputs; give allow_unused=True "
                "to get None for it"
            )
    return tuple(found)


def _check_inputs(name: str, inputs: Sequence[Tensor]) -> None:
    if not inputs:
        raise RuntimeError(f"{name}: no inputs are given")
    for number, x in enumerate(inputs):
        if not x.requires_grad:
            raise RuntimeError(f"{name}: input {number} does not require a gradient")


def accumulate(x: Tensor, gradient: Any, graph: bool) -> None:
    """Add to the `grad` of a tensor."""
    with _accumulating:
        before = x.grad
        if before is None:
            x.set_gradient(gradient)
        elif graph or before.requires_grad:
            x.grad = before + gradient
        else:
            before.array += _as_array(gradient)
    for hook in tuple(x.accumulated):  # it may remove itself
        rewatched(hook, x)


class Walk:
    """One pass backward through the graph."""

    #: What goes through many creators at once: see `genesis.autograd.backward_cache`.
    advance: ClassVar[Callable[[Walk], int]]

    def __init__(self, graph: bool, retain: bool) -> None:
        self.graph = graph
        self.retain = retain
        self.pending: list[tuple[int, Creator]] = []
        self.gradients: dict[Creator, list[Any]] = {}
        self.leaves: dict[int, tuple[Tensor, Any]] = {}

    def begin(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None] | None) -> None:
        """Put in the gradients to start from; a scalar's is 1."""
        given: Sequence[Tensor | None] = gradients or [None] * len(tensors)
        if len(given) != len(tensors):
            raise ValueError(f"backward: {len(tensors)} tensors, but {len(given)} gradients")
        for x, gradient in zip(tensors, given, strict=True):
            edge = edge_to(x)
            if edge is None:
                raise RuntimeError(
                    "backward: the tensor does not require a gradient: nothing it was computed "
                    "from has requires_grad=True, or it was computed under no_grad"
                )
            if gradient is None:
                if x.numel() != 1:
                    raise RuntimeError(
                        f"backward: a tensor of shape {tuple(x.shape)} needs a gradient to start "
                        "from; only a scalar's is known to be 1"
                    )
                if x.dtype.is_complex:
                    raise RuntimeError(
                        f"backward: a {x.dtype} tensor needs a gradient to start from; only a real "
                        "scalar's is known to be 1"
                    )
                start: Any = ones(x.shape, x.dtype, x.device)
            else:
                if tuple(gradient.shape) != tuple(x.shape):
                    raise ValueError(
                        f"backward: a gradient of shape {tuple(gradient.shape)} for a tensor of "
                        f"shape {tuple(x.shape)}"
                    )
                start = gradient
            self.add(edge, _as_tensor(start) if self.graph else _as_array(start))

    def add(self, edge: Edge, gradient: Any) -> None:
        """Another contribution to the gradient of a value."""
        gradient = functional.fit(gradient, edge.shape, edge.dtype)
        source = edge.source
        if not isinstance(source, Creator):
            known = self.leaves.get(id(source))
            total = gradient if known is None else known[1] + gradient
            self.leaves[id(source)] = (source, total)
            return
        slots = self.gradients.get(source)
        if slots is None:
            slots = self.gradients[source] = [None] * len(source.forms)
            heapq.heappush(self.pending, (-source.number, source))
        before = slots[edge.slot]
        slots[edge.slot] = gradient if before is None else before + gradient

    def run(self, wanted: Sequence[Tensor] | None) -> list[Any]:
        """Go through the graph; gives the gradients of the `wanted` tensors, None for unused."""
        found: dict[tuple[int, int], Any] = {}
        places = [edge_to(x) for x in wanted or ()]
        keys = [(id(e.source), e.slot) for e in places if e is not None]
        ends = {source for source, _ in keys}
        useful = None if wanted is None else _leading_to(self.gradients, ends)
        asked = set(keys)
        fast = useful is None and not self.graph and type(self) is Walk
        one_by_one = 0  # so many are visited before a stretch of several
        with mode.set_grad_enabled(self.graph):
            while self.pending:
                if fast and not one_by_one:
                    one_by_one = Walk.advance(self)
                    if not one_by_one:
                        continue
                one_by_one -= 1
                _, creator = heapq.heappop(self.pending)
                gradients = self.gradients.pop(creator)
                leads_on = useful is None or creator in useful
                if leads_on or id(creator) in ends:
                    self.observe(creator, gradients)
                for slot, gradient in enumerate(gradients):
                    if (id(creator), slot) in asked:
                        found[id(creator), slot] = gradient
                if leads_on:
                    self.step(creator, gradients)
            for key, (leaf, gradient) in self.leaves.items():
                if useful is None or key in ends:
                    thread.listener.assume(leaf._all_hooks)
                    for hook in tuple(leaf.hooks):
                        gradient = self.hooked(hook, gradient)
                    self.leaves[key] = (leaf, gradient)
                    found[key, 0] = gradient
        return [found.get(key) for key in keys]

    def observe(self, creator: Creator, gradients: list[Any]) -> None:
        """Let hooks see, and change, the gradients of a creator's results."""
        for slot, hooks in creator.hooks.items():
            for hook in tuple(hooks):
                if gradients[slot] is not None:
                    gradients[slot] = self.hooked(hook, gradients[slot])
        for slot, reference in creator.retained.items():
            x = reference()
            if x is not None and gradients[slot] is not None:
                accumulate(x, gradients[slot], self.graph)

    def hooked(self, hook: Hook, gradient: Any) -> Any:
        """What a hook makes of a gradient."""
        replaced = rewatched(hook, _as_tensor(gradient))
        if replaced is None:
            return gradient
        if replaced.shape != gradient.shape:
            raise RuntimeError(
                f"a hook replaces a gradient of shape {tuple(gradient.shape)} by one of shape "
                f"{tuple(replaced.shape)}"
            )
        return replaced if self.graph else _as_array(replaced)

    def step(self, creator: Creator, gradients: list[Any]) -> None:
        """Apply one rule."""
        ctx = creator.ctx
        assert ctx is not None
        if creator.number < thread.listener.began:
            raise CaptureError(BEFORE)
        if ctx.materialize_grads:
            for slot, (shape, dtype, device) in enumerate(creator.forms):
                if gradients[slot] is None and dtype is not None:
                    nothing = zeros(shape, dtype, device)
                    gradients[slot] = _as_tensor(nothing) if self.graph else nothing
        ctx._restore = lambda entry: creator.saved(entry, self.graph)
        rule = creator.function.backward
        try:
            own = creator.function.__module__.startswith(OWN)
            results = rule(ctx, *gradients) if own else rewatched(rule, ctx, *gradients)
        except Exception as error:
            error.add_note(
                f"in the gradient of {creator.function.__name__} {creator.where}".strip()
            )
            raise
        finally:
            ctx._restore = None
        results = results if isinstance(results, tuple) else (results,)
        if anomaly.enabled:
            anomaly.check_backward(creator, results)
        if len(results) != len(creator.edges):
            raise RuntimeError(
                f"{creator.function.__name__}.backward gives {len(results)} gradients for "
                f"{len(creator.edges)} arguments; give None for what has no gradient"
            )
        self.free(ctx, gradients)
        for edge, gradient in zip(creator.edges, results, strict=True):
            if edge is not None and gradient is not None:
                self.add(edge, gradient)

    def free(self, ctx: Context, gradients: Sequence[Any]) -> None:
        """Let go of what was saved for a rule."""
        if not self.retain and ctx._saved:
            left = ctx._left
            ctx._saved = (left and left(gradients)) or FREED


class WalkInside(Walk):
    """A pass backward through some creators, and not on to what was before."""

    inside: Set[Creator]

    def step(self, creator: Creator, gradients: list[Any]) -> None:
        """Apply one rule, if it is one of theirs."""
        if creator in self.inside:
            super().step(creator, gradients)


def ancestors(
    starts: Iterable[Creator], counts: Callable[[Creator], bool] | None = None
) -> set[Creator]:
    """Some creators, and those that lead to them, by way of others that count if that is asked."""
    stack = list(starts)
    seen = set(stack)
    while stack:
        for e in stack.pop().edges:
            source = None if e is None else e.source
            if not isinstance(source, Creator) or source in seen:
                continue
            if counts is None or counts(source):
                seen.add(source)
                stack.append(source)
    return seen


def _leading_to(starts: Iterable[Creator], targets: set[int]) -> set[Creator]:
    """The creators from which a target, given by its `id`, is reached."""
    useful: set[Creator] = set()
    for creator in sorted(ancestors(starts), key=lambda c: c.number):  # arguments come first
        if any(
            e is not None and (id(e.source) in targets or e.source in useful) for e in creator.edges
        ):
            useful.add(creator)
    return useful


def _as_tensor(x: Any) -> Tensor:
    from genesis.tensor.tensor import Tensor

    return Tensor(x) if isinstance(x, NDArray) else x


def _as_array(x: Any) -> NDArray:
    found: NDArray = x if isinstance(x, NDArray) else x.array
    return found
