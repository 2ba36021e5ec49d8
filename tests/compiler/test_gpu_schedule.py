"""What GPUs get of larger computations: which kernels, and which instructions, without a GPU.

Programs are compiled for a backend that only keeps their proven kernels, and these for chips of
NVIDIA and AMD. The numbers are in test_gpu_numbers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest

import genesis
from genesis import functional
from genesis.backends.base import GPU
from genesis.backends.cpu.backend import CPUBackend
from genesis.backends.gpu.binary import request
from genesis.backends.gpu.codegen.render import render
from genesis.backends.gpu.codegen.warp_specialised import by_roles
from genesis.backends.gpu.compile import CompiledFunction, compile, resources
from genesis.compiler.options import using
from genesis.ir import ops
from genesis.ir.kernel import Kernel, Loop, Role, Statement, Store, expressions, walk
from genesis.ir.node import Node, topological
from genesis.ndarray.core import realisation
from genesis.ndarray.tracing.explain import explain

CHIP = GPU(
    name="a GPU", vector_bytes=16, vector_registers=255, l1_bytes=232448, l2_bytes=60 << 20,
    multiprocessors=132, memory_bytes=1 << 36,
)  # fmt: skip
MATRIX = {"sm_90": "wgmma.mma_async", "sm_120": "mma.sync", "gfx942": "v_mfma", "gfx1201": "v_wmma"}


class Kept(Exception):
    """Compiling has come to where code would be made."""


class Pretended(CPUBackend):
    """A GPU that keeps its kernels."""

    chip = CHIP  # type: ignore[assignment]
    target = "a pretended GPU"

    def compile(self, kernels: Iterable[Kernel], precision: str = "highest") -> Any:
        self.kernels = list(kernels)
        raise Kept


def kernels_of(function: Callable[..., Any], *inputs: tuple[Any, ...]) -> list[Kernel]:
    """The kernels of a function of zeros, each given by its type and shape."""
    arrays = [genesis.zeros(*shape, dtype=getattr(genesis, dtype)) for dtype, *shape in inputs]
    for x in arrays:
        x.array.realize()
    backend = Pretended()
    with pytest.MonkeyPatch.context() as patch, using(strict=True):
        patch.setattr(realisation, "backend_of", lambda device: backend)
        with pytest.raises(Kept):
            explain(function, *arrays)
    return backend.kernels


def gradients(q: Any, k: Any, v: Any, grad: Any) -> Any:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    attend: Any = functional.scaled_dot_product_attention
    attend(*inputs, is_causal=True).backward(grad)
    return tuple(x.grad for x in inputs)


def attention(q: Any, k: Any, v: Any) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def convolution(x: Any, w: Any) -> Any:
    return functional.conv2d(x, w, padding=1)


def bytes_product(a: Any, b: Any) -> Any:
    return functional.matmul(a.to(genesis.int32), b.to(genesis.int32))


def floats8_product(a: Any, b: Any) -> Any:
    return functional.scaled_mm(a, b, 0.5, 2.0)


#: Computations, and the types and shapes they are of.
CASES: dict[str, tuple[Any, ...]] = {
    "gradients": (gradients, *[("bfloat16", 2, 4, 512, 128)] * 4),
    "float32": (functional.matmul, *[("float32", 1024, 1024)] * 2),
    "bytes": (bytes_product, *[("int8", 1024, 1024)] * 2),
    "floats8": (floats8_product, ("float8_e4m3fn", 1024, 1024), ("float8_e5m2", 1024, 1024)),
    "attention": (attention, *[("bfloat16", 2, 4, 512, 128)] * 3),
    "convolution": (convolution, ("bfloat16", 8, 128, 28, 28), ("bfloat16", 128, 128, 3, 3)),
}


@cache
def kernels(name: str) -> list[Kernel]:
    return kernels_of(*CASES[name])


@cache
def compiled(name: str, phase: int, target: str) -> CompiledFunction:
    """A phase of a computation's last kernel, for a chip."""
    source = render(kernels(name)[-1], target=target)
    numbers: Any = {
        field: (getattr(source, field)[phase],)
        for field in ("functions", "num_warps", "num_stages", "registers")
    }
    (function,) = compile(replace(source, **numbers), source.signature(), target).functions
    return function


