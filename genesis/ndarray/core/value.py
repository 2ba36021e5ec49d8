"""`Value`: one node of the graph of work that is still to be done.

A value is immutable but for one change, *pending -> realised*: it receives memory and drops its
inputs, so history is freed and later graphs see a leaf. Building one is the price of every
operation a user calls, so it does little: store fields, note where it was called, bound the depth.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from sys import _getframe, gettrace, modules, settrace
from threading import RLock
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import ref

from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ir.ops import Op
from genesis.ir.size import Dim
from genesis.ndarray.core.layout import Shape, Strides
from genesis.ndarray.core.source_lines import OURS, describe

if TYPE_CHECKING:
    from genesis.backends.base import Memory
    from genesis.ir.placement import Placement
    from genesis.ndarray.core.storage import Storage

#: Held while values become realised, while memory is overwritten and while blocks are expanded.
lock = RLock()

#: A chain of pending values longer than this is realised before it grows further.
MAX_DEPTH = 4000


class Changes:
    """How often anything was changed in objects that count it: layers, parameters, optimizers."""

    count = 0


def _nothing() -> None:
    pass


class Listener:
    """Who is told what is read and written of objects of Genesis: nobody, unless `jit` records."""

    began = 0  #: numbers of operations on the tape below this one are from before the recording

    def assume(self, read: Callable[[], Any]) -> None:
        """The function depends on what `read` gives; `Changes` are counted where that changes.

        A method does not keep its object alive.
        """

    def reading(self, owner: Any, name: str, value: Any) -> None:
        """An attribute is read."""

    def writing(self, owner: Any, name: str, value: Any) -> None:
        """An attribute is about to be written."""

    def calling(self, kind: type, name: str) -> None:
        """A method of a class is called."""

    def naming(self, names: dict[str, Any], name: str) -> None:
        """A name of a module is read."""

    def replaced(self, owner: Any, name: str, value: Any) -> Callable[[], None]:
        """An attribute that was `value` is another for a while: until what this gives is called."""
        return _nothing

    def setting(self, owner: Any, name: Any, value: Any, function: Callable[..., Any]) -> None:
        """An item is about to be set by ``function(owner, name, value)``."""

    def reading_all(self, owner: Any) -> None:
        """All that a container holds is read."""

    def reading_length(self, owner: Any) -> None:
        """How much a container holds is read."""

    def change(self, owner: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A container is about to be changed by ``function(owner, *args)``."""

    def act(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Something is to be done: by every run, or at once where nothing is recorded."""
        function(*args)

    def if_it_fails(self, undo: Callable[[], None]) -> None:
        """Something was done that stays, unless the recording fails."""


NOBODY = Listener()


class Recorder(Protocol):
    """Who a thread's storages belong to while `jit` records."""

    #: What a user has called: `genesis.jit`, `scan`, ..
    name: str

    @property
    def journal(self) -> Listener:
        """Who is told what is read and written of objects."""

    def create(self, storage: Storage) -> None:
        """A storage is made."""

    def read(self, storage: Storage) -> Value:
        """A storage's value is asked for."""

    def write(self, storage: Storage, value: Value) -> None:
        """A storage gets another value."""

    def part(self, storage: Storage) -> Strides | None:
        """How what stands for a part of a storage lies in that; None for all other storages."""

    def locate(self, storage: Storage) -> None:
        """It matters where in its storage an array lies."""


class Thread(threading.local):
    """What each thread keeps about the graph it builds."""

    def __init__(self) -> None:
        self.eager = False
        self.inlines = False  # whether jitted functions are part of who calls them
        self.stands_in = False  # nothing is computed with stand-ins, and no state moves on
        self.pending = 0  # values built since the last cut
        self.written: list[ref[Storage]] = []  # storages written since the last cut
        self.cut: ref[Storage] | None = None  # the storage whose write was cut at last
        self.recorder: Recorder | None = None  # while `jit` records
        self.listener = NOBODY  # its journal
        self.tracer: Any = None  # who watches the function that is recorded, and not what runs now


thread = Thread()

#: What every recorded function depends on, and may change: settings that layers above have, as
#: plain values, each with what reads and what writes it. Every call of a recorded function reads
#: them: `partial(getattr, ..)` is faster than a function.
surroundings: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
#: The same for settings of the process, whose changes are counted.
counted_surroundings: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []


class CaptureError(RuntimeError):
    """A function recorded by `jit` does something that its program could not do."""

    def located(self, function: Any) -> CaptureError:
        """This error, saying where in the user's code it arose, or else of which function it is."""
        if re.search(r":\d+\b", str(self)):
            return self
        where, trace = None, self.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if not OURS[file]:
                where = f"{file}:{trace.tb_lineno}"
            trace = trace.tb_next
        if where is None:
            inner = inspect.unwrap(getattr(function, "func", function))
            code = getattr(getattr(inner, "__func__", inner), "__code__", None)
            where = repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        return CaptureError(f"{self} ({where})")


class Value:
    """An array value: pending (an operation on inputs) or realised (memory and a layout)."""

    __slots__ = (
        "op", "inputs", "attr", "dtype", "shape", "device", "depth", "code", "instruction",
        "memory", "strides", "offset", "placement", "form", "sources", "__weakref__",
    )  # fmt: skip

    op: Op
    inputs: tuple[Value, ...]
    sources: tuple[Any, ...]  # what it refers to: its inputs, or the block that it is a part of
    attr: Any
    dtype: DType
    shape: Shape
    device: str
    depth: int
    code: CodeType | None
    instruction: int
    memory: Memory | None
    strides: Strides
    offset: Dim
    placement: Placement | None  #: of what lies in memory: which block that is, if it is one
    form: int  # as `pending_graph` numbers it; 0: not known yet, or it depends on what it reads

    def __init__(
        self,
        op: Op,
        inputs: tuple[Value, ...],
        attr: Any,
        dtype: DType,
        shape: Shape,
        device: str,
    ) -> None:
        self.op = op
        self.inputs = self.sources = inputs
        self.attr = attr
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.memory = None
        self.form = 0
        depth = 0
        for i in inputs:
            if i.depth > depth:
                depth = i.depth
            if i.device is not device:
                raise ValueError(
                    f"{op.name}: inputs are on {device} and {i.device}; move one with .to(device)"
                )
        if depth >= MAX_DEPTH and thread.recorder is None:
            cut(inputs)
            depth = 0
        self.depth = depth + 1
        thread.pending += 1
        # The same walk as `source_lines.caller`, written out here because every operation pays it.
        frame = _getframe(2)
        while OURS[frame.f_code.co_filename]:
            back = frame.f_back
            if back is None:
                self.code, self.instruction = None, 0
                return
            frame = back
        self.code, self.instruction = frame.f_code, frame.f_lasti

    @staticmethod
    def realised(
        memory: Memory,
        dtype: DType,
        shape: Shape,
        strides: Strides,
        device: str,
        offset: Dim = 0,
        foreign: bool = False,
        placement: Placement | None = None,
        form: int = 0,
    ) -> Value:
        """A value that lies in memory; `foreign` memory belongs to somebody else.

        With a `placement` the memory is that of one block of it, row-major, and the shape and
        strides are those that all blocks together have.
        """
        value = Value.__new__(Value)
        value.dtype = dtype
        value.shape = shape
        value.device = device
        value.code, value.instruction = None, 0
        value.strides = strides
        value.offset = offset
        value.memory = memory
        value.placement = placement
        value.op = ops.BUFFER
        value.attr = foreign
        value.depth = 0
        value.inputs = value.sources = ()
        value.form = form
        return value

    def fulfil(
        self,
        memory: Memory,
        strides: Strides,
        offset: Dim = 0,
        foreign: bool = False,
        form: int = 0,
    ) -> None:
        """The one permitted change: from here on this value lies in memory."""
        self.strides = strides
        self.offset = offset
        self.memory = memory
        self.placement = None
        self.op = ops.BUFFER
        self.attr = foreign
        self.depth = 0
        self.form = form
        self.inputs = self.sources = ()

    @property
    def is_realised(self) -> bool:
        """Whether the value lies in memory."""
        return self.memory is not None

    def require_whole(self, what: str) -> None:
        """Raise an error if this process has only a block of a realised value."""
        if self.placement is not None:
            raise ValueError(
                f"{what}: an array of shape {self.shape} lies in blocks on several processes "
                f"({self.placement}). Use it in a function under genesis.jit that every process "
                "calls, or get all of it with genesis.distributed.gather(x)"
            )

    @property
    def where(self) -> str:
        """``file:line`` of the user's call that made this value."""
        return describe(self.code, self.instruction)

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype}{list(self.shape)} from {self.where}>"


