"""The backend of ``torch.compile``: AOTAutograd's graphs, forward and backward, to executables.

PyTorch's own decompositions break operators down to those there are kernels for; an operator that
has a kernel stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from genesis.compiler.options import current
from genesis.compiler.program.digest import spell
from genesis.content_store import digest, generation
from genesis.ndarray.core.realisation import backend_of
from genesis.torch.aten import implementations, name_of
from genesis.torch.compile.cache_key import own_key
from genesis.torch.compile.executable import BoxedGraph
from genesis.torch.compile.joint_graph import partition
from genesis.torch.compile.trace import device_of, gpu_of


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What operators without a kernel are broken down by.

    AOTAutograd has done so with those that PyTorch composes of others for autograd's sake.
    """
    return {
        op: rule
        for op, rule in _core_aten_decompositions_post_autograd().items()
        if not (isinstance(op, torch._ops.OpOverload) and name_of(op) in implementations)
    }


#: The forms of attention that PyTorch may choose on a GPU: there are kernels for the first two.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

#: Seconds that are taken for tuning a graph.
TUNING = 30.0

#: The packages that decide what a graph is compiled to, besides the compiler. The gradients of
#: operators are taken of tensors of the framework, by its tape.
ROOMS = ("autograd", "functional", "ndarray", "tensor", "torch")

#: The modes of `torch.compile`.
_MODES = (
    "default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead", "lite",
)  # fmt: skip


class GraphKind(Enum):
    """What a graph of AOTAutograd's computes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


Compiler = Callable[[GraphModule, GraphKind], Callable[[list[Any]], list[Any]]]


def compile_fx(module: GraphModule, kind: GraphKind) -> BoxedGraph:
    """One graph of AOTAutograd's as an executable."""
    return BoxedGraph(module, device_of(module), apart=kind is GraphKind.BACKWARD)


def run_lazily(module: GraphModule, kind: GraphKind) -> Callable[[list[Any]], list[Any]]:
    """One graph for tensors on a device: their operators are lazy, and compiled once run."""

    def run(inputs: list[Any]) -> list[Any]:
        given = inputs[:]
        inputs.clear()
        return list(module(*given))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def genesis(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    compiler: Compiler = compile_fx,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for PyTorch: ``torch.compile(model, backend="genesis")``.

    `compiler` makes executables of the graphs for forward, backward and inference. With the mode
    "max-autotune" better schedules are looked for when a graph first runs, for 30 seconds or as
    many as the option "seconds" says. Other modes mean the same as none. With the option "freeze",
    weights are repacked once for graphs without gradients, and not at every call.
    """
    seconds, freeze = _settings(mode, options or {})
    places = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if any(place.type not in ("cpu", "cuda") for place in places):
        compiler = run_lazily

    def compiler_of(kind: GraphKind) -> Callable[..., Any]:
        def compile(graph: GraphModule, inputs: Sequence[Any]) -> Any:
            made = compiler(graph, kind)
            if isinstance(made, BoxedGraph):
                made.tuning = seconds
                made.frozen = freeze and kind is GraphKind.INFERENCE
            return made

        # PyTorch keeps, and finds again, what comes from a compiler of this type.
        return SerializableAOTDispatchCompiler(BoxedGraph, compile) if cached else compile

    cached = compiler is compile_fx
    backend = aot_autograd(
        fw_compiler=compiler_of(GraphKind.FORWARD),
        bw_compiler=compiler_of(GraphKind.BACKWARD),
        inference_compiler=compiler_of(GraphKind.INFERENCE),
        decompositions=decompositions(),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    settings = {
        "enable_autograd_cache": cached,
        "bundled_autograd_cache": True,  # what is kept is the executable itself
        "force_non_lazy_backward_lowering": True,  # and both of them together
    }
    devices = _devices(places)
    options_in_force = spell(astuple(current()))
    tag = f"genesis {_version(devices)} {options_in_force}"
    tag += f"{' tuned' * bool(seconds)}{' frozen' * freeze}"
    if len(devices) > 1:
        tag += f" {torch.get_float32_matmul_precision()}"
    with (
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        torch._functorch.config.patch(settings),
        own_key(),
        sdpa_kernel(_ATTENTION) if len(devices) > 1 else nullcontext(),
    ):
        compiled: Callable[..., Any] = backend(module, inputs)
    return compiled


def _settings(mode: str | None, options: Mapping[str, Any]) -> tuple[float, bool]:
    """The seconds to take for tuning a graph, and whether parameters are frozen."""
    if unknown := set(options) - {"freeze", "seconds"}:
        raise ValueError(
            f"the backend genesis has no option {min(unknown)!r}, only 'freeze' and 'seconds'"
        )
    if mode is not None and mode not in _MODES:
        raise ValueError(f"the backend genesis has no mode {mode!r}, only {', '.join(_MODES)}")
    default = TUNING if mode is not None and mode.startswith("max-autotune") else 0.0
    return float(options.get("seconds", default)), bool(options.get("freeze", False))


def _devices(places: Iterable[torch.device]) -> tuple[str, ...]:
    """The devices that programs may run on."""
    return ("cpu", *sorted(gpu_of(place) for place in places if place.type == "cuda"))


@cache
def _version(devices: tuple[str, ...]) -> str:
    """What tells graphs compiled by this version, on this machine, from others."""
    targets = [backend_of(device).target for device in devices]
    return digest(generation(*ROOMS), *targets)


def register() -> None:
    """Make the backend known to ``torch.compile`` by its name."""
    from torch._dynamo.backends.registry import list_backends, register_backend

    # Where Genesis is installed its entry point is listed, and PyTorch registers what that names.
    if "genesis" not in list_backends():
        register_backend(genesis, name="genesis")
