"""Random tensor graphs, small and tame, for differential testing.

`random_case(seed)` builds a graph of `ir.Node`s out of every primitive, with the memory, scalars
and sizes to run it on. Operations that jump (comparisons, rounding, conversion to integers) take
only values that every implementation computes to the same bits; see `random_values`.

Graphs are drawn around *wishes*: ordered pairs of primitives, the second reading the first. A
range of seeds as long as `PAIRS` therefore exercises every pair on purpose; the rest is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from random_steps import CONSUMERS, LEAVES, MORE, POSITIONS, Step
from random_values import Array, Growth, Known, Unfit

from genesis.ir import ops
from genesis.ir.dtype import Scalar
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Node, topological
from genesis.ir.ops import Op


@dataclass(frozen=True)
class Case:
    """A graph, and one or more sets of sizes and memory to run it on."""

    seed: int
    roots: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    donated: frozenset[int]
    sizes: tuple[dict[str, int], ...]
    memory: tuple[tuple[Array, ...], ...]  # flat buffers by slot, for each of `sizes`
    errors: tuple[float, ...]  # how far a root may be off

    def expected(self, run: int) -> list[Array]:
        """The oracle's values of the roots."""
        return evaluate(self.roots, self.memory[run], self.scalars, self.sizes[run])


def random_case(seed: int) -> Case:
    """The graph of a seed."""
    return _Generator(seed).case()


def pairs_of(roots: Sequence[Node]) -> set[tuple[str, str]]:
    """The pairs of primitives in a graph: what is read, and what reads it."""
    found = set()
    for n in topological(roots):
        positions = POSITIONS.get(n.op)
        for k, i in enumerate(n.inputs):
            consumer = _kind(n.op) if positions is None else f"{_kind(n.op)}.{positions[k]}"
            found.add((_kind(i.op), consumer))
    return found


def _kind(op: Op) -> str:
    """Elementwise operations go by their group, all others by name."""
    if op in (ops.CAST, ops.BITCAST):
        return op.name
    return op.group if op.is_elementwise else op.name


class _Generator(Growth):
    """Grows a graph around the wishes of its seed."""

    def __init__(self, seed: int) -> None:
        self.wishes = [PAIRS[(seed * 3 + k) % len(PAIRS)] for k in range(3)]
        super().__init__(seed, seed % 4 == 3 or any("size" in wish for wish in self.wishes))

    def case(self) -> Case:
        for producer, consumer in self.wishes:
            self.wish(producer, consumer)
        for _ in range(self.random.randint(2, 5)):
            steps = MORE if self.random.random() < 0.6 else tuple(CONSUMERS.values())
            self.attempt(self.random.choice(steps))
        used = {i for known in self.pool for i in known.node.inputs}
        ends = [k for k in self.pool if k.node not in used and k.node.op.group != "leaf"]
        chosen = ends[-5:]
        if self.random.random() < 0.5:  # also something on the way, an input, or a result again
            chosen.append(self.random.choice(self.pool))
        self.random.shuffle(chosen)
        leaves = [n for n in topological(k.node for k in chosen) if n.op is ops.BUFFER]
        slots = sorted({n.attr.slot for n in leaves})
        donated = [s for s in slots if self.random.random() < 0.7]
        return Case(
            self.seed,
            tuple(k.node for k in chosen),
            tuple(self.scalars),
            frozenset(donated),
            self.sizes,
            tuple(tuple(slot[run] for slot in self.memory) for run in range(len(self.sizes))),
            tuple(k.error for k in chosen),
        )

    def wish(self, producer: str, consumer: str) -> None:
        """Add the producer and a consumer of it, if they can be made to fit."""
        self.tries(100, lambda: CONSUMERS[consumer](self, self.produce(producer)))

    def attempt(self, step: Step) -> None:
        """Add something to what is there."""
        self.tries(5, lambda: step(self, self.pick()))

    def tries(self, count: int, make: Callable[[], Known]) -> None:
        """Grow by `make`; an attempt that does not fit leaves nothing behind."""
        for _ in range(count):
            size = len(self.pool)
            try:
                make()
                return
            except Unfit:
                del self.pool[size:]

    def produce(self, kind: str) -> Known:
        if kind in LEAVES:
            return LEAVES[kind](self)
        ways = [way for name, way in CONSUMERS.items() if name.split(".")[0] == kind]
        return self.random.choice(ways)(self, self.pick())


def _pairs() -> tuple[tuple[str, str], ...]:
    """Every producer with every consumer whose type and rank it can have."""
    producers = [*LEAVES, *dict.fromkeys(name.split(".")[0] for name in CONSUMERS)]
    single = {"scalar", "const", "size"}  # leaves of rank 0
    takes_single = {"unary", "binary", "compare", "cast", "bitcast", "reshape", "pad.fill"}
    takes_single |= {"ternary.condition", "ternary.value"}
    never_bool = {"iota", "size", "bitcast", "sum", "prod", "contract", "prefix", "scatter"}
    takes_number = {"bitcast", "sum", "prod", "contract", "prefix", "gather.index"}
    takes_number |= {"scatter.base", "scatter.index", "scatter.updates"}
    never_single = {"buffer", "iota", "permute", "expand", "slice", "pad", "window"}
    never_single |= {"prefix", "scatter", "update"}

    def sensible(producer: str, consumer: str) -> bool:
        if producer in single and consumer not in takes_single:
            return False
        if consumer == "ternary.condition" and producer in never_bool:
            return False
        if consumer in takes_number and producer == "compare":
            return False
        if consumer == "pad.fill" and producer in never_single:
            return False
        return not (producer == "iota" and consumer in ("permute", "expand"))

    return tuple((p, c) for p in producers for c in CONSUMERS if sensible(p, c))


#: The pairs of primitives that make sense: what is read, and what reads it.
PAIRS = _pairs()

__all__ = ["Case", "PAIRS", "pairs_of", "random_case"]
