"""``torch.device("genesis")``: eager PyTorch, traced into lazy arrays.

Tensors are PyTorch's own, with storages, strides and views. Only what a storage contains is ours: a
lazy array under an address that nobody ever reads (`contents`). An operator of the table of kernels
extends the array's graph (`dispatch`); any other is decomposed by PyTorch or computed on the CPU
(`missing`). Numbers exist when somebody asks for them.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch

from genesis.ndarray.core import pending_graph
from genesis.ndarray.core.ndarray import NDArray
from genesis.ndarray.core.source_lines import OURS
from genesis.ndarray.core.storage import Storage
from genesis.ndarray.core.value import MAX_DEPTH, SubgraphCopy, CopyPart, Value, thread
from genesis.torch.aten import implementations
from genesis.torch.device import autocast, cpu_fallback, interop, generators
from genesis.torch.device import storage_contents as contents
from genesis.torch.device.cpu_fallback import fallback, fallbacks
from genesis.torch.device.module import Genesis
from genesis.torch.device.module_conversion import keep_parameters
from genesis.torch.device.storage_contents import device_names
from genesis.torch.device.tensor_operators import operators
from genesis.torch.device.operator_variants import exists, has_kernel, operator, schema

#: Names of operators that are left to PyTorch, which composes them of allocations and copies:
#: it knows what strides the result should have.
_COMPOSED = frozenset(
    ("clone", "_to_copy", "copy", "contiguous", "lift", "lift_fresh", "lift_fresh_copy")
)

#: What is registered stays so as long as these live.
_libraries: list[Any] = []


@cache
def register() -> None:
    """Make the device known to PyTorch. It cannot be taken back.

    A device that has a name is PyTorch's accelerator, and no other one can compute gradients then.
    Where that cannot be mended, there is no device rather than no CUDA.
    """
    if not contents.runtime.live_with_others() and contents.runtime.others_exist():
        warnings.warn(
            "there is no torch.device('genesis'), which would break the backward passes of "
            f"{torch.accelerator.current_accelerator()}; torch.compile(backend='genesis') works",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    untyped: Any = torch
    untyped.utils.rename_privateuse1_backend("genesis")
    untyped._register_device_module("genesis", Genesis("torch.genesis"))
    untyped.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    callbacks = contents.synchronize, generators.seed, generators.state
    for callback in (*callbacks, contents.read, cpu_fallback.boxed):
        _not_compiled(callback)
    contents.runtime.start(len(device_names()), contents.contents, *callbacks)
    contents.runtime.build_with(
        Value, CopyPart, SubgraphCopy, Storage, NDArray, thread, contents.progress, OURS,
        contents.read, contents.bound_graph, MAX_DEPTH, contents.MAX_PENDING, contents.MOST_PENDING,
    )  # fmt: skip
    for name in ("walk", "survey", "of_kind"):
        setattr(pending_graph, name, getattr(contents.runtime, name))
    keep_parameters()
    interop.register()
    library = untyped._C._dispatch_library("IMPL", "aten", "")
    everything = untyped._C._dispatch_library("IMPL", "_", "")
    for name, function in operators.items():
        library.impl(name, "PrivateUse1", _not_compiled(function), False)
    for key in ("Conjugate", "Negative"):  # else a copy of a conjugated tensor copies for ever
        library.impl("_copy_from", key, torch.library.fallthrough_kernel, False)
    for name in implementations:
        if name.startswith("aten::") and exists(name) and not _is_view(name):
            if _is_ours(name):
                contents.runtime.implement(library, name[6:], _first_call(name))
            in_place = _in_place(name)
            if exists(in_place) and _is_ours(in_place):
                contents.runtime.implement(library, in_place[6:], _first_call(in_place))
    everything.fallback("PrivateUse1", cpu_fallback.boxed, False)
    for layout in ("NestedTensor", "Sparse", "SparseCsr"):
        key = f"{layout}PrivateUse1"
        everything.fallback(key, cpu_fallback.on_cpu, False)
        for name in untyped._C._dispatch_get_registrations_for_dispatch_key(f"{layout}CPU"):
            # PyTorch would compose some of others first, in ways that are for dense tensors.
            if name.startswith("aten::") and not has_kernel(name, key):
                library.impl(name[6:], key, _on_cpu(name), False)
    everything.fallback("AutocastPrivateUse1", torch.library.fallthrough_kernel, False)
    autocast.register(library)
    _libraries.extend((library, everything))


def _on_cpu(name: str) -> Any:
    """A function of tensors that computes an operator of a full name on the CPU."""
    return _not_compiled(
        lambda *args, **kwargs: cpu_fallback.on_cpu(operator(name), *args, **kwargs)
    )


def _not_compiled(function: Any) -> Any:
    """A function whose calls `torch.compile` leaves alone, and all that they call.

    Between its graphs it would compile whatever Python is run, kernels of the device included.
    """
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    return function


def _in_place(name: str) -> str:
    """What PyTorch calls the operator that writes its result to the first argument."""
    base, dot, overload = name.partition(".")
    return f"{base}_{dot}{overload}"


def _is_view(name: str) -> bool:
    """Whether an operator only gives tensors another look: PyTorch needs no kernel for that."""
    return any(r.alias_info is not None for r in schema(name).returns)


def _is_ours(name: str) -> bool:
    """Whether a kernel should take the place of what PyTorch would do about an operator."""
    base, _, _ = name.removeprefix("aten::").partition(".")
    if base.removesuffix("_") in _COMPOSED:
        return False
    if has_kernel(name, "PrivateUse1") or has_kernel(name, "CompositeImplicitAutograd"):
        return False
    has_tensors = any("Tensor" in str(a.type) for a in schema(name).arguments)
    makes = not has_tensors or base.endswith("_like") or base.startswith("new_")
    explicit = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    return not (makes and any(has_kernel(name, key) for key in explicit))


def _first_call(name: str) -> Any:
    """A function that finds out how an operator is computed when it is first called."""
    function: Any = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal function
        if function is None:
            function = cpu_fallback.function_of(operator(name))
        return function(*args, **kwargs)

    return _not_compiled(run)


__all__ = ["device_names", "fallback", "fallbacks", "register"]
