"""Running a graph three ways: evaluated, interpreted kernel by kernel, and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from genesis.backends import get
from genesis.backends.base import Chip
from genesis.compiler import Program
from genesis.compiler.cpu import PASSES
from genesis.compiler.fuse.fuse import fuse
from genesis.compiler.graph.simplify import simplify
from genesis.compiler.lower.lower import lower
from genesis.compiler.program.program import as_size, results
from genesis.compiler.schedule import schedule
from genesis.ir import ops
from genesis.ir.dtype import Scalar, as_dtype
from genesis.ir.interpret import interpret
from genesis.ir.kernel import Kernel, Role
from genesis.ir.node import Node
from genesis.ir.size import evaluate as size_value

CHIP = Chip("test", 64, 32, 32 << 10, 1 << 20)


def interpreted(
    roots: Sequence[Node],
    buffers: Sequence[np.ndarray],
    scalars: Sequence[Scalar] = (),
    sizes: Mapping[str, int] | None = None,
    *,
    simplified: bool = True,
    fused: bool = True,
    scheduled: bool = True,
    donated: frozenset[int] = frozenset(),
    chip: Chip = CHIP,
    kernels: list[Kernel] | None = None,
    order: str = "forward",
) -> list[np.ndarray]:
    """The roots' values, every kernel run on the kernel-IR interpreter."""
    sizes = sizes or {}
    goals = results(simplify(roots) if simplified else roots)
    fusion = fuse(goals, donated, fused, PASSES.fusing)
    values: dict[Node, Any] = {}
    for group in fusion.groups:
        low = lower(group, fusion.stored)
        kernel = schedule(low.kernel, chip) if scheduled else low.kernel
        if kernels is not None:
            kernels.append(kernel)
        arguments: dict[str, Any] = {}
        buffered = zip(low.arguments, low.kernel.buffers, kernel.buffers, strict=False)
        for n, before, after in buffered:
            assert before.name == after.name
            if n.op is ops.BUFFER:
                flat = buffers[n.attr.slot].reshape(-1)
                value = flat if after.strides is not None else memory(flat, n, sizes)
            elif before.role is Role.INPUT:
                value = values[n]
            elif before.role is Role.INOUT:
                base = n.inputs[0]
                if base not in values:
                    values[base] = memory(buffers[base.attr.slot], base, sizes)
                value = values[n] = values[base].copy()
            else:
                shape = tuple(size_value(e, sizes) for e in n.shape)
                value = values[n] = np.empty(shape, n.dtype.numpy)
            if after.dtype is not before.dtype:  # the same memory under another name
                value = value.view(after.dtype.numpy)
            shape = tuple(_extent(e, sizes) for e in after.shape)
            arguments[before.name] = value if after.strides is not None else value.reshape(shape)
            if before.role is not Role.INPUT:
                values[n] = value
        for p, slot in zip(kernel.params, low.scalars, strict=True):
            arguments[p.name] = scalars[slot]
        for s in kernel.symbols:
            arguments[s.name] = sizes[s.name]
        interpret(kernel, arguments, order=order)
    shapes = [tuple(size_value(e, sizes) for e in n.shape) for n in roots]
    return [values[n].reshape(shape) for n, shape in zip(goals, shapes, strict=True)]


def compiled(
    roots: Sequence[Node],
    buffers: Sequence[np.ndarray],
    scalars: Sequence[Scalar] = (),
    sizes: Mapping[str, int] | None = None,
    *,
    program: Program,
    donated: frozenset[int] = frozenset(),
) -> list[np.ndarray]:
    """The roots' values, computed by a program on the CPU. What was not donated must survive."""
    sizes = sizes or {}
    cpu = get("cpu")
    inputs = []
    for flat in buffers[: program.buffers]:
        memory = cpu.allocate(flat.nbytes)
        cpu.download(memory, as_dtype(flat.dtype), flat.shape)[...] = flat
        inputs.append(memory)
    outputs = [
        cpu.allocate(size_value(n.size, sizes) * n.dtype.itemsize)
        if out.reuses is None
        else inputs[out.reuses]
        for n, out in zip(roots, program.outputs, strict=True)
    ]
    program.run([memory.pointer for memory in inputs], scalars, outputs, sizes)
    for slot, flat in enumerate(buffers[: program.buffers]):
        if slot not in donated:
            after = cpu.download(inputs[slot], as_dtype(flat.dtype), flat.shape)
            assert after.tobytes() == flat.tobytes(), f"slot {slot} was overwritten"
    return [
        cpu.download(m, n.dtype, [size_value(e, sizes) for e in n.shape]).copy()
        for n, m in zip(roots, outputs, strict=True)
    ]


def memory(flat: np.ndarray, leaf: Node, sizes: Mapping[str, int]) -> np.ndarray:
    """A leaf's elements, read through its layout."""
    shape = [size_value(e, sizes) for e in leaf.shape]
    strides = [size_value(s, sizes) * flat.itemsize for s in leaf.attr.strides]
    start = flat.reshape(-1)[size_value(leaf.attr.offset, sizes) :]
    view = np.lib.stride_tricks.as_strided(start, shape, strides)
    return np.ascontiguousarray(view)


def _extent(e: int | Node, sizes: Mapping[str, int]) -> int:
    return e if isinstance(e, int) else size_value(as_size(e), sizes)
