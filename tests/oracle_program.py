"""Programs without a compiler: `compile_graph` on the evaluator of tensor graphs.

Tests of lazy arrays run twice: on this oracle, where only the array layer can be wrong, and on the
real compiler. Import the fixture `engine` to have both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from genesis.backends import get
from genesis.backends.base import Backend, Memory
from genesis.compiler import Options
from genesis.ir import ops, size
from genesis.ir.dtype import DType, Scalar
from genesis.ir.evaluate import evaluate
from genesis.ir.node import Node, topological
from genesis.ndarray.core import realisation


@dataclass(frozen=True)
class OracleOutput:
    """What a program writes."""

    dtype: DType
    shape: tuple[Any, ...]
    reuses: int | None


class OracleProgram:
    """A program that evaluates its graph node by node."""

    unproven = 0  # there are no kernels

    def __init__(
        self, roots: tuple[Node, ...], donated: frozenset[int], backend: Backend, options: Options
    ) -> None:
        self.roots = roots
        leaves = [n for n in topological(roots) if n.op is ops.BUFFER]
        self.dtypes = {n.attr.slot: n.dtype for n in leaves}
        self.counts = {n.attr.slot: 0 for n in leaves}  # elements that are there
        for n in leaves:
            ends = [max(e - 1, 0) * max(s, 0) for e, s in zip(n.shape, n.attr.strides, strict=True)]
            count = 0 if 0 in n.shape else n.attr.offset + sum(ends) + 1
            self.counts[n.attr.slot] = max(self.counts[n.attr.slot], count)
        shapes = {n.attr.slot: n.shape for n in leaves}
        free = set(donated)
        outputs = []
        for root in roots:
            fitting = [
                slot
                for slot in sorted(free)
                if shapes[slot] == root.shape and self.dtypes[slot].itemsize == root.dtype.itemsize
            ]
            outputs.append(OracleOutput(root.dtype, root.shape, fitting[0] if fitting else None))
            free -= set(fitting[:1])
        self.outputs = tuple(outputs)
        self.runs = 0
        self.symbols = ()

    def run(
        self,
        inputs: Sequence[int],
        scalars: Sequence[Scalar],
        outputs: Sequence[Memory],
        sizes: Mapping[str, int],
        places: object = None,
    ) -> None:
        cpu = get("cpu")
        flat = []
        for k, pointer in enumerate(inputs):
            dtype, count = self.dtypes[k], size.evaluate(self.counts[k], sizes)
            memory = cpu.foreign(pointer, count * dtype.itemsize, None)
            flat.append(cpu.download(memory, dtype, (count,)))
        results = evaluate(self.roots, flat, scalars, sizes)
        for root, result, memory in zip(self.roots, results, outputs, strict=True):
            cpu.download(memory, root.dtype, result.shape)[...] = result
        self.runs += 1


@pytest.fixture(params=["oracle", "compiler"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test with the oracle and with the compiler."""
    monkeypatch.setattr(realisation, "_programs", realisation.Programs())
    if request.param == "oracle":
        monkeypatch.setattr("genesis.compiler.compile_graph", OracleProgram)
    yield request.param
