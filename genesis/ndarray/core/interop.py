"""Getting arrays in and out: NumPy, DLPack, Python scalars, text.

Memory is shared wherever strides can express the layout. Arrays that come in this way are
*foreign*: they are read where they lie and never written. What goes out refers to the memory, so it
is not reused while it is seen.

Somebody else may write to foreign memory, and to memory that went out by DLPack (it is *shared*
from then on), and nobody here sees that. So whatever is computed reads what lies there at that
moment; nothing is remembered of it between runs (`is_steady`), and it is an array's own: copies
have memory of theirs.
"""

from __future__ import annotations

import copyreg
import ctypes
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from genesis import events
from genesis.backends.base import SHARED
from genesis.ir import ops
from genesis.ir.dtype import FOREIGN, as_dtype
from genesis.ir.size import Size, evaluate, product
from genesis.ndarray.core.device import backend_name, canonical, chosen
from genesis.ndarray.core.dlpack import DEVICES, borrow, lend
from genesis.ndarray.core.index_checks import settle
from genesis.ndarray.core.layout import is_row_major, row_major
from genesis.ndarray.core.liveness import holders, references
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import backend_of, realize_values
from genesis.ndarray.core.source_lines import caller, describe
from genesis.ndarray.core.storage import layout_through
from genesis.ndarray.core.value import CaptureError, Value, lock, thread


def realize(*arrays: NDArray) -> None:
    """Compute arrays now, together. While `jit` records, that is left to the program."""
    if thread.recorder is not None:
        return
    realize_values([x.value for x in arrays])


def _reduced(x: NDArray) -> tuple[Any, ...]:
    """What `copy` and `pickle` keep of an array: its contents.

    Field by field, as Python copies what it knows nothing about, two owners would free one memory.
    """
    contents = to_numpy(x).astype(x.dtype.numpy, order="C")
    return copied, (contents, x.device)


copyreg.pickle(NDArray, _reduced)


