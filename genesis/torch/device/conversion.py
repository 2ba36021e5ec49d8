"""Moving modules: ``model.to("genesis")`` keeps weights that two layers share one weight.

PyTorch moves a parameter in place only between kinds of tensors that it takes for alike, and CPU
and device are none: it would make a new parameter for each place a weight is used at. It can swap
the contents of two tensors instead, if told so. It is told so while a module moves to the device
or from it, and at no other time: other conversions, and loading a state, go on as without Genesis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.__future__ import (
    get_swap_module_params_on_conversion,
    set_swap_module_params_on_conversion,
)

_Convert = Callable[[torch.Tensor], torch.Tensor]


def keep_shared_weights() -> None:
    """Let modules swap the contents of their parameters when they move to the device."""
    modules: Any = torch.nn.Module
    plain = modules._apply

    def apply(self: torch.nn.Module, fn: _Convert, recurse: bool = True) -> torch.nn.Module:
        if get_swap_module_params_on_conversion() or not _moves(self, fn):
            return plain(self, fn, recurse)  # type: ignore[no-any-return]
        set_swap_module_params_on_conversion(True)
        try:
            return plain(self, fn, recurse)  # type: ignore[no-any-return]
        finally:
            set_swap_module_params_on_conversion(False)

    modules._apply = apply


def _moves(module: torch.nn.Module, fn: _Convert) -> bool:
    """Whether a conversion takes parameters to the device, or from it."""
    parameter = next(module.parameters(), None)
    if parameter is None:
        return False
    before = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    kinds = {before.device.type, fn(before).device.type}
    return len(kinds) > 1 and "genesis" in kinds
