"""The same function on tensors here and in PyTorch: values, first and second gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import genesis
from genesis import ndarray as nd

#: Called with `genesis` or `torch` as the first argument, then tensors.
Function = Callable[..., Any]


class Comparison:
    """Results to be compared; computed together, so that few programs are compiled."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.pairs: list[tuple[str, Any, Any]] = []

    def add(self, name: str, mine: Any, theirs: Any) -> None:
        if mine is None or theirs is None:  # no gradient is a gradient of zero
            known = theirs if mine is None else mine
            assert known is None or not np.any(known.detach().numpy()), name
        else:
            assert tuple(mine.shape) == tuple(theirs.shape), (name, mine.shape, theirs.shape)
            assert str(theirs.dtype) == f"torch.{mine.dtype}", (name, mine.dtype, theirs.dtype)
            self.pairs.append((name, mine.array, theirs.detach().resolve_conj()))

    def function(
        self,
        name: str,
        function: Function,
        *arrays: np.ndarray,
        second: bool = True,
        squared: bool = True,
    ) -> None:
        """Compare a function of float arrays (they are squared first) and its gradients."""
        mine = [genesis.tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
        theirs = [torch.tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
        results = []
        for module, xs in ((genesis, mine), (torch, theirs)):
            # A square has a derivative of its own, so that second gradients are not zero.
            squares = [x * x if squared and x.requires_grad else x for x in xs]
            found = function(module, *squares)
            results.append(list(found) if isinstance(found, tuple | list) else [found])
        assert len(results[0]) == len(results[1]), name
        losses: list[Any] = [0, 0]
        for a, b in zip(*results, strict=True):
            self.add(name, a, b)
            assert a.requires_grad == b.requires_grad, name
            if b.requires_grad:
                weight = self.rng.standard_normal(b.shape).astype(str(b.dtype)[6:])
                losses[0] = losses[0] + (a * genesis.tensor(weight)).sum()
                losses[1] = losses[1] + (b * torch.tensor(weight)).sum()
        if not torch.is_tensor(losses[1]):
            return
        if losses[1].is_complex():
            losses = [losses[0].real, losses[1].real]
        inputs = [[x for x in xs if x.requires_grad] for xs in (mine, theirs)]
        modules: Sequence[Any] = (genesis, torch)
        grads = [
            m.autograd.grad(loss, xs, create_graph=second, allow_unused=True)
            for m, loss, xs in zip(modules, losses, inputs, strict=True)
        ]
        for a, b in zip(*grads, strict=True):
            self.add(f"gradient of {name}", a, b)
        if second:
            squares = [
                sum((g * g).sum() for g in gs if g is not None and g.requires_grad) for gs in grads
            ]
            if not torch.is_tensor(squares[1]):
                return
            seconds = [
                m.autograd.grad(s, xs, allow_unused=True)
                for m, s, xs in zip(modules, squares, inputs, strict=True)
            ]
            for a, b in zip(*seconds, strict=True):
                self.add(f"second gradient of {name}", a, b)

    def check(self, rtol: float = 1e-10, atol: float = 1e-12) -> None:
        """Compute everything of this project together and compare."""
        nd.realize(*(mine for _, mine, _ in self.pairs))
        for name, mine, theirs in self.pairs:
            np.testing.assert_allclose(
                mine.numpy(), theirs.numpy(), rtol=rtol, atol=atol, err_msg=name
            )
        self.pairs.clear()
