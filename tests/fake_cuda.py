# ruff: noqa: N802, N815 (the names are the driver's)
"""A CUDA driver in a few lines of Python: what `genesis.backends.gpu` calls, on host memory.

Work in a stream is done as late as possible: when somebody waits for it. So whatever relies on an
order that no event or stream gives comes out wrong here. With a `pace`, streams also go ahead on
their own, each as fast as it likes: whatever relies on one being slow comes out wrong, too. Memory
that nobody may look at (freed, or on its way from the device) is filled with `POISON`. Kernels are
Python functions, which `kernels` finds by their image; `launched` counts the ways in which they
were started.

`interrupt` is asked after every call that a signal may follow, by the main thread alone.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import types
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

Kernel = Callable[[str, int, list[int]], None]  # name, blocks, addresses of arguments


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


OK = (CUresult.CUDA_SUCCESS,)
POISON = 0xA5

ATTRIBUTES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": 60 << 20,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 132,
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
}


@dataclass
class Event:
    stream: int = 0
    position: int = 0  # how much of the stream is before it
    recorded: bool = False


@dataclass
class Stream:
    pending: deque[Callable[[], None]] = field(default_factory=deque)
    done: int = 0
    pace: float = 0.0  # how likely it goes one step ahead whenever the driver is called

    @property
    def length(self) -> int:
        return self.done + len(self.pending)


@dataclass
class KernelNode:
    function: Any
    blocks: int
    arguments: list[bytes]


class FakeDriver(types.ModuleType):
    """What `cuda.bindings.driver` is to its users."""

    CUdevice_attribute = SimpleNamespace(**{name: name for name in ATTRIBUTES})
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUresult = CUresult

    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CUgraphEdgeData = SimpleNamespace

    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)

    class CUDA_KERNEL_NODE_PARAMS(SimpleNamespace):  # noqa: N801
        pass

    class CUmemAllocationProp(SimpleNamespace):
        def __init__(self) -> None:
            super().__init__(location=SimpleNamespace())

    CUmemAccessDesc = CUmemAllocationProp

    def __init__(self, devices: int = 1, memory: int = 1 << 32, hollow: bool = False) -> None:
        super().__init__("cuda.bindings.driver")
        self.devices = devices
        self.memory = memory
        self.hollow = hollow  # memory has addresses and nothing else
        self.kernels: dict[bytes, Kernel] = {}
        self.launched: Counter[str] = Counter()
        self._threads: dict[int, list[int]] = {}  # the contexts of threads
        self._lock = threading.RLock()  # streams go ahead in any thread that calls
        self.pace: Random | None = None
        self.interrupt: Callable[[], None] = lambda: None
        self.blocks: dict[int, Any] = {}  # addresses of memory in use
        self.sizes: dict[int, int] = {}  # by addresses, or by handles
        self.handles = 0
        self.mapped: dict[int, int] = {}  # handles by addresses
        self.gone: list[Any] = []
        self.modules: Counter[bytes] = Counter()  # how often each is loaded
        self.streams: dict[int, Stream] = {0: Stream()}
        self.prompt: set[int] = set()  # streams whose work is done at once
        self.recorded: dict[int, list[Callable[[], Any]]] = {}  # streams that are being captured
        self.failing: CUresult | None = None  # what the next launch gives

    @property
    def contexts(self) -> list[int]:
        """The contexts of this thread, the current one last."""
        return self._threads.setdefault(threading.get_ident(), [])

    def install(self, monkeypatch: Any) -> FakeDriver:
        """Let `from cuda.bindings import driver` find this one, and nobody NVIDIA's libraries."""
        from genesis.backends.gpu.library import nccl, nvidia_math
        from genesis.backends.gpu.runtime import nvidia

        for user in (nccl, nvidia_math):  # whose real ones would take what is pretended for real
            monkeypatch.setattr(user, "loaded", lambda name: None)

        package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
        bindings.driver = self  # type: ignore[attr-defined]
        for name, module in {
            "cuda": package, "cuda.bindings": bindings, "cuda.bindings.driver": self
        }.items():  # fmt: skip
            monkeypatch.setitem(sys.modules, name, module)
        nvidia.driver.cache_clear()
        return self

    # ---- devices and contexts
    def cuInit(self, flags: int) -> Any:
        return OK

    def cuDeviceGetCount(self) -> Any:
        return (*OK, self.devices)

    def cuDeviceGet(self, number: int) -> Any:
        return (*OK, number)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return (*OK, 1000 + device)

    def cuDeviceGetAttribute(self, name: str, device: int) -> Any:
        return (*OK, ATTRIBUTES[name])

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return (*OK, b"Pretended GPU\0")

    def cuDeviceTotalMem(self, device: int) -> Any:
        return (*OK, self.memory)

    def cuMemGetInfo(self) -> Any:
        return (*OK, self.memory - sum(self.sizes.values()), self.memory)

    def cuCtxGetCurrent(self) -> Any:
        return (*OK, self.contexts[-1] if self.contexts else 0)

    def cuCtxPushCurrent(self, context: int) -> Any:
        self.contexts.append(context)
        return OK

    def cuCtxPopCurrent(self) -> Any:
        return (*OK, self.contexts.pop())

    def cuGetErrorName(self, error: CUresult) -> Any:
        return (*OK, error.name.encode())

    def cuGetErrorString(self, error: CUresult) -> Any:
        return (*OK, b"as the test wanted")

    # ---- memory
    def _new(self, nbytes: int) -> int:
        if self.hollow:
            address = max(self.blocks, default=1 << 40) + (1 << 32)
            self.blocks[address] = None
            return address
        array = np.full(nbytes + 512, 0xCD, np.uint8)
        address = (array.ctypes.data + 511) & -512
        self.blocks[address] = array
        return address

    def cuMemAlloc(self, nbytes: int) -> Any:
        if sum(self.sizes.values()) + nbytes > self.memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0)
        address = self._new(nbytes)
        self.sizes[address] = nbytes
        return (*OK, address)

    def cuMemFree(self, address: int) -> Any:
        self.cuCtxSynchronize()
        nbytes = self.sizes.pop(address)
        if (block := self.blocks.pop(address)) is not None:
            ctypes.memset(address, POISON, nbytes)
            self.gone.append(block)  # whoever still uses it finds poison
        return OK

    # Memory apart from addresses: what is mapped is what may be used.
    def cuMemAddressReserve(self, nbytes: int, alignment: int, address: int, flags: int) -> Any:
        if self.hollow:
            self.blocks[max(self.blocks, default=0) + (1 << 60)] = None
            return (*OK, max(self.blocks))
        no_reserve = 0x4000
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        space = np.frombuffer(mmap.mmap(-1, nbytes + alignment, flags), np.uint8)
        address = -(-space.ctypes.data // alignment) * alignment
        self.blocks[address] = space
        return (*OK, address)

    def cuMemCreate(self, nbytes: int, properties: Any, flags: int) -> Any:
        assert properties.location.type == properties.type == 1
        if sum(self.sizes.values()) + nbytes > self.memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0)
        self.handles += 1
        self.sizes[self.handles] = nbytes
        return (*OK, self.handles)

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, flags: int) -> Any:
        assert offset == 0 and self.sizes[handle] == nbytes and handle not in self.mapped.values()
        others = ((a, a + self.sizes[h]) for a, h in self.mapped.items())
        assert all(end <= address or address + nbytes <= start for start, end in others)
        self.mapped[address] = handle
        return OK

    def cuMemSetAccess(self, address: int, nbytes: int, access: list[Any], count: int) -> Any:
        assert count == 1 and access[0].flags == 3
        return OK

    def cuMemUnmap(self, address: int, nbytes: int) -> Any:
        assert self.sizes[self.mapped.pop(address)] == nbytes
        assert not any(stream.pending for stream in self.streams.values())
        if not self.hollow:
            ctypes.memset(address, POISON, nbytes)
        return OK

    def cuMemRelease(self, handle: int) -> Any:
        assert handle not in self.mapped.values()
        del self.sizes[handle]
        return OK

    def cuCtxSynchronize(self) -> Any:
        for stream in list(self.streams):
            self._drain(stream)
        self.launched["synchronize"] += 1
        return OK

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        return (*OK, self._new(nbytes))

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> Any:
        assert self.contexts, "a call without a current context"
        self._enqueue(stream, lambda: ctypes.memmove(target, source, nbytes))
        return OK

    cuMemcpyHtoDAsync = cuMemcpyAsync = _copy

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> Any:
        ctypes.memset(target, POISON, nbytes)  # nobody may look before it is there
        return self._copy(target, source, nbytes, stream)

    def cuMemcpyPeerAsync(
        self, target: int, here: int, source: int, there: int, nbytes: int, stream: int
    ) -> Any:
        assert here != there
        return self._copy(target, source, nbytes, stream)

    def cuMemsetD8Async(self, target: int, value: int, nbytes: int, stream: int) -> Any:
        self._enqueue(stream, lambda: ctypes.memset(target, value, nbytes))
        return OK

    def cuMemsetD2D32Async(
        self, target: int, pitch: int, value: int, width: int, height: int, stream: int
    ) -> Any:
        def fill() -> None:
            for row in range(height):
                (ctypes.c_uint32 * width).from_address(target + row * pitch)[:] = [value] * width

        self._enqueue(stream, fill)
        return OK

    # ---- streams and events
    def _enqueue(self, stream: int, work: Callable[[], Any]) -> None:
        with self._lock:
            if stream in self.recorded:
                self.recorded[stream].append(work)
            else:
                self.streams[stream].pending.append(work)
        self._called()

    def _called(self) -> None:
        """What may happen whenever the driver is called."""
        for handle in self.prompt:
            self._drain(handle)
        if self.pace is not None:
            with self._lock:
                for handle, stream in self.streams.items():
                    if self.pace.random() < 0.1:  # now fast, now slow
                        stream.pace = self.pace.choice((0.0, 0.0, 0.2, 0.8, 1.0))
                    while stream.pending and self.pace.random() < stream.pace:
                        self._drain(handle, stream.done + 1)
        if threading.current_thread() is threading.main_thread():
            self.interrupt()

    def _drain(self, stream: int, until: int | None = None) -> None:
        with self._lock:
            queue = self.streams[stream]
            while queue.pending and (until is None or queue.done < until):
                work = queue.pending.popleft()
                work()
                queue.done += 1

    def cuStreamCreate(self, flags: int) -> Any:
        handle = 100 + len(self.streams)
        self.streams[handle] = Stream()
        return (*OK, handle)

    def cuStreamSynchronize(self, stream: int) -> Any:
        self._drain(stream)
        return OK

    def cuStreamIsCapturing(self, stream: int) -> Any:
        return (*OK, int(stream in self.recorded))

    def cuStreamQuery(self, stream: int) -> Any:
        return OK

    def cuStreamWaitEvent(self, stream: int, event: Event, flags: int) -> Any:
        where, position = event.stream, event.position
        if event.recorded and where != stream:
            self._enqueue(stream, lambda: self._drain(where, position))
        return OK

    def cuEventCreate(self, flags: int) -> Any:
        return (*OK, Event())

    def cuEventRecord(self, event: Event, stream: int) -> Any:
        with self._lock:
            event.stream, event.position = stream, self.streams[stream].length
            event.recorded = True
        self._called()
        return OK

    def cuEventSynchronize(self, event: Event) -> Any:
        if event.recorded:
            self._drain(event.stream, event.position)
        self._called()
        return OK

    def cuEventQuery(self, event: Event) -> Any:
        if self.streams[event.stream].done < event.position:
            return (CUresult.CUDA_ERROR_NOT_READY,)
        return OK

    def cuEventElapsedTime(self, start: Event, end: Event) -> Any:
        return (*OK, 1.5)

    def cuEventDestroy(self, event: Event) -> Any:
        return OK

    # ---- code
    def cuModuleLoadData(self, image: bytes) -> Any:
        if not image:
            return (CUresult.CUDA_ERROR_INVALID_VALUE, None)
        self.modules[image] += 1
        return (*OK, image)

    def cuModuleUnload(self, module: bytes) -> Any:
        assert self.contexts and not any(stream.pending for stream in self.streams.values())
        self.modules[module] -= 1
        return OK

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> Any:
        return (*OK, (module, name.decode()))

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> Any:
        return OK

    def _execute(self, node: KernelNode) -> None:
        image, name = node.function
        assert self.modules[image], "code that is not loaded any more"
        buffers = [ctypes.create_string_buffer(a, 8) for a in node.arguments]
        self.kernels[image](name, node.blocks, [ctypes.addressof(b) for b in buffers])

    def _node(self, function: Any, blocks: int, parameters: int) -> KernelNode:
        """Arguments are read when a launch is asked for, not when it happens; a null ends them."""
        arguments = []
        while place := ctypes.c_uint64.from_address(parameters + 8 * len(arguments)).value:
            arguments.append(ctypes.string_at(place, 8))
        return KernelNode(function, blocks, arguments)

    def cuLaunchKernel(
        self, f: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
        stream: int, parameters: int, extra: int,
    ) -> Any:  # fmt: skip
        assert self.contexts and gx > 0 and bx % 32 == 0
        if self.failing is not None:
            failing, self.failing = self.failing, None
            return (failing,)
        self.launched["kernel"] += 1
        node = self._node(f, gx, parameters)
        self._enqueue(stream, lambda: self._execute(node))
        return OK

    # ---- graphs
    def cuGraphCreate(self, flags: int) -> Any:
        return (*OK, [])

    CUstreamCaptureMode = int

    def cuStreamBeginCapture(self, stream: int, mode: int) -> Any:
        assert stream not in self.recorded and mode == 2
        self.recorded[stream] = []
        return OK

    def cuStreamEndCapture(self, stream: int) -> Any:
        return (*OK, self.recorded.pop(stream))

    def cuGraphAddKernelNode(self, graph: Any, before: Any, count: int, parameters: Any) -> Any:
        assert count == len(before) and before in ([], graph[-1:])
        node = self._node(parameters.func, parameters.gridDimX, parameters.kernelParams)
        graph.append(node)
        return (*OK, node)

    def cuGraphAddDependencies(
        self, graph: Any, before: Any, after: Any, edges: Any, n: int
    ) -> Any:
        assert (before, after, n) == (graph[-2:-1], graph[-1:], 1)
        self.launched["early"] += 1
        return OK

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self.launched["instantiate"] += 1
        return (*OK, {id(node): node for node in graph})

    def cuGraphExecKernelNodeSetParams(self, executable: Any, node: Any, parameters: Any) -> Any:
        self.launched["update"] += 1
        new = self._node(parameters.func, parameters.gridDimX, parameters.kernelParams)
        assert id(node) in executable
        executable[id(node)] = new
        return OK

    def cuGraphLaunch(self, executable: Any, stream: int) -> Any:
        assert stream not in self.recorded
        self.launched["graph"] += 1
        nodes = list(executable.values())
        with self._lock:
            self.streams[stream].pending.extend(
                partial(self._execute, node) if isinstance(node, KernelNode) else node
                for node in nodes
            )
        self._called()
        return OK

    def cuGraphExecDestroy(self, executable: Any) -> Any:
        return OK

    def cuGraphDestroy(self, graph: Any) -> Any:
        return OK
