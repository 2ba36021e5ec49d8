# ruff: noqa: N802 (the names are the driver's)
"""AMD's driver, pretended: `tests.fake_cuda` behind functions that are as HIP's header has them.

Every function is a real one of C, with the types that the header (Triton brings it) says. So what
`genesis.backends.gpu.runtime.amd` believes of names, arguments, structures and numbers is compared
with it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import struct
import threading
import traceback
from collections.abc import Callable
from functools import cache, cached_property
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fake_cuda import OK, FakeDriver

SCALARS: dict[str, Any] = {
    "int": ctypes.c_int, "hipDevice_t": ctypes.c_int, "hipDeviceAttribute_t": ctypes.c_int,
    "hipError_t": ctypes.c_int, "unsigned": ctypes.c_uint, "unsigned int": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong, "size_t": ctypes.c_size_t, "float": ctypes.c_float,
}  # fmt: skip

#: Functions of CUDA that do the same, where more than the prefix differs.
SAME = {
    "hipGetDeviceCount": "cuDeviceGetCount", "hipMalloc": "cuMemAlloc", "hipFree": "cuMemFree",
    "hipHostMalloc": "cuMemHostAlloc", "hipMemcpyDtoDAsync": "cuMemcpyAsync",
    "hipStreamCreateWithFlags": "cuStreamCreate", "hipEventCreateWithFlags": "cuEventCreate",
    "hipDeviceSynchronize": "cuCtxSynchronize", "hipModuleLaunchKernel": "cuLaunchKernel",
    "hipGraphInstantiateWithFlags": "cuGraphInstantiate",
}  # fmt: skip

CHIP = {
    "hipDeviceAttributeComputeCapabilityMajor": 9,
    "hipDeviceAttributeComputeCapabilityMinor": 4,
    "hipDeviceAttributeMaxSharedMemoryPerBlock": 65536,
    "hipDeviceAttributeL2CacheSize": 4 << 20,
    "hipDeviceAttributeMultiprocessorCount": 304,
}

HANDLES = 1 << 50  # above everything that is a number or an address
ARCHITECTURE = 1160  # where `gcnArchName` is in `hipDeviceProp_tR0600`


class FakeHIP(FakeDriver):
    """What HIP does."""

    def __init__(self, devices: int = 1, memory: int = 1 << 32, hollow: bool = False) -> None:
        super().__init__(devices, memory, hollow)
        self.objects: list[Any] = []
        self.used: set[str] = set()

    @property
    def contexts(self) -> list[int]:
        """The number of this thread's current device."""
        return self._threads.setdefault(threading.get_ident(), [0])

    def install(self, monkeypatch: Any) -> FakeHIP:
        """Let `libamdhip64.so` be this one."""
        from genesis.backends.gpu.runtime import amd

        monkeypatch.setattr(amd, "_library", lambda: Library(self))
        amd.driver.cache_clear()
        return self

    def handle(self, value: Any) -> Any:
        """What stands for an object in C."""
        if isinstance(value, int | float):
            return value
        self.objects.append(value)
        return HANDLES + len(self.objects) - 1

    def object(self, value: Any) -> Any:
        """What a handle stands for; other numbers are themselves."""
        if isinstance(value, int) and value >= HANDLES:
            return self.objects[value - HANDLES]
        return value

    def hipGetDevice(self) -> Any:
        return (*OK, self.contexts[-1])

    def hipSetDevice(self, number: int) -> Any:
        self.contexts[-1] = number
        return OK

    def hipDeviceGetAttribute(self, number: int, device: int) -> Any:
        return (*OK, CHIP[header().attributes[number]])

    def hipGetDevicePropertiesR0600(self, properties: int, device: int) -> Any:
        name = b"gfx942:sramecc+:xnack-"
        ctypes.memmove(properties + ARCHITECTURE, name, len(name))
        return OK

    def hipModuleLoadData(self, image: int) -> Any:
        return self.cuModuleLoadData(ctypes.string_at(image))

    def hipGraphAddKernelNode(self, graph: Any, before: int, count: int, node: int) -> Any:
        handles = (ctypes.c_uint64 * count).from_address(before)
        found = [self.object(handle) for handle in handles]
        return self.cuGraphAddKernelNode(graph, found, count, self.parameters(node))

    def hipGraphExecKernelNodeSetParams(self, executable: Any, node: Any, parameters: int) -> Any:
        return self.cuGraphExecKernelNodeSetParams(executable, node, self.parameters(parameters))

    def parameters(self, address: int) -> Any:
        """`hipKernelNodeParams`: the block, extra, the function, the grid, arguments, memory."""
        x, y, z, extra, function, gx, gy, gz, arguments, _ = struct.unpack(
            "3I4xQQ3I4xQI", ctypes.string_at(address, 60)
        )
        assert (y, z, gy, gz, extra) == (1, 1, 1, 1, 0) and x % 64 == 0
        return SimpleNamespace(func=self.object(function), gridDimX=gx, kernelParams=arguments)


