"""PyTorch's process groups for the device: collectives on tensors that lie on Genesis.

``init_process_group("gloo")`` is all that DDP, FSDP2, DTensor and distributed checkpoints need. The
collectives of c10d are operators, so those of the device are kernels like any other: contents go to
the host, the CPU's collective runs there, and what it has written goes back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from genesis.torch.device.storage_contents import from_host, name_of_device, write

_AVERAGE = 1  # as C++ numbers reductions; gloo knows none
#: Kernels last as long as the library that has them.
_libraries: list[torch.library.Library] = []


def register() -> None:
    """Make the collectives of process groups known for the device."""
    dist = torch.distributed
    if not dist.is_available() or _libraries:
        return
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are kernels already, which no backend here takes
        for full in torch._C._dispatch_get_all_op_names():
            space, _, name = full.partition("::")
            if space == "c10d" and torch._C._dispatch_has_kernel_for_dispatch_key(
                full, "PrivateUse1"
            ):
                library.impl(name, _kernel(name), "PrivateUse1")  # type: ignore[no-untyped-call]
    dist.Backend.default_device_backend_map["genesis"] = "gloo"
    dist.Backend.backend_capability["gloo"].append("genesis")


def _kernel(name: str) -> Callable[..., Any]:
    """The kernel of a collective for tensors on the device.

    All but a few write their first argument, and a group that everybody is in waits for everybody
    anyway. Whoever sends or receives must not wait for the other side to do the same.
    """
    operator = getattr(torch.ops.c10d, name).default

    def collective(*args: Any, **options: Any) -> Any:
        group = _group(args)
        hosts, average = _summed([_on_host(x) for x in args], group)
        found = operator(*hosts, **options)
        parts = found if isinstance(found, tuple) else (found,)
        if parts[-1] is not None:
            parts[-1].wait()
        _write_back(args[0], hosts[0], average)
        return (args[0], parts[-1]) if isinstance(found, tuple) else found

    def send(tensors: list[torch.Tensor], *args: Any) -> Any:
        _group(args)
        return operator(_on_host(tensors), *args)

    def receive(tensors: list[torch.Tensor], *args: Any) -> Any:
        _group(args)
        hosts = _on_host(tensors)
        return _Received(operator(hosts, *args), tensors, hosts).boxed()

    return send if name == "send" else receive if name.startswith("recv") else collective


class _Received(torch.distributed.Work):
    """Tensors on their way; whoever waits for them writes them to the device."""

    #: Those that nobody has waited for: C++ does not keep the Python half of an object.
    _waiting: ClassVar[set[Any]] = set()

    def __init__(self, work: Any, tensors: list[torch.Tensor], hosts: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._tensors, self._hosts = work, tensors, hosts
        self._waiting.add(self)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the tensors are there."""
        if self in self._waiting:
            self._work.wait()
            self._waiting.discard(self)
            _write_back(self._tensors, self._hosts, 1)
        return True

    def is_completed(self) -> bool:
        """Whether nobody has to wait any more."""
        return self not in self._waiting


def _on_host(x: Any) -> Any:
    """Tensors on memory of their own on the host, in lists of lists as they come."""
    if isinstance(x, list):
        return [_on_host(y) for y in x]
    is_ours = isinstance(x, torch.Tensor) and x.device.type == "genesis"
    return x.detach().to("cpu", copy=True).contiguous() if is_ours else x


def _write_back(x: Any, host: Any, divisor: int) -> None:
    if isinstance(x, list):
        for y, h in zip(x, host, strict=True):
            _write_back(y, h, divisor)
    elif x.device.type == "genesis":
        host = host if divisor == 1 else host / divisor
        write(x, from_host(host, name_of_device(x.device.index), share=True))


def _group(args: Sequence[Any]) -> Any:
    """The group among a collective's arguments, which carries tensors of the host, too."""
    box = next(x for x in args if isinstance(x, torch.ScriptObject))
    group = torch.distributed.ProcessGroup.unbox(box)
    host, device = torch.device("cpu"), torch.device("genesis")
    if host not in group._device_types and device in group._device_types:
        kind = torch.distributed.ProcessGroup.BackendType.GLOO
        group._register_backend(host, kind, group._get_backend(device))
    return group


def _summed(args: Sequence[Any], group: Any) -> tuple[list[Any], int]:
    """Arguments with a sum in place of an average, and what the sum is to be divided by."""
    found, divisor = [], 1
    for x in args:
        is_reduction = isinstance(x, torch.ScriptObject) and "op" in x._method_names()  # type: ignore[attr-defined]
        if is_reduction and x.op() == _AVERAGE:
            x, divisor = torch.classes.c10d.ReduceOp(), group.size()  # a sum
        found.append(x)
    return found, divisor


__all__ = ["register"]
