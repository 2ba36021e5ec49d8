"""Tables of functions, compared with PyTorch.

A case is a function of a namespace and of tensors: the same expression is written once and meets
PyTorch's functions and ours, wherever either has them.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from against_torch import Comparison

import genesis
from genesis import functional


class Case(NamedTuple):
    name: str
    call: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    order: int = 2  # of derivatives that are compared
    tolerance: float = 1e-9


class _Torch:
    places = (torch, torch.nn.functional, torch.special)
    linalg, fft = torch.linalg, torch.fft

    def __getattr__(self, name: str) -> Any:
        for place in self.places:
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(name)


class _Genesis(_Torch):
    places = (functional, functional.special, genesis)
    linalg, fft = functional.linalg, functional.fft


SPACES: dict[Any, Any] = {torch: _Torch(), genesis: _Genesis()}


def check(cases: Iterable[Case], seed: int = 0) -> None:
    """Compare every case with PyTorch."""
    comparison = Comparison(seed)
    for case in cases:
        comparison.function(
            case.name,
            lambda module, *xs, case=case: case.call(SPACES[module], *xs),
            *case.arguments,
            order=case.order,
            squared=False,
            tolerance=case.tolerance,
        )
    comparison.check()
