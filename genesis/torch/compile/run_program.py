"""Running one program of a plan on the memory of tensors.

Nothing is wrapped at a call: the program's frame receives the addresses of the tensors it reads,
and of tensors made for its results. Large ones get memory of the program's backend, which keeps
what is freed: the system's fresh pages cost more than most kernels that fill them. An input that
the graph overwrites is written where it lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from genesis import events
from genesis.backends.base import Memory, Word
from genesis.compiler.program.prepacked import KeptValues, PreparedProgram
from genesis.ir.size import Dim, evaluate
from genesis.ndarray.core.index_checks import require
from genesis.ndarray.core.value import lock
from genesis.torch.compile.executable_plan import Check, PartPlan
from genesis.torch.compile.trace import place_of
from genesis.torch.device.strides import copied_with_strides, with_strides
from genesis.torch.profiler import recorded
from genesis.torch.source_lines import TracedPlaces

#: Bytes from which on PyTorch's allocator gets pages from the system, and gives them back.
LARGE = 1 << 18


class Frame:
    """A part for certain sizes: everything about a run but the addresses."""

    def __init__(
        self,
        plan: PartPlan,
        sizes: Mapping[str, int],
        places: TracedPlaces | None = None,
        device: str = "cpu",
    ) -> None:
        self._plan, self._sizes, self._written_at = plan, dict(sizes), places
        self._place = place_of(device)  # where all its memory is

        def known(extents: Sequence[Dim]) -> tuple[int, ...]:
            return tuple(evaluate(d, sizes) for d in extents)

        self._reads = [
            (r.slot, r.register, known(r.strides), r.marked or r.elsewhere) for r in plan.reads
        ]
        self._made = [(m.register, known(m.size), known(m.stride), m.dtype) for m in plan.made]
        nbytes = [prod(size) * dtype.itemsize for _, size, _, dtype in self._made]
        self._large = {k: n for k, n in enumerate(nbytes) if n >= LARGE}
        self._seen, self._copied, self._moved = (
            [(m.register, known(m.shape), known(m.strides)) for m in plan.made if m.becomes == how]
            for how in ("seen", "copied", "moved")
        )
        self._places: list[tuple[int, int]] = []  # where the address of a result goes: slot, which
        self._writes: list[tuple[int, int, bool]] = []  # slot, register, whether it is in place
        self._checks: list[int] = []  # slots
        self._reports: list[tuple[int, int, tuple[Check, ...]]] = []  # an output, an input, and why
        self._kept: KeptValues | None = None
        self._held: list[torch.Tensor] = []  # parameters: no other tensor gets their memory
        self._states: list[tuple[int, int]] = []  # how they were in the run before
        if plan.named is None:
            return
        program = plan.named.program
        self._program = program
        self._frame = program.frame(plan.scalars, sizes)
        self._constants = [memory.to(self._place) for _, memory in plan.constants]
        for (slot, _), memory in zip(plan.constants, self._constants, strict=True):
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
            elif plan.words:
                self._reports.append((slot, *plan.words[k - made - written]))
            else:
                self._checks.append(slot)

    def run(self, registers: list[Any], frozen: bool = False) -> None:
        """Fill the registers of the results from those that are read.

        What depends on parameters only is done once if they are `frozen`.
        """
        made = self._results()
        for (register, *_), tensor in zip(self._made, made, strict=True):
            registers[register] = tensor
        if self._plan.named is not None:
            self._launch(registers, made, frozen)
        for register, shape, strides in self._seen:
            registers[register] = registers[register].as_strided(shape, strides)
        for register, _, strides in self._copied:
            registers[register] = copied_with_strides(registers[register], strides)
        for register, _, strides in self._moved:
            registers[register] = with_strides(registers[register].cpu(), strides)

    def _results(self) -> list[torch.Tensor]:
        """Tensors for the results."""
        made = []
        large: dict[int, Memory] = {}
        if self._large:
            blocks = self._program.backend.allocate_many(tuple(self._large.values()))
            large = dict(zip(self._large, blocks, strict=True))
        for k, (_, size, stride, dtype) in enumerate(self._made):
            if k in large:
                made.append(_on(large[k], size, stride, dtype))
            else:
                made.append(torch.empty_strided(size, stride, dtype=dtype))
        return made

    def _launch(self, registers: list[Any], made: Sequence[torch.Tensor], frozen: bool) -> None:
        frame = self._frame[:]
        kept: list[torch.Tensor] = []  # until the program has run
        for slot, register, strides, special in self._reads:
            tensor = registers[register]
            if special:
                tensor = _brought(tensor, self._place).resolve_conj().resolve_neg()
                kept.append(tensor)
            if tensor.stride() != strides:
                tensor = with_strides(tensor, strides)
                kept.append(tensor)
            frame[slot] = tensor.data_ptr()
        if self._plan.random is not None:
            state = torch.zeros(2, dtype=torch.int64, device=self._place)
            state[0].random_()
            kept.append(state)
            frame[self._plan.random] = state.data_ptr()
        for slot, k in self._places:
            frame[slot] = made[k].data_ptr()
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for slot, register, in_place in self._writes:
            target = registers[register]
            if not in_place:
                fresh = torch.empty(target.shape, dtype=target.dtype, device=self._place)
                copies.append((target, fresh))
                target = fresh
            frame[slot] = target.data_ptr()
        count = len(self._checks)
        codes = torch.empty(count, dtype=torch.int64, device=self._place) if count else None
        if codes is not None:
            for k, slot in enumerate(self._checks):
                frame[slot] = codes.data_ptr() + 8 * k
        with lock, recorded():
            self._start(registers, frame, frozen)
        for target, fresh in copies:
            target.copy_(fresh)
        if codes is not None:
            self._check(codes)

    def _start(self, registers: list[Any], frame: array[int], frozen: bool) -> None:
        prepared = self._prepared(registers, frame) if frozen else None
        self._program.launch(frame, self._sizes, self._written_at, prepared)

    def _check(self, codes: torch.Tensor) -> None:
        """Raise for an index that does not exist."""
        self._require(codes.tolist(), self._plan.checks)

    def _require(self, codes: Iterable[int], checks: Sequence[Check]) -> None:
        for code, check in zip(codes, checks, strict=True):
            require(check.name, code, evaluate(check.extent, self._sizes), check.axis)

    def _prepared(self, registers: list[Any], frame: array[int]) -> PreparedProgram | None:
        """What is left to run while parameters are those of the run before."""
        if self._kept is None:
            steady = {slot for slot, _ in self._plan.constants}
            written = {register for _, register, _ in self._writes}
            for slot, register, strides, special in self._reads:
                read = registers[register]
                as_it_is = not special and read.stride() == strides and register not in written
                if isinstance(read, torch.nn.Parameter) and as_it_is:
                    steady.add(slot)
            self._kept = KeptValues(self._program, self._sizes, steady)
        self._held = [registers[r] for slot, r, _, _ in self._reads if slot in self._kept.slots]
        states = [(p.data_ptr(), _version(p)) for p in self._held]
        unchanged = bool(states) and states == self._states and events.watcher is None
        self._states = states
        return self._kept.prepared(frame, unchanged)


class GPUFrame(Frame):
    """A part that runs on a GPU, on PyTorch's memory and in PyTorch's stream: nothing waits.

    What is freed is used again by what comes later in that stream. So an index that does not exist
    is known only later, too: whoever calls next gets the error.
    """

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._words: list[tuple[Word, tuple[Check, ...]]] = []
        for output, slot, checks in self._reports:
            word = self._program.backend.word()
            self._frame[output] = self._frame[slot] = word.pointer
            self._words.append((word, checks))

    def run(self, registers: list[Any], frozen: bool = False) -> None:
        """Start filling the registers of the results from those that are read."""
        for word, checks in self._words:
            if code := word.take():
                self._require([code] * len(checks), checks)
        super().run(registers)

    def _results(self) -> list[torch.Tensor]:
        return [
            torch.empty_strided(size, stride, dtype=dtype, device=self._place)
            for _, size, stride, dtype in self._made
        ]

    def _start(self, registers: list[Any], frame: array[int], frozen: bool) -> None:
        program = self._program
        with program.backend.lent(stream_of(self._place)):
            program.launch(frame, self._sizes, self._written_at, allocate=self._allocated)

    def _allocated(self, nbytes: int) -> Memory:
        """Memory for temporaries, which may be PyTorch's again once the launches are queued."""
        block = torch.empty(nbytes, dtype=torch.uint8, device=self._place)
        return self._program.backend.foreign(block.data_ptr(), nbytes, block)


def frame_for(device: str) -> type[Frame]:
    """What runs parts on a device."""
    return Frame if device == "cpu" else GPUFrame


def stream_of(place: torch.device) -> int:
    """The stream of a GPU that PyTorch uses now."""
    stream: int = torch._C._cuda_getCurrentRawStream(place.index)
    return stream


def _version(tensor: torch.Tensor) -> int:
    """How often PyTorch saw a tensor written."""
    return 0 if tensor.is_inference() else tensor._version


def _on(
    memory: Memory, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor in memory that it keeps alive; it is nobody's view, so it may be written to."""
    storage = torch.from_numpy(np.asarray(memory)).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def _brought(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A tensor on a device; nothing waits unless the copy could be late to read its memory."""
    if tensor.device == place:
        return tensor
    return tensor.to(place, non_blocking=place.type == "cuda" and not tensor.is_pinned())
