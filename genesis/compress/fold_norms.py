"""Which values pass between the modules of a model, seen by running it; norms folded by that."""

from __future__ import annotations

from collections import Counter
from typing import Any

from genesis import functional, nn
from genesis.autograd import no_grad
from genesis.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from genesis.tensor.tensor import Tensor


class Flow:
    """Which values modules below a model read and give, seen with an input."""

    def __init__(self, model: nn.Module, x: Any) -> None:
        self.inputs: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self._held: list[Any] = []  # so that no two values have one number

        def watch(name: str) -> Any:
            def after(module: Any, inputs: Any, y: Any) -> None:
                self.calls[name] += 1
                self._held += [inputs, y]
                if inputs and isinstance(inputs[0], Tensor):
                    self.inputs[name] = id(inputs[0])
                if isinstance(y, Tensor):
                    self.results[name] = id(y)

            return after

        hooks = [m.register_forward_hook(watch(n)) for n, m in model.named_modules() if n]
        try:
            model(x)
        finally:
            for hook in hooks:
                hook.remove()

    def maker(self, value: int) -> str | None:
        """A module that gives a value and is called once; None if there is none."""
        found = [n for n, y in self.results.items() if y == value and self.calls[n] == 1]
        return found[0] if found else None

    def reads(self, value: int) -> list[str]:
        """The modules that read a value first."""
        return [n for n, x in self.inputs.items() if x == value]


#: How a batch norm becomes part of the layer before it.
_FOLDS: dict[tuple[type, type], Any] = {
    (nn.Conv2d, nn.BatchNorm2d): fuse_conv_bn_eval,
    (nn.Linear, nn.BatchNorm1d): fuse_linear_bn_eval,
}


@no_grad()
def fold_(model: nn.Module, x: Any) -> nn.Module:
    """Make batch norms part of the layers whose results they alone read, in place.

    Which those are is seen with an input x.
    """
    if model.training:
        raise ValueError("fold_: the model is in training; call eval() first")
    flow, modules, before = Flow(model, x), dict(model.named_modules()), model(x)
    folded: dict[str, nn.Module] = {}
    for name, norm in modules.items():
        maker = flow.maker(flow.inputs.get(name, 0)) if flow.calls[name] == 1 else None
        if maker is None:
            continue
        fuse = _FOLDS.get((type(modules[maker]), type(norm)))
        if fuse is not None and flow.reads(flow.results[maker]) == [name]:
            folded |= {maker: fuse(modules[maker], norm), name: nn.Identity()}
    for name, module in folded.items():
        replace_(model, name, module)
    if not functional.allclose(model(x), before, 1e-3, 1e-4 * float(before.abs().max())):
        for name in folded:
            replace_(model, name, modules[name])
        raise ValueError("fold_: something besides a norm reads what the layer before it gives")
    return model


def replace_(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another one."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


__all__ = ["Flow", "fold_", "replace_"]
