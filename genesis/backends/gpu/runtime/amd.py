"""AMD's driver: HIP, through ctypes.

Functions of HIP take pointers to their results before their arguments. Given the types of both,
`HIP` makes functions of them as cuda-bindings has them: arguments give an error and the results.
There are no contexts in it; a thread has a current device, and has the one again that it had after
every call of ours.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from ctypes import c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any, NamedTuple

from genesis.backends.gpu.runtime.driver import Call, Driver, DriverError, GPUDevice


class HipKernelNodeParams(ctypes.Structure):
    """HIP's `hipKernelNodeParams`; a `dim3` is three numbers."""

    _fields_ = (
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("kernelParams", c_void_p),
        ("sharedMemBytes", c_uint),
    )


class _Handles:
    """An argument that is a list of handles."""

    @classmethod
    def from_param(cls, handles: Sequence[int]) -> Any:
        return (c_void_p * len(handles))(*handles)


class Prototype(NamedTuple):
    """The types of a function's results and of its arguments."""

    results: tuple[Any, ...]
    arguments: tuple[Any, ...]


class HIP(Driver):
    """The HIP driver, of ROCm 6 or later."""

    kind = "hip"
    title = "HIP"

    def __init__(self) -> None:
        library = _library()
        try:
            self._bound = {name: _bound(library, name) for name in PROTOTYPES}
            self._names, self._meanings = library.hipGetErrorName, library.hipGetErrorString
        except AttributeError as problem:
            message = f"this AMD driver is too old, ROCm 6 has what is missing: {problem}"
            raise DriverError(message) from None
        self._names.restype = self._meanings.restype = c_char_p
        (error,) = self._bound["hipInit"](0)
        if error:
            raise DriverError(f"HIP cannot be used: {self.described(error)}")
        self._current = self._bound["hipGetDevice"]
        super().__init__()

    def symbol(self, name: str) -> str:
        """Most functions are called as CUDA's are."""
        return f"hip{_OTHERS.get(name, name)}"

    def bound(self, name: str) -> Call:
        """A function of the library."""
        return self._bound[name]

    def described(self, error: Any) -> str:
        """The name of an error, and what it means."""
        return f"{self._names(error).decode()} ({self._meanings(error).decode()})"

    def attribute(self, name: str) -> Any:
        """The number of an attribute."""
        return ATTRIBUTES[name]

    def node(self) -> Any:
        """Parameters of a kernel node."""
        return HipKernelNodeParams()

    def mapping(self, device: GPUDevice) -> None:
        """Memory is taken in segments: not all of AMD's chips can map it."""

    def architecture(self, device: GPUDevice) -> str:
        """Such as gfx942 for the MI300.

        It stands among the properties of a device, of which versions have ever more.
        """
        properties = ctypes.create_string_buffer(_PROPERTIES)
        self.call("GetDevicePropertiesR0600", properties, device.handle)
        found = re.search(rb"gfx[0-9a-f]+", properties.raw)
        if found is None:
            raise DriverError(f"HIP does not say what architecture {device.name} has")
        return found[0].decode()

    def is_captured(self, stream: Any) -> bool:
        """Whether a queue is recorded: here the result comes last."""
        status = c_int()
        self.call("StreamIsCapturing", stream, ctypes.byref(status))
        return status.value != 0

    def context(self, handle: Any) -> Any:
        """The number of a device."""
        return handle

    def enter(self, context: Any) -> Any:
        """Make a device the current one, if it is not."""
        error, current = self._current()
        if error:
            self.fail("GetDevice", error)
        if current == context and not self.child:
            return None
        self.call("SetDevice", context)
        return current

    def leave(self, previous: Any) -> None:
        """Make the device current again that was before."""
        self.call("SetDevice", previous)


@cache
def driver() -> HIP:
    """The driver of this process."""
    return HIP()


def _library() -> Any:
    folder = os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "lib")
    names = [f"libamdhip64.so{version}" for version in ("", ".7", ".6")]
    for name in (*names, os.path.join(folder, names[0])):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DriverError(f"no AMD driver: there is no {names[0]}, also not in {folder}; install ROCm")


