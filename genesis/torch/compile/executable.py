"""A compiled FX graph: what AOTAutograd calls in place of it.

A call takes one list of tensors and integers, reads the values of the symbolic sizes from them,
runs the plan and gathers the results. Where sizes cannot be symbolic the graph is planned for every
set of numbers it meets. PyTorch keeps an executable in its cache as its plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule, Node

from genesis import events
from genesis.ir.size import UndecidableSize
from genesis.torch.aten import FallbackWarning
from genesis.torch.compile.executable_plan import ExecutablePlan, Missing, PartPlan
from genesis.torch.compile.plan_builder import PlanBuilder, alike, found, sources
from genesis.torch.compile.run_program import Frame, frame_for
from genesis.torch.compile.sizes import Sizes
from genesis.torch.source_lines import TracedPlaces

#: Sets of numbers a graph is planned for before the oldest is forgotten.
MAX_SPECIALISED = 64


class BoxedGraph(OutputCode):
    """A graph with a boxed calling convention: it takes one list, and empties it.

    Results share memory where they do in eager code. Gradients are to be `apart`: PyTorch adds to
    them in place.
    """

    def __init__(
        self, module: GraphModule, device: str, keep: bool = False, apart: bool = False
    ) -> None:
        self._boxed_call = True  # an attribute of the object: PyTorch's wrappers copy those
        self._module: GraphModule | None = module
        self._device, self._keep, self._apart = device, keep, apart
        self._precision = torch.get_float32_matmul_precision()
        self._sources = sources(module)
        self.tuning = 0.0  #: seconds to look for better schedules when it first runs
        self.frozen = False  #: whether nobody writes to parameters behind PyTorch's back
        self._specialised: dict[tuple[int, ...], Running] = {}
        self._general: Running | None = None
        self._same: dict[str, str] = {}  # sizes that the general plan takes for equal
        self._for_unequal: Running | None = None  # the plan for when they are not
        self._plan_generally()
        if self._general is not None:
            self._general.warn()

    def __call__(self, inputs: list[Any]) -> list[Any]:  # type: ignore[override]
        """Run the graph."""
        if self.tuning and events.watcher is None:
            return self._tuned(inputs)
        running, registers, sizes = self._start(inputs)
        return running.run(registers, sizes, self.frozen)

    def _tuned(self, inputs: list[Any]) -> list[Any]:
        """The first run, after which the kernels are tuned: programs are theirs from then on."""
        # It brings all of the compiler with it, which a process that finds its plans spares.
        from genesis.tuning.jobs import jobs
        from genesis.tuning.tuner import tune_jobs

        seconds, self.tuning = self.tuning, 0.0
        results: list[Any] = []
        tune_jobs(jobs(lambda: results.extend(self(inputs))), seconds)
        self._specialised.clear()
        self._plan_generally()
        return results

    def values(self, inputs: list[Any]) -> dict[Node, Any]:
        """Every value that a run leaves behind, by its node."""
        running, registers, sizes = self._start(inputs)
        running.run(registers, sizes)
        assert running.builder is not None
        return {node: registers[k] for node, k in running.builder.numbers.items()}

    @property
    def variants(self) -> list[Running]:
        """The forms it has been planned in so far."""
        return [self._general] if self._general else list(self._specialised.values())

    def _start(self, inputs: list[Any]) -> tuple[Running, list[Any], dict[str, int]]:
        sizes: dict[str, int] = {}
        for name, register, axis in self._sources:
            given = inputs[register]
            sizes[name] = given if axis is None else given.shape[axis]
        running = self._general or self._for(sizes)
        if self._same and any(sizes[a] != sizes[b] for a, b in self._same.items()):
            assert self._for_unequal is not None
            running = self._for_unequal
        running.warn()
        registers = inputs[:]
        inputs.clear()
        registers += [None] * (running.plan.registers - len(registers))
        return running, registers, sizes

    def _for(self, sizes: Mapping[str, int]) -> Running:
        key = tuple(sizes.values())
        running = self._specialised.get(key)
        if running is None:
            if len(self._specialised) >= MAX_SPECIALISED:
                del self._specialised[next(iter(self._specialised))]
            running = self._specialised[key] = self._planned(Sizes(dict(sizes)))
        return running

    def _planned(self, sizes: Sizes) -> Running:
        assert self._module is not None
        with multiplying(self._precision) if self._device != "cpu" else nullcontext():
            builder = PlanBuilder(self._module, sizes, self._device, self._keep, self._apart)
        return Running(builder.plan, builder)

    def _plan_generally(self) -> None:
        """Plan for all sizes, if that is possible.

        PyTorch may have two symbols for one length, and not say that they are equal. Where a kernel
        needs to know that, they are taken for equal as long as they are.
        """
        try:
            plain = self._planned(Sizes())
        except UndecidableSize:
            if not self._sources:
                raise
            return
        self._general = plain
        if plain.plan.reasons and self._module is not None and (same := alike(self._module)):
            try:
                unified = self._planned(Sizes(same=same))
            except UndecidableSize:
                return
            if len(unified.plan.reasons) < len(plain.plan.reasons):
                self._general, self._for_unequal, self._same = unified, plain, same

    # ---- PyTorch's cache
    def prepare_for_serialization(self) -> None:
        """Called on a copy that is about to be kept."""
        foreign = self._general and any(part.foreign for part in self._general.plan.parts)
        if self._general is None or foreign or self._same:
            raise BypassAOTAutogradCache("a graph that is not one program for all sizes")
        if any(part.named and not part.named.key for part in self._general.plan.parts):
            raise BypassAOTAutogradCache("programs are not kept on disk")
        self._module, self.tuning = None, 0.0
        self._general = Running(self._general.plan, None)

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called on what was found in the cache: its programs must still be there."""
        assert self._general is not None
        for part in self._general.plan.parts:
            try:
                _ = part.named and part.named.program
            except Missing as error:
                raise BypassAOTAutogradCache(str(error)) from None

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is no Triton code of PyTorch's in it."""


