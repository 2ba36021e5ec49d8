"""`check`: compare a compiled model with PyTorch eager, operator by operator.

Every operator's result is computed twice from the same inputs of the graph: by PyTorch, one
operator after the other, and by Genesis. The first operator whose results differ, and the module
it belongs to, is where to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from genesis.torch.compile.backend import GraphKind, compile_fx, genesis
from genesis.torch.compile.executable import BoxedGraph
from genesis.torch.compile.trace import device_of
from genesis.torch.source_lines import module_of


@dataclass(frozen=True)
class Difference:
    """How far an operator's result, or a result of the whole graph, is from PyTorch's."""

    graph: str
    module: str
    operator: str
    #: The greatest difference, relative to the greatest magnitude in the result; or from the truth,
    #: where PyTorch's result is nothing but rounding itself.
    error: float
    agrees: bool


@dataclass(frozen=True)
class Comparison:
    """All differences in the order of computation. Print it for a table by module."""

    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether every result is within tolerance."""
        return self.first is None

    @property
    def first(self) -> Difference | None:
        """The first result that is not within tolerance."""
        return next((d for d in self.differences if not d.agrees), None)

    def __str__(self) -> str:
        rows: dict[tuple[str, str], list[Difference]] = {}
        for d in self.differences:
            rows.setdefault((d.graph, d.module), []).append(d)
        width = max((len(module) for _, module in rows), default=0)
        lines = [
            f"{graph:9s}  {module:{width}s}  {len(found):4d} results, "
            f"error {max(d.error for d in found):.1e}"
            f"{'' if all(d.agrees for d in found) else '  DIFFERS'}"
            for (graph, module), found in rows.items()
        ]
        first = self.first
        if first is None:
            lines.append(f"all {len(self.differences)} results agree")
        else:
            lines.append(
                f"first to differ: {first.operator} in {first.module} ({first.graph}), "
                f"relative error {first.error:.1e}"
            )
        return "\n".join(lines)


def check(
    model: Callable[..., Any], *args: Any, tolerance: float = 1e-4, **kwargs: Any
) -> Comparison:
    """Compare ``torch.compile(model, backend="genesis")`` with eager, for these arguments.

    The model runs forward, and backward where its results need gradients; those of its parameters
    are left as they were. An error counts relative to the greatest magnitude in a result.

    >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softmax(-1))
    >>> check(layer, torch.ones(2, 4)).agrees
    True
    """
    found: list[Difference] = []

    def compiler(module: GraphModule, kind: GraphKind) -> Callable[[list[Any]], list[Any]]:
        return _Compared(module, kind, tolerance, found)

    torch._dynamo.reset()
    result = torch.compile(model, backend=partial(genesis, compiler=compiler))(*args, **kwargs)
    leaves = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    needed = [x for x in leaves if x.requires_grad]
    if needed:
        inputs = [*args, *kwargs.values(), *getattr(model, "parameters", list)()]
        wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.grad(needed, wanted, [_slope(x) for x in needed], allow_unused=True)
    torch._dynamo.reset()
    return Comparison(tuple(found))


class _Compared:
    """A graph that is run by PyTorch and, with every operator's result, by Genesis."""

    def __init__(
        self, module: GraphModule, kind: GraphKind, tolerance: float, found: list[Difference]
    ) -> None:
        self._boxed_call = True
        self._module, self._tolerance, self._found = module, tolerance, found
        self._kind = kind.value
        self._whole = compile_fx(module, kind)
        self._single = BoxedGraph(module, device_of(module), keep=True)

    def __call__(self, args: list[Any]) -> list[Any]:
        # Before anything is written in place: each of the runs gets inputs of its own.
        first, second, third = ([_copied(x) for x in args] for _ in range(3))
        reference = _Reference(self._module)
        want = reference.run(*first)
        rounding = _Rounding(self._module, third)
        for node, value in self._single.values(second).items():
            expected = reference.values.get(node)
            if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor):
                where = module_of(node), str(node.target)
                self._add(*where, value, expected, partial(rounding.of, node))
        got = self._whole(args)
        results: Any = self._module.graph.output_node().args[0]
        for k, (ours, theirs) in enumerate(zip(got, want, strict=True)):
            if isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
                exact = partial(rounding.of, results[k])
                self._add("(results)", f"result {k}", ours, theirs, exact)
        return got

    def _add(
        self,
        module: str,
        name: str,
        ours: torch.Tensor,
        theirs: torch.Tensor,
        exact: Callable[[], torch.Tensor | None],
    ) -> None:
        error = _error(ours, theirs)
        agrees = error <= self._tolerance or "rand" in name or "dropout" in name
        if not agrees and (truth := exact()) is not None and truth.shape == ours.shape:
            # Where terms cancel, little but rounding is left: a result need not be much nearer to
            # the truth than PyTorch's.
            away = _distance(ours, truth)
            if away <= 10 * _distance(theirs, truth) < float("inf"):
                agrees, error = True, away
        self._found.append(Difference(self._kind, module, name, error, agrees))


class _Reference(Interpreter):
    """PyTorch's own run of a graph, which remembers every value."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        """Run one operator."""
        self.values[n] = super().run_node(n)
        return self.values[n]


class _Rounding:
    """What a graph would give without rounding: its run in float64, if somebody asks."""

    def __init__(self, module: GraphModule, args: list[Any]) -> None:
        self._module, self._args = module, args
        self._values: dict[Node, Any] | None = None

    def of(self, node: Node) -> torch.Tensor | None:
        """The value of a node; None where that run is not possible."""
        if self._values is None:
            wide = _Wide(self._module)
            try:
                wide.run(*self._args)
            except Exception:  # an operator that takes no float64
                wide.values.clear()
            self._values = wide.values
        found = self._values.get(node)
        return found if isinstance(found, torch.Tensor) else None


class _Wide(_Reference):
    """A run of a graph in which every real number is float64."""

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An argument, widened."""
        return _widened(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant, widened."""
        return _widened(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """An operator, told to give float64."""
        args, kwargs = torch.utils._pytree.tree_map(_widened, (args, kwargs))
        result = super().call_function(target, args, kwargs)
        return torch.utils._pytree.tree_map(_widened, result)


_NARROW = frozenset((torch.float32, torch.float16, torch.bfloat16))


def _widened(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return torch.float64 if x in _NARROW else x
    return x.double() if isinstance(x, torch.Tensor) and x.dtype in _NARROW else x


def _distance(x: torch.Tensor, truth: torch.Tensor) -> float:
    if not x.numel():
        return 0.0
    wide = torch.complex128 if truth.is_complex() else torch.float64
    return float((x.to(wide) - truth.to(wide)).abs().max())


def _slope(x: torch.Tensor) -> torch.Tensor:
    """A gradient to begin with. From ones, a norm's would be zero, and its error all there is."""
    return torch.arange(x.numel(), device=x.device).cos().view(x.shape).to(x.dtype)


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if not theirs.numel():
        return 0.0
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    ours, theirs = ours.to(wide), theirs.to(wide)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    finite = theirs.isfinite()
    if not bool((same | (finite & ours.isfinite())).all()):
        return float("inf")
    difference = torch.where(same, 0, (ours - theirs).abs()).max()
    size = torch.where(finite, theirs.abs(), 0).max()
    return float(difference / size.clamp_min(1e-30)) if difference else 0.0
