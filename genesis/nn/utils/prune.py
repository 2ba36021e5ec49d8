"""Pruning by masks, by the names and arguments that PyTorch has.

A pruned parameter is kept whole as ``<name>_orig``, beside ``<name>_mask``; the attribute itself is
their product, computed anew before every call. Pruned again, what was left is pruned. Elements and
channels that are taken out of shapes: see `genesis.compress`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from genesis import functional
from genesis.autograd.mode import no_grad
from genesis.nn.module import Module, Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)

#: From scores (of what is left) and how many to take away, which go.
Scores = Callable[[Tensor], Tensor]


def l1_unstructured(
    module: M, name: str, amount: float, importance_scores: Tensor | None = None
) -> M:
    """Take away the elements of least size: a share, or an integer for so many."""
    return _pruned(module, name, amount, functional.abs, importance_scores)


def random_unstructured(module: M, name: str, amount: float) -> M:
    """Take away elements at random: a share, or an integer for so many."""
    return _pruned(module, name, amount, creation.rand_like)


def ln_structured(
    module: M,
    name: str,
    amount: float,
    n: float,
    dim: int,
    importance_scores: Tensor | None = None,
) -> M:
    """Take away the parts along a dimension whose norm of order `n` is least."""

    def norms(x: Tensor) -> Tensor:
        others = tuple(d for d in range(len(x.shape)) if d != dim % len(x.shape))
        found: Tensor = functional.vector_norm(x, n, others, True)
        return found

    return _pruned(module, name, amount, norms, importance_scores)


def random_structured(module: M, name: str, amount: float, dim: int) -> M:
    """Take away parts along a dimension at random."""

    def drawn(x: Tensor) -> Tensor:
        shape = [1] * len(x.shape)
        shape[dim] = x.shape[dim]
        return creation.rand(*shape, device=x.device)

    return _pruned(module, name, amount, drawn)


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Take away what a mask says, by zeros."""
    return _masked(module, name, mask)


def identity(module: M, name: str) -> M:
    """Take nothing away, but have the mask."""
    return _masked(module, name, creation.ones_like(getattr(module, name).detach()))


class L1Unstructured:
    """For `global_unstructured`: the elements of least size."""

    scores: Scores = staticmethod(functional.abs)


class RandomUnstructured:
    """For `global_unstructured`: elements at random."""

    scores: Scores = staticmethod(creation.rand_like)


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[L1Unstructured] | type[RandomUnstructured],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    *,
    amount: float,
) -> None:
    """Take elements of several parameters away, those of least score among all of them."""
    wanted, given = list(parameters), importance_scores or {}
    with no_grad():
        scores, masks = [], []
        for module, name in wanted:
            x = given.get((module, name))
            x = pruning_method.scores(_whole(module, name).detach()) if x is None else x
            masks.append(_mask(module, name))
            scores.append(functional.reshape(x, (-1,)))
        left = functional.cat([functional.reshape(m, (-1,)) for m in masks])
        kept = _kept(functional.cat(scores), left, amount)
        sizes = [m.numel() for m in masks]
        for (module, name), part, mask in zip(
            wanted, functional.split(kept, sizes), masks, strict=True
        ):
            _masked(module, name, functional.reshape(part, mask.shape))


def remove(module: M, name: str) -> M:
    """Make what is left of a parameter the parameter, for good."""
    value = _product(module, name).detach()
    original = module._parameters.pop(f"{name}_orig")
    assert original is not None
    del module._buffers[f"{name}_mask"]
    _hooks(module)[name].handle.remove()
    delattr(module, name)
    with no_grad():
        original.array.assign(value.array)
    module.register_parameter(name, original)
    return module


def is_pruned(module: Module) -> bool:
    """Whether a module, or one inside of it, has a pruned parameter."""
    return any(_hooks(m) for m in module.modules())


class _Masking:
    """A hook that computes a pruned parameter before its module is called."""

    def __init__(self, module: Module, name: str) -> None:
        self.name = name
        self.handle = module.register_forward_pre_hook(self)

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, _product(module, self.name))


def _hooks(module: Module) -> dict[str, _Masking]:
    """The hooks of pruned parameters, by the parameters' names."""
    return {h.name: h for h, _ in module._forward_pre_hooks if isinstance(h, _Masking)}


def _whole(module: Module, name: str) -> Parameter:
    known = module._parameters
    found: Parameter | None = known.get(f"{name}_orig", known.get(name))
    if found is None:
        raise ValueError(f"{type(module).__name__} has no parameter {name!r} to prune")
    return found


def _mask(module: Module, name: str) -> Tensor:
    found = module._buffers.get(f"{name}_mask")
    return creation.ones_like(_whole(module, name).detach()) if found is None else found


def _product(module: Module, name: str) -> Tensor:
    found: Tensor = getattr(module, f"{name}_mask") * getattr(module, f"{name}_orig")
    return found


def _pruned(module: M, name: str, amount: float, scores: Scores, given: Tensor | None = None) -> M:
    with no_grad():
        mask = _mask(module, name)
        x = scores(_whole(module, name).detach() if given is None else given)
        # Parts are told apart by what is left of them: a part without anything is gone.
        others = tuple(d for d, n in enumerate(x.shape) if n == 1 and mask.shape[d] != 1)
        left = functional.amax(mask, others, True) if others else mask
        kept = _kept(functional.reshape(x, (-1,)), functional.reshape(left, (-1,)), amount)
        kept = functional.reshape(kept, x.shape)
        return _masked(module, name, functional.expand(kept, mask.shape))


def _kept(scores: Tensor, left: Tensor, amount: float) -> Tensor:
    """1 for what is kept of what is left, 0 for the rest."""
    there = int(left.sum().item())
    if (isinstance(amount, float) and not 0 <= amount <= 1) or amount < 0:
        raise ValueError(f"amount is {amount}: a share from 0 to 1, or an integer for so many")
    count = round(amount * there) if isinstance(amount, float) else int(amount)
    if count > there:
        raise ValueError(f"amount is {amount}, but only {there} are left")
    if not count:
        return left
    gone = functional.topk(
        functional.where(left > 0, scores, float("inf")), count, largest=False
    ).indices
    found: Tensor = functional.index_fill(left, 0, gone, 0)
    return found


def _masked(module: M, name: str, mask: Tensor) -> M:
    whole = _whole(module, name)
    if tuple(mask.shape) != tuple(whole.shape):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} for {name!r}, which is {tuple(whole.shape)}"
        )
    with no_grad():
        mask = (_mask(module, name) * mask).to(whole.dtype)
    if name not in _hooks(module):
        del module._parameters[name]
        module.register_parameter(f"{name}_orig", whole)
        _Masking(module, name)
    module.register_buffer(f"{name}_mask", mask)
    setattr(module, name, _product(module, name))
    return module


__all__ = [
    "L1Unstructured", "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity",
    "is_pruned", "l1_unstructured", "ln_structured", "random_structured", "random_unstructured",
    "remove",
]  # fmt: skip
