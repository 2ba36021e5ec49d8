"""The runtime in Python, for where there is no C++ compiler: `runtime.Runtime` says what it does.

PyTorch lets Python make a storage on any pointer and keeps the storage's Python object as long as
the storage lives, so a token on that object says when it is gone. Metadata operators are those of
the CPU, which never look at the memory. There is one device; its generator is an object of our own
that works as a default only; there are no events, and memory is not pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch.utils.backend_registration import _DummyDeviceGuard, _DummyPrivateUse1Hook

from genesis.ndarray.core.pending_graph import of_kind as of_kind
from genesis.ndarray.core.pending_graph import survey as survey
from genesis.ndarray.core.pending_graph import walk as walk
from genesis.torch.device.runtime import Description
from genesis.torch.device.strides import span

_aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_STEP = 64  # between handles, which are no addresses of anything

_contents: dict[int, tuple[Any, int]] = {}
_callbacks: dict[str, Callable[..., Any]] = {}
_gone: list[int] = []
_addresses = count(1 << 40, _STEP)
_layouts: list[Description] = []
_numbers: dict[Description, int] = {}
_libraries: list[Any] = []


def start(
    count: int,
    contents: dict[int, tuple[Any, int]],
    synchronize: Callable[[int], None],
    seed: Callable[[int, int, int, int], None],
    state: Callable[[int, int], tuple[int, int]],
) -> None:
    """Make the device known to PyTorch."""
    global _contents
    _contents = contents
    _callbacks.update(seed=seed, state=state)
    untyped: Any = torch
    untyped._C._acc.register_python_privateuseone_hook(_DummyPrivateUse1Hook())
    untyped._C._acc.register_python_privateuseone_device_guard(_DummyDeviceGuard())
    library = untyped.library.Library("aten", "IMPL")
    for name, function in _operators().items():
        library.impl(name, function, "PrivateUse1")
    _libraries.append(library)
    storages = untyped.UntypedStorage
    clone = storages.clone
    # Without an allocator PyTorch cannot make a storage of a given size itself.
    storages.clone = lambda s: _copied(s) if _is_ours(s) else clone(s)
    untyped.serialization.register_package(
        5,
        lambda s: "genesis:0" if _is_ours(s) else None,
        lambda s, place: _copied(s) if place.startswith("genesis") else None,
    )


def others_exist() -> bool:
    """Whether PyTorch has another accelerator."""
    return torch.accelerator.current_accelerator() is not None


def live_with_others() -> bool:
    """It takes C++ to leave other accelerators their place."""
    return False


def _is_ours(storage: Any) -> bool:
    return bool(storage.device.type == "genesis")


def _copied(storage: Any) -> Any:
    """A storage on the device with the contents of another, from anywhere."""
    size = (storage.nbytes(),)
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, size, (1,))
    return _new(size, (1,), torch.uint8).copy_(source).untyped_storage()


# ---- storages


class _Token:
    """Lives as long as a storage."""

    __slots__ = ("address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        _usage.add(nbytes)

    def __del__(self) -> None:
        _usage.remove(self.nbytes)
        _gone.append(self.address)


class _Usage:
    """What storages take: now, at most and ever, in bytes; and how many they are."""

    def __init__(self) -> None:
        self.bytes = [0, 0, 0]
        self.count = [0, 0, 0]

    def add(self, nbytes: int) -> None:
        """A storage more."""
        for stat, n in ((self.bytes, nbytes), (self.count, 1)):
            stat[0] += n
            stat[1] = max(stat[:2])
            stat[2] += n

    def remove(self, nbytes: int) -> None:
        """A storage less."""
        self.bytes[0] -= nbytes
        self.count[0] -= 1


_usage = _Usage()


def storages(index: int) -> tuple[int, ...]:
    """Bytes of the storages, now, at most and ever; how many there are, likewise."""
    return (*_usage.bytes, *_usage.count)


def reset_peak(index: int) -> None:
    """Count what storages take at most from now on."""
    for stat in (_usage.bytes, _usage.count):
        stat[1] = stat[0]


def _storage(nbytes: int) -> Any:
    address = next(_addresses)
    device = torch.device("genesis", 0)
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    storage.token = _Token(address, nbytes)
    return storage


def _new(sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    empty = torch._C._acc.create_empty_tensor((0,), dtype)
    storage = _storage(span(sizes, strides, 0) * dtype.itemsize)
    place: Any = _aten.set_.source_Storage_storage_offset
    made: torch.Tensor = place.redispatch(_CPU, empty, storage, 0, sizes, strides)
    torch._C._set_multithreading_enabled(False)  # as the compiled runtime says
    return made


def collect() -> None:
    """Forget the contents of storages that are gone."""
    while _gone:
        _contents.pop(_gone.pop(), None)


def address(tensor: torch.Tensor) -> int:
    """The handle of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def describe(tensor: torch.Tensor) -> Description:
    """The layout of a tensor."""
    flipped = int(tensor.is_conj()) + 2 * int(tensor.is_neg())
    offset = int(tensor.storage_offset())
    return tensor.dtype, flipped, offset, tuple(tensor.shape), tensor.stride()


def layout(number: int) -> Description:
    """The layout of contents, by its number."""
    return _layouts[number]


