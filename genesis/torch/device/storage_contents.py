"""What storages contain: lazy arrays, under the addresses that PyTorch takes for memory.

The contents of a storage are an array as some tensor sees it, together with that tensor's layout.
A tensor of the same layout sees the array itself; any other sees it through a chain of array views,
which also carries writes. Nothing is computed until somebody asks for numbers: then everything that
was written on the way is computed along, so that the loop around a training step meets the same
program in every turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import torch

from genesis import cuda
from genesis import ndarray as nd
from genesis.ir import dtype as dtypes
from genesis.ir import ops
from genesis.ir.dtype import DType
from genesis.ndarray.core import primitive
from genesis.ndarray.core.device import canonical
from genesis.ndarray.core.interop import copied
from genesis.ndarray.core.layout import is_row_major
from genesis.ndarray.core.ndarray import NDArray, wrap
from genesis.ndarray.core.realisation import backend_of, realize_values
from genesis.ndarray.core.storage import Steps, Storage, ViewStep, write_through
from genesis.ndarray.core.value import Value, thread
from genesis.torch.aten.registry import Unsupported
from genesis.torch.convert import DTYPES, TORCH_DTYPES, from_torch, to_torch
from genesis.torch.device.runtime import Description, load
from genesis.torch.device.strides import Sizes, memory_order, span, steps_to
from genesis.torch.profiler import recorded

runtime = load()

#: The contents of storages by address, each as seen by a tensor of the layout of that number.
contents: dict[int, tuple[Any, int]] = {}

#: After this many operators what was written is computed, where a loop begins its next turn,
MAX_PENDING = 1000
#: and after this many at any write. Arrays have a bound as well, but theirs cuts anywhere.
MOST_PENDING = 3 * MAX_PENDING

#: Layouts of tensors that are remembered; those of contents always are.
MAX_LAYOUTS = 1 << 14

#: Stand-ins for dtypes that arrays do not have: the same bits.
_BITS = {d.itemsize: d for d in (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)}


class TensorLayout:
    """How a tensor sees its storage."""

    __slots__ = (
        "dtype", "flipped", "offset", "sizes", "strides", "ours", "span", "order", "is_whole",
    )  # fmt: skip

    def __init__(
        self, dtype: torch.dtype, flipped: int, offset: int, sizes: Sizes, strides: Sizes
    ) -> None:
        self.dtype = dtype
        self.flipped = flipped  # 1: conjugated, 2: negated, 3: both
        self.offset = offset
        self.sizes = sizes
        self.strides = strides
        #: The dtype of arrays that has these bits.
        self.ours = DTYPES.get(dtype) or _BITS[dtype.itemsize]
        #: The elements that a storage must have.
        self.span = span(sizes, strides, offset)
        #: The axes from the outermost in memory to the innermost; None if they are not packed.
        self.order = memory_order(sizes, strides)
        #: Whether an array can be the contents of a storage, as seen by such a tensor.
        self.is_whole = not offset and not flipped and dtype in DTYPES and self.order is not None


@lru_cache(MAX_LAYOUTS)
def _layout(description: Description) -> TensorLayout:
    return TensorLayout(*description)


@cache
def _layout_numbered(number: int) -> TensorLayout:
    return _layout(runtime.layout(number))


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    """The layout of a tensor."""
    return _layout(runtime.describe(tensor))


# ---- devices


@cache
def device_names() -> tuple[str, ...]:
    """The Genesis devices behind ``genesis:0``, ``genesis:1``, ..

    They are the CPU, the GPUs that there are and every other backend that is installed, or what the
    environment variable ``GENESIS_TORCH_DEVICES`` lists, such as ``cuda:0,cuda:1``.
    """
    setting = os.environ.get("GENESIS_TORCH_DEVICES")
    if setting:
        return tuple(canonical(name.strip()) for name in setting.split(","))
    from importlib.metadata import entry_points

    others = sorted(p.name for p in entry_points(group="genesis.backends"))
    gpus = [canonical(f"cuda:{i}") for i in range(cuda.device_count())]
    return ("cpu", *gpus, *others)


def name_of_device(index: int | None) -> str:
    """The Genesis device behind a PyTorch device's index."""
    return device_names()[runtime.current_device() if index is None else index]


@cache
def index_of(device: str) -> int:
    """The index of the PyTorch device that stands for a Genesis device."""
    return device_names().index(device)


# ---- reading and writing


def read(tensor: torch.Tensor) -> NDArray:
    """What a tensor sees of its storage now, as an array, or a view of one."""
    found: NDArray | None = runtime.find(tensor)
    if found is not None:
        return found
    layout = layout_of(tensor)
    if layout.dtype not in DTYPES:
        raise Unsupported(f"{layout.dtype} has no counterpart among the dtypes of Genesis")
    array = read_bits(tensor, layout)
    if layout.flipped & 1:
        array = nd.conj(array)
    return nd.neg(array) if layout.flipped & 2 else array


