"""`scan` on tensors: a loop that is one operation, and its gradient, which is a loop backwards.

Forward, the array loop `nd.scan` runs the body, and also keeps the carry that every step began
with. Backward, a loop in the other direction calls the body again on those: that puts one step on
a tape of its own, through which the step's gradients are pulled. So memory holds, for every step,
its carry and its products with matrices, which are not computed again, and nothing else.

Tensors that the body uses without being given them, such as weights, are found on the tape of the
first call: they are where it leads to. Their gradients are summed along the loop, except those of
matrices that the body multiplies by. Their gradient is one product over all steps, after the loop.

The gradient is itself written with `scan` on tensors, so it has gradients in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd import mode, tape
from genesis.autograd.anomaly import detect_anomaly
from genesis.autograd.tape import Creator, Edge, edge_to
from genesis.functional.contraction import Matmul
from genesis.functional.function import Function
from genesis.functional.movement import View
from genesis.ir.size import Dim
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.storage import State, Storage
from genesis.ndarray.core.value import Value, thread
from genesis.ndarray.pytree import Structure, flatten, unflatten
from genesis.tensor.tensor import Tensor

Body = Callable[[Any, Any], tuple[Any, Any]]
Observe = Callable[[type[Function], list[Any], Any], Any]


def scan(
    body: Body, carry: Any, xs: Any = None, length: Dim | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Repeat ``carry, y = body(carry, x)`` over the first dimension of `xs`.

    Gives the last carry and the ys, stacked along a new first dimension. Carry, xs and ys are
    tensors or nested tuples, lists and dictionaries of tensors; None stands for nothing. The carry
    keeps its structure, dtypes and shapes. Without `xs`, `length` says how often. `reverse` begins
    with the last element; the ys are in the order of the xs all the same. The body is called once,
    on tensors that have no contents yet, and once more for the gradient.

    >>> import genesis
    >>> rate = genesis.tensor(0.5, requires_grad=True)
    >>> x = genesis.tensor([1.0, 2.0, 3.0])
    >>> last, _ = genesis.scan(lambda c, x: (rate * c + x, None), genesis.tensor(0.0), x)
    >>> last.backward()
    >>> last.item(), rate.grad.item()
    (4.25, 3.0)
    """
    firsts, elements = _Tree.of(carry), _Tree.of(xs)
    loop = _Loop(body, firsts, elements, length, reverse)
    with detect_anomaly(False):  # a step has no contents to look at, but the results have
        last, (ys, kept, again) = nd.scan(
            loop.forward, firsts.arrays(), elements.arrays(), length, reverse
        )
    results = [*_arrays(last), *_arrays(ys), *kept]
    given = [*firsts.tensors, *elements.tensors, *(use.tensor for use in loop.outside)]
    made = ScanFunction.apply(loop, results, again, *given) if given else list(map(Tensor, results))
    count = len(firsts.tensors)
    return firsts.filled(made[:count]), loop.ys.filled(made[count:])


