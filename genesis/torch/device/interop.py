"""Tensors of the device for others: DLPack, other processes, files of safetensors.

Each of them knows the devices that it was written for, by name. So what it asks about one of ours
is answered here, and everything else is passed on to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from genesis import ndarray as nd
from genesis.ir.dtype import FOREIGN
from genesis.ndarray.core.interop import shared
from genesis.ndarray.core.ndarray import NDArray
from genesis.torch.convert import TORCH_DTYPES
from genesis.torch.device import storage_contents as contents


def register() -> None:
    """Let others have tensors of the device."""
    _lend_memory()
    ForkingPickler.register(torch.UntypedStorage, _reduced)
    if find_spec("safetensors") is not None:
        _open_files()


# ---- DLPack: on the CPU, tensors of the device are memory like any other


def _lend_memory() -> None:
    tensors: Any = torch.Tensor
    lend, place = tensors.__dlpack__, tensors.__dlpack_device__

    @wraps(lend)
    def dlpack(self: torch.Tensor, *, stream: Any = -1, **options: Any) -> Any:
        if self.device.type != "genesis":
            return lend(self, stream=stream, **options)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        array = contents.read(self)
        contents.realize([array.value])
        if array.device != "cpu":
            return array.__dlpack__(stream=None if stream == -1 else stream, **options)
        return lend(_on_its_memory(array), **options)

    @wraps(place)
    def dlpack_device(self: torch.Tensor) -> Any:
        if self.device.type != "genesis":
            return place(self)
        name = contents.name_of_device(self.device.index)
        return nd.zeros((), device=name).__dlpack_device__()

    tensors.__dlpack__, tensors.__dlpack_device__ = dlpack, dlpack_device


def _on_its_memory(array: NDArray) -> torch.Tensor:
    """A CPU tensor that is an array's memory, for whoever may write to it."""
    memory = shared(array)
    if array.dtype in FOREIGN:
        return torch.from_numpy(memory.view(f"int{array.dtype.bits}")).view(
            TORCH_DTYPES[array.dtype]
        )
    return torch.from_numpy(memory)


# ---- processes: what is sent is a copy


def _reduced(storage: Any) -> Any:
    """What is sent of a storage: one of the device goes by the host's shared memory."""
    if storage.device.type != "genesis":
        return reduce_storage(storage)  # type: ignore[no-untyped-call]
    return _received, (storage.cpu(), storage.device.index)


def _received(storage: Any, index: int) -> Any:
    return storage.to(device=torch.device("genesis", index))


# ---- files of safetensors: its list of devices is in compiled code


def _open_files() -> None:
    """Let ``safe_open(.., device="genesis")`` and all that uses it put tensors on the device."""
    package = import_module("safetensors")
    plain = package.safe_open

    @wraps(plain, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        kind, _, _ = str(device).partition(":")
        if kind != "genesis":
            return plain(filename, framework, device=device, **options)
        return _File(plain(filename, framework, device="cpu", **options), torch.device(device))

    for module in [package, *list(sys.modules.values())]:
        if isinstance(module.__dict__, Mapping) and module.__dict__.get("safe_open") is plain:
            module.safe_open = safe_open  # type: ignore[attr-defined]


class _File:
    """An open file whose tensors go to a device."""

    def __init__(self, file: Any, device: torch.device) -> None:
        self._file, self._device = file, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the file."""
        return self._moved(self._file.get_tensor(name))

    def get_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """Several of them."""
        return {k: self._moved(x) for k, x in self._file.get_tensors(*args, **kwargs).items()}

    def get_slice(self, name: str) -> _Slice:
        """A tensor of the file of which parts are read."""
        return _Slice(self._file.get_slice(name), self._moved)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)


class _Slice:
    """Parts of a tensor in a file, which go to a device."""

    def __init__(self, part: Any, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._part, self._moved = part, moved

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._moved(self._part[index])