class CopyPart(Value):
    """A pending value of a `SubgraphCopy`: what it is made of is made when somebody looks."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in ("op", "inputs", "attr"):
            with lock:
                if type(self) is CopyPart and self.memory is None:
                    self.sources[0].expand()
        return object.__getattribute__(self, name)


class SubgraphCopy:
    """A copy of a subgraph that nobody has looked into: its inputs, and which parts are alive."""

    __slots__ = (
        "template", "sources", "parts", "device", "depth", "code", "instruction", "form", "passed",
    )  # fmt: skip

    memory = None

    template: Any  # `genesis.ndarray.core.subgraph_copies.Subgraph`
    sources: tuple[Value, ...]
    parts: list[ref[CopyPart]]
    device: str
    depth: int  # of the inputs
    code: CodeType | None
    instruction: int
    form: int
    passed: bool  # whether the checks in it were made

    def expand(self) -> list[Value]:
        """Make the values that the parts are made of; the parts are plain values then."""
        made: list[Value] = self.template.expand(self)
        self.sources = ()
        return made


class Several(Value):
    """A value with several results, which are computed together: each is an ITEM of it."""

    __slots__ = ("items",)

    items: list[ref[Value]]

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.items = []


#: The axis of a check that is not of positions.
NO_AXIS = -1


class Checked(Value):
    """An index that must exist in an axis: it is checked before anything computed with it is.

    It is the same integers as its input; `genesis.ndarray.core.index_checks` makes and decides it.
    """

    __slots__ = ("axis", "extent", "name", "passed")

    #: Whether any was made since the last realisation.
    waiting: ClassVar[bool] = False

    name: str  # of the operation that is going to use it
    extent: Dim  # of the axis
    axis: int
    passed: bool  # whether it was checked

    def __init__(self, index: Value, name: str, extent: Dim, axis: int) -> None:
        super().__init__(ops.RESHAPE, (index,), None, index.dtype, index.shape, index.device)
        self.name, self.extent, self.axis = name, extent, axis
        self.passed = False
        Checked.waiting = True


def cut(values: Sequence[Value]) -> None:
    """Realise values on which others would become too deep a graph."""
    from genesis.ndarray.core.realisation import realize_values

    realize_values(values)


@contextmanager
def eager() -> Iterator[None]:
    """Realise every operation at its line, so that an error or a wrong value shows where it arises.

    It holds for the calling thread inside the ``with`` block.
    """
    before = thread.eager
    thread.eager = True
    try:
        yield
    finally:
        thread.eager = before


@contextmanager
def recorded_by(recorder: Recorder | None) -> Iterator[None]:
    """Let a recorder, or nobody, have what this thread does; for a recorder nothing is computed."""
    before = thread.recorder, thread.listener, thread.eager
    thread.recorder, thread.eager = recorder, thread.eager and recorder is None
    thread.listener = NOBODY if recorder is None else recorder.journal
    try:
        yield
    finally:
        thread.recorder, thread.listener, thread.eager = before


def need_contents(what: str, instead: str) -> None:
    """A CaptureError where somebody records: what depends on data is known when a program runs."""
    if thread.recorder is not None:
        raise CaptureError(
            f"{what} depends on data, which is not known while {thread.recorder.name} records the "
            f"function; {instead}"
        )


def unrecorded() -> AbstractContextManager[None]:
    """Do what is no part of the function that `jit` records on this thread."""
    return recorded_by(None)


@contextmanager
def apart() -> Iterator[None]:
    """Build a graph on stand-ins, apart from the one under way on this thread.

    Nothing of it is computed, counted, or kept as written: what is under way goes on as it was.
    """
    before = thread.pending, thread.written, thread.stands_in
    with unrecorded():
        thread.eager = False
        thread.pending, thread.written, thread.stands_in = 0, [], True
        try:
            yield
        finally:
            thread.pending, thread.written, thread.stands_in = before


@contextmanager
def inlined() -> Iterator[None]:
    """Call jitted functions as plain ones: who calls them looks at what they are made of."""
    before = thread.inlines
    thread.inlines = True
    try:
        yield
    finally:
        thread.inlines = before


class Extended:
    """Whether users have classes of tensors: then any code of Genesis may call theirs."""

    by_users = False


def unwatched(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of Genesis with nobody watching what it does.

    A recorder sees every call of a Python function (`genesis.ndarray.tracing.bytecode_tracer`), and
    Python is slow while somebody looks; most of the calls are not the user's. Those that are go by
    `rewatched`. Where an object of a user's class is given, which may be asked for its length, its
    items or a number, Genesis is watched.
    """
    tracer = None if thread.recorder is None else gettrace()
    if tracer is None or Extended.by_users:
        return function(*args, **kwargs)
    settrace(None)
    try:
        if _is_own((*args, *kwargs.values())):
            thread.tracer = tracer
            return function(*args, **kwargs)
    finally:
        thread.tracer = None
        settrace(tracer)
    return function(*args, **kwargs)


