"""`explain`: what Genesis makes of a PyTorch model, kernel by kernel and module by module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from genesis.compiler.report import KernelReport, Report, report
from genesis.ir.node import Node as GraphNode
from genesis.torch.compile.backend import GraphKind, compile_fx, genesis
from genesis.torch.compile.executable import BoxedGraph
from genesis.torch.compile.plan_builder import Origins
from genesis.torch.source_lines import MODEL, module_of


@dataclass(frozen=True)
class ExplainedGraph:
    """One compiled graph: what it is for, its programs, and what PyTorch computes in it."""

    kind: str
    programs: tuple[Report, ...]
    fallbacks: dict[str, str]

    @property
    def kernels(self) -> list[KernelReport]:
        """All kernels, in order."""
        return [kernel for program in self.programs for kernel in program.kernels]


@dataclass(frozen=True)
class Explanation:
    """The graphs of a model. Print it for a table of kernels per module."""

    graphs: tuple[ExplainedGraph, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for graph in self.graphs:
            kernels = graph.kernels
            lines.append(f"{graph.kind}: {len(kernels)} kernels")
            rows: dict[str, list[KernelReport]] = {}
            for kernel in kernels:
                for module in kernel.lines or (MODEL,):
                    rows.setdefault(module, []).append(kernel)
            width = max(map(len, rows), default=0)
            for module, found in rows.items():
                names = ", ".join(dict.fromkeys(k.name for k in found))
                lines.append(f"  {module:{width}s}  {len(found):3d}  {names}")
            for name, why in graph.fallbacks.items():
                lines.append(f"  computed by PyTorch: {name} ({why})")
        return "\n".join(lines)


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``torch.compile(model, backend="genesis")`` runs for these arguments.

    A kernel that computes for several modules is listed with each. The model is run once.

    >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> with torch.no_grad():
    ...     found = explain(layer, torch.ones(2, 4))
    >>> [len(graph.kernels) for graph in found.graphs]
    [1]
    """
    made: list[tuple[GraphKind, BoxedGraph]] = []

    def collect(module: GraphModule, kind: GraphKind) -> BoxedGraph:
        made.append((kind, compile_fx(module, kind)))
        return made[-1][1]

    torch._dynamo.reset()
    torch.compile(model, backend=partial(genesis, compiler=collect))(*args, **kwargs)
    torch._dynamo.reset()
    return Explanation(tuple(_graph(kind.value, executable) for kind, executable in made))


def _graph(kind: str, executable: BoxedGraph) -> ExplainedGraph:
    (running,) = executable.variants[-1:]
    assert running.builder is not None
    programs = []
    for part, origins in zip(running.plan.parts, running.builder.origins, strict=True):
        if part.named is not None:
            where = partial(_where, origins)
            programs.append(report(part.named.program, where, running.sizes))
    return ExplainedGraph(kind, tuple(programs), dict(running.plan.reasons))


def _where(origins: Origins, node: GraphNode) -> str | None:
    return module_of(origins[node]) if node in origins else None
