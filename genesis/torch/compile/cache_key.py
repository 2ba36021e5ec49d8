"""What a graph is found by in PyTorch's cache.

PyTorch's own key says everything that could change what Inductor makes of a graph, and to know it
loads all of Inductor: a second, more than anything else a process does whose graphs are known. This
key says what the graph is, what it is given, how autograd is set, which versions of PyTorch and
Genesis there are, and with what options that compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.autograd_cache import (
    AOTAutogradCacheDetails,
    BypassAOTAutogradCache,
)
from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache
from torch._library import opaque_object
from torch.fx import GraphModule

# It has another name since PyTorch 2.15.
_of_2_15 = getattr(opaque_object, "is_opaque_symbolic_type", None)
_is_object = _of_2_15 or opaque_object.is_opaque_reference_type


class Details(AOTAutogradCacheDetails):
    """What is hashed: its attributes. Those about autograd are set by the class it is made from."""

    def _init_fx_graph_hash_details(
        self, gm: GraphModule, example_inputs: Sequence[Any], fx_config: Any
    ) -> None:
        try:
            FxGraphCache._check_can_cache(gm, example_inputs, fx_config)
        except BypassFxGraphCache as error:
            raise BypassAOTAutogradCache(str(error)) from error
        if any(_is_object(type(x)) for x in example_inputs):
            raise BypassAOTAutogradCache("an argument is an object")
        shape_env: Any = FxGraphCache._get_shape_env()
        hints = shape_env.var_to_hint_override if shape_env is not None else {}
        self.gm = gm
        self.example_inputs = list(example_inputs)
        self.default_dtype = torch.get_default_dtype()
        self.var_to_hint_override = {str(symbol): hint for symbol, hint in hints.items()}
        self.torch_version = f"{torch.__version__} {torch.version.git_version}".encode()
        self.cache_key_tag = torch.compiler.config.cache_key_tag

    def get_triton_source_codes_from_gm(self, gm: GraphModule) -> list[str]:
        """Kernels of the user's own, which are left to PyTorch and so are in no graph kept."""
        for module in gm.modules():
            for node in module.graph.nodes if isinstance(module, GraphModule) else ():
                if any(True for _ in self._iter_triton_kernels_from_node(node)):
                    raise BypassAOTAutogradCache("a kernel in Triton")
        return []


@contextmanager
def own_key() -> Iterator[None]:
    """Let PyTorch look for graphs by this key inside the ``with`` block.

    PyTorch compiles one graph at a time.
    """
    untyped: Any = autograd_cache
    plain = untyped.AOTAutogradCacheDetails
    untyped.AOTAutogradCacheDetails = Details
    try:
        yield
    finally:
        untyped.AOTAutogradCacheDetails = plain
