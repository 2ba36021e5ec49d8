"""Training with products of 8-bit floats: e4m3 forwards, e5m2 for gradients.

Inputs and weights are scaled by the greatest value of the last steps, so that their scale is known
before they are; gradients by their own. A layer that saturates again and again goes back to floats.
"""

from __future__ import annotations

from typing import Any, TypeVar

import genesis
from genesis import functional, nn
from genesis.autograd import Function, no_grad
from genesis.ir.dtype import float8_e4m3fn, float8_e5m2

M = TypeVar("M", bound=nn.Module)
#: The greatest numbers, and how many steps a scale looks back.
E4M3, E5M2, HISTORY = 448.0, 57344.0, 16


def _cast(x: Any, scale: Any, dtype: Any, most: float) -> Any:
    return functional.clamp(x * scale, -most, most).to(dtype)


class _Product(Function):
    """``input @ weight.T`` by 8-bit floats."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, x_scale: Any, w_scale: Any) -> Any:
        """The product of rounded factors."""
        x8, w8 = _cast(x, x_scale, float8_e4m3fn, E4M3), _cast(weight, w_scale, float8_e4m3fn, E4M3)
        ctx.save_for_backward(x8, w8, x_scale, w_scale)
        return functional.scaled_mm(x8, w8.T, 1 / x_scale, 1 / w_scale, None, genesis.float32)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Products of the rounded gradient with the factors as they were rounded."""
        x8, w8, x_scale, w_scale = ctx.saved_tensors
        scale = E5M2 / (functional.abs(grad).max() + 1e-30)
        g8, back = _cast(grad, scale, float8_e5m2, E5M2), 1 / scale
        to_x = functional.scaled_mm(g8, w8, back, 1 / w_scale, None, genesis.float32)
        to_w = functional.scaled_mm(g8.T, x8, back, 1 / x_scale, None, genesis.float32)
        return to_x, to_w, None, None


class Float8Linear(nn.Module):
    """`nn.Linear` whose products, forwards and backwards, are of 8-bit floats."""

    x_peaks: Any
    w_peaks: Any
    saturated: Any

    def __init__(self, layer: nn.Linear, patience: int = 0) -> None:
        super().__init__()
        self.weight, self.bias, self.patience = layer.weight, layer.bias, patience
        for name in ("x_peaks", "w_peaks"):
            self.register_buffer(name, genesis.zeros(HISTORY))
        self.register_buffer("saturated", genesis.zeros(()))

    def _scale(self, x: Any, peaks: Any) -> Any:
        """By the greatest of the last steps, or, in the first, by this one's."""
        now = functional.abs(x.detach()).max()
        known = peaks.max()
        scale = E4M3 / (functional.where(known > 0, known, now) + 1e-30)
        if self.training:
            with no_grad():
                peaks.copy_(functional.cat([now.reshape(1), peaks[:-1]]))
        return scale.detach(), now

    def forward(self, input: Any) -> Any:
        """The affine map of the last dimension."""
        x = input.reshape(-1, input.shape[-1]).to(genesis.float32)
        x_scale, peak = self._scale(x, self.x_peaks)
        w_scale, _ = self._scale(self.weight, self.w_peaks)
        y = _Product.apply(x, self.weight, x_scale, w_scale)
        if self.training and self.patience:
            with no_grad():  # how many steps in a row were far beyond the scale
                over = (peak * x_scale > 2 * E4M3).to(genesis.float32)
                self.saturated.copy_((self.saturated + 1) * over)
        y = y if self.bias is None else y + self.bias
        return y.reshape(*input.shape[:-1], y.shape[-1]).to(input.dtype)


def float8_(module: M, skip: Any = (), patience: int = 3) -> M:
    """Let linear layers below a module train with 8-bit floats, in place.

    Widths are to be multiples of 16; others, and those to skip, stay as they are.
    """
    found = 0
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Linear and name not in set(skip):
            if layer.weight.shape[0] % 16 or layer.weight.shape[1] % 16:
                continue
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, Float8Linear(layer, patience))
            found += 1
    if not found:
        raise ValueError(f"float8_: {type(module).__name__} has no layers that can train so")
    return module


def raise_precision_(module: nn.Module) -> list[str]:
    """Make layers that saturated for `patience` steps in a row `nn.Linear` again; their names."""
    raised = []
    for name, layer in list(module.named_modules()):
        if isinstance(layer, Float8Linear) and 0 < layer.patience <= layer.saturated.item():
            plain = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], layer.bias is not None)
            plain.weight, plain.bias = layer.weight, layer.bias
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, plain)
            raised.append(name)
    return raised


__all__ = ["Float8Linear", "HISTORY", "float8_", "raise_precision_"]
