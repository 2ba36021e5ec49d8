"""NVIDIA's driver, through cuda-bindings.

The primary context is used, which is the one that PyTorch, CuPy and JAX use, too; a thread that had
another context current has it again after every call of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from genesis.backends.gpu.runtime.driver import Call, Driver, DriverError, GPUDevice


class CUDA(Driver):
    """The CUDA driver."""

    kind = "cuda"
    title = "CUDA"

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError:
            message = "the cuda backend needs cuda-bindings: pip install genesis-dl[cuda]"
            raise ImportError(message) from None
        self._api: Any = driver
        try:
            (error,) = driver.cuInit(0)
        except RuntimeError as problem:  # the library of the driver is not there
            message = f"there is no NVIDIA driver on this machine: {problem}"
            raise DriverError(message) from None
        if int(error):
            raise DriverError(f"CUDA cannot be used: {self.described(error)}")
        self._current: Call = driver.cuCtxGetCurrent
        super().__init__()

    def symbol(self, name: str) -> str:
        """All functions have the same prefix."""
        return f"cu{name}"

    def bound(self, name: str) -> Call:
        """A function of cuda-bindings."""
        function: Call = getattr(self._api, name)
        return function

    def described(self, error: Any) -> str:
        """The name of an error, and what it means."""

        def text(function: Callable[[Any], Any]) -> str:
            _, found = function(error)
            return found.decode() if isinstance(found, bytes) else str(found)

        return f"{text(self._api.cuGetErrorName)} ({text(self._api.cuGetErrorString)})"

    def attribute(self, name: str) -> Any:
        """The enumerator of an attribute."""
        return getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")

    def node(self) -> Any:
        """Parameters of a kernel node."""
        return self._api.CUDA_KERNEL_NODE_PARAMS()

    def follow(self, graph: Any, before: list[Any], parameters: Any, early: bool) -> Any:
        """A new kernel node; the edges to those that start early say so."""
        if not early:
            return super().follow(graph, before, parameters, early)
        node = super().follow(graph, [], parameters, early)
        edge = self._api.CUgraphEdgeData()
        edge.from_port = _PROGRAMMATIC
        edge.type = self._api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        count = len(before)
        self.call("GraphAddDependencies", graph, before, [node] * count, [edge] * count, count)
        return node

    def captured(self, stream: Any, work: Callable[[], object]) -> Any:
        """By the queue; meanwhile this thread may do what else it likes."""
        self.call("StreamBeginCapture", stream, self._api.CUstreamCaptureMode(_RELAXED))
        try:
            work()
        except BaseException:
            error, graph = self.function("StreamEndCapture")(stream)
            if not int(error):
                self.call("GraphDestroy", graph)
            raise
        return self.call("StreamEndCapture", stream)

    def mapping(self, device: GPUDevice) -> tuple[Any, Any] | None:
        """Memory of the device, for itself to read and write."""
        if not device.attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
            return None
        api = self._api
        memory, access = api.CUmemAllocationProp(), api.CUmemAccessDesc()
        memory.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for described in (memory, access):
            described.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            described.location.id = device.number
        return memory, access

    def architecture(self, device: GPUDevice) -> str:
        """Such as sm_90 for the H100 and H200."""
        major, minor = (device.attribute(f"COMPUTE_CAPABILITY_{k}") for k in ("MAJOR", "MINOR"))
        return f"sm_{10 * major + minor}"

    def context(self, handle: Any) -> Any:
        """The primary context of a device."""
        return self.call("DevicePrimaryCtxRetain", handle)

    def enter(self, context: Any) -> Any:
        """Push a context, if another is current."""
        error, current = self._current()
        if int(error):
            self.fail("CtxGetCurrent", error)
        if int(current) == int(context) and not self.child:
            return None
        self.call("CtxPushCurrent", context)
        return current

    def leave(self, previous: Any) -> None:
        """Pop the context that `enter` pushed."""
        self.call("CtxPopCurrent")

    def load(self, image: bytes, name: str, shared: int) -> tuple[Any, Any]:
        """A function, which must be allowed to have much fast memory."""
        function, module = super().load(image, name, shared)
        if shared > _SHARED:
            kinds = self._api.CUfunction_attribute
            limit = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("FuncSetAttribute", function, limit, shared)
        return function, module


@cache
def driver() -> CUDA:
    """The driver of this process."""
    return CUDA()


_SHARED = 48 << 10
#: How a queue is captured: calls that are no work for a queue are allowed.
_RELAXED = 2
#: The port of a kernel that is reached once all its blocks have let the next one come.
_PROGRAMMATIC = 1
