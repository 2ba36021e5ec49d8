"""Channels last for what a forward graph saves for its gradients, where convolutions like that.

What a forward graph leaves for the backward graph nobody else sees, so it may lie as the kernels
of both want it. On GPUs convolutions compute with the channels innermost: written as PyTorch's
meta kernels say, with the pixels innermost, every activation would be turned around twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def prefer_channels_last(module: GraphModule) -> None:
    """Let what the forward graph saves of convolutions lie so, and tell AOTAutograd."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None or context.fw_metadata is None:
        return
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    results: list[Any] = list(output.args[0])
    numbers = range(len(results))[context.fw_metadata.tensors_saved_for_backwards_slice]
    convolved = _convolved(module)
    for node in dict.fromkeys(results[k] for k in numbers):
        if node in convolved and _alone(node, results, numbers):
            value = node.meta["val"]
            node.meta["val"] = torch.empty_like(value, memory_format=_FORMATS[value.ndim])
    context.output_strides.extend(
        tuple(x.meta["val"].stride()) if k in numbers and _is_known(x) else None
        for k, x in enumerate(results)
    )


def _convolved(module: GraphModule) -> set[Node]:
    """Results of convolutions, and what is computed of them element by element or by windows."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        if isinstance(value, tuple | list) and value:  # a norm: the first is as its argument
            value = value[0]
        if not isinstance(value, torch.Tensor) or value.ndim not in _FORMATS:
            continue
        name = str(node.target)
        sources = [x for x in node.all_input_nodes if x in found]
        alike = any(_first(x).shape == value.shape for x in sources)
        if "convolution" in name or (sources and (alike or "pool" in name or "cat" in name)):
            found.add(node)
    return found


def _first(node: Node) -> torch.Tensor:
    """A node's value, or the first of them."""
    value = node.meta["val"]
    found: torch.Tensor = value[0] if isinstance(value, tuple | list) else value
    return found


def _is_known(node: Any) -> bool:
    """Whether a node is a tensor whose sizes are numbers."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)


def _alone(node: Node, results: list[Any], numbers: range) -> bool:
    """Whether nothing but the backward graph sees the memory of a saved tensor."""
    value = node.meta["val"]
    if not _is_known(node) or not value.is_contiguous() or value.shape[1] == 1 or 0 in value.shape:
        return False
    storage = value.untyped_storage()._cdata
    seen = [other for k, other in enumerate(results) if other is not node or k not in numbers]
    tensors = [x.meta.get("val") for x in seen if isinstance(x, Node)]
    return all(
        x.untyped_storage()._cdata != storage for x in tensors if isinstance(x, torch.Tensor)
    )
