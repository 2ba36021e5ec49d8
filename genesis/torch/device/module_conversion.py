"""Moving modules: ``model.to("genesis")`` keeps its parameters the objects that they are.

PyTorch moves a parameter in place, so that two layers that share it still do, and optimizers go on
with it, but only between kinds of tensors that it takes for alike: CPU and CUDA are, CPU and a
device of others are none. So a parameter that a conversion takes to the device, or from it, is
given its new contents here. All else about a conversion, and every other one, is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.__future__ import (
    get_overwrite_module_params_on_conversion,
    get_swap_module_params_on_conversion,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from genesis.torch.device.storage_contents import runtime

_Convert = Callable[[torch.Tensor], torch.Tensor]


def keep_parameters() -> None:
    """Let parameters of modules move to the device in place."""
    modules: Any = torch.nn.Module
    plain = modules._apply

    def _apply(self: torch.nn.Module, fn: _Convert, recurse: bool = True) -> torch.nn.Module:
        return plain(self, fn if isinstance(fn, _Moving) else _Moving(fn), recurse)  # type: ignore[no-any-return]

    modules._apply = _apply


class _Moving:
    """A conversion that has moved a parameter already when it gives what that becomes."""

    def __init__(self, convert: _Convert) -> None:
        self.convert = convert

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        converted = self.convert(tensor)
        if not isinstance(tensor, torch.nn.Parameter) or not _crosses(tensor, converted):
            return converted
        if get_swap_module_params_on_conversion() or get_overwrite_module_params_on_conversion():
            return converted  # that is what the user wants
        gradient = tensor.grad
        moved = None if gradient is None else self.convert(gradient)
        tensor.grad = None  # it could not be on another device
        runtime.adopt(tensor, converted)
        if gradient is not None and moved is not None:
            runtime.adopt(gradient, moved)
            tensor.grad = gradient
        return converted


def _crosses(before: torch.Tensor, after: Any) -> bool:
    """Whether one of two plain tensors is on the device, and the other on another."""
    kinds = {before.device.type, after.device.type}
    return (
        len(kinds) == 2
        and "genesis" in kinds
        and "meta" not in kinds
        and not is_traceable_wrapper_subclass(before)
        and not isinstance(after, torch._subclasses.FakeTensor)
    )
