"""Where operators of a graph that PyTorch traced come from: the user's line, and the module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.fx import Node

from genesis.ir.node import Node as GraphNode
from genesis.ndarray.core.source_lines import leave_out

MODEL = "(model)"
_FRAME = re.compile(r'File "(.+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)

# What PyTorch's own modules call, the user did not write.
leave_out(_TORCH)


class TracedPlaces:
    """Where the user wrote the nodes of a program that was compiled for PyTorch."""

    title = "torch.compile"

    def __init__(self, origins: Mapping[GraphNode, Node]) -> None:
        self._origins = origins

    def where(self, n: GraphNode) -> str | None:
        """The innermost line that is not PyTorch's; where there is none, the module."""
        node = self._origins.get(n)
        if node is None:
            return None
        frames = _FRAME.findall(node.stack_trace or "")
        own = [":".join(frame) for frame in frames if not frame[0].startswith(_TORCH)]
        return own[-1] if own else f"module {module_of(node)}"


def module_of(node: Node) -> str:
    """The path of the module that an operator belongs to, such as ``encoder.layer.0.attention``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return MODEL
    # PyTorch writes ``L['self']._modules['encoder']._modules['0']`` or ``L['fn'].encoder[0]``.
    path = str(list(stack.values())[-1][0]).partition("]")[2].replace("_modules", "")
    return ".".join(re.findall(r"\w+", path)) or MODEL


__all__ = ["MODEL", "TracedPlaces", "module_of"]