class ScanFunction(Function):
    """The results of a loop: the last carries, the ys, and the carries every step began with."""

    @staticmethod
    def forward(
        ctx: Any, loop: _Loop, results: list[NDArray], again: list[NDArray], *given: NDArray
    ) -> Any:
        """What the array loop has given."""
        count = len(loop.carry.tensors)
        ctx.loop = loop
        kept, xs = results[len(results) - count :], given[count : len(loop.wanted)]
        ctx.save_for_backward(*kept, *xs, *again)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The loop backwards."""
        saved, weights = (list(map(_as_tensor, group)) for group in (ctx.saved_tensors, grads))
        found = ctx.loop.backward(saved, weights)
        if not mode.state.enabled:
            found = [x if x is None else x.array for x in found]
        return None, None, None, *found


class _Tree(NamedTuple):
    """A nested structure of tensors, some of whose leaves may be None."""

    leaves: list[Tensor | None]
    structure: Structure

    @staticmethod
    def of(tree: Any) -> _Tree:
        leaves, structure = flatten(tree, Tensor)
        kept = [x if x is None or isinstance(x, Tensor) else Tensor(x) for x in leaves]
        return _Tree(kept, structure)

    @property
    def tensors(self) -> list[Tensor]:
        """The leaves there are."""
        return [x for x in self.leaves if x is not None]

    def filled(self, given: Iterable[Any]) -> Any:
        """The tree with other leaves."""
        rest = iter(given)
        return unflatten(self.structure, [x if x is None else next(rest) for x in self.leaves])

    def arrays(self) -> Any:
        """The tree of the arrays."""
        return self.filled([x.array for x in self.tensors])


def _arrays(tree: Any) -> list[NDArray]:
    return [x for x in flatten(tree)[0] if x is not None]


class _Use(NamedTuple):
    """A tensor from outside that a body uses: its edge, and where its gradient is looked for.

    That is the product if the body does no more than multiply by this matrix, else the tensor.
    """

    edge: Edge
    product: Creator | None

    @property
    def tensor(self) -> Tensor:
        """A tensor in the place of the one that the edge leads to; its contents do not matter."""
        source = self.edge.source
        if not isinstance(source, Creator):
            return source
        return Tensor.made(nd.zeros(*source.forms[self.edge.slot]), source, self.edge.slot)

    @property
    def place(self) -> Tensor:
        """Where the gradient is looked for."""
        if self.product is None:
            return self.tensor
        return Tensor.made(nd.zeros(*self.product.forms[0]), self.product, 0)


class _Step(NamedTuple):
    """One call of a body: the tensors its tape begins from, and what it made of them."""

    given: list[Tensor]
    carry: _Tree
    ys: _Tree
    began: int  # creators of this call have greater numbers

    @property
    def results(self) -> list[Tensor]:
        """What gradients come from: the carry, the ys, and the carry as it was before."""
        return [*self.carry.tensors, *self.ys.tensors, *self.given[: len(self.carry.tensors)]]

    def explored(self) -> tuple[list[_Use], set[Creator]]:
        """Where the tape leaves this call, in the same order for every call, and what is inside."""
        own = {(id(e.source), e.slot) for e in map(edge_to, self.given) if e is not None}
        inside: set[Creator] = set()
        leaving: dict[tuple[int, int], list[tuple[Edge, Creator | None]]] = {}

        def made_here(source: Creator | Tensor) -> TypeGuard[Creator]:
            return isinstance(source, Creator) and source.number > self.began

        def leaves(edge: Edge) -> bool:
            source = edge.source
            if not made_here(source):
                return (id(source), edge.slot) not in own
            # What is seen of a tensor from outside is from outside as well.
            before = source.edges[0] if source.function is View else None
            return before is not None and leaves(before)

        stack: list[tuple[Edge | None, Creator | None]] = [(edge_to(x), None) for x in self.results]
        while stack:
            edge, user = stack.pop()
            if edge is None:
                continue
            source = edge.source
            if leaves(edge):
                leaving.setdefault((id(source), edge.slot), []).append((edge, user))
            elif made_here(source) and source not in inside:
                inside.add(source)
                stack.extend((e, source) for e in source.edges)
        uses = [
            _Use(ways[0][0], _product(*ways[0]) if len(ways) == 1 else None)
            for ways in leaving.values()
        ]
        return uses, inside

    def pull(
        self, weights: Sequence[Any], wanted: Sequence[bool], in_graph: bool
    ) -> tuple[list[Any], list[Any]]:
        """The gradients of what was given, where wanted, and then of what is from outside.

        Those of matrices the body multiplies by come apart, as factors: what was multiplied, and
        the gradient of the product.
        """
        uses, inside = self.explored()
        multiplied = [use.product and _first_argument(use.product, in_graph) for use in uses]
        places = [x for x, w in zip(self.given, wanted, strict=True) if w]
        pairs = zip(self.results, weights, strict=True)
        ends = [(x, w) for x, w in pairs if w is not None and x.requires_grad]
        walk = tape.WalkInside(in_graph, in_graph)
        walk.inside = inside
        walk.begin([x for x, _ in ends], [w for _, w in ends])
        gradients = map(_as_tensor, walk.run([*places, *(use.place for use in uses)]))
        found = [next(gradients) if w else None for w in wanted]
        factors: list[Any] = []
        for x, gradient in zip(multiplied, gradients, strict=True):
            is_factor = x is not None and gradient is not None
            found.append(None if is_factor else gradient)
            factors.append((x, gradient) if is_factor else None)
        return found, factors


def _product(edge: Edge, user: Creator | None) -> Creator | None:
    """The product with a matrix, if that is how it is used."""
    multiplies = user is not None and user.function is Matmul and user.edges[1] is edge
    return user if multiplies and len(edge.shape) == 2 else None


class _Loop:
    """What there is to know of a scan besides its arrays."""

    ys: _Tree
    outside: list[_Use]
    states: list[State]  # of the random generators that the body draws from
    seen: dict[Storage, Value]  # what it reads from outside, which may be overwritten later

    def __init__(
        self, body: Body, carry: _Tree, xs: _Tree, length: Dim | None, reverse: bool
    ) -> None:
        self.body, self.carry, self.xs = body, carry, xs
        self.length, self.reverse = length, reverse
        # A gradient may come to a carry from later steps, whether or not the first one needs it.
        self.wanted = [_is_differentiable(x) for x in carry.tensors]
        self.wanted += [_is_differentiable(x) and x.requires_grad for x in xs.tensors]

    def call(self, given: Sequence[Tensor], observe: Observe) -> _Step:
        """Call the body on carry and xs, with a look at every operation."""
        if mode.state.enabled:
            given = [
                Tensor(x.array, True) if wanted and not x.requires_grad else x
                for x, wanted in zip(given, self.wanted, strict=True)
            ]
        began = next(tape.numbers)
        own = [functional.clone(x) for x in given]  # the body may write to what it is given
        count = len(self.carry.tensors)
        before, mode.state.observe = mode.state.observe, observe
        try:
            result = self.body(self.carry.filled(own[:count]), self.xs.filled(own[count:]))
        finally:
            mode.state.observe = before
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"scan: the body returns (carry, y), not {type(result).__name__}")
        return _Step(list(given), _Tree.of(result[0]), _Tree.of(result[1]), began)

    def forward(self, carry: Any, xs: Any) -> tuple[Any, Any]:
        """The body on arrays; it also returns what is kept of a step for its gradient.

        That is the carry it was given, products with matrices, and the states of random generators.
        """
        kept, products = _arrays(carry), []

        def keep(function: type[Function], arrays: list[Any], result: Any) -> Any:
            if _is_product(function, arrays):
                products.append(result.copy())  # the body may write to the result
            return result

        step = self.call([Tensor(x) for x in (*kept, *_arrays(xs))], keep)
        self.ys, (self.outside, _) = step.ys, step.explored()
        recorder: Any = thread.recorder
        self.states, self.seen = list(recorder.states), recorder.seen
        states = [wrap(x) for x in recorder.states.values()]
        return step.carry.arrays(), (step.ys.arrays(), kept, [*states, *products])

    def backward(self, saved: list[Any], grads: list[Any]) -> list[Any]:
        """The gradients of the first carries, of the xs, and of what is from outside."""
        count = len(self.carry.tensors)
        last = [
            None if not wanted else Tensor(nd.zeros_like(x.array)) if d is None else d
            for x, wanted, d in zip(self.carry.tensors, self.wanted, grads, strict=False)
        ]
        nothing = [
            None if use.product is not None else Tensor(_zero(use.tensor.array))
            for use in self.outside
        ]
        before = [state.value for state in self.states]
        (to_carry, totals), (to_xs, factors) = scan(
            self.step_back,
            (last, nothing),
            (saved, grads[count:]),
            self.length,
            not self.reverse,
        )
        for state, value in zip(self.states, before, strict=True):
            with state.lock:
                state.write(value)
        products = [None if pair is None else _over_all_steps(*pair) for pair in factors]
        to_outside = [p if t is None else t for t, p in zip(totals, products, strict=True)]
        return [*to_carry, *to_xs, *to_outside]

    def step_back(self, gradients: Any, given: Any) -> Any:
        """From the gradients of what a step made to those of what it was given."""
        to_carry, totals = gradients
        saved, weights = given
        recorder: Any = thread.recorder
        recorder.see(self.seen)
        again = iter(saved[len(self.wanted) :])
        for state in self.states:
            state.write(next(again).array.value)  # the body draws the same again

        def restore(function: type[Function], arrays: list[Any], result: Any) -> Any:
            return next(again).array if _is_product(function, arrays) else result

        in_graph = mode.state.enabled
        with mode.enable_grad():
            step = self.call(saved[: len(self.wanted)], restore)
        found, factors = step.pull([*to_carry, *weights], self.wanted, in_graph)
        count, known = len(to_carry), len(self.wanted)
        before = [
            None if old is None else Tensor(nd.zeros_like(old.array)) if new is None else new
            for old, new in zip(to_carry, found[:count], strict=True)
        ]
        totals = [
            total if total is None or part is None else total + part
            for total, part in zip(totals, found[known:], strict=True)
        ]
        return (before, totals), (found[count:known], factors)


def _zero(x: NDArray) -> NDArray:
    """What a sum over all steps begins with."""
    return nd.zeros_like(x, x.dtype.accumulator)


def _is_product(function: type[Function], arrays: list[Any]) -> bool:
    """Whether an operation is a product with one matrix: much work for a result of little size."""
    return function is Matmul and len(arrays[1].shape) == 2


def _is_differentiable(x: Tensor) -> bool:
    return bool(x.dtype.is_float or x.dtype.is_complex)


def _as_tensor(x: Any) -> Tensor | None:
    return Tensor(x) if isinstance(x, NDArray) else x


def _first_argument(product: Creator, in_graph: bool) -> Tensor | None:
    """What a matrix was multiplied by."""
    assert product.ctx is not None
    return _as_tensor(product.saved(product.ctx._saved[0], in_graph))


def _over_all_steps(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of a matrix by which every step multiplied its x."""
    rows = functional.reshape(x, (-1, x.shape[-1]))
    gradients = functional.reshape(grad, (-1, grad.shape[-1]))
    found: Tensor = functional.matmul(functional.conj(functional.t(rows)), gradients)
    return found