def _bound(library: Any, name: str) -> Call:
    results, arguments = PROTOTYPES[name]
    function = getattr(library, name)
    function.argtypes = (*[c_void_p] * len(results), *arguments)
    function.restype = c_int

    def call(*given: Any) -> tuple[Any, ...]:
        found = [kind() for kind in results]
        error = function(*map(ctypes.byref, found), *given)
        return (error, *(x.value for x in found))

    return call


#: Those whose names in HIP are other than CUDA's.
_OTHERS = {
    "CtxSynchronize": "DeviceSynchronize",
    "DeviceGetCount": "GetDeviceCount",
    "EventCreate": "EventCreateWithFlags",
    "GraphInstantiate": "GraphInstantiateWithFlags",
    "LaunchKernel": "ModuleLaunchKernel",
    "MemAlloc": "Malloc",
    "MemFree": "Free",
    "MemHostAlloc": "HostMalloc",
    "MemcpyAsync": "MemcpyDtoDAsync",
    "StreamCreate": "StreamCreateWithFlags",
}

#: Numbers of attributes, by CUDA's names. AMD's chips have no fast memory that must be asked for.
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 23,
    "COMPUTE_CAPABILITY_MINOR": 61,
    "L2_CACHE_SIZE": 19,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 74,
    "MULTIPROCESSOR_COUNT": 63,
}

_PROPERTIES = 1 << 14  # ten times as many bytes as they have now
_P = c_void_p  # an address, or a handle

PROTOTYPES = {
    name: Prototype(results, arguments)
    for name, results, arguments in (
        ("hipInit", (), (c_uint,)),
        ("hipGetDeviceCount", (c_int,), ()),
        ("hipDeviceGet", (c_int,), (c_int,)),
        ("hipGetDevice", (c_int,), ()),
        ("hipSetDevice", (), (c_int,)),
        ("hipDeviceGetAttribute", (c_int,), (c_int, c_int)),
        ("hipDeviceGetName", (c_char * 128,), (c_int, c_int)),
        ("hipGetDevicePropertiesR0600", (), (_P, c_int)),
        ("hipDeviceSynchronize", (), ()),
        ("hipDeviceTotalMem", (c_size_t,), (c_int,)),
        ("hipMemGetInfo", (c_size_t, c_size_t), ()),
        ("hipMalloc", (_P,), (c_size_t,)),
        ("hipFree", (), (_P,)),
        ("hipHostMalloc", (_P,), (c_size_t, c_uint)),
        ("hipMemcpyHtoDAsync", (), (_P, _P, c_size_t, _P)),
        ("hipMemcpyDtoHAsync", (), (_P, _P, c_size_t, _P)),
        ("hipMemcpyDtoDAsync", (), (_P, _P, c_size_t, _P)),
        ("hipMemcpyPeerAsync", (), (_P, c_int, _P, c_int, c_size_t, _P)),
        ("hipStreamCreateWithFlags", (_P,), (c_uint,)),
        ("hipStreamSynchronize", (), (_P,)),
        ("hipStreamIsCapturing", (), (_P, _P)),
        ("hipStreamWaitEvent", (), (_P, _P, c_uint)),
        ("hipEventCreateWithFlags", (_P,), (c_uint,)),
        ("hipEventRecord", (), (_P, _P)),
        ("hipEventSynchronize", (), (_P,)),
        ("hipEventQuery", (), (_P,)),
        ("hipEventElapsedTime", (c_float,), (_P, _P)),
        ("hipEventDestroy", (), (_P,)),
        ("hipModuleLoadData", (_P,), (_P,)),
        ("hipModuleUnload", (), (_P,)),
        ("hipModuleGetFunction", (_P,), (_P, c_char_p)),
        ("hipModuleLaunchKernel", (), (_P, *[c_uint] * 7, _P, _P, _P)),
        ("hipGraphCreate", (_P,), (c_uint,)),
        (
            "hipGraphAddKernelNode",
            (_P,),
            (_P, _Handles, c_size_t, ctypes.POINTER(HipKernelNodeParams)),
        ),
        ("hipGraphInstantiateWithFlags", (_P,), (_P, c_ulonglong)),
        ("hipGraphExecKernelNodeSetParams", (), (_P, _P, ctypes.POINTER(HipKernelNodeParams))),
        ("hipGraphLaunch", (), (_P, _P)),
        ("hipGraphExecDestroy", (), (_P,)),
        ("hipGraphDestroy", (), (_P,)),
    )
}