@pytest.mark.parametrize(
    ("name", "phase", "target"),
    [
        ("gradients", 1, "sm_90"),
        ("gradients", 2, "sm_90"),
        ("gradients", 1, "gfx942"),
        ("float32", 0, "sm_90"),
        ("float32", 0, "gfx1201"),
        ("bytes", 1, "sm_90"),
        ("floats8", 1, "sm_90"),
        ("floats8", 1, "gfx1201"),
        ("attention", 0, "sm_90"),
        ("convolution", 2, "sm_90"),
        pytest.param("gradients", 2, "sm_120", marks=pytest.mark.slow),
        pytest.param("gradients", 2, "gfx942", marks=pytest.mark.slow),
        pytest.param("gradients", 2, "gfx1201", marks=pytest.mark.slow),
        pytest.param("float32", 0, "sm_120", marks=pytest.mark.slow),
        pytest.param("float32", 0, "gfx942", marks=pytest.mark.slow),
        pytest.param("bytes", 1, "gfx942", marks=pytest.mark.slow),
        pytest.param("floats8", 1, "sm_120", marks=pytest.mark.slow),
        pytest.param("floats8", 1, "gfx942", marks=pytest.mark.slow),
        pytest.param("attention", 0, "sm_120", marks=pytest.mark.slow),
        pytest.param("attention", 0, "gfx942", marks=pytest.mark.slow),
        pytest.param("attention", 0, "gfx1201", marks=pytest.mark.slow),
        pytest.param("convolution", 2, "sm_120", marks=pytest.mark.slow),
        pytest.param("convolution", 2, "gfx942", marks=pytest.mark.slow),
    ],
)
def test_matrix_instructions(name: str, phase: int, target: str) -> None:
    function = compiled(name, phase, target)
    assert MATRIX[target] in function.assembly
    if target == "sm_90":
        assert resources(function).spilled <= 128  # a few addresses, but no part of a sum


def test_floats_of_8_bits_go_to_the_matrix_unit_as_they_are() -> None:
    assert "f32.e4m3.e5m2" in compiled("floats8", 1, "sm_90").assembly
    (kernel,) = kernels("floats8")
    assert "tl.bfloat16" in render(kernel, target="sm_80").text


def test_the_longest_rows_of_attention_come_first() -> None:
    """And blocks that follow each other are of several heads, which share no keys."""
    (kernel,) = kernels("attention")
    assert [axis.name for axis in kernel.phases[0].grid] == ["i0", "ib", "i1"]
    assert "for jb in range(ib * -2 + 8):" in render(kernel).text


