"""Forward and backward of a joint graph: PyTorch's cut, once equal operators have become one.

PyTorch would merge them itself, but loads all of Inductor to do so.
"""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from genesis.torch.compile.trace import storage_of

_PLAIN = (bool, int, float, complex, str, type(None))
_NAMES = (Node, OpOverload, torch.dtype, torch.device, torch.layout, torch.memory_format)


def partition(module: GraphModule, inputs: Any, **rest: Any) -> tuple[GraphModule, GraphModule]:
    """The graphs for forward and backward of a joint graph.

    What is cheap is computed again in the backward rather than kept.
    """
    merge_equal(module.graph)
    with torch._functorch.config.patch(cse=False):
        parts: tuple[GraphModule, GraphModule] = min_cut_rematerialization_partition(
            module, inputs, **rest
        )
    return parts


def merge_equal(graph: Graph) -> None:
    """Let operators that compute the same from the same be one node.

    Results of the graph stay apart: PyTorch wants a storage for each of them.
    """
    results = {storage for n in graph.output_node().all_input_nodes if (storage := storage_of(n))}
    known: dict[Any, Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            known.clear()  # what was computed before may have been from other contents
        elif _is_pure(node) and storage_of(node) not in results:
            first = known.setdefault(_key([node.target, node.args, node.kwargs]), node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _is_pure(node: Node) -> bool:
    """Whether an operator gives the same whenever it is computed."""
    target, value = node.target, node.meta.get("val")
    return (
        isinstance(target, OpOverload)
        and target.namespace in ("aten", "prims")
        and torch.Tag.nondeterministic_seeded not in target.tags
        and "empty" not in target._opname
        and isinstance(value, torch.Tensor)
        and not free_unbacked_symbols(value)
    )


def _key(x: Any) -> Any:
    """An argument in a form that is equal only for what surely means the same."""
    if isinstance(x, list | tuple):
        return type(x), *(_key(y) for y in x)
    if isinstance(x, dict):
        return tuple((name, _key(y)) for name, y in x.items())
    if isinstance(x, _PLAIN):
        return type(x), repr(x)  # so that 1 is not 1.0, nor 0.0 -0.0
    return x if isinstance(x, _NAMES) else object()
