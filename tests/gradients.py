"""Values, gradients and second gradients of functions, compared with PyTorch.

A case is a function of a namespace and of tensors: the same expression is written once and meets
PyTorch's functions and ours. All cases of a group are realised together, so that few programs are
compiled.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

import genesis
from genesis import functional, ndarray
from genesis.autograd import grad
from genesis.tensor import Tensor


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
        return next(getattr(place, name) for place in self.places if hasattr(place, name))


class _Genesis(_Torch):
    places = (functional, functional.special, genesis)
    linalg, fft = functional.linalg, functional.fft


def check(cases: Iterable[Case], seed: int = 0) -> None:
    """Compare every case with PyTorch."""
    expected, found = [], []
    for case in cases:
        ours = _derivatives(case, _Genesis(), Tensor, _ours, seed)
        theirs = _derivatives(case, _Torch(), _as_torch, _theirs, seed)
        for k in range(max(len(ours), len(theirs))):  # one may know that derivatives end earlier
            what = (ours[k] if k < len(ours) else theirs[k])[0]
            expected.append((case, what, theirs[k][1] if k < len(theirs) else None))
            found.append((what, ours[k][1] if k < len(ours) else None))
    arrays = [x.array for _, x in found if x is not None]
    ndarray.realize(*arrays)
    for (case, what, right), (_, mine) in zip(expected, found, strict=True):
        label = f"{case.name}: {what}"
        if right is None or mine is None:
            value = None if right is None else right.numpy(force=True)
            value = value if mine is None else mine.array.numpy()
            assert value is None or not value.any(), f"{label}: {value} where there is nothing"
            continue
        want = right.numpy(force=True)
        have = mine.array.numpy()
        assert have.dtype == want.dtype, f"{label}: {have.dtype}, not {want.dtype}"
        assert have.shape == want.shape, f"{label}: shape {have.shape}, not {want.shape}"
        bound = case.tolerance
        np.testing.assert_allclose(have, want, rtol=bound, atol=bound, err_msg=label)


def _as_torch(x: np.ndarray, needs: bool) -> torch.Tensor:
    return torch.tensor(x, requires_grad=needs)


def _ours(outs: list[Any], ins: list[Any]) -> Any:
    return grad(outs, ins, create_graph=True, allow_unused=True)


def _theirs(outs: list[Any], ins: list[Any]) -> Any:
    return torch.autograd.grad(outs, ins, create_graph=True, allow_unused=True)


def _derivatives(
    case: Case, space: Any, make: Callable[..., Any], gradients: Any, seed: int
) -> list[tuple[str, Any]]:
    """The values and the derivatives of weighted sums, as often as wanted."""
    rng = np.random.default_rng(seed)
    needs = [x.dtype.kind in "fc" and case.order > 0 for x in case.arguments]
    args = [make(x, n) for x, n in zip(case.arguments, needs, strict=True)]
    leaves = [x for x, n in zip(args, needs, strict=True) if n]
    result = case.call(space, *args)
    outs = list(result) if isinstance(result, tuple | list) else [result]
    found = [(f"value {k}", x) for k, x in enumerate(outs)]
    for order in range(1, case.order + 1):
        sums = []
        for x in outs:
            if x is None or not x.requires_grad:
                continue
            shape = tuple(x.shape)
            weight: Any = rng.standard_normal(shape)
            is_complex = "complex" in str(x.dtype)
            if is_complex:
                weight = weight + 1j * rng.standard_normal(shape)
            single = any(w in str(x.dtype) for w in ("float32", "complex64"))
            if single:
                weight = weight.astype(np.complex64 if is_complex else np.float32)
            total = space.sum(x * make(np.asarray(weight), False))
            sums.append(space.real(total) if is_complex else total)
        if not sums:
            break
        outs = list(gradients(sums, leaves))
        found += [(f"gradient {k} of order {order}", x) for k, x in enumerate(outs)]
    return found
