"""Operators that are about tensors rather than arrays: copies, fills, single elements, statistics.

They are written for tensors because a functional kernel could not tell what they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

from genesis import ndarray as nd
from genesis.torch.aten.registry import implementations
from genesis.torch.convert import DTYPES
from genesis.torch.device import dispatch
from genesis.torch.device import storage_contents as contents
from genesis.torch.device.operator_variants import operator
from genesis.torch.device.result_strides import elementwise

#: Functions of tensors by the names of the operators they compute.
operators: dict[str, Callable[..., Any]] = {}

F = TypeVar("F", bound=Callable[..., Any])


def _operator(*names: str) -> Callable[[F], F]:
    def register(function: F) -> F:
        operators.update(dict.fromkeys(names, function))
        return function

    return register


@_operator("_copy_from")
def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    if target.device.type != "genesis":
        target.copy_(contents.to_host(source))
        return target
    contents.progress.operators += 1
    device = contents.name_of_device(target.device.index)
    known = target.dtype in DTYPES
    if source.device.type != "genesis":
        host = source.detach().cpu().to(target.dtype).resolve_conj().resolve_neg()
        array = contents.from_host(host, device, share=host.data_ptr() != source.data_ptr())
    elif known and source.dtype in DTYPES:
        array = contents.read(source).to(device)
    else:
        return _copy_from(contents.to_host(source).to(target.dtype), target)
    if array.shape != target.shape:
        array = array.expand(tuple(target.shape))
    if known:
        contents.write(target, array)
    else:
        contents.write_bits(target, contents.layout_of(target), array)
    return target


@_operator("_copy_from_and_resize")
def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.resize_(source.shape)
    return _copy_from(source, target)


@_operator("_local_scalar_dense")
def _item(tensor: torch.Tensor) -> Any:
    if tensor.dtype not in DTYPES:
        return contents.to_host(tensor).item()
    array = contents.read(tensor)
    value = array.value  # held: else the view would be computed again
    contents.realize([value])
    return array.item()


@_operator("equal")
def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    same = nd.all(nd.equal(contents.read(first), contents.read(second)))
    contents.realize([same.value])
    return bool(same.item())


@_operator("fill_.Scalar", "fill_.Tensor")
def _fill(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    contents.progress.operators += 1
    if tensor.dtype not in DTYPES:
        return _copy_from(torch.full((), value, dtype=tensor.dtype).expand(tensor.shape), tensor)
    if isinstance(value, torch.Tensor):
        if value.device.type == "genesis":
            contents.write(tensor, contents.read(value).expand(tuple(tensor.shape)))
            return tensor
        value = value.item()
    device = contents.name_of_device(tensor.device.index)
    contents.write(tensor, nd.full(tuple(tensor.shape), value, DTYPES[tensor.dtype], device=device))
    return tensor


@_operator("zero_")
def _zero(tensor: torch.Tensor) -> torch.Tensor:
    return _fill(tensor, 0)


@_operator("record_stream")
def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    return None


@_operator("native_batch_norm")
def _native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Its schema does not say that it writes the running statistics."""
    contents.progress.operators += 1
    args = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    if running_mean is None or running_var is None or not training:
        results = _batch_norm("native_batch_norm")(args, {})
    else:
        *results, mean, var = _batch_norm("_native_batch_norm_legit_functional")(args, {})
        contents.write(running_mean, mean)
        contents.write(running_var, var)
    return tuple(map(contents.new, results, elementwise(args, {}, results)))


@cache
def _batch_norm(name: str) -> Callable[..., Any]:
    return dispatch.arrays(operator(f"aten::{name}"), implementations[f"aten::{name}"])
