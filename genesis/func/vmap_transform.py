"""`vmap`: a function of one example as one of many.

The function is called once, on stand-ins for one example. What it computes is a graph of array
primitives, and `genesis.ndarray.batching` makes of that the graph of all examples. So whatever the
function does with its own tensors may be written in place, looped over by `scan`, drawn at random
or differentiated; what it asks for in numbers is refused.

To the tape around it the whole is one operation. Backward, the tape that the one example has left
is gone through on stand-ins for gradients, and the graph of that is batched in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from genesis import functional
from genesis.autograd import mode
from genesis.autograd.tape import Creator
from genesis.func.pullback import Explored, Tree, began, needs_gradient, pull
from genesis.functional import function
from genesis.ir import ops
from genesis.ir.size import Dim
from genesis.ndarray import NDArray
from genesis.ndarray.batching import batched, everywhere, split, summed
from genesis.ndarray.core import primitive
from genesis.ndarray.core.body_recorder import BodyRecorder
from genesis.ndarray.core.ndarray import wrap
from genesis.ndarray.core.storage import State, Storage
from genesis.ndarray.core.value import CaptureError, Value, recorded_by, thread
from genesis.tensor.tensor import Tensor

RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """`func`, a function of one example, as a function of many.

    `in_dims` says along which dimension the arguments have their examples: a number for all, or a
    tuple with an entry for each, itself nested like the argument; None is for what all examples
    share. Arguments by keyword have them along the first. `out_dims` says the same of the results.
    Random numbers are refused, or with `randomness` "different" or the "same" for all examples.
    `chunk_size` is how many examples are computed together at most.

    >>> import genesis
    >>> dot = genesis.vmap(genesis.dot)
    >>> dot(genesis.ones(2, 3), genesis.arange(6.0).reshape(2, 3))
    tensor([ 3., 12.])
    """
    if randomness not in RANDOMNESS:
        raise ValueError(f"vmap: randomness is one of {RANDOMNESS}, not {randomness!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"vmap: chunk_size is at least 1, not {chunk_size}")

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        given = Tree.of((args, kwargs))
        dims = [*_spread("in_dims", in_dims, args), *_spread("in_dims", 0, kwargs)]
        dims = [_checked(x, d) for x, d in zip(given.leaves, dims, strict=True)]
        count = _count(given.leaves, dims)

        def run(leaves: Sequence[Any], size: Dim) -> tuple[Tree, list[int]]:
            return _mapped(func, given, leaves, dims, size, out_dims, randomness)

        if chunk_size is None or not isinstance(count, int) or chunk_size >= count:
            outputs, _ = run(given.leaves, count)
            return outputs.filled(outputs.leaves)
        parts = [run(part, size) for part, size in _chunks(given.leaves, dims, count, chunk_size)]
        outputs, places = parts[0]
        columns = zip(*(part.leaves for part, _ in parts), strict=True)
        return outputs.filled(functional.cat(xs, d) for xs, d in zip(columns, places, strict=True))

    return mapped


# ---- where examples are


def _spread(name: str, dims: Any, tree: Any) -> list[Any]:
    """For every leaf of a tree the dimension that a tree of dimensions, or one for all, says."""
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(Tree.of(tree).leaves)
    if isinstance(tree, tuple | list) and isinstance(dims, tuple | list):
        if len(dims) == len(tree):
            pairs = zip(dims, tree, strict=True)
            return [d for part, x in pairs for d in _spread(name, part, x)]
    elif isinstance(tree, dict) and isinstance(dims, dict) and dims.keys() == tree.keys():
        return [d for key, x in tree.items() for d in _spread(name, dims[key], x)]
    elif isinstance(dims, tuple | list) and len(dims) == 1 and name == "out_dims":
        return _spread(name, dims[0], tree)
    raise ValueError(f"vmap: {name}={dims!r} does not have the structure of what it is for")


def _checked(x: Any, dim: int | None) -> int | None:
    """A dimension of an argument, counted from the first."""
    if dim is None:
        return None
    if not isinstance(x, Tensor):
        raise ValueError(
            f"vmap: an argument is a {type(x).__name__}, which has no dimension {dim}; give None "
            "for it in in_dims"
        )
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"vmap: in_dims has {dim} for a tensor of shape {tuple(x.shape)}")
    return dim % x.ndim


def _count(leaves: Sequence[Any], dims: Sequence[int | None]) -> Dim:
    counts = [x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None]
    if not counts:
        raise ValueError("vmap: no argument has a dimension of examples; see in_dims")
    if any(n != counts[0] for n in counts):
        raise ValueError(f"vmap: arguments have different numbers of examples, {counts}")
    found: Dim = counts[0]
    return found


def _chunks(
    leaves: Sequence[Any], dims: Sequence[int | None], count: int, size: int
) -> Iterator[tuple[list[Any], int]]:
    for start in range(0, count, size):
        length = min(size, count - start)
        yield (
            [
                x if d is None else functional.narrow(x, d, start, length)
                for x, d in zip(leaves, dims, strict=True)
            ],
            length,
        )


# ---- one call


def _mapped(
    func: Callable[..., Any],
    given: Tree,
    leaves: Sequence[Any],
    dims: Sequence[int | None],
    count: Dim,
    out_dims: Any,
    randomness: str,
) -> tuple[Tree, list[int]]:
    """The results for all examples, and along which dimension they have them."""
    level = _Level(count, {}, randomness)
    with recorded_by(level):
        own = [x if d is None else level.add(x, d) for x, d in zip(leaves, dims, strict=True)]
        args, kwargs = given.filled(own)
        outputs = Tree.of(func(*args, **kwargs))
        for x in outputs.leaves:
            if not isinstance(x, Tensor):
                raise ValueError(f"vmap: the function returns a {type(x).__name__}, not a tensor")
        written = [
            (x, d, y)
            for x, d, y in zip(leaves, dims, own, strict=True)
            if d is not None and y.array.value not in level.known
        ]
        pending = level.close([*outputs.leaves, *(y for _, _, y in written)])
    found: list[Any] = pending()
    made, news = found[: len(outputs.leaves)], found[len(outputs.leaves) :]
    for (x, d, _), new in zip(written, news, strict=True):
        x.overwrite(functional.movedim(new, 0, d))
    places = _spread("out_dims", out_dims, outputs.filled(outputs.leaves))
    results = [_placed(x, d) for x, d in zip(made, places, strict=True)]
    return Tree(results, outputs.structure), places


def _placed(x: Tensor, dim: int | None) -> Tensor:
    if dim is None or not -x.ndim <= dim < x.ndim:
        raise ValueError(f"vmap: out_dims has {dim} for a result of shape {tuple(x.shape)}")
    return x if dim == 0 else functional.movedim(x, 0, dim)


class _Level(BodyRecorder):
    """What a function of one example sees of arrays, and what all examples have in its place."""

    def __init__(self, count: Dim, known: dict[Value, Value], randomness: str) -> None:
        super().__init__("vmap", thread.recorder)
        self.count = count
        self.known = known  # stand-ins, and values that are known for all examples
        self.randomness = randomness
        self.began = began()
        self.inside: frozenset[Creator] = frozenset()  # what an earlier part has put on the tape
        self.stand_ins: list[Tensor] = []
        self.given: list[Tensor] = []  # what they stand for, examples first
        self.before: dict[Storage, Value] = {}  # of what is written outside

    def add(self, x: Tensor, dim: int = 0) -> Tensor:
        """What the function gets for an argument that has examples; it may write to it."""
        with recorded_by(self.outer):
            whole = x if dim == 0 else functional.movedim(x, dim, 0)
            value = whole.array.value
        form = primitive.parameter(whole.dtype, whole.shape[1:], value.device)
        self.known[form] = value
        stand_in = Tensor(wrap(form), mode.is_grad_enabled() and x.requires_grad)
        self.stand_ins.append(stand_in)
        self.given.append(whole)
        own: Tensor = functional.clone(stand_in)
        return own

    def stand_in(self, state: State) -> Value:
        """Random numbers: refused, other ones for each example, or the same for all."""
        if self.randomness == "error":
            raise RuntimeError(
                "vmap: the function draws random numbers; say with randomness= whether they are "
                "to be 'different' or the 'same' for all examples"
            )
        if self.randomness == "same":
            return self.read_outside(state)
        form = super().stand_in(state)
        with recorded_by(self.outer):  # whoever draws holds the state's lock
            self.known[form], after = split(state.value, self.count)
            state.write(after)
        return form

    def write(self, storage: Storage, value: Value) -> None:
        """Anything may be written; outside, what is the same for all examples."""
        before = self.read(storage)
        if before in self.outside:
            self.before.setdefault(storage, before)
        self.now[storage] = value

    def close(
        self, outputs: Sequence[Tensor | None], totals: int = 0
    ) -> Callable[[], list[Tensor | None]]:
        """The outputs for all examples; of the last `totals`, sums. To be called outside."""
        there = [x for x in outputs if x is not None]
        sums = [x is not None for x in outputs[len(outputs) - totals :]].count(True)
        values = [x.array.value for x in there]
        after = {storage: self.now[storage] for storage in self.before}
        explored = Explored.of(there, self.stand_ins, self.began, self.inside)

        def closed() -> list[Tensor | None]:
            made = batched([*values, *after.values()], self.known, self.count, self.outside)
            self._write(after, made)
            whole = len(values) - sums
            arrays = [wrap(_for_all(x, made, self.count)) for x in values[:whole]]
            arrays += [wrap(_total(x, made, self.count)) for x in values[whole:]]
            results = iter(self._on_tape(there, sums, arrays, explored, made))
            return [None if x is None else next(results) for x in outputs]

        return closed

    def _write(self, after: dict[Storage, Value], made: dict[Value, Value]) -> None:
        for storage, value in after.items():
            if value in made:
                raise CaptureError(
                    "vmap: the function writes what differs between examples to a tensor of "
                    f"shape {tuple(value.shape)} that they share ({value.where})"
                )
            storage.write(value)

    def _on_tape(
        self,
        outputs: list[Tensor],
        sums: int,
        arrays: list[NDArray],
        explored: Explored,
        made: dict[Value, Value],
    ) -> list[Tensor]:
        """Results on the tape, if something that they are made of is."""
        ends = explored.tensors
        if not mode.is_grad_enabled() or not (ends or needs_gradient(self.stand_ins)):
            return [Tensor(x) for x in arrays]
        kept = (entry for c in explored.inside if c.ctx is not None for entry in c.ctx._saved)
        known = self.known | {s.value: made[s.value] for s in kept if s and s.value in made}
        call = _Call(self, outputs, sums, explored, known)
        return list(Vmap.apply(call, arrays, *self.given, *ends))


def _for_all(x: Value, made: dict[Value, Value], count: Dim) -> Value:
    return made[x] if x in made else everywhere(x, count)


def _total(x: Value, made: dict[Value, Value], count: Dim) -> Value:
    if x in made:
        return summed(made[x])
    times = primitive.cast(primitive.extent(count, x.dtype, x.device), x.dtype)
    return primitive.elementwise(ops.MUL, x, times)


class _Call:
    """What is kept of a call for its gradient: the tape of one example."""

    def __init__(
        self,
        level: _Level,
        outputs: list[Tensor],
        sums: int,
        explored: Explored,
        known: dict[Value, Value],
    ) -> None:
        self.outputs, self.explored, self.known = outputs, explored, known
        self.whole = len(outputs) - sums  # the others are sums over examples
        self.stand_ins, self.count, self.outside = level.stand_ins, level.count, level.outside
        self.storages = {x.array.storage: x.array.storage.actual for x in level.stand_ins}

    def backward(self, given: list[Tensor], weights: list[Tensor | None]) -> list[Any]:
        """The gradients of what was given, and then of what is from outside."""
        level = _Level(self.count, dict(self.known), "same")
        level.stand_ins, level.given = list(self.stand_ins), given
        level.inside = self.explored.inside
        level.outside |= self.outside
        level.now |= self.storages
        in_graph = mode.is_grad_enabled()
        wanted = [x for x in self.stand_ins if x.requires_grad]
        ends = self.explored.tensors
        with recorded_by(level):
            # Every example has the gradient of a sum.
            ones = [None if w is None else level.add(w) for w in weights[: self.whole]]
            ones += weights[self.whole :]
            found = pull(self.outputs, ones, [*wanted, *ends], in_graph, self.explored.inside)
            pending = level.close(found, len(ends))
        gradients = iter(pending())
        return [*(next(gradients) if x.requires_grad else None for x in self.stand_ins), *gradients]


class Vmap(function.Function):
    """The results of a function for many examples."""

    @staticmethod
    def forward(ctx: Any, call: _Call, results: list[NDArray], *given: NDArray) -> Any:
        """What batching has given."""
        ctx.call = call
        ctx.save_for_backward(*given[: len(call.stand_ins)])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of one example, for many."""
        saved, weights = (
            [Tensor(x) if isinstance(x, NDArray) else x for x in group]
            for group in (ctx.saved_tensors, grads)
        )
        found = ctx.call.backward(saved, weights)
        if not mode.is_grad_enabled():
            found = [x if x is None else x.array for x in found]
        return None, None, *found
