"""Who belongs to whom: networks on a graph, from two labels alone.

    genesis train graphs

Zachary watched a karate club of 34 people part in two after a quarrel. The graph of who met whom
outside is known, and of two people, the instructor and the president, which side they took. Four
kinds of layers (GCN, GraphSAGE, GAT, GIN) say on which side the others were.
"""

from __future__ import annotations

from collections.abc import Callable

import genesis
from genesis import nn, optim
from genesis.nn import functional as F  # noqa: N812
from genesis.tensor.tensor import Tensor

#: W. W. Zachary, "An Information Flow Model for Conflict and Fission in Small Groups" (1977): for
#: each member the later ones it met.
MET = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31), 1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32), 3: (7, 12, 13), 4: (6, 10), 5: (6, 10, 16), 6: (16,),
    8: (30, 32, 33), 9: (33,), 13: (33,), 14: (32, 33), 15: (32, 33), 18: (32, 33), 19: (33,),
    20: (32, 33), 22: (32, 33), 23: (25, 27, 29, 32, 33), 24: (25, 27, 31), 25: (31,),
    26: (29, 33), 27: (33,), 28: (31, 33), 29: (32, 33), 30: (32, 33), 31: (32, 33), 32: (33,),
}  # fmt: skip
MEMBERS = 34
INSTRUCTOR, PRESIDENT = 0, 33
#: Those who went with the instructor.
WENT = frozenset((0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21))


def adjacency() -> Tensor:
    """1 where two members met."""
    found = genesis.zeros(MEMBERS, MEMBERS)
    for a, others in MET.items():
        for b in others:
            found[a, b] = found[b, a] = 1.0
    return found


class GCN(nn.Module):
    """The mean of a node and its neighbours, weighted by degrees (Kipf and Welling, 2017)."""

    def __init__(self, inputs: int, outputs: int, graph: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        loops = graph + genesis.eye(len(graph))
        scale = loops.sum(1).rsqrt()
        self.register_buffer("mix", scale[:, None] * loops * scale)

    def forward(self, x: Tensor) -> Tensor:
        """Features of all nodes, from those around each."""
        mixed: Tensor = self.mix @ self.linear(x)
        return mixed


class GraphSAGE(nn.Module):
    """A node, and apart from it the mean of its neighbours (Hamilton et al., 2017)."""

    def __init__(self, inputs: int, outputs: int, graph: Tensor) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)
        self.register_buffer("mean", graph / graph.sum(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """Features of all nodes, from those around each."""
        joined: Tensor = self.own(x) + self.others(self.mean @ x)
        return joined


class GAT(nn.Module):
    """Attention to neighbours (Velickovic et al., 2018), with one head."""

    def __init__(self, inputs: int, outputs: int, graph: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.asks, self.answers = nn.Linear(outputs, 1), nn.Linear(outputs, 1)
        self.register_buffer("apart", graph + genesis.eye(len(graph)) == 0)

    def forward(self, x: Tensor) -> Tensor:
        """Features of all nodes, from those around each."""
        x = self.linear(x)
        scores = F.leaky_relu(self.asks(x) + self.answers(x).T, 0.2)
        weights = F.softmax(scores.masked_fill(self.apart, float("-inf")), -1)
        mixed: Tensor = weights @ x
        return mixed


class GIN(nn.Module):
    """The sum of neighbours through a small network (Xu et al., 2019)."""

    def __init__(self, inputs: int, outputs: int, graph: Tensor) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        self.own = nn.Parameter(genesis.zeros(()))
        self.register_buffer("graph", graph)

    def forward(self, x: Tensor) -> Tensor:
        """Features of all nodes, from those around each."""
        found: Tensor = self.mlp((1 + self.own) * x + self.graph @ x)
        return found


LAYERS: dict[str, Callable[[int, int, Tensor], nn.Module]] = {
    "GCN": GCN, "GraphSAGE": GraphSAGE, "GAT": GAT, "GIN": GIN,
}  # fmt: skip


class Network(nn.Module):
    """Two layers of a kind: from who somebody is to which side they take."""

    def __init__(self, kind: str, graph: Tensor, width: int = 16) -> None:
        super().__init__()
        layer = LAYERS[kind]
        self.first, self.second = layer(MEMBERS, width, graph), layer(width, 2, graph)

    def forward(self, x: Tensor) -> Tensor:
        """Scores for both sides."""
        scores: Tensor = self.second(F.relu(self.first(x)))
        return scores


def train(steps: int = 200, seed: int = 0) -> dict[str, float]:
    """Train one network of each kind; the share of the 32 others that it has right."""
    graph, people = adjacency(), genesis.eye(MEMBERS)
    sides = genesis.tensor([0 if k in WENT else 1 for k in range(MEMBERS)])
    known = genesis.tensor([INSTRUCTOR, PRESIDENT])
    results = {}
    for kind in LAYERS:
        genesis.manual_seed(seed)
        model = Network(kind, graph)
        optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-3)

        @genesis.jit
        def step(model: Network = model, optimizer: optim.Adam = optimizer) -> Tensor:
            loss: Tensor = F.cross_entropy(model(people)[known], sides[known])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(steps):
            step()
        with genesis.no_grad():
            right = (model(people).argmax(1) == sides).float()
        others = (right.sum() - right[known].sum()) / (MEMBERS - 2)
        results[kind] = others.item()
        print(f"{kind:10} {results[kind]:.0%} of the others are where they were", flush=True)
    return results
