"""`partition`: the graph of one process becomes the program of every rank of a mesh.

The graph says what is computed, of arrays of the whole shape. Leaves lie on the ranks as their
placements say; from there one pass for each axis of the mesh decides what a rank computes itself
and where ranks exchange something. The rank itself is a symbol, so that one program is proven,
compiled and compared for all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from genesis.compiler.partition.axis_pass import AxisPass
from genesis.compiler.partition.buckets import bucketed
from genesis.compiler.partition.regather import regathered
from genesis.compiler.partition.resharding import elements
from genesis.compiler.partition.rules import is_constraint
from genesis.compiler.program.digest import spell
from genesis.compiler.verify.collectives import verify_states
from genesis.ir import ops
from genesis.ir.node import LibraryCall, Node, topological
from genesis.ir.placement import MeshShape, Placement, Split, placed
from genesis.ir.size import Size, UndecidableSize


class Free:
    """The wish of a result that may lie as it comes."""

    def __repr__(self) -> str:
        return "FREE"


FREE = Free()
Wanted = Placement | Free | None


@dataclass(frozen=True)
class Partitioned:
    """One rank's graph, how its results lie, and the node of the whole graph each node is of."""

    mesh: MeshShape
    roots: tuple[Node, ...]
    placements: tuple[Placement | None, ...]
    origins: Mapping[Node, Node]


def partition(
    roots: Sequence[Node], leaves: Mapping[int, Placement], wanted: Sequence[Wanted]
) -> Partitioned:
    """What every rank computes of `roots`, if input slots lie as `leaves` says, others whole.

    Results lie as they are `wanted`: whole (None), in a placement, or as it comes (`FREE`).
    """
    mesh = _mesh(roots, leaves)
    local = list(roots)
    splits: list[list[Split | None]] = [[] for _ in roots]
    origins: dict[Node, Node] = {}
    for k, (axis, size) in enumerate(mesh.axes):
        if size == 1:
            for found in splits:
                found.append(None)
            continue
        given = {slot: s for slot, p in leaves.items() if (s := p.splits[k]) is not None}
        done = AxisPass(mesh.name, axis, size, given, local)
        for number, (root, want) in enumerate(zip(local, wanted, strict=True)):
            split = _split(done, root, want, k)
            local[number] = done.to(root, None if split is None else split.dim)
            splits[number].append(split)
        origins = {new: origins.get(old, old) for new, old in done.origins.items()}
    placements = tuple(placed(mesh, tuple(found)) for found in splits)
    final, sources = bucketed(*regathered(*_granted(local, origins)))
    verify_states(final, mesh, leaves, placements)
    return Partitioned(mesh, final, placements, sources)


def _split(done: AxisPass, root: Node, want: Wanted, k: int) -> Split | None:
    """How a result lies along an axis."""
    if not isinstance(want, Free):
        return None if want is None else want.splits[k]
    state = done.free(root)
    return Split(state, root in done.stored) if isinstance(state, int) else None


def _granted(
    roots: Sequence[Node], origins: Mapping[Node, Node]
) -> tuple[tuple[Node, ...], dict[Node, Node]]:
    """The graph without constraints, whose operands lie as they wish now."""
    made: dict[Node, Node] = {}
    found: dict[Node, Node] = {}
    for n in topological(roots):
        if n.op is ops.ITEM and is_constraint(n.inputs[0]):
            made[n] = made[n.inputs[0].inputs[0]]
        else:
            made[n] = n.with_inputs(tuple(made[i] for i in n.inputs))
        found.setdefault(made[n], origins.get(n, n))
    return tuple(made[n] for n in roots), found


def constraints(roots: Sequence[Node]) -> set[MeshShape]:
    """The meshes on which a graph says where arrays are to lie."""
    return {MeshShape(*n.attr.options[:2]) for n in topological(roots) if is_constraint(n)}


def _mesh(roots: Sequence[Node], leaves: Mapping[int, Placement]) -> MeshShape:
    meshes = {p.mesh for p in leaves.values()} | constraints(roots)
    if len(meshes) != 1:
        names = sorted(m.name for m in meshes)
        raise ValueError(f"arrays of one program lie on one mesh, not on {names}")
    for n in topological(roots):
        if any(isinstance(extent, Size) for extent in n.shape):
            raise UndecidableSize(f"{n.op} of shape {n.shape}: divided programs are of fixed sizes")
    return meshes.pop()


def described(roots: Sequence[Node]) -> list[tuple[Node, str]]:
    """Every node with a text: two graphs with the same texts are the same."""
    numbers: dict[Node, int] = {}
    found: list[tuple[Node, str]] = []
    for n in topological(roots):
        inputs = [numbers[i] for i in n.inputs]
        numbers[n] = len(numbers)
        attribute = "" if n.attr is None else spell(n.attr)
        found.append((n, f"{n.op.name} {n.dtype.name} {n.shape} of {inputs} {attribute}"))
    return found


def collectives(roots: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """The collectives of a graph, in order, each with the bytes that a rank hands over."""
    for n in topological(roots):
        if n.op is ops.CALL and n.attr.is_collective:
            what: LibraryCall = n.attr
            yield n, sum(elements(s) * d.itemsize for d, s in what.operands)


__all__ = [
    "FREE", "Partitioned", "Wanted", "constraints", "described", "collectives", "partition",
]  # fmt: skip
