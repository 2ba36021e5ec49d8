"""Inductor for ``torch.device("genesis")``: its scheduling and fusion, Genesis's kernels.

``torch.compile(model)`` of a model on the device, PyTorch's default backend, comes here. Inductor
lowers the graph to loops, decides which of them are one kernel and plans the
memory between kernels; every kernel is printed as a function of arrays (`scheduling`), which
Genesis compiles, proves and launches (`kernel`). Products, convolutions and whatever else Inductor
calls a library for are operators of the device.

Inductor's interfaces are private and change with every minor release, so this is for one of them.

>>> import torch, genesis.torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).to("genesis")
>>> x = torch.ones(2, 8, device="genesis")
>>> torch.allclose(torch.compile(model)(x).cpu(), model(x).cpu(), atol=1e-6)
True
"""

from __future__ import annotations

import torch

import genesis.torch  # noqa: F401 - makes the device known
from genesis.torch.inductor_version import SUPPORTED, is_supported


def register() -> None:
    """Let Inductor compile for the device; importing this package does so."""
    if not is_supported():
        raise ImportError(
            f"genesis.torch.inductor is for the Inductor of PyTorch {SUPPORTED}, and this is "
            f'PyTorch {torch.__version__}: use torch.compile(model, backend="genesis"), which '
            "every supported release has"
        )
    from torch._dynamo.device_interface import register_interface_for_device
    from torch._inductor.codegen.common import (
        register_backend_for_device,
        register_device_op_overrides,
    )

    from genesis.torch.inductor.device import (
        CacheKey,
        DeviceOperations,
        GenesisInterface,
        GenesisWrapper,
    )
    from genesis.torch.inductor.scheduling import GenesisScheduling

    register_interface_for_device("genesis", GenesisInterface)
    register_device_op_overrides("genesis", DeviceOperations())
    register_backend_for_device(
        "genesis", GenesisScheduling, GenesisWrapper, device_custom_pass=CacheKey()
    )


register()