def read_bits(tensor: torch.Tensor, layout: TensorLayout) -> NDArray:
    """What lies in memory under a tensor of any dtype, before conjugation and negation."""
    found = _base(tensor, layout) if layout.span else None
    if found is None:
        return nd.zeros(layout.sizes, layout.ours, device=name_of_device(tensor.device.index))
    array, before = found
    steps = _steps(before, layout)
    if steps is None:
        return nd.take(_flat(array, before), _positions(layout))
    return array.seen_through(*steps)


def write(tensor: torch.Tensor, array: NDArray) -> None:
    """Let a tensor, and all that share its storage, see an array of its shape.

    The array is cast to the tensor's dtype.
    """
    target: NDArray | None = runtime.find(tensor)
    if target is not None:
        target.storage.replace(primitive.cast(array.value, target.dtype))
        _note(target.storage)
        return
    layout = layout_of(tensor)
    if layout.flipped & 2:
        array = nd.neg(array)
    if layout.flipped & 1:
        array = nd.conj(array)
    write_bits(tensor, layout, array.astype(layout.ours))


def write_bits(tensor: torch.Tensor, layout: TensorLayout, array: NDArray) -> None:
    """Put what is to lie in memory under a tensor there."""
    if not layout.span:
        return
    found = _base(tensor, layout)
    if found is None:
        if layout.is_whole:
            runtime.keep(tensor, wrap(array.value))
            return
        count = _capacity(tensor, layout)
        found = _keep_flat(tensor, nd.zeros(count, layout.ours, device=array.device))
    base, before = found
    steps = _steps(before, layout)
    if steps is None:
        positions = _positions(layout).reshape(-1)
        flat = nd.put(_flat(base, before), positions, array.reshape(-1))
        base, _ = _keep_flat(tensor, flat)
        _note(base.storage)
        return
    storage = base.storage
    try:
        new_contents = write_through(storage.actual, steps, array.value)
    except ValueError as error:  # what PyTorch calls a RuntimeError
        raise RuntimeError(str(error)) from error
    storage.replace(new_contents)
    _note(storage)


def new(array: NDArray, strides: Sizes | None = None) -> torch.Tensor:
    """A new tensor with these contents, and a storage of its own."""
    value = array.value
    return runtime.create(
        wrap(value),
        value.shape,  # type: ignore[arg-type]
        strides,
        TORCH_DTYPES[value.dtype],
        index_of(value.device),
    )


def _base(tensor: torch.Tensor, layout: TensorLayout) -> tuple[NDArray, TensorLayout] | None:
    """Contents with the dtype and enough elements for a layout, and their own layout."""
    address = runtime.address(tensor)
    entry = contents.get(address)
    if entry is None:
        runtime.collect()  # it may have come from a storage that was resized
        entry = contents.get(address)
        if entry is None:
            return None
    array, number = entry
    before = _layout_numbered(number)
    if before.ours is layout.ours and layout.span <= before.span:
        return array, before
    flat = reinterpreted(_flat(array, before), layout.ours)
    missing = _capacity(tensor, layout) - int(flat.shape[0])
    if missing > 0:  # the storage has grown
        flat = nd.concat([flat, nd.zeros(missing, flat.dtype, device=flat.device)])
    return _keep_flat(tensor, flat)


def _capacity(tensor: torch.Tensor, layout: TensorLayout) -> int:
    """How many elements of a layout's dtype a tensor's storage has room for."""
    return tensor.untyped_storage().nbytes() // layout.dtype.itemsize


def _keep_flat(tensor: torch.Tensor, flat: NDArray) -> tuple[NDArray, TensorLayout]:
    """Let a storage's contents be those of a vector."""
    array = wrap(flat.value)
    alias = torch.empty(0, dtype=TORCH_DTYPES[flat.dtype], device=tensor.device)
    alias.set_(tensor.untyped_storage(), 0, (int(flat.shape[0]),), (1,))
    runtime.keep(alias, array)
    return array, layout_of(alias)


def reinterpreted(flat: NDArray, dtype: DType) -> NDArray:
    """The bits of a vector as a vector of another dtype."""
    source = flat.dtype
    if source is dtype:
        return flat
    if source.is_complex and dtype is source.real:
        return nd.view_as_real(flat).reshape(-1)
    if dtype.is_complex and source is dtype.real and flat.shape[0] % 2 == 0:
        return nd.view_as_complex(flat.reshape(-1, 2))
    if source.itemsize == dtype.itemsize and not {source.kind, dtype.kind} & {"complex", "bool"}:
        return nd.bitcast(flat, dtype)
    value = flat.value
    realize([value])
    if not is_row_major(value.shape, value.strides) or value.offset:
        value = copied(np.ascontiguousarray(flat.numpy()), flat.device).value
    assert value.memory is not None
    count = int(value.shape[0]) * source.itemsize // dtype.itemsize
    return wrap(Value.realised(value.memory, dtype, (count,), (1,), value.device))