def find(tensor: torch.Tensor) -> Any:
    """The contents of a storage if a tensor sees them as they are, else None."""
    if tensor.device.type != "genesis" or tensor.layout is not torch.strided:
        return None
    entry = _contents.get(address(tensor))
    return entry[0] if entry is not None and _layouts[entry[1]] == describe(tensor) else None


def form(args: tuple[Any, ...], named: dict[str, Any], inputs: list[Any]) -> bytes | None:
    """None: finding it out would take as long as building the graph."""
    return None


def build_with(*parts: Any) -> None:
    """Graphs are built in Python."""


def implement(library: Any, name: str, function: Callable[..., Any]) -> None:
    """Let an operator be computed by a function."""
    library.impl(name, "PrivateUse1", function, False)


def remember(name: str, recorded: tuple[Any, ...]) -> None:
    """Nothing is: no operator has a form."""


def keep(tensor: torch.Tensor, what: Any) -> None:
    """Let a storage's contents be `what`, as seen by a tensor."""
    description = describe(tensor)
    number = _numbers.setdefault(description, len(_layouts))
    if number == len(_layouts):
        _layouts.append(description)
    _contents[address(tensor)] = (what, number)


def create(
    what: Any,
    sizes: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: torch.dtype,
    index: int,
) -> torch.Tensor:
    """A new tensor with contents."""
    collect()
    tensor = _new(sizes, _packed(sizes) if strides is None else strides, dtype)
    if tensor.numel():
        keep(tensor, what)
    return tensor


def adopt(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let a tensor be another, which nobody may hold any more than that one."""
    if isinstance(tensor, torch.nn.Parameter):
        other = torch.nn.Parameter(other, tensor.requires_grad)
    swap: Any = torch.utils.swap_tensors
    swap(tensor, other)


def nested_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Nested tensors need the compiled runtime."""
    raise NotImplementedError("genesis: nested tensors need a C++ compiler")


def nest(buffer: torch.Tensor, *layout: torch.Tensor) -> torch.Tensor:
    """Nested tensors need the compiled runtime."""
    raise NotImplementedError("genesis: nested tensors need a C++ compiler")


def _packed(sizes: Any) -> tuple[int, ...]:
    strides = []
    stride = 1
    for n in reversed(sizes):
        strides.append(stride)
        stride *= max(n, 1)
    return tuple(reversed(strides))


# ---- operators on metadata


def _operators() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
    }
    names = "as_strided view _reshape_alias unfold view_as_real view_as_complex is_set_to"
    sources = ("Storage", "Storage_storage_offset", "Tensor")
    for name in (*names.split(), *(f"set_.source_{s}" for s in sources)):
        found[name] = _as_on_cpu(name)
    return found


def _as_on_cpu(name: str) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    op = getattr(getattr(_aten, base), overload or "default")
    return lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs)


def _empty(
    size: Any, dtype: Any = None, memory_format: Any = None, **placement: Any
) -> torch.Tensor:
    _require(placement)
    shown = torch.contiguous_format if memory_format is None else memory_format
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=shown)
    return _new(tuple(size), like.stride(), like.dtype)


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **placement: Any) -> torch.Tensor:
    _require(placement)
    return _new(tuple(size), tuple(stride), dtype or torch.get_default_dtype())


def _require(placement: dict[str, Any]) -> None:
    """Fail unless the device is the one there is."""
    device = placement.get("device")
    if device is not None and device.index is not None:
        set_device(device.index)


def _resize(tensor: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
    if tuple(tensor.shape) == tuple(size):
        return tensor
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    strides = _packed(size)
    nbytes = span(size, strides, offset) * tensor.element_size()
    if storage.nbytes() < nbytes:
        entry = _contents.get(storage.data_ptr())
        storage = _storage(nbytes)
        if entry is not None:
            _contents[storage.data_ptr()] = entry
    place: Any = _aten.set_.source_Storage_storage_offset
    resized: torch.Tensor = place.redispatch(_CPU, tensor, storage, offset, size, strides)
    return resized


# ---- one device and its generator


def device_count() -> int:
    """There is one device,"""
    return 1


def current_device() -> int:
    """which is the current one,"""
    return 0


def set_device(index: int) -> None:
    """and the only one to choose."""
    if index != 0:
        raise RuntimeError(f"genesis:{index} does not exist: there is 1 device")


class _Generator:
    """What is asked of a device's default generator."""

    def __init__(self) -> None:
        self.address = next(_addresses)

    def manual_seed(self, seed: int) -> _Generator:
        _callbacks["seed"](self.address, 0, seed & ((1 << 64) - 1), 0)
        return self

    def initial_seed(self) -> int:
        key: int = _callbacks["state"](self.address, 0)[0]
        return key

    def get_state(self) -> torch.Tensor:
        words = b"".join(w.to_bytes(8, "little") for w in _callbacks["state"](self.address, 0))
        return torch.frombuffer(bytearray(words), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        words = bytes(state.tolist())
        key, offset = (int.from_bytes(words[i : i + 8], "little") for i in (0, 8))
        _callbacks["seed"](self.address, 0, key, offset)


_generator = _Generator()


def default_generator(index: int) -> Any:
    """The generator of the device."""
    set_device(index)
    return _generator


def generator_address(generator: Any) -> int:
    """The handle of its state."""
    if not isinstance(generator, _Generator):
        kind = generator.device.type
        raise RuntimeError(f"Expected a 'genesis' device type for generator but found '{kind}'")
    return generator.address
