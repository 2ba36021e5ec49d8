"""A function called once, with its way back: what every transform of gradients begins with.

Arguments get a *place* on the tape of their own, which gradients are taken with respect to. So a
transform inside of a transform differentiates with respect to its own places and nothing else, and
what it gives is again on the tape of whoever is around it: transforms nest by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from genesis import functional
from genesis import ndarray as nd
from genesis.autograd import mode, tape
from genesis.autograd.tape import Creator, Edge, Walk, WalkInside, edge_to
from genesis.ndarray import NDArray
from genesis.ndarray.core.value import inlined, unwatched
from genesis.ndarray.pytree import Structure, flatten, unflatten
from genesis.tensor.tensor import Tensor


class Differentiated(Tensor):
    """A leaf with respect to which a transform differentiates, while its function is called."""

    active = True


class Tree(NamedTuple):
    """Tensors in nested tuples, lists and dictionaries."""

    leaves: list[Any]
    structure: Structure

    @staticmethod
    def of(tree: Any) -> Tree:
        """The leaves of a tree, tensors among them."""
        return Tree(*flatten(tree, Tensor))

    def filled(self, leaves: Iterable[Any]) -> Any:
        """The tree with other leaves."""
        return unflatten(self.structure, list(leaves))

    def require(self, name: str, what: str) -> Tree:
        """This tree, if all leaves are tensors that can have gradients."""
        for x in self.leaves:
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: {what} is a {type(x).__name__}, not a tensor")
            if not (x.dtype.is_float or x.dtype.is_complex):
                raise TypeError(f"{name}: {what} is {x.dtype}, which has no gradient")
        return self


class Traced(NamedTuple):
    """What a function made of arguments, with the places its tape begins from."""

    inputs: Tree
    places: list[Tensor]
    outputs: Tree
    aux: Any
    in_graph: bool  # whether somebody outside may differentiate what is computed here

    @property
    def value(self) -> Any:
        """The function's result."""
        return self.outputs.filled(released(self.outputs.leaves, self.in_graph))

    @property
    def rest(self) -> Any:
        """What else it has returned."""
        aux = Tree.of(self.aux)
        return aux.filled(released(aux.leaves, self.in_graph))

    def pull(self, weights: Sequence[Any]) -> list[Any]:
        """The gradients of the inputs for those of the outputs, None for what has none."""
        recorded = mode.is_grad_enabled() and (self.in_graph or needs_gradient(weights))
        return pull(self.outputs.leaves, weights, self.places, recorded)


def trace(name: str, function: Callable[..., Any], primals: Any, has_aux: bool = False) -> Traced:
    """Call a function on primals that have places of their own."""
    recorded = mode.is_grad_enabled()
    inputs = Tree.of(primals).require(name, "an argument to differentiate")
    with mode.enable_grad(), inlined():
        places = [_place(x, recorded) for x in inputs.leaves]
        try:
            result = function(*inputs.filled(map(functional.clone, places)))  # may be written to
        finally:
            for x in places:
                x.active = False
    aux = None
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"{name}: with has_aux the function returns (output, aux)")
        result, aux = result
    outputs = Tree.of(result)
    for x in outputs.leaves:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: the function returns a {type(x).__name__}, not a tensor")
    in_graph = recorded and leads_outside(outputs.leaves, places)
    return Traced(inputs, places, outputs, aux, in_graph)


def _place(x: Tensor, recorded: bool) -> Any:
    if recorded and x.requires_grad:
        return functional.clone(x)
    return Differentiated(x.array, True)


def pull(
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    places: Sequence[Tensor],
    in_graph: bool,
    inside: frozenset[Creator] | None = None,
) -> list[Any]:
    """The gradients of tensors for those of others, as tensors; None where there is none."""
    pairs = zip(outputs, weights, strict=True)
    ends = [(x, w) for x, w in pairs if w is not None and x.requires_grad]
    if not ends or not places:
        return [None] * len(places)
    walk: Walk
    if inside is None:
        walk = Walk(in_graph, True)
    else:
        walk = WalkInside(in_graph, True)
        walk.inside = inside
    walk.begin([x for x, _ in ends], [w for _, w in ends])
    return [Tensor(x) if isinstance(x, NDArray) else x for x in unwatched(walk.run, places)]


def needs_gradient(tensors: Iterable[Any]) -> bool:
    """Whether one of them is on the tape."""
    return any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def released(leaves: Sequence[Any], in_graph: bool) -> list[Any]:
    """Results as others see them: on the tape only if somebody outside may differentiate them."""
    if in_graph:
        return list(leaves)
    return [x.detach() if isinstance(x, Tensor) else x for x in leaves]


def leads_outside(outputs: Sequence[Any], own: Sequence[Tensor]) -> bool:
    """Whether the tape leads to anything but the places of this and of finished transforms."""
    known = {id(x) for x in own}

    def is_outside(leaf: Tensor) -> bool:
        return id(leaf) not in known and (not isinstance(leaf, Differentiated) or leaf.active)

    seen: set[Creator] = set()
    edges = [edge_to(x) for x in outputs if isinstance(x, Tensor)]
    while edges:
        edge = edges.pop()
        if edge is None:
            continue
        source = edge.source
        if not isinstance(source, Creator):
            if is_outside(source):
                return True
        elif source not in seen:
            seen.add(source)
            edges.extend(source.edges)
    return False


class Explored(NamedTuple):
    """The part of the tape that one call has made, and where it leaves that part."""

    inside: frozenset[Creator]
    leaving: list[Edge]

    @staticmethod
    def of(
        outputs: Sequence[Tensor],
        own: Sequence[Tensor],
        began: int,
        before: frozenset[Creator] = frozenset(),
    ) -> Explored:
        """Where the tape of outputs leads, back to its own leaves and to what was made before.

        What this call has made `before` it began, an earlier part of it, is inside all the same.
        """
        known = {(id(e.source), e.slot) for e in map(edge_to, own) if e is not None}
        inside: set[Creator] = set()
        leaving: dict[tuple[int, int], Edge] = {}
        edges = [edge_to(x) for x in outputs]
        while edges:
            edge = edges.pop()
            if edge is None or (id(edge.source), edge.slot) in known:
                continue
            source = edge.source
            if not isinstance(source, Creator) or (source.number < began and source not in before):
                if not isinstance(source, Differentiated) or source.active:
                    leaving.setdefault((id(source), edge.slot), edge)
            elif source not in inside:
                inside.add(source)
                edges.extend(source.edges)
        return Explored(frozenset(inside), list(leaving.values()))

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors in the places of those that the edges lead to; their contents do not matter."""
        return [_end(edge) for edge in self.leaving]


def _end(edge: Edge) -> Tensor:
    source = edge.source
    if not isinstance(source, Creator):
        return source
    return Tensor.made(nd.zeros(*source.forms[edge.slot]), source, edge.slot)


def began() -> int:
    """A number on the tape: what is made from now on has greater ones."""
    return next(tape.numbers)


def zeros_like(x: Tensor) -> Tensor:
    """Zeros in the form of a tensor."""
    return Tensor(nd.zeros_like(x.array))
