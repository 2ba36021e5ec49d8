"""The kernels of a sort: a function of `rows` for each phase, called with what the phase has.

Short rows are sorted by one phase, several of them by a block. Of long rows each pass, of up to
three phases, sorts by 8 bits. What is not done yet lies in two arrays in turns, the result of the
last phase where it is asked for. Where few elements of a row are wanted, they are selected first:
in as many rounds as the longest row there can be needs.
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

#: As powers of two: the elements of a row that is sorted by comparing all with each other, the
#: least and the most of one that is sorted with its places, and elements that a block has at least.
RUN = 7
SHORT = 4
LONG = 12
BLOCK = 10
#: Elements of each thread of a network that is larger than a block has at least: one warp sorts
#: those, which waits for no other.
SHARED = 16
#: Elements of a tile, how many warps sort one, and (as a power of two) the tiles of a row from
#: which on a block has several.
TILE = 512
WARPS = 2
TILES = 11
#: Counts that are summed up at once, of so many blocks at most.
SUMMED, BLOCKS = 1 << 11, 1 << 8
#: Elements that a block selects from at once, and for each of its threads.
CHUNK = 1 << 12
EACH = 16
#: What share of a chunk is selected at most, and how many are.
SHARE = 4
MOST = 1 << BLOCK
LONGEST = (1 << 31) - 1
TEXTS = ("sort_triton.py", "sort_radix_triton.py", "sort_select_triton.py")


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
    rows, k = product(outer), call.results[0][1][-1]
    return NativeCall(_binary(sort, target), sort.scratch(rows, n, k), (rows, n, k))


def sort_of(call: LibraryCall, descending: bool = False, selects: bool = False) -> Sort:
    """How the longest rows that a call may have are sorted."""
    dtype, (*_, n) = call.operands[0]
    length = (max(1, bounds(n)[1]) - 1).bit_length()
    wanted = (max(1, bounds(call.results[0][1][-1])[1]) - 1).bit_length()
    return Sort(dtype, descending, selects, length, length if selects else min(length, wanted))


@lru_cache(maxsize=256)
def _binary(sort: Sort, target: str) -> Binary:
    """The machine code; from disk, where it has been made before."""
    wanted = sort.request(target)
    return unpacked(wanted.key, remember("object", wanted.key, lambda: packed(made(wanted))))


@dataclass(frozen=True)
class _Phase:
    """The statements of a kernel, how many blocks it has, and the warps of each."""

    statements: tuple[str, ...]
    grid: Count
    warps: int = 4


@dataclass(frozen=True)
class Sort:
    """What the kernels depend on: the elements, their order, and sizes as powers of two.

    Rows have at most `length` elements, `wanted` of which are in the result. A row of which
    elements are selected by their ranks is sorted whole. Numbers are the rows, their length, and
    how many elements of each are in the result.
    """

    dtype: DType
    descending: bool
    selects: bool
    length: int
    wanted: int

    @property
    def bits(self) -> int:
        """Those of an element in memory."""
        return max(8, self.dtype.bits)

    @property
    def key(self) -> str:
        """The type of keys."""
        return f"uint{max(32, self.bits)}"

    @property
    def chunk(self) -> int:
        """How many elements of a row a block selects from at once."""
        return min(CHUNK, 1 << max(self.length, SHORT))

    @property
    def few(self) -> bool:
        """Whether those that are wanted are selected, and only they sorted."""
        most = 1 << RUN if self.bits == 64 else MOST
        fits = (SHARE << self.wanted) <= self.chunk and 1 << self.wanted <= most
        return self.length > RUN and fits and not self.selects

    @property
    def short(self) -> bool:
        """Whether a block sorts whole rows."""
        return self.length <= (RUN if self.bits == 64 else LONG)

    @property
    def tiled(self) -> bool:
        """Whether a row is sorted by passes, and may have more than one tile."""
        return not (self.few or self.short) and 1 << self.length > TILE

    @property
    def passes(self) -> int:
        """How many bytes a key has."""
        return self.bits // 8

    @property
    def turns(self) -> int:
        """How many tiles a block has."""
        return 1 << max(0, self.length - TILES - TILE.bit_length() + 1)

    @property
    def arrays(self) -> tuple[str, ...]:
        """What there are up to two of, in turns: keys and places, in one number if that can be."""
        if self.short and not self.few:
            return ()
        return ("keys", "places") if self.few or self.bits == 64 else ("pairs",)

    @property
    def copies(self) -> int:
        """How many of each there are."""
        return min(2, self.rounds if self.few else self.passes)

    @property
    def rounds(self) -> int:
        """How often chunks are selected from until there is one."""
        count, n = 1, 1 << self.length
        while n > self.chunk:
            count, n = count + 1, n // self.chunk << self.wanted
        return count

    def scratch(self, rows: Dim, n: Dim, k: Dim) -> tuple[Dim, ...]:
        """The bytes of scratch memory."""
        elements, left = [rows * n] * 2, n
        if self.few:
            for copy in range(self.copies):
                left = (left + (self.chunk - 1)) // self.chunk * k
                elements[copy] = rows * left
        each = [_TYPES[name, self.bits == 64] for name in self.arrays]
        sizes = [size * count for count in elements[: self.copies] for size, _ in each]
        if self.selects:
            sizes.append(rows * n * 4)
        if self.tiled:
            block = TILE * self.turns
            sizes += [rows * ((n + (block - 1)) // block) * 1024, rows * 1024]
        return tuple(sizes)

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of all phases, and their types. Elements are their bits."""
        element = f"*u{self.bits}"
        found = {"x": element}
        if self.selects:
            found["ranks"] = "*i64"
        found |= {"values": element, "positions": "*i64"}
        for copy in range(self.copies):
            kinds = {name: _TYPES[name, self.bits == 64][1] for name in self.arrays}
            found |= {f"{name}_{copy}": kind for name, kind in kinds.items()}
        if self.selects:
            found["places"] = "*i32"
        if self.tiled:
            found |= {"counts": "*i32", "totals": "*i32"}
        return found | {"rows": "i64", "n": "i64", "k": "i64"}

    @property
    def how(self) -> str:
        """What decides the order of elements."""
        kind = "float" if self.dtype.is_float else self.dtype.kind
        infinities = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000}
        infinity = infinities.get(self.dtype.name, 0x7FF0_0000_0000_0000)
        return f'tl.{self.key}, {self.bits}, "{kind}", {infinity}, {self.descending}'

    def phases(self) -> Iterator[_Phase]:
        """All kernels, in their order."""
        yield from self._rounds() if self.few else self._whole() if self.short else self._passes()
        if self.selects:
            put = f"put_selected(x, ranks, values, positions, places, n, k, {1 << RUN})"
            yield _Phase((put,), _blocks(ROWS, K, 1 << RUN))

    def _whole(self) -> Iterator[_Phase]:
        put = (
            "put_places(places, n, row, rank, place)"
            if self.selects
            else "put_result(x, values, positions, n, k, row, rank, place)"
        )
        if self.bits == 64:
            found = f"row, place, rank = sorted_run(x, n, {1 << RUN}, {self.how})"
            yield _Phase((found, put), ROWS)
            return
        log = max(SHORT, self.length)
        rows = 1 << max(0, BLOCK - log)
        found = f"row, place, rank = sorted_rows(x, rows, n, {log}, {rows}, {self.how})"
        warps = 1 if log <= BLOCK else (1 << log) // (32 * SHARED)
        yield _Phase((found, put), _blocks(ROWS, 1, 1, rows), warps)

    def _passes(self) -> Iterator[_Phase]:
        block = TILE * self.turns
        grid = _blocks(ROWS, N, block)
        where = f"row, block, start, i = tile_of(n, {{}}, {TILE}, {self.turns})"
        several = min(BLOCKS, max(8, (1 << self.length) // block))
        digits = SUMMED // several
        turns = f"for turn in range({self.turns}):"
        for number in range(self.passes):
            digit = "digit = digit_of(key, inside)"
            loaded = (where.format("turn"), "inside = start + i < n", *self._loaded(number), digit)
            if self.tiled:
                yield _Phase((
                    "found = tl.zeros([256], tl.int32)",
                    turns, *_inside(*loaded, "found += counted(digit)"),
                    where.format(0), f"put_counts(counts, found, block, start, n, {block})",
                ), grid, WARPS)  # fmt: skip
                total = f"sum_counts(counts, totals, n, {block}, {several}, {digits})"
                yield _Phase((total,), ["*", ROWS, 256 // digits])
            moved = (
                *loaded,
                "found = counted(digit)",
                *["starts = tl.cumsum(found, 0) - found"] * (not self.tiled),
                "digit, which = sorted_digits(digit, i)",
                "inside = start + which < n",
                *self._loaded(number, "which"),
                "rank = tl.where(inside, sorted_ranks(digit, starts, found), -1)",
                *self._put(number),
                *["starts += found"] * self.tiled,
            )
            first = (where.format(0), "starts = starts_of(counts, totals, row, block)")
            yield _Phase((*first * self.tiled, turns, *_inside(*moved)), grid, WARPS)

    def _loaded(self, number: int, i: str = "i") -> tuple[str, ...]:
        """The keys and places of a tile, before a pass."""
        old = (number - 1) % self.copies
        if not number:
            found = f"key_of(tl.load(x + row * n + start + {i}, mask=inside, other=0), {self.how})"
            return f"key = {found}", f"place = (start + {i}).to(tl.int32)"
        loads = {
            name: f"tl.load({name}_{old} + row * n + start + {i}, mask=inside, other=0)"
            for name in self.arrays
        }
        if self.bits == 64:
            return f"key = {loads['keys']}", f"place = {loads['places']}"
        return f"pair = {loads['pairs']}", "key, place = key_in(pair), place_in(pair)"

    def _put(self, number: int) -> tuple[str, ...]:
        """Write elements to where they go."""
        new = number % self.copies
        if number < self.passes - 1:
            if self.bits == 64:
                put = f"put_run(keys_{new}, places_{new}, n, row, rank, turned(key, 8), place)"
            else:
                pair = "paired(turned(key, 8), place)"
                put = f"tl.store(pairs_{new} + row * n + rank, {pair}, mask=inside)"
            return (put,)
        if self.selects:
            return ("put_places(places, n, row, rank, place)",)
        back = [f"key = turned(key, {max(32, self.bits) - 8 * number})"] * (number > 0)
        put = f"put_sorted(x, values, positions, n, k, row, rank, key, place, {self.how})"
        return (*back, put)

    def _rounds(self) -> Iterator[_Phase]:
        rows = 1 if self.bits == 64 else max(1, (1 << BLOCK) // self.chunk)
        warps = max(1, rows * self.chunk * max(32, self.bits) // (32 * 32 * EACH))
        length: Count = N
        for number in range(self.rounds):
            last = number == self.rounds - 1
            old, new = (f"_{k % 2}" for k in (number - 1, number))
            shorter = f"m // {self.chunk} * k + tl.minimum(m % {self.chunk}, k)"
            found = f"tl.load({f'keys{old} + row * m' if number else 'x + row * n'} + i"
            found += ", mask=inside, other=0)"
            place = f"tl.load(places{old} + row * m + i, mask=slot >= 0, other=0)"
            statements = [
                "m = n",
                *[f"m = {shorter}"] * number,
                f"row, chunk, i, inside = chunk_of(rows, m, {rows}, {self.chunk})",
                f"key = {found if number else f'key_of({found}, {self.how})'}",
                f"slot = first_of(key, inside, k, tl.{self.key}, {self.bits})",
                f"to = row * ({shorter}) + chunk * k + slot",
                f"tl.store(keys{new} + to, key, mask=slot >= 0)",
                f"place = {place if number else 'i.to(tl.int32)'}",
                f"tl.store(places{new} + to, place, mask=slot >= 0)",
            ]
            if last:
                most = f"{1 << self.wanted}" if self.bits == 64 else f"{self.wanted}, {self.bits}"
                sort = "sorted_few" if self.bits == 64 else "sorted_chosen"
                statements += [
                    "tl.debug_barrier()",
                    f"rank, place = {sort}(keys{new}, places{new}, row, rows, k, {most})",
                    "put_result(x, values, positions, n, k, row, rank, place)",
                ]
            yield _Phase(tuple(statements), _blocks(ROWS, length, self.chunk, rows), warps)
            left = ["min", ["%", length, self.chunk], K]
            length = ["+", ["*", ["//", length, self.chunk], K], left]

    def request(self, target: str) -> CompileRequest:
        """What is to be compiled."""
        name = f"{'select' if self.selects else 'sort'}_{self.dtype.name}"
        arguments = self.arguments
        text = "\n\n".join(Path(__file__).with_name(name).read_text() for name in TEXTS)
        phases = list(self.phases())
        functions: dict[tuple[str, ...], str] = {}  # several passes may be one
        for phase in phases:
            functions.setdefault(phase.statements, f"{name}_{len(functions)}")
        for statements, function in functions.items():
            lines = [f"def {function}({', '.join(arguments)}):", *statements]
            text += "\n\n@triton.jit\n" + "\n    ".join(lines) + "\n"
        names = tuple(functions[phase.statements] for phase in phases)
        typed = tuple(Argument(*argument) for argument in arguments.items())
        warps, each = tuple(phase.warps for phase in phases), len(phases)
        source = RenderedKernel(text, names, typed, warps, (1,) * each, (0,) * each)
        grids = tuple(phase.grid for phase in phases)
        return CompileRequest(source, source, target, True, len(typed) - 3, 3, grids)


ROWS, N, K = (["symbol", number] for number in range(3))
#: Bytes of an element of scratch memory and its type, by name and whether keys have 64 bits.
_TYPES = {
    ("pairs", False): (8, "*u64"), ("keys", False): (4, "*u32"), ("keys", True): (8, "*u64"),
    ("places", False): (4, "*i32"), ("places", True): (4, "*i32"),
}  # fmt: skip


def _inside(*statements: str) -> tuple[str, ...]:
    """Statements inside of a loop."""
    return tuple(f"    {s}" for s in statements)


def _blocks(rows: Count, length: Count, each: int, together: int = 1) -> Count:
    """How many blocks there are for all rows, some of them in one, if they have `each` elements."""
    if together > 1:
        rows = ["//", ["+", rows, together - 1], together]
    return ["*", rows, ["//", ["+", length, each - 1], each]]