def multiplying(precision: str) -> AbstractContextManager[object]:
    """Compile with PyTorch's precision of products of float32, inside the ``with`` block."""
    from genesis.compiler.options import using

    return using(float32_matmul=precision)


class Running:
    """A plan that is run. `builder` is where it came from, unless it was found in a cache."""

    def __init__(self, plan: ExecutablePlan, builder: PlanBuilder | None) -> None:
        self.plan, self.builder = plan, builder
        self.sizes: Mapping[str, int] = {}  #: of the last run
        self._frames: dict[tuple[int, tuple[int, ...]], Frame] = {}
        self._warned = not plan.reasons

    def warn(self) -> None:
        """Say once what PyTorch computes."""
        if not self._warned:
            self._warned = True
            listed = "; ".join(f"{name} ({why})" for name, why in self.plan.reasons.items())
            warnings.warn(f"computed by PyTorch: {listed}", FallbackWarning, stacklevel=2)

    def __getstate__(self) -> ExecutablePlan:
        return self.plan

    def __setstate__(self, plan: ExecutablePlan) -> None:
        self.__init__(plan, None)  # type: ignore[misc]

    def run(self, registers: list[Any], sizes: dict[str, int], frozen: bool = False) -> list[Any]:
        """The results for what is in the registers."""
        self.sizes = sizes
        for number, part in enumerate(self.plan.parts):
            for register, view in part.seen:
                registers[register] = found(view, registers, sizes)
            self._frame(number, part, sizes).run(registers, frozen)
            for foreign in part.foreign:
                registers[foreign.register] = foreign.run(registers, sizes)
        return [found(result, registers, sizes) for result in self.plan.results]

    def _frame(self, number: int, part: PartPlan, sizes: Mapping[str, int]) -> Frame:
        key = number, tuple(sizes.values())
        frame = self._frames.get(key)
        if frame is None:
            if len(self._frames) >= 256:
                self._frames.clear()
            places = TracedPlaces(self.builder.origins[number]) if self.builder else None
            device = self.plan.device
            frame = self._frames[key] = frame_for(device)(part, sizes, places, device)
        return frame
