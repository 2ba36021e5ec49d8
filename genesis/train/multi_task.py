"""Several losses at once: how much each of them counts.

Each is a callback of `fit` for a loss that gives several tensors whose names begin with ``loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import genesis.functional as F  # noqa: N812
from genesis.autograd import grad, no_grad
from genesis.nn.module import Module, Parameter
from genesis.optim.adam import Adam
from genesis.tensor.creation import ones, zeros
from genesis.tensor.tensor import Tensor
from genesis.train.callbacks import Callback

if TYPE_CHECKING:
    from genesis.train.fit_loop import Training


class _Weighting(Callback):
    """A number for each task, learned beside the model."""

    def __init__(self, tasks: int, lr: float, start: Tensor) -> None:
        self.weights = Module()
        self.weights.values = Parameter(start)
        self.optimizer = Adam(self.weights.parameters(), lr=lr)
        self._tasks = tasks

    def _listed(self, losses: Mapping[str, Tensor]) -> list[Tensor]:
        if len(losses) != self._tasks:
            raise ValueError(
                f"{type(self).__name__}: it was made for {self._tasks} tasks, the losses are "
                f"{[*losses]}"
            )
        return list(losses.values())

    def on_update(self, training: Training) -> None:
        """Learn the numbers, too."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """The numbers, and their optimizer's state."""
        return {"weights": self.weights.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.weights.load_state_dict(state_dict["weights"])
        self.optimizer.load_state_dict(state_dict["optimizer"])


class UncertaintyWeighting(_Weighting):
    """Weights from the noise of each task, which is learned (Kendall, Gal and Cipolla, 2018).

    What is made small is ``exp(-s) * loss + s``, added up, for a learned number s of each task.
    """

    def __init__(self, tasks: int, lr: float = 0.01) -> None:
        super().__init__(tasks, lr, zeros(tasks))

    def backward(self, training: Training, losses: Mapping[str, Tensor]) -> bool:
        """The gradients of the weighted sum."""
        s = self.weights.values
        listed = self._listed(losses)
        total: Any = sum(F.exp(-s[k]) * loss + s[k] for k, loss in enumerate(listed))
        total.backward()
        return True


class GradNorm(_Weighting):
    """Weights that have all tasks learn at the same rate (Chen et al., 2018).

    `shared` is the last parameter that all tasks use: the norms of their gradients there are
    brought towards their mean, those of tasks that are behind to more (by the power `alpha`).
    """

    def __init__(
        self, shared: Parameter, tasks: int, alpha: float = 1.5, lr: float = 0.025
    ) -> None:
        super().__init__(tasks, lr, ones(tasks))
        self.shared, self.alpha = shared, alpha
        self.first = zeros(tasks)  # the losses of the first step; all 0 before it

    def backward(self, training: Training, losses: Mapping[str, Tensor]) -> bool:
        """The gradients of the weighted sum, and those of the weights."""
        listed, w = self._listed(losses), self.weights.values
        with no_grad():
            now = F.stack([x.detach() for x in listed])
            self.first.copy_(F.where(self.first == 0, now, self.first))
        there: list[Any] = [grad(x, self.shared, retain_graph=True)[0] for x in listed]
        norms = [w[k] * g.detach().norm() for k, g in enumerate(there)]
        weighted: Any = sum(w[k].detach() * x for k, x in enumerate(listed))
        weighted.backward()
        ratios = now / self.first
        rates = (ratios / ratios.mean()) ** self.alpha
        stacked = F.stack(norms)
        target = (stacked.mean() * rates).detach()
        (stacked - target).abs().sum().backward()
        return True

    def on_update(self, training: Training) -> None:
        """Learn the weights, and keep their sum."""
        super().on_update(training)
        with no_grad():
            w = self.weights.values
            w.copy_(w * (self._tasks / w.sum()))

    def state_dict(self) -> dict[str, Any]:
        """The weights, their optimizer's state, and the first losses."""
        return {**super().state_dict(), "first": self.first}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        super().load_state_dict(state_dict)
        with no_grad():
            self.first.copy_(state_dict["first"])


class PCGrad(Callback):
    """Gradients of tasks that point against each other, without that part (Yu et al., 2020).

    Where the gradients of two tasks have a negative product, each loses its component along the
    other. Tasks are visited in the order of their losses.
    """

    def backward(self, training: Training, losses: Mapping[str, Tensor]) -> bool:
        """The sum of the gradients after what conflicts has been taken away."""
        parameters = [p for p in training.model.parameters() if p.requires_grad]
        each = [
            grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses.values()
        ]
        with no_grad():
            flat = [_flat(gradients, parameters) for gradients in each]
            total: Any = sum(_without_conflicts(k, flat) for k in range(len(flat)))
            place = 0
            for p in parameters:
                part = total[place : place + p.numel()].reshape(p.shape)
                p.grad = part if p.grad is None else p.grad + part
                place += p.numel()
        return True


def _flat(gradients: Any, parameters: list[Parameter]) -> Tensor:
    pairs = zip(gradients, parameters, strict=True)
    parts = [(zeros(p.numel()) if g is None else g.reshape(-1)) for g, p in pairs]
    joined: Tensor = F.cat(parts)
    return joined


def _without_conflicts(number: int, flat: list[Tensor]) -> Tensor:
    mine = flat[number]
    for k, other in enumerate(flat):
        if k != number:
            product, size = (mine * other).sum(), (other * other).sum().clamp(min=1e-30)
            mine = mine - F.where(product < 0, product / size, zeros(())) * other
    return mine
