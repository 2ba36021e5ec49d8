"""What PyTorch's compilers ask about the device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from genesis.content_store import generation
from genesis.torch.device.module import Genesis

_module: Genesis = torch.genesis  # type: ignore[attr-defined]


class GenesisInterface(DeviceInterface):
    """The device's module, as PyTorch's compilers ask for it."""

    device = _module.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """Kernels are compiled in the process that runs them."""

        set_device = staticmethod(_module.set_device)
        current_device = staticmethod(_module.current_device)
        get_device_properties = staticmethod(_module.get_device_properties)

    current_device = staticmethod(_module.current_device)
    set_device = staticmethod(_module.set_device)
    device_count = staticmethod(_module.device_count)
    is_available = staticmethod(_module.is_available)
    current_stream = staticmethod(_module.current_stream)
    synchronize = staticmethod(_module.synchronize)
    get_device_properties = staticmethod(_module.get_device_properties)

    @staticmethod
    def exchange_device(device: int) -> int:
        """Choose a device, and say which was current."""
        before = _module.current_device()
        _module.set_device(device)
        return before

    maybe_exchange_device = exchange_device

    @staticmethod
    def get_raw_stream(device: int) -> int:
        """There is one queue a device, which has no number."""
        return 0

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """What distinguishes chips in Inductor's caches."""
        return _module.get_device_name(device)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Every chip computes with bfloat16, if need be in float32."""
        return True

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        """Kernels are Genesis's own."""
        return False


class DeviceOperations(DeviceOpOverrides):
    """How generated code speaks of the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """Nothing that is generated uses a stream."""
        return f"{name} = lambda device: 0"

    def set_device(self, device_idx: int) -> str:
        """Choose a device."""
        return f"torch.genesis.set_device({device_idx})"

    def synchronize(self) -> str:
        """Wait for a device."""
        return "torch.genesis.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Choose a device inside a ``with`` block."""
        return f"torch.genesis.device({device_idx})"


class GenesisWrapper(PythonWrapperCodegen):
    """Python around the kernels."""

    @staticmethod
    def create(is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, *rest: Any) -> Any:
        """The code of a graph, or of a graph inside of it."""
        if is_subgraph:
            return PythonWrapperCodegen.create(is_subgraph, subgraph_name, parent_wrapper, *rest)
        made: Any = GenesisWrapper
        return made()

    def write_assert_size_stride(self, name: str, size: str, stride: str, op_name: Any) -> None:
        """Let what an operator of the device gave lie as Inductor has been told that it does.

        Strides are what PyTorch's kernels on CPUs give; Inductor asks kernels that compute nothing.
        """
        if op_name == "input":
            super().write_assert_size_stride(name, size, stride, op_name)
            return
        self.add_import_once("from genesis.torch.inductor.kernel import laid_out")
        line = f"{name} = laid_out({name}, {size}, {stride})"
        self.writeline(line)  # type: ignore[no-untyped-call]


class CacheKey(CustomGraphModulePass):
    """What PyTorch's cache of compiled graphs has to know of Genesis: its sources.

    A pass over graphs that are to be lowered, which leaves them as they are.
    """

    def __call__(self, graph: torch.fx.GraphModule) -> None:
        """Do nothing."""

    def uuid(self) -> str:
        """What tells kernels printed by this version from others."""
        return generation("torch/inductor", "torch/aten")
