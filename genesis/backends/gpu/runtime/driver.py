"""The driver of a vendor's GPUs: calls that raise, a device with its context, and its queues.

Vendors have almost the same driver: AMD's HIP follows CUDA name by name. So the runtime (memory,
copies, programs, graphs) is written once, in terms of a `Driver`: its functions are called by the
names that they have in both, without the prefix, and the few things that differ are its methods. A
device has two queues: programs and whatever they depend on run in order in `stream`; arrays come in
through `uploads`, beside them. Another library may lend a queue of its own, for programs on its
memory.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

R = TypeVar("R")

#: A function of a driver: its arguments give an error, 0 for none, and then its results.
Call = Callable[..., tuple[Any, ...]]


class DriverError(RuntimeError):
    """A call of a GPU's driver failed, or there is no driver."""


class OutOfDeviceMemory(DriverError):
    """The device has no memory left for a request."""


class Driver(ABC):
    """A vendor's driver, initialised.

    Numbers that it gives and takes (errors, flags) mean the same for all vendors.
    """

    #: The name of its devices, and that of its interface.
    kind: str
    title: str

    def __init__(self) -> None:
        self.child = False  # of a process that used the driver
        self._functions: dict[str, Call] = {}
        os.register_at_fork(after_in_child=self._forked)

    @abstractmethod
    def symbol(self, name: str) -> str:
        """What the vendor calls a function."""

    @abstractmethod
    def bound(self, name: str) -> Call:
        """The function that the vendor calls so."""

    @abstractmethod
    def described(self, error: Any) -> str:
        """The name of an error, and what it means."""

    @abstractmethod
    def attribute(self, name: str) -> Any:
        """What stands for an attribute of devices, by the name that CUDA has for it."""

    @abstractmethod
    def node(self) -> Any:
        """Parameters of a kernel node, to be filled in: fields are called as CUDA's are."""

    def follow(self, graph: Any, before: list[Any], parameters: Any, early: bool) -> Any:
        """A new kernel node of a graph, behind others.

        If it is `early`, it may start once they have said so, and waits for their end on its own.
        """
        return self.call("GraphAddKernelNode", graph, before, len(before), parameters)

    @abstractmethod
    def mapping(self, device: GPUDevice) -> tuple[Any, Any] | None:
        """What describes memory of a device, and who uses it, to functions that map memory.

        None where memory cannot be mapped.
        """

    @abstractmethod
    def architecture(self, device: GPUDevice) -> str:
        """What code for a device is compiled for."""

    @abstractmethod
    def context(self, handle: Any) -> Any:
        """What is current in a thread that uses a device."""

    @abstractmethod
    def enter(self, context: Any) -> Any:
        """Make a context the current one; what `leave` needs, None if it was already."""

    @abstractmethod
    def leave(self, previous: Any) -> None:
        """Make the context current again that was before."""

    def load(self, image: bytes, name: str, shared: int) -> tuple[Any, Any]:
        """A function of machine code, whose blocks have so many bytes of fast memory; its module.

        The image must be there until the module is unloaded.
        """
        module = self.call("ModuleLoadData", image)
        return self.call("ModuleGetFunction", module, name.encode()), module

    def captured(self, stream: Any, work: Callable[[], object]) -> Any:
        """A graph of what `work` puts into a queue, which is not run; None: this driver has none.

        What `work` raises is raised, and nothing is left of what it put there.
        """
        return None

    def is_captured(self, stream: Any) -> bool:
        """Whether what is put into a queue is not run, but becomes part of a graph."""
        return int(self.call("StreamIsCapturing", stream)) != 0

    def function(self, name: str) -> Call:
        """A function, to be called many times: the caller looks at its errors."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self.bound(self.symbol(name))
        return function

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function gives: nothing, one value or several.

        Raises `DriverError` with its name where it fails.
        """
        if self.child:
            raise DriverError(
                f"{self.title} was used before this process was forked, and cannot be used after; "
                'start processes with multiprocessing\'s method "spawn"'
            )
        error, *values = self.function(name)(*arguments)
        if int(error):
            self.fail(name, error)
        return values[0] if len(values) == 1 else tuple(values) or None

    def fail(self, name: str, error: Any) -> None:
        """Raise what a result that is not success means."""
        kind = OutOfDeviceMemory if int(error) == _OUT_OF_MEMORY else DriverError
        hint = ""
        if int(error) in _LOST:
            hint = "; a kernel failed, and this process cannot use the device any more"
        raise kind(f"{self.symbol(name)}: {self.described(error)}{hint}")

    def device_count(self) -> int:
        """How many devices there are."""
        count: int = self.call("DeviceGetCount")
        return count

    def _forked(self) -> None:
        self.child = True


