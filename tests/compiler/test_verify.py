"""The verifier: right kernels are proven, wrong ones refuted by a real point, the rest unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from genesis.compiler.verify.guard_unproven import guard
from genesis.compiler.verify.kernel import ClaimKind, Status, UnprovenKernel, Verdict, verify
from genesis.ir import ops
from genesis.ir.check import check
from genesis.ir.dtype import bool_, float32, index, int32
from genesis.ir.kernel import Kernel, Role
from genesis.ir.kernel_builder import Builder, maximum, where
from genesis.ir.node import TRUE, Node, both, const, elementwise

K = ClaimKind
Donated = tuple[tuple[str, str], ...]


def decide(kernel: Kernel, donated: Donated = ()) -> Verdict:
    check(kernel)
    return verify(kernel, donated)


def assert_proven(kernel: Kernel, donated: Donated = ()) -> None:
    verdict = decide(kernel, donated)
    assert verdict.proven, str(verdict)


def assert_refuted(
    kernel: Kernel, kind: ClaimKind, detail: str = "", donated: Donated = ()
) -> None:
    verdict = decide(kernel, donated)
    assert {c.kind for c in verdict.refuted} == {kind}, str(verdict)
    assert not verdict.unknown, str(verdict)
    assert any(detail in c.detail for c in verdict.refuted), str(verdict)


def assert_unknown(kernel: Kernel, kind: ClaimKind, reason: str, donated: Donated = ()) -> None:
    verdict = decide(kernel, donated)
    assert not verdict.refuted, str(verdict)
    assert kind in {c.kind for c in verdict.unknown}, str(verdict)
    assert any(reason in c.detail for c in verdict.unknown if c.kind is kind), str(verdict)


def minimum(a: Node, b: Node | int) -> Node:
    return elementwise(ops.MIN, a, b if isinstance(b, Node) else const(b, index))


ZERO = const(0.0, float32)

# ---- kernels with a knob for each thing that can be got wrong


def elementwise_tail(
    width: int = 16, ceil: int = 15, slack: int = 0, masked: bool = True
) -> Kernel:
    """y[i] = x[i] over N elements by tiles, the last one masked."""
    k = Builder("tail")
    N = k.symbol("N", low=0, high=1 << 31)
    x, y = k.input("x", float32, N), k.output("y", float32, N)
    b, v = k.grid("b", (N + ceil) // 16), k.tile("v", width)
    i = b * 16 + v
    inside = i < N + slack if masked else TRUE
    k.store(y, (i,), x.load(i, mask=inside), mask=inside)
    return k.kernel()


def test_masked_tail() -> None:
    assert_proven(elementwise_tail())
    assert_refuted(elementwise_tail(slack=1), K.BOUNDS)
    assert_refuted(elementwise_tail(slack=-1), K.COMPLETE)
    assert_refuted(elementwise_tail(masked=False), K.BOUNDS)
    assert_refuted(elementwise_tail(ceil=14), K.COMPLETE, "N=")
    assert_refuted(elementwise_tail(width=17), K.RACE)
    assert_refuted(elementwise_tail(width=15), K.COMPLETE)


def test_divisible_sizes_need_no_mask() -> None:
    def build(multiple: int) -> Kernel:
        k = Builder("even")
        N = k.symbol("N", multiple=multiple)
        y = k.output("y", float32, N)
        b, v = k.grid("b", N // 16), k.tile("v", 16)
        k.store(y, (b * 16 + v,), ZERO)
        return k.kernel()

    assert_proven(build(16))
    assert_proven(build(48))
    assert_refuted(build(8), K.COMPLETE)


def conv(
    low: int = 1, high: int = 0, channels: int = 9, rows: int = 7, clear: bool = True
) -> Kernel:
    """A padded 3x3 convolution as an implicit matrix product, decoded by div and mod."""
    k = Builder("conv")
    B = k.symbol("B", low=1, high=64)
    x = k.input("x", float32, B, 4, 7, 7)
    w = k.input("w", float32, 8, 4, 3, 3)
    y = k.output("y", float32, B, 8, 7, 7)
    p, f, v = k.grid("p", (B * 49 + 15) // 16), k.grid("f", 8), k.tile("v", 16)
    flat = p * 16 + v
    image, row, column = flat // 49, flat // rows % 7, flat % 7
    inside = flat < B * 49
    with k.loop("t", 36, acc=ZERO, tiles=[v]) as (t, acc):
        channel, i, j = t // channels, t // 3 % 3, t % 3
        r, c = row + i - low, column + j - 1
        mask = both(both(r >= 0, r < 7 + high), both(c >= 0, c < 7))
        value = x.load(image, channel, r, c, mask=both(mask, inside) if clear else mask)
        k.step(acc=acc + value * w[f, channel, i, j])
    k.store(y, (image, f, row, column), acc, mask=inside)
    return k.kernel()


def test_padded_convolution_decoded_by_div_and_mod() -> None:
    assert_proven(conv())
    assert_proven(conv(low=2))  # wrong padding, but the mask still protects
    assert_refuted(conv(high=1), K.BOUNDS)
    assert_refuted(conv(channels=8), K.BOUNDS, "t=")
    assert_refuted(conv(clear=False), K.BOUNDS)
    verdict = decide(conv(rows=6))
    assert {c.kind for c in verdict.refuted} == {K.RACE, K.COMPLETE}


def gemm(
    m: int = 0, k_slack: int = 0, store: bool = True, fill: int = 8, restart: bool = True
) -> Kernel:
    """C = A B with both operands staged, all sizes symbolic, all tails masked."""
    k = Builder("gemm")
    M, N, L = k.symbol("M"), k.symbol("N"), k.symbol("L")
    A, B = k.input("A", float32, M, L), k.input("B", float32, L, N)
    C = k.output("C", float32, M, N)
    rb, cb = k.grid("rb", (M + 5) // 6), k.grid("cb", (N + 63) // 64)
    i, j = k.tile("i", 6), k.tile("j", 64)
    row, column = rb * 6 + i, cb * 64 + j
    if not restart:
        sa, sb = k.stage("sa", float32, 8, 6), k.stage("sb", float32, 8, 64)
    with k.loop("kb", (L + 7) // 8, acc=ZERO, tiles=[i, j]) as (kb, acc):
        if restart:
            sa, sb = k.stage("sa", float32, 8, 6), k.stage("sb", float32, 8, 64)
        with k.loop("f", fill) as (f,):
            depth = kb * 8 + f
            k.store(sa, (f, i), A.load(row, depth, mask=both(row < M, depth < L + k_slack)))
            k.store(sb, (f, j), B.load(depth, column, mask=both(depth < L, column < N)))
        with k.loop("d", 8, part=acc) as (d, part):
            k.step(part=part + sa[d, i] * sb[d, j])
        k.step(acc=part)
    if store:
        k.store(C, (row, column), acc, mask=both(row < M + m, column < N))
    return k.kernel()


def test_staged_matrix_product() -> None:
    assert_proven(gemm())
    assert_proven(gemm(restart=False))
    assert_refuted(gemm(m=1), K.BOUNDS)
    assert_refuted(gemm(k_slack=1), K.BOUNDS)
    assert_refuted(gemm(store=False), K.COMPLETE, "never written")
    assert_refuted(gemm(fill=7), K.INITIALISED, "sa[7, 0] is not written")
    assert decide(gemm(fill=9)).refuted[0].kind is K.BOUNDS


# ---- bounds


def single(
    place: Callable[[Node], Node], extent: int = 8, mask: Callable[[Node], Node] | None = None
) -> Kernel:
    """y[i] = x[place(i)], x of 8 elements."""
    k = Builder("single")
    x, y = k.input("x", float32, 8), k.output("y", float32, extent)
    i = k.grid("i", extent)
    k.store(y, (i,), x.load(place(i), mask=TRUE if mask is None else mask(i)))
    return k.kernel()


def test_counterexample_names_the_axes() -> None:
    assert_refuted(single(lambda i: i, extent=9), K.BOUNDS, "i=8")
    assert_refuted(single(lambda i: i - 1), K.BOUNDS, "i=0")
    assert_refuted(single(lambda i: i * 2 % 9), K.BOUNDS, "i=4")
    assert_refuted(single(lambda i: i + 1, mask=lambda i: i < 8), K.BOUNDS, "i=7")


@pytest.mark.parametrize(
    "place",
    [
        lambda i: minimum(i + 3, 7),
        lambda i: maximum(i - 3, const(0, index)),
        lambda i: where(i < 4, i + 4, i - 4),
        lambda i: 7 - i,
        lambda i: (i - 20) % 8,
        lambda i: (i - 8) // -2,
        lambda i: elementwise(ops.ABS, i - 5),
        lambda i: elementwise(ops.CAST, elementwise(ops.CAST, i, dtype=int32), dtype=index),
        lambda i: elementwise(ops.CAST, i < 3, dtype=index) * 7,
        lambda i: where(elementwise(ops.XOR, i < 3, i < 5), i + 3, i),
    ],
)
def test_expressions_in_bounds(place: Callable[[Node], Node]) -> None:
    assert_proven(single(place))


def test_masks_of_all_shapes() -> None:
    def either(i: Node) -> Node:
        return elementwise(ops.OR, i < 3, i.equal(5))

    assert_proven(single(lambda i: i + 2, mask=either))
    assert_refuted(single(lambda i: i + 3, mask=either), K.BOUNDS, "i=5")
    not_last = lambda i: elementwise(ops.NOT, 7 <= i)  # noqa: E731
    assert_proven(single(lambda i: i + 1, mask=not_last))
    assert_proven(single(lambda i: i + 1, mask=lambda i: elementwise(ops.NE, i, const(7, index))))


def test_a_where_does_not_protect_the_load_in_it() -> None:
    k = Builder("where")
    x, y = k.input("x", float32, 8), k.output("y", float32, 9)
    i = k.grid("i", 9)
    k.store(y, (i,), where(i < 8, x[i], ZERO))
    assert_refuted(k.kernel(), K.BOUNDS, "i=8")


def test_branches_and_dependent_extents_limit_the_points() -> None:
    def build(extra: int) -> Kernel:
        k = Builder("triangle")
        x, y = k.input("x", float32, 8, 8), k.output("y", float32, 8)
        r = k.grid("r", 10)
        with k.when(r < 8):
            with k.loop("c", r + extra, acc=ZERO) as (c, acc):
                k.step(acc=acc + x[c, r])
            k.store(y, (r,), acc)
        return k.kernel()

    assert_proven(build(1))
    assert_refuted(build(2), K.BOUNDS, "r=7, c=8")


def test_an_empty_loop_touches_nothing() -> None:
    k = Builder("empty")
    N = k.symbol("N")
    x, y = k.input("x", float32, N), k.output("y", float32)
    with k.loop("c", N, acc=ZERO) as (_, acc):
        k.step(acc=acc + x[0])
    k.store(y, (), acc)
    assert_proven(k.kernel())


# ---- data-dependent indices


def gather(clamp: bool = True, high: int = 0) -> Kernel:
    k = Builder("gather")
    N = k.symbol("N", low=1)
    x, at = k.input("x", float32, N), k.input("at", index, 32)
    y = k.output("y", float32, 32)
    i = k.grid("i", 32)
    where_to = at[i]
    where_to = where(where_to < 0, where_to + N, where_to)
    if clamp:
        where_to = minimum(maximum(where_to, const(0, index)), N - 1 + high)
    k.store(y, (i,), x[where_to])
    return k.kernel()


def test_gather() -> None:
    assert_proven(gather())
    assert_unknown(gather(high=1), K.BOUNDS, "depends on")
    assert_unknown(gather(clamp=False), K.BOUNDS, "at[i]")


def scatter(owned: int = 16, checked: bool = True, atomic: bool = False) -> Kernel:
    """Owner-computes: block b adds the rows of its own 16 elements, wherever they come from."""
    k = Builder("scatter")
    U = k.symbol("U")
    at, x = k.input("at", int32, U), k.input("x", float32, U)
    y = k.buffer("y", float32, (64,), Role.INOUT)
    b = k.grid("b", 4)
    with k.loop("u", U) as (u,):
        to = k.let("to", elementwise(ops.CAST, at[u], dtype=index))
        mine = both(to >= b * 16, to < b * 16 + owned)
        mask = mine if checked else to < 64
        add = ops.ADD if atomic else None
        k.store(y, (to,), y.load(to, mask=mask) + x[u] if add is None else x[u], mask, add)
    return k.kernel()


def test_owner_computes_scatter() -> None:
    assert_proven(scatter())
    assert_unknown(scatter(owned=17), K.RACE, "at[u]")
    assert_unknown(scatter(checked=False), K.BOUNDS, "at[u]")


def test_atomics() -> None:
    assert_proven(scatter(atomic=True))  # nobody else adds to these elements

    def histogram(dtype: object, op: ops.Op | None) -> Kernel:
        k = Builder("histogram")
        at, y = k.input("at", index, 128), k.buffer("y", dtype, (10,), Role.INOUT)  # type: ignore[arg-type]
        b, v = k.grid("b", 8), k.tile("v", 16)
        k.store(y, (at[b * 16 + v] % 10,), const(1, dtype), atomic=op)  # type: ignore[arg-type]
        return k.kernel()

    assert_proven(histogram(int32, ops.ADD))
    assert_proven(histogram(float32, ops.MAX))
    assert_unknown(histogram(float32, ops.ADD), K.RACE, "float atomics are not deterministic")
    assert_unknown(histogram(int32, None), K.RACE, "at[")


def test_an_offset_read_from_memory_is_one_number() -> None:
    """A cache is written at a position that all blocks read from the same place."""
    k = Builder("cache")
    position, x = k.input("position", index), k.input("x", float32, 8)
    cache = k.buffer("cache", float32, (100, 8), Role.INOUT)
    i = k.grid("i", 8)
    at = minimum(maximum(position[()], const(0, index)), 99)
    k.store(cache, (at, i), x[i])
    assert_proven(k.kernel())


def test_a_value_read_before_a_store_is_not_the_value_after_it() -> None:
    k = Builder("stale")
    t, y = k.buffer("t", index, (1,), Role.INOUT), k.output("y", float32, 8)
    k.grid("b", 1)
    with k.when(both(t[0] >= 0, t[0] < 8)):
        k.store(t, (0,), t[0] + 100)
        k.store(y, (t[0],), ZERO)
    assert_unknown(k.kernel(), K.BOUNDS, "t[0]")


# ---- races


def test_missing_grid_axis_is_a_race() -> None:
    k = Builder("race")
    x, y = k.input("x", float32, 4, 8), k.output("y", float32, 4)
    r, _ = k.grid("r", 4), k.grid("c", 2)
    k.store(y, (r,), x[r, 0])
    assert_refuted(k.kernel(), K.RACE, "r=0, c=0, r'=0, c'=1")


def test_reading_what_another_block_writes_is_a_race() -> None:
    def build(shift: int, barrier: bool) -> Kernel:
        k = Builder("neighbour")
        t, y = k.temporary("t", float32, 8), k.output("y", float32, 8)
        i = k.grid("i", 8)
        k.store(t, (i,), ZERO)
        if barrier:
            k.barrier()
            i = k.grid("j", 8)
        k.store(y, (i,), t[(i + shift) % 8])
        return k.kernel()

    assert_proven(build(0, barrier=False))
    assert_proven(build(1, barrier=True))
    verdict = decide(build(1, barrier=False))
    assert {c.kind for c in verdict.refuted} == {K.RACE, K.INITIALISED}


def test_a_tile_axis_missing_from_the_index_is_refuted() -> None:
    def build(in_mask: bool) -> Kernel:
        k = Builder("broadcast")
        x, y = k.input("x", float32, 16), k.output("y", float32, 1)
        v = k.tile("v", 16)
        k.store(y, (0,), ZERO if in_mask else x[v], mask=v < 3 if in_mask else TRUE)
        return k.kernel()

    assert_refuted(build(True), K.RACE, "depend on v")
    assert_refuted(build(False), K.RACE, "depend on v")


def test_tile_points_that_meet_through_data_or_cancel_out() -> None:
    def build(data: bool) -> Kernel:
        k = Builder("meet")
        at, y = k.input("at", index, 16), k.buffer("y", float32, (16,), Role.INOUT)
        v = k.tile("v", 16)
        k.store(y, (at[v] % 16 if data else where(v < 3, const(1, index), const(1, index)),), ZERO)
        return k.kernel()

    assert_unknown(build(data=True), K.RACE, "at[v]")
    assert_refuted(build(data=False), K.RACE, "v=0, v'=1")


# ---- completeness


def test_missing_row() -> None:
    def build(rows: int, last: int) -> Kernel:
        k = Builder("rows")
        y = k.output("y", float32, 8, 4)
        r, v = k.grid("r", rows), k.tile("v", 4)
        k.store(y, (r, v), ZERO)
        k.barrier()
        k.store(y, (last, v), ZERO)
        return k.kernel()

    assert_proven(build(7, 7))
    assert_proven(build(8, 0))
    assert_refuted(build(7, 6), K.COMPLETE, "y[7, 0] is not written")


def test_data_dependent_mask_leaves_completeness_unknown() -> None:
    def build(again: bool) -> Kernel:
        k = Builder("masked")
        flag, y = k.input("flag", bool_, 8), k.output("y", float32, 8)
        i = k.grid("i", 8)
        k.store(y, (i,), ZERO, mask=flag[i])
        if again:
            k.store(y, (i,), ZERO)
        return k.kernel()

    assert_unknown(build(False), K.COMPLETE, "flag[i]")
    assert_proven(build(True))


# ---- initialisation


def test_a_stage_is_undefined_until_written() -> None:
    def build(early: bool, half: bool, orelse: bool) -> Kernel:
        k = Builder("stage")
        x, y = k.input("x", float32, 4, 8), k.output("y", float32, 4, 8)
        r, v = k.grid("r", 4), k.tile("v", 8)
        s = k.stage("s", float32, 8)
        if early:
            k.store(y, (r, v), s[v])
        if orelse:
            with k.when(r < 2):
                k.store(s, (v,), x[r, v])
        else:
            k.store(s, (v,), x[r, v], mask=v < 4 if half else TRUE)
        k.store(y, (r, v), s[v])
        return k.kernel()

    assert_proven(build(False, False, False))
    assert_refuted(build(True, False, False), K.INITIALISED, "r=0")
    assert_refuted(build(False, True, False), K.INITIALISED, "s[4] is not written")
    assert_refuted(build(False, False, True), K.INITIALISED, "r=2")


def test_a_stage_restarts_with_its_scope() -> None:
    def build(outside: bool) -> Kernel:
        k = Builder("restart")
        y = k.output("y", float32, 4)
        if outside:
            s = k.stage("s", float32, 5)
            k.store(s, (0,), ZERO)
        with k.loop("c", 4) as (c,):
            if not outside:
                s = k.stage("s", float32, 5)
                with k.when(c < 1):
                    k.store(s, (0,), ZERO)
            k.store(s, (c + 1,), s[c])  # written by the iteration before
        with k.loop("d", 4) as (d,):
            k.store(y, (d,), s[d] if outside else ZERO)
        return k.kernel()

    assert_proven(build(True))
    assert_refuted(build(False), K.INITIALISED, "c=1")


def test_stages_of_one_name_are_different_stages() -> None:
    """As after peeling: two loops side by side, with the same names inside."""

    def build(fill: bool) -> Kernel:
        k = Builder("peeled")
        y = k.output("y", float32, 8)
        for begin, count in ((0, 5), (5, 3)):
            with k.loop("c", count) as (c,):
                s = k.stage("s", float32, 1)
                if fill or not begin:
                    k.store(s, (0,), ZERO)
                k.store(y, (c + begin,), s[0])
        return k.kernel()

    assert_proven(build(True))
    assert_refuted(build(False), K.INITIALISED, "s[0] is not written at c=0")


def test_what_a_common_branch_on_data_guards_is_initialised() -> None:
    k = Builder("common")
    flag, y = k.input("flag", bool_, 4), k.buffer("y", float32, (4, 8), Role.INOUT)
    r, v = k.grid("r", 4), k.tile("v", 8)
    s = k.stage("s", float32, 8)
    with k.when(flag[r]):
        k.store(s, (v,), ZERO)
        k.store(y, (r, v), s[v])
    assert_proven(k.kernel())


def test_accumulating_in_the_output() -> None:
    def build(begin: int) -> Kernel:
        k = Builder("accumulate")
        x, y = k.input("x", float32, 8, 5), k.output("y", float32, 8)
        r = k.grid("r", 8)
        k.store(y, (r,), ZERO, mask=r >= begin)
        with k.loop("c", 5) as (c,):
            k.store(y, (r,), y[r] + x[r, c])
        return k.kernel()

    assert_proven(build(0))
    assert_refuted(build(1), K.INITIALISED, "y[0] is not written at r=0, c=0")


# ---- overflow


def test_index_overflow() -> None:
    def build(bits: int, modulus: bool = True) -> Kernel:
        k = Builder("wide")
        x, y = k.input("x", float32, 8), k.output("y", float32, 8)
        i = k.grid("i", 8)
        wide = i * (1 << bits) // (1 << bits)
        k.store(y, (i,), x.load(wide if modulus else i, mask=wide < 8))
        return k.kernel()

    assert_proven(build(59))
    verdict = decide(build(61))
    assert any(c.kind is K.OVERFLOW and "i=4" in c.detail for c in verdict.refuted), str(verdict)


def test_sizes_that_multiply_beyond_64_bits() -> None:
    k = Builder("big")
    A, B, C = k.symbol("A"), k.symbol("B"), k.symbol("C")
    y = k.output("y", float32, A * B * C)
    i = k.grid("i", A * B * C)
    k.store(y, (i,), ZERO)
    assert_unknown(k.kernel(), K.OVERFLOW, "A*B")


def test_offsets_of_strided_buffers() -> None:
    def build(stride: int) -> Kernel:
        k = Builder("strided")
        N = k.symbol("N")
        x = k.buffer("x", float32, (N,), Role.INPUT, strides=(stride,))
        y = k.output("y", float32, N)
        i = k.grid("i", N)
        k.store(y, (i,), x[i])
        return k.kernel()

    assert_proven(build(-3))
    assert_unknown(build(1 << 40), K.OVERFLOW, "offsets may be")


# ---- donation


def update(read: Callable[[Node], Node], early: bool = True, phases: bool = False) -> Kernel:
    k = Builder("update")
    x, y = k.input("x", float32, 8), k.output("y", float32, 8)
    z = k.output("z", float32, 8)
    i = k.grid("i", 8)
    value = k.let("value", x[read(i)]) if early else ZERO
    k.store(y, (i,), value + 1.0)
    if phases:
        k.barrier()
        i = k.grid("j", 8)
    k.store(z, (i,), value if early and not phases else x[read(i)])
    return k.kernel()


XY = (("x", "y"),)


def test_donation_of_what_each_block_reads_first() -> None:
    assert_proven(update(lambda i: i), XY)
    assert_refuted(update(lambda i: i, early=False), K.DONATION, "is read after", XY)
    assert_refuted(update(lambda i: 7 - i), K.DONATION, "i=", XY)
    assert_refuted(update(lambda i: i, phases=True), K.DONATION, "is read after", XY)
    assert_proven(update(lambda i: i, early=False))


def test_donation_inside_loops() -> None:
    def build(shift: int) -> Kernel:
        k = Builder("row")
        x, y = k.input("x", float32, 4, 8), k.output("y", float32, 4, 8)
        r = k.grid("r", 4)
        with k.loop("c", 8) as (c,):
            at = c + shift
            value = x.load(r, at, mask=both(at >= 0, at < 8))
            k.store(y, (r, c), x[r, c] + value)
        return k.kernel()

    assert_proven(build(0), XY)
    assert_proven(build(2), XY)  # reads ahead of what is written
    assert_refuted(build(-1), K.DONATION, "r=0, c=1", XY)


def test_donation_needs_one_layout() -> None:
    k = Builder("transposed")
    x = k.buffer("x", float32, (4, 4), Role.INPUT, strides=(1, 4))
    y = k.output("y", float32, 4, 4)
    r, c = k.grid("r", 4), k.grid("c", 4)
    k.store(y, (r, c), x[r, c])
    assert_refuted(k.kernel(), K.DONATION, "layouts differ", XY)


def test_donation_of_a_gathered_input_is_unknown() -> None:
    k = Builder("gathered")
    x, at, y = k.input("x", float32, 8), k.input("at", index, 8), k.output("y", float32, 8)
    i = k.grid("i", 8)
    k.store(y, (i,), x[at[i] % 8])
    kernel = k.kernel()
    assert_unknown(kernel, K.DONATION, "at[i]", XY)
    with pytest.raises(UnprovenKernel, match="donation x to y"):
        guard(kernel, verify(kernel, XY))


# ---- what is not affine


def test_products_of_sizes() -> None:
    def build(flat: bool) -> Kernel:
        k = Builder("flat")
        M, N = k.symbol("M"), k.symbol("N")
        x, y = k.input("x", float32, N * M), k.output("y", float32, M * N)
        if flat:
            i = k.grid("i", M * N)
            k.store(y, (i,), x[i])
        else:
            r, c = k.grid("r", M), k.grid("c", N)
            k.store(y, (r * N + c,), x[r * N + c])
        return k.kernel()

    assert_proven(build(flat=True))
    assert_unknown(build(flat=False), K.BOUNDS, "N*r")
    assert_unknown(build(flat=False), K.RACE, "N*r")


def test_remainders_times_sizes() -> None:
    """As a transposed sequence is read, its length a symbol; one further is outside of it."""

    def build(ahead: int, parts: int = 4) -> Kernel:
        k = Builder("turned")
        N = k.symbol("N", low=2)
        x, y = k.input("x", float32, 4 * N), k.output("y", float32, 4 * N)
        i = k.grid("i", 4 * N)
        k.store(y, (i,), x[(i % parts) * N + i // parts + ahead])
        return k.kernel()

    assert_proven(build(0))
    assert not verify(build(1)).proven
    assert not verify(build(0, parts=5)).proven
    assert_proven(build(0, parts=3))  # 2 * N, and less than 4/3 * N
    assert not verify(build(-1)).proven


def test_division_by_a_size_is_unknown() -> None:
    k = Builder("divided")
    M, N = k.symbol("M"), k.symbol("N", low=1)
    x, y = k.input("x", float32, M, N), k.output("y", float32, M * N)
    i = k.grid("i", M * N)
    k.store(y, (i,), x[i // N, i % N])
    assert_unknown(k.kernel(), K.BOUNDS, "(i // N)")


def rows_of_a_size(rows: int, reached: int, more: int, masked: bool, offset: int) -> Kernel:
    """x of `rows` rows of N elements, read in the order of memory: `reached` rows and some more."""
    k = Builder("rows")
    N = k.symbol("N", low=1)
    x, y = k.input("x", float32, rows, N), k.output("y", float32, reached * N + more)
    i = k.grid("i", reached * N + more)
    inside = i < rows * N if masked else TRUE
    k.store(y, (i,), x.load(i // N, i % N + offset, mask=inside))
    return k.kernel()


@pytest.mark.parametrize(
    ("rows", "reached", "more", "masked", "offset", "safe"),
    [
        (7, 7, 0, False, 0, True), (7, 6, 0, False, 0, True), (7, 7, 31, True, 0, True),
        (6, 7, 0, False, 0, False), (7, 7, 1, False, 0, False), (7, 7, 0, False, 1, False),
        (7, 7, 0, False, -1, False), (6, 7, 31, True, 1, False),
    ],
)  # fmt: skip
def test_rows_of_a_size(
    rows: int, reached: int, more: int, masked: bool, offset: int, safe: bool
) -> None:
    """A constant number of rows of symbolic length: the row and the place in it are in bounds."""
    verdict = decide(rows_of_a_size(rows, reached, more, masked, offset))
    assert verdict.proven == safe, str(verdict)
    assert safe or {c.kind for c in (*verdict.unknown, *verdict.refuted)} == {K.BOUNDS}


def test_too_many_cases_are_unknown_not_slow() -> None:
    k = Builder("cases")
    x, y = k.input("x", float32, 8), k.output("y", float32, 8)
    i = k.grid("i", 8)
    at = i
    for step in range(12):
        at = at + where((i + step) % 3 < 1, const(1, index), const(0, index))
    k.store(y, (i,), x[at])
    assert_unknown(k.kernel(), K.BOUNDS, "depends on")


# ---- guarding


def test_guarded_kernels_are_safe() -> None:
    for kernel in (gather(clamp=False), scatter(checked=False), scatter(owned=17)):
        guarded = guard(kernel, decide(kernel))
        verdict = decide(guarded)
        left = {c.kind for c in (*verdict.unknown, *verdict.refuted)}
        assert not left & {K.BOUNDS, K.RACE}, str(verdict)


def test_guard_serialises_nested_grids_with_dependent_loops() -> None:
    k = Builder("serial")
    at, y = k.input("at", index, 8), k.buffer("y", float32, (8,), Role.INOUT)
    r, c = k.grid("r", 8), k.grid("c", 2)
    with k.loop("n", r + at[c]) as (n,):
        k.store(y, (at[n],), ZERO, mask=n < r)
    kernel = k.kernel()
    guarded = guard(kernel, decide(kernel))
    assert guarded.phases[0].grid == ()
    verdict = decide(guarded)
    assert verdict.proven, str(verdict)


def test_guard_leaves_proven_kernels_alone_and_refuses_wrong_ones() -> None:
    kernel = gather()
    assert str(guard(kernel, decide(kernel))) == str(kernel)
    wrong = elementwise_tail(slack=1)
    with pytest.raises(UnprovenKernel, match="refuted bounds x"):
        guard(wrong, decide(wrong))


# ---- the verdict


def test_verdict_reads_well() -> None:
    verdict = decide(single(lambda i: i + 1))
    assert str(verdict).splitlines() == [
        "kernel single: 5 of 6 claims proven",
        "  refuted bounds x[(i + 1)]: i=7",
    ]
    assert not verdict.proven
    assert verdict.refuted[0].status is Status.REFUTED


def test_every_thread_has_its_own_isl() -> None:
    verdicts: list[bool] = []
    kernels = [gemm, conv, elementwise_tail] * 4

    def work(build: Callable[[], Kernel]) -> None:
        verdicts.append(verify(build()).proven)

    threads = [threading.Thread(target=work, args=(build,)) for build in kernels]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert verdicts == [True] * len(kernels)
