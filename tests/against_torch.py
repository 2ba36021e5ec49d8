"""The same function on tensors here and in PyTorch: values, and derivatives of any order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import genesis
from genesis import ndarray as nd

#: Called with `genesis` or `torch` as the first argument, then tensors.
Function = Callable[..., Any]
MODULES: tuple[Any, Any] = (genesis, torch)


class Comparison:
    """Results to be compared; computed together, so that few programs are compiled."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.pairs: list[tuple[str, Any, Any, float | None]] = []

    def add(self, name: str, mine: Any, theirs: Any, tolerance: float | None = None) -> None:
        """A result here and in PyTorch; `tolerance` is for this pair only."""
        if mine is None or theirs is None:  # no gradient is a gradient of zero
            known = theirs if mine is None else mine
            assert known is None or not np.any(known.numpy(force=True)), name
        else:
            assert tuple(mine.shape) == tuple(theirs.shape), (name, mine.shape, theirs.shape)
            assert str(theirs.dtype) == f"torch.{mine.dtype}", (name, mine.dtype, theirs.dtype)
            self.pairs.append((name, mine.array, theirs.numpy(force=True), tolerance))

    def function(
        self,
        name: str,
        function: Function,
        *arrays: np.ndarray,
        order: int = 2,
        squared: bool = True,
        tolerance: float | None = None,
    ) -> None:
        """Compare a function of arrays and its derivatives up to an order.

        Float arguments are squared first: a square has a derivative of its own, so that second
        derivatives are not zero.
        """
        sides = []
        results: list[Sequence[Any]] = []
        for module in MODULES:
            needs = [order > 0 and a.dtype.kind in "fc" for a in arrays]
            xs = [module.tensor(a, requires_grad=n) for a, n in zip(arrays, needs, strict=True)]
            found = function(module, *(x * x if squared and x.requires_grad else x for x in xs))
            results.append(found if isinstance(found, tuple | list) else [found])
            sides.append([x for x in xs if x.requires_grad])
        assert [x.requires_grad for x in results[0]] == [x.requires_grad for x in results[1]], name
        self.derivatives(name, results, sides, order, tolerance)

    def derivatives(
        self,
        name: str,
        results: Sequence[Sequence[Any]],
        inputs: Sequence[list[Any]],
        order: int,
        tolerance: float | None = None,
    ) -> None:
        """Compare results here and there, and their derivatives by inputs here and there."""
        for k in range(order + 1):
            what = f"derivative {k} of {name}" if k else name
            for a, b in zip(*results, strict=True):
                self.add(what, a, b, tolerance)
            if k < order:
                weights = [
                    self._weight(a if b is None else b) for a, b in zip(*results, strict=True)
                ]
                results = [
                    _gradients(m, found, weights, xs, k + 1 < order)
                    for m, found, xs in zip(MODULES, results, inputs, strict=True)
                ]

    def _weight(self, result: Any) -> np.ndarray | None:
        """Random numbers to multiply a result by, so that no error is lost in a sum."""
        if result is None:
            return None
        weight: Any = self.rng.standard_normal(tuple(result.shape))
        if result.is_complex():
            weight = weight + 1j * self.rng.standard_normal(tuple(result.shape))
        return np.asarray(weight, str(result.dtype).removeprefix("torch."))

    def check(self, rtol: float = 1e-10, atol: float = 1e-12) -> None:
        """Compute everything of this project together and compare."""
        nd.realize(*(mine for _, mine, _, _ in self.pairs))
        for name, mine, theirs, bound in self.pairs:
            near = (rtol, atol) if bound is None else (bound, bound)
            np.testing.assert_allclose(mine.numpy(), theirs, *near, err_msg=name)
        self.pairs.clear()


def _gradients(
    module: Any, results: Sequence[Any], weights: Sequence[Any], inputs: list[Any], graph: bool
) -> Sequence[Any]:
    """The gradients of the weighted sum of results; None where one side knows they are zero."""
    loss: Any = 0
    for x, weight in zip(results, weights, strict=True):
        if x is not None and x.requires_grad:
            term = (x * module.tensor(weight)).sum()
            loss = loss + (term.real if term.is_complex() else term)
    if not inputs or isinstance(loss, int):
        return [None] * len(inputs)
    found: Sequence[Any] = module.autograd.grad(loss, inputs, create_graph=graph, allow_unused=True)
    return found
