"""Pruning by masks, by the names and arguments that PyTorch has.

A pruned parameter is kept whole as ``<name>_orig``, beside ``<name>_mask``; the attribute itself is
their product, computed anew before every call. Pruned again, what was left is pruned. Elements and
channels that are taken out of shapes: see `genesis.compress`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from genesis import functional
from genesis.autograd.mode import no_grad
from genesis.nn.module import Module, Parameter
from genesis.tensor import creation
from genesis.tensor.tensor import Tensor

M = TypeVar("M", bound=Module)


class BasePruningMethod:
    """A way to choose what is taken away; a subclass says how by `compute_mask`.

    It gets a parameter and the mask so far, and gives a mask. Of one that was pruned before, an
    "unstructured" method gets what is left, as a vector.
    """

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """1 for what is kept, 0 for the rest."""
        raise NotImplementedError(f"{type(self).__name__} has no compute_mask")

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """A tensor with zeros for what is taken away."""
        mask = creation.ones_like(t) if default_mask is None else default_mask
        scores = t if importance_scores is None else importance_scores
        found: Tensor = t * self.compute_mask(scores, mask)
        return found

    @classmethod
    def apply(
        cls,
        module: Module,
        name: str,
        *args: Any,
        importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:
        """Prune a parameter of a module; the other arguments are those of the method."""
        method, given = cls(*args, **kwargs), importance_scores
        with no_grad():
            x = _whole(module, name).detach() if given is None else given
            _masked(module, name, method._of_what_is_left(x, _mask(module, name)))
        return method

    def _of_what_is_left(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.PRUNING_TYPE != "unstructured" or bool((mask != 0).all()):
            return self.compute_mask(x, mask)
        left = mask != 0
        found: Tensor = mask.clone()
        found[left] = self.compute_mask(x[left], mask[left]).to(mask.dtype)
        return found


class _ByScores(BasePruningMethod):
    """Those of least score go: a share of what is left, or an integer for so many."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def _scores(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """1 for what is kept, 0 for the rest."""
        x, mask = self._scores(t), default_mask
        # Parts are told apart by what is left of them: a part without anything is gone.
        others = tuple(d for d, n in enumerate(x.shape) if n == 1 and mask.shape[d] != 1)
        left = functional.amax(mask, others, True) if others else mask
        flat = functional.reshape(x, (-1,)), functional.reshape(left, (-1,))
        kept = functional.reshape(_kept(*flat, self.amount), x.shape)
        found: Tensor = functional.expand(kept, mask.shape)
        return found


class L1Unstructured(_ByScores):
    """The elements of least size."""

    def _scores(self, x: Tensor) -> Tensor:
        found: Tensor = functional.abs(x)
        return found


class RandomUnstructured(_ByScores):
    """Elements at random."""

    def _scores(self, x: Tensor) -> Tensor:
        return creation.rand_like(x)


class LnStructured(_ByScores):
    """The parts along a dimension whose norm of order `n` is least."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, n: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.n, self.dim = n, dim

    def _scores(self, x: Tensor) -> Tensor:
        others = tuple(d for d in range(len(x.shape)) if d != self.dim % len(x.shape))
        found: Tensor = functional.vector_norm(x, self.n, others, True)
        return found


class RandomStructured(_ByScores):
    """Parts along a dimension at random."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _scores(self, x: Tensor) -> Tensor:
        shape = [1] * len(x.shape)
        shape[self.dim] = x.shape[self.dim]
        return creation.rand(*shape, device=x.device)


class CustomFromMask(BasePruningMethod):
    """What a mask says, by zeros."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """What both masks keep."""
        found: Tensor = default_mask * self.mask.to(default_mask.dtype)
        return found


def l1_unstructured(
    module: M, name: str, amount: float, importance_scores: Tensor | None = None
) -> M:
    """Take away the elements of least size: a share, or an integer for so many."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_unstructured(module: M, name: str, amount: float) -> M:
    """Take away elements at random: a share, or an integer for so many."""
    RandomUnstructured.apply(module, name, amount)
    return module


def ln_structured(
    module: M,
    name: str,
    amount: float,
    n: float,
    dim: int,
    importance_scores: Tensor | None = None,
) -> M:
    """Take away the parts along a dimension whose norm of order `n` is least."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def random_structured(module: M, name: str, amount: float, dim: int) -> M:
    """Take away parts along a dimension at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Take away what a mask says, by zeros."""
    CustomFromMask.apply(module, name, mask)
    return module


def identity(module: M, name: str) -> M:
    """Take nothing away, but have the mask."""
    return _masked(module, name, creation.ones_like(_whole(module, name).detach()))


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Take elements of several parameters away, chosen among those of all of them together."""
    wanted, given = list(parameters), importance_scores or {}
    if pruning_method.PRUNING_TYPE != "unstructured":
        raise TypeError(f"{pruning_method.__name__} is not unstructured: it needs one parameter")
    with no_grad():
        masks = [_mask(*place) for place in wanted]
        values = [given.get(place, _whole(*place).detach()) for place in wanted]
        flat = [functional.cat([functional.reshape(x, (-1,)) for x in g]) for g in (values, masks)]
        kept = pruning_method(**kwargs)._of_what_is_left(*flat)
        parts = functional.split(kept, [m.numel() for m in masks])
        for (module, name), part, mask in zip(wanted, parts, masks, strict=True):
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
    "BasePruningMethod", "CustomFromMask", "L1Unstructured", "LnStructured",
    "RandomStructured", "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity",
    "is_pruned", "l1_unstructured", "ln_structured", "random_structured", "random_unstructured",
    "remove",
]  # fmt: skip
