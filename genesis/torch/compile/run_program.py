"""Running one program of a plan on the memory of tensors.

Nothing is wrapped at a call: the program's frame receives the addresses of the tensors it reads,
and of tensors made for its results. Large ones get memory of the program's backend, which keeps
what is freed: the system's fresh pages cost more than most kernels that fill them. An input that
the graph overwrites is written where it lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from genesis import events
from genesis.backends.base import Memory
from genesis.compiler.program.prepacked import Kept, Prepared
from genesis.ir.size import Dim, evaluate
from genesis.ndarray.core.index_checks import require
from genesis.ndarray.core.realisation import lock
from genesis.torch.compile.plan import PartPlan
from genesis.torch.profiler import recorded
from genesis.torch.source_lines import TracedPlaces

#: Bytes from which on PyTorch's allocator gets pages from the system, and gives them back.
LARGE = 1 << 18


class Frame:
    """A part for certain sizes: everything about a run but the addresses."""

    def __init__(
        self, plan: PartPlan, sizes: Mapping[str, int], places: TracedPlaces | None = None
    ) -> None:
        self._plan, self._sizes, self._written_at = plan, dict(sizes), places

        def known(extents: Sequence[Dim]) -> tuple[int, ...]:
            return tuple(evaluate(d, sizes) for d in extents)

        self._reads = [(r.slot, r.register, known(r.strides), r.marked) for r in plan.reads]
        self._made = [(m.register, known(m.size), known(m.stride), m.dtype) for m in plan.made]
        nbytes = [prod(size) * dtype.itemsize for _, size, _, dtype in self._made]
        self._large = {k: n for k, n in enumerate(nbytes) if n >= LARGE}
        self._seen, self._copied = (
            [
                (m.register, known(m.shape), known(m.strides), m.dtype)
                for m in plan.made
                if m.becomes == how
            ]
            for how in ("seen", "copied")
        )
        self._places: list[tuple[int, int]] = []  # where the address of a result goes: slot, which
        self._writes: list[tuple[int, int, bool]] = []  # slot, register, whether it is in place
        self._checks: list[int] = []  # slots
        self._kept: Kept | None = None
        self._held: list[torch.Tensor] = []  # parameters: no other tensor gets their memory
        self._states: list[tuple[int, int]] = []  # how they were in the run before
        if plan.named is None:
            return
        program = plan.named.program
        self._program = program
        self._frame = program.frame(plan.scalars, sizes)
        for slot, memory in plan.constants:
            self._frame[slot] = memory.data_ptr()
        made, written = len(plan.made), len(plan.written)
        for number, k in enumerate(plan.computed):
            slot = program.first_output + number
            if k < made:
                self._places.append((slot, k))
            elif k < made + written:
                register, own = plan.written[k - made]
                reuses = program.outputs[number].reuses
                self._writes.append((slot, register, reuses is not None and reuses == own))
            else:
                self._checks.append(slot)

    def run(self, registers: list[Any], frozen: bool = False) -> None:
        """Fill the registers of the results from those that are read.

        What depends on parameters only is done once if they are `frozen`.
        """
        made: list[torch.Tensor] = []
        large: dict[int, Memory] = {}
        if self._large:
            blocks = self._program.backend.allocate_many(tuple(self._large.values()))
            large = dict(zip(self._large, blocks, strict=True))
        for k, (register, size, stride, dtype) in enumerate(self._made):
            if k in large:
                tensor = _on(large[k], size, stride, dtype)
            else:
                tensor = torch.empty_strided(size, stride, dtype=dtype)
            registers[register] = tensor
            made.append(tensor)
        if self._plan.named is not None:
            self._launch(registers, made, frozen)
        for register, shape, strides, _ in self._seen:
            registers[register] = registers[register].as_strided(shape, strides)
        for register, _, strides, _ in self._copied:
            registers[register] = _copied(registers[register], strides)

    def _launch(self, registers: list[Any], made: Sequence[torch.Tensor], frozen: bool) -> None:
        frame = self._frame[:]
        kept: list[torch.Tensor] = []  # until the program has run
        for slot, register, strides, marked in self._reads:
            tensor = registers[register]
            if marked:
                tensor = tensor.resolve_conj().resolve_neg()
                kept.append(tensor)
            if tensor.stride() != strides:
                tensor = _with_strides(tensor, strides)
                kept.append(tensor)
            frame[slot] = tensor.data_ptr()
        if self._plan.random is not None:
            state = torch.zeros(2, dtype=torch.int64)
            state[0].random_()
            kept.append(state)
            frame[self._plan.random] = state.data_ptr()
        for slot, k in self._places:
            frame[slot] = made[k].data_ptr()
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for slot, register, in_place in self._writes:
            target = registers[register]
            if not in_place:
                fresh = torch.empty(target.shape, dtype=target.dtype)
                copies.append((target, fresh))
                target = fresh
            frame[slot] = target.data_ptr()
        codes = torch.empty(len(self._checks), dtype=torch.int64) if self._checks else None
        if codes is not None:
            for k, slot in enumerate(self._checks):
                frame[slot] = codes.data_ptr() + 8 * k
        with lock, recorded():
            prepared = self._prepared(registers, frame) if frozen else None
            self._program.launch(frame, self._sizes, self._written_at, prepared)
        for target, fresh in copies:
            target.copy_(fresh)
        if codes is not None:
            for code, check in zip(codes.tolist(), self._plan.checks, strict=True):
                require(check.name, code, evaluate(check.extent, self._sizes), check.axis)

    def _prepared(self, registers: list[Any], frame: array[int]) -> Prepared | None:
        """What is left to run while parameters are those of the run before."""
        if self._kept is None:
            steady = {slot for slot, _ in self._plan.constants}
            written = {register for _, register, _ in self._writes}
            for slot, register, strides, marked in self._reads:
                read = registers[register]
                as_it_is = not marked and read.stride() == strides and register not in written
                if isinstance(read, torch.nn.Parameter) and as_it_is:
                    steady.add(slot)
            self._kept = Kept(self._program, self._sizes, steady)
        self._held = [registers[r] for slot, r, _, _ in self._reads if slot in self._kept.slots]
        states = [(p.data_ptr(), _version(p)) for p in self._held]
        unchanged = bool(states) and states == self._states and events.watcher is None
        self._states = states
        return self._kept.prepared(frame, unchanged)


def _version(tensor: torch.Tensor) -> int:
    """How often PyTorch saw a tensor written."""
    return 0 if tensor.is_inference() else tensor._version


def _on(
    memory: Memory, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor in memory that it keeps alive; it is nobody's view, so it may be written to."""
    storage = torch.from_numpy(np.asarray(memory)).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def _with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor with other strides; those along axes of one element do not count."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if not tensor.numel() or all(n == 1 or had == wanted for n, had, wanted in pairs):
        return tensor
    return _copied(tensor, strides)


def _copied(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with other strides. Elements that are one in memory are written once."""
    copy = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype)
    once = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    copy[once].copy_(tensor[once])
    return copy
