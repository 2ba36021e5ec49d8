"""The kernels of a sort: a function of `rows` for each phase, called with what the phase has.

The first phase sorts runs, each of the following merges them, until there is one run in a row. What
is not done yet lies in two arrays in turns, the result of the last phase where it is asked for. How
many merges there are depends on the longest row there can be: a merge of one run leaves it as it
is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from genesis.backends.base import Binary, NativeCall
from genesis.backends.gpu.binary import CompileRequest, made, packed, unpacked
from genesis.backends.gpu.codegen.rendered_kernel import Argument, RenderedKernel
from genesis.backends.gpu.launch_metadata import Count
from genesis.content_store import remember
from genesis.ir.dtype import DType
from genesis.ir.node import LibraryCall
from genesis.ir.size import Dim, bounds, product

#: As powers of two: the elements of a run that is sorted by counting, the least and the most of one
#: that is sorted with its places, elements that a block has at least, and the runs of a merge.
RUN = 7
SHORT = 4
LONG = 10
BLOCK = 10
WAYS = 2
LONGEST = (1 << 31) - 1


def native_sort(call: LibraryCall, target: str) -> NativeCall | None:
    """All elements of each row in order, or the first of them, and their positions."""
    return _claim(call, call.options[-1], False, target)


def native_select(call: LibraryCall, target: str) -> NativeCall | None:
    """The elements of each row that have some ranks, and their positions."""
    return _claim(call, False, True, target)


def _claim(call: LibraryCall, descending: bool, selects: bool, target: str) -> NativeCall | None:
    dtype, (*outer, n) = call.operands[0]
    if dtype.is_complex or bounds(n)[1] > LONGEST:
        return None
    sort = sort_of(call, descending, selects)
    rows = product(outer)
    places: Dim = rows * n * 4
    scratch = sort.copies * (places * (2 if dtype.bits == 64 else 1), places)
    return NativeCall(_binary(sort, target), scratch, (rows, n, call.results[0][1][-1]))


def sort_of(call: LibraryCall, descending: bool = False, selects: bool = False) -> Sort:
    """How the longest rows that a call may have are sorted."""
    dtype, (*_, n) = call.operands[0]
    length = (bounds(n)[1] - 1).bit_length()
    run = RUN if dtype.bits == 64 else min(LONG, max(SHORT, length))
    return Sort(dtype, descending, selects, max(0, -(-(length - run) // WAYS)), run)


@lru_cache(maxsize=256)
def _binary(sort: Sort, target: str) -> Binary:
    """The machine code; from disk, where it has been made before."""
    wanted = sort.request(target)
    return unpacked(wanted.key, remember("object", wanted.key, lambda: packed(made(wanted))))


@dataclass(frozen=True)
class Sort:
    """What the kernels depend on: the elements, their order, how many merges there are, and runs.

    Numbers are the rows, their length, and how many elements of each are in the result. A row of
    which elements are selected by their ranks is sorted whole.
    """

    dtype: DType
    descending: bool
    selects: bool
    merges: int
    run: int = RUN

    @property
    def copies(self) -> int:
        """How many arrays of keys and places there are."""
        return min(2, self.merges + self.selects)

    @property
    def bits(self) -> int:
        """Those of an element in memory."""
        return max(8, self.dtype.bits)

    @property
    def rows(self) -> int:
        """How many rows a block sorts at once: more than one if a run is a whole row."""
        return 1 if self.merges or self.bits == 64 else 1 << max(0, BLOCK - self.run)

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of all phases, and their types. Elements are their bits."""
        element, key = f"*u{self.bits}", f"*u{max(32, self.bits)}"
        found = {"x": element}
        if self.selects:
            found["ranks"] = "*i64"
        found |= {"values": element, "positions": "*i64"}
        for copy in range(self.copies):
            found |= {f"keys_{copy}": key, f"places_{copy}": "*i32"}
        return found | {"rows": "i64", "n": "i64", "k": "i64"}

    def phases(self) -> Iterator[list[str]]:
        """The statements of each phase."""
        for number in range(self.merges + 1):
            last = number == self.merges and not self.selects
            keys, places = (f"{name}_{number % 2}" for name in ("keys", "places"))
            yield [
                *(self._merge(number, last) if number else self._runs()),
                "put_result(x, values, positions, n, k, row, rank, place)"
                if last
                else f"put_run({keys}, {places}, n, row, rank, key, place)",
            ]
        if self.selects:
            yield [f"put_selected(x, ranks, values, positions, {places}, n, k, {1 << RUN})"]

    def _runs(self) -> list[str]:
        kind = "float" if self.dtype.is_float else self.dtype.kind
        infinities = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000}
        infinity = infinities.get(self.dtype.name, 0x7FF0_0000_0000_0000)
        how = f'{self.bits}, "{kind}", {infinity}, {self.descending}'
        found = "row, place, key, rank ="
        if self.bits == 64:
            return [f"{found} sorted_run(x, n, {1 << RUN}, tl.uint64, {how})"]
        return [f"{found} sorted_rows(x, rows, n, {self.run}, {self.rows}, {how})"]

    def _merge(self, number: int, last: bool) -> list[str]:
        keys, places = (f"{name}_{(number - 1) % 2}" for name in ("keys", "places"))
        sizes = f"{self.run + WAYS * (number - 1)}, {1 << WAYS}, {1 << RUN}"
        limit = "n" if self.selects else "k"
        found = "row * n + at, mask=rank >= 0, other=0)"
        return [
            f"row, at, rank = merged_run({keys}, n, {limit}, {sizes})",
            f"place = tl.load({places} + {found}",
            *([] if last else [f"key = tl.load({keys} + {found}"]),
        ]

    def request(self, target: str) -> CompileRequest:
        """What is to be compiled."""
        name = f"{'select' if self.selects else 'sort'}_{self.dtype.name}"
        arguments = self.arguments
        text = Path(__file__).with_name("sort_triton.py").read_text()
        names = []
        for number, statements in enumerate(self.phases()):
            names.append(f"{name}_{number}")
            lines = [f"def {names[-1]}({', '.join(arguments)}):", *statements]
            text += "\n\n@triton.jit\n" + "\n    ".join(lines) + "\n"
        rows, n, k = (["symbol", number] for number in range(3))
        every: Count = ["//", ["+", rows, self.rows - 1], self.rows]
        first = _blocks(every, n, self.run)
        grids = [first, *[_blocks(rows, n)] * self.merges, *[_blocks(rows, k)] * self.selects]
        each = len(names)
        typed = tuple(Argument(*argument) for argument in arguments.items())
        source = RenderedKernel(text, tuple(names), typed, (4,) * each, (1,) * each, (0,) * each)
        return CompileRequest(source, source, target, True, len(typed) - 3, 3, tuple(grids))


def _blocks(rows: Count, length: Count, run: int = RUN) -> Count:
    """How many runs all rows have."""
    return ["*", rows, ["//", ["+", length, (1 << run) - 1], 1 << run]]