@pytest.mark.parametrize(
    ("shape", "causal"),
    [(("bfloat16", 2, 6, 2048, 128), True), (("float16", 1, 1, 2048, 64), False)],
)
def test_attention_by_roles(
    shape: tuple[Any, ...], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups multiply what a third copies, and only the first visit is masked."""
    monkeypatch.setattr(Pretended, "chip", replace(CHIP, groups=2, l2_bytes=8 << 20))
    attend: Any = functional.scaled_dot_product_attention
    (kernel,) = kernels_of(lambda q, k, v: attend(q, k, v, is_causal=causal), *[shape] * 3)
    axes = {axis.name: axis.extent for axis in kernel.phases[0].grid}
    assert axes["part"] == 2 and axes.get("i1t", 1) == (3 if causal else 1)  # heads in the cache
    wanted = request(kernel, "sm_90")
    programs, blocks = (prod(_factors(g[0])) for g in (wanted.grids, wanted.loose_grids or ()))
    assert blocks == 2 * programs  # where memory is not aligned, every block is a program
    _, multiplying = wanted.source.text.split("_multiplying(", 2)[:2]
    before, _, loop = multiplying.partition("for step in")
    assert ("tl.where(mask" in before) is causal and "mask" not in loop
    (function,) = compile(wanted.source, wanted.signature(), "sm_90").functions
    assert function.num_warps == 12
    assert all(word in function.assembly for word in ("wgmma.mma_async", "setmaxnreg", "cp.async"))
    assert resources(function).spilled <= 64  # addresses, of the group that copies


def _factors(count: Any) -> list[int]:
    """The numbers that a count of blocks is the product of."""
    return [count] if isinstance(count, int) else _factors(count[1]) + _factors(count[2])


@pytest.mark.parametrize(
    "inputs",
    [
        [("bfloat16", 2, 4, 2050, 128)] * 3,  # the last tile is not whole
        [("bfloat16", 2, 4, 2048, 80)] * 3,  # neither are features
        [("float32", 2, 4, 2048, 128)] * 3,
        [("bfloat16", 2, 4, 2048, 256)] * 3,  # too wide
        [("bfloat16", 2, 4, 1024, 128)] * 3,  # too few keys
    ],
)
def test_other_attention_is_by_blocks(inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretended, "chip", replace(CHIP, groups=2))
    kernel = kernels_of(attention, *inputs)[-1]
    assert by_roles(kernel, "sm_90") is None
    assert "part" not in [axis.name for axis in kernel.phases[0].grid]


def test_an_image_is_copied_in_whole_tiles() -> None:
    """Rows of 28 pixels are one run of 784 before and after."""
    (kernel,) = kernels("convolution")
    text = render(kernel).text.split("def contract_1")[0]
    assert "% 28" not in text and "// 28" not in text
    assert "mask=" in text  # 784 is no multiple of 64


def test_operands_are_copied_as_matrix_units_read_them() -> None:
    (kernel,) = kernels_of(
        lambda x, w: x @ w.to(genesis.bfloat16), ("bfloat16", 4096, 5000), ("float32", 5000, 1024)
    )
    packed = {b.name: (b.dtype.name, b.shape) for b in kernel.buffers if "packed" in b.name}
    assert list(packed.values()) == [("bfloat16", (5056, 1024))]  # with zeros at the end


def test_uneven_rows_lie_in_memory_with_zeros_at_their_ends() -> None:
    """A product and its gradients by either operand: nothing else is copied, nothing masked."""

    def step(x: Any, w: Any) -> Any:
        scores = x @ w.to(genesis.bfloat16).T
        weights = genesis.softmax(scores.float(), -1).to(genesis.bfloat16)
        return weights @ w.to(genesis.bfloat16), weights.T @ x

    kernels = kernels_of(step, ("bfloat16", 8192, 768), ("float32", 5003, 768))
    products = [k for k in kernels if "tl.dot" in render(k, target="sm_90").text]
    assert len(products) == 3
    for kernel in products:
        loop = render(kernel, target="sm_90").text.split("for k")[1].split("tl.dot")[0]
        assert len(kernel.phases) == 1 and "mask" not in loop
    written = [b.shape for k in kernels for b in k.buffers if b.role is Role.OUTPUT]
    assert [shape for shape in written if 5120 in shape] == [(5120, 768), *[(8192, 5120)] * 2]


def outputs(kernel: Kernel) -> list[tuple[str, tuple[Any, ...]]]:
    return [(b.dtype.name, b.shape) for b in kernel.buffers if b.role is Role.OUTPUT]


def test_weights_that_several_products_multiply_are_rounded_once() -> None:
    def there_and_back(x: Any, w: Any) -> Any:
        narrow = w.to(genesis.bfloat16)
        return (x @ narrow) @ narrow.T

    rounding, *products = kernels_of(there_and_back, ("bfloat16", 4096, 512), ("float32", 512, 256))
    assert outputs(rounding) == [("bfloat16", (512 * 256,))]
    assert len(products) == 2 and all(len(k.phases) == 1 for k in products)


def test_what_is_stored_in_any_case_is_stored_by_a_kernel_that_reads_it() -> None:
    """What is made of centred rows is rounded for a product, and summed later as it is."""

    def step(a: Any, b: Any, c: Any, w: Any) -> Any:
        x = (a - a.mean(-1, keepdim=True)) * b + c
        return x.to(genesis.bfloat16) @ w, x.sum(0)

    kernels = kernels_of(step, *[("float32", 4096, 768)] * 3, ("bfloat16", 768, 768))
    made = sorted(outputs(kernels[0]))
    assert made == [("bfloat16", (4096, 768)), ("float32", (4096, 768))]
    assert len(kernels) == 3


def test_sums_of_columns_that_share_a_kernel_keep_the_chip_busy() -> None:
    shapes = ("float32", 16384, 768), ("bfloat16", 16384, 768)
    (kernel,) = kernels_of(lambda x, y: (x.sum(0), (x * y).sum(0), y.float().sum(0)), *shapes)
    first = kernel.phases[0]
    assert len(kernel.phases) == 2 and prod(a.extent for a in first.grid) >= 2 * 132
    assert sum(isinstance(s, Loop) for s in first.body) == 1  # rows are read once for all sums


def test_sums_whose_factors_lie_differently_are_cut_together() -> None:
    """The gradients of batch norm: what comes from a convolution has its channels last."""
    shapes = ("bfloat16", 32, 56, 56, 64), ("bfloat16", 32, 64, 56, 56)

    def sums(g: Any, x: Any) -> Any:
        g = g.permute(0, 3, 1, 2).float()
        return (g * x).sum((0, 2, 3)), g.sum((0, 2, 3))

    kernels = kernels_of(sums, *shapes)
    blocks = [prod(a.extent for a in k.phases[0].grid) for k in kernels]
    assert min(blocks) >= 32, blocks


def test_statistics_of_channels_that_are_results_leave_all_blocks_the_rest() -> None:
    """Few blocks, one for some channels each, would go through all that is normalised."""

    def normal(x: Any) -> Any:
        mean = x.mean((0, 2, 3), keepdim=True)
        rstd = ((x - mean).square().mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
        return (x - mean) * rstd, rstd

    kernels = kernels_of(normal, ("float32", 32, 64, 56, 56))
    large = [k for k in kernels if any(prod(shape) > 64 for _, shape in outputs(k))]
    assert large and all(prod(a.extent for a in k.phases[-1].grid) >= 132 for k in large)


def test_columns_of_rearranged_rows_are_summed_as_they_lie() -> None:
    """The gradient of a bias of queries, keys and values, which lie apart."""
    shape = ("bfloat16", 3, 16, 12, 1024, 64)
    (kernel,) = kernels_of(lambda x: x.permute(1, 3, 0, 2, 4).reshape(-1, 2304).sum(0), shape)
    (load,) = {n for s in walk(kernel.phases[0].body) for n in loads_of(s)}
    assert load.inputs[len(load.attr.shape) - 1].op is ops.AXIS  # lanes are neighbours in memory


def loads_of(s: Statement) -> list[Node]:
    return [n for n in topological(expressions(s)) if n.op is ops.LOAD]


def test_few_reads_are_worth_no_copy() -> None:
    shapes = (("bfloat16", 64, 4096), ("float32", 4096, 1024))
    (kernel,) = kernels_of(lambda x, w: x @ w.to(genesis.bfloat16), *shapes)
    assert not any("packed" in b.name for b in kernel.buffers)


def test_the_gradient_of_a_table_is_shared_by_its_rows() -> None:
    shapes = (("int64", 4096), ("float32", 4096, 768), ("float32", 50257, 768))
    kernels = kernels_of(lambda at, x, table: table.index_add(0, at, x), *shapes)
    grids = [p.grid for k in kernels for p in k.phases if any(a.name == "share" for a in p.grid)]
    assert len(grids) == 1 and 16 * 132 < prod(a.extent for a in grids[0]) <= 32 * 132


def test_gradients_of_attention_are_never_as_large_as_scores() -> None:
    *_, sweep = kernels("gradients")
    sizes = {b.name: b.shape for b in sweep.buffers}
    assert all(shape[2:] in ((512,), (512, 128)) for shape in sizes.values()), sizes
    # Converted on the way to memory, by two passes after what rows alone decide.
    assert {b.dtype.name for b in sweep.buffers if b.name.startswith("y")} == {"bfloat16"}
    assert len(sweep.phases) == 3
    text = render(sweep).text
    assert text.count("tl.dot(") == 3 + 4
    # Sums are added to by the products themselves, which nobody waits for.
    assert [text.count(f", sum{k}, out_dtype") for k in (0, 1)] == [2, 1]
    # Tiles past the diagonal are not visited, and only those on it are masked.
    assert "in range(64)" not in text
    assert text.count("if ") == 2


def test_a_reduction_is_given_to_those_who_need_it_later() -> None:
    found = kernels_of(lambda x: functional.logsumexp(x, 1).mean(), ("float32", 512, 5000))
    reads = [k for k in found if any(b.shape == (512, 5000) for b in k.buffers)]
    assert len(reads) == 1 and len(found) == 2


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("highest", 'input_precision="bf16x6"'), ("high", 'input_precision="bf16x3"'),
     ("medium", "tl.cast(tl.load(a0_ptr")],
)  # fmt: skip
def test_precisions_of_float32(precision: str, expected: str) -> None:
    (kernel,) = kernels("float32")
    assert expected in render(kernel, precision).text


def test_precision_is_set_for_all() -> None:
    assert genesis.get_float32_matmul_precision() == "highest"
    try:
        genesis.set_float32_matmul_precision("medium")
        assert genesis.get_float32_matmul_precision() == "medium"
        with pytest.raises(ValueError, match="'low' is none of 'highest', 'high', 'medium'"):
            genesis.set_float32_matmul_precision("low")
    finally:
        genesis.set_float32_matmul_precision("highest")


def spread(x: Any) -> Any:
    """Every row goes to the same place, which is data."""
    return genesis.zeros(2, 3).index_add(0, x[0, 0].long().expand(17), x)


def nowhere(x: Any) -> Any:
    """Rows without elements go somewhere."""
    return x[:, :0].index_add(0, x[:2, 0].long(), x[:2, :0])


def summed(a: Any, b: Any) -> Any:
    """Integers, summed over two short axes."""
    return genesis.einsum("kil,lkj->ij", a, b)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x[:, 1:1] * 2, [("float32", 3, 4)]),
        (lambda x: functional.cat([x[:, :0], x[:, 1:1]], 1) * 2, [("float32", 30, 4)]),
        (spread, [("float32", 17, 3)]),
        (nowhere, [("float32", 3, 4)]),
        (summed, [("int64", 8, 4, 2), ("int64", 2, 8, 8)]),
    ],
)
def test_what_random_programs_found_compiles(
    function: Callable[..., Any], inputs: list[tuple[Any, ...]]
) -> None:
    for kernel in kernels_of(function, *inputs):
        source = render(kernel, target="sm_90")
        assert compile(source, source.signature(), "sm_90").functions


def test_an_element_that_may_stay_is_stored_under_a_condition() -> None:
    """By the kernel that finds out, which does not read what is there."""

    def keep_the_greatest(x: Any, seen: Any) -> None:
        most = seen.amax()
        x[3:4] = genesis.where(most >= 100, most, x[3:4])

    (kernel,) = kernels_of(keep_the_greatest, ("int64", 64), ("int64", 512))
    (store,) = [s for s in walk(kernel.phases[0].body) if isinstance(s, Store)]
    assert store.mask.op is ops.LE and store.buffer.role is Role.INOUT
    assert [b.shape for b in kernel.buffers] == [(512,), (64,)]
    for most in (99, 100):
        x = genesis.arange(64)
        genesis.jit(keep_the_greatest)(x, genesis.tensor([most, 7]))
        keep_the_greatest(y := genesis.arange(64), genesis.tensor([most, 7]))
        want = [3 if k == 3 and most < 100 else 100 if k == 3 else k for k in range(64)]
        assert x.tolist() == y.tolist() == want
