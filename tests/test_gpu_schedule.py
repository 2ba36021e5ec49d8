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
from genesis.backends.cuda.compile import CompiledFunction, compile, resources
from genesis.backends.cuda.render import render
from genesis.compiler.options import using
from genesis.ir.kernel import Kernel
from genesis.ndarray import realisation
from genesis.ndarray.explain import explain

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


def test_an_image_is_copied_in_whole_tiles() -> None:
    """Rows of 28 pixels are one run of 784 before and after."""
    (kernel,) = kernels("convolution")
    text = render(kernel).text.split("def contract_1")[0]
    assert "% 28" not in text and "// 28" not in text
    assert "mask=" in text  # 784 is no multiple of 64


def test_operands_are_copied_as_matrix_units_read_them() -> None:
    (kernel,) = kernels_of(
        lambda x, w: x @ w.to(genesis.bfloat16), ("bfloat16", 4096, 5003), ("float32", 5003, 1024)
    )
    packed = {b.name: (b.dtype.name, b.shape) for b in kernel.buffers if "packed" in b.name}
    shapes = [("bfloat16", (4096, 5056)), ("bfloat16", (5056, 1024))]  # with zeros at the ends
    assert list(packed.values()) == shapes
    product = render(kernel, target="sm_90").text.split("def ")[-2]
    assert "tl.dot" in product and "mask" not in product and product.count("tl.cast") == 1


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
