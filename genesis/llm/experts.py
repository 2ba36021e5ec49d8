"""Mixtures of experts: every token goes through the few networks that a router chooses for it."""

from __future__ import annotations

from typing import Any

import genesis
from genesis import functional, nn
from genesis.llm.config import DecoderConfig, ExpertsConfig
from genesis.llm.layers import FeedForward, WeightPiece, activate, linear, matrices


class ExpertNetwork(nn.Module):
    """The experts of a layer, the router that chooses among them, and what all tokens share."""

    def __init__(self, config: DecoderConfig, experts: ExpertsConfig, take: Any) -> None:
        super().__init__()
        self.experts, self.activation = experts, config.activation
        count, width, hidden = experts.count, config.width, experts.hidden
        own = take.inner("experts")
        self.router = linear(own.part("router"), count, width, experts.bias)
        for name, rows, columns in (("gate_up", 2 * hidden, width), ("down", width, hidden)):
            part = own.part(name)
            weight = part("weight", count, rows, columns)
            setattr(self, name, matrices(weight, (count, rows, columns), take))
            bias = part("bias", count, rows).to(genesis.float32) if experts.bias else None
            self.register_buffer(f"{name}_bias", bias)
        self.shared = self.shared_gate = None
        if experts.shared:
            self.shared = FeedForward(config, experts.shared, take.inner("shared"))
        if experts.shared_gate:
            self.shared_gate = linear(take.part("shared_gate"), 1, width)

    def route(self, x: Any) -> tuple[Any, Any]:
        """The scores ``(rows, chosen)`` and numbers of the experts that rows choose."""
        scores, kind = self.router(x).to(genesis.float32), self.experts.scoring
        if kind == "softmax":
            scores = functional.softmax(scores, -1)
        scores, chosen = functional.topk(scores, self.experts.chosen, -1)
        if kind == "softmax of chosen":
            scores = functional.softmax(scores, -1)
        elif kind == "sigmoid":
            scores = functional.sigmoid(scores)
        if self.experts.renormalise:
            scores = scores / scores.sum(-1, keepdim=True)
        return scores, chosen

    def forward(self, x: Any, adapters: Any = None) -> Any:
        """``(rows, width)`` to the same; adapters add to what all tokens share."""
        scores, chosen = self.route(x)
        # What goes to one expert is done in a row: then it is read from memory once.
        order = functional.argsort(chosen.reshape(-1))
        expert = chosen.reshape(-1)[order]
        given = x[order // self.experts.chosen]
        if self.experts.scale_input:
            given = given * scores.reshape(-1)[order][:, None]
        hidden = _products(given, self.gate_up, self.gate_up_bias, expert)
        gate, wide = functional.chunk(hidden, 2, -1)
        y = _products(self._gated(gate, wide), self.down, self.down_bias, expert)
        y = y[functional.argsort(order)].reshape(*chosen.shape, -1)
        if not self.experts.scale_input:
            y = y * scores[..., None]
        y = y.sum(1)
        if self.shared is not None:
            common = self.shared(x, adapters)
            if self.shared_gate is not None:
                common = common * functional.sigmoid(self.shared_gate(x))
            y = y + common
        return y

    def _gated(self, gate: Any, wide: Any) -> Any:
        if (limit := self.experts.limit) is None:
            return activate(gate, self.activation) * wide
        gate, wide = functional.clamp(gate, max=limit), functional.clamp(wide, -limit, limit)
        return gate * functional.sigmoid(gate * self.experts.alpha) * (wide + 1)


def _products(x: Any, weight: WeightPiece, bias: Any, chosen: Any) -> Any:
    """``(rows, inputs)`` times the matrices of the chosen experts, read where they lie."""
    y = weight.picked(x, chosen)
    return y if bias is None else y + bias[chosen]


__all__ = ["ExpertNetwork"]