def _is_own(given: Iterable[Any]) -> bool:
    """Whether looking into what is given runs no code of a user's."""
    for x in given:
        kind = type(x)
        if kind in _plain:
            continue
        known = kind is tuple or kind is list or kind is dict
        if not known and not (x if kind is type else kind).__module__.startswith(_OURS):
            return False
        if isinstance(x, dict | tuple | list):
            if not _is_own(x.values() if isinstance(x, dict) else x):
                return False
        elif getattr(modules.get(kind.__module__), kind.__name__, None) is kind is not type:
            _plain.add(kind)  # one that lives as long as its module
    return True


_OURS = ("genesis.", "numpy")  # whose classes are no user's
#: What can be asked for nothing, or is called by `rewatched`; and our classes that were met.
_plain: set[type] = {
    bool, int, float, complex, str, bytes, type(None), slice, range, type(Ellipsis), FunctionType,
    MethodType, BuiltinFunctionType, CodeType,
}  # fmt: skip


def rewatched(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what may be a user's function out of code that `unwatched` has called."""
    tracer = thread.tracer
    if tracer is None:
        return function(*args, **kwargs)
    thread.tracer = None
    settrace(tracer)
    try:
        return function(*args, **kwargs)
    finally:
        settrace(None)
        thread.tracer = tracer


__all__ = ["eager"]
