"""The kernels of sums of rows by where they go: see `segment_sums_triton`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from genesis.backends.base import Binary, NativeCall
from genesis.backends.gpu.binary import CompileRequest, made, packed, unpacked
from genesis.backends.gpu.codegen.rendered_kernel import Argument, RenderedKernel
from genesis.backends.gpu.launch_metadata import Count
from genesis.content_store import remember
from genesis.ir.dtype import DType, float32, float64
from genesis.ir.node import LibraryCall

TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
#: Updates whose sum is a number of its own if they all go to one row, and rows that one block looks
#: for the updates of.
CHUNK = 128
BLOCK = 128
#: Updates that a block reads at once, their columns, and the rows that it writes: where rows get
#: many updates, and where few do, so that most of what is done is to write rows.
MANY = (16, 128, 1)
FEW = (4, 1024, 4)
#: How many are many, for each row.
OFTEN = 8


def native_rows(call: LibraryCall, target: str) -> NativeCall | None:
    """Sums of the rows that go to each row of the result."""
    (positions, (n,)), _, (dtype, (_, columns)) = call.operands
    ((kind, (rows, _)),) = call.results
    known = all(isinstance(size, int) for size in (n, rows, columns))
    if not known or positions.bits != 32 or not {dtype.name, kind.name} <= TYPES.keys():
        return None
    assert isinstance(n, int) and isinstance(rows, int) and isinstance(columns, int)
    sums = Sums(dtype, kind, n >= OFTEN * rows)
    partial = max(1, n // CHUNK) * columns * sums.total.itemsize
    return NativeCall(_binary(sums, target), (4 * (rows + 1), partial), (n, rows, columns))


@lru_cache(maxsize=64)
def _binary(sums: Sums, target: str) -> Binary:
    """The machine code; from disk, where it has been made before."""
    wanted = sums.request(target)
    return unpacked(wanted.key, remember("object", wanted.key, lambda: packed(made(wanted))))


@dataclass(frozen=True)
class Sums:
    """What the kernels depend on: the types of updates and results, and how often rows are met."""

    dtype: DType
    result: DType
    often: bool

    @property
    def total(self) -> DType:
        """The type of sums."""
        return float64 if float64 in (self.dtype, self.result) else float32

    def request(self, target: str) -> CompileRequest:
        """What is to be compiled."""
        rows, columns, together = MANY if self.often else FEW
        update, result, total = (TYPES[x.name] for x in (self.dtype, self.result, self.total))
        arguments = {
            "positions": "*i32", "places": "*i64", "updates": f"*{update}", "result": f"*{result}",
            "starts": "*i32", "partial": f"*{total}", "n": "i64", "rows": "i64", "c": "i64",
        }  # fmt: skip
        how = f"c, {CHUNK}, {rows}, {columns}, tl.{self.total.name}"
        bodies = (
            f"find_starts(positions, starts, n, rows, {BLOCK})",
            f"sum_chunks(positions, places, updates, partial, {how})",
            f"sum_rows(places, updates, result, starts, partial, rows, {how}, {together})",
        )
        text = Path(__file__).with_name("segment_sums_triton.py").read_text()
        names = tuple(f"rows_{self.result.name}_{k}" for k in range(len(bodies)))
        for name, body in zip(names, bodies, strict=True):
            text += f"\n\n@triton.jit\ndef {name}({', '.join(arguments)}):\n    {body}\n"
        n, count, c = (["symbol", k] for k in range(3))
        across: Count = ["//", ["+", c, columns - 1], columns]
        grids = (
            ["//", ["+", count, BLOCK], BLOCK],
            ["*", ["//", n, CHUNK], across],
            ["*", ["//", ["+", count, together - 1], together], across],
        )
        typed = tuple(Argument(*argument) for argument in arguments.items())
        source = RenderedKernel(text, names, typed, (4,) * 3, (1,) * 3, (0,) * 3)
        return CompileRequest(source, source, target, True, len(typed) - 3, 3, grids, (3, 4, 5))