def _flat(array: NDArray, layout: TensorLayout) -> NDArray:
    """Contents as they lie in memory."""
    assert layout.order is not None
    return array.permute(layout.order).reshape(-1)


@lru_cache(MAX_LAYOUTS)
def _steps(before: TensorLayout, after: TensorLayout) -> Steps | None:
    """From contents of one layout to a tensor of another."""
    assert before.order is not None
    shape = tuple(before.sizes[d] for d in before.order)
    steps = steps_to(shape, after.sizes, after.strides, after.offset)
    if steps is None or before.order == tuple(range(len(shape))):
        return steps
    return (ViewStep(ops.PERMUTE, before.order, shape), *steps)


@lru_cache(64)
def _positions(layout: TensorLayout) -> np.ndarray[Any, Any]:
    """Where in memory the elements of an overlapping tensor lie."""
    positions = np.full(layout.sizes, layout.offset, np.int64)
    for d, (n, stride) in enumerate(zip(layout.sizes, layout.strides, strict=True)):
        axis = (1,) * d + (n,) + (1,) * (len(layout.sizes) - d - 1)
        positions += (np.arange(n) * stride).reshape(axis)
    return positions


# ---- realisation


class _Progress:
    """What has happened since numbers were last asked for, on all threads.

    PyTorch computes gradients on threads of its own, so this cannot be a thread's.
    """

    __slots__ = ("cut", "lasting", "operators", "written")

    def __init__(self) -> None:
        self.operators = 0
        self.written: dict[ref[Storage], None] = {}
        self.lasting: WeakSet[Storage] = WeakSet()  # written before as well
        self.cut: ref[Storage] | None = None  # the storage at whose write the graph was cut


progress = _Progress()


def _note(storage: Storage) -> None:
    """A storage was written. A graph that has grown too large is computed here.

    A loop should be cut at the same place in every turn, so that it meets the same programs: where
    a storage is written that outlives the turn, and then always at this one. Who asks for a number
    in every turn is not to be cut at all, so it must have been written in the turn before as well.
    """
    mark = ref(storage)
    again = mark in progress.written
    progress.written[mark] = None
    pending = max(progress.operators, storage.actual.depth)
    if thread.eager:
        realize([])
    elif pending > (MAX_PENDING if again else MOST_PENDING):
        bound_graph(storage, pending)


def bound_graph(storage: Storage, pending: int) -> None:
    """Compute what was written if this write, not the first one of its storage, is the place."""
    awaited = progress.cut() if progress.cut is not None else None
    here = storage in progress.lasting if awaited is None else storage is awaited
    if here or pending > MOST_PENDING:
        progress.cut = ref(storage)
        realize([])


def realize(values: Iterable[Value]) -> None:
    """Compute values, and all that was written."""
    runtime.collect()
    written, progress.written = progress.written, {}
    progress.operators = 0
    alive = dict.fromkeys(s for w in written if (s := w()) is not None)
    with recorded():
        realize_values([*values, *(s.actual for s in alive)])
    progress.lasting = WeakSet(alive)


def synchronize(index: int) -> None:
    """Compute everything that a device's tensors contain."""
    runtime.collect()
    device = name_of_device(index)
    arrays = [a for a, _ in contents.values() if isinstance(a, NDArray) and a.device == device]
    realize([a.storage.actual for a in arrays])
    backend_of(device).synchronize()


# ---- the host


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements on the CPU, computed now; on the same memory where that can be seen."""
    layout = layout_of(tensor)
    if layout.dtype in DTYPES:
        array = read(tensor)
        value = array.value
        realize([value])
        return to_torch(wrap(value))
    array = read_bits(tensor, layout)
    realize([array.value])
    host = to_torch(array).view(layout.dtype)
    host = host.conj() if layout.flipped & 1 else host
    return torch._neg_view(host) if layout.flipped & 2 else host


def from_host(tensor: torch.Tensor, device: str, share: bool = False) -> NDArray:
    """An array of a CPU tensor's elements; on its memory if that is nobody's any more."""
    if tensor.dtype not in DTYPES:
        size = tensor.dtype.itemsize
        names = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
        tensor = tensor.contiguous().view(names[size])
    array = from_torch(tensor)
    if share and device == "cpu":
        return array
    return copied(array.numpy(), device)