def from_numpy(source: npt.NDArray[Any], device: str | None = None) -> NDArray:
    """An array on the memory of a NumPy array, or on a copy where that cannot be shared."""
    if isinstance(source, NDArray):  # stands for one that is an argument of a jitted function
        return source
    where = chosen(device)
    dtype = as_dtype(source.dtype.newbyteorder("="))
    itemsize = dtype.itemsize
    shared = (
        backend_of(where).has_host_memory
        and source.dtype.isnative
        and source.flags.aligned
        and all(stride % itemsize == 0 for stride in source.strides)
    )
    if not shared or source.size == 0:
        return copied(source, device)
    low, high = np.lib.array_utils.byte_bounds(source)
    memory = backend_of(where).foreign(low, high - low, source)
    strides = tuple(stride // itemsize for stride in source.strides)
    offset = (source.__array_interface__["data"][0] - low) // itemsize
    shape = tuple(source.shape)
    return wrap(Value.realised(memory, dtype, shape, strides, where, offset, foreign=True))


def copied(source: npt.NDArray[Any], device: str | None = None) -> NDArray:
    """An array on a copy of a NumPy array."""
    if isinstance(source, NDArray):  # stands for one that is an argument of a jitted function
        return source
    where = chosen(device)
    dtype = as_dtype(source.dtype.newbyteorder("="))
    backend = backend_of(where)
    memory = backend.allocate(source.size * dtype.itemsize)
    shape = tuple(source.shape)
    backend.upload(memory, source)
    return wrap(Value.realised(memory, dtype, shape, row_major(shape), where))


def from_dlpack(source: Any) -> NDArray:
    """An array on the memory of any object with ``__dlpack__`` (PyTorch, JAX, ..)."""
    try:
        kind, number = source.__dlpack_device__()
        if kind != DEVICES["cpu"]:
            return _borrowed(source, kind, number)
        return from_numpy(np.from_dlpack(source), "cpu")
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        name = f"{type(source).__module__}.{type(source).__name__}"
        raise TypeError(f"from_dlpack: {name} cannot be shared: {error}") from None


def _borrowed(source: Any, kind: int, number: int) -> NDArray:
    names = [name for name, known in DEVICES.items() if known == kind]
    if not names:
        raise TypeError(f"devices of kind {kind} are not known")
    device = canonical(f"{names[0]}:{number}")
    backend = backend_of(device)
    # The producer lets our queue wait for it; when we are done it must not be used by us any more.
    found = borrow(source.__dlpack__(stream=backend.stream), backend.synchronize)
    reach = [(n - 1) * s for n, s in zip(found.shape, found.strides, strict=True)]
    low = sum(r for r in reach if r < 0) if 0 not in found.shape else 0
    count = sum(map(abs, reach)) + 1 if 0 not in found.shape else 0
    size = found.dtype.itemsize
    memory = backend.foreign(found.pointer + low * size, count * size, found.owner)
    return wrap(
        Value.realised(memory, found.dtype, found.shape, found.strides, device, -low, foreign=True)
    )


def _realised(x: NDArray) -> Value:
    """The value of an array whose contents somebody wants to see, realised."""
    for size in x.shape:
        if isinstance(size, Size):
            raise ValueError(f"an array of shape {x.shape} has no contents: {size} is not known")
    if thread.recorder is not None:
        raise CaptureError(
            f"the contents of an array of shape {x.shape} were asked for (item, numpy, bool, "
            f"print, ..) while {thread.recorder.name} records the function: they are known only "
            "when the program runs. Return the array, select with nd.where, or do this outside of "
            f"{thread.recorder.name.removeprefix('genesis.')}"
        )
    value = x.value
    realize_values((value,))
    if value.placement is not None:
        value.require_whole("reading")
    return value


def is_steady(value: Value) -> bool:
    """Whether a value never changes: nobody else can write to its memory."""
    assert value.memory is not None
    owner = value.memory.owner
    if owner is None:
        return not value.attr
    if owner is SHARED:
        return _is_ours_again(value)
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    return isinstance(owner, bytes | mmap) and memoryview(owner).readonly


def _is_ours_again(value: Value) -> bool:
    """Whether nobody has memory any more that was shared."""
    assert value.memory is not None
    if not backend_of(value.device).has_host_memory or holders(references([value.memory]), [2])[0]:
        return False
    value.memory.owner = None
    return True


def own(x: NDArray) -> Value:
    """The value of an array, in memory that nobody else writes to."""
    value = x.value
    if value.memory is None or value.memory.owner is None or thread.recorder is not None:
        return value
    return value if is_steady(value) else copied(window(x), x.device).value


def _share(x: NDArray) -> Value:
    """The value of an array that somebody gets who may write to its memory.

    Only its storage must see that: if anybody else has the memory (a copy, what is still to be
    computed from it), the storage gets memory of its own before.
    """
    _realised(x)
    storage = x.storage
    with lock:
        realize_values((storage.actual,))
        memory = storage.actual.memory
        assert memory is not None
        if memory.owner is None and not storage.actual.attr:
            del memory
            others = holders(references([storage.actual, storage.actual.memory]), [2, 2])
            if any(others):
                storage.replace(copied(window(wrap(storage.actual)), x.device).value)
            else:  # another value: who remembers something of this one must not know that
                storage.replace(_again(storage.actual))
            actual = storage.actual
            assert actual.memory is not None
            actual.memory.owner = SHARED
    return _in_memory(x)


def _in_memory(x: NDArray) -> Value:
    """A realised array; what is seen of its storage as another type, where it lies in there."""
    if all(step.dtype is None and step.op is not ops.WINDOW for step in x.steps):
        return _realised(x)
    value = x.storage.actual
    shape, strides, offset = value.shape, value.strides, value.offset
    for step in x.steps:
        layout = layout_through(step, shape, strides, offset)
        if layout is None:
            return _realised(x)
        (strides, offset), shape = layout, step.shape
    assert value.memory is not None
    foreign, placement = bool(value.attr), value.placement
    return Value.realised(
        value.memory, x.dtype, shape, strides, x.device, offset, foreign, placement
    )


def _again(value: Value) -> Value:
    assert value.memory is not None
    where = value.device, value.offset
    return Value.realised(value.memory, value.dtype, value.shape, value.strides, *where)


def window(x: NDArray) -> npt.NDArray[Any]:
    """The realised contents as a NumPy array, on the same memory where the host can see it."""
    return _window(_realised(x))


def _window(value: Value) -> npt.NDArray[Any]:
    assert value.memory is not None
    backend = backend_of(value.device)
    if not backend.has_host_memory:
        settle(wait=True)
    return backend.download(value.memory, value.dtype, value.shape, value.strides, value.offset)  # type: ignore[arg-type]


def to_numpy(x: NDArray) -> npt.NDArray[Any]:
    """The contents as a read-only NumPy array."""
    array = window(x)
    array.flags.writeable = False
    if isinstance(array.base, np.ndarray):  # or it could be made writable again
        array.base.flags.writeable = False
    return array


def shared(x: NDArray) -> npt.NDArray[Any]:
    """The contents as a NumPy array; what is written to it is what the array contains.

    Until the array is written here: that gives it other memory.
    """
    return _window(_share(x)) if backend_of(x.device).has_host_memory else window(x)


def address(x: NDArray) -> int:
    """Where the first element lies in the memory of the device."""
    value = _realised(x)
    assert value.memory is not None
    return int(value.memory.pointer + value.offset * value.dtype.itemsize)


def as_array(x: NDArray, dtype: Any, copy: bool | None) -> npt.NDArray[Any]:
    """What ``np.asarray(x)`` and ``np.array(x)`` give."""
    array = to_numpy(x)
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    if copy is False and wanted != array.dtype:
        raise ValueError(f"converting {array.dtype} to {wanted} needs a copy")
    return array.astype(wanted, copy=bool(copy))


def array_interface(x: NDArray) -> dict[str, Any]:
    """NumPy's array interface.

    Its data is a buffer rather than an address: whoever takes it holds the memory itself, which
    therefore stays as it is even when the array is written.
    """
    if x.dtype in FOREIGN:
        raise AttributeError(f"the array interface has no {x.dtype}")
    window = np.ascontiguousarray(to_numpy(x))
    interface: dict[str, Any] = window.__array_interface__
    return {**interface, "data": window.data, "strides": None, "shape": x.shape}


#: How numbers lie in the host's memory.
_READERS: Any = {
    as_dtype(name): getattr(ctypes, f"c_{c}")
    for name, c in {
        "float32": "float",
        "float64": "double",
        "int64": "int64",
        "bool": "bool",
    }.items()
}


def item(x: NDArray) -> Any:
    """The only element of an array."""
    if x.shape and any(s != 1 for s in x.shape):
        raise ValueError(f"item: an array of shape {x.shape} has more or less than one element")
    value = _realised(x)
    reader = _READERS.get(x.dtype) if backend_of(value.device).has_host_memory else None
    if reader is None:
        found = x.dtype.cast(window(x).item())
    else:  # a view would cost more than the rest
        assert value.memory is not None and isinstance(value.offset, int)
        place = value.memory.pointer + value.offset * x.dtype.itemsize
        found = reader.from_address(place).value
    if events.watcher is not None and isinstance(found, int | float):
        events.read(found, describe(*caller()))
    return found


def to_dlpack(x: NDArray, **options: Any) -> Any:
    """A DLPack capsule on the array's memory; what its taker writes is what the array contains.

    Until the array is written here: that gives it other memory.
    """
    kind, number = dlpack_device(x)
    if kind == DEVICES["cpu"]:
        value = _realised(x) if options.get("copy") else _share(x)
        return _window(value).__dlpack__(**options)
    if options.get("copy") or options.get("dl_device") not in (None, (kind, number)):
        raise BufferError(f"an array on {x.device} is shared as it is; use .to(..) for a copy")
    value = _share(x)
    memory, backend = value.memory, backend_of(value.device)
    assert memory is not None
    if options.get("stream") != -1:  # the consumer would wait for nobody
        backend.synchronize()
    start = memory.pointer + value.offset * value.dtype.itemsize
    return lend(start, value.dtype, value.shape, value.strides, (kind, number), memory)  # type: ignore[arg-type]


def dlpack_device(x: NDArray) -> tuple[int, int]:
    """The DLPack device type and number."""
    name, _, number = x.device.partition(":")
    if name not in DEVICES:
        raise BufferError(f"DLPack export from {x.device} is not supported; use .to('cpu')")
    return DEVICES[name], int(number or 0) if name != "cpu" else 0


def to_device(x: NDArray, device: str) -> NDArray:
    """The array on another device, copied through the host unless both are of one kind."""
    target = canonical(device)
    if x.device is target:
        return x
    if backend_name(x.device) != backend_name(target):
        return copied(window(x), target)
    value, ours, theirs = _realised(x), backend_of(target), backend_of(x.device)
    if not is_row_major(value.shape, value.strides) or ours is theirs:
        return copied(window(x), target)
    nbytes = evaluate(product(x.shape), {}) * x.dtype.itemsize
    memory = ours.allocate(nbytes)
    assert value.memory is not None
    # Each device has a queue of its own, and neither knows of the other's.
    theirs.synchronize()
    ours.copy(memory, value.memory, nbytes, value.offset * x.dtype.itemsize)  # type: ignore[arg-type]
    ours.synchronize()
    return wrap(Value.realised(memory, x.dtype, value.shape, row_major(value.shape), target))


def show(x: NDArray) -> str:
    """What `repr` gives: NumPy's form, or a description where sizes are symbolic."""
    if any(isinstance(s, Size) for s in x.shape):
        return f"array(shape={x.shape}, dtype={x.dtype})"
    place = "" if x.device == "cpu" else f", device={x.device!r}"
    suffix = f", dtype={x.dtype}{place})"
    contents = to_numpy(x)
    if x.dtype in FOREIGN:
        contents = contents.astype(np.float32)  # NumPy does not know how to lay it out
    return "array(" + np.array2string(contents, separator=", ", prefix="array(") + suffix


__all__ = ["from_dlpack", "from_numpy", "realize"]