class Library:
    """What `ctypes.CDLL` gives."""

    def __init__(self, fake: FakeHIP) -> None:
        self._fake = fake
        self._texts: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name not in header().functions:
            raise AttributeError(f"undefined symbol: {name}")
        self._fake.used.add(name)
        result, parameters = header().functions[name]
        if result != "hipError_t":
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(self._text)
        else:
            types = [parameter_type(parameter) for parameter in parameters]
            function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._callee(name, parameters))
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address
        untyped: Any = ctypes.CFUNCTYPE(ctypes.c_int)(address)  # the caller says what types it has
        untyped.kept = function
        return untyped

    def _text(self, error: int) -> int:
        name = ctypes.create_string_buffer(header().errors[error].encode())
        self._texts.append(name)
        return ctypes.addressof(name)

    def _callee(self, name: str, parameters: list[str]) -> Callable[..., int]:
        fake = self._fake
        own = SAME.get(name, f"cu{name[3:]}")
        method: Any = getattr(fake, name, None) or getattr(fake, own)
        results = len(parameters) - len(signature(method).parameters)

        def run(*given: Any) -> int:
            try:
                error, *values = method(*(fake.object(x) for x in given[results:]))
                if not error:
                    for kind, place, value in zip(parameters, given, values, strict=False):
                        self._write(kind, place, value)
            except Exception:  # nothing of Python gets through C
                traceback.print_exc()
                return 999
            return int(error)

        return run

    def _write(self, parameter: str, place: int, value: Any) -> None:
        """Put a result where a pointer points to."""
        kind, stars = parameter.split("*")[0].strip(), parameter.count("*")
        if kind == "char":
            ctypes.memmove(place, value, len(value))
        else:
            plain = SCALARS.get(kind, ctypes.c_void_p) if stars == 1 else ctypes.c_void_p
            plain.from_address(place).value = self._fake.handle(value)


class Header:
    """What HIP's header says."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("triton")
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin).parent / "backends/amd/include/hip/hip_runtime_api.h"
        self._text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)

    @cached_property
    def functions(self) -> dict[str, tuple[str, list[str]]]:
        """By name: what it gives, and its parameters."""
        found: dict[str, tuple[str, list[str]]] = {}
        pattern = r"^(hipError_t|const char\s*\*)\s*(hip\w+)\s*\(([^;{}]*?)\)\s*;"
        renamed = dict(re.findall(r"#define (hip\w+) (hip\w+R0600)\b", self._text))
        for result, name, inside in re.findall(pattern, self._text, re.MULTILINE):
            plain = re.sub(r"__dparm\(\w*\)|=\s*\w+", "", inside)
            parameters = [p for p in map(str.strip, plain.split(",")) if p != "void"]
            found.setdefault(renamed.get(name, name), (result, parameters))
        return found

    @cached_property
    def attributes(self) -> dict[int, str]:
        """Names of attributes of devices."""
        return self._enumerators("hipDeviceAttribute_t")

    @cached_property
    def errors(self) -> dict[int, str]:
        """Names of errors."""
        return self._enumerators("hipError_t")

    def _enumerators(self, name: str) -> dict[int, str]:
        """Names by number; the first is the name of a number that has several."""
        body = re.search(rf"enum [\w ]*\b{name}\s*{{(.*?)}}", self._text, re.DOTALL)
        assert body is not None
        numbers: dict[str, int] = {}
        number = -1
        for item in filter(None, map(str.strip, body[1].split(","))):
            key, _, value = (part.strip() for part in item.partition("="))
            known = numbers.get(value)
            number = number + 1 if not value else int(value, 0) if known is None else known
            numbers[key] = number
        return {number: key for key, number in reversed(numbers.items())}


@cache
def header() -> Header:
    return Header()


def parameter_type(parameter: str) -> Any:
    if re.match(r"const char\s*\*", parameter):
        return ctypes.c_char_p
    if "*" in parameter:
        return ctypes.c_void_p
    return SCALARS.get(parameter.rpartition(" ")[0].strip() or parameter, ctypes.c_void_p)
