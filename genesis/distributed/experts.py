"""A mixture of experts: every token goes through a few of many feed-forward networks.

Tokens are divided into groups, in each of which an expert takes so many at most (its *capacity*);
what is beyond that passes by. Dispatching and combining are products with a tensor of zeros and
ones, by token, expert and place, as in GShard: the compiler divides them like all others. Where
tokens are divided by rows and experts by their number, it lets all processes send each other tokens
(`all_to_all`), twice in each direction, and no weights.
"""

from __future__ import annotations

import math

import genesis
from genesis import Tensor, nn
from genesis.distributed.placement_rules import Rules

#: Experts divided by their number, along the axis that tokens are divided along.
experts = Rules({"*experts.up": 0, "*experts.down": 0})


class Experts(nn.Module):
    """``down(gelu(up(x)))`` by the `top` of `count` experts that a router chooses for each token.

    Tokens are taken in `groups`, whose number the processes that share them must divide. An expert
    has room for `capacity` times its share of a group's tokens.

    >>> layer = Experts(8, 16, 4, groups=2)
    >>> layer(genesis.randn(2, 6, 8)).shape
    genesis.Size([2, 6, 8])
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        count: int,
        *,
        top: int = 2,
        capacity: float = 1.25,
        groups: int = 1,
    ) -> None:
        super().__init__()
        if not 1 <= top <= count:
            raise ValueError(f"Experts: a token cannot go to {top} of {count} experts")
        self.count, self.top, self.capacity, self.groups = count, top, capacity, groups
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(_drawn(count, width, hidden))
        self.down = nn.Parameter(_drawn(count, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """The experts' results, weighted by the router's, in the shape of `x`."""
        rows = math.prod(x.shape[:-1])
        if rows % self.groups:
            raise ValueError(f"Experts: {rows} tokens do not divide into {self.groups} groups")
        tokens = x.reshape(self.groups, -1, x.shape[-1])
        combine = self._combine(self.router(tokens).softmax(-1))
        dispatch = (combine.detach() > 0).to(x.dtype)
        sent = genesis.einsum("gsec,gsd->gecd", dispatch, tokens)
        hidden = nn.functional.gelu(genesis.einsum("gecd,edf->gecf", sent, self.up))
        found = genesis.einsum("gecf,efd->gecd", hidden, self.down)
        result: Tensor = genesis.einsum("gsec,gecd->gsd", combine, found).reshape(x.shape)
        return result

    def _combine(self, gates: Tensor) -> Tensor:
        """What each token gets of each place of each expert: most are 0."""
        share = self.top * gates.shape[1] / self.count
        places = genesis.arange(min(gates.shape[1], math.ceil(share * self.capacity)))
        left = gates.detach()
        full = found = total = genesis.zeros(())
        for _ in range(self.top):
            best = (left == left.amax(-1, keepdim=True)).float()
            best = best * (best.cumsum(-1) == 1)  # of equal ones, the first
            place = best.cumsum(1) - 1 + full
            full = full + best.sum(1, keepdim=True)
            left = left - 2 * best  # not again: gates are between 0 and 1
            slot = (place.unsqueeze(-1) == places).float() * best.unsqueeze(-1)
            found = found + (gates * best).unsqueeze(-1) * slot
            total = total + (gates * best).sum(-1, keepdim=True)
        weights: Tensor = found / total.unsqueeze(-1)
        return weights


def _drawn(*shape: int) -> Tensor:
    bound = 1 / math.sqrt(shape[1])
    drawn: Tensor = genesis.rand(*shape) * (2 * bound) - bound
    return drawn


__all__ = ["Experts", "experts"]
