"""Gates: what is made of one product, and met by another.

A gated product multiplies two of them, one of which goes through an activation before. Done where
they meet, the activation takes registers that a large tile of the other product does not leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from genesis.compiler.fuse.cost import count
from genesis.ir import ops
from genesis.ir.node import Node, topological

#: What makes an element of a gate, at least, in multiply-adds.
LEAST = 6


class Gates:
    """Which values are computed by the kernel of the product that they are made of."""

    def __init__(
        self,
        order: Sequence[Node],
        roots: Collection[Node],
        cost: Mapping[Node, int],
        enabled: bool,
    ) -> None:
        self.order, self.roots, self.cost = order, roots, cost
        self._products = _products(order) if enabled else {}
        self._ended: set[Node] = set()  # contractions whose kernels end with what is made of them

    def apart(self, n: Node, root: Node) -> bool:
        """Whether the kernel of `root` would do to another product what the kernel of that can.

        Nobody else may need the product before.
        """
        mine, every = (self._products.get(x, frozenset()) for x in (n, root))
        if len(mine) != 1 or not every - mine - self._ended or self.cost[n] < LEAST:
            return False
        (product,) = mine
        same = count(product.shape) == count(n.shape) == count(root.shape)
        if not (n.op.is_elementwise and same and self._alone(n, product)):
            return False
        self._ended.add(product)
        return True

    def _alone(self, n: Node, product: Node) -> bool:
        """Whether all that is made of a contraction goes into `n`."""
        made = {m for m in topological([n], self._inputs) if product in self._products[m]}
        inner = made - {n}
        users = {u for m in inner for u in self._users[m]}
        return inner.isdisjoint(self.roots) and made.issuperset(users)

    def _inputs(self, n: Node) -> tuple[Node, ...]:
        """What a value is made of, down to contractions."""
        return () if n.op is ops.CONTRACT else tuple(i for i in n.inputs if self._products[i])

    @cached_property
    def _users(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = {n: [] for n in self.order}
        for n in self.order:
            for i in n.inputs:
                found[i].append(n)
        return found


def _products(order: Sequence[Node]) -> dict[Node, frozenset[Node]]:
    """For each node: the contractions that it is made of element by element."""
    found: dict[Node, frozenset[Node]] = {}
    for n in order:
        through = n.op.is_elementwise or n.op in (ops.RESHAPE, ops.PERMUTE)
        inside = [found[i] for i in n.inputs] if through else []
        found[n] = frozenset([n]) if n.op is ops.CONTRACT else frozenset().union(*inside)
    return found