class GPUDevice:
    """One device: its context, and its queues."""

    def __init__(self, driver: Driver, number: int) -> None:
        count = driver.device_count()
        if number >= count:
            raise ValueError(f"there is no device {driver.kind}:{number}: this machine has {count}")
        self.driver = driver
        self.call = driver.call
        self.number = number
        self.handle = driver.call("DeviceGet", number)
        self.context = driver.context(self.handle)
        with self:
            self._stream = driver.call("StreamCreate", NON_BLOCKING)
            self.uploads = driver.call("StreamCreate", NON_BLOCKING)
        #: Events that were asked for in `stream` so far, and 1. Memory that is freed notes it:
        #: whoever waits for a later event waits for all that used that memory.
        self.marks = 1
        #: What made collectives with other processes end before they were done: results that come
        #: of them are wrong, and whoever reads from the device is told so.
        self.failure: Exception | None = None

    # Entered around every use. Almost always the context is current already.
    def __enter__(self) -> None:
        _thread.previous.append(self.driver.enter(self.context))

    def __exit__(self, *_: object) -> None:
        previous = _thread.previous.pop()
        if previous is not None:
            self.driver.leave(previous)

    @property
    def stream(self) -> Any:
        """The queue that programs run in: its own, or the one that this thread was lent."""
        lent = _thread.lent.get(self.number) if _thread.lent else None
        return self._stream if lent is None else lent

    @property
    def is_lent(self) -> bool:
        """Whether this thread's programs run in a queue of another library."""
        return self.number in _thread.lent

    @contextmanager
    def lent(self, stream: int) -> Iterator[None]:
        """Let this thread's programs run in a queue of another library inside the ``with`` block.

        What they use must be ordered by that queue, and so no memory of ours that others reuse.
        """
        before, _thread.lent = _thread.lent, {**_thread.lent, self.number: stream}
        try:
            yield
        finally:
            _thread.lent = before

    def is_recorded(self) -> bool:
        """Whether what this thread starts is not run, but recorded by who lent it a queue."""
        if not self.is_lent:
            return False
        with self:
            return self.driver.is_captured(self.stream)

    def attribute(self, name: str) -> int:
        """A number that describes the device, by the name of its attribute."""
        kind = self.driver.attribute(name)
        number: int = self.call("DeviceGetAttribute", kind, self.handle)
        return number

    @cached_property
    def name(self) -> str:
        """What the vendor calls it."""
        text: bytes = self.call("DeviceGetName", 128, self.handle)
        return text.split(b"\0")[0].decode()

    @cached_property
    def memory_bytes(self) -> int:
        """How much memory it has."""
        nbytes: int = self.call("DeviceTotalMem", self.handle)
        return nbytes

    def free_bytes(self) -> int:
        """How much memory nobody uses now."""
        with self:
            free, _ = self.call("MemGetInfo")
        return int(free)

    def synchronize(self) -> None:
        """Wait until both queues are empty."""
        with self:
            self.call("StreamSynchronize", self.uploads)
            self.call("StreamSynchronize", self.stream)
        self.require_success()

    def require_success(self) -> None:
        """Raise what made collectives end before they were done."""
        if self.failure is not None:
            raise self.failure

    def event(self, timing: bool = False) -> Any:
        """A new event; the caller destroys it."""
        with self:
            return self.call("EventCreate", 0 if timing else _DISABLE_TIMING)


def uninterrupted(work: Callable[[], R]) -> R:
    """What something gives that is done as a whole or not at all; an interrupt goes on behind it.

    Signals interrupt the main thread alone, so another one does it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done = Future[R]()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(work())
            except BaseException as problem:
                done.set_exception(problem)

    try:
        threading.Thread(target=run, name="genesis-whole", daemon=True).start()
        return done.result()
    except BaseException as problem:
        if done.cancel():  # it has not begun, and will not
            if isinstance(problem, RuntimeError):  # there are no more threads
                return work()
            raise
        while not done.done():
            with suppress(KeyboardInterrupt):
                wait([done])
        raise


class _Thread(threading.local):
    """What a thread has to know."""

    def __init__(self) -> None:
        #: For every device entered: what was current before, None if it was that device already.
        self.previous: list[Any] = []
        #: Queues of other libraries that it uses now, by the number of a device.
        self.lent: dict[int, int] = {}


_thread = _Thread()
NON_BLOCKING = 1  # the queue does not wait for the default one
NOT_READY = 600  # what an event says that still lies ahead
_DISABLE_TIMING = 2
_OUT_OF_MEMORY = 2
_LOST = (700, 710, 714, 715, 716, 717, 718, 719)  # illegal address .. launch failure
