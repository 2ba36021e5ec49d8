"""What the records of a program compute: names, lines, arithmetic and bytes.

Arithmetic and bytes are counted as `genesis.explain` counts them: what there is to do, however it
is scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from genesis.backends.base import Host, Repeat, every
from genesis.compiler.lower.library_calls import LoweredCall
from genesis.compiler.program.program import Places, Program, ProgramStep
from genesis.compiler.report import arithmetic, lines_of, traffic
from genesis.ir.dtype import float64
from genesis.ir.size import evaluate, product


class KernelWork(NamedTuple):
    """One run of a record. What nobody knows is None."""

    name: str
    kind: str  # kernel, library, host or loop
    operations: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    flops: int | None = None
    nbytes: int | None = None
    dtype: str = "float32"


def works(
    program: Program, places: Places | None, sizes: Mapping[str, int]
) -> Iterator[KernelWork]:
    """The work of every record, in the order of `genesis.backends.base.every`."""
    try:
        steps: list[ProgramStep | LoweredCall] = list(program.derivation.steps)
    except LookupError:  # found on disk by its key, and its graph nowhere
        steps = []
    remaining = iter(steps)
    for record in every(program.records):
        if isinstance(record, Repeat):
            yield KernelWork("loop", "loop")
            continue
        if isinstance(record, Host):
            name = record.name
        else:
            name = program.backend.kernel_name(record.binary)
            if record.phases is not None and record.phases[0] == 0:
                # What a kernel in a loop does once, ahead of it; the rest comes with its step.
                yield KernelWork(f"{name} ahead", "kernel")
                continue
        step = next(remaining, None)
        if step is None:
            yield KernelWork(name, "host" if isinstance(record, Host) else "kernel")
        elif isinstance(step, ProgramStep):
            yield _of_kernel(name, program, step, places, sizes)
        else:
            yield _of_call(name, program, step, places, sizes)


def _of_kernel(
    name: str, program: Program, step: ProgramStep, places: Places | None, sizes: Mapping[str, int]
) -> KernelWork:
    low = step.lowered
    lines = lines_of(program, (*low.members, *step.loops), places.where) if places else ()
    names = dict.fromkeys(m.op.name for m in low.members if not m.op.is_movement)
    wide = any(b.dtype is float64 for b in low.kernel.buffers)
    return KernelWork(
        name,
        "kernel",
        tuple(names),
        lines,
        arithmetic(low, sizes),
        traffic(low.kernel, sizes),
        "float64" if wide else "float32",
    )


def _of_call(
    name: str, program: Program, step: LoweredCall, places: Places | None, sizes: Mapping[str, int]
) -> KernelWork:
    call = step.call
    lines = lines_of(program, (step.node, *step.items.values()), places.where) if places else ()
    moved = sum(
        evaluate(product(shape), sizes) * dtype.itemsize
        for dtype, shape in (*call.operands, *call.results)
    )
    kind = "host" if step.native is None else "library"
    return KernelWork(name, kind, (call.name,), lines, None, moved)
