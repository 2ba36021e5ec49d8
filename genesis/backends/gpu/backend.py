"""GPUs as backends: Triton for code, their vendor's driver for running it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from importlib import metadata
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from genesis.backends import base
from genesis.backends.gpu.chip import Described, describe
from genesis.backends.gpu.launch_metadata import parsed
from genesis.backends.gpu.runtime import amd, mapped_host_memory, memory, nvidia, program
from genesis.backends.gpu.runtime.driver import Driver, DriverError, GPUDevice
from genesis.backends.gpu.runtime.transfer import Transfers
from genesis.ir.dtype import DType
from genesis.ir.numpy_library.collectives import carrier

if TYPE_CHECKING:
    from genesis.ir.kernel import Kernel
    from genesis.ir.node import LibraryCall


class GPUBackend(base.Backend):
    """A GPU, by the driver of its vendor and its number."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.device = GPUDevice(driver, number)
        self.pool = memory.MemoryPool(self.device)
        self._transfers = Transfers(self.device)
        self._chip = describe(self.device)
        # DeviceCode is unloaded when no program has it any more.
        self._loaded: WeakValueDictionary[str, program.DeviceCode] = WeakValueDictionary()
        self._unaligned: WeakValueDictionary[str, program.DeviceCode] = WeakValueDictionary()
        self._dead: deque[tuple[Any, bytes]] = deque()
        self._words: deque[int] = deque()  # that nobody has

    @property
    def chip(self) -> Described:
        """What this GPU can do."""
        return self._chip

    @property
    def target(self) -> str:
        """This GPU as its driver describes it, and Triton's version."""
        return f"{self._chip.key} triton {_triton_version(self.name)}"

    # ---- memory
    def allocate(self, nbytes: int) -> base.Memory:
        """Memory from the caching allocator."""
        return self.pool.allocate_many((nbytes,))[0]

    def allocate_many(self, sizes: Sequence[int]) -> list[base.Memory]:
        """Memory for several requests, in one step."""
        found: list[Any] = self.pool.allocate_many(sizes)
        return found

    def memory_stats(self) -> base.MemoryStats:
        """The caching allocator's state."""
        return self.pool.stats()

    def reset_peak(self) -> None:
        """Count the peak from what is live now."""
        self.pool.reset_peak()

    def trim(self) -> None:
        """Give cached blocks back to the device."""
        self.pool.trim()

    def foreign(self, pointer: int, nbytes: int, owner: object) -> base.Memory:
        """Memory of another library's object, or a part of ours."""
        return memory.Memory(pointer, nbytes, owner)

    def upload(self, memory_: base.Memory, source: npt.NDArray[Any]) -> None:
        """Copy a NumPy array into memory that is new, beside the programs that run."""
        assert isinstance(memory_, memory.Memory)
        native = source.astype(source.dtype.newbyteorder("="), copy=False)
        self._transfers.upload(memory_, native)

    def download(
        self,
        memory_: base.Memory,
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """A copy of the memory that the array reaches over."""
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        size = dtype.itemsize
        if strides is None:
            contents = self._transfers.download(memory_.pointer + offset * size, prod(shape) * size)
            return np.ndarray(tuple(shape), dtype.numpy, contents)
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low = offset + sum(r for r in reach if r < 0)
        count = offset + sum(r for r in reach if r > 0) + 1 - low
        contents = self._transfers.download(memory_.pointer + low * size, count * size)
        steps = [s * size for s in strides]
        return np.ndarray(tuple(shape), dtype.numpy, contents, (offset - low) * size, steps)

    has_words = True

    def word(self) -> base.Word:
        """A word in pinned memory."""
        return mapped_host_memory.Word(self.device, self._words)

    def word_later(self, memory_: base.Memory) -> base.Later:
        """A word, once the programs before it have run."""
        return self._transfers.word(memory_.pointer)

    def copy(self, target: base.Memory, source: base.Memory, nbytes: int, start: int = 0) -> None:
        """Copy memory of any GPU to memory of this one, in turn with the programs here."""
        if nbytes:
            here, there = self.device, getattr(source, "pool", self.pool).device
            with here:
                places = target.pointer, source.pointer + start
                if there is here:
                    here.call("MemcpyAsync", *places, nbytes, here.stream)
                else:  # memory that is mapped is known only to its own device
                    ends = places[0], here.context, places[1], there.context
                    here.call("MemcpyPeerAsync", *ends, nbytes, here.stream)

    def synchronize(self) -> None:
        """Wait until everything that was started has ended."""
        self.device.synchronize()

    @property
    def stream(self) -> int:
        """The queue that programs run in."""
        return int(self.device.stream)

    def lent(self, stream: int) -> AbstractContextManager[None]:
        """Let this thread's programs run in a queue of another library, in the ``with`` block."""
        return self.device.lent(stream)

    def is_recorded(self) -> bool:
        """Whether what this thread starts is not run, but recorded by who lent it a queue."""
        return self.device.is_recorded()

    # ---- code
    def native_call(self, call: LibraryCall) -> base.NativeCall | None:
        """Hand-written code for an operation of the library."""
        from genesis.backends.gpu.library import native_call

        return native_call(call, self._chip.architecture)

    def kernel_name(self, binary: base.Binary) -> str:
        """What the function of its first phase is called."""
        return parsed(binary).phases[0].name.removesuffix("_0")

    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> list[base.Binary]:
        """Render and compile kernels, several at a time."""
        from genesis.backends.compile_workers import each
        from genesis.backends.gpu.binary import made, request  # not needed if found on disk

        target = self._chip.architecture
        return each(made, (request(kernel, target, precision) for kernel in kernels), "Triton")

    def assemble(self, records: Sequence[base.Record]) -> base.Executable:
        """A program of launches; all code new to the process is loaded."""
        library = (
            self.library if any(isinstance(r, base.Host) for r in base.every(records)) else None
        )
        return program.DeviceProgram(
            records, self._code, self.device, self._transfers, library, self.link
        )

    def link(self, mesh: str, axis: str) -> program.CollectiveLink | None:
        """What carries collectives along an axis of a mesh, if it is not the host."""
        return None

    @cached_property
    def library(self) -> program.VendorLibrary | None:
        """The vendor's own code for what the host would compute otherwise."""
        return None

    def _code(self, binary: base.Binary, aligned: bool) -> program.DeviceCode:
        """The code of a binary, loaded; for any pointers, it may have to be compiled."""
        loaded = self._loaded if aligned else self._unaligned
        code = loaded.get(binary.key)
        if code is None:
            code = loaded[binary.key] = self._load(
                binary if aligned else _without_alignment(binary)
            )
        return code

    def _load(self, binary: base.Binary) -> program.DeviceCode:
        entry = parsed(binary)
        self._unload()
        functions = []
        for phase in entry.phases:
            try:
                with self.device:
                    image = binary.image[phase.code]
                    function, handle = self.device.driver.load(image, phase.name, phase.shared)
            except DriverError as error:
                raise base.BadBinary(f"cannot load the kernel {phase.name}: {error}") from error
            how = phase.threads, phase.shared, phase.waits, phase.ahead
            functions.append(
                program.DeviceFunction(
                    program.DeviceModule(handle, image, self._dead), function, *how
                )
            )
        grids = tuple(phase.grid for phase in entry.phases)
        return program.DeviceCode(
            tuple(functions), grids, entry.buffers, entry.symbols, entry.hidden, entry.written
        )

    def _unload(self) -> None:
        """Unload code that no program has any more, when nothing runs that does."""
        dead = [self._dead.popleft() for _ in range(len(self._dead))]
        if dead:
            with self.device:
                self.device.call("CtxSynchronize")
                for handle, _ in dead:
                    self.device.call("ModuleUnload", handle)


class CUDABackend(GPUBackend):
    """An NVIDIA GPU, by its number."""

    name = "cuda"

    def __init__(self, number: int = 0) -> None:
        super().__init__(nvidia.driver(), number)

    @cached_property
    def library(self) -> program.VendorLibrary:
        """cuFFT, cuBLAS and cuSOLVER, as far as they are installed."""
        from genesis.backends.gpu.library.nvidia_math import Mathematics

        return Mathematics(self.device, self.pool, self._transfers)

    def link(self, mesh: str, axis: str) -> program.CollectiveLink | None:
        """NCCL, where all processes have it, and a device each."""
        found: program.CollectiveLink | None = carrier(mesh).link(axis, self)
        return found


class HIPBackend(GPUBackend):
    """An AMD GPU, by its number."""

    name = "hip"

    def __init__(self, number: int = 0) -> None:
        super().__init__(amd.driver(), number)


def _without_alignment(binary: base.Binary) -> base.Binary:
    """The same kernel for pointers that may begin anywhere: from disk, or compiled."""
    from genesis.backends.gpu.binary import made, packed, unaligned, unpacked
    from genesis.content_store import remember

    wanted = unaligned(binary)
    return unpacked(wanted.key, remember("object", wanted.key, lambda: packed(made(wanted))))


def _triton_version(kind: str) -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        message = f"the {kind} backend needs Triton: pip install genesis-dl[{kind}]"
        raise ImportError(message) from None
